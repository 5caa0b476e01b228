//! Small spaces (`small-spaces.txt`): which maps lie in a region, and what they outgrow.
//!
//! The nucleus moves a program's addresses into its region. A map knows only that it ends early:
//! its layout is that of a region. What has no room there makes it large, after which it goes on to
//! [`AREA`](nucleus::pmap::AREA). A child by fork has the layout of its parent, be it small or not.

use nucleus::pmap::{self, AREA, Promotion, SmallSpaces};

use super::layout::Layout;
use super::request::Place;
use super::space::Space;
use super::{Map, Randomness};

/// The most bytes that a mapping may have for which a space becomes large: all that it can get.
const LARGEST: usize = AREA.start.0;

impl Map {
    /// Makes an empty address space of a 32-bit program small, with a layout of a region, if there
    /// is a region: beside the space of `beside` if that is the same user's and there is room.
    /// Returns whether it is small. `needed`: the end of the addresses that the program cannot do
    /// without.
    pub fn make_small(
        &self,
        user: u32,
        stack_limit: u64,
        randomness: Randomness,
        needed: u64,
        beside: Option<&Map>,
    ) -> bool {
        let layout = match pmap::small_spaces() {
            SmallSpaces::None => None,
            _ => Layout::in_region(pmap::region(), stack_limit, randomness),
        };
        let Some(layout) = layout.filter(|layout| needed <= layout.mmap_top.0 as u64) else {
            return false;
        };
        let mut space = self.space.write();
        let joined = self.pmap.join(user, beside.map(|map| &*map.pmap));
        if joined {
            space.set_layout(layout);
        }
        joined
    }

    /// Returns whether the address space is in a region.
    #[inline]
    pub fn is_small(&self) -> bool {
        self.pmap.is_small()
    }

    /// Makes a small address space large: its program finds everything where it was. Returns
    /// whether it was small.
    pub fn promote(&self, why: Promotion) -> bool {
        self.is_small() && self.outgrow(&mut self.space.write(), why)
    }

    /// As [`promote`](Map::promote) with the map write-locked, also of a child that has a region's
    /// layout without a region.
    fn outgrow(&self, space: &mut Space, why: Promotion) -> bool {
        let is_in_region = space.layout.is_in_region();
        if is_in_region {
            self.pmap.promote(why);
            space.set_layout(space.layout.widened(AREA.start));
        }
        is_in_region
    }

    /// There is no room for `len` bytes at `place`: makes room if the layout is a region's. Returns
    /// whether to look again.
    #[cold]
    pub(super) fn make_large_for(&self, space: &mut Space, place: Place, len: usize) -> bool {
        let why = match place {
            Place::Fixed(_) | Place::FixedNoReplace(_) | Place::FixedOverStaying(_) => {
                Promotion::Fixed
            }
            Place::Hint(_) | Place::Any => Promotion::Mapping,
        };
        len <= LARGEST && self.outgrow(space, why)
    }
}
