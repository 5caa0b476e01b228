//! Frames for the buffers of a device, and those of packets, which come back.
//!
//! A buffer of several pages begins with two frames and goes on with blocks
//! ([`Frame::alloc_block`]) that are as large as all before them: 1, 1, 2, 4, 8 pages, and one
//! more. So the longest packet has six slices in place of 17, and a packet keeps at most a page
//! more than twice its bytes. By `bench network --busy`, see `docs/performance.md`.
//!
//! Frames are zeroed, so that a device that says to have written more than it has shows nothing of
//! others. Those that only this device has written to need not be: it could as well hand over the
//! same bytes again. A frame that another device has read, by a translation of its own, is used
//! again only after the invalidation of that, as if it had been free in between.
//!
//! The frames that come back are a cache of the pagedaemon's ([`vm::Cache`]): when memory is short
//! it frees those that no packet uses.

use alloc::{
    collections::VecDeque,
    sync::{Arc, Weak},
    vec::Vec,
};

use nucleus::{
    Frame, OutOfMemory, Slots,
    ephemeral::{self, Backend},
    frame::{Bundle, Contents, LARGEST_BLOCK},
    sync::{Rank, SpinGuard, SpinLock},
};
use vm::{Cache, Scan};

use super::header::LONGEST;

/// Frames or blocks of each order in a packet; without blocks, it has [`LONGEST`] frames.
const IN_PACKET: [usize; LARGEST_BLOCK + 1] = [3, 1, 1, 1];
/// Frames that are taken one by one after there was no block.
const PATIENCE: usize = 1024;

/// Frames that are looked at while the lock is held, when memory is short.
const AT_ONCE: usize = 64;

/// Frames and blocks of packets that only slices show, whose parts become no page of anything: only
/// the device writes to them. By order; each list has room for all that are remembered.
type Given = [VecDeque<Frame>; LARGEST_BLOCK + 1];

/// The remembered frames of one supply, shared with the pagedaemon.
struct Shared(SpinLock<Given>);

/// The frames of all supplies, as a cache that the pagedaemon shrinks.
struct Supplies(SpinLock<Slots<Weak<Shared>>>);

static SUPPLIES: Supplies = Supplies(SpinLock::new(Rank::Leaf, Slots::new()));

/// Where frames come from, and go.
pub struct Supply {
    given: Arc<Shared>,
    /// Its place among all.
    place: usize,
    /// Packets whose frames are remembered.
    packets: usize,
    /// Pages of packets end at those of the buffer: there are no blocks.
    has_pages: bool,
    /// Frames to be taken before another attempt to take a block.
    singles: usize,
}

impl Supply {
    /// Makes a supply that remembers the frames of so many of the longest packets, without blocks
    /// if packets are to fill pages. Those of a receive buffer that has grown are zeroed anew where
    /// it remembers fewer, which takes a sixth of a packet's instructions.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(packets: usize, has_pages: bool) -> Result<Supply, OutOfMemory> {
        let mut given: Given = [const { VecDeque::new() }; LARGEST_BLOCK + 1];
        for (order, list) in given.iter_mut().enumerate() {
            let room = list.try_reserve_exact(most(packets, has_pages, order));
            room.map_err(|_| OutOfMemory)?;
        }
        let given = Arc::new(Shared(SpinLock::new(Rank::Leaf, given)));
        let place = SUPPLIES.add(&given)?;
        Ok(Supply {
            given,
            place,
            packets,
            has_pages,
            singles: 0,
        })
    }

    /// Adds frames to a buffer, the last one first, until its first one is there: `missing` pages.
    /// Returns how many pages were added.
    pub fn fill(&mut self, buffer: &mut Vec<Frame>, missing: usize) -> usize {
        let mut left = missing;
        while let Some(order) = self.reuse(buffer, &mut left) {
            match Frame::alloc_block(order, Contents::Zeroed) {
                Ok(frame) => {
                    left -= frame.frames();
                    buffer.push(frame);
                }
                Err(OutOfMemory) if order > 0 => self.singles = PATIENCE,
                // The pagedaemon, which hears of it, frees what no packet uses.
                Err(OutOfMemory) => break,
            }
            self.singles -= usize::from(order == 0 && self.singles > 0);
        }
        missing - left
    }

    /// Adds frames and blocks that no packet uses any more, until one is missing: its order.
    fn reuse(&mut self, buffer: &mut Vec<Frame>, left: &mut usize) -> Option<usize> {
        let has_blocks = self.may_have_blocks();
        let mut given = self.given.0.lock();
        while *left > 0 {
            let order = if has_blocks { order_before(*left) } else { 0 };
            let list = &mut given[order];
            match list.pop_front() {
                Some(frame) if frame.handles() == 1 && !frame.may_be_read_by_devices() => {
                    *left -= 1 << order;
                    buffer.push(frame);
                    self.singles -= usize::from(order == 0 && self.singles > 0);
                }
                // Packets that wait for their program, or were just sent on, are passed over.
                Some(frame) => {
                    list.push_back(frame);
                    return Some(order);
                }
                None => return Some(order),
            }
        }
        None
    }

    /// Whether blocks are worth an attempt: where mappings know pages only, they are not.
    fn may_have_blocks(&self) -> bool {
        !self.has_pages && self.singles == 0 && ephemeral::backend() == Backend::Direct
    }

    /// Returns the list of frames and blocks of packets, which are used again when no slice shows
    /// them.
    pub fn keeping(&self) -> Keeping<'_> {
        Keeping {
            given: self.given.0.lock(),
            packets: self.packets,
            has_pages: self.has_pages,
        }
    }
}

