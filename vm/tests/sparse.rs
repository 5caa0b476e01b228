//! The kernel memory of large mappings of which programs touch few, scattered pages, measured by a
//! counting allocator.

use std::time::{Duration, Instant};

use nucleus::{
    Access, PAGE_SIZE, Prot, VirtAddr, VirtRange,
    frame::{self, seem_scarce_after},
    sim::{self, Config, CountedHeap},
};
use vm::{Advice, AmapForm, Inherit, Limits, Map, MapError, MapRequest, Place, set_amap_form};

#[global_allocator]
static HEAP: CountedHeap = CountedHeap::new();

const HERE: VirtAddr = VirtAddr(0x10_0000_0000);
const TERABYTE: usize = 1 << 40;
const RW: Prot = Prot::READ.union(Prot::WRITE);

/// Maps a terabyte, writes one page in each of `parts` parts, and returns the map and the kernel
/// memory used, in bytes.
fn touch(parts: usize) -> (std::sync::Arc<Map>, usize) {
    let map = Map::new(Limits::NONE, true).expect("a map");
    let before = HEAP.bytes();
    map.map(MapRequest {
        place: Place::Fixed(HERE),
        no_reserve: true,
        ..MapRequest::zero(TERABYTE, RW)
    })
    .expect("room");
    for i in 0..parts {
        let at = HERE + TERABYTE / parts * i + i % 100 * PAGE_SIZE;
        map.fault(at, Access::Write).expect("memory");
    }
    (map, HEAP.bytes() - before)
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

/// The page that [`touch`] writes in a part.
fn touched(parts: usize, i: usize) -> VirtAddr {
    HERE + TERABYTE / parts * i + i % 100 * PAGE_SIZE
}

/// The first byte of each page that [`touch`] wrote, of those that are present.
fn bytes(map: &Map, parts: usize) -> Vec<u8> {
    let byte = |i| {
        let mut byte = [0];
        assert_eq!(map.read(touched(parts, i), &mut byte), 1);
        byte[0]
    };
    (0..parts).map(byte).collect()
}

/// Discarding memory that a child shares needs little kernel memory, or reports that there is none.
#[test]
fn discarding_shared_pages_takes_little_memory() {
    const PARTS: usize = 512;
    let config = Config {
        cpus: 1,
        pages: 20_000,
        ..Config::default()
    };
    let all = VirtRange::new(HERE, HERE + TERABYTE);
    let half = VirtRange::new(HERE, HERE + TERABYTE / 2);
    sim::check("give-up", 0..1, config, move || {
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
    let config = Config {
        cpus: 1,
        pages: 20_000,
        ..Config::default()
    };
    let all = VirtRange::new(HERE, HERE + PAGES * PAGE_SIZE);
    sim::check("share", 0..1, config, move || {
        let map = Map::new(Limits::NONE, true).expect("a map");
        map.map(MapRequest {
            place: Place::Fixed(HERE),
            ..MapRequest::zero(PAGES * PAGE_SIZE, RW)
        })
        .expect("room");
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
            let mut byte = [0];
            assert_eq!(map.read(page, &mut byte), 1);
            assert_eq!(byte[0], expected);
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
            let map = Map::new(Limits::NONE, true).expect("a map");
            map.map(MapRequest {
                place: Place::Fixed(HERE),
                no_reserve: true,
                ..MapRequest::zero(SIZE, RW)
            })
            .expect("room");
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
    let config = Config {
        cpus: 1,
        pages: 20_000,
        ..Config::default()
    };
    sim::check("part", 0..1, config, || {
        let (map, _) = touch(PARTS);
        for i in 0..SPLITS {
            let at = touched(PARTS, 7 + 13 * i);
            assert_eq!(map.write(at, &[i as u8]), 1);
        }
        let heap = HEAP.bytes();
        for i in 0..SPLITS {
            let at = touched(PARTS, 7 + 13 * i);
            let page = VirtRange::new(at, at + PAGE_SIZE);
            map.protect(page, Prot::READ).expect("memory");
        }
        let each = (HEAP.bytes() - heap) / SPLITS;
        // Two entries, each with an amap of a bucket or a few.
        assert!(
            each < 8 << 10,
            "{each} bytes for each page that is protected"
        );
        for i in 0..SPLITS {
            let mut byte = [0];
            assert_eq!(map.read(touched(PARTS, 7 + 13 * i), &mut byte), 1);
            assert_eq!(byte[0], i as u8);
        }
    });
}
