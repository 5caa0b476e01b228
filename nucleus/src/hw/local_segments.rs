//! The segments that 32-bit programs set: a thread those of its own, a process its local descriptor
//! table for all of its threads.
//!
//! A table here is never what a CPU reads. Each CPU has a table of its own, into which it copies
//! the process's before it enters a program, with interrupts off: what was checked in the copy is
//! what the CPU loads, whatever another thread sets meanwhile.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use super::segment;
use crate::{OutOfMemory, speculation, try_box};

/// A segment that a 32-bit program has set.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct Segment {
    pub base: u32,
    /// The last offset, in bytes or pages; 20 bits.
    pub limit: u32,
    pub in_pages: bool,
    /// Code instead of data: never 64-bit code.
    pub is_code: bool,
    /// Data that may be written, or code that may be read.
    pub writable: bool,
    /// Data whose valid offsets are those past the limit, or code that is conforming.
    pub grows_down: bool,
    /// A bit without a meaning to the CPU.
    pub available: bool,
    /// Loading it faults.
    pub is_absent: bool,
}

/// In a descriptor: a bit without a meaning to the CPU.
const AVAILABLE: u64 = 1 << 52;

impl Segment {
    /// As the CPU wants it: accessed, 32-bit, of programs' privilege. The bit of 64-bit code stays
    /// clear.
    pub(crate) fn encode(&self) -> u64 {
        let bit = |set: bool, bit: u64| if set { bit } else { 0 };
        segment::place(u64::from(self.base), u64::from(self.limit & 0xf_ffff))
            | 0x71 << 40
            | bit(self.writable, segment::WRITABLE)
            | bit(self.grows_down, segment::EXPANDS_DOWN)
            | bit(self.is_code, segment::IS_CODE)
            | bit(!self.is_absent, segment::PRESENT)
            | bit(self.available, AVAILABLE)
            | 1 << 54
            | bit(self.in_pages, segment::IN_PAGES)
    }

    pub(crate) fn decode(descriptor: u64) -> Option<Segment> {
        let has = |bit: u64| descriptor & bit != 0;
        (descriptor != 0).then(|| Segment {
            base: segment::base(descriptor) as u32,
            limit: segment::limit_in_units(descriptor) as u32,
            in_pages: has(segment::IN_PAGES),
            is_code: has(segment::IS_CODE),
            writable: has(segment::WRITABLE),
            grows_down: has(segment::EXPANDS_DOWN),
            available: has(AVAILABLE),
            is_absent: !has(segment::PRESENT),
        })
    }
}

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
        self.stamp.store(stamp, Ordering::Release);
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

    #[test]
    fn segments_are_encoded_as_the_processor_wants_them() {
        let flat = Segment {
            base: 0,
            limit: 0xf_ffff,
            in_pages: true,
            writable: true,
            ..Segment::default()
        };
        assert_eq!(flat.encode(), 0x00cf_f300_0000_ffff);
        let odd = Segment {
            base: 0x1234_5678,
            limit: 0x9_abcd,
            in_pages: false,
            writable: false,
            grows_down: true,
            available: true,
            ..Segment::default()
        };
        assert_eq!(Segment::decode(odd.encode()), Some(odd));
        let code = Segment {
            is_code: true,
            is_absent: true,
            ..odd
        };
        assert_eq!(Segment::decode(code.encode()), Some(code));
        // Whatever is set: 32-bit, not 64-bit.
        assert_eq!(code.encode() >> 53 & 3, 2);
        assert_eq!(Segment::decode(flat.encode()), Some(flat));
        assert_eq!(Segment::decode(0), None);
    }
}
