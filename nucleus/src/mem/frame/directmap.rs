//! Which frames have a place in the direct map.
//!
//! With `directmap=all`, every one. With `directmap=kernel`, those that are, or were last, the
//! kernel's own: heap, page tables, stacks, what it shares with devices. Pages of programs and
//! files stand *outside*: no page table of the kernel leads to them, but while it touches one
//! ([`reach`](super::reach), [`ephemeral`](crate::ephemeral)). With `directmap=SIZE`, the first so
//! many bytes of memory, whatever stands there; programs and files get the others first, and what
//! is in reserve for the kernel is in reserve there.
//!
//! # How a frame changes its place (`directmap=kernel`)
//!
//! Free frames wait in lists of their own for each place, so most allocations change nothing. Where
//! the list that is wanted is empty, blocks of the other one are moved:
//!
//! - *into* the direct map in any context, in no more than what is wanted: an entry that was not
//!   there is in no TLB, so it costs no flush;
//! - *outside* in blocks as large as there are, 2 MiB at most, by one flush of all CPUs. It is
//!   waited for, so that no CPU reaches a program's page by what its TLB holds; where an allocation
//!   can't wait, it takes what the lists have.
//!
//! The alternatives are worse: to change the place with each allocation takes a flush each, and
//! zones of fixed size waste what one of them has too much of.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::buddy::{self, Depth};
use super::record::{Type, record};
use crate::VirtAddr;
use crate::counters::Counter;
use crate::cpu::percpu::Pinned;
use crate::hw::DirectMap;
use crate::hw::{handlers, machine};
use crate::lock::{Rank, SpinLock};

/// Where a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// In the direct map.
    Direct = 0,
    /// In no mapping of the kernel.
    Outside = 1,
    /// In the direct map, set aside for page tables and flagged `cached`: out of the devices'
    /// reach.
    Tables = 2,
}

pub(super) const PLACES: usize = 3;

impl Place {
    #[inline]
    pub(super) fn of(index: u32) -> Place {
        match record(index).is_cached() {
            true => Place::Tables,
            false => Place::of_data(index),
        }
    }

    /// Where a frame is that is not set aside for page tables.
    #[inline]
    pub(super) fn of_data(index: u32) -> Place {
        match is_direct(index) {
            true => Place::Direct,
            false => Place::Outside,
        }
    }
}

static MODE: AtomicU32 = AtomicU32::new(ALL);
const ALL: u32 = 0;
/// Anything between: the first so many MiB.
const KERNEL: u32 = u32::MAX;

/// Returns which frames are in the direct map.
pub fn direct_map() -> DirectMap {
    match MODE.load(Ordering::Relaxed) {
        ALL => DirectMap::All,
        KERNEL => DirectMap::Kernel,
        mib => DirectMap::First(mib),
    }
}

/// Sets which frames are in the direct map. Before [`init`](super::init).
pub(crate) fn set_direct_map(mode: DirectMap) {
    let mode = match mode {
        DirectMap::All => ALL,
        DirectMap::Kernel => KERNEL,
        DirectMap::First(mib) => mib.clamp(1, KERNEL - 1),
    };
    MODE.store(mode, Ordering::Relaxed);
    HIDING.store(false, Ordering::Relaxed);
}

/// Whether a frame has a place in the direct map, where its [`bytes`](super::record::bytes) are.
#[inline]
pub(super) fn is_direct(index: u32) -> bool {
    MODE.load(Ordering::Relaxed) == ALL || record(index).is_direct()
}

/// What `f` gives, where there are frames of both places.
#[inline]
pub(super) fn if_mixed<T>(f: impl FnOnce() -> T) -> Option<T> {
    (MODE.load(Ordering::Relaxed) != ALL).then(f)
}

/// Where frames for this use are looked for first.
#[inline]
pub(super) fn first_place(depth: Depth) -> Place {
    match depth == Depth::Data && MODE.load(Ordering::Relaxed) != ALL {
        true => Place::Outside,
        false => Place::Direct,
    }
}

/// Where frames for this use are looked for, in order.
pub(super) fn places(depth: Depth) -> &'static [Place] {
    match (depth, MODE.load(Ordering::Relaxed)) {
        (Depth::Data, KERNEL) => &[Place::Outside],
        (Depth::Data, mib) if mib != ALL => &[Place::Outside, Place::Direct],
        _ => &[Place::Direct],
    }
}

/// Whether the direct map has so many MiB for good: then what is free outside of it is nothing to
/// the kernel's own.
#[inline]
pub(super) fn is_fixed() -> bool {
    !matches!(MODE.load(Ordering::Relaxed), ALL | KERNEL)
}

/// Whether frames may be brought into the direct map for this use.
#[inline]
pub(super) fn may_show(depth: Depth) -> bool {
    depth != Depth::Data && MODE.load(Ordering::Relaxed) == KERNEL
}

/// Held while the direct map's tables are changed.
static CHANGING: SpinLock<()> = SpinLock::new(Rank::DirectMap, ());

