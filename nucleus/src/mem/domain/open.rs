//! The paper's policy: devices reach all free and writable frames, at their physical addresses
//! (`iosup.txt` 3).
//!
//! All devices reach the same frames, so one tree of tables serves all; and they share one domain
//! ID, so that a frame that leaves costs one invalidation and not one for each device. All tables
//! are made at the start: a change takes no memory. Where units have large pages, 512 frames that
//! are all open are one entry, which leads to their table again when the first of them leaves.

use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};

use super::tables::{self, ENTRIES, Table};
use super::{ids, invalidate};
use crate::counters::Counter;
use crate::cpu::percpu::Restart;
use crate::frame::record::{Type, address, managed, record};
use crate::hw::iommu::{AttachError, Device, DomainId, Entry, Features, Stale};
use crate::hw::machine;
use crate::lock::{Rank, SpinLock};
use crate::mem::mistake::Mistake;
use crate::{OutOfMemory, PAGE_SHIFT, PhysAddr, frame};

/// The tree, with the tables that map each block of frames.
struct Tree {
    id: DomainId,
    features: Features,
    root: Table,
    /// Those with managed frames, from block `first` on.
    blocks: Vec<Block>,
    first: u64,
}

/// 512 neighbouring frames.
struct Block {
    /// The table with an entry that leads to `leaf`, or maps all.
    above: Table,
    leaf: Table,
    /// The number of frames that are open.
    open: usize,
}

static TREE: Restart<SpinLock<Option<Tree>>> = Restart::new(SpinLock::new(Rank::OpenFrames, None));
/// Devices that units translate for by the tree: without any, none holds a translation.
static DEVICES: AtomicUsize = AtomicUsize::new(0);

/// Forgets the tree of an earlier machine.
///
/// # Safety
/// The machine has one CPU and no task yet.
pub(super) unsafe fn reset() {
    // SAFETY: the caller promises to be alone.
    unsafe { TREE.set(SpinLock::new(Rank::OpenFrames, None)) };
    frame::watch_reach(false);
    DEVICES.store(0, Ordering::Relaxed);
}

/// Whether trees of so many levels reach the frames before `end` at their physical addresses.
pub(super) fn fits(levels: usize, end: u64) -> bool {
    end <= tables::pages(levels)
}

/// Makes the tree of all frames that are open now. The machine has one CPU and no task yet.
pub(super) fn start() -> Result<(), OutOfMemory> {
    let features = machine::iommu_features().ok_or(OutOfMemory)?;
    let frames = managed();
    let first = u64::from(frames.start) / ENTRIES;
    let count = u64::from(frames.end).div_ceil(ENTRIES) - first;
    let mut tree = Tree {
        id: ids::allocate()?,
        features,
        root: Table::new()?,
        blocks: crate::try_vec(count as usize)?,
        first,
    };
    for block in first..first + count {
        let page = block * ENTRIES;
        tree.blocks.push(Block {
            above: tables::walk(tree.root, features.levels, page, 2)?,
            leaf: tables::walk(tree.root, features.levels, page, 1)?,
            open: 0,
        });
    }
    // Those that the tables themselves took are no longer among them.
    for index in frames.filter(|&index| record(index).is_reachable()) {
        tree.enter(index..index + 1);
    }
    *TREE.lock_irq() = Some(tree);
    frame::watch_reach(true);
    Ok(())
}

/// Attaches a device to the tree.
///
/// # Errors
/// [`AttachError`]; the memory is for regions that the device uses on the firmware's behalf.
pub(super) fn attach(device: Device) -> Result<(), AttachError> {
    // The tree's own, which stay as they are.
    let (id, features, root) = {
        let tree = TREE.lock_irq();
        let tree = tree.as_ref().ok_or(OutOfMemory)?;
        (tree.id, tree.features, tree.root)
    };
    let mut any = false;
    let note = |_| {
        any = true;
        Ok(())
    };
    tables::map_reserved(device, (root, features.levels), || TREE.lock_irq(), note)?;
    DEVICES.fetch_add(1, Ordering::SeqCst);
    if any && features.has_caching_mode {
        // Those that were attached before may have looked there.
        invalidate(Stale::Domain(id), Counter::iotlb_absent);
    }
    machine::iommu_attach(device, id, root.at()).inspect_err(|_| detached())
}

/// A device that was attached reaches nothing any more.
pub(super) fn detached() {
    DEVICES.fetch_sub(1, Ordering::SeqCst);
}

/// The number of frames that are open.
pub(crate) fn count() -> usize {
    let tree = TREE.lock_irq();
    let blocks = tree.iter().flat_map(|tree| &tree.blocks);
    blocks.map(|block| block.open).sum()
}

