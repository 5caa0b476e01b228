//! The lock for data that is read on every fault and written seldom.
//!
//! Each CPU has a counter in a cache line of its own. A reader adds one to the counter of the CPU
//! on which it takes the lock and subtracts one from the counter of the CPU on which it gives the
//! lock back, so a reader may sleep and move. One counter alone means nothing and may be negative;
//! the sum is the number of readers.
//!
//! A writer sets `writing`, which turns new readers away, and waits until the sum is zero: first it
//! spins, then it sleeps. A spinning writer does not look at the counters again and again, since
//! each look takes a cache line from its CPU: readers that leave add to `departures` while a writer
//! has the lock or waits for it, and the writer watches that word alone.
//!
//! Why that excludes. Adding to the counter, loading and storing `writing` and loading the counters
//! are sequentially consistent, so for each reader one of two holds:
//!
//! - its addition comes before the writer's store. Then every sum that the writer takes has that
//!   one in it;
//! - its addition comes after. Then it sees `writing`, subtracts again *on the same CPU*
//!   (preemption is off in between) and waits: a sum has its +1, or both, or neither, never the -1
//!   alone.
//!
//! A reader that holds the lock therefore adds one to every sum, one that gives it back adds one or
//! zero, and one that is turned away adds one or zero. No term is negative: a sum of zero proves
//! that no reader is left. The subtraction releases and the sum acquires, so what the readers did
//! comes before what the writer does.
//!
//! No wake-up is lost: a reader subtracts, then loads `writing`, and if it is set, adds to
//! `departures`. A writer that goes to sleep sets [`ASLEEP`] in `departures`, then takes the sum
//! that decides, both with its bucket of the parking lot locked. If the reader's addition comes
//! first, the sum has its subtraction; otherwise the reader sees the bit, and wakes the writer
//! through the bucket. A reader that is turned away sets `refused`, then looks at `writing` again,
//! both with its bucket locked, before it sleeps; a writer clears `writing`, then looks at
//! `refused`. So one of the two sees the other, and a writer that has turned no reader away does
//! not go to the parking lot at all.
//!
//! The memory is a cache line for each CPU: meant for address spaces, not for objects.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use super::mutex::{Mutex, MutexGuard, Patience};
use super::parking_lot;
use crate::hw::machine;
use crate::lock::{
    Exclusive, Guard, Guarded, Hold, Lock, Rank, enable_preemption, lock_pair, lockdep,
};
use crate::{OutOfMemory, try_vec};

/// Looks of an estimated 10 to 40 microseconds before each sleep, by how long the
/// processor pauses. Most holders are done by then. A sleep costs two task switches, mostly an
/// interrupt, which takes about as long if the virtual CPU was halted, and often a migration. On
/// the simulated machine tasks sleep early, to be tested.
const PATIENCE: Patience = Patience {
    looks: if cfg!(target_os = "none") { 1000 } else { 20 },
    lasts: true,
};

/// In [`CpuRwLock::departures`]: the writer sleeps, or is about to.
const ASLEEP: u64 = 1;
/// What a reader that leaves adds to [`CpuRwLock::departures`].
const ONE_DEPARTURE: u64 = 2;

/// Alone in its cache line.
#[repr(align(64))]
struct Departures(AtomicU64);

/// Alone in its cache line. Wide enough for guards that are forgotten, however many: one more each
/// nanosecond takes five hundred years.
#[repr(align(64))]
struct Counter(AtomicI64);

/// Many readers, each touching only a cache line of its CPU, or one writer, which visits them all;
/// sleeps. Aligned, so that `writing` shares no line with another object.
#[repr(align(64))]
pub struct CpuRwLock<T> {
    /// By CPU.
    readers: Box<[Counter]>,
    /// A writer has the lock or waits for the readers to leave. Read by every reader, hence on a
    /// line that only writers change.
    writing: AtomicBool,
    /// A reader may sleep since a writer turned it away.
    refused: AtomicBool,
    /// Readers that left, or were turned away, while `writing` was set, above [`ASLEEP`].
    departures: Departures,
    /// One writer at a time. Also what ranks this lock.
    writer: Mutex<()>,
    /// `readers` and `writing`
    guarded: Guarded<T>,
}

