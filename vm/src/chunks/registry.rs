//! What the pagedaemon goes round: a table of weak references, in shards.
//!
//! Something that has pages is *enrolled* when it is made, and withdraws when it ends; a fault touches nothing of this.
//! The places of a shard are a ring that a [`Hand`] goes round as the hand of a clock does: new ones take the first free
//! place, so the ring stays dense, and what has ended leaves nothing behind, not even a weak reference.
//!
//! A hand gets a counted reference under the shard's lock and uses it without: what it refers to may end meanwhile, and
//! is then freed by whoever lets go of it last.

use alloc::{
    boxed::Box,
    sync::{Arc, Weak},
    vec::Vec,
};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use nucleus::{
    sync::{Rank, SpinLock},
    task,
};

/// Shards: CPUs that make things at the same time mostly use different ones.
const SHARDS: usize = 16;
/// Places that are allocated at once: 512 bytes.
const SEGMENT: usize = 64;
/// Places that a hand looks at with the shard's lock held.
const LOOK: usize = SEGMENT;
/// The token of what is in no registry.
const NOWHERE: u32 = u32::MAX;

/// Where something is enrolled: kept by the thing itself.
pub(crate) struct Token(AtomicU32);

impl Token {
    /// Nowhere.
    pub const fn new() -> Token {
        Token(AtomicU32::new(NOWHERE))
    }

    /// Whether it is that of something that is not enrolled.
    pub fn is_nowhere(&self) -> bool {
        self.0.load(Ordering::Relaxed) == NOWHERE
    }
}

/// Places in a row.
struct Segment<T: ?Sized> {
    /// A bit for each place that is taken.
    taken: u64,
    places: [Option<Weak<T>>; SEGMENT],
}

struct Shard<T: ?Sized> {
    segments: Vec<Box<Segment<T>>>,
    /// No segment before this one has a free place.
    full: usize,
}

/// See the head of the file.
pub(crate) struct Registry<T: ?Sized> {
    shards: [SpinLock<Shard<T>>; SHARDS],
    /// Sum of the marks that the things had when they withdrew, taken off what the user of the registry counts.
    marks: &'static AtomicUsize,
}

/// A position in a registry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Hand {
    shard: usize,
    place: usize,
}

impl<T: ?Sized> Shard<T> {
    const fn new() -> Shard<T> {
        Shard {
            segments: Vec::new(),
            full: 0,
        }
    }

    /// Puts a reference into a free place and returns which; gives it back if there is none.
    fn put(&mut self, weak: Weak<T>) -> Result<usize, Weak<T>> {
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

    fn clear(&mut self, place: usize) -> Option<Weak<T>> {
        let (number, bit) = (place / SEGMENT, place % SEGMENT);
        let segment = self.segments.get_mut(number)?;
        segment.taken &= !(1 << bit);
        self.full = self.full.min(number);
        segment.places[bit].take()
    }

    /// Gives empty segments at the end back, but for one, so that what comes and goes at the border costs no
    /// allocation each time.
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

impl<T: ?Sized> Registry<T> {
    /// Nothing is enrolled. `marks`: see [`withdraw`](Registry::withdraw).
    pub const fn new(marks: &'static AtomicUsize) -> Registry<T> {
        Registry {
            shards: [const { SpinLock::new(Rank::Enrolled, Shard::new()) }; SHARDS],
            marks,
        }
    }

    /// How many things there are.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        let mut hand = Hand::default();
        core::iter::from_fn(|| self.next(&mut hand)).count()
    }

    /// Enrolls `thing`, which keeps `token`. Costs an allocation once in [`SEGMENT`] times.
    pub fn enroll(&self, thing: &Arc<T>, token: &Token) {
        let shard = task::cpu() % SHARDS;
        let mut weak = Arc::downgrade(thing);
        loop {
            let spare = match self.shards[shard].lock().put(weak) {
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
            self.shards[shard].lock().segments.push(spare);
        }
    }

    /// Takes the owner of `token` out, in which `marks` marks were set: they are taken off the counter.
    pub fn withdraw(&self, token: &mut Token, marks: u32) {
        let at = core::mem::replace(token.0.get_mut(), NOWHERE);
        if at == NOWHERE {
            return;
        }
        if marks != 0 {
            self.marks.fetch_sub(marks as usize, Ordering::Relaxed);
        }
        let (shard, place) = (at as usize % SHARDS, at as usize / SHARDS);
        let mut shard = self.shards[shard].lock();
        let gone = shard.clear(place);
        shard.shrink();
        drop(shard);
        drop(gone);
    }

    /// The next thing at or after the hand, which moves behind it. `None` when the hand is round: it stands at the start again.
    pub fn next(&self, hand: &mut Hand) -> Option<Arc<T>> {
        while let Some(shard) = self.shards.get(hand.shard) {
            let shard = shard.lock();
            let end = shard.segments.len() * SEGMENT;
            for place in (hand.place..end).take(LOOK) {
                hand.place = place + 1;
                let weak = &shard.segments[place / SEGMENT].places[place % SEGMENT];
                if let Some(thing) = weak.as_ref().and_then(Weak::upgrade) {
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
    static THINGS: Registry<Thing> = Registry::new(&MARKS);

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
                assert!(shard.lock().segments.len() <= 1);
            }
        });
    }
}
