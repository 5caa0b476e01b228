//! The queue of what is due at a time, and the task that does it: it sends the signals of timers of
//! wall-clock time, wakes those that wait for a `timerfd`, and calls what is [`Punctual`].
//!
//! None of this is done in interrupt context, and programs decide how much of it there is: after a
//! [`Turn`] the task competes with them for its CPU.

use alloc::{
    boxed::Box,
    collections::BTreeMap,
    sync::{Arc, Weak},
};
use core::{
    sync::atomic::{
        AtomicU64,
        Ordering::{Relaxed, SeqCst},
        fence,
    },
    time::Duration,
};

use abi::raw::general as raw;
use nucleus::{
    OutOfMemory,
    sync::{Rank, SpinLock},
    task::{self, Priority, Sleep, Spawn, WaitQueue},
    time,
};

use super::list::{Id, Notify, TICK, Timer};
use crate::{
    process::{
        Process, pid_table,
        signal::{
            Fields, Info, SignalSet,
            send::{send_expiry, send_kernels},
        },
        thread,
        turn::Turn,
    },
    wall_clock::Deadline,
};

/// A deadline that moves by less has not moved: it was computed from two clocks that were not read
/// at once.
const STEP: Duration = Duration::from_millis(1);

/// When a timer is due, in nanoseconds since boot, above a number that keeps those of the same
/// moment apart. One number, since it is compared with many on its way through the queue.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Due(u128);

impl Due {
    fn new(deadline: Duration, number: u64) -> Due {
        let nanoseconds = u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX);
        Due(u128::from(nanoseconds) << 64 | u128::from(number))
    }

    fn nanoseconds(self) -> u64 {
        (self.0 >> 64) as u64
    }

    fn number(self) -> u64 {
        self.0 as u64
    }
}

enum DueTimer {
    /// A timer of a process, which sends a signal.
    Signal { process: Weak<Process>, id: Id },
    /// These are woken.
    Wake(Arc<WaitQueue>),
    /// This is called.
    Call(Weak<dyn Punctual>),
}

/// The time of nothing.
const NEVER: u64 = u64::MAX;

/// Does something at a time.
pub trait Punctual: Send + Sync {
    /// The time has come. Called by the task, with no lock held; takes a short time.
    fn be_due(&self);
}

/// More than this many sleepers and observers take long to wake.
const CROWD: usize = 64;

/// The part of the queue with what a CPU has put there, on cache lines of its own.
#[repr(align(64))]
struct Part {
    queue: SpinLock<BTreeMap<Due, DueTimer>>,
    /// When the first of the queue is due, in nanoseconds since boot. Changes under the queue's
    /// lock, and is read without it.
    first: AtomicU64,
    /// The last generation of this CPU.
    generation: AtomicU64,
}

static PARTS: [Part; task::MAX_CPUS] = [const {
    Part {
        queue: SpinLock::new(Rank::Leaf, BTreeMap::new()),
        first: AtomicU64::new(NEVER),
        generation: AtomicU64::new(0),
    }
}; task::MAX_CPUS];
/// Until when the task sleeps at most, in nanoseconds since boot: what is due earlier wakes it.
static SLEEPS_UNTIL: AtomicU64 = AtomicU64::new(NEVER);
static CHANGED: WaitQueue = WaitQueue::new();

/// Returns a number that no setting of a timer had: above one of the CPU's, the CPU.
pub(super) fn new_generation() -> u64 {
    let cpu = task::cpu();
    let count = PARTS[cpu].generation.fetch_add(1, Relaxed) + 1;
    count * task::MAX_CPUS as u64 + cpu as u64
}

/// Returns the part with what has this number.
fn part_of(generation: u64) -> &'static Part {
    &PARTS[(generation % task::MAX_CPUS as u64) as usize]
}

impl Part {
    /// Puts something into the queue. Any context but interrupts.
    fn insert(&self, due: Due, timer: DueTimer) {
        let mut queue = self.queue.lock();
        queue.insert(due, timer);
        self.note_first(&queue);
    }

    /// Takes something out of the queue, if it is there.
    fn remove(&self, due: Due) -> Option<DueTimer> {
        let mut queue = self.queue.lock();
        let timer = queue.remove(&due);
        self.note_first(&queue);
        timer
    }

    /// Takes out what is due first, if its time is at most `now`.
    fn take_due(&self, now: Due) -> Option<(Due, DueTimer)> {
        let mut queue = self.queue.lock();
        let first = queue.first_entry().filter(|it| *it.key() <= now);
        let taken = first.map(|it| it.remove_entry());
        self.note_first(&queue);
        taken
    }

