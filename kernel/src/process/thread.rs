//! Threads.

use alloc::{sync::Arc, vec::Vec};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use abi::Errno;

use nucleus::{
    sync::{Rank, SpinLock},
    task::{self, Task},
    trap::UserContext,
};

use vm::account;

use super::{
    Credentials, FsContext, IoCounts, Pid, Process, Scheduling, Space, scheduling, seccomp,
};
use super::{pid::LastingId, restrictions::Restrictions};
use crate::process::{call::Handler, files, futex, signal, undo::UndoList};
use crate::unsupported::{Named, ProgramName};

/// Bytes of a thread's name, the NUL included (`TASK_COMM_LEN`).
pub const NAME_LEN: usize = 16;

/// How late a sleep may end, in nanoseconds, unless the program says otherwise.
pub const TIMER_SLACK: u64 = 50_000;

/// The number of the next thread.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// A thread: what runs a program.
pub struct Thread {
    tid: AtomicU32,
    /// No other thread ever has it.
    number: u64,
    process: Arc<Process>,
    /// Pending signals, mask.
    pub signals: signal::ThreadSignals,
    /// The place where it sleeps in `futex`, and whether others may wait for words that it owns.
    pub(crate) futex: Arc<futex::Waiter>,
    shared: SpinLock<Option<Published>>,
    /// The calls that it may make.
    pub seccomp: seccomp::Seccomp,
    name: SpinLock<[u8; NAME_LEN]>,
    /// The signal for when the parent ends, 0 for none (`PR_SET_PDEATHSIG`).
    pub parent_death_signal: AtomicU32,
    /// Minor and major.
    faults: [AtomicU64; 2],
    /// The bytes that it has read and written.
    pub io: IoCounts,
    /// `PR_SET_TIMERSLACK`, nanoseconds.
    timer_slack: AtomicU64,
    /// `PR_SET_SPECULATION_CTRL`.
    pub restrictions: Restrictions,
    /// Its own scheduling, and the best rank of the waiters for words that it owns. Its task's
    /// priority is set with it held.
    scheduling: SpinLock<(Scheduling, Option<scheduling::Rank>)>,
    /// Head of the robust futex list, and of that of 32-bit code; 0 for none.
    pub(crate) robust_list: AtomicU64,
    pub(crate) robust_list_32: AtomicU64,
    cpus: AtomicU64,
}

/// The loop of a thread: runs its program and serves its calls until it ends. The system-call
/// interface above brings it in with the first thread, and each thread passes it to those it makes.
pub type Body = fn(Arc<Thread>, Own, UserContext);

/// The state of a thread that only the thread itself reads and changes.
pub struct Own {
    pub run: Body,
    pub space: Arc<Space>,
    pub files: Arc<files::FileTable>,
    pub fs: Arc<FsContext>,
    pub credentials: Arc<Credentials>,
    /// Where to store 0 and wake a futex when the thread ends (`set_tid_address`); 0 for nowhere.
    pub clear_child_tid: u64,
    pub alt_stack: signal::AltStack,
    /// Error code, trap number and address of the last fault that ended in a signal, for signal
    /// frames.
    pub last_fault: [u64; 3],
    /// The call that `restart_syscall` makes.
    pub restart: Option<(Handler, [u64; 6])>,
    /// The last system call came by `int 0x80`.
    pub compatible_call: bool,
    /// Where it wants to find the CPU that it runs on (`rseq`).
    pub rseq: Option<super::rseq::Registration>,
    /// The thread has called `exit`: its wait status.
    pub ended: Option<i32>,
    /// The semaphore operations that are undone when it ends.
    pub undo: Option<Arc<UndoList>>,
    /// The parent of a `vfork` waits for this: the child has called `execve` or ended.
    pub vfork: Option<Arc<super::Handoff<()>>>,
}

