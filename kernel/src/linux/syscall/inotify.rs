//! `inotify`.

use abi::{
    Errno, Result,
    raw::general::{
        IN_ACCESS, IN_ATTRIB, IN_CLOEXEC, IN_CLOSE_NOWRITE, IN_CLOSE_WRITE, IN_CREATE, IN_DELETE,
        IN_DELETE_SELF, IN_DONT_FOLLOW, IN_EXCL_UNLINK, IN_IGNORED, IN_ISDIR, IN_MASK_ADD,
        IN_MASK_CREATE, IN_MODIFY, IN_MOVE_SELF, IN_MOVED_FROM, IN_MOVED_TO, IN_NONBLOCK,
        IN_ONESHOT, IN_ONLYDIR, IN_OPEN, IN_Q_OVERFLOW, IN_UNMOUNT, O_RDONLY,
    },
};
use fs::Kind;

use super::{
    Call, FlagSet, SystemCall, call,
    event::install,
    flag_set,
    path::{self, From},
};
use crate::{ipc::inotify::Inotify, process::files::OpenFile};

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_inotify_init, |call| make(call, 0)),
    call!(__NR_inotify_init1, inotify_init1).flags(&[&FLAGS]),
    call!(__NR_inotify_add_watch, inotify_add_watch)
        .flags(&[&MASK])
        .note("what other programs of the host do to a shared folder is not seen"),
    call!(__NR_inotify_rm_watch, inotify_rm_watch),
];

const FLAGS: FlagSet = flag_set!("flags", [IN_CLOEXEC, IN_NONBLOCK], EINVAL);
const MASK: FlagSet = flag_set!(
    "mask",
    [
        IN_ACCESS,
        IN_MODIFY,
        IN_ATTRIB,
        IN_CLOSE_WRITE,
        IN_CLOSE_NOWRITE,
        IN_OPEN,
        IN_MOVED_FROM,
        IN_MOVED_TO,
        IN_CREATE,
        IN_DELETE,
        IN_DELETE_SELF,
        IN_MOVE_SELF,
        IN_UNMOUNT,
        IN_Q_OVERFLOW,
        IN_IGNORED,
        IN_ONLYDIR,
        IN_DONT_FOLLOW,
        IN_EXCL_UNLINK,
        IN_MASK_CREATE,
        IN_MASK_ADD,
        IN_ISDIR,
        IN_ONESHOT
    ],
    EINVAL
);

pub(super) fn inotify_init1(call: &mut Call<'_>) -> Result<usize> {
    let flags = call.flags(0, &FLAGS)?;
    make(call, flags)
}

fn make(call: &Call<'_>, flags: u32) -> Result<usize> {
    let user = call.credentials().real_uid;
    install(call, flags, O_RDONLY, || Ok(Inotify::new(user)?))
}

fn inotify_of(open: &OpenFile) -> Result<&Inotify> {
    if open.is_path() {
        return Err(Errno::EBADF);
    }
    open.downcast::<Inotify>().ok_or(Errno::EINVAL)
}

pub(super) fn inotify_add_watch(call: &mut Call<'_>) -> Result<usize> {
    let mask = call.flags(2, &MASK)?;
    if mask == 0 {
        return Err(Errno::EINVAL);
    }
    let open = call.opened(0)?;
    let both = IN_MASK_ADD | IN_MASK_CREATE;
    if mask & both == both {
        return Err(Errno::EINVAL);
    }
    let inotify = inotify_of(&open)?;
    let path = path::read(call.address(1))?;
    let from = From::new(call, abi::raw::general::AT_FDCWD, &path)?;
    let place = from.walk().resolve(&path, mask & IN_DONT_FOLLOW == 0)?;
    let vnode = place.vnode();
    if mask & IN_ONLYDIR != 0 && vnode.kind() != Kind::Directory {
        return Err(Errno::ENOTDIR);
    }
    vnode.access(&call.credentials().fs, abi::raw::general::R_OK)?;
    Ok(inotify.add(vnode, mask)? as usize)
}

pub(super) fn inotify_rm_watch(call: &mut Call<'_>) -> Result<usize> {
    let open = call.files().get(call.int(0))?;
    inotify_of(&open)?.remove(call.int(1))?;
    Ok(0)
}
