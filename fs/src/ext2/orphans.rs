//! The orphan list: inodes in use that have lost their last name, or never had one.
//!
//! The list is on the disk so that a check after a crash frees them: the superblock names the
//! newest one, and the field of its record that will hold the deletion time names the next older
//! one. Until the inode is freed, that field belongs to the list.

use alloc::collections::BTreeMap;

use nucleus::sync::Mutex;

use super::{layout::field, volume::Volume};

/// The orphan list of a file system.
pub(super) struct Orphans {
    list: Mutex<List>,
}

struct List {
    /// By the order of insertion.
    by_age: BTreeMap<u64, u32>,
    ages: BTreeMap<u32, u64>,
    next_age: u64,
    /// The rest of a list found on the disk at mount, for the next check; 0 for none.
    rest: u32,
}

impl List {
    /// The inode that follows one of this age.
    fn older(&self, age: u64) -> u32 {
        let older = self.by_age.range(..age).next_back();
        older.map_or(self.rest, |(_, &number)| number)
    }
}

impl Orphans {
    /// Returns the list that consists of an older list only, which starts with inode `rest`, 0 for
    /// none.
    pub fn new(rest: u32) -> Orphans {
        Orphans {
            list: Mutex::new(
                crate::rank::ALLOCATION,
                List {
                    by_age: BTreeMap::new(),
                    ages: BTreeMap::new(),
                    next_age: 1,
                    rest,
                },
            ),
        }
    }

    /// Adds an inode without links, unless it is in the list.
    pub fn add(&self, fs: &Volume, number: u32) {
        let mut list = self.list.lock();
        if list.ages.contains_key(&number) {
            return;
        }
        let age = list.next_age;
        list.next_age += 1;
        fs.put_deleted(number, list.older(age));
        fs.store_in_superblock(field::LAST_ORPHAN, &number.to_le_bytes());
        list.by_age.insert(age, number);
        list.ages.insert(number, age);
    }

    /// Removes an inode, which was deleted at `deleted`, in seconds since the epoch, or has got a
    /// name, if that is 0.
    pub fn remove(&self, fs: &Volume, number: u32, deleted: u32) {
        let mut list = self.list.lock();
        if let Some(age) = list.ages.remove(&number) {
            list.by_age.remove(&age);
            let older = list.older(age);
            match list.by_age.range(age..).next() {
                Some((_, &newer)) => fs.put_deleted(newer, older),
                None => fs.store_in_superblock(field::LAST_ORPHAN, &older.to_le_bytes()),
            }
        }
        fs.put_deleted(number, deleted);
    }
}
