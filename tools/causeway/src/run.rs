//! `causeway run`: a guest that behaves like a command.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::console::{Console, attend};
use crate::options;
use crate::project;
use crate::qemu;
use crate::supervisor;

/// Runs a guest as asked and returns this program's exit status.
///
/// # Errors
/// When the guest cannot be prepared or started.
pub fn run(options: &options::Run) -> Result<u8> {
    match &options.image {
        Some(image) => boot_image(options, image),
        None if options.guest_name.is_daemon_wanted() => supervisor::detach(options),
        None => supervisor::supervise(options),
    }
}

/// Boots a CD image, whose kernel has no sessions, with its console on this terminal.
fn boot_image(options: &options::Run, image: &Path) -> Result<u8> {
    let kernel = options.guest.kernel()?;
    let (accelerator, why) = qemu::choose(options.guest.accelerator, &kernel)?;
    if options.log {
        eprintln!("accelerator: {accelerator:?} ({why})");
    }
    let machine = options.guest.image_machine(image, accelerator)?;
    let console = Console::of(false);
    attend(&machine, &kernel, console, options.timeout, options.log)
}

/// The kernel's file: the one that the user named, else the project's own, built if need be.
///
/// # Errors
/// When it does not build.
pub fn kernel_of(named: Option<&Path>, profile: project::Profile) -> Result<PathBuf> {
    match named {
        Some(kernel) if kernel.is_file() => Ok(kernel.into()),
        Some(kernel) => anyhow::bail!("the kernel {} is not a file", kernel.display()),
        None => project::kernel(profile),
    }
}
