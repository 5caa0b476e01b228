//! Real-time levels on the simulated machine, whose clock leaps by up to 15 ms now and then,
//! whichever task runs. Tasks without a level may have their twentieth of each second meanwhile.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use super::*;
use crate::{
    sim::{self, Gate, on_machines_with},
    time,
};

fn spawn(cpus: u64, priority: Priority, body: impl FnOnce() + Send + 'static) -> Arc<Task> {
    let spawn = Spawn {
        cpus,
        priority,
        ..Spawn::kernel("test")
    };
    super::spawn(spawn, Box::new(body)).unwrap()
}

fn level(level: u8) -> Priority {
    Priority::Level {
        level,
        turns: false,
    }
}

fn in_turns(level: u8) -> Priority {
    Priority::Level { level, turns: true }
}

fn pause(milliseconds: u64) {
    sleep(Sleep::within(Duration::from_millis(milliseconds)));
}

/// The most that tasks without a level get in 340 ms beside those with one: the part that is kept
/// for them in two seconds, and a leap of the clock.
const KEPT: Duration = Duration::from_millis(2 * 50 + 15);

fn used(task: &Task) -> Duration {
    let (program, kernel) = task.cpu_time();
    program + kernel
}

/// Tasks that compute until they are stopped.
struct Spinners {
    stop: Arc<AtomicBool>,
    tasks: Vec<Arc<Task>>,
}

impl Spinners {
    /// The caller becomes more urgent than them.
    fn new() -> Spinners {
        current().set_priority(Priority::KERNEL);
        Spinners {
            stop: Arc::new(AtomicBool::new(false)),
            tasks: Vec::new(),
        }
    }

    fn add(&mut self, cpus: u64, priority: Priority) {
        let stop = self.stop.clone();
        self.tasks.push(spawn(cpus, priority, move || {
            while !stop.load(Ordering::SeqCst) {
                sim::point();
            }
        }));
    }

    /// What each has used after so many milliseconds.
    fn after(self, milliseconds: u64) -> Vec<Duration> {
        pause(milliseconds);
        let used = self.tasks.iter().map(|task| used(task)).collect();
        self.stop.store(true, Ordering::SeqCst);
        used
    }
}

#[test]
fn higher_levels_run_first_and_equal_ones_in_order() {
    on_machines_with("order", 1..=4, 256, 40, || {
        let order = Arc::new(Mutex::new(Vec::new()));
        let (gate, arrived, done) = (Gate::new(), Gate::new(), Gate::new());
        current().set_priority(Priority::KERNEL);
        current().set_cpus(1);
        let levels = [0, 3, 50, 3, 99, 50, 0, 1];
        for (i, l) in levels.into_iter().enumerate() {
            let order = order.clone();
            let (gate, arrived, done) = (gate.clone(), arrived.clone(), done.clone());
            let priority = match l {
                0 => Priority::default(),
                l => level(l),
            };
            spawn(1, priority, move || {
                arrived.pass();
                gate.wait_for(1);
                order.lock().unwrap().push((l, i));
                done.pass();
            });
        }
        arrived.wait_for(8);
        gate.pass();
        done.wait_for(8);
        let order = order.lock().unwrap().clone();
        let levels: Vec<u8> = order.iter().map(|(l, _)| *l).collect();
        assert_eq!(levels, [99, 50, 50, 3, 3, 1, 0, 0]);
        for pair in order.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
            assert!(pair[0].0 == 0 || pair[0].1 < pair[1].1, "{order:?}");
        }
    });
}

#[test]
fn one_that_wakes_displaces_lower_ones_at_once() {
    on_machines_with("wakes", 1..=4, 256, 40, || {
        current().set_priority(Priority::KERNEL);
        let due = Arc::new(AtomicU64::new(u64::MAX));
        let late = Arc::new(AtomicUsize::new(0));
        for i in 0..cpu_count() * 4 {
            let (due, late) = (due.clone(), late.clone());
            let priority = match i % 2 {
                0 => Priority::default(),
                _ => level(5),
            };
            spawn(u64::MAX, priority, move || {
                loop {
                    match due.load(Ordering::SeqCst) {
                        0 => return,
                        due if due < time::since_boot().as_nanos() as u64 => {
                            late.fetch_add(1, Ordering::SeqCst);
                        }
                        _ => {}
                    }
                    sim::point();
                }
            });
        }
        spawn(u64::MAX, level(6), move || {
            for _ in 0..20 {
                let deadline = time::since_boot() + Duration::from_micros(700);
                due.store(deadline.as_nanos() as u64, Ordering::SeqCst);
                sleep(Sleep::until(deadline));
                due.store(u64::MAX, Ordering::SeqCst);
                // To the next tick they would go on a hundred times as often.
                let late = late.swap(0, Ordering::SeqCst);
                assert!(late < 3000 * cpu_count(), "they went on {late} times");
            }
            due.store(0, Ordering::SeqCst);
        });
    });
}

