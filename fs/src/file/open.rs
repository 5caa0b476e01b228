//! An open file over a vnode.

use alloc::sync::Arc;

use abi::raw::general::{
    IN_ACCESS, IN_MODIFY, O_APPEND, O_DIRECT, O_DSYNC, O_SYNC, SEEK_CUR, SEEK_DATA, SEEK_END,
    SEEK_HOLE, SEEK_SET,
};
use abi::{Errno, Result};
use fbuf::{Sink, Source};
use nucleus::sync::Mutex;
use vm::Pager;

use super::listing;
use crate::{
    Attributes, File, Kind, Location, MountFlags, OpenFlags, Ready, Writing, notify,
    page_cache::{Cached, ErrorMark},
    vnode::{Emit, SizeLimit},
};

/// An open regular file or directory: a position in a vnode that is read and written by offset.
///
/// The position's lock is held across a read or write at the position, so that those of several
/// processes that share it follow each other. The program's memory may fault meanwhile; no fault
/// takes this lock.
pub struct VnodeFile {
    location: Location,
    position: Mutex<u64>,
    /// The writeback errors that it has reported.
    told: ErrorMark,
    /// Keeps programs from running it.
    _writing: Option<Writing>,
}

impl VnodeFile {
    /// Opens `location`, with permission checked.
    ///
    /// # Errors
    /// `ETXTBSY` for writing to a program that runs.
    pub fn new(location: Location, flags: OpenFlags) -> Result<Arc<VnodeFile>> {
        let writing = match flags.writes() {
            true => Some(Writing::begin(location.vnode())?),
            false => None,
        };
        let cached = location.vnode().cached();
        Ok(Arc::new(VnodeFile {
            told: cached.map_or_else(ErrorMark::default, |pages| pages.errors().mark()),
            location,
            position: Mutex::new(crate::rank::FILE, 0),
            _writing: writing,
        }))
    }

    fn is_directory(&self) -> bool {
        self.location.vnode().kind() == Kind::Directory
    }
}

impl VnodeFile {
    /// Writes the data back before the call returns (`O_SYNC`, `O_DSYNC`, a mount with `sync`).
    #[cold]
    fn settle(&self, flags: OpenFlags) -> Result<()> {
        self.sync(flags.bits() & O_SYNC == O_DSYNC)
    }
}

impl Drop for VnodeFile {
    fn drop(&mut self) {
        self.location.vnode().closed();
    }
}

impl File for VnodeFile {
    fn read(&self, at: Option<u64>, flags: OpenFlags, to: &mut dyn Sink) -> Result<usize> {
        if !flags.reads() {
            return Err(Errno::EBADF);
        }
        let vnode = self.location.vnode();
        if self.is_directory() {
            return Err(Errno::EISDIR);
        }
        let read = |at, to: &mut dyn Sink| match flags.has(O_DIRECT) {
            true => vnode.read_direct(at, to),
            false => vnode.read(at, to),
        };
        let n = match at {
            Some(at) => read(at, to)?,
            None => {
                let mut position = self.position.lock();
                let n = read(*position, to)?;
                *position += n as u64;
                n
            }
        };
        if n > 0 {
            notify::happened(vnode, IN_ACCESS);
            self.location.note_access(flags);
        }
        Ok(n)
    }

    fn write(&self, at: Option<u64>, flags: OpenFlags, from: &mut dyn Source) -> Result<usize> {
        self.write_within(&SizeLimit::none(), at, flags, from)
    }

    fn write_within(
        &self,
        limit: &SizeLimit,
        at: Option<u64>,
        flags: OpenFlags,
        from: &mut dyn Source,
    ) -> Result<usize> {
        if !flags.writes() {
            return Err(Errno::EBADF);
        }
        let clears = !flags.contains(OpenFlags::KEEPS_PRIVILEGE) && from.left() > 0;
        if clears {
            self.location.clear_privilege()?;
        }
        let vnode = self.location.vnode();
        let append = flags.has(O_APPEND);
        let write = |at, from: &mut dyn Source| match flags.has(O_DIRECT) {
            true => vnode.write_direct(limit, at, append, from),
            false => vnode.write_within(limit, at, append, from),
        };
        let n = match at {
            Some(at) => write(at, from)?.0,
            None => {
                let mut position = self.position.lock();
                let (n, end) = write(*position, from)?;
                *position = end;
                n
            }
        };
        if n > 0 {
            if clears {
                // Bits that were set meanwhile were set for other contents. The bytes are written
                // even if this fails.
                let _ = self.location.clear_privilege();
            }
            notify::happened(vnode, IN_MODIFY);
            let mount = self.location.mount().flags();
            if flags.bits() & O_SYNC != 0 || mount.contains(MountFlags::SYNCHRONOUS) {
                self.settle(flags)?;
            }
        }
        Ok(n)
    }

    fn seek(&self, offset: i64, whence: u32) -> Result<u64> {
        let mut position = self.position.lock();
        let vnode = self.location.vnode();
        let base = match whence {
            SEEK_SET => 0,
            SEEK_CUR => *position,
            // The end of a directory has no position of its own.
            SEEK_END if self.is_directory() => return Err(Errno::EINVAL),
            SEEK_END => vnode.attributes()?.size,
            SEEK_DATA | SEEK_HOLE if !self.is_directory() => {
                let from = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
                *position = vnode.seek_data(from, whence == SEEK_HOLE)?;
                return Ok(*position);
            }
            _ => return Err(Errno::EINVAL),
        };
        let to = (base as i64).checked_add(offset).ok_or(Errno::EOVERFLOW)?;
        *position = u64::try_from(to).map_err(|_| Errno::EINVAL)?;
        Ok(*position)
    }

    fn has_readiness(&self) -> bool {
        false
    }

    fn ready_now(&self) -> Option<Ready> {
        Some(Ready::ALWAYS)
    }

    fn list(&self, emit: &mut Emit<'_>) -> Result<()> {
        if !self.is_directory() {
            return Err(Errno::ENOTDIR);
        }
        let vnode = self.location.vnode();
        {
            let mut position = self.position.lock();
            *position = listing::list(vnode, *position, emit)?;
        }
        notify::happened(vnode, IN_ACCESS);
        self.location.note_access(OpenFlags::empty());
        Ok(())
    }

    fn location(&self) -> Option<&Location> {
        Some(&self.location)
    }

    fn attributes(&self) -> Result<Attributes> {
        self.location.attributes()
    }

    fn sync(&self, data_only: bool) -> Result<()> {
        let synced = self.location.vnode().sync(data_only);
        // Reported even if the device has failed in another way, too.
        self.check_written().and(synced)
    }

    fn cached(&self) -> Option<Arc<dyn Cached>> {
        self.location.vnode().cached()
    }

    fn check_written(&self) -> Result<()> {
        match self.cached() {
            Some(pages) => pages.errors().tell(&self.told),
            None => Ok(()),
        }
    }

    fn pager(&self) -> Result<Arc<dyn Pager>> {
        self.location.pager().ok_or(Errno::ENODEV)
    }
}
