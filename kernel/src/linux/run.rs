//! The loop of a thread: runs the program, serves its calls and faults, delivers its signals.

use alloc::{string::String, sync::Arc};

use nucleus::{
    Access,
    pmap::Promotion,
    task::{self, Task},
    trap::{Event, UserContext},
};
use vm::Fault;

use super::dispatch;
use crate::process::{
    LogLimit, Own, Thread, exit, resolve_fault, rseq,
    signal::{self, Flow, Info, attend, force, synchronous},
};

/// The body of a thread's task.
pub fn run(thread: Arc<Thread>, mut own: Own, mut context: UserContext) {
    let task = task::current();
    if own.rseq.is_some() {
        task.watch_switches(true);
    }
    thread.signals.set_task(Some(task.clone()));
    // It may have changed since the task was made.
    thread.apply_priority();
    let status = serve(&thread, &task, &mut own, &mut context);
    drop(task);
    exit::end_thread(thread, own, status);
}

/// Runs the program until the thread ends; returns its wait status.
fn serve(thread: &Arc<Thread>, task: &Task, own: &mut Own, context: &mut UserContext) -> i32 {
    loop {
        if thread.signals.needs_attention() {
            if let Some(status) = own.ended {
                return status;
            }
            if let Flow::End(status) = attend(thread, own, context) {
                return status;
            }
        }
        if own.rseq.is_some() {
            rseq::attend(thread, own, context, task);
            if thread.signals.needs_attention() {
                continue;
            }
        }
        match context.run() {
            Event::SystemCall => dispatch::serve(thread, own, context),
            Event::SystemCall32 => dispatch::serve32(thread, own, context),
            Event::Interrupt => {
                context.regs.orig_rax = u64::MAX;
                thread.process().timers.check_processor_time(thread);
                continue;
            }
            event => {
                context.regs.orig_rax = u64::MAX;
                trapped(thread, own, context, event);
            }
        }
        // The tick may have come while the kernel worked.
        thread.process().timers.check_after_call(thread);
    }
}

/// Vectors of the two floating-point exceptions.
const X87: u8 = 16;
const SIMD: u8 = 19;

/// The exception bits that are set and not masked.
fn floating_exceptions(context: &mut UserContext, x87: bool) -> u64 {
    let state = context.fpu_frame();
    // The layout of `fxsave`: control word, status word, ..., MXCSR at 24.
    let half = |at: usize| u64::from(u16::from_le_bytes([state[at], state[at + 1]]));
    let (set, masked) = if x87 {
        (half(2), half(0))
    } else {
        (half(24), half(24) >> 7)
    };
    set & !masked & 0x3f
}

/// A fault or another exception.
fn trapped(thread: &Arc<Thread>, own: &mut Own, context: &mut UserContext, mut event: Event) {
    let mut failed: Option<Fault> = None;
    if own.space.map().is_small() && leaves_region(own, context, event) {
        return;
    }
    match event {
        Event::PageFault {
            addr,
            access,
            present,
        } => {
            match resolve_fault(thread, own.space.map(), addr, access) {
                Ok(()) => return,
                Err(fault) => failed = Some(fault),
            }
            let mut code = 4 | u64::from(present);
            match access {
                Access::Read => {}
                Access::Write => code |= 2,
                Access::Execute => code |= 16,
            }
            own.last_fault = [code, 14, addr.0 as u64];
        }
        Event::Exception { vector, code } => {
            if let X87 | SIMD = vector {
                event = Event::Exception {
                    vector,
                    code: floating_exceptions(context, vector == X87),
                };
            }
            own.last_fault = [code, u64::from(vector), own.last_fault[2]];
        }
        _ => {}
    }
    if failed == Some(Fault::OutOfMemory) {
        // The largest process was chosen to end and this one is it, or nothing can be freed at all.
        thread
            .process()
            .signals
            .end(abi::raw::general::SIGKILL as i32);
        thread.signals.call_attention();
        return;
    }
    if let Some(info) = synchronous(event, failed, context.regs.rip) {
        log_if_deadly(thread, own, context, &info);
        force(thread, info);
    }
}

/// The vectors by which the processor refuses an access beyond a segment's limit, or a selector.
const STACK: u8 = 12;
const PROTECTION: u8 = 13;

/// A program in a small space may have met the end of its region: it becomes large, and tries
/// again. What it gets then is what it would have got without a region.
#[cold]
fn leaves_region(own: &Own, context: &UserContext, event: Event) -> bool {
    let map = own.space.map();
    let is_refused = match event {
        Event::Exception { vector, .. } => vector == STACK || vector == PROTECTION,
        // Where the processor checks no limits.
        Event::PageFault { addr, .. } => addr >= map.pmap().end(),
        _ => false,
    };
    is_refused
        && map.promote(match context.has_turned_too_often() {
            true => Promotion::Segments,
            false => Promotion::Access,
        })
}

/// A line in the log for a fault that is going to end the process.
fn log_if_deadly(thread: &Thread, own: &Own, context: &UserContext, info: &Info) {
    static LIMIT: LogLimit = LogLimit::new();
    let action = thread.process().signals.actions().get(info.signal);
    if action.handler > signal::IGNORE && !thread.signals.mask().has(info.signal) {
        return;
    }
    if LIMIT.allows_line() {
        nucleus::log!(
            "{}[{}]: signal {} code {} address {:#x} ip {:#x} sp {:#x}",
            String::from_utf8_lossy(&thread.name()),
            thread.tid(),
            info.signal,
            info.code,
            own.last_fault[2],
            context.regs.rip,
            context.regs.rsp,
        );
    }
}
