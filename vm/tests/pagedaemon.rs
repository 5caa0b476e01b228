//! Memory pressure: programs with more memory than the machine, and the pagedaemon. Each has a
//! model of what it wrote. Pages must come back from swap unchanged, no task may wait forever, and
//! in the end all frames and slots must be free.

mod support;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use nucleus::{Access, Frame, PAGE_SIZE, Prot, VirtAddr, frame, sim::Config, task, user};
use support::{
    Disk, Numbers, Tasks, TestFile, Worker, file_at, map_zero, new_map, pages_at, swap, zero_map,
};
use vm::counters::Counter;
use vm::swap::SwapError;
use vm::{Advice, Fate, Fault, Map, MapRequest, MemoryWait, Pager, Scan};

const MEMORY: VirtAddr = VirtAddr(0x20_0000_0000);

/// Resolves faults as the kernel does: waits for the pagedaemon when memory is short.
fn resolve(at: VirtAddr, access: Access) -> bool {
    task::with_attachment(|attachment| {
        let map = attachment.and_then(|attachment| attachment.downcast_ref::<Map>());
        let Some(map) = map else { return false };
        vm::retry_for_memory(|| map.fault(at, access)).is_ok()
    })
}

/// Runs `body` in `map` on `cpu`, and then tears the map down.
fn spawn(
    tasks: &Arc<Tasks>,
    map: &Arc<Map>,
    cpu: usize,
    body: impl FnOnce(&Arc<Map>) + Send + 'static,
) {
    tasks.spawn_in(map, cpu, move |map| {
        body(map);
        task::set_pmap(None);
        map.tear_down();
    });
}

/// The content of a program's memory: a number in each page, at an offset that depends on the page.
#[derive(Clone)]
struct Model {
    words: Vec<u64>,
    at: VirtAddr,
    /// Other processes share it: discarding pages does not clear them.
    shared: bool,
}

impl Model {
    fn new(at: VirtAddr, pages: usize, shared: bool) -> Model {
        Model {
            words: vec![0; pages],
            at,
            shared,
        }
    }

    fn place(&self, page: usize) -> VirtAddr {
        self.at + page * PAGE_SIZE + page * 8 % (PAGE_SIZE - 8) / 8 * 8
    }

    fn write(&mut self, page: usize, word: u64) {
        user::write(self.place(page), &word).expect("memory to write");
        self.words[page] = word;
    }

    fn check(&self, page: usize) {
        let word: u64 = user::read(self.place(page)).expect("memory to read");
        assert_eq!(word, self.words[page], "page {page}");
    }
}

fn memory(pages: usize) -> Arc<Map> {
    zero_map(pages_at(MEMORY, pages))
}

/// Writes, reads, discards and forks at random.
fn act(
    map: &Arc<Map>,
    tasks: &Arc<Tasks>,
    cpu: usize,
    model: &mut Model,
    numbers: &mut Numbers,
    steps: usize,
    children: usize,
) {
    let pages = model.words.len();
    let mut children = children;
    for step in 0..steps {
        // Mostly runs of pages, from anywhere.
        let first = numbers.below(pages);
        let run = first..(first + numbers.below(24)).min(pages);
        match numbers.below(20) {
            0..=9 => run.for_each(|page| model.write(page, numbers.next() | 1)),
            10..=17 => run.for_each(|page| model.check(page)),
            18 if !model.shared => {
                let range = pages_at(model.at + run.start * PAGE_SIZE, run.len());
                if !run.is_empty() {
                    map.advise(range, Advice::DontNeed).expect("mapped");
                    run.for_each(|page| model.words[page] = 0);
                }
            }
            19 if children > 0 && !model.shared && step > steps / 4 => {
                children -= 1;
                let child = map.fork().expect("memory for a child's map");
                let mut theirs = model.clone();
                let (others, seed) = (tasks.clone(), numbers.next());
                spawn(tasks, &child, cpu, move |map| {
                    let mut numbers = Numbers::new(seed);
                    act(map, &others, cpu, &mut theirs, &mut numbers, steps / 4, 0);
                });
            }
            _ => {}
        }
    }
    (0..pages).for_each(|page| model.check(page));
}

