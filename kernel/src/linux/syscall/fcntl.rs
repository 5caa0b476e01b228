//! `fcntl` and `flock`.

use abi::{
    Errno, Result,
    raw::general::{
        _NSIG, CAP_LEASE, DN_MULTISHOT, F_ADD_SEALS, F_DUPFD, F_DUPFD_CLOEXEC, F_DUPFD_QUERY,
        F_GET_SEALS, F_GETFD, F_GETFL, F_GETLEASE, F_GETLK, F_GETOWN, F_GETOWN_EX, F_GETPIPE_SZ,
        F_GETSIG, F_NOTIFY, F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW, F_RDLCK, F_SETFD, F_SETFL,
        F_SETLEASE, F_SETLK, F_SETLKW, F_SETOWN, F_SETOWN_EX, F_SETPIPE_SZ, F_SETSIG, F_UNLCK,
        F_WRLCK, FASYNC, FD_CLOEXEC, LOCK_EX, LOCK_NB, LOCK_SH, LOCK_UN, O_APPEND, O_DIRECT,
        SEEK_CUR, SEEK_END, SEEK_SET, f_owner_ex, flock,
    },
};
use nucleus::{PAGE_SIZE, user};

use super::{Call, FlagSet, SystemCall, call, choice, memfd};
use crate::{
    ipc::pipe::End,
    process::{
        Pid,
        files::{
            OpenFile,
            locks::{self, For, Mode, Record},
        },
        sigio,
    },
};
use fs::Kind;

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_fcntl, fcntl).flags(&[&COMMANDS]),
    call!(__NR_flock, flock_call),
];

/// The commands of `fcntl`.
const COMMANDS: FlagSet = choice!(
    "cmd",
    [
        F_DUPFD,
        F_DUPFD_CLOEXEC,
        F_DUPFD_QUERY,
        F_GETFD,
        F_SETFD,
        F_GETFL,
        F_SETFL,
        F_GETLK,
        F_SETLK,
        F_SETLKW,
        F_OFD_GETLK,
        F_OFD_SETLK,
        F_OFD_SETLKW,
        F_GETPIPE_SZ,
        F_SETPIPE_SZ,
        F_SETOWN,
        F_GETOWN,
        F_SETOWN_EX,
        F_GETOWN_EX,
        F_GETSIG,
        F_SETSIG,
        F_ADD_SEALS,
        F_GET_SEALS,
        F_GETLEASE,
        F_SETLEASE,
        F_NOTIFY
    ],
    EINVAL
);

