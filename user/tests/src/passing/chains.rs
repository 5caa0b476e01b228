//! Pages that go on: lent by one process to the next, and to the children of a receiver.

use super::{PAGES, Peer, check, get, numbered, pass, set};
use libcauseway::{Passing, Receiver};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("passing: rings of loans, all write", rings),
    ("passing: a receiver that forks", forks),
];

/// What page `page` has that `first` numbers, after the processes of the first `hops` hops of a
/// ring have each written a page.
fn expected(first: u64, page: usize, hops: u64) -> u64 {
    let last = (1..=hops).rev().find(|&hop| written_page(hop) == page);
    last.map_or(first + page as u64, |hop| first + 1000 * hop)
}

/// The page that is written before a hop.
fn written_page(hop: u64) -> usize {
    hop as usize * 7 % PAGES
}

/// Each process of a ring lends what it got to the next one, and writes before and afterwards.
fn rings() -> Outcome {
    const HOPS: u64 = 40;
    for count in [3, 5] {
        for ways in [
            [Passing::Lend, Passing::Lend],
            [Passing::Lend, Passing::Transfer],
            [Passing::Copy, Passing::Lend],
        ] {
            ring::<HOPS>(count, ways)?;
        }
    }
    Ok(())
}

fn ring<const HOPS: u64>(count: usize, ways: [Passing; 2]) -> Outcome {
    let words = shared_map(PAGE)?.cast::<AtomicU64>();
    // SAFETY: a page of zeros that all have, used as atomics only.
    let words = unsafe { std::slice::from_raw_parts(words, PAGE / 8) };
    let (ids, slots) = words.split_at(count);
    let wait_for = |word: &AtomicU64| loop {
        match word.load(SeqCst) {
            0 => thread::yield_now(),
            value => return value,
        }
    };
    let member = |me: usize| -> Outcome {
        ids[me].store(u64::from(std::process::id()), SeqCst);
        let next = Receiver::Id(wait_for(&ids[(me + 1) % count]) as u32);
        let number = |member: usize| (member as u64 + 1) << 32;
        let mut memory = numbered(number(me))?;
        for hop in 1..=HOPS {
            // Whose pages these were in the beginning.
            let first = number((me + count * HOPS as usize - hop as usize + 1) % count);
            set(memory, written_page(hop), first + 1000 * hop);
            let how = ways[hop as usize % 2];
            let passed = pass(memory, PAGES, next, how, None)?;
            for page in (0..PAGES).step_by(2) {
                set(memory, page, 1);
            }
            let slot = |member: usize| &slots[hop as usize * count + member];
            slot(me).store(passed.address as u64, SeqCst);
            let theirs = wait_for(slot((me + count - 1) % count)) as *mut u8;
            for page in 0..PAGES {
                let kept = match (page % 2, how) {
                    (0, _) => 1,
                    (_, Passing::Transfer) => 0,
                    _ => expected(first, page, hop),
                };
                equal!(get(memory, page), kept, hop, page);
                let first = number((me + count * HOPS as usize - hop as usize) % count);
                equal!(get(theirs, page), expected(first, page, hop), hop, page);
            }
            unmap(memory, PAGES * PAGE)?;
            memory = theirs;
        }
        Ok(())
    };
    let members = (0..count).map(|me| spawn(|| member(me)));
    wait_all(members.collect::<Result<Vec<_>>>()?)
}

/// A receiver, its child and the sender have the same pages, and each writes some.
fn forks() -> Outcome {
    let peer = Peer::start(|memory| {
        check(memory, 400, "the receiver")?;
        set(memory, 0, 1);
        child(|| {
            check_but(memory, &[(0, 1)])?;
            set(memory, 1, 2);
            set(memory, 2, 2);
            check_but(memory, &[(0, 1), (1, 2), (2, 2)])
        })?;
        check_but(memory, &[(0, 1)])?;
        // A child that ends first, and one that outlives the parent's mapping.
        let other = super::spawn_ready(|| Ok(()))?;
        set(memory, 3, 3);
        kill_child(other)?;
        check_but(memory, &[(0, 1), (3, 3)])?;
        child(|| {
            unmap(memory, PAGES * PAGE / 2)?;
            set(memory, PAGES - 1, 4);
            Ok(())
        })?;
        check_but(memory, &[(0, 1), (3, 3)])
    })?;
    for how in [
        Passing::Lend,
        Passing::Transfer,
        Passing::Copy,
        Passing::Move,
    ] {
        let memory = numbered(400)?;
        let passed = pass(memory, PAGES, peer.receiver(), how, None)?;
        if how == Passing::Lend || how == Passing::Copy {
            set(memory, 4, 9);
        }
        peer.tell(passed.address)?;
        match how {
            Passing::Lend | Passing::Copy => check_but(memory, &[(4, 9)])?,
            Passing::Transfer => equal!(get(memory, 1), 0),
            _ => continue,
        }
        unmap(memory, PAGES * PAGE)?;
    }
    peer.end()
}

/// Checks pages numbered from 400 on, but for some.
fn check_but(memory: *mut u8, others: &[(usize, u64)]) -> Outcome {
    for page in 0..PAGES {
        let other = others.iter().find(|it| it.0 == page);
        let expected = other.map_or(400 + page as u64, |it| it.1);
        equal!(get(memory, page), expected, page);
    }
    Ok(())
}
