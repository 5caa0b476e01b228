//! Bytes of files and queues that become contents of fbufs: the originator gives free fbufs, and
//! whole pages get into them by a handle to their frame. As long as the file has the page, too, a
//! store into either copies it first.

use alloc::sync::Arc;
use core::ops::Range;

use abi::{Errno, Result};
use nucleus::{
    PAGE_SIZE, ephemeral,
    frame::{Contents, Owned},
};
use vm::Pager;

use super::{
    domain::Domain,
    path::{Path, State},
    run::Run,
};
use crate::{counters::Counter, io::Moving, io::moved};

impl Path {
    /// Checks that bytes at these addresses lie in a run, and that no message includes their pages.
    ///
    /// # Errors
    /// `EPERM` for another domain than the originator, `EFAULT` for other memory, `EBUSY`.
    pub fn check_free(&self, domain: &Arc<Domain>, bytes: Range<u64>) -> Result<()> {
        self.state.lock().free_pages(domain, bytes).map(drop)
    }

    /// Puts bytes at an address. Pages that they fill in part have zeros beside them. Returns how
    /// many bytes were put.
    ///
    /// # Errors
    /// Those of [`check_free`](Path::check_free); `ENOMEM`, when none was put.
    pub fn put(&self, domain: &Arc<Domain>, at: u64, mut from: Moving) -> Result<usize> {
        let mut state = self.state.lock();
        let (run, pages) = state.free_pages(domain, at..at + from.len() as u64)?;
        run.wake(pages.clone());
        // Nothing of it is sent, secured or retired while the path is locked.
        let offset = (at as usize) % PAGE_SIZE;
        let mut to = Putting {
            run,
            page: pages.start,
            offset,
            part: None,
            begun: offset,
            done: 0,
        };
        let put = to.put_all(&mut from);
        moved(to.done, put)
    }
}

impl State {
    fn free_pages(
        &mut self,
        domain: &Arc<Domain>,
        bytes: Range<u64>,
    ) -> Result<(Arc<Run>, Range<usize>)> {
        self.check_originator(domain)?;
        let last = bytes.end.checked_sub(1).filter(|&last| last >= bytes.start);
        let run = self.run_at(bytes.start).ok_or(Errno::EFAULT)?;
        let first = run.page_at(bytes.start).ok_or(Errno::EFAULT)?;
        let last = last.unwrap_or(bytes.start);
        let last = run.page_at(last).ok_or(Errno::EFAULT)?;
        let pages = first..last + 1;
        let shares = self.shares(&run).ok_or(Errno::EFAULT)?;
        match shares.is_free(pages.clone()) {
            true => Ok((run, pages)),
            false => Err(Errno::EBUSY),
        }
    }
}

/// Bytes on their way into a run.
struct Putting {
    run: Arc<Run>,
    /// Where the next byte goes.
    page: usize,
    offset: usize,
    /// That page, if bytes are copied into it, the first of them at `begun`.
    part: Option<Owned>,
    begun: usize,
    /// Bytes in pages that are there.
    done: usize,
}

impl Putting {
    fn put_all(&mut self, from: &mut Moving) -> Result<()> {
        while let Some(mut slice) = from.pop_front() {
            if self.offset == 0 && slice.len == PAGE_SIZE {
                match slice.into_page() {
                    Ok(page) => {
                        self.place(page)?;
                        Counter::fbuf_bytes_taken.add(PAGE_SIZE as u64);
                        continue;
                    }
                    Err(other) => slice = other,
                }
            }
            let mut at = 0;
            while at < slice.len {
                let count = (slice.len - at).min(PAGE_SIZE - self.offset);
                let part = match self.part.take() {
                    Some(part) => part,
                    None => vm::alloc_frame(Contents::Zeroed)?.into(),
                };
                let start = slice.offset + at;
                ephemeral::copy(&part, self.offset, slice.frame(), start, count);
                at += count;
                self.offset += count;
                match self.offset {
                    PAGE_SIZE => self.place(part)?,
                    _ => self.part = Some(part),
                }
            }
        }
        match self.part.take() {
            Some(part) => self.place(part),
            None => Ok(()),
        }
    }

    /// Makes a page the next one of the run.
    fn place(&mut self, page: Owned) -> Result<()> {
        let put = self.run.object().replace(self.page as u64, page, || true);
        put.map_err(|_| Errno::ENOMEM)?;
        let end = match self.offset {
            0 => PAGE_SIZE,
            offset => offset,
        };
        self.done += end - self.begun;
        self.page += 1;
        self.offset = 0;
        self.begun = 0;
        Ok(())
    }
}
