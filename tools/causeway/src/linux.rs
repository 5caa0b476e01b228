//! Linux beside this kernel: Debian's cloud kernel or another one, its command line, its modules.
//!
//! It is unpacked and never installed. Linux gets options that make it start without delays and
//! messages, and none that changes its behaviour towards programs; only the mitigations of CPU
//! flaws are the user's choice.

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::project;
use crate::qemu::Accelerator;
use crate::root::Root;

/// Where the root has Linux's modules, named so that their order by name is the order to load them
/// in.
pub const MODULES: &str = "linux-modules";

/// Defences against speculative execution attacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Mitigations {
    /// As each kernel ships: both choose by the CPU that they find.
    #[default]
    Default,
    /// Both kernels do everything, whether or not the CPU says that it needs it.
    On,
    /// Both do nothing.
    Off,
}

impl Mitigations {
    /// The options on Linux's command line.
    fn options(self) -> &'static str {
        match self {
            Self::Default => "",
            Self::On => {
                "mitigations=auto pti=on spectre_v2=on spectre_v2_user=on \
                 spec_store_bypass_disable=on l1tf=full mds=full"
            }
            Self::Off => "mitigations=off",
        }
    }

    /// The options on Causeway's command line.
    pub fn causeway_options(self) -> &'static str {
        match self {
            Self::Default => "",
            Self::On => "mitigations=full",
            Self::Off => "mitigations=off",
        }
    }

    /// The explanation in a report of both kernels' choices.
    pub fn explained(self) -> &'static str {
        match self {
            Self::Default => "each kernel: what it does by itself for the CPU that it finds",
            Self::On => {
                "Linux: all, forced; Causeway: all that it has (no retpolines), by mitigations=full"
            }
            Self::Off => "each kernel: none, by mitigations=off",
        }
    }
}

impl std::fmt::Display for Mitigations {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(match self {
            Self::Default => "default",
            Self::On => "on",
            Self::Off => "off",
        })
    }
}

/// A Linux kernel and its modules.
#[derive(Clone, Debug)]
pub struct Linux {
    /// The compressed kernel.
    pub kernel: PathBuf,
    /// Its `uname -r`.
    pub release: String,
}

impl Linux {
    /// This file, or else Debian's cloud kernel, fetched if need be.
    ///
    /// # Errors
    /// When it is no Linux kernel, or cannot be fetched.
    pub fn find(file: Option<&Path>) -> Result<Self> {
        let kernel = match file {
            Some(file) => file.into(),
            None => fetched()?,
        };
        let release = release(&kernel)
            .with_context(|| format!("{} is no Linux kernel for x86", kernel.display()))?;
        Ok(Self { kernel, release })
    }

    /// Its command line. With `Icount` each start is the same, and programs stand at the same
    /// addresses.
    pub fn command_line(&self, mitigations: Mitigations, accelerator: Accelerator) -> String {
        // On a busy host emulated timers may come so late that Linux takes them for broken, and a
        // clock for unstable; and no one would see a panic that it only waits after.
        let mut words = vec![
            "console=ttyS0 quiet panic=-1 no_timer_check tsc=reliable clocksource=tsc nowatchdog",
            // Random numbers come from the CPU; there is nothing else here to wait for.
            "random.trust_cpu=on",
        ];
        if accelerator.counts() {
            words.push("nokaslr");
        }
        words.push(mitigations.options());
        words.retain(|word| !word.is_empty());
        words.join(" ")
    }

    /// Puts these modules, with those that they need, where the first program finds them
    /// ([`MODULES`]).
    ///
    /// # Errors
    /// When there is no such module beside the kernel.
    pub fn add_modules(&self, root: &mut Root, names: &[&str]) -> Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        let folder = self.modules().with_context(|| {
            format!(
                "no modules of Linux {} beside {}",
                self.release,
                self.kernel.display()
            )
        })?;
        let mut loaded = Vec::new();
        for name in names {
            add_module(root, &folder, name, &mut loaded)?;
        }
        Ok(())
    }

    /// The folder of its modules: a package has it beside the kernel's.
    fn modules(&self) -> Option<PathBuf> {
        let package = self.kernel.parent()?.parent()?;
        ["lib/modules", "usr/lib/modules"]
            .map(|folder| package.join(folder).join(&self.release))
            .into_iter()
            .find(|folder| folder.is_dir())
    }
}

/// Debian's cloud kernel, fetched if need be.
fn fetched() -> Result<PathBuf> {
    let home = project::home()?;
    let output = Command::new(home.join("scripts/linux-kernel.sh"))
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run scripts/linux-kernel.sh")?;
    if !output.status.success() {
        bail!("there is no Linux to compare with; its messages above say why");
    }
    Ok(home.join(String::from_utf8_lossy(&output.stdout).trim()))
}

/// The release that a compressed kernel's header names (Linux's boot protocol: "HdrS" at 0x202, and
/// at 0x20e the place of a string, counted from 0x200).
fn release(kernel: &Path) -> Result<String> {
    let mut file = fs::File::open(kernel)?;
    let mut header = [0; 0x210];
    file.read_exact(&mut header)?;
    if header[0x202..0x206] != *b"HdrS" {
        bail!("its header lacks the mark");
    }
    let at = 0x200 + u64::from(u16::from_le_bytes([header[0x20e], header[0x20f]]));
    let mut text = [0; 256];
    file.seek(SeekFrom::Start(at))?;
    let count = file.read(&mut text)?;
    let text = String::from_utf8_lossy(&text[..count]).into_owned();
    let release = text.split([' ', '\0']).next().unwrap_or_default();
    if release.is_empty() {
        bail!("its header names no release");
    }
    Ok(release.into())
}

