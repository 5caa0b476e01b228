//! The registry that the pagedaemon's clock hands go round: weak references, in shards.
//!
//! An object that owns pages is *enrolled* when it is made and withdraws when it is dropped; faults
//! never touch the registry. A [`Hand`] goes round the places of a shard as a clock hand does. New
//! entries take the first free place, so the ring stays dense, and a dropped object leaves nothing
//! behind, not even a weak reference.
//!
//! A hand takes a counted reference under the shard's lock and uses it after the lock is released.
//! The object may lose its owner meanwhile and is then freed by the holder of the last reference.

use alloc::{
    boxed::Box,
    sync::{Arc, Weak},
    vec::Vec,
};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use nucleus::{
    pmap::{PmapRef, PmapWeak},
    sync::SpinLock,
    task,
};

/// Shards: CPUs that enroll at the same time mostly use different ones.
const SHARDS: usize = 16;
/// Places that are allocated together: 512 bytes.
const SEGMENT: usize = 64;
/// Places that a hand visits in one critical section.
const LOOK: usize = SEGMENT;
/// The token of an object that is not enrolled.
const NOWHERE: u32 = u32::MAX;

/// The place of an enrolled object, stored in the object itself.
pub(crate) struct Token(AtomicU32);

impl Token {
    /// Returns the token of an object that is not enrolled.
    pub const fn new() -> Token {
        Token(AtomicU32::new(NOWHERE))
    }

    /// Returns whether the object is not enrolled.
    pub fn is_nowhere(&self) -> bool {
        self.0.load(Ordering::Relaxed) == NOWHERE
    }
}

/// A counted handle to what is enrolled.
pub(crate) trait Handle: Sized {
    /// A handle that does not keep it.
    type Weak;

    /// Returns a weak handle.
    fn downgrade(&self) -> Self::Weak;

    /// Returns a counted handle if there still is one.
    fn upgrade(weak: &Self::Weak) -> Option<Self>;
}

impl<T: ?Sized> Handle for Arc<T> {
    type Weak = Weak<T>;

    fn downgrade(&self) -> Weak<T> {
        Arc::downgrade(self)
    }

    fn upgrade(weak: &Weak<T>) -> Option<Arc<T>> {
        weak.upgrade()
    }
}

impl Handle for PmapRef {
    type Weak = PmapWeak;

    fn downgrade(&self) -> PmapWeak {
        PmapRef::downgrade(self)
    }

    fn upgrade(weak: &PmapWeak) -> Option<PmapRef> {
        weak.upgrade()
    }
}

/// Consecutive places.
struct Segment<H: Handle> {
    /// A bit for each occupied place.
    taken: u64,
    places: [Option<H::Weak>; SEGMENT],
}

/// A shard, on cache lines of its own: each mapping that comes or goes writes its CPU's.
#[repr(align(64))]
struct Shard<H: Handle>(SpinLock<Segments<H>>);

struct Segments<H: Handle> {
    segments: Vec<Box<Segment<H>>>,
    /// All segments before this one are full.
    full: usize,
}

/// A registry: see the head of the file.
pub(crate) struct Registry<H: Handle> {
    shards: [Shard<H>; SHARDS],
    /// A counter of marks on the objects; the marks of an object are subtracted when it withdraws.
    marks: &'static AtomicUsize,
}

/// A position in a registry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Hand {
    shard: usize,
    place: usize,
}

impl<H: Handle> Segments<H> {
    const fn new() -> Segments<H> {
        Segments {
            segments: Vec::new(),
            full: 0,
        }
    }

    /// Stores a reference in a free place and returns which; returns the reference if all are
    /// taken.
    fn put(&mut self, weak: H::Weak) -> Result<usize, H::Weak> {
        while let Some(segment) = self.segments.get_mut(self.full) {
            let free = segment.taken.trailing_ones() as usize;
            if let Some(place) = segment.places.get_mut(free) {
                *place = Some(weak);
                segment.taken |= 1 << free;
                return Ok(self.full * SEGMENT + free);
            }
            self.full += 1;
        }
        Err(weak)
    }

    fn clear(&mut self, place: usize) -> Option<H::Weak> {
        let (number, bit) = (place / SEGMENT, place % SEGMENT);
        let segment = self.segments.get_mut(number)?;
        segment.taken &= !(1 << bit);
        self.full = self.full.min(number);
        segment.places[bit].take()
    }

    /// Frees empty segments at the end except one, so that enrolling and withdrawing at a boundary
    /// do not allocate each time.
    fn shrink(&mut self) {
        while let [.., before, last] = &self.segments[..]
            && before.taken == 0
            && last.taken == 0
        {
            self.segments.pop();
        }
        self.full = self.full.min(self.segments.len());
    }
}

