//! Opening and closing: `open` and its relatives, `close`, `dup`, `pipe`.

use alloc::sync::Arc;

use abi::{
    Errno, Result,
    raw::general::{
        O_ACCMODE, O_APPEND, O_CLOEXEC, O_CREAT, O_DIRECT, O_DIRECTORY, O_DSYNC, O_EXCL,
        O_LARGEFILE, O_NOATIME, O_NOCTTY, O_NOFOLLOW, O_NONBLOCK, O_PATH, O_SYNC, O_TMPFILE,
        O_TRUNC, O_WRONLY, RESOLVE_BENEATH, RESOLVE_CACHED, RESOLVE_IN_ROOT, RESOLVE_NO_MAGICLINKS,
        RESOLVE_NO_SYMLINKS, RESOLVE_NO_XDEV, RLIMIT_NOFILE, open_how,
    },
};
use fs::OpenFlags;
use nucleus::user;

use super::{
    Call, FlagSet, SystemCall, call, flag_set,
    path::{self, At, From},
};
use crate::flags::Otherwise;
use crate::{ipc::pipe, process::files::OpenFile};

/// Which files take `O_DIRECT`.
const DIRECT: &str = "O_DIRECT is for ext2, block devices and pipes: EINVAL(22) elsewhere, in \
    files in memory too, as on Linux before 6.6";

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_open, |call| open(call, call.cwd(0), 1))
        .flags(&[&OPEN_FLAGS])
        .note(DIRECT),
    call!(__NR_openat, |call| open(call, call.at(0), 2))
        .flags(&[&OPEN_FLAGS])
        .note(DIRECT),
    call!(__NR_openat2, openat2)
        .flags(&[&RESOLVE_FLAGS, &OPENAT2_FLAGS])
        .note(DIRECT),
    call!(__NR_creat, |call| {
        let flags = O_CREAT | O_WRONLY | O_TRUNC;
        open_by_rules(call, call.cwd(0), (flags, call.unsigned(1)), 0)
    }),
    call!(__NR_close, close),
    call!(__NR_close_range, close_range).flags(&[&CLOSE_RANGE_FLAGS]),
    call!(__NR_dup, dup),
    call!(__NR_dup2, dup2),
    call!(__NR_dup3, dup3).flags(&[&DUP_FLAGS]),
    call!(__NR_pipe, pipe),
    call!(__NR_pipe2, |call| {
        make_pipe(call, call.flags(1, &PIPE_FLAGS)?)
    })
    .flags(&[&PIPE_FLAGS]),
];

/// `close_range`: first make the table the caller's own.
const CLOSE_RANGE_UNSHARE: u32 = 1 << 1;
/// `close_range`: only mark the descriptors.
const CLOSE_RANGE_CLOEXEC: u32 = 1 << 2;

/// Flags that `open` knows; it ignores others.
const OPEN_FLAGS: FlagSet = flag_set!(
    "flags",
    [
        O_ACCMODE,
        O_CREAT,
        O_EXCL,
        O_NOCTTY,
        O_TRUNC,
        O_APPEND,
        O_NONBLOCK,
        O_SYNC,
        O_DSYNC,
        abi::raw::general::FASYNC,
        O_DIRECT,
        O_LARGEFILE,
        O_DIRECTORY,
        O_NOFOLLOW,
        O_NOATIME,
        O_CLOEXEC,
        O_PATH,
        O_TMPFILE
    ],
    ignored
);
/// `openat2` refuses others.
const OPENAT2_FLAGS: FlagSet = FlagSet {
    argument: "how.flags",
    otherwise: Otherwise::Error(Errno::EINVAL),
    ..OPEN_FLAGS
};
const CLOSE_RANGE_FLAGS: FlagSet =
    flag_set!("flags", [CLOSE_RANGE_CLOEXEC, CLOSE_RANGE_UNSHARE], EINVAL);
const DUP_FLAGS: FlagSet = flag_set!("flags", [O_CLOEXEC], EINVAL);
const PIPE_FLAGS: FlagSet = flag_set!("flags", [O_CLOEXEC, O_NONBLOCK, O_DIRECT], EINVAL);
/// The flags that `O_PATH` leaves in force.
const WITH_PATH: u32 = O_DIRECTORY | O_NOFOLLOW | O_PATH | O_CLOEXEC;

const RESOLVE_FLAGS: FlagSet = flag_set!(
    "how.resolve",
    [
        RESOLVE_NO_XDEV,
        RESOLVE_NO_MAGICLINKS,
        RESOLVE_NO_SYMLINKS,
        RESOLVE_BENEATH,
        RESOLVE_IN_ROOT,
        RESOLVE_CACHED
    ],
    EINVAL
);

impl Call<'_> {
    /// The limit on descriptors.
    pub fn descriptor_limit(&self) -> u64 {
        self.process().limits().soft(RLIMIT_NOFILE)
    }
}

/// `open` and `openat`, whose flags and mode are arguments from `n` on.
#[inline]
fn open(call: &Call<'_>, at: At, n: usize) -> Result<usize> {
    open_by_rules(call, at, (call.unsigned(n), call.unsigned(n + 1)), 0)
}

