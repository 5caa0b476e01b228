//! State changes that a parent learns of its children: stops, ends, and waiting for them.

use alloc::{collections::BTreeSet, sync::Arc};
use core::sync::atomic::Ordering::{Relaxed, Release};

use abi::{Errno, Result, raw::general as raw};
use nucleus::Pieces;

use super::{
    Birth, INIT, Member, PIDS, PidTable, STEPS,
    groups::{continues, is_stranded},
};
use crate::process::{
    Pid, Process, Times,
    signal::{self, Fields, Info},
};

/// Finds the new parent for the children of a process: the nearest living ancestor that asked for
/// it (`PR_SET_CHILD_SUBREAPER`), `None` for the first process. With many ancestors the table is
/// unlocked in between.
fn find_reaper(pid: Pid) -> Option<Birth> {
    let mut at = pid;
    loop {
        let pids = PIDS.lock();
        for _ in 0..STEPS {
            let Some(parent) = pids.members.get(&at).map(|member| member.parent) else {
                // It was waited for meanwhile: those below it have another parent.
                at = pid;
                break;
            };
            if parent <= INIT {
                return None;
            }
            let birth = pids.members.get(&parent).map(|member| member.birth);
            if let Some(birth) = birth.filter(|&birth| pids.reaper(birth).is_some()) {
                return Some(birth);
            }
            at = parent;
        }
    }
}

impl PidTable {
    /// Returns the id of this process if it takes the children of those below it that end.
    fn reaper(&self, birth: Birth) -> Option<Pid> {
        let &pid = self.births.get(&birth)?;
        let is_one = |it: &&Member| !it.leaving && it.process.subreaper.load(Relaxed);
        self.members.get(&pid).filter(is_one).map(|_| pid)
    }

    /// Returns the parent of a new sibling of `maker`, the signal that it gets when the sibling
    /// ends, and how many programs it had executed when it asked for that signal. These are
    /// `maker`'s; but a process that takes the place of a leaving parent has asked for nothing.
    pub(super) fn as_sibling_of(&self, maker: Pid) -> (Option<Pid>, u32, Option<u64>) {
        let Some(own) = self.members.get(&maker) else {
            return (Some(INIT), raw::SIGCHLD, None);
        };
        match self.members.get(&own.parent).filter(|it| it.leaving) {
            Some(leaving) => {
                let heir = leaving.reaper.and_then(|birth| self.reaper(birth));
                (Some(heir.unwrap_or(INIT)), raw::SIGCHLD, None)
            }
            None => (Some(own.parent), own.exit_signal, Some(own.parent_executed)),
        }
    }

    /// Gives some children of the process `pid`, which is leaving, to its reaper; `None` if that is
    /// leaving, too.
    fn reparent(&mut self, pid: Pid) -> Option<Reparented> {
        let mut some = Reparented::default();
        let Some(own) = self.members.get(&pid) else {
            return Some(some);
        };
        let own_group = own.group.clone();
        let reaper = match own.reaper {
            Some(birth) => self.reaper(birth)?,
            None => INIT,
        };
        let new_parent = self.members.get(&reaper).map(|m| m.process.clone());
        let wants = new_parent
            .as_ref()
            .is_some_and(|p| !p.signals.child_rules().no_zombies);
        for place in 0..Reparented::MOST {
            let children = self.members.get_mut(&pid).map(|own| &mut own.children);
            let Some(child) = children.and_then(BTreeSet::pop_first) else {
                break;
            };
            let Some(member) = self.members.get_mut(&child) else {
                continue;
            };
            member.parent = reaper;
            member.exit_signal = raw::SIGCHLD;
            member.process.parent.store(reaper, Relaxed);
            some.children[place] = Some(member.process.clone());
            let zombie = member.ended.is_some();
            if !member.leaving && continues(&own_group, &member.group) {
                let group = member.group.id;
                some.groups[place] = self.ask(group);
            }
            if let Some(reaper) = self.members.get_mut(&reaper) {
                reaper.children.insert(child);
            }
            if zombie && !wants {
                some.gone[place] = self.reap(child);
            } else if zombie && let Some(parent) = &new_parent {
                signal::send_locked(parent, Info::kernel(raw::SIGCHLD), &mut some.news);
            }
        }
        some.reaper = new_parent;
        Some(some)
    }

    /// Notes that it will be looked at whether a group has become an orphan; returns its id if that
    /// was not noted yet.
    fn ask(&mut self, group: Pid) -> Option<Pid> {
        let entry = self.groups.get_mut(&group)?;
        (!core::mem::replace(&mut entry.asked, true)).then_some(group)
    }
}

/// Children that have got a new parent, and what is left to do for them without the lock.
#[derive(Default)]
struct Reparented {
    children: [Option<Arc<Process>>; Reparented::MOST],
    reaper: Option<Arc<Process>>,
    news: signal::News,
    /// Zombies that the reaper does not want.
    gone: [Option<Member>; Reparented::MOST],
    /// Groups that have lost an anchor.
    groups: [Option<Pid>; Reparented::MOST],
}

impl Reparented {
    const MOST: usize = 16;

