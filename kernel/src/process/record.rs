//! Processes.

use alloc::{sync::Arc, vec::Vec};
use core::{
    sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering::Relaxed},
    time::Duration,
};

use nucleus::{
    sync::{Rank, SpinLock},
    task::WaitQueue,
};
use vm::account::{Account, Kind};

use super::{
    Credentials, Limits, Pid, Spent, Thread,
    seccomp::Restricting,
    signal::{self, Actions},
    user,
};

/// A process: one or more threads.
pub struct Process {
    pid: Pid,
    /// Time since boot when it was made.
    pub started: Duration,
    /// Copies of fields of the pid table, readable without its lock.
    pub(in crate::process) parent: AtomicU32,
    pub(in crate::process) group: AtomicU32,
    pub(in crate::process) session: AtomicU32,
    /// `execve` has succeeded since it was made (`setpgid`).
    pub(in crate::process) has_executed: AtomicBool,
    /// Pending signals, the threads, stop and end of the whole process.
    pub signals: signal::ProcessSignals,
    /// Guards the restrictions of its threads.
    pub(super) restricting: Restricting,
    /// Woken when a child changes its state.
    pub(crate) child_events: WaitQueue,
    /// All threads have ended, and the table of ids knows.
    pub(in crate::process) ended: AtomicBool,
    /// The wait status, once `ended` is set.
    pub(in crate::process) end_status: AtomicI32,
    /// Woken when `ended` is set.
    pub(crate) end_events: WaitQueue,
    /// Timers that send signals.
    pub(crate) timers: signal::timer::Timers,
    limits: Limits,
    /// The use of ended threads and of children that were waited for.
    pub(super) spent: SpinLock<Spent>,
    /// What it has made, and its threads; the parent is its real user, a zombie's too.
    account: SpinLock<Arc<Account>>,
    /// Its leader has ended and is charged to the account still. [`account`]
    counts_as_leader: AtomicBool,
    /// Its user changed when that one had too many threads (`RLIMIT_NPROC`).
    pub(crate) exceeds_user: AtomicBool,
    /// The name of the thread that ended last, for a zombie.
    pub(super) last_name: SpinLock<Vec<u8>>,
    /// The credentials of the thread that ended last, or of a thread that is the kernel's.
    pub(super) last_credentials: SpinLock<Option<Arc<Credentials>>>,
    /// `personality`; `ADDR_NO_RANDOMIZE` counts, and the bits that `uname` looks at.
    pub personality: AtomicU32,
    /// How much sooner (above 0) or later than its size says it is ended when memory runs out, in
    /// thousandths of the machine's memory; never with -1000.
    pub oom_adjustment: AtomicI32,
    /// The user that logged in and the number of the login, both `u32::MAX` until they are set.
    login: [AtomicU32; 2],
    /// `PR_SET_THP_DISABLE`: no large pages come in its memory, nor in that of programs it
    /// executes.
    pub large_pages_disabled: AtomicBool,
    /// `PR_SET_NO_NEW_PRIVS`: set-id bits have no effect.
    pub no_new_privileges: AtomicBool,
    /// `PR_SET_CHILD_SUBREAPER`: orphaned descendants become its children.
    pub subreaper: AtomicBool,
}

impl Process {
    /// A process without threads, not in the table of ids yet.
    pub fn new(
        pid: Pid,
        actions: Arc<Actions>,
        unkillable: bool,
        limits: Limits,
        user: &Arc<Account>,
    ) -> Arc<Process> {
        Arc::new(Process {
            pid,
            started: nucleus::time::since_boot(),
            parent: AtomicU32::new(0),
            group: AtomicU32::new(0),
            session: AtomicU32::new(0),
            has_executed: AtomicBool::new(false),
            signals: signal::ProcessSignals::new(actions, unkillable),
            restricting: Restricting::default(),
            child_events: WaitQueue::new(),
            ended: AtomicBool::new(false),
            end_status: AtomicI32::new(0),
            end_events: WaitQueue::new(),
            timers: signal::timer::Timers::new(),
            limits,
            spent: SpinLock::new(Rank::Leaf, Spent::default()),
            account: SpinLock::new(Rank::Leaf, Account::of_process(pid, user)),
            counts_as_leader: AtomicBool::new(false),
            exceeds_user: AtomicBool::new(false),
            last_name: SpinLock::new(Rank::Leaf, Vec::new()),
            last_credentials: SpinLock::new(Rank::Leaf, None),
            personality: AtomicU32::new(0),
            oom_adjustment: AtomicI32::new(0),
            login: [const { AtomicU32::new(u32::MAX) }; 2],
            large_pages_disabled: AtomicBool::new(false),
            no_new_privileges: AtomicBool::new(false),
            subreaper: AtomicBool::new(false),
        })
    }

