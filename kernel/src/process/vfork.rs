//! The event that ends a `vfork`.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release as ReleaseOrder};

use nucleus::task::WaitQueue;

/// The event that a `vfork` parent waits for: its child has called `execve` or ended.
pub struct Release {
    done: AtomicBool,
    queue: WaitQueue,
}

impl Release {
    pub(super) fn new() -> Arc<Release> {
        Arc::new(Release {
            done: AtomicBool::new(false),
            queue: WaitQueue::new(),
        })
    }

    /// The child no longer uses the parent's memory.
    pub fn release(&self) {
        self.done.store(true, ReleaseOrder);
        self.queue.wake_all();
    }

    /// Whether the child has released the memory.
    pub(super) fn is_released(&self) -> bool {
        self.done.load(Acquire)
    }

    /// Woken with the release.
    pub(super) fn queue(&self) -> &WaitQueue {
        &self.queue
    }
}
