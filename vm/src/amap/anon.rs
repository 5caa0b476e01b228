//! Anons: single pages of anonymous memory (`uvm.txt` 5.2).
//!
//! An anon has a reference count and a location. The paper allocates a structure for each. Here an
//! anon of a single amap is stored in the amap's slot itself, so that a zero-fill fault allocates
//! nothing but the page. It moves to a counted structure when a second amap refers to it (after a
//! fork, and only once a shared chunk of slots is copied: `shared_chunk.rs`), and back into a slot
//! when a writer finds itself the only owner. A sole anon's location is guarded by its chunk's
//! lock, a counted one's by its own lock.
//!
//! *Why writing in place is safe*: a reference to an anon, or to an amap with anons, is dropped
//! only after every translation made under it has been flushed from every TLB. The holder of the
//! only reference therefore knows that no other address space still sees the page.

use alloc::sync::Arc;
use core::ops::Deref;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use nucleus::{
    Frame, OutOfMemory, PAGE_SIZE, ephemeral,
    frame::{Contents, Owned},
    pmap::{self, Pending},
    sync::{Rank, SpinLock},
};

use crate::chunks::{Chunk, Content, Registry};
use crate::counters::Counter;
use crate::swap::{Paged, SwapState};

/// A page of anonymous memory that several amaps may refer to.
pub(crate) struct Anon {
    location: SpinLock<SwapState>,
}

/// A slot of an amap.
#[derive(Default)]
pub(crate) enum Slot {
    /// Empty: the layer below shows through.
    #[default]
    Empty,
    /// An anon without references from other slots.
    Sole(SwapState),
    /// An anon that slots of other amaps may refer to as well.
    Shared(Arc<Anon>),
}

// Chunks of slots are most of the memory of amaps.
const _: () = assert!(size_of::<Slot>() == 16);

/// The frame of a resident anon.
pub(crate) struct Resident<'a> {
    frame: Held<'a>,
    /// The page must not be mapped writable: a swap slot has the same bytes, or it is lent.
    pub is_fixed: bool,
}

enum Held<'a> {
    InSlot(&'a Frame),
    Counted(Frame),
}

impl<'a> Resident<'a> {
    /// Wraps the frame of an object's page.
    pub fn of(frame: &'a Frame) -> Resident<'a> {
        Resident {
            frame: Held::InSlot(frame),
            is_fixed: false,
        }
    }
}

impl Deref for Resident<'_> {
    type Target = Frame;

    #[inline]
    fn deref(&self) -> &Frame {
        match &self.frame {
            Held::InSlot(frame) => frame,
            Held::Counted(frame) => frame,
        }
    }
}

impl From<Resident<'_>> for Frame {
    #[inline]
    fn from(page: Resident<'_>) -> Frame {
        match page.frame {
            Held::InSlot(frame) => frame.clone(),
            Held::Counted(frame) => frame,
        }
    }
}

impl Content for Slot {
    const RANK: Rank = crate::rank::AMAP;

    #[inline]
    fn is_vacant(&self) -> bool {
        self.is_empty()
    }

    #[inline]
    fn into_owned(self) -> Option<Owned> {
        let location = match self {
            Slot::Empty => return None,
            Slot::Sole(location) => location,
            Slot::Shared(anon) => Arc::into_inner(anon)?.location.into_inner(),
        };
        location.into_owned()
    }

    #[cold]
    fn left_lent() {
        Counter::loans_broken_by_unmap.add(1);
    }

    fn registry() -> Option<&'static Registry<Arc<Chunk<Slot>>>> {
        Some(&CHUNKS)
    }
}

impl Paged for Slot {
    fn with_state(&mut self, f: &mut dyn FnMut(&mut SwapState)) {
        match self {
            Slot::Empty => {}
            Slot::Sole(location) => {
                f(location);
                if location.is_gone() {
                    *self = Slot::Empty;
                }
            }
            Slot::Shared(anon) => f(&mut anon.location.lock()),
        }
    }
}