    fn note_first(&self, queue: &BTreeMap<Due, DueTimer>) {
        let first = queue.keys().next();
        let first = first.map_or(NEVER, |due| due.nanoseconds());
        if self.first.load(Relaxed) != first {
            self.first.store(first, Relaxed);
        }
    }
}

/// Returns when something is due first, in nanoseconds since boot, and the part that has it; a part
/// without anything has [`NEVER`].
fn first() -> (u64, &'static Part) {
    let (mut first, rest) = (&PARTS[0], &PARTS[1..]);
    let mut due = first.first.load(Relaxed);
    for part in rest.iter().take(task::cpu_count() - 1) {
        let other = part.first.load(Relaxed);
        if other < due {
            (due, first) = (other, part);
        }
    }
    (due, first)
}

/// Wakes a queue once, at or soon after a time, or makes a call; dropping it cancels. That of a
/// time that has come may follow the drop.
pub struct WakeUp(Due);

impl WakeUp {
    /// Wakes `queue` at `deadline` since boot, by a task.
    pub fn at(deadline: Duration, queue: &Arc<WaitQueue>) -> WakeUp {
        WakeUp::of(deadline, DueTimer::Wake(queue.clone()))
    }

    /// Calls `punctual` at `deadline` since boot, unless it is gone by then.
    pub fn call(deadline: Duration, punctual: Weak<dyn Punctual>) -> WakeUp {
        WakeUp::of(deadline, DueTimer::Call(punctual))
    }

    fn of(deadline: Duration, timer: DueTimer) -> WakeUp {
        let due = Due::new(deadline, new_generation());
        insert(due, timer);
        WakeUp(due)
    }
}

impl Drop for WakeUp {
    fn drop(&mut self) {
        remove(self.0);
    }
}

/// Starts the task.
///
/// # Errors
/// No memory.
pub fn start() -> core::result::Result<(), OutOfMemory> {
    let spawn = Spawn {
        name: "timers",
        pmap: None,
        attachment: None,
        cpus: thread::all_cpus(),
        // A program at a real-time level must not delay the timers of others.
        priority: Priority::KERNEL,
    };
    task::spawn(
        spawn,
        Box::new(|| {
            loop {
                keep();
            }
        }),
    )
    .map(drop)
}

/// Sleeps until the first timer is due or the queue changes, and expires the due ones.
fn keep() {
    let (due, _) = first();
    SLEEPS_UNTIL.store(due, Relaxed);
    fence(SeqCst);
    let how = Sleep {
        interruptible: false,
        deadline: (due != NEVER).then(|| Duration::from_nanos(due)),
    };
    // Either end of the sleep is followed by a look at the queue. What came before the store is
    // seen by this look, and what comes later sees the store.
    let _ = CHANGED.wait(how, || (first().0 < due).then_some(()));
    let mut turn = Turn::new();
    loop {
        let now = turn.next();
        // All of this moment.
        let last = Due::new(now, u64::MAX);
        let (due, part) = first();
        if due > last.nanoseconds() || due == NEVER {
            return;
        }
        // It may have been taken out meanwhile.
        let Some((due, entry)) = part.take_due(last) else {
            continue;
        };
        let generation = due.number();
        match entry {
            DueTimer::Signal { process, id } => {
                if let Some(process) = process.upgrade() {
                    expire(&process, id, generation, now);
                }
            }
            DueTimer::Wake(queue) => {
                if queue.crowd() > CROWD {
                    turn.end();
                }
                queue.wake_shared(false);
            }
            DueTimer::Call(punctual) => {
                if let Some(punctual) = punctual.upgrade() {
                    punctual.be_due();
                }
            }
        }
    }
}

fn expire(process: &Arc<Process>, id: Id, generation: u64, now: Duration) {
    let is_it = |timer: &Timer| timer.is(id, generation);
    let notify = {
        let mut list = process.timers.list.lock();
        let Some(timer) = list.iter_mut().find(|timer| is_it(timer)) else {
            return;
        };
        timer.sending += 1;
        // Before the signal is there to be taken.
        timer.awaits = !timer.interval.is_zero();
        if !timer.awaits {
            timer.advance(now);
        }
        timer.notify
    };
    if !send(process, id, &notify, 0) {
        go_on(process, is_it, now + TICK);
    }
    process.timers.sent(id, generation);
}