fn fcntl(call: &mut Call<'_>) -> Result<usize> {
    let (fd, argument) = (call.int(0), call.args[2]);
    let files = call.files();
    let open = files.get(fd)?;
    let command = call.choice(1, &COMMANDS)?;
    if open.is_path()
        && !matches!(
            command,
            F_DUPFD | F_DUPFD_CLOEXEC | F_DUPFD_QUERY | F_GETFD | F_SETFD | F_GETFL
        )
    {
        return Err(Errno::EBADF);
    }
    match command {
        F_DUPFD | F_DUPFD_CLOEXEC => {
            let limit = call.descriptor_limit();
            let min = argument as u32;
            if u64::from(min) >= limit {
                return Err(Errno::EINVAL);
            }
            let slot = call.may_take_memory(|| files.reserve(min as usize, limit))?;
            Ok(slot.install(open, command == F_DUPFD_CLOEXEC))
        }
        F_DUPFD_QUERY => {
            let other = files.get(argument as i32)?;
            Ok(usize::from(alloc::sync::Arc::ptr_eq(&open, &other)))
        }
        F_GETFD => Ok(usize::from(files.is_close_on_exec(fd)?)),
        F_SETFD => {
            files.set_close_on_exec(fd, argument as u32 & FD_CLOEXEC != 0)?;
            Ok(0)
        }
        F_GETFL => Ok(open.flags().bits() as usize),
        F_SETFL => {
            let direct = argument as u32 & O_DIRECT;
            let is_pipe = open.downcast::<End>().is_some();
            let takes = open
                .location()
                .is_some_and(|place| place.vnode().takes_direct());
            if direct != 0 && !is_pipe && !takes {
                return Err(Errno::EINVAL);
            }
            let only_grows = open
                .location()
                .is_some_and(|place| place.vnode().only_grows());
            if only_grows && (argument as u32 ^ open.flags().bits()) & O_APPEND != 0 {
                return Err(Errno::EPERM);
            }
            open.set_flag(O_DIRECT, direct != 0);
            let on = argument as u32 & FASYNC != 0;
            set_asynchronous(call, &open, fd, on)?;
            open.set_flags(argument as u32);
            Ok(0)
        }
        F_GETLK | F_OFD_GETLK | F_SETLK | F_SETLKW | F_OFD_SETLK | F_OFD_SETLKW => {
            record_lock(call, &open, command)
        }
        // No process is told of changes that way, and taking all watches off asks for just that.
        F_NOTIFY if argument & !u64::from(DN_MULTISHOT) == 0 => Ok(0),
        F_NOTIFY => Err(Errno::EINVAL),
        F_GETLEASE => Ok(F_UNLCK as usize),
        F_SETLEASE => set_lease(call, &open, argument as u32),
        F_ADD_SEALS => memfd::add_seals(call, &open, argument),
        F_GET_SEALS => memfd::get_seals(&open),
        F_GETPIPE_SZ => {
            let end = open.downcast::<End>().ok_or(Errno::EBADF)?;
            Ok(end.pipe().status().slots * PAGE_SIZE)
        }
        F_SETPIPE_SZ => {
            let end = open.downcast::<End>().ok_or(Errno::EBADF)?;
            call.takes_memory()?;
            end.pipe().resize(argument as u32 as usize)
        }
        F_SETOWN => set_owner(call, &open, argument as i32).map(|()| 0),
        F_GETOWN => Ok(owner(&open) as isize as usize),
        F_SETOWN_EX => {
            let new: f_owner_ex = user::read(call.address(2))?;
            let kind = sigio::Kind::from_number(new.type_ as u32)?;
            let id = Pid::try_from(new.pid).map_err(|_| Errno::ESRCH)?;
            open.change_owner(|owner| owner.name(kind, id, call.credentials()))?;
            Ok(0)
        }
        F_GETOWN_EX => {
            let (kind, id) = open.owner().id();
            let owner = f_owner_ex {
                type_: kind.number() as _,
                pid: id as i32,
            };
            user::write(call.address(2), &owner)?;
            Ok(0)
        }
        F_GETSIG => Ok(open.owner().signal as usize),
        F_SETSIG => {
            let signal = u32::try_from(argument).map_err(|_| Errno::EINVAL)?;
            if signal > _NSIG {
                return Err(Errno::EINVAL);
            }
            open.change_owner(|owner| {
                owner.signal = signal;
                Ok(())
            })?;
            Ok(0)
        }
        _ => Err(Errno::EINVAL),
    }
}

/// `F_SETLEASE`: leases are never given, as on a file system that has none.
fn set_lease(call: &Call<'_>, open: &OpenFile, lease: u32) -> Result<usize> {
    let place = open.location().ok_or(Errno::EINVAL)?;
    let attributes = place.attributes()?;
    let who = &call.credentials().fs;
    if attributes.uid != who.uid && !who.may_use(CAP_LEASE) {
        return Err(Errno::EACCES);
    }
    if attributes.kind != Kind::Regular {
        return Err(Errno::EINVAL);
    }
    match lease {
        F_UNLCK => Err(Errno::EAGAIN),
        _ => Err(Errno::EINVAL),
    }
}

/// `F_SETOWN`, `FIOSETOWN`: a process, or a group if `id` is negative.
///
/// # Errors
/// `ESRCH`, `EINVAL` for a number that has no positive one, `ENOMEM`.
pub(super) fn set_owner(call: &Call<'_>, open: &OpenFile, id: i32) -> Result<()> {
    let (kind, id) = match id {
        i32::MIN => return Err(Errno::EINVAL),
        group if group < 0 => (sigio::Kind::Group, group.unsigned_abs()),
        process => (sigio::Kind::Process, process as Pid),
    };
    open.change_owner(|owner| owner.name(kind, id, call.credentials()))
}

/// `F_GETOWN`, `FIOGETOWN`: as for [`set_owner`], 0 for none.
pub(super) fn owner(open: &OpenFile) -> i32 {
    match open.owner().id() {
        (sigio::Kind::Group, id) => -(id as i32),
        (_, id) => id as i32,
    }
}

/// `O_ASYNC` by `F_SETFL`, `FIOASYNC`: returns whether the file can do that.
///
/// # Errors
/// `ENOMEM`.
pub(super) fn set_asynchronous(
    call: &Call<'_>,
    open: &OpenFile,
    fd: i32,
    on: bool,
) -> Result<bool> {
    open.set_asynchronous(on, fd, call.process().pid(), call.credentials())
}

