//! Attributes of files: `stat` and related calls, `access`, `readlink`, `statfs`.

use abi::{
    Errno, Result,
    raw::general::{
        AT_EACCESS, AT_EMPTY_PATH, AT_FDCWD, AT_NO_AUTOMOUNT, AT_STATX_DONT_SYNC,
        AT_STATX_FORCE_SYNC, AT_SYMLINK_NOFOLLOW, STATX__RESERVED, STATX_ATTR_MOUNT_ROOT,
        STATX_BASIC_STATS, STATX_BTIME, STATX_DIOALIGN, STATX_MNT_ID, stat, statfs, statx,
        statx_timestamp,
    },
};
use alloc::sync::Arc;
use core::time::Duration;
use fs::{Attributes, Kind, Location, MountFlags, Vnode, device};
use nucleus::{VirtAddr, user};

use super::{
    Call, FlagSet, SystemCall, call, flag_set,
    path::{self, Target},
};
use crate::mounts;

const STAT_FLAGS: FlagSet = flag_set!(
    "flags",
    [AT_SYMLINK_NOFOLLOW, AT_NO_AUTOMOUNT, AT_EMPTY_PATH],
    EINVAL
);
const STATX_FLAGS: FlagSet = flag_set!(
    "flags",
    [
        AT_SYMLINK_NOFOLLOW,
        AT_NO_AUTOMOUNT,
        AT_EMPTY_PATH,
        AT_STATX_FORCE_SYNC,
        AT_STATX_DONT_SYNC
    ],
    EINVAL
);
const ACCESS_FLAGS: FlagSet = flag_set!(
    "flags",
    [AT_EACCESS, AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH],
    EINVAL
);

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_stat, |call| {
        let found = path::attributes(call, AT_FDCWD, call.address(0), 0)?;
        put_stat(call.address(1), &found)
    }),
    call!(__NR_lstat, lstat),
    call!(__NR_fstat, fstat),
    call!(__NR_newfstatat, fstatat).flags(&[&STAT_FLAGS]),
    call!(__NR_statx, statx_call).flags(&[&STATX_FLAGS]),
    call!(__NR_access, access),
    call!(__NR_faccessat, |call| {
        check_access(call, call.int(0), call.address(1), call.unsigned(2), 0)
    }),
    call!(__NR_faccessat2, faccessat2).flags(&[&ACCESS_FLAGS]),
    call!(__NR_readlink, readlink),
    call!(__NR_readlinkat, readlinkat),
    call!(__NR_statfs, |call| {
        put_statfs(call.address(1), Some(&path::named(call, 0)?))
    }),
    call!(__NR_fstatfs, fstatfs),
    call!(__NR_ustat, ustat),
];

fn attributes(target: &Target) -> Result<Attributes> {
    match target {
        Target::Place(place) => place.attributes(),
        Target::File(open) => open.attributes(),
    }
}

fn full_mode(a: &Attributes) -> u32 {
    (a.kind as u32) << 12 | a.mode
}

fn put_stat(to: VirtAddr, a: &Attributes) -> Result<usize> {
    let mut out: stat = user::zeroed();
    out.st_dev = a.device;
    out.st_ino = a.inode;
    out.st_nlink = a.links.into();
    out.st_mode = full_mode(a);
    out.st_uid = a.uid;
    out.st_gid = a.gid;
    out.st_rdev = a.rdev;
    out.st_size = a.size as i64;
    out.st_blksize = a.block_size.into();
    out.st_blocks = a.blocks as i64;
    out.st_atime = a.accessed.as_secs();
    out.st_atime_nsec = a.accessed.subsec_nanos().into();
    out.st_mtime = a.modified.as_secs();
    out.st_mtime_nsec = a.modified.subsec_nanos().into();
    out.st_ctime = a.changed.as_secs();
    out.st_ctime_nsec = a.changed.subsec_nanos().into();
    user::write(to, &out)?;
    Ok(0)
}

fn lstat(call: &mut Call<'_>) -> Result<usize> {
    let found = path::attributes(call, AT_FDCWD, call.address(0), AT_SYMLINK_NOFOLLOW)?;
    put_stat(call.address(1), &found)
}

fn fstat(call: &mut Call<'_>) -> Result<usize> {
    let open = call.files().get(call.int(0))?;
    put_stat(call.address(1), &open.attributes()?)
}

