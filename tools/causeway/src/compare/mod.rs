//! `causeway compare-linux`: this kernel and Linux on the same machine with the same root, in turn.
//!
//! [`start`] measures how they start, [`script`] the time of a script.

mod script;
mod start;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::linux::{Linux, Mitigations};
use crate::options;
use crate::project::{self, Profile};
use crate::qemu::{self, Accelerator, Boot, Iommu, Machine};

/// The two kernels, and the machine that both get.
struct Pair {
    kernel: PathBuf,
    linux: Linux,
    ground: Ground,
}

impl Pair {
    /// The machine with this kernel.
    fn ours(&self, archive: &Path, command_line: &str) -> Machine {
        self.ground.machine(&self.kernel, archive, command_line)
    }

    /// The machine with Linux, which runs `/init` of the archive, with these further words on its
    /// command line.
    fn theirs(&self, archive: &Path, words: &[String]) -> Machine {
        let accelerator = self.ground.accelerator;
        let mut line = self.linux.command_line(Mitigations::Default, accelerator);
        for word in words {
            line.push(' ');
            line.push_str(word);
        }
        self.ground.machine(&self.linux.kernel, archive, &line)
    }
}

/// A machine without its kernel, the same for every kernel that is compared.
#[derive(Clone, Debug)]
pub struct Ground {
    /// CPUs, 1 to 64.
    pub cpus: u32,
    /// Memory, in QEMU's words.
    pub memory: String,
    /// How the guest's instructions are run; not `Auto`.
    pub accelerator: Accelerator,
    /// Whether the devices are behind an IOMMU.
    pub iommu: Option<Iommu>,
}

impl Ground {
    /// The machine with a kernel.
    pub fn machine(&self, kernel: &Path, archive: &Path, command_line: &str) -> Machine {
        Machine {
            boot: Boot::Kernel {
                kernel: kernel.into(),
                root: Some(archive.into()),
                command_line: command_line.into(),
            },
            cpus: self.cpus,
            memory: self.memory.clone(),
            accelerator: self.accelerator,
            // The host's numbers would make no two runs the same.
            entropy: !self.accelerator.counts(),
            iommu: self.iommu,
            extra: Vec::new(),
        }
    }
}

/// Measures and prints a table.
///
/// # Errors
/// When a kernel is missing or fails.
pub fn compare(options: &options::Compare) -> Result<()> {
    qemu::kibibytes(&options.memory)?;
    let kernel = project::kernel(Profile::Release)?;
    let linux = Linux::find(options.linux.as_deref())?;
    let (accelerator, why) = qemu::choose(options.accelerator, &kernel)?;
    let pair = Pair {
        kernel,
        linux,
        ground: Ground {
            cpus: options.smp,
            memory: options.memory.clone(),
            accelerator,
            iommu: options.iommu,
        },
    };
    println!(
        "{accelerator:?} ({why}), {} CPUs, {}; {}",
        pair.ground.cpus,
        pair.ground.memory,
        version(qemu::QEMU)
    );
    println!("Linux: {}\n", pair.linux.release);
    match &options.script {
        Some(file) => script::compare(options, &pair, file),
        None => start::compare(options, &pair),
    }
}

/// Returns the first line of a program's `--version`.
pub fn version(program: &str) -> String {
    let output = Command::new(program).arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    text.unwrap_or_default()
        .lines()
        .next()
        .unwrap_or_default()
        .into()
}