// SAFETY: the guards are the only way to the value.
unsafe impl<T: Send> Send for CpuRwLock<T> {}
// SAFETY: readers on several CPUs share `&T`, hence `Sync`; a writer moves the value, hence `Send`.
unsafe impl<T: Send + Sync> Sync for CpuRwLock<T> {}

/// Holds a [`CpuRwLock`] for reading.
pub type CpuReadGuard<'a, T> = Guard<'a, CpuRwLock<T>, CpuReading>;
/// Holds a [`CpuRwLock`] for writing.
pub type CpuWriteGuard<'a, T> = Guard<'a, CpuRwLock<T>, CpuWriting<'a>>;

/// How a [`CpuReadGuard`] holds its lock.
pub struct CpuReading(());

/// How a [`CpuWriteGuard`] holds its lock.
pub struct CpuWriting<'a> {
    /// Given back last.
    _writer: MutexGuard<'a, ()>,
}

impl<T> Lock for CpuRwLock<T> {
    type Value = T;

    #[allow(private_interfaces)]
    fn guarded(&self) -> &Guarded<T> {
        &self.guarded
    }
}

// SAFETY: a reader is counted, so no writer has the lock (see the top of this file).
unsafe impl<T> Hold<CpuRwLock<T>> for CpuReading {
    #[inline]
    unsafe fn release(&mut self, lock: &CpuRwLock<T>) {
        lock.leave();
    }
}

// SAFETY: see its `Hold`.
unsafe impl Exclusive for CpuWriting<'_> {}

// SAFETY: the sum of the readers was zero after they were turned away, and the mutex keeps other
// writers out.
unsafe impl<T> Hold<CpuRwLock<T>> for CpuWriting<'_> {
    unsafe fn release(&mut self, lock: &CpuRwLock<T>) {
        machine::point();
        lock.writing.store(false, Ordering::SeqCst);
        machine::point();
        // Cleared before they are woken: a reader that sets it from now on is woken with them, or
        // looks at `writing` later.
        if lock.refused.load(Ordering::SeqCst) && lock.refused.swap(false, Ordering::SeqCst) {
            parking_lot::unpark_all(lock.readers_key());
        }
    }
}

