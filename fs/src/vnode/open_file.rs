//! The interface of open files: what a descriptor refers to.
#![allow(missing_docs, reason = "flags with Linux's names")]

use alloc::{sync::Arc, vec::Vec};
use core::any::Any;

use abi::{Errno, Result};
use bitflags::bitflags;
use fbuf::{Sink, Source};
use nucleus::{VirtAddr, task::Watch};
use vm::Pager;

use super::{Attributes, Emit, Kind, Location, SizeLimit};
use crate::page_cache::Cached;

bitflags! {
    /// The `open` flags, in Linux's values, `O_ACCMODE` bits included. The constants of `abi::raw`
    /// name the bits; this type only keeps them apart from other integers.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct OpenFlags: u32 {
        /// For one write, no flag of `open`: the writer may leave set-id bits in place
        /// (`CAP_FSETID`).
        const KEEPS_PRIVILEGE = 1 << 31;
        const ALL = !0;
    }

    /// Readiness: the `EPOLL*` and `POLL*` bits of Linux.
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

impl Ready {
    /// The readiness of a file that never makes a caller wait.
    pub const ALWAYS: Ready = Ready::IN
        .union(Ready::OUT)
        .union(Ready::RDNORM)
        .union(Ready::WRNORM);

    /// Returns what is ready of a file that can be read, or written, without waiting.
    #[inline]
    pub fn of(readable: bool, writable: bool) -> Ready {
        let mut ready = Ready::empty();
        ready.set(Ready::IN | Ready::RDNORM, readable);
        ready.set(Ready::OUT | Ready::WRNORM, writable);
        ready
    }
}

impl OpenFlags {
    /// Tells whether reading is allowed.
    pub fn reads(self) -> bool {
        matches!(self.bits() & 3, 0 | 2)
    }

    /// Tells whether writing is allowed.
    pub fn writes(self) -> bool {
        matches!(self.bits() & 3, 1 | 2)
    }

    /// Tells whether all of Linux's `bit` (`abi::raw::general::O_*`) is set.
    pub fn has(self, bit: u32) -> bool {
        self.bits() & bit == bit
    }
}

/// Whether the owner of an open file can get a signal when it becomes ready (`O_ASYNC`). The first
/// queue that such a file's [`poll`](File::poll) adds wakes readers, the second writers; where it
/// has only one, `poll` says which.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asynchronous {
    /// `O_ASYNC` cannot be set.
    Never,
    /// The owner is the one that `F_SETOWN` named.
    Named,
    /// A terminal: by default the owner is this process group, or the caller if it is 0.
    Foreground(u32),
}

/// An open file. `flags` are those of the open file at the time of the call (`O_NONBLOCK`,
/// `O_APPEND`).
#[allow(unused_variables, reason = "default bodies do nothing")]
pub trait File: Any + Send + Sync {
    /// Reads at the file's own position, or at `at` (`pread`; `ESPIPE` where there are no
    /// positions).
    fn read(&self, at: Option<u64>, flags: OpenFlags, to: &mut dyn Sink) -> Result<usize> {
        Err(Errno::EINVAL)
    }

    /// Writes likewise. A file that returns `EPIPE` has sent SIGPIPE.
    fn write(&self, at: Option<u64>, flags: OpenFlags, from: &mut dyn Source) -> Result<usize> {
        Err(Errno::EINVAL)
    }

    /// Writes likewise, but makes a file of a file system no larger than the limit.
    fn write_within(
        &self,
        limit: &SizeLimit,
        at: Option<u64>,
        flags: OpenFlags,
        from: &mut dyn Source,
    ) -> Result<usize> {
        self.write(at, flags, from)
    }

    /// Moves the position: `whence` as `lseek`.
    fn seek(&self, offset: i64, whence: u32) -> Result<u64> {
        Err(Errno::ESPIPE)
    }

