//! A block device: one queue over one disk.

use alloc::{boxed::Box, string::String, sync::Arc, vec::Vec};
use core::{any::Any, time::Duration};

use abi::{Errno, Result};
use nucleus::{
    Frame,
    dma::Part,
    sync::{Mutex, Rank, SpinLock},
    task::{self, Priority, Spawn, WaitQueue},
    time,
};

use super::{
    Command, Done, Limits, Operation, Request, SECTOR, Statistics,
    command::{Completion, Entries, Entry, Pieces, Sleeper},
    pieces::pieces,
    worker::Core,
};

/// A driver's disk: works on several commands at once and finishes them in any order.
pub trait Disk: Any + Send + Sync {
    /// Returns its properties, which never change.
    fn limits(&self) -> Limits;

    /// Starts a command, and keeps it until it [finishes](Command::finish) it, here or later. It
    /// never has more of them than its limits say. No lock is held; must not wait for the disk, and
    /// must not need memory.
    fn start(&self, command: Command);

    /// Finishes the commands that the disk has done. Called by the device's task, when the
    /// [bell](Disk::bell) was rung, and at other times.
    fn reap(&self) {}

    /// Woken, by an interrupt for one, when there may be something to [reap](Disk::reap). `None`
    /// for a disk that finishes every command where it starts it.
    fn bell(&self) -> Option<&WaitQueue> {
        None
    }

    /// How often to look, while it has commands, where the bell is not to be relied on.
    fn patience(&self) -> Option<Duration> {
        None
    }

    /// Returns page `number` of the medium, if that is memory: it stays the medium's for ever, and
    /// a store into it is a write of the disk.
    fn page(&self, number: u64) -> Option<Frame> {
        let _ = number;
        None
    }

    /// Makes what was stored into a [page](Disk::page) of the medium survive the machine, as far as
    /// the medium can.
    fn persist(&self, page: &Frame) {
        let _ = page;
    }

    /// The disk's own name for itself, as `/sys/block/NAME/serial` shows it.
    fn serial(&self) -> &[u8] {
        b""
    }
}

/// Requests that a plug holds at most.
const PLUGGED: usize = 128;

/// A disk as the rest of the kernel sees it. Requests under way when the last handle is dropped are
/// done all the same.
pub struct Device {
    name: String,
    number: u64,
    core: Arc<Core>,
    /// The holder of the claim.
    holder: SpinLock<Option<&'static str>>,
    /// The openers of the device as a file.
    pub(crate) openers: Mutex<Openers>,
}

impl Device {
    /// Returns the device called `name`, with `number` as its `dev_t`, over `disk`. See
    /// [`register`](super::register).
    ///
    /// # Errors
    /// `ENOMEM`; `EINVAL` for limits that can't be.
    pub fn new(name: &str, number: u64, disk: Arc<dyn Disk>) -> Result<Arc<Device>> {
        let limits = disk.limits();
        let block = limits.block_size;
        let sane = block.is_power_of_two()
            && (SECTOR..=nucleus::PAGE_SIZE).contains(&(block as usize))
            && limits.physical_block_size.is_multiple_of(block)
            && limits.depth > 0
            && limits.max_parts * SECTOR >= nucleus::PAGE_SIZE
            && limits.max_sectors as usize * SECTOR >= nucleus::PAGE_SIZE
            && limits.sectors <= i64::MAX as u64 / SECTOR as u64;
        if !sane {
            return Err(Errno::EINVAL);
        }
        let core = Core::new(disk, limits);
        let worker = core.clone();
        let spawn = Spawn {
            priority: Priority::KERNEL,
            ..Spawn::kernel("disk")
        };
        let device = Arc::new(Device {
            name: name.into(),
            number,
            core,
            holder: SpinLock::new(Rank::Leaf, None),
            openers: Mutex::new(crate::rank::BLOCK_OPEN, Openers::default()),
        });
        task::spawn(spawn, Box::new(move || worker.work()))?;
        Ok(device)
    }

    /// `vda`, `md0`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its `dev_t`.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the disk's properties.
    pub fn limits(&self) -> &Limits {
        &self.core.limits
    }

    /// How many sectors it has.
    pub fn sectors(&self) -> u64 {
        self.core.limits.sectors
    }

    /// How many bytes it has.
    pub fn size(&self) -> u64 {
        self.core.limits.sectors * SECTOR as u64
    }

    /// Whether nothing can be changed.
    pub fn is_read_only(&self) -> bool {
        self.core.limits.read_only
    }

