//! Tasks, wait queues and timers on the simulated machine, with many schedules.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use super::*;
use crate::{
    frame,
    sim::{self, Gate, on_machines_with, on_many_machines, spawn, spawn_on},
    time,
};

#[test]
fn all_tasks_run() {
    on_many_machines("all run", || {
        let gate = Gate::new();
        for i in 0..20 {
            let gate = gate.clone();
            spawn(move || {
                for _ in 0..i {
                    yield_now();
                }
                gate.pass();
            });
        }
        gate.wait_for(20);
    });
}

#[test]
fn computing_tasks_share_a_cpu() {
    on_many_machines("share", || {
        let done = Arc::new(AtomicUsize::new(0));
        for _ in 0..3 {
            let done = done.clone();
            // Each computes until all have begun: only preemption lets the others begin.
            spawn_on(1, move || {
                done.fetch_add(1, Ordering::SeqCst);
                while done.load(Ordering::SeqCst) < 3 {
                    sim::point();
                }
            });
        }
    });
}

#[test]
fn affinity_is_kept() {
    on_many_machines("affinity", || {
        for i in 0..8 {
            let cpus = 1 << (i % cpu_count());
            let task = spawn_on(cpus, move || {
                for _ in 0..10 {
                    assert_eq!(cpus, 1 << cpu());
                    yield_now();
                    assert_eq!(cpus, 1 << cpu());
                    sleep(Sleep::within(Duration::from_micros(i as u64)));
                }
                let other = 1 << ((i + 1) % cpu_count());
                current().set_cpus(other);
                assert_eq!(other, 1 << cpu());
            });
            drop(task);
        }
        let moved = Arc::new(AtomicBool::new(false));
        let seen = moved.clone();
        let last = 1 << (cpu_count() - 1);
        let task = spawn(move || {
            while !seen.load(Ordering::SeqCst) {
                sim::point();
            }
            while 1 << cpu() != last {
                sim::point();
            }
        });
        task.set_cpus(last);
        moved.store(true, Ordering::SeqCst);
    });
}

/// Many change where, and how urgently, a task runs, at any moment of its way from one CPU to
/// another: it goes on, on one CPU at a time, and in the end where it was told last.
#[test]
fn a_task_on_its_way_can_be_sent_elsewhere() {
    on_many_machines("on its way", || {
        let over = Arc::new(AtomicBool::new(false));
        let runs = Arc::new(AtomicUsize::new(0));
        let ended = Arc::new(AtomicBool::new(false));
        let (until, ran, end) = (over.clone(), runs.clone(), ended.clone());
        let sent = spawn(move || {
            let is_alone = AtomicBool::new(true);
            while !until.load(Ordering::SeqCst) {
                assert!(is_alone.swap(false, Ordering::SeqCst));
                ran.fetch_add(1, Ordering::SeqCst);
                sim::point();
                assert!(!is_alone.swap(true, Ordering::SeqCst));
                match sim::random_u64() % 4 {
                    0 => drop(sleep(Sleep::within(Duration::from_micros(5)))),
                    1 => current().set_cpus(1 << (sim::random_u64() as usize % cpu_count())),
                    _ => yield_now(),
                }
            }
            current().set_cpus(u64::MAX);
            end.store(true, Ordering::SeqCst);
            while current().cpus.load(Ordering::SeqCst) != 1 || cpu() != 0 {
                yield_now();
            }
        });
        let gate = Gate::new();
        for _ in 0..3 {
            let (sent, gate) = (sent.clone(), gate.clone());
            spawn(move || {
                for _ in 0..60 {
                    let number = sim::random_u64();
                    match number % 8 {
                        0 => sent.set_priority(Priority::default()),
                        1 => sent.set_priority(Priority::Level {
                            level: 1 + (number >> 8) as u8 % 3,
                            turns: true,
                        }),
                        2 => yield_now(),
                        _ => sent.set_cpus(1 << ((number >> 8) as usize % cpu_count())),
                    }
                }
                gate.pass();
            });
        }
        gate.wait_for(3);
        over.store(true, Ordering::SeqCst);
        sent.set_priority(Priority::default());
        while !ended.load(Ordering::SeqCst) {
            yield_now();
        }
        sent.set_cpus(1);
        assert!(runs.load(Ordering::SeqCst) > 0);
    });
}

