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
    for (index, cpu) in m.cpus.iter().enumerate() {
        for (tag, tlb) in cpu.tlbs.iter().enumerate() {
            let is_loaded = tag == cpu.tag.get();
            let of = match is_loaded {
                true => Some(cpu.root.get()),
                false => tlb.borrow().root,
            };
            if of != Some(root) {
                continue;
            }
            let mut tlb = tlb.borrow_mut();
            // With a page goes the large one around it.
            let around = tlb.pages.range(span << 9..(span + 1) << 9);
            let around = around.filter(|(held, entry)| **held == page || entry.large);
            let stale =
                { around }.find_map(|(&held, entry)| stale_page(m, root, held, entry, since));
            let table = tlb.tables.get(&span);
            let stale = stale.or_else(|| stale_table(m, root, span, table?, since));
            match stale {
                Some(why) if is_loaded => m.fail(format!("CPU {index}: {why}")),
                Some(why) => tlb.condemned = Some(why),
                None => {}
            }
        }
    }
}

/// The kernel will drop what a CPU holds of a page, or of all, by a tag before it uses the tag
/// again, if it holds any.
pub(crate) fn condemn(cpu: usize, tag: usize, at: Option<VirtAddr>) {
    let Some(m) = machine() else { return };
    let cpu = &m.cpus[cpu];
    if cpu.tag.get() == tag {
        // It was loaded meanwhile, and dropped everything.
        return;
    }
    let mut tlb = cpu.tlbs[tag].borrow_mut();
    let holds = match at {
        Some(at) => {
            let page = at.0 >> PAGE_SHIFT;
            tlb.pages.contains_key(&page) || tlb.tables.contains_key(&(page >> 9))
        }
        None => !tlb.pages.is_empty() || !tlb.tables.is_empty(),
    };
    if holds {
        tlb.condemned = Some(format!("a change at {at:x?} came since"));
    }
}

/// A held translation must not allow more than the page tables.
fn stale_page(
    m: &Machine,
    root: PhysAddr,
    page: usize,
    held: &Entry,
    since: u64,
) -> Option<String> {
    let now = walk(m, root, page, 1);
    let now = now.map(|(at, write, execute)| (at.frame_number(), write, execute));
    let stale = now.is_none_or(|(frame, write, execute)| {
        frame != held.frame || held.write && !write || held.execute && !execute
    });
    (stale && held.stamp <= since).then(|| {
        format!(
            "stale translation: it still holds {:#x} -> frame {:#x} \
             (write {}, execute {}), the page tables say {now:x?}",
            page << PAGE_SHIFT,
            held.frame,
            held.write,
            held.execute
        )
    })
}

/// The kernel has flushed all translations of programs on the CPUs of the mask: they hold none that
/// they held when the flush began (`since`).
pub(crate) fn promise_all(cpus: u64, since: u64) {
    let Some(m) = machine() else { return };
    for (index, cpu) in m.cpus.iter().enumerate() {
        for (tag, tlb) in cpu.tlbs.iter().enumerate() {
            let mut tlb = tlb.borrow_mut();
            let oldest = tlb.pages.iter().map(|(page, entry)| (entry.stamp, *page));
            if cpus & 1 << index != 0
                && let Some((stamp, page)) = oldest.min()
                && stamp <= since
            {
                let page = page << PAGE_SHIFT;
                let why = format!("it holds {page:#x} still after it was told to forget all");
                match tag == cpu.tag.get() {
                    true => m.fail(format!("CPU {index}: {why}")),
                    false => tlb.condemned = Some(why),
                }
            }
        }
    }
}

/// A held table must still be the one that the tables above lead to.
fn stale_table(
    m: &Machine,
    root: PhysAddr,
    span: usize,
    held: &Table,
    since: u64,
) -> Option<String> {
    let now = walk(m, root, span << 9, 2);
    (held.stamp <= since && now.is_none_or(|(at, ..)| at != held.at)).then(|| {
        format!(
            "stale table: it still walks the table at {:?} for {:#x}",
            held.at,
            span << (PAGE_SHIFT + 9)
        )
    })
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
        for tlb in &cpu.tlbs {
            // No tag of the space is used again.
            if tlb.borrow().root == Some(frame) {
                tlb.borrow_mut().condemned = Some(format!("the root {frame:?} was freed"));
            }
        }
    }
    if m.reached
        .get(number as usize)
        .is_none_or(|count| count.get() == 0)
    {
        return;
    }
    for (index, cpu) in m.cpus.iter().enumerate() {
        for (tag, tlb) in cpu.tlbs.iter().enumerate() {
            let mut tlb = tlb.borrow_mut();
            let page = tlb.pages.iter().find(|(_, entry)| entry.frame == number);
            let page = page.map(|(page, _)| {
                let page = page << PAGE_SHIFT;
                format!(
                    "frame {number:#x} is freed while it holds a translation of {page:#x} to it"
                )
            });
            let mut tables = tlb.tables.iter();
            let table = tables.find(|(_, table)| table.at.frame_number() == number);
            let table = table.map(|(span, _)| {
                let span = span << (PAGE_SHIFT + 9);
                format!("page table {number:#x} is freed while it walks it for {span:#x}")
            });
            match page.or(table) {
                Some(why) if tag == cpu.tag.get() => m.fail(format!("CPU {index}: {why}")),
                Some(why) => tlb.condemned = Some(why),
                None => {}
            }
        }
    }
}
