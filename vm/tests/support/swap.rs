//! A swap device in the test's memory: reads and writes take a while, end in any order, and may
//! fail.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
};

use nucleus::{
    Frame, PAGE_SIZE, ephemeral,
    sync::{Rank, SpinLock},
    task::{self, Spawn},
};
use vm::swap::{self, DeviceId, Done, StoreFailed, SwapStore};

use super::Numbers;

/// A swap device: see the head of the file.
pub struct Store {
    slots: u64,
    state: Arc<SpinLock<State>>,
    /// Percentage of reads or writes that fail.
    pub failing_reads: AtomicUsize,
    pub failing_writes: AtomicUsize,
    /// No request ends as long as this is set.
    pub held: Arc<AtomicBool>,
    /// A slot that cannot be read.
    pub unreadable: SpinLock<Option<u64>>,
    /// Requests so far.
    pub reads: AtomicUsize,
    pub writes: AtomicUsize,
    pub pages_written: AtomicUsize,
}

struct State {
    pages: Vec<Option<Box<[u8; PAGE_SIZE]>>>,
    /// Slots that are being read or written: never by two operations at a time.
    busy: Vec<bool>,
    numbers: Numbers,
}

impl Store {
    pub fn new(seed: u64, slots: usize) -> Arc<Store> {
        Arc::new(Store {
            slots: slots as u64,
            state: Arc::new(SpinLock::new(
                Rank::Leaf,
                State {
                    pages: (0..slots).map(|_| None).collect(),
                    busy: vec![false; slots],
                    numbers: Numbers::new(seed),
                },
            )),
            failing_reads: AtomicUsize::new(0),
            failing_writes: AtomicUsize::new(0),
            held: Arc::default(),
            unreadable: SpinLock::new(Rank::Leaf, None),
            reads: AtomicUsize::new(0),
            writes: AtomicUsize::new(0),
            pages_written: AtomicUsize::new(0),
        })
    }

    /// Does `work` in a task of its own, some time later, and then calls `done`.
    fn later(
        &self,
        slot: u64,
        count: usize,
        failing: usize,
        done: Done,
        work: impl FnOnce(&SpinLock<State>) + Send + 'static,
    ) {
        let (state, held) = (self.state.clone(), self.held.clone());
        let slots = slot as usize..slot as usize + count;
        for slot in slots.clone() {
            let was = std::mem::replace(&mut state.lock().busy[slot], true);
            assert!(!was, "two operations on slot {slot}");
        }
        let run = move || {
            let turns = state.lock().numbers.below(12);
            for _ in 0..turns {
                task::yield_now();
            }
            while held.load(SeqCst) {
                task::yield_now();
            }
            let fails = state.lock().numbers.chance(failing);
            if !fails {
                work(&state);
            }
            for slot in slots {
                state.lock().busy[slot] = false;
            }
            done(if fails { Err(StoreFailed) } else { Ok(()) });
        };
        task::spawn(Spawn::kernel("swap"), Box::new(run)).expect("a task");
    }
}

impl SwapStore for Store {
    fn slots(&self) -> u64 {
        self.slots
    }

    fn read(&self, slot: u64, frames: &[Frame], done: Done) {
        let frames = frames.to_vec();
        self.reads.fetch_add(1, SeqCst);
        let slots = slot..slot + frames.len() as u64;
        let unreadable = self.unreadable.lock().is_some_and(|it| slots.contains(&it));
        let failing = match unreadable {
            true => 100,
            false => self.failing_reads.load(SeqCst),
        };
        self.later(slot, frames.len(), failing, done, move |state| {
            for (i, frame) in frames.iter().enumerate() {
                let page = state.lock().pages[slot as usize + i].clone();
                let page = page.expect("what is read was written before");
                ephemeral::map(frame).write(0, &page[..]);
            }
        });
    }

    fn write(&self, slot: u64, frames: Vec<Frame>, done: Done) {
        let failing = self.failing_writes.load(SeqCst);
        self.writes.fetch_add(1, SeqCst);
        self.pages_written.fetch_add(frames.len(), SeqCst);
        self.later(slot, frames.len(), failing, done, move |state| {
            for (i, frame) in frames.into_iter().enumerate() {
                let mut page = Box::new([0; PAGE_SIZE]);
                ephemeral::map(&frame).read(0, &mut page[..]);
                drop(frame);
                state.lock().pages[slot as usize + i] = Some(page);
                task::yield_now();
            }
        });
    }
}

/// Makes a store of so many slots and adds it as a device.
pub fn add(seed: u64, slots: usize) -> (DeviceId, Arc<Store>) {
    let store = Store::new(seed, slots);
    (add_store(&store), store)
}

pub fn add_store(store: &Arc<impl SwapStore + 'static>) -> DeviceId {
    swap::add(store.clone(), 0, &|| false).expect("a swap device")
}

/// Removes a device that no page needs, once that is so.
pub fn remove(id: DeviceId) {
    expect_empty();
    vm::swap_off(id, &|| false).expect("an empty device");
}

/// Waits until no page owns a slot.
pub fn expect_empty() {
    for _ in 0..1000 {
        // An ended task keeps its address space, and so the files that are mapped there, until its
        // remains are freed, which no other task does as long as this one yields.
        task::reap();
        if swap::usage().used == 0 {
            return;
        }
        task::yield_now();
    }
    panic!("{:?}: slots of pages that are gone", swap::usage());
}
