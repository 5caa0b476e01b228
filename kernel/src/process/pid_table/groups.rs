//! Process groups and sessions.

use alloc::sync::Arc;
use core::{
    any::Any,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use abi::{Errno, Result};
use nucleus::sync::{Rank, SpinLock};

use super::{Birth, Births, INIT, PIDS, PidTable, STEPS, by_birth};
use crate::process::{Pid, Process};

/// The controlling terminal of a session.
pub trait ControllingTerminal: Any + Send + Sync {
    /// Its device number.
    fn device(&self) -> u64;

    /// The id of its foreground group; 0 for none.
    fn foreground(&self) -> Pid;

    /// The leader of `session` has ended: the terminal controls no session any more, and its
    /// foreground group gets SIGHUP and SIGCONT.
    fn session_ended(&self, session: Pid);
}

pub(super) struct GroupEntry {
    pub(super) group: Arc<Group>,
    pub(super) members: Births,
    /// A process that ends is going to look whether it has become an orphan.
    pub(super) asked: bool,
}

pub struct Group {
    pub id: Pid,
    pub session: Arc<Session>,
}

pub struct Session {
    pub id: Pid,
    terminal: SpinLock<Option<Arc<dyn ControllingTerminal>>>,
    /// The foreground group of a terminal that hung up, to be told when the leader ends; 0 for
    /// none.
    bereft: AtomicU32,
}

impl Group {
    pub fn find(id: Pid) -> Option<Arc<Group>> {
        PIDS.lock().groups.get(&id).map(|g| g.group.clone())
    }
}

impl Session {
    /// The controlling terminal.
    pub fn terminal(&self) -> Option<Arc<dyn ControllingTerminal>> {
        self.terminal.lock().clone()
    }

    /// Sets or takes away the controlling terminal; returns the old one.
    pub fn set_terminal(
        &self,
        terminal: Option<Arc<dyn ControllingTerminal>>,
    ) -> Option<Arc<dyn ControllingTerminal>> {
        core::mem::replace(&mut *self.terminal.lock(), terminal)
    }

    /// The controlling terminal hung up; `foreground` was its foreground group (0: none).
    pub fn hung_up(&self, foreground: Pid) {
        self.bereft.store(foreground, Relaxed);
        let gone = self.set_terminal(None);
        drop(gone);
    }

    /// The leader ends: the group that was in the foreground of a terminal which hung up, 0 for
    /// none.
    pub fn take_bereft(&self) -> Pid {
        self.bereft.swap(0, Relaxed)
    }
}

impl PidTable {
    /// Whether the parent of a process is in the same session and another group, so that it can
    /// continue the group of the process.
    pub(super) fn is_anchor(&self, pid: Pid) -> bool {
        let Some(member) = self.members.get(&pid) else {
            return false;
        };
        if member.leaving || member.parent == INIT {
            return false;
        }
        let parent = self.members.get(&member.parent);
        parent.is_some_and(|parent| !parent.leaving && continues(&parent.group, &member.group))
    }

    /// Moves a process to a group, which is made if need be. Returns the old one, to be dropped
    /// without the lock.
    #[must_use]
    fn join(&mut self, pid: Pid, group: Arc<Group>) -> Option<Arc<Group>> {
        let member = self.members.get_mut(&pid)?;
        if member.group.id == group.id {
            // Parent and child may both ask for the same.
            return Some(group);
        }
        let birth = member.birth;
        let old = core::mem::replace(&mut member.group, group.clone());
        member.process.group.store(group.id, Relaxed);
        member.process.session.store(group.session.id, Relaxed);
        self.enter(pid, birth, group);
        self.leave(birth, old.id);
        Some(old)
    }

    pub(super) fn enter(&mut self, pid: Pid, birth: Birth, group: Arc<Group>) {
        let entry = self.groups.entry(group.id).or_insert_with(|| {
            *self.sessions.entry(group.session.id).or_insert(0) += 1;
            GroupEntry {
                group,
                members: Births::new(),
                asked: false,
            }
        });
        entry.members.insert(birth, pid);
    }

    pub(super) fn leave(&mut self, birth: Birth, group: Pid) {
        let Some(entry) = self.groups.get_mut(&group) else {
            return;
        };
        entry.members.remove(&birth);
        if !entry.members.is_empty() {
            return;
        }
        let session = entry.group.session.id;
        // Its last member has, or had until now, a reference of its own: nothing is freed here.
        self.groups.remove(&group);
        self.left(group);
        if let Some(groups) = self.sessions.get_mut(&session) {
            *groups -= 1;
            if *groups == 0 {
                self.sessions.remove(&session);
                self.left(session);
            }
        }
    }
}

/// A session with one group, both with this id.
pub(super) fn new_session(id: Pid) -> Arc<Group> {
    Arc::new(Group {
        id,
        session: Arc::new(Session {
            id,
            terminal: SpinLock::new(Rank::Leaf, None),
            bereft: AtomicU32::new(0),
        }),
    })
}

/// Whether a parent in one group can continue another one.
pub(super) fn continues(parents: &Group, group: &Group) -> bool {
    parents.id != group.id && parents.session.id == group.session.id
}

/// Visits the members of a group in the order in which the processes came, as
/// [`Process::by_birth`] does. One that joins or leaves the group meanwhile may be seen or not.
pub fn members(group: Pid) -> impl Iterator<Item = Arc<Process>> {
    by_birth(move |pids| Some(&pids.groups.get(&group)?.members))
}

/// Whether no member of the group has a parent in another group of the same session: a stop by the
/// terminal would be for ever.
pub fn is_orphaned(group: Pid) -> bool {
    find_member(group, PidTable::is_anchor).is_none()
}

/// Whether a group that has lost an anchor was left without one, and with a member that has
/// stopped: nothing would continue it.
pub(super) fn is_stranded(group: Pid) -> bool {
    if let Some(entry) = PIDS.lock().groups.get_mut(&group) {
        entry.asked = false;
    }
    let has_stopped = |pids: &PidTable, pid: Pid| {
        let member = pids.members.get(&pid);
        member.is_some_and(|m| m.process.signals.stopped().is_some())
    };
    is_orphaned(group) && find_member(group, has_stopped).is_some()
}

/// Looks for a member of the group for which `is_it` holds. With many members the table is unlocked
/// in between, so one that comes meanwhile may be missed.
fn find_member(group: Pid, is_it: impl Fn(&PidTable, Pid) -> bool) -> Option<Pid> {
    let mut from = 0;
    loop {
        let pids = PIDS.lock();
        let rest = pids.groups.get(&group)?.members.range(from..);
        let mut count = 0;
        for (&birth, &pid) in rest.take(STEPS) {
            if is_it(&pids, pid) {
                return Some(pid);
            }
            from = birth + 1;
            count += 1;
        }
        if count < STEPS {
            return None;
        }
    }
}

/// `setsid`: the process leads a new session and a new group.
///
/// # Errors
/// `EPERM` if there is a group with its id.
pub fn set_session(pid: Pid) -> Result<()> {
    let mut pids = PIDS.lock();
    if pids.groups.contains_key(&pid) || pids.sessions.contains_key(&pid) {
        return Err(Errno::EPERM);
    }
    let old = pids.join(pid, new_session(pid));
    drop(pids);
    drop(old);
    Ok(())
}

/// `setpgid` by `caller` for the process `pid`.
///
/// # Errors
/// `ESRCH`: `pid` is neither the caller nor its child. `EACCES`: the child has called `execve`.
/// `EPERM`: a session leader, another session, or no such group in the session.
pub fn set_group(caller: Pid, pid: Pid, group: Pid) -> Result<()> {
    let mut pids = PIDS.lock();
    let own_session = pids
        .members
        .get(&caller)
        .ok_or(Errno::ESRCH)?
        .group
        .session
        .id;
    let member = pids.members.get(&pid).ok_or(Errno::ESRCH)?;
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
    let target = match pids.groups.get(&group) {
        Some(entry) if entry.group.session.id == own_session => entry.group.clone(),
        Some(_) => return Err(Errno::EPERM),
        None if group == pid => Arc::new(Group {
            id: group,
            session: member.group.session.clone(),
        }),
        None => return Err(Errno::EPERM),
    };
    let old = pids.join(pid, target);
    drop(pids);
    drop(old);
    Ok(())
}
