//! The format of x86-64 page-table entries, for both machines.

use crate::addr::{Access, Prot};
use crate::frame::record::address;
use crate::hw::mitigations::{ADDRESS, inverted};
use crate::mem::device::{Caching, DevicePage};
use crate::{PAGE_SHIFT, PAGE_SIZE, VirtAddr};

/// Entries in a table.
pub(crate) const ENTRIES: usize = 512;
/// Bytes that a table of level 1 maps.
pub(crate) const LEAF_SPAN: usize = ENTRIES << PAGE_SHIFT;

const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
/// In an entry of level 2: it maps [`LEAF_SPAN`] bytes itself.
const LARGE: u64 = 1 << 7;
/// Ignored by the processor: the accessed bit was cleared and no flush followed, so a TLB may hold
/// the entry although the accessed bit is clear.
const SEEN: u64 = 1 << 9;
/// Ignored by the processor, in an entry that is not present: the frame of a mapping that was
/// removed together with its whole table, and is pending. Alone, in an entry of level 2: a large
/// page is being split.
const PENDING: u64 = 1 << 10;
/// Ignored by the processor: the page is a device's and has no frame record.
const DEVICE: u64 = 1 << 11;
/// Together the index of a memory type, which `hw::cpu` sets up: write-back, write-combining,
/// uncached.
const TYPE_LOW: u64 = 1 << 3;
const TYPE_HIGH: u64 = 1 << 4;
/// Ignored by the processor: the mapping is wired.
const WIRED: u64 = 1 << 52;
const NO_EXECUTE: u64 = 1 << 63;

/// One entry of a page table of any level.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pte(pub(crate) u64);

impl Pte {
    /// Nothing.
    pub(crate) const ZERO: Pte = Pte(0);

    /// A page of a program. An entry that is `accessed` from the start spares the processor a
    /// locked update at first use.
    pub(crate) fn page(frame: u32, prot: Prot, accessed: bool) -> Pte {
        let accessed = if accessed { ACCESSED } else { 0 };
        let page = Pte(address(frame).0 | PRESENT | USER | accessed).with_rights(prot);
        page.wired(prot.contains(Prot::WIRED))
    }

    /// A page of a device for a program.
    pub(crate) fn device(page: DevicePage, prot: Prot) -> Pte {
        let caching = match page.caching() {
            Caching::WriteBack => 0,
            Caching::WriteCombining => TYPE_LOW,
            Caching::Uncached => TYPE_LOW | TYPE_HIGH,
        };
        let address = page.number() << PAGE_SHIFT & ADDRESS;
        let page = Pte(address | PRESENT | USER | ACCESSED | DEVICE | caching).with_rights(prot);
        page.wired(prot.contains(Prot::WIRED))
    }

    /// Whether this is [`Pte::device`].
    #[inline]
    pub(crate) fn is_device(self) -> bool {
        self.0 & (PRESENT | DEVICE) == PRESENT | DEVICE
    }

    /// Whether the entry, of level 1, maps a frame.
    #[inline]
    pub(crate) fn has_frame(self) -> bool {
        self.0 & (PRESENT | DEVICE) == PRESENT
    }

    /// Whether both are [`Pte::device`], of the same page.
    pub(crate) fn is_same_device(self, other: Pte) -> bool {
        const PAGE: u64 = ADDRESS | PRESENT | DEVICE | TYPE_LOW | TYPE_HIGH;
        self.is_device() && self.0 & PAGE == other.0 & PAGE
    }

    /// Whether the entry, of level 1, maps this frame.
    #[inline]
    pub(crate) fn maps(self, frame: u32) -> bool {
        self.has_frame() && self.frame() == frame
    }

    /// Whether both entries, of level 1, map the same frame, or neither of them one.
    #[inline]
    pub(crate) fn maps_same(self, other: Pte) -> bool {
        (self.0 ^ other.0) & (ADDRESS | PRESENT | DEVICE) == 0
    }

    /// A reference to a table of the next lower level. What the pages below may be used for is up
    /// to their own entries.
    pub(crate) fn table(frame: u32) -> Pte {
        Pte(address(frame).0 | PRESENT | WRITABLE | USER)
    }

    /// A reference to a table of level 1 that other spaces refer to, too: nothing below may be
    /// written through it.
    pub(crate) fn shared_table(frame: u32) -> Pte {
        Pte(address(frame).0 | PRESENT | USER)
    }

    /// Whether this reference to a table of level 1 is [`Pte::shared_table`].
    #[inline]
    pub(crate) fn is_shared_table(self) -> bool {
        self.0 & (PRESENT | WRITABLE | LARGE) == PRESENT
    }

    /// An entry of level 2 that maps the frames from this one on itself. A TLB may hold it from the
    /// start, and any CPU may have written through it.
    pub(crate) fn large(first: u32, prot: Prot) -> Pte {
        Pte(Pte::page(first, prot, true).0 & !WIRED | DIRTY | LARGE)
    }

    /// Whether this entry, of level 2, is [`Pte::large`].
    #[inline]
    pub(crate) fn is_large(self) -> bool {
        self.0 & (PRESENT | LARGE) == PRESENT | LARGE
    }

    /// What stands in an entry of level 2 while CPUs forget the large page that it mapped, and
    /// before it refers to a table.
    pub(crate) const SPLITTING: Pte = Pte(PENDING);

    /// The bit that lets a program write.
    pub(crate) const WRITE_BIT: u64 = WRITABLE;

