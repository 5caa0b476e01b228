//! Signals.

use alloc::sync::Arc;

use abi::{Errno, Result, raw::general as raw};
use nucleus::{
    task::{self, Sleep},
    time, user,
};

use super::{Call, SystemCall, arguments::find as find_by, call};
use crate::process::{
    Credentials, Pid, Process, Thread, pid_table,
    signal::{self, Action, AltStack, ERESTARTNOHAND, Info, SignalSet},
};

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_rt_sigaction, rt_sigaction),
    call!(__NR_rt_sigprocmask, rt_sigprocmask),
    call!(__NR_rt_sigpending, rt_sigpending),
    call!(__NR_rt_sigsuspend, rt_sigsuspend),
    call!(__NR_rt_sigtimedwait, rt_sigtimedwait),
    call!(__NR_rt_sigqueueinfo, rt_sigqueueinfo),
    call!(__NR_rt_tgsigqueueinfo, rt_tgsigqueueinfo),
    call!(__NR_rt_sigreturn, rt_sigreturn),
    call!(__NR_sigaltstack, sigaltstack),
    call!(__NR_kill, kill),
    call!(__NR_tkill, tkill),
    call!(__NR_tgkill, tgkill),
    call!(__NR_pause, pause),
    call!(__NR_restart_syscall, restart_syscall),
];

/// Bytes of a signal set.
const SET_LEN: usize = 8;

/// Argument `n` as a signal, 1 to 64, or 0 to test only.
pub(super) fn signal_or_zero(call: &Call<'_>, n: usize) -> Result<u32> {
    let signal = call.unsigned(n);
    if signal > 64 {
        return Err(Errno::EINVAL);
    }
    Ok(signal)
}

fn check_len(call: &Call<'_>, n: usize) -> Result<()> {
    if call.size(n) == SET_LEN {
        Ok(())
    } else {
        Err(Errno::EINVAL)
    }
}

fn rt_sigaction(call: &mut Call<'_>) -> Result<usize> {
    check_len(call, 3)?;
    let signal = call.unsigned(0);
    if !(1..=64).contains(&signal) {
        return Err(Errno::EINVAL);
    }
    let new = match call.args[1] {
        0 => None,
        _ => Some(Action {
            compatible: call.own.compatible_call,
            ..Action::decode(call.read(1)?)
        }),
    };
    if new.is_some() && SignalSet::UNSTOPPABLE.has(signal) {
        return Err(Errno::EINVAL);
    }
    let old = call.process().signals.set_action(signal, new);
    if new.is_some_and(|new| new.ignores(signal)) {
        signal::timer::dropped(call.process(), SignalSet::one(signal));
    }
    call.write_if(2, &old.encode())?;
    Ok(0)
}

fn rt_sigprocmask(call: &mut Call<'_>) -> Result<usize> {
    check_len(call, 3)?;
    let old = call.thread.signals.mask();
    if call.args[1] != 0 {
        let set = SignalSet(call.read(1)?);
        let new = match call.unsigned(0) {
            raw::SIG_BLOCK => old.union(set),
            raw::SIG_UNBLOCK => old.without(set),
            raw::SIG_SETMASK => set,
            _ => return Err(Errno::EINVAL),
        };
        call.thread.set_mask(new);
    }
    call.write_if(2, &old.0)?;
    Ok(0)
}

fn rt_sigpending(call: &mut Call<'_>) -> Result<usize> {
    if call.size(1) > SET_LEN {
        return Err(Errno::EINVAL);
    }
    let pending = call
        .process()
        .signals
        .pending()
        .union(call.thread.pending_signals())
        .and(call.thread.signals.mask());
    let bytes = pending.0.to_le_bytes();
    user::copy_out(call.address(0), &bytes[..call.size(1)])?;
    Ok(0)
}

/// Sleeps until a signal is delivered.
fn sleep_for_signal() -> Errno {
    task::sleep(Sleep::INTERRUPTIBLE);
    ERESTARTNOHAND
}

fn rt_sigsuspend(call: &mut Call<'_>) -> Result<usize> {
    check_len(call, 1)?;
    let mask = SignalSet(call.read(0)?);
    call.thread.set_temporary_mask(mask);
    Err(sleep_for_signal())
}

fn pause(_: &mut Call<'_>) -> Result<usize> {
    Err(sleep_for_signal())
}

