//! Who belongs to whom: ids, parents and children, groups, sessions, and what a parent has not
//! been told yet.
//!
//! One spin lock guards all of it. It is taken when a process or thread comes, goes, stops, is waited for or
//! changes its group, for a few steps in maps by id; never on the way of any other
//! system call: what those need ([`Process::parent_pid`] and its like) is kept beside in atomics.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    vec::Vec,
};
use core::sync::atomic::Ordering::Relaxed;

use abi::{Errno, Result, raw::general as raw};
use nucleus::sync::{Rank, SpinLock};

use super::{Pid, Process, Thread, Times};
use crate::{
    signal::{self, Fields, Info},
    tty::Tty,
};

/// The highest id, `/proc/sys/kernel/pid_max` less one.
pub const LAST_PID: Pid = 32_767;
/// After the highest id the search for a free one goes on here.
const FIRST_AGAIN: Pid = 300;
/// The first process.
pub const INIT: Pid = 1;

static FAMILY: SpinLock<Family> = SpinLock::new(Rank::Family, Family::new());

struct Family {
    last: Pid,
    threads: BTreeMap<Pid, Arc<Thread>>,
    members: BTreeMap<Pid, Member>,
    groups: BTreeMap<Pid, GroupEntry>,
    /// How many groups each session has.
    sessions: BTreeMap<Pid, usize>,
}

/// A process that has not been waited for.
struct Member {
    process: Arc<Process>,
    parent: Pid,
    children: BTreeSet<Pid>,
    group: Arc<Group>,
    /// Its wait status, once it has ended.
    ended: Option<i32>,
    /// The stop signal that `wait` has not reported yet.
    stopped: Option<u32>,
    /// It went on and `wait` has not reported it yet.
    continued: bool,
    /// What the parent gets when it ends; 0 for none.
    exit_signal: u32,
}

struct GroupEntry {
    group: Arc<Group>,
    members: BTreeSet<Pid>,
}

/// A process group.
pub struct Group {
    id: Pid,
    session: Arc<Session>,
}

/// A session.
pub struct Session {
    id: Pid,
    terminal: SpinLock<Option<Arc<Tty>>>,
}

impl Group {
    /// The group's id.
    pub fn id(&self) -> Pid {
        self.id
    }

    /// The session that it belongs to.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// The group with this id.
    pub fn find(id: Pid) -> Option<Arc<Group>> {
        FAMILY.lock().groups.get(&id).map(|g| g.group.clone())
    }

    /// Whether no member has a parent in another group of the same session: a stop by the terminal would be for ever.
    pub fn is_orphaned(&self) -> bool {
        is_orphaned(self.id)
    }
}

impl Session {
    /// The session's id, that of its leader.
    pub fn id(&self) -> Pid {
        self.id
    }

    /// The controlling terminal.
    pub fn terminal(&self) -> Option<Arc<Tty>> {
        self.terminal.lock().clone()
    }

    /// Sets or takes away the controlling terminal; returns the old one.
    pub fn set_terminal(&self, terminal: Option<Arc<Tty>>) -> Option<Arc<Tty>> {
        core::mem::replace(&mut *self.terminal.lock(), terminal)
    }
}

/// How many processes and threads there are.
#[derive(Clone, Copy, Debug)]
pub struct Population {
    pub processes: usize,
    pub threads: usize,
    pub last_pid: Pid,
}

impl Family {
    const fn new() -> Family {
        Family {
            last: 0,
            threads: BTreeMap::new(),
            members: BTreeMap::new(),
            groups: BTreeMap::new(),
            sessions: BTreeMap::new(),
        }
    }

    /// An id that no thread, process, group or session has.
    fn free_id(&mut self) -> Result<Pid> {
        let mut id = self.last;
        for _ in 0..LAST_PID {
            id = if id >= LAST_PID { FIRST_AGAIN } else { id + 1 };
            let taken = self.threads.contains_key(&id)
                || self.members.contains_key(&id)
                || self.groups.contains_key(&id)
                || self.sessions.contains_key(&id);
            if !taken {
                self.last = id;
                return Ok(id);
            }
        }
        Err(Errno::EAGAIN)
    }

