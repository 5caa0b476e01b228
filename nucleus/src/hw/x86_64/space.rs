//! The kernel's own page tables: the top half that all address spaces share.
//!
//! Every level-3 table that the kernel will ever use is made at boot, so the top half of a level-4
//! table never changes and can be copied. All entries are global.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::cpu::{Features, address_bits, features, irqs_disable, irqs_restore};
use super::layout::{
    Image, STACK_SIZE, blocks, devices, image, image_base, ptr, reach_tables, stacks, table_ptr,
    tables,
};
use super::memory::MemoryMap;
use super::tags::{KEEPS, tags};
use super::{direct, guard, mitigations, percpu};
use crate::hw::mitigations::{ADDRESS, inverted};
use crate::hw::{DirectMap, Region, Tag, handlers};
use crate::{OutOfMemory, PAGE_SHIFT, PAGE_SIZE, PhysAddr, VirtAddr};

/// Of an entry that maps something.
pub const PRESENT: u64 = 1;
pub(super) const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const WRITE_THROUGH: u64 = 1 << 3;
const UNCACHED: u64 = 1 << 4;
/// Of an entry through which the CPU has translated.
pub const ACCESSED: u64 = 1 << 5;
pub(super) const LARGE: u64 = 1 << 7;
pub const GLOBAL: u64 = 1 << 8;
const NO_EXECUTE: u64 = 1 << 63;

const CODE: u64 = PRESENT | GLOBAL;
const CONSTANTS: u64 = PRESENT | GLOBAL | NO_EXECUTE;
/// Of an entry for data of the kernel.
pub const DATA: u64 = PRESENT | GLOBAL | NO_EXECUTE | WRITABLE;
const REGISTERS: u64 = DATA | WRITE_THROUGH | UNCACHED;

/// What a page of each level maps, as a power of two: 4 KiB, 2 MiB, 1 GiB.
const SHIFT: [u32; 3] = [12, 21, 30];

/// The kernel's level-4 table; the start of other CPUs loads it.
pub static ROOT: AtomicU64 = AtomicU64::new(0);
/// Page tables of the window for device registers: 2 MiB each.
const DEVICE_TABLES: usize = 8;
/// Pages of that window.
const DEVICE_WINDOW: usize = DEVICE_TABLES * 512;
/// Pages of device registers mapped so far.
static DEVICE_PAGES: AtomicUsize = AtomicUsize::new(0);

/// The level-4 table whose top half is the one of every program's root where those are not the
/// kernel's, or 0.
static ENTRY_ROOT: AtomicU64 = AtomicU64::new(0);

/// See [`ENTRY_ROOT`]; its lower half is empty.
#[inline]
pub(crate) fn entry_root() -> Option<PhysAddr> {
    let root = ENTRY_ROOT.load(Ordering::Relaxed);
    (root != 0).then_some(PhysAddr(root))
}

/// The level-4 table of the kernel: its top half is the one of every address space, its lower half
/// is empty.
#[inline]
pub(crate) fn kernel_root() -> PhysAddr {
    PhysAddr(ROOT.load(Ordering::Relaxed))
}

type Tables = *mut [u64; 512];

pub(super) fn table(at: u64) -> Tables {
    table_ptr(PhysAddr(at & ADDRESS)).cast()
}

fn slot(va: usize, level: usize) -> usize {
    va >> (12 + 9 * (level - 1)) & 511
}

/// Tables of [`ENTRY_ROOT`]: one each of level 4 to 2, and of level 1 as many as the kernel's image
/// can need.
const ENTRY_TABLES: u64 = 3 + 16;

/// Early frames that the tables of [`build`] can need for memory that ends at `top` bytes: one a
/// GiB and one a 512 GiB for the direct map, and a few where pages of different sizes or rights
/// meet; and one a GiB and a few more for the region of page tables.
pub fn early_frames(top: u64, what: &Mapped) -> u64 {
    let guard = if what.guards { (top >> 30) + 32 } else { 0 };
    (top >> 30) + (top >> 39) + 64 + ENTRY_TABLES + level_1_tables(top, what) + guard
}

