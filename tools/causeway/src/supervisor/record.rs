//! The record of a detached guest's output: the last of it, in files of the guest's folder.
//!
//! `output.N` follows `output.N-1`; the last two exist. A reader that is slower than the guest
//! misses what is between.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use crate::sessions::Record;

/// The size of a file of the record: the last one times to two times as much is kept.
const SEGMENT: u64 = 8 << 20;

/// Writes the record.
pub struct Writer {
    folder: PathBuf,
    number: u64,
    file: Option<File>,
    written: u64,
    segment: u64,
}

impl Writer {
    /// Writes into an empty folder.
    pub fn new(folder: &Path) -> Self {
        Self {
            folder: folder.into(),
            number: 0,
            file: None,
            written: 0,
            segment: SEGMENT,
        }
    }

    /// The file to write to, a new one if the last one is full.
    fn file(&mut self) -> Option<&mut File> {
        if self.file.is_none() || self.written >= self.segment {
            if self.file.is_some() {
                self.number += 1;
            }
            if let Some(old) = self.number.checked_sub(2) {
                let _ = fs::remove_file(path(&self.folder, old));
            }
            self.file = File::create(path(&self.folder, self.number)).ok();
            self.written = 0;
        }
        self.file.as_mut()
    }
}

impl Record for Writer {
    /// Appends bytes. The guest goes on where they can't be kept.
    fn record(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (written, segment) = (self.written, self.segment);
            let Some(file) = self.file() else { return };
            let left = if written >= segment {
                segment
            } else {
                segment - written
            };
            let most = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let (part, rest) = bytes.split_at(most);
            if file.write_all(part).is_err() {
                return;
            }
            self.written += part.len() as u64;
            bytes = rest;
        }
    }
}

/// Reads the record, and what is appended to it meanwhile.
pub struct Reader {
    folder: PathBuf,
    number: u64,
    file: Option<File>,
    /// Whether no further file is opened.
    is_last: bool,
}

impl Reader {
    /// Starts with the oldest part that is kept.
    pub fn new(folder: &Path) -> Self {
        Self {
            folder: folder.into(),
            number: 0,
            file: None,
            is_last: false,
        }
    }

    /// Makes the file that is open the last one: what else is in the folder is of another guest.
    pub fn stay(&mut self) {
        self.is_last = true;
    }

    /// Reads a part; 0 when there is nothing more now.
    ///
    /// # Errors
    /// When the files can't be read.
    pub fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        loop {
            let Some(file) = &mut self.file else {
                if self.is_last {
                    return Ok(0);
                }
                match self.oldest()? {
                    Some(number) => self.open(number)?,
                    None => return Ok(0),
                }
                continue;
            };
            let count = file.read(buffer)?;
            if count > 0 || self.is_last {
                return Ok(count);
            }
            // Once there is a next file, nothing is added to this one; before, something may be.
            let next = self.oldest()?.unwrap_or(0).max(self.number + 1);
            if !path(&self.folder, next).exists() {
                return Ok(0);
            }
            let count = file_of(&mut self.file).map_or(Ok(0), |file| file.read(buffer))?;
            if count > 0 {
                return Ok(count);
            }
            self.open(next)?;
        }
    }

    fn open(&mut self, number: u64) -> std::io::Result<()> {
        self.file = match File::open(path(&self.folder, number)) {
            // The writer has gone on to a later one.
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            file => Some(file?),
        };
        self.number = number;
        Ok(())
    }

    /// The number of the oldest file from the present one on.
    fn oldest(&self) -> std::io::Result<Option<u64>> {
        let mut oldest = None;
        for entry in fs::read_dir(&self.folder)? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("output."));
            let number = number.and_then(|number| number.parse().ok());
            let number = number.filter(|&number| number > self.number || self.file.is_none());
            oldest = match (oldest, number) {
                (Some(a), Some(b)) => Some(u64::min(a, b)),
                (a, b) => a.or(b),
            };
        }
        Ok(oldest)
    }
}

fn file_of(file: &mut Option<File>) -> Option<&mut File> {
    file.as_mut()
}

fn path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("output.{number}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(reader: &mut Reader) -> Vec<u8> {
        let (mut all, mut buffer) = (Vec::new(), [0; 100]);
        loop {
            match reader.read(&mut buffer).unwrap() {
                0 => return all,
                count => all.extend_from_slice(&buffer[..count]),
            }
        }
    }

    #[test]
    fn the_end_is_kept_and_followed() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = Writer::new(folder.path());
        writer.segment = 1000;
        let mut follower = Reader::new(folder.path());
        assert_eq!(all(&mut follower), b"");
        let bytes: Vec<u8> = (0..12_345u32).map(|n| (n >> 3) as u8).collect();
        let mut followed = Vec::new();
        for part in bytes.chunks(777) {
            writer.record(part);
            followed.extend(all(&mut follower));
        }
        assert!(followed == bytes);
        let kept = all(&mut Reader::new(folder.path()));
        assert!((1000..=2000).contains(&kept.len()), "{}", kept.len());
        assert!(bytes.ends_with(&kept));
        // A slow follower misses a part, and goes on.
        writer.record(&[1; 5000]);
        writer.record(&[2; 10]);
        assert!(all(&mut follower).ends_with(&[1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2]));
    }

    #[test]
    fn a_reader_stays_with_its_guest() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = Writer::new(folder.path());
        let mut follower = Reader::new(folder.path());
        writer.record(b"first");
        assert_eq!(follower.read(&mut [0; 2]).unwrap(), 2);
        let mut late = Reader::new(folder.path());
        for number in 0..2 {
            fs::remove_file(path(folder.path(), 0)).unwrap_or_default();
            fs::write(path(folder.path(), number), "second").unwrap();
        }
        follower.stay();
        late.stay();
        assert_eq!(all(&mut follower), b"rst");
        assert_eq!(all(&mut late), b"");
    }
}
