//! Block devices: disks of 512-byte sectors, behind one queue each.
//!
//! In the order in which a page of data meets it:
//!
//! - [`request`](Request): a read, write, flush or discard of [parts](nucleus::dma::Part) of
//!   frames.
//! - [`Device`]: takes requests, any number at once; the only way to a disk for the floors above.
//!   [`Device::read`] and its like sleep until the request is done, [`Device::submit`] returns at
//!   once. [`Plug`] collects requests that belong together. One that is too large for the disk goes
//!   in `pieces`. `worker`: the device's task, and the way of a request.
//! - `transfer`: many pages in several requests, and shorter ones where there is no memory for long
//!   ones.
//! - `queue`: requests that the disk has no room for yet, sorted by sector; neighbours leave it as
//!   one [`Command`].
//! - [`Disk`]: a driver's side; it finishes commands in any order.
//! - [`registry`](register): devices by name and by number.
//! - [`PinnedBlocks`]: a file's blocks, for reads and writes past the file system.
//! - [`MemoryDisk`]: a disk of frames. `FaultyDisk`: one with the faults of disks, for tests.
//!
//! # Order
//!
//! Requests are done in any order; a caller that needs one done before another waits for it. A
//! write that is done may be in the disk's own cache, which a power cut empties: a flush that
//! begins after it, and is done, has put it on the medium.

mod command;
mod device;
#[cfg(not(target_os = "none"))]
#[allow(clippy::disallowed_methods, reason = "only tests use it")]
mod faulty;
mod memory;
mod pieces;
mod pinned;
mod queue;
mod registry;
mod request;
mod statistics;
#[cfg(test)]
mod tests;
mod transfer;
mod worker;

pub use command::Command;
pub(crate) use command::Sleeper;
pub use device::{Claim, Device, DevicePages, Disk, Openers, Plug};
#[cfg(not(target_os = "none"))]
pub use faulty::{Attempt, FaultyDisk};
pub use memory::MemoryDisk;
pub use pinned::{PinnedBlocks, Run};
pub use registry::{all, by_name, by_number, register, unregister};
pub use request::{Done, Limits, Operation, Request};
pub use statistics::{Statistics, Tally};
pub use transfer::Transfer;
pub(crate) use transfer::make_room;

/// Bytes of a sector, the unit of all addresses here, whatever the disk's own blocks are.
pub const SECTOR: usize = 512;

/// The major number of virtio's disks, and of memory disks, as on Linux.
pub const VIRTIO_MAJOR: u32 = 254;
/// See [`VIRTIO_MAJOR`].
pub const MEMORY_MAJOR: u32 = 9;
/// That of persistent memory (`blkext`).
pub const PERSISTENT_MAJOR: u32 = 259;
/// Minor numbers that one of virtio's disks takes: itself and its partitions.
pub const VIRTIO_MINORS: u32 = 16;
