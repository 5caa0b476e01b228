//! The faults: their kind, place, and report.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::SeqCst},
};

use fs::block::FaultyDisk;
use nucleus::frame;

/// The kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// One allocation of a frame or page table.
    Allocation,
    /// That and all after it, until one was reported.
    Shortage,
    /// One question whether the kernel's heap is scarce is answered with yes.
    Scarce,
    /// One command of the disk.
    Command,
    /// That and some after it.
    Away,
    /// That and all after it.
    Gone,
}

/// Commands that fail while the disk is away.
const AWAY: u64 = 7;

impl Kind {
    /// Whether it is the disk that fails.
    pub fn is_the_disks(self) -> bool {
        matches!(self, Kind::Command | Kind::Away | Kind::Gone)
    }
}

/// One fault, armed.
pub struct Faults {
    kind: Kind,
    /// Whether a command has failed.
    command_failed: Arc<AtomicBool>,
}

impl Faults {
    /// From now on the fault waits for the `place`th chance to strike.
    pub fn arm(kind: Kind, place: u64, disk: &FaultyDisk) -> Faults {
        let command_failed = Arc::new(AtomicBool::new(false));
        match kind {
            Kind::Allocation => frame::fail_once(place),
            Kind::Shortage => frame::fail_after(Some(place)),
            Kind::Scarce => frame::seem_scarce_once(place),
            Kind::Command | Kind::Away | Kind::Gone => {
                let failed = command_failed.clone();
                disk.fail_when(move |attempt| {
                    let many = match kind {
                        Kind::Command => 1,
                        Kind::Away => AWAY,
                        _ => u64::MAX,
                    };
                    let fails = (place..place.saturating_add(many)).contains(&attempt.number);
                    failed.fetch_or(fails, SeqCst);
                    fails
                });
            }
        }
        Faults {
            kind,
            command_failed,
        }
    }

    /// Whether it has struck.
    pub fn struck(&self) -> bool {
        self.command_failed.load(SeqCst) || frame::failed() > 0
    }

    /// One was reported.
    fn heard(&self) {
        if self.kind == Kind::Shortage {
            frame::fail_after(None);
        }
    }

    /// Does something until it works. `None` if it never will.
    ///
    /// # Panics
    /// If it fails though nothing has gone wrong, or again and again.
    pub fn insist<T, E: std::fmt::Debug>(
        &self,
        what: &str,
        mut step: impl FnMut() -> Result<T, E>,
    ) -> Option<T> {
        // Each open file reports a failed writeback, and so does the next write.
        const TIMES: usize = 4;
        let times = match self.kind {
            Kind::Away => TIMES + AWAY as usize,
            _ => TIMES,
        };
        let mut errors = Vec::new();
        for _ in 0..times {
            match step() {
                Ok(value) => return Some(value),
                Err(error) => errors.push(error),
            }
            assert!(self.struck(), "{what}: {errors:?} for no reason");
            self.heard();
            if self.kind == Kind::Gone {
                return None;
            }
        }
        panic!("{what}: {errors:?} though the fault is over");
    }

    /// Nothing goes wrong any more that has not yet; the disk that is gone stays so.
    pub fn disarm(&self) {
        frame::fail_after(None);
    }
}