/// The resources of a thread that others may look at while it lives, published together: the
/// credentials always belong to the address space beside them.
#[derive(Clone)]
pub struct Shared {
    pub space: Arc<Space>,
    pub files: Arc<files::FileTable>,
    pub fs: Arc<FsContext>,
    pub credentials: Arc<Credentials>,
}

/// The resources of a thread as others see them: counts it among those that have its descriptors
/// and its places.
struct Published {
    shared: Shared,
    /// It has [left](Thread::leave_files) the descriptors.
    has_left: bool,
}

impl Published {
    fn new(shared: Shared) -> Published {
        shared.fs.sharers().join();
        shared.files.sharers().join();
        Published {
            shared,
            has_left: false,
        }
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        self.shared.fs.sharers().leave();
        if !self.has_left {
            self.shared.files.leave();
        }
    }
}

impl Own {
    pub fn new(shared: Shared, run: Body) -> Own {
        Own {
            run,
            space: shared.space,
            files: shared.files,
            fs: shared.fs,
            credentials: shared.credentials,
            clear_child_tid: 0,
            alt_stack: signal::AltStack::default(),
            last_fault: [0; 3],
            restart: None,
            compatible_call: false,
            rseq: None,
            ended: None,
            undo: None,
            vfork: None,
        }
    }

    /// Gives the thread descriptors that no other thread has. The caller publishes them.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn unshare_files(&mut self) -> Result<(), Errno> {
        if self.files.sharers().count() > 1 {
            self.files = self.files.duplicate()?;
            if let Some(account) = account::current() {
                self.files.charge_to(&account);
            }
        }
        Ok(())
    }

    /// The copy that others may look at.
    pub fn shared(&self) -> Shared {
        Shared {
            space: self.space.clone(),
            files: self.files.clone(),
            fs: self.fs.clone(),
            credentials: self.credentials.clone(),
        }
    }
}

impl Thread {
    /// A thread that does not run yet. CPUs and what [`Scheduling::of_child`] says come from
    /// `like`.
    pub fn new(
        tid: Pid,
        process: Arc<Process>,
        mask: signal::SignalSet,
        shared: Option<Shared>,
        like: Option<&Thread>,
    ) -> Arc<Thread> {
        Arc::new(Thread {
            tid: AtomicU32::new(tid),
            number: NEXT_NUMBER.fetch_add(1, Relaxed),
            process,
            signals: signal::ThreadSignals::new(mask),
            futex: futex::Waiter::new(),
            shared: SpinLock::new(Rank::Leaf, shared.map(Published::new)),
            seccomp: seccomp::Seccomp::default(),
            name: SpinLock::new(Rank::Leaf, like.map_or([0; NAME_LEN], |l| *l.name.lock())),
            parent_death_signal: AtomicU32::new(0),
            faults: Default::default(),
            io: IoCounts::default(),
            timer_slack: AtomicU64::new(like.map_or(TIMER_SLACK, Thread::timer_slack)),
            restrictions: like.map_or_else(Restrictions::default, |l| l.restrictions.copy()),
            scheduling: SpinLock::new(
                Rank::Leaf,
                (
                    like.map_or(Scheduling::default(), |l| l.scheduling().of_child()),
                    None,
                ),
            ),
            robust_list: AtomicU64::new(0),
            robust_list_32: AtomicU64::new(0),
            cpus: AtomicU64::new(like.map_or(all_cpus(), Thread::cpus)),
        })
    }

    pub fn tid(&self) -> Pid {
        self.tid.load(Relaxed)
    }

    /// Returns what names it for good.
    pub fn lasting_id(&self) -> LastingId {
        LastingId {
            tid: self.tid(),
            number: self.number,
        }
    }

    pub(crate) fn set_tid(&self, tid: Pid) {
        self.tid.store(tid, Relaxed);
    }

    pub fn process(&self) -> &Arc<Process> {
        &self.process
    }

    /// The task that runs it; `None` when it has ended.
    pub fn task(&self) -> Option<Arc<Task>> {
        self.signals.task()
    }