/// Brings a block into the direct map that is in no list. [buddy lock]
pub(super) fn show(index: u32, order: usize) {
    let frames = index..index + (1 << order);
    {
        let _changing = CHANGING.lock_irq();
        machine::direct_show(frames.clone());
    }
    frames.for_each(|index| record(index).set_direct(true));
    Counter::direct_map_shown.add(1 << order);
}

/// The largest block that is moved at once: what one entry of the direct map's tables maps.
const LARGEST: usize = 9;
/// Blocks that one flush is for.
const BLOCKS: usize = 32;

/// A CPU moves blocks outside, which are in no list meanwhile. It is pinned, so others may spin.
static HIDING: AtomicBool = AtomicBool::new(false);

/// Moves free frames out of the direct map, if there are none outside for programs, programs may
/// have any at all, and the caller may wait for other CPUs; returns whether there may be some now.
#[cold]
pub(super) fn hide() -> bool {
    let is_kernels = buddy::available() <= buddy::reserved(Depth::Data);
    if MODE.load(Ordering::Relaxed) != KERNEL || is_kernels || !may_wait() {
        return false;
    }
    let _pinned = Pinned::new();
    let before = buddy::outside();
    while HIDING.swap(true, Ordering::Acquire) {
        machine::spin_hint();
    }
    // Another CPU has just done it.
    let any = buddy::outside() > before || hide_some();
    HIDING.store(false, Ordering::Release);
    any
}

/// Waits for frames on their way out of the direct map, from where the kernel's own may have them
/// back, if the caller may wait for other CPUs; returns whether there were any.
#[cold]
pub(super) fn await_moved() -> bool {
    let any = HIDING.load(Ordering::Acquire) && may_wait();
    while any && HIDING.load(Ordering::Acquire) {
        machine::spin_hint();
    }
    any
}

fn hide_some() -> bool {
    let mut blocks = [(0, 0); BLOCKS];
    let count = buddy::take_direct(&mut blocks, LARGEST);
    let blocks = &blocks[..count];
    for &(index, order) in blocks {
        let _changing = CHANGING.lock_irq();
        machine::direct_hide(index..index + (1 << order));
    }
    if count > 0 {
        flush();
    }
    for &(index, order) in blocks {
        for index in index..index + (1 << order) {
            record(index).set_direct(false);
        }
        buddy::give_moved(index, order);
        Counter::direct_map_hidden.add(1 << order);
    }
    count > 0
}

/// Sets or clears the flag `cached` of frames, which become page tables or were some, and takes the
/// right to write them in the direct map away, or gives it back: page tables are written elsewhere.
/// The caller owns them alone. Ephemeral mappings that were kept for them end before.
pub(super) fn flag_tables(frames: core::ops::Range<u32>, cached: bool) {
    if cached {
        handlers::end_mappings(frames.clone());
    }
    // Together, for those who compare the two.
    let _changing = machine::is_guarded().then(|| CHANGING.lock_irq());
    if machine::is_guarded() {
        machine::guard(frames.clone(), cached);
    }
    frames.for_each(|frame| record(frame).set_cached(cached));
}

/// Whether the kernel may write a frame at an address though it is guarded.
pub(crate) fn is_exposed(frame: u32, at: VirtAddr) -> bool {
    let _changing = CHANGING.lock_irq();
    record(frame).is_cached() && machine::lets_write(at, frame.into())
}

/// Moves a frame out of the direct map that becomes a page of a file with the bytes that it has:
/// the kernel's page tables don't lead to it from now on, but TLBs may until
/// [`flush_adopted`].
pub(super) fn hide_adopted(index: u32) {
    debug_assert_eq!(record(index).kind(), Type::Kernel);
    if MODE.load(Ordering::Relaxed) == KERNEL {
        let _changing = CHANGING.lock_irq();
        machine::direct_hide(index..index + 1);
        record(index).set_direct(false);
        Counter::direct_map_hidden.add(1);
    }
}

/// Makes all CPUs forget where adopted frames were in the direct map. The caller may wait.
pub(crate) fn flush_adopted() {
    if MODE.load(Ordering::Relaxed) == KERNEL {
        flush();
    }
}

/// Makes all CPUs forget where frames were in the direct map. The caller may wait for them.
fn flush() {
    machine::flush_kernel();
    Counter::direct_map_flushes.add(1);
}

/// The order of the largest block at `index` whose frames have the same place, up to `most`.
#[inline]
pub(super) fn order_in_place(index: u32, most: usize) -> usize {
    let mixed = || {
        let place = Place::of(index);
        let frames = (index..index + (1 << most)).take_while(|&it| Place::of(it) == place);
        frames.count().ilog2() as usize
    };
    if_mixed(mixed).unwrap_or(most)
}

/// The frame at which the direct map of free frames ends at the start.
pub(super) fn end() -> u64 {
    match direct_map() {
        DirectMap::All | DirectMap::Kernel => u64::MAX,
        DirectMap::First(mib) => u64::from(mib) << (20 - crate::PAGE_SHIFT),
    }
}

/// Whether a free frame has a place in the direct map at the start.
pub(super) fn starts_direct(index: u32) -> bool {
    u64::from(index) < end()
}

/// Whether the caller may wait for other CPUs.
pub(super) fn may_wait() -> bool {
    machine::irqs_enabled() && machine::preempt_count() == 0
}
