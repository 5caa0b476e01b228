//! Observers on the simulated machine: none misses a wake-up, and one that left is left alone.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
};

use super::{Observation, Observer, Sleep, WaitQueue, yield_now};
use crate::sim::{self, on_many_machines, spawn};

/// Counts what it is told, and wakes the tasks that wait for that.
struct Bell {
    rung: AtomicUsize,
    useful: bool,
    heard: WaitQueue,
}

impl Bell {
    fn new(useful: bool) -> Arc<Bell> {
        Arc::new(Bell {
            rung: AtomicUsize::new(0),
            useful,
            heard: WaitQueue::new(),
        })
    }
}

impl Observer for Bell {
    fn woken(&self, _: u8) -> bool {
        self.rung.fetch_add(1, SeqCst);
        self.heard.wake_all();
        self.useful
    }
}

fn observe(queue: &WaitQueue, bell: &Arc<Bell>, exclusive: bool) -> Observation {
    queue.observe(bell.clone(), 0, exclusive).unwrap()
}

#[test]
fn what_changes_after_the_registration_is_told() {
    on_many_machines("told", || {
        let queue = Arc::new(WaitQueue::new());
        let changed = Arc::new(AtomicUsize::new(0));
        for _ in 0..3 {
            let (queue, changed) = (queue.clone(), changed.clone());
            spawn(move || {
                let bell = Bell::new(true);
                let _observation = observe(&queue, &bell, false);
                // Register, look, wait: as `epoll` does.
                let all = || (changed.load(SeqCst) == 4).then_some(());
                while all().is_none() {
                    let before = bell.rung.load(SeqCst);
                    if all().is_some() {
                        break;
                    }
                    let rung = || (bell.rung.load(SeqCst) != before).then_some(());
                    bell.heard.wait(Sleep::SOUND, rung).unwrap();
                }
            });
        }
        for i in 0..4 {
            let (queue, changed) = (queue.clone(), changed.clone());
            spawn(move || {
                changed.fetch_add(1, SeqCst);
                match i % 2 {
                    0 => queue.wake_all(),
                    _ => _ = queue.wake_one(),
                }
            });
        }
    });
}

#[test]
fn leaving_is_safe_against_a_wake_up() {
    on_many_machines("leave", || {
        let queue = Arc::new(WaitQueue::new());
        let stop = Arc::new(AtomicBool::new(false));
        let stays = Bell::new(false);
        let _observation = observe(&queue, &stays, false);
        let left = Arc::new(AtomicUsize::new(0));
        for i in 0..3 {
            let (queue, stop, left) = (queue.clone(), stop.clone(), left.clone());
            spawn(move || {
                for round in 0..5 {
                    let bell = Bell::new(false);
                    let observation = observe(&queue, &bell, (i + round) % 2 == 0);
                    sim::point();
                    drop(observation);

                    // A waker that saw it already may still be calling it, but none begins to
                    // once a later wake-up has come round.
                    while Arc::strong_count(&bell) > 1 {
                        yield_now();
                    }
                    let rung = bell.rung.load(SeqCst);
                    queue.wake_all();
                    assert_eq!(bell.rung.load(SeqCst), rung, "told after it had left");
                }
                if left.fetch_add(1, SeqCst) == 2 {
                    stop.store(true, SeqCst);
                }
            });
        }
        let mut wakes = 0;
        while !stop.load(SeqCst) {
            queue.wake_all();
            wakes += 1;
            yield_now();
        }
        assert!(stays.rung.load(SeqCst) >= wakes, "missed a wake-up");
    });
}

#[test]
fn one_exclusive_observer_takes_a_wake_up_for_one() {
    on_many_machines("exclusive", || {
        let queue = WaitQueue::new();
        let bells = [false, true, true].map(Bell::new);
        let plain = Bell::new(true);
        let _kept: Vec<_> = bells
            .iter()
            .map(|bell| observe(&queue, bell, true))
            .collect();
        let _plain = observe(&queue, &plain, false);
        let counts = || bells.each_ref().map(|bell| bell.rung.load(SeqCst));
        assert!(!queue.wake_one());
        // The first had no use for it, the second took it.
        assert_eq!((counts(), plain.rung.load(SeqCst)), ([1, 1, 0], 1));
        queue.wake_all();
        assert_eq!((counts(), plain.rung.load(SeqCst)), ([2, 2, 1], 2));
    });
}

#[test]
fn a_queue_may_go_before_its_observers() {
    on_many_machines("queue gone", || {
        let bell = Bell::new(true);
        let queue = Box::new(WaitQueue::new());
        let observations: Vec<_> = (0..7).map(|_| observe(&queue, &bell, false)).collect();
        let moved = *queue;
        moved.wake_all();
        assert_eq!(bell.rung.load(SeqCst), 7);
        drop(moved);
        drop(observations);
        assert_eq!(Arc::strong_count(&bell), 1);
    });
}
