//! How the machine was started: by PVH or multiboot2, with a command line and a root archive.

#[cfg(not(target_os = "none"))]
pub mod fixture;
mod handlers;
#[cfg(not(target_os = "none"))]
pub mod simulated;
#[cfg(target_os = "none")]
mod x86_64;

use core::cell::UnsafeCell;
use core::ops::{Deref, Range};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::hw::machine;
use crate::{Frame, PAGE_SIZE, PhysAddr, frame};

/// Defines the kernel's entry: `nucleus::entry!(path::to::start)` in the binary crate, where
/// `fn start() -> !` runs as the first task with everything in the nucleus ready.
#[macro_export]
macro_rules! entry {
    ($start:path) => {
        #[unsafe(no_mangle)]
        extern "Rust" fn causeway_start() -> ! {
            $start()
        }
    };
}

pub use crate::hw::MAX_COMMAND_LINE;

struct Buffer(UnsafeCell<[u8; MAX_COMMAND_LINE]>);

// SAFETY: written by `set` only, before the length that lets others read it.
unsafe impl Sync for Buffer {}

static COMMAND_LINE: Buffer = Buffer(UnsafeCell::new([0; MAX_COMMAND_LINE]));
static COMMAND_LINE_LEN: AtomicUsize = AtomicUsize::new(0);

/// Physical address and length of the archive, until it is taken; length 0 if there is none.
static ARCHIVE: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// Notes what the loader gave. Once, by the machine, before the first task. The archive, physical
/// address and bytes, is memory that the allocator of frames holds for in use.
#[cfg(target_os = "none")]
pub(crate) fn set(command_line: &str, archive: Option<(u64, u64)>) {
    let len = command_line.len().min(MAX_COMMAND_LINE);
    // SAFETY: the buffer is not read while the length is 0, and this is called once.
    let buffer = unsafe { &mut *COMMAND_LINE.0.get() };
    buffer[..len].copy_from_slice(&command_line.as_bytes()[..len]);
    COMMAND_LINE_LEN.store(len, Ordering::Release);
    if let Some((start, bytes)) = archive {
        ARCHIVE[0].store(start, Ordering::Relaxed);
        ARCHIVE[1].store(bytes, Ordering::Release);
    }
}

/// The kernel's command line; bytes that are not UTF-8 were replaced.
pub fn command_line() -> &'static str {
    let len = COMMAND_LINE_LEN.load(Ordering::Acquire);
    // SAFETY: not written any more once the length is not 0.
    let bytes = unsafe { &(&*COMMAND_LINE.0.get())[..len] };
    // What `set` was given is a string of no more than the buffer's length.
    core::str::from_utf8(bytes).unwrap_or("")
}

/// The root archive that the loader left in memory. Dropping it frees its frames.
pub struct Archive {
    start: u64,
    bytes: u64,
}

impl Archive {
    /// Whether the archive starts at a page, so that a page of it is a frame.
    pub fn is_aligned(&self) -> bool {
        self.start.is_multiple_of(PAGE_SIZE as u64)
    }

    /// The frames that hold the archive, to be taken one by one. It can't be read any more.
    pub fn into_frames(self) -> ArchiveFrames {
        let frames = self.frames();
        core::mem::forget(self);
        ArchiveFrames {
            first: frames.start,
            left: frames,
        }
    }

    fn frames(&self) -> Range<u64> {
        self.start / PAGE_SIZE as u64..(self.start + self.bytes).div_ceil(PAGE_SIZE as u64)
    }
}

impl Deref for Archive {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: memory that belongs to this value, and that is never written.
        unsafe {
            core::slice::from_raw_parts(machine::ptr(PhysAddr(self.start)), self.bytes as usize)
        }
    }
}

impl Drop for Archive {
    fn drop(&mut self) {
        // SAFETY: the frames were held for in use because of this archive, and only because of it:
        // the loader's report was refused if they were shared with the kernel's image.
        unsafe { frame::release(self.frames()) };
    }
}

/// The frames of an archive that is not read any more. Those not taken are freed, at the
/// latest when this is dropped.
pub struct ArchiveFrames {
    /// The archive's first frame.
    first: u64,
    /// Frames that are neither taken nor freed.
    left: Range<u64>,
}

impl ArchiveFrames {
    /// Page `index` of the archive as an ordinary frame. All pages before it are freed unless they
    /// were taken them: `None` for one of those, and behind the archive's end.
    pub fn take(&mut self, index: usize) -> Option<Frame> {
        let number = self.first + index as u64;
        if !self.left.contains(&number) {
            return None;
        }
        // SAFETY: as in `Archive::drop`; the archive is gone, and each frame leaves `left` once.
        unsafe {
            frame::release(self.left.start..number);
            self.left.start = number + 1;
            frame::adopt(number)
        }
    }
}

impl Drop for ArchiveFrames {
    fn drop(&mut self) {
        // SAFETY: as in `Archive::drop`; what was taken is not in `left`.
        unsafe { frame::release(self.left.clone()) };
        frame::flush_adopted();
    }
}

/// Takes the root archive, once.
pub fn take_archive() -> Option<Archive> {
    let bytes = ARCHIVE[1].swap(0, Ordering::AcqRel);
    (bytes != 0).then(|| Archive {
        start: ARCHIVE[0].load(Ordering::Relaxed),
        bytes,
    })
}