    /// Returns what is ready now.
    ///
    /// With `watch`, first adds every queue that wakes when the answer changes: a task that is
    /// about to sleep waits on them (`poll`, `select`), or an observer stays with them (`epoll`). A
    /// file whose answer never changes adds none.
    fn poll<'a>(&'a self, watch: Option<&mut dyn Watch<'a>>) -> Ready {
        Ready::ALWAYS
    }

    /// Returns what [`poll`](File::poll) would, without a watch, if that takes neither a lock nor a
    /// long time: a lock is held that may be taken with spin locks.
    #[inline]
    fn ready_now(&self) -> Option<Ready> {
        None
    }

    /// Tells whether `poll` has anything to report. `epoll` refuses files that are always ready.
    fn has_readiness(&self) -> bool {
        true
    }

    /// Returns the effect of `O_ASYNC`.
    fn asynchronous(&self) -> Asynchronous {
        Asynchronous::Never
    }

    /// Executes an `ioctl`; the argument may be an address in the program.
    fn ioctl(&self, command: u32, argument: VirtAddr) -> Result<usize> {
        Err(Errno::ENOTTY)
    }

    /// As [`ioctl`](File::ioctl), for a file that waits or not, as the flags say.
    fn control(&self, flags: OpenFlags, command: u32, argument: VirtAddr) -> Result<usize> {
        self.ioctl(command, argument)
    }

    /// Emits directory entries from the file's position on, "." and ".." included, and advances it.
    fn list(&self, emit: &mut Emit<'_>) -> Result<()> {
        Err(Errno::ENOTDIR)
    }

    /// Returns where it was opened, if it has a name: for `fstat`, `fchdir`, `/proc/PID/fd`.
    fn location(&self) -> Option<&Location> {
        None
    }

    /// Returns the attributes of a file without a location (pipes, sockets).
    fn attributes(&self) -> Result<Attributes> {
        Ok(Attributes::anonymous())
    }

    /// Whether `splice` and `sendfile` move bytes from and to it. On Linux nothing that is only an
    /// event has it.
    fn splices(&self) -> bool {
        true
    }

    /// Whether `splice` moves bytes from it to a pipe, if not as [`splices`](File::splices) says.
    fn splices_out(&self) -> bool {
        self.splices()
    }

    /// Returns the text of `/proc/PID/fd/N` of a file without a location: `pipe:[12]`.
    fn describe(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Passes on further lines of `/proc/PID/fdinfo/N`, each with its newline.
    fn details(&self, _: &mut dyn FnMut(&[u8])) {}

    /// Returns where the same object can be opened again (`/proc/PID/fd/N`), if it has no location.
    fn reopen(&self) -> Option<Location> {
        None
    }

    /// Returns the pager for mappings of it; the open flags limit their protection.
    fn pager(&self) -> Result<Arc<dyn Pager>> {
        Err(Errno::ENODEV)
    }

    /// Writes its dirty data back, and waits for that (`fsync`); with `data_only`, without
    /// attributes that are not needed to read the data back (`fdatasync`).
    ///
    /// # Errors
    /// `EINVAL` for files that can't be written back; `EIO` also if data that was written since the
    /// last report to this open file could not be written back.
    fn sync(&self, data_only: bool) -> Result<()> {
        let vnode = self.location().ok_or(Errno::EINVAL)?.vnode();
        match vnode.kind() {
            Kind::Regular | Kind::Directory | Kind::BlockDevice => vnode.sync(data_only),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Returns its pages in the page cache, if it has any there.
    fn cached(&self) -> Option<Arc<dyn Cached>> {
        None
    }

    /// Checks that all writeback since the last report to this open file has succeeded.
    ///
    /// # Errors
    /// `EIO` if not.
    fn check_written(&self) -> Result<()> {
        Ok(())
    }

    /// Called when the last descriptor in one table that refers to this open file was closed
    /// (`flush` of Linux); the drop of the `Arc` is the release.
    fn closed(&self) {}

    /// Returns what a thread waits for that has dropped the last `Arc` (`SO_LINGER`).
    fn lingers(&self) -> Option<Arc<dyn Linger>> {
        None
    }
}

/// What goes on behind the end of an open file.
pub trait Linger: Send + Sync {
    /// Waits for its end, unless the file is still open. A signal ends the wait.
    fn wait(&self);
}