/// The bytes that a `struct flock` means, `start..=last`.
fn range(open: &OpenFile, lock: &flock) -> Result<(u64, u64)> {
    let base = match lock.l_whence as u32 {
        SEEK_SET => 0,
        SEEK_CUR => open.file().seek(0, SEEK_CUR)? as i64,
        SEEK_END => open.location().ok_or(Errno::EINVAL)?.attributes()?.size as i64,
        _ => return Err(Errno::EINVAL),
    };
    let start = base.checked_add(lock.l_start).ok_or(Errno::EOVERFLOW)?;
    let (first, last) = match lock.l_len {
        0 => (start, i64::MAX),
        len if len > 0 => (start, start.checked_add(len - 1).ok_or(Errno::EOVERFLOW)?),
        len => (
            start.checked_add(len).ok_or(Errno::EINVAL)?,
            start.checked_sub(1).ok_or(Errno::EINVAL)?,
        ),
    };
    if first < 0 || last < 0 {
        return Err(Errno::EINVAL);
    }
    Ok((first as u64, last as u64))
}

fn record_lock(call: &Call<'_>, open: &OpenFile, command: u32) -> Result<usize> {
    let mut lock: flock = user::read(call.address(2))?;
    let of_description = matches!(command, F_OFD_GETLK | F_OFD_SETLK | F_OFD_SETLKW);
    if of_description && lock.l_pid != 0 {
        return Err(Errno::EINVAL);
    }
    let by = if of_description {
        For::Description
    } else {
        For::Process(call.files())
    };
    let (start, last) = range(open, &lock)?;
    let mode = match lock.l_type as u32 {
        F_RDLCK => Some(Mode::Shared),
        F_WRLCK => Some(Mode::Exclusive),
        F_UNLCK => None,
        _ => return Err(Errno::EINVAL),
    };
    let record = Record {
        mode: mode.unwrap_or(Mode::Shared),
        start,
        last,
        pid: if of_description {
            0
        } else {
            call.process().pid()
        },
    };
    if matches!(command, F_GETLK | F_OFD_GETLK) {
        if mode.is_none() {
            return Err(Errno::EINVAL);
        }
        match locks::conflicting_record(open, by, &record)? {
            None => lock.l_type = F_UNLCK as _,
            Some(held) => {
                let exclusive = held.mode == Mode::Exclusive;
                lock.l_type = if exclusive { F_WRLCK } else { F_RDLCK } as _;
                lock.l_whence = SEEK_SET as _;
                lock.l_start = held.start as i64;
                lock.l_len = if held.last == i64::MAX as u64 {
                    0
                } else {
                    (held.last - held.start + 1) as i64
                };
                lock.l_pid = if held.pid == 0 { -1 } else { held.pid as i32 };
            }
        }
        user::write(call.address(2), &lock)?;
        return Ok(0);
    }
    if mode.is_some() {
        call.takes_memory().map_err(|_| Errno::ENOLCK)?;
    }
    match mode {
        None => locks::unlock_record(open, by, &record)?,
        Some(Mode::Shared) if !open.flags().reads() => return Err(Errno::EBADF),
        Some(Mode::Exclusive) if !open.flags().writes() => return Err(Errno::EBADF),
        Some(_) => {
            let wait = matches!(command, F_SETLKW | F_OFD_SETLKW);
            locks::lock_record(open, by, record, wait, &call.process().account())?;
            // A close of the descriptor meanwhile found no lock to release, and no later one will.
            if !of_description && !call.files().leads_to(call.int(0), open) {
                call.files().release_locks(open);
                return Err(Errno::EBADF);
            }
        }
    }
    Ok(0)
}

fn flock_call(call: &mut Call<'_>) -> Result<usize> {
    let open = call.opened(0)?;
    let operation = call.unsigned(1);
    let mode = match operation & !LOCK_NB {
        LOCK_SH => Mode::Shared,
        LOCK_EX => Mode::Exclusive,
        LOCK_UN => return locks::unlock_whole(&open).map(|()| 0),
        _ => return Err(Errno::EINVAL),
    };
    call.takes_memory().map_err(|_| Errno::ENOLCK)?;
    let (process, wait) = (call.process(), operation & LOCK_NB == 0);
    locks::lock_whole(&open, mode, wait, process.pid(), &process.account())?;
    Ok(0)
}
