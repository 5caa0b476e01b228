//! The two ways into the kernel: the `syscall` instruction and `int 0x80`.

use alloc::sync::Arc;

use crate::counters::Counter;
use abi::{
    Errno,
    raw::{general as raw, ptrace},
};
use nucleus::{speculation, trap::UserContext, user::compat_scratch};

use super::{
    compat,
    syscall::{COUNT, TABLE},
};
use crate::process::{
    Call, Handler, Own, Thread, seccomp,
    signal::{self, Fields, Info},
};

/// The handlers of `int 0x80` by number.
static TABLE_32: [Handler; COUNT] = compat::table();

/// The highest error number that a call can return.
const MAX_ERRNO: u16 = 4095;

/// The calls that `SECCOMP_MODE_STRICT` leaves to a thread.
const STRICT: [u32; 4] = [
    raw::__NR_read,
    raw::__NR_write,
    raw::__NR_exit,
    raw::__NR_rt_sigreturn,
];
/// The same by `int 0x80`: `read`, `write`, `exit`, `sigreturn`.
const STRICT_32: [u32; 4] = [3, 4, 1, 119];

/// Serves the `syscall` instruction.
pub fn serve(thread: &Arc<Thread>, own: &mut Own, context: &mut UserContext) {
    let regs = &context.regs;
    let number = regs.orig_rax as u32;
    let args = [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9];
    own.compatible_call = false;
    let result = match thread.seccomp.is_on() {
        true => screen(thread, own, context, number, args, &STRICT),
        false => None,
    };
    let result = result.unwrap_or_else(|| dispatch(&TABLE, thread, own, context, number, args));
    context.regs.rax = result as u64;
}

/// Serves `int 0x80`: arguments and result have 32 bits.
pub fn serve32(thread: &Arc<Thread>, own: &mut Own, context: &mut UserContext) {
    let regs = &context.regs;
    let number = regs.orig_rax as u32;
    let args = [regs.rbx, regs.rcx, regs.rdx, regs.rsi, regs.rdi, regs.rbp]
        .map(|arg| u64::from(arg as u32));
    own.compatible_call = true;
    let result = match thread.seccomp.is_on() {
        true => screen(thread, own, context, number, args, &STRICT_32),
        false => None,
    };
    let result = result.unwrap_or_else(|| dispatch(&TABLE_32, thread, own, context, number, args));
    compat_scratch::clear();
    context.regs.rax = result as i32 as i64 as u64;
}

/// Asks what the thread has left itself; returns the result of a call that is not made.
#[cold]
fn screen(
    thread: &Thread,
    own: &mut Own,
    context: &UserContext,
    number: u32,
    args: [u64; 6],
    strict: &[u32],
) -> Option<isize> {
    let Some(filter) = thread.seccomp.filter() else {
        if !strict.contains(&number) {
            own.ended = Some(raw::SIGKILL as i32);
            thread.signals.call_attention();
            return Some(0);
        }
        return None;
    };
    let compatible = own.compatible_call;
    let rip = context.regs.rip;
    let (answer, logs) = filter.answer(&seccomp::data_of(number, compatible, rip, &args));
    drop(filter);
    let data = seccomp::data(answer);
    let signal = Info {
        errno: i32::from(data),
        ..Info::new(
            raw::SIGSYS,
            raw::SYS_SECCOMP as i32,
            Fields::SystemCall {
                address: rip,
                number,
                architecture: seccomp::architecture(compatible),
            },
        )
    };
    let action = answer & ptrace::SECCOMP_RET_ACTION_FULL;
    if logs || action == ptrace::SECCOMP_RET_LOG {
        seccomp::log(thread, number, action);
    }
    match action {
        ptrace::SECCOMP_RET_ALLOW | ptrace::SECCOMP_RET_LOG => return None,
        ptrace::SECCOMP_RET_ERRNO => {
            return Some(-(isize::try_from(data.min(MAX_ERRNO)).unwrap_or(0)));
        }
        // Nothing traces a thread, or takes the notices of a filter.
        ptrace::SECCOMP_RET_TRACE | ptrace::SECCOMP_RET_USER_NOTIF => {
            return Some(Errno::ENOSYS.as_return());
        }
        ptrace::SECCOMP_RET_TRAP => signal::force(thread, signal),
        ptrace::SECCOMP_RET_KILL_THREAD if thread.process().signals.thread_count() > 1 => {
            own.ended = Some(raw::SIGSYS as i32);
            thread.signals.call_attention();
        }
        // `SECCOMP_RET_KILL_PROCESS`, the last thread's end, and what is not known.
        _ => {
            thread.process().signals.end(raw::SIGSYS as i32);
            thread.signals.call_attention();
        }
    }
    // As if the call had not been made.
    Some(number as isize)
}

#[inline]
fn dispatch(
    table: &[Handler; COUNT],
    thread: &Arc<Thread>,
    own: &mut Own,
    context: &mut UserContext,
    number: u32,
    args: [u64; 6],
) -> isize {
    Counter::system_calls.add(1);
    let handler = speculation::get_or_last(table, number as usize);
    let mut call = Call {
        thread,
        own,
        context,
        args,
        number,
    };
    match handler(&mut call) {
        Ok(value) => value as isize,
        Err(error) => {
            if error.number() >= 512 {
                // Restarted or turned into EINTR before the program goes on.
                thread.signals.call_attention();
            }
            error.as_return()
        }
    }
}
