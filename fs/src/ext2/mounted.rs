//! A mounted file system: a volume, and its inodes in memory.

use alloc::sync::Arc;
use core::ops::Deref;

use abi::{Errno, Result};
use nucleus::{
    frame, log,
    sync::{Rank, SpinLock},
};

use super::{
    buffer::Committer,
    inode::{Inode, ROOT},
    layout::Refused,
    mount_state::{Change, MountState},
    volume::Volume,
};
use crate::{
    Kind,
    block::Device,
    page_cache::{InUse, InodeCache},
};

/// The number of changed blocks beyond which a change first writes them: 4 MiB of 4 KiB blocks.
const MOST_CHANGED: usize = 1024;

/// A mounted file system.
pub struct Ext2 {
    volume: Volume,
    /// The inodes in memory, which refer to the file system: taken out at its end.
    table: SpinLock<Option<Arc<InodeCache<Inode>>>>,
    pub(super) mounting: MountState,
}

impl Deref for Ext2 {
    type Target = Volume;

    fn deref(&self) -> &Volume {
        &self.volume
    }
}

impl Committer for Ext2 {
    fn commit(&self) -> Result<()> {
        self.volume.commit()
    }

    fn wait_for_ends(&self) -> Result<()> {
        self.table()?.wait_for_ends();
        Ok(())
    }
}

impl Ext2 {
    /// Opens the file system on a device and changes nothing; see
    /// [`start_writing`](Volume::start_writing).
    ///
    /// # Errors
    /// The reason why the device holds no usable file system. Features that only forbid writing are
    /// reported by [`start_writing`](Volume::start_writing).
    pub fn open(device: Arc<Device>) -> core::result::Result<Arc<Ext2>, Refused> {
        let fs = Arc::new(Ext2 {
            volume: Volume::open(device)?,
            table: SpinLock::new(Rank::Leaf, Some(InodeCache::new())),
            mounting: MountState::new(),
        });
        let above = Arc::downgrade(&fs);
        fs.buffers.serve(above);
        Ok(fs)
    }

    /// Inodes in memory.
    ///
    /// # Errors
    /// `EIO` after [`forget`](Ext2::forget).
    pub(super) fn table(&self) -> Result<Arc<InodeCache<Inode>>> {
        self.table.lock().clone().ok_or(Errno::EIO)
    }

    /// Ends its use: what files have in memory is written, then as [`stop_writing`](Volume::stop_writing), and no file is found any
    /// more. The caller sees to it that nobody is about to change anything.
    ///
    /// # Errors
    /// `EIO`: it can be used on then.
    pub fn unmount(&self) -> Result<()> {
        self.write_files()?;
        self.table()?.put_all_away();
        self.stop_writing()?;
        self.forget();
        Ok(())
    }

    /// Writes all that is in memory of all files, and all metadata, onto the medium (`syncfs`).
    ///
    /// # Errors
    /// `EIO`, `ENOMEM`. That pages could not be written is told by their files.
    pub fn sync_all(&self) -> Result<()> {
        self.write_files()?;
        self.commit_with_freed()
    }

    fn write_files(&self) -> Result<()> {
        let mut result = Ok(());
        self.table()?.for_each(&mut |_, inode| {
            result = result.and(inode.write_pages());
        });
        result
    }

    /// Lets go of all inodes in memory without writing anything: as if the machine had stopped. Who has a file in use finds no other any
    /// more.
    pub fn forget(&self) {
        let table = self.table.lock().take();
        drop(table);
    }

    /// To be called by who is about to change something, with no lock held, and kept until that is done: writes metadata if much has
    /// changed, and frees what was removed.
    ///
    /// # Errors
    /// `EROFS`; `ENOMEM` when memory is scarce; `EIO`.
    pub(super) fn begin_change(&self) -> Result<Change<'_>> {
        if self.is_read_only() {
            return Err(Errno::EROFS);
        }
        if frame::is_scarce() {
            return Err(Errno::ENOMEM);
        }
        if self.buffers.changed() > MOST_CHANGED {
            self.commit()?;
        }
        if self.has_removed() {
            // What can't be freed now is tried again.
            let _ = self.reap();
        }
        let change = self.mounting.change();
        // It may have ended meanwhile.
        match self.is_read_only() {
            true => Err(Errno::EROFS),
            false => Ok(change),
        }
    }

    /// The root directory.
    ///
    /// # Errors
    /// `EIO` for one that can't be read or is none; `ENOMEM`.
    pub(super) fn root(self: &Arc<Ext2>) -> Result<Arc<InUse<Inode>>> {
        let root = self.inode(ROOT)?;
        match root.kind() {
            Kind::Directory => Ok(root),
            _ => Err(self.damaged("the root is no directory", ROOT)),
        }
    }
}

impl Drop for Ext2 {
    /// One that was never mounted ends here, in the hands of who opened it.
    fn drop(&mut self) {
        if let Err(error) = self.stop_writing() {
            let name = self.device().name();
            log!("ext2 on {name}: can't be let go in order: {}", error.name());
        }
    }
}