/// A bounded queue of numbers whose users sleep when they must.
struct Channel {
    items: crate::sync::SpinLock<Vec<usize>>,
    arrivals: WaitQueue,
    room: WaitQueue,
}

impl Channel {
    const ROOM: usize = 2;

    fn send(&self, item: usize) {
        let put = || {
            let mut items = self.items.lock();
            (items.len() < Self::ROOM).then(|| items.push(item))
        };
        self.room.wait(Sleep::SOUND, put).unwrap();
        self.arrivals.wake_one();
    }

    fn receive(&self) -> usize {
        let take = || self.items.lock().pop();
        let item = self.arrivals.wait(Sleep::SOUND, take).unwrap();
        self.room.wake_one();
        item
    }
}

#[test]
fn no_wake_up_is_lost() {
    on_many_machines("channel", || {
        let channel = Arc::new(Channel {
            items: crate::sync::SpinLock::new(crate::sync::Rank::Leaf, Vec::new()),
            arrivals: WaitQueue::new(),
            room: WaitQueue::new(),
        });
        let sum = Arc::new(AtomicUsize::new(0));
        let gate = Gate::new();
        for _ in 0..3 {
            let (sender, receiver) = (channel.clone(), channel.clone());
            let (sum, gate) = (sum.clone(), gate.clone());
            spawn(move || (1..=10).for_each(|i| sender.send(i)));
            spawn(move || {
                for _ in 0..10 {
                    sum.fetch_add(receiver.receive(), Ordering::SeqCst);
                }
                gate.pass();
            });
        }
        gate.wait_for(3);
        assert_eq!(sum.load(Ordering::SeqCst), 3 * 55);
    });
}

#[test]
fn a_wake_up_for_who_gives_up_goes_to_the_next() {
    on_many_machines("give up", || {
        // As many tokens as tasks that wait without an end; others give up in the middle.
        let tokens = Arc::new(AtomicUsize::new(0));
        let queue = Arc::new(WaitQueue::new());
        let take = |tokens: &AtomicUsize| {
            tokens
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
                .ok()
        };
        let given_up = Gate::new();
        for i in 0..3u64 {
            let (tokens, queue, given_up) = (tokens.clone(), queue.clone(), given_up.clone());
            spawn(move || {
                let how = Sleep::within(Duration::from_micros(i));
                if queue.wait(how, || take(&tokens)).is_ok() {
                    // Gives back what it took.
                    tokens.fetch_add(1, Ordering::SeqCst);
                    queue.wake_one();
                }
                given_up.pass();
            });
        }
        let gate = Gate::new();
        for _ in 0..3 {
            let (tokens, queue, gate) = (tokens.clone(), queue.clone(), gate.clone());
            spawn(move || {
                queue.wait(Sleep::SOUND, || take(&tokens)).unwrap();
                gate.pass();
            });
        }
        for _ in 0..3 {
            tokens.fetch_add(1, Ordering::SeqCst);
            queue.wake_one();
            yield_now();
        }
        gate.wait_for(3);
        given_up.wait_for(3);
    });
}

#[test]
fn interruptions_end_sleeps() {
    on_many_machines("interrupt", || {
        let ended = Gate::new();
        let queue = Arc::new(WaitQueue::new());
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                let (ended, queue) = (ended.clone(), queue.clone());
                spawn(move || {
                    let result = queue.wait(Sleep::INTERRUPTIBLE, || None::<()>);
                    assert_eq!(result, Err(Woken::Interrupted));
                    assert!(current().is_interrupted());
                    current().clear_interrupt();
                    ended.pass();
                })
            })
            .collect();
        for task in &tasks {
            yield_now();
            task.interrupt();
        }
        ended.wait_for(4);
    });
}

