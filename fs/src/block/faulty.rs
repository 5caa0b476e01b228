//! A disk with the faults of disks, for tests: errors, delays, reordered commands, unflushed writes
//! lost at a power cut, torn writes, a disk that is gone.

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::time::Duration;

use abi::{Errno, Result};
use nucleus::{
    ephemeral,
    sim::{BusMaster, Transfer},
    sync::{OnceArc, Rank, SpinLock},
};

use super::{Command, Disk, Limits, Operation, SECTOR};

/// How often a disk with delays is looked at.
const LOOK: Duration = Duration::from_micros(100);

/// A command that is about to be done, for the function that decides whether it fails.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Attempt {
    pub operation: Operation,
    pub sector: u64,
    pub sectors: u64,
    /// How many commands there were before it.
    pub number: u64,
}

type Fails = Box<dyn FnMut(&Attempt) -> bool + Send>;

/// A disk in the host's memory. It answers at once and never fails by default.
///
/// Its cache is volatile: every read sees a write that is done, and the medium has it only after a
/// flush.
pub struct FaultyDisk {
    limits: Limits,
    /// Made with the first command: the machine runs then.
    device: OnceArc<BusMaster>,
    state: SpinLock<State>,
}

struct State {
    /// The bytes that a read sees.
    content: Vec<u8>,
    /// The bytes that are on the medium for sure.
    medium: Vec<u8>,
    /// The writes since the last flush, in order: sector and bytes.
    unflushed: Vec<(u64, Vec<u8>)>,
    /// Commands that are not done yet.
    waiting: Vec<(Command, Transfer)>,
    random: Random,
    delays: bool,
    gone: bool,
    fails: Option<Fails>,
    /// Commands that were done, by operation, failed ones included.
    counts: [u64; 4],
}

struct Random(u64);

impl Random {
    /// Below `n`, which is not 0.
    fn below(&mut self, n: usize) -> usize {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % n as u64) as usize
    }
}

impl FaultyDisk {
    /// A disk with this content, whole sectors. `seed` decides everything that is left to chance.
    pub fn new(content: Vec<u8>, seed: u64) -> Arc<FaultyDisk> {
        let limits = Limits {
            volatile_cache: true,
            max_discard: 1 << 20,
            ..Limits::plain((content.len() / SECTOR) as u64)
        };
        FaultyDisk::with_limits(content, seed, limits)
    }

    /// As [`new`](FaultyDisk::new), with other limits; their number of sectors is replaced by the
    /// content's.
    pub fn with_limits(content: Vec<u8>, seed: u64, limits: Limits) -> Arc<FaultyDisk> {
        assert!(content.len().is_multiple_of(SECTOR));
        Arc::new(FaultyDisk {
            limits: Limits {
                sectors: (content.len() / SECTOR) as u64,
                ..limits
            },
            device: OnceArc::new(),
            state: SpinLock::new(
                Rank::Leaf,
                State {
                    medium: content.clone(),
                    content,
                    unflushed: Vec::new(),
                    waiting: Vec::new(),
                    random: Random(seed),
                    delays: false,
                    gone: false,
                    fails: None,
                    counts: [0; 4],
                },
            ),
        })
    }

    /// Sets whether commands take a while from now on, and are done in any order. The simulated
    /// machine's clock must run.
    pub fn set_delays(&self, delays: bool) {
        self.state.lock().delays = delays;
    }

    /// Makes commands for which `fails` returns true end with `EIO`; of a write that fails, some
    /// sectors may have been written.
    pub fn fail_when(&self, fails: impl FnMut(&Attempt) -> bool + Send + 'static) {
        self.state.lock().fails = Some(Box::new(fails));
    }

    /// No command fails from now on, unless the disk is gone.
    pub fn fail_no_more(&self) {
        self.state.lock().fails = None;
    }

    /// Every command fails from now on, and changes nothing: the cable was pulled.
    pub fn go_away(&self) {
        self.state.lock().gone = true;
    }

    /// All bytes as a read sees them.
    pub fn content(&self) -> Vec<u8> {
        self.state.lock().content.clone()
    }

