//! `causeway image`: a CD image that boots by GRUB, in QEMU and on real machines.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::console::Console;
use crate::options;
use crate::root::Root;
use crate::root::place::RootBy;

/// Makes the image.
///
/// # Errors
/// When a part cannot be made, or `grub-mkrescue` is not there or fails.
pub fn image(options: &options::Image) -> Result<()> {
    let kernel = options.guest.kernel()?;
    if !options.guest.disks.is_empty() {
        bail!("an image has no disks of its own: give them to `causeway run --image`");
    }
    if options.guest.swap.is_some() {
        bail!(
            "an image has no swap space of its own: give `causeway run --image` a disk for it, and use `swapon`"
        );
    }
    if !options.guest.shares.is_empty() {
        bail!("an image has no shares: they are folders of the machine that runs the guest");
    }
    if let Some(RootBy::Ext2 | RootBy::NineP) = options.guest.root_by {
        bail!("an image has its root in memory");
    }
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let archive = Root::archive(options.guest.root.as_deref(), folder.path())?;
    let command_line = Console::person().command_line(&options.guest.options(), &options.command);
    make(&kernel, &archive, &command_line, &options.output)?;
    eprintln!("{}", options.output.display());
    Ok(())
}

/// Makes an image at `to` that boots this kernel with this archive as root.
///
/// # Errors
/// When `grub-mkrescue` is not there or fails, or a file cannot be read or written.
pub fn make(kernel: &Path, archive: &Path, command_line: &str, to: &Path) -> Result<()> {
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let boot = folder.path().join("boot");
    fs::create_dir_all(boot.join("grub"))?;
    for (from, name) in [(kernel, "causeway-kernel"), (archive, "root.cpio")] {
        fs::copy(from, boot.join(name))
            .with_context(|| format!("cannot copy {}", from.display()))?;
    }
    fs::write(boot.join("grub/grub.cfg"), menu(command_line))?;
    let output = Command::new("grub-mkrescue")
        .arg("-o")
        .arg(to)
        .arg(folder.path())
        .output()
        .context(
            "cannot run grub-mkrescue: install Debian's packages grub-common, grub-pc-bin, \
             xorriso and mtools (`make setup-test` does)",
        )?;
    if !output.status.success() {
        bail!(
            "grub-mkrescue failed:\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

/// The path of a CD image that a BIOS boots: one with an entry of El Torito's.
///
/// # Errors
/// A sentence that says what the file is, or why it cannot be read.
pub fn bootable(name: &str) -> Result<PathBuf> {
    /// Bytes of a sector of a CD, and the sectors of the first two volume descriptors.
    const SECTOR: usize = 2048;
    const PRIMARY: usize = 16 * SECTOR;
    const BOOT_RECORD: usize = 17 * SECTOR;
    let path = PathBuf::from(name);
    if fs::metadata(&path).is_ok_and(|about| !about.is_file()) {
        bail!("it is no file: `causeway image` makes a CD image that boots");
    }
    let file = File::open(&path)?;
    let mut start = Vec::new();
    file.take(18 * SECTOR as u64).read_to_end(&mut start)?;
    let has = |at: usize, text: &[u8]| start.get(at..).is_some_and(|from| from.starts_with(text));
    if has(BOOT_RECORD, b"\0CD001\x01EL TORITO SPECIFICATION") {
        Ok(path)
    } else if has(PRIMARY + 1, b"CD001") {
        bail!("it is a CD image that does not boot (no El Torito boot record)")
    } else if has(510, &[0x55, 0xaa]) {
        bail!("it is the image of a disk, not of a CD: `--disk` takes it")
    } else {
        bail!("it is no bootable CD image: `causeway image` makes one")
    }
}

/// GRUB's configuration: boots at once.
fn menu(command_line: &str) -> String {
    // GRUB takes words apart by the shell's rules and hands them to the kernel quoted by its own,
    // which the kernel reads as well: the command line can stand here as it is.
    format!(
        "set timeout=0\nmenuentry Causeway {{\n  multiboot2 /boot/causeway-kernel {command_line}\n  \
         module2 /boot/root.cpio\n  boot\n}}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_boot_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        let name = path.display().to_string();
        let why = || bootable(&name).unwrap_err().to_string();
        assert!(why().contains("No such file"), "{}", why());
        let mut bytes = vec![0; 40 << 10];
        for len in [0, 100, bytes.len()] {
            fs::write(&path, &bytes[..len]).unwrap();
            assert!(why().contains("no bootable CD image"), "{}", why());
        }
        bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
        fs::write(&path, &bytes).unwrap();
        assert!(why().contains("--disk"), "{}", why());
        bytes[32_769..32_774].copy_from_slice(b"CD001");
        fs::write(&path, &bytes).unwrap();
        assert!(why().contains("does not boot"), "{}", why());
        let record = b"\0CD001\x01EL TORITO SPECIFICATION";
        bytes[34_816..34_816 + record.len()].copy_from_slice(record);
        fs::write(&path, &bytes).unwrap();
        assert_eq!(bootable(&name).unwrap(), path);
        let folder = folder.path().display().to_string();
        assert!(
            bootable(&folder)
                .unwrap_err()
                .to_string()
                .contains("no file")
        );
    }
}
