//! The ids of a thread: of processes, threads, groups and sessions.

use abi::{Errno, Result};

use super::{Call, SystemCall, call};
use crate::process::{Pid, pid_table};

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_getpid, |call| Ok(call.process().pid() as usize)),
    call!(__NR_gettid, gettid),
    call!(
        __NR_getppid,
        |call| Ok(call.process().parent_pid() as usize)
    ),
    call!(__NR_getpgrp, |call| Ok(call.process().group_id() as usize)),
    call!(__NR_getpgid, |call| {
        Ok(call.process_named(0)?.group_id() as usize)
    }),
    call!(__NR_getsid, |call| {
        Ok(call.process_named(0)?.session_id() as usize)
    }),
    call!(__NR_setpgid, setpgid),
    call!(__NR_setsid, setsid),
    call!(__NR_set_tid_address, set_tid_address),
];

fn gettid(call: &mut Call<'_>) -> Result<usize> {
    Ok(call.thread.tid() as usize)
}

fn setpgid(call: &mut Call<'_>) -> Result<usize> {
    let own = call.process().pid();
    let or_own = |id: i32, default: Pid| match id {
        0 => Some(default),
        id => Pid::try_from(id).ok(),
    };
    if call.int(1) < 0 {
        return Err(Errno::EINVAL);
    }
    let pid = or_own(call.int(0), own).ok_or(Errno::ESRCH)?;
    let group = or_own(call.int(1), pid).ok_or(Errno::EINVAL)?;
    pid_table::set_group(own, pid, group)?;
    Ok(0)
}

fn setsid(call: &mut Call<'_>) -> Result<usize> {
    let pid = call.process().pid();
    pid_table::set_session(pid)?;
    Ok(pid as usize)
}

fn set_tid_address(call: &mut Call<'_>) -> Result<usize> {
    call.own.clear_child_tid = call.args[0];
    gettid(call)
}
