//! The same operation on each CPU at once, on objects of its own: what the kernel's CPUs share.
//!
//! - this file: the workers and the rows;
//! - [`operations`]: what they do.

mod operations;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use crate::{Bench, Experiment, Failure, Partner, Shared, cpus};
use operations::{ALL, Kind, Who};

/// The experiment; its help describes it.
pub const EXPERIMENT: Experiment = Experiment {
    name: "sharing",
    title: "The same operation on all CPUs at once, each on its own objects",
    help: "\
Each CPU has a worker, a process or (-threads) a thread of one process, which does the same
operation on objects of its own. A row's time is that of one operation of each worker.
`causeway bench --sharing` counts in these rows how often the kernel accesses cache lines that
another CPU writes.

getppid                  a system call that does nothing
map, map-threads         mmap, 4 pages written, munmap; threads at addresses far apart
placed-threads           the same where the kernel chooses the addresses
dontneed-threads         MADV_DONTNEED of 4 pages, which are written again
protect-threads          mprotect of 4 pages to read-only and back, and a write to each
shared-fault             MADV_DONTNEED and a read of a page of its own of a mapping of one file
brk                      the heap grows by a page, which is written, and shrinks again
open-close               a file of its own
stat                     one file
create-unlink            a file in a directory of its own
create-unlink-one        files of different names in one directory
rename                   a file in a directory of its own
getdents                 one directory
pread                    one page of one file
pwrite                   a page of its own of one file
pipe, unix-socket, tcp   a byte written and read, by a pipe or a connection of its own
futex-threads            FUTEX_WAKE and FUTEX_WAIT of words of its own, without a sleep
epoll                    an eventfd of its own, written, waited for and read
signal                   a signal to itself, handled
timer                    a timer of its own, armed and disarmed
dup-threads              dup and close in one table of descriptors
kill                     kill(pid, 0) of one process
stat-of-process          /proc/self/stat, opened, read, closed
clone                    a thread is made and ends
fork                     a process is made, ends and is waited for
exec                     a program is started, ends and is waited for",
    run,
};

/// What the workers of a row agree on.
#[derive(Default)]
struct Floor {
    /// Rounds that have begun, and how many operations a worker does in each.
    round: AtomicU32,
    operations: AtomicU64,
    /// Workers that have done those of the last one.
    done: AtomicU32,
    has_failed: AtomicBool,
    is_over: AtomicBool,
}

/// Waits without a system call: these would be seen among those that are measured.
fn spin_until(is_so: impl Fn() -> bool) {
    while !is_so() {
        std::hint::spin_loop();
    }
}

impl Floor {
    /// Does one worker's operations of a round.
    fn work(&self, operation: &mut operations::Operation, n: u64) -> Result<(), Failure> {
        let outcome = (0..n).try_for_each(|_| operation());
        if outcome.is_err() {
            self.has_failed.store(true, Ordering::Relaxed);
        }
        self.done.fetch_add(1, Ordering::AcqRel);
        outcome
    }

    /// Works in each round until there are no more.
    fn worker(&self, kind: &Kind, index: usize) -> Result<(), Failure> {
        let mut operation = match (kind.prepare)(index) {
            Ok(operation) => operation,
            Err(failure) => {
                self.has_failed.store(true, Ordering::Relaxed);
                return Err(failure);
            }
        };
        // The first worker waits for all to be ready.
        self.done.fetch_add(1, Ordering::AcqRel);
        for round in 1.. {
            let begins = || self.round.load(Ordering::Acquire) >= round;
            spin_until(|| begins() || self.is_over.load(Ordering::Relaxed));
            if self.is_over.load(Ordering::Relaxed) {
                break;
            }
            self.work(&mut operation, self.operations.load(Ordering::Relaxed))?;
        }
        Ok(())
    }

    /// Waits until so many workers have arrived.
    fn gather(&self, workers: u32) -> Result<(), Failure> {
        let has_failed = || self.has_failed.load(Ordering::Relaxed);
        spin_until(|| self.done.load(Ordering::Acquire) == workers || has_failed());
        match has_failed() {
            true => Err("a worker failed".into()),
            false => Ok(()),
        }
    }

    /// Measures rounds, in each of which the calling worker takes part.
    fn measure(&self, meter: &mut crate::Meter, kind: &Kind) -> Result<(), Failure> {
        let workers = cpus::count() as u32;
        let mut operation = (kind.prepare)(0)?;
        self.gather(workers - 1)?;
        meter.timed(|watch, n| {
            watch.take(|| {
                let since = Instant::now();
                self.done.store(0, Ordering::Relaxed);
                self.operations.store(n, Ordering::Relaxed);
                self.round.fetch_add(1, Ordering::Release);
                self.work(&mut operation, n)?;
                self.gather(workers)?;
                Ok(since.elapsed())
            })
        })
    }
}

fn run(bench: &mut Bench) -> Result<(), Failure> {
    for kind in ALL {
        let row = bench
            .row(format!("sharing/{}", kind.name))
            .cpus(2)
            .pinned(Some(0));
        row.batch(kind.batch).run(|meter| {
            let floor = Shared::new(Floor::default())?;
            let others = 1..cpus::count();
            let outcome = match kind.who {
                Who::Processes => {
                    let mut partners = Vec::new();
                    for cpu in others {
                        partners.push(Partner::start(cpu, || floor.worker(kind, cpu))?);
                    }
                    let outcome = floor.measure(meter, kind);
                    floor.is_over.store(true, Ordering::Relaxed);
                    let ends = partners.into_iter().map(Partner::wait);
                    ends.fold(outcome, first_failure)
                }
                Who::Threads => thread::scope(|scope| {
                    let floor = &*floor;
                    let start = |cpu| {
                        scope.spawn(move || {
                            cpus::pin(cpu)?;
                            floor.worker(kind, cpu)
                        })
                    };
                    let threads: Vec<_> = others.map(start).collect();
                    let outcome = floor.measure(meter, kind);
                    floor.is_over.store(true, Ordering::Relaxed);
                    let panicked = |_| Err("a thread panicked".into());
                    let ends = threads
                        .into_iter()
                        .map(|it| it.join().unwrap_or_else(panicked));
                    ends.fold(outcome, first_failure)
                }),
            };
            operations::clean();
            outcome
        })?;
    }
    Ok(())
}

/// A worker's failure says more than that of the one that waits for it.
fn first_failure(outcome: Result<(), Failure>, end: Result<(), Failure>) -> Result<(), Failure> {
    match end {
        Err(_) => end,
        Ok(()) => outcome,
    }
}
