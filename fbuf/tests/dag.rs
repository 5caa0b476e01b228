//! Aggregates of programs: the walk, compared with plain bytes and a plain definition, for random
//! graphs with shared nodes, wild pointers and cycles, and for memory that changes meanwhile.

use std::ops::Range;

use fbuf::dag::{MOST_RANGES, MOST_VISITS, NODE_BYTES, Node, NodeReader, Range64, Walk, WalkError};
use nucleus::{PAGE_SIZE, sim::Random};

const BASE: u64 = 0x6000_0000_0000;

/// Memory from [`BASE`] on.
struct Memory {
    bytes: Vec<u8>,
    reads: usize,
    /// Changes the memory after each read.
    changes: Option<Random>,
}

impl Memory {
    fn new(pages: usize) -> Memory {
        Memory {
            bytes: vec![0; pages * PAGE_SIZE],
            reads: 0,
            changes: None,
        }
    }

    fn end(&self) -> u64 {
        BASE + self.bytes.len() as u64
    }

    fn set(&mut self, address: u64, words: [u64; 4]) {
        let at = (address - BASE) as usize;
        for (i, word) in words.into_iter().enumerate() {
            self.bytes[at + 8 * i..at + 8 * i + 8].copy_from_slice(&word.to_le_bytes());
        }
    }

    fn has(&self, range: &Range<u64>) -> bool {
        BASE <= range.start && range.start < range.end && range.end <= self.end()
    }

    fn at(&self, range: Range<u64>) -> &[u8] {
        &self.bytes[(range.start - BASE) as usize..(range.end - BASE) as usize]
    }
}

impl NodeReader for Memory {
    fn read(&mut self, address: u64, to: &mut [u8; NODE_BYTES]) -> Result<(), WalkError> {
        self.reads += 1;
        let range = address..address + NODE_BYTES as u64;
        if !self.has(&range) {
            return Err(WalkError::BadAddress);
        }
        to.copy_from_slice(self.at(range));
        if let Some(mut random) = self.changes.take() {
            for _ in 0..random.below(4) {
                random_node(self, &mut random, 64);
            }
            self.changes = Some(random);
        }
        Ok(())
    }

    fn check(&mut self, data: Range<u64>) -> Result<(), WalkError> {
        match self.has(&data) {
            true => Ok(()),
            false => Err(WalkError::BadAddress),
        }
    }
}

/// What the graph means, without any cleverness.
fn plain(memory: &Memory, address: u64, above: &mut Vec<u64>, visits: &mut usize) -> Plain {
    *visits += 1;
    if *visits > MOST_VISITS {
        return Err(WalkError::TooBig);
    }
    if above.contains(&address) {
        return Err(WalkError::Cycle);
    }
    let end = address.checked_add(NODE_BYTES as u64);
    let range = end.map(|end| address..end);
    let range = range.filter(|range| address.is_multiple_of(8) && memory.has(range));
    let range = range.ok_or(WalkError::BadAddress)?;
    match Node::decode(memory.at(range).try_into().unwrap())? {
        Node::Empty => Ok(Vec::new()),
        Node::Leaf(Range64 { len: 0, .. }) => Ok(Vec::new()),
        Node::Leaf(Range64 { start, len }) => {
            let range = start.checked_add(len).map(|end| start..end);
            let range = range.filter(|range| memory.has(range));
            Ok(memory.at(range.ok_or(WalkError::BadAddress)?).to_vec())
        }
        Node::Pair(left, right) => {
            above.push(address);
            let mut bytes = plain(memory, left, above, visits)?;
            bytes.extend(plain(memory, right, above, visits)?);
            above.pop();
            Ok(bytes)
        }
    }
}

type Plain = Result<Vec<u8>, WalkError>;

/// The walk's bytes, and what it says of them.
fn walked(walk: &mut Walk, memory: &mut Memory, root: u64) -> Plain {
    let mut leaves = Vec::new();
    memory.reads = 0;
    let result = walk.run(root, memory, &mut |leaf| leaves.push(leaf));
    assert!(memory.reads <= MOST_VISITS);
    result?;
    let mut bytes = Vec::new();
    let mut pages: Vec<u64> = Vec::new();
    for Range64 { start, len } in leaves.into_iter().filter(|leaf| leaf.len > 0) {
        bytes.extend(memory.at(start..start + len));
        pages.extend(start / PAGE_SIZE as u64..=(start + len - 1) / PAGE_SIZE as u64);
    }
    assert_eq!(walk.bytes, bytes.len() as u64);
    let ranges: Vec<_> = walk.pages.iter().collect();
    assert!(ranges.len() <= MOST_RANGES && !ranges.is_empty());
    for pair in ranges.windows(2) {
        assert!(pair[0].end < pair[1].start, "not merged: {pair:?}");
    }
    for page in pages {
        let address = page * PAGE_SIZE as u64;
        assert!(ranges.iter().any(|range| range.contains(&address)));
    }
    let root_page = root & !(PAGE_SIZE as u64 - 1);
    assert!(ranges.iter().any(|range| range.contains(&root_page)));
    Ok(bytes)
}

