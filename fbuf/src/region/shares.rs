//! What a path knows of the pages of one of its runs: references by messages, pages that the
//! originator is to be told about, and domains that were given single pages.

use alloc::{sync::Arc, vec::Vec};
use core::ops::Range;

use super::{
    MOST_MEMBERS,
    bits::{PageCounts, PageSet},
    domain::Domain,
    run::Run,
};
use crate::counters::Counter;
use abi::{Errno, Result};

/// The most domains that have been given pages of one run.
const MOST_GRANTEES: usize = 64;

/// The domains that read all runs of a path: its originator, and receivers if it is cached.
pub(super) type Readers = [Option<Arc<Domain>>; MOST_MEMBERS + 1];

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

/// Pages that a domain may read because a message includes them.
struct Grant {
    domain: Arc<Domain>,
    pages: PageSet,
}

impl RunShares {
    /// # Errors
    /// `ENOMEM`.
    pub fn new(run: Arc<Run>, originator: Arc<Domain>) -> Result<RunShares> {
        Ok(RunShares {
            originator: Some(originator),
            references: PageCounts::new(run.pages())?,
            noticed: PageSet::new(run.pages())?,
            grants: Vec::new(),
            run,
        })
    }

    /// Returns the bytes that a run of this many pages takes here and in itself.
    pub fn bytes_for(pages: usize) -> usize {
        pages * 2 + pages / 8 * 2 + 256
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
    pub fn are_secured(&self, mut pages: Range<usize>) -> bool {
        pages.all(|page| self.run.is_secured(page))
    }

    /// Whether the domain was given all these pages.
    pub fn is_granted(&self, domain: &Arc<Domain>, pages: Range<usize>) -> bool {
        let grant = self
            .grants
            .iter()
            .find(|it| Arc::ptr_eq(&it.domain, domain));
        grant.is_some_and(|grant| grant.pages.next_range(pages, false).is_none())
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

    /// Gives the domain those of `pages` that it was not given yet; maps them unless it
    /// `reads_all` of the path's runs.
    ///
    /// # Errors
    /// `EUSERS` for too many domains, `ENOMEM`; some pages may have been given then.
    pub fn grant(
        &mut self,
        domain: &Arc<Domain>,
        pages: Range<usize>,
        reads_all: bool,
    ) -> Result<()> {
        let is_it = |grant: &Grant| Arc::ptr_eq(&grant.domain, domain);
        let at = match self.grants.iter().position(is_it) {
            Some(at) => at,
            None => {
                if self.grants.len() >= MOST_GRANTEES {
                    self.grants.retain(|grant| !grant.domain.has_ended());
                }
                if self.grants.len() >= MOST_GRANTEES {
                    return Err(Errno::EUSERS);
                }
                let pages = PageSet::new(self.run.pages())?;
                self.grants.try_reserve(1)?;
                let domain = domain.clone();
                self.grants.push(Grant { domain, pages });
                self.grants.len() - 1
            }
        };
        let Some(grant) = self.grants.get_mut(at) else {
            return Ok(());
        };
        let mut rest = pages;
        while let Some(part) = grant.pages.next_range(rest.clone(), false) {
            rest.start = part.end;
            if !reads_all {
                domain.map(&self.run, part.clone(), false)?;
                Counter::fbuf_grants.add(part.len() as u64);
            }
            grant.pages.set_all(part, true);
        }
        Ok(())
    }

    /// Adds a reference to each page. [`check_room`](RunShares::check_room) came before.
    pub fn refer(&mut self, pages: Range<usize>) {
        self.references.add(pages.clone());
        self.run.wake(pages);
    }

    /// Removes the right to write those of `pages` that still may be written.
    ///
    /// # Errors
    /// `EBUSY` if a device may be writing them; a part may be secured then.
    pub fn secure(&mut self, pages: Range<usize>) -> Result<()> {
        let mut rest = pages;
        while let Some(part) = self.run.next_secured(rest.clone(), false) {
            rest.start = part.end;
            self.run.set_secured(part.clone(), true);
            if !self.run.protect(part.clone(), self.originator.as_deref()) {
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

    /// Drops a reference to each page. Pages without one are withdrawn from the domains that were
    /// given them and may be written again; with `notes`, they are noted for the originator.
    /// Returns how many notes are new.
    pub fn unrefer(&mut self, pages: Range<usize>, notes: bool, readers: &Readers) -> usize {
        self.references.subtract(pages.clone());
        self.withdraw_unreferenced(pages, notes, readers)
    }

    /// Withdraws pages without references.
    fn withdraw(&mut self, pages: Range<usize>, notes: bool, readers: &Readers) -> usize {
        if self.run.set_secured(pages.clone(), false) > 0
            && let Some(originator) = &self.originator
        {
            originator.widen(&self.run, pages.clone());
        }
        for grant in &mut self.grants {
            let mut rest = pages.clone();
            while let Some(part) = grant.pages.next_range(rest.clone(), true) {
                rest.start = part.end;
                let mut readers = readers.iter().flatten();
                if !readers.any(|reader| Arc::ptr_eq(reader, &grant.domain)) {
                    grant.domain.unmap(&self.run, part.clone());
                }
                grant.pages.set_all(part, false);
            }
        }
        self.grants.retain(|grant| grant.pages.count() > 0);
        match notes {
            true => self.noticed.set_all(pages, true),
            false => 0,
        }
    }

    /// Withdraws those of `pages` that have no reference. Returns how many notes are new.
    pub fn withdraw_unreferenced(
        &mut self,
        pages: Range<usize>,
        notes: bool,
        readers: &Readers,
    ) -> usize {
        let mut rest = pages;
        let mut noted = 0;
        while let Some(part) = self.references.next_range(rest.clone(), true) {
            rest.start = part.end;
            noted += self.withdraw(part, notes, readers);
        }
        noted
    }

    /// The address space of a domain goes away.
    pub fn forget_domain(&mut self, domain: &Arc<Domain>) {
        self.grants
            .retain(|grant| !Arc::ptr_eq(&grant.domain, domain));
    }

    /// A domain that could read all of the run has left the path: it keeps what messages of other
    /// paths include, as far as memory lasts.
    pub fn leave_granted(&self, domain: &Arc<Domain>) {
        domain.unmap(&self.run, 0..self.run.pages());
        let grants = self.grants.iter();
        for grant in grants.filter(|it| Arc::ptr_eq(&it.domain, domain)) {
            let mut rest = 0..self.run.pages();
            while let Some(part) = grant.pages.next_range(rest.clone(), true) {
                rest.start = part.end;
                // Without memory it reads as the empty region.
                let _ = domain.map(&self.run, part, false);
            }
        }
    }

    /// Whether any domain was given pages.
    pub fn has_grants(&self) -> bool {
        !self.grants.is_empty()
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