impl<H: Handle> Registry<H> {
    /// Returns an empty registry. `marks`: see [`withdraw`](Registry::withdraw).
    pub const fn new(marks: &'static AtomicUsize) -> Registry<H> {
        Registry {
            shards: [const { Shard(SpinLock::new(crate::rank::ENROLLED, Segments::new())) };
                SHARDS],
            marks,
        }
    }

    /// The number of objects.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        let mut hand = Hand::default();
        core::iter::from_fn(|| self.next(&mut hand)).count()
    }

    /// Enrolls `thing`, which keeps `token`. Allocates once in [`SEGMENT`] calls.
    pub fn enroll(&self, thing: &H, token: &Token) {
        let shard = task::cpu() % SHARDS;
        let mut weak = thing.downgrade();
        loop {
            let spare = match self.shards[shard].0.lock().put(weak) {
                Ok(place) => {
                    let at = (place * SHARDS + shard) as u32;
                    token.0.store(at, Ordering::Relaxed);
                    return;
                }
                Err(back) => {
                    weak = back;
                    Box::new(Segment {
                        taken: 0,
                        places: [const { None }; SEGMENT],
                    })
                }
            };
            self.shards[shard].0.lock().segments.push(spare);
        }
    }

    /// Removes the owner of `token`, which has `marks` marks: they are subtracted from the counter.
    pub fn withdraw(&self, token: &mut Token, marks: u32) {
        let at = core::mem::replace(token.0.get_mut(), NOWHERE);
        if at == NOWHERE {
            return;
        }
        if marks != 0 {
            self.marks.fetch_sub(marks as usize, Ordering::Relaxed);
        }
        let (shard, place) = (at as usize % SHARDS, at as usize / SHARDS);
        let mut shard = self.shards[shard].0.lock();
        let gone = shard.clear(place);
        shard.shrink();
        drop(shard);
        drop(gone);
    }

    /// Returns the next object at or after the hand and moves the hand behind it. Returns `None` at
    /// the end of a round; the hand is then at the start again.
    pub fn next(&self, hand: &mut Hand) -> Option<H> {
        while let Some(shard) = self.shards.get(hand.shard) {
            let shard = shard.0.lock();
            let end = shard.segments.len() * SEGMENT;
            for place in (hand.place..end).take(LOOK) {
                hand.place = place + 1;
                let weak = &shard.segments[place / SEGMENT].places[place % SEGMENT];
                if let Some(thing) = weak.as_ref().and_then(H::upgrade) {
                    return Some(thing);
                }
            }
            if hand.place >= end {
                *hand = Hand {
                    shard: hand.shard + 1,
                    place: 0,
                };
            }
        }
        *hand = Hand::default();
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nucleus::sim::{self, Config};

    static MARKS: AtomicUsize = AtomicUsize::new(0);
    static THINGS: Registry<Arc<Thing>> = Registry::new(&MARKS);

    struct Thing {
        name: usize,
        token: Token,
    }

    impl Thing {
        fn new(name: usize) -> Arc<Thing> {
            let thing = Arc::new(Thing {
                name,
                token: Token::new(),
            });
            THINGS.enroll(&thing, &thing.token);
            MARKS.fetch_add(1, Ordering::Relaxed);
            thing
        }
    }

    impl Drop for Thing {
        fn drop(&mut self) {
            THINGS.withdraw(&mut self.token, 1);
        }
    }

    fn all() -> Vec<usize> {
        let mut hand = Hand::default();
        let mut names: Vec<usize> = core::iter::from_fn(|| THINGS.next(&mut hand))
            .map(|thing| thing.name)
            .collect();
        assert_eq!(hand, Hand::default());
        names.sort_unstable();
        names
    }

    #[test]
    fn a_hand_meets_each_that_lives_once() {
        sim::check("registry", 0..20, Config::default(), || {
            let mut things: Vec<Arc<Thing>> = Vec::new();
            let mut number: usize = 12345;
            for name in 0..600 {
                things.push(Thing::new(name));
                number = number.wrapping_mul(6364136223846793005).wrapping_add(1);
                if number >> 33 & 3 == 0 {
                    things.swap_remove((number >> 35) % things.len());
                }
            }
            let mut names: Vec<usize> = things.iter().map(|thing| thing.name).collect();
            names.sort_unstable();
            assert_eq!(all(), names);
            assert_eq!(MARKS.load(Ordering::Relaxed), things.len());
            things.clear();
            assert_eq!(all(), []);
            assert_eq!(MARKS.load(Ordering::Relaxed), 0);
            for shard in &THINGS.shards {
                assert!(shard.0.lock().segments.len() <= 1);
            }
        });
    }
}
