//! Page-out: pages leave for neighbouring slots, wherever they stand in memory (`uvm.txt` 6).
//!
//! A page that is written loses its slot at once, so a page that has to go has none, and gets whichever is the next of the cluster:
//! dirty pages of anywhere make one write. A page goes in four steps:
//!
//! 1. with its chunk locked, all its mappings are removed and flushed, and it is seen that nobody else holds its frame;
//! 2. it gets its slot: from here on who maps it does so without the right to write it, and who writes it takes the slot away
//!    from it again;
//! 3. the cluster is written, with no lock held;
//! 4. if the page still has that slot, and nobody has mapped it or holds it, its frame is dropped.
//!
//! A slot that is taken away while it is written stays busy until that has ended.

use alloc::{boxed::Box, sync::Arc, sync::Weak, vec::Vec};
use nucleus::{
    Frame, Prot,
    counters::Counter,
    pmap::{self, Pending},
};

use super::store::StoreFailed;
use super::swap_state::{Home, Paged, SwapState};
use super::table;
use super::table::{Run, Validity};
use crate::chunks::{Chunk, SLOTS};

/// Pages that are gathered for one write.
pub(crate) struct Cluster {
    /// Slots for as many as there may be.
    run: Run,
    frames: Vec<Frame>,
    /// Whose pages they are: the pages of a chunk stand together, in their order there.
    parts: Vec<Part>,
}

/// Pages of one chunk in a cluster.
struct Part {
    home: Weak<dyn Home>,
    /// A bit for each page that is among them.
    pages: u32,
    /// Which of the cluster the first of them is.
    first: usize,
}

/// What became of the pages of a chunk that were to go.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Taken {
    /// Pages that the cluster has.
    pub leaving: usize,
    /// Pages that a slot had already, and which are gone.
    pub dropped: usize,
    /// Pages that are wired, that somebody holds, or that are read or written just now.
    pub refused: usize,
}

/// What became of a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Written {
    /// Pages whose frames were freed.
    pub freed: usize,
    /// Pages that were used meanwhile, or have gone, and those that could not be written.
    pub kept: usize,
    /// The write failed: its slots are not used any more.
    pub failed: bool,
}

impl Cluster {
    /// Room for up to `most` pages, at least one. `None` if the swap space is full, or there is no memory for the lists.
    pub fn new(most: usize) -> Option<Cluster> {
        let (mut frames, mut parts) = (Vec::new(), Vec::new());
        let run = Run::reserve(most as u32)?;
        frames.try_reserve_exact(run.len()).ok()?;
        parts.try_reserve_exact(run.len()).ok()?;
        Some(Cluster { run, frames, parts })
    }

    /// Pages that are in it.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether it has no room for more.
    pub fn is_full(&self) -> bool {
        self.len() == self.run.len()
    }

    /// Takes those of the pages of `chunk` in whose place a bit is set in `wanted`, as far as they are in memory and there is room. Their
    /// mappings are gone, and flushed, when this returns. No lock is held.
    pub fn take<T: Paged>(&mut self, chunk: &Arc<Chunk<T>>, wanted: u32) -> Taken {
        let mut taken = Taken::default();
        if chunk.is_kept() {
            return taken;
        }
        let mut chosen: [Option<Frame>; SLOTS] = [const { None }; SLOTS];
        let mut slots = chunk.lock();
        let mut room = self.run.len() - self.len();
        for i in (0..SLOTS).filter(|i| wanted >> i & 1 != 0) {
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
                // This one and the location's: whoever has another may be about to write.
                let is_free = location.frame() == Some(&frame) && frame.handles() == 2;
                match location.is_clean() {
                    _ if !is_free => taken.refused += 1,
                    _ if location.is_lazy() => match pmap::is_modified(&frame) {
                        // It was wanted after all.
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
                        pmap::clear_modified(&frame, &mut pending);
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

    /// Writes the cluster; `done` hears what became of it, in a kernel task or before this returns. No lock is held.
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

/// Drops the frames of those pages of `chunk` with a bit set in `wanted` that a slot has as well; what can be done without room in the swap
/// space. Returns how many. No lock is held.
pub(crate) fn drop_clean<T: Paged>(chunk: &Chunk<T>, wanted: u32) -> usize {
    if chunk.is_kept() {
        return 0;
    }
    let mut slots = chunk.lock();
    let mut pending = Pending::new();
    let which = || (0..SLOTS).filter(|i| wanted >> i & 1 != 0);
    for i in which() {
        slots[i].with_state(&mut |location| {
            if let Candidate::Clean(frame) | Candidate::Lazy(frame) = candidate(location) {
                pmap::page_protect(&frame, Prot::empty(), &mut pending);
            }
        });
    }
    pending.flush();
    let mut dropped = 0;
    for i in which() {
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

/// What a page is to one who wants it to go.
enum Candidate {
    /// It is not in memory.
    Absent,
    /// It is being written already, or some mapping of it is wired.
    Busy,
    /// A slot has it.
    Clean(Frame),
    /// Its bytes are not wanted.
    Lazy(Frame),
    /// It has to be written.
    Dirty(Frame),
}

fn candidate(location: &mut SwapState) -> Candidate {
    let Some(frame) = location.frame().cloned() else {
        return Candidate::Absent;
    };
    if pmap::is_wired(&frame) {
        return Candidate::Busy;
    }
    if location.is_lazy() {
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

/// The cluster was written, or could not be.
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
        // What has ended has taken its pages along.
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
    // The slots are free to be read, or anybody's if their pages have left them.
    drop(run);
    written
}
