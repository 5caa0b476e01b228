//! The two machines. The compile target chooses: `x86_64` on bare metal, `sim` inside `cargo test`.

pub mod counters;
pub mod log;
pub mod power;
pub mod processor;
#[cfg(not(target_os = "none"))]
pub mod sim;
pub mod trap;
#[cfg(target_os = "none")]
pub(crate) mod x86_64;

#[cfg(not(target_os = "none"))]
pub(crate) use sim as machine;
#[cfg(target_os = "none")]
pub(crate) use x86_64 as machine;

/// What the x86-64 machine computes from the loader's and the firmware's data, tested on the host.
#[cfg(all(test, not(target_os = "none")))]
mod x86_64_on_host;
