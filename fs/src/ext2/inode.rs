//! Inodes in memory: one for each file that somebody uses.
//!
//! An inode keeps the block of the inode table that has its record, and every change is put there at once. So there are no changed
//! inodes, only changed blocks: an inode that nobody uses any more has nothing left to write.
//!
//! *Removal.* An inode without links is freed, with its blocks, when the last one who uses it lets go. That may be with any lock held, so the
//! record is only noted then; [`Ext2::reap`] does the work.

use alloc::{
    sync::{Arc, Weak},
    vec::Vec,
};
use core::time::Duration;

use abi::{Errno, Result};
use nucleus::{
    log, random,
    sync::{Rank, ReadGuard, RwLock},
    time,
};

use super::{
    Ext2,
    buffer::Block,
    layout::{Flags, InodeRecord, MAX_INODE_SIZE, Slot},
    map,
    pending::{Pending, Run},
};
use crate::Kind;

/// A file, directory, link or device of a mounted file system.
pub(super) struct Inode {
    pub fs: Arc<Ext2>,
    me: Weak<Inode>,
    number: u32,
    kind: Kind,
    home: Home,
    /// Attributes, and where the blocks are. Changed through [`change`](Inode::change) only.
    record: RwLock<InodeRecord>,
    /// What the upper half knows of it.
    pub state: super::node::State,
}

/// Where an inode's record is.
#[derive(Clone)]
struct Home {
    group: u32,
    block: Block,
    /// Bytes.
    offset: usize,
    len: usize,
}

/// What a new inode shall be.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewInode {
    /// Kind and permissions, as `st_mode`.
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    /// Device nodes: the number, as `dev_t`.
    pub device: u64,
}

/// An inode without a link that nobody uses any more.
pub(super) struct Removed {
    number: u32,
    home: Home,
    record: InodeRecord,
}

/// A record on its way through [`Inode::change`].
pub(super) struct Changing<'a> {
    pub fs: &'a Ext2,
    pub record: &'a mut InodeRecord,
    /// The group that new blocks should come from.
    pub group: u32,
    /// What the record does not lead to any more.
    pub freed: Pending,
}

impl Home {
    fn of(fs: &Ext2, slot: Slot) -> Result<Home> {
        let group = &fs.groups[slot.group as usize];
        Ok(Home {
            group: slot.group,
            block: fs.buffers.get(group.record.inode_table + slot.block)?,
            offset: slot.offset,
            len: fs.geometry.inode_size.min(MAX_INODE_SIZE),
        })
    }

    fn load(&self) -> InodeRecord {
        let mut bytes = [0; MAX_INODE_SIZE];
        self.block.read(self.offset, &mut bytes[..self.len]);
        InodeRecord::parse(&bytes[..self.len])
    }

    fn store(&self, fs: &Ext2, record: &InodeRecord) {
        let mut bytes = [0; MAX_INODE_SIZE];
        let bytes = &mut bytes[..self.len];
        self.block.read(self.offset, bytes);
        record.put(bytes);
        fs.buffers.store(&self.block, self.offset, bytes);
    }

    /// Clears all of the record's bytes, those behind what is known here as well.
    fn clear(&self, fs: &Ext2) {
        const ZEROS: [u8; 128] = [0; 128];
        for at in (0..fs.geometry.inode_size).step_by(ZEROS.len()) {
            fs.buffers.store(&self.block, self.offset + at, &ZEROS);
        }
    }
}

impl Ext2 {
    /// The inode of this number, as an entry of a directory names it.
    ///
    /// # Errors
    /// `EIO` for one that does not exist or has no link, or can't be read; `ENOMEM`.
    pub(super) fn inode(self: &Arc<Ext2>, number: u32) -> Result<Arc<Inode>> {
        if let Some(inode) = self.known(number) {
            return Ok(inode);
        }
        if !self.geometry.has_inode(number) {
            return Err(self.damaged("an entry leads to an inode that does not exist", number));
        }
        let home = Home::of(self, self.geometry.slot(number))?;
        let record = home.load();
        if record.links == 0 {
            return Err(self.damaged("an entry leads to an inode that is free", number));
        }
        let kind =
            kind_of(record.mode).ok_or_else(|| self.damaged("an inode has no kind", number))?;
        if record.size > self.max_size(kind) {
            return Err(self.damaged("a file has an impossible size", number));
        }
        Ok(self.enter(number, kind, home, record))
    }

    fn known(&self, number: u32) -> Option<Arc<Inode>> {
        self.inodes.lock().get(&number)?.upgrade()
    }

