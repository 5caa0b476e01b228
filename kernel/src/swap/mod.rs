//! Swap space: what `swapon` gave to the virtual-memory system ([`vm::swap`]).
//!
//! - [`header`]: what `mkswap` has written into the first page.
//! - [`store`]: pages on a disk, be it a whole one or the blocks of a file.
//! - `faults`: tests that fail each allocation and each command of a disk.
//! - here: which devices and files are in use, by the places in file systems that they were found
//!   at.

#[cfg(test)]
mod faults;
mod header;
mod store;

use alloc::{sync::Arc, vec::Vec};

use abi::{Errno, Result};
use fs::{Kind, Location, block};
use nucleus::{
    PAGE_SIZE, log,
    sync::{Rank, SpinLock},
    task,
};
use vm::swap::{self, DeviceId, SwapError};

use header::Header;
use store::DiskStore;

/// Something that pages go to.
#[derive(Clone)]
struct Area {
    id: DeviceId,
    at: Location,
    name: Name,
}

/// The identity of an area, by any path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Name {
    Device(u64),
    File { device: u64, inode: u64 },
}

impl Name {
    /// # Errors
    /// `EINVAL` for a file that is neither a block device nor a regular file.
    fn of(at: &Location) -> Result<Name> {
        let its = at.attributes()?;
        match its.kind {
            Kind::BlockDevice => Ok(Name::Device(its.rdev)),
            Kind::Regular => Ok(Name::File {
                device: its.device,
                inode: its.inode,
            }),
            _ => Err(Errno::EINVAL),
        }
    }
}

/// The areas that are on, in the order in which they came.
static AREAS: SpinLock<Vec<Area>> = SpinLock::new(Rank::Leaf, Vec::new());

/// A line of `/proc/swaps`; sizes in pages.
pub(crate) struct ListedArea {
    pub at: Location,
    pub is_file: bool,
    pub slots: usize,
    pub used: usize,
    pub priority: i32,
}

/// Gives the block device or regular file at `at` to the swap space, with `priority`, or with one
/// below those of all others. With `discard`, its disk is told first that nothing in it is needed.
///
/// # Errors
/// `EINVAL` for a file that is neither, has holes, or has not been made a swap space, `EBUSY` for
/// one in use, `EPERM` if there are as many as there can be, `ENOMEM` if nothing can be freed, or
/// others take all that is, `EINTR` for a signal while it waits for memory, `EIO`, and those of
/// pinning a file's blocks.
pub fn on(at: Location, priority: Option<i32>, discard: bool) -> Result<()> {
    // Each step waits for its memory by itself, and keeps it: swapping on is the way to more
    // memory.
    let name = Name::of(&at)?;
    if AREAS.lock().iter().any(|area| area.name == name) {
        return Err(Errno::EBUSY);
    }
    // Of two callers for the same area at the same time one is refused here.
    let disk = match name {
        Name::Device(number) => {
            let device = block::by_number(number).ok_or(Errno::ENXIO)?;
            DiskStore::on_device(device.claim("swap")?)
        }
        Name::File { .. } => DiskStore::on_file(at.vnode().clone().pin_blocks()?),
    };
    let header = Header::read(&*disk.first_page()?, disk.pages())?;
    if discard {
        disk.discard();
    }
    let kib = header.slots * (PAGE_SIZE as u64 / 1024);
    let store = Arc::new(disk.with_header(header));
    let priority = priority.unwrap_or_else(lowest_priority);
    let current = task::current();
    let id = swap::add(store, priority, &|| current.is_interrupted()).map_err(errno)?;
    log!(
        "swap: {kib} KiB on {}, priority {priority}",
        at.path_without_locks().escape_ascii(),
    );
    AREAS.lock().push(Area { id, at, name });
    Ok(())
}

/// Takes the device or file at `at` out of the swap space; its pages come back to memory.
///
/// # Errors
/// `EINVAL` if it is not in use, `ENOMEM` if memory does not suffice for its pages, `EIO` if one
/// can't be read, `EINTR` for a signal: it stays in use then.
pub fn off(at: &Location) -> Result<()> {
    let name = Name::of(at)?;
    let area = AREAS.lock().iter().find(|area| area.name == name).cloned();
    let area = area.ok_or(Errno::EINVAL)?;
    let current = task::current();
    vm::swap_off(area.id, &|| current.is_interrupted()).map_err(errno)?;
    let gone = {
        let mut areas = AREAS.lock();
        let index = areas.iter().position(|it| it.id == area.id);
        index.map(|index| areas.remove(index))
    };
    // Its place in the file system goes with no lock held.
    drop(gone);
    Ok(())
}

/// Each device and file that is in use, in the order in which they came.
///
/// # Errors
/// `ENOMEM`.
pub(crate) fn list() -> Result<Vec<ListedArea>> {
    let usage = swap::devices().map_err(errno)?;
    let areas = AREAS.lock().clone();
    let shown = areas.into_iter().filter_map(|area| {
        let now = usage.iter().find(|it| it.id == area.id)?;
        Some(ListedArea {
            at: area.at,
            is_file: matches!(area.name, Name::File { .. }),
            slots: now.slots,
            used: now.used,
            priority: now.priority,
        })
    });
    Ok(shown.collect())
}

/// The priority of an area without one: below all others', from -2 down.
fn lowest_priority() -> i32 {
    let taken = swap::devices().unwrap_or_default();
    let lowest = taken.iter().map(|it| it.priority).min();
    lowest.unwrap_or(-1).min(-1) - 1
}

fn errno(error: SwapError) -> Errno {
    match error {
        SwapError::Empty | SwapError::NotFound => Errno::EINVAL,
        SwapError::TooMany => Errno::EPERM,
        SwapError::NoMemory => Errno::ENOMEM,
        SwapError::Io => Errno::EIO,
        SwapError::Interrupted => Errno::EINTR,
    }
}
