//! Address spaces against a plain model: bytes in arrays. One driver makes random operations on
//! several address spaces; workers on different CPUs make the accesses, and their TLBs keep any
//! entry that they may keep. Every access must give what the model says; in the end, every frame
//! and every page table must be free again.

mod accesses;
mod mappings;
mod movement;
mod paging;
mod space;
#[path = "../support/mod.rs"]
mod support;

use std::{
    cell::RefCell,
    collections::BTreeMap,
    rc::Rc,
    sync::{Arc, atomic::Ordering},
};

use nucleus::{
    PAGE_SIZE, Prot, VirtAddr, VirtRange,
    frame::Owned,
    pmap::{self, Fork, SmallSpaces},
    sim,
};
use space::{Bytes, Space, Store};
use support::{Disk, File, Numbers, RW, TestFile};
use vm::{
    AmapForm, Limits, Map,
    swap::{self, DeviceId},
};

/// The place of most mappings: few pages, so that operations meet, in the span of two page tables,
/// which the region of a small space has, too.
const ARENA: VirtAddr = VirtAddr(0x60_0000 - 40 * PAGE_SIZE);
const ARENA_PAGES: usize = 96;
const MAX_SPACES: usize = 5;

/// A page that a program lent, with the bytes that it has for ever.
type Loan = (Owned, Bytes);

struct Model {
    numbers: Numbers,
    loans: Vec<Loan>,
    cpus: usize,
    /// Percentage of shared mappings: forks do not share page tables with writable shared mappings.
    shared_mappings: usize,
    spaces: Vec<Space>,
    files: Vec<(Arc<dyn TestFile>, Store)>,
    /// The swap devices, with their stores.
    devices: Vec<(DeviceId, Arc<support::swap::Store>, i32)>,
}

fn number(at: VirtAddr) -> usize {
    at.0 / PAGE_SIZE
}

impl Model {
    fn new(seed: u64, cpus: usize) -> Model {
        let map = Map::new(Limits::NONE, vm::Randomness::Everything).expect("a map");
        if seed.is_multiple_of(2) {
            pmap::set_small_spaces(SmallSpaces::OfUsers);
            pmap::set_region(16 << 20);
            assert!(map.make_small(1, 1 << 20, vm::Randomness::Everything, 0, None));
        }
        let files = (0..2).map(|i| {
            let pages = (0..12).map(|p| (p, vec![File::byte(i, p); PAGE_SIZE]));
            let store = Rc::new(RefCell::new(pages.collect()));
            let file: Arc<dyn TestFile> = match i {
                0 => File::new(i, 12),
                _ => Disk::new(i, 12, 0),
            };
            (file, store)
        });
        let mut numbers = Numbers::new(seed);
        pmap::set_fork(*numbers.pick(&[Fork::Share, Fork::Share, Fork::Copy]));
        vm::set_shared_tables(*numbers.pick(&[128, 0, 0]));
        Model {
            shared_mappings: *numbers.pick(&[40, 4, 0]),
            numbers,
            loans: Vec::new(),
            cpus,
            spaces: vec![Space::new(map, BTreeMap::new(), cpus)],
            files: files.collect(),
            devices: (0..3)
                .map(|i| {
                    // The last two have equal priority, and both are small.
                    let store = support::swap::Store::new(seed + i, [80, 30, 40][i as usize]);
                    let priority = i32::from(i == 0);
                    // Pages that cannot be written stay.
                    store.failing_writes.store(10, Ordering::SeqCst);
                    let id = swap::add(store.clone(), priority, &|| false).expect("a swap device");
                    (id, store, priority)
                })
                .collect(),
        }
    }

    fn range(&mut self) -> VirtRange {
        let start = self.numbers.below(ARENA_PAGES);
        let pages = 1 + self.numbers.below(10).min(ARENA_PAGES - start - 1);
        let start = ARENA + start * PAGE_SIZE;
        VirtRange::new(start, start + pages * PAGE_SIZE)
    }

    fn space(&mut self) -> usize {
        self.numbers.below(self.spaces.len())
    }

    fn prot(&mut self) -> Prot {
        *self.numbers.pick(&[RW, RW, RW, Prot::READ, Prot::empty()])
    }

    fn step(&mut self) {
        match self.numbers.below(100) {
            0..8 => self.map(),
            8..12 => self.unmap(),
            12..18 => self.protect(),
            18..22 => self.remap(),
            22..25 => self.dont_need(),
            25..29 => self.fork(),
            29..32 => self.exit(),
            32..34 => self.truncate(),
            34 => self.page_out(),
            35 => self.advise(),
            36..42 => self.swap_out(),
            42 => self.swap_off(),
            43..46 => self.lock(),
            46..49 => self.inherit(),
            49..55 => self.pass(),
            55..57 => self.hand_over(),
            57..68 => self.write(),
            68..72 => self.fault(),
            72..76 => self.foreign(),
            76..81 => self.lend(),
            81..85 => self.receive(),
            85..88 => self.give_back(),
            88 if self.numbers.chance(20) => self.promote(),
            _ => self.read(),
        }
        self.check_loans(false);
    }

    fn end(mut self) {
        self.check_loans(true);
        self.loans.clear();
        for space in self.spaces {
            space.end();
        }
        for (id, ..) in self.devices {
            support::swap::remove(id);
        }
    }
}

fn against_model(seed: u64, cpus: usize, steps: usize) {
    let mut model = Model::new(seed, cpus);
    for step in 0..steps {
        model.step();
        if step % 100 == 99 {
            model.check_all();
            model.check_wired();
        }
    }
    model.check_all();
    model.end();
}

#[test]
fn address_spaces_against_the_model() {
    for (cpus, form) in [
        (1, AmapForm::Hybrid),
        (2, AmapForm::Hybrid),
        (2, AmapForm::Sparse),
        (4, AmapForm::Sparse),
    ] {
        vm::set_amap_form(form);
        support::check("model", 0..8, support::on_cpus(cpus), move || {
            against_model(sim::random_u64(), cpus, 400);
        });
    }
}
