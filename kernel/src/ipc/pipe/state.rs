//! The limit of a pipe, its counts of ends, and its readiness.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use abi::{Errno, Result};
use fbuf::queue::{Chain, Slots, State};
use fs::Ready;
use nucleus::PAGE_SIZE;

use super::packets::Packets;

/// Slices that a new pipe takes: 64 KiB in whole pages, as on Linux.
pub const DEFAULT_SLOTS: usize = 16;
/// The most slices that `F_SETPIPE_SZ` allows: at first 1 MiB, Linux's `pipe-max-size`.
static MAX_SLOTS: AtomicUsize = AtomicUsize::new(256);
/// The most that this can be set to: 128 MiB.
const SLOTS_LIMIT: usize = 1 << 15;

/// Returns the largest size in bytes that a pipe may be given.
pub fn max_size() -> usize {
    MAX_SLOTS.load(Relaxed) * PAGE_SIZE
}

/// Sets [`max_size`], rounded up to a power of two of pages.
///
/// # Errors
/// `EINVAL` for less than a page, or more than a pipe can ever have.
pub fn set_max_size(bytes: usize) -> Result<()> {
    let slots = bytes.div_ceil(PAGE_SIZE).next_power_of_two();
    if bytes < PAGE_SIZE || slots > SLOTS_LIMIT {
        return Err(Errno::EINVAL);
    }
    MAX_SLOTS.store(slots, Relaxed);
    Ok(())
}

/// Returns the slots of a pipe of at least `bytes`: a power of two.
///
/// # Errors
/// `EINVAL` for more than 2 GiB, `EPERM` above [`max_size`].
pub(super) fn slots_for(bytes: usize) -> Result<usize> {
    if bytes > 1 << 31 {
        return Err(Errno::EINVAL);
    }
    let slots = bytes.div_ceil(PAGE_SIZE).max(1).next_power_of_two();
    if slots > MAX_SLOTS.load(Relaxed) {
        return Err(Errno::EPERM);
    }
    Ok(slots)
}

/// Which ends an open file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ends {
    pub reads: bool,
    pub writes: bool,
}

/// What a pipe keeps with its chain.
#[derive(Default)]
pub(super) struct PipeState {
    /// Slices that fit.
    pub slots: usize,
    pub readers: usize,
    pub writers: usize,
    /// Reading ends that were ever opened.
    pub readers_seen: u64,
    /// Writing ends that were ever opened.
    pub writers_seen: u64,
    pub packets: Packets,
}

impl State for PipeState {
    const STORES_READY: bool = true;

    /// `IN` and `HUP` are the reading end's, `OUT` and `ERR` the writing end's. `HUP` says that
    /// there is no writer; the end knows whether there ever was one.
    #[inline]
    fn ready(chain: &Chain<PipeState>) -> u32 {
        let when = |holds: bool, ready: Ready| match holds {
            true => ready,
            false => Ready::empty(),
        };
        let ready = when(!chain.data.is_empty(), Ready::IN | Ready::RDNORM)
            | when(chain.has_slot(), Ready::OUT | Ready::WRNORM)
            | when(chain.state.readers == 0, Ready::ERR)
            | when(chain.state.writers == 0, Ready::HUP);
        ready.bits()
    }

    #[inline]
    fn keeps_frames(chain: &Chain<PipeState>) -> bool {
        chain.state.readers > 0 && chain.state.writers > 0
    }
}

impl Slots for PipeState {
    #[inline]
    fn slots(&self) -> usize {
        self.slots
    }
}

/// A pipe's state at one time.
#[derive(Clone, Copy, Debug)]
pub struct PipeStatus {
    pub bytes: usize,
    pub slices: usize,
    /// Slices that fit.
    pub slots: usize,
    pub readers: usize,
    pub writers: usize,
    /// Reading ends that were ever opened.
    pub readers_seen: u64,
    /// Writing ends that were ever opened.
    pub writers_seen: u64,
}

impl PipeStatus {
    pub(super) fn of(chain: &Chain<PipeState>) -> PipeStatus {
        let state = &chain.state;
        PipeStatus {
            bytes: chain.data.len(),
            slices: chain.data.slice_count(),
            slots: state.slots,
            readers: state.readers,
            writers: state.writers,
            readers_seen: state.readers_seen,
            writers_seen: state.writers_seen,
        }
    }

    pub fn has_slot(&self) -> bool {
        self.slices < self.slots
    }
}
