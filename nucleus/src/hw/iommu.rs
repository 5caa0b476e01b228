//! The interface of the remapping units (Intel VT-d) of both machines: names of devices and
//! domains, features, invalidations, faults.
//!
//! A unit translates the addresses that a device uses, by the page tables of the device's domain,
//! and keeps translations in its IOTLB until they are invalidated. Both machines offer:
//!
//! | function | what it does |
//! |---|---|
//! | `iommu_features() -> Option<Features>` | the features that all units of the machine have; none without a unit, or before they are started |
//! | `iommu_attach(Device, DomainId, root) -> Result<(), AttachError>` | from now on the device's addresses are translated by the tables below `root` |
//! | `iommu_detach(Device)` | when it returns, the device reaches nothing, and no unit holds a translation of the domain that it had: the caller invalidates none |
//! | `iommu_invalidate(&[Stale])` | returns when no unit uses, or is about to use, such a translation |
//! | `iommu_sync(at, bytes)` | entries of page tables were written there: units see them from now on |
//! | `iommu_reserved(Device, each)` | calls `each` with the ranges of physical addresses that a device uses on the firmware's behalf, none of them the kernel's |
//! | `iommu_units() -> impl Iterator<Item = UnitState>` | the state of each unit; none are shown on the simulated machine |
//! | `iommu_lost_faults() -> u64` | how many faults were not recorded, at least |
//! | `iommu_has_no_queue() -> bool` | whether invalidations use registers only |
//!
//! Faults are taken on x86-64 only; the simulated machine has `iommu_take_fault` for its tests:
//!
//! | function | what it does |
//! |---|---|
//! | `iommu_take_fault() -> Option<Fault>` | the oldest access that was refused and not yet taken |
//! | `iommu_take_later()` | raises another interrupt for the faults that are left |
//! | `iommu_mask_faults()` | units no longer interrupt for faults; devices that are lost are reported still |
//! | `iommu_block(Device) -> bool` | takes bus mastering from a function for good; false if that was done before |
//!
//! All may be called with interrupts off and under a spin lock; a unit that does not answer in time
//! is given up, and its devices then reach nothing.

use core::fmt;
use core::ops::Range;

use super::options;
use crate::{OutOfMemory, PhysAddr};

/// Which memory devices reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// All: units are not used.
    #[default]
    Off,
    /// Free and writable frames (`iosup.txt` 3).
    Open,
    /// The frames of the requests that the device has, and the rings by which it gets them.
    Strict,
}

impl Policy {
    /// Reads the word of the kernel's command line: the last one counts.
    #[cfg_attr(not(target_os = "none"), allow(dead_code))]
    pub(crate) fn read(command_line: &str) -> Policy {
        let policy = options::last_value(command_line, "iommu", |value| match value {
            "off" => Some(Policy::Off),
            "open" => Some(Policy::Open),
            "strict" => Some(Policy::Strict),
            _ => None,
        });
        policy.unwrap_or(Policy::Strict)
    }
}

/// A device as a unit sees it: bus in bits 15..8, device in 7..3, function in 2..0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Device(pub u16);

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Device(place) = self;
        let (bus, device, function) = (place >> 8, place >> 3 & 31, place & 7);
        write!(f, "{bus:02x}:{device:02x}.{function}")
    }
}

/// The number by which units tell the translations of one set of page tables from those of others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct DomainId(pub u16);

/// The reason why a device was not attached to a domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AttachError {
    /// There is no memory, or no domain ID.
    OutOfMemory,
    /// No unit stands before the device: its addresses are physical ones, and it reaches all
    /// memory.
    NoUnit,
    /// The device's bus was not there when the units started: the device reaches nothing.
    NoContextTable,
    /// Units see other functions by the device's number: it would reach what they are given.
    SharedNumber,
}

impl From<OutOfMemory> for AttachError {
    fn from(_: OutOfMemory) -> AttachError {
        AttachError::OutOfMemory
    }
}

/// The features that all units of a machine have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Features {
    /// Levels of page tables, 3 to 5: a device's addresses have `12 + 9 * levels` bits.
    pub levels: usize,
    /// An entry of level 2 may map 2 MiB.
    pub large: bool,
    /// Domain IDs, those that a unit keeps for itself not counted: 1..=`domains`.
    pub domains: u16,
    /// Caching mode: units may cache that there is no translation, so that an entry that becomes
    /// present is [invalidated](Stale) like one that goes.
    pub has_caching_mode: bool,
    /// The largest `order` of [`Stale::Pages`]; without it ([`None`]) units invalidate whole
    /// domains.
    pub page_order: Option<u32>,
}

/// Translations that units must no longer use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stale {
    /// All of them.
    All,
    /// Those of a domain.
    Domain(DomainId),
    /// Those of `1 << order` pages of a domain from page number `first`, a multiple of that, on.
    Pages {
        domain: DomainId,
        first: u64,
        order: u32,
    },
}

impl Stale {
    /// The smallest block around pages of a domain that units can invalidate: one of up to `most`,
    /// as [`Features::page_order`] says, or the domain.
    pub(crate) fn around(domain: DomainId, pages: Range<u64>, most: Option<u32>) -> Stale {
        let order = u64::BITS - (pages.start ^ (pages.end - 1)).leading_zeros();
        match most {
            Some(most) if order <= most => Stale::Pages {
                domain,
                first: pages.start >> order << order,
                order,
            },
            _ => Stale::Domain(domain),
        }
    }
}

