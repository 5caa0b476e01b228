//! New threads and processes.

use alloc::{boxed::Box, sync::Arc};
use core::sync::atomic::Ordering::Relaxed;

use abi::{Errno, Result, raw::general as raw};
use nucleus::{
    VirtAddr,
    task::{self, Spawn},
    trap::UserContext,
    user,
};

use super::{
    Handoff, Own, Pid, PidFile, Process, Thread, pid_table,
    segment::{self, Descriptor},
    signal::{Actions, SignalSet},
    undo::UndoList,
    user as users,
};

/// The arguments of `clone` and related calls.
#[derive(Clone, Copy, Default, Debug)]
pub struct Request {
    /// `CLONE_*` without the exit signal.
    pub flags: u64,
    /// The signal for the parent when the child ends; 0 for none.
    pub exit_signal: u32,
    /// The child's stack pointer; 0 to keep the parent's.
    pub stack: u64,
    pub tls: u64,
    pub parent_tid: u64,
    pub child_tid: u64,
    /// Where to store a descriptor of the new process (`CLONE_PIDFD`).
    pub pidfd: u64,
    /// The id that the caller wants; any if there is none.
    pub wanted_id: Option<Pid>,
}

impl Request {
    fn has(&self, flag: u32) -> bool {
        self.flags & u64::from(flag) != 0
    }

    /// # Errors
    /// `EINVAL`: flags that don't go together, or that ask for something that does not exist here
    /// (namespaces, control groups).
    fn check(&self, parent: &Process) -> Result<()> {
        // The first process has no parent that a sibling could have, and none may be taken away
        // from it.
        let orphan = self.has(raw::CLONE_PARENT) && parent.pid() == pid_table::INIT;
        // A descriptor stands for a process.
        let of_thread = self.has(raw::CLONE_PIDFD) && self.has(raw::CLONE_THREAD);
        let bad = (self.has(raw::CLONE_THREAD) && !self.has(raw::CLONE_SIGHAND))
            || (self.has(raw::CLONE_SIGHAND) && !self.has(raw::CLONE_VM))
            || (self.has(raw::CLONE_SIGHAND) && self.flags & raw::CLONE_CLEAR_SIGHAND != 0)
            || self.exit_signal > 64
            || orphan
            || of_thread;
        if bad { Err(Errno::EINVAL) } else { Ok(()) }
    }
}

/// Makes a thread or process as `request` says and starts it; returns its id. With `CLONE_VFORK` it
/// returns when the child has called `execve` or ended.
///
/// # Errors
/// `EINVAL`, `ENOMEM`, `EAGAIN` (ids or `RLIMIT_NPROC` exhausted, the process is ending, or others
/// of its user were ended a moment ago because memory ran out).
pub fn clone(
    thread: &Arc<Thread>,
    own: &mut Own,
    context: &UserContext,
    request: &Request,
) -> Result<Pid> {
    super::with_room(Errno::ENOMEM, || attempt(thread, own, context, request))
}

