//! Physical memory in frames of [`PAGE_SIZE`](crate::PAGE_SIZE) bytes.
//!
//! The machine's memory at the start (`setup`), one 32-byte record per frame (`record`), a buddy
//! allocator (`buddy`) with per-CPU caches (`cache`) and page tables kept ready (`table_cache`),
//! what devices may reach (`device_reach`), counts of a frame's users (`counts`) and of devices'
//! page tables (`held`), handles given up together (`bundle`), owners of frames (`owned`), what
//! CPUs keep for the heap (`heap_frames`), runs of frames for large pages (`run`), blocks that are
//! one buffer (`block`), targets for what is to be free (`targets`), shortage on purpose for tests
//! (`injection`). A frame has a type (`Writable`, page table of level 1 to 4, `Descriptor`), a
//! type count, an existence count and one `cached` flag (`iosup.txt` 2.2, 6.1).

mod block;
mod buddy;
mod bundle;
mod cache;
mod counts;
mod device_reach;
mod directmap;
mod heap_frames;
mod held;
mod injection;
mod owned;
mod reach;
pub(crate) mod record;
mod run;
mod setup;
mod table_cache;
mod targets;
#[cfg(all(test, not(target_os = "none")))]
mod tests;

use core::sync::atomic::{AtomicUsize, Ordering, fence};

pub use crate::hw::DirectMap;
pub use block::LARGEST_BLOCK;
pub(crate) use buddy::{Depth, MAX_ORDER};
pub use buddy::{available, only_outside};
pub use bundle::Bundle;
pub(crate) use counts::{add_handles, subtract_handles};
use counts::{check_last, is_last_handle};
use device_reach::{Cause, run};
pub use directmap::direct_map;
pub(crate) use directmap::{flush_adopted, is_exposed, set_direct_map};
pub(crate) use held::{hold, is_held_data, release as release_held};
use injection::fails;
#[cfg(not(target_os = "none"))]
pub use injection::{fail_after, fail_once, failed, seem_scarce_after, seem_scarce_once};
pub use injection::{fail_each, fails_each, refuse_blocks, refuses_blocks};
pub use owned::Owned;
use reach::with_bytes;
pub(crate) use reach::{
    RING_SLOTS, map_pinned, map_pinned_run, start_rings, unmap_pinned, unmap_pinned_run,
};
use record::{Type, address, bytes, record, table_bytes};
pub use run::{RUN_FRAMES, Run};
#[cfg(any(target_os = "none", test))]
pub(crate) use setup::records_reach;
#[cfg(target_os = "none")]
pub(crate) use setup::set_descriptor;
pub(crate) use setup::{adopt, adopt_persistent, init, release};
pub use table_cache::{
    PERIOD as TABLE_PERIOD, Policy as TablePolicy, TableUsage, Thresholds as TableThresholds,
    age_tables, drain as drain_tables, frames_aside, has_unneeded_tables, keep_tables,
    keeps_tables, policy as table_policy, set_policy as set_table_policy, table_usage,
};
pub(crate) use table_cache::{Table, give_table, take_table};
pub use targets::{Targets, targets};

use crate::counters::Counter;
use crate::hw::{handlers, machine};
use crate::mem::mistake::Mistake;
use crate::{OutOfMemory, PAGE_SIZE};

/// What the bytes of a new frame are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contents {
    /// All zero.
    Zeroed,
    /// Whatever the last owner left; the caller overwrites all of it before a program can see it.
    Stale,
}

/// A counted handle to a data frame. Cloning adds to the frame's existence count; dropping the
/// last handle frees the frame. A mapping in a [`Pmap`](crate::Pmap) holds a handle of its own,
/// and gives it up only through a [`Pending`](crate::pmap::Pending) set, so a frame is never free
/// while a TLB can still reach it.
pub struct Frame {
    index: u32,
}

impl Frame {
    /// Takes a frame from this CPU's cache or the buddy allocator.
    ///
    /// # Errors
    /// [`OutOfMemory`] when only the kernel's own reserve is left.
    #[inline]
    pub fn alloc(contents: Contents) -> Result<Frame, OutOfMemory> {
        Frame::alloc_at(Depth::Data, contents)
    }

