//! Slots: their names, and who has them.

use core::num::NonZeroU32;

use super::table;
use super::usage::DeviceId;

/// Bits of a slot's number that say which slot of its device it is.
const SLOT_BITS: u32 = 27;
/// Slots of one device at most: 512 GiB.
pub(super) const MOST_SLOTS: u32 = (1 << SLOT_BITS) - 1;
/// Devices at most.
pub(super) const MOST_DEVICES: usize = 1 << (32 - SLOT_BITS);

/// Names a slot of a device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct SlotNumber(NonZeroU32);

impl SlotNumber {
    /// `slot` is below [`MOST_SLOTS`], and `device` below [`MOST_DEVICES`].
    pub(super) fn new(device: usize, slot: u32) -> SlotNumber {
        debug_assert!(device < MOST_DEVICES && slot < MOST_SLOTS);
        // One more, so that no number is 0.
        let number = (device as u32) << SLOT_BITS | (slot + 1);
        SlotNumber(NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN))
    }

    /// The device.
    pub(super) fn device(self) -> usize {
        (self.0.get() >> SLOT_BITS) as usize
    }

    /// The slot of its device.
    pub(super) fn slot(self) -> u32 {
        (self.0.get() & MOST_SLOTS) - 1
    }

    /// How many slots this one stands behind `other`, negative for before; `None` on another device.
    pub(crate) fn distance(self, other: SlotNumber) -> Option<i64> {
        (self.device() == other.device()).then(|| self.slot() as i64 - other.slot() as i64)
    }

    /// The slot `count` behind this one, which the device has.
    pub(super) fn behind(self, count: u32) -> SlotNumber {
        SlotNumber::new(self.device(), self.slot() + count)
    }

    /// Where who waits for this slot does so: the same for most slots of a cluster.
    pub(super) fn queue(self) -> usize {
        (self.0.get() >> 5) as usize
    }
}

/// A slot that one page has: its only reference. Dropped, the slot is free again, as soon as nothing is read from it or
/// written to it any more.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct SwapSlot(SlotNumber);

impl SwapSlot {
    /// The caller has just become the owner of the slot.
    pub(super) fn from_number(number: SlotNumber) -> SwapSlot {
        SwapSlot(number)
    }

    /// Which one.
    pub(crate) fn number(&self) -> SlotNumber {
        self.0
    }

    /// Whether it is one of that device.
    pub(crate) fn is_on(&self, id: DeviceId) -> bool {
        self.0.device() == id.0
    }
}

impl Drop for SwapSlot {
    fn drop(&mut self) {
        table::free(self.0);
    }
}