    fn is_orphaned(&self, group: Pid) -> bool {
        let Some(entry) = self.groups.get(&group) else {
            return true;
        };
        !entry.members.iter().any(|pid| self.is_anchor(*pid, entry))
    }

    /// Whether a member's parent is in the same session and another group, so that it can continue the group.
    fn is_anchor(&self, pid: Pid, entry: &GroupEntry) -> bool {
        let Some(member) = self.members.get(&pid) else {
            return false;
        };
        if member.ended.is_some() || member.parent == INIT {
            return false;
        }
        self.members.get(&member.parent).is_some_and(|parent| {
            parent.group.id != entry.group.id && parent.group.session.id == entry.group.session.id
        })
    }

    /// Who takes the children of a process whose parent is `parent`: the nearest living ancestor that asked for it
    /// (`PR_SET_CHILD_SUBREAPER`), else the first process.
    fn guardian_below(&self, parent: Pid) -> Pid {
        let mut at = parent;
        while let Some(member) = self.members.get(&at) {
            if member.process.is_subreaper() && member.ended.is_none() {
                return at;
            }
            at = member.parent;
        }
        INIT
    }

    fn has_stopped_member(&self, group: Pid) -> bool {
        self.groups.get(&group).is_some_and(|entry| {
            entry.members.iter().any(|pid| {
                self.members
                    .get(pid)
                    .is_some_and(|m| m.process.signals.stopped().is_some())
            })
        })
    }

    /// Moves a process to a group, which is made if need be. Returns the old one, to be dropped without the lock.
    #[must_use]
    fn join(&mut self, pid: Pid, group: Arc<Group>) -> Option<Arc<Group>> {
        let member = self.members.get_mut(&pid)?;
        if member.group.id == group.id {
            // Parent and child may both ask for the same.
            return Some(group);
        }
        let old = core::mem::replace(&mut member.group, group.clone());
        member.process.group.store(group.id, Relaxed);
        member.process.session.store(group.session.id, Relaxed);
        self.enter(pid, group);
        self.leave(pid, old.id);
        Some(old)
    }

    fn enter(&mut self, pid: Pid, group: Arc<Group>) {
        let entry = self.groups.entry(group.id).or_insert_with(|| {
            *self.sessions.entry(group.session.id).or_insert(0) += 1;
            GroupEntry {
                group,
                members: BTreeSet::new(),
            }
        });
        entry.members.insert(pid);
    }

    fn leave(&mut self, pid: Pid, group: Pid) {
        let Some(entry) = self.groups.get_mut(&group) else {
            return;
        };
        entry.members.remove(&pid);
        if !entry.members.is_empty() {
            return;
        }
        let session = entry.group.session.id;
        // Its last member has, or had until now, a reference of its own: nothing is freed here.
        self.groups.remove(&group);
        if let Some(groups) = self.sessions.get_mut(&session) {
            *groups -= 1;
            if *groups == 0 {
                self.sessions.remove(&session);
            }
        }
    }

    /// Forgets a process that has ended and was waited for. What it returns is to be dropped without the lock.
    #[must_use]
    fn reap(&mut self, pid: Pid) -> Option<Member> {
        let member = self.members.remove(&pid)?;
        self.leave(pid, member.group.id);
        if let Some(parent) = self.members.get_mut(&member.parent) {
            parent.children.remove(&pid);
        }
        Some(member)
    }
}

/// Takes a free id for a thread or process that is about to be added.
///
/// # Errors
/// `EAGAIN` when all are taken.
pub fn new_id() -> Result<Pid> {
    FAMILY.lock().free_id()
}

/// Adds a thread to the table of ids.
pub fn add_thread(thread: Arc<Thread>) {
    FAMILY.lock().threads.insert(thread.tid(), thread);
}

/// Takes a thread's id off the table.
pub fn remove_thread(tid: Pid) {
    let gone = FAMILY.lock().threads.remove(&tid);
    drop(gone);
}

/// A thread takes over another id (`execve` by a thread that is not the leader).
pub fn rename_thread(thread: &Arc<Thread>, old: Pid, new: Pid) {
    let mut family = FAMILY.lock();
    let own = family.threads.remove(&old);
    let leader = family.threads.insert(new, thread.clone());
    drop(family);
    drop((own, leader));
}