impl<T> CpuRwLock<T> {
    /// A free lock of this rank. All CPUs run that the machine will have.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(rank: Rank, value: T) -> Result<Self, OutOfMemory> {
        let mut readers = try_vec(machine::cpu_count())?;
        readers.resize_with(machine::cpu_count(), || Counter(AtomicI64::new(0)));
        Ok(Self {
            // Its room is exact: the box does not move it.
            readers: readers.into_boxed_slice(),
            writing: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            departures: Departures(AtomicU64::new(0)),
            writer: Mutex::new(rank, ()),
            guarded: Guarded::new(rank, value),
        })
    }

    /// The key of readers in the parking lot.
    fn readers_key(&self) -> usize {
        &raw const self.writing as usize
    }

    /// The key of the writer that waits for the readers to leave.
    fn writer_key(&self) -> usize {
        &raw const self.refused as usize
    }

    /// Takes the lock with other readers. A task that has it must not take it again.
    #[inline]
    #[track_caller]
    pub fn read(&self) -> CpuReadGuard<'_, T> {
        lockdep::may_sleep();
        self.guarded.check();
        if !self.try_enter() {
            self.await_writer();
        }
        // SAFETY: entered just now.
        unsafe { Guard::new(self, CpuReading(())) }
    }

    #[inline]
    fn try_enter(&self) -> bool {
        machine::preempt_disable();
        let mine = &self.readers[machine::cpu()].0;
        machine::point();
        mine.fetch_add(1, Ordering::SeqCst);
        machine::point();
        let entered = !self.writing.load(Ordering::SeqCst);
        if !entered {
            mine.fetch_sub(1, Ordering::SeqCst);
        }
        enable_preemption();
        if !entered {
            // The writer may have counted this reader.
            self.note_departure();
        }
        entered
    }

    /// Takes the lock for a reader that was turned away.
    #[cold]
    #[track_caller]
    fn await_writer(&self) {
        let is_writing = || self.writing.load(Ordering::SeqCst);
        loop {
            if !spin_while(is_writing) {
                parking_lot::park(self.readers_key(), || {
                    self.refused.store(true, Ordering::SeqCst);
                    machine::point();
                    is_writing()
                });
            }
            if self.try_enter() {
                return;
            }
        }
    }

    /// Tells the writer that a reader is gone, after `writing` was seen.
    #[cold]
    fn note_departure(&self) {
        machine::point();
        if self.departures.0.fetch_add(ONE_DEPARTURE, Ordering::SeqCst) & ASLEEP != 0 {
            parking_lot::unpark_one(self.writer_key());
        }
    }

    #[inline]
    fn leave(&self) {
        machine::preempt_disable();
        machine::point();
        self.readers[machine::cpu()]
            .0
            .fetch_sub(1, Ordering::SeqCst);
        machine::point();
        let writing = self.writing.load(Ordering::SeqCst);
        enable_preemption();
        if writing {
            self.note_departure();
        }
    }

    /// Takes the lock alone.
    #[track_caller]
    #[inline(always)]
    pub fn write(&self) -> CpuWriteGuard<'_, T> {
        self.write_with(self.writer.lock_with(PATIENCE))
    }

    /// Takes two locks of one rank alone, the one at the lower address first. They must not be the
    /// same one.
    #[track_caller]
    pub fn write_pair<'a>(
        a: &'a CpuRwLock<T>,
        b: &'a CpuRwLock<T>,
    ) -> (CpuWriteGuard<'a, T>, CpuWriteGuard<'a, T>) {
        lock_pair(a, b, Self::write, |lock| {
            lock.write_with(lock.writer.take_with(PATIENCE))
        })
    }

    /// Takes the lock alone for a task that keeps other writers out.
    #[inline(always)]
    fn write_with<'a>(&'a self, writer: MutexGuard<'a, ()>) -> CpuWriteGuard<'a, T> {
        self.writing.store(true, Ordering::SeqCst);
        machine::point();
        if self.count_readers() != 0 {
            self.await_readers();
        }
        // SAFETY: no reader is left, and `writer` keeps other writers out.
        unsafe { Guard::new(self, CpuWriting { _writer: writer }) }
    }

    #[cold]
    #[track_caller]
    fn await_readers(&self) {
        let left = &self.departures.0;
        loop {
            // Before the sum: a reader that leaves after it changes the word.
            let seen = left.load(Ordering::SeqCst);
            if self.count_readers() == 0 {
                return;
            }
            if spin_while(|| left.load(Ordering::SeqCst) == seen) {
                continue;
            }
            parking_lot::park(self.writer_key(), || {
                left.fetch_or(ASLEEP, Ordering::SeqCst);
                self.count_readers() != 0
            });
            left.fetch_and(!ASLEEP, Ordering::SeqCst);
        }
    }

    #[inline(always)]
    fn count_readers(&self) -> i64 {
        self.readers
            .iter()
            .map(|counter| {
                machine::point();
                counter.0.load(Ordering::SeqCst)
            })
            .fold(0, i64::wrapping_add)
    }
}

/// Spins while `waits` holds, for at most [`PATIENCE`]'s looks. Returns whether it no longer holds.
fn spin_while(waits: impl Fn() -> bool) -> bool {
    let looks = match machine::cpu_count() {
        1 => 0,
        _ => PATIENCE.looks,
    };
    (0..looks).any(|_| {
        machine::spin_hint();
        !waits()
    })
}