/// All chunks of amaps. Their pages start as active ones.
pub(crate) static CHUNKS: Registry<Arc<Chunk<Slot>>> = Registry::new(&INACTIVE);

/// The number of inactive pages in [`CHUNKS`]; some may have been freed since.
pub(crate) static INACTIVE: AtomicUsize = AtomicUsize::new(0);

/// Whether any program has ever freed pages lazily (`MADV_FREE`).
static LAZY: AtomicBool = AtomicBool::new(false);

/// Notes that an anon is about to become one that may be dropped without being written out.
pub(crate) fn note_lazy() {
    LAZY.store(true, Relaxed);
}

/// Returns whether there may be anons that may be dropped without being written out.
pub(crate) fn may_be_lazy() -> bool {
    LAZY.load(Relaxed)
}

impl Slot {
    /// Returns a slot with a new anon.
    #[inline]
    pub fn sole(frame: impl Into<Owned>) -> Slot {
        Slot::Sole(SwapState::memory(frame))
    }

    /// Puts a new anon into this empty slot, without the check for an old value to drop.
    #[inline]
    pub fn fill(&mut self, frame: Frame) {
        self.fill_with(Slot::sole(frame));
    }

    /// As [`fill`](Slot::fill), with any anon.
    #[inline]
    pub fn fill_with(&mut self, anon: Slot) {
        debug_assert!(self.is_empty());
        core::mem::forget(core::mem::replace(self, anon));
    }

    /// The page of a sole anon, if it is resident.
    #[inline]
    pub fn sole_frame(&self) -> Option<&Frame> {
        match self {
            Slot::Sole(location) => location.frame(),
            _ => None,
        }
    }

