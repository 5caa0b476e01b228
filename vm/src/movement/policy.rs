//! Which way bytes go between a program and a queue: by a copy, or by pages that change hands
//! (`uvm.txt` 7).
//!
//! A loan costs a change of mappings, and a copy after all if the page is written soon. So large
//! transfers alone are worth it, and those of programs that leave lent pages alone, as their
//! history shows (`map/history.rs`).

use core::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use nucleus::PAGE_SIZE;

use super::current::with_current;
use super::moved::CopyReason;
use crate::map::{History, Map};

/// Pages that are passed in one step: all that a pipe of the usual size holds. A step locks and
/// flushes once, and has its pages in an array on the stack. By instructions, steps of 32 cost
/// `pipe/bandwidth-64KiB-untouched` 5% and gain `file/read-1MiB` 10%; steps of 8 cost the former
/// more than twice as many, and the latter 18%.
pub const PASSED_TOGETHER: usize = 16;

/// The ways that pages may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Movement {
    /// Bytes are copied into a queue, and out of it.
    Copy,
    /// Bytes are copied once where a reader waits for them, or a writer for room.
    Once,
    /// Whole pages are lent and transferred.
    Loan,
    /// As [`Loan`](Movement::Loan), but bytes that programs write soon go as by
    /// [`Once`](Movement::Once).
    Auto,
}

/// The switches `movement` and `movement.least`.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Settings {
    movement: Movement,
    /// Pages that are worth a change of mappings.
    least_pages: u32,
}

/// From how many bytes on a transfer goes which way, by the settings; [`NEVER`], where none does.
#[derive(Clone, Copy)]
struct Thresholds {
    moved: usize,
    direct: usize,
    large: usize,
}

const NEVER: usize = usize::MAX;
const DEFAULT: Settings = Settings {
    movement: Movement::Auto,
    // By instructions, 4 gains `pipe/bandwidth-16KiB-untouched` and `file/read-16KiB` a third, but
    // costs `pipe/bandwidth-16KiB` 7% and `file/write-new-16KiB` 4%, whose pages are soon written
    // and copied all the same. 16 costs `pipe/bandwidth-64KiB-untouched` 27%.
    least_pages: 8,
};
/// The least that is worth a copy straight from a writer's memory to a reader's, past a queue. By
/// instructions, one page costs `pipe/bandwidth-4KiB` 9% and `unix-socket/stream-bandwidth-4KiB`
/// 4%; four pages are as good as two in every row.
const LEAST_DIRECT: usize = 2 * PAGE_SIZE;

impl Settings {
    const fn thresholds(self) -> Thresholds {
        let bytes = self.least_pages as usize * PAGE_SIZE;
        let least = if bytes < LEAST_DIRECT {
            bytes
        } else {
            LEAST_DIRECT
        };
        let (moved, direct, large) = match self.movement {
            // None goes another way, but large ones are counted.
            Movement::Copy => (NEVER, NEVER, bytes),
            Movement::Once => (NEVER, LEAST_DIRECT, LEAST_DIRECT),
            Movement::Loan => (bytes, NEVER, bytes),
            Movement::Auto => (bytes, LEAST_DIRECT, least),
        };
        Thresholds {
            moved,
            direct,
            large,
        }
    }

    const fn to_word(self) -> u64 {
        (self.least_pages as u64) << 2 | self.movement as u64
    }

    fn of_word(word: u64) -> Settings {
        Settings {
            movement: match word & 3 {
                0 => Movement::Copy,
                1 => Movement::Once,
                2 => Movement::Loan,
                _ => Movement::Auto,
            },
            least_pages: (word >> 2) as u32,
        }
    }
}

/// The settings, in one word.
static SETTINGS: AtomicU64 = AtomicU64::new(DEFAULT.to_word());

/// The thresholds that follow from them: a call compares its bytes with one number.
struct AtomicThresholds {
    moved: AtomicUsize,
    direct: AtomicUsize,
    large: AtomicUsize,
}

static THRESHOLDS: AtomicThresholds = {
    let Thresholds {
        moved,
        direct,
        large,
    } = DEFAULT.thresholds();
    AtomicThresholds {
        moved: AtomicUsize::new(moved),
        direct: AtomicUsize::new(direct),
        large: AtomicUsize::new(large),
    }
};

fn settings() -> Settings {
    Settings::of_word(SETTINGS.load(SeqCst))
}