    /// Makes an inode known, or gives the one that is.
    fn enter(
        self: &Arc<Ext2>,
        number: u32,
        kind: Kind,
        home: Home,
        record: InodeRecord,
    ) -> Arc<Inode> {
        let new = Arc::new_cyclic(|me| Inode {
            fs: self.clone(),
            me: me.clone(),
            number,
            kind,
            home,
            state: super::node::State::new(kind),
            record: RwLock::new(Rank::FileMap, record),
        });
        let mut inodes = self.inodes.lock();
        if let Some(known) = inodes.get(&number).and_then(Weak::upgrade) {
            drop(inodes);
            return known;
        }
        inodes.insert(number, Arc::downgrade(&new));
        new
    }

    /// A new inode without a link, for a directory `parent`. It is freed again if nobody gives it one.
    ///
    /// # Errors
    /// `ENOSPC`, `EIO`, `ENOMEM`.
    pub(super) fn new_inode(self: &Arc<Ext2>, parent: &Inode, new: NewInode) -> Result<Arc<Inode>> {
        let mut record = InodeRecord::new(new.mode, self.geometry.inode_size, now());
        record.uid = new.uid;
        record.gid = new.gid;
        record.generation = random::u64() as u32;
        let directory = record.is_directory();
        let parent_flags = parent.record().flags;
        record.flags = parent_flags.inherited(directory);
        let kind = kind_of(new.mode).ok_or(Errno::EINVAL)?;
        if matches!(kind, Kind::CharDevice | Kind::BlockDevice) {
            record.set_device(new.device);
        }
        let top = parent.number == ROOT || parent_flags.contains(Flags::TOP);
        let (number, home) =
            self.take_inode(parent.home.group, directory, top, |number, slot| {
                Ok((number, Home::of(self, slot)?))
            })?;
        home.clear(self);
        home.store(self, &record);
        Ok(self.enter(number, kind, home, record))
    }

    /// Whether there are removed inodes that [`reap`](Ext2::reap) has not freed yet.
    pub(super) fn has_removed(&self) -> bool {
        !self.removed.lock().is_empty()
    }

    /// Frees what was removed and is not used any more. What can't be freed for now stays for the next time.
    ///
    /// # Errors
    /// `EIO`, `ENOMEM`.
    pub(super) fn reap(&self) -> Result<()> {
        let mut result = Ok(());
        let mut left = Vec::new();
        let removed = core::mem::take(&mut *self.removed.lock());
        for mut inode in removed {
            if let Err(error) = inode.free(self) {
                result = Err(error);
                left.push(inode);
            }
        }
        if !left.is_empty() {
            self.removed.lock().append(&mut left);
        }
        result
    }
}

/// The root's number.
pub(super) const ROOT: u32 = 2;

/// Now, since the epoch.
pub(super) fn now() -> Duration {
    time::since_epoch()
}

/// What a mode says it is.
fn kind_of(mode: u16) -> Option<Kind> {
    Some(match mode >> 12 {
        1 => Kind::Fifo,
        2 => Kind::CharDevice,
        4 => Kind::Directory,
        6 => Kind::BlockDevice,
        8 => Kind::Regular,
        10 => Kind::Link,
        12 => Kind::Socket,
        _ => return None,
    })
}

impl Inode {
    /// Its number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// A handle to it.
    ///
    /// # Errors
    /// `ENOENT` while the last one is on its way out.
    pub fn handle(&self) -> Result<Arc<Inode>> {
        self.me.upgrade().ok_or(Errno::ENOENT)
    }

    /// Its attributes and pointers.
    pub fn record(&self) -> ReadGuard<'_, InodeRecord> {
        self.record.read()
    }

    /// Lets `change` change the record, and puts it into its block, also after an error: what was done by then stays. Blocks that
    /// it gave up are pending afterwards.
    ///
    /// # Errors
    /// Those of `change`.
    pub fn change<T>(&self, change: impl FnOnce(&mut Changing<'_>) -> Result<T>) -> Result<T> {
        let mut record = self.record.write();
        let mut changing = Changing {
            fs: &self.fs,
            record: &mut record,
            group: self.home.group,
            freed: Pending::new(),
        };
        let result = change(&mut changing);
        let freed = changing.freed;
        self.home.store(&self.fs, &record);
        drop(record);
        self.fs.free_all(freed);
        result
    }

    /// As [`change`](Inode::change), for what can't fail.
    pub fn set(&self, change: impl FnOnce(&mut InodeRecord)) {
        let mut record = self.record.write();
        change(&mut record);
        self.home.store(&self.fs, &record);
    }

    /// Blocks of metadata that its size covers: a directory's, or a link's text.
    pub fn block_count(&self) -> u32 {
        let size = self.record().size;
        size.div_ceil(self.fs.geometry.block_size as u64) as u32
    }

    /// Block `logical` of a directory or link; `None` for a hole.
    ///
    /// # Errors
    /// `EIO`, `ENOMEM`.
    pub fn block(&self, logical: u32) -> Result<Option<Block>> {
        let first = self.fs.locate(&self.record(), logical, 1)?.first;
        first.map(|number| self.fs.buffers.get(number)).transpose()
    }

    /// Adds a block of zeros at the end of a directory or link, which must be whole blocks long; returns its index and itself. The size
    /// grows by a block.
    ///
    /// # Errors
    /// `ENOSPC`, `EIO`, `ENOMEM`, `EFBIG`.
    pub fn append_block(&self) -> Result<(u32, Block)> {
        self.change(|changing| {
            let size = changing.fs.geometry.block_size as u64;
            let logical = u32::try_from(changing.record.size / size).map_err(|_| Errno::EFBIG)?;
            changing.fill_holes(logical..logical + 1)?;
            let extent = changing.fs.locate(changing.record, logical, 1)?;
            let number = extent.first.ok_or(Errno::EIO)?;
            match changing.fs.buffers.fresh(number) {
                Ok(block) => {
                    changing.record.size += size;
                    Ok((logical, block))
                }
                Err(error) => {
                    changing.free_range(logical as u64..logical as u64 + 1)?;
                    Err(error)
                }
            }
        })
    }

    /// Cuts a directory or link to its first `blocks` blocks.
    ///
    /// # Errors
    /// `EIO`, `ENOMEM`.
    pub fn cut_blocks(&self, blocks: u32) -> Result<()> {
        self.change(|changing| {
            changing.record.size = blocks as u64 * changing.fs.geometry.block_size as u64;
            changing.free_range(blocks as u64..u64::MAX)
        })
    }
}

