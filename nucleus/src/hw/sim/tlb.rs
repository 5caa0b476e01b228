//! Translation: page-table walks, and the TLB of each CPU.
//!
//! A TLB holds what hardware may hold, for as long as it may: entries go only when they are
//! invalidated, when the space is changed, or by chance. It also keeps the tables that it found on
//! the way to them (Intel's paging-structure caches), which any invalidation empties. A large page
//! is held as translations of the pages in it that were used, which go all at once, as some
//! processors hold it; one that is held together with a small page for the same 2 MiB is an error:
//! a processor might take a machine check. At any point a CPU may fill an entry for an address that
//! no one asked for; as on hardware, that sets the accessed bit first, and a write sets the dirty
//! bit before it is done.
//!
//! With address-space tags (PCID), a CPU has as many TLBs as tags, and one for the kernel's own
//! root. Real ones fill entries by the tag that is loaded only; these at any time by any tag that
//! has been loaded, until the kernel has said that the tag is not used again as it is: what was
//! filled unseen before the switch may show at any time after it.

use std::collections::{BTreeMap, VecDeque};

use super::machine::{Machine, WORD, machine};
use crate::hw::{Tag, Window, counters::Counter, mitigations::ADDRESS};
use crate::mem::mistake::Mistake;
use crate::{Access, PAGE_SHIFT, PhysAddr, VirtAddr};

pub(super) const PRESENT: u64 = 1;
pub(super) const WRITE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
pub(super) const LARGE: u64 = 1 << 7;
pub(super) const NO_EXECUTE: u64 = 1 << 63;
/// No memory has an address with this bit.
const HIGHEST: u64 = 1 << 51;

/// Addresses that were used lately, among which a CPU guesses.
const HISTORY: usize = 32;

/// A translation that is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub(super) frame: u64,
    pub(super) write: bool,
    pub(super) execute: bool,
    /// Whether the entry in memory had its dirty bit set: only then may a write go ahead.
    dirty: bool,
    /// Whether it is a part of a large page.
    pub(super) large: bool,
    /// When the walk that made it began.
    pub(super) stamp: u64,
}

/// A last-level table that is held, with the rights on the way to it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) at: PhysAddr,
    write: bool,
    execute: bool,
    pub(super) stamp: u64,
}

/// Most tags that a CPU has for programs.
pub(crate) const MOST_TAGS: usize = 4;

/// The tags of a machine's CPUs: none on half of the machines.
pub(super) fn tags_of(seed: u64) -> usize {
    [0, 1, 0, 2, 0, MOST_TAGS][(seed / 4 % 6) as usize]
}

/// Tags that CPUs have for programs, numbered from 1.
pub(crate) fn tags() -> usize {
    machine().map_or(0, |m| m.cpus[0].tlbs.len() - 1)
}

/// What a CPU holds of a space. By page number, and by page number over 512.
#[derive(Default)]
pub(crate) struct Tlb {
    /// The space's root.
    pub(super) root: Option<PhysAddr>,
    /// Why its tag must not be used without dropping what it holds.
    pub(super) condemned: Option<String>,
    pub(super) pages: BTreeMap<usize, Entry>,
    pub(super) tables: BTreeMap<usize, Table>,
    history: VecDeque<usize>,
}

impl Tlb {
    fn forget_tables(&mut self, m: &Machine) {
        for table in std::mem::take(&mut self.tables).values() {
            unreach(m, table.at.frame_number());
        }
    }

    /// A fault for want of rights also makes the CPU forget the table that it came by.
    fn forget_table(&mut self, m: &Machine, page: usize) {
        if let Some(table) = self.tables.remove(&(page >> 9)) {
            unreach(m, table.at.frame_number());
        }
    }

    fn forget_page(&mut self, m: &Machine, page: usize) {
        if let Some(entry) = self.pages.remove(&page) {
            unreach(m, entry.frame);
        }
    }

    /// Forgets the large page around a page.
    fn forget_large(&mut self, m: &Machine, page: usize) {
        let span = page & !511..=page | 511;
        let parts = self.pages.range(span).filter(|(_, entry)| entry.large);
        let parts: Vec<usize> = parts.map(|(page, _)| *page).collect();
        for part in parts {
            self.forget_page(m, part);
        }
    }

