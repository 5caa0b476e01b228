//! Anons: single pages of anonymous memory (`uvm.txt` 5.2).
//!
//! An anon has a reference count and a location. The paper allocates a structure for each; here
//! an anon that only one amap refers to lies in the amap's slot itself, so that a zero-fill fault
//! allocates nothing but the page. It moves into a counted structure when a second amap comes to
//! refer to it (fork; whole chunks of slots are shared first: `amap/common.rs`), and back into a slot when a writer finds itself its only owner. The location of a sole
//! anon is guarded by its chunk's lock, that of a counted one by a lock of its own.
//!
//! *The rule that makes writing in place safe*: a reference to an anon, or to an amap with
//! anons in it, is given up only after every translation that was made under it has been flushed
//! from every TLB. So whoever holds the only reference also knows that no other address space
//! can still see the page.

use alloc::sync::Arc;
use core::ops::Deref;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use nucleus::{
    Frame,
    pmap::{self, Pending},
    sync::{Rank, SpinLock},
};

use crate::chunks::{Chunk, Content, Registry};
use crate::swap::{Paged, SwapState};

/// One page of anonymous memory that several amaps may refer to.
pub(crate) struct Anon {
    location: SpinLock<SwapState>,
}

/// A slot of an amap.
#[derive(Default)]
pub(crate) enum Slot {
    /// Nothing here: the layer below shows through.
    #[default]
    Empty,
    /// An anon to which no other slot refers.
    Sole(SwapState),
    /// An anon that slots of other amaps may refer to as well.
    Shared(Arc<Anon>),
}

// A chunk of them is what most of the memory for amaps goes to.
const _: () = assert!(size_of::<Slot>() == 16);

/// The frame of an anon that is in memory.
pub(crate) struct Resident<'a> {
    frame: Held<'a>,
    /// A slot has the same bytes: it must not be mapped writable.
    pub clean: bool,
}

enum Held<'a> {
    InSlot(&'a Frame),
    Counted(Frame),
}

