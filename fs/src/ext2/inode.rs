//! Inodes in memory.
//!
//! An inode keeps the metadata block of its record, and every change is written there at once. So
//! there are no dirty inodes, only dirty blocks: an unused inode has nothing to write but its
//! pages.
//!
//! Inodes are in the file system's [`InodeCache`](crate::page_cache::InodeCache), which tracks
//! their users. When the last user of an inode without links goes, its blocks and the inode are
//! freed.

use alloc::sync::{Arc, Weak};
use core::{
    ops::Range,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use abi::{Errno, Result};
use nucleus::{
    random,
    sync::{ReadGuard, RwLock},
};

use super::{
    Ext2,
    buffer::Block,
    content::Content,
    home::RecordPlace,
    layout::{Flags, InodeRecord},
    pending::{Pending, Run},
    removed::Removed,
};
use crate::{
    Kind,
    page_cache::{Cached, InCore, InUse, PageCache, Properties, WriteBack},
    vnode::now,
};

/// The vnode: an inode that is in use.
pub(super) type Node = InUse<Inode>;

/// A file, directory, link or device of a mounted file system.
pub(super) struct Inode {
    pub fs: Arc<Ext2>,
    /// Its number.
    pub ino: u32,
    kind: Kind,
    pub home: RecordPlace,
    /// Attributes and block pointers. Changed through [`change`](Inode::change) and similar methods
    /// only.
    record: RwLock<InodeRecord>,
    /// The record has no link: a copy to be read without the lock.
    removed: AtomicBool,
    /// It has been freed: its number and blocks may have been reused, and late changes are refused
    /// [lock of the record].
    ended: AtomicBool,
    /// The commit that [`sync`](Inode::sync) must wait for; see `Volume::commits`.
    commit: AtomicU64,
    /// The same for the time stamps of its content.
    times: AtomicU64,
    /// The page cache of a regular file.
    pages: Option<Arc<PageCache<WriteBack<Content>>>>,
    /// The vnode layer's state.
    pub state: super::state::State,
}

/// The attributes of a new inode.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewInode {
    /// Type and permissions, as `st_mode`.
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    /// The number of a device node, as `dev_t`.
    pub device: u64,
}

/// A record being changed in [`Inode::change`].
pub(super) struct RecordChange<'a> {
    pub fs: &'a Ext2,
    pub record: &'a mut InodeRecord,
    /// The preferred group for new blocks.
    pub group: u32,
    /// Blocks that the record no longer refers to.
    pub freed: Pending,
}

impl Ext2 {
    /// Returns the inode of this number, as a directory entry names it.
    ///
    /// # Errors
    /// `EIO` if it does not exist, has no link, or cannot be read; `ENOMEM`.
    pub(super) fn inode(self: &Arc<Ext2>, number: u32) -> Result<Arc<InUse<Inode>>> {
        if !self.geometry.has_inode(number) {
            return Err(self.damaged("an entry leads to an inode that does not exist", number));
        }
        self.table()?.get(number as u64, || {
            let home = RecordPlace::of(self, self.geometry.slot(number))?;
            let record = home.load();
            if record.links == 0 {
                return Err(self.damaged("an entry leads to an inode that is free", number));
            }
            let kind = Kind::of_mode(record.mode.into())
                .ok_or_else(|| self.damaged("an inode has no kind", number))?;
            if record.size > self.max_size(kind) {
                return Err(self.damaged("a file has an impossible size", number));
            }
            Ok(Inode::new(self, number, kind, home, record))
        })
    }

    /// Makes a new inode without a link, for a directory `parent`. It is freed again unless it gets
    /// one.
    pub(super) fn new_inode(
        self: &Arc<Ext2>,
        parent: &Inode,
        new: NewInode,
    ) -> Result<Arc<InUse<Inode>>> {
        let mut record = InodeRecord::new(new.mode, self.geometry.inode_size, now());
        record.uid = new.uid;
        record.gid = new.gid;
        record.generation = random::u64() as u32;
        let directory = record.is_directory();
        let parent_flags = parent.record().flags;
        record.flags = parent_flags.inherited(directory);
        let kind = Kind::of_mode(new.mode.into()).ok_or(Errno::EINVAL)?;
        if matches!(kind, Kind::CharDevice | Kind::BlockDevice) {
            record.set_device(new.device);
        }
        let top = parent.ino == ROOT || parent_flags.contains(Flags::TOP);
        let (number, home) =
            self.take_inode(parent.home.group, directory, top, |number, slot| {
                Ok((number, RecordPlace::of(self, slot)?))
            })?;
        self.table()?.get(number as u64, || {
            home.clear(self);
            home.store(self, &record);
            Ok(Inode::new(self, number, kind, home, record))
        })
    }
}