fn fstatat(call: &mut Call<'_>) -> Result<usize> {
    let flags = call.flags(3, &STAT_FLAGS)?;
    let found = path::attributes(call, call.int(0), call.address(1), flags)?;
    put_stat(call.address(2), &found)
}

fn statx_call(call: &mut Call<'_>) -> Result<usize> {
    let (flags, mask) = (call.flags(2, &STATX_FLAGS)?, call.unsigned(3));
    let sync = AT_STATX_FORCE_SYNC | AT_STATX_DONT_SYNC;
    if flags & sync == sync || mask & STATX__RESERVED != 0 {
        return Err(Errno::EINVAL);
    }
    let target = path::target(call, call.int(0), call.address(1), flags)?;
    let a = attributes(&target)?;
    let time = |at: Duration| {
        let mut out: statx_timestamp = user::zeroed();
        out.tv_sec = at.as_secs() as i64;
        out.tv_nsec = at.subsec_nanos();
        out
    };
    let mut out: statx = user::zeroed();
    out.stx_mask = STATX_BASIC_STATS | STATX_BTIME;
    out.stx_blksize = a.block_size;
    out.stx_nlink = a.links;
    out.stx_uid = a.uid;
    out.stx_gid = a.gid;
    out.stx_mode = full_mode(&a) as u16;
    out.stx_ino = a.inode;
    out.stx_size = a.size;
    out.stx_blocks = a.blocks;
    out.stx_atime = time(a.accessed);
    out.stx_btime = time(a.created);
    out.stx_ctime = time(a.changed);
    out.stx_mtime = time(a.modified);
    out.stx_rdev_major = device::major(a.rdev);
    out.stx_rdev_minor = device::minor(a.rdev);
    out.stx_dev_major = device::major(a.device);
    out.stx_dev_minor = device::minor(a.device);
    if let Ok(place) = target.place() {
        out.stx_mask |= STATX_MNT_ID;
        out.stx_mnt_id = place.mount().id();
        out.stx_attributes_mask |= u64::from(STATX_ATTR_MOUNT_ROOT);
        if place.is_mount_root() {
            out.stx_attributes |= u64::from(STATX_ATTR_MOUNT_ROOT);
        }
        let block = place.vnode().direct_block();
        if mask & STATX_DIOALIGN != 0
            && let Some(block) = block
        {
            out.stx_mask |= STATX_DIOALIGN;
            out.stx_dio_mem_align = block as u32;
            out.stx_dio_offset_align = block as u32;
        }
    }
    user::write(call.address(4), &out)?;
    Ok(0)
}

fn access(call: &mut Call<'_>) -> Result<usize> {
    check_access(call, AT_FDCWD, call.address(0), call.unsigned(1), 0)
}

fn faccessat2(call: &mut Call<'_>) -> Result<usize> {
    let (mode, flags) = (call.unsigned(2), call.flags(3, &ACCESS_FLAGS)?);
    check_access(call, call.int(0), call.address(1), mode, flags)
}

fn check_access(
    call: &Call<'_>,
    dirfd: i32,
    path: VirtAddr,
    want: u32,
    flags: u32,
) -> Result<usize> {
    if want & !7 != 0 {
        return Err(Errno::EINVAL);
    }
    let path = path::read(path)?;
    // The real ids count: a set-id program asks for its caller.
    let credentials = call.credentials();
    let real;
    let who = if flags & AT_EACCESS != 0 {
        &credentials.fs
    } else {
        real = fs::Credentials {
            uid: credentials.real_uid,
            gid: credentials.real_gid,
            groups: credentials.fs.groups.clone(),
            capabilities: credentials.capabilities_of_real_uid(),
        };
        &real
    };
    if path.is_empty() && flags & AT_EMPTY_PATH != 0 && dirfd != AT_FDCWD {
        let open = call.files().get(dirfd)?;
        let Some(place) = open.location() else {
            return match who.may(&open.attributes()?, want) {
                true => Ok(0),
                false => Err(Errno::EACCES),
            };
        };
        return check_place(call, place, who, want);
    }
    let from = path::From::new(call, dirfd, &path)?;
    let walk = fs::Walk { who, ..from.walk() };
    let place = if path.is_empty() && flags & AT_EMPTY_PATH != 0 {
        walk.start.clone()
    } else {
        walk.resolve(&path, flags & AT_SYMLINK_NOFOLLOW == 0)?
    };
    walk.access(&place, want)?;
    Ok(0)
}

