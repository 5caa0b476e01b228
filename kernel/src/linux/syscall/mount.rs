//! Mounts: `mount`, `umount2`, `pivot_root`.

use alloc::vec::Vec;

use abi::{Errno, Result, raw::general as raw};
use fs::{Kind, Location, MountFlags, MountRequest};
use nucleus::{PAGE_SIZE, VirtAddr, user};

use super::{Call, FlagSet, SystemCall, call, flag_set, note_unsupported, path, path::check_flags};
use crate::{
    mounts::{self, MountSource},
    process::follow_root,
};

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_mount, mount)
        .flags(&[&MOUNT_FLAGS])
        .note("there is one namespace of mounts, so that `MS_SHARED` and its like change nothing"),
    call!(__NR_umount2, umount)
        .flags(&[&UMOUNT_FLAGS])
        .note("a look between two `MNT_EXPIRE` does not count as use"),
    call!(__NR_pivot_root, pivot_root),
];

const MOUNT_FLAGS: FlagSet = flag_set!(
    "mountflags",
    [
        raw::MS_RDONLY,
        raw::MS_NOSUID,
        raw::MS_NODEV,
        raw::MS_NOEXEC,
        raw::MS_SYNCHRONOUS,
        raw::MS_REMOUNT,
        raw::MS_MANDLOCK,
        raw::MS_DIRSYNC,
        raw::MS_NOSYMFOLLOW,
        raw::MS_NOATIME,
        raw::MS_NODIRATIME,
        raw::MS_BIND,
        raw::MS_MOVE,
        raw::MS_REC,
        raw::MS_SILENT,
        raw::MS_POSIXACL,
        raw::MS_UNBINDABLE,
        raw::MS_PRIVATE,
        raw::MS_SLAVE,
        raw::MS_SHARED,
        raw::MS_RELATIME,
        raw::MS_I_VERSION,
        raw::MS_STRICTATIME,
        raw::MS_LAZYTIME
    ],
    EINVAL
);
const UMOUNT_FLAGS: FlagSet = flag_set!(
    "flags",
    [
        raw::MNT_FORCE,
        raw::MNT_DETACH,
        raw::MNT_EXPIRE,
        raw::UMOUNT_NOFOLLOW
    ],
    EINVAL
);

/// A string of `mount` that may be missing.
fn optional_string(at: VirtAddr) -> Result<Vec<u8>> {
    if at.0 == 0 {
        return Ok(Vec::new());
    }
    user::copy_in_string(at, PAGE_SIZE - 1)?.ok_or(Errno::EINVAL)
}

/// Translates the `flags` of `mount` for the mount, which had `old` if it exists already.
fn mount_flags(flags: u32, old: Option<MountFlags>) -> MountFlags {
    let times = raw::MS_NOATIME | raw::MS_NODIRATIME | raw::MS_RELATIME | raw::MS_STRICTATIME;
    let mut new = MountFlags::from_bits_truncate(flags);
    match old {
        // How reading is noted stays as it is unless something is said about it.
        Some(old) if flags & times == 0 => {
            new |= old & MountFlags::from_bits_truncate(times);
        }
        _ if flags & raw::MS_STRICTATIME != 0 => {
            new -= MountFlags::NO_ACCESS_TIMES | MountFlags::RELATIVE_ACCESS_TIMES;
        }
        _ if flags & raw::MS_NOATIME == 0 => new |= MountFlags::RELATIVE_ACCESS_TIMES,
        _ => {}
    }
    new
}

/// The words of `data` that are the file system's own: flags have come as flags.
fn own_options(data: &[u8]) -> Vec<u8> {
    let words = data.split(|&byte| byte == b',');
    let of_mount = |word: &&[u8]| word.is_empty() || *word == b"ro" || *word == b"rw";
    let own: Vec<&[u8]> = words.filter(|word| !of_mount(word)).collect();
    own.join(&b',')
}