/// The root's inode number.
pub(super) const ROOT: u32 = 2;

impl Inode {
    fn new(
        fs: &Arc<Ext2>,
        number: u32,
        kind: Kind,
        home: RecordPlace,
        record: InodeRecord,
    ) -> Arc<Inode> {
        Arc::new_cyclic(|me: &Weak<Inode>| {
            let pages = (kind == Kind::Regular).then(|| {
                let shift = fs.geometry.block_shift;
                let properties = Properties {
                    size_max: fs.max_size(kind),
                    granule: 1 << shift,
                    ..Properties::of((fs.device().number(), number as u64))
                };
                let content = Content::new(
                    me.clone(),
                    properties.size_max,
                    shift,
                    fs.options().in_place,
                );
                PageCache::new(content, record.size, properties)
            });
            Inode {
                fs: fs.clone(),
                ino: number,
                kind,
                home,
                state: super::state::State::new(kind),
                removed: AtomicBool::new(record.links == 0),
                ended: AtomicBool::new(false),
                commit: AtomicU64::new(0),
                times: AtomicU64::new(0),
                pages,
                record: RwLock::new(crate::rank::FILE_MAP, record),
            }
        })
    }

    /// Returns a handle that counts as a user.
    ///
    /// # Errors
    /// `EIO` after unmounting.
    pub fn handle(&self) -> Result<Arc<InUse<Inode>>> {
        self.fs.inode(self.ino)
    }

    /// It without its last link, to be freed.
    pub fn as_removed(&self) -> Removed {
        Removed::new(self.ino, self.home.clone(), self.record().clone())
    }

    /// Its file type.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The page cache of a regular file.
    pub fn pages(&self) -> Option<&Arc<PageCache<WriteBack<Content>>>> {
        self.pages.as_ref()
    }