/// The locked list of frames that come back.
pub struct Keeping<'a> {
    given: SpinGuard<'a, Given>,
    packets: usize,
    has_pages: bool,
}

impl Keeping<'_> {
    /// Notes a frame or block of a packet; the oldest one goes where there are too many.
    pub fn keep(&mut self, frame: Frame) {
        let order = frame.frames().ilog2() as usize;
        let most = most(self.packets, self.has_pages, order);
        let list = &mut self.given[order];
        if list.len() >= most {
            list.pop_front();
        }
        if most > 0 {
            list.push_back(frame);
        }
    }
}

/// Returns the order of a block that ends `end` pages behind the beginning of a buffer: it is as
/// large as what is before it, and no larger than what is left.
fn order_before(end: usize) -> usize {
    let begin = (end - 1).checked_ilog2().map_or(0, |order| 1 << order);
    ((end - begin).ilog2() as usize).min(LARGEST_BLOCK)
}

/// Returns how many frames or blocks of an order are remembered, for so many packets.
fn most(packets: usize, has_pages: bool, order: usize) -> usize {
    match (has_pages, order) {
        (true, 0) => packets,
        (true, _) => 0,
        (false, 0) => packets * LONGEST,
        (false, order) => packets * IN_PACKET[order],
    }
}

impl Drop for Supply {
    fn drop(&mut self) {
        SUPPLIES.remove(self.place);
    }
}

impl Shared {
    /// Returns the frames that are remembered.
    fn frames(&self) -> usize {
        let given = self.0.lock();
        let frames = given
            .iter()
            .enumerate()
            .map(|(order, list)| list.len() << order);
        frames.sum()
    }

    /// Frees up to `wanted` frames, or as many more as a block has, that no packet uses. Returns
    /// how many were looked at and how many were freed.
    fn shrink(&self, wanted: usize) -> (usize, usize) {
        let (mut seen, mut freed) = (0, 0);
        for order in (0..=LARGEST_BLOCK).rev() {
            // Each once: those that a packet uses go to the back.
            let mut left = self.0.lock()[order].len();
            while left > 0 && freed < wanted {
                // The lock is held for some at a time.
                let mut idle = Bundle::new();
                let list = &mut self.0.lock()[order];
                for _ in 0..left.min(AT_ONCE) {
                    left -= 1;
                    seen += 1 << order;
                    let Some(frame) = list.pop_front() else { break };
                    if frame.handles() > 1 {
                        list.push_back(frame);
                        continue;
                    }
                    freed += 1 << order;
                    idle.add(frame);
                    if freed >= wanted {
                        break;
                    }
                }
            }
        }
        (seen, freed)
    }
}

impl Supplies {
    /// Lists one; returns its place.
    fn add(&'static self, given: &Arc<Shared>) -> Result<usize, OutOfMemory> {
        let given = Arc::downgrade(given);
        let place = Slots::add_with(given, |given, spare| self.0.lock().add(given, spare))?;
        vm::register_cache(self);
        Ok(place)
    }

    fn remove(&self, place: usize) {
        let gone = self.0.lock().remove(place);
        drop(gone);
    }

    /// All of them; the list is not locked while one is in use.
    fn each(&self) -> impl Iterator<Item = Arc<Shared>> {
        let all = (0..).map_while(|at| Some(self.0.lock().get(at)?.and_then(Weak::upgrade)));
        all.flatten()
    }
}