impl Changing<'_> {
    /// As [`Ext2::fill_holes`].
    pub fn fill_holes(&mut self, range: core::ops::Range<u32>) -> Result<()> {
        self.fs.fill_holes(self.record, self.group, range)
    }

    /// As [`Ext2::free_range`].
    pub fn free_range(&mut self, range: core::ops::Range<u64>) -> Result<()> {
        self.fs.free_range(self.record, range, &mut self.freed)
    }
}

impl Ext2 {
    /// Bytes that a file of this kind may have: what pointers and the count of its sectors can say.
    pub(super) fn max_size(&self, kind: Kind) -> u64 {
        let geometry = &self.geometry;
        let by_pointers = map::most_blocks(geometry.pointers());
        // Of the sectors that can be counted a part is for blocks of pointers: less than one in `pointers` of each kind.
        let countable = u32::MAX as u64 / geometry.sectors() as u64;
        let by_count = countable - 3 * countable / geometry.pointers() as u64;
        let most = by_pointers.min(by_count) << geometry.block_shift;
        match kind {
            Kind::Regular => most,
            _ => most.min(u32::MAX as u64),
        }
    }
}

impl Removed {
    /// Frees its blocks and itself.
    fn free(&mut self, fs: &Ext2) -> Result<()> {
        let mut freed = Pending::new();
        let result = match self.record.has_blocks(fs.geometry.sectors()) {
            true => fs.free_range(&mut self.record, 0..u64::MAX, &mut freed),
            false => Ok(()),
        };
        let result = result.and_then(|()| self.free_attributes(fs, &mut freed));
        if result.is_ok() {
            self.record.size = 0;
            self.record.deleted = (now().as_secs() as u32).max(1);
            freed.add_inode(self.number, self.record.is_directory());
        }
        self.home.store(fs, &self.record);
        fs.free_all(freed);
        result
    }

    /// Gives up the block of extended attributes, which other inodes may share.
    fn free_attributes(&mut self, fs: &Ext2, freed: &mut Pending) -> Result<()> {
        const MAGIC: u32 = 0xea02_0000;
        let number = self.record.attributes;
        if number == 0 {
            return Ok(());
        }
        let block = fs.metadata(number)?;
        if block.word(0) != MAGIC {
            fs.damaged("a block of attributes has no head", number);
        } else if block.word(1) > 1 {
            fs.buffers.store_word(&block, 1, block.word(1) - 1);
        } else {
            fs.buffers.forget(number);
            freed.add_blocks(Run {
                first: number,
                count: 1,
            });
        }
        self.record.attributes = 0;
        self.record.sectors = self.record.sectors.saturating_sub(fs.geometry.sectors());
        Ok(())
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        let mut inodes = self.fs.inodes.lock();
        // Another one of this number may be known by now.
        if inodes
            .get(&self.number)
            .is_some_and(|known| known.ptr_eq(&self.me))
        {
            inodes.remove(&self.number);
        }
        drop(inodes);
        let record = self.record.get_mut();
        if record.links > 0 || self.fs.is_read_only() {
            return;
        }
        let removed = Removed {
            number: self.number,
            home: self.home.clone(),
            record: record.clone(),
        };
        let mut list = self.fs.removed.lock();
        match list.try_reserve(1) {
            Ok(()) => list.push(removed),
            Err(_) => log!("ext2: no memory to free inode {}", self.number),
        }
    }
}