/// The state of a unit.
#[derive(Clone, Copy, Debug)]
pub struct UnitState {
    /// It timed out, and its devices reach nothing.
    pub is_lost: bool,
    /// Its invalidations use the queue, else registers.
    pub has_queue: bool,
    /// Messages of devices are checked.
    pub remaps_interrupts: bool,
}

/// An access that a unit refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    pub device: Device,
    /// The address that the device used; its page only, on x86-64.
    pub address: u64,
    /// A write; else a read.
    pub is_write: bool,
    /// The unit's number of the reason.
    pub reason: u8,
}

/// An entry of a second-level page table; one of level 1 maps a page of 4 KiB.
///
/// The formats of both machines are the same, as those of processors' page tables are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub(crate) struct Entry(pub u64);

impl Entry {
    const READ: u64 = 1 << 0;
    const WRITE: u64 = 1 << 1;
    const LARGE: u64 = 1 << 7;
    const ADDRESS: u64 = ((1 << 52) - 1) & !0xfff;
    /// Bits 52 to 61 are ignored by units. Here, the number of the page in its block.
    const PLACE: u64 = 7 << Self::PLACE_SHIFT;
    const PLACE_SHIFT: u32 = 52;
    /// Another entry counts for the request's pages of this block.
    const FURTHER: u64 = 1 << 55;

    /// Leads nowhere.
    pub(crate) const ABSENT: Entry = Entry(0);

    /// Leads to a table of the level below.
    pub(crate) const fn table(at: PhysAddr) -> Entry {
        Entry(at.0 & Self::ADDRESS | Self::READ | Self::WRITE)
    }

    /// Maps a page: the device may read it, or write it, or both.
    pub(crate) const fn page(at: PhysAddr, reads: bool, writes: bool) -> Entry {
        let reads = if reads { Self::READ } else { 0 };
        let writes = if writes { Self::WRITE } else { 0 };
        Entry(at.0 & Self::ADDRESS | reads | writes)
    }

    /// The same, of page `place` of a block, up to 7. Of the pages that a request maps, one is not
    /// a `further` one.
    pub(crate) const fn in_block(self, place: u32, further: bool) -> Entry {
        let further = if further { Self::FURTHER } else { 0 };
        Entry(self.0 | (place as u64) << Self::PLACE_SHIFT & Self::PLACE | further)
    }

    /// The number of the page in its block.
    pub(crate) const fn place(self) -> u32 {
        ((self.0 & Self::PLACE) >> Self::PLACE_SHIFT) as u32
    }

    /// Whether another entry counts for the request's pages of this block.
    pub(crate) const fn is_further(self) -> bool {
        self.0 & Self::FURTHER != 0
    }

    /// Maps 2 MiB, in an entry of level 2.
    pub(crate) const fn large(at: PhysAddr) -> Entry {
        Entry(at.0 & Self::ADDRESS | Self::READ | Self::WRITE | Self::LARGE)
    }

    /// The rest of an entry that ends: it maps nothing, and names its frame still.
    pub(crate) const fn ended(self) -> Entry {
        Entry(self.0 & (Self::ADDRESS | Self::PLACE | Self::FURTHER))
    }

    /// Where the page or the table is.
    pub(crate) const fn address(self) -> PhysAddr {
        PhysAddr(self.0 & Self::ADDRESS)
    }

    pub(crate) const fn reads(self) -> bool {
        self.0 & Self::READ != 0
    }

    pub(crate) const fn writes(self) -> bool {
        self.0 & Self::WRITE != 0
    }

    pub(crate) const fn is_present(self) -> bool {
        self.reads() || self.writes()
    }

    pub(crate) const fn is_large(self) -> bool {
        self.0 & Self::LARGE != 0
    }
}

impl Fault {
    /// A reason of the machine's own: the device's unit does not answer, so that it was kept from
    /// all memory.
    pub(crate) const UNIT_LOST: u8 = 0xff;

    /// The reason (VT-d 7.3), in words.
    pub(crate) fn words(&self) -> &'static str {
        match self.reason {
            1 | 2 => "the device has no domain",
            3 | 10 | 11 => "its context entry is wrong",
            4 => "the address is too large",
            5 => "not mapped for writes",
            6 => "not mapped for reads",
            7 => "a page table can't be read",
            8 | 9 => "the tables of devices can't be read",
            12 => "a page-table entry is wrong",
            13 => "a request of a kind that is not allowed",
            0x20 | 0x23 | 0x24 => "the message is wrong",
            0x21 => "there is no such message",
            0x22 => "the message is not the kernel's",
            0x25 => "a message that is not remapped",
            Self::UNIT_LOST => "its unit does not answer",
            0x26 => "the message is another device's",
            _ => "for an unknown reason",
        }
    }

    /// Whether it was a message to interrupt with; its index is the address.
    pub(crate) fn is_interrupt(&self) -> bool {
        (0x20..0x30).contains(&self.reason)
    }
}
