//! Memory that devices reach.
//!
//! A driver names memory by [`Part`]s of frames; only the nucleus turns them into addresses that a
//! device understands, through the device's [`Domain`]. A part holds its frame (the existence
//! count, `iosup.txt` 2.2) for as long as the device may touch it, so a frame is never free, and
//! never becomes a page table, under a device's hands.
//!
//! [`Pool`] keeps frames for the small messages of a driver: they stay what they are while the
//! driver lives, so that mapping them for the device costs nothing once.

use alloc::{sync::Arc, vec::Vec};

use crate::{
    Frame, OutOfMemory, PAGE_SIZE,
    ephemeral::{self, LONGEST_RUN},
    frame::Contents,
    lock::{Rank, SpinLock},
};

/// Bytes `offset..offset + len` of one frame, for a device; `offset + len` is at most a page, `len`
/// is not 0.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Part {
    pub frame: Frame,
    pub offset: usize,
    pub len: usize,
}

impl Part {
    /// A whole frame.
    pub fn whole(frame: Frame) -> Part {
        Part {
            frame,
            offset: 0,
            len: PAGE_SIZE,
        }
    }

    /// Whether the bytes are inside of the frame, and any.
    pub fn is_valid(&self) -> bool {
        self.len > 0 && self.offset <= PAGE_SIZE && self.len <= PAGE_SIZE - self.offset
    }
}

/// A byte's address as a device sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DeviceAddr(pub u64);

/// What one device can reach: every frame of data, as long as it is one. Where no IOMMU stands
/// between them, devices see physical addresses.
#[derive(Default, Debug)]
pub(crate) struct Domain(());

impl Domain {
    /// Where the device finds the bytes of `part`, as long as its frame is held.
    #[inline]
    pub(crate) fn address(&self, part: &Part) -> DeviceAddr {
        let frame = part.frame.number() << crate::PAGE_SHIFT;
        DeviceAddr(frame + part.offset as u64)
    }
}

/// Frames for a driver's messages. Dropping a [`Buffer`] gives its frame back.
pub struct Pool {
    free: SpinLock<Vec<Frame>>,
    keep: usize,
}

/// A frame of a pool.
pub struct Buffer {
    pool: Arc<Pool>,
    frame: Option<Frame>,
}

impl Pool {
    /// A pool that keeps up to `keep` frames when they are not in use.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(keep: usize) -> Result<Arc<Pool>, OutOfMemory> {
        let free = crate::try_vec(keep)?;
        Ok(Arc::new(Pool {
            free: SpinLock::new(Rank::Leaf, free),
            keep,
        }))
    }

    /// A frame; its bytes are stale.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn take(self: &Arc<Pool>) -> Result<Buffer, OutOfMemory> {
        let kept = self.free.lock().pop();
        let frame = match kept {
            Some(frame) => frame,
            None => Frame::alloc(Contents::Stale)?,
        };
        Ok(Buffer {
            pool: self.clone(),
            frame: Some(frame),
        })
    }
}

impl Buffer {
    /// Bytes `offset..offset + len` for a device.
    pub fn part(&self, offset: usize, len: usize) -> Part {
        Part {
            frame: self.frame().clone(),
            offset,
            len,
        }
    }

    fn frame(&self) -> &Frame {
        self.frame
            .as_ref()
            .expect("a buffer has its frame until it is dropped")
    }

    /// Copies bytes in; they fit.
    pub fn write(&self, offset: usize, from: &[u8]) {
        ephemeral::map(self.frame()).write(offset, from);
    }

    /// Copies bytes out; they are there.
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        ephemeral::map(self.frame()).read(offset, to);
    }
}

impl AsRef<Frame> for Buffer {
    fn as_ref(&self) -> &Frame {
        self.frame()
    }
}

/// Copies bytes into buffers, in their order; they fit.
pub fn write_all(buffers: &[Buffer], from: &[u8]) {
    for (run, bytes) in buffers.chunks(LONGEST_RUN).zip(from.chunks(RUN_BYTES)) {
        let run = &run[..bytes.len().div_ceil(PAGE_SIZE)];
        ephemeral::map_run(run).write(0, bytes);
    }
}

/// Copies bytes out of buffers, in their order; they are there.
pub fn read_all(buffers: &[Buffer], to: &mut [u8]) {
    for (run, bytes) in buffers.chunks(LONGEST_RUN).zip(to.chunks_mut(RUN_BYTES)) {
        let run = &run[..bytes.len().div_ceil(PAGE_SIZE)];
        ephemeral::map_run(run).read(0, bytes);
    }
}

const RUN_BYTES: usize = LONGEST_RUN * PAGE_SIZE;

impl Drop for Buffer {
    fn drop(&mut self) {
        let Some(frame) = self.frame.take() else {
            return;
        };
        // A device may still have a part of it (an answer that no task waited for): then it is no
        // more the pool's.
        if frame.handles() == 1 {
            let mut free = self.pool.free.lock();
            // Never beyond what was reserved.
            if free.len() < self.pool.keep {
                free.push(frame);
            }
        }
    }
}