#[test]
fn sound_sleeps_are_not_interrupted() {
    on_many_machines("sound", || {
        let gate = Gate::new();
        let inner = gate.clone();
        let task = spawn(move || inner.wait_for(1));
        task.interrupt();
        for _ in 0..5 {
            yield_now();
        }
        gate.pass();
    });
}

#[test]
fn sleeps_last_long_enough_and_not_much_longer() {
    on_many_machines("sleep", || {
        let gate = Gate::new();
        for i in 0..5 {
            let gate = gate.clone();
            spawn(move || {
                let end = time::since_boot() + Duration::from_millis(i * 7);
                assert_eq!(sleep(Sleep::until(end)), Woken::TimedOut);
                assert!(time::since_boot() >= end);
                gate.pass();
            });
        }
        gate.wait_for(5);
    });
}

#[test]
fn wait_sets_notice_any_queue() {
    on_many_machines("wait set", || {
        let queues: Arc<[WaitQueue; 3]> = Arc::new([const { WaitQueue::new() }; 3]);
        let flags: Arc<[AtomicBool; 3]> = Arc::new([const { AtomicBool::new(false) }; 3]);
        let (wakers, setters) = (queues.clone(), flags.clone());
        let poller = spawn(move || {
            let mut set = WaitSet::new();
            queues.iter().for_each(|queue| set.add(queue));
            let mut seen = 0;
            while seen < 3 {
                let ready = flags
                    .iter()
                    .filter(|flag| flag.swap(false, Ordering::SeqCst))
                    .count();
                seen += ready;
                if ready == 0 {
                    set.wait(Sleep::SOUND).unwrap();
                }
            }
            let late = time::since_boot() + Duration::from_micros(3);
            while set.wait(Sleep::until(late)).is_ok() {}
            assert!(time::since_boot() >= late);
        });
        drop(poller);
        for i in [2, 0, 1] {
            setters[i].store(true, Ordering::SeqCst);
            wakers[i].wake_all();
            yield_now();
        }
    });
}

#[test]
fn a_wait_set_takes_no_more_places_when_memory_is_scarce() {
    on_many_machines("wait set, scarce", || {
        let queues = [const { WaitQueue::new() }; 100];
        let filled = |scarce: bool| {
            frame::seem_scarce_after(scarce.then_some(0));
            let mut set = WaitSet::new();
            queues.iter().for_each(|queue| set.add(queue));
            frame::seem_scarce_after(None);
            (set.check().is_ok(), set.len())
        };
        assert_eq!(filled(false), (true, queues.len()));
        let (is_complete, len) = filled(true);
        assert!(!is_complete && len < queues.len(), "{len}");
        assert!(queues.iter().all(|queue| queue.crowd() == 0));
    });
}

#[test]
fn more_sleepers_than_one_interrupt_wakes() {
    on_many_machines("one moment", || {
        let gate = Gate::new();
        let deadline = time::since_boot() + Duration::from_micros(20);
        for _ in 0..80 {
            let gate = gate.clone();
            spawn(move || {
                assert_eq!(sleep(Sleep::until(deadline)), Woken::TimedOut);
                assert!(time::since_boot() >= deadline);
                gate.pass();
            });
        }
        gate.wait_for(80);
    });
}

#[test]
fn cpu_time_is_what_was_used() {
    on_many_machines("cpu time", || {
        let used = Arc::new(AtomicU64::new(0));
        let inner = used.clone();
        let gate = Gate::new();
        let passed = gate.clone();
        let task = spawn(move || {
            let begin = time::since_boot();
            while time::since_boot() < begin + Duration::from_millis(5) {
                sim::point();
            }
            let (program, kernel) = current().cpu_time();
            inner.store((program + kernel).as_nanos() as u64, Ordering::SeqCst);
            passed.pass();
            sleep(Sleep::within(Duration::from_secs(1)));
        });
        gate.wait_for(1);
        sleep(Sleep::within(Duration::from_millis(500)));
        let (program, kernel) = task.cpu_time();
        assert!((program + kernel).as_nanos() as u64 >= used.load(Ordering::SeqCst));
        assert!(program + kernel < Duration::from_millis(400));
    });
}

