//! Devices that are swap space before the first program runs.

use alloc::{format, string::String};

use abi::Errno;
use fs::Walk;

use crate::swap;

/// Gives each device to the swap space, the first one with the highest priority.
///
/// # Errors
/// A sentence that describes the error.
pub fn start(devices: &[String], walk: &Walk<'_>) -> Result<(), String> {
    for name in devices {
        let path = format!("/dev/{name}");
        let on = walk
            .resolve(path.as_bytes(), true)
            .and_then(|at| swap::on(at, None, false));
        on.map_err(|error| match error {
            Errno::ENOENT => format!("there is no disk {path} to swap to"),
            Errno::EINVAL => format!("{path} is no swap space: mkswap makes one"),
            error => format!("can't swap to {path}: {}", error.name()),
        })?;
    }
    Ok(())
}
