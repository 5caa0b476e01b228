//! Open file descriptions.

use alloc::{boxed::Box, sync::Arc};
use core::{
    any::Any,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use abi::{
    Errno, Result,
    raw::general::{
        IN_CLOSE_NOWRITE, IN_CLOSE_WRITE, IN_OPEN, O_APPEND, O_CLOEXEC, O_CREAT, O_DIRECT, O_EXCL,
        O_NOATIME, O_NOCTTY, O_NONBLOCK, O_PATH, O_TRUNC,
    },
};
use fs::{Attributes, File, Location, OpenFlags, notify};
use nucleus::{
    Slots,
    sync::{OnceBox, Rank, SpinLock},
};

use vm::account::{self, Charge, Kind};

use super::locks;

/// What an open file description is charged with, in bytes: itself, and a file that goes with it.
pub(super) const FILE_BYTES: usize = 1024;
/// Flags that `F_SETFL` changes.
const SETTABLE: u32 = O_APPEND | O_NONBLOCK | O_NOATIME | O_DIRECT;
/// Flags that act only while a file is opened; `F_GETFL` does not show them.
const ONLY_AT_OPEN: u32 = O_CREAT | O_EXCL | O_NOCTTY | O_TRUNC | O_CLOEXEC;

/// An object attached to an open file description without keeping it: it is told when the
/// description goes away, before the file does (the watches of `epoll`).
pub trait Attached: Any + Send + Sync {
    /// The description is gone. Sleeping locks may be taken.
    fn released(&self);
}

/// The objects attached to a description, which they share with it.
pub type AttachedList = SpinLock<Slots<Arc<dyn Attached>>>;

/// An open file description: a file with its status flags. Descriptors that came from one `open` by
/// `dup` or `fork` share it. It has a cache line of its own: other CPUs' calls on other files do
/// not slow down those on this one.
pub struct OpenFile {
    file: Arc<dyn File>,
    flags: AtomicU32,
    /// Whose locks end when this is dropped.
    ownership: locks::Ownership,
    /// Empty until something is attached.
    attached: OnceBox<Arc<AttachedList>>,
    rare: OnceBox<Rare>,
}

// With the two counts of its `Arc`.
const _: () = assert!(
    nucleus::heap::size_of_block(size_of::<OpenFile>() + 16) == 64,
    "an open file has no cache line of its own"
);

/// Fields that few descriptions use.
#[derive(Default)]
pub(in crate::process) struct Rare {
    /// The owner that gets SIGIO; empty until one is named.
    pub sigio: OnceBox<Arc<dyn Attached>>,
    /// Empty until it has had a high descriptor: low ones are charged to their table.
    charge: OnceBox<Charge>,
}

impl OpenFile {
    /// A description of `file`, opened with `flags`.
    pub fn new(file: Arc<dyn File>, flags: OpenFlags) -> Arc<OpenFile> {
        if let Some(place) = file.location()
            && !flags.has(O_PATH)
        {
            notify::happened(place.vnode(), IN_OPEN);
        }
        Arc::new(OpenFile {
            file,
            flags: AtomicU32::new(flags.bits() & !ONLY_AT_OPEN),
            ownership: locks::Ownership::new(),
            attached: OnceBox::new(),
            rare: OnceBox::new(),
        })
    }

    /// Charges it to the current process, unless it is charged.
    #[cold]
    pub(super) fn charge(&self) {
        let is_charged = self
            .rare
            .get()
            .is_some_and(|rare| rare.charge.get().is_some());
        if !is_charged && let Some(account) = account::current() {
            let charge = || Box::new(account.charge(Kind::OpenFiles, 1, FILE_BYTES));
            self.rare().charge.get_or_insert(charge);
        }
    }

    /// Returns the rarely used fields, and allocates them if they are absent.
    pub(in crate::process) fn rare(&self) -> &Rare {
        self.rare.get_or_insert(Box::default)
    }

    /// Returns the owner that gets SIGIO, if one was ever named.
    pub(in crate::process) fn named_owner(&self) -> Option<&Arc<dyn Attached>> {
        self.rare.get()?.sigio.get()
    }

    #[inline]
    pub fn file(&self) -> &Arc<dyn File> {
        &self.file
    }

    /// Returns the file as one of type `T`, if it is.
    #[inline]
    pub fn downcast<T: File>(&self) -> Option<&T> {
        (&*self.file as &dyn Any).downcast_ref()
    }

    #[inline]
    pub fn flags(&self) -> OpenFlags {
        OpenFlags::from_bits_retain(self.flags.load(Relaxed))
    }

    /// `F_SETFL`: changes those flags that can change.
    pub fn set_flags(&self, flags: u32) {
        let _ = self.flags.fetch_update(Relaxed, Relaxed, |old| {
            Some(old & !SETTABLE | flags & SETTABLE)
        });
    }

    /// `FIONBIO`: sets or clears one flag.
    pub fn set_flag(&self, flag: u32, on: bool) {
        if on {
            self.flags.fetch_or(flag, Relaxed);
        } else {
            self.flags.fetch_and(!flag, Relaxed);
        }
    }

    /// Whether it is only a name (`O_PATH`).
    pub fn is_path(&self) -> bool {
        self.flags().has(O_PATH)
    }

    /// The file, for reading.
    ///
    /// # Errors
    /// `EBADF` if it is not open for that.
    #[inline]
    pub fn readable(&self) -> Result<&dyn File> {
        self.usable(OpenFlags::reads)
    }

    /// The file, for writing.
    ///
    /// # Errors
    /// `EBADF` if it is not open for that.
    #[inline]
    pub fn writable(&self) -> Result<&dyn File> {
        self.usable(OpenFlags::writes)
    }

    #[inline]
    fn usable(&self, is_allowed: impl FnOnce(OpenFlags) -> bool) -> Result<&dyn File> {
        let flags = self.flags();
        match is_allowed(flags) && !flags.has(O_PATH) {
            true => Ok(&*self.file),
            false => Err(Errno::EBADF),
        }
    }

    /// The place it was opened at.
    pub fn location(&self) -> Option<&Location> {
        self.file.location()
    }

    /// Returns the attributes of the place, or of a file without one.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn attributes(&self) -> Result<Attributes> {
        match self.location() {
            Some(place) => place.attributes(),
            None => self.file.attributes(),
        }
    }

    /// Returns the device and inode of the file.
    ///
    /// # Errors
    /// Those of the file system.
    pub(super) fn identity(&self) -> Result<(u64, u64)> {
        if let Some(place) = self.location() {
            return place.vnode().identity();
        }
        let attributes = self.file.attributes()?;
        Ok((attributes.device, attributes.inode))
    }

    /// Returns this description as an owner of locks.
    pub(super) fn ownership(&self) -> &locks::Ownership {
        &self.ownership
    }

    /// Returns the list of what is told when the description goes away.
    pub fn attached(&self) -> &Arc<AttachedList> {
        self.attached
            .get_or_insert(|| Box::new(Arc::new(SpinLock::new(Rank::Leaf, Slots::new()))))
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if let Some(place) = self.file.location()
            && !self.is_path()
        {
            let mask = match self.flags().writes() {
                true => IN_CLOSE_WRITE,
                false => IN_CLOSE_NOWRITE,
            };
            notify::happened(place.vnode(), mask);
        }
        locks::release_all(&self.ownership, || self.identity());
        if let Some(sigio) = self.named_owner() {
            sigio.released();
        }
        if let Some(attached) = self.attached.take() {
            let mut at = 0;
            while attached.lock().get(at).is_some() {
                let what = attached.lock().remove(at);
                if let Some(what) = what {
                    what.released();
                }
                at += 1;
            }
        }
    }
}

/// Has `what` told when the description of this list goes away. Returns its place in the list.
///
/// # Errors
/// `ENOMEM`.
pub fn attach(list: &AttachedList, what: Arc<dyn Attached>) -> Result<usize> {
    Ok(Slots::add_with(what, |what, spare| {
        list.lock().add(what, spare)
    })?)
}

/// Calls `f` with each object of type `T` of this list, until one gives false. Returns whether none
/// did. The list is not locked meanwhile.
pub fn each_attached<T: Attached>(list: &AttachedList, mut f: impl FnMut(&T) -> bool) -> bool {
    let mut at = 0;
    loop {
        let what = match list.lock().get(at) {
            Some(what) => what.cloned(),
            None => return true,
        };
        at += 1;
        let any = what.as_deref().map(|what| what as &dyn Any);
        if let Some(what) = any.and_then(|any| any.downcast_ref())
            && !f(what)
        {
            return false;
        }
    }
}
