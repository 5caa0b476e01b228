//! Pages without a home of their own: those of amaps, and those of objects that exist in memory only. They go to swap.

use alloc::{boxed::Box, sync::Arc};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use nucleus::{counters::Counter, pmap};

use super::daemon;
use super::scan::{Scan, Urgency, Verdict};
use crate::amap::anon;
use crate::chunks::{Chunk, Hand, Registry, SLOTS};
use crate::swap::{Cluster, Paged};
use crate::{object, swap};

/// Pages that leave by one write. More than 256 KiB at once is hardly faster on any disk, and those who wait
/// for memory wait for whole writes.
static CLUSTER: AtomicUsize = AtomicUsize::new(64);
/// Pages in clusters, from being taken to the end of the write.
static IN_FLIGHT: AtomicUsize = AtomicUsize::new(0);

/// One such page in so many is kept inactive, as UVM does: the time that it takes to get through them is the time in which a page has
/// to prove itself.
const INACTIVE_SHARE: usize = 3;
/// Pages that are made inactive for each that is wanted, at most.
const FRONT_EFFORT: usize = 64;

/// Sets how many pages leave by one write (`uvm.txt` 6), 1 to 512; with 1 each goes alone, as before UVM collected them.
pub fn set_swap_cluster(pages: usize) {
    CLUSTER.store(pages.clamp(1, 512), Relaxed);
}

/// How many pages leave by one write.
pub fn swap_cluster() -> usize {
    CLUSTER.load(Relaxed)
}

/// Inactive pages without a home; some may have gone.
pub fn inactive_anonymous() -> usize {
    anon::INACTIVE.load(Relaxed) + object::INACTIVE.load(Relaxed)
}

/// Whether there is a place for such pages, or some may be dropped.
pub(super) fn can_go() -> bool {
    swap::usage().total > 0 || anon::may_be_lazy()
}

/// Those that are on their way there.
pub(super) fn in_flight() -> usize {
    IN_FLIGHT.load(Relaxed)
}

/// Two hands of a clock. The one in front makes active pages inactive and forgets that they were used; the one behind finds
/// out whether they were used since, and takes those that were not.
struct Clock<T: Paged> {
    chunks: &'static Registry<Chunk<T>>,
    inactive: &'static AtomicUsize,
    front: Hand,
    behind: Hand,
}

/// The clocks, and the pages that are gathered for a write.
pub(super) struct Clocks {
    amaps: Clock<anon::Slot>,
    objects: Clock<object::Page>,
    leaving: Leaving,
}

impl Clocks {
    pub fn new() -> Clocks {
        Clocks {
            amaps: Clock::new(&anon::CHUNKS, &anon::INACTIVE),
            objects: Clock::new(&object::CHUNKS, &object::INACTIVE),
            leaving: Leaving {
                cluster: None,
                room: 0,
            },
        }
    }

    /// Goes round until `scan` is done, or twice. `resident`: how many such pages are in memory, roughly. `room`: how many may
    /// be sent to swap.
    pub fn reclaim(&mut self, scan: &mut Scan, resident: usize, room: usize) {
        if !can_go() || scan.is_done() {
            return;
        }
        self.leaving.room = room;
        let target = (resident / INACTIVE_SHARE).max(2 * scan.wanted());
        let mut left = FRONT_EFFORT * scan.wanted();
        let amaps = self.amaps.deactivate(target, &mut left);
        let objects = self.objects.deactivate(target, &mut left);
        if amaps || objects {
            pmap::watch_references();
        }
        // From where the hands stand to the end, and from the start.
        for _ in 0..2 {
            self.amaps.go_on(scan, &mut self.leaving);
            self.objects.go_on(scan, &mut self.leaving);
        }
    }

    /// Writes what is gathered.
    pub fn flush(&mut self) {
        self.leaving.flush();
    }
}

impl<T: Paged> Clock<T> {
    fn new(chunks: &'static Registry<Chunk<T>>, inactive: &'static AtomicUsize) -> Clock<T> {
        Clock {
            chunks,
            inactive,
            front: Hand::default(),
            behind: Hand::default(),
        }
    }

    /// Moves the hand in front until `target` pages are inactive, or it has been round, or has made `left` pages so. Returns
    /// whether any was.
    fn deactivate(&mut self, target: usize, left: &mut usize) -> bool {
        let mut any = false;
        let mut rounds = 0;
        while inactive_anonymous() < target && *left > 0 && rounds < 2 {
            let Some(chunk) = self.chunks.next(&mut self.front) else {
                rounds += 1;
                continue;
            };
            let done = self.deactivate_all(&chunk);
            any |= done > 0;
            *left = left.saturating_sub(done.max(1));
        }
        any
    }

