//! Physical memory.
//!
//! [`frame`]: frames, their records and allocator; [`heap`]: the kernel's heap;
//! [`ephemeral`]: short-lived mappings of frames; [`dma`]: frames that a device reaches.

pub mod dma;
pub mod ephemeral;
pub mod frame;
#[cfg_attr(not(any(target_os = "none", test)), allow(dead_code))]
pub mod heap;
