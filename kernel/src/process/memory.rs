//! Faults, and what happens when no memory is left.

use alloc::{
    string::String,
    sync::{Arc, Weak},
};
use core::{
    sync::atomic::{
        AtomicBool, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
    time::Duration,
};

use crate::counters::Counter;
use nucleus::{
    Access, OutOfMemory, VirtAddr, frame,
    sync::{Rank, SpinLock},
    task::{self, Sleep},
    time,
};
use vm::{
    Fault, Map, MemoryWait,
    account::{self, Charge, Kind},
};

use abi::raw::general as raw;

use super::{
    Pid, Process, Space, Thread,
    scheduling::Policy,
    space::{Leaving, Weighing},
    thread,
};
use crate::process::signal::Ending;

/// How long to wait for the memory of a process that was told to end.
const REST: Duration = Duration::from_millis(2);

/// Resolves a fault of the thread's in `map`, and counts it. When memory runs short, it waits for
/// the pagedaemon; when that has nothing left to free, the largest process is ended and the fault
/// is tried again, as long as that is not the thread's own process.
///
/// # Errors
/// Those of [`Map::fault`]; `OutOfMemory` only if nothing can be freed or the thread is to end.
pub fn resolve_fault(
    thread: &Thread,
    map: &Map,
    addr: VirtAddr,
    access: Access,
) -> Result<(), Fault> {
    let mut was_read = false;
    let mut before = None;
    loop {
        match map.fault_noting(addr, access, &mut was_read) {
            Err(Fault::OutOfMemory) => {}
            other => {
                thread.count_fault(was_read);
                return other;
            }
        }
        // Pages that can be read again, or written out, are reclaimed before any process ends.
        if !thread.is_dying() && vm::wait_for_memory() == MemoryWait::Retry {
            continue;
        }
        // An attempt that began before memory came back says nothing.
        let now = came_back();
        if before.replace(now) != Some(now) && !thread.is_dying() {
            continue;
        }
        if thread.is_dying() || !kill_largest(None, now) || thread.is_dying() {
            return Err(Fault::OutOfMemory);
        }
        task::sleep(Sleep::within(REST));
    }
}

/// Makes room if memory is scarce: waits for the pagedaemon, and ends processes of other users that
/// have most of it. With no lock held.
///
/// # Errors
/// That was in vain: what would make objects of the kernel's is refused.
#[inline]
pub fn make_room() -> Result<(), OutOfMemory> {
    // Most calls pay two loads.
    match frame::is_scarce() && !wait_for_room(frame::is_scarce) {
        true => Err(OutOfMemory),
        false => Ok(()),
    }
}

/// Calls `attempt`; as long as that is refused memory by the error `refusal`, makes room and tries
/// again. With no lock held.
///
/// For what needs page tables or stacks, which end before memory is scarce: [`make_room`] alone
/// does not make any room for these where others fill memory with what is had to the last.
///
/// # Errors
/// Those of `attempt`.
#[inline(always)]
pub fn with_room<T, E: PartialEq>(
    refusal: E,
    mut attempt: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    match attempt() {
        Err(error) if error == refusal => again_with_room(refusal, &mut attempt),
        result => result,
    }
}

#[cold]
fn again_with_room<T, E: PartialEq>(
    refusal: E,
    attempt: &mut dyn FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let mut was_short = true;
    for _ in 0..ATTEMPTS {
        let is_short = is_short();
        // Others may have given some back since it was refused, or it is not for want of it.
        if !is_short && !was_short || is_short && !wait_for_room(self::is_short) {
            break;
        }
        let failures = frame::only_outside();
        match attempt() {
            Err(error) if error == refusal => {}
            result => return result,
        }
        let only_outside = frame::only_outside() != failures;
        if only_outside && !wait_for_more() {
            break;
        }
        was_short = is_short || only_outside;
    }
    Err(refusal)
}

/// Programs get no pages, and what there is of page tables may not suffice.
fn is_short() -> bool {
    frame::available() <= frame::targets().min || frame::is_scarce()
}

/// Bytes that a call may have while it sleeps as part of what is charged for its thread.
const SLEEPERS: usize = 1024;

/// Makes room for a call that waits for `count` files or words at once with `bytes` of memory for
/// them, and charges the caller as long as the result lives; nothing where it is little. With no
/// lock held.
///
/// # Errors
/// Memory is scarce, and no room could be made.
pub fn charge_waits(count: usize, bytes: usize) -> Result<Option<Charge>, OutOfMemory> {
    if bytes <= SLEEPERS {
        return Ok(None);
    }
    make_room()?;
    Ok(account::current().map(|account| account.charge(Kind::Waits, count, bytes)))
}

/// How often a call lets the pagedaemon work in vain before it is refused memory.
const ATTEMPTS: usize = 100;

/// Waits until memory is not short any more: as long as processes that have most of it are ending,
/// however long that takes. Processes of the caller's user, or of root's, are not ended for that:
/// the call fails.
#[cold]
fn wait_for_room(is_short: fn() -> bool) -> bool {
    let mut attempts = 0;
    while attempts < ATTEMPTS {
        let before = came_back();
        let wait = vm::wait_for_memory();
        if !is_short() {
            return true;
        }
        let goes_on = thread::with_current(|thread| {
            let retries = wait == MemoryWait::Retry;
            !thread.is_dying() && (retries || kill_largest(Some(thread.process()), before))
        });
        // A task of the kernel ends no process.
        if !goes_on.unwrap_or(wait == MemoryWait::Retry) {
            break;
        }
        if wait == MemoryWait::Retry {
            attempts += 1;
            continue;
        }
        task::sleep(Sleep::within(REST));
    }
    !is_short()
}

/// Waits until more is free, where enough is but nothing that the kernel reaches, as page tables
/// and stacks need (`directmap=SIZE`): until the pagedaemon has freed some, or a process has ended
/// as for [`wait_for_room`]. Returns whether another attempt makes sense.
#[cold]
fn wait_for_more() -> bool {
    let before = came_back();
    let is_dying = || thread::with_current(Thread::is_dying).unwrap_or(false);
    if vm::wait_for_more() == MemoryWait::Retry {
        return !is_dying();
    }
    let kill = |thread: &Thread| kill_largest(Some(thread.process()), before);
    while !is_dying() && thread::with_current(kill).unwrap_or(false) {
        if came_back() != before {
            return true;
        }
        task::sleep(Sleep::within(REST));
    }
    false
}

/// The nucleus's hook for faults of kernel code on a program's address.
pub(crate) fn resolve_for_kernel(addr: VirtAddr, access: Access) -> bool {
    thread::with_current(|thread| {
        thread
            .space()
            .is_some_and(|space| resolve_fault(thread, space.map(), addr, access).is_ok())
    })
    .unwrap_or(false)
}

/// The address space of those that were ended last, and until when the others wait for its memory.
static VICTIM: SpinLock<Option<(Weak<Map>, Duration)>> = SpinLock::new(Rank::Leaf, None);
/// How often their memory was seen to be back.
static CAME_BACK: AtomicU64 = AtomicU64::new(0);

/// Returns how often the memory of those that were ended was seen to be back. A thread that gets no
/// memory asks before it waits for some, and tells [`kill_largest`].
pub(super) fn came_back() -> u64 {
    CAME_BACK.load(Relaxed)
}

/// Another thread is choosing the next one.
static CHOOSING: AtomicBool = AtomicBool::new(false);

/// How long to wait for a victim's memory before another one is chosen: the first may sleep on
/// something that only the others can give it.
const GRACE: Duration = Duration::from_secs(5);
/// How much longer a call waits for it that may end no other one.
const PATIENCE: Duration = Duration::from_secs(60);

/// Ends the process that has most, of the user that has most, and those that have its address space
/// too, unless the memory of one that was ended before, or of one that ended by itself, is still on
/// its way back. Nothing is ended if it would be a process of root's, or of the user of `for_call`.
/// `before`: what [`came_back`] said when the caller had got no memory; if some has come back
/// since, nothing is ended either. Returns whether waiting makes sense.
pub(super) fn kill_largest(for_call: Option<&Process>, before: u64) -> bool {
    if CHOOSING.swap(true, Acquire) {
        return true;
    }
    let answer = match last_victim() {
        Victim::Leaves => true,
        Victim::Gone if before != came_back() => true,
        Victim::Gone => choose(for_call, |_| true),
        Victim::Stays(until) => {
            choose(for_call, |process| !is_ending(process))
                || for_call.is_some() && time::since_boot() < until + PATIENCE
        }
    };
    CHOOSING.store(false, Release);
    answer
}

/// What became of the process that was ended last.
enum Victim {
    Gone,
    /// Its memory may come back at any time.
    Leaves,
    /// It was waited for in vain until then.
    Stays(Duration),
}

fn last_victim() -> Victim {
    let mut victim = VICTIM.lock();
    match &*victim {
        Some((map, until)) if map.strong_count() > 0 => match time::since_boot() < *until {
            true => Victim::Leaves,
            false => Victim::Stays(*until),
        },
        Some(_) => {
            CAME_BACK.fetch_add(1, Relaxed);
            *victim = None;
            Victim::Gone
        }
        None => Victim::Gone,
    }
}

fn is_ending(process: &Process) -> bool {
    matches!(process.signals.ending(), Some(Ending::Exit(_)))
}

/// The adjustment of a process that is never to be ended.
pub const OOM_NEVER: i32 = -1000;

/// The command that the kernel runs as first process; the machine stops when it ends.
const COMMAND: Pid = 2;
/// Pages that are looked at to estimate how much of a process's memory it shares with others.
const SAMPLES: usize = 16;
/// The most processes that are ended at once, all of one user.
const AT_ONCE: usize = 64;
/// For how long a user gets no new processes after some were ended.
const HELD_BACK: Duration = Duration::from_secs(1);

/// Returns the pages that ending a process frees, but for objects of the kernel's: its part of
/// anonymous memory, in frames or in swap, and page tables. Pages of files can be read again, and
/// shared ones are charged to their maker.
fn mapped(space: &Space, seed: u64) -> usize {
    let map = space.map();
    // A page that leaves the swap space makes room for another one.
    map.own_pages(SAMPLES, seed) + map.pages_of_entries() + map.pmap().page_tables() + map.swapped()
}

/// Returns the adjustment of a process in pages. `None` if it is never to be ended.
fn adjustment(process: &Process) -> Option<i64> {
    let adjustment = process.oom_adjustment.load(Relaxed);
    let share = frame::total() as i64 / 1000;
    (adjustment > OOM_NEVER).then(|| i64::from(adjustment) * share)
}

/// The number of `/proc/PID/oom_score`, 0 to 2000, as Linux works it out from resident pages and
/// page tables; without those in swap. Everybody may ask, so it takes no sleeping lock of the
/// process's.
pub fn oom_score(process: &Process) -> i64 {
    let space = process.leader().and_then(|leader| leader.space());
    let total = (frame::total() as i64).max(1);
    let (Some(space), Some(adjustment)) = (space, adjustment(process)) else {
        return 0;
    };
    let resident = space.map().pmap().resident();
    let pages = resident.pages + resident.page_tables + process.account().pages();
    let weight = pages as i64 + adjustment;
    ((1000 + weight * 1000 / total) * 2 / 3).max(0)
}

/// Works out the [weights](Account::weight) of all processes and users: what they have mapped, and
/// what is charged to them, by processes that have ended too. An address space that several
/// processes have weighs as much for each, since they end together, and once for the user. In one
/// pass: a user's first process may appear, or a process change its user, while the others are
/// looked at.
fn weigh() {
    static CHOICE: AtomicU64 = AtomicU64::new(0);
    let choice = CHOICE.fetch_add(1, Relaxed) + 1;
    for process in Process::by_id() {
        let account = process.account();
        // A zombie, or a process whose last user is leaving the space just now.
        let space = process.leader().and_then(|leader| leader.space());
        let (mut pages, mut users) = (0, 0);
        if let Some(space) = space {
            let seen = &space.weighing;
            if seen.choice.swap(choice, Relaxed) != choice {
                users = mapped(&space, nucleus::random::u64());
                seen.pages.store(users, Relaxed);
                for flag in [&seen.is_last, &seen.is_spared, &seen.is_roots] {
                    flag.store(false, Relaxed);
                }
            }
            seen.is_last.fetch_or(process.pid() == COMMAND, Relaxed);
            seen.is_spared.fetch_or(is_spared(&process), Relaxed);
            seen.is_roots.fetch_or(account.uid() == 0, Relaxed);
            pages = seen.pages.load(Relaxed);
        }
        account.weigh(choice, pages);
        account.user().weigh(choice, users);
    }
}

fn is_spared(process: &Process) -> bool {
    process.pid() == super::pid_table::INIT || adjustment(process).is_none()
}

/// How much a process deserves to be ended, by [weights](weigh); the larger, the more.
///
/// A user's processes weigh together, and the largest of them goes first, so thousands of small
/// ones are no way to be overlooked. Root's processes, the machine's services, each weigh alone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Badness {
    /// Its end does not stop the machine.
    is_expendable: bool,
    /// The user's pages, and the process's adjustment.
    user: i64,
    /// The process's pages, and its adjustment.
    own: i64,
}