/// Tables of level 1 that are set aside for parts of the direct map that change.
fn level_1_tables(top: u64, what: &Mapped) -> u64 {
    match what.mode == DirectMap::Kernel || what.guards {
        true => top.div_ceil(2 << 20),
        false => 0,
    }
}

/// What [`build`] is to map.
pub struct Mapped {
    /// The frames in the direct map.
    pub mode: DirectMap,
    /// Page tables and descriptor tables are [guarded](super::guard).
    pub guards: bool,
    /// The pages of the guarded ways, for programs' own roots.
    pub ways_in: Range<usize>,
    /// The interrupt descriptor table, and those of segments.
    pub descriptors: [Range<usize>; 2],
}

/// Whether page tables of a machine with memory up to `top` bytes can be guarded: with pages of
/// programs outside of the direct map, their frames would come into the region of page tables.
pub fn can_guard(top: u64, mode: DirectMap) -> bool {
    mode != DirectMap::Kernel && top <= 64 << 30
}

/// Which part of a range of memory has a place in the direct map at the start: of what is free, no
/// more than the mode says.
fn direct_part(range: &Region, mode: DirectMap) -> Range<u64> {
    let (start, end) = (range.start << PAGE_SHIFT, range.end << PAGE_SHIFT);
    match mode {
        DirectMap::First(mib) if range.free => start..end.min(u64::from(mib) << 20).max(start),
        _ => start..end,
    }
}

struct Builder<'a> {
    memory: &'a mut MemoryMap,
    root: u64,
    largest: usize,
}

impl Builder<'_> {
    fn new_table(&mut self) -> u64 {
        let at = self.memory.take_early() << PAGE_SHIFT;
        // SAFETY: a free frame that the boot page tables map.
        unsafe { table(at).write([0; 512]) };
        at
    }

    /// The table of `level` in which `va` has its entry.
    fn descend(&mut self, va: usize, level: usize) -> Tables {
        let mut at = self.root;
        for upper in (level + 1..=4).rev() {
            // SAFETY: tables that this builder made.
            let entry = unsafe { &mut (*table(at))[slot(va, upper)] };
            if *entry == 0 {
                *entry = self.new_table() | PRESENT | WRITABLE;
            }
            at = *entry & ADDRESS;
        }
        table(at)
    }

    /// Maps whole frames with the largest pages that fit.
    fn map(&mut self, mut va: usize, mut pa: u64, end: u64, rights: u64) {
        while pa < end {
            let fits = |level: usize| {
                let size = 1 << SHIFT[level - 1];
                pa.is_multiple_of(size) && (va as u64).is_multiple_of(size) && end - pa >= size
            };
            let level = (1..=self.largest).rev().find(|&l| fits(l)).unwrap_or(1);
            let large = if level > 1 { LARGE } else { 0 };
            let tables = self.descend(va, level);
            // SAFETY: as in `descend`.
            unsafe { (*tables)[slot(va, level)] = pa | rights | large };
            pa += 1 << SHIFT[level - 1];
            va += 1 << SHIFT[level - 1];
        }
    }

    /// Makes the tables of the region of page tables, down to level 2, and to level 1 where the
    /// image is, whose text is never mapped there. The tables of the start are mapped: they are
    /// written there as soon as the new tables are loaded.
    fn map_tables(&mut self, top: u64, early: &Range<u64>, image: &Image) {
        for at in (0..top).step_by(1 << SHIFT[2]) {
            self.descend(tables() + at as usize, 2);
        }
        let block = 1 << SHIFT[1];
        for at in (image.start / block * block..image.end).step_by(block as usize) {
            self.descend(tables() + at as usize, 1);
        }
        let from = early.start.max(image.end.next_multiple_of(block));
        let to = early.end.next_multiple_of(block);
        let border = from.min(early.end);
        self.map(tables() + early.start as usize, early.start, border, DATA);
        let from = from / block * block;
        self.map(tables() + from as usize, from, to, DATA);
    }

    /// Maps a part of the physical memory from the address on at which its first byte would be;
    /// what is `fixed`, ranges in order, can't be written there.
    fn map_part(&mut self, base: usize, part: Range<u64>, fixed: &[Range<u64>]) {
        let mut at = part.start;
        for it in fixed {
            let it = it.start.clamp(at, part.end.max(at))..it.end.clamp(at, part.end.max(at));
            self.map(base + at as usize, at, it.start, DATA);
            self.map(base + it.start as usize, it.start, it.end, CONSTANTS);
            at = it.end;
        }
        self.map(base + at as usize, at, part.end, DATA);
    }
}

