//! What a CPU does when there is nothing to do: it takes a task from another, looks for a while
//! whether it is given one, and then sleeps until an interrupt.
//!
//! The waker of a task for a CPU that polls only has to put it into the queue: no interrupt is
//! sent, and none taken. A virtual machine pays for both, and more for a CPU that must be started
//! again, with many times what the task switch costs. But a CPU that looks takes time from others
//! on the same host, so it looks only where its last sleeps say that this is worth it.

use core::sync::atomic::{AtomicU64, Ordering};

use sched::idle::{LONGEST_POLL, Patience};

use super::{
    dead,
    placement::{steal, take_over},
    reaper,
    run_queue::{IDLE, QUEUES},
    scheduler::schedule,
};
use crate::{counters::Counter, hw::machine};

/// The longest look, in nanoseconds; 0 for none.
static LONGEST: AtomicU64 = AtomicU64::new(LONGEST_POLL);

/// Sets the longest time for which a CPU without work looks for some before it sleeps; 0 for none.
pub fn set_longest_look(nanoseconds: u64) {
    LONGEST.store(nanoseconds, Ordering::Relaxed);
}

/// Returns the longest time for which a CPU without work looks for some, in nanoseconds.
pub fn longest_look() -> u64 {
    LONGEST.load(Ordering::Relaxed)
}

/// As at the start, for a new simulated machine.
#[cfg(not(target_os = "none"))]
pub(super) fn reset() {
    set_longest_look(LONGEST_POLL);
}

/// What a CPU does when there is nothing to do. The interrupt that ends its sleep reschedules on
/// its way out, so the loop goes round when all work is done again.
pub(super) fn idle() -> ! {
    let cpu = machine::cpu();
    let queue = &*QUEUES[cpu];
    let mut patience = Patience::default();
    // Since when there has been nothing, if this CPU has looked in vain since.
    let mut since = None;
    loop {
        machine::irqs_disable();
        // An interrupt that brought no task ends no spell: it says nothing of how soon one comes.
        if let Some(began) = since {
            let left_at = queue.lock().idle_left_at;
            queue.unlock();
            if left_at > began {
                patience.learn(left_at - began, LONGEST.load(Ordering::Relaxed));
                since = None;
            }
        }
        if queue.queued.load(Ordering::SeqCst) == 0
            && let Some(task) = steal(cpu, 1)
        {
            take_over(cpu, task);
        }
        if queue.queued.load(Ordering::SeqCst) != 0 {
            schedule(true);
            continue;
        }
        if dead::is_wanted() && reaper::wake() {
            continue;
        }
        // A waker looks at `IDLE` after enqueueing, and this looks at the queue after: one sees the
        // other. The interrupt that it sends then ends the wait, even if it comes before it.
        IDLE.fetch_or(1 << cpu, Ordering::SeqCst);
        machine::point();
        let longest = LONGEST.load(Ordering::Relaxed);
        match since {
            None if longest != 0 && machine::cpu_count() > 1 => {
                let now = machine::nanoseconds();
                since = look(cpu, now + patience.nanoseconds()).then_some(now);
            }
            _ if queue.queued.load(Ordering::SeqCst) != 0 || machine::reschedule_wanted() => {}
            _ => machine::wait_for_interrupt(),
        }
        IDLE.fetch_and(!(1 << cpu), Ordering::SeqCst);
        machine::irqs_restore(true);
        machine::preempt();
    }
}

/// Looks for a task in this CPU's queue until then. Called with interrupts off; gives them back so,
/// but takes them meanwhile. Returns whether it was in vain: no task is there, nor has an interrupt
/// brought one meanwhile.
fn look(cpu: usize, until: u64) -> bool {
    let queue = &*QUEUES[cpu];
    let looks = |looks| {
        let inner = queue.lock();
        inner.looks = looks;
        let left_at = inner.idle_left_at;
        queue.unlock();
        left_at
    };
    let before = looks(true);
    machine::irqs_restore(true);
    while queue.queued.load(Ordering::Relaxed) == 0 && machine::look_again(until) {}
    machine::irqs_disable();
    // A waker that enqueued under the lock before this sent no interrupt; its stores are visible
    // here.
    let after = looks(false);
    let found = queue.queued.load(Ordering::SeqCst) != 0;
    Counter::wakes_seen.add(u64::from(found));
    !found && after == before
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::{
        sim::{on_machines_with, spawn_on},
        task::{Sleep, WaitQueue},
    };
    use alloc::{sync::Arc, vec::Vec};

    /// Players on several CPUs pass a ball round: each waits for its turn and wakes the next one. A
    /// player that was missed would sleep for ever.
    fn pass_a_ball(cpus: usize) {
        const ROUNDS: usize = 40;
        let ball = Arc::new((AtomicUsize::new(0), WaitQueue::new()));
        let players: Vec<_> = (0..cpus)
            .map(|player| {
                let ball = ball.clone();
                spawn_on(1 << player, move || {
                    for round in 0..ROUNDS {
                        let turn = round * cpus + player;
                        let mine = || (ball.0.load(Ordering::SeqCst) == turn).then_some(());
                        ball.1.wait(Sleep::SOUND, mine).unwrap();
                        ball.0.store(turn + 1, Ordering::SeqCst);
                        ball.1.wake_all();
                    }
                })
            })
            .collect();
        let end = || (ball.0.load(Ordering::SeqCst) == cpus * ROUNDS).then_some(());
        ball.1.wait(Sleep::SOUND, end).unwrap();
        drop(players);
    }

    #[test]
    fn a_polling_cpu_is_told_without_an_interrupt_and_no_wake_up_is_lost() {
        static SEEN: AtomicU64 = AtomicU64::new(0);
        on_machines_with("a ball", 2..=4, 256, 200, || {
            pass_a_ball(machine::cpu_count());
            SEEN.fetch_add(Counter::wakes_seen.total(), Ordering::Relaxed);
        });
        let seen = SEEN.load(Ordering::Relaxed);
        assert!(seen > 1000, "only {seen} tasks were found by looking");
    }

    #[test]
    fn without_a_look_there_is_an_interrupt() {
        on_machines_with("asleep", [2], 2048, 20, || {
            set_longest_look(0);
            let told = || [Counter::wakes_seen, Counter::ipi_reschedule].map(Counter::total);
            // A CPU that had begun to poll sleeps afterwards.
            pass_a_ball(2);
            let [seen, interrupts] = told();
            pass_a_ball(2);
            assert_eq!(told()[0], seen);
            assert!(told()[1] > interrupts);
        });
    }
}