/// Sets one of the first `count` nodes, each in a place of its own.
fn random_node(memory: &mut Memory, random: &mut Random, count: usize) {
    let node = |i: usize| BASE + 40 * i as u64;
    let at = node(random.below(count));
    let wild = |random: &mut Random| match random.below(5) {
        0 => 0,
        1 => u64::MAX - random.below(64) as u64,
        2 => BASE + random.below(1 << 20) as u64,
        3 => BASE - 8,
        _ => at + 4,
    };
    let some = |random: &mut Random| match random.below(200) {
        0 => wild(random),
        _ => node(random.below(count)),
    };
    let words = match random.below(20) {
        0..8 => {
            let (start, len) = (some(random), random.below(3 * PAGE_SIZE) as u64);
            [1, len, start, 0]
        }
        // Mostly to later nodes, so that there are graphs without a cycle.
        8..18 => {
            let later = |random: &mut Random| {
                let index = (at - BASE) as usize / 40;
                node(index + 1 + random.below(8)).min(node(count - 1))
            };
            [2, 0, later(random), later(random)]
        }
        18 if random.below(4) == 0 => [2, 0, some(random), some(random)],
        19 if random.below(20) == 0 => [u64::from(u32::MAX), 0, 0, 0],
        _ => [0; 4],
    };
    memory.set(at, words);
}

#[test]
fn random_graphs_mean_their_bytes() {
    let mut outcomes = [0; 5];
    let mut walk = Walk::default();
    for seed in 0..3000 {
        let mut random = Random::new(seed);
        let mut memory = Memory::new(8);
        let count = 2 + random.below(60);
        for _ in 0..3 * count {
            random_node(&mut memory, &mut random, count);
        }
        let root = BASE + 40 * random.below(4) as u64;
        let expected = plain(&memory, root, &mut Vec::new(), &mut 0);
        let found = walked(&mut walk, &mut memory, root);
        outcomes[match &expected {
            Ok(bytes) if bytes.is_empty() => 0,
            Ok(_) => 1,
            Err(WalkError::Cycle) => 2,
            Err(WalkError::BadAddress) => 3,
            Err(_) => 4,
        }] += 1;
        match (&expected, &found) {
            // The walk goes round a cycle a few times before it knows, and may come to its end.
            (Err(WalkError::Cycle), Err(WalkError::TooBig)) => {}
            _ => assert!(expected == found, "seed {seed}: {expected:?}, {found:?}"),
        }
    }
    assert!(
        outcomes.iter().take(4).all(|&count| count > 20),
        "{outcomes:?}"
    );
}

#[test]
fn graphs_that_change_are_bounded() {
    let mut walk = Walk::default();
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let mut memory = Memory::new(64);
        for _ in 0..200 {
            random_node(&mut memory, &mut random, 64);
        }
        memory.changes = Some(random);
        // Its pages are those of the nodes that it saw.
        let _ = walked(&mut walk, &mut memory, BASE);
    }
}

#[test]
fn long_lists_and_cycles() {
    let mut walk = Walk::default();
    let mut memory = Memory::new(1024);
    let node = |i: usize| BASE + 32 * i as u64;
    let leaf = node(100_000);
    memory.set(leaf, [1, 1, leaf, 0]);
    // Both directions, as long as may be: a pair and a leaf each, and one leaf at the end.
    let longest = MOST_VISITS / 2 - 1;
    for is_left in [true, false] {
        let list = |memory: &mut Memory, count: usize, last: u64| {
            for i in 0..count {
                let next = if i + 1 == count { last } else { node(i + 1) };
                let (a, b) = if is_left { (next, leaf) } else { (leaf, next) };
                memory.set(node(i), [2, 0, a, b]);
            }
        };
        for (count, wanted) in [(longest, Ok(())), (longest + 1, Err(WalkError::TooBig))] {
            list(&mut memory, count, leaf);
            let run = walk.run(node(0), &mut memory, &mut |_| {});
            assert_eq!(run, wanted);
        }
        assert_eq!(walk.bytes as usize, longest + 1);
        // A cycle of each length behind a tail of each length.
        for tail in [0, 1, 2, 3, 10, 100, 1000] {
            for length in [1, 2, 3, 4, 5, 63, 64, 65, 1000] {
                list(&mut memory, tail + length, node(tail));
                let run = walk.run(node(0), &mut memory, &mut |_| {});
                assert_eq!(run, Err(WalkError::Cycle), "{tail} {length}");
            }
        }
    }
}

/// As many separate ranges as may be, and one more, in any order.
#[test]
fn ranges_are_limited() {
    let mut walk = Walk::default();
    let mut memory = Memory::new(3 * MOST_RANGES);
    let node = |i: usize| BASE + 32 * i as u64;
    // Two nodes a part, in the first pages; leaves in every second page behind these.
    let nodes = 2 * (MOST_RANGES + 1) * NODE_BYTES / PAGE_SIZE + 2;
    for parts in [MOST_RANGES - 1, MOST_RANGES] {
        for i in 0..parts {
            let page = nodes + 2 * (i * 7919 % parts);
            let leaf = BASE + (page * PAGE_SIZE) as u64;
            memory.set(node(2 * i), [1, 1, leaf, 0]);
            let next = if i + 1 == parts { 2 * i } else { 2 * i + 3 };
            memory.set(node(2 * i + 1), [2, 0, node(2 * i), node(next)]);
        }
        // The nodes' pages are one range.
        let run = walk.run(node(1), &mut memory, &mut |_| {});
        match parts < MOST_RANGES {
            true => assert_eq!((run, walk.pages.len()), (Ok(()), MOST_RANGES)),
            false => assert_eq!(run, Err(WalkError::TooBig)),
        }
    }
}
