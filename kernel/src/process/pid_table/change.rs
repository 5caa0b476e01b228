//! State changes that a parent learns of its children: stops, ends, and waiting for them.

use alloc::{collections::BTreeSet, sync::Arc};
use core::sync::atomic::Ordering::{Relaxed, Release};

use abi::{Errno, Result, raw::general as raw};
use nucleus::Pieces;

use super::{INIT, Member, PIDS, PidTable};
use crate::process::{
    Pid, Process, Times,
    signal::{self, Fields, Info},
};

impl PidTable {
    /// Returns the new parent for the children of a process whose parent is `parent`: the nearest
    /// living ancestor that asked for it (`PR_SET_CHILD_SUBREAPER`), else the first process.
    fn guardian_below(&self, parent: Pid) -> Pid {
        let mut at = parent;
        while let Some(member) = self.members.get(&at) {
            if member.process.subreaper.load(Relaxed) && member.ended.is_none() {
                return at;
            }
            at = member.parent;
        }
        INIT
    }

    /// Makes `guardian` the parent of `children`, whom it returns. Zombies whom it does not want go
    /// to `gone`.
    fn hand_over(
        &mut self,
        children: BTreeSet<Pid>,
        guardian: Pid,
        gone: &mut Pieces<Member>,
        news: &mut signal::News,
    ) -> Pieces<Arc<Process>> {
        let new_parent = self.members.get(&guardian).map(|m| m.process.clone());
        let wants = new_parent
            .as_ref()
            .is_some_and(|p| !p.signals.child_rules().no_zombies);
        let mut processes = Pieces::new();
        for child in children {
            let Some(member) = self.members.get_mut(&child) else {
                continue;
            };
            member.parent = guardian;
            member.exit_signal = raw::SIGCHLD;
            member.process.parent.store(guardian, Relaxed);
            processes.push(member.process.clone());
            let zombie = member.ended.is_some();
            if let Some(guardian) = self.members.get_mut(&guardian) {
                guardian.children.insert(child);
            }
            if zombie && !wants {
                gone.extend(self.reap(child));
            } else if zombie && let Some(parent) = &new_parent {
                signal::send_locked(parent, Info::kernel(raw::SIGCHLD), news);
            }
        }
        processes
    }
}

/// Returns the signal that tells a parent about a child.
fn news(process: &Process, code: u32, status: i32, signal: u32) -> Info {
    let Times { user, system } = process.times();
    let ticks = |time: core::time::Duration| time.as_millis() as u64 / 10;
    let fields = Fields::Child {
        pid: process.pid(),
        uid: process.real_uid(),
        status,
        user: ticks(user),
        system: ticks(system),
    };
    Info::new(signal, code as i32, fields)
}

/// The process has stopped: its parent is told.
pub fn report_stopped(process: &Process, signal: u32) {
    let info = news(process, raw::CLD_STOPPED, signal as i32, raw::SIGCHLD);
    report(process, info, |member| {
        member.stopped = Some(signal);
        member.continued = false;
    });
}

/// The process goes on: its parent is told.
pub fn report_continued(process: &Process) {
    let status = raw::SIGCONT as i32;
    let info = news(process, raw::CLD_CONTINUED, status, raw::SIGCHLD);
    report(process, info, |member| {
        member.stopped = None;
        member.continued = true;
    });
}

fn report(process: &Process, info: Info, note: impl FnOnce(&mut Member)) {
    let mut pids = PIDS.lock();
    let Some(member) = pids.members.get_mut(&process.pid()) else {
        return;
    };
    note(member);
    let parent = member.parent;
    let parent = pids.members.get(&parent).map(|m| m.process.clone());
    let Some(parent) = parent else { return };
    let mut news = signal::News::default();
    // With the table locked, so that the change cannot be waited for before the signal is there.
    if !parent.signals.child_rules().no_stops {
        signal::send_locked(&parent, info, &mut news);
    }
    drop(pids);
    news.tell(&parent);
    parent.child_events.wake_all();
}

