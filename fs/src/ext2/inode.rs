//! Inodes in memory.
//!
//! An inode keeps the block of the inode table that has its record, and every change is put there at once. So there are no changed
//! inodes, only changed blocks: an inode that nobody uses has nothing left to write but its pages.
//!
//! Inodes stand in the file system's [`Table`](crate::page_cache::InodeCache), which says who uses one. One without links ends when the last user lets go:
//! its blocks are freed, then it itself.

use alloc::sync::{Arc, Weak};
use core::{
    ops::Range,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use abi::{Errno, Result};
use nucleus::{
    random,
    sync::{Rank, ReadGuard, RwLock},
};

use super::{
    Ext2,
    buffer::Block,
    content::Content,
    home::{Home, now},
    layout::{Flags, InodeRecord},
    pending::Pending,
    removed::Removed,
    state::Hangs,
};
use crate::{
    Kind,
    page_cache::{Cached, InCore, InUse, PageCache},
};

/// The vnode: an inode that is in use.
pub(super) type Node = InUse<Inode>;

/// A file, directory, link or device of a mounted file system.
pub(super) struct Inode {
    pub fs: Arc<Ext2>,
    number: u32,
    kind: Kind,
    home: Home,
    /// Attributes, and where the blocks are. Changed through [`change`](Inode::change) and its like only.
    record: RwLock<InodeRecord>,
    /// Whether the record has no link: to be looked at where the lock can't be taken.
    removed: AtomicBool,
    /// Whether it has ended: its number and its blocks may be another one's, and whoever comes late changes nothing of them [lock of the record].
    ended: AtomicBool,
    /// The commit that has to be over for what [`sync`](Inode::sync) promises; see [`Ext2::commits`].
    commit: AtomicU64,
    /// Likewise, for the time stamps of its content.
    times: AtomicU64,
    /// The content of a regular file.
    pages: Option<Arc<PageCache<Content>>>,
    /// What the upper half knows of it.
    pub state: super::state::State,
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

/// A record on its way through [`Inode::change`].
pub(super) struct Changing<'a> {
    pub fs: &'a Ext2,
    pub record: &'a mut InodeRecord,
    /// The group that new blocks should come from.
    pub group: u32,
    /// What the record does not lead to any more.
    pub freed: Pending,
}

impl Ext2 {
    /// The inode of this number, as an entry of a directory names it.
    ///
    /// # Errors
    /// `EIO` for one that does not exist or has no link, or can't be read; `ENOMEM`.
    pub(super) fn inode(self: &Arc<Ext2>, number: u32) -> Result<Arc<InUse<Inode>>> {
        if !self.geometry.has_inode(number) {
            return Err(self.damaged("an entry leads to an inode that does not exist", number));
        }
        self.table()?.get(number as u64, || {
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
            Ok(Inode::new(self, number, kind, home, record))
        })
    }

    /// A new inode without a link, for a directory `parent`. It is freed again if nobody gives it one.
    ///
    /// # Errors
    /// `ENOSPC`, `EIO`, `ENOMEM`.
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
        let kind = kind_of(new.mode).ok_or(Errno::EINVAL)?;
        if matches!(kind, Kind::CharDevice | Kind::BlockDevice) {
            record.set_device(new.device);
        }
        let top = parent.number == ROOT || parent_flags.contains(Flags::TOP);
        let (number, home) =
            self.take_inode(parent.home.group, directory, top, |number, slot| {
                Ok((number, Home::of(self, slot)?))
            })?;
        self.table()?.get(number as u64, || {
            home.clear(self);
            home.store(self, &record);
            Ok(Inode::new(self, number, kind, home, record))
        })
    }
}