/// Adds a process below `parent`, in the parent's group, or in a session of its own if it has no parent.
pub fn add_process(process: Arc<Process>, parent: Option<Pid>, exit_signal: u32) {
    let pid = process.pid();
    let mut family = FAMILY.lock();
    let group = parent
        .and_then(|p| family.members.get(&p))
        .map(|p| p.group.clone())
        .unwrap_or_else(|| new_session(pid));
    process.group.store(group.id, Relaxed);
    process.session.store(group.session.id, Relaxed);
    process.parent.store(parent.unwrap_or(0), Relaxed);
    if let Some(parent) = parent.and_then(|p| family.members.get_mut(&p)) {
        parent.children.insert(pid);
    }
    family.enter(pid, group.clone());
    family.members.insert(
        pid,
        Member {
            process,
            parent: parent.unwrap_or(0),
            children: BTreeSet::new(),
            group,
            ended: None,
            stopped: None,
            continued: false,
            exit_signal,
        },
    );
}

/// Takes back [`add_process`] for a process that never ran.
pub fn remove_unborn(pid: Pid) {
    let gone = FAMILY.lock().reap(pid);
    drop(gone);
}

fn new_session(id: Pid) -> Arc<Group> {
    Arc::new(Group {
        id,
        session: Arc::new(Session {
            id,
            terminal: SpinLock::new(Rank::Leaf, None),
        }),
    })
}

/// The thread with this id.
pub fn find_thread(tid: Pid) -> Option<Arc<Thread>> {
    FAMILY.lock().threads.get(&tid).cloned()
}

/// The process with this id, a zombie perhaps.
pub fn find_process(pid: Pid) -> Option<Arc<Process>> {
    FAMILY.lock().members.get(&pid).map(|m| m.process.clone())
}

/// All processes, zombies included, by rising id.
pub fn all() -> Vec<Arc<Process>> {
    let count = FAMILY.lock().members.len();
    let mut list = Vec::with_capacity(count + 8);
    list.extend(FAMILY.lock().members.values().map(|m| m.process.clone()));
    list
}

/// The members of a group.
pub fn members(group: Pid) -> Vec<Arc<Process>> {
    let family = FAMILY.lock();
    family.groups.get(&group).map_or(Vec::new(), |entry| {
        entry
            .members
            .iter()
            .filter_map(|pid| family.members.get(pid).map(|m| m.process.clone()))
            .collect()
    })
}

/// The group of a process.
pub(super) fn group_of(pid: Pid) -> Arc<Group> {
    let found = FAMILY.lock().members.get(&pid).map(|m| m.group.clone());
    found.unwrap_or_else(|| new_session(pid))
}

/// How many there are.
pub fn population() -> Population {
    let family = FAMILY.lock();
    Population {
        processes: family.members.len(),
        threads: family.threads.len(),
        last_pid: family.last,
    }
}

/// Whether no member of the group has a parent in another group of the same session.
pub fn is_orphaned(group: Pid) -> bool {
    FAMILY.lock().is_orphaned(group)
}

/// Whether a process has ended and was not waited for.
pub fn has_ended(pid: Pid) -> bool {
    FAMILY
        .lock()
        .members
        .get(&pid)
        .is_none_or(|m| m.ended.is_some())
}

/// `setsid`: the process leads a new session and a new group.
///
/// # Errors
/// `EPERM` if there is a group with its id.
pub fn set_session(pid: Pid) -> Result<()> {
    let mut family = FAMILY.lock();
    if family.groups.contains_key(&pid) || family.sessions.contains_key(&pid) {
        return Err(Errno::EPERM);
    }
    let old = family.join(pid, new_session(pid));
    drop(family);
    drop(old);
    Ok(())
}