#[test]
fn nicer_tasks_get_less() {
    on_machines_with("nice", [1], 256, 20, || {
        let stop = Arc::new(AtomicBool::new(false));
        let tasks: Vec<_> = [0, 10]
            .into_iter()
            .map(|nice| {
                let stop = stop.clone();
                let task = spawn(move || {
                    sim::set_in_program(true);
                    while !stop.load(Ordering::SeqCst) {
                        sim::point();
                    }
                    sim::set_in_program(false);
                });
                task.set_priority(Priority::Share(nice));
                task
            })
            .collect();
        sleep(Sleep::within(Duration::from_secs(2)));
        stop.store(true, Ordering::SeqCst);
        let used = |task: &Task| task.cpu_time().0 + task.cpu_time().1;
        // The weights are 9.3 to 1.
        assert!(used(&tasks[0]) > used(&tasks[1]) * 4);
        assert!(used(&tasks[0]) < used(&tasks[1]) * 20);
    });
}

/// The holder of a lock goes on soon, however little of the CPU is its share; which it does not
/// exceed for that.
#[test]
fn a_nice_holder_keeps_no_urgent_task_waiting() {
    on_machines_with("holder", 1..=2, 256, 12, || {
        let stop = Arc::new(AtomicBool::new(false));
        let lock = Arc::new(crate::sync::Mutex::new(crate::lock::Rank::Leaf, ()));
        current().set_priority(Priority::Share(-20));
        let goes_on = |stop: &Arc<AtomicBool>| {
            let stop = stop.clone();
            move || !stop.load(Ordering::SeqCst)
        };
        let mut holders = Vec::new();
        for _ in 0..2 {
            let (goes_on, lock) = (goes_on(&stop), lock.clone());
            let holder = spawn(move || {
                while goes_on() {
                    let guard = lock.lock();
                    (0..50).for_each(|_| sim::point());
                    drop(guard);
                    // As on the way to a program.
                    let irqs = crate::hw::machine::irqs_disable();
                    must_look();
                    crate::hw::machine::irqs_restore(irqs);
                }
            });
            holder.set_priority(Priority::Share(20));
            holders.push(holder);
        }
        for _ in 0..3 * cpu_count() {
            let goes_on = goes_on(&stop);
            spawn(move || {
                sim::set_in_program(true);
                while goes_on() {
                    sim::point();
                }
                sim::set_in_program(false);
            });
        }
        let begin = time::since_boot();
        let mut worst = Duration::ZERO;
        for _ in 0..100 {
            sleep(Sleep::within(Duration::from_millis(3)));
            let start = time::since_boot();
            drop(lock.lock());
            worst = worst.max(time::since_boot() - start);
        }
        assert!(worst < Duration::from_secs(1), "waited for {worst:?}");
        sleep(Sleep::within(Duration::from_secs(2)));
        stop.store(true, Ordering::SeqCst);
        let time = time::since_boot() - begin;
        for holder in &holders {
            let (program, kernel) = holder.cpu_time();
            assert!(
                (program + kernel) * 5 < time,
                "{:?} of {time:?}",
                program + kernel
            );
        }
    });
}

/// A task that has a debt when it gets a real-time level goes on to its program all the same.
#[test]
fn a_debt_is_over_with_a_level() {
    on_machines_with("debt", [1], 256, 4, || {
        let task = current();
        task.watch_switches(true);
        let place = task.place();
        task.set_place(sched::debt::Place { debt: 1, ..place });
        task.set_priority(Priority::Level {
            level: 1,
            turns: false,
        });
        let irqs = crate::hw::machine::irqs_disable();
        assert!(must_look());
        crate::hw::machine::irqs_restore(irqs);
        task.take_switched();
        assert!(!must_look());
        task.watch_switches(false);
    });
}

