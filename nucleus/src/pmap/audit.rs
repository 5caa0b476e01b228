//! The audit of page tables (`iosup.txt` 2.2): whether what they say, what the frames' records say
//! and what the reverse mappings say agree.
//!
//! It runs beside everything else. Each step holds one lock for a bounded time and judges only what
//! that lock keeps as it is:
//!
//! | looked at | held | judged |
//! |---|---|---|
//! | tables of level 4 to 2 on the way to one address | the pmap's lock | types, type counts, the tables below |
//! | an entry of level 1 | its table pinned, the reverse lock of the frame | type of the frame, links |
//! | a frame's reverse mappings | its reverse lock | entries, the count |
//!
//! Tables of level 1 are found through the frames' records, so those of every space, shared ones
//! and those behind large pages are visited once.

use core::fmt;
use core::sync::atomic::Ordering;

use super::entries::{entry, group, load};
use super::format::{ENTRIES, LEAF_SPAN, Pte, index, span};
use super::leaf::{BASE, COUNT, DYING, Leaf, Status, base_of};
use super::owner::{common_owner, owner};
use super::reverse;
use super::space::Pmap;
use crate::VirtAddr;
use crate::addr::USER_END;
use crate::cpu::percpu::Pinned;
use crate::hw::machine;
use crate::mem::frame::record::{Type, find, managed, record};

/// Reverse mappings of one frame that are looked at.
const MOST_MAPPINGS: u32 = 4096;

/// What the audit looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Page tables of programs.
    pub tables: usize,
    /// Entries in use in these.
    pub entries: usize,
    /// Frames with reverse mappings.
    pub frames: usize,
    /// Pages that the kernel maps.
    pub kernel_pages: usize,
    /// Pages that devices behind an IOMMU reach.
    pub device_pages: usize,
}

/// Something that must not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// An entry of level 1 leads to a frame that is no data.
    NotData {
        /// The table's frame and the entry's index, here as below.
        table: u32,
        #[allow(missing_docs)]
        index: usize,
        #[allow(missing_docs)]
        frame: u32,
    },
    /// An entry of level 1 is not linked to the frame that it maps.
    NotLinked {
        #[allow(missing_docs)]
        table: u32,
        #[allow(missing_docs)]
        index: usize,
        #[allow(missing_docs)]
        frame: u32,
    },
    /// A reverse mapping leads to an entry that does not map the frame.
    WrongLink {
        #[allow(missing_docs)]
        table: u32,
        #[allow(missing_docs)]
        index: usize,
        #[allow(missing_docs)]
        frame: u32,
    },
    /// A frame's type count differs from what was found.
    WrongCount {
        #[allow(missing_docs)]
        frame: u32,
        #[allow(missing_docs)]
        says: u32,
        #[allow(missing_docs)]
        found: u32,
    },
    /// An entry of level 2 to 4 leads to a frame that is no page table of the level below, or one
    /// of another owner or place.
    WrongTable {
        #[allow(missing_docs)]
        table: u32,
        #[allow(missing_docs)]
        index: usize,
        #[allow(missing_docs)]
        frame: u32,
    },
    /// An entry is in use in a group that says that none is.
    WrongGroup {
        #[allow(missing_docs)]
        table: u32,
        #[allow(missing_docs)]
        index: usize,
    },
    /// A device reaches a frame that is not for devices.
    Reachable {
        #[allow(missing_docs)]
        frame: u32,
    },
    /// The kernel maps a frame so that it can be written, which must not be.
    Writable {
        /// The kernel's address.
        address: usize,
        #[allow(missing_docs)]
        frame: u64,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = |frame: u32| find(frame.into()).map_or(Type::Absent, |it| it.kind());
        match *self {
            Violation::NotData {
                table,
                index,
                frame,
            } => write!(
                f,
                "entry {index} of table {table:#x} leads to frame {frame:#x}, {:?}",
                kind(frame)
            ),
            Violation::NotLinked {
                table,
                index,
                frame,
            } => write!(
                f,
                "entry {index} of table {table:#x} is not linked to frame {frame:#x}"
            ),
            Violation::WrongLink {
                table,
                index,
                frame,
            } => write!(
                f,
                "frame {frame:#x} is linked to entry {index} of table {table:#x}, which does not \
                 map it"
            ),
            Violation::WrongCount { frame, says, found } => write!(
                f,
                "frame {frame:#x}, {:?}, counts {says} uses and has {found}",
                kind(frame)
            ),
            Violation::WrongTable {
                table,
                index,
                frame,
            } => write!(
                f,
                "entry {index} of table {table:#x}, {:?}, leads to frame {frame:#x}, {:?}, which \
                 is not its table there",
                kind(table),
                kind(frame)
            ),
            Violation::WrongGroup { table, index } => write!(
                f,
                "entry {index} of table {table:#x} is in use, its group is not"
            ),
            Violation::Reachable { frame } => {
                write!(f, "devices reach frame {frame:#x}, {:?}", kind(frame))
            }
            Violation::Writable { address, frame } => write!(
                f,
                "the kernel may write frame {frame:#x}, {:?}, at {address:#x}",
                u32::try_from(frame).map_or(Type::Absent, kind)
            ),
        }
    }
}

