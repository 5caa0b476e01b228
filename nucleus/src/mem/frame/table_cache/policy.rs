//! When tables are given back.
//!
//! *fixed*, the paper's: a level exceeds both thresholds, [`ratio`](Thresholds::ratio) and
//! [`total`](Thresholds::total); then the excess of tables in the pool over tables in use goes.
//!
//! *adaptive*: every [`PERIOD`] the pagedaemon takes away half of what a pool did not need, which
//! is the least that was in it all the time (as Bonwick's magazines do: the working set decides,
//! not a number that fits one load). So a load that comes back within the period finds its tables,
//! a burst's tables go by halves, and an idle machine returns to [`KEPT`] tables per level. A fixed
//! ratio can do neither: it cuts the pool right when a burst ends, and never later.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use core::time::Duration;

use super::frames_in;
use super::pools::{TABLES, usage_of};
use crate::hw::handlers;

/// Tables of a level that the adaptive policy leaves.
const KEPT: usize = 8;
/// How often the adaptive policy looks.
pub const PERIOD: Duration = Duration::from_secs(10);

/// Whether the thresholds hold, rather than the adaptive policy.
static IS_FIXED: AtomicBool = AtomicBool::new(false);
static RATIO: AtomicU32 = AtomicU32::new(Thresholds::DEFAULT.ratio);
static TOTAL: AtomicU32 = AtomicU32::new(Thresholds::DEFAULT.total);
/// Frames of the tables in a pool, at most.
static MOST_FRAMES: AtomicUsize = AtomicUsize::new(0);

/// Sets how many frames the tables in a pool may have, whatever the policy.
pub(super) fn set_most_frames(frames: usize) {
    MOST_FRAMES.store(frames, Ordering::Relaxed);
}

/// Tables in the pool of a level at most.
fn most(level: usize) -> usize {
    MOST_FRAMES.load(Ordering::Relaxed) / frames_in(level)
}

/// When a pool gives tables back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// Half of the tables that a pool did not need for a [`PERIOD`] are given back.
    Adaptive,
    /// The paper's thresholds.
    Fixed(Thresholds),
}

/// The thresholds of `iosup.txt` 5.2, for each level: tables are given back when both are exceeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Thresholds {
    /// Tables in the pool for 100 in use.
    pub ratio: u32,
    /// Tables in use and in the pool together.
    pub total: u32,
}

impl Thresholds {
    /// A pool of four times what is in use is much, and 256 tables are what the paper's load needs.
    pub const DEFAULT: Thresholds = Thresholds {
        ratio: 400,
        total: 256,
    };

    /// Those that hold with [`Policy::Fixed`], or would.
    pub fn now() -> Thresholds {
        Thresholds {
            ratio: RATIO.load(Ordering::Relaxed),
            total: TOTAL.load(Ordering::Relaxed),
        }
    }
}

/// Returns the policy.
pub fn policy() -> Policy {
    match IS_FIXED.load(Ordering::Relaxed) {
        true => Policy::Fixed(Thresholds::now()),
        false => Policy::Adaptive,
    }
}

/// Changes the policy; [`Policy::Adaptive`] has the default thresholds set.
pub fn set_policy(policy: Policy) {
    let (fixed, thresholds) = match policy {
        Policy::Fixed(thresholds) => (true, thresholds),
        Policy::Adaptive => (false, Thresholds::DEFAULT),
    };
    RATIO.store(thresholds.ratio, Ordering::Relaxed);
    TOTAL.store(thresholds.total, Ordering::Relaxed);
    IS_FIXED.store(fixed, Ordering::Relaxed);
}

/// Whether a pool that had `before` tables and has `now` may have too many.
pub(super) fn may_be_over(level: usize, before: usize, now: usize) -> bool {
    let is_fixed = IS_FIXED.load(Ordering::Relaxed);
    if !is_fixed && before <= KEPT && now > KEPT {
        handlers::on_kept_tables();
    }
    let total = TOTAL.load(Ordering::Relaxed) as usize;
    let made = TABLES[level - 1].made.load(Ordering::Relaxed);
    now > most(level) || is_fixed && made > total
}

/// How many tables a pool has too many.
#[cold]
pub(super) fn excess(level: usize) -> usize {
    let usage = usage_of(level);
    let too_many = usage.in_pool.saturating_sub(most(level));
    let thresholds = Thresholds::now();
    let is_over = IS_FIXED.load(Ordering::Relaxed)
        && usage.in_use + usage.in_pool > thresholds.total as usize
        && usage.in_pool as u64 * 100 > usage.in_use as u64 * u64::from(thresholds.ratio);
    let excess = match is_over {
        true => usage.in_pool.saturating_sub(usage.in_use),
        false => 0,
    };
    excess.max(too_many)
}

/// How many tables of a pool the adaptive policy did not need since the last call; none where it
/// does not hold, or has nothing to give back.
pub(super) fn unneeded(level: usize) -> Option<usize> {
    let at = &TABLES[level - 1];
    if IS_FIXED.load(Ordering::Relaxed) || at.len.load(Ordering::Relaxed) <= KEPT {
        return None;
    }
    let mut pool = at.pool.lock_irq();
    let (least, len) = (pool.least, pool.len);
    pool.least = len;
    Some(least.saturating_sub(KEPT))
}

/// Whether some pool has more than the adaptive policy leaves for good.
pub fn has_unneeded_tables() -> bool {
    !IS_FIXED.load(Ordering::Relaxed)
        && TABLES
            .iter()
            .any(|level| level.len.load(Ordering::Relaxed) > KEPT)
}