    /// The anon's page, if it is resident.
    #[inline]
    pub fn resident(&self) -> Option<Resident<'_>> {
        match self {
            Slot::Empty => None,
            Slot::Sole(location) => {
                let (frame, is_fixed) = location.resident()?;
                Some(Resident {
                    frame: Held::InSlot(frame),
                    is_fixed,
                })
            }
            Slot::Shared(anon) => {
                let location = anon.location.lock();
                let (frame, is_fixed) = location.resident()?;
                Some(Resident {
                    frame: Held::Counted(frame.clone()),
                    is_fixed,
                })
            }
        }
    }

    /// Returns whether the slot is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        matches!(self, Slot::Empty)
    }

    /// Returns whether the slot holds an anon whose page is not resident.
    pub fn is_swapped(&self) -> bool {
        match self {
            Slot::Empty => false,
            Slot::Sole(location) => location.is_swapped(),
            Slot::Shared(anon) => anon.location.lock().is_swapped(),
        }
    }

    /// The number of slots that refer to the anon.
    pub fn sharers(&self) -> usize {
        match self {
            Slot::Empty => 0,
            Slot::Sole(_) => 1,
            Slot::Shared(anon) => Arc::strong_count(anon),
        }
    }

    /// Returns another reference to the anon, for another amap. The page stays where it is, in
    /// memory or in swap.
    pub fn share(&mut self) -> Slot {
        let anon = match self {
            Slot::Empty => return Slot::Empty,
            Slot::Shared(anon) => return Slot::Shared(anon.clone()),
            Slot::Sole(_) => core::mem::take(self),
        };
        let Slot::Sole(mut location) = anon else {
            return Slot::Empty;
        };
        if location.lazy {
            // A page that others see must not be freed lazily.
            location.dirty();
        }
        let anon = Arc::new(Anon {
            location: SpinLock::new(crate::rank::ANON, location),
        });
        *self = Slot::Shared(anon.clone());
        Slot::Shared(anon)
    }

    /// Returns whether other slots refer to the anon, or its page is lent. They may drop their
    /// references at any time.
    #[inline]
    pub fn has_others(&self) -> bool {
        match self {
            Slot::Empty => false,
            Slot::Sole(location) => location.is_lent(),
            Slot::Shared(anon) => Arc::strong_count(anon) > 1 || anon.location.lock().is_lent(),
        }
    }

    /// The page, if it may be mapped writable: it is resident and has no other owner.
    #[inline]
    pub fn to_write(&self) -> Option<&Frame> {
        match self {
            Slot::Sole(location) => location.frame_to_write(),
            _ => None,
        }
    }

    /// Makes another owner of the page, which must not be written from then on, and is not to be
    /// freed lazily ([`keep`](Slot::keep)); `None` if it is not resident. Says also whether it was
    /// lent already.
    #[inline]
    pub fn lend(&self) -> Option<(Owned, bool)> {
        match self {
            Slot::Empty => None,
            Slot::Sole(location) => location.owned().map(Owned::lend),
            // With its lock held: page-out may take the page from the anon at any other time, and
            // leave it to an owner who then writes it.
            Slot::Shared(anon) => anon.location.lock().owned().map(Owned::lend),
        }
    }

    /// Returns whether the page is mapped, may be freed lazily, and was not modified since.
    pub fn is_mapped_and_lazy(&self) -> bool {
        match self {
            Slot::Sole(location) if location.lazy => location
                .frame()
                .is_some_and(|frame| frame.mappings() > 0 && !pmap::is_modified(frame)),
            _ => false,
        }
    }

    /// Revokes lazy freeing: the page will have further owners.
    pub fn keep(&mut self) {
        if let Slot::Sole(location) = self
            && location.lazy
        {
            location.dirty();
        }
    }

    /// Returns whether the slot holds the only reference to an anon. The chunk has one owner, the
    /// amap belongs to one entry, and the map is write-locked.
    #[inline]
    pub fn is_sole(&self) -> bool {
        match self {
            Slot::Empty => false,
            // References to a counted one came through amaps that no longer exist, so that no new
            // ones can appear.
            Slot::Sole(_) | Slot::Shared(_) => !self.has_others(),
        }
    }

    /// Returns whether this is the only reference to its anon, whose page is not lent: it may then
    /// be written in place if the chunk has one owner. An anon without other owners left becomes a
    /// sole one.
    pub fn make_sole(&mut self) -> bool {
        match self {
            Slot::Empty => return false,
            Slot::Sole(location) => return !location.is_lent(),
            Slot::Shared(anon) if Arc::strong_count(anon) > 1 => return false,
            Slot::Shared(_) => {}
        }
        let Slot::Shared(anon) = core::mem::take(self) else {
            return false;
        };
        match Arc::try_unwrap(anon) {
            Ok(anon) => {
                let location = anon.location.into_inner();
                let is_alone = !location.is_lent();
                self.fill_with(Slot::Sole(location));
                is_alone
            }
            Err(anon) => {
                self.fill_with(Slot::Shared(anon));
                false
            }
        }
    }

    /// Allows freeing the page lazily unless a mapping modifies it after `pending` was flushed
    /// (`MADV_FREE`). Pages with other owners are only dropped from this slot.
    pub fn free_lazily(&mut self, pending: &mut Pending) {
        if !self.make_sole() {
            return;
        }
        if let Slot::Sole(location) = self
            && let Some(frame) = location.frame().cloned()
        {
            location.free_lazily();
            pmap::clear_modified(&frame, pending);
        } else {
            *self = Slot::Empty;
        }
    }

    /// Notes that the sole anon is about to be written.
    #[inline]
    pub fn dirty(&mut self) {
        if let Slot::Sole(location) = self {
            location.dirty();
        }
    }
}

/// Returns a new frame with the same bytes.
pub(crate) fn copy_of(frame: &Frame) -> Result<Frame, OutOfMemory> {
    let copy = Frame::alloc(Contents::Stale)?;
    ephemeral::copy(&copy, 0, frame, 0, PAGE_SIZE);
    Counter::pages_copied.add(1);
    Ok(copy)
}
