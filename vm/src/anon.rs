//! Anons: single pages of anonymous memory (`uvm.txt` 5.2).
//!
//! An anon has a reference count and a location. The paper allocates a structure for each; here
//! an anon that only one amap refers to lies in the amap's slot itself, so that a zero-fill fault
//! allocates nothing but the page. It moves into a counted structure when a second amap comes to
//! refer to it (fork), and back into a slot when a writer finds itself its only owner.
//!
//! *The rule that makes writing in place safe*: a reference to an anon, or to an amap with
//! anons in it, is given up only after every translation that was made under it has been flushed
//! from every TLB. So whoever holds the only reference also knows that no other address space
//! can still see the page.

use alloc::sync::Arc;
use core::sync::atomic::AtomicUsize;
use nucleus::{Frame, sync::Rank};

use crate::chunks::{Chunk, Content};
use crate::pagedaemon::Registry;

/// Where the bytes of an anon are.
pub enum Location {
    /// In memory.
    Resident(Frame),
}

/// One page of anonymous memory.
pub struct Anon {
    location: Location,
}

/// A slot of an amap.
#[derive(Default)]
pub enum Slot {
    /// Nothing here: the layer below shows through.
    #[default]
    Empty,
    /// An anon with one reference, this one.
    Sole(Anon),
    /// An anon that other amaps may refer to as well.
    Shared(Arc<Anon>),
}

impl Content for Slot {
    const RANK: Rank = Rank::Amap;

    fn registry() -> Option<&'static Registry<Chunk<Slot>>> {
        Some(&CHUNKS)
    }
}

/// All chunks of amaps. A page of theirs begins as an active one.
pub(crate) static CHUNKS: Registry<Chunk<Slot>> = Registry::new(&INACTIVE);

/// Inactive pages in [`CHUNKS`], some of which may have gone.
pub(crate) static INACTIVE: AtomicUsize = AtomicUsize::new(0);

impl Anon {
    /// An anon whose bytes are in `frame`.
    pub fn new(frame: Frame) -> Anon {
        Anon {
            location: Location::Resident(frame),
        }
    }

    /// The frame that holds the bytes.
    pub fn frame(&self) -> &Frame {
        match &self.location {
            Location::Resident(frame) => frame,
        }
    }
}

impl Slot {
    /// A slot with a new anon.
    pub fn sole(frame: Frame) -> Slot {
        Slot::Sole(Anon::new(frame))
    }

    /// The anon here.
    pub fn anon(&self) -> Option<&Anon> {
        match self {
            Slot::Empty => None,
            Slot::Sole(anon) => Some(anon),
            Slot::Shared(anon) => Some(anon),
        }
    }

    /// Whether nothing is here.
    pub fn is_empty(&self) -> bool {
        matches!(self, Slot::Empty)
    }

    /// Another reference to the anon here, for another amap.
    pub fn share(&mut self) -> Slot {
        match core::mem::take(self) {
            Slot::Empty => Slot::Empty,
            Slot::Sole(anon) => {
                let anon = Arc::new(anon);
                *self = Slot::Shared(anon.clone());
                Slot::Shared(anon)
            }
            Slot::Shared(anon) => {
                *self = Slot::Shared(anon.clone());
                Slot::Shared(anon)
            }
        }
    }

    /// Whether this is the only reference to its anon, which may then be written in place. An
    /// anon that was left by its other owners becomes a sole one.
    pub fn make_sole(&mut self) -> bool {
        *self = match core::mem::take(self) {
            Slot::Empty => Slot::Empty,
            Slot::Sole(anon) => Slot::Sole(anon),
            Slot::Shared(anon) => match Arc::try_unwrap(anon) {
                Ok(anon) => Slot::Sole(anon),
                Err(anon) => Slot::Shared(anon),
            },
        };
        matches!(self, Slot::Sole(_))
    }
}