impl Badness {
    /// `None` if it is never to be ended, as its address space may not be or because it has no
    /// memory any more.
    fn of(process: &Process) -> Option<Badness> {
        let account = process.account();
        let adjustment = adjustment(process)?;
        let leader = process.leader()?;
        let space = leader.space();
        let is = |flag: fn(&Weighing) -> &AtomicBool| {
            let seen = space.as_ref().map(|space| flag(&space.weighing));
            seen.is_some_and(|flag| flag.load(Relaxed))
        };
        if is_spared(process) || is(|seen| &seen.is_spared) {
            return None;
        }
        let own = account.weight.load(Relaxed) as i64 + adjustment;
        let user = match account.uid() == 0 || is(|seen| &seen.is_roots) {
            true => own,
            false => account.user().weight.load(Relaxed) as i64 + adjustment,
        };
        Some(Badness {
            is_expendable: process.pid() != COMMAND && !is(|seen| &seen.is_last),
            user,
            own,
        })
    }
}

/// Returns the process to be ended first, of those that `may_end` accepts.
fn worst(may_end: impl Fn(&Process) -> bool) -> Option<Arc<Process>> {
    Process::by_id()
        .filter(|process| may_end(process))
        .filter_map(|process| Some((Badness::of(&process)?, process)))
        .max_by_key(|(badness, _)| *badness)
        .map(|(_, process)| process)
}

