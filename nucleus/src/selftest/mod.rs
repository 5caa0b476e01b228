//! Measurements of the bare machine.

#[cfg(target_os = "none")]
mod edu;
#[cfg(target_os = "none")]
pub(crate) mod fault_injection;
pub mod hw_cost;
#[cfg(target_os = "none")]
mod slowdown;
#[cfg(target_os = "none")]
mod tables;
