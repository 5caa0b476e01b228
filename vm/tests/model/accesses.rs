//! Reads, writes and faults, of workers and from outside, and what they must give.

use std::collections::BTreeSet;

use nucleus::{Access, PAGE_SIZE, VirtAddr};

use super::{ARENA, ARENA_PAGES, Model, number, space::Bytes};

impl Model {
    /// An address in the arena or in any mapping.
    pub(super) fn address(&mut self, space: usize) -> VirtAddr {
        let pages: Vec<_> = self.spaces[space].pages.keys().copied().collect();
        let page = match pages.is_empty() || self.numbers.chance(10) {
            true => number(ARENA) + self.numbers.below(ARENA_PAGES),
            false => *self.numbers.pick(&pages),
        };
        VirtAddr(page * PAGE_SIZE)
    }

    pub(super) fn write(&mut self) {
        let space = self.space();
        let at = self.address(space);
        self.write_at(space, at);
    }

    pub(super) fn write_at(&mut self, space: usize, at: VirtAddr) {
        let (offset, len) = (self.numbers.below(4000), 1 + self.numbers.below(90));
        let bytes: Bytes = (0..len).map(|_| self.numbers.next() as u8).collect();
        let worker = self.numbers.below(self.cpus);
        let space = &mut self.spaces[space];
        let expected = space
            .judge(at, Access::Write)
            .and_then(|page| page.write(offset, &bytes));
        let done = space.workers[worker].write(at + offset, bytes);
        assert_eq!(done, expected.is_ok(), "write at {at:?}: {expected:?}");
    }

    pub(super) fn read(&mut self) {
        let space = self.space();
        let at = self.address(space);
        let worker = self.numbers.below(self.cpus);
        self.check(space, at, worker);
    }

    pub(super) fn check(&mut self, space: usize, at: VirtAddr, worker: usize) {
        let space = &mut self.spaces[space];
        let expected = space
            .judge(at, Access::Read)
            .and_then(|page| page.bytes())
            .ok();
        let bytes = space.workers[worker].read(at, PAGE_SIZE);
        if bytes != expected {
            let first = |bytes: &Option<Bytes>| bytes.as_ref().map(|bytes| bytes[..8].to_vec());
            let (got, want) = (first(&bytes), first(&expected));
            panic!("read at {at:?} on CPU {worker}: {got:?} instead of {want:?} ...");
        }
    }

    /// Calls the fault routine and checks the kind of error.
    pub(super) fn fault(&mut self) {
        let space = self.space();
        let at = self.address(space);
        let access = *self
            .numbers
            .pick(&[Access::Read, Access::Write, Access::Execute]);
        let space = &mut self.spaces[space];
        let expected = space.judge(at, access).map(|_| ());
        if let (Ok(()), Access::Write) = (expected, access) {
            // It may make a copy, which is invisible until a byte changes: like an empty write.
            let page = space.pages.get_mut(&number(at)).expect("a page");
            page.write(0, &[]).expect("a page that can be read");
        }
        assert_eq!(space.map.fault(at, access), expected);
    }

    /// Accesses from outside the address space.
    pub(super) fn foreign(&mut self) {
        let space = self.space();
        let at = self.address(space);
        let (offset, value) = (self.numbers.below(PAGE_SIZE), self.numbers.next() as u8);
        let space = &mut self.spaces[space];
        let expected = space
            .judge(at, Access::Write)
            .and_then(|page| page.write(offset, &[value]));
        let done = space.map.write(at + offset, &[value]);
        assert_eq!(done == 1, expected.is_ok());
        let expected = space.judge(at, Access::Read).and_then(|page| page.bytes());
        let mut byte = [0];
        let done = space.map.read(at + offset, &mut byte);
        assert_eq!(done == 1, expected.is_ok());
        if let Ok(expected) = expected {
            assert_eq!(byte[0], expected[offset]);
        }
    }

    /// Checks everything in every address space from every CPU.
    pub(super) fn check_all(&mut self) {
        for space in 0..self.spaces.len() {
            let pages: BTreeSet<_> = self.spaces[space].pages.keys().copied().collect();
            for page in pages {
                for worker in 0..self.cpus {
                    self.check(space, VirtAddr(page * PAGE_SIZE), worker);
                }
            }
        }
    }
}
