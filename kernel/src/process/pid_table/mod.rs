//! The table of ids: processes and threads, parents and children, groups, sessions, and the state
//! changes that a parent has not been told yet.
//!
//! One spin lock guards all of it. It is taken when a process or thread comes, goes, stops, is
//! waited for or changes its group, for a few steps in maps by id, and for at most [`STEPS`] of
//! them where there are many children or members; never on the way of any other system call, which
//! reads copies in atomics ([`Process::parent_pid`] and similar).

mod change;
mod groups;
mod ids;

use alloc::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use core::{
    ops::Bound::{Excluded, Unbounded},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use crate::counters::Counter;
use abi::{Errno, Result, raw::general::SIGCHLD};
use nucleus::sync::SpinLock;

use super::{
    Credentials, Pid, Process, Thread, limits,
    pid::LastingId,
    signal::{self, Info},
};
use groups::{GroupEntry, new_session};
use ids::Ids;

pub use change::{
    Change, Clones, WaitRequest, Which, end_process, reap_parentless, report_continued,
    report_stopped, take_change,
};
pub use groups::{
    ControllingTerminal, Group, Session, is_orphaned, members, set_group, set_session,
};

/// The highest id, `/proc/sys/kernel/pid_max` less one.
pub const LAST_PID: Pid = 32_767;
/// After the highest id the search for a free one goes on here.
const FIRST_AGAIN: Pid = 300;
pub const INIT: Pid = 1;
/// One of so many ids is kept for those that may exceed limits.
const KEPT: usize = 64;
/// How many children or members are looked at with the table locked.
const STEPS: usize = 64;

static PIDS: SpinLock<PidTable> = SpinLock::new(crate::rank::FAMILY, PidTable::new());

struct PidTable {
    /// Those that stand in any of the maps below.
    ids: Ids,
    /// Given out, and not yet a thread's.
    promised: BTreeSet<Pid>,
    threads: BTreeMap<Pid, Arc<Thread>>,
    members: BTreeMap<Pid, Member>,
    groups: BTreeMap<Pid, GroupEntry>,
    /// How many groups each session has.
    sessions: BTreeMap<Pid, usize>,
    /// The members in the order in which they came.
    births: Births,
    /// How many processes there have been.
    born: Birth,
}

/// How many processes there were before this one. Of two, the younger has the higher number, which
/// ids do not tell.
type Birth = u64;
type Births = BTreeMap<Birth, Pid>;

/// A process that has not been waited for.
struct Member {
    process: Arc<Process>,
    birth: Birth,
    parent: Pid,
    children: BTreeSet<Pid>,
    group: Arc<Group>,
    /// Its last thread is ending: it gets no more children, and keeps no group in its session.
    leaving: bool,
    /// When it is leaving, the process that gets its children; `None` is the first one.
    reaper: Option<Birth>,
    /// Its wait status, once it has ended.
    ended: Option<i32>,
    /// The stop signal that `wait` has not reported yet.
    stopped: Option<u32>,
    /// It went on and `wait` has not reported it yet.
    continued: bool,
    /// The signal for the parent when it ends; 0 for none.
    exit_signal: u32,
    /// How many programs it has executed, and how many its parent had when it was made.
    executed: u64,
    parent_executed: u64,
}

/// How many threads there are, and the newest.
#[derive(Clone, Copy, Debug)]
pub struct Population {
    pub threads: usize,
    pub last_pid: Pid,
}

impl PidTable {
    const fn new() -> PidTable {
        PidTable {
            ids: Ids::new(),
            promised: BTreeSet::new(),
            threads: BTreeMap::new(),
            members: BTreeMap::new(),
            groups: BTreeMap::new(),
            sessions: BTreeMap::new(),
            births: BTreeMap::new(),
            born: 0,
        }
    }

    /// Promises an id that no thread, process, group or session has; one of the last only to those
    /// that may exceed limits.
    fn promise(&mut self, may_exceed: bool) -> Result<Pid> {
        if self.threads.len() >= threads_max() as usize {
            return Err(Errno::EAGAIN);
        }
        let highest = HIGHEST.load(Relaxed);
        let kept = (highest - FIRST_AGAIN) as usize / KEPT;
        if !may_exceed && self.ids.free_up_to(highest) <= kept {
            return Err(Errno::EAGAIN);
        }
        let id = self.ids.take_next(highest);
        let id = id.ok_or(Errno::EAGAIN)?;
        self.promised.insert(id);
        Ok(id)
    }

    /// An id has left one of the maps: it is free if it stands in none.
    fn left(&mut self, id: Pid) {
        let is_taken = self.threads.contains_key(&id)
            || self.members.contains_key(&id)
            || self.groups.contains_key(&id)
            || self.sessions.contains_key(&id)
            || self.promised.contains(&id);
        if !is_taken {
            self.ids.free(id);
        }
    }

    /// Forgets a process that has ended and was waited for. What it returns is to be dropped
    /// without the lock.
    #[must_use]
    fn reap(&mut self, pid: Pid) -> Option<Member> {
        let member = self.members.remove(&pid)?;
        member.process.release_leader();
        self.births.remove(&member.birth);
        self.leave(member.birth, member.group.id);
        self.left(pid);
        if let Some(parent) = self.members.get_mut(&member.parent) {
            parent.children.remove(&pid);
        }
        Some(member)
    }
}

/// A reserved id. It outlives the insertion of the thread or process.
#[derive(Debug)]
pub struct NewId(Pid);

impl NewId {
    pub fn get(&self) -> Pid {
        self.0
    }
}

impl Drop for NewId {
    fn drop(&mut self) {
        let mut pids = PIDS.lock();
        pids.promised.remove(&self.0);
        pids.left(self.0);
    }
}

/// Takes a free id for a thread or process that is about to be added; one of the last only if its
/// maker `may_exceed` limits.
///
/// # Errors
/// `EAGAIN` when all are taken, or there are too many threads.
pub fn new_id(may_exceed: bool) -> Result<NewId> {
    PIDS.lock().promise(may_exceed).map(NewId)
}

/// Takes this id (`set_tid` of `clone3`).
///
/// # Errors
/// `EINVAL` if there can't be such an id, `EEXIST` if it is taken.
pub fn claim_id(id: Pid) -> Result<NewId> {
    if id == 0 || id > LAST_PID {
        return Err(Errno::EINVAL);
    }
    let mut pids = PIDS.lock();
    if !pids.ids.take(id) {
        return Err(Errno::EEXIST);
    }
    pids.promised.insert(id);
    Ok(NewId(id))
}

/// Adds a thread to the table of ids.
pub fn add_thread(thread: Arc<Thread>) {
    Counter::forks.add(1);
    PIDS.lock().threads.insert(thread.tid(), thread);
}

/// The highest id that is given to a new thread or process, in `FIRST_AGAIN + 1..=LAST_PID`.
static HIGHEST: AtomicU32 = AtomicU32::new(LAST_PID);
/// The most threads of all processes together; 0 as long as it was not set.
static THREADS_MAX: AtomicU32 = AtomicU32::new(0);

/// Above every id (`kernel.pid_max`).
pub fn pid_max() -> u32 {
    HIGHEST.load(Relaxed) + 1
}

/// Sets [`pid_max`]; those that have a higher one keep it.
///
/// # Errors
/// `EINVAL` for too few, or for more than there are.
pub fn set_pid_max(max: u32) -> Result<()> {
    if !(FIRST_AGAIN + 2..=LAST_PID + 1).contains(&max) {
        return Err(Errno::EINVAL);
    }
    HIGHEST.store(max - 1, Relaxed);
    Ok(())
}

/// The most threads of all processes together (`kernel.threads-max`). Unless it was set, as on
/// Linux, so many that their stacks would be an eighth of memory: a superuser's programs, which
/// `RLIMIT_NPROC` does not bind, leave memory for others.
pub fn threads_max() -> u32 {
    match THREADS_MAX.load(Relaxed) {
        0 => limits::threads_by_memory(),
        max => max,
    }
}

/// Sets [`threads_max`].
///
/// # Errors
/// `EINVAL` for fewer than 20.
pub fn set_threads_max(max: u32) -> Result<()> {
    if max < 20 {
        return Err(Errno::EINVAL);
    }
    THREADS_MAX.store(max, Relaxed);
    Ok(())
}

/// Visits the children of a process by rising id, without memory of its own. One that comes or goes
/// meanwhile may be seen or not.
pub fn children(pid: Pid) -> impl Iterator<Item = Pid> {
    let mut last = 0;
    core::iter::from_fn(move || {
        let pids = PIDS.lock();
        let children = &pids.members.get(&pid)?.children;
        last = *children.range((Excluded(last), Unbounded)).next()?;
        Some(last)
    })
}

/// Visits the threads whose ids are above `last`, by rising id, without memory of its own. One that
/// comes or goes meanwhile may be seen or not.
pub fn threads_after(mut last: Pid) -> impl Iterator<Item = Arc<Thread>> {
    core::iter::from_fn(move || {
        let pids = PIDS.lock();
        let (id, thread) = pids.threads.range((Excluded(last), Unbounded)).next()?;
        last = *id;
        Some(thread.clone())
    })
}

/// Takes a thread off the table of ids, unless another one has taken its id over.
pub fn remove_thread(thread: &Arc<Thread>) {
    let mut pids = PIDS.lock();
    let is_its_own = |found: &Arc<Thread>| Arc::ptr_eq(found, thread);
    let gone = if pids.threads.get(&thread.tid()).is_some_and(is_its_own) {
        pids.threads.remove(&thread.tid())
    } else {
        None
    };
    pids.left(thread.tid());
    drop(pids);
    drop(gone);
}

/// A thread takes over another id (`execve` by a thread that is not the leader).
pub fn rename_thread(thread: &Arc<Thread>, old: Pid, new: Pid) {
    let mut pids = PIDS.lock();
    let own = pids.threads.remove(&old);
    let leader = pids.threads.insert(new, thread.clone());
    thread.process().release_leader();
    pids.left(old);
    drop(pids);
    drop((own, leader));
}

/// Adds a process in the group of `maker`, in a session of its own and without a parent if there is
/// none. With an exit signal it is a child of `maker`, without one its sibling (`CLONE_PARENT`),
/// which ends as `maker` does.
pub fn add_process(process: Arc<Process>, maker: Option<Pid>, exit_signal: Option<u32>) {
    let pid = process.pid();
    let mut pids = PIDS.lock();
    let (parent, exit_signal, told) = match (maker, exit_signal) {
        (Some(maker), None) => pids.as_sibling_of(maker),
        (maker, exit_signal) => (maker, exit_signal.unwrap_or(SIGCHLD), None),
    };
    let group = maker
        .and_then(|p| pids.members.get(&p))
        .map_or_else(|| new_session(pid), |p| p.group.clone());
    process.group.store(group.id, Relaxed);
    process.session.store(group.session.id, Relaxed);
    process.parent.store(parent.unwrap_or(0), Relaxed);
    let mut parent_executed = 0;
    if let Some(parent) = parent.and_then(|p| pids.members.get_mut(&p)) {
        parent.children.insert(pid);
        parent_executed = told.unwrap_or(parent.executed);
    }
    let birth = pids.born;
    pids.born += 1;
    pids.births.insert(birth, pid);
    pids.enter(pid, birth, group.clone());
    pids.members.insert(
        pid,
        Member {
            process,
            birth,
            parent: parent.unwrap_or(0),
            children: BTreeSet::new(),
            group,
            leaving: false,
            reaper: None,
            ended: None,
            stopped: None,
            continued: false,
            exit_signal,
            executed: 0,
            parent_executed,
        },
    );
}

/// A process has executed another program: its end is told by SIGCHLD, and so is that of the
/// children that it had before.
pub fn executed(pid: Pid) {
    if let Some(member) = PIDS.lock().members.get_mut(&pid) {
        member.exit_signal = SIGCHLD;
        member.executed += 1;
    }
}

/// Returns how many programs a process has executed; 0 once it was waited for.
pub fn programs(pid: Pid) -> u64 {
    PIDS.lock().members.get(&pid).map_or(0, |it| it.executed)
}

/// Sends to a process that has not executed another program since it had executed so many.
pub fn send_to_program(process: &Arc<Process>, programs: u64, info: Info) {
    let mut news = signal::News::default();
    {
        // The lock is held so that a program that comes meanwhile gets nothing.
        let pids = PIDS.lock();
        let member = pids.members.get(&process.pid());
        let is_same = |it: &&Member| Arc::ptr_eq(&it.process, process) && it.executed == programs;
        if member.is_some_and(|it| is_same(&it)) {
            signal::send_locked(process, info, &mut news);
        }
    }
    news.tell(process);
}

/// Takes back [`add_process`] for a process that never ran.
pub fn remove_unborn(pid: Pid) {
    let mut pids = PIDS.lock();
    let gone = pids.reap(pid);
    let parent = gone
        .as_ref()
        .and_then(|gone| pids.members.get(&gone.parent));
    let parent = parent.map(|parent| parent.process.clone());
    drop(pids);
    drop(gone);
    if let Some(parent) = parent {
        // A wait may have seen it, and have no other child to wait for.
        parent.child_events.wake_all();
    }
}

/// Visits the processes of a list, as [`Process::by_birth`] does.
fn by_birth(list: impl Fn(&PidTable) -> Option<&Births>) -> impl Iterator<Item = Arc<Process>> {
    let mut from = 0;
    let mut end = None;
    core::iter::from_fn(move || {
        let pids = PIDS.lock();
        let end = *end.get_or_insert(pids.born + Birth::from(LAST_PID));
        let (&birth, pid) = list(&pids)?.range(from..end).next()?;
        from = birth + 1;
        pids.members.get(pid).map(|member| member.process.clone())
    })
}

/// Calls `f` with the process that has this id and its leader's credentials, as long as the leader
/// lives; `None` otherwise. No reference is counted: the table and the leader's resources are
/// locked meanwhile, so that `f` may neither sleep nor look into the table.
pub fn with_leader<R>(pid: Pid, f: impl FnOnce(&Process, &Credentials) -> R) -> Option<R> {
    let pids = PIDS.lock();
    let leader = pids.threads.get(&pid)?;
    let process = leader.process();
    if process.pid() != pid {
        return None;
    }
    leader.with_credentials(|theirs| f(process, theirs))
}

pub fn find_thread(tid: Pid) -> Option<Arc<Thread>> {
    PIDS.lock().threads.get(&tid).cloned()
}

/// Returns the thread that was named, if it has not ended, nor taken on another id.
pub fn find_lasting(id: LastingId) -> Option<Arc<Thread>> {
    find_thread(id.tid).filter(|thread| thread.lasting_id() == id)
}

/// How many there are.
pub fn population() -> Population {
    let pids = PIDS.lock();
    Population {
        threads: pids.threads.len(),
        last_pid: pids.ids.last(),
    }
}

impl Process {
    /// The process group; one of its own and without members once it was waited for.
    pub fn group(&self) -> Arc<Group> {
        let found = PIDS
            .lock()
            .members
            .get(&self.pid())
            .map(|m| m.group.clone());
        found.unwrap_or_else(|| new_session(self.pid()))
    }

    /// The session; one of its own once it was waited for.
    pub fn session(&self) -> Arc<Session> {
        self.group().session.clone()
    }

    /// The process with this id, a zombie perhaps.
    pub fn find(pid: Pid) -> Option<Arc<Process>> {
        PIDS.lock().members.get(&pid).map(|m| m.process.clone())
    }

    /// The process with this id, or with a thread that has it: what most calls mean by a process.
    pub fn find_by_thread(id: Pid) -> Option<Arc<Process>> {
        let pids = PIDS.lock();
        let member = pids.members.get(&id).map(|member| &member.process);
        let of_thread = || pids.threads.get(&id).map(|thread| thread.process());
        member.or_else(of_thread).cloned()
    }

    /// Visits the processes, zombies included, in the order in which they came, without memory of
    /// its own. Those that come meanwhile are visited, too, up to as many as there can be.
    pub fn by_birth() -> impl Iterator<Item = Arc<Process>> {
        by_birth(|pids| Some(&pids.births))
    }

    /// Visits the processes, zombies included, by rising id, without memory of its own. One that
    /// comes or goes meanwhile may be seen or not.
    pub fn by_id() -> impl Iterator<Item = Arc<Process>> {
        Self::after(0)
    }

    /// As [`Process::by_id`], those whose ids are above `last`.
    pub fn after(mut last: Pid) -> impl Iterator<Item = Arc<Process>> {
        core::iter::from_fn(move || {
            let pids = PIDS.lock();
            let (pid, member) = pids.members.range((Excluded(last), Unbounded)).next()?;
            last = *pid;
            Some(member.process.clone())
        })
    }
}