impl<'a> Resident<'a> {
    /// A frame that is not an anon's.
    pub fn of(frame: &'a Frame) -> Resident<'a> {
        Resident {
            frame: Held::InSlot(frame),
            clean: false,
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
    const RANK: Rank = Rank::Amap;

    #[inline]
    fn is_vacant(&self) -> bool {
        self.is_empty()
    }

    #[inline]
    fn into_frame(self) -> Option<Frame> {
        let location = match self {
            Slot::Empty => return None,
            Slot::Sole(location) => location,
            Slot::Shared(anon) => Arc::into_inner(anon)?.location.into_inner(),
        };
        location.into_frame()
    }

    fn registry() -> Option<&'static Registry<Chunk<Slot>>> {
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

/// All chunks of amaps. A page of theirs begins as an active one.
pub(crate) static CHUNKS: Registry<Chunk<Slot>> = Registry::new(&INACTIVE);

/// Inactive pages in [`CHUNKS`], some of which may have gone.
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
    /// A slot with a new anon.
    #[inline]
    pub fn sole(frame: Frame) -> Slot {
        Slot::Sole(SwapState::memory(frame))
    }

    /// Puts a new anon here, where there is none: nothing has to be looked at that would have to be dropped.
    #[inline]
    pub fn fill(&mut self, frame: Frame) {
        debug_assert!(self.is_empty());
        core::mem::forget(core::mem::replace(self, Slot::sole(frame)));
    }

    /// The page of a sole anon, if it is in memory.
    #[inline]
    pub fn sole_frame(&self) -> Option<&Frame> {
        match self {
            Slot::Sole(location) => location.frame(),
            _ => None,
        }
    }

    /// The anon's page, if it is in memory.
    #[inline]
    pub fn resident(&self) -> Option<Resident<'_>> {
        match self {
            Slot::Empty => None,
            Slot::Sole(location) => Some(Resident {
                frame: Held::InSlot(location.frame()?),
                clean: location.is_clean(),
            }),
            Slot::Shared(anon) => {
                let location = anon.location.lock();
                Some(Resident {
                    frame: Held::Counted(location.frame()?.clone()),
                    clean: location.is_clean(),
                })
            }
        }
    }

    /// Whether nothing is here.
    #[inline]
    pub fn is_empty(&self) -> bool {
        matches!(self, Slot::Empty)
    }

    /// Whether an anon is here whose page is not in memory.
    pub fn is_swapped(&self) -> bool {
        match self {
            Slot::Empty => false,
            Slot::Sole(location) => location.is_swapped(),
            Slot::Shared(anon) => anon.location.lock().is_swapped(),
        }
    }

    /// How many slots refer to the anon here.
    pub fn sharers(&self) -> usize {
        match self {
            Slot::Empty => 0,
            Slot::Sole(_) => 1,
            Slot::Shared(anon) => Arc::strong_count(anon),
        }
    }

    /// Another reference to the anon here, for another amap. Its page stays where it is, be that memory or swap.
    pub fn share(&mut self) -> Slot {
        let anon = match self {
            Slot::Empty => return Slot::Empty,
            Slot::Shared(anon) => return Slot::Shared(anon.clone()),
            Slot::Sole(_) => core::mem::take(self),
        };
        let Slot::Sole(mut location) = anon else {
            return Slot::Empty;
        };
        if location.is_lazy() {
            // What others see, too, is not freed under their eyes.
            location.dirty();
        }
        let anon = Arc::new(Anon {
            location: SpinLock::new(Rank::Anon, location),
        });
        *self = Slot::Shared(anon.clone());
        Slot::Shared(anon)
    }

    /// Whether other slots refer to the anon here, too. They may leave it at any time.
    #[inline]
    pub fn has_others(&self) -> bool {
        matches!(self, Slot::Shared(anon) if Arc::strong_count(anon) > 1)
    }

    /// Whether the page here is mapped and may be freed, as no mapping has modified it since that was said.
    pub fn is_mapped_and_lazy(&self) -> bool {
        match self {
            Slot::Sole(location) if location.is_lazy() => location
                .frame()
                .is_some_and(|frame| frame.mappings() > 0 && !pmap::is_modified(frame)),
            _ => false,
        }
    }

    /// The page here is wanted, whatever was said before: others will see it, too.
    pub fn keep(&mut self) {
        if let Slot::Sole(location) = self
            && location.is_lazy()
        {
            location.dirty();
        }
    }

    /// Whether an anon is here to which this slot is the only reference. The chunk belongs to the amap alone, the amap to its
    /// entry, and the map is write-locked.
    pub fn is_sole(&self) -> bool {
        match self {
            Slot::Empty => false,
            Slot::Sole(_) => true,
            // Who else referred to it did so through an amap that is gone: nobody can make it two again.
            Slot::Shared(anon) => Arc::strong_count(anon) == 1,
        }
    }

    /// Whether this is the only reference to its anon, which may then be written in place if the chunk is not common. An
    /// anon that was left by its other owners becomes a sole one.
    pub fn make_sole(&mut self) -> bool {
        if self.has_others() {
            return false;
        }
        *self = match core::mem::take(self) {
            Slot::Empty => Slot::Empty,
            Slot::Sole(location) => Slot::Sole(location),
            Slot::Shared(anon) => match Arc::try_unwrap(anon) {
                Ok(anon) => Slot::Sole(anon.location.into_inner()),
                Err(anon) => Slot::Shared(anon),
            },
        };
        matches!(self, Slot::Sole(_))
    }

    /// The page here may be freed as soon as that is of use, unless a mapping modifies it after `pending` was flushed
    /// (`MADV_FREE`). Others' pages stay.
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

    /// The sole anon here is about to be written.
    #[inline]
    pub fn dirty(&mut self) {
        if let Slot::Sole(location) = self {
            location.dirty();
        }
    }
}
