//! An index of a directory's names, so that a lookup does not read the whole directory.
//!
//! The blocks of a directory are an unordered sequence of records. On first use all of them are
//! read once; the index stores a hash and the position of each name, and for each block the longest
//! record that still fits. The names themselves stay in the blocks: on a matching hash the record
//! is compared.

use alloc::{collections::BTreeSet, vec::Vec};

use abi::{Errno, Result};
use nucleus::frame;

use super::records::{self, Damaged, NAME_MAX, Records};
use crate::name_hash::name_hash;

/// The blocks of one directory.
pub(in super::super) trait Blocks {
    /// The block size: 1024, 2048 or 4096.
    fn block_size(&self) -> usize;

    /// The number of blocks.
    fn count(&self) -> u32;

    /// Copies bytes of block `index` out, from offset `at` on.
    ///
    /// # Errors
    /// `EIO`, also for a missing block; `ENOMEM`.
    fn read(&self, index: u32, at: usize, to: &mut [u8]) -> Result<()>;

    /// Changes bytes of block `index`.
    fn write(&self, index: u32, at: usize, bytes: &[u8]) -> Result<()>;

    /// Appends a block with this content.
    ///
    /// # Errors
    /// `ENOSPC`, `EFBIG`, and as [`read`](Blocks::read).
    fn grow(&self, content: &[u8]) -> Result<()>;

    /// Reports damage of block `index` at offset `at`, and returns the error for the caller.
    fn damaged(&self, index: u32, at: usize) -> Errno;
}

/// The position of a name, and its inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) struct Found {
    /// Of its record, in bytes from the start of the directory.
    pub position: u64,
    pub inode: u32,
    /// As in the record.
    pub kind: u8,
}

/// The names of one directory, except "." and "..".
pub(in super::super) struct Names {
    seed: u64,
    /// The upper half of the name's hash, and the position of its record in units of four bytes.
    places: BTreeSet<u64>,
    /// The longest record that fits into each block.
    room: Vec<u16>,
}

impl Names {
    /// Reads a directory; `seed` is for hashes.
    ///
    /// # Errors
    /// `EIO` for a damaged one, `ENOMEM`.
    pub fn load(blocks: &dyn Blocks, seed: u64) -> Result<Names> {
        let mut names = Names {
            seed,
            places: BTreeSet::new(),
            room: Vec::new(),
        };
        let count = blocks.count();
        names.room.try_reserve_exact(count as usize)?;
        let mut bytes = nucleus::try_filled(blocks.block_size(), 0)?;
        for index in 0..count {
            require_memory()?;
            blocks.read(index, 0, &mut bytes)?;
            let mut most = 0;
            for record in Records::new(&bytes, 0) {
                let record = record.map_err(|it| blocks.damaged(index, it.at))?;
                most = most.max(record.room());
                if record.inode != 0 && record.name != b"." && record.name != b".." {
                    let position = names.position(blocks, index, record.at);
                    names.places.insert(names.place(record.name, position));
                }
            }
            names.room.push(most as u16);
        }
        Ok(names)
    }

