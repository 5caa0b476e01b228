//! Swap space of the guest: a disk with the header that `mkswap` writes.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};

use crate::disk::Disk;
use session::size;

/// Bytes of a page, of which the first is the header.
const PAGE: usize = 4096;
/// The header ends with this.
const MAGIC: &[u8] = b"SWAPSPACE2";
/// The least size of swap space, as in `mkswap`: ten pages.
const LEAST: u64 = 10 * PAGE as u64;
/// The most that the kernel uses of one device: 512 GiB.
const MOST: u64 = 512 << 30;

/// The argument of `--swap`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Swap {
    /// A new one of so many bytes, which is gone with the guest.
    Size(u64),
    /// A file that `mkswap` has prepared.
    File(Disk),
}

impl FromStr for Swap {
    type Err = anyhow::Error;

    /// `SIZE` in K, M or G, else `FILE`.
    fn from_str(text: &str) -> Result<Self> {
        if let Some(bytes) = size::bytes(text) {
            ensure!(
                (LEAST..=MOST).contains(&bytes),
                "{text} of swap: it is 40K at least and 512G at most"
            );
            return Ok(Swap::Size(bytes / PAGE as u64 * PAGE as u64));
        }
        ensure!(
            Path::new(text.trim_end_matches(":ro")).exists(),
            "`{text}` is no size, which is a number of K, M or G, and no file"
        );
        let disk: Disk = text.parse()?;
        let mut page = [0; PAGE];
        let header = File::open(disk.file()).and_then(|mut file| file.read_exact(&mut page));
        match header {
            Ok(()) if page.ends_with(MAGIC) && disk.is_writable() => Ok(Swap::File(disk)),
            Ok(()) if !disk.is_writable() => bail!("{text}: swap space is written"),
            _ => bail!("{text} is no swap space: `mkswap` makes one of it"),
        }
    }
}

impl Swap {
    /// Returns the disk; a new one is made in `folder`.
    ///
    /// # Errors
    /// When the file can't be made.
    pub fn disk(&self, folder: &Path) -> Result<Disk> {
        let bytes = match self {
            Swap::File(disk) => return Ok(disk.clone()),
            Swap::Size(bytes) => *bytes,
        };
        let path = folder.join("swap");
        let make = || -> std::io::Result<()> {
            let mut file = File::create(&path)?;
            file.write_all(&header(bytes))?;
            // All but the header is a hole.
            file.set_len(bytes)
        };
        make().with_context(|| format!("cannot make {}", path.display()))?;
        Disk::at(&path)
    }
}

/// The first page of a swap space of so many bytes.
fn header(bytes: u64) -> [u8; PAGE] {
    let mut page = [0; PAGE];
    let last = (bytes / PAGE as u64 - 1) as u32;
    page[1024..1028].copy_from_slice(&1u32.to_le_bytes());
    page[1028..1032].copy_from_slice(&last.to_le_bytes());
    page[PAGE - MAGIC.len()..].copy_from_slice(MAGIC);
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_made_and_files_are_checked() {
        let parse = |text: &str| text.parse::<Swap>().map_err(|error| error.to_string());
        assert_eq!(parse("64M"), Ok(Swap::Size(64 << 20)));
        assert_eq!(parse("41k"), Ok(Swap::Size(40 << 10)));
        assert!(parse("39K").unwrap_err().contains("40K"));
        assert!(parse("99999999999999999999G").is_err());
        let folder = tempfile::tempdir().unwrap();
        let disk = parse("1M").unwrap().disk(folder.path()).unwrap();
        let made = std::fs::read(disk.file()).unwrap();
        assert_eq!((made.len(), &made[4086..4096]), (1 << 20, MAGIC));
        assert_eq!(made[1028..1032], 255u32.to_le_bytes());
        let name = disk.file().display().to_string();
        assert_eq!(parse(&name), Ok(Swap::File(disk)));
        assert!(
            parse(&format!("{name}:ro"))
                .unwrap_err()
                .contains("written")
        );
        std::fs::write(&name, [0; 8192]).unwrap();
        assert!(parse(&name).unwrap_err().contains("mkswap"));
        for neither in ["/nowhere/swap", "64", "64MB", "-1M", "1.5G", "M", ""] {
            assert!(
                parse(neither).unwrap_err().contains("K, M or G"),
                "{neither}"
            );
        }
    }
}
