//! What others are told of the swap space.

/// Why a swap device can't be added or removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SwapError {
    /// It has no slots.
    Empty,
    /// There are as many devices as there can be.
    TooMany,
    /// There is none of this number.
    NotFound,
    /// No memory for what is noted of its slots, or for the pages that are in them.
    NoMemory,
    /// A page in it can't be read.
    Io,
    /// The caller did not want to wait any longer.
    Interrupted,
}

/// Names a swap device until it is removed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct DeviceId(pub(super) usize);

/// What is known of a swap device; all counts are pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceUsage {
    pub id: DeviceId,
    /// The higher one is used first.
    pub priority: i32,
    /// Slots, bad ones left out.
    pub slots: usize,
    /// Those that pages have.
    pub used: usize,
}

/// Swap space on all devices, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SwapUsage {
    /// Slots of devices that take pages.
    pub total: usize,
    /// Slots that pages have, in memory or not.
    pub used: usize,
    /// Those of pages that are in memory, too.
    pub cached: usize,
}

impl SwapUsage {
    /// Slots for more pages. A device that is being given up has none, and what is still on it may be more.
    pub fn free(&self) -> usize {
        self.total.saturating_sub(self.used)
    }
}
