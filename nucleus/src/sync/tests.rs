//! Locks on the simulated machine, with many schedules.

use std::{
    cell::UnsafeCell,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use super::*;
use crate::{
    Mistake,
    sim::{self, Config, on_machines_with, on_many_machines, spawn},
    task,
};

// Ranks like those of the floors above.
const MAP: Rank = Rank::new(&(50, "Map"));
const AMAP: Rank = Rank::new(&(55, "Amap"));
const OBJECT: Rank = Rank::new(&(60, "Object"));
const DIRECTORY: Rank = Rank::new(&(30, "Directory"));
const VNODE: Rank = Rank::new(&(35, "Vnode"));

/// A counter that notices when two are inside.
struct Fragile {
    inside: AtomicUsize,
    count: UnsafeCell<usize>,
}

// SAFETY: the lock under test excludes; `inside` finds it when it does not, and the simulator runs
// one task at a time.
unsafe impl Sync for Fragile {}

impl Fragile {
    fn new() -> Fragile {
        Fragile {
            inside: AtomicUsize::new(0),
            count: UnsafeCell::new(0),
        }
    }

    fn write(&self) {
        assert_eq!(self.inside.fetch_add(1000, Ordering::SeqCst), 0);
        sim::point();
        // SAFETY: the caller holds the lock for writing.
        unsafe { *self.count.get() += 1 };
        sim::point();
        assert_eq!(self.inside.fetch_sub(1000, Ordering::SeqCst), 1000);
    }

    fn read(&self, sleep: bool) {
        assert!(self.inside.fetch_add(1, Ordering::SeqCst) < 1000);
        if sleep {
            task::yield_now();
        }
        sim::point();
        assert!(self.inside.fetch_sub(1, Ordering::SeqCst) < 1000);
    }
}

const TASKS: usize = 4;
const ROUNDS: usize = 8;
/// One round in four.
const WRITES: usize = TASKS * ROUNDS / 4;

/// Runs `round` in all tasks, then looks at the count.
fn contend<L: Send + Sync + 'static>(lock: L, writes: usize, round: fn(&L, &Fragile, usize)) {
    let shared = Arc::new((lock, Fragile::new(), AtomicUsize::new(0)));
    for number in 0..TASKS {
        let shared = shared.clone();
        spawn(move || {
            for i in 0..ROUNDS {
                round(&shared.0, &shared.1, number + i);
            }
            if shared.2.fetch_add(1, Ordering::SeqCst) == TASKS - 1 {
                // SAFETY: all tasks have done their last round.
                assert_eq!(unsafe { *shared.1.count.get() }, writes);
            }
        });
    }
}

/// Takes a lock, in one round of three by trying first.
macro_rules! try_or_lock {
    ($lock:expr, $round:expr) => {
        match $round % 3 {
            0 => $lock.try_lock().unwrap_or_else(|| $lock.lock()),
            _ => $lock.lock(),
        }
    };
}

/// One round in four writes; readers that sleep may go on on another CPU.
macro_rules! read_or_write {
    ($lock:expr, $fragile:expr, $round:expr) => {
        match $round % 4 {
            0 => {
                let _guard = $lock.write();
                $fragile.write();
            }
            _ => {
                let _guard = $lock.read();
                $fragile.read($round % 2 == 0);
            }
        }
    };
}

#[test]
fn locks_for_one_exclude() {
    const ALL: usize = TASKS * ROUNDS;
    on_many_machines("spin", || {
        contend(SpinLock::new(Rank::Leaf, ()), ALL, |lock, fragile, i| {
            let _guard = try_or_lock!(lock, i);
            fragile.write();
        });
        contend(
            SpinLock::new(Rank::WaitQueue, ()),
            ALL,
            |lock, fragile, _| {
                let _guard = lock.lock_irq();
                fragile.write();
            },
        );
    });
    on_many_machines("mutex", || {
        contend(Mutex::new(OBJECT, ()), ALL, |lock, fragile, i| {
            let _guard = try_or_lock!(lock, i);
            if i % 2 == 0 {
                task::yield_now();
            }
            fragile.write();
        });
    });
}