/// Runs `body` on a machine with swap and a pagedaemon; then everything must be free.
fn with_swap(slots: usize, failing: usize, body: impl FnOnce()) {
    user::set_fault_hook(resolve);
    let (device, store) = swap::add(7, slots);
    store.failing_writes.store(failing, Ordering::SeqCst);
    vm::start_pagedaemon().expect("a task");
    body();
    vm::stop_pagedaemon();
    swap::remove(device);
}

const CONFIG: Config = Config {
    cpus: 2,
    pages: 500,
    seed: 0,
    max_points: 30_000_000,
    daemons: false,
    direct_map: None,
    iommu: None,
};

#[test]
fn memory_larger_than_the_machine() {
    support::check("memory", 0..8, CONFIG, || {
        with_swap(4000, 0, || {
            let tasks = Tasks::new();
            for cpu in 0..2 {
                let map = new_map();
                map_zero(&map, pages_at(MEMORY, 400), cpu == 1);
                let theirs = tasks.clone();
                spawn(&tasks, &map, cpu, move |map| {
                    let mut model = Model::new(MEMORY, 400, cpu == 1);
                    let mut numbers = Numbers::new(cpu as u64 + 5);
                    act(map, &theirs, cpu, &mut model, &mut numbers, 120, 2);
                });
            }
            tasks.wait_until(0);
        });
        assert!(Counter::swap_pages_out.total() > 200);
        assert!(Counter::swap_pages_in.total() > 100);
    });
}

#[test]
fn clusters_are_large() {
    support::check("clusters", 0..3, CONFIG, || {
        with_swap(4000, 0, || go_through(1000));
        let (pages, writes) = (
            Counter::swap_pages_out.total(),
            Counter::swap_writes.total(),
        );
        // 64 KiB on average.
        assert!(pages >= 16 * writes, "{pages} pages by {writes} writes");
    });
}

#[test]
fn one_page_a_request_without_clusters() {
    support::check("no clusters", 0..2, CONFIG, || {
        let before = vm::swap_cluster();
        vm::set_swap_cluster(1);
        with_swap(1000, 0, || go_through(600));
        vm::set_swap_cluster(before);
        let (pages, writes) = (
            Counter::swap_pages_out.total(),
            Counter::swap_writes.total(),
        );
        assert!(pages > 0 && pages == writes, "{pages} by {writes}");
    });
}

#[test]
fn writes_that_fail_lose_nothing() {
    support::check("failing writes", 0..6, CONFIG, || {
        with_swap(4000, 20, || go_through(600));
        assert!(Counter::swap_failures.total() > 0);
    });
}

/// Programs want more memory than there is, including swap: one of them is refused, none waits
/// forever, and the others continue with the freed memory.
#[test]
fn memory_is_exhausted() {
    const PAGES: usize = 500;
    support::check("exhausted", 0..6, CONFIG, || {
        let refused = Arc::new(AtomicUsize::new(0));
        let theirs = refused.clone();
        with_swap(150, 0, move || {
            let tasks = Tasks::new();
            for cpu in 0..2 {
                let map = memory(PAGES);
                let refused = theirs.clone();
                spawn(&tasks, &map, cpu, move |_| {
                    let mut model = Model::new(MEMORY, PAGES, false);
                    let is_refused = |page: usize| {
                        let word = page as u64 + 1;
                        user::write(model.place(page), &word).is_err()
                    };
                    let written = (0..PAGES).find(|&page| is_refused(page));
                    let written = written.unwrap_or(PAGES);
                    if written < PAGES {
                        refused.fetch_add(1, Ordering::SeqCst);
                    }
                    // A program that has all it wants keeps it until the other one is refused:
                    // together they want more than there is.
                    while refused.load(Ordering::SeqCst) == 0 {
                        task::yield_now();
                    }
                    for page in 0..written {
                        model.words[page] = page as u64 + 1;
                    }
                });
            }
            tasks.wait_until(0);
        });
        assert!(refused.load(Ordering::SeqCst) > 0);
    });
}

