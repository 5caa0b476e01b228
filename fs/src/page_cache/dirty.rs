//! How many pages of files are dirty, and how many may be.
//!
//! Each file knows which of its pages are dirty; here is their sum. Above the *background* share of
//! memory the flusher writes pages back whatever their age; above the *limit* a writer waits before
//! it makes another page dirty. So dirty pages, which can be evicted only after a write, never fill
//! the memory.

use core::{
    sync::atomic::{AtomicBool, AtomicIsize, AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use nucleus::{
    PAGE_SIZE, frame,
    task::{Sleep, WaitQueue},
};

static DIRTY: Count = Count(AtomicIsize::new(0));
static WRITING: Count = Count(AtomicIsize::new(0));
/// The limits in pages, worked out anew every [`RECKON`] pages.
static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);
static BACKGROUND: AtomicUsize = AtomicUsize::new(usize::MAX);
static SINCE_RECKONED: AtomicUsize = AtomicUsize::new(usize::MAX / 2);
/// Pages that become dirty between two looks at how much memory there is.
const RECKON: usize = 64;
/// Throttled writers wait here.
static BELOW: WaitQueue = WaitQueue::new();
/// There is a waiter.
static HELD_BACK: AtomicBool = AtomicBool::new(false);
/// The longest wait of a writer for one page: a stuck disk must not stop writers to other disks.
const PATIENCE: Duration = Duration::from_millis(200);
/// The limit is never lower, in pages.
const LEAST: usize = 16;

/// The flusher waits here for a [call](wake).
pub(super) static CALLS: WaitQueue = WaitQueue::new();
pub(super) static CALLED: AtomicBool = AtomicBool::new(false);
/// See [`write_soon`].
pub(super) static WANTED: AtomicUsize = AtomicUsize::new(0);
/// Pages of files that were in memory at the last count.
static RESIDENT: AtomicUsize = AtomicUsize::new(0);

/// A number of pages. A page is counted after it is visible as dirty: another CPU may have written
/// it and uncounted it by then, so the sum may be negative for a moment.
struct Count(AtomicIsize);

impl Count {
    fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed).max(0) as usize
    }

    fn change(&self, by: isize) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }
}

/// A setting of `/proc/sys/vm`.
pub struct Setting(AtomicU64);

impl Setting {
    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets it; the caller has checked the range.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
        SINCE_RECKONED.store(RECKON, Ordering::Relaxed);
        wake();
    }
}

/// `dirty_ratio`: per cent of the memory that files may have for their dirty pages.
pub static RATIO: Setting = Setting(AtomicU64::new(20));
/// `dirty_background_ratio`: per cent from which on the flusher writes.
pub static BACKGROUND_RATIO: Setting = Setting(AtomicU64::new(10));
/// `dirty_bytes`: takes the place of [`RATIO`] if it is not 0.
pub static BYTES: Setting = Setting(AtomicU64::new(0));
/// `dirty_background_bytes`: takes the place of [`BACKGROUND_RATIO`] if it is not 0.
pub static BACKGROUND_BYTES: Setting = Setting(AtomicU64::new(0));
/// `dirty_expire_centisecs`: the age at which dirty pages are written.
pub static EXPIRE: Setting = Setting(AtomicU64::new(3000));
/// `dirty_writeback_centisecs`: between two looks of the flusher; 0 for none.
pub static INTERVAL: Setting = Setting(AtomicU64::new(500));

/// Asks the flusher for a pass now.
pub(super) fn wake() {
    if !CALLED.swap(true, Ordering::AcqRel) {
        CALLS.wake_one();
    }
}

/// Memory is short: asks for a pass that begins to write `pages` pages, however young they are.
pub(super) fn write_soon(pages: usize) {
    WANTED.fetch_max(pages, Ordering::AcqRel);
    wake();
}

/// Pages that were [asked for](write_soon) and not begun yet.
pub(super) fn wanted() -> usize {
    WANTED.load(Ordering::Acquire)
}

/// Pages of files in memory, as counted last.
fn resident() -> usize {
    RESIDENT.load(Ordering::Relaxed)
}

/// So many pages of files are in memory.
pub(super) fn set_resident(pages: usize) {
    RESIDENT.store(pages, Ordering::Relaxed);
}

