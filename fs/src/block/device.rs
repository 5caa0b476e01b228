//! A block device: one queue over one disk.

use alloc::{boxed::Box, string::String, sync::Arc, vec::Vec};
use core::{any::Any, time::Duration};

use abi::{Errno, Result};
use nucleus::{
    dma::Part,
    sync::{Mutex, Rank, SpinLock},
    task::{self, Priority, Spawn, WaitQueue},
    time,
};

use super::{
    Command, Done, Limits, Operation, Request, SECTOR, Statistics,
    cache::Openers,
    command::{Completion, Entries, Entry, Pieces, Sleeper},
    pieces::pieces,
    worker::Core,
};

/// What a driver implements: a disk that works on several commands at once and finishes them in any order.
pub trait Disk: Any + Send + Sync {
    /// What it is. Always the same.
    fn limits(&self) -> Limits;

    /// Begins a command, and keeps it until it [finishes](Command::finish) it, here or later. It has never more of them than its limits
    /// say. No lock is held; must not wait for the disk, and must not need memory.
    fn start(&self, command: Command);

    /// Finishes what the disk has done since. Called by the device's task, when the [bell](Disk::bell) was rung, and at other times.
    fn reap(&self) {}

    /// Woken when there may be something to [reap](Disk::reap), by an interrupt for one. `None` for a disk that finishes everything where it
    /// starts it.
    fn bell(&self) -> Option<&WaitQueue> {
        None
    }

    /// How often to look, while it has commands, where the bell is not to be relied on.
    fn patience(&self) -> Option<Duration> {
        None
    }

    /// The disk's own name for itself, as `/sys/block/NAME/serial` shows it.
    fn serial(&self) -> &[u8] {
        b""
    }
}

/// Requests that a plug holds at most.
const PLUGGED: usize = 128;

/// A disk as the rest of the kernel sees it. Requests that are on their way when the last handle goes are done all the same.
pub struct Device {
    name: String,
    number: u64,
    core: Arc<Core>,
    /// Who has it for themselves.
    holder: SpinLock<Option<&'static str>>,
    /// Those who have it open as a file.
    pub(super) openers: Mutex<Openers>,
}

impl Device {
    /// The device called `name`, with `number` as its `dev_t`, over `disk`. See [`register`](super::register).
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
            name: "disk",
            pmap: None,
            attachment: None,
            cpus: u64::MAX,
            priority: Priority::KERNEL,
        };
        let device = Arc::new(Device {
            name: name.into(),
            number,
            core,
            holder: SpinLock::new(Rank::Leaf, None),
            openers: Openers::new(),
        });
        task::spawn(spawn, Box::new(move || worker.work())).map_err(|_| Errno::ENOMEM)?;
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

    /// What it is.
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

    /// What it has done.
    pub fn statistics(&self) -> Statistics {
        self.core.statistics()
    }

    /// Begins `request`, and comes back at once; `done` runs later, in a task of the kernel's. A request may be larger than the disk's
    /// limits. No lock of rank `Leaf` or later may be held.
    pub fn submit(&self, request: Request, done: Done) {
        let mut entries = Entries::default();
        self.split(request, Completion::Call(done), &mut entries);
        if !entries.is_empty() {
            self.core.put(entries);
        }
    }

    /// Reads from `sector` on as many sectors as `parts` hold; sleeps until it is done.
    ///
    /// # Errors
    /// As [`Done`].
    #[track_caller]
    pub fn read(&self, sector: u64, parts: Vec<Part>) -> Result<()> {
        self.perform(Request::read(sector, parts))
    }

    /// Writes likewise. It may be in the disk's cache when this is back: see [`flush`](Device::flush).
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
        let mut entries = Entries::default();
        self.split(request, Completion::Wake(sleeper.clone()), &mut entries);
        if !entries.is_empty() {
            self.core.put(entries);
        }
        sleeper.wait()
    }

    /// Collects requests, which go to the disk together when the plug is dropped, neighbours as one.
    pub fn plug(&self) -> Plug<'_> {
        Plug {
            device: self,
            entries: Entries::default(),
        }
    }

    /// Has the device for itself, to be named in messages (`"swap"`, `"ext2"`), until the claim is dropped. What was
    /// written to it as a file is written back before.
    ///
    /// # Errors
    /// `EBUSY` if somebody has it.
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

    /// Who has it for itself.
    pub fn holder(&self) -> Option<&'static str> {
        *self.holder.lock()
    }

    /// Adds the pieces of a request, or has it refused.
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

/// Requests of one task that go to the disk together. Nobody else's wait for it.
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

    /// Lets go of what was collected.
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

/// A device that somebody has for itself.
pub struct Claim(Arc<Device>);

impl Claim {
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
