//! Directories: `records` is the format of a block, `names` maps names to records.
//!
//! A record does not move during its lifetime, so its position is also the cursor of a listing,
//! whatever is added and removed beside it.

mod names;
mod records;

use abi::{Errno, Result};
use nucleus::sync::{ReadGuard, RwLock, WriteGuard};

use names::{Blocks, set};
pub(super) use names::{Found, Names};
use records::Records;

use super::inode::Inode;
use crate::{
    Kind,
    vnode::{Emit, EntryCount},
};

/// The state of a directory in memory.
pub(super) struct Directory {
    /// Read on first use.
    names: RwLock<Option<Names>>,
    /// Known once the names have been loaded; they stay loaded.
    pub count: EntryCount,
}

/// The names of a directory, read-locked and loaded.
pub(super) struct Reading<'a> {
    names: ReadGuard<'a, Option<Names>>,
    inode: &'a Inode,
}

/// As [`Reading`], write-locked.
pub(super) struct Writing<'a> {
    names: WriteGuard<'a, Option<Names>>,
    directory: &'a Directory,
    inode: &'a Inode,
}

impl Directory {
    /// Returns the state of an inode that was just read.
    pub fn new() -> Directory {
        Directory {
            names: RwLock::new(crate::rank::DIRECTORY, None),
            count: EntryCount::new(false),
        }
    }

    /// Loads the names if they have not been loaded.
    ///
    /// # Errors
    /// `EIO` for a damaged directory, `ENOMEM`.
    pub fn load(&self, inode: &Inode) -> Result<()> {
        if self.names.read().is_some() {
            return Ok(());
        }
        let mut names = self.names.write();
        if names.is_none() {
            let loaded = Names::load(inode, inode.fs.mounting.seed)?;
            let count = u32::try_from(loaded.len()).map_err(|_| Errno::EIO)?;
            self.count.set(count);
            *names = Some(loaded);
        }
        Ok(())
    }

    /// Read-locks the names.
    pub fn read<'a>(&'a self, inode: &'a Inode) -> Result<Reading<'a>> {
        loop {
            let names = self.names.read();
            if names.is_some() {
                return Ok(Reading { names, inode });
            }
            drop(names);
            self.load(inode)?;
        }
    }

    /// Write-locks the names.
    ///
    /// # Errors
    /// As [`load`](Directory::load); `ENOENT` if the directory was removed.
    pub fn write<'a>(&'a self, inode: &'a Inode) -> Result<Writing<'a>> {
        self.load(inode)?;
        let names = self.names.write();
        Writing {
            names,
            directory: self,
            inode,
        }
        .alive()
    }

    /// As [`write`](Directory::write), for two directories.
    pub fn write_pair<'a>(
        from: (&'a Directory, &'a Inode),
        to: (&'a Directory, &'a Inode),
    ) -> Result<(Writing<'a>, Writing<'a>)> {
        from.0.load(from.1)?;
        to.0.load(to.1)?;
        let (a, b) = RwLock::write_pair(&from.0.names, &to.0.names);
        let writing = |(directory, inode): (&'a Directory, &'a Inode), names| Writing {
            names,
            directory,
            inode,
        };
        Ok((writing(from, a).alive()?, writing(to, b).alive()?))
    }

    /// Emits the names from byte `cursor` of the directory on, copying one block at a time.
    pub fn list(&self, inode: &Inode, cursor: u64, emit: &mut Emit<'_>) -> Result<()> {
        let size = inode.block_size();
        let mut bytes = nucleus::try_filled(size, 0)?;
        let mut index = u32::try_from(cursor / size as u64).unwrap_or(u32::MAX);
        loop {
            {
                // The lock keeps the block from changing during the copy.
                let _names = self.names.read();
                if index >= inode.count() {
                    return Ok(());
                }
                inode.read(index, 0, &mut bytes)?;
            }
            let start = index as u64 * size as u64;
            for record in Records::new(&bytes, 0) {
                let record = record.map_err(|it| inode.damaged(index, it.at))?;
                let position = start + record.at as u64;
                let is_dot = record.name == b"." || record.name == b"..";
                if position < cursor || record.inode == 0 || is_dot {
                    continue;
                }
                // The next record starts at least four bytes later.
                if !emit(
                    record.name,
                    record.inode as u64,
                    kind(record.kind),
                    position + 4,
                ) {
                    return Ok(());
                }
            }
            index += 1;
        }
    }
}

impl Reading<'_> {
    pub fn find(&self, name: &[u8]) -> Result<Found> {
        find(&self.names, self.inode, name)
    }
}

