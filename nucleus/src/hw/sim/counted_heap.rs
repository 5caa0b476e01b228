//! An allocator that counts, for tests of what the kernel's own structures take.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

/// The host's allocator, with counts of the bytes in use and of its calls. A test declares one
/// as its `#[global_allocator]`; what the simulated machine itself allocates is counted, too.
pub struct CountedHeap {
    bytes: AtomicUsize,
    calls: AtomicUsize,
}

impl CountedHeap {
    /// Nothing allocated.
    pub const fn new() -> CountedHeap {
        CountedHeap {
            bytes: AtomicUsize::new(0),
            calls: AtomicUsize::new(0),
        }
    }

    /// Bytes in use now.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// Allocations and frees until now.
    pub fn calls(&self) -> usize {
        self.calls.load(Relaxed)
    }
}

impl Default for CountedHeap {
    fn default() -> CountedHeap {
        CountedHeap::new()
    }
}

// SAFETY: every block is the system allocator's, and goes back to it with the layout that it was
// asked for with; counting allocates nothing.
unsafe impl GlobalAlloc for CountedHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.bytes.fetch_add(layout.size(), Relaxed);
        self.calls.fetch_add(1, Relaxed);
        // SAFETY: what the caller promises of the layout holds for this call as well.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        self.bytes.fetch_sub(layout.size(), Relaxed);
        self.calls.fetch_add(1, Relaxed);
        // SAFETY: the pointer came from `alloc` with this layout, so from the system's allocator
        // with it.
        unsafe { System.dealloc(pointer, layout) }
    }
}
