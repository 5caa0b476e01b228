//! Shared parts of the tests: a source of numbers, a usual place and mappings there, files to map,
//! and tasks. Workers are tasks that run in an address space on a CPU of their own and make
//! accesses through its TLB when they are told to.

#![allow(dead_code)]

pub mod discards;
pub mod lends;
pub mod swap;
pub mod unmaps;

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use nucleus::{
    Access, Frame, PAGE_SIZE, Prot, VirtAddr, VirtRange, ephemeral,
    frame::{self, Contents},
    sim::{self, Config},
    sync::{Rank, SpinLock},
    task::{self, Sleep, Spawn, WaitQueue},
    user,
};
use vm::{
    Backing, LargePages, Limits, Lookup, Map, MapRequest, Object, Pager, PagerError, Place,
    swap::SwapUsage,
};

/// Where most tests have their memory.
pub const HERE: VirtAddr = VirtAddr(0x10_0000_0000);
pub const RW: Prot = Prot::READ.union(Prot::WRITE);

/// Page `i` of the memory at [`HERE`].
pub fn page(i: usize) -> VirtAddr {
    HERE + i * PAGE_SIZE
}

/// Pages of the memory at [`HERE`].
pub fn pages(first: usize, count: usize) -> VirtRange {
    pages_at(page(first), count)
}

pub fn pages_at(start: VirtAddr, count: usize) -> VirtRange {
    VirtRange::new(start, start + count * PAGE_SIZE)
}

/// A request for private zero-fill memory in `range`.
pub fn zero_at(range: VirtRange) -> MapRequest {
    MapRequest {
        place: Place::Fixed(range.start),
        ..MapRequest::zero(range.len(), RW)
    }
}

/// A request for a private mapping of a file, from its beginning, in `range`.
pub fn file_at(range: VirtRange, pager: Arc<dyn Pager>) -> MapRequest {
    MapRequest {
        backing: Backing::Object { pager, offset: 0 },
        ..zero_at(range)
    }
}

pub fn map_zero(map: &Map, range: VirtRange, shared: bool) {
    let request = MapRequest {
        shared,
        ..zero_at(range)
    };
    map.map(request).expect("room");
}

pub fn new_map() -> Arc<Map> {
    Map::new(Limits::NONE, vm::Randomness::Everything).expect("a map")
}

/// A map with private zero-fill memory in `range`.
pub fn zero_map(range: VirtRange) -> Arc<Map> {
    let map = new_map();
    map_zero(&map, range, false);
    map
}

/// Reads the byte at `at`.
#[track_caller]
pub fn byte(map: &Map, at: VirtAddr) -> u8 {
    let mut byte = [0];
    assert_eq!(map.read(at, &mut byte), 1);
    byte[0]
}

/// Passes the first three pages of `map` to `there` in `to`, as `pass` does, again and again while
/// a device writes them: what was passed does not change, and all that is written is the map's.
pub fn pass_while_a_device_writes(
    map: &Arc<Map>,
    to: Arc<Map>,
    there: VirtAddr,
    pass: impl Fn(&Map, &Arc<Map>) + Send + 'static,
) {
    let stop = Arc::new(AtomicBool::new(false));
    let (theirs, stopped) = (map.clone(), stop.clone());
    let tasks = Tasks::new();
    tasks.spawn(!0, move || {
        while !stopped.load(Ordering::SeqCst) {
            pass(&theirs, &to);
            let before = byte(&to, there + PAGE_SIZE);
            task::yield_now();
            assert_eq!(byte(&to, there + PAGE_SIZE), before, "it has changed");
        }
    });
    for round in 100..120 {
        let held = map.pin(pages(0, 3), Access::Write).expect("memory");
        for part in held.parts() {
            ephemeral::map(&part.frame).fill(part.offset, part.len, round);
            task::yield_now();
        }
        drop(held);
        for i in 0..3 {
            assert_eq!(byte(map, page(i)), round);
        }
    }
    stop.store(true, Ordering::SeqCst);
    tasks.wait_until(0);
}