/// Builds the kernel's page tables and loads them. The boot page tables are in force and map all
/// of what `memory` set aside.
#[inline(never)]
pub fn build(memory: &mut MemoryMap, what: &Mapped) {
    let mode = what.mode;
    let is_fixed = mode != DirectMap::Kernel && !what.guards;
    let largest = if features().contains(Features::HUGE_PAGES) && is_fixed {
        3
    } else {
        2
    };
    let mut builder = Builder {
        memory,
        root: 0,
        largest,
    };
    builder.root = builder.new_table();
    let image = image();
    // In the order of their addresses: the early frames are behind the image.
    let constants = image.start..image.rodata_end;
    let mut descriptors = what.descriptors.clone().map(|it| {
        let start = (it.start - image_base()) as u64;
        start..start + if what.guards { it.len() as u64 } else { 0 }
    });
    guard::set_descriptors(what.descriptors.clone().map(|it| {
        let start = (it.start - image_base()) as u64;
        start..start + it.len() as u64
    }));
    descriptors.sort_unstable_by_key(|it| it.start);
    let [first, second] = descriptors;
    let early = match what.guards {
        true => builder.memory.early(),
        false => image.end..image.end,
    };
    let fixed = [constants, first, second, early.clone()];
    for i in 0..builder.memory.ranges().len() {
        let range = direct_part(&builder.memory.ranges()[i], mode);
        builder.map_part(ptr(PhysAddr(0)) as usize, range, &fixed);
    }
    let top = builder.memory.ranges().last().map_or(0, |it| it.end) << PAGE_SHIFT;
    for table in 0..level_1_tables(top, what) {
        let at = builder.new_table();
        if table == 0 {
            direct::set_tables(at);
        }
    }
    let mut section = |from: u64, to: u64, rights| {
        builder.map(image_base() + from as usize, from, to, rights);
    };
    section(image.start, image.text_end, CODE);
    section(image.text_end, image.rodata_end, CONSTANTS);
    builder.map_part(image_base(), image.rodata_end..image.end, &fixed[1..3]);
    if what.guards {
        builder.map_tables(top, &early, &image);
    }
    builder.descend(stacks(), 3);
    builder.descend(blocks(), 3);
    for table in 0..DEVICE_TABLES {
        builder.descend(devices() + table * 512 * PAGE_SIZE, 1);
    }
    ROOT.store(builder.root, Ordering::Relaxed);
    if mitigations::is_isolated() {
        builder.root = builder.new_table();
        let mut part = |from: usize, bytes: usize, rights: u64| {
            let at = (from - image_base()) as u64;
            builder.map(from, at, at + bytes as u64, rights);
        };
        part(what.ways_in.start, what.ways_in.len(), CODE);
        for table in &what.descriptors {
            part(table.start, table.len(), CONSTANTS);
        }
        for cpu in 0..percpu::MAX_CPUS {
            part(
                core::ptr::from_ref(percpu::of(cpu)) as usize,
                PAGE_SIZE,
                DATA,
            );
        }
        ENTRY_ROOT.store(builder.root, Ordering::Relaxed);
    }
    if what.guards {
        reach_tables();
    }
    load_space(kernel_root());
    let taken = builder.memory.finish_early();
    if what.guards {
        start_guard(taken, early);
    }
}

/// The first code that reaches page tables in their own region: apart, so that no address of the
/// direct map is kept for it.
#[inline(never)]
fn start_guard(taken: Range<u64>, early: Range<u64>) {
    guard::set_early(taken.clone());
    guard::reach_tables(frames_of(early.clone()));
    guard::guard(frames_of(taken.end..early.end), false);
    guard::descriptor_frames().for_each(|it| guard::reach_tables(it as u32..it as u32 + 1));
}

