//! Processes by descriptor: `pidfd_open`, `pidfd_send_signal`, `pidfd_getfd`.

use alloc::sync::Arc;

use abi::{Errno, Result, raw::general as raw};

use super::{Call, FlagSet, NO_FLAGS, SystemCall, call, flag_set, signal};
use crate::{
    process::{Ids, Pid, PidFile, Process, View, pid_table, process_of},
    pseudofs::proc,
};

/// `PIDFD_NONBLOCK`, which the bindings leave out.
const PIDFD_NONBLOCK: u32 = raw::O_NONBLOCK;

const OPEN_FLAGS: FlagSet = flag_set!("flags", [PIDFD_NONBLOCK], EINVAL);

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_pidfd_open, pidfd_open).flags(&[&OPEN_FLAGS]),
    call!(__NR_pidfd_send_signal, pidfd_send_signal).flags(&[&NO_FLAGS]),
    call!(__NR_pidfd_getfd, pidfd_getfd).flags(&[&NO_FLAGS]),
];

/// The process that the descriptor `fd` stands for.
pub(super) fn process(call: &Call<'_>, fd: i32) -> Result<Arc<Process>> {
    let open = call.files().get(fd)?;
    process_of(&open)
}

/// Looks into a process.
///
/// # Errors
/// `EPERM`, `ESRCH`.
pub(super) fn view(process: &Process) -> Result<View> {
    View::of(&process.leader().ok_or(Errno::ESRCH)?, Ids::Real)
}

fn pidfd_open(call: &mut Call<'_>) -> Result<usize> {
    let flags = call.flags(1, &OPEN_FLAGS)?;
    let pid = Pid::try_from(call.int(0)).map_err(|_| Errno::EINVAL)?;
    if pid == 0 {
        return Err(Errno::EINVAL);
    }
    let Some(process) = Process::find(pid) else {
        // A thread's id that is not its process's.
        return Err(match pid_table::find_thread(pid) {
            Some(_) => Errno::EINVAL,
            None => Errno::ESRCH,
        });
    };
    call.takes_memory()?;
    let open = PidFile::open(process, flags);
    call.files().install(open, true, call.descriptor_limit())
}

fn pidfd_send_signal(call: &mut Call<'_>) -> Result<usize> {
    call.flags(3, &NO_FLAGS)?;
    // A process's directory in `/proc` stands for it too, here.
    let open = call.files().get(call.int(0))?;
    let target = open
        .location()
        .filter(|_| !open.is_path())
        .and_then(|place| proc::process_of(&**place.vnode()))
        .map_or_else(|| process_of(&open), Ok)?;
    let signal = signal::signal_or_zero(call, 1)?;
    let info = if call.args[2] == 0 {
        signal::sender(call, signal, raw::SI_USER as i32)
    } else {
        let words: [u64; 16] = call.read(2)?;
        if words[0] as u32 != signal {
            return Err(Errno::EINVAL);
        }
        signal::given(signal, &words, Arc::ptr_eq(&target, call.process()))?
    };
    if target.is_reaped() {
        return Err(Errno::ESRCH);
    }
    signal::send(call, &target, info)?;
    Ok(0)
}

fn pidfd_getfd(call: &mut Call<'_>) -> Result<usize> {
    call.flags(2, &NO_FLAGS)?;
    let target = process(call, call.int(0))?;
    let open = view(&target)?.file(call.int(1))?;
    call.files().install(open, true, call.descriptor_limit())
}
