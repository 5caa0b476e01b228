//! Inodes as vnodes.

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::time::Duration;

use abi::{
    Errno, Result,
    raw::general::{CAP_DAC_OVERRIDE, FALLOC_FL_KEEP_SIZE},
};
use fbuf::{Sink, Source};
use nucleus::time;
use vm::Pager;

use super::{
    content::Content,
    directory::Directory,
    inode::{Inode, NewInode, Node, ROOT},
    layout::{Flags, InodeRecord},
    pinned,
    state::Body,
};
use crate::{
    Attributes, Credentials, DenyWrite, File, Kind, Location, OpenFlags, Vnode,
    block::PinnedBlocks,
    credentials::{EXECUTE, WRITE},
    device,
    page_cache::{Cached, InCore, PageCache, WriteBack},
    vnode::{self, Change, FileSystem, MountPoint, Place, SizeLimit, Space, now},
};

impl Inode {
    /// Its state as a directory.
    pub(super) fn directory(&self) -> Result<&Directory> {
        match &self.state.body {
            Body::Directory(directory) => Ok(directory),
            _ => Err(Errno::ENOTDIR),
        }
    }

    pub(super) fn is_directory(&self) -> bool {
        self.kind() == Kind::Directory
    }

    /// Sets its place in the tree.
    pub(super) fn set_place(&self, place: Option<Place<Node>>) {
        let old = core::mem::replace(&mut *self.state.place.lock(), place);
        // With no lock held: it may be the directory's last reference.
        drop(old);
    }

    /// Refuses changes that its flags forbid; with `also_append`, also those that an append-only
    /// file forbids.
    pub(super) fn require_mutable(&self, also_append: bool) -> Result<()> {
        let mut fixed = Flags::IMMUTABLE;
        if also_append {
            fixed |= Flags::APPEND_ONLY;
        }
        Errno::EPERM.unless(!self.record().flags.intersects(fixed))
    }

    /// Makes a new inode without a link, with attributes from this directory and the creator's
    /// credentials.
    pub(super) fn make_inode(
        &self,
        kind: Kind,
        device: u64,
        mode: u32,
        who: &Credentials,
    ) -> Result<Arc<Node>> {
        let own = {
            let record = self.record();
            (u32::from(record.mode), record.gid)
        };
        let inherit = self.fs.options().inherit_group;
        let (mode, gid) = vnode::inherited(own, inherit, kind, mode & 0o7777, who);
        self.fs.new_inode(
            self,
            NewInode {
                mode: (kind as u16) << 12 | mode as u16,
                uid: who.uid,
                gid,
                device,
            },
        )
    }
}

impl InodeRecord {
    /// Permissions, set-id bits and sticky bit.
    fn permissions(&self) -> u32 {
        u32::from(self.mode) & 0o7777
    }

    /// Sets the time stamps of a change of content.
    pub(super) fn touch_modified(&mut self) {
        self.modified = now();
        self.changed = self.modified;
    }
}

impl Vnode for Node {
    fn attributes(&self) -> Result<Attributes> {
        let record = self.record();
        Ok(Attributes {
            device: self.fs.device().number(),
            inode: self.ino.into(),
            kind: self.kind(),
            mode: record.permissions(),
            links: record.links.into(),
            uid: record.uid,
            gid: record.gid,
            rdev: match self.kind() {
                Kind::CharDevice | Kind::BlockDevice => record.device(),
                _ => 0,
            },
            size: self.pages().map_or(record.size, |pages| pages.size()),
            blocks: record.sectors.into(),
            block_size: self.fs.geometry.block_size as u32,
            accessed: record.accessed,
            modified: record.modified,
            changed: record.changed,
            created: record.created,
        })
    }

    fn kind(&self) -> Kind {
        self.inode().kind()
    }

    fn access(&self, who: &Credentials, want: u32) -> Result<()> {
        if who.may_use(CAP_DAC_OVERRIDE)
            && (want & EXECUTE == 0 || self.is_directory())
            && want & WRITE == 0
        {
            return Ok(());
        }
        let record = self.record();
        if want & WRITE != 0 && record.flags.contains(Flags::IMMUTABLE) {
            return Err(Errno::EPERM);
        }
        let kind = self.kind();
        Errno::EACCES.unless(who.may_by(kind, record.permissions(), record.uid, record.gid, want))
    }

    fn place(&self) -> Option<Place> {
        self.state.place.lock().as_ref().map(Place::erased)
    }

    fn mount_point(&self) -> Option<&MountPoint> {
        Some(&self.state.mount_point)
    }

    fn set_attributes(&self, change: Change) -> Result<()> {
        let _change = self.fs.begin_change()?;
        self.require_mutable(!change.by_use)?;
        self.set(|record| {
            if let Some(mode) = change.mode {
                record.mode = record.mode & !0o7777 | (mode & 0o7777) as u16;
            }
            record.uid = change.uid.unwrap_or(record.uid);
            record.gid = change.gid.unwrap_or(record.gid);
            record.accessed = change.accessed.unwrap_or(record.accessed);
            record.modified = change.modified.unwrap_or(record.modified);
            record.changed = now();
        });
        Ok(())
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        match self.kind() {
            Kind::Link => self.text(),
            _ => Err(Errno::EINVAL),
        }
    }