fn frames_of(bytes: Range<u64>) -> Range<u32> {
    (bytes.start >> PAGE_SHIFT) as u32..(bytes.end >> PAGE_SHIFT) as u32
}

/// Whether all of these addresses are physical ones: a CPU faults at an entry with another one,
/// whatever the firmware or a device says is there.
pub(crate) fn is_physical(at: u64, bytes: u64) -> bool {
    let end = at.checked_add(bytes);
    end.is_some_and(|end| end <= 1 << address_bits())
}

/// Maps device registers, uncached, for good. `None` when the window is full or the range is not
/// a physical one.
pub(crate) fn map_device(at: u64, bytes: usize) -> Option<*mut u8> {
    if !is_physical(at, bytes as u64) {
        return None;
    }
    let offset = at as usize % PAGE_SIZE;
    let pages = (offset + bytes).div_ceil(PAGE_SIZE);
    let first = DEVICE_PAGES.fetch_add(pages, Ordering::Relaxed);
    if first + pages > DEVICE_WINDOW {
        return None;
    }
    for page in 0..pages {
        let va = devices() + (first + page) * PAGE_SIZE;
        let entry = find(va)?;
        let frame = at - offset as u64 + (page * PAGE_SIZE) as u64;
        // SAFETY: `find` gives an entry of the device window, which no other caller was given.
        unsafe { entry.write_volatile(frame | REGISTERS) };
    }
    Some((devices() + first * PAGE_SIZE + offset) as *mut u8)
}

/// How many pages of device registers can still be mapped.
pub(crate) fn device_pages_left() -> usize {
    DEVICE_WINDOW.saturating_sub(DEVICE_PAGES.load(Ordering::Relaxed))
}

/// The entry at which a walk for a kernel address ends, and its level: the first that is not
/// present or maps a large page, or that of level `last`.
pub(super) fn walk_down(va: usize, last: usize) -> (*mut u64, usize) {
    let mut at = kernel_root().0;
    for level in (last..=4).rev() {
        // SAFETY: the kernel's tables are never freed.
        let (entry, value) = unsafe {
            let entry = &raw mut (*table(at))[slot(va, level)];
            (entry, entry.read_volatile())
        };
        if level == last || value & PRESENT == 0 || value & LARGE != 0 {
            return (entry, level);
        }
        at = value & ADDRESS;
    }
    unreachable!("a walk ends at the last level")
}

/// As [`walk_down`] to level 1.
fn walk(va: usize) -> (*mut u64, usize) {
    walk_down(va, 1)
}

/// The entry of a level for a kernel address, which has all tables above.
pub(super) fn walk_to(va: usize, level: usize) -> *mut u64 {
    let (entry, found) = walk_down(va, level);
    assert_eq!(found, level, "no table of level {level} for {va:#x}");
    entry
}

/// What an entry of a page table maps.
pub struct Leaf {
    /// The first address.
    pub va: usize,
    /// The first frame.
    pub frame: u64,
    /// How many there are in a row.
    pub frames: u64,
    /// Whether programs may use it.
    pub is_programs: bool,
    /// Whether it may be written.
    pub is_writable: bool,
}

/// Calls `each` for all that a root maps. The root's tables don't change meanwhile.
pub fn walk_root(root: PhysAddr, each: &mut impl FnMut(Leaf)) {
    walk_table(root.0, 0, 4, 0..512, WRITABLE, each);
}

/// Calls `each` for all that the kernel's half of the address space maps. What changes meanwhile is
/// found as it was or as it is.
pub fn walk_kernel(each: &mut impl FnMut(Leaf)) {
    walk_table(kernel_root().0, 0, 4, 256..512, WRITABLE, each);
}

