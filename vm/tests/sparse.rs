//! The kernel memory of large mappings of which programs touch few, scattered pages, measured by a
//! counting allocator.

mod support;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use nucleus::{
    Access, PAGE_SIZE, Prot, VirtAddr, VirtRange,
    counters::Counter,
    frame::{self, seem_scarce_after},
    sim::{self, Config, CountedHeap},
};
use support::{HERE, byte, machine, new_map, pages, pages_at, zero_at, zero_map};
use vm::{Advice, AmapForm, Inherit, Map, MapError, MapRequest, set_amap_form};

#[global_allocator]
static HEAP: CountedHeap = CountedHeap::new();

const TERABYTE: usize = 1 << 40;

/// Maps a terabyte, writes one page in each of `parts` parts, and returns the map and the kernel
/// memory used, in bytes.
fn touch(parts: usize) -> (Arc<Map>, usize) {
    let map = new_map();
    let before = HEAP.bytes();
    reserve(&map, TERABYTE);
    for i in 0..parts {
        map.fault(touched(parts, i), Access::Write).expect("memory");
    }
    (map, HEAP.bytes() - before)
}

fn reserve(map: &Map, bytes: usize) {
    map.map(MapRequest {
        no_reserve: true,
        ..zero_at(VirtRange::new(HERE, HERE + bytes))
    })
    .expect("room");
}

#[test]
fn a_terabyte_with_ten_pages_costs_little() {
    sim::check("sparse", 0..1, Config::default(), || {
        // Page tables are frames, not heap.
        let (map, bytes) = touch(10);
        assert!(bytes < 4096, "{bytes} bytes for ten pages in a terabyte");
        let before = HEAP.bytes();
        let child = map.fork().expect("a child");
        child.fault(HERE, Access::Write).expect("memory");
        let forked = HEAP.bytes() - before;
        assert!(forked < 5120, "{forked} bytes for a child's copy");
        drop((map, child));

        let (map, bytes) = touch(200);
        assert!(bytes < 200 * 100, "{bytes} bytes for 200 pages");
        drop(map);

        set_amap_form(AmapForm::Array);
        let (map, array) = touch(10);
        assert!(array > 8192, "{array} bytes: the comparison means nothing");
        drop(map);
        set_amap_form(AmapForm::Hybrid);
    });
}

/// The memory that the end of a process frees is estimated with two looks at each page table, so a
/// program with very many tables does not delay those that wait until it is ended.
#[test]
fn weighing_a_sparse_space_is_cheap() {
    const PARTS: usize = 300;
    const SAMPLES: usize = 16;
    sim::check("weigh", 0..1, machine(1, 20_000), || {
        let (map, _) = touch(PARTS);
        let before = Counter::page_tables_counted.total();
        let own = map.own_pages(SAMPLES, 1);
        let looked_at = Counter::page_tables_counted.total() - before;
        assert_eq!(own, PARTS);
        let most = (2 * PARTS + 2 * SAMPLES) as u64;
        assert!(looked_at <= most, "{looked_at} looks at {PARTS} tables");
    });
}

/// The page that [`touch`] writes in a part.
fn touched(parts: usize, i: usize) -> VirtAddr {
    HERE + TERABYTE / parts * i + i % 100 * PAGE_SIZE
}

/// The first byte of each page that [`touch`] wrote, of those that are present.
fn bytes(map: &Map, parts: usize) -> Vec<u8> {
    (0..parts).map(|i| byte(map, touched(parts, i))).collect()
}