/// Only a task that would run at once on another CPU is woken while the waker goes on.
#[test]
fn waking_beside() {
    on_machines_with("waking beside", [2], 256, 60, || {
        for cpus in [1, 2] {
            let queue = Arc::new(WaitQueue::new());
            let (looks, ready) = (
                Arc::new(AtomicU32::new(0)),
                Arc::new(AtomicBool::new(false)),
            );
            let gone = Gate::new();
            let waits = (queue.clone(), looks.clone(), ready.clone(), gone.clone());
            spawn_on(cpus, move || {
                let (queue, looks, ready, gone) = waits;
                let look = || {
                    looks.fetch_add(1, Ordering::SeqCst);
                    ready.load(Ordering::SeqCst).then_some(())
                };
                queue.wait(Sleep::SOUND, look).unwrap();
                gone.pass();
            });
            let gone_in_waking = gone.clone();
            spawn_on(1, move || {
                // Its last look before it sleeps.
                while looks.load(Ordering::SeqCst) < 2 {
                    yield_now();
                }
                (0..50).for_each(|_| yield_now());
                let before = looks.load(Ordering::SeqCst);
                if cpus == 1 {
                    for _ in 0..20 {
                        queue.wake_beside();
                        yield_now();
                    }
                    assert_eq!(
                        looks.load(Ordering::SeqCst),
                        before,
                        "woken on its waker's CPU"
                    );
                }
                ready.store(true, Ordering::SeqCst);
                while cpus == 2 && gone_in_waking.passed() == 0 {
                    queue.wake_beside();
                    yield_now();
                }
                queue.wake_all();
            });
            gone.wait_for(1);
        }
    });
}

/// A CPU that has run out of work leaves another one the task that this one was just given.
#[test]
fn an_idle_cpu_runs_the_task_that_was_woken_for_it() {
    const TURNS: usize = 30;
    const ANY: usize = usize::MAX;
    static EXPECTED: AtomicUsize = AtomicUsize::new(0);
    on_machines_with("about to run", [3], 256, 60, || {
        let counter = || Arc::new(AtomicUsize::new(0));
        let (turn, done, last, expected) = (counter(), counter(), counter(), counter());
        let queue = Arc::new(WaitQueue::new());
        let woken = (turn.clone(), done.clone(), last.clone(), expected.clone());
        let waits = queue.clone();
        spawn(move || {
            let (turn, done, last, expected) = woken;
            for n in 1..=TURNS {
                let has_come = || (turn.load(Ordering::SeqCst) >= n).then_some(());
                waits.wait(Sleep::SOUND, has_come).unwrap();
                let expected = expected.load(Ordering::SeqCst);
                assert!(expected == ANY || expected == cpu(), "stolen");
                last.store(cpu(), Ordering::SeqCst);
                done.store(n, Ordering::SeqCst);
            }
        });
        let over = done.clone();
        // It runs out of work again and again.
        spawn_on(1 << 2, move || {
            while over.load(Ordering::SeqCst) < TURNS {
                sleep(Sleep::within(Duration::from_nanos(1)));
            }
        });
        spawn_on(1, move || {
            for n in 1..=TURNS {
                while done.load(Ordering::SeqCst) < n - 1 {
                    yield_now();
                }
                (0..20).for_each(|_| yield_now());
                let cpu = last.load(Ordering::SeqCst);
                let is_idle = run_queue::IDLE.load(Ordering::SeqCst) & 1 << cpu != 0;
                EXPECTED.fetch_add(usize::from(is_idle), Ordering::SeqCst);
                let one = if is_idle { cpu } else { ANY };
                expected.store(one, Ordering::SeqCst);
                turn.store(n, Ordering::SeqCst);
                queue.wake_all();
            }
        });
    });
    assert!(
        EXPECTED.load(Ordering::SeqCst) > 100,
        "hardly a CPU was idle"
    );
}