/// Calls `wrong` with the first frame of each block that devices reach and must not; with
/// `is_quiescent`, when nothing else runs, also with one that they must reach and do not. Returns
/// the number of frames that they reach. Locks one block at a time.
pub(crate) fn audit(is_quiescent: bool, mut wrong: impl FnMut(u32)) -> usize {
    let mut seen = 0;
    for number in 0.. {
        let found = {
            let tree = TREE.lock_irq();
            let Some(tree) = &*tree else { break };
            let Some(block) = tree.blocks.get(number) else {
                break;
            };
            let first = (tree.first + number as u64) * ENTRIES;
            let is_large = block.above.get(tables::index(first, 2)).is_large();
            let mut found = None;
            for (at, index) in (0..ENTRIES).zip(first as u32..) {
                // A device's memory may be there for the firmware.
                if !managed().contains(&index) || record(index).kind() == Type::Absent {
                    continue;
                }
                // A frame leaves before its type changes, and returns afterwards.
                let reached = is_large || block.leaf.get(at).is_present();
                let may = record(index).is_reachable();
                seen += usize::from(reached);
                if reached && !may || is_quiescent && may && !reached {
                    found = found.or(Some(index));
                }
            }
            found
        };
        found.into_iter().for_each(&mut wrong);
    }
    seen
}

/// Takes frames, which the caller owns alone, out of the tree before their type changes. No device
/// uses them when this returns: one invalidation for all. Any lock may be held but those behind
/// `OpenFrames`.
pub(crate) fn leave(runs: &[Range<u32>], cause: Counter) {
    let stale = {
        let mut tree = TREE.lock_irq();
        let Some(tree) = tree.as_mut() else { return };
        for run in runs {
            tree.change(run.clone(), Entry::ABSENT);
        }
        tree.stale(runs)
    };
    // A device that is attached later finds the tables as they are.
    if let Some(stale) = stale
        && DEVICES.load(Ordering::SeqCst) > 0
    {
        invalidate(stale, cause);
    }
    let frames = runs.iter().flat_map(Range::clone);
    frames.for_each(|index| machine::frame_closed(address(index)));
}

/// Returns frames, which the caller owns alone and whose type is open, to the tree. At most one
/// invalidation for all.
pub(crate) fn enter(runs: &[Range<u32>]) {
    let stale = {
        let mut tree = TREE.lock_irq();
        let Some(tree) = tree.as_mut() else { return };
        runs.iter().for_each(|run| tree.enter(run.clone()));
        tree.stale(runs).filter(|_| tree.features.has_caching_mode)
    };
    if let Some(stale) = stale
        && DEVICES.load(Ordering::SeqCst) > 0
    {
        invalidate(stale, Counter::iotlb_absent);
    }
}

impl Tree {
    fn enter(&mut self, frames: Range<u32>) {
        { frames.clone() }.for_each(|index| machine::frame_opened(address(index)));
        self.change(frames, Entry::page(PhysAddr(0), true, true));
    }

    /// Gives the entries of frames, all of which are absent or none, these rights.
    fn change(&mut self, frames: Range<u32>, rights: Entry) {
        let (mut page, end) = (u64::from(frames.start), u64::from(frames.end));
        while page < end {
            let number = page / ENTRIES;
            let next = end.min((number + 1) * ENTRIES);
            let Some(block) = self.blocks.get_mut((number - self.first) as usize) else {
                return;
            };
            let at = tables::index(page, 2);
            let count = (next - page) as usize;
            for page in page..next {
                let address = PhysAddr(page << PAGE_SHIFT);
                let entry = match rights.is_present() {
                    true => Entry(rights.0 | address.0),
                    false => Entry::ABSENT,
                };
                debug_assert!(
                    block.leaf.get(page).is_present() != entry.is_present(),
                    "frame {page:#x} leaves or returns twice"
                );
                block.leaf.set(page, entry);
            }
            block
                .leaf
                .sync(page % ENTRIES..page % ENTRIES + count as u64);
            match rights.is_present() {
                true => block.open += count,
                false => block.open -= count,
            }
            let is_large = block.above.get(at).is_large();
            let is_full = self.features.large && block.open as u64 == ENTRIES;
            if is_full && !is_large {
                let first = PhysAddr((number * ENTRIES) << PAGE_SHIFT);
                block.above.put(at, Entry::large(first));
            } else if is_large && !is_full && !Mistake::LargePageStays.is_made() {
                block.above.put(at, Entry::table(block.leaf.at()));
            }
            page = next;
        }
    }

    /// The invalidation for frames: the smallest block around one run that units can invalidate.
    fn stale(&self, runs: &[Range<u32>]) -> Option<Stale> {
        let [run] = runs else {
            // Few are apart, and of those most once only.
            return (!runs.is_empty()).then_some(Stale::Domain(self.id));
        };
        let pages = u64::from(run.start)..u64::from(run.end);
        // One table's at most.
        let most = self.features.page_order.map(|most| most.min(9));
        Some(Stale::around(self.id, pages, most))
    }
}
