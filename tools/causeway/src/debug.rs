//! `causeway debug`: a guest that waits for gdb.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::console::{Console, attend};
use crate::guest::Guest;
use crate::options;
use crate::qemu::Accelerator;

/// Starts a guest whose CPUs stand still until gdb lets them go, and returns the exit status.
///
/// # Errors
/// When the guest or gdb cannot be started.
pub fn debug(options: &options::Debug) -> Result<u8> {
    let kernel = options.guest.kernel()?;
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let console = Console::of(false);
    // A breakpoint by software would be overwritten with the kernel's own bytes under KVM.
    let accelerator = match options.guest.accelerator {
        Accelerator::Auto => Accelerator::Tcg,
        asked => asked,
    };
    // The addresses in the kernel's file are those in its memory.
    let guest = options.guest.unmoved();
    let mut machine = guest.machine(
        &kernel,
        console,
        &options.command,
        accelerator,
        folder.path(),
    )?;
    machine.extra.extend(["-S", "-gdb"].map(String::from));
    machine
        .extra
        .push(format!("tcp:127.0.0.1:{}", options.gdb_port));
    let target = format!("target remote 127.0.0.1:{}", options.gdb_port);
    if !options.gdb {
        eprintln!("The guest waits for gdb. In another terminal:\n");
        eprintln!("    gdb {} -ex '{target}'\n", kernel.display());
        eprintln!(
            "`hbreak causeway_start` and `continue` there stop it at its first task. Ctrl-A x ends it."
        );
        return attend(&machine, &kernel, console, None, false);
    }
    let (mut guest, input, mut output) = Guest::start(&machine, false)?;
    let path: PathBuf = std::env::temp_dir().join(format!("causeway-console-{}", options.gdb_port));
    let mut file =
        File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
    std::thread::spawn(move || std::io::copy(&mut output, &mut file));
    eprintln!("The guest's console output goes to {}.", path.display());
    let gdb = Command::new("gdb")
        .arg(&kernel)
        .args(["-ex", &target])
        .stdin(Stdio::inherit())
        .status();
    guest.kill();
    drop(input);
    match gdb {
        Ok(status) if status.success() => Ok(0),
        Ok(status) => bail!("gdb ended with {status}"),
        Err(error) => Err(error).context("cannot run gdb: install Debian's package gdb"),
    }
}
