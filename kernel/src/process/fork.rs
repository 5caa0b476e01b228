//! New threads and processes.

use alloc::{boxed::Box, sync::Arc};
use core::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release as ReleaseOrder};

use abi::{Errno, Result, raw::general as raw};
use nucleus::{
    VirtAddr, frame,
    task::{self, Spawn, WaitQueue},
    trap::UserContext,
    user,
};

use super::{Own, Pid, Process, Thread, family, run};
use crate::signal::SignalSet;

/// What `clone` and its relatives ask for.
#[derive(Clone, Copy, Default, Debug)]
pub struct Request {
    /// `CLONE_*` without the exit signal.
    pub flags: u64,
    /// What the parent gets when the child ends; 0 for none.
    pub exit_signal: u32,
    /// The child's stack pointer; 0 to keep the parent's.
    pub stack: u64,
    pub tls: u64,
    pub parent_tid: u64,
    pub child_tid: u64,
}

/// What a `vfork` parent waits for: its child has called `execve` or ended.
pub struct Release {
    done: AtomicBool,
    queue: WaitQueue,
}

impl Release {
    fn new() -> Arc<Release> {
        Arc::new(Release {
            done: AtomicBool::new(false),
            queue: WaitQueue::new(),
        })
    }

    /// The child no longer uses the parent's memory.
    pub fn release(&self) {
        self.done.store(true, ReleaseOrder);
        self.queue.wake_all();
    }
}

/// Flags whose meaning is built.
const KNOWN: u64 = raw::CLONE_VM as u64
    | raw::CLONE_FS as u64
    | raw::CLONE_FILES as u64
    | raw::CLONE_SIGHAND as u64
    | raw::CLONE_PTRACE as u64
    | raw::CLONE_VFORK as u64
    | raw::CLONE_PARENT as u64
    | raw::CLONE_THREAD as u64
    | raw::CLONE_SYSVSEM as u64
    | raw::CLONE_SETTLS as u64
    | raw::CLONE_PARENT_SETTID as u64
    | raw::CLONE_CHILD_CLEARTID as u64
    | raw::CLONE_DETACHED as u64
    | raw::CLONE_UNTRACED as u64
    | raw::CLONE_CHILD_SETTID as u64
    | raw::CLONE_IO as u64
    | raw::CLONE_CLEAR_SIGHAND;

impl Request {
    fn has(&self, flag: u32) -> bool {
        self.flags & u64::from(flag) != 0
    }

    /// # Errors
    /// `EINVAL`: flags that don't go together, or that ask for something that does not exist here (namespaces,
    /// process descriptors).
    fn check(&self) -> Result<()> {
        let bad = self.flags & !KNOWN != 0
            || (self.has(raw::CLONE_THREAD) && !self.has(raw::CLONE_SIGHAND))
            || (self.has(raw::CLONE_SIGHAND) && !self.has(raw::CLONE_VM))
            || (self.has(raw::CLONE_SIGHAND) && self.flags & raw::CLONE_CLEAR_SIGHAND != 0)
            || self.exit_signal > 64;
        if bad { Err(Errno::EINVAL) } else { Ok(()) }
    }
}

/// Makes a thread or process as `request` says and starts it; returns its id. With `CLONE_VFORK` it returns when
/// the child has called `execve` or ended.
///
/// # Errors
/// `EINVAL`, `ENOMEM`, `EAGAIN` (ids or `RLIMIT_NPROC` exhausted, or the process is ending).
pub fn clone(
    thread: &Arc<Thread>,
    own: &Own,
    context: &UserContext,
    request: &Request,
) -> Result<Pid> {
    request.check()?;
    if frame::is_scarce() {
        return Err(Errno::ENOMEM);
    }
    let parent = thread.process();
    let limit = parent.limits().soft(raw::RLIMIT_NPROC);
    if own.credentials.real_uid != 0 && family::population().threads as u64 >= limit {
        return Err(Errno::EAGAIN);
    }

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
    let mut child_context = context.duplicate().map_err(|_| Errno::ENOMEM)?;
    child_context.sync_bases();
    let regs = &mut child_context.regs;
    regs.rax = 0;
    regs.orig_rax = u64::MAX;
    if request.stack != 0 {
        regs.rsp = request.stack;
    }
    if request.has(raw::CLONE_SETTLS) {
        if request.tls as usize >= nucleus::addr::USER_END.0 {
            return Err(Errno::EPERM);
        }
        regs.fs_base = request.tls;
    }

    let tid = family::new_id()?;
    let mask = thread.signals.mask();
    let mut child_own = Own::new(shared.clone());
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
        let child = Process::new(tid, actions, false, parent.limits().duplicate());
        child.inherit(parent);
        child
    };
    if !request.has(raw::CLONE_VM) || request.has(raw::CLONE_VFORK) {
        child_own.alt_stack = own.alt_stack;
    }
    if request.has(raw::CLONE_CHILD_CLEARTID) {
        child_own.clear_child_tid = request.child_tid;
    }
    let release = request.has(raw::CLONE_VFORK).then(Release::new);
    child_own.vfork = release.clone();

    let child = Thread::new(tid, process.clone(), mask, Some(shared), Some(thread));
    process.signals.add_thread(child.clone())?;
    family::add_thread(child.clone());
    if !same_process {
        let above = if request.has(raw::CLONE_PARENT) {
            parent.parent_pid()
        } else {
            parent.pid()
        };
        family::add_process(process.clone(), Some(above), request.exit_signal);
    }
    if request.has(raw::CLONE_PARENT_SETTID) {
        // As on Linux, a bad address here is not an error.
        let _ = user::write(VirtAddr(request.parent_tid as usize), &tid);
    }
    let set_child_tid = request
        .has(raw::CLONE_CHILD_SETTID)
        .then_some(request.child_tid);
    if let Err(error) = start(&child, child_own, child_context, set_child_tid) {
        process.signals.remove_thread(&child, 0);
        family::remove_thread(&child);
        if !same_process {
            family::remove_unborn(tid);
        }
        return Err(error);
    }
    if let Some(release) = release {
        thread.wait_unless_killed(&release.queue, || release.done.load(Acquire).then_some(()));
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
        move || {
            if let Some(address) = set_child_tid {
                // As on Linux, a bad address here is not an error.
                let _ = user::write(VirtAddr(address as usize), &thread.tid());
            }
            run(thread, own, context);
        }
    };
    let pmap = thread.space().map(|space| space.map().pmap().clone());
    task::spawn(
        Spawn {
            name: "thread",
            pmap,
            attachment: Some(thread.clone()),
            cpus: thread.cpus(),
        },
        Box::new(body),
    )
    .map(drop)
    .map_err(|_| Errno::ENOMEM)
}

/// Makes a process that no other one forked: the kernel's own start. It is in the family but does not run. Without
/// `shared` it is the kernel itself.
///
/// # Errors
/// `EAGAIN`.
pub fn make_process(
    pid: Pid,
    parent: Option<Pid>,
    unkillable: bool,
    shared: Option<super::Shared>,
) -> Result<Arc<Thread>> {
    let process = Process::new(
        pid,
        crate::signal::Actions::new(),
        unkillable,
        super::Limits::initial(),
    );
    let thread = Thread::new(pid, process.clone(), SignalSet::EMPTY, shared, None);
    process.signals.add_thread(thread.clone())?;
    family::add_thread(thread.clone());
    family::add_process(process, parent, raw::SIGCHLD);
    Ok(thread)
}