    /// Returns its resources; `None` when it has ended. Outside of this module's parent those of
    /// another thread are seen through a [`View`](super::View), and its own through
    /// [`current_shared`].
    pub(in crate::process) fn shared(&self) -> Option<Shared> {
        self.with_shared(Shared::clone)
    }

    /// Runs `f` with what it shares with others, under a spin lock; `None` when it has ended.
    pub(in crate::process) fn with_shared<R>(&self, f: impl FnOnce(&Shared) -> R) -> Option<R> {
        let shared = self.shared.lock();
        shared.as_ref().map(|published| f(&published.shared))
    }

    /// Its credentials; `None` when it has ended.
    pub fn credentials(&self) -> Option<Arc<Credentials>> {
        self.shared
            .lock()
            .as_ref()
            .map(|s| s.shared.credentials.clone())
    }

    /// Calls `f` with its credentials, its resources locked; `None` when it has ended.
    pub fn with_credentials<T>(&self, f: impl FnOnce(&Credentials) -> T) -> Option<T> {
        self.shared
            .lock()
            .as_ref()
            .map(|s| f(&s.shared.credentials))
    }

    /// Returns the user and the group that own what it makes; root's when it has ended.
    pub fn owner(&self) -> (u32, u32) {
        self.with_credentials(|who| (who.fs.uid, who.fs.gid))
            .unwrap_or_default()
    }

    /// The address space it runs in; `None` when it has ended.
    pub(in crate::process) fn space(&self) -> Option<Arc<Space>> {
        self.shared.lock().as_ref().map(|s| s.shared.space.clone())
    }

    /// Publishes the resources of the thread. The thread itself calls it after each change of its
    /// [`Own`].
    pub fn publish(&self, shared: Option<Shared>) {
        // The new places have their user before the old ones lose theirs.
        let new = shared.map(Published::new);
        let old = core::mem::replace(&mut *self.shared.lock(), new);
        drop(old);
    }

    /// The thread is about to end: of those that share its descriptors, the last one closes them.
    pub(in crate::process) fn leave_files(&self) {
        let files = self.shared.lock().as_mut().map(|published| {
            published.has_left = true;
            published.shared.files.clone()
        });
        if let Some(files) = files {
            files.leave();
        }
    }

    /// The name (`comm`) without padding.
    pub fn name(&self) -> Vec<u8> {
        let name = *self.name.lock();
        name.split(|&b| b == 0).next().unwrap_or_default().to_vec()
    }

    /// Sets the name, of which at most 15 bytes are kept.
    pub fn set_name(&self, name: &[u8]) {
        let mut padded = [0; NAME_LEN];
        let text = name.split(|&b| b == 0).next().unwrap_or_default();
        let len = text.len().min(NAME_LEN - 1);
        padded[..len].copy_from_slice(&text[..len]);
        *self.name.lock() = padded;
    }

    /// The state letter of `/proc/PID/stat`: R, S, T or Z.
    pub fn state(&self) -> char {
        if self.process.signals.stopped().is_some() {
            return 'T';
        }
        match self.task() {
            Some(task) if task.is_runnable() => 'R',
            Some(_) => 'S',
            // It has not run yet, or it is leaving: its memory may be on its way back for long.
            None if self.shared.lock().is_some() || !self.process.is_zombie() => 'R',
            None => 'Z',
        }
    }

    /// How late a sleep may end at most, in nanoseconds; none here is ever put off.
    pub fn timer_slack(&self) -> u64 {
        self.timer_slack.load(Relaxed)
    }

    /// Sets what [`timer_slack`](Self::timer_slack) gives; 0 is the default.
    pub fn set_timer_slack(&self, nanoseconds: u64) {
        let slack = match nanoseconds {
            0 => TIMER_SLACK,
            slack => slack,
        };
        self.timer_slack.store(slack, Relaxed);
    }

    /// Faults for which no page had to be read in, and those for which one had.
    pub fn faults(&self) -> [u64; 2] {
        [0, 1].map(|major| self.faults[major].load(Relaxed))
    }

