//! All locks, as `/proc/locks` lists them.

use alloc::vec::Vec;
use core::ops::Bound;

use abi::Result;

use super::{
    file_locks::{FILES, FileId, HeldLocks, put},
    records::Record,
};

/// A lock as `/proc/locks` shows it.
pub struct Listed {
    /// Device and inode of the file.
    pub file: (u64, u64),
    /// On the whole file (`flock`).
    pub whole: bool,
    /// The process is 0 for an open file description's record lock.
    pub record: Record,
}

/// All locks.
///
/// # Errors
/// `ENOMEM`.
pub fn all() -> Result<Vec<Listed>> {
    let mut list = Vec::new();
    let mut after = None;
    loop {
        // One file after the other: the table is not kept locked.
        let next = {
            let files = FILES.lock();
            let bound = after.map_or(Bound::Unbounded, Bound::Excluded);
            files
                .range((bound, Bound::Unbounded))
                .next()
                .map(|(_, it)| it.clone())
        };
        let Some(file) = next else {
            return Ok(list);
        };
        after = Some(file.id);
        let listed = file.held.lock().list(file.id, &mut list);
        put(file);
        listed?;
    }
}

impl HeldLocks {
    fn list(&self, file: FileId, list: &mut Vec<Listed>) -> Result<()> {
        let mut count = self.whole.len();
        self.records.by_owner.visit(|_| count += 1);
        list.try_reserve(count)?;
        list.extend(self.whole.values().map(|lock| Listed {
            file,
            whole: true,
            record: Record {
                mode: lock.mode,
                start: 0,
                last: u64::MAX,
                pid: lock.pid,
            },
        }));
        self.records.by_owner.visit(|&(_, record)| {
            list.push(Listed {
                file,
                whole: false,
                record,
            });
        });
        Ok(())
    }
}
