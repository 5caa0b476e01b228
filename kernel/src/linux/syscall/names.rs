//! Directories and the names in them: making, linking, renaming, removing, listing.

use abi::{
    Errno, Result,
    raw::general::{
        AT_EMPTY_PATH, AT_REMOVEDIR, AT_SYMLINK_FOLLOW, AT_SYMLINK_NOFOLLOW, S_IFBLK, S_IFCHR,
        S_IFDIR, S_IFIFO, S_IFMT, S_IFREG, S_IFSOCK,
    },
};
use fs::vnode::Make;
use nucleus::user;

use super::{
    Call, FlagSet, SystemCall, call, flag_set,
    path::{self, At, From},
};

const REMOVE_FLAGS: FlagSet = flag_set!("flags", [AT_REMOVEDIR], EINVAL);
const LINK_FLAGS: FlagSet = flag_set!("flags", [AT_SYMLINK_FOLLOW, AT_EMPTY_PATH], EINVAL);

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_mkdir, |call| mkdir(call, call.cwd(0), 1)),
    call!(__NR_mkdirat, |call| mkdir(call, call.at(0), 2)),
    call!(__NR_mknod, |call| mknod(call, call.cwd(0), 1)),
    call!(__NR_mknodat, |call| mknod(call, call.at(0), 2)),
    call!(__NR_symlink, |call| symlink(call, call.cwd(1))),
    call!(__NR_symlinkat, |call| symlink(call, call.at(1))),
    call!(__NR_link, |call| link(call, call.cwd(0), call.cwd(1), 0)),
    call!(__NR_linkat, |call| {
        let flags = call.flags(4, &LINK_FLAGS)?;
        link(call, call.at(0), call.at(2), flags)
    })
    .flags(&[&LINK_FLAGS]),
    call!(__NR_unlink, |call| remove(call, call.cwd(0), false)),
    call!(__NR_rmdir, |call| remove(call, call.cwd(0), true)),
    call!(__NR_unlinkat, |call| {
        let flags = call.flags(2, &REMOVE_FLAGS)?;
        remove(call, call.at(0), flags & AT_REMOVEDIR != 0)
    })
    .flags(&[&REMOVE_FLAGS]),
    call!(__NR_rename, |call| {
        rename(call, call.cwd(0), call.cwd(1), 0)
    }),
    call!(__NR_renameat, |call| {
        rename(call, call.at(0), call.at(2), 0)
    }),
    call!(__NR_renameat2, |call| {
        rename(call, call.at(0), call.at(2), call.unsigned(4))
    }),
    call!(__NR_getdents, |call| list(call, Layout::Old)),
    call!(__NR_getdents64, |call| list(call, Layout::New)),
];

fn make(call: &Call<'_>, (dirfd, path): At, what: Make, mode: u32) -> Result<usize> {
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

/// `mkdir` and `mkdirat`: the mode is argument `n`.
fn mkdir(call: &Call<'_>, at: At, n: usize) -> Result<usize> {
    make(call, at, Make::Directory, call.unsigned(n) & 0o1777)
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

/// `mknod` and `mknodat`: mode and device are arguments from `n` on.
fn mknod(call: &Call<'_>, at: At, n: usize) -> Result<usize> {
    let mode = call.unsigned(n);
    make(call, at, node(mode, call.unsigned(n + 1))?, mode)
}

/// `symlink` and `symlinkat`: the text is argument 0.
fn symlink(call: &Call<'_>, at: At) -> Result<usize> {
    let text = path::read(call.address(0))?;
    if text.is_empty() {
        return Err(Errno::ENOENT);
    }
    make(call, at, Make::Link(text), 0o777)
}

fn link(call: &Call<'_>, (old_dir, old): At, (new_dir, new): At, flags: u32) -> Result<usize> {
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

fn remove(call: &Call<'_>, (dirfd, path): At, directory: bool) -> Result<usize> {
    let path = path::read(path)?;
    From::new(call, dirfd, &path)?
        .walk()
        .remove(&path, directory)?;
    Ok(0)
}

fn rename(call: &Call<'_>, (old_dir, old): At, (new_dir, new): At, flags: u32) -> Result<usize> {
    call.takes_memory()?;
    let (old, new) = (path::read(old)?, path::read(new)?);
    let from = From::new(call, old_dir, &old)?;
    let to = From::new(call, new_dir, &new)?;
    from.walk().rename(&old, &to.walk(), &new, flags)?;
    Ok(0)
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