/// No two free frames are adjacent: page tables are made of them all the same, until programs get
/// none of the frames that are left.
#[test]
fn free_frames_that_stand_apart() {
    support::check("apart", 0..6, CONFIG, || {
        user::set_fault_hook(resolve);
        vm::start_pagedaemon().expect("a task");
        let mut frames: Vec<Frame> =
            core::iter::from_fn(|| Frame::alloc(frame::Contents::Stale).ok()).collect();
        frames.retain(|frame| frame.number() % 2 == 0);
        let fault = |map: &Map| map.fault(MEMORY, Access::Write);
        // Each takes a table of each level and a page, but for that of level 4, which it has.
        let others: Vec<_> = (0..60).map(|_| memory(1)).collect();
        let is_refused = |map: &Arc<Map>| fault(map) == Err(Fault::OutOfMemory);
        let refused = others.iter().position(is_refused).expect("too many");
        assert!(refused > 1, "none was made");
        assert!(frame::available() <= frame::targets().min);
        drop(frames);
        assert_eq!(fault(&others[refused]), Ok(()));
        others.iter().for_each(|map| map.tear_down());
        drop(others);
        vm::stop_pagedaemon();
    });
}

/// A refused request after which enough frames are free does not make the pagedaemon exceed its
/// targets.
#[test]
fn enough_is_enough() {
    support::check("enough", 0..3, CONFIG, || {
        with_swap(1000, 0, || {
            let tasks = Tasks::new();
            let map = memory(300);
            spawn(&tasks, &map, 0, move |_| {
                let mut model = Model::new(MEMORY, 300, false);
                (0..300).for_each(|page| model.write(page, page as u64 + 1));
                for _ in 0..40 {
                    assert_eq!(vm::wait_for_memory(), MemoryWait::Retry);
                }
            });
            tasks.wait_until(0);
            assert_eq!(Counter::swap_pages_out.total(), 0);
        });
    });
}

/// Removing a device whose pages do not fit elsewhere loses nothing and leaves programs their
/// memory; with another device it succeeds.
#[test]
fn a_device_goes_when_there_is_room() {
    const PAGES: usize = 700;
    support::check("off", 0..6, CONFIG, || {
        user::set_fault_hook(resolve);
        let (first, _) = swap::add(7, 2000);
        vm::start_pagedaemon().expect("a task");
        let tasks = Tasks::new();
        let map = memory(PAGES);
        // The program writes everything and checks it each time it is told to.
        let rounds = Arc::new((AtomicUsize::new(1), AtomicUsize::new(0)));
        let theirs = rounds.clone();
        spawn(&tasks, &map, 0, move |_| {
            let mut model = Model::new(MEMORY, PAGES, false);
            (0..PAGES).for_each(|page| model.write(page, page as u64 + 1));
            for round in 1..=3 {
                (0..PAGES).for_each(|page| model.check(page));
                theirs.1.store(round, Ordering::SeqCst);
                while theirs.0.load(Ordering::SeqCst) == round {
                    task::yield_now();
                }
            }
        });
        let done = |round: usize| {
            while rounds.1.load(Ordering::SeqCst) != round {
                task::yield_now();
            }
        };
        let go_on = || rounds.0.fetch_add(1, Ordering::SeqCst);
        done(1);
        assert_eq!(vm::swap_off(first, &|| false), Err(SwapError::NoMemory));
        assert!(frame::available() > frame::targets().min);
        // Once more while the removal visits all pages without success.
        go_on();
        assert_eq!(vm::swap_off(first, &|| false), Err(SwapError::NoMemory));
        done(2);
        let (second, _) = swap::add(8, 2000);
        go_on();
        vm::swap_off(first, &|| false).expect("room on the other device");
        done(3);
        go_on();
        tasks.wait_until(0);
        vm::stop_pagedaemon();
        swap::remove(second);
    });
}

/// A file system's cache of one file.
struct Cached(Arc<Disk>);

impl vm::Cache for Cached {
    fn pages(&self) -> usize {
        self.0.object().resident_count()
    }

    fn reclaim(&self, scan: &mut Scan) {
        let mut fate = |_, _: &Frame, modified| match modified {
            true => Fate::Keep,
            false => Fate::Drop,
        };
        self.0.object().age(0, scan, &mut fate);
    }
}

