//! What a path knows of the pages of one of its runs: references by messages, pages that the
//! originator is to be told about, and domains that were given single pages. Such a domain has a
//! view of the run ([`ShownPages`]) mapped from its first page on, until it leaves the path or the
//! run ends, so that a message changes page-table entries and no map.

use alloc::{
    sync::{Arc, Weak},
    vec::Vec,
};
use core::ops::Range;

use abi::{Errno, Result};
use nucleus::pmap::Pending;
use vm::{
    ShownPages,
    account::{self, Charge, Kind},
};

use super::{
    bits::{PageCounts, PageSet},
    domain::Domain,
    run::Run,
};
use crate::counters::Counter;

/// The most domains that have been given pages of one run.
const MOST_GRANTEES: usize = 64;

/// The state of a run. [guarded by the lock of the path]
pub(super) struct RunShares {
    pub run: Arc<Run>,
    /// The domain that may write the pages, until it leaves the path.
    pub originator: Option<Arc<Domain>>,
    /// Messages that include each page.
    references: PageCounts,
    /// Pages that were freed since the originator asked.
    noticed: PageSet,
    grants: Vec<Grant>,
}

/// Pages that a domain may read because messages include them.
struct Grant {
    /// It may have ended, and its address space with it.
    domain: Weak<Domain>,
    view: Arc<ShownPages>,
    /// The domain has the view mapped, unless the program has replaced it: not while it reads the
    /// whole run.
    is_mapped: bool,
    /// Its memory.
    _charge: Option<Charge>,
}

impl RunShares {
    /// # Errors
    /// `ENOMEM`.
    pub fn new(run: Arc<Run>, originator: Option<Arc<Domain>>) -> Result<RunShares> {
        Ok(RunShares {
            originator,
            references: PageCounts::new(run.pages())?,
            noticed: PageSet::new(run.pages())?,
            grants: Vec::new(),
            run,
        })
    }

    /// Returns the bytes that a run of this many pages takes here and in itself.
    pub fn bytes_for(pages: usize) -> usize {
        // Counts of 16 bits; noticed, secured, idle.
        pages * 2 + pages / 8 * 3 + size_of::<RunShares>() + size_of::<Run>()
    }

    /// Whether a message includes any of its pages.
    pub fn is_referenced(&self) -> bool {
        self.references.counted() > 0
    }

    /// Returns how many notices wait.
    pub fn notices(&self) -> usize {
        self.noticed.count()
    }

    /// Whether each of these pages is in some message.
    pub fn are_referenced(&self, pages: Range<usize>) -> bool {
        self.references.next_range(pages, true).is_none()
    }

    /// Whether none of these pages is in a message.
    pub fn is_free(&self, pages: Range<usize>) -> bool {
        self.references.next_range(pages, false).is_none()
    }

    /// Whether all these pages are secured.
    pub fn are_secured(&self, pages: Range<usize>) -> bool {
        self.run.next_secured(pages, false).is_none()
    }

    /// Whether the domain was given all these pages.
    pub fn is_granted(&self, domain: &Arc<Domain>, pages: Range<usize>) -> bool {
        let grant = self.grants.iter().find(|it| it.is_of(domain));
        grant.is_some_and(|grant| grant.view.shown().next_range(pages, false).is_none())
    }

    /// Checks that every page can get one more reference.
    ///
    /// # Errors
    /// `EUSERS` if not, `EFAULT` for pages beyond the end.
    pub fn check_room(&self, pages: Range<usize>) -> Result<()> {
        match self.references.have_room(pages.clone()) {
            _ if pages.end > self.run.pages() => Err(Errno::EFAULT),
            true => Ok(()),
            false => Err(Errno::EUSERS),
        }
    }

    /// Sees to it that the domain can be [given](RunShares::give) `pages`: has a view mapped in it
    /// unless it `reads_all` of the path's runs.
    ///
    /// # Errors
    /// `EUSERS` for too many domains, `ENOMEM`; `EPERM` for pages of the kernel, in which there may
    /// be bytes of others, too, unless the domain reads all.
    pub fn prepare(
        &mut self,
        domain: &Arc<Domain>,
        pages: Range<usize>,
        reads_all: bool,
    ) -> Result<()> {
        if !reads_all && self.run.kernel_pages().is_some() {
            return Err(Errno::EPERM);
        }
        let at = match self.grants.iter().position(|it| it.is_of(domain)) {
            Some(at) => at,
            None => self.add_grant(domain)?,
        };
        let grant = self.grants.get_mut(at).ok_or(Errno::EUSERS)?;
        grant.view.prepare(pages).map_err(|_| Errno::ENOMEM)?;
        if !reads_all && !grant.is_mapped {
            domain.map_view(&self.run, &grant.view)?;
            grant.is_mapped = true;
        }
        Ok(())
    }