fn choose(for_call: Option<&Process>, may_end: impl Fn(&Process) -> bool) -> bool {
    let Some(left) = Leaving::none() else {
        return true;
    };
    weigh();
    let Some(victim) = worst(may_end) else {
        return false;
    };
    // A process that has begun to leave meanwhile may be the largest, and was not found.
    let Some(space) = victim.leader().and_then(|leader| leader.space()) else {
        return true;
    };
    if Leaving::none() != Some(left) {
        return true;
    }
    let account = victim.account();
    let is_roots = account.uid() == 0 || space.weighing.is_roots.load(Relaxed);
    if let Some(caller) = for_call
        && (is_roots || caller.real_uid() == account.uid())
    {
        return false;
    }
    let until = time::since_boot() + GRACE;
    *VICTIM.lock() = Some((Arc::downgrade(space.map()), until));
    let user = account.user();
    if !is_roots {
        let held_back = time::since_boot() + HELD_BACK;
        user.held_back.store(held_back.as_millis() as u64, Relaxed);
    }
    let mut freed = end(&victim, &space);
    drop(space);
    if is_roots {
        return true;
    }
    // The end of one small process among thousands would be no progress.
    let needed = frame::targets().high.saturating_sub(frame::available());
    for _ in 1..AT_ONCE {
        if freed >= needed {
            break;
        }
        let is_next = |process: &Process| {
            Arc::ptr_eq(process.account().user(), user) && process.signals.ending().is_none()
        };
        let Some(next) = worst(is_next) else { break };
        let Some(space) = next.leader().and_then(|leader| leader.space()) else {
            continue;
        };
        freed += end(&next, &space);
    }
    true
}

