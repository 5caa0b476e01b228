//! A domain in which each frame is mapped for a request alone, or for long, at an address of the
//! domain's own.

use alloc::{sync::Arc, vec::Vec};
use core::num::NonZeroU64;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::tables::{self, ENTRIES, Table};
use super::window::{self, PAGES, Window};
use super::{ids, invalidate};
use crate::counters::Counter;
use crate::hw::iommu::{AttachError, Device, DomainId, Entry, Features, Stale};
use crate::hw::machine;
use crate::lock::{Rank, SpinLock};
use crate::mem::mistake::Mistake;
use crate::{Frame, OutOfMemory, frame};

/// So many stale addresses are worth an invalidation: 2 MiB that wait to be free. A request of 128
/// KiB pays a 16th of one.
pub(crate) const BATCH: usize = 512;
/// With so many stale addresses, an invalidation takes no further windows: their frames are
/// released with preemption off.
const LARGEST: usize = 2 * BATCH;
/// Areas of 512 addresses that are not used: in x86-64's one at 0xfee0_0000, a write is an
/// interrupt, and address 0 means that there is none.
const INTERRUPTS: u64 = 0xfee0_0000 >> 21;

/// See the head of the file.
pub(crate) struct Strict {
    id: DomainId,
    generation: NonZeroU64,
    features: Features,
    root: Table,
    areas: SpinLock<Areas>,
    /// Addresses that are stale in all windows.
    stale: AtomicUsize,
}

struct Areas {
    /// The next one, by its first page over 512.
    next: u64,
    windows: Vec<Arc<Window>>,
    /// The area of the last of the lasting mappings: first page, table, how many.
    lasting: Option<(u64, Table, u64)>,
    /// How many lasting mappings there are.
    lasting_pages: usize,
    /// Pages that the device uses on the firmware's behalf, at their own addresses.
    reserved: Vec<Range<u64>>,
}

/// Domains made so far, and one more.
static GENERATION: AtomicU64 = AtomicU64::new(1);

fn next_generation() -> NonZeroU64 {
    let next = GENERATION.fetch_add(1, Ordering::Relaxed);
    NonZeroU64::new(next).expect("fewer domains than that in any time")
}

impl Areas {
    /// Whether 512 addresses are not for requests.
    fn is_taken(&self, area: u64) -> bool {
        let pages = area * ENTRIES..(area + 1) * ENTRIES;
        let meets = |it: &Range<u64>| it.start < pages.end && pages.start < it.end;
        area == INTERRUPTS || self.reserved.iter().any(meets)
    }
}

impl Strict {
    /// Makes empty tables and attaches the device to them.
    pub(super) fn new(device: Device) -> Result<Strict, AttachError> {
        let features = machine::iommu_features().ok_or(OutOfMemory)?;
        let id = ids::allocate()?;
        let root = Table::new().inspect_err(|_| ids::free(id))?;
        let mut strict = Strict {
            id,
            generation: next_generation(),
            features,
            root,
            areas: SpinLock::new(
                Rank::Domain,
                Areas {
                    next: 1,
                    windows: Vec::new(),
                    lasting: None,
                    lasting_pages: 0,
                    reserved: Vec::new(),
                },
            ),
            stale: AtomicUsize::new(0),
        };
        let mapped = strict.map_reserved(device).map_err(AttachError::from);
        let attach = |()| machine::iommu_attach(device, id, strict.root.at());
        if let Err(error) = mapped.and_then(attach) {
            strict.end();
            return Err(error);
        }
        Ok(strict)
    }

    /// Maps the memory that the device uses on the firmware's behalf.
    fn map_reserved(&mut self, device: Device) -> Result<(), OutOfMemory> {
        let tree = (self.root, self.features.levels);
        let reserved = &mut self.areas.get_mut().reserved;
        // No other task has the tree yet.
        let alone = || ();
        tables::map_reserved(device, tree, alone, |pages| {
            reserved.try_reserve(1).map_err(|_| OutOfMemory)?;
            reserved.push(pages);
            Ok(())
        })
    }