    /// As [`alloc`](Frame::alloc), for what the kernel and a device, or the kernel and all
    /// programs, share for long: the frame is in the direct map, so [`bytes`](Frame::bytes)
    /// reaches it.
    ///
    /// # Errors
    /// As [`alloc`](Frame::alloc).
    pub(crate) fn alloc_direct(contents: Contents) -> Result<Frame, OutOfMemory> {
        Frame::alloc_at(Depth::Table, contents)
    }

    #[inline(always)]
    fn alloc_at(depth: Depth, contents: Contents) -> Result<Frame, OutOfMemory> {
        let index = take(depth).ok_or(OutOfMemory)?;
        record(index).set_kind(Type::Free, Type::Writable);
        counts::start(index);
        if contents == Contents::Zeroed {
            zero(index);
            Counter::pages_zeroed.add(1);
        }
        Ok(Frame { index })
    }

    /// Takes a frame of zeros that is a page of a disk's medium.
    ///
    /// # Errors
    /// As [`alloc`](Frame::alloc).
    pub fn alloc_of_medium() -> Result<Frame, OutOfMemory> {
        let frame = Frame::alloc(Contents::Zeroed)?;
        record(frame.index).set_of_medium();
        Ok(frame)
    }

    /// Whether the frame is a page of a disk's medium. A write of the disk changes it, so it is
    /// copied, not lent; and its block is not reused as long as there is a handle.
    pub fn is_of_medium(&self) -> bool {
        record(self.index).is_of_medium()
    }

    /// The physical frame number.
    pub fn number(&self) -> u64 {
        self.index as u64
    }

    /// Handles to this frame, mappings included. Stable at 1 only if the caller holds the only one.
    pub fn handles(&self) -> u64 {
        counts::handles(self.counts())
    }

    /// How many mappings the frame has in all pmaps.
    pub fn mappings(&self) -> u32 {
        record(self.index).mappings()
    }

    /// The frame's number among the managed ones, which is also its record's.
    #[inline]
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// A handle that was counted elsewhere: by a mapping, or by [`Frame::into_index`].
    ///
    /// The caller gives up the handle that it has in another form.
    #[inline]
    pub(crate) fn from_index(index: u32) -> Frame {
        debug_assert_eq!(record(index).kind(), Type::Writable);
        debug_assert!(record(index).counts().load(Ordering::Relaxed).cast_signed() >= 0);
        Frame { index }
    }

    /// The handle in another form.
    #[inline]
    pub(crate) fn into_index(self) -> u32 {
        let index = self.index;
        core::mem::forget(self);
        index
    }

    /// Whether the frame is in the direct map.
    #[inline]
    pub(crate) fn is_direct(&self) -> bool {
        directmap::is_direct(self.index)
    }

    /// Where the kernel reaches the bytes of a frame that is in the direct map.
    #[inline]
    pub(crate) fn bytes(&self) -> *mut u8 {
        bytes(self.index)
    }

    /// Calls `f` with the frame's bytes, which are there until it returns. It must not sleep.
    pub(crate) fn with_bytes<R>(&self, f: impl FnOnce(*mut u8) -> R) -> R {
        with_bytes(self.index, f)
    }
}

impl Clone for Frame {
    #[inline]
    fn clone(&self) -> Frame {
        machine::point();
        add_handles(self.index, 1);
        Frame { index: self.index }
    }
}

impl AsRef<Frame> for Frame {
    fn as_ref(&self) -> &Frame {
        self
    }
}

impl From<&Frame> for Frame {
    #[inline]
    fn from(frame: &Frame) -> Frame {
        frame.clone()
    }
}

impl Drop for Frame {
    #[inline]
    fn drop(&mut self) {
        give_up(self.index);
    }
}

/// Gives up a handle of the frame.
#[inline(always)]
fn give_up(index: u32) {
    machine::point();
    if is_last_handle(index) {
        end_use(index);
    }
}

/// The last handle was given up. Out of line, so that drops of other handles are in line.
#[inline(never)]
fn end_use(index: u32) {
    fence(Ordering::Acquire);
    let is_ignored = Mistake::HeldBlockFreed.is_made() && record(index).order() > 0;
    if !held::is_held(index) || is_ignored {
        free(index);
    }
}

/// Frees a frame or block that has no handle, and that no device holds.
fn free(index: u32) {
    let order = record(index).order();
    if order > 0 {
        return block::free(index, order);
    }
    make_free(index);
    cache::give(index);
}

