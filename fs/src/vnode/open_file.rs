//! The interface of open files: what a descriptor refers to.

use alloc::{sync::Arc, vec::Vec};
use core::any::Any;

use abi::{Errno, Result};
use bitflags::bitflags;
use fbuf::{Sink, Source};
use nucleus::{VirtAddr, task::Watch};
use vm::Pager;

use super::{Attributes, Emit, Kind, Location};
use crate::page_cache::Cached;

bitflags! {
    /// `open` flags in Linux's values, `O_ACCMODE` bits included. (Use the constants of `abi::raw`
    /// to name bits; this type only keeps them apart from other integers.)
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct OpenFlags: u32 { const ALL = !0; }

    /// What is ready: `EPOLL*` = `POLL*` bits of Linux.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Ready: u32 {
        const IN = 0x1;
        const PRI = 0x2;
        const OUT = 0x4;
        const ERR = 0x8;
        const HUP = 0x10;
        const NVAL = 0x20;
        const RDNORM = 0x40;
        const RDBAND = 0x80;
        const WRNORM = 0x100;
        const WRBAND = 0x200;
        const RDHUP = 0x2000;
    }
}

impl OpenFlags {
    /// Whether reading is allowed.
    pub fn reads(self) -> bool {
        matches!(self.bits() & 3, 0 | 2)
    }

    /// Whether writing is allowed.
    pub fn writes(self) -> bool {
        matches!(self.bits() & 3, 1 | 2)
    }

    /// Whether all of Linux's `bit` (`abi::raw::general::O_*`) is set.
    pub fn has(self, bit: u32) -> bool {
        self.bits() & bit == bit
    }
}

/// Whether the owner of an open file can have a signal when it becomes ready (`O_ASYNC`). The first queue
/// that such a file's [`poll`](File::poll) adds is woken for readers, the second for writers; where it has only one, `poll` says which.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asynchronous {
    /// `O_ASYNC` cannot be set.
    Never,
    /// The owner is the one that was named.
    Named,
    /// A terminal: where none was named, this process group is, or the caller if it is 0.
    Foreground(u32),
}

/// An open file. `flags` are those of the open file at the time of the call (`O_NONBLOCK`, `O_APPEND`).
pub trait File: Any + Send + Sync {
    /// Reads at the file's own position, or at `at` (`pread`; `ESPIPE` where there are no positions).
    fn read(&self, at: Option<u64>, flags: OpenFlags, to: &mut dyn Sink) -> Result<usize> {
        let _ = (at, flags, to);
        Err(Errno::EINVAL)
    }

    /// Writes likewise. `EPIPE` makes the caller send SIGPIPE.
    fn write(&self, at: Option<u64>, flags: OpenFlags, from: &mut dyn Source) -> Result<usize> {
        let _ = (at, flags, from);
        Err(Errno::EINVAL)
    }

    /// Moves the position: `whence` as `lseek`.
    fn seek(&self, offset: i64, whence: u32) -> Result<u64> {
        let _ = (offset, whence);
        Err(Errno::ESPIPE)
    }

    /// What is ready now.
    ///
    /// With `watch`, first adds to it every queue that is woken when the answer changes: a task that is about to
    /// sleep is woken by them (`poll`, `select`), or an observer stays with them (`epoll`). A file whose
    /// answer never changes adds none.
    fn poll<'a>(&'a self, watch: Option<&mut dyn Watch<'a>>) -> Ready {
        let _ = watch;
        Ready::IN | Ready::OUT | Ready::RDNORM | Ready::WRNORM
    }

    /// Whether `poll` has anything to tell. `epoll` refuses what is always ready.
    fn has_readiness(&self) -> bool {
        true
    }

    /// What `O_ASYNC` does.
    fn asynchronous(&self) -> Asynchronous {
        Asynchronous::Never
    }

    /// `ioctl`; the argument may be an address in the program.
    fn ioctl(&self, command: u32, argument: VirtAddr) -> Result<usize> {
        let _ = (command, argument);
        Err(Errno::ENOTTY)
    }

    /// Emits directory entries from the file's position on, "." and ".." included, and advances it.
    fn list(&self, emit: &mut Emit<'_>) -> Result<()> {
        let _ = emit;
        Err(Errno::ENOTDIR)
    }

    /// Where it was opened, if it has a name: for `fstat`, `fchdir`, `/proc/PID/fd`.
    fn location(&self) -> Option<&Location> {
        None
    }

    /// Attributes of what has no location (pipes, sockets).
    fn attributes(&self) -> Result<Attributes> {
        Err(Errno::EBADF)
    }

    /// The text of `/proc/PID/fd/N` where there is no location: `pipe:[12]`.
    fn describe(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Further lines of `/proc/PID/fdinfo/N`, each with its newline.
    fn details(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Where the same thing can be opened again (`/proc/PID/fd/N`), where there is no location.
    fn reopen(&self) -> Option<Location> {
        None
    }

    /// What a mapping of it maps, and the highest protection allowed follows from the open flags.
    fn pager(&self) -> Result<Arc<dyn Pager>> {
        Err(Errno::ENODEV)
    }

    /// Writes back what is dirty of it, and waits for that (`fsync`); with `data_only`, without what is not needed to read the content
    /// back (`fdatasync`).
    ///
    /// # Errors
    /// `EINVAL` for what can't be written back; `EIO` also if something that was written since this open file was told last could not be written
    /// back.
    fn sync(&self, data_only: bool) -> Result<()> {
        let vnode = self.location().ok_or(Errno::EINVAL)?.vnode();
        match vnode.kind() {
            Kind::Regular | Kind::Directory | Kind::BlockDevice if data_only => vnode.sync_data(),
            Kind::Regular | Kind::Directory | Kind::BlockDevice => vnode.sync(),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Its pages, if they are pages of a disk that are kept in memory.
    fn cached(&self) -> Option<Arc<dyn Cached>> {
        None
    }

    /// Whether all that was written back since this open file was told last could be.
    ///
    /// # Errors
    /// `EIO` if not.
    fn check_written(&self) -> Result<()> {
        Ok(())
    }

    /// The last descriptor that refers to this open file in one table was closed (`flush` of Linux);
    /// the drop of the `Arc` is the release.
    fn closed(&self) {}
}
