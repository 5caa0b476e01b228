//! The machine: x86-64 on bare metal, or the simulated one inside `cargo test`, as the compile
//! target chooses.
//!
//! Nothing here uses a module above: interrupts, faults and the scheduler are reached through
//! [`handlers`]. Beside the two machines stand what both share: the switch between threads
//! ([`context`]), per-CPU [`counters`], the [`log`], the [`processor`]'s description with its
//! [`bugs`] and their [`mitigations`], [`registers`] and [`user_context`] of a program, a clock's
//! [`date`], and the machine's end ([`power`]).

pub mod bugs;
pub(crate) mod context;
pub mod counters;
pub mod date;
pub(crate) mod handlers;
pub mod log;
#[cfg_attr(
    not(target_os = "none"),
    allow(dead_code, reason = "the simulated machine has no faults")
)]
pub(crate) mod mitigations;
pub mod power;
pub mod processor;
pub mod registers;
#[cfg(not(target_os = "none"))]
pub mod sim;
pub mod user_context;
#[cfg(target_os = "none")]
pub(crate) mod x86_64;

#[cfg(not(target_os = "none"))]
pub(crate) use sim as machine;
#[cfg(target_os = "none")]
pub(crate) use x86_64 as machine;

/// Timer interrupts per second on a busy CPU.
pub const TICKS_PER_SECOND: u32 = 100;

/// A run of frames that the firmware reported as usable memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    /// First frame number.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// Whether anything uses it now: false for the kernel's image and what the loader left. Regions
    /// in use can be given later by `frame::release`.
    pub free: bool,
    /// Whether its bytes outlive the machine. It is in use then, and not a part of the memory.
    pub persistent: bool,
}

/// Longest command line in bytes, as on Linux for this machine.
pub const MAX_COMMAND_LINE: usize = 4096;

/// What the x86-64 machine computes from the loader's and the firmware's data, tested on the host.
#[cfg(all(test, not(target_os = "none")))]
mod x86_64_on_host;
