//! The ids of a thread: of processes, threads, groups and sessions.

use abi::{Errno, Result, raw::general as raw};

use super::{Call, SystemCall};
use crate::process::{Pid, Process, pid_table};

pub(super) const CALLS: &[SystemCall] = &[
    SystemCall::new(raw::__NR_getpid, "getpid", getpid),
    SystemCall::new(raw::__NR_gettid, "gettid", gettid),
    SystemCall::new(raw::__NR_getppid, "getppid", getppid),
    SystemCall::new(raw::__NR_getpgrp, "getpgrp", getpgrp),
    SystemCall::new(raw::__NR_getpgid, "getpgid", getpgid),
    SystemCall::new(raw::__NR_getsid, "getsid", getsid),
    SystemCall::new(raw::__NR_setpgid, "setpgid", setpgid),
    SystemCall::new(raw::__NR_setsid, "setsid", setsid),
    SystemCall::new(
        raw::__NR_set_tid_address,
        "set_tid_address",
        set_tid_address,
    ),
];

pub(super) fn getpid(call: &mut Call<'_>) -> Result<usize> {
    Ok(call.process().pid() as usize)
}

pub(super) fn gettid(call: &mut Call<'_>) -> Result<usize> {
    Ok(call.thread.tid() as usize)
}

pub(super) fn getppid(call: &mut Call<'_>) -> Result<usize> {
    Ok(call.process().parent_pid() as usize)
}

pub(super) fn getpgrp(call: &mut Call<'_>) -> Result<usize> {
    Ok(call.process().group_id() as usize)
}

/// The process that argument 0 names; 0 is the caller.
fn named(call: &Call<'_>) -> Result<alloc::sync::Arc<Process>> {
    match call.int(0) {
        0 => Ok(call.process().clone()),
        pid => Pid::try_from(pid)
            .ok()
            .and_then(Process::find)
            .ok_or(Errno::ESRCH),
    }
}

pub(super) fn getpgid(call: &mut Call<'_>) -> Result<usize> {
    Ok(named(call)?.group_id() as usize)
}

pub(super) fn getsid(call: &mut Call<'_>) -> Result<usize> {
    Ok(named(call)?.session_id() as usize)
}

pub(super) fn setpgid(call: &mut Call<'_>) -> Result<usize> {
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

pub(super) fn setsid(call: &mut Call<'_>) -> Result<usize> {
    let pid = call.process().pid();
    pid_table::set_session(pid)?;
    Ok(pid as usize)
}

fn set_tid_address(call: &mut Call<'_>) -> Result<usize> {
    call.own.clear_child_tid = call.args[0];
    gettid(call)
}