impl PartialEq for Frame {
    fn eq(&self, other: &Frame) -> bool {
        self.index == other.index
    }
}

impl Eq for Frame {}

impl core::fmt::Debug for Frame {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "frame {:#x}", self.index)
    }
}

/// A data frame without a handle becomes a free one, which the caller puts to the others.
#[inline]
fn make_free(index: u32) {
    check_last(index);
    machine::frame_freed(address(index));
    record(index).set_kind(Type::Writable, Type::Free);
    junk(index);
}

/// What freed frames are filled with in builds with assertions, so that a use after the free shows.
const JUNK: u8 = 0xdb;
/// In a free frame's record: the frame was filled, unlike those never used since the start.
const JUNKED: u32 = 0xdbdb_dbdb;

/// Fills a free frame with junk in builds with assertions.
#[inline]
fn junk(index: u32) {
    if cfg!(debug_assertions) {
        // SAFETY: the frame is free: nothing else reads or writes it.
        let fill = |to| unsafe { core::ptr::write_bytes(to, JUNK, PAGE_SIZE) };
        match record(index).is_cached() {
            true => fill(table_bytes(index)),
            false => with_bytes(index, fill),
        }
        record(index).in_use.store(JUNKED, Ordering::Relaxed);
    }
}

/// Checks in builds with assertions that no frame was written while it was free.
#[inline]
fn check_junk(index: u32) {
    if cfg!(debug_assertions) && record(index).in_use.load(Ordering::Relaxed) == JUNKED {
        let is_junk = with_bytes(index, |page| {
            // SAFETY: the frame was taken from the free ones and belongs to the caller.
            let page = unsafe { core::slice::from_raw_parts(page, PAGE_SIZE) };
            let mut ends = page[..64].iter().chain(&page[PAGE_SIZE - 64..]);
            ends.all(|&byte| byte == JUNK)
        });
        assert!(is_junk, "frame {index:#x} was written while it was free");
    }
}

/// Zeroes a frame that the caller owns alone.
#[inline]
fn zero(index: u32) {
    // SAFETY: the caller has just taken the frame from the free ones: nothing else uses it.
    with_bytes(index, |to| unsafe {
        core::ptr::write_bytes(to, 0, PAGE_SIZE)
    });
}

/// Whether the first `words` words of a page table that the caller owns alone are zero.
fn is_zero(index: u32, words: usize) -> bool {
    // SAFETY: the caller owns the frame; a word is aligned in it.
    let words = unsafe { core::slice::from_raw_parts(table_bytes(index).cast::<u64>(), words) };
    words.iter().all(|&word| word == 0)
}

/// Takes a frame for a page table of the kernel itself. Its bytes are stale.
#[cfg(target_os = "none")]
pub(crate) fn take_kernel_table() -> Option<u32> {
    let index = table_cache::take_kernels()?;
    KERNEL.fetch_add(1, Ordering::Relaxed);
    Some(index)
}

/// Gives one back that was never used.
#[cfg(target_os = "none")]
pub(crate) fn give_kernel_table(index: u32) {
    KERNEL.fetch_sub(1, Ordering::Relaxed);
    table_cache::give_kernels(index);
}

/// Takes one frame; the caller gives it a type.
#[inline]
fn take(depth: Depth) -> Option<u32> {
    if fails() {
        return None;
    }
    let attempt = || cache::take(depth);
    let index = attempt().or_else(|| retry(depth, attempt))?;
    check_junk(index);
    Some(index)
}

/// A second attempt, after free frames were moved to where they are wanted, and a third one, after
/// what is kept ready was given up.
#[cold]
fn retry(depth: Depth, take: impl Fn() -> Option<u32>) -> Option<u32> {
    // What was moved may be gone again: others wanted it, too.
    let moved = || {
        while match depth {
            Depth::Data => directmap::hide(),
            _ => directmap::await_moved(),
        } {
            if let Some(index) = take() {
                return Some(index);
            }
        }
        None
    };
    moved().or_else(|| drain().then(|| take().or_else(moved))?)
}

/// Gives up what this CPU, the pools and devices' requests that are done keep; returns whether that
/// was anything.
#[cold]
fn drain() -> bool {
    let is_stale = directmap::may_wait() && handlers::free_stale();
    // The frames of the heap go to those that the CPU keeps.
    is_stale | table_cache::drain() | heap_frames::drain() | cache::drain()
}