#[test]
fn reader_writer_locks_exclude() {
    on_many_machines("rwlock", || {
        contend(RwLock::new(VNODE, ()), WRITES, |lock, fragile, i| {
            read_or_write!(lock, fragile, i);
        });
    });
    on_many_machines("cpu rwlock", || {
        contend(
            CpuRwLock::new(MAP, ()).unwrap(),
            WRITES,
            |lock, fragile, i| {
                read_or_write!(lock, fragile, i);
            },
        );
    });
    on_machines_with("biased rwlock", 1..=8, 256, 30, contend_for_biased);
}

fn contend_for_biased() {
    let lock = BiasedRwLock::biased(VNODE, ());
    contend(lock, WRITES, |lock, fragile, i| match i % 8 {
        3 | 7 => lock.read_with(|()| fragile.read(false)),
        5 => (0..16).for_each(|_| drop(lock.read())),
        _ => read_or_write!(lock, fragile, i),
    });
}

/// Parts of a value, and who writes some of them.
struct Parts {
    lock: RwLock<()>,
    parts: [Fragile; 3],
    writers: AtomicUsize,
}

/// Writers of parts were inside together.
static TOGETHER: AtomicBool = AtomicBool::new(false);

fn contend_for_parts() {
    let parts = Parts {
        lock: RwLock::new(VNODE, ()),
        parts: core::array::from_fn(|_| Fragile::new()),
        writers: AtomicUsize::new(0),
    };
    contend(parts, WRITES, |all, fragile, i| match i % 4 {
        0 => {
            let _guard = all.lock.write();
            fragile.write();
            all.parts.iter().for_each(Fragile::write);
        }
        1 => {
            let guard = all.lock.try_read();
            let _guard = guard.unwrap_or_else(|| all.lock.read());
            all.parts.iter().for_each(|part| part.read(true));
        }
        _ => {
            let wanted = match i % 8 {
                2 => 0b001,
                3 => 0b110,
                6 => 0b010,
                _ => 0b101,
            };
            let _guard = all.lock.write_parts(wanted);
            if all.writers.fetch_add(1, Ordering::SeqCst) > 0 {
                TOGETHER.store(true, Ordering::SeqCst);
            }
            fragile.read(i % 8 > 3);
            let own = |&(part, _): &(usize, _)| wanted & 1 << part != 0;
            let own = all.parts.iter().enumerate().filter(own);
            own.for_each(|(_, part)| part.write());
            all.writers.fetch_sub(1, Ordering::SeqCst);
        }
    });
}

#[test]
fn writers_of_parts_exclude_readers_and_each_other() {
    on_machines_with("parts", 1..=8, 256, 30, contend_for_parts);
    assert!(TOGETHER.load(Ordering::SeqCst), "they always waited");
}

/// A writer that takes parts which another one has makes the test above fail.
#[test]
fn writers_of_the_same_part_are_found() {
    let like = Config {
        cpus: 4,
        pages: 256,
        ..Config::default()
    };
    Mistake::SamePartsTaken.assert_found(like, contend_for_parts, "left == right");
}

/// A writer that does not wait for sections makes the test above fail.
#[test]
fn a_writer_that_waits_for_no_section_is_found() {
    let like = Config {
        cpus: 4,
        pages: 256,
        ..Config::default()
    };
    Mistake::SectionsNotAwaited.assert_found(like, contend_for_biased, "left == right");
}

#[test]
fn pairs_do_not_deadlock() {
    on_many_machines("pairs", || {
        let locks = Arc::new([Mutex::new(DIRECTORY, 0), Mutex::new(DIRECTORY, 0)]);
        for number in 0..TASKS {
            let locks = locks.clone();
            spawn(move || {
                for _ in 0..ROUNDS {
                    let (mut a, mut b) =
                        Mutex::lock_pair(&locks[number % 2], &locks[(number + 1) % 2]);
                    task::yield_now();
                    *a += 1;
                    *b += 1;
                }
            });
        }
    });
}

