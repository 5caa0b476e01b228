//! Slot numbers, and ownership of slots.

use core::num::NonZeroU32;

use super::table;
use super::usage::DeviceId;

/// Bits of a slot number that give the position on the device.
const SLOT_BITS: u32 = 27;
/// The largest number of slots of one device: 512 GiB.
pub(super) const MOST_SLOTS: u32 = (1 << SLOT_BITS) - 1;
/// The largest number of devices.
pub(super) const MOST_DEVICES: usize = 1 << (32 - SLOT_BITS);

/// The number of a slot: its device and its position there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct SlotNumber(NonZeroU32);

impl SlotNumber {
    /// Returns the number of a slot; `slot` is below [`MOST_SLOTS`], and `device` below
    /// [`MOST_DEVICES`].
    pub(super) fn new(device: usize, slot: u32) -> SlotNumber {
        debug_assert!(device < MOST_DEVICES && slot < MOST_SLOTS);
        // One more than the position, so that no number is 0.
        let number = (device as u32) << SLOT_BITS | (slot + 1);
        SlotNumber(NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN))
    }

    /// The device.
    pub(super) fn device(self) -> usize {
        (self.0.get() >> SLOT_BITS) as usize
    }

    /// The position on the device.
    pub(super) fn slot(self) -> u32 {
        (self.0.get() & MOST_SLOTS) - 1
    }

    /// The distance from `other` in slots, negative if this slot comes before it; `None` on another
    /// device.
    pub(crate) fn distance(self, other: SlotNumber) -> Option<i64> {
        (self.device() == other.device()).then(|| self.slot() as i64 - other.slot() as i64)
    }

    /// The slot `count` positions after this one, which exists.
    pub(super) fn behind(self, count: u32) -> SlotNumber {
        SlotNumber::new(self.device(), self.slot() + count)
    }

    /// The wait queue of the slot: the same for most slots of a cluster.
    pub(super) fn queue(self) -> usize {
        (self.0.get() >> 5) as usize
    }
}

/// The ownership of a slot by a page: the only reference to it. Dropping it frees the slot once the
/// slot is no longer being read or written.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct SwapSlot(SlotNumber);

impl SwapSlot {
    /// Takes ownership of a slot.
    pub(super) fn from_number(number: SlotNumber) -> SwapSlot {
        SwapSlot(number)
    }

    /// The slot's number.
    pub(crate) fn number(&self) -> SlotNumber {
        self.0
    }

    /// Returns whether the slot is on that device.
    pub(crate) fn is_on(&self, id: DeviceId) -> bool {
        self.0.device() == id.0
    }
}

impl Drop for SwapSlot {
    fn drop(&mut self) {
        table::free(self.0);
    }
}
