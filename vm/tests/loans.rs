//! Page loans (`uvm.txt` 7) and what happens to their owners; random programs of loans are in
//! `model`.

mod support;

use nucleus::{Prot, ephemeral, frame::Owned};
use support::{byte, once, page, pages, zero_map};
use vm::{Advice, Lock, Map, counters::Counter};

fn write(map: &Map, at: usize, byte: u8) {
    assert_eq!(map.write(page(at), &[byte; 16]), 16);
}

/// Lends a page of one map to another one, at the same address.
fn lend(from: &Map, to: &Map) {
    let mut lent: [Option<Owned>; 1] = [None];
    assert_eq!(from.lend(page(0), &mut lent), 1);
    assert_eq!(to.receive(page(0), &mut lent), 1);
}

/// A thread or a device that reads a borrower's page, and goes on after the borrower has given it
/// up, does not read what the lender writes then.
#[test]
fn readers_of_a_borrower_that_left_see_no_later_write() {
    once("readers", || {
        for is_read in [true, false] {
            let (lender, borrower) = (zero_map(pages(0, 1)), zero_map(pages(0, 1)));
            write(&lender, 0, 1);
            lend(&lender, &borrower);
            let mut held = [None];
            if is_read {
                borrower.hold_each(page(0), &mut held);
            }
            borrower.unmap(pages(0, 1)).expect("mapped");
            let copied = Counter::pages_copied.total();
            write(&lender, 0, 2);
            let copied = Counter::pages_copied.total() - copied;
            assert_eq!(copied, u64::from(is_read), "copied only if it is read");
            for frame in held.iter().flatten() {
                let mut bytes = [0; 16];
                ephemeral::map(frame).read(0, &mut bytes);
                assert_eq!(bytes, [1; 16]);
            }
            assert_eq!(byte(&lender, page(0)), 2);
        }
    });
}

/// Pages that were free to go, and have come back to their program as what it received, stay.
#[test]
fn what_was_received_is_not_freed_lazily() {
    once("lazily", || {
        let (device, _) = support::swap::add(1, 64);
        let map = zero_map(pages(0, 1));
        write(&map, 0, 7);
        map.advise(pages(0, 1), Advice::Free).expect("mapped");
        map.fork().expect("a child").tear_down();
        lend(&map, &map);
        map.page_out(pages(0, 1)).expect("mapped");
        for _ in 0..400 {
            nucleus::task::yield_now();
        }
        assert_eq!(byte(&map, page(0)), 7);
        map.tear_down();
        support::swap::remove(device);
    });
}

/// Locked pages are neither lent nor replaced: they stay mapped as such.
#[test]
fn locked_pages_stay() {
    once("locked", || {
        let (locked, other) = (zero_map(pages(0, 1)), zero_map(pages(0, 1)));
        write(&locked, 0, 1);
        write(&other, 0, 2);
        locked.lock(pages(0, 1), Lock::Full).expect("no limit");
        let mut lent: [Option<Owned>; 1] = [None];
        assert_eq!(locked.lend(page(0), &mut lent), 0);
        assert_eq!(other.lend(page(0), &mut lent), 1);
        assert_eq!(locked.receive(page(0), &mut lent), 0);
        assert!(lent[0].is_some());
        assert_eq!(byte(&locked, page(0)), 1);
    });
}

/// Memory that is mapped nowhere weighs like any other when memory is short: without rights, or
/// received and not touched yet. What several programs have, or is on its way, counts in parts.
#[test]
fn pages_that_are_mapped_nowhere_weigh() {
    const COUNT: usize = 40;
    once("weigh", || {
        let range = pages(0, COUNT);
        let (map, borrower) = (zero_map(range), zero_map(range));
        (0..COUNT).for_each(|i| write(&map, i, 1));
        let weights = || (map.own_pages(8, 1), borrower.own_pages(8, 1));
        let mut lent = [const { None::<Owned> }; COUNT];
        assert_eq!(map.lend(page(0), &mut lent), COUNT);
        assert_eq!(borrower.receive(page(0), &mut lent), COUNT);
        assert_eq!(weights(), (COUNT, 0), "the lender maps them");
        map.protect(range, Prot::empty()).expect("mapped");
        assert_eq!(weights(), (COUNT / 2, COUNT / 2));
        let child = borrower.fork().expect("a child");
        assert_eq!(weights(), (COUNT / 2, COUNT / 4));
        child.tear_down();
        map.unmap(range).expect("mapped");
        assert_eq!(weights(), (0, COUNT));
        (0..COUNT).for_each(|i| write(&borrower, i, 2));
        borrower.protect(range, Prot::empty()).expect("mapped");
        assert_eq!(weights(), (0, COUNT));
    });
}