    /// The driver's disk.
    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.core.disk
    }

    /// Returns its statistics.
    pub fn statistics(&self) -> Statistics {
        self.core.statistics()
    }

    /// Starts `request`, and returns at once; `done` runs later, in a task of the kernel's. A
    /// request may be larger than the disk's limits. No lock of rank `Leaf` or later may be held.
    pub fn submit(&self, request: Request, done: Done) {
        let mut plug = self.plug();
        self.split(request, Completion::Call(done), &mut plug.entries);
    }

    /// Reads from `sector` on as many sectors as `parts` hold; sleeps until it is done.
    ///
    /// # Errors
    /// As [`Done`].
    #[track_caller]
    pub fn read(&self, sector: u64, parts: Vec<Part>) -> Result<()> {
        self.perform(Request::read(sector, parts))
    }

    /// Writes likewise. The bytes may be in the disk's cache when this returns: see
    /// [`flush`](Device::flush).
    ///
    /// # Errors
    /// As [`Done`].
    #[track_caller]
    pub fn write(&self, sector: u64, parts: Vec<Part>) -> Result<()> {
        self.perform(Request::write(sector, parts))
    }

    /// Puts every write that was done before on the medium; sleeps until it is there.
    ///
    /// # Errors
    /// As [`Done`].
    #[track_caller]
    pub fn flush(&self) -> Result<()> {
        self.perform(Request::flush())
    }

    /// Gives `sectors` sectors from `sector` on up; sleeps until that is done.
    ///
    /// # Errors
    /// As [`Done`].
    #[track_caller]
    pub fn discard(&self, sector: u64, sectors: u64) -> Result<()> {
        self.perform(Request::discard(sector, sectors))
    }

    /// Performs `request`; sleeps until it is done.
    ///
    /// # Errors
    /// As [`Done`].
    #[track_caller]
    pub fn perform(&self, request: Request) -> Result<()> {
        let sleeper = Sleeper::new();
        let mut plug = self.plug();
        self.split(
            request,
            Completion::Wake(sleeper.clone()),
            &mut plug.entries,
        );
        drop(plug);
        sleeper.wait()
    }

    /// Collects requests, which go to the disk together when the plug is dropped, neighbours as
    /// one.
    pub fn plug(&self) -> Plug<'_> {
        Plug {
            device: self,
            entries: Entries::default(),
        }
    }

    /// Claims the device for the exclusive use of `holder`, which messages name (`"swap"`,
    /// `"ext2"`), until the claim is dropped. Writes to it as a file are written back before.
    ///
    /// # Errors
    /// `EBUSY` if it is claimed.
    pub fn claim(self: &Arc<Device>, holder: &'static str) -> Result<Claim> {
        let mut held = self.holder.lock();
        if held.is_some() {
            return Err(Errno::EBUSY);
        }
        *held = Some(holder);
        drop(held);
        let claim = Claim(self.clone());
        claim.settle();
        Ok(claim)
    }

    /// The holder of the claim.
    pub fn holder(&self) -> Option<&'static str> {
        *self.holder.lock()
    }

    /// Adds the pieces of a request, or refuses it.
    fn split(&self, request: Request, completion: Completion, to: &mut Entries) {
        let limits = &self.core.limits;
        let now = time::since_boot();
        let checked = request.check(limits);
        let (nothing, flush) = (request.sectors == 0, request.operation == Operation::Flush);
        if checked.is_err() || nothing && !flush || flush && !limits.volatile_cache {
            let entry = Entry::new(request, completion, now);
            return self.core.refuse(entry, checked);
        }
        let max = match request.operation {
            Operation::Discard => limits.max_discard,
            _ => limits.max_sectors,
        };
        if request.sectors <= max && request.parts.len() <= limits.max_parts {
            return to.push(Entry::new(request, completion, now));
        }
        let pieces = pieces(request, limits);
        let shared = Pieces::new(pieces.len(), completion);
        for piece in pieces {
            to.push(Entry::new(piece, Completion::Piece(shared.clone()), now));
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.core.let_go();
    }
}

/// Requests of one task that go to the disk together. Those of other tasks do not wait for it.
pub struct Plug<'a> {
    device: &'a Device,
    entries: Entries,
}

impl Plug<'_> {
    /// As [`Device::submit`], when the plug is dropped, or holds enough.
    pub fn submit(&mut self, request: Request, done: Done) {
        self.device
            .split(request, Completion::Call(done), &mut self.entries);
        if self.entries.len() >= PLUGGED {
            self.release();
        }
    }

    /// Starts the collected requests.
    pub fn release(&mut self) {
        if !self.entries.is_empty() {
            self.device.core.put(core::mem::take(&mut self.entries));
        }
    }
}

impl Drop for Plug<'_> {
    fn drop(&mut self) {
        self.release();
    }
}

/// The pages of a device that is open as a file.
pub trait DevicePages: Any + Send + Sync {
    /// Writes the pages back, and evicts all of them: afterwards they agree with accesses past
    /// them.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn write_and_drop(&self) -> Result<()>;
}

/// How often a device is open as a file, and its pages while it is.
#[derive(Default)]
pub struct Openers {
    pub(crate) count: usize,
    pub(crate) pages: Option<Arc<dyn DevicePages>>,
}

impl Device {
    /// As [`DevicePages::write_and_drop`], if the device is open as a file.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn drop_cache(&self) -> Result<()> {
        let pages = self.openers.lock().pages.clone();
        pages.map_or(Ok(()), |pages| pages.write_and_drop())
    }
}

/// The exclusive use of a device.
pub struct Claim(Arc<Device>);

impl Claim {
    /// Brings the pages and accesses past them into agreement, at the begin and the end of the
    /// claim.
    fn settle(&self) {
        // Pages that can't be written now are written by the opener, or lost with a message.
        let _ = self.0.drop_cache();
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.0
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.settle();
        *self.0.holder.lock() = None;
    }
}