/// Timers that wait for their signals, and of which `which` says so, go on after `now`. Gives for
/// how many expiries the last one was late.
fn go_on(process: &Arc<Process>, which: impl Fn(&Timer) -> bool, now: Duration) -> i32 {
    let mut last = 0;
    // All of them are told at once: one that is in the queue again may expire and wait for its next
    // signal before the others are there.
    for timer in process.timers.list.lock().iter_mut() {
        if timer.awaits && which(timer) {
            timer.awaits = false;
            last = timer.advance(now);
            timer.overrun = last;
            timer.goes_on = true;
        }
    }
    loop {
        let next = {
            let mut list = process.timers.list.lock();
            let next = list.iter_mut().find(|timer| timer.goes_on);
            next.map(|timer| {
                timer.goes_on = false;
                (timer.id, timer.deadline, timer.generation)
            })
        };
        let Some((id, deadline, generation)) = next else {
            return last;
        };
        if let Some(deadline) = deadline {
            enqueue(process, id, deadline, generation);
        }
    }
}

/// A signal is taken: its timer goes on, and the signal says for how many expiries it stands
/// besides its own.
pub fn taken(process: &Arc<Process>, info: &mut Info) {
    match &mut info.fields {
        Fields::Timer { id, overrun, .. } => {
            let id = Id::Posix(*id);
            let own = *overrun;
            let mut list = process.timers.list.lock();
            let Some(timer) = list.iter_mut().find(|timer| timer.id == id) else {
                return;
            };
            timer.overrun = own;
            let awaits = timer.awaits;
            drop(list);
            if awaits {
                *overrun = go_on(process, |timer| timer.id == id, time::since_boot());
            }
        }
        _ if info.signal == raw::SIGALRM => {
            let id = Id::Interval(raw::ITIMER_REAL);
            go_on(process, |timer| timer.id == id, time::since_boot());
        }
        _ => {}
    }
}

/// Signals of `set` that waited were dropped: they will not be taken, and their timers go on by
/// themselves.
pub fn dropped(process: &Process, set: SignalSet) {
    let is_dropped = |timer: &Timer| timer.awaits && set.has(timer.notify.signal);
    if !process.timers.list.lock().iter().any(is_dropped) {
        return;
    }
    if let Some(process) = Process::find(process.pid()) {
        go_on(&process, is_dropped, time::since_boot() + TICK);
    }
}

pub(super) fn enqueue(process: &Arc<Process>, id: Id, deadline: Duration, generation: u64) {
    let entry = DueTimer::Signal {
        process: Arc::downgrade(process),
        id,
    };
    insert(Due::new(deadline, generation), entry);
}

fn insert(due: Due, entry: DueTimer) {
    part_of(due.number()).insert(due, entry);
    fence(SeqCst);
    if due.nanoseconds() <= SLEEPS_UNTIL.load(Relaxed) {
        CHANGED.wake_all();
    }
}

pub(super) fn dequeue(deadline: Duration, generation: u64) {
    remove(Due::new(deadline, generation));
}

fn remove(due: Due) {
    drop(part_of(due.number()).remove(due));
}

/// Sends the signal of an expiry after which `missed` others were left out. Returns whether it
/// waits to be taken.
pub(super) fn send(process: &Process, id: Id, notify: &Notify, missed: i32) -> bool {
    if notify.signal == 0 {
        return false;
    }
    let target = notify.thread.map(pid_table::find_lasting);
    // The thread that was to get it has ended.
    if let Some(None) = target {
        return false;
    }
    let target = target.flatten();
    let Id::Posix(id) = id else {
        return send_kernels(process, notify.signal);
    };
    let info = Info {
        signal: notify.signal,
        code: raw::SI_TIMER,
        errno: 0,
        fields: Fields::Timer {
            id,
            overrun: missed,
            value: notify.value,
        },
    };
    send_expiry(process, target.as_deref(), info)
}

/// The time of day was set: timers that wait for one have another time to wait now.
pub fn clock_was_set() {
    for process in Process::by_id() {
        loop {
            let moved = {
                let mut list = process.timers.list.lock();
                list.iter_mut().find_map(|timer| {
                    let deadline = Deadline::OfDay(timer.time_of_day?).since_boot();
                    let old = timer.deadline?;
                    if timer.awaits || timer.notify.signal == 0 || old.abs_diff(deadline) < STEP {
                        return None;
                    }
                    timer.deadline = Some(deadline);
                    Some((timer.id, old, deadline, timer.generation))
                })
            };
            let Some((id, old, deadline, generation)) = moved else {
                break;
            };
            dequeue(old, generation);
            enqueue(&process, id, deadline, generation);
        }
    }
}