    /// Whether something is held of the 2 MiB around a page that is, or is not, a part of a large
    /// page.
    fn holds_other_size(&self, page: usize, large: bool) -> bool {
        let span = page & !511..=page | 511;
        self.pages
            .range(span)
            .any(|(_, entry)| entry.large != large)
    }

    fn forget_all(&mut self, m: &Machine) {
        self.forget_tables(m);
        for entry in std::mem::take(&mut self.pages).values() {
            unreach(m, entry.frame);
        }
    }
}

pub(super) fn reach(m: &Machine, frame: u64) {
    if let Some(count) = m.reached.get(frame as usize) {
        count.set(count.get() + 1);
    }
}

pub(super) fn unreach(m: &Machine, frame: u64) {
    if let Some(count) = m.reached.get(frame as usize) {
        count.set(count.get() - 1);
    }
}

/// Uses another root table. Without tags, everything held of the old space goes.
pub(crate) fn load_space(root: PhysAddr) {
    load(root, Tag::NONE);
}

fn load(root: PhysAddr, tag: Tag) {
    let Some(m) = machine() else { return };
    let cpu = m.cpu();
    cpu.root.set(root);
    cpu.tag.set(tag.number);
    let mut tlb = cpu.tlb().borrow_mut();
    if !tag.keeps {
        tlb.forget_all(m);
        tlb.condemned = None;
        tlb.root = (tag.number != 0).then_some(root);
    }
    if tag.keeps && tlb.root != Some(root) {
        let of = tlb.root;
        m.fail(format!("tag {} is of {of:?}, not of {root:?}", tag.number));
    }
    if let Some(why) = &tlb.condemned {
        m.fail(format!("tag {} is used as it is: {why}", tag.number));
    }
    drop(tlb);
    if tags() == 0 || Mistake::GlobalKept.is_made() {
        super::window::flushed(m);
    }
}

/// As [`load_space`], by a tag: programs run under the same root. Barriers are counted.
pub(crate) fn load_program_space(
    root: PhysAddr,
    tag: Tag,
    _user: impl FnOnce() -> PhysAddr,
    is_trusted: impl FnOnce() -> bool,
) {
    if !is_trusted() {
        forget_predictions();
    }
    load(root, tag);
}

/// The program that runs next is in the space that is loaded. Barriers are counted.
pub(crate) fn stay_in_space(is_trusted: impl FnOnce() -> bool) {
    if !is_trusted() {
        forget_predictions();
    }
}

/// Sets where the program that this CPU runs is.
pub(crate) fn set_window(window: Window) {
    if let Some(m) = machine() {
        m.cpu().program.set(window);
    }
}

/// Where the program that this CPU runs is.
pub(crate) fn window() -> Window {
    machine().map_or(Window::ALL, |m| m.cpu().program.get())
}

/// The end of the addresses of the program that this CPU runs if they are the linear ones, else 0.
pub(crate) fn linear_end() -> usize {
    window().linear_end()
}

/// The machine predicts nothing, and counts how often it is told to forget that.
pub(crate) fn forget_predictions() {
    Counter::prediction_barriers.add(1);
}

/// Invalidates what this CPU holds for one page.
pub(crate) fn invalidate_page(at: VirtAddr) {
    let Some(m) = machine() else { return };
    let mut tlb = m.cpu().tlb().borrow_mut();
    tlb.forget_page(m, at.0 >> PAGE_SHIFT);
    tlb.forget_large(m, at.0 >> PAGE_SHIFT);
    tlb.forget_tables(m);
}

/// Invalidates what this CPU holds for one page by a tag that it does not use now (INVPCID).
/// Returns whether it can.
pub(crate) fn invalidate_tagged(tag: usize, at: VirtAddr) -> bool {
    let Some(m) = machine() else { return false };
    if m.config.seed.is_multiple_of(2) {
        return false;
    }
    let page = at.0 >> PAGE_SHIFT;
    let mut tlb = m.cpu().tlbs[tag].borrow_mut();
    tlb.forget_page(m, page);
    tlb.forget_large(m, page);
    tlb.forget_table(m, page);
    true
}