fn mount(call: &mut Call<'_>) -> Result<usize> {
    /// The upper half that old programs set.
    const MS_MGC_VAL: u64 = 0xc0ed_0000;
    let mut flags = call.args[3];
    if flags & 0xffff_0000 == MS_MGC_VAL {
        flags &= 0xffff;
    }
    let flags = MOUNT_FLAGS.check(call.caller(), flags)? as u32;
    let fstype = optional_string(call.address(2))?;
    let source = optional_string(call.address(0))?;
    let data = optional_string(call.address(4))?;
    let at = path::named(call, 1)?;
    if !call.credentials().fs.is_root() {
        return Err(Errno::EPERM);
    }
    call.takes_memory()?;
    let namespace = mounts::namespace();
    let options = own_options(&data);
    let from = |source: &[u8]| -> Result<Location> {
        path::From::new(call, raw::AT_FDCWD, source)?
            .walk()
            .resolve(source, true)
    };
    if flags & raw::MS_REMOUNT != 0 {
        let new = mount_flags(flags, Some(at.mount().flags()));
        let options = (flags & raw::MS_BIND == 0).then_some(&options[..]);
        namespace.remount(&at, new, options)?;
    } else if flags & raw::MS_BIND != 0 {
        namespace.bind(&at, &from(&source)?, flags & raw::MS_REC != 0)?;
    } else if flags & (raw::MS_SHARED | raw::MS_PRIVATE | raw::MS_SLAVE | raw::MS_UNBINDABLE) != 0 {
        // There is one namespace: nothing to pass on to, nothing to keep private.
        let kinds = raw::MS_SHARED | raw::MS_PRIVATE | raw::MS_SLAVE | raw::MS_UNBINDABLE;
        check_flags(flags, kinds | raw::MS_REC | raw::MS_SILENT)?;
        if (flags & kinds).count_ones() != 1 || !at.is_mount_root() {
            return Err(Errno::EINVAL);
        }
    } else if flags & raw::MS_MOVE != 0 {
        namespace.move_mount(&from(&source)?, &at)?;
    } else {
        let wanted = MountSource {
            source: &source,
            device: 0,
            options: &options,
            read_only: flags & raw::MS_RDONLY != 0,
        };
        let from = path::From::new(call, raw::AT_FDCWD, &source)?;
        let made = mounts::make(&fstype, wanted, &from.walk());
        if matches!(made, Err(Errno::ENODEV)) {
            let mut name = [0; 8];
            let len = fstype.len().min(name.len());
            name[..len].copy_from_slice(&fstype[..len]);
            let name = u64::from_le_bytes(name);
            note_unsupported(call.caller(), "filesystemtype", name);
        }
        let (fstype, root) = made?;
        let shown: &[u8] = if source.is_empty() { b"none" } else { &source };
        let how = MountRequest {
            fstype,
            source: shown,
            flags: mount_flags(flags, None),
            options: &options,
        };
        namespace.mount(&at, root, &how)?;
    }
    Ok(0)
}

fn umount(call: &mut Call<'_>) -> Result<usize> {
    let flags = call.flags(1, &UMOUNT_FLAGS)?;
    if !call.credentials().fs.is_root() {
        return Err(Errno::EPERM);
    }
    let how = if flags & raw::UMOUNT_NOFOLLOW != 0 {
        raw::AT_SYMLINK_NOFOLLOW
    } else {
        0
    };
    let at = path::place(call, raw::AT_FDCWD, call.address(0), how)?;
    let namespace = mounts::namespace();
    if flags & raw::MNT_EXPIRE != 0 {
        if flags & (raw::MNT_FORCE | raw::MNT_DETACH) != 0 {
            return Err(Errno::EINVAL);
        }
        namespace.expire(&at)?;
    } else {
        namespace.unmount(&at, flags & raw::MNT_DETACH != 0)?;
    }
    Ok(0)
}

fn pivot_root(call: &mut Call<'_>) -> Result<usize> {
    if !call.credentials().fs.is_root() {
        return Err(Errno::EPERM);
    }
    let new = path::named(call, 0)?;
    let put = path::named(call, 1)?;
    if new.vnode().kind() != Kind::Directory || put.vnode().kind() != Kind::Directory {
        return Err(Errno::ENOTDIR);
    }
    let old = mounts::namespace().pivot(&new, &put)?;
    // Processes with the old root as root or working directory move along.
    follow_root(&old, &new);
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_times_are_relative_unless_said_otherwise() {
        let relative = MountFlags::RELATIVE_ACCESS_TIMES;
        assert_eq!(mount_flags(0, None), relative);
        assert_eq!(
            mount_flags(raw::MS_NOATIME | raw::MS_RDONLY, None),
            MountFlags::NO_ACCESS_TIMES | MountFlags::READ_ONLY
        );
        assert_eq!(
            mount_flags(raw::MS_STRICTATIME, None),
            MountFlags::STRICT_ACCESS_TIMES
        );
        assert_eq!(
            mount_flags(raw::MS_RDONLY, Some(MountFlags::NO_ACCESS_TIMES)),
            MountFlags::NO_ACCESS_TIMES | MountFlags::READ_ONLY
        );
        assert_eq!(
            mount_flags(raw::MS_RELATIME, Some(MountFlags::NO_ACCESS_TIMES)),
            relative
        );
    }

    #[test]
    fn options_of_the_file_system_are_those_that_are_no_flags() {
        assert_eq!(own_options(b"ro,size=1m,,rw,mode=700"), b"size=1m,mode=700");
        assert_eq!(own_options(b""), b"");
    }
}