#[test]
fn pairs_of_writers_do_not_deadlock() {
    on_many_machines("pairs of writers", || {
        let locks = Arc::new([0; 2].map(|it| CpuRwLock::new(MAP, it).unwrap()));
        for number in 0..TASKS {
            let locks = locks.clone();
            spawn(move || {
                for _ in 0..ROUNDS {
                    let (one, other) = (&locks[number % 2], &locks[(number + 1) % 2]);
                    let (mut a, mut b) = CpuRwLock::write_pair(one, other);
                    let sum = *a + *b;
                    task::yield_now();
                    *a += 1;
                    *b -= 1;
                    assert_eq!(*a + *b, sum, "another writer was there");
                    drop((a, b));
                    let (mut a, mut b) = CpuRwLock::write_pair(other, one);
                    (*a, *b) = (*a - 1, *b + 1);
                    drop((a, b));
                    let reader = one.read();
                    let seen = *reader;
                    task::yield_now();
                    assert_eq!(*reader, seen, "a writer was there");
                }
            });
        }
    });
}

fn failure_of(body: impl FnOnce() + Send + 'static) -> String {
    match sim::run(Config::default(), body) {
        Ok(()) => panic!("no objection"),
        Err(failure) => failure.message,
    }
}

#[test]
#[cfg(debug_assertions)]
fn wrong_order_is_noticed() {
    let message = failure_of(|| {
        let map = Mutex::new(MAP, ());
        let object = Mutex::new(OBJECT, ());
        let _object = object.lock();
        let _map = map.lock();
    });
    assert!(message.contains("Map"), "{message}");
    assert!(message.contains("Object"), "{message}");
    let message = failure_of(|| {
        let a = Mutex::new(MAP, ());
        let b = Mutex::new(MAP, ());
        let _a = a.lock();
        let _b = b.lock();
    });
    assert!(message.contains("lock order"), "{message}");
}

/// A value that is read in a section is in the lock order like one that is read with the lock
/// taken: the next reader may have to take it.
#[test]
#[cfg(debug_assertions)]
fn wrong_order_is_noticed_in_sections() {
    let message = failure_of(|| {
        let map = BiasedRwLock::biased(MAP, ());
        let object = Mutex::new(OBJECT, ());
        let _object = object.lock();
        map.read_with(|()| ());
    });
    assert!(message.contains("lock order: Map"), "{message}");
    let message = failure_of(|| {
        let object = BiasedRwLock::biased(OBJECT, ());
        let map = SpinLock::new(MAP, ());
        object.read_with(|()| drop(map.lock()));
    });
    assert!(message.contains("lock order: Map"), "{message}");
    let message = failure_of(|| {
        let object = BiasedRwLock::biased(OBJECT, ());
        let spin = SpinLock::new(MAP, ());
        let _spin = spin.lock();
        object.read_with(|()| ());
    });
    assert!(message.contains("preemption disabled"), "{message}");
    on_many_machines("reads in sections", || {
        let object = BiasedRwLock::biased(OBJECT, ());
        object.read_with(|()| ());
        drop(Mutex::new(MAP, ()).lock());
    });
}

#[test]
#[cfg(debug_assertions)]
fn sleeping_with_a_spin_lock_is_noticed() {
    let message = failure_of(|| {
        let spin = SpinLock::new(Rank::Leaf, ());
        let _spin = spin.lock();
        task::yield_now();
    });
    assert!(message.contains("preemption disabled"), "{message}");
}

#[test]
fn deadlock_is_noticed() {
    let message = failure_of(|| {
        let lock = Box::leak(Box::new(Mutex::new(MAP, ())));
        std::mem::forget(lock.lock());
        spawn(|| drop(lock.lock()));
    });
    assert!(message.contains("asleep"), "{message}");
}

#[test]
fn orders_allow_release_in_any_order() {
    on_many_machines("any order", || {
        let a = Mutex::new(MAP, ());
        let b = Mutex::new(AMAP, ());
        let c = Mutex::new(OBJECT, ());
        let first = a.lock();
        let second = b.lock();
        drop(first);
        let third = c.lock();
        drop(second);
        drop(third);
        drop(a.lock());
    });
}

/// What a lock leads to; notes its end where its readers look.
struct Leaf {
    id: usize,
    ended: Arc<[AtomicBool]>,
}