    /// Another fault; whether a page was read in for it.
    pub(super) fn count_fault(&self, was_read: bool) {
        let count = &self.faults[usize::from(was_read)];
        // Only the thread itself counts: no need for an atomic addition.
        count.store(count.load(Relaxed) + 1, Relaxed);
    }

    /// How it has asked to be scheduled.
    pub fn scheduling(&self) -> Scheduling {
        self.scheduling.lock().0
    }

    /// Changes how it is scheduled; its task follows. Threads that it waits for do not learn of it
    /// here, see [`set_scheduling`](Self::set_scheduling).
    pub(super) fn change_scheduling(&self, change: impl FnOnce(&mut Scheduling)) {
        change(&mut self.scheduling.lock().0);
        self.apply_priority();
    }

    /// The nice value, -20 to 19.
    pub fn nice(&self) -> i32 {
        i32::from(self.scheduling().nice)
    }

    /// Returns its effective rank: its own, or a better one of the waiters for words that it owns.
    pub fn priority(&self) -> scheduling::Rank {
        let (own, lent) = *self.scheduling.lock();
        lent.map_or(own.rank(), |lent| lent.min(own.rank()))
    }

    /// Gives its task its priority.
    pub(crate) fn apply_priority(&self) {
        if let Some(task) = self.task() {
            let scheduling = self.scheduling.lock();
            let (own, lent) = *scheduling;
            let rank = lent.map_or(own.rank(), |lent| lent.min(own.rank()));
            task.set_priority(rank.of_task());
        }
    }

    /// Sets the best rank of the waiters for words that it owns; returns whether it changed.
    pub(crate) fn set_lent(&self, rank: Option<scheduling::Rank>) -> bool {
        let changed = core::mem::replace(&mut self.scheduling.lock().1, rank) != rank;
        if changed {
            self.apply_priority();
        }
        changed
    }

    /// The CPUs it may run on, a bit each.
    pub fn cpus(&self) -> u64 {
        self.cpus.load(Relaxed)
    }

    /// Restricts it to CPUs, of which one at least exists.
    pub fn set_cpus(&self, cpus: u64) {
        self.cpus.store(cpus, Relaxed);
        if let Some(task) = self.task() {
            task.set_cpus(cpus);
        }
    }
}

/// A bit for each CPU.
pub fn all_cpus() -> u64 {
    u64::MAX >> (64 - task::cpu_count())
}

/// Returns the user and the group that own what the current thread makes; root's in a task without
/// a thread.
pub fn current_owner() -> (u32, u32) {
    with_current(Thread::owner).unwrap_or_default()
}

/// Runs `f` with the current thread, without touching a reference count; `None` in a task of the
/// kernel.
pub fn with_current<R>(f: impl FnOnce(&Thread) -> R) -> Option<R> {
    task::with_attachment(|attachment| attachment?.downcast_ref::<Thread>().map(f))
}

/// Returns whether the current thread is to end, so that a long call stops.
pub fn is_current_dying() -> bool {
    with_current(|thread| thread.signals.needs_attention() && thread.is_dying()).unwrap_or(false)
}

/// Runs `f` with the address space of the current thread, if it has one.
pub fn with_current_map(f: &mut dyn FnMut(&Arc<vm::Map>)) {
    if let Some(space) = current_space() {
        f(space.map());
    }
}

impl Named for Thread {
    fn program(&self) -> ProgramName {
        *self.name.lock()
    }
}

/// Returns the address space of the current thread; `None` in a task of the kernel.
pub fn current_space() -> Option<Arc<Space>> {
    with_current(Thread::space)?
}

/// Returns the descriptors of the current thread; `None` in a task of the kernel.
pub fn current_files() -> Option<Arc<files::FileTable>> {
    with_current(|thread| thread.with_shared(|shared| shared.files.clone()))?
}

/// Returns what the current thread shares with others; `None` in a task of the kernel.
pub fn current_shared() -> Option<Shared> {
    with_current(Thread::shared)?
}