fn rt_sigtimedwait(call: &mut Call<'_>) -> Result<usize> {
    check_len(call, 3)?;
    let set = SignalSet(call.read(0)?).without(SignalSet::UNSTOPPABLE);
    let deadline = call.timeout(2)?;
    let may_sleep = deadline.is_none_or(|deadline| deadline > time::since_boot());
    let waited = if may_sleep { set } else { SignalSet::EMPTY };
    let mut found = call.thread.take_or_wait(set, waited);
    if found.is_none() && may_sleep {
        task::sleep(Sleep {
            interruptible: true,
            deadline,
        });
        found = call.thread.take_or_wait(set, SignalSet::EMPTY);
    }
    let Some(info) = found else {
        return Err(if task::current().is_interrupted() {
            Errno::EINTR
        } else {
            Errno::EAGAIN
        });
    };
    call.write_if(1, &info.encode())?;
    Ok(info.signal as usize)
}

/// Returns the details that `kill` and related calls send.
pub(super) fn sender(call: &Call<'_>, signal: u32, code: i32) -> Info {
    Info {
        code,
        ..Info::user(signal, call.process().pid(), call.credentials().real_uid)
    }
}

/// Checks that the caller may send `signal` to `target`.
fn check_permission(call: &Call<'_>, target: &Process, signal: u32) -> Result<()> {
    if Arc::as_ptr(call.process()) == core::ptr::from_ref(target) {
        return Ok(());
    }
    let theirs = target.credentials().ok_or(Errno::ESRCH)?;
    may_signal_process(call, target, &theirs, signal)
}

/// As [`check_permission`], of another process that has `theirs`.
fn may_signal_process(
    call: &Call<'_>,
    target: &Process,
    theirs: &Credentials,
    signal: u32,
) -> Result<()> {
    let same_session = || target.session_id() == call.process().session_id();
    let may = call.credentials().may_signal(theirs) || signal == raw::SIGCONT && same_session();
    Errno::EPERM.unless(may)
}

pub(super) fn send(call: &Call<'_>, target: &Process, info: Info) -> Result<()> {
    check_permission(call, target, info.signal)?;
    if info.signal == 0 {
        return Ok(());
    }
    signal::send_to_process(target, info)
}

/// Sends to several: good if one is reached, else the first error, `ESRCH` if there is none.
fn send_to_all(
    call: &Call<'_>,
    targets: impl IntoIterator<Item = Arc<Process>>,
    info: Info,
) -> Result<()> {
    let mut answer = Err(Errno::ESRCH);
    for target in targets {
        let sent = send(call, &target, info);
        if answer.is_err() && (sent.is_ok() || answer == Err(Errno::ESRCH)) {
            answer = sent;
        }
    }
    answer
}

/// Sends to all that the caller may send to, good if these are none: `ESRCH` without any process,
/// else the last error that is not `EPERM`, if no later process is reached.
fn send_to_most(
    call: &Call<'_>,
    targets: impl Iterator<Item = Arc<Process>>,
    info: Info,
) -> Result<()> {
    let mut answer = None;
    for target in targets {
        match send(call, &target, info) {
            Err(Errno::EPERM) => answer = answer.or(Some(Ok(()))),
            sent => answer = Some(sent),
        }
    }
    answer.unwrap_or(Err(Errno::ESRCH))
}

fn kill(call: &mut Call<'_>) -> Result<usize> {
    let signal = signal_or_zero(call, 1)?;
    let info = sender(call, signal, raw::SI_USER as i32);
    match call.int(0) {
        i32::MIN => return Err(Errno::ESRCH),
        0 => {
            let group = pid_table::members(call.process().group_id());
            send_to_all(call, group, info)?;
        }
        -1 => {
            let own = call.process().pid();
            // A child of one that is killed meanwhile is visited, too, or is not made: `fork` looks
            // whether its caller is dying when the child is in the table.
            let others =
                Process::by_birth().filter(|p| p.pid() != own && p.pid() != pid_table::INIT);
            send_to_most(call, others, info)?;
        }
        pid if pid < 0 => send_to_all(call, pid_table::members(pid.unsigned_abs()), info)?,
        pid => {
            let pid = pid as Pid;
            // Nothing is sent: no reference is needed, which others that look would count, too.
            if signal == 0 && pid != call.process().pid() {
                let judge =
                    |target: &_, theirs: &_| may_signal_process(call, target, theirs, signal);
                if let Some(answer) = pid_table::with_leader(pid, judge) {
                    return answer.map(|()| 0);
                }
            }
            let target = call.find_process(pid).ok_or(Errno::ESRCH)?;
            send(call, &target, info)?;
        }
    }
    Ok(0)
}