impl Drop for Leaf {
    fn drop(&mut self) {
        self.ended[self.id].store(true, Ordering::SeqCst);
    }
}

/// Sections borrow what two locks lead to, one in the other, while the outer one's value is
/// replaced: nothing ends before a section that has borrowed it, and no section sees what was gone
/// when it began.
#[test]
fn sections_keep_what_they_borrow() {
    const LEAVES: usize = TASKS * ROUNDS * 2 + 2;
    type Inner = BiasedRwLock<Arc<Leaf>>;
    static PEEKED: AtomicUsize = AtomicUsize::new(0);
    on_machines_with("sections", 1..=8, 256, 40, || {
        let ended: Arc<[AtomicBool]> = (0..LEAVES).map(|_| AtomicBool::new(false)).collect();
        let ids = Arc::new(AtomicUsize::new(0));
        let of_ids = (ids.clone(), ended.clone());
        let leaf = move || {
            let id = of_ids.0.fetch_add(1, Ordering::SeqCst);
            let ended = of_ids.1.clone();
            Arc::new(Leaf { id, ended })
        };
        let inner = move || (leaf(), Box::new(Inner::biased(AMAP, leaf())));
        let outer = Arc::new((BiasedRwLock::biased(MAP, inner()), AtomicUsize::new(0)));
        for number in 0..TASKS {
            let (outer, ended, inner) = (outer.clone(), ended.clone(), inner.clone());
            spawn(move || {
                for i in 0..ROUNDS {
                    let (lock, newest) = &*outer;
                    if (number + i).is_multiple_of(4) {
                        let mut value = lock.write();
                        let old = std::mem::replace(&mut *value, inner());
                        let id = value.0.id;
                        drop(value);
                        drop(old);
                        newest.fetch_max(id, Ordering::SeqCst);
                    } else if i % 3 == 0 {
                        // Sections may read it again.
                        (0..20).for_each(|_| drop(lock.read()));
                    }
                    let least = newest.load(Ordering::SeqCst);
                    let section = ReadSection::enter();
                    let Some((first, next)) = lock.peek(&section) else {
                        continue;
                    };
                    PEEKED.fetch_add(1, Ordering::Relaxed);
                    let first = first.id;
                    assert!(first >= least, "an old value");
                    sim::point();
                    let second = next.peek(&section).map(|leaf| (leaf.id, leaf.clone()));
                    sim::point();
                    assert!(!ended[first].load(Ordering::SeqCst), "ended in a section");
                    drop(section);
                    sim::point();
                    if let Some((id, leaf)) = second {
                        assert!(!ended[id].load(Ordering::SeqCst), "ended with a reference");
                        drop(leaf);
                    }
                }
            });
        }
    });
    assert!(
        PEEKED.load(Ordering::Relaxed) > 1000,
        "sections saw nothing"
    );
}

#[test]
fn a_section_in_a_section_is_noticed() {
    let message = failure_of(|| {
        let _one = ReadSection::enter();
        let _other = ReadSection::enter();
    });
    assert!(message.contains("read section"), "{message}");
}

/// With assertions or without them, a task that is pinned is not switched away from.
#[test]
fn no_task_sleeps_with_a_spin_lock() {
    failure_of(|| {
        let spin = SpinLock::new(Rank::Leaf, ());
        let _spin = spin.lock();
        // Longer than the clock leaps: the time is not over before the task sleeps.
        task::sleep(task::Sleep::within(std::time::Duration::from_secs(60)));
    });
}

/// A set that is forgotten stays in its queues, and the sleeper with it.
#[test]
fn a_forgotten_wait_set_keeps_its_task() {
    on_many_machines("a forgotten wait set", || {
        use crate::task::{WaitQueue, WaitSet, Watch};
        let queue = Arc::new(WaitQueue::new());
        let of_set = queue.clone();
        let task = spawn(move || {
            let mut set = WaitSet::new();
            set.add_shared(&of_set);
            std::mem::forget(set);
        });
        let task = Arc::downgrade(&task);
        for _ in 0..20 {
            task::yield_now();
            task::reap();
        }
        assert!(task.upgrade().is_some());
        queue.wake_all();
    });
}
