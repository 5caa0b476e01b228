//! Fork trees: after any order of writes and exits, the pages in use are those that the members can
//! reach.

mod support;

use std::{collections::BTreeSet, sync::Arc};

use nucleus::{
    PAGE_SIZE, Prot, VirtAddr, VirtRange, frame,
    pmap::{self, Fork},
    sim,
};
use support::{Numbers, RW, Worker, map_zero, zero_map};
use vm::{Advice, AmapForm, Map};

/// The last pages of a page table's span, so that two tables map the memory.
const HERE: VirtAddr = VirtAddr(0x10_0020_0000 - 100 * PAGE_SIZE);
/// Several chunks of slots.
const PAGES: usize = 200;
const MEMBERS: usize = 5;

/// A copy of a page, which all its owners can reach.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Copy {
    number: usize,
    byte: u8,
}

struct Member {
    map: Arc<Map>,
    worker: Worker,
    pages: Vec<Option<Copy>>,
}

struct Tree {
    numbers: Numbers,
    members: Vec<Member>,
    /// Copies made so far.
    made: usize,
    cpus: usize,
    /// Data frames in use before.
    before: usize,
    /// Pages may be made that were not touched.
    ahead: bool,
}

fn pages(first: usize, end: usize) -> VirtRange {
    support::pages_at(HERE + first * PAGE_SIZE, end - first)
}

impl Tree {
    fn add(&mut self, map: Arc<Map>, pages: Vec<Option<Copy>>) {
        let worker = Worker::new(&map, self.numbers.below(self.cpus));
        self.members.push(Member { map, worker, pages });
    }

    fn end(&mut self, index: usize) {
        let member = self.members.swap_remove(index);
        member.worker.end();
        member.map.tear_down();
    }

    /// Returns whether another member has this copy.
    fn others_have(&self, index: usize, page: usize, copy: Copy) -> bool {
        let has = |(i, member): (usize, &Member)| i != index && member.pages[page] == Some(copy);
        self.members.iter().enumerate().any(has)
    }

    fn write(&mut self, index: usize, page: usize) {
        let byte = self.numbers.next() as u8;
        let number = match self.members[index].pages[page] {
            Some(copy) if !self.others_have(index, page, copy) => copy.number,
            _ => {
                self.made += 1;
                self.made
            }
        };
        let member = &mut self.members[index];
        assert!(member.worker.write(HERE + page * PAGE_SIZE, vec![byte; 8]));
        member.pages[page] = Some(Copy { number, byte });
    }

    fn read(&mut self, index: usize, page: usize) {
        let member = &mut self.members[index];
        let bytes = member.worker.read(HERE + page * PAGE_SIZE, 8);
        let copy = *member.pages[page].get_or_insert_with(|| {
            self.made += 1;
            let number = self.made;
            Copy { number, byte: 0 }
        });
        assert_eq!(bytes, Some(vec![copy.byte; 8]), "page {page} of {index}");
    }

    fn step(&mut self) {
        let index = self.numbers.below(self.members.len());
        let page = self.numbers.below(PAGES);
        let end = (page + 1 + self.numbers.below(64)).min(PAGES);
        let range = pages(page, end);
        let map = self.members[index].map.clone();
        match self.numbers.below(24) {
            0..3 if self.members.len() < MEMBERS => {
                let child = map.fork().expect("a child");
                let pages = self.members[index].pages.clone();
                self.add(child, pages);
            }
            0..3 if self.members.len() > 1 => self.end(index),
            3 => {
                map.advise(range, Advice::DontNeed).expect("mapped");
                self.members[index].pages[page..end].fill(None);
            }
            4 => {
                map.unmap(range).expect("mapped");
                map_zero(&map, range, false);
                self.members[index].pages[page..end].fill(None);
            }
            // Splits the entry and joins it again.
            5 => {
                map.protect(range, Prot::READ).expect("mapped");
                if self.numbers.chance(50) {
                    let other = self.numbers.below(PAGES);
                    self.read(index, other);
                }
                map.protect(range, RW).expect("mapped");
            }
            6..11 => self.read(index, page),
            11..13 => {
                for page in page..end.min(page + 12) {
                    self.write(index, page);
                }
            }
            _ => self.write(index, page),
        }
    }

    #[track_caller]
    fn check_count(&self) {
        let copies = self.members.iter().flat_map(|member| &member.pages);
        let reachable = copies.flatten().collect::<BTreeSet<_>>().len();
        let held = frame::usage().data - self.before;
        match self.ahead {
            true => assert!(held >= reachable, "{held} pages for {reachable}"),
            false => assert_eq!(held, reachable, "pages held, and those within reach"),
        }
    }
}

fn grow_and_fell(form: AmapForm) {
    let usage = frame::usage();
    let mut numbers = Numbers::new(sim::random_u64());
    vm::set_amap_form(form);
    vm::set_shared_tables(*numbers.pick(&[0, 0, 128]));
    pmap::set_fork(*numbers.pick(&[Fork::Share, Fork::Share, Fork::Copy]));
    let ahead = numbers.chance(50);
    if !ahead {
        vm::set_fault_ahead(0, 0);
    }
    let map = zero_map(pages(0, PAGES));
    let mut tree = Tree {
        numbers,
        members: Vec::new(),
        made: 0,
        cpus: nucleus::task::cpu_count(),
        before: usage.data,
        ahead,
    };
    tree.add(map, vec![None; PAGES]);
    for _ in 0..250 {
        tree.step();
        tree.check_count();
    }
    while let Some(last) = tree.members.len().checked_sub(1) {
        for page in 0..PAGES {
            if tree.members[last].pages[page].is_some() {
                tree.read(last, page);
            }
        }
        tree.check_count();
        let index = tree.numbers.below(last + 1);
        tree.end(index);
        tree.check_count();
    }
    drop(tree);
    vm::set_fault_ahead(3, 4);
    pmap::set_fork(Fork::Share);
    vm::set_shared_tables(128);
    vm::set_amap_form(AmapForm::Hybrid);
}

#[test]
fn a_fork_tree_holds_reachable_pages_only() {
    for form in [AmapForm::Array, AmapForm::Sparse] {
        for cpus in [1, 2] {
            support::check("tree", 0..10, support::machine(cpus, 8192), move || {
                grow_and_fell(form)
            });
        }
    }
}