    /// Its attributes and block pointers.
    pub fn record(&self) -> ReadGuard<'_, InodeRecord> {
        self.record.read()
    }

    /// Calls `change` with the record and stores it in its block, also after an error: changes made
    /// by then stay. Freed blocks become pending.
    ///
    /// # Errors
    /// Those of `change`; `ESTALE` if the inode has been freed.
    pub fn change<T>(&self, change: impl FnOnce(&mut RecordChange<'_>) -> Result<T>) -> Result<T> {
        let mut record = self.record.write();
        if self.has_ended() {
            return Err(Errno::ESTALE);
        }
        let mut changing = RecordChange {
            fs: &self.fs,
            record: &mut record,
            group: self.home.group,
            freed: Pending::new(),
        };
        let result = change(&mut changing);
        let freed = changing.freed;
        self.store(&mut record);
        drop(record);
        self.fs.free_all(freed);
        result
    }

    /// As [`change`](Inode::change), for changes that cannot fail.
    pub fn set(&self, change: impl FnOnce(&mut InodeRecord)) {
        let mut record = self.record.write();
        change(&mut record);
        if !self.has_ended() {
            self.store(&mut record);
        }
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    fn store(&self, record: &mut InodeRecord) {
        record.fit_times();
        self.home.store(&self.fs, record);
        self.removed.store(record.links == 0, Ordering::Release);
        self.commit.store(self.fs.next_commit(), Ordering::Release);
    }

    /// Sets the time stamps of a change of content, which reading the content back does not need.
    pub fn touch_modified(&self) {
        let (now, is_noted) = {
            let record = self.record.read();
            let now = record.fit(now());
            (now, record.modified == now && record.changed == now)
        };
        if !is_noted {
            let mut record = self.record.write();
            record.modified = now;
            record.changed = now;
            if !self.has_ended() {
                self.home.store(&self.fs, &record);
                self.times.store(self.fs.next_commit(), Ordering::Release);
            }
        }
    }

    /// Writes all metadata that leads to the file and its blocks to stable storage, and flushes the
    /// device's cache, which also covers its pages; with `data_only`, without time stamps of its
    /// content.
    pub fn sync(&self, data_only: bool) -> Result<()> {
        let times = match data_only {
            true => 0,
            false => self.times.load(Ordering::Acquire),
        };
        let wanted = self.commit.load(Ordering::Acquire).max(times);
        match wanted > self.fs.last_commit() {
            true => self.fs.commit(),
            false => self.fs.device().flush(),
        }
    }

    /// Writes its dirty pages.
    ///
    /// # Errors
    /// `ENOMEM`. Write errors of pages are reported by the pages.
    pub fn write_pages(&self) -> Result<()> {
        match &self.pages {
            Some(pages) => pages.write_through(0..u64::MAX),
            None => Ok(()),
        }
    }

    /// Blocks within the size of a directory or of a link's text.
    pub fn block_count(&self) -> u32 {
        let size = self.record().size;
        size.div_ceil(self.fs.geometry.block_size as u64) as u32
    }

    /// Returns block `logical` of a directory or link; `None` for a hole.
    pub fn block(&self, logical: u32) -> Result<Option<Block>> {
        let first = self.fs.locate(&self.record(), logical, 1)?.first;
        first.map(|number| self.fs.buffers.get(number)).transpose()
    }

    /// Appends a block of zeros to a directory or link that consists of whole blocks; returns its
    /// index and the block. The size grows by a block.
    pub fn append_block(&self) -> Result<(u32, Block)> {
        self.change(|changing| {
            let size = changing.fs.geometry.block_size as u64;
            let logical = u32::try_from(changing.record.size / size).map_err(|_| Errno::EFBIG)?;
            if changing.record.size + size > self.fs.max_size(self.kind) {
                return Err(Errno::EFBIG);
            }
            changing.fill_holes_noting(logical..logical + 1, &mut |_| {})?;
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
}

impl RecordChange<'_> {
    /// As [`Volume::fill_holes`].
    pub fn fill_holes_noting(
        &mut self,
        range: Range<u32>,
        note: &mut dyn FnMut(Run),
    ) -> Result<()> {
        self.fs.fill_holes(self.record, self.group, range, note)
    }

    /// As [`Volume::free_range`].
    pub fn free_range(&mut self, range: Range<u64>) -> Result<()> {
        self.fs.free_range(self.record, range, &mut self.freed)
    }
}

impl Ext2 {
    /// Returns the largest size of a file of this kind, limited by block pointers and the count of
    /// sectors.
    pub(super) fn max_size(&self, kind: Kind) -> u64 {
        let geometry = &self.geometry;
        let by_pointers = super::map::most_blocks(geometry.pointers());
        // Indirect blocks use part of the countable sectors: less than one block in `pointers` per
        // level.
        let countable = u32::MAX as u64 / geometry.sectors() as u64;
        let by_count = countable - 3 * countable / geometry.pointers() as u64;
        let most = by_pointers.min(by_count) << geometry.block_shift;
        match kind {
            Kind::Regular if !self.superblock.is_old => most,
            // Revision 0 has no feature for large files.
            _ => most.min(i32::MAX as u64),
        }
    }
}

impl InCore for Inode {
    fn cached(&self) -> Option<Arc<dyn Cached>> {
        let pages = self.pages.clone()?;
        Some(pages)
    }

    fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    fn end(&self) {
        let _turn = self.fs.mounting.ends.lock();
        if self.fs.is_read_only() {
            return;
        }
        if let Some(pages) = &self.pages {
            // In any case no page is under writeback any more; remaining blocks are freed below.
            let _ = pages.truncate(0);
        }
        {
            // A walk over the inode cache may find it without using it, and be about to change it.
            let _record = self.record.write();
            self.ended.store(true, Ordering::Release);
        }
        let mut removed = self.as_removed();
        if removed.free(&self.fs).is_err() {
            self.fs.removed.lock().push(removed);
        }
    }

    fn put_away(&self) -> Result<()> {
        let written = self.write_pages().and_then(|()| match &self.pages {
            Some(pages) => pages.blocks().cut_again(),
            None => Ok(()),
        });
        if written.is_err() {
            // A later lookup finds it through its directory. Until then the directory is not kept
            // in use, so that a disk that has failed can be unmounted.
            self.set_place(None);
        }
        written
    }
}
