//! What a path knows of the pages of one of its runs: references by messages, pages that the
//! originator is to be told about, and domains that were given single pages.

use alloc::{sync::Arc, vec::Vec};
use core::ops::Range;

use abi::{Errno, Result};
use nucleus::try_filled;

use super::{MOST_MEMBERS, bits::PageSet, domain::Domain, run::Run};
use crate::counters::Counter;

/// The most domains that have been given pages of one run.
const MOST_GRANTEES: usize = 64;

/// The domains that read all runs of a path: its originator, and receivers if it is cached.
pub(super) type Readers = [Option<Arc<Domain>>; MOST_MEMBERS + 1];

/// The state of a run. [guarded by the lock of the path]
pub(super) struct RunShares {
    pub run: Arc<Run>,
    /// Messages that include each page.
    references: Vec<u16>,
    /// Pages with references.
    referenced: usize,
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
    pub fn new(run: Arc<Run>) -> Result<RunShares> {
        Ok(RunShares {
            references: try_filled(run.pages(), 0)?,
            referenced: 0,
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
        self.referenced > 0
    }

    /// Returns how many notices wait.
    pub fn notices(&self) -> usize {
        self.noticed.count()
    }

    /// Whether each of these pages is in some message.
    pub fn are_referenced(&self, pages: Range<usize>) -> bool {
        let references = self.references.get(pages);
        references.is_some_and(|references| references.iter().all(|&count| count > 0))
    }

    /// Whether nobody may write any of these pages.
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
        let references = self.references.get(pages).ok_or(Errno::EFAULT)?;
        match references.iter().all(|&count| count < u16::MAX) {
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
        let first = pages.start;
        let Some(references) = self.references.get_mut(pages) else {
            return;
        };
        for (page, count) in (first..).zip(references) {
            self.referenced += usize::from(*count == 0);
            *count += 1;
            self.run.wake(page);
        }
    }

    /// Removes the right to write those of `pages` that still may be written.
    ///
    /// # Errors
    /// `EBUSY` if a device may be writing them; a part may be secured then.
    pub fn secure(&mut self, pages: Range<usize>) -> Result<()> {
        let mut rest = pages;
        while let Some(start) = rest.find(|&page| !self.run.is_secured(page)) {
            let end = rest.find(|&page| self.run.is_secured(page));
            let part = start..end.unwrap_or(rest.end);
            for page in part.clone() {
                self.run.set_secured(page, true);
            }
            if !self.run.protect(part.clone()) {
                for page in part {
                    self.run.set_secured(page, false);
                }
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
        let references = self.references.get(pages.clone()).ok_or(Errno::EFAULT)?;
        let is_free = references.iter().all(|&count| count == 0);
        match is_free && self.run.set_idle(pages) {
            true => Ok(()),
            false => Err(Errno::EBUSY),
        }
    }

    /// Drops a reference to each page. Pages without one are withdrawn from the domains that were
    /// given them and may be written again; with `notes`, they are noted for the originator.
    /// Returns how many notes are new.
    pub fn unrefer(&mut self, pages: Range<usize>, notes: bool, readers: &Readers) -> usize {
        let mut rest = pages;
        let mut noted = 0;
        while rest.start < rest.end {
            let start = rest.start;
            let last = |shares: &RunShares, page| shares.references.get(page) == Some(&1);
            let is_last = last(self, start);
            let end = (start..rest.end).find(|&page| last(self, page) != is_last);
            let part = start..end.unwrap_or(rest.end);
            rest.start = part.end;
            if let Some(references) = self.references.get_mut(part.clone()) {
                for count in references {
                    *count = count.saturating_sub(1);
                }
            }
            if is_last {
                self.referenced -= part.len();
                noted += self.withdraw(part, notes, readers);
            }
        }
        noted
    }

    /// Withdraws pages without references.
    fn withdraw(&mut self, pages: Range<usize>, notes: bool, readers: &Readers) -> usize {
        for page in pages.clone() {
            self.run.set_secured(page, false);
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

    /// Withdraws those of `pages` that have no reference, after a message was not sent.
    pub fn withdraw_unreferenced(&mut self, pages: Range<usize>, readers: &Readers) {
        let mut rest = pages;
        while rest.start < rest.end {
            let start = rest.start;
            let is_free = |page| self.references.get(page) == Some(&0);
            let free = is_free(start);
            let end = (start..rest.end).find(|&page| is_free(page) != free);
            let part = start..end.unwrap_or(rest.end);
            rest.start = part.end;
            if free {
                self.withdraw(part, false, readers);
            }
        }
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

    /// Takes the first range of pages that the originator is to be told about.
    pub fn take_notice(&mut self) -> Option<Range<usize>> {
        let range = self.noticed.next_range(0..self.run.pages(), true)?;
        self.noticed.set_all(range.clone(), false);
        Some(range)
    }
}