impl Cache for Supplies {
    fn pages(&self) -> usize {
        self.each().map(|given| given.frames()).sum()
    }

    fn reclaim(&self, scan: &mut Scan) {
        for given in self.each() {
            if scan.is_done() {
                return;
            }
            let (seen, freed) = given.shrink(scan.wanted());
            scan.count(seen, freed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nucleus::{
        PAGE_SIZE,
        dma::{self, Part, Policy},
        frame::{self, DirectMap},
        sim::{BusMaster, Config, below, device_read, on_machines_like, on_machines_with},
    };
    use vm::Urgency;

    /// However much of a buffer was used before, a packet of any length keeps at most a page more
    /// than twice its pages, and a long one is few slices.
    #[test]
    fn packets_keep_little_more_than_their_bytes() {
        on_machines_with("frames for buffers", [1], 4096, 10, || {
            let mut supply = Supply::new(4, false).unwrap();
            let (mut buffer, mut pages) = (Vec::new(), 0);
            let has_blocks = supply.may_have_blocks() && frame::direct_map() == DirectMap::All;
            for _ in 0..200 {
                pages += supply.fill(&mut buffer, LONGEST - pages);
                assert_eq!(pages, LONGEST);
                let len = 1 + below(LONGEST * PAGE_SIZE);
                let (mut left, mut kept, mut slices) = (len, 0, 0);
                while left > 0 {
                    let frame = buffer.pop().unwrap();
                    left -= left.min(frame.size());
                    kept += frame.frames();
                    slices += 1;
                    supply.keeping().keep(frame);
                }
                pages -= kept;
                assert!(kept <= 2 * len.div_ceil(PAGE_SIZE) + 1, "{len}: {kept}");
                assert!(slices <= 6 || !has_blocks, "{len}: {slices}");
            }
        });
    }

    /// Behind an IOMMU, a device that has read a packet reads nothing of the next one in its frame.
    /// The writes of the card itself delay no frame.
    #[test]
    fn frames_that_devices_read_wait_for_their_invalidation() {
        let like = Config {
            iommu: Some(Policy::Strict),
            ..Config::default()
        };
        on_machines_like("frames that devices read", [1], 1024, 20, like, || {
            let (card, disk) = (BusMaster::new(), BusMaster::new());
            let mut supply = Supply::new(4, true).unwrap();
            let mut buffer = Vec::new();
            let mut receive = |supply: &mut Supply| {
                supply.fill(&mut buffer, 1);
                let part = Part::whole(buffer.pop().unwrap());
                drop(card.give([&part].into_iter(), true));
                supply.keeping().keep(part.frame.clone());
                part
            };
            let number = receive(&mut supply).frame.number();
            let part = receive(&mut supply);
            assert_eq!(part.frame.number(), number);
            let sent = disk.give([&part].into_iter(), false);
            let address = sent.addresses().next().unwrap();
            drop((sent, part));
            let next = receive(&mut supply).frame.number();
            let reads = device_read(disk.place(), address, &mut [0]);
            assert!(next != number || !reads, "it reads another packet");
            dma::settle();
            assert!((0..2).any(|_| receive(&mut supply).frame.number() == number));
        });
    }

    /// When memory is short, the pagedaemon frees what no packet uses, and that only.
    #[test]
    fn a_shortage_takes_frames_that_wait_for_packets() {
        on_machines_with("a supply in a shortage", [1], 4096, 10, || {
            let before = frame::usage().data;
            let mut supply = Supply::new(8, below(2) == 0).unwrap();
            let (mut buffer, mut used) = (Vec::new(), Vec::new());
            for _ in 0..200 {
                supply.fill(&mut buffer, LONGEST);
                for frame in buffer.drain(..) {
                    if below(20) == 0 {
                        used.push(frame.clone());
                    }
                    supply.keeping().keep(frame);
                }
            }
            let in_use: usize = used.iter().map(Frame::frames).sum();
            assert!(SUPPLIES.pages() > 0);
            let data = frame::usage().data;
            let mut some = Scan::new(3, usize::MAX, Urgency::Calm);
            SUPPLIES.reclaim(&mut some);
            assert!(some.is_done() && frame::usage().data <= data - 3);
            SUPPLIES.reclaim(&mut Scan::new(usize::MAX, usize::MAX, Urgency::Calm));
            assert_eq!(frame::usage().data, before + in_use);
            drop(used);
            supply.fill(&mut buffer, LONGEST);
            drop((buffer, supply));
            assert_eq!((SUPPLIES.pages(), frame::usage().data), (0, before));
        });
    }
}