/// Gets each violation.
pub type Report<'a> = &'a mut dyn FnMut(Violation);

/// Audits all frames, and all page tables of level 1. With `is_quiet` nothing else runs: then type
/// counts of page tables are judged, too.
pub fn audit_frames(is_quiet: bool, seen: &mut Seen, report: Report<'_>) {
    for frame in managed() {
        match record(frame).kind() {
            Type::Writable if record(frame).mappings() > 0 => {
                seen.frames += 1;
                check_mappings(frame, report);
            }
            Type::PageTable1 => {
                // The frame with its links has no use count.
                if let Some(leaf) = pin(frame) {
                    seen.tables += 1;
                    check_leaf(&leaf, is_quiet, seen, report);
                }
            }
            _ => {}
        }
    }
}

/// Pins a table of level 1 that is attached somewhere.
fn pin(table: u32) -> Option<Leaf> {
    let pinned = Pinned::new();
    let count = record(table).use_count();
    let attached = |b: u64| (b & COUNT != 0 && b & DYING == 0).then_some(b + 1);
    count
        .fetch_update(Ordering::Acquire, Ordering::Relaxed, attached)
        .ok()?;
    Some(Leaf {
        table,
        base: base_of(table),
        status: Status::Shared,
        _pinned: pinned,
    })
}

/// The entries of a table of level 1.
fn check_leaf(leaf: &Leaf, is_quiet: bool, seen: &mut Seen, report: Report<'_>) {
    let table = leaf.table;
    let mut in_use = 0;
    for index in 0..ENTRIES {
        let pte = load(leaf.entry(index));
        if !pte.is_present() {
            continue;
        }
        in_use += 1;
        if pte.is_device() {
            continue;
        }
        let frame = pte.frame();
        let Some(record) = find(frame.into()) else {
            report(Violation::NotData {
                table,
                index,
                frame,
            });
            continue;
        };
        let mappings = record.lock_mappings();
        if !load(leaf.entry(index)).maps(frame) {
            // It has changed meanwhile.
            continue;
        }
        if record.kind() != Type::Writable {
            report(Violation::NotData {
                table,
                index,
                frame,
            });
        } else if !reverse::is_linked(&mappings, table, index) {
            report(Violation::NotLinked {
                table,
                index,
                frame,
            });
        }
        drop(mappings);
    }
    seen.entries += in_use;
    let says = leaf.entries();
    if is_quiet && says != in_use {
        let (says, found) = (says as u32, in_use as u32);
        report(Violation::WrongCount {
            frame: table,
            says,
            found,
        });
    }
}

/// The reverse mappings of a data frame.
fn check_mappings(frame: u32, report: Report<'_>) {
    let _pinned = Pinned::new();
    let mappings = record(frame).lock_mappings();
    let says = mappings.count();
    let mut found = 0;
    for (table, index) in reverse::entries_to_check(&mappings) {
        found += 1;
        let is_table = find(table.into()).is_some_and(|it| it.kind() == Type::PageTable1);
        if !is_table || !load(entry(table, index)).maps(frame) {
            // What follows cannot be trusted.
            report(Violation::WrongLink {
                table,
                index,
                frame,
            });
            return;
        }
        if found > says || found == MOST_MAPPINGS {
            break;
        }
    }
    if found != says && found < MOST_MAPPINGS {
        report(Violation::WrongCount { frame, says, found });
    }
}