/// As [`clone`], once: all is as before if there is no memory.
fn attempt(
    thread: &Arc<Thread>,
    own: &mut Own,
    context: &UserContext,
    request: &Request,
) -> Result<Pid> {
    let parent = thread.process();
    request.check(parent)?;
    super::make_room()?;
    let is_limited = !own.credentials.may_exceed_limits();
    if is_limited && parent.has_too_many_threads(1) {
        return Err(Errno::EAGAIN);
    }
    if super::memory::is_held_back(parent) {
        return Err(Errno::EAGAIN);
    }
    parent.exceeds_user.store(false, Relaxed);

    let mut shared = own.shared();
    if !request.has(raw::CLONE_VM) {
        shared.space = own.space.fork()?;
    }
    if !request.has(raw::CLONE_FILES) {
        shared.files = own.files.duplicate()?;
    }
    if !request.has(raw::CLONE_FS) {
        shared.fs = own.fs.duplicate();
    }
    let mut child_context = context.duplicate()?;
    child_context.sync_bases();
    if let Some(local) = context.local_segments()
        && !request.has(raw::CLONE_VM)
    {
        child_context.set_local_segments(Some(Arc::new(local.duplicate()?)));
    }
    let regs = &mut child_context.regs;
    regs.rax = 0;
    regs.orig_rax = u64::MAX;
    if request.stack != 0 {
        regs.rsp = request.stack;
    }
    if request.has(raw::CLONE_SETTLS) && own.compatible_call {
        // A 32-bit thread's own data is reached through a segment.
        let words = user::read(VirtAddr(request.tls as usize))?;
        let descriptor = Descriptor::decode(words)?;
        child_context.set_segment(segment::place(descriptor.number)?, descriptor.segment);
    } else if request.has(raw::CLONE_SETTLS) {
        if request.tls as usize >= nucleus::addr::USER_END.0 {
            return Err(Errno::EPERM);
        }
        child_context.regs.fs_base = request.tls;
    }

    // Told before it means anything: if the program can't be told, nothing has to be undone.
    let descriptor = if request.has(raw::CLONE_PIDFD) {
        let slot = own
            .files
            .reserve(0, parent.limits().soft(raw::RLIMIT_NOFILE))?;
        let fd = slot.fd as i32;
        user::write(VirtAddr(request.pidfd as usize), &fd)?;
        Some(slot)
    } else {
        None
    };
    let id = match request.wanted_id {
        Some(id) => pid_table::claim_id(id)?,
        None => pid_table::new_id(!is_limited)?,
    };
    let tid = id.get();
    let mask = thread.signals.mask();
    let mut child_own = Own::new(shared.clone(), own.run);
    let same_process = request.has(raw::CLONE_THREAD);
    let process = if same_process {
        parent.clone()
    } else {
        let actions = parent.signals.actions();
        let actions = if request.has(raw::CLONE_SIGHAND) {
            actions
        } else {
            actions.duplicate(request.flags & raw::CLONE_CLEAR_SIGHAND != 0)
        };
        let child = Process::new(
            tid,
            actions,
            false,
            parent.limits().duplicate(),
            &parent.user(),
        );
        child.inherit(parent);
        child
    };
    if !request.has(raw::CLONE_FILES) {
        shared.files.charge_to(&process.account());
    }
    if child_context
        .local_segments()
        .is_some_and(|it| !it.is_empty())
    {
        shared.space.charge_segments(&process.account());
    }
    if !request.has(raw::CLONE_VM) || request.has(raw::CLONE_VFORK) {
        child_own.alt_stack = own.alt_stack;
    }
    if !request.has(raw::CLONE_VM) {
        child_own.rseq = own.rseq;
    }
    if request.has(raw::CLONE_SYSVSEM) {
        let undo = own.undo.get_or_insert_with(UndoList::new);
        child_own.undo = Some(undo.clone());
    }
    if request.has(raw::CLONE_CHILD_CLEARTID) {
        child_own.clear_child_tid = request.child_tid;
    }
    let release = request
        .has(raw::CLONE_VFORK)
        .then(Arc::<Handoff<()>>::default);
    child_own.vfork = release.clone();

    let child = Thread::new(tid, process.clone(), mask, Some(shared), Some(thread));
    process.signals.add_thread(child.clone(), Some(thread))?;
    // Of several that take the last place of a user, none gets it: by now the new thread counts.
    if is_limited && process.has_too_many_threads(0) {
        child.publish(None);
        process.signals.remove_thread(&child, 0);
        return Err(Errno::EAGAIN);
    }
    pid_table::add_thread(child.clone());
    if !same_process {
        let is_child = !request.has(raw::CLONE_PARENT);
        let exit_signal = is_child.then_some(request.exit_signal);
        pid_table::add_process(process.clone(), Some(parent.pid()), exit_signal);
    }
    drop(id);
    if request.has(raw::CLONE_PARENT_SETTID) {
        // As on Linux, a bad address here is not an error.
        let _ = user::write(VirtAddr(request.parent_tid as usize), &tid);
    }
    let set_child_tid = request
        .has(raw::CLONE_CHILD_SETTID)
        .then_some(request.child_tid);
    // A process that is killed leaves no child behind of which the killer knew nothing: the table
    // had it in time for the killer to see, or this sees the kill.
    let started = match thread.is_dying() {
        true => Err(Errno::EAGAIN),
        false => start(&child, child_own, child_context, set_child_tid),
    };
    if let Err(error) = started {
        child.publish(None);
        process.signals.remove_thread(&child, 0);
        pid_table::remove_thread(&child);
        if !same_process {
            pid_table::remove_unborn(tid);
        }
        return Err(error);
    }
    if let Some(slot) = descriptor {
        slot.install(PidFile::open(process.clone(), 0), true);
    }
    if let Some(release) = release {
        thread.wait_unless_killed(&release.given, || release.take());
    }
    Ok(tid)
}

/// Starts the task of a thread that is in its process and in the table of ids.
///
/// # Errors
/// `ENOMEM`.
pub fn start(
    thread: &Arc<Thread>,
    own: Own,
    context: UserContext,
    set_child_tid: Option<u64>,
) -> Result<()> {
    let body = {
        let thread = thread.clone();
        let context = context.park();
        move || {
            if let Some(address) = set_child_tid {
                // As on Linux, a bad address here is not an error.
                let _ = user::write(VirtAddr(address as usize), &thread.tid());
            }
            (own.run)(thread, own, context.unpark());
        }
    };
    let pmap = thread.space().map(|space| space.map().pmap().clone());
    task::spawn(
        Spawn {
            name: "thread",
            pmap,
            attachment: Some(thread.clone()),
            cpus: thread.cpus(),
            priority: thread.priority().of_task(),
        },
        Box::new(body),
    )
    .map(drop)
    .map_err(|_| Errno::ENOMEM)
}

/// Makes a process that no other one forked: the kernel's own start. It is in the table but does
/// not run. Without `shared` it is the kernel itself.
///
/// # Errors
/// `EAGAIN`.
pub fn make_process(
    pid: Pid,
    parent: Option<Pid>,
    unkillable: bool,
    shared: Option<super::Shared>,
) -> Result<Arc<Thread>> {
    let limits = super::Limits::initial();
    let uid = shared
        .as_ref()
        .map_or(0, |shared| shared.credentials.real_uid);
    let process = Process::new(pid, Actions::new(), unkillable, limits, &users::find(uid));
    // Of the first process, whose thread is a task of the kernel's.
    *process.last_credentials.lock() = Some(Arc::default());
    let thread = Thread::new(pid, process.clone(), SignalSet::EMPTY, shared, None);
    process.signals.add_thread(thread.clone(), None)?;
    pid_table::add_thread(thread.clone());
    pid_table::add_process(process, parent, Some(raw::SIGCHLD));
    Ok(thread)
}
