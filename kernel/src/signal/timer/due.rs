//! The queue of timers of wall-clock time, and the task that sends their signals.

use alloc::{
    boxed::Box,
    collections::BTreeMap,
    sync::{Arc, Weak},
};
use core::{sync::atomic::AtomicU64, time::Duration};

use abi::raw::general as raw;
use nucleus::{
    OutOfMemory,
    sync::{Rank, SpinLock},
    task::{self, Priority, Sleep, Spawn, WaitQueue},
    time,
};

use super::{Id, Notify};
use crate::{
    day::Deadline,
    process::{Process, family, thread},
    signal::{Fields, Info, send::send_expiry, send_to_process},
};

/// A deadline that moves by less has not moved: it was computed from two clocks that were not read at once.
const STEP: Duration = Duration::from_millis(1);

/// When a timer is due; the number keeps those of the same moment apart.
type Due = (Duration, u64);

struct Entry {
    process: Weak<Process>,
    id: Id,
}

static QUEUE: SpinLock<BTreeMap<Due, Entry>> = SpinLock::new(Rank::Leaf, BTreeMap::new());
static CHANGED: WaitQueue = WaitQueue::new();
pub(super) static GENERATION: AtomicU64 = AtomicU64::new(1);

/// Starts the task that sends the signals.
///
/// # Errors
/// No memory.
pub fn start() -> core::result::Result<(), OutOfMemory> {
    let spawn = Spawn {
        name: "timers",
        pmap: None,
        attachment: None,
        cpus: thread::all_cpus(),
        // What it does for a program that computes at a real-time level, that one would not let happen.
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

/// Sleeps until the first timer is due or the queue changes, and expires what is due.
fn keep() {
    let first = QUEUE.lock().first_key_value().map(|(due, _)| *due);
    let how = Sleep {
        interruptible: false,
        deadline: first.map(|due| due.0),
    };
    // Either end of the sleep is followed by a look at the queue.
    let _ = CHANGED.wait(how, || {
        let now_first = QUEUE.lock().first_key_value().map(|(due, _)| *due);
        (now_first != first).then_some(())
    });
    loop {
        let now = time::since_boot();
        let mut queue = QUEUE.lock();
        let Some(entry) = queue.first_entry().filter(|e| e.key().0 <= now) else {
            return;
        };
        let generation = entry.key().1;
        let entry = entry.remove();
        drop(queue);
        if let Some(process) = entry.process.upgrade() {
            expire(&process, entry.id, generation, now);
        }
    }
}

fn expire(process: &Arc<Process>, id: Id, generation: u64, now: Duration) {
    let (notify, next, missed) = {
        let mut list = process.timers.list.lock();
        let Some(timer) = list
            .iter_mut()
            .find(|t| t.id == id && t.generation == generation)
        else {
            return;
        };
        let missed = timer.advance(now);
        (timer.notify, timer.deadline, missed)
    };
    if let Some(deadline) = next {
        enqueue(process, id, deadline, generation);
    }
    send(process, id, &notify, missed);
}

pub(super) fn enqueue(process: &Arc<Process>, id: Id, deadline: Duration, generation: u64) {
    let entry = Entry {
        process: Arc::downgrade(process),
        id,
    };
    QUEUE.lock().insert((deadline, generation), entry);
    CHANGED.wake_all();
}

pub(super) fn dequeue(deadline: Duration, generation: u64) {
    let gone = QUEUE.lock().remove(&(deadline, generation));
    drop(gone);
}

/// Sends the signal of an expiry after which `missed` others were left out.
pub(super) fn send(process: &Process, id: Id, notify: &Notify, missed: i32) {
    if notify.signal == 0 {
        return;
    }
    let target = notify.thread.map(family::find_thread);
    // The thread that was to get it has ended.
    if let Some(None) = target {
        return;
    }
    let target = target.flatten();
    let Id::Posix(id) = id else {
        // There is always room for one of the kernel's.
        let _ = send_to_process(process, Info::kernel(notify.signal));
        return;
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
    send_expiry(process, target.as_deref(), info);
}

/// The time of day was set: timers that wait for one have another time to wait now.
pub fn clock_was_set() {
    for process in Process::all() {
        loop {
            let moved = {
                let mut list = process.timers.list.lock();
                list.iter_mut().find_map(|timer| {
                    let deadline = Deadline::OfDay(timer.time_of_day?).since_boot();
                    let old = timer.deadline?;
                    if old.abs_diff(deadline) < STEP {
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
