//! The host's disks (virtio 1.1, 5.2).
//!
//! A command is one request to the device: a header that it reads, the command's parts, and a byte
//! for the status. Headers and statuses of all commands share one frame; requests, their lists of
//! parts and their tables of descriptors are made at the start, so that nothing on the way of a
//! command takes memory: the way out of a shortage goes through here.

use alloc::{sync::Arc, vec::Vec};
use core::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use abi::{Errno, Result};
use bitflags::bitflags;
use fs::block::{Command, Disk, Limits, Operation, SECTOR};
use nucleus::{
    Frame, PAGE_SIZE,
    dma::{Buffer, Part},
    ephemeral,
    frame::Contents,
    log,
    sync::{Rank, SpinLock},
    task::{Sleep, WaitQueue},
    virtio::{self, Device, Error, Queue, Request},
};

use crate::device::errno;

bitflags! {
    /// Feature bits of a device (5.2.3).
    struct Feature: u64 {
        const SEG_MAX = 1 << 2;
        const READ_ONLY = 1 << 5;
        const BLK_SIZE = 1 << 6;
        const FLUSH = 1 << 9;
        const TOPOLOGY = 1 << 10;
        const DISCARD = 1 << 13;
    }
}

/// Types of requests (5.2.6).
mod kind {
    pub const IN: u32 = 0;
    pub const OUT: u32 = 1;
    pub const FLUSH: u32 = 4;
    pub const GET_ID: u32 = 8;
    pub const DISCARD: u32 = 11;
}

/// Statuses.
const OK: u8 = 0;
const UNSUPPORTED: u8 = 2;
/// The status before the device has written one.
const NONE: u8 = 0xff;

/// Commands that the device has at most, a bit of a word each.
const DEPTH: usize = 64;
/// Parts of a command at most.
const PARTS: usize = 128;
/// Sectors of a command at most: so long is the largest one that its parts can carry.
const SECTORS: u64 = (PARTS * PAGE_SIZE / SECTOR) as u64;
/// Parts of a request besides the command's: header and status.
const FRAMING: usize = 2;

/// Where in the frame of messages a command has its own: header, range to discard, status.
const MESSAGE: usize = PAGE_SIZE / DEPTH;
const HEADER: usize = 16;
const RANGE_AT: usize = 16;
const RANGE: usize = 16;
const STATUS_AT: usize = 32;

/// Bytes of a disk's name for itself.
const ID: usize = 20;
/// How long to wait for that name: a device that does not answer this does not answer anything.
const PATIENCE: Duration = Duration::from_secs(10);
/// The polling interval where there is no interrupt.
const LOOK: Duration = Duration::from_millis(1);

/// A slot for a command. The thread that set its bit in `busy` owns the request.
struct Slot {
    request: Arc<Request>,
    /// There from when the request is made until it is seen to be done.
    command: SpinLock<Option<Command>>,
}

/// A disk of the host's.
struct VirtioDisk {
    device: Device,
    limits: Limits,
    serial: Vec<u8>,
    messages: Buffer,
    slots: Vec<Slot>,
    /// Slots that have a command [bit per slot].
    busy: AtomicU64,
}

/// Starts a device.
///
/// # Errors
/// `EIO` for a device that lacks a feature or reports impossible figures, `ENOMEM`.
pub fn start(found: virtio::Found) -> Result<Arc<dyn Disk>> {
    let device = found.start(Feature::all().bits(), 1).map_err(|error| {
        log!("disk: the device does not start: {error:?}");
        errno(error)
    })?;
    let queue = device.queue(0).clone();
    let features = Feature::from_bits_truncate(device.features());
    let limits = limits(&device, &queue, &features)?;
    let mut slots = Vec::new();
    for _ in 0..limits.depth {
        slots.push(Slot {
            request: Request::idle(limits.max_parts + FRAMING)?,
            command: SpinLock::new(Rank::Leaf, None),
        });
    }
    queue.prepare(limits.depth)?;
    let messages = device.pool(1)?.take()?;
    messages.fill(0, PAGE_SIZE, 0);
    let mut disk = VirtioDisk {
        device,
        limits,
        serial: Vec::new(),
        messages,
        slots,
        busy: AtomicU64::new(0),
    };
    disk.serial = disk.ask_serial();
    Ok(Arc::new(disk))
}

