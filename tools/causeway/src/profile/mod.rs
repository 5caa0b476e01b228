//! `causeway profile`: which of the kernel's functions a guest's instructions go to.
//!
//! Every instruction is counted, none is sampled: a small plugin (`counter.c`) makes QEMU's
//! emulator count the runs of each block of instructions, the kernel itself is unchanged, and two
//! runs of the same command differ only by the work of timers. [`counts`] reads the plugin's
//! output, [`table`] joins it with the kernel's functions and prints. `causeway bench` counts by
//! [`Plugin`], too; one of them (`sharing.c`) finds cache lines that CPUs share.

mod counts;
mod linux;
mod table;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::console::{Console, attend};
use crate::linux::Linux;
use crate::options;
use crate::qemu::{Accelerator, QEMU};
use crate::symbols::Functions;
use counts::Counts;
pub use table::Detail;

/// What the plugins' sources include.
const HEADER: &str = include_str!("plugin.h");

/// A plugin of the emulator's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plugin {
    /// Counts instructions.
    Counter,
    /// Finds the cache lines that CPUs share.
    Sharing,
}

impl Plugin {
    /// The name of its source, without the ending, and the source.
    fn source(self) -> (&'static str, &'static str) {
        match self {
            Plugin::Counter => ("counter", include_str!("counter.c")),
            Plugin::Sharing => ("sharing", include_str!("sharing.c")),
        }
    }

    /// Builds it in `folder`, and returns its file.
    ///
    /// # Errors
    /// When there is no compiler.
    pub fn build(self, folder: &Path) -> Result<PathBuf> {
        let (name, text) = self.source();
        let source = folder.join(name).with_extension("c");
        let plugin = source.with_extension("so");
        std::fs::write(folder.join("plugin.h"), HEADER)?;
        std::fs::write(&source, text)?;
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O2"])
            .arg(format!("-DVERSION={}", interface()?))
            .arg("-o")
            .args([&plugin, &source])
            .status()
            .context("cannot run cc: install Debian's package gcc")?;
        if !built.success() {
            bail!("the plugin did not build; the compiler's messages above say why");
        }
        Ok(plugin)
    }

    /// The words for QEMU's command line that make the plugin in the file `built` write a part of
    /// `file` at each mark that ends a counted part: the counter a line `PROGRAMS KERNEL`, the
    /// instructions of each since the mark before it, and the other what its head says.
    pub fn parts_into(self, built: &Path, file: &Path) -> [String; 2] {
        let key = match self {
            Plugin::Counter => "sections",
            Plugin::Sharing => "out",
        };
        let word = format!("{},{key}={}", built.display(), file.display());
        ["-plugin".into(), word]
    }
}

/// Runs a command in a guest, prints where the kernel's instructions went, and returns the
/// command's status.
///
/// # Errors
/// When the guest cannot be started, or this QEMU takes no plugins.
pub fn profile(options: &options::Profile) -> Result<u8> {
    if options.guest.accelerator == Accelerator::Kvm {
        bail!("instructions are counted by QEMU's emulator: leave --accel kvm out");
    }
    let linux = match &options.linux {
        Some(file) => Some(Linux::find(file.as_deref())?),
        None => None,
    };
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let console = Console::of(true);
    let (kernel, mut machine) = match &linux {
        Some(linux) => {
            let machine = linux::machine(linux, &options.guest, &options.command, folder.path())?;
            (linux.kernel.clone(), machine)
        }
        None => {
            let kernel = options.guest.kernel()?;
            // The addresses that are counted are those in the kernel's file.
            let machine = options.guest.unmoved().machine(
                &kernel,
                console,
                &options.command,
                Accelerator::Tcg,
                folder.path(),
            )?;
            (kernel, machine)
        }
    };
    let counted = folder.path().join("counts");
    machine.extra.extend(count_into(&counted, folder.path())?);
    let status = attend(&machine, &kernel, console, options.timeout, false)?;
    let text = std::fs::read_to_string(&counted)
        .context("QEMU counted nothing: was it built with plugins (--enable-plugins)?")?;
    let counts = Counts::read(&text)?;
    let table = match &linux {
        // Its package has no symbols.
        Some(_) => table::table(&counts, |_| "Linux".into(), 0),
        None => {
            let functions = Functions::of(&kernel)?;
            let name = |address| functions.name(address, options.detail());
            table::table(&counts, name, options.top)
        }
    };
    eprint!("{table}");
    Ok(status)
}

/// The words for QEMU's command line that make it count into `file`, by a plugin built in `folder`.
///
/// # Errors
/// When the plugin cannot be built.
pub fn count_into(file: &Path, folder: &Path) -> Result<Vec<String>> {
    let plugin = Plugin::Counter.build(folder)?;
    let word = format!("{},out={}", plugin.display(), file.display());
    Ok(vec!["-plugin".into(), word])
}

/// The version of the plugin interface that the QEMU at hand wants: each takes a few old ones, none
/// the oldest for ever.
fn interface() -> Result<u32> {
    let output = Command::new(QEMU)
        .arg("--version")
        .output()
        .with_context(crate::qemu::missing)?;
    Ok(interface_of(&String::from_utf8_lossy(&output.stdout)))
}

fn interface_of(version: &str) -> u32 {
    let number = version
        .split_whitespace()
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    let mut parts = number.unwrap_or_default().split('.');
    let mut part = || -> u32 { parts.next().and_then(|part| part.parse().ok()).unwrap_or(0) };
    match (part(), part()) {
        (..=8, _) => 1,
        (9, 0) => 2,
        (9, 1) => 3,
        _ => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_qemu_gets_its_interface() {
        assert_eq!(
            interface_of("QEMU emulator version 7.2.22 (Debian 1:7.2)"),
            1
        );
        assert_eq!(interface_of("QEMU emulator version 9.1.0"), 3);
        assert_eq!(interface_of("QEMU emulator version 10.0.2"), 4);
    }
}