/// Puts a module and, before it, those that it needs into the root. `loaded` has the names that are
/// there already.
fn add_module(root: &mut Root, folder: &Path, name: &str, loaded: &mut Vec<String>) -> Result<()> {
    let name = name.replace('-', "_");
    if loaded.contains(&name) || built_in(folder, &name) {
        return Ok(());
    }
    let file = find(folder, &name)?
        .with_context(|| format!("no module {name} in {}", folder.display()))?;
    let bytes = unpacked(&file)?;
    for needed in dependencies(&bytes) {
        add_module(root, folder, &needed, loaded)?;
    }
    root.directory(MODULES, 0o755);
    let path = format!("{MODULES}/{:02}-{name}.ko", loaded.len());
    root.file(path, 0o644, bytes);
    loaded.push(name);
    Ok(())
}

/// Whether the kernel has the module inside.
fn built_in(folder: &Path, name: &str) -> bool {
    let list = fs::read_to_string(folder.join("modules.builtin")).unwrap_or_default();
    list.lines()
        .any(|line| module_of(Path::new(line)) == Some(name.into()))
}

/// The file of a module below a folder.
fn find(folder: &Path, name: &str) -> Result<Option<PathBuf>> {
    for entry in
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?
    {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            if let Some(found) = find(&path, name)? {
                return Ok(Some(found));
            }
        } else if module_of(&path).is_some_and(|it| it == name) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// The name of the module in a file: that of the file without its endings, in which Linux takes `-`
/// and `_` for the same.
fn module_of(path: &Path) -> Option<String> {
    let (name, rest) = path.file_name()?.to_str()?.split_once(".ko")?;
    ["", ".xz", ".zst", ".gz"]
        .contains(&rest)
        .then(|| name.replace('-', "_"))
}

/// A module's bytes, which some packages compress.
fn unpacked(file: &Path) -> Result<Vec<u8>> {
    let program = match file.extension().and_then(|ending| ending.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => return fs::read(file).with_context(|| format!("cannot read {}", file.display())),
    };
    let output = Command::new(program)
        .arg("-dc")
        .arg(file)
        .output()
        .with_context(|| format!("cannot run {program} to unpack {}", file.display()))?;
    if !output.status.success() {
        bail!("{program} cannot unpack {}", file.display());
    }
    Ok(output.stdout)
}

/// The modules that a module says it needs, in its section of words that end with a zero byte.
fn dependencies(module: &[u8]) -> Vec<String> {
    const WORD: &[u8] = b"\0depends=";
    let Some(at) = module.windows(WORD.len()).position(|it| it == WORD) else {
        return Vec::new();
    };
    let rest = &module[at + WORD.len()..];
    let end = rest.iter().position(|&byte| byte == 0).unwrap_or(0);
    String::from_utf8_lossy(&rest[..end])
        .split(',')
        .filter(|name| !name.is_empty())
        .map(Into::into)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernels_header_names_its_release() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("vmlinuz");
        let mut bytes = vec![0; 0x400];
        bytes[0x202..0x206].copy_from_slice(b"HdrS");
        bytes[0x20e..0x210].copy_from_slice(&0x100u16.to_le_bytes());
        bytes[0x300..0x314].copy_from_slice(b"6.1.0-test (builder)");
        fs::write(&file, &bytes).unwrap();
        assert_eq!(release(&file).unwrap(), "6.1.0-test");
        fs::write(&file, &bytes[..0x100]).unwrap();
        assert!(Linux::find(Some(&file)).is_err());
    }

    #[test]
    fn modules_come_after_those_that_they_need() {
        let package = tempfile::tempdir().unwrap();
        let folder = package.path().join("lib/modules/6.1.0-test");
        fs::create_dir_all(folder.join("kernel/drivers")).unwrap();
        let module = |name: &str, needs: &str| {
            let text = format!("ELF\0depends={needs}\0name={name}\0");
            fs::write(folder.join(format!("kernel/drivers/{name}.ko")), text).unwrap();
        };
        module("virtio-disk", "virtio,ring_of");
        module("virtio", "");
        module("ring-of", "virtio,inside");
        fs::write(folder.join("modules.builtin"), "kernel/lib/inside.ko\n").unwrap();
        let mut loaded = Vec::new();
        let mut root = Root::default();
        add_module(&mut root, &folder, "virtio_disk", &mut loaded).unwrap();
        assert_eq!(loaded, ["virtio", "ring_of", "virtio_disk"]);
        assert!(add_module(&mut root, &folder, "absent", &mut loaded).is_err());
    }

    #[test]
    fn the_mitigations_are_on_the_command_line() {
        let linux = Linux {
            kernel: "vmlinuz".into(),
            release: "6.1".into(),
        };
        let line = |mitigations| linux.command_line(mitigations, Accelerator::Tcg);
        assert!(!line(Mitigations::Default).contains("mitigations"));
        assert!(line(Mitigations::On).contains("pti=on"));
        assert!(line(Mitigations::Off).ends_with("mitigations=off"));
        assert!(!line(Mitigations::Off).contains("nokaslr"));
    }
}
