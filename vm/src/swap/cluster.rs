//! Clustered page-out: pages go to neighbouring slots, wherever they are in memory (`uvm.txt` 6).
//!
//! A page that is written loses its slot at once, so a dirty page owns none and gets the next slot
//! of the cluster: dirty pages from anywhere make one write. A page leaves in four steps:
//!
//! 1. with its chunk locked, its mappings are removed and flushed, and no other reference to its
//!    frame is left;
//! 2. it gets its slot: from now on it is mapped read-only, and a write takes the slot away again;
//! 3. the cluster is written, without a lock;
//! 4. if the page still owns that slot, is not mapped, and its frame has no other reference, the
//!    frame is dropped.
//!
//! A slot that is taken away during the write stays busy until the write has ended.

use crate::counters::Counter;
use alloc::{boxed::Box, sync::Arc, sync::Weak, vec::Vec};
use nucleus::{
    Frame, Prot,
    pmap::{self, Pending},
};

use super::store::StoreFailed;
use super::swap_state::{Home, Paged, SwapState, may_go};
use super::table;
use super::table::{Run, Validity};
use crate::chunks::{Chunk, SLOTS, slots_in};

/// Pages gathered for one write.
pub(crate) struct Cluster {
    /// Slots for the most pages that it may hold.
    run: Run,
    frames: Vec<Frame>,
    /// The chunks that the pages belong to: the pages of a chunk are consecutive and in order.
    parts: Vec<Part>,
}

/// The pages of one chunk in a cluster.
struct Part {
    home: Weak<dyn Home>,
    /// A bit for each page of the chunk that is in the cluster.
    pages: u32,
    /// The position of the first of them in the cluster.
    first: usize,
}

/// The outcome of adding the pages of a chunk to a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Taken {
    /// Pages that the cluster now holds.
    pub leaving: usize,
    /// Pages that were dropped, since a slot or nothing had to keep their bytes.
    pub dropped: usize,
    /// Pages that are wired, referenced elsewhere, or being read or written.
    pub refused: usize,
}

/// The outcome of writing a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Written {
    /// Pages whose frames were freed.
    pub freed: usize,
    /// Pages that were used or freed meanwhile, and those that could not be written.
    pub kept: usize,
    /// The write failed: the slots are not used any more.
    pub failed: bool,
}

impl Cluster {
    /// Reserves room for up to `most` pages, at least one. Returns `None` if the swap space is full
    /// or memory for the lists is missing.
    pub fn new(most: usize) -> Option<Cluster> {
        let (mut frames, mut parts) = (Vec::new(), Vec::new());
        let run = Run::reserve(most as u32)?;
        frames.try_reserve_exact(run.len()).ok()?;
        parts.try_reserve_exact(run.len()).ok()?;
        Some(Cluster { run, frames, parts })
    }

    /// The number of pages in it.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether it has no room left.
    pub fn is_full(&self) -> bool {
        self.len() == self.run.len()
    }

    /// Takes the pages of `chunk` with a bit in `wanted` that are in memory, as far as there is
    /// room. Their mappings are removed and flushed on return. No lock is held.
    pub fn take<T: Paged>(&mut self, chunk: &Arc<Chunk<T>>, wanted: u32) -> Taken {
        let mut taken = Taken::default();
        if chunk.is_kept() {
            return taken;
        }
        let mut chosen: [Option<Frame>; SLOTS] = [const { None }; SLOTS];
        let mut slots = chunk.lock();
        let mut room = self.run.len() - self.len();
        for i in slots_in(wanted) {
            slots[i].with_state(&mut |location| match candidate(location) {
                Candidate::Absent => {}
                Candidate::Busy => taken.refused += 1,
                Candidate::Clean(frame) | Candidate::Lazy(frame) => chosen[i] = Some(frame),
                Candidate::Dirty(_) if room == 0 => {}
                Candidate::Dirty(frame) => {
                    room -= 1;
                    chosen[i] = Some(frame);
                }
            });
        }
        let mut pending = Pending::new();
        for frame in chosen.iter().flatten() {
            pmap::page_protect(frame, Prot::empty(), &mut pending);
        }
        pending.flush();
        let (first, mut pages) = (self.len(), 0);
        for (i, chosen) in chosen.iter_mut().enumerate() {
            let Some(frame) = chosen.take() else {
                continue;
            };
            let mut dropped = None;
            slots[i].with_state(&mut |location| {
                let is_free = location.frame() == Some(&frame) && may_go(&frame, 1);
                match location.is_clean() {
                    _ if !is_free => taken.refused += 1,
                    _ if location.lazy => match pmap::is_modified(&frame) {
                        // The page was used after `MADV_FREE`.
                        true => {
                            location.dirty();
                            taken.refused += 1;
                        }
                        false => {
                            dropped = location.drop_lazy(1);
                            taken.dropped += 1;
                        }
                    },
                    true => {
                        dropped = location.drop_frame(1);
                        taken.dropped += 1;
                    }
                    false => {
                        location.leave(self.run.own(self.frames.len()));
                        if !frame.is_lent() {
                            // Another owner may have to write it elsewhere.
                            pmap::clear_modified(&frame, &mut pending);
                        }
                        self.frames.push(frame.clone());
                        pages |= 1 << i;
                        taken.leaving += 1;
                    }
                }
            });
        }
        drop(slots);
        if pages != 0 {
            let home: Weak<Chunk<T>> = Arc::downgrade(chunk);
            self.parts.push(Part { home, pages, first });
        }
        Counter::swap_clean_drops.add(taken.dropped as u64);
        taken
    }

