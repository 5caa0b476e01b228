//! Data units of an aggregate (`fbufs.txt` 5.2): lines or records of one size, copied only where
//! they lie across the boundary of two fragments.

use std::iter::Peekable;

use crate::contents::{Contents, Fragment};

/// A data unit.
#[derive(Clone, Debug)]
pub enum Unit<'a> {
    /// It lies in one fragment.
    Within(Fragment<'a>),
    /// It lay across fragments, and was copied.
    Across(Vec<u8>),
}

impl Unit<'_> {
    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        match self {
            Unit::Within(fragment) => fragment.len(),
            Unit::Across(bytes) => bytes.len(),
        }
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a copy of the bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        match self {
            Unit::Within(fragment) => {
                let mut copy = vec![0; fragment.len()];
                fragment.copy_to(&mut copy);
                copy
            }
            Unit::Across(bytes) => bytes.clone(),
        }
    }
}

/// The units of contents.
pub struct Units<'a, I: Iterator<Item = Fragment<'a>>> {
    fragments: Peekable<I>,
    /// Bytes of the first fragment that were given.
    given: usize,
    end: Option<u8>,
    most: usize,
}

/// Returns the lines of contents, each with its newline; the last may have none. Lines longer than
/// `most` bytes are cut there: a peer cannot make the reader copy more at once.
pub fn lines(of: &impl Contents, most: usize) -> Units<'_, impl Iterator<Item = Fragment<'_>>> {
    units(of, Some(b'\n'), most)
}

/// Returns the records of so many bytes; the last may be shorter.
pub fn records(of: &impl Contents, size: usize) -> Units<'_, impl Iterator<Item = Fragment<'_>>> {
    units(of, None, size)
}

fn units(
    of: &impl Contents,
    end: Option<u8>,
    most: usize,
) -> Units<'_, impl Iterator<Item = Fragment<'_>>> {
    Units {
        fragments: of.fragments().peekable(),
        given: 0,
        end,
        most: most.max(1),
    }
}

impl<'a, I: Iterator<Item = Fragment<'a>>> Units<'a, I> {
    /// Takes at most `most` bytes of the first fragment that is left, and says whether the unit
    /// ends with them.
    fn take(&mut self, most: usize) -> Option<(Fragment<'a>, bool)> {
        let whole = *self.fragments.peek()?;
        let rest = whole.part(self.given, most);
        let found = self.end.and_then(|end| rest.find(end));
        let part = found.map_or(rest, |at| rest.part(0, at + 1));
        self.given += part.len();
        if self.given == whole.len() {
            self.fragments.next();
            self.given = 0;
        }
        Some((part, found.is_some() || part.len() == most))
    }
}

impl<'a, I: Iterator<Item = Fragment<'a>>> Iterator for Units<'a, I> {
    type Item = Unit<'a>;

    fn next(&mut self) -> Option<Unit<'a>> {
        let (first, is_end) = self.take(self.most)?;
        if is_end || self.fragments.peek().is_none() {
            return Some(Unit::Within(first));
        }
        let mut bytes = Unit::Within(first).to_vec();
        while let Some((part, is_end)) = self.take(self.most - bytes.len()) {
            bytes.extend(Unit::Within(part).to_vec());
            if is_end {
                break;
            }
        }
        Some(Unit::Across(bytes))
    }
}