/// Changes the settings, then what follows from them; again if another CPU has changed them
/// meanwhile, whose thresholds may have been overwritten.
fn change(f: impl Fn(&mut Settings)) {
    let changed = |word| {
        let mut settings = Settings::of_word(word);
        f(&mut settings);
        Some(settings.to_word())
    };
    let _ = SETTINGS.fetch_update(SeqCst, SeqCst, changed);
    loop {
        let now = settings();
        let to = now.thresholds();
        THRESHOLDS.moved.store(to.moved, SeqCst);
        THRESHOLDS.direct.store(to.direct, SeqCst);
        THRESHOLDS.large.store(to.large, SeqCst);
        if settings() == now {
            return;
        }
    }
}

/// Returns which ways pages may go.
pub fn movement() -> Movement {
    Settings::of_word(SETTINGS.load(Relaxed)).movement
}

/// Chooses which ways pages may go.
pub fn set_movement(movement: Movement) {
    change(|settings| settings.movement = movement);
}

/// Returns how many pages are worth a change of mappings.
pub fn least_pages() -> u32 {
    settings().least_pages
}

/// Sets how many pages, one at least, are worth a change of mappings.
pub fn set_least_pages(pages: u32) {
    change(|settings| settings.least_pages = pages);
}

/// Returns how many bytes are worth a change of mappings; no transfer has so many where all are
/// copied.
#[inline]
pub fn least_move() -> usize {
    THRESHOLDS.moved.load(Relaxed)
}

/// As [`least_move`] for stable bytes, which their program has promised not to change: half as
/// many, which gain a third by instructions where pages are not written soon, as above.
#[inline]
pub fn least_stable() -> usize {
    match least_move() {
        NEVER => NEVER,
        least => (least / 2).max(PAGE_SIZE),
    }
}

/// Returns how many bytes are worth a copy straight from a writer's memory to a reader's, past a
/// queue; no transfer has so many where that is off.
#[inline]
pub fn least_direct() -> usize {
    THRESHOLDS.direct.load(Relaxed)
}

/// Returns how many bytes make a large transfer, which is counted, and may be worth either: the
/// lesser of [`least_move`] and [`least_direct`], unless all are copied.
#[inline]
pub fn least_large() -> usize {
    THRESHOLDS.large.load(Relaxed)
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

/// A copy to the current program of bytes that were not lent to it. It may overwrite a received
/// page, which is copied first: that is no reason to end transfers to the program.
pub struct Overwriting {
    /// The pages that were written before.
    breaks: u32,
}

impl Overwriting {
    /// Begins it.
    #[inline(never)]
    pub fn begin() -> Overwriting {
        Overwriting {
            breaks: with_current(|map| map.received.breaks()).unwrap_or(0),
        }
    }

    /// It is what `f` does.
    pub fn by<R>(f: impl FnOnce() -> R) -> R {
        let overwriting = Overwriting::begin();
        let result = f();
        overwriting.end();
        result
    }

    /// Ends it.
    #[inline(never)]
    pub fn end(self) {
        with_current(|map| map.received.forget(self.breaks));
    }
}

/// Returns why so many bytes are copied that do not begin with enough whole pages.
pub fn reason_to_copy(bytes: usize) -> CopyReason {
    match (least_move(), bytes) {
        (NEVER, _) => CopyReason::SwitchedOff,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_follow_from_both_settings() {
        let at = |movement, least_pages| {
            let settings = Settings {
                movement,
                least_pages,
            };
            assert!(Settings::of_word(settings.to_word()) == settings);
            let Thresholds {
                moved,
                direct,
                large,
            } = settings.thresholds();
            (moved, direct, large)
        };
        const PAGES: usize = 8 * PAGE_SIZE;
        assert_eq!(at(Movement::Copy, 8), (NEVER, NEVER, PAGES));
        assert_eq!(at(Movement::Once, 8), (NEVER, LEAST_DIRECT, LEAST_DIRECT));
        assert_eq!(at(Movement::Loan, 8), (PAGES, NEVER, PAGES));
        assert_eq!(at(Movement::Auto, 8), (PAGES, LEAST_DIRECT, LEAST_DIRECT));
        assert_eq!(at(Movement::Auto, 1), (PAGE_SIZE, LEAST_DIRECT, PAGE_SIZE));
    }
}
