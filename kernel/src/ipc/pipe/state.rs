//! The limit of a pipe, its counts of ends, and its readiness.

use fbuf::queue::{Chain, Slots, SpareFrames, State};
use fs::Ready;
use vm::{TransferCall, account::Charge};

use super::packets::Packets;

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
    /// Slices that splices from streams may add beyond those, whatever others add meanwhile.
    pub promised: usize,
    pub readers: usize,
    pub writers: usize,
    /// Reading ends that were ever opened.
    pub readers_seen: u64,
    /// Writing ends that were ever opened.
    pub writers_seen: u64,
    pub packets: Packets,
    /// Of its maker, with a thing for each slot.
    pub charge: Option<Charge>,
}

impl State for PipeState {
    const STORES_READY: bool = true;
    const CALLS: [TransferCall; 2] = [TransferCall::PipeWrite, TransferCall::PipeRead];

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

    type Spare = SpareFrames;

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

    fn capacity(&self) -> usize {
        self.slots + self.promised
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
