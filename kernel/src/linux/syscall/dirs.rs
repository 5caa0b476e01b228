//! Where a process is: `chdir`, `chroot`, `getcwd`, `umask`.

use abi::{Errno, Result, raw::general as raw};
use fs::{Kind, Location};
use nucleus::{PAGE_SIZE, user};

use super::{Call, SystemCall, call, path};

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_chdir, chdir),
    call!(__NR_fchdir, fchdir),
    call!(__NR_chroot, chroot),
    call!(__NR_getcwd, getcwd),
    call!(__NR_umask, |call| {
        Ok(call.fs().set_umask(call.unsigned(0)) as usize)
    }),
];

/// A directory that the caller may enter.
fn enterable(call: &Call<'_>, place: &Location) -> Result<()> {
    if place.vnode().kind() != Kind::Directory {
        return Err(Errno::ENOTDIR);
    }
    place.vnode().access(&call.credentials().fs, raw::X_OK)
}

fn chdir(call: &mut Call<'_>) -> Result<usize> {
    let place = path::named(call, 0)?;
    enterable(call, &place)?;
    call.fs().set_cwd(place);
    Ok(0)
}

fn fchdir(call: &mut Call<'_>) -> Result<usize> {
    let open = call.files().get(call.int(0))?;
    let place = open.location().ok_or(Errno::ENOTDIR)?;
    enterable(call, place)?;
    call.fs().set_cwd(place.clone());
    Ok(0)
}

fn chroot(call: &mut Call<'_>) -> Result<usize> {
    let place = path::named(call, 0)?;
    enterable(call, &place)?;
    call.require(raw::CAP_SYS_CHROOT)?;
    call.fs().set_root(place);
    Ok(0)
}

fn getcwd(call: &mut Call<'_>) -> Result<usize> {
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
    user::copy_out(to, &path)?;
    Ok(path.len())
}