    /// The number of names.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    fn position(&self, blocks: &dyn Blocks, index: u32, at: usize) -> u64 {
        index as u64 * blocks.block_size() as u64 + at as u64
    }

    fn place(&self, name: &[u8], position: u64) -> u64 {
        self.hashed(name) | (position / 4)
    }

    fn hashed(&self, name: &[u8]) -> u64 {
        name_hash(self.seed, name) & 0xffff_ffff_0000_0000
    }

    pub fn find(&self, blocks: &dyn Blocks, name: &[u8]) -> Result<Option<Found>> {
        let hash = self.hashed(name);
        let block_size = blocks.block_size() as u64;
        for place in self.places.range(hash..=hash | 0xffff_ffff) {
            let position = (place & 0xffff_ffff) * 4;
            let (index, at) = (
                (position / block_size) as u32,
                (position % block_size) as usize,
            );
            let mut bytes = [0; records::record_size(NAME_MAX)];
            let len = bytes.len().min(block_size as usize - at);
            blocks.read(index, at, &mut bytes[..len])?;
            // The record may be longer than the bytes read; only its used part matters here.
            let needs = records::record_size(bytes[6] as usize).min(len);
            if let Some(record) = records::head(&bytes[..needs])
                && record.inode != 0
                && record.name == name
            {
                return Ok(Some(Found {
                    position,
                    inode: record.inode,
                    kind: record.kind,
                }));
            }
        }
        Ok(None)
    }

    /// Adds a name that does not exist.
    ///
    /// # Errors
    /// `ENOSPC`, `EIO`, `ENOMEM`; nothing has changed then.
    pub fn add(&mut self, blocks: &dyn Blocks, name: &[u8], inode: u32, kind: u8) -> Result<()> {
        require_memory()?;
        let size = records::record_size(name.len()) as u16;
        let mut bytes = nucleus::try_filled(blocks.block_size(), 0)?;
        let index = match self.room.iter().position(|&room| room >= size) {
            Some(index) => {
                blocks.read(index as u32, 0, &mut bytes)?;
                index
            }
            None => {
                self.room.try_reserve(1)?;
                records::clear(&mut bytes);
                self.room.len()
            }
        };
        let block = index as u32;
        let damaged = |it: Damaged| blocks.damaged(block, it.at);
        let added = records::insert(&mut bytes, inode, kind, name).map_err(damaged)?;
        // The index says that there is room.
        let (at, changed) = added.ok_or_else(|| blocks.damaged(block, 0))?;
        let room = records::room(&bytes).map_err(damaged)? as u16;
        if index < self.room.len() {
            blocks.write(block, changed.start, &bytes[changed])?;
            self.room[index] = room;
        } else {
            blocks.grow(&bytes)?;
            self.room.push(room);
        }
        let position = self.position(blocks, block, at);
        self.places.insert(self.place(name, position));
        Ok(())
    }

    /// Removes a name that was found.
    ///
    /// # Errors
    /// `EIO`, `ENOMEM`; nothing has changed then.
    pub fn remove(&mut self, blocks: &dyn Blocks, name: &[u8], found: &Found) -> Result<()> {
        let mut bytes = nucleus::try_filled(blocks.block_size(), 0)?;
        let index = (found.position / bytes.len() as u64) as u32;
        let at = (found.position % bytes.len() as u64) as usize;
        let damaged = |it: Damaged| blocks.damaged(index, it.at);
        blocks.read(index, 0, &mut bytes)?;
        let changed = records::remove(&mut bytes, at).map_err(damaged)?;
        let room = records::room(&bytes).map_err(damaged)? as u16;
        blocks.write(index, changed.start, &bytes[changed])?;
        self.room[index as usize] = room;
        self.places.remove(&self.place(name, found.position));
        Ok(())
    }
}

/// Makes the record at `position` refer to another inode.
pub(in super::super) fn set(
    blocks: &dyn Blocks,
    position: u64,
    inode: u32,
    kind: u8,
) -> Result<()> {
    let mut bytes = nucleus::try_filled(blocks.block_size(), 0)?;
    let index = (position / bytes.len() as u64) as u32;
    let at = (position % bytes.len() as u64) as usize;
    blocks.read(index, 0, &mut bytes)?;
    let changed = records::rename_to(&mut bytes, at, inode, kind)
        .map_err(|it| blocks.damaged(index, it.at))?;
    blocks.write(index, changed.start, &bytes[changed])
}

