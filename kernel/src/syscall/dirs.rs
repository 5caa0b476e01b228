//! Where a process is, and what is mounted: `chdir`, `chroot`, `getcwd`, `umask`, `mount`.

use abi::{
    Errno, Result,
    raw::general::{
        __NR_chdir, __NR_chroot, __NR_fchdir, __NR_getcwd, __NR_mount, __NR_umask, __NR_umount2,
        AT_FDCWD, AT_SYMLINK_NOFOLLOW, CAP_SYS_CHROOT, MNT_DETACH, MNT_EXPIRE, MNT_FORCE, MS_BIND,
        MS_MOVE, MS_PRIVATE, MS_RDONLY, MS_REC, MS_REMOUNT, MS_SHARED, MS_SLAVE, MS_UNBINDABLE,
        UMOUNT_NOFOLLOW, X_OK,
    },
};
use alloc::vec::Vec;
use fs::{Kind, Location};
use nucleus::{PAGE_SIZE, VirtAddr, frame, user};

use super::{
    Call, Entry, FlagSet, flag_set,
    path::{self, check_flags},
};
use crate::mounts;

const UMOUNT_FLAGS: FlagSet = flag_set!(
    "flags",
    [MNT_FORCE, MNT_DETACH, MNT_EXPIRE, UMOUNT_NOFOLLOW],
    EINVAL
);

/// The calls of this module.
pub const CALLS: &[Entry] = &[
    Entry::new(__NR_chdir, "chdir", chdir),
    Entry::new(__NR_fchdir, "fchdir", fchdir),
    Entry::new(__NR_chroot, "chroot", chroot),
    Entry::new(__NR_getcwd, "getcwd", getcwd),
    Entry::new(__NR_umask, "umask", umask),
    Entry::new(__NR_mount, "mount", mount),
    Entry::new(__NR_umount2, "umount2", umount).flags(&[&UMOUNT_FLAGS]),
];

/// A directory that the caller may enter.
fn enterable(call: &Call<'_>, place: &Location) -> Result<()> {
    if place.vnode().kind() != Kind::Directory {
        return Err(Errno::ENOTDIR);
    }
    place.vnode().access(&call.credentials().fs, X_OK)
}

pub(super) fn chdir(call: &mut Call<'_>) -> Result<usize> {
    let place = path::place(call, AT_FDCWD, call.address(0), 0)?;
    enterable(call, &place)?;
    call.fs().set_cwd(place);
    Ok(0)
}

pub(super) fn fchdir(call: &mut Call<'_>) -> Result<usize> {
    let open = call.files().get(call.int(0))?;
    let place = open.location().ok_or(Errno::ENOTDIR)?;
    enterable(call, place)?;
    call.fs().set_cwd(place.clone());
    Ok(0)
}

pub(super) fn chroot(call: &mut Call<'_>) -> Result<usize> {
    let place = path::place(call, AT_FDCWD, call.address(0), 0)?;
    enterable(call, &place)?;
    if !call.credentials().may(CAP_SYS_CHROOT) {
        return Err(Errno::EPERM);
    }
    call.fs().set_root(place);
    Ok(0)
}

pub(super) fn getcwd(call: &mut Call<'_>) -> Result<usize> {
    let (to, size) = (call.address(0), call.size(1));
    let cwd = call.fs().cwd();
    if cwd.is_removed() {
        return Err(Errno::ENOENT);
    }
    let mut path = cwd.path(&call.fs().root());
    path.push(0);
    if path.len() > PAGE_SIZE {
        return Err(Errno::ENAMETOOLONG);
    }
    if path.len() > size {
        return Err(Errno::ERANGE);
    }
    user::copy_out(to, &path).map_err(|_| Errno::EFAULT)?;
    Ok(path.len())
}

pub(super) fn umask(call: &mut Call<'_>) -> Result<usize> {
    Ok(call.fs().set_umask(call.unsigned(0)) as usize)
}

/// A string of `mount` that may be missing.
fn optional_string(at: VirtAddr) -> Result<Vec<u8>> {
    if at.0 == 0 {
        return Ok(Vec::new());
    }
    user::copy_in_string(at, PAGE_SIZE - 1)
        .map_err(|_| Errno::EFAULT)?
        .ok_or(Errno::EINVAL)
}

/// What `/proc/mounts` shows as options.
fn options(flags: u32, data: &[u8]) -> Vec<u8> {
    let mut options = if flags & MS_RDONLY != 0 {
        b"ro".to_vec()
    } else {
        b"rw".to_vec()
    };
    let data = data.split(|&b| b == b',').filter(|word| {
        // The flag decides; words that contradict it would only mislead.
        !word.is_empty() && *word != b"ro" && *word != b"rw"
    });
    for word in data {
        options.push(b',');
        options.extend_from_slice(word);
    }
    options
}

fn mount(call: &mut Call<'_>) -> Result<usize> {
    /// The upper half that old programs set.
    const MS_MGC_VAL: u32 = 0xc0ed_0000;
    let mut flags = call.unsigned(3);
    if flags & 0xffff_0000 == MS_MGC_VAL {
        flags &= 0xffff;
    }
    let fstype = optional_string(call.address(2))?;
    let source = optional_string(call.address(0))?;
    let data = optional_string(call.address(4))?;
    let at = path::place(call, AT_FDCWD, call.address(1), 0)?;
    if !call.credentials().fs.is_root() {
        return Err(Errno::EPERM);
    }
    if frame::is_scarce() {
        return Err(Errno::ENOMEM);
    }
    let namespace = mounts::namespace();
    let options = options(flags, &data);
    if flags & MS_REMOUNT != 0 {
        namespace.remount(&at, &options)?;
        return Ok(0);
    }
    if flags & MS_BIND != 0 {
        let from = path::From::new(call, AT_FDCWD, &source)?;
        let from = from.walk().resolve(&source, true)?;
        let fstype = from.mount().fstype();
        namespace.mount(&at, from.vnode().clone(), fstype, &source, &options)?;
        return Ok(0);
    }
    if flags & (MS_SHARED | MS_PRIVATE | MS_SLAVE | MS_UNBINDABLE) != 0 {
        // There is one namespace: nothing to pass on to, nothing to keep private.
        check_flags(
            flags,
            MS_SHARED
                | MS_PRIVATE
                | MS_SLAVE
                | MS_UNBINDABLE
                | MS_REC
                | abi::raw::general::MS_SILENT,
        )?;
        return Ok(0);
    }
    if flags & MS_MOVE != 0 {
        return Err(Errno::EINVAL);
    }
    let (fstype, root) = mounts::make(&fstype, &source, &data)?;
    namespace.mount(&at, root, fstype, &source, &options)?;
    Ok(0)
}

fn umount(call: &mut Call<'_>) -> Result<usize> {
    let flags = call.flags(1, &UMOUNT_FLAGS)?;
    if !call.credentials().fs.is_root() {
        return Err(Errno::EPERM);
    }
    if flags & MNT_EXPIRE != 0 {
        return Err(Errno::EINVAL);
    }
    let how = if flags & UMOUNT_NOFOLLOW != 0 {
        AT_SYMLINK_NOFOLLOW
    } else {
        0
    };
    let at = path::place(call, AT_FDCWD, call.address(0), how)?;
    mounts::namespace().unmount(&at, flags & MNT_DETACH != 0)?;
    Ok(0)
}
