//! Threads and processes come and go.

use abi::{Errno, Result, raw::general as raw};
use nucleus::{VirtAddr, user};

use super::{Call, FlagSet, SystemCall, call, flag_set};
use crate::process::{
    Pid,
    fork::{self, Request},
    undo,
};

/// Flags of `clone` without the exit signal.
const CLONE_FLAGS: FlagSet = flag_set!(
    "flags",
    [
        raw::CLONE_VM,
        raw::CLONE_FS,
        raw::CLONE_FILES,
        raw::CLONE_SIGHAND,
        raw::CLONE_PIDFD,
        raw::CLONE_PTRACE,
        raw::CLONE_VFORK,
        raw::CLONE_PARENT,
        raw::CLONE_THREAD,
        raw::CLONE_SYSVSEM,
        raw::CLONE_SETTLS,
        raw::CLONE_PARENT_SETTID,
        raw::CLONE_CHILD_CLEARTID,
        raw::CLONE_DETACHED,
        raw::CLONE_UNTRACED,
        raw::CLONE_CHILD_SETTID,
        raw::CLONE_IO,
    ],
    EINVAL
);
/// Those of `clone3`, where nothing is ignored any more.
const CLONE3_FLAGS: FlagSet = flag_set!(
    "flags",
    [
        raw::CLONE_VM,
        raw::CLONE_FS,
        raw::CLONE_FILES,
        raw::CLONE_SIGHAND,
        raw::CLONE_PIDFD,
        raw::CLONE_PTRACE,
        raw::CLONE_VFORK,
        raw::CLONE_PARENT,
        raw::CLONE_THREAD,
        raw::CLONE_SYSVSEM,
        raw::CLONE_SETTLS,
        raw::CLONE_PARENT_SETTID,
        raw::CLONE_CHILD_CLEARTID,
        raw::CLONE_UNTRACED,
        raw::CLONE_CHILD_SETTID,
        raw::CLONE_IO,
        raw::CLONE_CLEAR_SIGHAND,
    ],
    EINVAL
);
const UNSHARE_FLAGS: FlagSet = flag_set!(
    "flags",
    [
        raw::CLONE_FS,
        raw::CLONE_FILES,
        raw::CLONE_SYSVSEM,
        raw::CLONE_THREAD,
        raw::CLONE_SIGHAND,
        raw::CLONE_VM,
    ],
    EINVAL
);
/// The kinds of namespaces that `setns` can be asked for: none.
const SETNS_TYPES: FlagSet = flag_set!("nstype", [], EINVAL);

/// Levels of process-id namespaces on Linux.
const MAX_PID_LEVELS: u64 = 32;

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_fork, |call| fork(call, 0)),
    call!(__NR_vfork, |call| {
        fork(call, raw::CLONE_VFORK | raw::CLONE_VM)
    }),
    call!(__NR_clone, clone).flags(&[&CLONE_FLAGS]),
    call!(__NR_clone3, clone3).flags(&[&CLONE3_FLAGS]),
    call!(__NR_unshare, unshare).flags(&[&UNSHARE_FLAGS]),
    call!(__NR_setns, setns)
        .flags(&[&SETNS_TYPES])
        .note("there are no namespaces: never succeeds"),
    call!(__NR_exit, exit),
    call!(__NR_exit_group, exit_group),
];

fn make(call: &mut Call<'_>, request: &Request) -> Result<usize> {
    let tid = fork::clone(call.thread, call.own, call.context, request)?;
    Ok(tid as usize)
}

fn fork(call: &mut Call<'_>, flags: u32) -> Result<usize> {
    let request = Request {
        flags: flags.into(),
        exit_signal: raw::SIGCHLD,
        ..Request::default()
    };
    make(call, &request)
}

/// The low byte of the flags is the exit signal (`CSIGNAL`).
fn clone(call: &mut Call<'_>) -> Result<usize> {
    let [flags, stack, parent_tid, child_tid, tls, _] = call.args;
    let flags = flags & u64::from(u32::MAX);
    let exit_signal = (flags & u64::from(raw::CSIGNAL)) as u32;
    let flags = CLONE_FLAGS.check(call.caller(), flags & !u64::from(raw::CSIGNAL))?;
    let has = |flag: u32| flags & u64::from(flag) != 0;
    // One argument says where to store the thread's id and the descriptor.
    let clash = has(raw::CLONE_PARENT_SETTID) || has(raw::CLONE_DETACHED);
    if has(raw::CLONE_PIDFD) && clash {
        return Err(Errno::EINVAL);
    }
    let request = Request {
        flags,
        exit_signal,
        stack,
        tls,
        parent_tid,
        child_tid,
        pidfd: parent_tid,
        wanted_id: None,
    };
    make(call, &request)
}