/// Frames in heap blocks, and in blocks of the kernel's own.
static HEAP: AtomicUsize = AtomicUsize::new(0);
static KERNEL: AtomicUsize = AtomicUsize::new(0);
static TOTAL: AtomicUsize = AtomicUsize::new(0);

/// Takes a frame for the kernel itself: `kind` is `Heap` or `Kernel` (stacks). The bytes are stale.
/// The simulated machine's kernel has its heap and stacks from the host, so there only tests call
/// this.
#[cfg_attr(not(any(target_os = "none", test)), allow(dead_code))]
pub(crate) fn take_own(kind: Type) -> Result<u32, OutOfMemory> {
    take_own_to(
        match kind {
            Type::Heap => Depth::Heap,
            _ => Depth::Table,
        },
        kind,
    )
}

/// Takes one of the frames of a heap block of several, which may not use the reserve up.
#[cfg_attr(not(target_os = "none"), allow(dead_code))]
pub(crate) fn take_of_block() -> Result<u32, OutOfMemory> {
    take_own_to(Depth::Block, Type::Heap)
}

/// Takes frames for a stack of the kernel, all or none, out of the devices' reach in one batch. The
/// bytes are stale.
#[cfg_attr(not(any(target_os = "none", test)), allow(dead_code))]
pub(crate) fn take_stack(to: &mut [u32]) -> Result<(), OutOfMemory> {
    let attempt = || cache::take(Depth::Table);
    let take = || {
        if fails() {
            return None;
        }
        attempt().or_else(|| retry(Depth::Table, attempt))
    };
    for i in 0..to.len() {
        let Some(index) = take() else {
            to[..i].iter().for_each(|&index| cache::give(index));
            return Err(OutOfMemory);
        };
        to[i] = index;
    }
    device_reach::withdraw(to.iter().map(|&it| it..it + 1), Cause::Stacks);
    for &index in &*to {
        check_junk(index);
        record(index).set_kind(Type::Free, Type::Kernel);
    }
    KERNEL.fetch_add(to.len(), Ordering::Relaxed);
    Ok(())
}

/// Gives the frames of a stack back, in one batch.
#[cfg_attr(not(any(target_os = "none", test)), allow(dead_code))]
pub(crate) fn give_stack(frames: &[u32]) {
    for &index in frames {
        machine::frame_freed(address(index));
        record(index).set_kind(Type::Kernel, Type::Free);
        junk(index);
    }
    device_reach::restore(frames.iter().map(|&it| it..it + 1), Cause::Stacks);
    KERNEL.fetch_sub(frames.len(), Ordering::Relaxed);
    frames.iter().for_each(|&index| cache::give(index));
}

/// Whether there are frames for such a block.
#[cfg_attr(not(target_os = "none"), allow(dead_code))]
pub(crate) fn has_block(frames: usize) -> bool {
    buddy::available_to_kernel() >= buddy::reserved(Depth::Block) + frames
}

fn take_own_to(depth: Depth, kind: Type) -> Result<u32, OutOfMemory> {
    if kind != Type::Heap && fails() {
        return Err(OutOfMemory);
    }
    if depth == Depth::Heap
        && let Some(index) = heap_frames::take()
    {
        return Ok(index);
    }
    let attempt = || cache::take(depth);
    let index = attempt()
        .or_else(|| retry(depth, attempt))
        .ok_or(OutOfMemory)?;
    check_junk(index);
    device_reach::withdraw(run(index..index + 1), Cause::of(kind));
    record(index).set_kind(Type::Free, kind);
    owner_count(kind).fetch_add(1, Ordering::Relaxed);
    Ok(index)
}

/// Takes 2^`order` frames in a row, aligned to their size, for the heap, which can do without:
/// nothing kept ready is given up for them. The bytes are stale.
#[cfg_attr(not(any(target_os = "none", test)), allow(dead_code))]
pub(crate) fn take_neighbours(order: usize) -> Option<u32> {
    if refuses_blocks() || order > MAX_ORDER {
        return None;
    }
    let index = buddy::take(order, Depth::Block)?;
    device_reach::withdraw(run(index..index + (1 << order)), Cause::Heap);
    for i in index..index + (1 << order) {
        check_junk(i);
        record(i).set_kind(Type::Free, Type::Heap);
    }
    HEAP.fetch_add(1 << order, Ordering::Relaxed);
    Some(index)
}