fn check_place(
    call: &Call<'_>,
    place: &Location,
    who: &fs::Credentials,
    want: u32,
) -> Result<usize> {
    let root = call.fs().root();
    let walk = fs::Walk {
        root: &root,
        start: place,
        who,
    };
    walk.access(place, want)?;
    Ok(0)
}

fn readlink(call: &mut Call<'_>) -> Result<usize> {
    read_link(
        call,
        AT_FDCWD,
        call.address(0),
        call.address(1),
        call.int(2),
    )
}

fn readlinkat(call: &mut Call<'_>) -> Result<usize> {
    let (dirfd, path, to, size) = (call.int(0), call.address(1), call.address(2), call.int(3));
    read_link(call, dirfd, path, to, size)
}

fn read_link(
    call: &Call<'_>,
    dirfd: i32,
    path: VirtAddr,
    to: VirtAddr,
    size: i32,
) -> Result<usize> {
    if size <= 0 {
        return Err(Errno::EINVAL);
    }
    let empty = user::read::<u8>(path)? == 0;
    let place = path::place(call, dirfd, path, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH)?;
    if place.vnode().kind() != Kind::Link {
        return Err(if empty { Errno::ENOENT } else { Errno::EINVAL });
    }
    let text = place.vnode().read_link()?;
    let n = text.len().min(size as usize);
    user::copy_out(to, &text[..n])?;
    Ok(n)
}

fn put_statfs(to: VirtAddr, place: Option<&Location>) -> Result<usize> {
    const ST_VALID: i64 = 0x20;
    // `linux/statfs.h`: most have the values of `MS_*`.
    const ST_RELATIME: i64 = 0x1000;
    const ST_NOSYMFOLLOW: i64 = 0x2000;
    const PIPEFS_MAGIC: i64 = 0x5049_5045;
    let mut out: statfs = user::zeroed();
    out.f_flags = ST_VALID;
    match place {
        Some(place) => {
            let space = place.vnode().space();
            out.f_type = space.magic as i64;
            out.f_bsize = space.block_size as i64;
            out.f_frsize = space.block_size as i64;
            out.f_blocks = space.blocks as i64;
            out.f_bfree = space.free as i64;
            out.f_bavail = space.available as i64;
            out.f_files = space.files as i64;
            out.f_ffree = space.free_files as i64;
            out.f_namelen = space.name_max as i64;
            let flags = place.mount().flags();
            let same = MountFlags::READ_ONLY
                | MountFlags::NO_SET_ID
                | MountFlags::NO_DEVICES
                | MountFlags::NO_EXECUTE
                | MountFlags::SYNCHRONOUS
                | MountFlags::NO_ACCESS_TIMES
                | MountFlags::NO_DIRECTORY_ACCESS_TIMES;
            out.f_flags |= i64::from((flags & same).bits());
            if flags.contains(MountFlags::RELATIVE_ACCESS_TIMES) {
                out.f_flags |= ST_RELATIME;
            }
            if flags.contains(MountFlags::NO_LINKS) {
                out.f_flags |= ST_NOSYMFOLLOW;
            }
            let device = place.attributes()?.device;
            out.f_fsid.val = [device as i32, (device >> 32) as i32];
        }
        None => {
            out.f_type = PIPEFS_MAGIC;
            out.f_bsize = 4096;
            out.f_frsize = 4096;
            out.f_namelen = 255;
        }
    }
    user::write(to, &out)?;
    Ok(0)
}

fn fstatfs(call: &mut Call<'_>) -> Result<usize> {
    let open = call.files().get(call.int(0))?;
    put_statfs(call.address(1), open.location())
}

/// The room on the mounted file system with this device number: free blocks in the first 32 bits of
/// `struct ustat`, free inodes in its second word; the names behind them are always empty.
fn ustat(call: &mut Call<'_>) -> Result<usize> {
    let device = u64::from(call.unsigned(0));
    let is_it = |root: &Arc<dyn Vnode>| {
        let attributes = root.attributes();
        attributes.is_ok_and(|a| a.device == device)
    };
    let roots = mounts::namespace().roots();
    let root = roots.iter().find(|root| is_it(root));
    let space = root.ok_or(Errno::EINVAL)?.space();
    let words = [space.free as u32 as u64, space.free_files, 0, 0];
    call.write(1, &words)?;
    Ok(0)
}