/// `rights`: what the entries above let all pages below have.
fn walk_table(
    at: u64,
    va: usize,
    level: usize,
    part: Range<usize>,
    rights: u64,
    each: &mut impl FnMut(Leaf),
) {
    for index in part {
        let sign = if level == 4 && index >= 256 {
            !0 << 48
        } else {
            0
        };
        let va = va | sign | index << (12 + 9 * (level - 1));
        // SAFETY: a table in the direct map.
        let entry = unsafe { (&raw const (*table(at))[index]).read_volatile() };
        if entry & PRESENT == 0 {
            continue;
        }
        let rights = rights & entry;
        match level == 1 || entry & LARGE != 0 {
            true => each(Leaf {
                va,
                frame: (entry & ADDRESS) >> PAGE_SHIFT,
                frames: 1 << (9 * (level - 1)),
                is_programs: entry & USER != 0,
                is_writable: rights & WRITABLE != 0,
            }),
            false => walk_table(entry & ADDRESS, va, level - 1, 0..512, rights, each),
        }
    }
}

/// The level-1 entry for a kernel address, if its tables exist and no large page is in the way.
pub fn find(va: usize) -> Option<*mut u64> {
    let (entry, level) = walk(va);
    (level == 1).then_some(entry)
}

/// Whether the kernel can read this address: for walks through what may be broken.
pub fn is_mapped(va: usize) -> bool {
    // SAFETY: as in `walk`. Without a root the boot page tables are in force.
    kernel_root().0 == 0 || unsafe { walk(va).0.read_volatile() } & PRESENT != 0
}

/// Pages of a kernel stack.
const STACK_PAGES: usize = STACK_SIZE / PAGE_SIZE;

/// Maps a new frame at each page of a kernel stack, whose addresses are not mapped.
///
/// # Errors
/// [`OutOfMemory`], with nothing mapped.
pub fn map_stack(bottom: usize, pages: usize) -> Result<(), OutOfMemory> {
    for page in 0..pages {
        // A table that was made stays.
        make_entry(bottom + page * PAGE_SIZE)?;
    }
    let mut frames = [0; STACK_PAGES];
    let frames = &mut frames[..pages];
    if !handlers::take_stack(frames) {
        return Err(OutOfMemory);
    }
    for (page, &frame) in frames.iter().enumerate() {
        if let Some(entry) = find(bottom + page * PAGE_SIZE) {
            // SAFETY: the entry belongs to this stack, which its allocator gave to one caller.
            unsafe { entry.write_volatile(u64::from(frame) << PAGE_SHIFT | DATA) };
        }
    }
    Ok(())
}

/// The entry of a hidden page: not present. Its own inverse.
fn hidden(entry: u64) -> u64 {
    inverted(entry) ^ PRESENT
}

/// Makes a stack's addresses invalid; TLBs may still hold them until
/// [`kernel_flush::everywhere`](super::kernel_flush::everywhere). The frames stay noted for
/// [`unmap_stack`].
pub fn hide_stack(bottom: usize, pages: usize) {
    for page in 0..pages {
        if let Some(entry) = find(bottom + page * PAGE_SIZE) {
            // SAFETY: the entry belongs to this stack, which is unused.
            unsafe {
                let old = entry.read_volatile();
                if old & PRESENT != 0 {
                    entry.write_volatile(hidden(old));
                }
            };
        }
    }
}

/// Takes the frames of a stack back. No TLB holds its addresses.
pub fn unmap_stack(bottom: usize, pages: usize) {
    let mut frames = [0; STACK_PAGES];
    let mut count = 0;
    for page in 0..pages {
        let Some(entry) = find(bottom + page * PAGE_SIZE) else {
            continue;
        };
        // SAFETY: the entry belongs to this stack.
        let mut old = unsafe { entry.replace(0) };
        if old != 0 && old & PRESENT == 0 {
            old = hidden(old);
        }
        if old & ADDRESS != 0 {
            frames[count] = ((old & ADDRESS) >> PAGE_SHIFT) as u32;
            count += 1;
        }
    }
    handlers::give_stack(&frames[..count]);
}

