//! `causeway image`: a CD image that boots by GRUB, in QEMU and on real machines.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::console::Console;
use crate::options;
use crate::root::Root;

/// Makes the image.
///
/// # Errors
/// When a part cannot be made, or `grub-mkrescue` is not there or fails.
pub fn image(options: &options::Image) -> Result<()> {
    let kernel = options.guest.kernel()?;
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let boot = folder.path().join("boot");
    fs::create_dir_all(boot.join("grub"))?;
    fs::copy(&kernel, boot.join("causeway-kernel"))
        .with_context(|| format!("cannot copy {}", kernel.display()))?;
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
    let archive = Root::archive(options.guest.root.as_deref(), folder.path())?;
    let root = boot.join("root.cpio");
    fs::copy(&archive, &root).with_context(|| format!("cannot copy {}", archive.display()))?;
    let command_line = Console::person().command_line(&options.guest.options(), &options.command);
    fs::write(boot.join("grub/grub.cfg"), menu(&command_line))?;
    let output = Command::new("grub-mkrescue")
        .arg("-o")
        .arg(&options.output)
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
    eprintln!("{}", options.output.display());
    Ok(())
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
