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
    growing::Growing,
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
    /// Files with new blocks.
    pub(super) growing: Growing,
}

impl Deref for Ext2 {
    type Target = Volume;

    fn deref(&self) -> &Volume {
        &self.volume
    }
}

impl Committer for Ext2 {
    fn commit(&self) -> Result<()> {
        Ext2::commit(self)
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
            mounting: MountState::new().map_err(Errno::from)?,
            growing: Growing::new(),
        });
        let parent = Arc::downgrade(&fs);
        fs.buffers.serve(parent);
        Ok(fs)
    }

    /// Returns the inode cache.
    ///
    /// # Errors
    /// `EIO` after [`forget`](Ext2::forget).
    pub(super) fn table(&self) -> Result<Arc<InodeCache<Inode>>> {
        self.table.lock().clone().ok_or(Errno::EIO)
    }

    /// Unmounts it: writes the page caches of its files, then does
    /// [`stop_writing`](Volume::stop_writing), and drops the inode cache. The caller excludes
    /// concurrent changes.
    ///
    /// # Errors
    /// `EIO`: it stays mounted.
    pub fn unmount(&self) -> Result<()> {
        self.write_files()?;
        self.table()?.put_all_away();
        self.stop_writing()?;
        self.forget();
        Ok(())
    }

    /// Writes all dirty pages and all metadata to stable storage (`syncfs`).
    ///
    /// # Errors
    /// `EIO`, `ENOMEM`. Write errors of pages are reported by their files.
    pub fn sync_all(&self) -> Result<()> {
        self.write_files()?;
        self.commit_with_freed()
    }

    /// As [`Volume::commit`], with the bytes of new blocks written first. The caller holds no lock.
    ///
    /// # Errors
    /// As there.
    pub(super) fn commit(&self) -> Result<()> {
        self.growing.write_out();
        self.volume.commit()
    }

    fn write_files(&self) -> Result<()> {
        let mut result = Ok(());
        self.table()?.for_each(&mut |_, inode| {
            result = result.and(inode.write_pages());
        });
        result
    }

    /// Drops all inodes without writing, as if the machine had stopped. Files in use can find no
    /// others any more.
    pub fn forget(&self) {
        let table = self.table.lock().take();
        drop(table);
    }

    /// Starts a change, with no lock held; the guard is kept until the change is done. Writes
    /// metadata if much is dirty, and frees removed inodes.
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
            // A failure is retried with the next change.
            let _ = self.reap();
        }
        let change = self.mounting.changes.read();
        // It may have been unmounted meanwhile.
        match self.is_read_only() {
            true => Err(Errno::EROFS),
            false => Ok(change),
        }
    }

    /// Returns the root directory.
    ///
    /// # Errors
    /// `EIO` if it cannot be read or is no directory; `ENOMEM`.
    pub(super) fn root(self: &Arc<Ext2>) -> Result<Arc<InUse<Inode>>> {
        let root = self.inode(ROOT)?;
        match root.kind() {
            Kind::Directory => Ok(root),
            _ => Err(self.damaged("the root is no directory", ROOT)),
        }
    }
}

impl Drop for Ext2 {
    /// A file system that was opened but never mounted ends here.
    fn drop(&mut self) {
        if let Err(error) = self.stop_writing() {
            let name = self.device().name();
            log!("ext2 on {name}: can't be let go in order: {}", error.name());
        }
    }
}
