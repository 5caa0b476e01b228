//! Taking signals on the way back to the program.

use abi::{Errno, raw::general as raw};
use nucleus::trap::{Event, UserContext};
use vm::Fault;

use super::{
    Action, DEFAULT, ERESTART_RESTARTBLOCK, ERESTARTNOHAND, ERESTARTNOINTR, ERESTARTSYS, Ending,
    Fields, IGNORE, Info, SignalSet,
    action::{Fate, default_of},
    force, frame, frame32, timer,
};
use crate::process::{Own, Thread, pid_table, rseq, sigio};

/// Whether the program goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    Continue,
    /// The thread ends with this wait status.
    End(i32),
}

enum Work {
    Nothing,
    End(i32),
    Park,
    Stop(u32),
    Handle(Info, Action),
}

/// `orig_rax` when no system call is to be restarted.
const NO_CALL: u64 = u64::MAX;
/// The number of `restart_syscall` for 32-bit programs.
const RESTART_SYSCALL_32: u64 = 0;

/// Does what signals demand, until the program can go on or the thread has to end. A system call
/// that a signal interrupted, its restart number in `rax`, is restarted or fails with `EINTR`.
pub fn attend(thread: &Thread, own: &mut Own, context: &mut UserContext) -> Flow {
    sigio::catch_up(thread);
    loop {
        match next(thread) {
            Work::Nothing => {
                restart_or_fail(own, context, None);
                if let Some(mask) = thread.signals.take_saved() {
                    thread.set_mask(mask);
                    if thread.signals.needs_attention() {
                        continue;
                    }
                }
                return Flow::Continue;
            }
            Work::End(status) => return Flow::End(status),
            Work::Park => thread.process().signals.park(thread),
            Work::Stop(signal) => stop(thread, signal),
            Work::Handle(info, action) => {
                restart_or_fail(own, context, Some(&action));
                handle(thread, own, context, info, action);
            }
        }
    }
}

fn next(thread: &Thread) -> Work {
    let process = thread.process();
    let mut state = process.signals.lock();
    let mut own = thread.lock_signals();
    thread.signals.take_attention(&own);
    match state.ending {
        Some(Ending::Exit(status)) => return Work::End(status),
        Some(Ending::Exec(tid)) if tid != thread.tid() => return Work::End(0),
        _ => {}
    }
    if state.stop.is_some() {
        return Work::Park;
    }
    let wanted = SignalSet(!thread.signals.mask().0);
    let mut taken = own.pending.take(wanted);
    drop(own);
    loop {
        let Some(mut info) = taken.or_else(|| state.pending.take(wanted)) else {
            return Work::Nothing;
        };
        timer::taken(process, &mut info);
        let signal = info.signal;
        let action = state.actions.get(signal);
        if action.handler != DEFAULT && action.handler != IGNORE {
            if action.has(raw::SA_RESETHAND) {
                let handler = DEFAULT;
                state.actions.set(signal, Action { handler, ..action });
            }
            // There may be more.
            thread.signals.call_attention();
            return Work::Handle(info, action);
        }
        let fate = match action.ignores(signal) || state.unkillable {
            true => Fate::Ignore,
            false => default_of(signal),
        };
        match fate {
            Fate::Ignore => taken = thread.lock_signals().pending.take(wanted),
            Fate::Stop => {
                state.stop_taken = true;
                return Work::Stop(signal);
            }
            Fate::Terminate => {
                process.signals.begin_end(state, signal as i32);
                return Work::End(signal as i32);
            }
        }
    }
}

impl Thread {
    /// Takes a pending signal of `set`, blocked or not.
    pub fn take_pending(&self, set: SignalSet) -> Option<Info> {
        self.take_and(set, |_| ())
    }

    /// As [`take_pending`](Self::take_pending). If there is none, the thread waits for those of
    /// `waited` from now on, for no more otherwise (`sigtimedwait`).
    pub fn take_or_wait(&self, set: SignalSet, waited: SignalSet) -> Option<Info> {
        self.take_and(set, |taken| {
            self.signals
                .set_waiting(taken.map_or(waited, |_| SignalSet::EMPTY));
        })
    }

    /// Takes a pending signal of `set`, and calls `then` with the process's signal lock held.
    #[inline]
    fn take_and(&self, set: SignalSet, then: impl FnOnce(Option<&Info>)) -> Option<Info> {
        let mut state = self.process().signals.lock();
        let mut inner = self.lock_signals();
        let taken = inner.pending.take(set);
        let taken = taken.or_else(|| state.pending.take(set));
        then(taken.as_ref());
        taken.map(|mut info| {
            timer::taken(self.process(), &mut info);
            info
        })
    }
}

/// Begins to stop the process, unless SIGCONT came in between or its group is orphaned.
fn stop(thread: &Thread, signal: u32) {
    let process = thread.process();
    if signal != raw::SIGSTOP && pid_table::is_orphaned(process.group_id()) {
        return;
    }
    let mut state = process.signals.lock();
    if !core::mem::take(&mut state.stop_taken) || state.ending.is_some() {
        return;
    }
    state.stop.get_or_insert(signal);
    process.signals.notify_others(state, None, |_| true);
}