/// `setpgid` by `caller` for the process `pid`.
///
/// # Errors
/// `ESRCH`: `pid` is neither the caller nor its child. `EACCES`: the child has called `execve`. `EPERM`: a session
/// leader, another session, or no such group in the session.
pub fn set_group(caller: Pid, pid: Pid, group: Pid) -> Result<()> {
    let mut family = FAMILY.lock();
    let own_session = family
        .members
        .get(&caller)
        .ok_or(Errno::ESRCH)?
        .group
        .session
        .id;
    let member = family.members.get(&pid).ok_or(Errno::ESRCH)?;
    if pid != caller {
        if member.parent != caller {
            return Err(Errno::ESRCH);
        }
        if member.group.session.id != own_session {
            return Err(Errno::EPERM);
        }
        if member.process.has_executed.load(Relaxed) {
            return Err(Errno::EACCES);
        }
    }
    if member.group.session.id == pid {
        return Err(Errno::EPERM);
    }
    let target = match family.groups.get(&group) {
        Some(entry) if entry.group.session.id == own_session => entry.group.clone(),
        Some(_) => return Err(Errno::EPERM),
        None if group == pid => Arc::new(Group {
            id: group,
            session: member.group.session.clone(),
        }),
        None => return Err(Errno::EPERM),
    };
    let old = family.join(pid, target);
    drop(family);
    drop(old);
    Ok(())
}

/// Tells the parent about `process` by signal and wakes what waits.
fn tell_parent(parent: &Process, process: &Process, code: u32, status: i32, signal: u32) {
    let Times { user, system } = process.times();
    let ticks = |time: core::time::Duration| time.as_millis() as u64 / 10;
    let info = Info {
        signal,
        code: code as i32,
        errno: 0,
        fields: Fields::Child {
            pid: process.pid(),
            uid: process.real_uid(),
            status,
            user: ticks(user),
            system: ticks(system),
        },
    };
    // A standard signal always finds room.
    let _ = signal::send_to_process(parent, info);
}

/// The process has stopped: its parent is told.
pub fn report_stopped(process: &Process, signal: u32) {
    report(process, raw::CLD_STOPPED, signal as i32, |member| {
        member.stopped = Some(signal);
        member.continued = false;
    });
}

/// The process goes on: its parent is told.
pub fn report_continued(process: &Process) {
    report(process, raw::CLD_CONTINUED, raw::SIGCONT as i32, |member| {
        member.stopped = None;
        member.continued = true;
    });
}

fn report(process: &Process, code: u32, status: i32, note: impl FnOnce(&mut Member)) {
    let parent = {
        let mut family = FAMILY.lock();
        let Some(member) = family.members.get_mut(&process.pid()) else {
            return;
        };
        note(member);
        let parent = member.parent;
        family.members.get(&parent).map(|m| m.process.clone())
    };
    if let Some(parent) = parent {
        if !parent.signals.actions().child_rules().no_stops {
            tell_parent(&parent, process, code, status, raw::SIGCHLD);
        }
        parent.child_events.wake_all();
    }
}

/// The last thread of `process` has ended: it is a zombie until its parent has waited for it, its children
/// get a new parent, groups that lose their last link to their session are told.
pub fn end_process(process: &Arc<Process>, status: i32) {
    let pid = process.pid();
    let mut orphaned = Vec::new();
    let mut bereaved = Vec::new();
    let mut zombies = false;
    let new_parent;
    let (parent, exit_signal) = {
        let mut family = FAMILY.lock();
        let Some(member) = family.members.get_mut(&pid) else {
            return;
        };
        let children = core::mem::take(&mut member.children);
        let group = member.group.clone();
        let (parent, exit_signal) = (member.parent, member.exit_signal);
        // Groups that have an anchor now and lose it are told.
        let mut before: Vec<Pid> = children
            .iter()
            .filter_map(|child| family.members.get(child).map(|m| m.group.id))
            .filter(|id| *id != group.id)
            .collect();
        before.push(group.id);
        before.sort_unstable();
        before.dedup();
        before.retain(|id| !family.is_orphaned(*id));

        let guardian = family.guardian_below(parent);
        for child in children {
            let Some(member) = family.members.get_mut(&child) else {
                continue;
            };
            member.parent = guardian;
            member.exit_signal = raw::SIGCHLD;
            zombies |= member.ended.is_some();
            member.process.parent.store(guardian, Relaxed);
            bereaved.push(member.process.clone());
            if let Some(guardian) = family.members.get_mut(&guardian) {
                guardian.children.insert(child);
            }
        }
        new_parent = guardian;
        if let Some(member) = family.members.get_mut(&pid) {
            member.ended = Some(status);
            member.stopped = None;
            member.continued = false;
        }
        orphaned.extend(
            before
                .into_iter()
                .filter(|id| family.is_orphaned(*id) && family.has_stopped_member(*id)),
        );
        (
            family.members.get(&parent).map(|m| m.process.clone()),
            exit_signal,
        )
    };

    for group in orphaned {
        // A group that vanished in the meantime needs no signal.
        let _ = signal::send_to_group(group, Info::kernel(raw::SIGHUP));
        let _ = signal::send_to_group(group, Info::kernel(raw::SIGCONT));
    }
    for child in bereaved {
        child.parent_ended(process);
    }
    if zombies && let Some(guardian) = find_process(new_parent) {
        // Whoever was a zombie already is its to wait for now.
        let _ = signal::send_to_process(&guardian, Info::kernel(raw::SIGCHLD));
        guardian.child_events.wake_all();
    }
    let Some(parent) = parent else { return };
    let rules = parent.signals.actions().child_rules();
    if exit_signal != 0 && !(exit_signal == raw::SIGCHLD && rules.ignored) {
        let (code, status) = if status & 0x7f == 0 {
            (raw::CLD_EXITED, status >> 8)
        } else {
            (raw::CLD_KILLED, status & 0x7f)
        };
        tell_parent(&parent, process, code, status, exit_signal);
    }
    if exit_signal == raw::SIGCHLD && rules.no_zombies {
        let gone = FAMILY.lock().reap(pid);
        drop(gone);
    }
    parent.child_events.wake_all();
}

