//! A directory with fixed names.

use alloc::{boxed::Box, vec::Vec};

use abi::{Errno, Result};
use nucleus::speculation;

use super::{Directory, EmitName, Entry};

/// Cursors from here on are those of the directory after the table.
const BEHIND: u64 = 1 << 20;

/// A directory with fixed names, and perhaps another directory after them.
#[derive(Default)]
pub struct Table {
    entries: Vec<(&'static str, Entry)>,
    behind: Option<Box<dyn Directory>>,
}

impl Table {
    /// An empty table.
    pub fn new() -> Table {
        Table::default()
    }

    /// Adds a name.
    pub fn with(mut self, name: &'static str, entry: Entry) -> Table {
        self.entries.push((name, entry));
        self
    }

    /// Looks all other names up in `directory`, and lists its names after the table's.
    pub fn otherwise(mut self, directory: impl Directory) -> Table {
        self.behind = Some(Box::new(directory));
        self
    }
}

impl Directory for Table {
    fn lookup(&self, name: &[u8]) -> Result<Entry> {
        let mut entries = self.entries.iter();
        if let Some((_, entry)) = entries.find(|(own, _)| own.as_bytes() == name) {
            return Ok(entry.clone());
        }
        match &self.behind {
            Some(behind) => behind.lookup(name),
            None => Err(Errno::ENOENT),
        }
    }

    fn list(&self, cursor: u64, emit: &mut EmitName<'_>) -> Result<()> {
        if cursor < BEHIND {
            let entries = speculation::rest(&self.entries, cursor as usize).iter();
            for ((name, entry), next) in entries.zip(1..) {
                if !emit(name.as_bytes(), entry.kind(), cursor + next) {
                    return Ok(());
                }
            }
        }
        match &self.behind {
            Some(behind) => behind.list(cursor.saturating_sub(BEHIND), &mut |name, kind, next| {
                emit(name, kind, BEHIND + next)
            }),
            None => Ok(()),
        }
    }
}
