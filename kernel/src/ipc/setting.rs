//! A limit that root may change in `/proc/sys`.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// One setting, from `lowest` to `highest`.
pub struct Setting {
    value: AtomicU64,
    lowest: u64,
    highest: u64,
}

impl Setting {
    /// One that is `value` at first, from nothing to `highest`.
    pub const fn new(value: u64, highest: u64) -> Setting {
        Setting::between(value, 0, highest)
    }

    /// One that is `value` at first.
    pub const fn between(value: u64, lowest: u64, highest: u64) -> Setting {
        Setting {
            value: AtomicU64::new(value),
            lowest,
            highest,
        }
    }

    /// Returns the value.
    pub fn get(&self) -> u64 {
        self.value.load(Relaxed)
    }

    /// Sets the value; returns false, and changes nothing, if it is not allowed.
    pub fn set(&self, value: u64) -> bool {
        let allowed = (self.lowest..=self.highest).contains(&value);
        if allowed {
            self.value.store(value, Relaxed);
        }
        allowed
    }
}
