//! Programs that end with this one, however it ends.
//!
//! The system is asked for that in the program's own process before it becomes the program: this
//! program starts itself, as `causeway launch`, which asks and then executes the other one.

use std::ffi::OsString;
use std::io::Error;
use std::os::unix::process::CommandExt;
use std::process::{self, Command};

use anyhow::{Context, Result};
use clap::Args;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

/// This program, even where its file has been replaced.
pub const SELF: &str = "/proc/self/exe";

/// Executes a program that ends with its parent
#[derive(Args, Debug)]
pub struct Launch {
    /// The process that it ends with
    #[arg(value_name = "PID")]
    parent: i32,
    /// The program and its arguments
    #[arg(
        value_name = "CMD",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    command: Vec<OsString>,
}

/// Returns a command that runs `program` until it, or the thread that starts it, ends.
pub fn command(program: &str) -> Command {
    let mut command = Command::new(SELF);
    command.arg("launch").arg(process::id().to_string());
    command.args(["--", program]);
    command
}

/// Becomes the program.
///
/// # Errors
/// When it can't be executed.
pub fn launch(options: &Launch) -> Result<u8> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // A parent that ended before the system was asked is not noticed by it.
    if getppid().map(Pid::as_raw_pid) != Some(options.parent) {
        return Ok(crate::outcome::FAILURE);
    }
    let (program, arguments) = options.command.split_first().context("no program")?;
    let error: Error = Command::new(program).args(arguments).exec();
    Err(error).with_context(crate::qemu::missing)
}
