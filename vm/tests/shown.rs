//! Mappings that show single pages of another pager's object.

mod support;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::SeqCst},
};

use nucleus::Access;
use nucleus::{PAGE_SIZE, Prot, counters::Counter, pmap::Pending, task};
use support::{HERE, Tasks, Worker, byte, map_zero, new_map, on_cpus, page, pages};
use vm::{Advice, Anonymous, Backing, Map, MapRequest, Pager, Place, ShownPages};

const PAGES: usize = 100;

fn request(pager: Arc<dyn Pager>, prot: Prot) -> MapRequest {
    MapRequest {
        place: Place::Fixed(HERE),
        max_prot: prot,
        backing: Backing::Object { pager, offset: 0 },
        shared: true,
        ..MapRequest::zero(PAGES * PAGE_SIZE, prot)
    }
}

/// A map with memory that it writes, and one with a view of that.
fn both() -> (Arc<Map>, Arc<Map>, Arc<ShownPages>) {
    let memory = Anonymous::new(PAGES as u64).expect("memory");
    let (writer, reader) = (new_map(), new_map());
    let rights = Prot::READ | Prot::WRITE;
    writer.map(request(memory.clone(), rights)).expect("room");
    for i in 0..PAGES {
        assert_eq!(writer.write(page(i), &[i as u8 + 1]), 1);
    }
    let view = ShownPages::new(memory, PAGES).expect("memory");
    reader.map(request(view.clone(), Prot::READ)).expect("room");
    (writer, reader, view)
}

fn show(map: &Map, view: &ShownPages, pages: std::ops::Range<u64>) {
    let indices = pages.start as usize..pages.end as usize;
    view.prepare(indices).expect("memory");
    map.show_pages(view, pages.clone(), page(pages.start as usize));
}

fn hide(map: &Map, view: &ShownPages, pages: std::ops::Range<u64>) {
    let mut pending = Pending::new();
    map.hide_pages(
        view,
        pages.clone(),
        page(pages.start as usize),
        &mut pending,
    );
    pending.flush();
}

/// Each CPU reads the pages that are shown and no others, whatever it read before, and what the
/// program has mapped in their place stays.
#[test]
fn pages_come_and_go() {
    support::check("shown", 0..20, on_cpus(2), || {
        let (writer, reader, view) = both();
        let workers = Worker::on_each(&reader, 2);
        let reads = |i: usize| workers.iter().map(move |it| it.read(page(i), 1));
        let own = 7;
        map_zero(&reader, pages(own, 1), false);
        let mut shown = [false; PAGES];
        let mut numbers = support::Numbers::new(nucleus::sim::random_u64());
        for _ in 0..60 {
            let start = numbers.below(PAGES);
            let end = start + 1 + numbers.below(PAGES - start);
            let is_shown = numbers.chance(50);
            match is_shown {
                true => show(&reader, &view, start as u64..end as u64),
                false => hide(&reader, &view, start as u64..end as u64),
            }
            shown[start..end].fill(is_shown);
            for _ in 0..20 {
                let i = numbers.below(PAGES);
                let expected = match shown[i] && i != own {
                    true => i as u8 + 1,
                    false => 0,
                };
                reads(i).for_each(|found| assert_eq!(found, Some(vec![expected]), "page {i}"));
            }
        }
        assert!(
            reader
                .protect(pages(0, 1), Prot::READ | Prot::WRITE)
                .is_err()
        );
        workers.into_iter().for_each(Worker::end);
        reader.tear_down();
        writer.tear_down();
    });
}

/// Pages are there without a fault, and nothing is invalidated for that; what was not read need not
/// be invalidated when it goes.
#[test]
fn showing_costs_no_fault_and_no_invalidation() {
    support::once("shown at once", || {
        let (writer, reader, view) = both();
        let figures = || {
            [
                Counter::tlb_local_page,
                Counter::tlb_local_full,
                Counter::tlb_remote,
                Counter::page_tables_allocated,
            ]
            .map(Counter::total)
        };
        show(&reader, &view, 0..1);
        hide(&reader, &view, 0..1);
        let before = figures();
        for _ in 0..3 {
            show(&reader, &view, 0..PAGES as u64);
            assert!((0..PAGES).all(|i| reader.pmap().permits(page(i), Access::Read)));
            hide(&reader, &view, 0..PAGES as u64);
            assert!((0..PAGES).all(|i| !reader.pmap().permits(page(i), Access::Read)));
        }
        assert_eq!(figures(), before);
        assert_eq!(byte(&reader, page(3)), 0);
        show(&reader, &view, 3..4);
        assert_eq!(byte(&reader, page(3)), 4);
        reader.tear_down();
        writer.tear_down();
    });
}

/// A thread that discards the view meanwhile leaves no other one a translation of a hidden page.
#[test]
fn what_is_hidden_while_it_is_discarded_is_not_read() {
    /// As many as are discarded at once; the first ones, which are read, wait for the last ones.
    const SHOWN: usize = 60;
    const READ: usize = 3;
    support::check("hidden amid discards", 0..60, on_cpus(3), || {
        let (writer, reader, view) = both();
        let workers = Worker::on_each(&reader, 2);
        let tasks = Tasks::new();
        let is_over = Arc::new(AtomicBool::new(false));
        {
            let (reader, is_over) = (reader.clone(), is_over.clone());
            tasks.spawn(u64::MAX, move || {
                while !is_over.load(SeqCst) {
                    reader
                        .advise(pages(0, SHOWN), Advice::DontNeed)
                        .expect("all of it is mapped");
                    task::yield_now();
                }
            });
        }
        for round in 0..10u8 {
            let all = 0..SHOWN as u64;
            show(&reader, &view, all.clone());
            for i in 0..READ {
                let value = 100 + round;
                assert_eq!(writer.write(page(i), &[value]), 1);
                for worker in &workers {
                    assert_eq!(worker.read(page(i), 1), Some(vec![value]));
                }
            }
            hide(&reader, &view, all);
            for i in 0..READ {
                assert_eq!(writer.write(page(i), &[200 + round]), 1);
                for worker in &workers {
                    assert_eq!(worker.read(page(i), 1), Some(vec![0]), "a hidden page");
                }
            }
        }
        is_over.store(true, SeqCst);
        tasks.wait_until(0);
        workers.into_iter().for_each(Worker::end);
        reader.tear_down();
        writer.tear_down();
    });
}
