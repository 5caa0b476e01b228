//! Life under memory pressure: programs whose memory is larger than the machine's, with the pagedaemon running. Each has a model of what
//! it wrote; whatever goes out to swap must come back as it was, nobody waits for ever, and in the end all frames and all slots are back.

mod support;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use nucleus::{
    Access, PAGE_SIZE, Prot, VirtAddr, VirtRange,
    counters::Counter,
    frame,
    sim::{self, Config},
    task::{self, Sleep, Spawn, WaitQueue},
    user,
};
use support::{Numbers, swap::Store};
use vm::{Advice, Fault, Limits, Map, MapRequest, Place, Supply, swap};

const MEMORY: VirtAddr = VirtAddr(0x20_0000_0000);
const RW: Prot = Prot::READ.union(Prot::WRITE);

/// Resolves faults as the kernel does: who gets no memory waits for the pagedaemon.
fn resolve(at: VirtAddr, access: Access) -> bool {
    task::with_attachment(|attachment| {
        let map = attachment.and_then(|attachment| attachment.downcast_ref::<Map>());
        let Some(map) = map else { return false };
        loop {
            match map.fault(at, access) {
                Err(Fault::OutOfMemory) if vm::wait_for_memory() == Supply::Some => {}
                result => return result.is_ok(),
            }
        }
    })
}

/// Programs that still run.
#[derive(Default)]
struct Running {
    count: AtomicUsize,
    queue: WaitQueue,
}

impl Running {
    fn spawn(
        self: &Arc<Running>,
        map: Arc<Map>,
        cpu: usize,
        body: impl FnOnce(&Arc<Map>) + Send + 'static,
    ) {
        self.count.fetch_add(1, Ordering::SeqCst);
        let running = self.clone();
        let spawn = Spawn {
            name: "program",
            pmap: Some(map.pmap().clone()),
            attachment: Some(map.clone()),
            cpus: 1 << cpu,
            priority: Default::default(),
        };
        let run = move || {
            body(&map);
            task::set_pmap(None);
            map.tear_down();
            drop(map);
            running.count.fetch_sub(1, Ordering::SeqCst);
            running.queue.wake_all();
        };
        task::spawn(spawn, Box::new(run)).expect("a task");
    }

    fn wait(&self) {
        let none = || (self.count.load(Ordering::SeqCst) == 0).then_some(());
        self.queue.wait(Sleep::SOUND, none).expect("a sound sleep");
    }
}

/// What a program has in its memory: a number at a place in each page that depends on the page.
#[derive(Clone)]
struct Model {
    words: Vec<u64>,
    at: VirtAddr,
    /// Others would see it, too: giving pages up does not clear them.
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

fn map_zero(map: &Map, at: VirtAddr, pages: usize, shared: bool) {
    let request = MapRequest {
        place: Place::Fixed(at),
        shared,
        ..MapRequest::zero(pages * PAGE_SIZE, RW)
    };
    map.map(request).expect("room");
}

/// Writes, reads, gives up and forks at random.
fn act(
    map: &Arc<Map>,
    running: &Arc<Running>,
    cpu: usize,
    model: &mut Model,
    numbers: &mut Numbers,
    steps: usize,
    children: usize,
) {
    let pages = model.words.len();
    let mut children = children;
    for step in 0..steps {
        // Runs of pages mostly, from anywhere.
        let first = numbers.below(pages);
        let run = first..(first + numbers.below(24)).min(pages);
        match numbers.below(20) {
            0..=9 => run.for_each(|page| model.write(page, numbers.next() | 1)),
            10..=17 => run.for_each(|page| model.check(page)),
            18 if !model.shared => {
                let range = VirtRange::new(
                    model.at + run.start * PAGE_SIZE,
                    model.at + run.end * PAGE_SIZE,
                );
                if !run.is_empty() {
                    map.advise(range, Advice::DontNeed).expect("mapped");
                    run.for_each(|page| model.words[page] = 0);
                }
            }
            19 if children > 0 && !model.shared && step > steps / 4 => {
                children -= 1;
                let child = map.fork().expect("memory for a child's map");
                let mut theirs = model.clone();
                let (running, seed) = (running.clone(), numbers.next());
                let running2 = running.clone();
                running.spawn(child, cpu, move |map| {
                    let mut numbers = Numbers::new(seed);
                    act(map, &running2, cpu, &mut theirs, &mut numbers, steps / 4, 0);
                });
            }
            _ => {}
        }
    }
    (0..pages).for_each(|page| model.check(page));
}

/// A machine with swap, the daemon, and what `body` does on it; then all must be back.
fn with_swap(slots: usize, failing: usize, body: impl FnOnce()) {
    user::set_fault_hook(resolve);
    let before = frame::usage();
    let store = Store::new(7, slots);
    store.failing_writes.store(failing, Ordering::SeqCst);
    let device = swap::add(store, 0).expect("a device");
    vm::start_pagedaemon().expect("a task");
    body();
    vm::stop_pagedaemon();
    support::swap::expect_empty();
    swap::remove(device, &|| false).expect("an empty device");
    support::expect_all_back(before);
}

const CONFIG: Config = Config {
    cpus: 2,
    pages: 500,
    seed: 0,
    max_points: 200_000_000,
    daemons: false,
};

#[test]
fn memory_larger_than_the_machine() {
    sim::check("memory", 0..8, CONFIG, || {
        with_swap(4000, 0, || {
            let running = Arc::new(Running::default());
            for cpu in 0..2 {
                let map = Map::new(Limits::NONE, false).expect("a map");
                map_zero(&map, MEMORY, 400, cpu == 1);
                let theirs = running.clone();
                running.spawn(map, cpu, move |map| {
                    let mut model = Model::new(MEMORY, 400, cpu == 1);
                    let mut numbers = Numbers::new(cpu as u64 + 5);
                    act(map, &theirs, cpu, &mut model, &mut numbers, 120, 2);
                });
            }
            running.wait();
        });
        assert!(Counter::swap_pages_out.total() > 200);
        assert!(Counter::swap_pages_in.total() > 100);
    });
}

#[test]
fn clusters_are_large() {
    sim::check("clusters", 0..3, CONFIG, || {
        with_swap(4000, 0, || {
            let running = Arc::new(Running::default());
            let map = Map::new(Limits::NONE, false).expect("a map");
            map_zero(&map, MEMORY, 1000, false);
            running.spawn(map, 0, |_| {
                let mut model = Model::new(MEMORY, 1000, false);
                (0..1000).for_each(|page| model.write(page, page as u64 + 1));
                (0..1000).for_each(|page| model.check(page));
            });
            running.wait();
        });
        let (pages, writes) = (
            Counter::swap_pages_out.total(),
            Counter::swap_writes.total(),
        );
        // 64 KiB on average.
        assert!(pages >= 16 * writes, "{pages} pages by {writes} writes");
    });
}
