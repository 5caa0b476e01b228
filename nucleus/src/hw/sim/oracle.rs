//! What must never be true of TLBs, checked when the kernel says that it is not.

use super::{
    machine::{Machine, WORD, machine},
    tlb::{Entry, LARGE, NO_EXECUTE, PRESENT, Table, WRITE},
};
use crate::{PAGE_SHIFT, PhysAddr, VirtAddr, hw::mitigations::ADDRESS};

/// Now, for [`promise_page`] and [`promise_all`]: taken when a flush begins.
pub(crate) fn coherence_stamp() -> u64 {
    machine().map_or(0, |m| m.stamp.get())
}

/// The kernel has flushed the page at `at` of the space with this root: what any CPU held of it
/// when the flush began (`since`) and still holds must be what the page tables say, or less.
pub(crate) fn promise_page(root: PhysAddr, at: VirtAddr, since: u64) {
    let Some(m) = machine() else { return };
    let page = at.0 >> PAGE_SHIFT;
    let span = page >> 9;
    let cpus = m.cpus.iter().enumerate();
    for (index, cpu) in cpus.filter(|(_, cpu)| cpu.root.get() == root) {
        let tlb = cpu.tlb.borrow();
        // With a page goes the large one around it.
        let around = tlb.pages.range(span << 9..(span + 1) << 9);
        for (&held, entry) in around.filter(|(held, entry)| **held == page || entry.large) {
            check_page(m, index, root, held, entry, since);
        }
        if let Some(table) = tlb.tables.get(&span) {
            check_table(m, index, root, span, table, since);
        }
    }
}

/// A held translation must not allow more than the page tables.
fn check_page(m: &Machine, index: usize, root: PhysAddr, page: usize, held: &Entry, since: u64) {
    let now = walk(m, root, page, 1);
    let now = now.map(|(at, write, execute)| (at.frame_number(), write, execute));
    let stale = now.is_none_or(|(frame, write, execute)| {
        frame != held.frame || held.write && !write || held.execute && !execute
    });
    if stale && held.stamp <= since {
        m.fail(format!(
            "stale translation: CPU {index} still holds {:#x} -> frame {:#x} \
             (write {}, execute {}), the page tables say {now:x?}",
            page << PAGE_SHIFT,
            held.frame,
            held.write,
            held.execute
        ));
    }
}

/// The kernel has flushed all translations of programs on the CPUs of the mask: they hold none that
/// they held when the flush began (`since`).
pub(crate) fn promise_all(cpus: u64, since: u64) {
    let Some(m) = machine() else { return };
    for (index, cpu) in m.cpus.iter().enumerate() {
        let tlb = cpu.tlb.borrow();
        let oldest = tlb.pages.iter().map(|(page, entry)| (entry.stamp, *page));
        if cpus & 1 << index != 0
            && let Some((stamp, page)) = oldest.min()
            && stamp <= since
        {
            m.fail(format!(
                "CPU {index} still holds a translation of {:#x} after it was told to forget all",
                page << PAGE_SHIFT
            ));
        }
    }
}

/// A held table must still be the one that the tables above lead to.
fn check_table(m: &Machine, index: usize, root: PhysAddr, span: usize, held: &Table, since: u64) {
    let now = walk(m, root, span << 9, 2);
    if held.stamp <= since && now.is_none_or(|(at, ..)| at != held.at) {
        m.fail(format!(
            "stale table: CPU {index} still walks the table at {:?} for {:#x}",
            held.at,
            span << (PAGE_SHIFT + 9)
        ));
    }
}

/// What the tables say of a page, down to those of level `last`, without touching any bit: where
/// they lead, whether it may be written, and executed. A large page has no table of level 1.
fn walk(m: &Machine, root: PhysAddr, page: usize, last: usize) -> Option<(PhysAddr, bool, bool)> {
    let (mut at, mut write, mut execute) = (root, true, true);
    for level in (last..=4).rev() {
        let index = page >> (9 * (level - 1)) & 511;
        let entry = m.entry(at + index as u64 * 8).load(WORD);
        if entry & PRESENT == 0 {
            return None;
        }
        write &= entry & WRITE != 0;
        execute &= entry & NO_EXECUTE == 0;
        at = PhysAddr(entry & ADDRESS);
        if level == 2 && entry & LARGE != 0 {
            let part = (page as u64 & 511) << PAGE_SHIFT;
            return (last == 1).then_some((at + part, write, execute));
        }
    }
    Some((at, write, execute))
}

/// The frame goes back to the allocator: no CPU may be able to reach it by anything that it holds.
pub(crate) fn frame_freed(frame: PhysAddr) {
    let Some(m) = machine() else { return };
    let number = frame.frame_number();
    super::iommu::check_freed(m, number);
    for (index, cpu) in m.cpus.iter().enumerate() {
        if cpu.root.get().frame_number() == number {
            m.fail(format!(
                "frame {number:#x} is freed while it is the root table of CPU {index}"
            ));
        }
    }
    if m.reached
        .get(number as usize)
        .is_none_or(|count| count.get() == 0)
    {
        return;
    }
    for (index, cpu) in m.cpus.iter().enumerate() {
        let tlb = cpu.tlb.borrow();
        let page = tlb.pages.iter().find(|(_, entry)| entry.frame == number);
        if let Some((page, _)) = page {
            m.fail(format!(
                "frame {number:#x} is freed while CPU {index} holds a translation of {:#x} to it",
                page << PAGE_SHIFT
            ));
        }
        let table = tlb
            .tables
            .iter()
            .find(|(_, table)| table.at.frame_number() == number);
        if let Some((span, _)) = table {
            m.fail(format!(
                "page table {number:#x} is freed while CPU {index} walks it for {:#x}",
                span << (PAGE_SHIFT + 9)
            ));
        }
    }
}
