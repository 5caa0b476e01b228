//! What the plugin `sharing.c` finds between two marks of a program: the kernel's accesses to cache
//! lines that one CPU writes and another one touches.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The accesses of all CPUs in one counted part.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Part {
    /// All accesses.
    pub all: u64,
    /// Those to shared lines.
    pub shared: u64,
    /// The latter by instruction.
    pub places: Vec<Place>,
}

/// An instruction that accesses shared lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Its address.
    pub at: u64,
    /// Its accesses to shared lines, and those of them that write.
    pub accesses: u64,
    pub writes: u64,
    /// How many lines these are.
    pub lines: u64,
    /// An address in the line that it accesses most.
    pub memory: u64,
}

/// The parts of a boot.
#[derive(Debug)]
pub struct SharedLines {
    path: PathBuf,
    /// Open once the plugin has made it.
    file: Option<File>,
    /// What has been read of it and is not a whole part yet.
    text: String,
}

impl SharedLines {
    /// The parts that come into this file.
    pub fn of(path: &Path) -> Self {
        Self {
            path: path.into(),
            file: None,
            text: String::new(),
        }
    }

    /// Returns the last part that has come since it was last asked for.
    pub fn last(&mut self) -> Option<Part> {
        const END: &str = "\nend\n";
        if self.file.is_none() {
            self.file = File::open(&self.path).ok();
        }
        if let Some(file) = &mut self.file {
            // What cannot be read is missing, which the caller says.
            let _ = file.read_to_string(&mut self.text);
        }
        let end = self.text.rfind(END)? + END.len();
        let whole: String = self.text.drain(..end).collect();
        let whole = whole.trim_end_matches("end\n");
        part(&whole[whole.rfind("section ")?..])
    }
}

/// Reads a part, from its first line on.
fn part(text: &str) -> Option<Part> {
    let mut lines = text.lines();
    let mut words = lines.next()?.split(' ').skip(1);
    let mut number = || words.next()?.parse().ok();
    let (all, shared) = (number()?, number()?);
    let places = lines.map(place).collect::<Option<Vec<Place>>>()?;
    Some(Part {
        all,
        shared,
        places,
    })
}

fn place(line: &str) -> Option<Place> {
    let words: Vec<&str> = line.split(' ').collect();
    let ["at", at, accesses, writes, lines, memory] = words[..] else {
        return None;
    };
    Some(Place {
        at: u64::from_str_radix(at, 16).ok()?,
        accesses: accesses.parse().ok()?,
        writes: writes.parse().ok()?,
        lines: lines.parse().ok()?,
        memory: u64::from_str_radix(memory, 16).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_whole_part_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("parts");
        let mut lines = SharedLines::of(&path);
        assert_eq!(lines.last(), None);
        let mut text =
            String::from("section 3 0\nend\nsection 90 7\nat ff 4 1 2 a0\nat fe 3 0 1 b0\n");
        std::fs::write(&path, &text).unwrap();
        assert_eq!(lines.last().map(|part| part.all), Some(3));
        text.push_str("end\nsection 1 ");
        std::fs::write(&path, &text).unwrap();
        let part = lines.last().unwrap();
        assert_eq!((part.all, part.shared, part.places.len()), (90, 7, 2));
        let place = part.places[0];
        assert_eq!((place.at, place.memory), (0xff, 0xa0));
        assert_eq!((place.accesses, place.writes, place.lines), (4, 1, 2));
        assert_eq!(lines.last(), None);
    }
}
