//! The lock for data that all CPUs read and few change: directories, mounts, a process's places.
//!
//! It is a [`RwLock`] with a flag, the bias (Dice and Kogan, *BRAVO: Biased Locking for
//! Reader-Writer Locks*, 2019). While the flag is set, the value may also be read in a
//! [`ReadSection`], by one load: no reader writes a word of the lock. A writer clears the flag and
//! waits for the sections that may have seen it; see `section.rs` for why that excludes.
//!
//! The flag is set by readers that had to count themselves, [`BIAS_AFTER`] times since the last
//! write. A value that is often written keeps its counted readers, and its writers never wait for
//! sections: a directory of a CPU's own stays on that CPU.

use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use super::rwlock::{ReadGuard, RwLock, WriteGuard};
use super::section::{self, ReadSection};
use crate::hw::machine;
use crate::lock::{Lock, Rank};

/// Counted reads after which the bias is set. A writer that clears it reads a line of each CPU: on
/// sixteen CPUs, one for each of these reads.
const BIAS_AFTER: u8 = 16;

/// Many readers, which write nothing to it while it is biased, or one writer; sleeps.
pub struct BiasedRwLock<T> {
    /// Sections may read the value. Set by counted readers, cleared by a writer.
    is_biased: AtomicBool,
    /// Counted reads since the last write, about.
    reads: AtomicU8,
    lock: RwLock<T>,
}

impl<T> BiasedRwLock<T> {
    /// A free lock of this rank, without bias.
    pub const fn new(rank: Rank, value: T) -> Self {
        Self {
            is_biased: AtomicBool::new(false),
            reads: AtomicU8::new(0),
            lock: RwLock::new(rank, value),
        }
    }

    /// A free lock of this rank, with bias, for a value that is read before it is ever written.
    pub const fn biased(rank: Rank, value: T) -> Self {
        Self {
            is_biased: AtomicBool::new(true),
            reads: AtomicU8::new(0),
            lock: RwLock::new(rank, value),
        }
    }

    /// Returns the value for as long as the section lasts; `None` without bias. Never sleeps, and
    /// takes no part in the lock order.
    #[inline]
    pub fn peek<'s>(&'s self, section: &'s ReadSection) -> Option<&'s T> {
        machine::point();
        if !section.is_valid() || !self.is_biased.load(Ordering::SeqCst) {
            return None;
        }
        machine::point();
        // SAFETY: The flag was set in this section, so the next writer waits for its end before it
        // has a `&mut` to the value (`section.rs`), and the last one has ended: its lock was taken
        // by the reader that set the flag. Both borrows are as long as the result's, so the section
        // does not end before it, nor does the lock.
        Some(unsafe { &*self.lock.guarded().pointer() })
    }

    /// Calls `f` with the value, in a read section, or without bias as a [reader](Self::read). `f`
    /// does not sleep or enter a section. The lock order and the right to sleep are checked as for
    /// `read`.
    #[inline]
    #[track_caller]
    pub fn read_with<R>(&self, f: impl FnOnce(&T) -> R) -> R {
        if self.is_biased.load(Ordering::Relaxed) {
            self.lock.check();
            let section = ReadSection::enter();
            if let Some(value) = self.peek(&section) {
                let _held = self.lock.guarded().note_held();
                return f(value);
            }
        }
        f(&self.read())
    }

    /// Takes the lock with other readers, counted. A task that has it must not take it again.
    #[inline]
    #[track_caller]
    pub fn read(&self) -> ReadGuard<'_, T> {
        let guard = self.lock.read();
        if !self.is_biased.load(Ordering::Relaxed) {
            let reads = self.reads.load(Ordering::Relaxed) + 1;
            // Reads at the same time may be counted as one.
            match reads < BIAS_AFTER {
                true => self.reads.store(reads, Ordering::Relaxed),
                // No writer has the lock, so this comes after what the last one stored, and before
                // the next one clears it.
                false => self.is_biased.store(true, Ordering::SeqCst),
            }
        }
        guard
    }

    /// Takes the lock alone.
    #[inline]
    #[track_caller]
    pub fn write(&self) -> WriteGuard<'_, T> {
        let guard = self.lock.write();
        self.clear_bias();
        guard
    }

    /// Takes two locks of one rank for writing, the one at the lower address first. They must not
    /// be the same one.
    #[track_caller]
    pub fn write_pair<'a>(
        a: &'a BiasedRwLock<T>,
        b: &'a BiasedRwLock<T>,
    ) -> (WriteGuard<'a, T>, WriteGuard<'a, T>) {
        let guards = RwLock::write_pair(&a.lock, &b.lock);
        a.clear_bias();
        b.clear_bias();
        guards
    }

    /// The value, without locking: no other reference to the lock exists.
    pub fn get_mut(&mut self) -> &mut T {
        self.lock.get_mut()
    }

    /// Lets no section read the value from now on. The caller has the lock for writing.
    #[inline]
    fn clear_bias(&self) {
        self.reads.store(0, Ordering::Relaxed);
        // Only readers set it, and none has the lock.
        if self.is_biased.load(Ordering::Relaxed) {
            self.is_biased.store(false, Ordering::SeqCst);
            machine::point();
            section::wait_for_all();
        }
    }
}
