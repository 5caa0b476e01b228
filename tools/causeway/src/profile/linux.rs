//! Linux in the machine of a profile, with the same root, disks and command.

use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::linux::{Linux, Mitigations};
use crate::options;
use crate::qemu::{self, Accelerator, Boot, Machine};
use crate::root::Root;

/// The first program, in the root's topmost folder.
const INIT: &str = "profile-init";

/// What it does before the command: Linux has nothing mounted then, and its disks are modules.
const BEFORE: &str = r#"#!/bin/sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mkdir -p /proc /sys /dev /tmp
mount -t proc proc /proc
mount -t sysfs sys /sys
[ -e /dev/null ] || mount -t devtmpfs dev /dev
for module in /linux-modules/*; do [ -e "$module" ] && insmod "$module"; done
stty -onlcr </dev/console 2>/dev/null
"#;

/// And behind it: the log is the second serial port.
const BEHIND: &str = r#"
echo "exit: status $?" >/dev/ttyS1
poweroff -f
"#;

/// The machine that boots Linux and runs `command`. The root's archive goes into `temporary`.
///
/// # Errors
/// When the root is no folder, cannot be packed, or Linux lacks a module.
pub fn machine(
    linux: &Linux,
    guest: &options::Guest,
    command: &[String],
    temporary: &Path,
) -> Result<Machine> {
    let mut root = match &guest.root {
        Some(folder) => Root::folder(folder)?,
        None => Root::busybox()?,
    };
    if !guest.disks.is_empty() {
        linux.add_modules(&mut root, &["virtio_pci", "virtio_blk"])?;
    }
    let words: Vec<String> = command.iter().map(|word| quoted(word)).collect();
    root.file(
        INIT,
        0o755,
        format!("{BEFORE}{}\n{BEHIND}", words.join(" ")),
    );
    let archive = temporary.join("root.cpio");
    root.write(&archive)?;
    let memory = match &guest.memory {
        Some(memory) => memory.clone(),
        None => qemu::memory_for(fs::metadata(&archive)?.len()),
    };
    // Programs stand at the same addresses each time.
    let line = linux.command_line(Mitigations::Default, Accelerator::Icount);
    let boot = Boot::Kernel {
        kernel: linux.kernel.clone(),
        root: Some(archive),
        command_line: format!(
            "{line} loglevel=1 {} rdinit=/{INIT}",
            guest.append.join(" ")
        ),
    };
    guest.with(boot, memory, Accelerator::Tcg, &guest.disks, &guest.shares)
}

/// A word as a shell reads it.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_one_for_the_shell() {
        assert_eq!(quoted("a 'b'"), r"'a '\''b'\'''");
    }
}
