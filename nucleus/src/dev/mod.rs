//! Devices: the console, the real-time clock, PCI functions and virtio queues.

#[cfg(not(target_os = "none"))]
pub mod bus_master;
pub mod console;
pub mod dma;
pub mod functions;
#[cfg(target_os = "none")]
pub(crate) mod interrupts;
mod owners;
#[cfg(target_os = "none")]
pub(crate) mod pci;
#[cfg_attr(not(target_os = "none"), allow(dead_code))]
pub(crate) mod refused;
pub mod rtc;
pub mod units;
pub mod virtio;
