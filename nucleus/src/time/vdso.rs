//! What programs call for the time without a system call: a shared object and the page of numbers
//! behind it.
//!
//! Every program has both mapped, one after the other; the numbers are the kernel's own, so a
//! program that asks here gets what a system call gives at that instant.

use alloc::vec::Vec;

use crate::{
    Frame,
    lock::{OnceBox, Rank, SpinLock},
};
#[cfg(target_os = "none")]
use crate::{PAGE_SIZE, frame::Contents, hw::machine};

/// The object's pages, and the page of numbers after them.
static PAGES: OnceBox<Vec<Frame>> = OnceBox::new();

/// Held by the changer of the numbers.
static CHANGING: SpinLock<()> = SpinLock::new(Rank::Leaf, ());

/// Makes the pages. Once, when memory and the clock are there. Without memory for them programs do
/// with system calls.
#[cfg(target_os = "none")]
pub(crate) fn start() {
    let image = machine::vdso_image();
    let mut pages = Vec::new();
    let parts = image.chunks(PAGE_SIZE).chain([&[][..]]);
    if pages.try_reserve_exact(parts.clone().count()).is_err() {
        return;
    }
    for part in parts {
        let Ok(frame) = Frame::alloc_direct(Contents::Zeroed) else {
            return;
        };
        // SAFETY: a new frame, which is in the direct map; a part is no longer than it.
        unsafe { core::ptr::copy_nonoverlapping(part.as_ptr(), frame.bytes(), part.len()) };
        pages.push(frame);
    }
    PAGES.get_or_insert(|| alloc::boxed::Box::new(pages));
}

/// The object's pages and the page of numbers, to be mapped in this order; empty if there are none.
pub fn pages() -> &'static [Frame] {
    PAGES.get().map_or(&[], |pages| pages)
}

/// Runs `change`, which gives the time from the epoch to boot in nanoseconds, and tells programs
/// what it gave.
pub(crate) fn publish(change: impl FnOnce() -> u64) {
    let _changing = CHANGING.lock();
    let epoch = change();
    #[cfg(target_os = "none")]
    if let Some(page) = pages().last() {
        let irqs = machine::irqs_disable();
        // SAFETY: the page belongs to these numbers for good, is aligned and zeroed, of which zero
        // is a valid value; programs only read it: their writes go to copies of their own.
        let numbers = unsafe { &*page.bytes().cast::<machine::VdsoNumbers>() };
        numbers.set(epoch);
        machine::irqs_restore(irqs);
    }
    #[cfg(not(target_os = "none"))]
    let _ = epoch;
}
