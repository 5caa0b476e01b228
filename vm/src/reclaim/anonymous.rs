//! Reclaim of swap-backed pages: those of amaps and of objects without a backing store.

use crate::counters::Counter;
use alloc::{boxed::Box, sync::Arc};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use nucleus::pmap;

use super::daemon;
use super::scan::{Scan, Urgency, Verdict};
use crate::amap::anon;
use crate::chunks::{Chunk, Hand, Registry, SLOTS};
use crate::swap::{Cluster, Paged};
use crate::{object, swap};

/// Pages of one write. More than 256 KiB is hardly faster on any disk, and waiters for memory wait
/// for whole writes.
static CLUSTER: AtomicUsize = AtomicUsize::new(64);
/// Pages in clusters, until their write has ended.
static IN_FLIGHT: AtomicUsize = AtomicUsize::new(0);

/// One page in so many is kept inactive, as in UVM: the time to go through these is the time in
/// which a page must be used again.
const INACTIVE_SHARE: usize = 3;
/// The most pages that are deactivated for each page wanted.
const FRONT_EFFORT: usize = 64;

/// Sets how many pages one write takes (`uvm.txt` 6), 1 to 512; with 1 each page is written singly,
/// as before UVM.
pub fn set_swap_cluster(pages: usize) {
    CLUSTER.store(pages.clamp(1, 512), Relaxed);
}

/// Returns how many pages one write takes.
pub fn swap_cluster() -> usize {
    CLUSTER.load(Relaxed)
}

/// Returns the number of inactive swap-backed pages; some may have been freed since.
pub fn inactive_anonymous() -> usize {
    anon::INACTIVE.load(Relaxed) + object::INACTIVE.load(Relaxed)
}

/// Returns whether there is swap space for such pages, or some may be dropped.
pub(super) fn can_go() -> bool {
    swap::usage().total > 0 || anon::may_be_lazy()
}

/// Pages that are being written to swap.
pub(super) fn in_flight() -> usize {
    IN_FLIGHT.load(Relaxed)
}

/// A clock with two hands. The front hand deactivates pages and clears their referenced bits; the
/// back hand takes those that were not used since.
struct Clock<T: Paged> {
    chunks: &'static Registry<Arc<Chunk<T>>>,
    inactive: &'static AtomicUsize,
    front: Hand,
    behind: Hand,
}

/// The clocks, and the cluster being gathered.
pub(super) struct Clocks {
    amaps: Clock<anon::Slot>,
    objects: Clock<object::Page>,
    leaving: Outgoing,
}

impl Clocks {
    pub fn new() -> Clocks {
        Clocks {
            amaps: Clock::new(&anon::CHUNKS, &anon::INACTIVE),
            objects: Clock::new(&object::CHUNKS, &object::INACTIVE),
            leaving: Outgoing {
                cluster: None,
                room: 0,
            },
        }
    }

    /// Goes round until `scan` is done, or twice. About `resident` such pages are in memory; at
    /// most `room` may be written to swap.
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
        // From the hands' positions to the end, then from the start.
        for _ in 0..2 {
            self.amaps.take_victims(scan, &mut self.leaving);
            self.objects.take_victims(scan, &mut self.leaving);
        }
    }

    /// Writes the gathered cluster.
    pub fn flush(&mut self) {
        self.leaving.flush();
    }
}

impl<T: Paged> Clock<T> {
    fn new(chunks: &'static Registry<Arc<Chunk<T>>>, inactive: &'static AtomicUsize) -> Clock<T> {
        Clock {
            chunks,
            inactive,
            front: Hand::default(),
            behind: Hand::default(),
        }
    }

    /// Advances the front hand until `target` pages are inactive, it has gone round, or `left`
    /// pages were deactivated. Returns whether any was.
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

    /// Deactivates all pages of a chunk; returns how many were active.
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

    /// Advances the back hand until `scan` is done, or to the end.
    fn take_victims(&mut self, scan: &mut Scan, leaving: &mut Outgoing) {
        while !scan.is_done() {
            let Some(chunk) = self.chunks.next(&mut self.behind) else {
                return;
            };
            let victims = self.judge_chunk(&chunk, scan, leaving.has_room());
            if victims != 0 {
                leaving.take(&chunk, victims, scan);
            }
        }
    }

    /// Judges the inactive pages of a chunk; returns the victims. If there is room for them they no
    /// longer count as inactive: counting pages that are leaving would deactivate too few of the
    /// others, and the next scan would find only small programs' pages.
    fn judge_chunk(&self, chunk: &Chunk<T>, scan: &mut Scan, has_room: bool) -> u32 {
        scan.tally.scanned += 1;
        if chunk.is_kept() {
            return 0;
        }
        // The holder of the lock is using it.
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
struct Outgoing {
    /// The cluster being gathered.
    cluster: Option<Cluster>,
    /// Pages that this round may still write.
    room: usize,
}

impl Outgoing {
    /// Takes victims of a chunk: drops clean ones and adds others to the cluster, as far as there
    /// is room.
    fn take<T: Paged>(&mut self, chunk: &Arc<Chunk<T>>, victims: u32, scan: &mut Scan) {
        // A cluster may become full within a chunk.
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

    /// Whether more pages may be written.
    fn has_room(&self) -> bool {
        self.room > 0 || self.cluster.is_some()
    }

    /// Writes the gathered cluster.
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