    /// Tells all of them that `parent` has ended; returns whether there were any.
    fn tell(self, parent: &Process) -> bool {
        let mut any = false;
        for child in self.children.into_iter().flatten() {
            child.parent_ended(parent);
            any = true;
        }
        if any && let Some(reaper) = self.reaper {
            // Zombies among them are the reaper's to wait for now.
            self.news.tell(&reaper);
            reaper.child_events.wake_all();
        }
        any
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
    let mut gone = None;

    let mut groups = Pieces::new();
    groups.extend(leave(pid));
    loop {
        let some = PIDS.lock().reparent(pid);
        let Some(some) = some else {
            let reaper = find_reaper(pid);
            if let Some(member) = PIDS.lock().members.get_mut(&pid) {
                member.reaper = reaper;
            }
            continue;
        };
        groups.extend(some.groups.iter().copied().flatten());
        if !some.tell(process) {
            break;
        }
    }

    let mut pids = PIDS.lock();
    let Some(member) = pids.members.get_mut(&pid) else {
        return;
    };
    let (parent, mut exit_signal) = (member.parent, member.exit_signal);
    let parent_executed = member.parent_executed;
    member.ended = Some(status);
    process.end_status.store(status, Relaxed);
    process.ended.store(true, Release);
    member.stopped = None;
    member.continued = false;

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
            gone = pids.reap(pid);
        }
    }
    drop(pids);
    drop(gone);
    process.end_events.wake_all();

    if let Some(parent) = parent {
        news.tell(&parent);
        parent.child_events.wake_all();
    }
    for group in groups {
        if is_stranded(group) {
            // A group that vanished in the meantime needs no signal.
            let _ = signal::send_to_group(group, Info::kernel(raw::SIGHUP));
            let _ = signal::send_to_group(group, Info::kernel(raw::SIGCONT));
        }
    }
}

/// Forgets a process that has ended and has no parent: the kernel waited for it.
pub fn reap_parentless(process: &Process) {
    let mut pids = PIDS.lock();
    let is_it = |member: &Member| {
        core::ptr::eq(&*member.process, process) && member.parent == 0 && member.ended.is_some()
    };
    let gone = match pids.members.get(&process.pid()).is_some_and(is_it) {
        true => pids.reap(process.pid()),
        false => None,
    };
    drop(pids);
    drop(gone);
}

/// The last thread of a process is ending: from now on the process gets no children. Returns its
/// group, if it was an anchor of that.
fn leave(pid: Pid) -> Option<Pid> {
    let mut reaper = None;
    loop {
        let mut pids = PIDS.lock();
        let is_anchor = pids.is_anchor(pid);
        // Without children nothing asks for the reaper. It may be far above.
        let has_children = !pids.members.get(&pid)?.children.is_empty();
        if has_children && reaper.is_none() {
            drop(pids);
            reaper = Some(find_reaper(pid));
            continue;
        }
        let member = pids.members.get_mut(&pid)?;
        member.leaving = true;
        member.reaper = reaper.flatten();
        let group = member.group.id;
        return is_anchor.then(|| pids.ask(group)).flatten();
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
    let (mut from, to) = match wanted.which {
        Which::Child(pid) => (pid, pid),
        _ => (0, Pid::MAX),
    };
    let mut exists = false;
    loop {
        let mut pids = PIDS.lock();
        let children = &pids.members.get(&parent).ok_or(Errno::ECHILD)?.children;
        let mut looked_at = 0;
        for &pid in children.range(from..=to).take(STEPS) {
            (from, looked_at) = (pid + 1, looked_at + 1);
            let Some(member) = pids.members.get(&pid).filter(|it| wanted.fits(it)) else {
                continue;
            };
            exists = true;
            let Some(change) = wanted.change_of(member) else {
                continue;
            };
            let process = member.process.clone();
            let gone = match wanted.keep {
                true => None,
                false => pids.take(pid, change),
            };
            drop(pids);
            drop(gone);
            return Ok(Some((process, change)));
        }
        if looked_at < STEPS {
            return if exists { Ok(None) } else { Err(Errno::ECHILD) };
        }
        // Others get their turn. A child that changes behind this wakes the waiter.
    }
}

impl PidTable {
    /// A change was waited for. What it returns is to be dropped without the lock.
    #[must_use]
    fn take(&mut self, pid: Pid, change: Change) -> Option<Member> {
        match (change, self.members.get_mut(&pid)) {
            (Change::Ended(_), _) => return self.reap(pid),
            (Change::Stopped(_), Some(member)) => member.stopped = None,
            (Change::Continued, Some(member)) => member.continued = false,
            (_, None) => {}
        }
        None
    }
}

impl WaitRequest {
    /// Whether it is for this child.
    fn fits(&self, member: &Member) -> bool {
        let is_usual = member.exit_signal == raw::SIGCHLD;
        let is_in = match self.which {
            Which::Group(id) => member.group.id == id,
            _ => true,
        };
        is_in
            && match self.clones {
                Clones::All => true,
                Clones::Only => !is_usual,
                Clones::Without => is_usual,
            }
    }

    /// The change of a child that it is for.
    fn change_of(&self, member: &Member) -> Option<Change> {
        match (member.ended, member.stopped) {
            (Some(status), _) if self.ended => Some(Change::Ended(status)),
            (_, Some(signal)) if self.stopped => Some(Change::Stopped(signal)),
            _ if self.continued && member.continued => Some(Change::Continued),
            _ => None,
        }
    }
}