/// The last thread of `process` has ended: it is a zombie until its parent has waited for it,
/// unless the parent wants none; its children get a new parent, groups that lose their last link to
/// their session are told.
pub fn end_process(process: &Arc<Process>, status: i32) {
    let pid = process.pid();
    let (code, value) = if status & 0x7f == 0 {
        (raw::CLD_EXITED, status >> 8)
    } else {
        (raw::CLD_KILLED, status & 0x7f)
    };
    let mut info = news(process, code, value, 0);
    let mut gone = Pieces::new();

    let mut pids = PIDS.lock();
    let Some(member) = pids.members.get_mut(&pid) else {
        return;
    };
    let children = core::mem::take(&mut member.children);
    let (parent, mut exit_signal) = (member.parent, member.exit_signal);
    let parent_executed = member.parent_executed;
    let mut groups: BTreeSet<Pid> = children
        .iter()
        .filter_map(|child| pids.members.get(child).map(|m| m.group.id))
        .collect();
    groups.insert(process.group_id());
    // Groups that are no orphans now and will be are told.
    groups.retain(|id| !pids.is_orphaned(*id));

    let guardian = pids.guardian_below(parent);
    let mut guardian_news = signal::News::default();
    let bereaved = pids.hand_over(children, guardian, &mut gone, &mut guardian_news);
    if let Some(member) = pids.members.get_mut(&pid) {
        member.ended = Some(status);
        process.ended.store(true, Release);
        member.stopped = None;
        member.continued = false;
    }
    groups.retain(|id| pids.is_orphaned(*id) && pids.has_stopped_member(*id));

    let parent = pids.members.get(&parent);
    if parent.is_some_and(|parent| parent.executed != parent_executed) {
        // Another program than the one that asked for the signal.
        exit_signal = raw::SIGCHLD;
    }
    let parent = parent.map(|m| m.process.clone());
    let mut news = signal::News::default();
    if let Some(parent) = &parent {
        let rules = parent.signals.child_rules();
        let usual = exit_signal == raw::SIGCHLD;
        if exit_signal != 0 && !(usual && rules.ignored) {
            info.signal = exit_signal;
            // With the table locked, as in `report`.
            signal::send_locked(parent, info, &mut news);
        }
        if usual && rules.no_zombies {
            gone.extend(pids.reap(pid));
        }
    }
    drop(pids);
    drop(gone);
    process.end_events.wake_all();

    for group in groups {
        // A group that vanished in the meantime needs no signal.
        let _ = signal::send_to_group(group, Info::kernel(raw::SIGHUP));
        let _ = signal::send_to_group(group, Info::kernel(raw::SIGCONT));
    }
    if !bereaved.is_empty() {
        // Zombies among them are the guardian's to wait for now.
        if let Some(guardian) = Process::find(guardian) {
            guardian_news.tell(&guardian);
            guardian.child_events.wake_all();
        }
    }
    for child in bereaved {
        child.parent_ended(process);
    }
    if let Some(parent) = parent {
        news.tell(&parent);
        parent.child_events.wake_all();
    }
}

impl Process {
    /// The parent has ended: threads that asked for it get a signal (`PR_SET_PDEATHSIG`).
    fn parent_ended(&self, parent: &Process) {
        for thread in self.threads() {
            let signal = thread.parent_death_signal.load(Relaxed);
            if signal != 0 {
                let info = signal::Info::user(signal, parent.pid(), parent.real_uid());
                // A process on its way out needs no signal.
                let _ = signal::send_to_process(self, info);
            }
        }
    }
}

/// Which children a wait is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    Any,
    Child(Pid),
    Group(Pid),
}

#[derive(Clone, Copy, Debug)]
pub struct WaitRequest {
    pub which: Which,
    pub ended: bool,
    pub stopped: bool,
    pub continued: bool,
    /// Children whose exit signal is not SIGCHLD (`__WCLONE`), all (`__WALL`), or the others.
    pub clones: Clones,
    /// The state can be waited for again (`WNOWAIT`).
    pub keep: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clones {
    Without,
    Only,
    All,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    Ended(i32),
    /// The signal.
    Stopped(u32),
    Continued,
}

/// Looks for a child whose state changed, and takes the change unless it is kept. `None`: there are
/// such children, but none has changed.
///
/// # Errors
/// `ECHILD` if there is no such child.
pub fn take_change(parent: Pid, wanted: &WaitRequest) -> Result<Option<(Arc<Process>, Change)>> {
    let mut pids = PIDS.lock();
    let children = &pids.members.get(&parent).ok_or(Errno::ECHILD)?.children;
    let mut exists = false;
    let mut found = None;
    let one = match wanted.which {
        Which::Child(pid) => pid..=pid,
        _ => 0..=Pid::MAX,
    };
    for pid in children.range(one) {
        let Some(member) = pids.members.get(pid) else {
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
    let process = pids.members[&pid].process.clone();
    if !wanted.keep {
        let mut gone = None;
        match (change, pids.members.get_mut(&pid)) {
            (Change::Ended(_), _) => gone = pids.reap(pid),
            (Change::Stopped(_), Some(member)) => member.stopped = None,
            (Change::Continued, Some(member)) => member.continued = false,
            (_, None) => {}
        }
        drop(pids);
        drop(gone);
    }
    Ok(Some((process, change)))
}