    /// Gives the domain those of `pages` that it was not given yet.
    ///
    /// # Errors
    /// Those of [`prepare`](RunShares::prepare), but not if nothing has changed since that.
    pub fn give(
        &mut self,
        domain: &Arc<Domain>,
        pages: Range<usize>,
        reads_all: bool,
    ) -> Result<()> {
        if !self.grants.iter().any(|it| it.is_of(domain)) {
            // It has left, or others have taken its place.
            self.prepare(domain, pages.clone(), reads_all)?;
        }
        let grant = self.grants.iter().find(|it| it.is_of(domain));
        let grant = grant.ok_or(Errno::EUSERS)?;
        let shown = grant.view.shown();
        let mut rest = pages;
        while let Some(part) = shown.next_range(rest.clone(), false) {
            rest.start = part.end;
            match grant.is_mapped {
                true => domain.show(&self.run, &grant.view, part),
                false => {
                    shown.set(part, true);
                }
            }
        }
        Ok(())
    }

    /// Makes a grant of nothing for a domain; returns its place.
    fn add_grant(&mut self, domain: &Arc<Domain>) -> Result<usize> {
        if self.grants.len() >= MOST_GRANTEES {
            let unused = self.grants.iter().position(Grant::is_unused);
            let unused = self.grants.remove(unused.ok_or(Errno::EUSERS)?);
            unused.end(&self.run);
        }
        self.grants.try_reserve(1)?;
        let pages = self.run.pages();
        let view = ShownPages::new(self.run.clone(), pages)?;
        let bytes = ShownPages::bytes_for(pages) + size_of::<Grant>();
        self.grants.push(Grant {
            domain: Arc::downgrade(domain),
            view,
            is_mapped: false,
            _charge: account::current().map(|it| it.charge(Kind::Fbufs, 0, bytes)),
        });
        Ok(self.grants.len() - 1)
    }

    /// Adds a reference to each page. [`check_room`](RunShares::check_room) came before.
    ///
    /// # Errors
    /// `EFAULT` for pages of the kernel that no receiver has: their bytes change.
    pub fn refer(&mut self, pages: Range<usize>) -> Result<()> {
        if let Some(kernels) = self.run.kernel_pages()
            && !kernels.refer(pages.clone())
        {
            return Err(Errno::EFAULT);
        }
        self.references.add(pages.clone());
        self.run.wake(pages);
        Ok(())
    }

    /// Removes the right to write those of `pages` that still may be written, once `pending` was
    /// flushed.
    ///
    /// # Errors
    /// `EBUSY` if a device may be writing them; a part may be secured then.
    pub fn secure(&mut self, pages: Range<usize>, pending: &mut Pending) -> Result<()> {
        let mut rest = pages;
        while let Some(part) = self.run.next_secured(rest.clone(), false) {
            rest.start = part.end;
            self.run.set_secured(part.clone(), true);
            let originator = self.originator.as_deref();
            if !self.run.protect(part.clone(), originator, pending) {
                self.run.set_secured(part, false);
                return Err(Errno::EBUSY);
            }
            Counter::fbuf_secured.add(part.len() as u64);
        }
        Ok(())
    }

    /// The contents of these pages are not needed any more.
    ///
    /// # Errors
    /// `EBUSY` if messages include some, or a device may be writing them.
    pub fn set_idle(&mut self, pages: Range<usize>) -> Result<()> {
        if pages.end > self.run.pages() {
            return Err(Errno::EFAULT);
        }
        match self.is_free(pages.clone()) && self.run.set_idle(pages, self.originator.as_deref()) {
            true => Ok(()),
            false => Err(Errno::EBUSY),
        }
    }

    /// Drops a reference to each page. Those that have none left are hidden from the domains that
    /// were given them, once `pending` was flushed; then the caller [frees](RunShares::free) them.
    pub fn unrefer(&mut self, pages: Range<usize>, pending: &mut Pending) {
        self.references.subtract(pages.clone());
        if let Some(kernels) = self.run.kernel_pages() {
            kernels.unrefer(pages.clone());
        }
        self.hide(pages, pending);
    }

