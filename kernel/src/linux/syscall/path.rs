//! From a program's `dirfd` and path to a place.

use alloc::{sync::Arc, vec::Vec};

use abi::{Errno, Result, raw::general as raw};
use fs::{Attributes, Location, Walk, namespace::PATH_MAX};
use nucleus::{VirtAddr, user};

use super::Call;
use crate::process::{Credentials, Places, files::OpenFile};

/// Reads a path, without its NUL.
///
/// # Errors
/// `EFAULT`, `ENAMETOOLONG`.
pub fn read(at: VirtAddr) -> Result<Vec<u8>> {
    user::copy_in_string(at, PATH_MAX - 1)?.ok_or(Errno::ENAMETOOLONG)
}

/// Where a walk starts, and as whom: what a [`Walk`] borrows. It counts no reference that the CPUs
/// of other processes count.
pub struct From<'c> {
    places: Arc<Places>,
    start: Start,
    who: &'c Credentials,
}

/// Where relative paths begin.
enum Start {
    Cwd,
    Directory(Arc<OpenFile>),
}

impl<'c> From<'c> {
    /// For `path` relative to `dirfd`, which is not looked at if the path is absolute.
    ///
    /// # Errors
    /// `EBADF`, `ENOTDIR` for a descriptor without a place.
    pub fn new(call: &'c Call<'_>, dirfd: i32, path: &[u8]) -> Result<From<'c>> {
        let start = if path.first() == Some(&b'/') || dirfd == raw::AT_FDCWD {
            Start::Cwd
        } else {
            let open = call.files().get(dirfd)?;
            open.location().ok_or(Errno::ENOTDIR)?;
            Start::Directory(open)
        };
        Ok(From {
            places: call.fs().places(),
            start,
            who: call.credentials(),
        })
    }

    /// The walk.
    pub fn walk(&self) -> Walk<'_> {
        let start = match &self.start {
            Start::Cwd => None,
            Start::Directory(open) => open.location(),
        };
        Walk {
            root: &self.places.root,
            start: start.unwrap_or(&self.places.cwd),
            who: &self.who.fs,
        }
    }
}

/// A directory's descriptor, or `AT_FDCWD`, and where a path is that begins there.
pub type At = (i32, VirtAddr);

/// The file that a `*at` call with `AT_EMPTY_PATH` works on.
pub enum Target {
    /// A place found by its path.
    Place(Location),
    /// The file of a descriptor.
    File(Arc<OpenFile>),
}

impl Target {
    /// The place; the file's own if it has one.
    ///
    /// # Errors
    /// `EBADF` for a file without a place.
    pub fn place(&self) -> Result<&Location> {
        match self {
            Target::Place(place) => Ok(place),
            Target::File(open) => open.location().ok_or(Errno::EBADF),
        }
    }
}

/// Returns the place that the path in argument `n` names, from the working directory on.
///
/// # Errors
/// As [`target`].
pub fn named(call: &Call<'_>, n: usize) -> Result<Location> {
    place(call, raw::AT_FDCWD, call.address(n), 0)
}

/// What the arguments of a `*at` call name.
enum Named {
    /// A path to walk.
    Path(Vec<u8>),
    /// By `AT_EMPTY_PATH`: the working directory, or the file of a descriptor.
    Cwd,
    File(Arc<OpenFile>),
}

/// Reads the path, and looks up the file that `AT_EMPTY_PATH` means; walks no path.
///
/// # Errors
/// Those of [`read`], and `EBADF`.
#[inline(always)]
fn read_named(call: &Call<'_>, dirfd: i32, path: VirtAddr, flags: u32) -> Result<Named> {
    let path = read(path)?;
    Ok(match path.is_empty() && flags & raw::AT_EMPTY_PATH != 0 {
        false => Named::Path(path),
        true if dirfd == raw::AT_FDCWD => Named::Cwd,
        true => Named::File(call.files().get(dirfd)?),
    })
}

/// Whether a symbolic link at the end is followed.
fn follows(flags: u32) -> bool {
    flags & raw::AT_SYMLINK_NOFOLLOW == 0
}

/// Returns the file that `dirfd`, the path at `path` and `AT_SYMLINK_NOFOLLOW` and `AT_EMPTY_PATH`
/// in `flags` name.
///
/// # Errors
/// Those of [`read`], [`From::new`] and [`Walk::resolve`].
pub fn target(call: &Call<'_>, dirfd: i32, path: VirtAddr, flags: u32) -> Result<Target> {
    Ok(match read_named(call, dirfd, path, flags)? {
        Named::Cwd => Target::Place(call.fs().cwd()),
        Named::File(open) => Target::File(open),
        Named::Path(path) => {
            let from = From::new(call, dirfd, &path)?;
            Target::Place(from.walk().resolve(&path, follows(flags))?)
        }
    })
}

/// Returns the attributes of what [`target`] finds.
///
/// # Errors
/// Those of [`target`], and of the file system.
pub fn attributes(call: &Call<'_>, dirfd: i32, path: VirtAddr, flags: u32) -> Result<Attributes> {
    match read_named(call, dirfd, path, flags)? {
        Named::Cwd => call.fs().places().cwd.attributes(),
        Named::File(open) => open.attributes(),
        Named::Path(path) => {
            let from = From::new(call, dirfd, &path)?;
            from.walk().attributes(&path, follows(flags))
        }
    }
}

/// Returns the [`target`] of calls that need a place.
///
/// # Errors
/// Those of [`target`], and `EBADF` for a descriptor without a place.
pub fn place(call: &Call<'_>, dirfd: i32, path: VirtAddr, flags: u32) -> Result<Location> {
    match target(call, dirfd, path, flags)? {
        Target::Place(place) => Ok(place),
        Target::File(open) => open.location().cloned().ok_or(Errno::EBADF),
    }
}

/// `EINVAL` if `flags` has bits that are not in `known`.
///
/// # Errors
/// `EINVAL`.
pub fn check_flags(flags: u32, known: u32) -> Result<()> {
    if flags & !known != 0 {
        return Err(Errno::EINVAL);
    }
    Ok(())
}