fn require_memory() -> Result<()> {
    Errno::ENOMEM.unless(!frame::is_scarce())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::Random;
    use alloc::vec;
    use core::cell::RefCell;
    use std::collections::BTreeMap;

    /// A directory in memory of at most `most` blocks.
    struct InMemory {
        blocks: RefCell<Vec<Vec<u8>>>,
        size: usize,
        most: usize,
    }

    impl Blocks for InMemory {
        fn block_size(&self) -> usize {
            self.size
        }

        fn count(&self) -> u32 {
            self.blocks.borrow().len() as u32
        }

        fn read(&self, index: u32, at: usize, to: &mut [u8]) -> Result<()> {
            to.copy_from_slice(&self.blocks.borrow()[index as usize][at..at + to.len()]);
            Ok(())
        }

        fn write(&self, index: u32, at: usize, bytes: &[u8]) -> Result<()> {
            self.blocks.borrow_mut()[index as usize][at..at + bytes.len()].copy_from_slice(bytes);
            Ok(())
        }

        fn grow(&self, content: &[u8]) -> Result<()> {
            let mut blocks = self.blocks.borrow_mut();
            if blocks.len() == self.most {
                return Err(Errno::ENOSPC);
            }
            blocks.push(content.to_vec());
            Ok(())
        }

        fn damaged(&self, _: u32, _: usize) -> Errno {
            Errno::EIO
        }
    }

    fn new_directory(size: usize, most: usize) -> InMemory {
        let mut first = vec![0; size];
        records::first_block(&mut first, 5, 2, 2);
        InMemory {
            blocks: RefCell::new(vec![first]),
            size,
            most,
        }
    }

    fn machine(body: impl FnOnce() + Send + 'static) {
        nucleus::sim::run(nucleus::sim::Config::default(), body).unwrap();
    }

    #[test]
    fn a_directory_is_a_map_of_names() {
        machine(|| {
            let blocks = new_directory(1024, 40);
            let mut names = Names::load(&blocks, 77).unwrap();
            let mut model = BTreeMap::new();
            let mut random = Random::new(1);
            let mut next = |n| random.below(n);
            let mut refused = 0;
            for inode in 20..8000 {
                let name = [b'n'; 255];
                let most = if next(3) == 0 { 200 } else { 12 };
                let len = 4 + next(most);
                let name = [&name[..len], next(900).to_string().as_bytes()].concat();
                let found = names.find(&blocks, &name).unwrap();
                assert_eq!(found.map(|it| it.inode), model.get(&name).copied());
                match found {
                    Some(found) if next(3) > 0 => {
                        names.remove(&blocks, &name, &found).unwrap();
                        model.remove(&name);
                    }
                    Some(found) => {
                        set(&blocks, found.position, inode, 1).unwrap();
                        model.insert(name, inode);
                    }
                    None => match names.add(&blocks, &name, inode, 1) {
                        Ok(()) => {
                            model.insert(name, inode);
                        }
                        Err(error) => {
                            assert_eq!(error, Errno::ENOSPC);
                            refused += 1;
                        }
                    },
                }
                assert_eq!(names.len(), model.len());
                if inode % 500 == 0 {
                    let again = Names::load(&blocks, 77).unwrap();
                    assert_eq!(again.places, names.places);
                    assert_eq!(again.room, names.room);
                    assert_eq!(again.places.len(), model.len());
                }
            }
            assert!(refused > 100, "{refused}");
        });
    }

    #[test]
    fn what_is_damaged_is_an_error() {
        machine(|| {
            let blocks = new_directory(1024, 4);
            let mut names = Names::load(&blocks, 1).unwrap();
            names.add(&blocks, b"one", 7, 1).unwrap();
            let found = names.find(&blocks, b"one").unwrap().unwrap();
            blocks.blocks.borrow_mut()[0][28] = 0;
            blocks.blocks.borrow_mut()[0][29] = 0;
            assert!(Names::load(&blocks, 1).is_err());
            assert_eq!(names.remove(&blocks, b"one", &found), Err(Errno::EIO));
            assert_eq!(names.add(&blocks, b"two", 8, 1), Err(Errno::EIO));
            // For arbitrary bytes.
            let mut random = Random::new(3);
            for _ in 0..2000 {
                random.fill(&mut blocks.blocks.borrow_mut()[0]);
                assert!(Names::load(&blocks, 1).is_err());
                let _ = names.find(&blocks, b"one");
                let _ = names.add(&blocks, b"two", 8, 1);
                let _ = names.remove(&blocks, b"one", &found);
                let _ = set(&blocks, found.position, 9, 1);
            }
        });
    }
}