/// Words of `struct clone_args` that this kernel knows.
const CLONE_WORDS: usize = raw::CLONE_ARGS_SIZE_VER2 as usize / 8;

/// The id that the caller of `clone3` wants: one for each level of process-id namespaces, of which
/// there is one.
fn wanted_id(call: &Call<'_>, array: u64, count: u64) -> Result<Option<Pid>> {
    if count > MAX_PID_LEVELS || (array == 0) != (count == 0) {
        return Err(Errno::EINVAL);
    }
    match count {
        0 => return Ok(None),
        1 => {}
        _ => return Err(Errno::EINVAL),
    }
    let id: i32 = user::read(VirtAddr(array as usize))?;
    let id = Pid::try_from(id).map_err(|_| Errno::EINVAL)?;
    if !call.credentials().may(raw::CAP_CHECKPOINT_RESTORE)
        && !call.credentials().may(raw::CAP_SYS_ADMIN)
    {
        return Err(Errno::EPERM);
    }
    Ok(Some(id))
}

fn clone3(call: &mut Call<'_>) -> Result<usize> {
    if call.size(1) < raw::CLONE_ARGS_SIZE_VER0 as usize {
        return Err(Errno::EINVAL);
    }
    let [
        flags,
        pidfd,
        child_tid,
        parent_tid,
        exit_signal,
        stack,
        stack_size,
        tls,
        set_tid,
        set_tid_size,
        _cgroup,
    ]: [u64; CLONE_WORDS] = call.read_words(0, call.size(1))?;
    let wanted_id = wanted_id(call, set_tid, set_tid_size)?;
    let flags = CLONE3_FLAGS.check(call.caller(), flags)?;
    let stack_good = (stack == 0) == (stack_size == 0);
    if exit_signal > 64 || !stack_good {
        return Err(Errno::EINVAL);
    }
    if flags & u64::from(raw::CLONE_THREAD | raw::CLONE_PARENT) != 0 && exit_signal != 0 {
        return Err(Errno::EINVAL);
    }
    let top = stack.checked_add(stack_size).ok_or(Errno::EINVAL)?;
    if top as usize > nucleus::addr::USER_END.0 {
        return Err(Errno::EINVAL);
    }
    let request = Request {
        flags,
        exit_signal: exit_signal as u32,
        stack: top,
        tls,
        parent_tid,
        child_tid,
        pidfd,
        wanted_id,
    };
    make(call, &request)
}

/// Namespaces there are none, so none can be left or joined.
fn setns(call: &mut Call<'_>) -> Result<usize> {
    let open = call.files().get(call.int(0))?;
    call.flags(1, &SETNS_TYPES)?;
    // No file stands for a namespace; one that stands for a process has none to be joined.
    drop(open);
    Err(Errno::EINVAL)
}

fn unshare(call: &mut Call<'_>) -> Result<usize> {
    let flags = call.flags(0, &UNSHARE_FLAGS)?;
    // A thread can't leave what makes it one; a single one has left it already.
    let of_threads = raw::CLONE_THREAD | raw::CLONE_SIGHAND | raw::CLONE_VM;
    if flags & of_threads != 0 && call.process().signals.thread_count() != 1 {
        return Err(Errno::EINVAL);
    }
    // The only step that can fail comes first.
    if flags & raw::CLONE_FILES != 0 {
        call.own.unshare_files()?;
    }
    if flags & raw::CLONE_FS != 0 {
        call.own.fs = call.own.fs.duplicate();
    }
    if flags & raw::CLONE_SYSVSEM != 0 {
        undo::leave(&mut call.own.undo, call.thread.process().pid());
    }
    call.thread.publish(Some(call.own.shared()));
    Ok(0)
}

/// The wait status of a thread that ends with argument 0.
fn status(call: &Call<'_>) -> i32 {
    (call.int(0) & 0xff) << 8
}

pub(super) fn exit(call: &mut Call<'_>) -> Result<usize> {
    call.own.ended = Some(status(call));
    call.thread.signals.call_attention();
    Ok(0)
}

fn exit_group(call: &mut Call<'_>) -> Result<usize> {
    call.process().signals.end(status(call));
    call.thread.signals.call_attention();
    Ok(0)
}