/// The root's number.
pub(super) const ROOT: u32 = 2;

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
    fn new(fs: &Arc<Ext2>, number: u32, kind: Kind, home: Home, record: InodeRecord) -> Arc<Inode> {
        Arc::new_cyclic(|me: &Weak<Inode>| {
            let pages = (kind == Kind::Regular).then(|| {
                let identity = (fs.device().number(), number as u64);
                let size_max = fs.max_size(kind);
                let shift = fs.geometry.block_shift;
                let content = Content::new(me.clone(), identity, size_max, shift);
                PageCache::new(content, record.size)
            });
            Inode {
                fs: fs.clone(),
                number,
                kind,
                home,
                state: super::state::State::new(kind),
                removed: AtomicBool::new(record.links == 0),
                ended: AtomicBool::new(false),
                commit: AtomicU64::new(0),
                times: AtomicU64::new(0),
                pages,
                record: RwLock::new(Rank::FileMap, record),
            }
        })
    }

    /// A handle to it, which somebody uses.
    ///
    /// # Errors
    /// `EIO` after the end of the file system.
    pub fn handle(&self) -> Result<Arc<InUse<Inode>>> {
        self.fs.inode(self.number)
    }

    /// Frees it, which has no link, with its blocks, though somebody may use it: the file system can't be changed after this.
    ///
    /// # Errors
    /// `EIO`, `ENOMEM`.
    pub fn end_now(&self) -> Result<()> {
        self.as_removed().free(&self.fs)
    }

    /// It without its last link, to be freed.
    fn as_removed(&self) -> Removed {
        Removed::new(self.number, self.home.clone(), self.record().clone())
    }

    /// Where its record is.
    #[cfg(test)]
    pub fn home(&self) -> &Home {
        &self.home
    }

    /// Its number.
    pub fn ino(&self) -> u32 {
        self.number
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The content of a regular file.
    pub fn pages(&self) -> Option<&Arc<PageCache<Content>>> {
        self.pages.as_ref()
    }

    /// Its attributes and pointers.
    pub fn record(&self) -> ReadGuard<'_, InodeRecord> {
        self.record.read()
    }

    /// Lets `change` change the record, and puts it into its block, also after an error: what was done by then stays. Blocks that
    /// it gave up are pending afterwards.
    ///
    /// # Errors
    /// Those of `change`; `ESTALE` if the inode has ended.
    pub fn change<T>(&self, change: impl FnOnce(&mut Changing<'_>) -> Result<T>) -> Result<T> {
        let mut record = self.record.write();
        if self.has_ended() {
            return Err(Errno::ESTALE);
        }
        let mut changing = Changing {
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

    /// As [`change`](Inode::change), for what can't fail.
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

    /// Its content has changed just now: time stamps, without which the content can be read back.
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

    /// Brings all that leads to the file and to its blocks onto the medium, and what the device has taken of its pages with it; with
    /// `data_only`, not the times at which the content has changed.
    ///
    /// # Errors
    /// `EIO`, `ENOMEM`.
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

    /// Writes what pages of it are dirty, and clears blocks that were never written.
    ///
    /// # Errors
    /// `EIO`, `ENOMEM`. That pages could not be written is told by them.
    pub fn write_pages(&self) -> Result<()> {
        let Some(pages) = &self.pages else {
            return Ok(());
        };
        pages.write_through(0..u64::MAX)?;
        match pages.store().clear_unwritten() {
            // It has ended under who went through all files.
            Err(Errno::ESTALE) => Ok(()),
            result => result,
        }
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

impl Changing<'_> {
    /// As [`Ext2::fill_holes`].
    pub fn fill_holes_noting(
        &mut self,
        range: Range<u32>,
        note: &mut dyn FnMut(Range<u32>),
    ) -> Result<()> {
        self.fs.fill_holes(self.record, self.group, range, note)
    }

    /// As [`Ext2::free_range`].
    pub fn free_range(&mut self, range: Range<u64>) -> Result<()> {
        self.fs.free_range(self.record, range, &mut self.freed)
    }
}

impl Ext2 {
    /// Bytes that a file of this kind may have: what pointers and the count of its sectors can say.
    pub(super) fn max_size(&self, kind: Kind) -> u64 {
        let geometry = &self.geometry;
        let by_pointers = super::map::most_blocks(geometry.pointers());
        // Of the sectors that can be counted a part is for blocks of pointers: less than one in `pointers` of each kind.
        let countable = u32::MAX as u64 / geometry.sectors() as u64;
        let by_count = countable - 3 * countable / geometry.pointers() as u64;
        let most = by_pointers.min(by_count) << geometry.block_shift;
        match kind {
            Kind::Regular if !self.superblock.is_old => most,
            // Without the features of the later revision there are no large files.
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
        let _turn = self.fs.mounting.ends();
        if self.fs.is_read_only() {
            return;
        }
        if let Some(pages) = &self.pages {
            // Whatever happens, no page is being written any more; blocks that are left are freed below.
            let _ = pages.truncate(0);
        }
        {
            // Who finds it in the table without using it may be about to change it.
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
            Some(pages) => pages.store().cut_again(),
            None => Ok(()),
        });
        if written.is_err() {
            // Who finds it again comes by its directory. Until then nobody does, and the directory is not in use for it: a disk that is
            // gone can be unmounted.
            self.hang(Hangs::Nowhere);
        }
        written
    }
}
