//! Physical memory in frames of [`PAGE_SIZE`](crate::PAGE_SIZE) bytes.
//!
//! One 32-byte record per frame (`record`), a buddy allocator with per-CPU caches (`buddy`). A
//! frame has a type (`Writable`, page table of level 1 to 4, `Descriptor`), a type count, an
//! existence count and one `cached` flag (`iosup.txt` 2.2, 6.1).

/// No frame is free. A program sees it as `ENOMEM`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutOfMemory;

/// What the bytes of a new frame are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contents {
    /// All zero.
    Zeroed,
    /// Whatever the last owner left; the caller overwrites all of it before a program can see it.
    Stale,
}

/// A counted handle to a data frame. Cloning adds to the frame's existence count; dropping the
/// last handle frees the frame. A mapping in a [`Pmap`](crate::Pmap) holds a handle of its own,
/// and gives it up only through a [`Pending`](crate::pmap::Pending) set, so a frame is never free
/// while a TLB can still reach it.
pub struct Frame {
    index: u32,
}

impl Frame {
    /// Takes a frame from this CPU's cache or the buddy allocator.
    ///
    /// # Errors
    /// [`OutOfMemory`] when only the kernel's own reserve is left.
    pub fn alloc(contents: Contents) -> Result<Frame, OutOfMemory> {
        todo!()
    }

    /// The physical frame number.
    pub fn number(&self) -> u64 {
        self.index as u64
    }

    /// Handles to this frame, mappings included. Stable at 1 only if the caller holds the only one.
    pub fn handles(&self) -> u32 {
        todo!()
    }

    /// How many mappings the frame has in all pmaps.
    pub fn mappings(&self) -> u32 {
        todo!()
    }
}

impl Clone for Frame {
    fn clone(&self) -> Frame {
        todo!()
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        todo!()
    }
}

impl PartialEq for Frame {
    fn eq(&self, other: &Frame) -> bool {
        self.index == other.index
    }
}

impl Eq for Frame {}

impl core::fmt::Debug for Frame {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "frame {:#x}", self.index)
    }
}

/// Where the machine's memory is, in frames.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// All frames that the firmware reported as usable.
    pub total: usize,
    /// Free, per-CPU caches included.
    pub free: usize,
    /// Held by [`Frame`] handles.
    pub data: usize,
    /// Page tables.
    pub page_tables: usize,
    /// Kernel heap.
    pub heap: usize,
    /// Kernel image, frame records, stacks, everything else.
    pub kernel: usize,
}

/// A snapshot; exact when nothing else runs.
pub fn usage() -> Usage {
    todo!()
}

/// Whether so little memory is left that work which would need more kernel heap must be refused
/// with `ENOMEM` now, while the reserve still lets everything in progress finish. One load.
pub fn is_scarce() -> bool {
    todo!()
}

/// Called by the floors above when [`Frame::alloc`] failed or [`is_scarce`] is true; set once at
/// start. It returns whether waiting or retrying can help.
pub fn set_reclaimer(reclaim: fn() -> bool) {
    todo!()
}