fn find(call: &Call<'_>, process: Option<i32>, tid: i32, signal: u32) -> Result<Arc<Thread>> {
    if tid <= 0 || process.is_some_and(|pid| pid <= 0) {
        return Err(Errno::EINVAL);
    }
    let thread = call.find_thread(tid as Pid).ok_or(Errno::ESRCH)?;
    if process.is_some_and(|pid| pid as Pid != thread.process().pid()) {
        return Err(Errno::ESRCH);
    }
    check_permission(call, thread.process(), signal)?;
    Ok(thread)
}

fn send_to_thread(call: &Call<'_>, process: Option<i32>, tid: i32, signal: u32) -> Result<usize> {
    let thread = find(call, process, tid, signal)?;
    if signal != 0 {
        signal::send_to_thread(&thread, sender(call, signal, raw::SI_TKILL))?;
    }
    Ok(0)
}

fn tkill(call: &mut Call<'_>) -> Result<usize> {
    let signal = signal_or_zero(call, 1)?;
    send_to_thread(call, None, call.int(0), signal)
}

fn tgkill(call: &mut Call<'_>) -> Result<usize> {
    let signal = signal_or_zero(call, 2)?;
    send_to_thread(call, Some(call.int(0)), call.int(1), signal)
}

/// The details that a program gives with a signal; it may not pretend to be the kernel, or `kill`.
pub(super) fn given(signal: u32, words: &[u64; 16], to_self: bool) -> Result<Info> {
    let info = Info::decode(signal, words);
    if (info.code >= 0 || info.code == raw::SI_TKILL) && !to_self {
        return Err(Errno::EPERM);
    }
    Ok(info)
}

fn rt_sigqueueinfo(call: &mut Call<'_>) -> Result<usize> {
    let signal = signal_or_zero(call, 1)?;
    let target = find_by(call.int(0), |id| call.find_process(id))?;
    let to_self = Arc::ptr_eq(&target, call.process());
    let info = given(signal, &call.read(2)?, to_self)?;
    send(call, &target, info)?;
    Ok(0)
}

fn rt_tgsigqueueinfo(call: &mut Call<'_>) -> Result<usize> {
    let signal = signal_or_zero(call, 2)?;
    let thread = find(call, Some(call.int(0)), call.int(1), signal)?;
    let to_self = Arc::ptr_eq(thread.process(), call.process());
    let info = given(signal, &call.read(3)?, to_self)?;
    if signal != 0 {
        signal::send_to_thread(&thread, info)?;
    }
    Ok(0)
}

fn rt_sigreturn(call: &mut Call<'_>) -> Result<usize> {
    let restored = signal::sigreturn(call.thread, call.own, call.context);
    Ok(returned(call, restored))
}

/// The end of a handler, whose frame may be damaged.
pub(in crate::linux) fn returned(call: &Call<'_>, restored: Result<u64>) -> usize {
    restored.map_or_else(
        |_| {
            signal::force(call.thread, Info::kernel(raw::SIGSEGV));
            0
        },
        |value| value as usize,
    )
}

fn sigaltstack(call: &mut Call<'_>) -> Result<usize> {
    let sp = call.context.regs.rsp;
    let old = call.own.alt_stack;
    if call.args[0] != 0 {
        let [base, flags, size]: [u64; 3] = call.read(0)?;
        let flags = flags as u32;
        if old.size != 0 && old.contains(sp) {
            return Err(Errno::EPERM);
        }
        let mode = flags & !raw::SS_AUTODISARM;
        if mode != 0 && mode != raw::SS_DISABLE && mode != raw::SS_ONSTACK {
            return Err(Errno::EINVAL);
        }
        if mode != raw::SS_DISABLE && size < u64::from(raw::MINSIGSTKSZ) {
            return Err(Errno::ENOMEM);
        }
        call.own.alt_stack = AltStack::decode(base, flags, size);
    }
    if call.args[1] != 0 {
        let flags = u64::from(old.visible_flags(sp));
        call.write(1, &[old.base, flags, old.size])?;
    }
    Ok(0)
}

fn restart_syscall(call: &mut Call<'_>) -> Result<usize> {
    let (handler, args) = call.own.restart.take().ok_or(Errno::EINTR)?;
    call.args = args;
    handler(call)
}
