//! The bootable kernel.
#![cfg_attr(target_os = "none", no_std)]
#![cfg_attr(target_os = "none", no_main)]
#![forbid(unsafe_code)]

#[cfg(target_os = "none")]
nucleus::entry!(kernel::start);

#[cfg(not(target_os = "none"))]
fn main() {
    eprintln!("the kernel runs on bare metal only");
}
