//! Devices: the console, PCI functions and virtio queues.

pub mod console;
#[cfg(target_os = "none")]
pub(crate) mod pci;
pub mod virtio;
