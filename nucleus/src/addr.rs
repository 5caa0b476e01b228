//! Addresses and page arithmetic.

use core::ops::{Add, Sub};

/// log2 of the page size.
pub const PAGE_SHIFT: usize = 12;
/// Bytes in a page.
pub const PAGE_SIZE: usize = 1 << PAGE_SHIFT;

/// First address past the part of an address space that programs may use. The last page below the
/// canonical hole stays unused, as on Linux.
pub const USER_END: VirtAddr = VirtAddr(0x7fff_ffff_f000);
/// Lowest address at which anything may be mapped for a program.
pub const USER_START: VirtAddr = VirtAddr(0x1000);

/// A physical address in bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PhysAddr(pub u64);

/// A virtual address in bytes; any value, canonical or not.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct VirtAddr(pub usize);

/// A range of virtual addresses, `start <= end`, `end` excluded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[allow(missing_docs)]
pub struct VirtRange {
    pub start: VirtAddr,
    pub end: VirtAddr,
}

impl PhysAddr {
    /// The number of the frame that holds this address.
    pub const fn frame_number(self) -> u64 {
        self.0 >> PAGE_SHIFT
    }
}

impl VirtAddr {
    /// Rounded down to a page boundary.
    pub const fn page_floor(self) -> VirtAddr {
        VirtAddr(self.0 & !(PAGE_SIZE - 1))
    }

    /// Rounded up to a page boundary, or `None` past the end of the address space.
    pub const fn page_ceil(self) -> Option<VirtAddr> {
        match self.0.checked_add(PAGE_SIZE - 1) {
            Some(a) => Some(VirtAddr(a & !(PAGE_SIZE - 1))),
            None => None,
        }
    }

    /// Byte offset within the page.
    pub const fn page_offset(self) -> usize {
        self.0 & (PAGE_SIZE - 1)
    }

    /// Whether this is a multiple of the page size.
    pub const fn is_page_aligned(self) -> bool {
        self.page_offset() == 0
    }

    /// `self + bytes` unless it overflows.
    pub const fn checked_add(self, bytes: usize) -> Option<VirtAddr> {
        match self.0.checked_add(bytes) {
            Some(a) => Some(VirtAddr(a)),
            None => None,
        }
    }
}

impl Add<usize> for VirtAddr {
    type Output = VirtAddr;
    fn add(self, bytes: usize) -> VirtAddr {
        VirtAddr(self.0 + bytes)
    }
}

impl Sub<usize> for VirtAddr {
    type Output = VirtAddr;
    fn sub(self, bytes: usize) -> VirtAddr {
        VirtAddr(self.0 - bytes)
    }
}

impl Sub<VirtAddr> for VirtAddr {
    type Output = usize;
    fn sub(self, other: VirtAddr) -> usize {
        self.0 - other.0
    }
}

impl Add<u64> for PhysAddr {
    type Output = PhysAddr;
    fn add(self, bytes: u64) -> PhysAddr {
        PhysAddr(self.0 + bytes)
    }
}

impl VirtRange {
    /// `start..end`; an end below the start gives an empty range.
    pub const fn new(start: VirtAddr, end: VirtAddr) -> VirtRange {
        let end = if end.0 < start.0 { start } else { end };
        VirtRange { start, end }
    }

    /// Bytes in the range.
    pub const fn len(self) -> usize {
        self.end.0 - self.start.0
    }

    /// Whether the range holds nothing.
    pub const fn is_empty(self) -> bool {
        self.end.0 <= self.start.0
    }

    /// Whether `addr` lies inside.
    pub const fn contains(self, addr: VirtAddr) -> bool {
        self.start.0 <= addr.0 && addr.0 < self.end.0
    }

    /// The part that both ranges share, possibly empty.
    pub fn intersect(self, other: VirtRange) -> VirtRange {
        VirtRange::new(self.start.max(other.start), self.end.min(other.end))
    }

    /// The page-aligned addresses inside, in order; `start` must be page-aligned.
    pub fn pages(self) -> impl Iterator<Item = VirtAddr> {
        (self.start.0..self.end.0).step_by(PAGE_SIZE).map(VirtAddr)
    }
}

macro_rules! hex_debug {
    ($t:ty) => {
        impl core::fmt::Debug for $t {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    };
}
hex_debug!(PhysAddr);
hex_debug!(VirtAddr);

impl core::fmt::Debug for VirtRange {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:#x}..{:#x}", self.start.0, self.end.0)
    }
}

bitflags::bitflags! {
    /// What a program may do with a mapping. Everything readable on x86-64 if anything is.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
    pub struct Prot: u8 {
        /// Loads.
        const READ = 1;
        /// Stores.
        const WRITE = 2;
        /// Instruction fetches.
        const EXEC = 4;
        /// No right: the mapping that is entered is wired, that is, the page is to stay in memory
        /// as long as it is mapped here (`uvm.txt` 3.2). Only what enters mappings looks at it.
        const WIRED = 8;
    }
}

/// What a program tried to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Access {
    Read,
    Write,
    Execute,
}

impl Access {
    /// The protection that allows it.
    pub const fn needs(self) -> Prot {
        match self {
            Access::Read => Prot::READ,
            Access::Write => Prot::WRITE,
            Access::Execute => Prot::EXEC,
        }
    }
}
