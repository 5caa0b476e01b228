//! What must never be true of TLBs, checked when the kernel says that it is not.

use super::{machine::machine, tlb::Table};
use crate::{PAGE_SHIFT, PhysAddr, VirtAddr};

/// Now, for [`promise_page`] and [`promise_all`]: taken when a flush begins.
pub(crate) fn coherence_stamp() -> u64 {
    machine().map_or(0, |m| m.stamp.get())
}

/// The kernel has flushed the page at `at` of the space with this root: what any CPU held of it
/// when the flush began (`since`) and still holds must be what the page tables say, or less.
pub(crate) fn promise_page(root: PhysAddr, at: VirtAddr, since: u64) {
    let Some(m) = machine() else { return };
    let span = at.0 >> (PAGE_SHIFT + 9);
    let page = at.0 >> PAGE_SHIFT;
    for cpu in m.cpus.iter().filter(|cpu| cpu.root.get() == root) {
        // With a page goes the large one around it.
        let tlb = cpu.tlb.borrow();
        let around = tlb.pages.range(span << 9..(span + 1) << 9);
        around
            .filter(|(held, entry)| **held == page || entry.large)
            .for_each(|(held, _)| check_page(root, VirtAddr(held << PAGE_SHIFT), since));
    }
    for (index, cpu) in m.cpus.iter().enumerate() {
        if cpu.root.get() == root
            && let Some(table) = cpu.tlb.borrow().tables.get(&span)
        {
            check_table(index, root, span, table, since);
        }
    }
}

fn check_page(root: PhysAddr, at: VirtAddr, since: u64) {
    let Some(m) = machine() else { return };
    let page = at.0 >> PAGE_SHIFT;
    for (index, cpu) in m.cpus.iter().enumerate() {
        if cpu.root.get() != root {
            continue;
        }
        if let Some(entry) = cpu.tlb.borrow().pages.get(&page) {
            let now = lookup(root, page);
            let stale = now.is_none_or(|(frame, write, execute)| {
                frame != entry.frame || entry.write && !write || entry.execute && !execute
            });
            if stale && entry.stamp <= since {
                m.fail(format!(
                    "stale translation: CPU {index} still holds {at:?} -> frame {:#x} \
                     (write {}, execute {}), the page tables say {now:x?}",
                    entry.frame, entry.write, entry.execute
                ));
            }
        }
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
fn check_table(index: usize, root: PhysAddr, span: usize, table: &Table, since: u64) {
    let Some(m) = machine() else { return };
    if table.stamp <= since && last_table(root, span << 9).is_none_or(|at| at != table.at) {
        m.fail(format!(
            "stale table: CPU {index} still walks the table at {:?} for {:#x}",
            table.at,
            span << (PAGE_SHIFT + 9)
        ));
    }
}

/// The table of level 1 for a page, without touching any bit.
fn last_table(root: PhysAddr, page: usize) -> Option<PhysAddr> {
    let m = machine()?;
    let mut table = root;
    for level in (2..=4).rev() {
        let index = page >> (9 * (level - 1)) & 511;
        let entry = m.entry(table + index as u64 * 8).load(super::machine::WORD);
        if entry & 1 == 0 || entry & 1 << 7 != 0 {
            return None;
        }
        table = PhysAddr(entry & 0x000f_ffff_ffff_f000);
    }
    Some(table)
}

/// Frame, whether writable, whether executable: what the tables say now.
fn lookup(root: PhysAddr, page: usize) -> Option<(u64, bool, bool)> {
    let m = machine()?;
    let (mut write, mut execute) = (true, true);
    let mut table = root;
    for level in (1..=4).rev() {
        let index = page >> (9 * (level - 1)) & 511;
        let entry = m.entry(table + index as u64 * 8).load(super::machine::WORD);
        if entry & 1 == 0 {
            return None;
        }
        write &= entry & 2 != 0;
        execute &= entry >> 63 == 0;
        table = PhysAddr(entry & 0x000f_ffff_ffff_f000);
        if level == 2 && entry & 1 << 7 != 0 {
            return Some((table.frame_number() + (page as u64 & 511), write, execute));
        }
    }
    Some((table.frame_number(), write, execute))
}

/// The frame goes back to the allocator: no CPU may be able to reach it by anything that it holds.
pub(crate) fn frame_freed(frame: PhysAddr) {
    let Some(m) = machine() else { return };
    let number = frame.frame_number();
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
        let window = cpu.window.borrow();
        if let Some((slot, _)) = window.iter().find(|(_, frame)| **frame == number) {
            m.fail(format!(
                "frame {number:#x} is freed while CPU {index} holds address {slot} of the \
                 kernel's window for it"
            ));
        }
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
