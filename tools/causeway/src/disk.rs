//! Disks of the guest: files of the host's, behind a virtio device each.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, anyhow, ensure};

use crate::qemu;

/// Bytes of a sector: a disk has whole ones.
const SECTOR: u64 = 512;

/// `FILE`, and `:ro` behind it for one that the guest cannot write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Disk {
    /// The file here, with all links resolved.
    file: PathBuf,
    read_only: bool,
    /// Whether the guest's changes go to a file of QEMU's that ends with the machine.
    is_private: bool,
}

impl FromStr for Disk {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (name, read_only) = match text.strip_suffix(":ro") {
            Some(name) => (name, true),
            None => (text.strip_suffix(":rw").unwrap_or(text), false),
        };
        let file = fs::canonicalize(name).map_err(|error| anyhow!("{name}: {error}"))?;
        let about = fs::metadata(&file).map_err(|error| anyhow!("{name}: {error}"))?;
        ensure!(about.is_file(), "{name} is no file: a disk is an image");
        ensure!(
            about.len() != 0 && about.len().is_multiple_of(SECTOR),
            "{name} has {} bytes: a disk has whole sectors of {SECTOR}, and one at least",
            about.len()
        );
        OpenOptions::new()
            .read(true)
            .write(!read_only)
            .open(&file)
            .map_err(|error| {
                let hint = if read_only { "" } else { " (as :ro?)" };
                anyhow!("{name}: {error}{hint}")
            })?;
        ensure!(file.to_str().is_some(), "{name}: the name is not UTF-8");
        Ok(Self {
            file,
            read_only,
            is_private: false,
        })
    }
}

impl Disk {
    /// This file, which the guest may write.
    ///
    /// # Errors
    /// A sentence that says why it is no disk.
    pub fn at(file: &Path) -> Result<Self> {
        let name = file
            .to_str()
            .with_context(|| format!("{}: the name is not UTF-8", file.display()))?;
        format!("{name}:rw").parse()
    }

    /// A disk with the same bytes and rights in a new file, in which zeros are holes.
    ///
    /// # Errors
    /// When this one can't be read, or the new one can't be written.
    pub fn copy(&self, to: &Path) -> io::Result<Self> {
        let mut from = File::open(&self.file)?;
        let mut copy = File::create_new(to)?;
        let mut buffer = vec![0; 1 << 20];
        let mut bytes = 0;
        loop {
            let count = from.read(&mut buffer)?;
            if count == 0 {
                break;
            }
            let some = &buffer[..count];
            if some.iter().any(|&byte| byte != 0) {
                copy.seek(SeekFrom::Start(bytes))?;
                copy.write_all(some)?;
            }
            bytes += count as u64;
        }
        copy.set_len(bytes)?;
        Ok(Self {
            file: fs::canonicalize(to)?,
            read_only: self.read_only,
            is_private: false,
        })
    }

    /// The same disk, but the file stays as it is: the guest's changes end with the machine.
    pub fn private(self) -> Self {
        Self {
            is_private: true,
            ..self
        }
    }

    /// Where it is here.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Whether the guest may write it.
    pub fn is_writable(&self) -> bool {
        !self.read_only
    }

    /// The guest's name of the disk with this number: `vda`, `vdb` and so on.
    pub fn name(number: usize) -> String {
        let mut letters = String::new();
        let mut left = number + 1;
        while left > 0 {
            left -= 1;
            letters.insert(0, char::from(b'a' + (left % 26) as u8));
            left /= 26;
        }
        format!("vd{letters}")
    }

    /// The words of QEMU's command line for the disk with this number. The host's cache is behind
    /// the guest's flushes, as the cache of a real disk is.
    pub fn qemu(&self, number: usize) -> [String; 4] {
        let file = qemu::value(&self.file);
        let mode = match (self.read_only, self.is_private) {
            (true, _) => ",readonly=on",
            (false, true) => ",snapshot=on",
            (false, false) => "",
        };
        [
            "-drive".into(),
            format!(
                "file={file},format=raw,if=none,id=disk{number},cache=writeback,discard=unmap{mode}"
            ),
            "-device".into(),
            format!("virtio-blk-pci,disable-legacy=on,drive=disk{number},serial=disk{number}"),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_the_bytes_and_the_rights() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("disk");
        let mut bytes = vec![0; 3 << 20];
        bytes[(2 << 20) + 7] = 1;
        bytes.extend([2; 512]);
        bytes.extend([0; 512]);
        fs::write(&file, &bytes).unwrap();
        let disk: Disk = format!("{}:ro", file.display()).parse().unwrap();
        let to = folder.path().join("copy");
        let copy = disk.copy(&to).unwrap();
        assert!(!copy.is_writable());
        assert_ne!(copy.file(), disk.file());
        assert!(fs::read(copy.file()).unwrap() == bytes);
        // An existing file is not overwritten.
        assert!(disk.copy(&to).is_err());
    }

    #[test]
    fn files_are_checked_and_quoted() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a,b");
        fs::write(&file, [0; 1024]).unwrap();
        let name = file.display().to_string();
        let disk: Disk = name.parse().unwrap();
        let [_, drive, _, device] = disk.qemu(2);
        assert!(drive.contains("/a,,b,format=raw"), "{drive}");
        assert!(!drive.contains("readonly"), "{drive}");
        assert!(device.contains("drive=disk2"), "{device}");
        let disk: Disk = format!("{name}:ro").parse().unwrap();
        assert!(disk.qemu(0)[1].ends_with(",readonly=on"));
        let disk: Disk = name.parse().unwrap();
        assert!(disk.private().qemu(0)[1].ends_with(",snapshot=on"));
        assert_eq!([0, 25, 26].map(Disk::name), ["vda", "vdz", "vdaa"]);
        let parse = |name: &str| name.parse::<Disk>().unwrap_err().to_string();
        assert!(parse("/nowhere/at/all").starts_with("/nowhere/at/all: "));
        assert!(parse("/tmp").contains("no file"));
        fs::write(&file, [0; 700]).unwrap();
        assert!(parse(&name).contains("700 bytes"));
        fs::write(&file, []).unwrap();
        assert!(parse(&name).contains("0 bytes"));
    }
}