/// A small generator of repeatable numbers.
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Numbers {
        Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// A file in memory whose pages are made on demand.
pub struct File {
    object: Object,
    state: SpinLock<FileState>,
}

struct FileState {
    pages: u64,
    /// Pages from here on were truncated once: they read zero.
    pristine: u64,
    number: u64,
}

impl File {
    pub fn new(number: u64, pages: u64) -> Arc<File> {
        Arc::new(File {
            object: Object::new(),
            state: SpinLock::new(
                Rank::Leaf,
                FileState {
                    pages,
                    pristine: pages,
                    number,
                },
            ),
        })
    }

    /// The byte that fills page `index` of a file that was never truncated.
    pub fn byte(number: u64, index: u64) -> u8 {
        (number * 50 + index) as u8 ^ 0x5a
    }

    pub fn set_pages(&self, pages: u64) {
        {
            let mut state = self.state.lock();
            state.pages = pages;
            state.pristine = state.pristine.min(pages);
        }
        self.object.truncate(pages);
    }
}

impl Pager for File {
    fn object(&self) -> &Object {
        &self.object
    }

    fn lookup(&self, index: u64) -> Result<Lookup, PagerError> {
        self.object.get_or_insert(index, || {
            let state = self.state.lock();
            let (pages, pristine, number) = (state.pages, state.pristine, state.number);
            drop(state);
            if index >= pages {
                return Err(PagerError::BeyondEnd);
            }
            let frame = Frame::alloc(Contents::Zeroed)?;
            if index < pristine {
                ephemeral::map(&frame).fill(0, PAGE_SIZE, File::byte(number, index));
            }
            Ok(frame)
        })
    }
}

/// A file that the tests truncate and page out.
pub trait TestFile: Pager {
    /// Sets its length; pages added after a truncation are zero.
    fn set_pages(&self, pages: u64);

    /// Evicts pages that can be read again.
    fn page_out(&self) {}
}

impl TestFile for File {
    fn set_pages(&self, pages: u64) {
        File::set_pages(self, pages);
    }
}

/// A file on a disk: reads take a while and may fail, and dirty pages are written back.
pub struct Disk {
    object: Object,
    state: SpinLock<DiskState>,
    /// Percentage of reads that fail.
    failing: usize,
    /// Pages read, and reads.
    pub pages_read: AtomicUsize,
    pub reads: AtomicUsize,
}

struct DiskState {
    pages: u64,
    bytes: BTreeMap<u64, Vec<u8>>,
    numbers: Numbers,
}

impl Disk {
    /// Returns a file with the pages of [`File`].
    pub fn new(number: u64, pages: u64, failing: usize) -> Arc<Disk> {
        let page = |index| (index, vec![File::byte(number, index); PAGE_SIZE]);
        Arc::new(Disk {
            object: Object::new(),
            state: SpinLock::new(
                Rank::Leaf,
                DiskState {
                    pages,
                    bytes: (0..pages).map(page).collect(),
                    numbers: Numbers::new(number + 1),
                },
            ),
            failing,
            pages_read: AtomicUsize::new(0),
            reads: AtomicUsize::new(0),
        })
    }

    /// Lets other tasks run for a random time.
    fn take_a_while(&self) {
        let turns = self.state.lock().numbers.below(6);
        for _ in 0..turns {
            task::yield_now();
        }
    }

    /// Evicts unused pages without waiting for the others.
    pub fn page_out_unused(&self) {
        self.writeback(0..u64::MAX, true)
            .expect("a disk takes what is written");
        self.object.evict(0..u64::MAX, usize::MAX);
    }
}

impl Pager for Disk {
    fn object(&self) -> &Object {
        &self.object
    }

    fn lookup(&self, index: u64) -> Result<Lookup, PagerError> {
        let resident = self.object.resident(index);
        Ok(resident.map_or(Lookup::Absent, Lookup::Resident))
    }

    fn page_in(&self, index: u64, window: Range<u64>) -> Result<(), PagerError> {
        let pages = self.state.lock().pages;
        if index >= pages {
            return Err(PagerError::BeyondEnd);
        }
        let Some(busy) = self
            .object
            .set_busy(index, window.start..window.end.min(pages))?
        else {
            return Ok(());
        };
        self.take_a_while();
        if self.state.lock().numbers.chance(self.failing) {
            return Err(PagerError::Io);
        }
        self.reads.fetch_add(1, Ordering::SeqCst);
        for (i, frame) in busy.frames().iter().enumerate() {
            let state = self.state.lock();
            let bytes = state.bytes.get(&(busy.first() + i as u64)).cloned();
            drop(state);
            ephemeral::map(frame).write(0, &bytes.unwrap_or_else(|| vec![0; PAGE_SIZE]));
            self.pages_read.fetch_add(1, Ordering::SeqCst);
        }
        self.take_a_while();
        let count = busy.frames().len();
        busy.publish(count);
        Ok(())
    }

    fn writeback(&self, pages: Range<u64>, _: bool) -> Result<(), PagerError> {
        self.object.write_back(pages, 3, &mut |first, frames| {
            for (i, frame) in frames.iter().enumerate() {
                let mut bytes = vec![0; PAGE_SIZE];
                ephemeral::map(frame).read(0, &mut bytes);
                self.take_a_while();
                let mut state = self.state.lock();
                let index = first + i as u64;
                if index < state.pages {
                    state.bytes.insert(index, bytes);
                }
            }
            Ok(())
        })
    }
}

impl TestFile for Disk {
    fn set_pages(&self, pages: u64) {
        {
            let mut state = self.state.lock();
            state.pages = pages;
            state.bytes.retain(|&index, _| index < pages);
        }
        self.object.truncate(pages);
    }

    fn page_out(&self) {
        self.writeback(0..u64::MAX, true)
            .expect("a disk takes what is written");
        self.object.discard(0..u64::MAX);
    }
}

/// Tasks of a test, as long as they run.
#[derive(Default)]
pub struct Tasks {
    running: AtomicUsize,
    queue: WaitQueue,
}

impl Tasks {
    pub fn new() -> Arc<Tasks> {
        Arc::default()
    }

    /// Runs `body` in a task without an address space on one of the CPUs in the mask.
    pub fn spawn(self: &Arc<Tasks>, cpus: u64, body: impl FnOnce() + Send + 'static) {
        let spawn = Spawn {
            cpus,
            ..Spawn::kernel("task")
        };
        self.start(spawn, body);
    }

    /// Runs `body` in `map` on `cpu`.
    pub fn spawn_in(
        self: &Arc<Tasks>,
        map: &Arc<Map>,
        cpu: usize,
        body: impl FnOnce(&Arc<Map>) + Send + 'static,
    ) {
        let map = map.clone();
        self.start(spawn_in(&map, cpu), move || {
            body(&map);
            task::set_pmap(None);
        });
    }

    fn start(self: &Arc<Tasks>, spawn: Spawn, body: impl FnOnce() + Send + 'static) {
        self.running.fetch_add(1, Ordering::SeqCst);
        let tasks = self.clone();
        let run = move || {
            body();
            tasks.running.fetch_sub(1, Ordering::SeqCst);
            tasks.queue.wake_all();
        };
        task::spawn(spawn, Box::new(run)).expect("a task");
    }

    /// Waits until at most `left` tasks run.
    pub fn wait_until(&self, left: usize) {
        let ready = || (self.running.load(Ordering::SeqCst) <= left).then_some(());
        self.queue.wait(Sleep::SOUND, ready).expect("a sound sleep");
    }
}

fn spawn_in(map: &Arc<Map>, cpu: usize) -> Spawn {
    Spawn {
        pmap: Some(map.pmap().clone()),
        attachment: Some(map.clone()),
        cpus: 1 << cpu,
        ..Spawn::kernel("worker")
    }
}

/// What a worker is to do; returns whether it continues afterwards.
type Job = Box<dyn FnOnce() -> bool + Send>;

/// A task in an address space.
pub struct Worker {
    job: Arc<SpinLock<Option<Job>>>,
    queue: Arc<WaitQueue>,
}

impl Worker {
    /// Starts a task on `cpu` that runs in `map`.
    pub fn new(map: &Arc<Map>, cpu: usize) -> Worker {
        let worker = Worker {
            job: Arc::new(SpinLock::new(Rank::Leaf, None)),
            queue: Arc::default(),
        };
        let (job, queue) = (worker.job.clone(), worker.queue.clone());
        let next = move || -> Job {
            let job = queue.wait(Sleep::SOUND, || job.lock().take());
            job.expect("a sound sleep")
        };
        let run = move || while next()() {};
        task::spawn(spawn_in(map, cpu), Box::new(run)).expect("a task");
        worker
    }

    /// Starts one on each of the first `cpus` CPUs.
    pub fn on_each(map: &Arc<Map>, cpus: usize) -> Vec<Worker> {
        (0..cpus).map(|cpu| Worker::new(map, cpu)).collect()
    }

    /// Runs `body` in the task, which ends then unless it `goes_on`.
    fn call<R: Send + 'static>(
        &self,
        goes_on: bool,
        body: impl FnOnce() -> R + Send + 'static,
    ) -> R {
        let answer = Arc::new(SpinLock::new(Rank::Leaf, None));
        let (theirs, queue) = (answer.clone(), self.queue.clone());
        *self.job.lock() = Some(Box::new(move || {
            let result = body();
            *theirs.lock() = Some(result);
            queue.wake_all();
            goes_on
        }));
        self.queue.wake_all();
        let answer = self.queue.wait(Sleep::SOUND, || answer.lock().take());
        answer.expect("a sound sleep")
    }

    pub fn read(&self, from: VirtAddr, len: usize) -> Option<Vec<u8>> {
        self.call(true, move || {
            let mut bytes = vec![0; len];
            user::copy_in(&mut bytes, from).ok().map(|()| bytes)
        })
    }

    pub fn write(&self, to: VirtAddr, bytes: Vec<u8>) -> bool {
        self.call(true, move || user::copy_out(to, &bytes).is_ok())
    }

    pub fn end(self) {
        // The address space may be dropped as soon as the answer is there.
        self.call(false, || task::set_pmap(None));
    }
}