/// Without swap, file pages make room for anonymous memory, mapped ones as well, and can be read
/// again.
#[test]
fn clean_pages_of_files_make_room() {
    support::check("files", 0..6, CONFIG, || {
        user::set_fault_hook(resolve);
        vm::start_pagedaemon().expect("a task");
        let disk = Disk::new(3, 250, 0);
        vm::register_cache(Box::leak(Box::new(Cached(disk.clone()))));
        let tasks = Tasks::new();
        let map = memory(350);
        let file = VirtAddr(0x30_0000_0000);
        map.map(file_at(pages_at(file, 250), disk.clone()))
            .expect("room");
        spawn(&tasks, &map, 0, move |_| {
            let mut model = Model::new(MEMORY, 350, false);
            let look = |page: usize| {
                let byte: u8 = user::read(file + page * PAGE_SIZE).expect("a file");
                assert_eq!(byte, support::File::byte(3, page as u64));
            };
            (0..250).for_each(look);
            (0..350).for_each(|page| model.write(page, 7 + page as u64));
            // In parts: all do not fit.
            (0..250).for_each(look);
            (0..350).for_each(|page| model.check(page));
        });
        tasks.wait_until(0);
        vm::stop_pagedaemon();
        assert!(Counter::pageout_freed.total() > 50);
        disk.set_pages(0);
        // The leaked cache has the other reference; its pages are gone.
    });
}

/// Goes through `pages` pages of memory twice, on one CPU.
fn go_through(pages: usize) {
    let tasks = Tasks::new();
    let map = memory(pages);
    spawn(&tasks, &map, 0, move |_| {
        let mut model = Model::new(MEMORY, pages, false);
        (0..pages).for_each(|page| model.write(page, page as u64 + 1));
        (0..pages).for_each(|page| model.check(page));
    });
    tasks.wait_until(0);
}

/// `MADV_COLD` deactivates active pages of a file, and the counts follow.
#[test]
fn cold_pages_are_inactive() {
    support::check("cold", 0..1, CONFIG, || {
        let pages = 40;
        let before = vm::active_in_objects();
        let disk = Disk::new(3, pages, 0);
        let map = new_map();
        let range = pages_at(MEMORY, pages as usize);
        map.map(MapRequest {
            prot: Prot::READ,
            ..file_at(range, disk.clone())
        })
        .expect("room");
        user::set_fault_hook(resolve);
        map.populate(range).expect("memory");
        let worker = Worker::new(&map, 0);
        for page in range.pages() {
            worker.read(page, 1).expect("memory");
        }
        worker.end();
        let mut scan = Scan::new(1, usize::MAX, vm::Urgency::Pressing);
        disk.object().age(0, &mut scan, &mut |_, _, _| Fate::Keep);
        let active = vm::active_in_objects() - before;
        assert_eq!(active, pages as usize, "all were used just now");
        map.advise(range, Advice::Cold).expect("mapped");
        assert_eq!(vm::active_in_objects(), before);
        map.tear_down();
        disk.set_pages(0);
        drop((map, disk));
        assert_eq!(vm::active_in_objects(), before);
    });
}

/// A program with few pages that uses them now and then keeps them beside one that goes through
/// more than there is.
#[test]
fn small_programs_keep_their_pages() {
    const SMALL: usize = 12;
    const LARGE: usize = 900;
    support::check("small", 0..12, CONFIG, || {
        with_swap(4000, 0, || {
            let tasks = Tasks::new();
            let small = memory(SMALL);
            let passes = Arc::new(AtomicUsize::new(0));
            let seen = passes.clone();
            spawn(&tasks, &small, 0, move |map| {
                let mut model = Model::new(MEMORY, SMALL, false);
                for pass in 0..4 {
                    (0..SMALL).for_each(|page| model.write(page, pass as u64 + 1));
                    while seen.load(Ordering::SeqCst) <= pass {
                        task::yield_now();
                    }
                    assert_eq!(map.swapped(), 0, "pages went in pass {pass}");
                }
            });
            let large = memory(LARGE);
            spawn(&tasks, &large, 1, move |_| {
                let mut model = Model::new(MEMORY, LARGE, false);
                for pass in 0..4 {
                    (0..LARGE).for_each(|page| model.write(page, pass + 1));
                    passes.fetch_add(1, Ordering::SeqCst);
                }
            });
            tasks.wait_until(0);
        });
        assert!(Counter::swap_pages_out.total() > 1000);
    });
}
