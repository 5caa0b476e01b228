//! Memory of devices, which is not RAM: it has no frame records, and nothing frees it.

use core::sync::atomic::{AtomicBool, Ordering};

use super::frame::record::{Type, find};
use crate::{PAGE_SHIFT, PAGE_SIZE};

/// How processors access a device's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Caching {
    /// As RAM: for a device whose memory is RAM of the host.
    WriteBack,
    /// Stores are collected and leave in any order; loads are not cached. For frame buffers.
    WriteCombining,
    /// Each access reaches the device, in order. For registers.
    Uncached,
}

/// Whole pages of a device's memory. Only the nucleus's own modules for devices make one, of what a
/// device decodes, so that a mapping of it reaches no RAM, no page table and nothing of the
/// kernel's. The memory is there as long as the machine runs.
pub struct DeviceMemory {
    /// The number of the first page in physical memory.
    first: u64,
    pages: u64,
    caching: Caching,
    assignment: Option<Assignment>,
}

/// The function that a [`DeviceMemory`] is of; released when it is dropped.
struct Assignment {
    /// The function's place on the bus.
    function: u16,
    /// A page was asked for, so that a program may have changed the device's state, and may have
    /// the page mapped still.
    is_used: AtomicBool,
    release: fn(u16, bool),
}

impl Drop for Assignment {
    fn drop(&mut self) {
        (self.release)(self.function, *self.is_used.get_mut());
    }
}

/// One page of a [`DeviceMemory`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DevicePage {
    number: u64,
    caching: Caching,
}

/// Physical addresses have so many bits at most; above are bits of page-table entries.
const ADDRESS_BITS: u32 = 52;
/// Below are the firmware's own areas, and what the start of other CPUs uses.
const LOWEST: u64 = 0x10_0000;
/// The interrupt controllers and the firmware's ROM.
const PLATFORM: core::ops::Range<u64> = 0xfec0_0000..0x1_0000_0000;

impl DeviceMemory {
    /// The `bytes` bytes at a physical address, which a device decodes; `None` unless these are
    /// whole pages, all of them outside RAM and of the platform's own registers.
    #[cfg_attr(not(any(target_os = "none", test)), allow(dead_code))]
    pub(crate) fn new(address: u64, bytes: u64, caching: Caching) -> Option<DeviceMemory> {
        let page = PAGE_SIZE as u64;
        let end = address.checked_add(bytes)?;
        let is_whole = address.is_multiple_of(page) && bytes.is_multiple_of(page) && bytes > 0;
        let is_outside = address >= LOWEST && end <= 1 << ADDRESS_BITS;
        if !is_whole || !is_outside || address < PLATFORM.end && end > PLATFORM.start {
            return None;
        }
        DeviceMemory::outside_ram(address >> PAGE_SHIFT, bytes >> PAGE_SHIFT, caching)
    }

    /// These pages, unless one of them has a frame.
    pub(crate) fn outside_ram(first: u64, pages: u64, caching: Caching) -> Option<DeviceMemory> {
        let is_ram = |number| find(number).is_some_and(|record| record.kind() != Type::Absent);
        // The frames with records are few enough to be looked at one by one, once for each device.
        let managed = super::frame::record::managed();
        let from = first.max(managed.start.into());
        let to = (first + pages).min(managed.end.into());
        let any_ram = from < to && (from..to).any(is_ram);
        (!any_ram).then_some(DeviceMemory {
            first,
            pages,
            caching,
            assignment: None,
        })
    }

    /// The same memory, of a function that is assigned: when it is dropped, `release` is called
    /// with the function and whether a page was ever asked for.
    #[cfg_attr(not(any(target_os = "none", test)), allow(dead_code))]
    pub(crate) fn assigned(self, function: u16, release: fn(u16, bool)) -> DeviceMemory {
        let assignment = Assignment {
            function,
            is_used: AtomicBool::new(false),
            release,
        };
        DeviceMemory {
            assignment: Some(assignment),
            ..self
        }
    }

    /// How many pages there are.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// The same memory, accessed in another way.
    #[must_use]
    pub fn with_caching(self, caching: Caching) -> DeviceMemory {
        DeviceMemory { caching, ..self }
    }

    /// Page `index`, if there are so many.
    pub fn page(&self, index: u64) -> Option<DevicePage> {
        if index >= self.pages {
            return None;
        }
        if let Some(assignment) = &self.assignment
            && !assignment.is_used.load(Ordering::Relaxed)
        {
            assignment.is_used.store(true, Ordering::Relaxed);
        }
        Some(DevicePage {
            number: self.first + index,
            caching: self.caching,
        })
    }
}

impl DevicePage {
    /// The page's number in physical memory.
    pub(crate) fn number(self) -> u64 {
        self.number
    }

    pub(crate) fn caching(self) -> Caching {
        self.caching
    }
}