/// Resolves the faults of workers in the map that is attached to them.
pub fn resolve(at: VirtAddr, access: Access) -> bool {
    let map = task::with_attachment(|attachment| {
        attachment
            .and_then(|attachment| attachment.downcast_ref::<Map>())
            .map(|map| map.fault(at, access))
    });
    matches!(map, Some(Ok(())))
}

/// The usual machine with so many CPUs.
pub fn on_cpus(cpus: usize) -> Config {
    Config {
        cpus,
        ..Config::default()
    }
}

/// A machine with so many CPUs and frames.
pub fn machine(cpus: usize, pages: usize) -> Config {
    Config {
        cpus,
        pages,
        ..Config::default()
    }
}

/// Runs `body` for each seed on a new machine whose workers' faults are resolved. In the end
/// everything must be free again.
pub fn check(
    name: &str,
    seeds: Range<u64>,
    config: Config,
    body: impl Fn() + Send + Sync + 'static,
) {
    sim::check(name, seeds, config, move || {
        user::set_fault_hook(resolve);
        // `vm` outlives the machine: what a failed run leaves would make all later ones fail.
        let left = vm::swap::usage();
        assert_eq!(left, SwapUsage::default(), "another test's run failed");
        let before = frame::usage();
        body();
        vm::set_large_pages(LargePages::Off);
        expect_all_back(before);
    });
}

/// As [`check`], for one seed on the usual machine.
pub fn once(name: &str, body: impl Fn() + Send + Sync + 'static) {
    check(name, 0..1, Config::default(), body);
}

/// Waits until ended tasks have released their memory, then compares the frames in use.
pub fn expect_all_back(before: frame::Usage) {
    for _ in 0..1000 {
        task::reap();
        let now = frame::usage();
        if now.data == before.data && now.page_tables == before.page_tables {
            return;
        }
        task::yield_now();
    }
    let now = frame::usage();
    assert_eq!(now.data, before.data, "data frames are back");
    assert_eq!(now.page_tables, before.page_tables, "page tables are back");
}