/// Makes the program run a handler.
fn handle(thread: &Thread, own: &mut Own, context: &mut UserContext, info: Info, action: Action) {
    let old = thread
        .signals
        .take_saved()
        .unwrap_or_else(|| thread.signals.mask());
    let pushed = rseq::before_handler(own, context).and_then(|()| match action.compatible {
        true => frame32::push(own, context, &info, &action, old),
        false => frame::push(own, context, &info, &action, old),
    });
    if pushed.is_err() {
        // The stack can't take the frame, or the program has misled the kernel about its place. A
        // SIGSEGV that can't be delivered ends the process.
        if info.signal == raw::SIGSEGV {
            thread
                .process()
                .signals
                .actions()
                .set(raw::SIGSEGV, Action::default());
        }
        force(thread, Info::kernel(raw::SIGSEGV));
        return;
    }
    let mut mask = thread.signals.mask().union(action.mask);
    if !action.has(raw::SA_NODEFER) {
        mask = mask.union(SignalSet::one(info.signal));
    }
    thread.set_mask(mask);
}

/// If the last system call was interrupted, sets the registers so that it is made again, or
/// fails with `EINTR`; `action` is that of the handler about to run.
fn restart_or_fail(own: &Own, context: &mut UserContext, action: Option<&Action>) {
    let regs = &mut context.regs;
    let number = core::mem::replace(&mut regs.orig_rax, NO_CALL);
    if number == NO_CALL {
        return;
    }
    let result = (regs.rax as i64).wrapping_neg();
    if !(512..=516).contains(&result) {
        return;
    }
    let error = Errno::internal(result as u16);
    let restart = match action {
        None => true,
        Some(action) => {
            error == ERESTARTNOINTR || (error == ERESTARTSYS && action.has(raw::SA_RESTART))
        }
    };
    if !restart {
        regs.rax = Errno::EINTR.as_return() as u64;
        return;
    }
    debug_assert!(
        [
            ERESTARTSYS,
            ERESTARTNOINTR,
            ERESTARTNOHAND,
            ERESTART_RESTARTBLOCK
        ]
        .contains(&error)
    );
    regs.rax = match own.compatible_call {
        _ if error != ERESTART_RESTARTBLOCK => number,
        true => RESTART_SYSCALL_32,
        false => u64::from(raw::__NR_restart_syscall),
    };
    // Both `syscall` and `int 0x80` are two bytes long.
    regs.rip = regs.rip.wrapping_sub(2);
}

/// Returns the signal for a fault of the program's own instruction. For floating-point exceptions
/// the event's code holds the exception bits that are set and not masked.
pub fn synchronous(event: Event, fault: Option<Fault>, rip: u64) -> Option<Info> {
    Some(match event {
        Event::PageFault { addr, .. } => {
            let address = addr.0 as u64;
            match fault? {
                Fault::NotMapped => Info::fault(raw::SIGSEGV, raw::SEGV_MAPERR, address),
                Fault::Protection => Info::fault(raw::SIGSEGV, raw::SEGV_ACCERR, address),
                Fault::BeyondEnd | Fault::Io => Info::fault(raw::SIGBUS, raw::BUS_ADRERR, address),
                // Nothing could be freed for it.
                Fault::OutOfMemory => Info::kernel(raw::SIGKILL),
            }
        }
        Event::Exception { vector, code } => match vector {
            0 => Info::fault(raw::SIGFPE, raw::FPE_INTDIV, rip),
            1 => Info::fault(raw::SIGTRAP, raw::TRAP_TRACE, rip),
            3 => Info::kernel(raw::SIGTRAP),
            6 => Info::fault(raw::SIGILL, raw::ILL_ILLOPN, rip),
            11 | 12 => Info::new(
                raw::SIGBUS,
                raw::SI_KERNEL as i32,
                Fields::Fault { address: 0 },
            ),
            16 | 19 => Info::fault(raw::SIGFPE, floating_code(code), rip),
            17 => Info::fault(raw::SIGBUS, raw::BUS_ADRALN, 0),
            // Overflow, bound, general protection and vectors that a program cannot cause
            // otherwise.
            _ => Info::kernel(raw::SIGSEGV),
        },
        Event::SystemCall | Event::SystemCall32 | Event::Interrupt => return None,
    })
}

/// The code for unmasked exception bits of the x87 unit or of MXCSR, in the order in which Linux
/// looks at them.
fn floating_code(bits: u64) -> u32 {
    let codes = [
        (0x01, raw::FPE_FLTINV),
        (0x04, raw::FPE_FLTDIV),
        (0x08, raw::FPE_FLTOVF),
        (0x12, raw::FPE_FLTUND),
        (0x20, raw::FPE_FLTRES),
    ];
    let found = codes.iter().find(|(mask, _)| bits & mask != 0);
    found.map_or(raw::FPE_FLTUNK, |(_, code)| *code)
}
