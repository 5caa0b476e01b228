//! The end of an address space.

use core::sync::atomic::Ordering;

use super::format::LEAF_SPAN;
use super::mapping::{Keep, empty};
use super::pending::{Pending, bury};
use super::shootdown;
use super::space::Pmap;
use super::table::Found;
use crate::addr::USER_END;
use crate::hw::counters::Counter;
use crate::hw::machine;
use crate::{PAGE_SIZE, VirtAddr, VirtRange};

impl Pmap {
    /// Removes everything without a single TLB flush, but for a small space whose neighbours run:
    /// their CPUs may hold what is removed. For an address space that no task will run
    /// in again; the caller's task has switched away from it ([`crate::task::set_pmap`]).
    ///
    /// # Panics
    /// If a task runs in it. A CPU that switches to it from now on panics, too.
    pub fn tear_down(&self) {
        self.is_dead.store(true, Ordering::SeqCst);
        // Other CPUs may have borrowed it for tasks without a program; they are made to leave.
        let since = machine::coherence_stamp();
        let borrowers = self.cpus.active.load(Ordering::SeqCst);
        if borrowers != 0 {
            shootdown::run(shootdown::What::All, borrowers, since);
        }
        assert!(
            self.cpus.active.load(Ordering::SeqCst) == 0,
            "an address space is torn down while a task runs in it"
        );
        if self.leave_region(USER_END) {
            return;
        }
        // The tables above level 1 need no flush either: the mask is empty.
        let mut dead = Pending::new();
        self.leave_shared_tables(&mut dead);
        let mut range = VirtRange::new(VirtAddr(0), USER_END + PAGE_SIZE);
        let mut any = false;
        while let Some(Found { leaf, gone }) = self.next_leaf(range, Some(&mut dead)) {
            debug_assert!(gone, "the whole range covers each table");
            any = true;
            range.start = VirtAddr(leaf.base.0 + LEAF_SPAN);
            let table = leaf.table;
            if leaf.is_shared() {
                drop(leaf);
                if dead.is_full() {
                    dead.flush();
                }
                continue;
            }
            empty(&leaf, |_, _| Keep::Dropped);
            drop(leaf);
            bury(table, &mut dead);
        }
        if any {
            Counter::tlb_skipped_dead.add(1);
        }
    }
}

impl Drop for Pmap {
    fn drop(&mut self) {
        self.tear_down();
        self.tops().give();
    }
}