#[test]
fn turns_are_taken_within_a_level_only_by_those_that_want_them() {
    on_machines_with("turns", [1], 256, 10, || {
        let mut spinners = Spinners::new();
        spinners.add(1, in_turns(10));
        spinners.add(1, in_turns(10));
        spinners.add(1, in_turns(9));
        let used = spinners.after(800);
        let half = Duration::from_millis(270)..Duration::from_millis(550);
        assert!(
            half.contains(&used[0]) && half.contains(&used[1]),
            "{used:?}"
        );
        assert_eq!(used[2], Duration::ZERO, "{used:?}");
    });
    on_machines_with("no turns", [1], 256, 10, || {
        let mut spinners = Spinners::new();
        spinners.add(1, level(10));
        spinners.add(1, level(10));
        let used = spinners.after(500);
        assert_eq!(used[1], Duration::ZERO, "{used:?}");
        assert!(used[0] > Duration::from_millis(450), "{used:?}");
    });
}

#[test]
fn a_yield_lets_the_own_level_run_and_no_lower_one() {
    on_machines_with("yield", [1], 256, 40, || {
        let order = Arc::new(Mutex::new(Vec::new()));
        let done = Gate::new();
        current().set_priority(Priority::KERNEL);
        for (name, priority) in [('a', level(7)), ('b', level(7)), ('c', level(6))] {
            let (order, done) = (order.clone(), done.clone());
            spawn(1, priority, move || {
                for _ in 0..3 {
                    order.lock().unwrap().push(name);
                    yield_now();
                }
                done.pass();
            });
        }
        done.wait_for(3);
        let order: String = order.lock().unwrap().iter().collect();
        assert_eq!(order, "abababccc");
    });
}

#[test]
fn those_without_a_level_and_the_kernel_are_not_starved() {
    on_machines_with("starved", 1..=2, 256, 6, || {
        let mut spinners = Spinners::new();
        for cpu in 0..cpu_count() {
            spinners.add(1 << cpu, level(99));
            spinners.add(1 << cpu, in_turns(99));
            spinners.add(1 << cpu, Priority::default());
        }
        let begin = time::since_boot();
        let used = spinners.after(3000);
        let late = time::since_boot() - begin - Duration::from_secs(3);
        assert!(
            late < Duration::from_millis(200),
            "the kernel is {late:?} late"
        );
        for used in used.chunks(3) {
            let share = Duration::from_millis(30)..Duration::from_millis(300);
            assert!(share.contains(&used[2]), "{used:?}");
        }
    });
}

#[test]
fn levels_spread_over_the_cpus() {
    on_machines_with("spread", 2..=4, 256, 20, || {
        let mut spinners = Spinners::new();
        let cpus = cpu_count();
        for _ in 0..cpus {
            spinners.add(u64::MAX, Priority::default());
        }
        for _ in 0..cpus {
            spinners.add(u64::MAX, level(20));
        }
        pause(40);
        let before: Vec<_> = spinners.tasks.iter().map(|task| used(task)).collect();
        let after = spinners.after(300);
        for i in 0..cpus {
            assert!(
                after[i] - before[i] <= KEPT,
                "a share of CPUs that have levels to run: {before:?} {after:?}"
            );
            assert!(before[i + cpus] < after[i + cpus], "{before:?} {after:?}");
        }
    });
}

#[test]
fn who_is_displaced_goes_where_there_is_room() {
    on_machines_with("aside", 2..=4, 256, 20, || {
        let mut low = Spinners::new();
        for _ in 0..cpu_count() {
            low.add(u64::MAX, level(20));
        }
        pause(40);
        // Two CPUs are taken from them, and one is given back.
        let (mut first, mut last) = (Spinners::new(), Spinners::new());
        first.add(1, level(30));
        last.add(1 << (cpu_count() - 1), level(40));
        pause(40);
        last.stop.store(true, Ordering::SeqCst);
        pause(40);
        let before: Vec<_> = low.tasks.iter().map(|task| used(task)).collect();
        let after = low.after(300);
        first.stop.store(true, Ordering::SeqCst);
        let ran = before.iter().zip(&after).filter(|(b, a)| a > b).count();
        assert_eq!(ran, after.len() - 1, "{before:?} {after:?}");
    });
}

#[test]
fn a_priority_can_change_while_a_task_runs_or_waits() {
    on_machines_with("changes", 1..=3, 256, 60, || {
        let mut spinners = Spinners::new();
        for i in 0..4 {
            spinners.add(u64::MAX, level(i + 1));
        }
        for i in 0..40usize {
            let priority = match i % 3 {
                0 => Priority::Share(i as i8 - 20),
                1 => level(i as u8 + 1),
                _ => in_turns(60 - i as u8),
            };
            let task = &spinners.tasks[i % 4];
            task.set_priority(priority);
            assert_eq!(task.priority(), priority);
            if i % 5 == 0 {
                task.set_cpus(1 << (i % cpu_count()));
                pause(1);
            }
        }
        // On one CPU with all others, it alone runs.
        for task in &spinners.tasks {
            task.set_cpus(1);
        }
        spinners.tasks[0].set_priority(level(99));
        pause(100);
        let before: Vec<_> = spinners.tasks.iter().map(|task| used(task)).collect();
        let tasks = spinners.tasks.clone();
        let after = spinners.after(300);
        assert!(after[0] > before[0], "{before:?} {after:?}");
        for (i, task) in tasks.iter().enumerate().skip(1) {
            let most = match task.priority() {
                Priority::Share(_) => KEPT,
                Priority::Level { .. } => Duration::ZERO,
            };
            assert!(after[i] - before[i] <= most, "{before:?} {after:?}");
        }
    });
}