/// Invalidates all that this CPU holds of the current space.
pub(crate) fn invalidate_all() {
    let Some(m) = machine() else { return };
    m.cpu().tlb().borrow_mut().forget_all(m);
    if tags() == 0 {
        super::window::flushed(m);
    }
}

/// Invalidates all that this CPU holds of all spaces.
pub(super) fn invalidate_spaces(m: &Machine) {
    let tlbs = &m.cpu().tlbs;
    tlbs.iter().for_each(|tlb| tlb.borrow_mut().forget_all(m));
}

/// Translates an address of the program for an access, as the CPU would; `None` is a page fault.
pub(super) fn translate(m: &Machine, at: VirtAddr, access: Access) -> Option<PhysAddr> {
    let page = at.0 >> PAGE_SHIFT;
    let allows = |entry: &Entry| match access {
        Access::Read => true,
        Access::Write => entry.write,
        Access::Execute => entry.execute,
    };
    let held = {
        let mut tlb = m.cpu().tlb().borrow_mut();
        tlb.history.push_back(page);
        if tlb.history.len() > HISTORY {
            tlb.history.pop_front();
        }
        if m.random.one_in(64) {
            // No TLB is infinite.
            tlb.forget_page(m, page);
        }
        tlb.pages.get(&page).copied()
    };
    if let Some(entry) = held {
        if allows(&entry) && (access != Access::Write || entry.dirty) {
            return Some(physical(entry, at));
        }
        // A fault invalidates the entry that caused it; a first write looks at the tables again.
        // Whether a CPU faults on a held entry without looking again is its own business.
        m.cpu().tlb().borrow_mut().forget_page(m, page);
        if !allows(&entry) && m.random.one_in(2) {
            m.cpu().tlb().borrow_mut().forget_table(m, page);
            return None;
        }
    }
    let entry = fill(m, m.cpu().tag.get(), page, access == Access::Write)?;
    if !allows(&entry) {
        let mut tlb = m.cpu().tlb().borrow_mut();
        tlb.forget_page(m, page);
        tlb.forget_table(m, page);
        return None;
    }
    Some(physical(entry, at))
}

fn physical(entry: Entry, at: VirtAddr) -> PhysAddr {
    PhysAddr((entry.frame << PAGE_SHIFT) + at.page_offset() as u64)
}

/// Walks the tables for a page and holds what it finds by a tag. `for_write` sets the dirty bit
/// where writing is allowed.
fn fill(m: &Machine, tag: usize, page: usize, for_write: bool) -> Option<Entry> {
    let cpu = m.cpu();
    // A walk by another tag was done before that was left: no change comes in between.
    let is_current = tag == cpu.tag.get();
    let tlb = &cpu.tlbs[tag];
    let root = match is_current {
        true => cpu.root.get(),
        false => tlb.borrow().root?,
    };
    let stamp = next_stamp(m);
    let held = tlb.borrow().tables.get(&(page >> 9)).copied();
    let table = match held {
        Some(table) if !m.random.one_in(4) => table,
        _ => {
            let mut table = Table {
                at: root,
                write: true,
                execute: true,
                stamp,
            };
            for level in (2..=4).rev() {
                let written = |entry| match level == 2 && entry & LARGE != 0 {
                    true => dirties(&table, entry, for_write),
                    false => 0,
                };
                let index = page >> (9 * (level - 1));
                let entry = touch(m, is_current, table.at, index, written)?;
                table.write &= entry & WRITE != 0;
                table.execute &= entry & NO_EXECUTE == 0;
                table.at = PhysAddr(entry & ADDRESS);
                if entry & LARGE != 0 {
                    if level != 2 || entry & (511 << PAGE_SHIFT) != 0 {
                        m.fail(format!("a large page {entry:#x} at level {level}"));
                    }
                    return Some(hold(m, tag, page, &table, entry, stamp));
                }
            }
            table
        }
    };
    // Held even if it leads to nothing.
    {
        let mut tlb = tlb.borrow_mut();
        if let std::collections::btree_map::Entry::Vacant(place) = tlb.tables.entry(page >> 9) {
            reach(m, table.at.frame_number());
            place.insert(table);
        }
    }
    let written = |entry| dirties(&table, entry, for_write);
    let leaf = touch(m, is_current, table.at, page, written)?;
    Some(hold(m, tag, page, &table, leaf, stamp))
}

