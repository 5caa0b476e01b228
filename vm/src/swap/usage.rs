//! Sizes, errors and identifiers of the swap space for callers.

/// Why a swap device cannot be added or removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SwapError {
    /// The device has no slots.
    Empty,
    /// No more devices can be added.
    TooMany,
    /// There is no such device.
    NotFound,
    /// No memory for the device's bitmap, or for the pages on the device.
    NoMemory,
    /// A page on the device cannot be read.
    Io,
    /// The caller asked to stop.
    Interrupted,
}

/// Identifies a swap device until it is removed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct DeviceId(pub(super) usize);

/// The state of a swap device; all counts are in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct DeviceUsage {
    pub id: DeviceId,
    /// Devices of higher priority are used first.
    pub priority: i32,
    /// Slots without the bad ones.
    pub slots: usize,
    /// Slots that pages own.
    pub used: usize,
}

/// Swap space on all devices, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SwapUsage {
    /// Slots of devices that accept pages.
    pub total: usize,
    /// Slots that pages own, be they in memory or not.
    pub used: usize,
    /// Owned slots whose page is in memory as well.
    pub cached: usize,
}

impl SwapUsage {
    /// Slots for more pages. A device that is being removed has none, and may still hold more pages
    /// than are free elsewhere.
    pub fn free(&self) -> usize {
        self.total.saturating_sub(self.used)
    }
}