    /// How many pages are mapped, and how many are stale.
    pub(crate) fn usage(&self) -> [usize; 2] {
        let areas = self.areas.lock();
        let reserved = areas
            .reserved
            .iter()
            .map(|it| it.end - it.start)
            .sum::<u64>();
        let in_use = areas.windows.iter().flat_map(|window| window.in_use());
        let in_use: u64 = in_use.map(|it| it.end - it.start).sum();
        let mapped = areas.lasting_pages + (reserved + in_use) as usize;
        [mapped, self.stale()]
    }

    /// A value that no other domain has or will have: a later one may get the same ID.
    #[inline]
    pub(crate) fn generation(&self) -> NonZeroU64 {
        self.generation
    }

    /// The domain ID.
    pub(crate) fn id(&self) -> u16 {
        self.id.0
    }

    /// Invalidates entries that became present: in caching mode, units may hold the absent ones.
    fn invalidate_absent(&self, first: u64, pages: u64) {
        if !self.features.has_caching_mode || pages == 0 {
            return;
        }
        let most = self.features.page_order;
        let stale = Stale::around(self.id, first..first + pages, most);
        invalidate(stale, Counter::iotlb_absent);
    }

    /// Adds 512 addresses; returns the first page, and the table that maps them.
    fn add_area(&self, areas: &mut Areas) -> Result<(u64, Table), OutOfMemory> {
        let mut next = areas.next;
        while areas.is_taken(next) {
            next += 1;
        }
        let first = next * ENTRIES;
        let table = tables::walk(self.root, self.features.levels, first, 1)?;
        areas.next = next + 1;
        self.invalidate_absent(first, ENTRIES);
        Ok((first, table))
    }

    /// Calls `wrong` with the first frame of each area that the device reaches and that is no data,
    /// or that nothing holds for it. Returns how many pages it reaches. Locks one area at a time.
    pub(super) fn audit(&self, wrong: &mut dyn FnMut(u32)) -> usize {
        let mut seen = 0;
        for area in 1.. {
            let found = {
                // With the lock, no frame is released.
                let areas = self.areas.lock();
                if area >= areas.next {
                    break;
                }
                let table = tables::find(self.root, self.features.levels, area * ENTRIES);
                let Some(table) = table.filter(|_| !areas.is_taken(area)) else {
                    continue;
                };
                let entries = (0..ENTRIES).map(|at| table.get(at));
                let mut found = None;
                for entry in entries.filter(|it| it.is_present()) {
                    seen += 1;
                    let (frame, place) = (entry.address().frame_number() as u32, entry.place());
                    if !frame::is_held_data(frame - place, place) {
                        found = Some(frame);
                    }
                }
                found
            };
            found.into_iter().for_each(&mut *wrong);
        }
        seen
    }