    pub fn pid(&self) -> Pid {
        self.pid
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The parent's id, 0 for the first process.
    pub fn parent_pid(&self) -> Pid {
        self.parent.load(Relaxed)
    }

    pub fn group_id(&self) -> Pid {
        self.group.load(Relaxed)
    }

    pub fn session_id(&self) -> Pid {
        self.session.load(Relaxed)
    }

    /// The thread that stands for the process in `/proc/PID`: the leader, as long as it lives.
    /// `None` for a zombie.
    pub fn leader(&self) -> Option<Arc<Thread>> {
        self.signals.with_thread_or_first(self.pid(), Arc::clone)
    }

    /// The credentials of its leader, of a zombie those that its last thread had. `None` before it
    /// has a thread.
    pub fn credentials(&self) -> Option<Arc<Credentials>> {
        let of_leader = self
            .signals
            .with_thread_or_first(self.pid(), |leader| leader.credentials());
        of_leader
            .flatten()
            .or_else(|| self.last_credentials.lock().clone())
    }

    /// Visits the threads that have not ended, as [`ProcessSignals::threads_after`] does.
    pub fn threads(&self) -> impl Iterator<Item = Arc<Thread>> {
        self.signals.threads_after(0)
    }

    /// Whether it has ended and waits to be waited for.
    pub fn is_zombie(&self) -> bool {
        self.signals.thread_count() == 0
    }

    /// The state letter of `/proc/PID/stat`: R, S, D, T or Z.
    pub fn state(&self) -> char {
        let Some(leader) = self.leader() else {
            return 'Z';
        };
        leader.state()
    }

    /// The real user id, of a zombie too.
    pub fn real_uid(&self) -> u32 {
        self.account.lock().uid()
    }

    /// The account to which the objects are charged that it makes.
    pub fn account(&self) -> Arc<Account> {
        self.account.lock().clone()
    }

    /// The account of the user with the real user id.
    pub fn user(&self) -> Arc<Account> {
        self.account.lock().user().clone()
    }

    /// Changes the real user id. The threads count as the new user's; objects that were made before
    /// stay with the old one.
    pub(crate) fn set_real_uid(&self, uid: u32) {
        if uid == self.real_uid() {
            return;
        }
        let new = Account::of_process(self.pid, &user::find(uid));
        let old = {
            let mut account = self.account.lock();
            user::move_threads(&account, &new);
            core::mem::replace(&mut *account, new)
        };
        drop(old);
    }

    /// Counts one more thread.
    pub(super) fn charge_thread(&self) {
        let account = self.account.lock();
        account.add(Kind::Threads, 1, user::THREAD_BYTES);
    }

    /// Takes back the charge of a thread that has ended. The leader goes on counting, with less
    /// memory: its id stays taken until the process has been waited for.
    pub(super) fn release_thread(&self, tid: Pid) {
        let account = self.account.lock();
        if tid == self.pid {
            self.counts_as_leader.store(true, Relaxed);
            let bytes = user::THREAD_BYTES - user::PROCESS_BYTES;
            account.take_back(Kind::Threads, 0, bytes);
        } else {
            account.take_back(Kind::Threads, 1, user::THREAD_BYTES);
        }
    }

    /// Takes back what an ended leader counts: the process has been waited for, or another thread
    /// has taken its id over.
    pub(super) fn release_leader(&self) {
        let account = self.account.lock();
        if self.counts_as_leader.swap(false, Relaxed) {
            account.take_back(Kind::Threads, 1, user::PROCESS_BYTES);
        }
    }

    /// Whether its user has more threads than it may have here, `more` included.
    pub fn has_too_many_threads(&self, more: usize) -> bool {
        let user = self.user();
        let limit = self.limits().soft(abi::raw::general::RLIMIT_NPROC);
        user.uid() != 0 && (user.things(Kind::Threads) + more) as u64 > limit
    }

    /// Copies the state that a child inherits besides that which `clone` shares or copies.
    pub(super) fn inherit(&self, parent: &Process) {
        for (own, parents) in [
            (&self.personality, &parent.personality),
            (&self.login[0], &parent.login[0]),
            (&self.login[1], &parent.login[1]),
        ] {
            own.store(parents.load(Relaxed), Relaxed);
        }
        for (own, parents) in [
            (&self.no_new_privileges, &parent.no_new_privileges),
            (&self.large_pages_disabled, &parent.large_pages_disabled),
        ] {
            own.store(parents.load(Relaxed), Relaxed);
        }
        let adjustment = parent.oom_adjustment.load(Relaxed);
        self.oom_adjustment.store(adjustment, Relaxed);
    }

    /// Returns the user that logged in, and the number of the login; `u32::MAX` for none.
    pub fn login(&self) -> [u32; 2] {
        [0, 1].map(|n| self.login[n].load(Relaxed))
    }

    /// Begins a login: this process and those that it makes belong to a new login of `uid`, or with
    /// `u32::MAX` to none.
    pub fn set_login(&self, uid: u32) {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let number = match uid {
            u32::MAX => u32::MAX,
            _ => LAST.fetch_add(1, Relaxed) + 1,
        };
        self.login[0].store(uid, Relaxed);
        self.login[1].store(number, Relaxed);
    }

    /// Makes its address space enforce its limits. Called after a change of either; the last caller
    /// finds both.
    pub fn apply_limits(&self) {
        let space = self.leader().and_then(|leader| leader.space());
        if let Some(space) = space {
            space.map().set_limits(|| self.limits.of_map());
        }
    }

    /// The name of the process, a zombie's too.
    pub fn name(&self) -> Vec<u8> {
        match self.leader() {
            Some(leader) => leader.name(),
            None => self.last_name.lock().clone(),
        }
    }
}

impl Drop for Process {
    /// One that was not added to the table of ids was not waited for.
    fn drop(&mut self) {
        self.release_leader();
    }
}