/// The device's configuration (5.2.4).
fn limits(device: &Device, queue: &Queue, features: &Feature) -> Result<Limits> {
    let word = |at: usize| -> Result<u32> {
        let mut bytes = [0; 4];
        device.read_config(at, &mut bytes).map_err(errno)?;
        Ok(u32::from_le_bytes(bytes))
    };
    let sectors = u64::from(word(0)?) | u64::from(word(4)?) << 32;
    let asked = |feature: Feature, at: usize, otherwise: u32| match features.contains(feature) {
        true => word(at),
        false => Ok(otherwise),
    };
    let block_size = asked(Feature::BLK_SIZE, 20, SECTOR as u32)?;
    let in_block = u64::from(block_size) / SECTOR as u64;
    if !block_size.is_power_of_two()
        || !(SECTOR..=PAGE_SIZE).contains(&(block_size as usize))
        || !sectors.is_multiple_of(in_block)
        || sectors > i64::MAX as u64 / SECTOR as u64
    {
        log!("disk: {sectors} sectors in blocks of {block_size} bytes can't be");
        return Err(Errno::EIO);
    }
    let exponent = asked(Feature::TOPOLOGY, 24, 0)? & 0xff;
    let segments = asked(Feature::SEG_MAX, 12, 1)? as usize;
    let max_parts = segments
        .min(queue.max_parts().saturating_sub(FRAMING))
        .min(PARTS);
    if max_parts * SECTOR < PAGE_SIZE {
        log!("disk: requests of {max_parts} pieces are too small");
        return Err(Errno::EIO);
    }
    let max_discard = u64::from(asked(Feature::DISCARD, 36, 0)?) / in_block * in_block;
    Ok(Limits {
        sectors,
        block_size,
        // A hint beyond a few MiB cannot be followed.
        physical_block_size: block_size << exponent.min(12),
        depth: queue.slots().min(DEPTH),
        max_parts,
        max_sectors: SECTORS,
        max_discard,
        volatile_cache: features.contains(Feature::FLUSH),
        read_only: features.contains(Feature::READ_ONLY),
    })
}

impl VirtioDisk {
    fn queue(&self) -> &Arc<Queue> {
        self.device.queue(0)
    }

    /// Bytes `at..at + len` of a slot's own part of the frame of messages.
    fn message(&self, slot: usize, at: usize, len: usize) -> Part {
        self.messages.part(slot * MESSAGE + at, len)
    }

    fn put(&self, slot: usize, at: usize, bytes: &[u8]) {
        self.messages.write(slot * MESSAGE + at, bytes);
    }

    fn put_header(&self, slot: usize, kind: u32, sector: u64) {
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        header[8..].copy_from_slice(&sector.to_le_bytes());
        self.put(slot, 0, &header);
        self.put(slot, STATUS_AT, &[NONE]);
    }

    fn status(&self, slot: usize) -> u8 {
        let mut status = [NONE];
        self.messages.read(slot * MESSAGE + STATUS_AT, &mut status);
        status[0]
    }

    /// The disk's name for itself; empty where it has none.
    fn ask_serial(&self) -> Vec<u8> {
        let Ok(frame) = Frame::alloc(Contents::Zeroed) else {
            return Vec::new();
        };
        let name = Part::new(frame.clone(), 0, ID);
        self.put_header(0, kind::GET_ID, 0);
        let request = Request::new(
            [
                self.message(0, 0, HEADER),
                name,
                self.message(0, STATUS_AT, 1),
            ]
            .into(),
            1,
        );
        let how = Sleep::within(PATIENCE);
        let asked = self.queue().try_submit(&request);
        if asked.is_err() || !matches!(self.queue().wait(&request, how), Ok(Ok(_))) {
            return Vec::new();
        }
        drop(request.take_parts());
        let mut bytes = [0; ID];
        ephemeral::map(&frame).read(0, &mut bytes);
        let len = bytes.iter().position(|&byte| byte == 0).unwrap_or(ID);
        let plain = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
        match self.status(0) == OK && bytes[..len].iter().all(plain) {
            true => bytes[..len].to_vec(),
            false => Vec::new(),
        }
    }