impl<'a> Writing<'a> {
    fn alive(self) -> Result<Writing<'a>> {
        match self.directory.count.is_dead() {
            true => Err(Errno::ENOENT),
            false => Ok(self),
        }
    }

    /// As [`Reading::find`].
    pub fn find(&self, name: &[u8]) -> Result<Found> {
        find(&self.names, self.inode, name)
    }

    /// Adds a name that does not exist, for an inode of this kind.
    ///
    /// # Errors
    /// `ENOENT` if the directory was removed, `ENOSPC`, `EIO`, `ENOMEM`; nothing has changed then.
    pub fn add(&mut self, name: &[u8], inode: u32, kind: Kind) -> Result<()> {
        let count = &self.directory.count;
        count.add()?;
        let code = self.inode.code(kind);
        let names = self.names.as_mut().ok_or(Errno::EIO)?;
        let added = names.add(self.inode, name, inode, code);
        added.inspect_err(|_| count.remove())
    }

    /// Removes a name that was found.
    ///
    /// # Errors
    /// `EIO`, `ENOMEM`; nothing has changed then.
    pub fn remove(&mut self, name: &[u8], found: &Found) -> Result<()> {
        let names = self.names.as_mut().ok_or(Errno::EIO)?;
        names.remove(self.inode, name, found)?;
        self.directory.count.remove();
        Ok(())
    }

    /// Makes a name that was found refer to another inode.
    pub fn replace(&mut self, found: &Found, inode: u32, kind: Kind) -> Result<()> {
        set(self.inode, found.position, inode, self.inode.code(kind))
    }
}

fn find(names: &Option<Names>, inode: &Inode, name: &[u8]) -> Result<Found> {
    let names = names.as_ref().ok_or(Errno::EIO)?;
    names.find(inode, name)?.ok_or(Errno::ENOENT)
}

/// The file type of a record; none if records do not store it.
fn kind(code: u8) -> Kind {
    match code {
        1 => Kind::Regular,
        2 => Kind::Directory,
        3 => Kind::CharDevice,
        4 => Kind::BlockDevice,
        5 => Kind::Fifo,
        6 => Kind::Socket,
        7 => Kind::Link,
        _ => Kind::Anonymous,
    }
}

impl Inode {
    /// The code of a file type in a record, if records store it.
    fn code(&self, kind: Kind) -> u8 {
        if !self.fs.superblock.has_file_types {
            return 0;
        }
        match kind {
            Kind::Anonymous => 0,
            Kind::Regular => 1,
            Kind::Directory => 2,
            Kind::CharDevice => 3,
            Kind::BlockDevice => 4,
            Kind::Fifo => 5,
            Kind::Socket => 6,
            Kind::Link => 7,
        }
    }

    /// Gives a new directory its first block.
    pub(super) fn make_first_block(&self, parent: u32) -> Result<()> {
        let mut bytes = nucleus::try_filled(self.block_size(), 0)?;
        records::first_block(&mut bytes, self.ino, parent, self.code(Kind::Directory));
        self.grow(&bytes)
    }

    /// Finds "..".
    pub(super) fn find_parent(&self) -> Result<Found> {
        let mut bytes = nucleus::try_filled(self.block_size(), 0)?;
        self.read(0, 0, &mut bytes)?;
        for record in Records::new(&bytes, 0) {
            let record = record.map_err(|it| self.damaged(0, it.at))?;
            if record.inode != 0 && record.name == b".." {
                return Ok(Found {
                    position: record.at as u64,
                    inode: record.inode,
                    kind: record.kind,
                });
            }
        }
        Err(self.damaged(0, 0))
    }

    /// Makes "..", which was found, refer to another directory. Its names need not be locked and
    /// may change meanwhile.
    ///
    /// # Errors
    /// `EIO`, `ENOMEM`; nothing has changed then.
    pub(super) fn set_parent(&self, found: &Found, parent: u32) -> Result<()> {
        set(self, found.position, parent, self.code(Kind::Directory))
    }
}

impl Blocks for Inode {
    fn block_size(&self) -> usize {
        self.fs.geometry.block_size
    }

    fn count(&self) -> u32 {
        self.block_count()
    }

    fn read(&self, index: u32, at: usize, to: &mut [u8]) -> Result<()> {
        let block = self.block(index)?;
        block.ok_or_else(|| self.damaged(index, 0))?.read(at, to);
        Ok(())
    }

    fn write(&self, index: u32, at: usize, bytes: &[u8]) -> Result<()> {
        let block = self.block(index)?;
        let block = block.ok_or_else(|| self.damaged(index, 0))?;
        self.fs.buffers.store(&block, at, bytes);
        Ok(())
    }

    fn grow(&self, content: &[u8]) -> Result<()> {
        let (_, block) = self.append_block()?;
        self.fs.buffers.store(&block, 0, content);
        Ok(())
    }

    fn damaged(&self, index: u32, at: usize) -> Errno {
        let what =
            alloc::format!("block {index} of a directory is damaged at byte {at}; its inode");
        self.fs.damaged(&what, self.ino)
    }
}
