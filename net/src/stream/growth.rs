//! The memory by which buffers may grow by themselves: all streams together have a part of the
//! machine's (Linux's `tcp_mem`). What is in a buffer is charged to its owner besides.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use nucleus::{PAGE_SIZE, frame};

/// One of so many parts of the machine's memory: Linux's point of pressure.
const PART: usize = 16;

/// Returns by how many bytes all buffers together may grow.
pub fn most() -> usize {
    frame::total() / PART * PAGE_SIZE
}

/// The bytes by which the buffers of a machine have grown.
#[derive(Default)]
pub struct Growth(AtomicUsize);

/// The part of one stream. It ends with the stream, which unread bytes keep after their connection.
pub struct Share {
    all: Arc<Growth>,
    bytes: AtomicUsize,
}

impl Share {
    /// Makes an empty one.
    pub fn new(all: Arc<Growth>) -> Share {
        Share {
            all,
            bytes: AtomicUsize::new(0),
        }
    }

    /// Adds up to so many bytes, none while memory is scarce. Returns how many.
    pub fn add(&self, bytes: usize) -> usize {
        if frame::is_scarce() {
            return 0;
        }
        let left = |all: usize| most().saturating_sub(all).min(bytes);
        let add = |all| Some(all + left(all));
        let added = match self.all.0.fetch_update(Relaxed, Relaxed, add) {
            Ok(all) | Err(all) => left(all),
        };
        self.bytes.fetch_add(added, Relaxed);
        added
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.all.0.fetch_sub(*self.bytes.get_mut(), Relaxed);
    }
}
