//! `inotify`.

use abi::{Errno, Result, raw::general as raw};
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
    call!(__NR_inotify_init1, |call| {
        make(call, call.flags(0, &FLAGS)?)
    })
    .flags(&[&FLAGS]),
    call!(__NR_inotify_add_watch, inotify_add_watch)
        .flags(&[&MASK])
        .note("what other programs of the host do to a shared folder is not seen"),
    call!(__NR_inotify_rm_watch, inotify_rm_watch),
];

const FLAGS: FlagSet = flag_set!("flags", [raw::IN_CLOEXEC, raw::IN_NONBLOCK], EINVAL);
const MASK: FlagSet = flag_set!(
    "mask",
    [
        raw::IN_ACCESS,
        raw::IN_MODIFY,
        raw::IN_ATTRIB,
        raw::IN_CLOSE_WRITE,
        raw::IN_CLOSE_NOWRITE,
        raw::IN_OPEN,
        raw::IN_MOVED_FROM,
        raw::IN_MOVED_TO,
        raw::IN_CREATE,
        raw::IN_DELETE,
        raw::IN_DELETE_SELF,
        raw::IN_MOVE_SELF,
        raw::IN_UNMOUNT,
        raw::IN_Q_OVERFLOW,
        raw::IN_IGNORED,
        raw::IN_ONLYDIR,
        raw::IN_DONT_FOLLOW,
        raw::IN_EXCL_UNLINK,
        raw::IN_MASK_CREATE,
        raw::IN_MASK_ADD,
        raw::IN_ISDIR,
        raw::IN_ONESHOT
    ],
    EINVAL
);

fn make(call: &Call<'_>, flags: u32) -> Result<usize> {
    let account = call.process().account();
    install(call, flags, raw::O_RDONLY, || Ok(Inotify::new(account)?))
}

fn inotify_of(open: &OpenFile) -> Result<&Inotify> {
    if open.is_path() {
        return Err(Errno::EBADF);
    }
    open.downcast::<Inotify>().ok_or(Errno::EINVAL)
}

fn inotify_add_watch(call: &mut Call<'_>) -> Result<usize> {
    let mask = call.flags(2, &MASK)?;
    if mask == 0 {
        return Err(Errno::EINVAL);
    }
    let open = call.opened(0)?;
    let both = raw::IN_MASK_ADD | raw::IN_MASK_CREATE;
    if mask & both == both {
        return Err(Errno::EINVAL);
    }
    let inotify = inotify_of(&open)?;
    call.takes_memory()?;
    let path = path::read(call.address(1))?;
    let from = From::new(call, raw::AT_FDCWD, &path)?;
    let place = from
        .walk()
        .resolve(&path, mask & raw::IN_DONT_FOLLOW == 0)?;
    let vnode = place.vnode();
    if mask & raw::IN_ONLYDIR != 0 && vnode.kind() != Kind::Directory {
        return Err(Errno::ENOTDIR);
    }
    vnode.access(&call.credentials().fs, raw::R_OK)?;
    Ok(inotify.add(vnode, mask)? as usize)
}

fn inotify_rm_watch(call: &mut Call<'_>) -> Result<usize> {
    let open = call.files().get(call.int(0))?;
    inotify_of(&open)?.remove(call.int(1))?;
    Ok(0)
}
