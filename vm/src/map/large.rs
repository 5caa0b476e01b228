//! Which memory may be in large pages, and how it must be aligned.

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};
use nucleus::{PAGE_SIZE, Prot, VirtAddr, VirtRange, frame::RUN_FRAMES};

use super::entry::MapEntry;
use super::request::{Backing, LargeAdvice, MapRequest};

/// The size of a large page, in bytes.
pub(crate) const SPAN: usize = RUN_FRAMES * PAGE_SIZE;

/// Which memory gets large pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum LargePages {
    /// None.
    Off,
    /// Memory with `MADV_HUGEPAGE`.
    Advised,
    /// That, and memory that is written sequentially.
    On,
}

static MODE: AtomicU8 = AtomicU8::new(LargePages::Off as u8);

/// Sets which memory gets large pages from now on.
pub fn set_large_pages(mode: LargePages) {
    MODE.store(mode as u8, Relaxed);
}

/// Returns which memory gets large pages.
pub fn large_pages() -> LargePages {
    match MODE.load(Relaxed) {
        1 => LargePages::Advised,
        2 => LargePages::On,
        _ => LargePages::Off,
    }
}

/// An address modulo [`SPAN`] at which large pages fit a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Phase(pub usize);

/// The 2 MiB around an address.
pub(crate) fn span_around(va: VirtAddr) -> VirtRange {
    let start = VirtAddr(va.0 & !(SPAN - 1));
    VirtRange::new(start, start + SPAN)
}

impl MapRequest {
    /// The address modulo 2 MiB at which large pages fit; `None` if none will be made.
    pub(super) fn phase(&self, len: usize) -> Option<Phase> {
        let may_come = len >= SPAN
            && !self.grows_down
            && self.large != LargeAdvice::Refused
            && large_pages() != LargePages::Off;
        match &self.backing {
            Backing::Zero if may_come => Some(Phase(0)),
            Backing::Object { pager, offset }
                if may_come && self.shared && pager.object().is_swap_backed() =>
            {
                Some(Phase(*offset as usize % SPAN))
            }
            _ => None,
        }
    }
}

impl MapEntry {
    /// Returns whether the entry's kind of private memory may be in large pages.
    pub(crate) fn may_be_large(&self) -> bool {
        self.object.is_none()
            && !self.shared
            && !self.needs_copy
            && !self.shares_amap()
            && !self.grows_down
            && self.large != LargeAdvice::Refused
            && self.prot & (Prot::WRITE | Prot::EXEC) == Prot::WRITE
    }

    /// Returns whether the entry's kind of shared memory may be in large pages.
    pub(crate) fn may_share_large(&self) -> bool {
        self.shared
            && self.large != LargeAdvice::Refused
            && !self.prot.contains(Prot::EXEC)
            && self
                .object
                .as_ref()
                .is_some_and(|object| object.pager.object().is_swap_backed())
    }

    /// Returns whether the object's pages for `span`, which lies in the entry, are aligned for a
    /// large page.
    pub(crate) fn fits_large(&self, span: VirtRange) -> bool {
        self.object.as_ref().is_none_or(|object| {
            self.index(object, span.start)
                .is_multiple_of(RUN_FRAMES as u64)
        })
    }

    /// Returns whether large pages may be in it, for `/proc`.
    pub(super) fn is_eligible(&self) -> bool {
        let wanted = self.large == LargeAdvice::Wanted;
        let first = VirtAddr(self.range.start.0.next_multiple_of(SPAN));
        (self.may_be_large() || self.may_share_large())
            && first <= self.range.end
            && self.range.end - first >= SPAN
            && self.fits_large(VirtRange::new(first, first + SPAN))
            && match large_pages() {
                LargePages::Off => false,
                LargePages::Advised => wanted,
                LargePages::On => true,
            }
    }
}
