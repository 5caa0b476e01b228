//! Amaps against a sorted map of keys, in every form.

use std::collections::BTreeMap;

use nucleus::{
    Frame,
    frame::{self, Contents},
    sim::{self, Config},
};

use super::anon::CHUNKS;
use super::*;

/// A small generator of repeatable numbers.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// An amap and its expected content. The references keep the frames from being reused by other
/// anons.
struct Pair {
    amap: Amap,
    model: BTreeMap<Key, Frame>,
}

/// All keys.
const ALL: Range<Key> = Key::MIN / 2..Key::MAX / 2;

impl Pair {
    fn new(form: AmapForm, key: Key) -> Pair {
        Pair {
            amap: Amap::with_form(form, key, 1),
            model: BTreeMap::new(),
        }
    }

    /// Fills a slot as a fault does.
    fn fill(&mut self, key: Key) {
        let frame = Frame::alloc(Contents::Stale).expect("memory");
        loop {
            match self.amap.lock(key) {
                Ok(slots) if slots.shared => {}
                Ok(mut slots) => {
                    assert!(slots.holds(key));
                    for ahead in 1..=slots.after(key) as i64 {
                        assert!(slots.holds(key + ahead));
                        let there = self.model.contains_key(&(key + ahead));
                        assert_eq!(slots.peek(key + ahead).is_empty(), !there);
                    }
                    assert_eq!(slots.peek(key).is_empty(), !self.model.contains_key(&key));
                    *slots.get(key).expect("a place") = Slot::sole(frame.clone());
                    break;
                }
                Err(Refused::Form) => {}
                Err(refused) => panic!("{refused:?}"),
            }
            self.amap.prepare(key).expect("memory");
        }
        self.model.insert(key, frame);
    }

    fn clear(&mut self, keys: Range<Key>, out: bool) {
        let mut shared = false;
        self.amap
            .for_each_part(keys.clone(), &mut |_, slots| shared |= slots.shared);
        match out || shared {
            true => self.amap.clear_out(keys.clone()).expect("memory"),
            false => self.amap.clear(keys.clone()),
        }
        self.model.retain(|key, _| !keys.contains(key));
    }

    fn split_off(&mut self, key: Key, lower: bool) -> Pair {
        let amap = self.amap.split_off(key, lower).expect("memory");
        let (all, at_and_above) = (&mut self.model, |model: &mut BTreeMap<_, _>| {
            model.split_off(&key)
        });
        let mut model = at_and_above(all);
        if lower {
            core::mem::swap(&mut self.model, &mut model);
        }
        Pair { amap, model }
    }

    fn absorb(&mut self, other: Pair) {
        self.amap.absorb(other.amap);
        self.model.extend(other.model);
    }

    fn copy(&self) -> Pair {
        Pair {
            amap: self.amap.copy().expect("memory"),
            model: self.model.clone(),
        }
    }

    #[track_caller]
    fn check(&self, keys: Range<Key>) {
        let mut found = BTreeMap::new();
        self.amap.for_each(keys.clone(), &mut |key, slot, _| {
            let frame: Frame = slot.resident().expect("an anon in memory").into();
            assert!(found.insert(key, frame).is_none(), "key {key} came twice");
        });
        let expected = || self.model.range(keys.clone());
        assert!(
            found.keys().eq(expected().map(|(key, _)| key)),
            "keys {:?}, expected {:?}",
            found.keys().collect::<Vec<_>>(),
            expected().map(|(key, _)| key).collect::<Vec<_>>()
        );
        for (key, frame) in &found {
            assert_eq!(frame, &self.model[key], "the anon of key {key}");
        }
        assert_eq!(self.amap.count(keys.clone()), found.len());
        let mut parts = 0;
        self.amap.for_each_part(keys.clone(), &mut |part, slots| {
            assert!(part.start >= keys.start && part.end <= keys.end);
            parts += part.filter(|&key| !slots.peek(key).is_empty()).count();
        });
        assert_eq!(parts, found.len(), "each anon is in one part");
        for &key in self.model.keys().take(50) {
            for key in [key - 1, key, key + 1] {
                let slots = self.amap.lock_present(key);
                let there = slots.is_some_and(|slots| !slots.peek(key).is_empty());
                assert_eq!(there, self.model.contains_key(&key), "key {key}");
            }
        }
    }
}

/// Checks that the count of each anon tells whether another amap has it.
#[track_caller]
fn check_counts(pairs: &[Pair]) {
    for (i, pair) in pairs.iter().enumerate() {
        pair.amap.for_each(ALL, &mut |key, slot, owners| {
            let has = |other: &Pair| other.model.get(&key) == pair.model.get(&key);
            let others = pairs.iter().enumerate().filter(|(j, _)| *j != i);
            let alone = !others.map(|(_, other)| other).any(has);
            assert_eq!(owners == 1 && slot.is_sole(), alone, "key {key}");
        });
    }
}

