//! `seccomp`, and `prctl(PR_SET_SECCOMP)`, which does a part of it.

use core::sync::atomic::Ordering::Relaxed;

use abi::{
    Errno, Result,
    raw::{
        general as raw,
        ptrace::{
            SECCOMP_FILTER_FLAG_LOG, SECCOMP_FILTER_FLAG_SPEC_ALLOW, SECCOMP_FILTER_FLAG_TSYNC,
            SECCOMP_FILTER_FLAG_TSYNC_ESRCH, SECCOMP_GET_ACTION_AVAIL, SECCOMP_MODE_FILTER,
            SECCOMP_MODE_STRICT, SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO, SECCOMP_RET_KILL_PROCESS,
            SECCOMP_RET_KILL_THREAD, SECCOMP_RET_LOG, SECCOMP_RET_TRACE, SECCOMP_RET_TRAP,
            SECCOMP_SET_MODE_FILTER, SECCOMP_SET_MODE_STRICT,
        },
    },
};
use nucleus::{VirtAddr, user};

use super::{Call, FlagSet, SystemCall, call, choice, flag_set, note_unsupported};
use crate::bpf::Use;
use crate::process::seccomp::{self, Program};

const OPERATIONS: FlagSet = choice!(
    "operation",
    [
        SECCOMP_SET_MODE_STRICT,
        SECCOMP_SET_MODE_FILTER,
        SECCOMP_GET_ACTION_AVAIL
    ],
    EINVAL
);
const FLAGS: FlagSet = flag_set!(
    "flags",
    [
        SECCOMP_FILTER_FLAG_TSYNC,
        SECCOMP_FILTER_FLAG_LOG,
        // Nothing speculates differently for a thread with filters.
        SECCOMP_FILTER_FLAG_SPEC_ALLOW,
        SECCOMP_FILTER_FLAG_TSYNC_ESRCH
    ],
    EINVAL
);

pub(super) const CALLS: &[SystemCall] = &[call!(__NR_seccomp, seccomp)
    .flags(&[&OPERATIONS, &FLAGS])
    .note("no notices to another process (`SECCOMP_RET_USER_NOTIF`)")];

fn seccomp(call: &mut Call<'_>) -> Result<usize> {
    let operation = call.choice(0, &OPERATIONS)?;
    match operation {
        SECCOMP_SET_MODE_FILTER => {
            let flags = call.flags(1, &FLAGS)?;
            add_filter(call, flags, call.address(2))
        }
        _ if call.args[1] != 0 => Err(Errno::EINVAL),
        SECCOMP_GET_ACTION_AVAIL => match call.read(2)? {
            SECCOMP_RET_KILL_PROCESS
            | SECCOMP_RET_KILL_THREAD
            | SECCOMP_RET_TRAP
            | SECCOMP_RET_ERRNO
            | SECCOMP_RET_TRACE
            | SECCOMP_RET_LOG
            | SECCOMP_RET_ALLOW => Ok(0),
            other => {
                note_unsupported(call.caller(), "action", other.into());
                Err(Errno::EOPNOTSUPP)
            }
        },
        _ if call.args[2] != 0 => Err(Errno::EINVAL),
        _ => restrict(call),
    }
}

/// `prctl(PR_SET_SECCOMP, mode, program)`.
pub(super) fn set_mode(call: &mut Call<'_>, mode: u64) -> Result<usize> {
    match u32::try_from(mode) {
        Ok(SECCOMP_MODE_STRICT) => restrict(call),
        Ok(SECCOMP_MODE_FILTER) => add_filter(call, 0, call.address(2)),
        _ => Err(Errno::EINVAL),
    }
}

/// The strict mode leaves `read`, `write`, `exit` and `rt_sigreturn`.
fn restrict(call: &mut Call<'_>) -> Result<usize> {
    seccomp::restrict(call.thread).map(|()| 0)
}

/// Adds the filter whose `struct sock_fprog` is at `at`.
fn add_filter(call: &mut Call<'_>, flags: u32, at: VirtAddr) -> Result<usize> {
    let (count, first) = if call.own.compatible_call {
        let [count, first]: [u32; 2] = user::read(at)?;
        (count as u16, u64::from(first))
    } else {
        let [count, first]: [u64; 2] = user::read(at)?;
        (count as u16, first)
    };
    let program = Program::new(Use::Seccomp, usize::from(count), |n| {
        user::read(VirtAddr((first as usize).wrapping_add(n * 8))).map_err(|_| Errno::EFAULT)
    })?;
    let trusted = call.credentials().may(raw::CAP_SYS_ADMIN);
    if !trusted && !call.process().no_new_privileges.load(Relaxed) {
        return Err(Errno::EACCES);
    }
    call.takes_memory()?;
    let logs = flags & SECCOMP_FILTER_FLAG_LOG != 0;
    let all = flags & SECCOMP_FILTER_FLAG_TSYNC != 0;
    match seccomp::add(call.thread, program, logs, all)? {
        None => Ok(0),
        Some(_) if flags & SECCOMP_FILTER_FLAG_TSYNC_ESRCH != 0 => Err(Errno::ESRCH),
        Some(thread) => Ok(thread as usize),
    }
}
