//! Memory objects and pagers (`uvm.txt` 4 and 6).

use alloc::sync::Arc;
use nucleus::{Frame, OutOfMemory};

/// Why a pager could not give a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PagerError {
    /// The page lies wholly beyond the end of what the object represents: SIGBUS.
    BeyondEnd,
    /// The backing store failed: SIGBUS.
    Io,
    /// No memory.
    OutOfMemory,
}

impl From<OutOfMemory> for PagerError {
    fn from(_: OutOfMemory) -> PagerError {
        PagerError::OutOfMemory
    }
}

/// The memory side of something that can be mapped: its resident pages. To be embedded.
pub struct Object {
    _private: (),
}

impl Object {
    /// No resident pages.
    pub const fn new() -> Object {
        Object { _private: () }
    }

    /// The resident page `index` (in pages from the start).
    pub fn resident(&self, index: u64) -> Option<Frame> {
        todo!()
    }

    /// Resident pages.
    pub fn resident_count(&self) -> usize {
        todo!()
    }

    /// The resident page, or the one that `make` gives; `make` runs at most once, with the object's lock held.
    pub fn get_or_insert(
        &self,
        index: u64,
        make: impl FnOnce() -> Result<Frame, PagerError>,
    ) -> Result<Frame, PagerError> {
        todo!()
    }

    /// Drops all pages from `first` on (truncation): every mapping of them is removed before this
    /// returns, so that later accesses fault. Returns how many pages that were.
    pub fn truncate(&self, first: u64) -> usize {
        todo!()
    }

    /// As [`truncate`](Object::truncate) for `count` pages from `first` on (hole punching).
    pub fn remove_pages(&self, first: u64, count: u64) -> usize {
        todo!()
    }

    /// Puts `frame` in the place of page `index`, and removes every mapping of the page that was
    /// there before this returns. Returns that page, if there was one.
    pub fn replace(&self, index: u64, frame: Frame) -> Result<Option<Frame>, PagerError> {
        todo!()
    }

    /// The index of the first resident page from `first` on.
    pub fn next_resident(&self, first: u64) -> Option<u64> {
        todo!()
    }
}

impl Default for Object {
    fn default() -> Object {
        Object::new()
    }
}

/// The operations through which the virtual-memory system uses an object. References are
/// [`Arc`]s: `reference` and `detach` are called for each map entry that comes and goes.
pub trait Pager: Send + Sync {
    /// The embedded object.
    fn object(&self) -> &Object;

    /// Makes page `index` resident and returns it. The pager allocates the frame itself (`uvm.txt` 6).
    fn get(&self, index: u64) -> Result<Frame, PagerError>;

    /// Writes a dirty page back, if there is anywhere to write it.
    fn put(&self, index: u64) -> Result<(), PagerError> {
        let _ = index;
        Ok(())
    }

    /// A map entry now refers to the object; `writable` if it is shared and may be written.
    fn reference(&self, writable: bool) {
        let _ = writable;
    }

    /// A map entry no longer refers to the object. No map lock is held.
    fn detach(&self, writable: bool) {
        let _ = writable;
    }

    /// A shared mapping is about to make a page writable (time stamps, seals). It may
    /// [`replace`](Object::replace) the page, so the fault routine looks the page up after this.
    fn about_to_write(&self, index: u64) -> Result<(), PagerError> {
        let _ = index;
        Ok(())
    }

    /// What `/proc/PID/maps` shows.
    fn describe(&self) -> Description {
        Description::default()
    }
}

/// The file columns of `/proc/PID/maps`.
#[derive(Clone, Default, Debug)]
pub struct Description {
    pub device: u64,
    pub inode: u64,
    pub name: alloc::vec::Vec<u8>,
}

/// Anonymous shared memory: `MAP_SHARED | MAP_ANONYMOUS`, and the base of in-memory files.
pub struct Anonymous {
    object: Object,
}

impl Anonymous {
    /// `pages` pages, zero-filled on demand.
    pub fn new(pages: u64) -> Result<Arc<Anonymous>, OutOfMemory> {
        todo!()
    }
}

impl Pager for Anonymous {
    fn object(&self) -> &Object {
        &self.object
    }

    fn get(&self, index: u64) -> Result<Frame, PagerError> {
        todo!()
    }
}
