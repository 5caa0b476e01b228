//! Hardware costs: what the bare machine takes for what a kernel can't do without, measured on
//! request where the kernel itself runs. Every figure about the kernel is held against them.
//!
//! A measurement is done by a task of its own, in [batches](sample) with interrupts off that last a
//! millisecond at most; between them the CPU does whatever else is to be done. One
//! measurement at a time. What is measured, and how, is the business of the machine; the simulated
//! one has no cost to measure.

mod sample;
#[cfg(target_os = "none")]
mod x86_64;

#[cfg(target_os = "none")]
use x86_64::measure_machine;

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::fmt;

use crate::OutOfMemory;
use crate::hw::machine;
use crate::lock::{Rank, SpinLock};
use crate::sync::Mutex;
use crate::task::{self, Spawn, WaitQueue};

/// One cost of the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HwCost {
    /// Small letters and underscores.
    pub name: &'static str,
    /// How much.
    pub cost: Cost,
}

/// How much an operation takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cost {
    /// Picoseconds each.
    Time(u64),
    /// Bytes a second.
    Rate(u64),
}

/// What the operations of a batch are counted in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(
    not(target_os = "none"),
    allow(dead_code, reason = "only a real machine has costs")
)]
pub(crate) enum Kind {
    /// The time of one.
    Time,
    /// What moves when each moves so many bytes.
    Rate(u64),
}

/// A batch: does so many operations, and gives the picoseconds that they took together.
pub(crate) type Batch<'a> = dyn FnMut(u64) -> u64 + 'a;

/// Where a machine puts what it measures: names, in their order, with the ways to do each
/// operation, of which the cheapest counts.
pub(crate) type Measure<'a> = dyn FnMut(&'static str, Kind, &mut [&mut Batch<'_>]) + 'a;

/// Held by the task that measures.
static TURN: Mutex<()> = Mutex::new(Rank::HwCost, ());

/// Measures all. Takes some tenths of a second; other callers wait meanwhile.
///
/// # Errors
/// [`OutOfMemory`] if there is none for the pages that it needs.
pub fn measure() -> Result<Vec<HwCost>, OutOfMemory> {
    let _turn = TURN.lock();
    let report = Arc::new(Report {
        outcome: SpinLock::new(Rank::Leaf, None),
        done: WaitQueue::new(),
    });
    let to = report.clone();
    let spawn = Spawn {
        cpus: 1,
        ..Spawn::kernel("hw_cost")
    };
    task::spawn(
        spawn,
        Box::new(move || {
            let outcome = all();
            *to.outcome.lock() = Some(outcome);
            to.done.wake_all();
        }),
    )?;
    report.done.wait_soundly(|| report.outcome.lock().take())
}

/// What the task hands over.
struct Report {
    outcome: SpinLock<Option<Result<Vec<HwCost>, OutOfMemory>>>,
    done: WaitQueue,
}

fn all() -> Result<Vec<HwCost>, OutOfMemory> {
    let mut costs = Vec::new();
    measure_machine(&mut |name, kind, ways| {
        let least = ways
            .iter_mut()
            .map(|way| sample::cost(*way, machine::nanoseconds))
            .min();
        let picoseconds = least.unwrap_or(1).max(1);
        let cost = match kind {
            Kind::Time => Cost::Time(picoseconds),
            Kind::Rate(bytes) => Cost::Rate(rate(bytes, picoseconds)),
        };
        costs.push(HwCost { name, cost });
    })?;
    Ok(costs)
}

/// The simulated machine costs nothing: its time is what the run's seed makes of it.
#[cfg(not(target_os = "none"))]
fn measure_machine(_: &mut Measure<'_>) -> Result<(), OutOfMemory> {
    Ok(())
}

/// Bytes a second.
fn rate(bytes: u64, picoseconds: u64) -> u64 {
    (u128::from(bytes) * 1_000_000_000_000 / u128::from(picoseconds)) as u64
}

/// `812.4 ns` or `10240 MiB/s`.
impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Cost::Time(picoseconds) => {
                let tenths = picoseconds.saturating_add(50) / 100;
                write!(f, "{}.{} ns", tenths / 10, tenths % 10)
            }
            Cost::Rate(bytes) => write!(f, "{} MiB/s", bytes >> 20),
        }
    }
}

/// `trap 812.4 ns`.
impl fmt::Display for HwCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.cost)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::string::ToString;

    #[test]
    fn costs_are_shown_in_their_units() {
        let text = |cost: Cost| cost.to_string();
        assert_eq!(text(Cost::Time(812_449)), "812.4 ns");
        assert_eq!(text(Cost::Time(812_450)), "812.5 ns");
        assert_eq!(text(Cost::Time(50)), "0.1 ns");
        assert_eq!(text(Cost::Rate(3 << 30)), "3072 MiB/s");
        // A page in a microsecond.
        assert_eq!(rate(4096, 1_000_000), 4_096_000_000);
        let hw_cost = HwCost {
            name: "trap",
            cost: Cost::Time(1000),
        };
        assert_eq!(hw_cost.to_string(), "trap 1.0 ns");
    }

    #[test]
    fn the_simulated_machine_has_none() {
        crate::sim::on_machines_with("no costs", [2], 2048, 8, || {
            assert_eq!(measure(), Ok(Vec::new()));
        });
    }
}