/// Whether an allocation of several frames for the heap is to fail on purpose.
#[cfg_attr(not(any(target_os = "none", test)), allow(dead_code))]
pub(crate) fn large_fails() -> bool {
    cfg!(target_os = "none") && fails()
}

/// Gives such frames back: neighbours, of one or several allocations.
pub(crate) fn give_run(frames: core::ops::Range<u32>, kind: Type) {
    if kind == Type::Heap && frames.len() == 1 && heap_frames::give(frames.start) {
        return;
    }
    for i in frames.clone() {
        machine::frame_freed(address(i));
        record(i).set_kind(kind, Type::Free);
        junk(i);
    }
    device_reach::restore(run(frames.clone()), Cause::of(kind));
    owner_count(kind).fetch_sub(frames.len(), Ordering::Relaxed);
    if frames.len() == 1 {
        cache::give(frames.start);
    } else {
        buddy::give_run(frames);
    }
}

fn owner_count(kind: Type) -> &'static AtomicUsize {
    match kind {
        Type::Heap => &HEAP,
        _ => &KERNEL,
    }
}

/// Where the machine's memory is, in frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// All frames that the firmware reported as usable.
    pub total: usize,
    /// Free, per-CPU caches and page tables kept ready included.
    pub free: usize,
    /// Held by [`Frame`] handles.
    pub data: usize,
    /// Page tables in use, with their reverse links.
    pub page_tables: usize,
    /// Kernel heap.
    pub heap: usize,
    /// Kernel image, frame records, stacks, everything else.
    pub kernel: usize,
}

/// Has the tree of open frames follow those that leave or return, from now on or no longer.
pub(crate) fn watch_reach(is_watched: bool) {
    device_reach::watch(is_watched);
    heap_frames::keep(is_watched, record::managed().len());
}

/// Shares out the frames that CPUs keep, once all run.
#[cfg(target_os = "none")]
pub(crate) fn set_shares() {
    let managed = record::managed().len();
    cache::set_shares(managed);
    heap_frames::set_shares(managed);
}

/// All frames that the firmware reported as usable.
pub fn total() -> usize {
    TOTAL.load(Ordering::Relaxed)
}

/// A snapshot; exact when nothing else runs.
pub fn usage() -> Usage {
    let total = TOTAL.load(Ordering::Relaxed);
    let kept_for_heap = heap_frames::kept();
    let free = available() + cache::kept() + table_cache::kept() + kept_for_heap;
    let page_tables = table_cache::in_use();
    let heap = HEAP.load(Ordering::Relaxed).saturating_sub(kept_for_heap);
    let kernel = KERNEL.load(Ordering::Relaxed);
    Usage {
        total,
        free,
        data: total.saturating_sub(free + page_tables + heap + kernel),
        page_tables,
        heap,
        kernel,
    }
}

/// Whether so little memory is left that work which would need more kernel heap must be refused
/// with `ENOMEM` now, while the reserve still lets everything in progress finish. Three loads.
pub fn is_scarce() -> bool {
    if injection::seems_scarce() {
        return true;
    }
    buddy::available_to_kernel() < buddy::scarce_below()
}

/// Refuses with an error when memory [is scarce](is_scarce).
///
/// # Errors
/// Memory is scarce.
#[inline]
pub fn check_not_scarce() -> Result<(), OutOfMemory> {
    match is_scarce() {
        true => Err(OutOfMemory),
        false => Ok(()),
    }
}

/// Gives up what this CPU and the pools keep; returns whether that was anything.
#[cfg(all(test, not(target_os = "none")))]
pub(crate) fn drain_for_test() -> bool {
    drain()
}

/// Takes every other free frame, so that none is left beside another; the result gives them back.
#[cfg(all(test, not(target_os = "none")))]
pub(crate) fn leave_single_frames() -> impl FnOnce() {
    while drain() {}
    let all = core::iter::from_fn(|| buddy::take(0, Depth::Heap));
    let mut all: alloc::vec::Vec<u32> = all.collect();
    all.sort_unstable();
    let (held, left): (alloc::vec::Vec<_>, _) = all.into_iter().partition(|index| index % 2 == 0);
    buddy::give_batch(left.into_iter());
    assert_eq!(buddy::take(1, Depth::Heap), None);
    move || buddy::give_batch(held.into_iter())
}
