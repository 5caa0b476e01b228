//! `wait4` and `waitid`.

use abi::{Errno, Result, raw::general as raw};
use nucleus::user;

use super::{Call, FlagSet, SystemCall, call, flag_set, limits::encode_usage};
use crate::process::signal::{Fields, Info};
use crate::process::{
    Pid, Process,
    pid_table::{Change, Clones, WaitRequest, Which},
    process_of, wait,
};

const WAIT4_OPTIONS: FlagSet = flag_set!(
    "options",
    [
        raw::WNOHANG,
        raw::WUNTRACED,
        raw::WCONTINUED,
        raw::__WNOTHREAD,
        raw::__WCLONE,
        raw::__WALL,
    ],
    EINVAL
);
const WAITID_OPTIONS: FlagSet = flag_set!(
    "options",
    [
        raw::WNOHANG,
        raw::WEXITED,
        raw::WSTOPPED,
        raw::WCONTINUED,
        raw::WNOWAIT,
        raw::__WNOTHREAD,
        raw::__WCLONE,
        raw::__WALL,
    ],
    EINVAL
);

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_wait4, wait4).flags(&[&WAIT4_OPTIONS]),
    call!(__NR_waitid, waitid).flags(&[&WAITID_OPTIONS]),
];

fn clones(options: u32) -> Clones {
    if options & raw::__WALL != 0 {
        Clones::All
    } else if options & raw::__WCLONE != 0 {
        Clones::Only
    } else {
        Clones::Without
    }
}

/// The wait status that a program sees.
fn status(change: Change) -> i32 {
    match change {
        Change::Ended(status) => status,
        Change::Stopped(signal) => 0x7f | (signal as i32) << 8,
        Change::Continued => 0xffff,
    }
}

fn write_usage(call: &Call<'_>, n: usize, process: &Process) -> Result<()> {
    if call.args[n] == 0 {
        return Ok(());
    }
    // The use of the child and of those that it waited for itself.
    let mut usage = process.usage();
    usage.add(&process.children_usage());
    call.write(n, &encode_usage(&usage))
}

fn wait4(call: &mut Call<'_>) -> Result<usize> {
    let pid = call.int(0);
    let options = call.flags(2, &WAIT4_OPTIONS)?;
    let which = match pid {
        -1 => Which::Any,
        0 => Which::Group(call.process().group_id()),
        i32::MIN => return Err(Errno::ESRCH),
        pid if pid < 0 => Which::Group(pid.unsigned_abs()),
        pid => Which::Child(pid as Pid),
    };
    let wanted = WaitRequest {
        which,
        ended: true,
        stopped: options & raw::WUNTRACED != 0,
        continued: options & raw::WCONTINUED != 0,
        clones: clones(options),
        keep: false,
    };
    let block = options & raw::WNOHANG == 0;
    let Some((child, change)) = wait::wait(call.process(), &wanted, block)? else {
        return Ok(0);
    };
    call.write_if(1, &status(change))?;
    write_usage(call, 3, &child)?;
    Ok(child.pid() as usize)
}

fn waitid(call: &mut Call<'_>) -> Result<usize> {
    let options = call.flags(3, &WAITID_OPTIONS)?;
    if options & (raw::WEXITED | raw::WSTOPPED | raw::WCONTINUED) == 0 {
        return Err(Errno::EINVAL);
    }
    let mut block = options & raw::WNOHANG == 0;
    // The answer of a nonblocking descriptor before the child has changed.
    let mut nothing_yet = false;
    let id = call.int(1);
    let which = match call.unsigned(0) {
        raw::P_ALL => Which::Any,
        raw::P_PID if id > 0 => Which::Child(id as Pid),
        raw::P_PGID if id == 0 => Which::Group(call.process().group_id()),
        raw::P_PGID if id > 0 => Which::Group(id as Pid),
        raw::P_PIDFD if id >= 0 => {
            let open = call.files().get(id)?;
            let process = process_of(&open)?;
            if block && open.flags().has(raw::O_NONBLOCK) {
                block = false;
                nothing_yet = true;
            }
            if process.is_reaped() {
                return Err(Errno::ECHILD);
            }
            Which::Child(process.pid())
        }
        _ => return Err(Errno::EINVAL),
    };
    let wanted = WaitRequest {
        which,
        ended: options & raw::WEXITED != 0,
        stopped: options & raw::WSTOPPED != 0,
        continued: options & raw::WCONTINUED != 0,
        clones: clones(options),
        keep: options & raw::WNOWAIT != 0,
    };
    let found = wait::wait(call.process(), &wanted, block)?;
    if found.is_none() && nothing_yet {
        return Err(Errno::EAGAIN);
    }
    if let Some((child, _)) = &found {
        write_usage(call, 4, child)?;
    }
    if call.args[2] == 0 {
        return Ok(0);
    }
    let mut words = match &found {
        None => [0; 16],
        Some((child, change)) => child_info(child, *change).encode(),
    };
    // Times are for signals only.
    words[4] = 0;
    words[5] = 0;
    user::write(call.address(2), &words)?;
    Ok(0)
}

fn child_info(child: &Process, change: Change) -> Info {
    let (code, status) = match change {
        Change::Ended(status) if status & 0x7f == 0 => (raw::CLD_EXITED, status >> 8),
        Change::Ended(status) => (raw::CLD_KILLED, status & 0x7f),
        Change::Stopped(signal) => (raw::CLD_STOPPED, signal as i32),
        Change::Continued => (raw::CLD_CONTINUED, raw::SIGCONT as i32),
    };
    let fields = Fields::Child {
        pid: child.pid(),
        uid: child.real_uid(),
        status,
        user: 0,
        system: 0,
    };
    Info::new(raw::SIGCHLD, code as i32, fields)
}