    /// Writes the cluster. `done` gets the outcome, in a kernel task or before this returns. No
    /// lock is held.
    pub fn write(self, done: Box<dyn FnOnce(Written) + Send>) {
        let Cluster {
            mut run,
            frames,
            parts,
        } = self;
        run.truncate(frames.len());
        if frames.is_empty() {
            return done(Written::default());
        }
        Counter::swap_writes.add(1);
        Counter::swap_pages_out.add(frames.len() as u64);
        let (store, slot) = run.store();
        let end = move |result| done(finish(run, parts, result));
        store.write(slot, frames, Box::new(end));
    }
}

/// Drops the frames of those pages of `chunk` with a bit in `wanted` whose bytes a slot holds, too;
/// possible even if the swap space is full. Returns how many. No lock is held.
pub(crate) fn drop_clean<T: Paged>(chunk: &Chunk<T>, wanted: u32) -> usize {
    if chunk.is_kept() {
        return 0;
    }
    let mut slots = chunk.lock();
    let mut pending = Pending::new();
    for i in slots_in(wanted) {
        slots[i].with_state(&mut |location| {
            if let Candidate::Clean(frame) | Candidate::Lazy(frame) = candidate(location) {
                pmap::page_protect(&frame, Prot::empty(), &mut pending);
            }
        });
    }
    pending.flush();
    let mut dropped = 0;
    for i in slots_in(wanted) {
        slots[i].with_state(&mut |location| {
            let gone = match candidate(location) {
                Candidate::Clean(frame) => {
                    drop(frame);
                    location.drop_frame(0)
                }
                Candidate::Lazy(frame) => {
                    drop(frame);
                    location.drop_lazy(0)
                }
                _ => None,
            };
            dropped += usize::from(gone.is_some());
        });
    }
    Counter::swap_clean_drops.add(dropped as u64);
    dropped
}

/// A page as a candidate for page-out.
enum Candidate {
    /// Not in memory.
    Absent,
    /// Being written already, or mapped wired.
    Busy,
    /// A slot holds its bytes.
    Clean(Frame),
    /// Its bytes are not needed.
    Lazy(Frame),
    /// It must be written.
    Dirty(Frame),
}

fn candidate(location: &mut SwapState) -> Candidate {
    let Some(frame) = location.frame().cloned() else {
        return Candidate::Absent;
    };
    if pmap::is_wired(&frame) {
        return Candidate::Busy;
    }
    if location.lazy {
        if !pmap::is_modified(&frame) {
            return Candidate::Lazy(frame);
        }
        location.dirty();
    }
    match location.slot().map(table::validity) {
        None => Candidate::Dirty(frame),
        Some(Validity::Busy) => Candidate::Busy,
        Some(Validity::Valid) => Candidate::Clean(frame),
        Some(Validity::Bad) => {
            location.dirty();
            Candidate::Dirty(frame)
        }
    }
}

/// Completes a write, successful or not.
fn finish(run: Run, parts: Vec<Part>, result: Result<(), StoreFailed>) -> Written {
    let failed = result.is_err();
    let mut written = Written {
        failed,
        kept: run.len(),
        ..Written::default()
    };
    if failed {
        Counter::swap_failures.add(1);
        run.mark_bad();
    }
    for part in parts {
        // A dropped chunk has taken its pages along.
        let Some(home) = part.home.upgrade() else {
            continue;
        };
        let before = |i: usize| (part.pages & ((1 << i) - 1)).count_ones() as usize;
        home.visit(part.pages, &mut |i, location| {
            let place = part.first + before(i);
            let slot = location.slot().map(|slot| slot.number());
            if slot != Some(run.number(place)) || location.is_swapped() {
                return;
            }
            if failed {
                location.dirty();
            } else if location.drop_frame(0).is_some() {
                written.freed += 1;
            }
        });
    }
    written.kept -= written.freed;
    // The slots are no longer busy; those without an owner are free.
    drop(run);
    written
}
