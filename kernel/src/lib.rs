//! Processes and the Linux interface.
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

/// The first task: everything in the nucleus is ready.
pub fn start() -> ! {
    nucleus::power::stop(nucleus::power::Stop::BadStart)
}