    fn open(self: Arc<Self>, at: &Location, flags: OpenFlags) -> Result<Option<Arc<dyn File>>> {
        let fifo = match &self.state.body {
            Body::Fifo(state) => Some(state),
            _ => None,
        };
        device::open_special(at, self.kind(), || self.record().device(), fifo, flags)
    }

    fn seek_data(&self, offset: u64, hole: bool) -> Result<u64> {
        self.content()?.seek_data(offset, hole)
    }

    fn file_system(&self) -> Option<&dyn FileSystem> {
        Some(self)
    }
}

impl vnode::FileData for Node {
    fn read(&self, offset: u64, to: &mut dyn Sink) -> Result<usize> {
        self.content()?.read(offset, to)
    }

    fn write_within(
        &self,
        limit: &SizeLimit,
        offset: u64,
        append: bool,
        from: &mut dyn Source,
    ) -> Result<(usize, u64)> {
        let pages = self.content()?;
        let _change = self.fs.begin_change()?;
        self.require_unpinned()?;
        pages.write_within(limit, offset, append, from)
    }

    fn read_direct(&self, offset: u64, to: &mut dyn Sink) -> Result<usize> {
        self.content()?.read_direct(offset, to)
    }

    fn write_direct(
        &self,
        limit: &SizeLimit,
        offset: u64,
        append: bool,
        from: &mut dyn Source,
    ) -> Result<(usize, u64)> {
        let pages = self.content()?;
        let _change = self.fs.begin_change()?;
        self.require_unpinned()?;
        pages.write_direct(limit, offset, append, from)
    }

    fn direct_block(&self) -> Option<usize> {
        match self.kind() {
            Kind::Regular => Some(self.fs.device().limits().block_size as usize),
            Kind::BlockDevice => Some(device::direct_block(self.record().device())),
            _ => None,
        }
    }

    fn truncate_within(&self, limit: &SizeLimit, size: u64) -> Result<()> {
        let pages = self.content()?;
        let _change = self.fs.begin_change()?;
        self.require_mutable(true)?;
        self.require_unpinned()?;
        pages.truncate_within(limit, size)
    }

    fn allocate_within(&self, limit: &SizeLimit, mode: u32, offset: u64, len: u64) -> Result<()> {
        let pages = self.content().map_err(|error| match error {
            Errno::EINVAL => Errno::ENODEV,
            error => error,
        })?;
        let _change = self.fs.begin_change()?;
        // Append-only files may get blocks but lose nothing.
        self.require_mutable(mode & !FALLOC_FL_KEEP_SIZE != 0)?;
        self.require_unpinned()?;
        pages.fallocate_within(limit, mode, offset, len)
    }

    fn deny_write(&self) -> Option<&DenyWrite> {
        match &self.state.body {
            Body::Regular(deny_write) => Some(deny_write),
            _ => None,
        }
    }

    fn note_access(&self, strict: bool) {
        const DAY: Duration = Duration::from_secs(86_400);
        let stale = {
            let record = self.record();
            let (accessed, now) = (record.accessed, time::since_epoch());
            let (modified, changed) = (record.modified, record.changed);
            !record.flags.contains(Flags::NO_ACCESS_TIME)
                && (strict || vnode::is_access_stale(accessed, modified, changed, now, DAY))
        };
        if stale && !self.fs.is_read_only() {
            self.set(|record| record.accessed = now());
        }
    }

    fn only_grows(&self) -> bool {
        self.record().flags.contains(Flags::APPEND_ONLY)
    }

    fn pager(self: Arc<Self>) -> Option<Arc<dyn Pager>> {
        let pages: Arc<dyn Pager> = self.pages()?.clone();
        Some(pages)
    }

    fn sync(&self, data_only: bool) -> Result<()> {
        match (self.kind(), self.pages()) {
            // The root stands for the whole file system: `sync` and `syncfs`.
            _ if self.ino == ROOT => self.fs.sync_all(),
            (Kind::BlockDevice, _) => device::sync_block_device(self.record().device()),
            (_, Some(pages)) => Cached::sync(&**pages, 0..u64::MAX, data_only),
            _ => self.inode().sync(data_only),
        }
    }

    fn pin_blocks(self: Arc<Self>) -> Result<Box<dyn PinnedBlocks>> {
        pinned::pin(self)
    }

    fn cached(&self) -> Option<Arc<dyn Cached>> {
        match self.kind() {
            Kind::BlockDevice => device::cached_block_device(self.record().device()),
            _ => self.inode().cached(),
        }
    }
}

impl FileSystem for Node {
    fn space(&self) -> Space {
        // Tasks end files later: wait, so that the space of removed files counts as free.
        if let Ok(table) = self.fs.table() {
            table.wait_for_ends();
        }
        let _ = self.fs.reap();
        self.fs.space()
    }

    fn reconfigure(&self, options: &[u8], read_only: bool) -> Result<()> {
        self.fs.reconfigure(options, read_only)
    }

    fn is_read_only(&self) -> bool {
        self.fs.is_read_only()
    }

    fn mounted(&self) {
        self.fs.mounted();
    }

    fn retire(&self) -> Result<()> {
        self.fs.retire()
    }

    fn unmounted(&self) {
        self.fs.unmounted();
    }
}

impl Inode {
    /// The page cache of a regular file.
    fn content(&self) -> Result<&Arc<PageCache<WriteBack<Content>>>> {
        match self.kind() {
            Kind::Directory => Err(Errno::EISDIR),
            _ => self.pages().ok_or(Errno::EINVAL),
        }
    }
}
