//! The two ways into the kernel: the `syscall` instruction and `int 0x80`.

use alloc::sync::Arc;

use crate::counters::Counter;
use abi::raw::general as raw;
use nucleus::{trap::UserContext, user::compat_scratch};

use super::{
    compat,
    syscall::{COUNT, TABLE, unknown},
};
use crate::process::{Call, Handler, Own, Thread};

/// The handlers of `int 0x80` by number.
static TABLE_32: [Handler; COUNT] = compat::table();

/// The calls that `SECCOMP_MODE_STRICT` leaves to a thread.
const STRICT: [u32; 4] = [
    raw::__NR_read,
    raw::__NR_write,
    raw::__NR_exit,
    raw::__NR_rt_sigreturn,
];
/// The same by `int 0x80`: `read`, `write`, `exit`, `sigreturn`.
const STRICT_32: [u32; 4] = [3, 4, 1, 119];

/// The thread has asked for more than the strict mode leaves it.
#[cold]
fn end_strict(thread: &Thread, own: &mut Own) -> isize {
    own.ended = Some(raw::SIGKILL as i32);
    thread.signals.call_attention();
    0
}

/// Serves the `syscall` instruction.
pub fn serve(thread: &Arc<Thread>, own: &mut Own, context: &mut UserContext) {
    let regs = &context.regs;
    let number = regs.orig_rax as u32;
    let args = [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9];
    own.compatible_call = false;
    let result = if own.strict && !STRICT.contains(&number) {
        end_strict(thread, own)
    } else {
        dispatch(&TABLE, thread, own, context, number, args)
    };
    context.regs.rax = result as u64;
}

/// Serves `int 0x80`: arguments and result have 32 bits.
pub fn serve32(thread: &Arc<Thread>, own: &mut Own, context: &mut UserContext) {
    let regs = &context.regs;
    let number = regs.orig_rax as u32;
    let args = [regs.rbx, regs.rcx, regs.rdx, regs.rsi, regs.rdi, regs.rbp]
        .map(|arg| u64::from(arg as u32));
    own.compatible_call = true;
    let result = if own.strict && !STRICT_32.contains(&number) {
        end_strict(thread, own)
    } else {
        dispatch(&TABLE_32, thread, own, context, number, args)
    };
    compat_scratch::clear();
    context.regs.rax = result as i32 as i64 as u64;
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
    let handler = table.get(number as usize).copied().unwrap_or(unknown);
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
