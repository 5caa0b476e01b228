//! Directories and the names in them: making, linking, renaming, removing, listing.

use abi::{
    Errno, Result,
    raw::general::{
        AT_EMPTY_PATH, AT_FDCWD, AT_REMOVEDIR, AT_SYMLINK_FOLLOW, AT_SYMLINK_NOFOLLOW, S_IFBLK,
        S_IFCHR, S_IFDIR, S_IFIFO, S_IFMT, S_IFREG, S_IFSOCK,
    },
};
use fs::vnode::Make;
use nucleus::{VirtAddr, user};

use super::{
    Call, FlagSet, SystemCall, call, flag_set,
    path::{self, From},
};

const REMOVE_FLAGS: FlagSet = flag_set!("flags", [AT_REMOVEDIR], EINVAL);
const LINK_FLAGS: FlagSet = flag_set!("flags", [AT_SYMLINK_FOLLOW, AT_EMPTY_PATH], EINVAL);

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_mkdir, mkdir),
    call!(__NR_mkdirat, mkdirat),
    call!(__NR_mknod, mknod),
    call!(__NR_mknodat, mknodat),
    call!(__NR_symlink, |call| make_link(
        call,
        call.address(0),
        AT_FDCWD,
        call.address(1)
    )),
    call!(__NR_symlinkat, |call| make_link(
        call,
        call.address(0),
        call.int(1),
        call.address(2)
    )),
    call!(__NR_link, link),
    call!(__NR_linkat, linkat).flags(&[&LINK_FLAGS]),
    call!(__NR_unlink, |call| {
        remove(call, AT_FDCWD, call.address(0), false)
    }),
    call!(__NR_rmdir, |call| {
        remove(call, AT_FDCWD, call.address(0), true)
    }),
    call!(__NR_unlinkat, unlinkat).flags(&[&REMOVE_FLAGS]),
    call!(__NR_rename, rename),
    call!(__NR_renameat, renameat),
    call!(__NR_renameat2, renameat2),
    call!(__NR_getdents, |call| list(call, Layout::Old)),
    call!(__NR_getdents64, |call| { list(call, Layout::New) }),
];

fn make(call: &Call<'_>, dirfd: i32, path: VirtAddr, what: Make, mode: u32) -> Result<usize> {
    call.takes_memory()?;
    let path = path::read(path)?;
    let mode = match what {
        Make::Link(_) => 0o777,
        _ => mode & 0o7777 & !call.fs().umask(),
    };
    From::new(call, dirfd, &path)?
        .walk()
        .make(&path, what, mode)?;
    Ok(0)
}

pub(super) fn mkdir(call: &mut Call<'_>) -> Result<usize> {
    let mode = call.unsigned(1) & 0o1777;
    make(call, AT_FDCWD, call.address(0), Make::Directory, mode)
}

pub(super) fn mkdirat(call: &mut Call<'_>) -> Result<usize> {
    let mode = call.unsigned(2) & 0o1777;
    make(call, call.int(0), call.address(1), Make::Directory, mode)
}

/// Returns the kind of node that the file type in a `mknod` mode asks for.
fn node(mode: u32, device: u32) -> Result<Make> {
    Ok(match mode & S_IFMT {
        0 | S_IFREG => Make::Regular,
        S_IFIFO => Make::Fifo,
        S_IFSOCK => Make::Socket,
        S_IFCHR => Make::CharDevice(device.into()),
        S_IFBLK => Make::BlockDevice(device.into()),
        S_IFDIR => return Err(Errno::EPERM),
        _ => return Err(Errno::EINVAL),
    })
}

pub(super) fn mknod(call: &mut Call<'_>) -> Result<usize> {
    let mode = call.unsigned(1);
    let what = node(mode, call.unsigned(2))?;
    make(call, AT_FDCWD, call.address(0), what, mode)
}

fn mknodat(call: &mut Call<'_>) -> Result<usize> {
    let mode = call.unsigned(2);
    let what = node(mode, call.unsigned(3))?;
    make(call, call.int(0), call.address(1), what, mode)
}

fn make_link(call: &Call<'_>, text: VirtAddr, dirfd: i32, path: VirtAddr) -> Result<usize> {
    let text = path::read(text)?;
    if text.is_empty() {
        return Err(Errno::ENOENT);
    }
    make(call, dirfd, path, Make::Link(text), 0o777)
}

pub(super) fn link(call: &mut Call<'_>) -> Result<usize> {
    let (old, new) = (call.address(0), call.address(1));
    add_link(call, (AT_FDCWD, old), (AT_FDCWD, new), 0)
}