/// The dirty bit if a walk for a write, with the rights on the way, finds an entry that may be
/// written.
fn dirties(table: &Table, entry: u64, for_write: bool) -> u64 {
    match for_write && table.write && entry & WRITE != 0 {
        true => DIRTY,
        false => 0,
    }
}

/// Holds what an entry says of a page: an entry of level 1, found with the rights on the way, or a
/// large one, whose own rights are among them.
fn hold(m: &Machine, tag: usize, page: usize, table: &Table, leaf: u64, stamp: u64) -> Entry {
    let large = leaf & LARGE != 0;
    let part = if large { page as u64 & 511 } else { 0 };
    let entry = Entry {
        frame: ((leaf & ADDRESS) >> PAGE_SHIFT) + part,
        write: table.write && leaf & WRITE != 0,
        execute: table.execute && leaf & NO_EXECUTE == 0,
        dirty: leaf & DIRTY != 0,
        large,
        stamp,
    };
    let mut tlb = m.cpu().tlbs[tag].borrow_mut();
    if tlb.holds_other_size(page, large) && tag == m.cpu().tag.get() {
        m.fail(format!(
            "CPU {} holds translations of two sizes around {:#x}",
            m.current(),
            page << PAGE_SHIFT
        ));
    }
    tlb.forget_page(m, page);
    reach(m, entry.frame);
    tlb.pages.insert(page, entry);
    entry
}

/// Reads an entry of a table, setting the accessed bit and `more` in one atomic step, as a walk
/// does. `None` if it is not present for programs.
fn touch(
    m: &Machine,
    may_wait: bool,
    table: PhysAddr,
    index: usize,
    more: impl Fn(u64) -> u64,
) -> Option<u64> {
    let word = m.entry(table + (index & 511) as u64 * 8);
    // Other CPUs go on between two steps of a walk, but no interrupt arrives in an instruction.
    if may_wait {
        m.step();
    }
    let mut entry = word.load(WORD);
    loop {
        if entry & PRESENT == 0 {
            // A processor that looks at the address all the same (L1TF) must find no memory.
            if entry & ADDRESS != 0 && entry & HIGHEST == 0 {
                m.fail(format!(
                    "an entry that is not present names memory: {entry:#x}"
                ));
            }
            return None;
        }
        if entry & USER == 0 {
            return None;
        }
        let new = entry | ACCESSED | more(entry);
        if new == entry {
            return Some(entry);
        }
        match word.compare_exchange(entry, new, WORD, WORD) {
            Ok(_) => return Some(new),
            Err(now) => entry = now,
        }
    }
}

fn next_stamp(m: &Machine) -> u64 {
    m.stamp.set(m.stamp.get() + 1);
    m.stamp.get()
}

/// Fills an entry that no one asked for, near an address that was used, by the tag that is used or
/// by another one.
pub(super) fn speculate(m: &Machine) {
    let tag = match tags() != 0 && m.random.one_in(2) {
        true => m.random.below(m.cpu().tlbs.len() as u64) as usize,
        false => m.cpu().tag.get(),
    };
    let Ok(tlb) = m.cpu().tlbs[tag].try_borrow() else {
        return;
    };
    if tlb.condemned.is_some() {
        return;
    }
    if tlb.history.is_empty() {
        return;
    }
    let base = tlb.history[m.random.below(tlb.history.len() as u64) as usize];
    drop(tlb);
    let page = (base + m.random.below(9) as usize).saturating_sub(4);
    if page < crate::addr::USER_END.0 >> PAGE_SHIFT
        && !m.cpu().tlbs[tag].borrow().pages.contains_key(&page)
    {
        fill(m, tag, page, false);
    }
}
