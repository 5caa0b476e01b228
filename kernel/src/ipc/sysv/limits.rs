//! The settings of `/proc/sys/kernel`.

use super::ids::MOST;
use crate::ipc::setting::Setting;

/// No limit, but room for sums (`SHMMAX`).
const UNLIMITED: u64 = u64::MAX - (1 << 24);
const INT_MAX: u64 = i32::MAX as u64;

/// Bytes of a segment at most.
pub static SHMMAX: Setting = Setting::new(UNLIMITED, u64::MAX);
/// Pages of all segments together.
pub static SHMALL: Setting = Setting::new(UNLIMITED, u64::MAX);
/// Segments.
pub static SHMMNI: Setting = Setting::new(4096, MOST as u64);
/// Semaphores of a set.
pub static SEMMSL: Setting = Setting::new(32_000, INT_MAX);
/// Semaphores of all sets together.
pub static SEMMNS: Setting = Setting::new(1_024_000_000, INT_MAX);
/// Operations of a call.
pub static SEMOPM: Setting = Setting::new(500, INT_MAX);
/// Sets.
pub static SEMMNI: Setting = Setting::new(32_000, MOST as u64);
/// Bytes of a message.
pub static MSGMAX: Setting = Setting::new(8192, INT_MAX);
/// Bytes of a new queue.
pub static MSGMNB: Setting = Setting::new(16_384, INT_MAX);
/// Queues.
pub static MSGMNI: Setting = Setting::new(32_000, MOST as u64);

/// The highest value of a semaphore.
pub const SEMVMX: i32 = 32_767;
/// The largest adjustment at exit.
pub const SEMAEM: i32 = SEMVMX;