pub(super) fn linkat(call: &mut Call<'_>) -> Result<usize> {
    let old = (call.int(0), call.address(1));
    let new = (call.int(2), call.address(3));
    let flags = call.flags(4, &LINK_FLAGS)?;
    add_link(call, old, new, flags)
}

fn add_link(
    call: &Call<'_>,
    (old_dir, old): (i32, VirtAddr),
    (new_dir, new): (i32, VirtAddr),
    flags: u32,
) -> Result<usize> {
    call.takes_memory()?;
    let mut how = flags & AT_EMPTY_PATH;
    if flags & AT_SYMLINK_FOLLOW == 0 {
        how |= AT_SYMLINK_NOFOLLOW;
    }
    let from = path::place(call, old_dir, old, how)?;
    let path = path::read(new)?;
    From::new(call, new_dir, &path)?.walk().link(&from, &path)?;
    Ok(0)
}

fn remove(call: &Call<'_>, dirfd: i32, path: VirtAddr, directory: bool) -> Result<usize> {
    let path = path::read(path)?;
    From::new(call, dirfd, &path)?
        .walk()
        .remove(&path, directory)?;
    Ok(0)
}

pub(super) fn unlinkat(call: &mut Call<'_>) -> Result<usize> {
    let flags = call.flags(2, &REMOVE_FLAGS)?;
    remove(
        call,
        call.int(0),
        call.address(1),
        flags & AT_REMOVEDIR != 0,
    )
}

fn move_name(
    call: &Call<'_>,
    (old_dir, old): (i32, VirtAddr),
    (new_dir, new): (i32, VirtAddr),
    flags: u32,
) -> Result<usize> {
    let (old, new) = (path::read(old)?, path::read(new)?);
    let from = From::new(call, old_dir, &old)?;
    let to = From::new(call, new_dir, &new)?;
    from.walk().rename(&old, &to.walk(), &new, flags)?;
    Ok(0)
}

pub(super) fn rename(call: &mut Call<'_>) -> Result<usize> {
    let (old, new) = (call.address(0), call.address(1));
    move_name(call, (AT_FDCWD, old), (AT_FDCWD, new), 0)
}

pub(super) fn renameat(call: &mut Call<'_>) -> Result<usize> {
    let old = (call.int(0), call.address(1));
    let new = (call.int(2), call.address(3));
    move_name(call, old, new, 0)
}

pub(super) fn renameat2(call: &mut Call<'_>) -> Result<usize> {
    let old = (call.int(0), call.address(1));
    let new = (call.int(2), call.address(3));
    move_name(call, old, new, call.unsigned(4))
}

/// Where things stand in a `struct linux_dirent` and `linux_dirent64`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// Inode, offset, length, name; the type is the record's last byte.
    Old,
    /// Inode, offset, length, type, name.
    New,
}

fn list(call: &Call<'_>, layout: Layout) -> Result<usize> {
    /// Room for the longest name, a NUL, the numbers and padding.
    const LONGEST: usize = 288;
    let to = call.address(1);
    let size = call.unsigned(2) as usize;
    let open = call.files().get(call.int(0))?;
    let file = open.readable()?;
    let mut filled = 0;
    let mut failed = None;
    // One for all entries: to clear it for each took a fifth of the call.
    let mut record = [0; LONGEST];
    file.list(&mut |name, inode, kind, next| {
        let (name_at, behind) = match layout {
            Layout::Old => (18, 2),
            Layout::New => (19, 1),
        };
        let len = (name_at + name.len() + behind).next_multiple_of(8);
        if len > LONGEST {
            failed = Some(Errno::EIO);
            return false;
        }
        if filled + len > size {
            if filled == 0 {
                failed = Some(Errno::EINVAL);
            }
            return false;
        }
        record[..8].copy_from_slice(&inode.to_le_bytes());
        record[8..16].copy_from_slice(&next.to_le_bytes());
        record[16..18].copy_from_slice(&(len as u16).to_le_bytes());
        let name_end = name_at + name.len();
        record[name_at..name_end].copy_from_slice(name);
        record[name_end..len].fill(0);
        let kind_at = if layout == Layout::Old { len - 1 } else { 18 };
        record[kind_at] = kind as u8;
        let copied = to
            .checked_add(filled)
            .is_some_and(|at| user::copy_out(at, &record[..len]).is_ok());
        if !copied {
            failed = Some(Errno::EFAULT);
            return false;
        }
        filled += len;
        true
    })?;
    match failed {
        Some(error) if filled == 0 => Err(error),
        _ => Ok(filled),
    }
}