/// Audits the tables of level 4 to 2 of a space.
pub fn audit_space(pmap: &Pmap, seen: &mut Seen, report: Report<'_>) {
    check_region(pmap, report);
    let mut va = VirtAddr(0);
    while va < USER_END {
        va = step(pmap, va, seen, report);
        machine::point();
    }
}

/// Audits the entries of level 2 of a small space, whose number bounds the time.
fn check_region(pmap: &Pmap, report: Report<'_>) {
    let _frames = pmap.lock.lock();
    let mut va = VirtAddr(0);
    while let Some(above) = pmap.place.above(va) {
        let pte = load(above);
        if pte.is_present() && !is_leaf(pmap, pte, va) {
            let (table, frame) = (pmap.root, pte.frame());
            let index = va.0 / LEAF_SPAN;
            report(Violation::WrongTable {
                table,
                index,
                frame,
            });
        }
        va = va + LEAF_SPAN;
    }
}

/// Audits the tables on the way to `va`, and returns where the next one begins.
fn step(pmap: &Pmap, va: VirtAddr, seen: &mut Seen, report: Report<'_>) -> VirtAddr {
    let _frames = pmap.lock.lock();
    let mut table = pmap.root;
    for level in [4, 3, 2] {
        // Once for each table: on the way to the first address below it.
        let is_first = va.0 & (span(level + 1) - 1) == 0 || level == 4 && va.0 == 0;
        if is_first {
            seen.tables += 1;
            check_upper(pmap, table, level, va, report);
        }
        let next = (va.0 & !(span(level) - 1)) + span(level);
        if level == 2 {
            return VirtAddr((va.0 & !(span(3) - 1)) + span(3));
        }
        let pte = load(entry(table, index(va, level)));
        if !pte.is_present() || !is_table(pte, level) {
            return VirtAddr(next);
        }
        table = pte.frame();
    }
    unreachable!("the last level returns")
}

/// Whether an entry of a table of level 3 or 4 leads to a table of the level below.
fn is_table(pte: Pte, level: usize) -> bool {
    find(pte.frame().into()).is_some_and(|it| it.kind() == Type::page_table(level - 1))
}

/// A table of level 2 to 4, which maps from `va` on. [pmap lock]
fn check_upper(pmap: &Pmap, table: u32, level: usize, va: VirtAddr, report: Report<'_>) {
    let r = record(table);
    if r.kind() != Type::page_table(level) {
        let index = 0;
        return report(Violation::WrongTable {
            table,
            index,
            frame: table,
        });
    }
    let entries = if level == 4 { ENTRIES / 2 } else { ENTRIES };
    let groups = r.groups().load(Ordering::Relaxed);
    let mut found = 0;
    for i in 0..entries {
        let pte = load(entry(table, i));
        if !pte.is_present() {
            continue;
        }
        found += 1;
        if groups & group(i) == 0 {
            report(Violation::WrongGroup { table, index: i });
        }
        let is_right = match level {
            2 => is_leaf(pmap, pte, VirtAddr(va.0 + i * LEAF_SPAN)),
            _ => is_table(pte, level),
        };
        if !is_right {
            let frame = pte.frame();
            report(Violation::WrongTable {
                table,
                index: i,
                frame,
            });
        }
    }
    let says = r.in_use.load(Ordering::Relaxed);
    if says != found {
        report(Violation::WrongCount {
            frame: table,
            says,
            found,
        });
    }
}

/// Whether an entry of level 2 leads to a table of level 1 of this pmap for `base`, or is a large
/// page of data. [pmap lock]
fn is_leaf(pmap: &Pmap, pte: Pte, base: VirtAddr) -> bool {
    let Some(r) = find(pte.frame().into()) else {
        return false;
    };
    if pte.is_large() {
        return r.kind() == Type::Writable;
    }
    let wanted = match pte.is_shared_table() {
        true => common_owner(&pmap.family),
        false => owner(pmap),
    };
    let b = r.use_count().load(Ordering::Relaxed);
    r.kind() == Type::PageTable1
        && b & COUNT != 0
        && b & BASE == base.0 as u64
        && r.owner().load(Ordering::Relaxed) == wanted
}