    /// The same for the frame that is so many behind this one.
    #[inline]
    pub(crate) fn further(self, frames: usize) -> Pte {
        Pte(self.0 + (frames as u64 * PAGE_SIZE as u64))
    }

    /// The frame of a removed mapping that is pending: inverted.
    pub(crate) fn pending(self) -> Pte {
        Pte(inverted(self.0) & ADDRESS | PENDING)
    }

    /// The frame of an entry that [`is_pending`](Pte::is_pending).
    pub(crate) fn pending_frame(self) -> u32 {
        Pte(inverted(self.0)).frame()
    }

    /// Whether this is [`Pte::pending`].
    pub(crate) fn is_pending(self) -> bool {
        self.0 & (PRESENT | PENDING) == PENDING
    }

    /// Whether the processor uses the entry.
    #[inline]
    pub(crate) fn is_present(self) -> bool {
        self.0 & PRESENT != 0
    }

    /// The number of the frame that the entry refers to; no frame's if it [is a
    /// device's](Pte::is_device).
    #[inline]
    pub(crate) fn frame(self) -> u32 {
        ((self.0 & ADDRESS) >> PAGE_SHIFT) as u32
    }

    /// What a program may do with the page.
    pub(crate) fn prot(self) -> Prot {
        let mut prot = Prot::READ;
        prot.set(Prot::WRITE, self.0 & WRITABLE != 0);
        prot.set(Prot::EXEC, self.0 & NO_EXECUTE == 0);
        prot
    }

    /// Whether the mapping is wired.
    #[inline]
    pub(crate) fn is_wired(self) -> bool {
        self.0 & WIRED != 0
    }

    /// The same mapping, wired or not.
    pub(crate) fn wired(self, wired: bool) -> Pte {
        Pte(self.0 & !WIRED | if wired { WIRED } else { 0 })
    }

    /// The same page with other rights, wired as before.
    pub(crate) fn with_rights(self, prot: Prot) -> Pte {
        let write = if prot.contains(Prot::WRITE) {
            WRITABLE
        } else {
            0
        };
        let no_execute = if prot.contains(Prot::EXEC) {
            0
        } else {
            NO_EXECUTE
        };
        Pte(self.0 & !(WRITABLE | NO_EXECUTE) | write | no_execute)
    }

    /// The bits of an entry to clear, and those to set, that take away every right not in `prot`
    /// but to read.
    #[inline]
    pub(crate) fn narrowing(prot: Prot) -> (u64, u64) {
        let clear = match prot.contains(Prot::WRITE) {
            true => 0,
            false => WRITABLE,
        };
        let set = match prot.contains(Prot::EXEC) {
            true => 0,
            false => NO_EXECUTE,
        };
        (clear, set)
    }

    /// The same page with these rights, too.
    #[inline]
    pub(crate) fn with_more_rights(self, prot: Prot) -> Pte {
        let mut entry = self.0;
        if prot.contains(Prot::WRITE) {
            entry |= WRITABLE;
        }
        if prot.contains(Prot::EXEC) {
            entry &= !NO_EXECUTE;
        }
        Pte(entry)
    }

    /// Whether the entry allows a program this access.
    #[inline]
    pub(crate) fn permits(self, access: Access) -> bool {
        self.is_present()
            && self.0 & USER != 0
            && match access {
                Access::Read => true,
                Access::Write => self.0 & WRITABLE != 0,
                Access::Execute => self.0 & NO_EXECUTE == 0,
            }
    }

    /// Whether any TLB may hold the entry: the processor sets the accessed bit before it caches
    /// one.
    #[inline]
    pub(crate) fn may_be_cached(self) -> bool {
        self.0 & (ACCESSED | SEEN) != 0
    }

    /// The accessed bit.
    pub(crate) fn is_accessed(self) -> bool {
        self.0 & ACCESSED != 0
    }

    /// The dirty bit.
    pub(crate) fn is_dirty(self) -> bool {
        self.0 & DIRTY != 0
    }

    /// With the accessed bit set.
    pub(crate) fn accessed(self) -> Pte {
        Pte(self.0 | ACCESSED)
    }

    /// With the accessed bit clear, remembering that a TLB may hold the entry.
    pub(crate) fn unreferenced(self) -> Pte {
        Pte(self.0 & !ACCESSED | SEEN)
    }

    /// The same page, not to be written, in another table that takes the place of this one: a TLB
    /// may hold what was read from the old one.
    pub(crate) fn copied(self) -> Pte {
        Pte(self.0 & !WRITABLE | SEEN)
    }

    /// The same page at an address that no TLB knows yet.
    pub(crate) fn elsewhere(self) -> Pte {
        Pte(self.0 & !SEEN)
    }

    /// With the dirty bit set.
    pub(crate) fn dirty(self) -> Pte {
        Pte(self.0 | DIRTY)
    }

    /// With the dirty bit clear.
    pub(crate) fn clean(self) -> Pte {
        Pte(self.0 & !DIRTY)
    }
}

/// The place of an address in its table of `level` 1 to 4.
#[inline]
pub(crate) const fn index(va: VirtAddr, level: usize) -> usize {
    (va.0 >> (PAGE_SHIFT + 9 * (level - 1))) & (ENTRIES - 1)
}

/// Bytes that an entry of a table of `level` stands for.
pub(crate) const fn span(level: usize) -> usize {
    1 << (PAGE_SHIFT + 9 * (level - 1))
}