    /// Makes all pages of a chunk inactive; returns how many were not.
    fn deactivate_all(&self, chunk: &Chunk<T>) -> usize {
        let Some(mut slots) = chunk.try_lock() else {
            return 0;
        };
        let before = chunk.aged();
        let mut inactive = 0;
        for (i, slot) in slots.iter_mut().enumerate() {
            slot.with_state(&mut |location| {
                if let Some(frame) = location.frame() {
                    inactive |= 1 << i;
                    if before & 1 << i == 0 {
                        pmap::take_referenced(frame);
                    }
                }
            });
        }
        self.set_inactive(chunk, inactive);
        let done = (inactive & !before).count_ones() as usize;
        Counter::pageout_deactivated.add(done as u64);
        done
    }

    /// Sets which pages of a locked chunk are inactive.
    fn set_inactive(&self, chunk: &Chunk<T>, inactive: u32) {
        let before = chunk.aged().count_ones() as usize;
        chunk.set_aged(inactive);
        self.inactive
            .fetch_add(inactive.count_ones() as usize, Relaxed);
        self.inactive.fetch_sub(before, Relaxed);
    }

    /// Moves the hand behind until `scan` is done, or to the end.
    fn go_on(&mut self, scan: &mut Scan, leaving: &mut Leaving) {
        while !scan.is_done() {
            let Some(chunk) = self.chunks.next(&mut self.behind) else {
                return;
            };
            let victims = self.look(&chunk, scan, leaving.has_room());
            if victims != 0 {
                leaving.take(&chunk, victims, scan);
            }
        }
    }

    /// Looks at the inactive pages of a chunk; returns those that may go. If there is room for them they are inactive no more: were pages that have
    /// gone still counted, too few of those that are there would be made inactive, and the next look would find none but a small program's.
    fn look(&self, chunk: &Chunk<T>, scan: &mut Scan, has_room: bool) -> u32 {
        scan.tally.scanned += 1;
        if chunk.is_kept() {
            return 0;
        }
        // Who holds it is using it.
        let Some(mut slots) = chunk.try_lock() else {
            return 0;
        };
        let all = scan.urgency() == Urgency::Desperate;
        let before = chunk.aged();
        let (mut inactive, mut victims) = (0, 0);
        for i in (0..SLOTS).filter(|i| all || before & 1 << i != 0) {
            slots[i].with_state(&mut |location| {
                let Some(frame) = location.frame() else {
                    return;
                };
                match scan.judge(before & 1 << i == 0, frame) {
                    Verdict::Active => {}
                    Verdict::Inactive => inactive |= 1 << i,
                    Verdict::Victim => {
                        inactive |= u32::from(!has_room) << i;
                        victims |= 1 << i;
                    }
                }
            });
        }
        self.set_inactive(chunk, inactive);
        victims
    }
}

/// Pages on their way out.
struct Leaving {
    /// What is gathered for the next write.
    cluster: Option<Cluster>,
    /// Pages that may still be sent off in this round.
    room: usize,
}

impl Leaving {
    /// Lets pages of a chunk go: those at once that swap has already, the others with the cluster, as far as there is room.
    fn take<T: Paged>(&mut self, chunk: &Arc<Chunk<T>>, victims: u32, scan: &mut Scan) {
        // One cluster may be full in the middle of a chunk.
        for _ in 0..SLOTS {
            if self.cluster.is_none() && self.room > 0 {
                self.cluster = Cluster::new(swap_cluster());
            }
            let Some(cluster) = &mut self.cluster else {
                let dropped = swap::drop_clean(chunk, victims);
                scan.freed(dropped);
                return;
            };
            let taken = cluster.take(chunk, victims);
            let full = cluster.is_full();
            IN_FLIGHT.fetch_add(taken.leaving, Relaxed);
            self.room = self.room.saturating_sub(taken.leaving);
            scan.freed(taken.leaving + taken.dropped);
            scan.tally.written += taken.leaving;
            if !full {
                return;
            }
            self.flush();
            if taken.leaving == 0 {
                return;
            }
        }
    }

    /// Whether more pages may be sent off.
    fn has_room(&self) -> bool {
        self.room > 0 || self.cluster.is_some()
    }

    /// Writes what is gathered.
    fn flush(&mut self) {
        let Some(cluster) = self.cluster.take() else {
            return;
        };
        let pages = cluster.len();
        cluster.write(Box::new(move |_| {
            IN_FLIGHT.fetch_sub(pages, Relaxed);
            daemon::arrived();
        }));
    }
}