/// Which children a wait is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    Any,
    Child(Pid),
    Group(Pid),
}

/// What a wait is for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub which: Which,
    pub ended: bool,
    pub stopped: bool,
    pub continued: bool,
    /// Children whose exit signal is not SIGCHLD (`__WCLONE`), all (`__WALL`), or the others.
    pub clones: Clones,
    /// The state can be waited for again (`WNOWAIT`).
    pub keep: bool,
}

/// See [`Wanted::clones`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clones {
    Without,
    Only,
    All,
}

/// What happened to a child.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Its wait status.
    Ended(i32),
    /// The signal.
    Stopped(u32),
    Continued,
}

/// Looks for a child whose state changed, and takes the change unless it is kept. `None`: there are such
/// children, but none has changed.
///
/// # Errors
/// `ECHILD` if there is no such child.
pub fn take_change(parent: Pid, wanted: &Wanted) -> Result<Option<(Arc<Process>, Change)>> {
    let mut family = FAMILY.lock();
    let children = &family.members.get(&parent).ok_or(Errno::ECHILD)?.children;
    let mut exists = false;
    let mut found = None;
    let one = match wanted.which {
        Which::Child(pid) => pid..=pid,
        _ => 0..=Pid::MAX,
    };
    for pid in children.range(one) {
        let Some(member) = family.members.get(pid) else {
            continue;
        };
        let fits = match wanted.which {
            Which::Group(id) => member.group.id == id,
            _ => true,
        } && match wanted.clones {
            Clones::All => true,
            Clones::Only => member.exit_signal != raw::SIGCHLD,
            Clones::Without => member.exit_signal == raw::SIGCHLD,
        };
        if !fits {
            continue;
        }
        exists = true;
        found = match (member.ended, member.stopped) {
            (Some(status), _) if wanted.ended => Some(Change::Ended(status)),
            (_, Some(signal)) if wanted.stopped => Some(Change::Stopped(signal)),
            _ if wanted.continued && member.continued => Some(Change::Continued),
            _ => None,
        }
        .map(|change| (*pid, change));
        if found.is_some() {
            break;
        }
    }
    let Some((pid, change)) = found else {
        return if exists { Ok(None) } else { Err(Errno::ECHILD) };
    };
    let process = family.members[&pid].process.clone();
    if !wanted.keep {
        match change {
            Change::Ended(_) => {
                let gone = family.reap(pid);
                drop(family);
                drop(gone);
            }
            Change::Stopped(_) => {
                if let Some(member) = family.members.get_mut(&pid) {
                    member.stopped = None;
                }
            }
            Change::Continued => {
                if let Some(member) = family.members.get_mut(&pid) {
                    member.continued = false;
                }
            }
        }
    }
    Ok(Some((process, change)))
}