    /// Returns all bytes as the medium might have them if the power were cut now: flushed writes
    /// are there, and of each later write, those under way included, all, none or any of its
    /// sectors. Each call cuts anew; the disk goes on.
    pub fn after_power_cut(&self) -> Vec<u8> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let mut left = state.medium.clone();
        let random = &mut state.random;
        // As a whole, a cut is kind, cruel, or neither.
        let odds = [0, 1, 2, 2, 2][random.below(5)];
        let mut keep = |sector: u64, bytes: &[u8], random: &mut Random| {
            let whole = random.below(4);
            for (i, piece) in bytes.chunks(SECTOR).enumerate() {
                let kept = match (odds, whole) {
                    (0, _) | (2, 0) => false,
                    (1, _) | (2, 1) => true,
                    _ => random.below(2) == 0,
                };
                if kept {
                    let at = (sector as usize + i) * SECTOR;
                    left[at..at + SECTOR].copy_from_slice(piece);
                }
            }
        };
        for (sector, bytes) in &state.unflushed {
            keep(*sector, bytes, random);
        }
        for (command, _) in &state.waiting {
            if command.operation() == Operation::Write {
                keep(command.sector(), &gather(command), random);
            }
        }
        left
    }

    /// Commands of this kind that were done, failed ones included.
    pub fn count(&self, operation: Operation) -> u64 {
        self.state.lock().counts[operation as usize]
    }
}

/// The bytes of a command's parts.
fn gather(command: &Command) -> Vec<u8> {
    let mut bytes = alloc::vec![0; command.sectors() as usize * SECTOR];
    let mut at = 0;
    for part in command.parts() {
        ephemeral::map(&part.frame).read(part.offset, &mut bytes[at..at + part.len]);
        at += part.len;
    }
    bytes
}

impl State {
    fn perform(&mut self, command: &Command, transfer: &Transfer) -> Result<()> {
        let attempt = Attempt {
            operation: command.operation(),
            sector: command.sector(),
            sectors: command.sectors(),
            number: self.counts.iter().sum(),
        };
        self.counts[attempt.operation as usize] += 1;
        if self.gone {
            return Err(Errno::EIO);
        }
        let fails = self.fails.as_mut().is_some_and(|fails| fails(&attempt));
        let from = attempt.sector as usize * SECTOR;
        let len = attempt.sectors as usize * SECTOR;
        match attempt.operation {
            Operation::Read if !fails => {
                let mut at = from;
                for (i, part) in command.parts().enumerate() {
                    let bytes = &self.content[at..at + part.len];
                    Errno::EIO.unless(transfer.write(i, bytes))?;
                    at += part.len;
                }
            }
            Operation::Write => {
                let mut bytes = alloc::vec![0; len];
                let mut at = 0;
                for (i, part) in command.parts().enumerate() {
                    let to = &mut bytes[at..at + part.len];
                    Errno::EIO.unless(transfer.read(i, to))?;
                    at += part.len;
                }
                for (i, piece) in bytes.chunks(SECTOR).enumerate() {
                    if fails && self.random.below(2) == 0 {
                        continue;
                    }
                    let sector = attempt.sector + i as u64;
                    let at = sector as usize * SECTOR;
                    self.content[at..at + SECTOR].copy_from_slice(piece);
                    if fails {
                        self.unflushed.push((sector, piece.to_vec()));
                    }
                }
                if !fails {
                    self.unflushed.push((attempt.sector, bytes));
                }
            }
            Operation::Discard if !fails => {
                self.content[from..from + len].fill(0);
                self.unflushed.push((attempt.sector, alloc::vec![0; len]));
            }
            Operation::Flush if !fails => {
                self.medium.copy_from_slice(&self.content);
                self.unflushed.clear();
            }
            _ => {}
        }
        Errno::EIO.unless(!fails)
    }
}

impl Disk for FaultyDisk {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn start(&self, command: Command) {
        self.device.get_or_insert(BusMaster::new);
        let device = self.device.get_arc().expect("it has just been made");
        let transfer = device.give(command.parts(), command.operation() == Operation::Read);
        let mut state = self.state.lock();
        if state.delays {
            state.waiting.push((command, transfer));
            return;
        }
        let result = state.perform(&command, &transfer);
        drop(state);
        drop(transfer);
        command.finish(result);
    }

    fn reap(&self) {
        loop {
            let mut state = self.state.lock();
            let count = state.waiting.len();
            if count == 0 || state.delays && state.random.below(3) == 0 {
                return;
            }
            let at = state.random.below(count);
            let (command, transfer) = state.waiting.swap_remove(at);
            let result = state.perform(&command, &transfer);
            drop(state);
            drop(transfer);
            command.finish(result);
        }
    }

    fn patience(&self) -> Option<Duration> {
        Some(LOOK)
    }
}