fn openat2(call: &mut Call<'_>) -> Result<usize> {
    if call.size(3) < size_of::<open_how>() {
        return Err(Errno::EINVAL);
    }
    let [flags, mode, resolve]: [u64; 3] = call.read_words(2, call.size(3))?;
    let flags = OPENAT2_FLAGS.check(call.caller(), flags)? as u32;
    let mode = u32::try_from(mode).map_err(|_| Errno::EINVAL)?;
    let makes = flags & O_CREAT != 0 || flags & O_TMPFILE == O_TMPFILE;
    if mode & !0o7777 != 0 || (mode != 0 && !makes) {
        return Err(Errno::EINVAL);
    }
    if flags & O_PATH != 0 && flags & !WITH_PATH != 0 {
        return Err(Errno::EINVAL);
    }
    let resolve = RESOLVE_FLAGS.check(call.caller(), resolve)? as u32;
    if resolve & RESOLVE_BENEATH != 0 && resolve & RESOLVE_IN_ROOT != 0 {
        return Err(Errno::EINVAL);
    }
    if resolve & RESOLVE_CACHED != 0 {
        // Programs try this first and then without; it may always fail.
        return Err(Errno::EAGAIN);
    }
    open_by_rules(call, call.at(0), (flags, mode), resolve)
}

/// Opens by the rules of `openat2` (`RESOLVE_*`).
fn open_by_rules(
    call: &Call<'_>,
    (dirfd, path): At,
    (flags, mode): (u32, u32),
    rules: u32,
) -> Result<usize> {
    call.takes_memory()?;
    let known = OPEN_FLAGS.check(call.caller(), u64::from(flags))? as u32;
    let mut flags = known | O_LARGEFILE;
    if flags & O_PATH != 0 {
        flags &= WITH_PATH;
    }
    let makes_unnamed = flags & O_TMPFILE == O_TMPFILE;
    if !makes_unnamed && flags & O_TMPFILE & !O_DIRECTORY != 0 {
        return Err(Errno::EINVAL);
    }
    if flags & O_CREAT != 0 && flags & O_DIRECTORY != 0 {
        return Err(Errno::EINVAL);
    }
    let mode = if flags & O_CREAT != 0 || makes_unnamed {
        mode & 0o7777 & !call.fs().umask()
    } else {
        0
    };
    let path = path::read(path)?;
    // Kept in a directory, a walk starts there even where the path is absolute.
    let scoped = rules & (RESOLVE_BENEATH | RESOLVE_IN_ROOT) != 0;
    let start: &[u8] = if scoped { b"." } else { &path };
    let from = From::new(call, dirfd, start)?;
    // The descriptor comes first: a full table must not leave a new file behind.
    let files = call.files();
    let slot = files.reserve(0, call.descriptor_limit())?;
    let flags = OpenFlags::from_bits_retain(flags);
    let file = from.walk().open_by_rules(&path, flags, mode, rules)?;
    let close_on_exec = flags.has(O_CLOEXEC);
    Ok(slot.install(OpenFile::new(file, flags), close_on_exec))
}

fn close(call: &mut Call<'_>) -> Result<usize> {
    call.files().close(call.int(0))?;
    Ok(0)
}

fn close_range(call: &mut Call<'_>) -> Result<usize> {
    let (first, last) = (call.unsigned(0), call.unsigned(1));
    let flags = call.flags(2, &CLOSE_RANGE_FLAGS)?;
    if first > last {
        return Err(Errno::EINVAL);
    }
    if flags & CLOSE_RANGE_UNSHARE != 0 {
        call.own.unshare_files()?;
        call.thread.publish(Some(call.own.shared()));
    }
    call.files()
        .close_range(first, last, flags & CLOSE_RANGE_CLOEXEC != 0);
    Ok(0)
}

fn dup(call: &mut Call<'_>) -> Result<usize> {
    let (fd, limit) = (call.int(0), call.descriptor_limit());
    call.may_take_memory(|| call.files().dup(fd, limit))
}

fn dup2(call: &mut Call<'_>) -> Result<usize> {
    let (old, new) = (call.int(0), call.int(1));
    let open = call.files().get(old)?;
    if old != new {
        let limit = call.descriptor_limit();
        call.may_take_memory(|| call.files().replace(new, open.clone(), false, limit))?;
    }
    Ok(new as usize)
}

fn dup3(call: &mut Call<'_>) -> Result<usize> {
    let (old, new) = (call.int(0), call.int(1));
    let flags = call.flags(2, &DUP_FLAGS)?;
    if old == new {
        return Err(Errno::EINVAL);
    }
    let open = call.files().get(old)?;
    let (closes, limit) = (flags & O_CLOEXEC != 0, call.descriptor_limit());
    call.may_take_memory(|| call.files().replace(new, open.clone(), closes, limit))?;
    Ok(new as usize)
}

fn pipe(call: &mut Call<'_>) -> Result<usize> {
    make_pipe(call, 0)
}

fn make_pipe(call: &Call<'_>, flags: u32) -> Result<usize> {
    let files: &Arc<_> = call.files();
    let limit = call.descriptor_limit();
    let first = files.reserve(0, limit)?;
    let second = files.reserve(0, limit)?;
    call.takes_memory()?;
    let fs = &call.credentials().fs;
    let (read, write) = pipe::pair((fs.uid, fs.gid))?;
    // The program learns the numbers before they mean anything: if it can't, nothing has to be
    // undone.
    let numbers = [first.fd as i32, second.fd as i32];
    user::write(call.address(0), &numbers)?;
    let kept = flags & (O_NONBLOCK | O_DIRECT);
    let close_on_exec = flags & O_CLOEXEC != 0;
    let flags = |access| OpenFlags::from_bits_retain(kept | access);
    first.install(OpenFile::new(read, flags(0)), close_on_exec);
    second.install(OpenFile::new(write, flags(O_WRONLY)), close_on_exec);
    Ok(0)
}
