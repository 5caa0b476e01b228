//! `execve`: the current thread runs another program.
//!
//! [`load`](load) builds the whole new address space beside the old one, so that every error comes
//! back to the caller; [`replace`] then can't fail any more but for a process that is ending.

use alloc::sync::Arc;
use core::sync::atomic::Ordering::Relaxed;

use abi::{Errno, Result, raw::general::RLIMIT_STACK};
use nucleus::{
    task,
    trap::{self, Selectors},
};

pub mod elf;
pub mod held;
mod image;
pub mod load;
pub mod rights;
pub mod stack;
mod vdso;
pub mod words;

use super::{Own, Thread, futex, pid_table, space::Leaving};
use elf::Class;
use load::Loaded;

/// Makes the current thread run the loaded program: the other threads of its process end, and state
/// that does not outlive `execve` is dropped. False if one of them has renounced new rights, which
/// the program was to have: it is to be loaded again. Nothing but the threads is gone then.
///
/// # Errors
/// `EAGAIN` if the process is ending, or took on a user with too many threads; `ENOMEM`. As above.
pub fn replace(
    thread: &Arc<Thread>,
    own: &mut Own,
    context: &mut trap::UserContext,
    loaded: Loaded,
) -> Result<bool> {
    let process = thread.process();
    if process.exceeds_user.load(Relaxed) && process.has_too_many_threads(0) {
        return Err(Errno::EAGAIN);
    }
    process.exceeds_user.store(false, Relaxed);
    process.signals.become_only(thread)?;
    // Their filters of system calls may be the thread's now.
    if loaded.raised && !loaded.no_new_privileges && process.no_new_privileges.load(Relaxed) {
        return Ok(false);
    }
    // A table shared with another process stays as it is for that one; one that is not keeps the
    // record locks.
    own.unshare_files()?;
    let leader = process.pid();
    if thread.tid() != leader {
        let old = thread.tid();
        thread.set_tid(leader);
        pid_table::rename_thread(thread, old, leader);
    }

    futex::leave(thread, own, false);
    process.signals.own_actions();
    process.timers.clear_posix();
    own.files.close_on_exec();
    own.alt_stack = Default::default();
    own.restart = None;
    if own.rseq.take().is_some() {
        task::current().watch_switches(false);
    }
    own.credentials = loaded.credentials;
    process.set_real_uid(own.credentials.real_uid);
    if loaded.secure || loaded.changed {
        thread.parent_death_signal.store(0, Relaxed);
    }
    process.personality.store(loaded.personality, Relaxed);
    if loaded.secure {
        process
            .limits()
            .lower_soft(RLIMIT_STACK, loaded.stack_limit);
    }
    // A process that was made meanwhile to share the places does not lead a set-id program astray.
    // The thread is the only one of its process.
    if loaded.raised && own.fs.sharers().count() > 1 {
        own.fs = own.fs.duplicate();
    }
    pid_table::executed(leader);
    if process.large_pages_disabled.load(Relaxed) {
        loaded.space.map().allow_large_pages(false);
    }
    if thread.restrictions.has_own_branches() {
        loaded.space.distrust();
    }
    let leaving = Leaving::begin();
    let old = core::mem::replace(&mut own.space, loaded.space);
    // Credentials, space and its dumpability are seen together.
    thread.publish(Some(own.shared()));
    // A limit that was changed while the space was built.
    process.apply_limits();
    task::set_pmap(Some(own.space.map().pmap().clone()));
    // The space weighs by itself now.
    drop(loaded.held);
    // Torn down here unless others still run in it.
    drop(old);
    drop(leaving);
    if let Some(release) = own.vfork.take() {
        release.give(());
    }
    thread.set_name(&loaded.name);
    process.has_executed.store(true, Relaxed);
    begin(context, loaded.class, loaded.entry, loaded.stack);
    thread.restrictions.executed();
    thread.restrictions.apply(context);
    Ok(true)
}

/// Sets the registers for the start of a program.
pub fn begin(context: &mut trap::UserContext, class: Class, entry: u64, stack: u64) {
    context.reset_fpu();
    for n in 0..trap::TLS_SEGMENTS {
        context.set_segment(n, None);
    }
    let (code, selectors, local) = match class {
        Class::X64 => (trap::USER_CODE, Selectors::default(), None),
        Class::I386 => (trap::USER_CODE_32, Selectors::FLAT, Some(Arc::default())),
    };
    context.set_local_segments(local);
    context.set_selectors(selectors);
    context.regs = trap::Registers {
        rip: entry,
        rsp: stack,
        cs: code,
        ss: trap::USER_DATA,
        rflags: 0x202,
        orig_rax: u64::MAX,
        ..trap::Registers::default()
    };
}
