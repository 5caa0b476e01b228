//! Folders of the host that the guest sees: QEMU serves them by 9P behind a virtio device each, and
//! the kernel's command line says which goes where.

use std::fs;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, anyhow, ensure};

use crate::qemu;

/// `HOSTDIR:GUESTDIR`, and `:ro` behind it for one that the guest cannot write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Share {
    /// The folder here, with all links resolved.
    host: PathBuf,
    /// Where it is in the guest: an absolute path.
    guest: String,
    read_only: bool,
}

impl FromStr for Share {
    type Err = anyhow::Error;

    /// The guest's path starts at the last `:/`, so the host's may have colons in it.
    fn from_str(text: &str) -> Result<Self> {
        let (paths, read_only) = match text.strip_suffix(":ro") {
            Some(paths) => (paths, true),
            None => (text.strip_suffix(":rw").unwrap_or(text), false),
        };
        let colon = paths.rfind(":/").filter(|&colon| colon > 0);
        let colon = colon.context(
            "a share is HOSTDIR:GUESTDIR or HOSTDIR:GUESTDIR:ro, and GUESTDIR starts with a slash",
        )?;
        let (host, guest) = (&paths[..colon], &paths[colon + 1..]);
        ensure!(
            guest.split('/').all(|part| part != ".."),
            "the guest's folder {guest} has .. in it"
        );
        let host = fs::canonicalize(host).map_err(|error| anyhow!("{host}: {error}"))?;
        let name = host.display();
        ensure!(host.is_dir(), "{name} is not a folder");
        ensure!(fs::read_dir(&host).is_ok(), "{name} cannot be read");
        ensure!(host.to_str().is_some(), "{name}: the name is not UTF-8");
        Ok(Self {
            host,
            guest: guest.into(),
            read_only,
        })
    }
}

impl Share {
    /// Returns QEMU's options for the share with this number. Files that a guest makes belong to
    /// the user who runs QEMU, unless that is root.
    pub fn qemu(&self, number: usize) -> [String; 4] {
        let path = qemu::value(&self.host);
        let tag = tag(number);
        let read_only = if self.read_only { ",readonly=on" } else { "" };
        [
            "-fsdev".into(),
            format!("local,id={tag},path={path},security_model=none,multidevs=remap{read_only}"),
            "-device".into(),
            format!("virtio-9p-pci,disable-legacy=on,fsdev={tag},mount_tag={tag}"),
        ]
    }

    /// The option of the kernel's that mounts it.
    pub fn option(&self, number: usize) -> String {
        // Words end at white space; ambiguous bytes are written by their numbers.
        let mut path = String::new();
        for &byte in self.guest.as_bytes() {
            if byte.is_ascii_alphanumeric() || b"/._-+=,@:".contains(&byte) {
                path.push(char::from(byte));
            } else {
                path.push_str(&format!("%{byte:02x}"));
            }
        }
        let mode = if self.read_only { "ro" } else { "rw" };
        format!("share={}:{path}:{mode}", tag(number))
    }

    /// The option of the kernel's that makes it the root.
    pub fn root_option(&self, number: usize) -> String {
        format!("root=9p:{}", tag(number))
    }
}

/// The name by which device and mount find each other.
fn tag(number: usize) -> String {
    format!("share{number}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_taken_apart_and_quoted() {
        let folder = tempfile::tempdir().unwrap();
        let odd = folder.path().join("a,b:/c");
        fs::create_dir_all(&odd).unwrap();
        let odd = fs::canonicalize(odd).unwrap();
        let text = format!("{}:/mnt/my data:ro", odd.display());
        let share: Share = text.parse().unwrap();
        assert_eq!(share.host, odd);
        assert_eq!(share.option(3), "share=share3:/mnt/my%20data:ro");
        let [_, device, ..] = share.qemu(3);
        assert!(device.contains("/a,,b:/c,security_model="), "{device}");
        assert!(device.ends_with(",readonly=on"), "{device}");
        let share: Share = format!("{}:/x", odd.display()).parse().unwrap();
        assert_eq!(share.option(0), "share=share0:/x:rw");
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            ("/tmp", "GUESTDIR"),
            ("/tmp:x", "GUESTDIR"),
            (":/x", "GUESTDIR"),
            ("/nowhere/at/all:/x", "/nowhere/at/all: "),
            ("/etc/passwd:/x", "not a folder"),
            ("/tmp:/a/../b", ".."),
        ] {
            let error = text.parse::<Share>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
