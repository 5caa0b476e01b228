//! Which way bytes go between a program and a queue: by a copy, or by pages that change hands
//! (`uvm.txt` 7).
//!
//! A loan costs a change of mappings, and a copy after all if the page is written soon. So large
//! transfers alone are worth it, and those of programs that leave lent pages alone, as their
//! history shows (`map/history.rs`).

use alloc::{boxed::Box, sync::Arc};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use nucleus::{PAGE_SIZE, sync::OnceBox};

use super::moved::CopyReason;
use crate::map::{History, Map};

/// The ways that pages may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Movement {
    /// Bytes are copied into a queue, and out of it.
    Copy,
    /// Bytes are copied once where a reader waits.
    Once,
    /// Whole pages are lent and transferred.
    Loan,
    /// As [`Loan`](Movement::Loan), but bytes that programs write soon go as by
    /// [`Once`](Movement::Once).
    Auto,
}

static MOVEMENT: AtomicU32 = AtomicU32::new(Movement::Auto as u32);
/// Bytes from which on a transfer is worth a change of mappings.
static LEAST: AtomicUsize = AtomicUsize::new(LEAST_PAGES * PAGE_SIZE);
/// The same in pages.
const LEAST_PAGES: usize = 8;

/// Returns which ways pages may go.
pub fn movement() -> Movement {
    match MOVEMENT.load(Relaxed) {
        0 => Movement::Copy,
        1 => Movement::Once,
        2 => Movement::Loan,
        _ => Movement::Auto,
    }
}

/// Chooses which ways pages may go.
pub fn set_movement(movement: Movement) {
    MOVEMENT.store(movement as u32, Relaxed);
    DIRECT.store(
        match movement {
            Movement::Once | Movement::Auto => LEAST_DIRECT,
            Movement::Copy | Movement::Loan => usize::MAX,
        },
        Relaxed,
    );
    set_least_move(least_pages());
}

static PAGES: AtomicUsize = AtomicUsize::new(LEAST_PAGES);

/// Returns how many pages are worth a change of mappings.
pub fn least_pages() -> usize {
    PAGES.load(Relaxed)
}

/// Sets how many pages, one at least, are worth a change of mappings.
pub fn set_least_move(pages: usize) {
    PAGES.store(pages, Relaxed);
    let bytes = match movement() {
        Movement::Copy | Movement::Once => usize::MAX,
        Movement::Loan | Movement::Auto => pages * PAGE_SIZE,
    };
    LEAST.store(bytes, Relaxed);
    let large = match movement() {
        // None is, but its bytes are counted.
        Movement::Copy => pages * PAGE_SIZE,
        _ => bytes.min(least_direct()),
    };
    LARGE.store(large, Relaxed);
}

/// Returns how many bytes are worth a change of mappings; no transfer has so many where all are
/// copied.
#[inline]
pub fn least_move() -> usize {
    LEAST.load(Relaxed)
}

/// Bytes from which on they go straight into the memory of a reader that waits.
static DIRECT: AtomicUsize = AtomicUsize::new(LEAST_DIRECT);
const LEAST_DIRECT: usize = 2 * PAGE_SIZE;

/// Returns how many bytes are worth a copy straight into the memory of a reader that waits; no
/// transfer has so many where that is off.
#[inline]
pub fn least_direct() -> usize {
    DIRECT.load(Relaxed)
}

/// Returns how many bytes make a large transfer, which is counted, and may be worth either: the
/// lesser of [`least_move`] and [`least_direct`], unless all are copied.
#[inline]
pub fn least_large() -> usize {
    LARGE.load(Relaxed)
}

static LARGE: AtomicUsize = AtomicUsize::new(LEAST_DIRECT);

/// How the address space of the current program is found.
type Current = fn(&mut dyn FnMut(&Arc<Map>));

static CURRENT: OnceBox<Current> = OnceBox::new();

/// Registers how the address space of the current program is found. The first one stays.
pub fn set_current_map(current: Current) {
    CURRENT.get_or_insert(|| Box::new(current));
}

/// Runs `f` with the address space of the current program, if there is one.
pub fn with_current<R>(f: impl FnOnce(&Arc<Map>) -> R) -> Option<R> {
    let (mut f, mut result) = (Some(f), None);
    CURRENT.get()?(&mut |map| result = f.take().map(|f| f(map)));
    result
}

/// How it is found whether the current thread is to end.
static DYING: OnceBox<fn() -> bool> = OnceBox::new();

/// Registers how it is found whether the current thread is to end. The first one stays.
pub fn set_dying(dying: fn() -> bool) {
    DYING.get_or_insert(|| Box::new(dying));
}

/// Returns whether the current thread is to end, so that a long call stops.
pub fn is_dying() -> bool {
    DYING.get().is_some_and(|dying| dying())
}

/// Judges whether the current program is to lend pages of its next `bytes` bytes, which begin with
/// `pages` whole pages: `most` at most now.
///
/// # Errors
/// Why it is to copy them.
pub fn lends_pages(bytes: usize, pages: usize, most: usize) -> Result<(), CopyReason> {
    judge(bytes, pages, most, |map| &map.lent)
}

/// As [`lends_pages`], whether it is to get pages in the place of those that it has.
///
/// # Errors
/// As there.
pub fn takes_pages(bytes: usize, pages: usize, most: usize) -> Result<(), CopyReason> {
    judge(bytes, pages, most, |map| &map.received)
}

fn judge(
    bytes: usize,
    pages: usize,
    most: usize,
    history: impl Fn(&Map) -> &History,
) -> Result<(), CopyReason> {
    if pages * PAGE_SIZE < least_move() {
        return Err(reason_to_copy(bytes));
    }
    with_current(|map| may_move(pages.min(most), history(map))).unwrap_or(Err(CopyReason::NotLent))
}

/// Returns why so many bytes are copied that do not begin with enough whole pages.
pub fn reason_to_copy(bytes: usize) -> CopyReason {
    match (least_move(), bytes) {
        (usize::MAX, _) => CopyReason::SwitchedOff,
        (least, bytes) if bytes < least => CopyReason::Small,
        _ => CopyReason::Unaligned,
    }
}

/// Judges whether `pages` pages are to change hands, given what became of others before.
///
/// # Errors
/// Why they are to be copied.
pub fn may_move(pages: usize, history: &History) -> Result<(), CopyReason> {
    let may_move = match movement() {
        Movement::Copy | Movement::Once => return Err(CopyReason::SwitchedOff),
        Movement::Loan => true,
        Movement::Auto => history.allows(u32::try_from(pages).unwrap_or(u32::MAX)),
    };
    may_move.then_some(()).ok_or(CopyReason::SoonWritten)
}
