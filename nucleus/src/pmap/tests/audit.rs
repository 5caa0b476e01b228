//! The audit: silent while all goes right, and names what a test damages.

use super::*;
use crate::mem::frame::record::record;
use crate::pmap::audit::{Seen, Violation, audit_frames, audit_space};
use crate::pmap::entries::entry;
use crate::pmap::format::{Pte, index};

fn violations<'a>(
    pmaps: impl IntoIterator<Item = &'a PmapRef>,
    is_quiet: bool,
) -> (Seen, Vec<Violation>) {
    let (mut seen, mut found) = (Seen::default(), Vec::new());
    let mut report = |it| found.push(it);
    audit_frames(is_quiet, &mut seen, &mut report);
    for pmap in pmaps {
        audit_space(pmap, &mut seen, &mut report);
    }
    (seen, found)
}

/// Audits all frames and these spaces while others may change them.
pub(super) fn finds_nothing<'a>(pmaps: impl IntoIterator<Item = &'a PmapRef>, is_quiet: bool) {
    let (_, found) = violations(pmaps, is_quiet);
    let found: Vec<_> = found.iter().map(Violation::to_string).collect();
    assert!(found.is_empty(), "{found:#?}");
}

/// A space with mappings in several tables, one page twice.
fn space() -> (PmapRef, Vec<Frame>) {
    let frames = tagged_frames(3);
    let pmap = Pmap::new().unwrap();
    let mut pending = Pending::new();
    for page in 0..PAGES {
        let frame = &frames[page % 3];
        pmap.enter(va_of(page), frame, READ_WRITE, &mut pending)
            .unwrap();
    }
    (pmap, frames)
}

#[test]
fn every_table_and_entry_is_seen() {
    on_machines("every table is seen", [1, 2], 1024, 4, || {
        let (pmap, frames) = space();
        let (seen, found) = violations([&pmap], true);
        assert_eq!(found, []);
        assert_eq!((seen.entries, seen.frames), (PAGES, 3));
        // A table of level 1 is two frames, and there are fifteen.
        assert_eq!(seen.tables, pmap.resident().page_tables - 15);
        let child = pmap.fork(&mut all_tables(), 0, &mut Pending::new());
        let child = child.unwrap().0;
        finds_nothing([&pmap, &child], true);
        pmap.tear_down();
        child.tear_down();
        drop(frames);
    });
}

/// Damages a space, has the audit name that, and repairs it.
fn names(what: &str, damage: fn(&PmapRef, &[Frame]) -> (Violation, Box<dyn FnOnce()>)) {
    on_machines_with(what, [1], 1024, 2, move || {
        user::set_fault_hook(|_, _| false);
        let (pmap, frames) = space();
        let (wanted, repair) = damage(&pmap, &frames);
        let (_, found) = violations([&pmap], true);
        assert!(found.contains(&wanted), "{wanted:?} is not in {found:?}");
        repair();
        finds_nothing([&pmap], true);
        pmap.tear_down();
    });
}

/// The table of level 1 of a page of the tests, and the place of its entry.
fn place(pmap: &PmapRef, page: usize) -> (u32, usize) {
    let va = va_of(page);
    (pmap.leaf(va).unwrap().table, index(va, 1))
}

/// Changes an entry until it is repaired.
fn put(table: u32, i: usize, change: impl Fn(Pte) -> Pte) -> Box<dyn FnOnce()> {
    let at = entry(table, i);
    let old = at.load(Ordering::Relaxed);
    at.store(change(Pte(old)).0, Ordering::Relaxed);
    Box::new(move || at.store(old, Ordering::Relaxed))
}

#[test]
fn a_mapped_page_table_is_named() {
    names("a mapped page table", |pmap, _| {
        let ((table, index), root) = (place(pmap, 30), pmap.root);
        let repair = put(table, index, |_| Pte::page(root, READ_WRITE, true));
        (
            Violation::NotData {
                table,
                index,
                frame: root,
            },
            repair,
        )
    });
}

#[test]
fn an_entry_without_a_link_is_named() {
    names("an entry without a link", |pmap, frames| {
        // An entry that nothing maps has got a page of a program.
        let (table, index) = (place(pmap, 40).0, 77);
        let frame = frames[0].index();
        let repair = put(table, index, |_| Pte::page(frame, READ_WRITE, true));
        (
            Violation::NotLinked {
                table,
                index,
                frame,
            },
            repair,
        )
    });
}

#[test]
fn a_link_without_an_entry_is_named() {
    names("a link without an entry", |pmap, frames| {
        let (table, index) = place(pmap, 30);
        let frame = frames[0].index();
        let repair = put(table, index, |_| Pte::ZERO);
        (
            Violation::WrongLink {
                table,
                index,
                frame,
            },
            repair,
        )
    });
}

#[test]
fn a_wrong_count_is_named() {
    names("a wrong count", |pmap, _| {
        let r = record(pmap.root);
        let found = r.in_use.fetch_add(1, Ordering::Relaxed);
        let wanted = Violation::WrongCount {
            frame: pmap.root,
            says: found + 1,
            found,
        };
        let repair = move || {
            r.in_use.fetch_sub(1, Ordering::Relaxed);
        };
        (wanted, Box::new(repair))
    });
    names("a wrong count of level 1", |pmap, _| {
        let (table, _) = place(pmap, 30);
        let count = record(table).use_count();
        count.fetch_add(1, Ordering::Relaxed);
        let wanted = Violation::WrongCount {
            frame: table,
            says: 13,
            found: 12,
        };
        let repair = move || {
            count.fetch_sub(1, Ordering::Relaxed);
        };
        (wanted, Box::new(repair))
    });
}

#[test]
fn a_table_in_the_wrong_place_is_named() {
    names("a table in the wrong place", |pmap, frames| {
        let (root, index) = (pmap.root, index(va_of(0), 4));
        let frame = frames[1].index();
        let repair = put(root, index, |_| Pte::table(frame));
        (
            Violation::WrongTable {
                table: root,
                index,
                frame,
            },
            repair,
        )
    });
}