    /// Hides those of `pages` that have no reference from the domains that were given them.
    fn hide(&mut self, pages: Range<usize>, pending: &mut Pending) {
        let mut rest = pages;
        while let Some(free) = self.references.next_range(rest.clone(), true) {
            rest.start = free.end;
            for grant in &mut self.grants {
                let mut rest = free.clone();
                while let Some(part) = grant.view.shown().next_range(rest.clone(), true) {
                    rest.start = part.end;
                    match grant.domain.upgrade().filter(|_| grant.is_mapped) {
                        Some(domain) => domain.hide(&self.run, &grant.view, part, pending),
                        None => {
                            grant.view.shown().set(part, false);
                        }
                    }
                }
            }
        }
    }

    /// Lets the originator write those of `pages` that have no reference, which are hidden; with
    /// `notes`, they are noted for it. Returns how many notes are new.
    pub fn free(&mut self, pages: Range<usize>, notes: bool) -> usize {
        let mut rest = pages;
        let mut noted = 0;
        while let Some(free) = self.references.next_range(rest.clone(), true) {
            rest.start = free.end;
            if self.run.set_secured(free.clone(), false) > 0
                && let Some(originator) = &self.originator
            {
                originator.widen(&self.run, free.clone());
            }
            if notes {
                noted += self.noticed.set_all(free, true);
            }
        }
        noted
    }

    /// The address space of a domain goes away.
    pub fn forget_domain(&mut self, domain: &Arc<Domain>) {
        self.grants.retain(|grant| !grant.is_of(domain));
    }

    /// A domain that has joined the path can read all of the run from now on.
    ///
    /// # Errors
    /// `ENOMEM`; nothing has changed then.
    pub fn join(&mut self, domain: &Arc<Domain>) -> Result<()> {
        let is_mapped = domain.map(&self.run, false);
        for grant in self.grants_of(domain) {
            grant.is_mapped = false;
        }
        if is_mapped.is_err() {
            self.leave(domain);
        }
        is_mapped
    }

    /// A domain that could read all of the run has left the path: it keeps what messages of other
    /// paths include, as far as memory lasts.
    pub fn leave(&mut self, domain: &Arc<Domain>) {
        domain.unmap(&self.run);
        let run = self.run.clone();
        for grant in self.grants_of(domain) {
            // Without memory it reads as the empty region.
            let is_used = !grant.view.shown().is_empty();
            grant.is_mapped = is_used && domain.map_view(&run, &grant.view).is_ok();
        }
        self.drop_unused(domain);
    }

    /// Ends the domain's grant if no message includes pages that it was given.
    pub fn drop_unused(&mut self, domain: &Arc<Domain>) {
        let is_unused = |grant: &Grant| grant.is_of(domain) && grant.is_unused();
        if let Some(at) = self.grants.iter().position(is_unused) {
            self.grants.remove(at).end(&self.run);
        }
    }

    fn grants_of(&mut self, domain: &Arc<Domain>) -> impl Iterator<Item = &mut Grant> {
        self.grants.iter_mut().filter(|it| it.is_of(domain))
    }

    /// The run ends: unmaps it in the domains that were given pages.
    pub fn end_grants(&mut self) {
        for grant in core::mem::take(&mut self.grants) {
            grant.end(&self.run);
        }
    }

    /// Takes the first range of pages that the originator is to be told about. Notices of pages
    /// that later messages include are withdrawn: those come again.
    pub fn take_notice(&mut self) -> Option<Range<usize>> {
        loop {
            let noticed = self.noticed.next_range(0..self.run.pages(), true)?;
            let free = self.references.next_range(noticed.clone(), true);
            let done = noticed.start..free.clone().map_or(noticed.end, |it| it.end);
            self.noticed.set_all(done, false);
            if free.is_some() {
                return free;
            }
        }
    }
}

impl Grant {
    fn is_of(&self, domain: &Arc<Domain>) -> bool {
        core::ptr::eq(self.domain.as_ptr(), Arc::as_ptr(domain))
    }

    /// Whether no message includes pages that its domain was given, or that has ended.
    fn is_unused(&self) -> bool {
        self.domain.strong_count() == 0 || self.view.shown().is_empty()
    }

    /// Unmaps the view.
    fn end(self, run: &Run) {
        if let Some(domain) = self.domain.upgrade().filter(|_| self.is_mapped) {
            domain.unmap(run);
        }
    }
}