/// Pages of files that are dirty, and that are being written.
pub fn counts() -> (usize, usize) {
    (DIRTY.get(), WRITING.get())
}

/// How many dirty pages there may be, and from how many on they are written whatever their age.
pub fn limits() -> (usize, usize) {
    reckon();
    let read = |limit: &AtomicUsize| limit.load(Ordering::Relaxed);
    (read(&LIMIT), read(&BACKGROUND))
}

/// A page has become dirty.
pub(super) fn added() {
    DIRTY.change(1);
    if SINCE_RECKONED.fetch_add(1, Ordering::Relaxed) >= RECKON {
        SINCE_RECKONED.store(0, Ordering::Relaxed);
        reckon();
    }
    if is_in_background() {
        wake();
    }
}

/// Pages are dirty no more.
pub(super) fn removed(pages: usize) {
    DIRTY.change(-(pages as isize));
    told();
}

/// A page is being written.
pub(super) fn writing() {
    WRITING.change(1);
}

/// Pages were written, or could not be.
pub(super) fn written(pages: usize) {
    WRITING.change(-(pages as isize));
    told();
}

fn told() {
    if HELD_BACK.load(Ordering::Relaxed) && !is_over() {
        HELD_BACK.store(false, Ordering::Relaxed);
        BELOW.wake_all();
    }
}

/// Works out the limits from the memory that is there for files and free.
fn reckon() {
    let usage = frame::usage();
    let memory = usage.free + resident().min(usage.data);
    let share = |bytes: &Setting, ratio: &Setting| match bytes.get() {
        0 => memory * ratio.get() as usize / 100,
        bytes => usize::try_from(bytes).unwrap_or(usize::MAX) / PAGE_SIZE,
    };
    let limit = share(&BYTES, &RATIO).max(LEAST);
    let background = share(&BACKGROUND_BYTES, &BACKGROUND_RATIO);
    LIMIT.store(limit, Ordering::Relaxed);
    // As on Linux: half of the limit if it would not be below.
    BACKGROUND.store(
        if background >= limit {
            limit / 2
        } else {
            background
        },
        Ordering::Relaxed,
    );
}

/// Whether the flusher has to write whatever the age.
pub(super) fn is_in_background() -> bool {
    DIRTY.get() > BACKGROUND.load(Ordering::Relaxed)
}

/// Whether a writer has to wait before it makes a page dirty.
pub(super) fn is_over() -> bool {
    let (dirty, writing) = counts();
    dirty + writing > LIMIT.load(Ordering::Relaxed)
}

/// Waits until there are fewer dirty pages than the limit, for a bounded time. The caller holds no
/// lock that writeback takes.
pub(super) fn throttle() {
    if !is_over() {
        return;
    }
    wake();
    // A large write ends soon then, and adds few pages.
    if vm::is_dying() {
        return;
    }
    let how = Sleep::within(PATIENCE);
    // The deadline only means that it may go on as well.
    let _ = BELOW.wait(how, || {
        HELD_BACK.store(true, Ordering::SeqCst);
        (!is_over()).then_some(())
    });
}

/// For a new simulated machine: an earlier one may have ended anywhere.
#[cfg(not(target_os = "none"))]
pub(super) fn reset() {
    DIRTY.0.store(0, Ordering::Relaxed);
    WRITING.0.store(0, Ordering::Relaxed);
    SINCE_RECKONED.store(RECKON, Ordering::Relaxed);
    BELOW.restart();
    EXPIRE.0.store(3000, Ordering::Relaxed);
    INTERVAL.0.store(500, Ordering::Relaxed);
    CALLED.store(false, Ordering::Relaxed);
    WANTED.store(0, Ordering::Relaxed);
    CALLS.restart();
    set_resident(0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use nucleus::sim::{self, Config};

    /// A page is written back before the writer has counted it.
    #[test]
    fn fewer_than_none_are_none() {
        sim::check("count", 0..1, Config::default(), || {
            crate::page_cache::reset();
            removed(1);
            assert_eq!(counts(), (0, 0));
            assert!(!is_over() && !is_in_background());
            added();
            assert_eq!(counts(), (0, 0));
            added();
            assert_eq!(counts(), (1, 0));
            removed(1);
            crate::page_cache::reset();
        });
    }
}
