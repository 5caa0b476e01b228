//! The segments that a 32-bit process sets for all of its threads: its local descriptor table.
//!
//! A table here is never what a CPU reads. Each CPU has a table of its own, into which it copies
//! the process's before it enters a program, with interrupts off: what was checked in the copy is
//! what the CPU loads, whatever another thread sets meanwhile.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use super::user_context::Segment;
use crate::{OutOfMemory, speculation, try_box};

/// How many segments a process can set.
pub const LOCAL_SEGMENTS: usize = 512;

type Table = [AtomicU64; LOCAL_SEGMENTS];

/// The local segments of a 32-bit process. Shared by its threads.
pub struct LocalSegments {
    /// Null until the first one is set.
    table: AtomicPtr<Table>,
    /// One past the last that was ever set.
    used: AtomicUsize,
    /// Another number after each change, of this process's segments or any other's; 0 before the
    /// first one.
    stamp: AtomicU64,
}

/// The stamp of the last change of any process's segments.
static LAST_STAMP: AtomicU64 = AtomicU64::new(0);

impl Default for LocalSegments {
    fn default() -> LocalSegments {
        LocalSegments {
            table: AtomicPtr::new(core::ptr::null_mut()),
            used: AtomicUsize::new(0),
            stamp: AtomicU64::new(0),
        }
    }
}

impl LocalSegments {
    /// Makes a copy, which a forked process gets.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn duplicate(&self) -> Result<LocalSegments, OutOfMemory> {
        let copy = LocalSegments::default();
        if self.is_empty() {
            return Ok(copy);
        }
        let table = copy.table_or_new()?;
        let words = (0..self.len()).map(|n| self.word(n));
        for (to, word) in table.iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
        copy.used.store(self.len(), Ordering::Relaxed);
        copy.changed();
        Ok(copy)
    }

    /// Returns one past the number of the last segment that was ever set.
    pub fn len(&self) -> usize {
        self.used.load(Ordering::Acquire)
    }

    /// Whether no segment was ever set.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns descriptor `n` as the CPU has it; 0 for none.
    pub fn word(&self, n: usize) -> u64 {
        let word = self.table().and_then(|table| speculation::get(table, n));
        word.map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Sets segment `n`, below [`LOCAL_SEGMENTS`]. A thread that runs on another CPU has it from
    /// its next way into the kernel and back.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn set(&self, n: usize, segment: Option<Segment>) -> Result<(), OutOfMemory> {
        let n = speculation::mask_index(n, LOCAL_SEGMENTS);
        if segment.is_none() && n >= self.len() {
            return Ok(());
        }
        let word = segment.map_or(0, |segment| segment.encode());
        self.table_or_new()?[n].store(word, Ordering::Relaxed);
        self.used.fetch_max(n + 1, Ordering::Release);
        self.changed();
        Ok(())
    }

    /// Returns another number after each change; 0 before the first. A CPU whose copy was made
    /// after it had seen this number has all changes up to it.
    #[inline]
    #[cfg_attr(not(target_os = "none"), allow(dead_code))]
    pub(crate) fn stamp(&self) -> u64 {
        self.stamp.load(Ordering::Acquire)
    }

    fn changed(&self) {
        let stamp = LAST_STAMP.fetch_add(1, Ordering::Relaxed) + 1;
        // Of two changes at once the later stamp may be the smaller one; it is another one than a
        // CPU has seen that has made its copy between the two.
        self.stamp.swap(stamp, Ordering::AcqRel);
    }

    fn table(&self) -> Option<&Table> {
        // SAFETY: null, or a box that lives until `self` is dropped.
        unsafe { self.table.load(Ordering::Acquire).as_ref() }
    }

    fn table_or_new(&self) -> Result<&Table, OutOfMemory> {
        if let Some(table) = self.table() {
            return Ok(table);
        }
        let new = Box::into_raw(try_box([const { AtomicU64::new(0) }; LOCAL_SEGMENTS])?);
        let none = core::ptr::null_mut();
        let set = self
            .table
            .compare_exchange(none, new, Ordering::AcqRel, Ordering::Acquire);
        if set.is_err() {
            // SAFETY: it came from a box just now, and nothing else knows it.
            drop(unsafe { Box::from_raw(new) });
        }
        self.table().ok_or(OutOfMemory)
    }
}

impl Drop for LocalSegments {
    fn drop(&mut self) {
        let table = *self.table.get_mut();
        if !table.is_null() {
            // SAFETY: it came from a box, and nothing refers to it any more.
            drop(unsafe { Box::from_raw(table) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_the_segments_and_changes_by_itself() {
        let segments = LocalSegments::default();
        assert_eq!((segments.len(), segments.stamp()), (0, 0));
        let code = Segment {
            base: 0x1000,
            limit: 0xfff,
            is_code: true,
            ..Segment::default()
        };
        segments.set(3, Some(code)).unwrap();
        // To empty one that was never set changes nothing.
        let stamp = segments.stamp();
        segments.set(9, None).unwrap();
        assert_eq!((segments.len(), segments.stamp()), (4, stamp));
        let copy = segments.duplicate().unwrap();
        assert_ne!(copy.stamp(), stamp);
        segments.set(3, None).unwrap();
        assert_eq!((segments.word(3), segments.word(4)), (0, 0));
        assert_eq!(copy.word(3), code.encode());
        assert_eq!(copy.word(LOCAL_SEGMENTS), 0);
    }
}
