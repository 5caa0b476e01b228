//! An allocator that counts, for tests of what the kernel's own structures take.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

thread_local! {
    /// Calls by this thread: those of the test harness, which has threads of its own, are not the
    /// test's.
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

/// The host's allocator, with counts of the bytes in use and of its calls. A test declares one
/// as its `#[global_allocator]`; what the simulated machine itself allocates is counted, too.
pub struct CountedHeap {
    bytes: AtomicUsize,
}

impl CountedHeap {
    /// Nothing allocated.
    pub const fn new() -> CountedHeap {
        CountedHeap {
            bytes: AtomicUsize::new(0),
        }
    }

    /// Bytes in use now.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// Allocations and frees by the calling thread until now.
    pub fn calls(&self) -> usize {
        CALLS.get()
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
        CALLS.set(CALLS.get() + 1);
        // SAFETY: what the caller promises of the layout holds for this call as well.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        self.bytes.fetch_sub(layout.size(), Relaxed);
        CALLS.set(CALLS.get() + 1);
        // SAFETY: the pointer came from `alloc` with this layout, so from the system's allocator
        // with it.
        unsafe { System.dealloc(pointer, layout) }
    }
}
