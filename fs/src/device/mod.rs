//! The drivers behind device nodes and FIFOs. The floor above registers them at start; opening a
//! node asks the one that has its number.
//!
//! Block devices are files of this crate: `device_pages` has a device's pages while it is open, and
//! its blocks as a backing store, [`DeviceStore`]; `block_file` is the open file, [`BlockFile`].

use alloc::sync::{Arc, Weak};
use core::{any::Any, ops::RangeInclusive};

use abi::{Errno, Result};
use nucleus::sync::{Mutex, Rank, SpinLock};

use crate::{File, Kind, Location, OpenFlags, block, page_cache::Cached};

mod block_file;
mod device_pages;
mod request_file;

pub use block_file::BlockFile;
pub use device_pages::{DeviceStore, Opened, sync_all};
pub use request_file::RequestFile;

pub use crate::vnode::{major, minor, number};

/// Opens the device `number` whose node is at `at`, which the open file remembers.
pub type OpenDevice = fn(at: &Location, number: u64, flags: OpenFlags) -> Result<Arc<dyn File>>;

/// Opens the FIFO whose node is at `at`; its ends meet through `state`.
pub type OpenFifo =
    fn(at: &Location, state: &Attachment, flags: OpenFlags) -> Result<Arc<dyn File>>;

#[derive(Clone)]
struct Driver {
    major: u32,
    minors: RangeInclusive<u32>,
    open: OpenDevice,
}

/// The most drivers.
const DRIVERS: usize = 32;

struct Drivers {
    characters: [Option<Driver>; DRIVERS],
    fifo: Option<OpenFifo>,
}

static REGISTRY: SpinLock<Drivers> = SpinLock::new(
    Rank::Leaf,
    Drivers {
        characters: [const { None }; DRIVERS],
        fifo: None,
    },
);

/// Registers `open` for character devices of `major` with one of `minors`. The same range
/// registered again replaces the driver.
///
/// # Errors
/// `EBUSY` when the numbers are taken in part or the registry is full.
pub fn register_char_device(
    major: u32,
    minors: RangeInclusive<u32>,
    open: OpenDevice,
) -> Result<()> {
    let mut registry = REGISTRY.lock();
    let mut free = None;
    for slot in &mut registry.characters {
        match slot {
            None => free = free.or(Some(slot)),
            Some(driver) if driver.major == major && driver.minors == minors => {
                driver.open = open;
                return Ok(());
            }
            Some(driver)
                if driver.major == major
                    && driver.minors.start() <= minors.end()
                    && minors.start() <= driver.minors.end() =>
            {
                return Err(Errno::EBUSY);
            }
            Some(_) => {}
        }
    }
    *free.ok_or(Errno::EBUSY)? = Some(Driver {
        major,
        minors,
        open,
    });
    Ok(())
}

/// Registers `open` for FIFOs.
pub fn register_fifo(open: OpenFifo) {
    REGISTRY.lock().fifo = Some(open);
}

/// Opens the node of a FIFO or device that is at `at`, for [`Vnode::open`](crate::Vnode::open);
/// `None` for other kinds. `fifo` is a FIFO's state, `number` that of a device.
///
/// # Errors
/// `ENXIO` without a driver and for sockets, and those of the driver.
pub fn open_special(
    at: &Location,
    kind: Kind,
    number: impl FnOnce() -> u64,
    fifo: Option<&Attachment>,
    flags: OpenFlags,
) -> Result<Option<Arc<dyn File>>> {
    let file = match kind {
        Kind::Fifo => {
            let open = REGISTRY.lock().fifo.ok_or(Errno::ENXIO)?;
            open(at, fifo.ok_or(Errno::ENXIO)?, flags)?
        }
        Kind::CharDevice => {
            let number = number();
            let (major, minor) = (major(number), minor(number));
            let has = |driver: &&Driver| driver.major == major && driver.minors.contains(&minor);
            let registry = REGISTRY.lock();
            let mut drivers = registry.characters.iter().flatten();
            let open = drivers.find(has).map(|driver| driver.open);
            drop(registry);
            open.ok_or(Errno::ENXIO)?(at, number, flags)?
        }
        Kind::BlockDevice => {
            let device = block::by_number(number()).ok_or(Errno::ENXIO)?;
            BlockFile::open(&device, at, flags)?
        }
        Kind::Socket => return Err(Errno::ENXIO),
        _ => return Ok(None),
    };
    Ok(Some(file))
}

/// Writes back a block device ([`FileData::sync`](crate::vnode::FileData::sync) of its node), to
/// its medium.
///
/// # Errors
/// Those of the device.
pub fn sync_block_device(number: u64) -> Result<()> {
    block::by_number(number).map_or(Ok(()), |device| device.sync())
}

/// Returns the bytes of the smallest piece that a block device moves past its pages
/// ([`FileData::direct_block`](crate::vnode::FileData::direct_block) of its node).
pub fn direct_block(number: u64) -> usize {
    block::by_number(number).map_or(block::SECTOR, |it| it.limits().block_size as usize)
}

/// Returns the pages of a block device that is open
/// ([`FileData::cached`](crate::vnode::FileData::cached) of its node).
pub fn cached_block_device(number: u64) -> Option<Arc<dyn Cached>> {
    let pages: Arc<dyn Cached> = block::by_number(number)?.cached()?;
    Some(pages)
}

/// State that the openers of one node share (the pipe of a FIFO), while there is any.
pub struct Attachment {
    shared: Mutex<Option<Weak<dyn Any + Send + Sync>>>,
}

impl Attachment {
    /// No state yet.
    pub const fn new() -> Attachment {
        Attachment {
            shared: Mutex::new(crate::rank::VNODE, None),
        }
    }

    /// Returns the shared state, or creates it by `make` if no opener has it. `make` must take no
    /// lock below [`VNODE`](crate::rank::VNODE).
    ///
    /// # Errors
    /// Those of `make`; `EINVAL` if something of another type is attached.
    pub fn get_or_make<T: Any + Send + Sync>(
        &self,
        make: impl FnOnce() -> Result<Arc<T>>,
    ) -> Result<Arc<T>> {
        let mut shared = self.shared.lock();
        if let Some(held) = shared.as_ref().and_then(Weak::upgrade) {
            return held.downcast().map_err(|_| Errno::EINVAL);
        }
        let made = make()?;
        let weak: Weak<T> = Arc::downgrade(&made);
        *shared = Some(weak);
        Ok(made)
    }
}

impl Default for Attachment {
    fn default() -> Attachment {
        Attachment::new()
    }
}
