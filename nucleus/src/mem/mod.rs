//! Physical memory.
//!
//! [`frame`]: frames, their records and allocator; [`device`]: what is not RAM; `domain`:
//! which memory devices reach; [`persistent`]: RAM
//! whose bytes stay; [`heap`]: the kernel's heap; `mapped`: its large blocks where frames are not
//! neighbours; `stack`: kernel stacks; `mistake`: the rules that tests remove.

pub mod device;
pub(crate) mod domain;
pub mod frame;
#[cfg_attr(not(any(target_os = "none", test)), allow(dead_code))]
pub mod heap;
#[cfg(target_os = "none")]
mod mapped;
pub(crate) mod mistake;
pub mod persistent;
#[cfg(target_os = "none")]
pub(crate) mod stack;

#[cfg(not(target_os = "none"))]
pub(crate) use crate::hw::sim::Stack as KernelStack;
#[cfg(target_os = "none")]
pub(crate) use stack::KernelStack;