    /// Takes a slot that is free. There is one: the device's owner counts.
    fn take_slot(&self) -> Option<usize> {
        loop {
            let busy = self.busy.load(Ordering::Relaxed);
            let slot = busy.trailing_ones() as usize;
            if slot >= self.slots.len() {
                return None;
            }
            let took = self.busy.compare_exchange(
                busy,
                busy | 1 << slot,
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            if took.is_ok() {
                return Some(slot);
            }
        }
    }

    fn give_slot(&self, slot: usize) {
        self.busy.fetch_and(!(1 << slot), Ordering::Release);
    }

    /// Makes the request of a slot what `command` says.
    fn renew(&self, slot: usize, request: &Request, command: &Command) {
        let kind = match command.operation() {
            Operation::Read => kind::IN,
            Operation::Write => kind::OUT,
            Operation::Flush => kind::FLUSH,
            Operation::Discard => kind::DISCARD,
        };
        let sector = match command.operation() {
            Operation::Read | Operation::Write => command.sector(),
            Operation::Flush | Operation::Discard => 0,
        };
        self.put_header(slot, kind, sector);
        let mut readable = 1;
        let discards = command.operation() == Operation::Discard;
        match command.operation() {
            Operation::Write => readable += command.parts().count(),
            Operation::Discard => {
                let mut range = [0; RANGE];
                range[..8].copy_from_slice(&command.sector().to_le_bytes());
                // As many as the limits say, which fit.
                range[8..12].copy_from_slice(&(command.sectors() as u32).to_le_bytes());
                self.put(slot, RANGE_AT, &range);
                readable += 1;
            }
            Operation::Read | Operation::Flush => {}
        }
        request.renew(readable, |parts| {
            parts.push(self.message(slot, 0, HEADER));
            if discards {
                parts.push(self.message(slot, RANGE_AT, RANGE));
            }
            parts.extend(command.parts().cloned());
            parts.push(self.message(slot, STATUS_AT, 1));
        });
    }

    /// How a command ended, for which the device is done with this answer.
    fn outcome(&self, slot: usize, answer: core::result::Result<u32, Error>) -> Result<()> {
        match (answer, self.status(slot)) {
            (Ok(_), OK) => Ok(()),
            (Ok(_), UNSUPPORTED) => Err(Errno::EOPNOTSUPP),
            _ => Err(Errno::EIO),
        }
    }
}

impl Disk for VirtioDisk {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn start(&self, command: Command) {
        let Some(slot) = self.take_slot() else {
            return command.finish(Err(Errno::EIO));
        };
        let place = &self.slots[slot];
        self.renew(slot, &place.request, &command);
        *place.command.lock() = Some(command);
        if self.queue().try_submit(&place.request).is_ok() {
            return;
        }
        // The device is given up.
        let command = place.command.lock().take();
        place.request.abandon();
        self.give_slot(slot);
        if let Some(command) = command {
            command.finish(Err(Errno::EIO));
        }
    }

    fn reap(&self) {
        if !self.queue().has_interrupts() {
            self.queue().look();
        }
        let mut left = self.busy.load(Ordering::Acquire);
        while left != 0 {
            let slot = left.trailing_zeros() as usize;
            left &= left - 1;
            let place = &self.slots[slot];
            let (command, answer) = {
                // A command that is there has its own request there: the answer is no earlier
                // one's.
                let mut waiting = place.command.lock();
                let Some(answer) = waiting.as_ref().and_then(|_| place.request.result()) else {
                    continue;
                };
                (waiting.take(), answer)
            };
            let Some(command) = command else { continue };
            // The frames are the caller's again.
            place.request.clear();
            let result = self.outcome(slot, answer);
            self.give_slot(slot);
            command.finish(result);
        }
    }

    fn bell(&self) -> Option<&WaitQueue> {
        Some(self.queue().progress())
    }

    fn patience(&self) -> Option<Duration> {
        (!self.queue().has_interrupts()).then_some(LOOK)
    }

    fn serial(&self) -> &[u8] {
        &self.serial
    }
}
