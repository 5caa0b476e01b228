//! Paths whose originator is the kernel (`fbufs.txt` 2.1.2, 3.2.2, 5.2): what a device or the
//! kernel writes is read by the path's receivers where it was written.
//!
//! Such a path is cached, and has one run, whose pages stay in memory. Which of them may be written
//! now is known by [`KernelPages`]. It is over with its [`Pool`]'s end, or with its last
//! descriptor.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use abi::{Errno, Result};
use nucleus::{Frame, PAGE_SIZE, VirtAddr, frame::check_not_scarce};

use super::{
    CHUNK, MOST_RUN_CHUNKS, Mode,
    kernel_pages::{KernelPages, Part},
    path::{Path, State},
    run::Run,
};
use crate::counters::Counter;

/// The pages of a path that the kernel originates. Its drop may sleep.
pub struct Pool {
    run: Arc<Run>,
    /// When its receiver last took something, in a count of such events.
    used: AtomicU64,
}

impl Pool {
    /// Makes a path of `chunks` chunks that the kernel originates, all of whose pages are there and
    /// charged to the caller. Receivers [attach](Path::attach) to the path.
    ///
    /// # Errors
    /// `EINVAL` for a number that is not allowed, `ENOSPC` beyond the limit of the user and where
    /// the region is full, `ENOMEM`.
    pub fn new(chunks: usize) -> Result<(Arc<Pool>, Arc<Path>)> {
        if !(1..=MOST_RUN_CHUNKS).contains(&chunks) {
            return Err(Errno::EINVAL);
        }
        check_not_scarce()?;
        let cached = Mode::from_bits(0).ok_or(Errno::EINVAL)?;
        let path = Path::make(None, cached, chunks)?;
        let run = match path.grow_for_kernel(chunks) {
            Ok(run) => run,
            Err(error) => {
                path.close();
                return Err(error);
            }
        };
        let used = AtomicU64::new(0);
        Ok((Arc::new(Pool { run, used }), path))
    }

    fn pages(&self) -> Option<&KernelPages> {
        self.run.kernel_pages()
    }

    /// Takes a frame to be filled by the caller, or by a device. Its page is filled anew as soon as
    /// all handles of it are gone, unless it was [given](Pool::give). `None` if all are in use, or
    /// after the end. Takes a spin lock; not for interrupts.
    pub fn take(&self) -> Option<Frame> {
        self.pages()?.take()
    }

    /// Gives the receiver a packet whose bytes lie in these frames, without a copy; false, and
    /// gives nothing, unless each is another one of the path's that was filled.
    pub fn give<'a>(&self, parts: impl Iterator<Item = (&'a Frame, usize, usize)> + Clone) -> bool {
        let is_given = self.pages().is_some_and(|it| it.give(parts.clone()));
        if is_given {
            let bytes: usize = parts.map(|it| it.2).sum();
            Counter::fbuf_kernel_bytes_passed.add(bytes as u64);
        }
        is_given
    }

    /// Gives the receiver a packet of `len` bytes, more than none, which `fill` copies: it gets a
    /// frame, the place in the packet of the frame's first byte, and how many bytes it takes. False
    /// without pages.
    pub fn give_copy(&self, len: usize, fill: impl FnMut(&Frame, usize, usize)) -> bool {
        let is_given = self.pages().is_some_and(|it| it.give_copy(len, fill));
        match is_given {
            true => Counter::fbuf_kernel_bytes_copied.add(len as u64),
            false => Counter::fbuf_kernel_missed.add(1),
        }
        is_given
    }

    /// Moves parts that wait to `to`, whole packets only, and calls `each` with the address and the
    /// bytes of each and whether more of its packet follow; returns how many there are.
    pub fn take_parts(
        &self,
        to: &mut [Part],
        mut each: impl FnMut(VirtAddr, usize, bool),
    ) -> usize {
        static EVENTS: AtomicU64 = AtomicU64::new(1);
        let Some(pages) = self.pages() else { return 0 };
        let count = pages.take_parts(to);
        for part in to.iter().take(count) {
            let page = part.page as usize;
            let start = self.run.addresses(page..page + 1).start;
            each(
                start + usize::from(part.offset),
                part.len.into(),
                part.has_more,
            );
        }
        if count > 0 {
            self.used.store(EVENTS.fetch_add(1, Relaxed), Relaxed);
        }
        count
    }

    /// Returns a number that is greater the later its receiver took something.
    pub fn last_use(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Whether parts wait for the receiver.
    pub fn has_parts(&self) -> bool {
        self.pages().is_some_and(KernelPages::has_parts)
    }

    /// The receiver is done with the part that begins in the page with this address.
    ///
    /// # Errors
    /// `EINVAL` for one that it does not have.
    pub fn free(&self, address: u64) -> Result<()> {
        let page = self.run.page_at(address).ok_or(Errno::EINVAL)?;
        let is_freed = self.pages().is_some_and(|it| it.free(page));
        is_freed.then_some(()).ok_or(Errno::EINVAL)
    }

    /// Returns how many pages are free, and how many may be written or shown by slices.
    pub fn counts(&self) -> [usize; 2] {
        self.pages().map_or([0; 2], KernelPages::counts)
    }

    /// Ends the path: pages whose bytes may change leave all its members. May sleep.
    pub fn end(&self) {
        self.run.path.end_kernel();
    }
}

impl Path {
    /// Gives a path of the kernel its run.
    fn grow_for_kernel(&self, chunks: usize) -> Result<Arc<Run>> {
        let mut state = self.state.lock();
        let pages = chunks * (CHUNK / PAGE_SIZE);
        self.add_run(&mut state, chunks, KernelPages::bytes_for(pages), |run| {
            run.fill_for_kernel()
        })
    }

    /// Ends a path of the kernel, once: no page is written any more that a member can read.
    pub(super) fn end_kernel(&self) {
        let mut state = self.state.lock();
        if !core::mem::replace(&mut state.is_kernels, false) {
            return;
        }
        for shares in &state.runs {
            shares.run.end_kernel();
        }
        self.retire_unused(&mut state);
        drop(state);
        self.end_waits();
    }
}

impl State {
    /// Whether the originator, a domain or the kernel, is there.
    pub fn has_originator(&self) -> bool {
        self.originator.is_some() || self.is_kernels
    }
}