/// Discarding memory that a child shares needs little kernel memory, or reports that there is none.
#[test]
fn discarding_shared_pages_takes_little_memory() {
    const PARTS: usize = 512;
    let all = VirtRange::new(HERE, HERE + TERABYTE);
    let half = VirtRange::new(HERE, HERE + TERABYTE / 2);
    sim::check("give-up", 0..1, machine(1, 20_000), move || {
        let (map, _) = touch(PARTS);
        (0..PARTS).for_each(|i| assert_eq!(map.write(touched(PARTS, i), &[i as u8 | 1]), 1));
        let before = bytes(&map, PARTS);

        // All of it: nothing is copied just to be dropped.
        let child = map.fork().expect("a child");
        assert_eq!(child.write(HERE + PAGE_SIZE / 2, &[1]), 1);
        let heap = HEAP.bytes();
        child.advise(all, Advice::DontNeed).expect("memory");
        let more = HEAP.bytes().saturating_sub(heap);
        assert!(more < 4096, "{more} bytes to give {PARTS} pages up");
        assert_eq!(bytes(&child, PARTS), vec![0; PARTS]);
        assert_eq!(bytes(&map, PARTS), before);
        drop(child);

        // A part: the rest becomes an own copy, for which there is memory or not.
        let child = map.fork().expect("a child");
        assert_eq!(child.write(HERE + PAGE_SIZE / 2, &[1]), 1);
        seem_scarce_after(Some(2));
        let heap = HEAP.bytes();
        let refused = child.advise(half, Advice::DontNeed);
        let more = HEAP.bytes().saturating_sub(heap);
        seem_scarce_after(None);
        assert_eq!(refused, Err(MapError::NoMemory), "{more} bytes");
        assert!(more < 10 << 10, "{more} bytes though memory is scarce");
        child.advise(half, Advice::DontNeed).expect("memory");
        let left = bytes(&child, PARTS);
        assert_eq!(left[..PARTS / 2], vec![0; PARTS / 2]);
        assert_eq!(left[PARTS / 2..], before[PARTS / 2..]);
        assert_eq!(bytes(&map, PARTS), before);
        drop(child);
        drop(map);
        assert_eq!(frame::usage().data, 0);
    });
}

/// Sharing memory with children that others have copies of is refused without kernel memory.
#[test]
fn sharing_copied_pages_needs_memory() {
    const PAGES: usize = 4000;
    let all = pages(0, PAGES);
    sim::check("share", 0..1, machine(1, 20_000), move || {
        let map = zero_map(all);
        all.pages()
            .for_each(|page| assert_eq!(map.write(page, &[7]), 1));
        let other = map.fork().expect("a child");
        assert_eq!(map.write(HERE, &[7]), 1);
        map.inherit(all, Inherit::Share).expect("mapped");
        seem_scarce_after(Some(8));
        let heap = HEAP.bytes();
        let refused = map.fork().map(drop);
        let more = HEAP.bytes().saturating_sub(heap);
        seem_scarce_after(None);
        assert_eq!(refused, Err(MapError::NoMemory), "{more} bytes");
        assert!(more < 40 << 10, "{more} bytes though memory is scarce");
        let child = map.fork().expect("a child");
        let page = HERE + 9 * PAGE_SIZE;
        assert_eq!(child.write(page, &[8]), 1);
        for (map, expected) in [(&map, 8), (&child, 8), (&other, 7)] {
            assert_eq!(byte(map, page), expected);
        }
    });
}

/// Advice costs time for the pages that exist, not for the whole range.
#[test]
fn advice_for_a_large_mapping_costs_little() {
    const SIZE: usize = 64 * TERABYTE;
    let all = VirtRange::new(HERE, HERE + SIZE);
    for form in [AmapForm::Hybrid, AmapForm::Array] {
        sim::check("advice", 0..1, Config::default(), move || {
            set_amap_form(form);
            let map = new_map();
            reserve(&map, SIZE);
            let begun = Instant::now();
            // With no pages, and with a page in each of some parts.
            map.advise(all, Advice::Cold).expect("mapped");
            for i in 0..3 {
                map.fault(HERE + SIZE / 3 * i, Access::Write)
                    .expect("memory");
            }
            for advice in [Advice::Cold, Advice::Free, Advice::DontNeed] {
                map.advise(all, advice).expect("mapped");
            }
            let took = begun.elapsed();
            set_amap_form(AmapForm::Hybrid);
            assert!(took < Duration::from_secs(5), "{took:?}, {form:?}");
        });
    }
}

/// A page that becomes an entry of its own costs the same whatever the size of its old entry.
#[test]
fn splitting_an_entry_costs_only_the_part() {
    const PARTS: usize = 4096;
    const SPLITS: usize = 100;
    sim::check("part", 0..1, machine(1, 20_000), || {
        let (map, _) = touch(PARTS);
        for i in 0..SPLITS {
            let at = touched(PARTS, 7 + 13 * i);
            assert_eq!(map.write(at, &[i as u8]), 1);
        }
        let heap = HEAP.bytes();
        for i in 0..SPLITS {
            let at = touched(PARTS, 7 + 13 * i);
            map.protect(pages_at(at, 1), Prot::READ).expect("memory");
        }
        let each = (HEAP.bytes() - heap) / SPLITS;
        // Two entries, each with an amap of a bucket or a few.
        assert!(
            each < 8 << 10,
            "{each} bytes for each page that is protected"
        );
        for i in 0..SPLITS {
            assert_eq!(byte(&map, touched(PARTS, 7 + 13 * i)), i as u8);
        }
    });
}