/// Ends a process and all others that have its address space, which comes back only with the last
/// of them; returns what they weigh.
fn end(victim: &Arc<Process>, space: &Arc<Space>) -> usize {
    let mut freed = space.weighing.pages.load(Relaxed);
    end_one(victim);
    freed += victim.account().pages();
    // Those that they make meanwhile come later, or are not made.
    for process in Process::by_birth() {
        let has_it = |leader: Arc<Thread>| {
            leader
                .space()
                .is_some_and(|other| Arc::ptr_eq(&other, space))
        };
        if !Arc::ptr_eq(&process, victim) && process.leader().is_some_and(has_it) {
            end_one(&process);
            freed += process.account().pages();
        }
    }
    freed
}

/// Ends a process, unless it is ending already.
fn end_one(victim: &Process) {
    if is_ending(victim) {
        return;
    }
    let account = victim.account();
    nucleus::log!(
        "out of memory: killed process {} ({}) of user {} with {} pages of the user's {}",
        victim.pid(),
        String::from_utf8_lossy(&victim.name()),
        account.uid(),
        account.weight.load(Relaxed),
        account.user().weight.load(Relaxed),
    );
    nucleus::log!("memory in pages: {:?}", frame::usage());
    Counter::out_of_memory_kills.add(1);
    // Others wait for its memory: those that want more of it do not come first.
    for thread in victim.threads() {
        thread.change_scheduling(|asked| {
            if !asked.policy.is_real_time() {
                (asked.policy, asked.nice) = (Policy::Normal, -20);
            }
        });
    }
    victim.signals.end(raw::SIGKILL as i32);
}

/// Whether processes of this one's user were ended a moment ago because memory ran out: it gets no
/// new ones for now.
pub fn is_held_back(process: &Process) -> bool {
    let until = process.user().held_back.load(Relaxed);
    until > 0 && (time::since_boot().as_millis() as u64) < until
}