/// As [`find`], making the tables on the way. Two CPUs may make the same one: the second frees its
/// own and uses the first one's.
///
/// # Errors
/// [`OutOfMemory`].
pub fn make_entry(va: usize) -> Result<*mut u64, OutOfMemory> {
    if let Some(entry) = find(va) {
        return Ok(entry);
    }
    let mut at = kernel_root().0;
    for level in (2..=4).rev() {
        // SAFETY: the kernel's tables are never freed; their entries are written as atomic words.
        let entry = unsafe { AtomicU64::from_ptr(&raw mut (*table(at))[slot(va, level)]) };
        let mut value = entry.load(Ordering::Acquire);
        if value & PRESENT == 0 {
            let new = handlers::take_kernel_table().ok_or(OutOfMemory)?;
            // SAFETY: a frame that nothing else uses.
            unsafe { table(new.0).write([0; 512]) };
            let wanted = new.0 | PRESENT | WRITABLE;
            // A walk on another CPU sees the zeros before the entry.
            match entry.compare_exchange(value, wanted, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => value = wanted,
                Err(others) => {
                    handlers::give_kernel_table(new);
                    value = others;
                }
            }
        }
        at = value & ADDRESS;
    }
    // SAFETY: as in `walk`.
    Ok(unsafe { &raw mut (*table(at))[slot(va, 1)] })
}

/// The root that this CPU has loaded.
pub fn current() -> PhysAddr {
    let root: u64;
    // SAFETY: reads a register.
    unsafe {
        core::arch::asm!("mov {}, cr3", out(reg) root, options(nomem, nostack, preserves_flags));
    };
    PhysAddr(root & ADDRESS)
}

/// Makes `root` this CPU's address space; drops what it held by tag 0, or without tags all
/// translations but the global ones. Interrupts are off.
#[inline]
pub(crate) fn load_space(root: PhysAddr) {
    load(root.0);
}

/// Loads a root, with its tag and whether that [keeps](KEEPS) what it holds.
#[inline]
fn load(root: u64) {
    // SAFETY: every root has the kernel's top half, so the code that runs stays mapped.
    unsafe { core::arch::asm!("mov cr3, {}", in(reg) root, options(nostack, preserves_flags)) };
    note_flush();
}

/// All translations that are not global were dropped, but for those of other tags.
#[inline]
fn note_flush() {
    if tags() == 0 {
        percpu::note_flush();
    }
}

/// Makes the address space of a program this CPU's: with this root and tag now, and with the root
/// that `user` gives while the program runs. Unless the program `is_trusted` with the branch
/// predictions that the one before has left, they are dropped. Interrupts are off.
#[inline]
pub(crate) fn load_program_space(
    root: PhysAddr,
    tag: Tag,
    user: impl FnOnce() -> PhysAddr,
    is_trusted: impl FnOnce() -> bool,
) {
    if mitigations::is_told_of_spaces() {
        let cpu = percpu::this();
        cpu.kernel_root.store(root.0, Ordering::Relaxed);
        cpu.user_root.store(user().0, Ordering::Relaxed);
        if !is_trusted() {
            mitigations::forget_predictions();
        }
    }
    load(root.0 | tag.number as u64 | if tag.keeps { KEEPS } else { 0 });
}

/// As [`load_program_space`] where both roots are loaded already: for another program of the same
/// space.
#[inline]
pub(crate) fn stay_in_space(is_trusted: impl FnOnce() -> bool) {
    if mitigations::is_told_of_spaces() && !is_trusted() {
        mitigations::forget_predictions();
    }
}

/// Drops this CPU's translation of one page of the current address space.
#[inline]
pub(crate) fn invalidate_page(at: VirtAddr) {
    // SAFETY: forgetting a translation is always right.
    unsafe { core::arch::asm!("invlpg [{}]", in(reg) at.0, options(nostack, preserves_flags)) };
}

/// Drops this CPU's translations of the current address space, all but the global ones.
#[inline]
pub(crate) fn invalidate_all() {
    let irqs = irqs_disable();
    // SAFETY: reloads what is loaded.
    unsafe {
        core::arch::asm!("mov {0}, cr3", "mov cr3, {0}", out(reg) _,
            options(nostack, preserves_flags));
    }
    note_flush();
    irqs_restore(irqs);
}