/// A key: scattered over a terabyte, in few groups, or consecutive.
fn some_key(numbers: &mut Numbers, row: &mut Key) -> Key {
    match numbers.below(4) {
        0 => numbers.below(1 << 28) as Key - (1 << 27),
        1 => (numbers.below(5) << 20) as Key + numbers.below(40) as Key,
        2 => numbers.below(300) as Key - 100,
        _ => {
            *row += 1;
            *row
        }
    }
}

fn against_model(form: AmapForm, seed: u64) {
    let before = frame::usage().data;
    let mut numbers = Numbers(seed | 1);
    let mut row = numbers.below(1 << 20) as Key;
    let mut pairs = vec![Pair::new(form, row)];
    for _ in 0..600 {
        let which = numbers.below(pairs.len());
        let key = some_key(&mut numbers, &mut row);
        let count = pairs.len();
        let pair = &mut pairs[which];
        match numbers.below(40) {
            0 => {
                let most = 1 << numbers.below(28);
                let end = key + numbers.below(most) as Key;
                pair.clear(key..end, numbers.below(2) == 0);
                pair.check(key - 10..end + 10);
            }
            1 => {
                let lower = numbers.below(2) == 0;
                let other = pair.split_off(key, lower);
                pair.check(ALL);
                other.check(ALL);
                match numbers.below(3) {
                    0 => drop(other),
                    1 => pair.absorb(other),
                    _ => {
                        let mut other = other;
                        core::mem::swap(pair, &mut other);
                        pair.absorb(other);
                    }
                }
                pair.check(ALL);
            }
            2 if count < 4 => {
                let copy = pair.copy();
                pairs.push(copy);
            }
            3 if count > 1 => drop(pairs.swap_remove(which)),
            _ => {
                for i in 0..numbers.below(8) as Key {
                    pair.fill(key + i * numbers.below(3) as Key);
                }
                let end = key + numbers.below(1 << 12) as Key;
                pair.check(key - 20..end);
            }
        }
        if numbers.below(60) == 0 {
            check_counts(&pairs);
        }
    }
    check_counts(&pairs);
    for pair in &pairs {
        pair.check(ALL);
    }
    drop(pairs);
    assert_eq!(frame::usage().data, before, "all frames are back");
}

#[test]
fn amaps_against_the_model() {
    for form in [AmapForm::Array, AmapForm::Sparse] {
        sim::check("amaps", 0..12, Config::default(), move || {
            against_model(form, sim::random_u64());
        });
    }
}

/// Discarded pages leave nothing behind.
#[test]
fn chunks_of_what_was_given_up_go() {
    sim::check("given-up", 0..1, Config::default(), || {
        let mut pair = Pair::new(AmapForm::Array, 100);
        for key in -400..900 {
            pair.fill(key);
        }
        let before = CHUNKS.count();
        pair.clear(-300..801, true);
        pair.check(ALL);
        assert_eq!(before - CHUNKS.count(), 1101 / SLOTS);
        pair.fill(100);
        pair.check(ALL);
    });
}

/// Sparse amaps are hashes, dense ones arrays, and each changes its form when that pays.
#[test]
fn forms_follow_what_pays() {
    let config = Config {
        pages: 8192,
        ..Config::default()
    };
    sim::check("forms", 0..1, config, || {
        let large = LARGE_PAGES;
        let make = |pages| Pair {
            amap: Amap::with_form(AmapForm::Hybrid, 0, pages),
            model: BTreeMap::new(),
        };
        let mut sparse = make(large);
        for i in 0..400 {
            sparse.fill(i * 100_003);
            assert!(sparse.amap.is_hash());
        }
        let mut dense = make(large);
        for key in 0..200 {
            dense.fill(key);
            assert_eq!(dense.amap.is_hash(), key < 2, "after {key}");
        }
        // Isolated pages around a dense part keep the array; discarding most of the part does not.
        for i in 1..30 {
            dense.fill(i * 100_003);
        }
        assert!(!dense.amap.is_hash());
        dense.clear(0..200, false);
        for i in 30..60 {
            dense.fill(i * 100_003);
        }
        assert!(dense.amap.is_hash());
        // Filled again, it is dense.
        for key in 0..2000 {
            dense.fill(key);
        }
        assert!(!dense.amap.is_hash());
        dense.check(ALL);
        let mut small = make(large - 1);
        for i in 0..100 {
            small.fill(i * 100);
            assert!(!small.amap.is_hash());
        }
        // Keys of one bucket, which further splits would not separate.
        let mut crowded = make(large);
        let same = (0i64..)
            .filter(|&group| hash::falls_together(group, 12))
            .take(300);
        for group in same {
            crowded.fill(first_key(group));
        }
        crowded.check(ALL);
        assert!(!crowded.amap.is_hash());
    });
}