    /// Makes a window, or returns one that has no owner and was never used.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(crate) fn add_window(&self) -> Result<Arc<Window>, OutOfMemory> {
        let mut areas = self.areas.lock();
        // With the lock held, no other caller gets a first handle.
        let is_left = |it: &&Arc<Window>| Arc::strong_count(it) == 1 && it.is_unused();
        if let Some(window) = areas.windows.iter().find(is_left) {
            return Ok(window.clone());
        }
        areas.windows.try_reserve(1).map_err(|_| OutOfMemory)?;
        let (first, table) = self.add_area(&mut areas)?;
        let window = Arc::new(Window::new(first, table));
        areas.windows.push(window.clone());
        Ok(window)
    }

    /// Maps a frame for as long as the domain lives; returns the page.
    pub(super) fn map_lasting(
        &self,
        frame: &Frame,
        reads: bool,
        writes: bool,
    ) -> Result<u64, OutOfMemory> {
        let mut areas = self.areas.lock();
        let (first, table, used) = match areas.lasting {
            Some(lasting) if lasting.2 < ENTRIES => lasting,
            _ => {
                let (first, table) = self.add_area(&mut areas)?;
                (first, table, 0)
            }
        };
        areas.lasting = Some((first, table, used + 1));
        frame::hold(frame, reads);
        let at = frame::record::address(frame.index());
        table.put(used, Entry::page(at, reads, writes));
        areas.lasting_pages += 1;
        self.invalidate_absent(first + used, 1);
        Counter::iommu_pages_mapped.add(1);
        Ok(first + used)
    }

    /// The addresses in use of a window, which is `pages` more now, are the device's from now on.
    #[inline]
    pub(crate) fn give(&self, window: &Window, pages: usize) {
        Counter::iommu_pages_mapped.add(pages as u64);
        if self.features.has_caching_mode {
            for range in window.in_use() {
                self.invalidate_absent(window.page(range.start), range.end - range.start);
            }
        }
    }

    /// The request of a window is done. Returns whether its addresses are the first that are stale.
    /// Any context.
    #[inline]
    pub(crate) fn take(&self, window: &Window) -> bool {
        let addresses = window.used();
        if addresses == 0 {
            return false;
        }
        // Counted before a flush can see them, so that none counts them off earlier.
        let before = self.stale.fetch_add(addresses, Ordering::Relaxed);
        Counter::iommu_pages_unmapped.add(window.end() as u64);
        before == 0
    }

    /// How many addresses are stale.
    #[inline]
    pub(crate) fn stale(&self) -> usize {
        self.stale.load(Ordering::Relaxed)
    }

    /// Invalidates the addresses that are stale, and releases their frames. Those that
    /// were stale before are free when this returns. No lock of rank `Domain` or later is held.
    pub(crate) fn flush(&self, cause: Counter) {
        let mut next = 0;
        // Each window once: addresses that become stale behind `next` are left to the next flush.
        while let Some(end) = self.flush_some(next, cause) {
            next = end;
        }
    }

    /// As [`flush`](Strict::flush), of the windows from number `next` on, of [`WINDOWS`] or until
    /// [`LARGEST`] addresses are found. Returns the number of the first that was left.
    fn flush_some(&self, next: usize, cause: Counter) -> Option<usize> {
        let areas = self.areas.lock();
        let rest = areas.windows.get(next..)?;
        let skipped = rest.iter().position(|it| it.stale() > 0)?;
        let rest = &rest[skipped..];
        // Windows with addresses that are stale before the invalidation: their places, and how
        // many.
        let mut stale = [(0u8, 0u16); WINDOWS];
        let (mut seen, mut len, mut found) = (0, 0, 0);
        for window in rest.iter().take(WINDOWS) {
            if found >= LARGEST {
                break;
            }
            let count = window.stale();
            if count > 0 {
                stale[len] = (seen as u8, count as u16);
                len += 1;
                found += count as usize;
            }
            seen += 1;
        }
        let mistakes = [Mistake::BatchNotInvalidated, Mistake::PendingReleased];
        if !mistakes.iter().any(|it| it.is_made()) {
            invalidate(Stale::Domain(self.id), cause);
        }
        for (place, count) in &stale[..len] {
            rest[usize::from(*place)].release((*count).into());
        }
        self.stale.fetch_sub(found, Ordering::Relaxed);
        Some(next + skipped + seen)
    }

    /// Frees all: the device was detached, or never attached, so that no unit holds anything of the
    /// domain, and no request is given or taken any more.
    pub(super) fn end(&mut self) {
        // The frames of these are not the kernel's.
        for page in self.areas.get_mut().reserved.iter().cloned().flatten() {
            if let Some(table) = tables::find(self.root, self.features.levels, page) {
                table.put(page % ENTRIES, Entry::ABSENT);
            }
        }
        tables::free(self.root, self.features.levels, &mut |table| {
            (0..ENTRIES).for_each(|index| release_entry(table, index));
        });
        ids::free(self.id);
    }
}

/// Clears an entry that no unit holds, and releases its frame, if it names one.
fn release_entry(table: Table, index: u64) {
    let entry = table.get(index);
    if entry != Entry::ABSENT {
        table.set(index, Entry::ABSENT);
        window::release_held(entry);
    }
}

/// Windows that one invalidation is for at most.
const WINDOWS: usize = 128;
const _: () = assert!(WINDOWS <= 1 << u8::BITS && PAGES < 1 << u16::BITS);
