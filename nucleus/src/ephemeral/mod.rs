//! Ephemeral mappings (`ephemeral-mappings.txt` 4): a kernel mapping of a frame for a short time.
//!
//! The only way for the floors above to touch the bytes of a frame. A program may write the same
//! bytes at the same time, so a mapping gives no slices: it copies, fills and compares.
//!
//! The paper's four functions are [`alloc`] (`sf_buf_alloc`), the end of a [`Mapping`]
//! (`sf_buf_free`), which its type brings about, [`Mapping::address`] (`sf_buf_kva`) and
//! [`Mapping::frame`] (`sf_buf_page`). A mapping is *private*: to one CPU, to which its task is
//! pinned while it lives, so no task sleeps or moves with one, and an address never outlives its
//! mapping. The paper's default, a mapping that any CPU uses and that may live long, is a
//! [`Shared`] one.
//!
//! Several pages at consecutive addresses are a [`MappedRun`].
//!
//! Where a mapping comes from is the business of a backend:
//!
//! - `direct`, the amd64 one: every frame in the direct map has a permanent mapping, and a mapping
//!   is an addition. Frames [outside](crate::frame::DirectMap) of it come from the window (the
//!   paper's hybrid, 4.4).
//! - [`window`], the i386 one: a cache of mappings, for all frames.
//! - `uncached`, what kernels did before, for comparison: an address is allocated for each mapping,
//!   and every CPU told when it ends.

pub mod audit;
mod direct;
mod run;
mod shared;
#[cfg(all(test, not(target_os = "none")))]
mod tests;
mod uncached;
pub mod window;

use bitflags::bitflags;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::counters::Counter;
use crate::frame::record::{NONE, address};
use crate::frame::{self, DirectMap, RING_SLOTS};
use crate::hw::machine;
use crate::task::{self, Sleep, WaitQueue};
use crate::{Frame, PAGE_SIZE, Unchanged};
pub use run::{LONGEST_RUN, MappedRun, alloc_run, map_run};
pub use shared::Shared;

bitflags! {
    /// `ephemeral-mappings.txt` 4.1. The paper's "private" is the difference between [`Mapping`]
    /// and [`Shared`].
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Flags: u8 {
        /// Fail rather than sleep when no mapping is free.
        const NO_WAIT = 1;
        /// A signal may end the sleep. Without effect beside `NO_WAIT`.
        const INTERRUPTIBLE = 2;
    }
}

/// Why there is no mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unavailable {
    /// `NO_WAIT` was given and none is free.
    WouldSleep,
    /// `INTERRUPTIBLE` was given and a signal came.
    Interrupted,
}

/// A mapping in use, private to the CPU that the task is pinned to while it lives; dropping it
/// frees it. (In a release build, a mapping in the direct map pins no task.)
pub struct Mapping<'a> {
    frame: &'a Frame,
    address: *mut u8,
    /// The address's number in the window, [`NONE`] for the direct map; with [`LENT`], the mapping
    /// is a [`Shared`] one's.
    slot: u32,
}

/// See [`Mapping::slot`].
const LENT: u32 = 1 << 31;

/// Where mappings come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Backend {
    /// The direct map, and the window for frames that are not there.
    #[default]
    Direct,
    /// The window.
    Window,
    /// An address allocated for each mapping, and told to every CPU when it ends.
    Uncached,
}

/// The backend, or [`PLAIN`].
static BACKEND: AtomicU8 = AtomicU8::new(PLAIN);
/// The direct backend, with all frames in the direct map: the usual machine.
const PLAIN: u8 = 0;
const DIRECT: u8 = 1;
const WINDOW: u8 = 2;
const UNCACHED: u8 = 3;

/// See [`is_unkept`].
static UNKEPT: AtomicBool = AtomicBool::new(false);

/// Makes mappings by this backend from now on; those that there are stay as they are.
///
/// # Errors
/// [`Unchanged::OutOfMemory`] if there is none for its page tables and bookkeeping.
pub fn set_backend(backend: Backend) -> Result<(), Unchanged> {
    let is_plain = backend == Backend::Direct && frame::direct_map() == DirectMap::All;
    // For runs, where nothing else needs the rings.
    frame::start_rings(machine::cpu_count())?;
    if !is_plain {
        window::start()?;
    }
    let number = match backend {
        Backend::Direct if is_plain => PLAIN,
        Backend::Direct => DIRECT,
        Backend::Window => WINDOW,
        Backend::Uncached => {
            uncached::start()?;
            UNCACHED
        }
    };
    BACKEND.store(number, Ordering::Relaxed);
    note_unkept();
    Ok(())
}

/// Returns the backend of new mappings.
pub fn backend() -> Backend {
    match BACKEND.load(Ordering::Relaxed) {
        WINDOW => Backend::Window,
        UNCACHED => Backend::Uncached,
        _ => Backend::Direct,
    }
}

/// Forgets an earlier machine.
///
/// # Safety
/// The machine has one CPU and no task yet.
#[cfg(not(target_os = "none"))]
pub(crate) unsafe fn init() {
    // SAFETY: the caller's promise.
    unsafe {
        uncached::reset();
        window::reset();
    }
    crate::mem::mistake::reset();
    BACKEND.store(PLAIN, Ordering::Relaxed);
    SCARCE.store(false, Ordering::Relaxed);
    note_unkept();
    if frame::direct_map() != DirectMap::All {
        set_backend(Backend::Direct).expect("memory for the window");
    }
}

/// Whether a mapping of the frame is its place in the direct map.
#[inline]
pub(crate) fn is_direct(frame: &Frame) -> bool {
    let backend = BACKEND.load(Ordering::Relaxed);
    if backend == PLAIN {
        return true;
    }
    unusual();
    backend == DIRECT && frame.is_direct() || frame.is_block()
}

/// Marks a path that a machine with a whole direct map does not take, so that its own is short.
#[cold]
fn unusual() {}

/// Whether the caller may sleep for a mapping. Where it may not, it gets an address of its CPU's
/// own, of which there always is one.
fn may_sleep() -> bool {
    machine::irqs_enabled() && machine::preempt_count() == 0 && task::has_current()
}

/// Whether a caller that may not sleep may look through the cache: where it is pinned, as it is
/// while it has another mapping, but not in an interrupt.
fn may_look() -> bool {
    machine::irqs_enabled() && task::has_current()
}

/// Maps `frame`, for the calling task on its CPU. Sleeps if no mapping is free and `flags` don't
/// say otherwise, but where the caller may not sleep: there it always succeeds.
///
/// # Errors
/// See [`Unavailable`]; only with the flags named there.
#[inline]
pub fn alloc(frame: &Frame, flags: Flags) -> Result<Mapping<'_>, Unavailable> {
    if is_direct(frame) {
        return Ok(direct::alloc(frame));
    }
    alloc_elsewhere(frame, flags)
}

/// Out of line, so that the direct map's path is short.
#[inline(never)]
fn alloc_elsewhere(frame: &Frame, flags: Flags) -> Result<Mapping<'_>, Unavailable> {
    if is_unkept() {
        return Ok(alloc_pinned(frame));
    }
    let [mapping] = alloc_each([frame], flags)?;
    Ok(mapping)
}

/// Maps all of these frames or none, so that no two callers wait for each other's.
///
/// # Errors
/// As [`alloc`].
fn alloc_each<const N: usize>(
    frames: [&Frame; N],
    flags: Flags,
) -> Result<[Mapping<'_>; N], Unavailable> {
    if is_unkept() {
        return Ok(frames.map(alloc_own));
    }
    let is_uncached = backend() == Backend::Uncached;
    match may_sleep() {
        true if is_uncached => uncached::alloc(frames, flags),
        true => window::alloc(frames, flags),
        false if is_uncached || !may_look() => Ok(frames.map(alloc_own)),
        false => Ok(window::alloc_here(frames).unwrap_or_else(|| frames.map(alloc_own))),
    }
}

/// Frees the mapping, as its drop does.
pub fn free(mapping: Mapping<'_>) {
    drop(mapping);
}

/// See [`seem_scarce`].
static SCARCE: AtomicBool = AtomicBool::new(false);

/// Whether mappings [seem scarce](seem_scarce).
pub fn is_scarce() -> bool {
    SCARCE.load(Ordering::Relaxed)
}

/// Lets all mappings of the window, or of the uncached backend, seem to be in use to those who need
/// not have one or whose sleep a signal may end, until it is called with `false`: for tests.
pub fn seem_scarce(scarce: bool) {
    SCARCE.store(scarce, Ordering::SeqCst);
    if !scarce {
        window::wake_sleepers();
        uncached::wake_sleepers();
    }
}

/// Waits until `attempt` gives something, which a mapping that ends may make possible.
fn wait<T>(
    sleepers: &WaitQueue,
    flags: Flags,
    mut attempt: impl FnMut() -> Option<T>,
) -> Result<T, Unavailable> {
    // Scarcity is simulated for callers that are prepared for it only.
    let mut attempt = || match flags.is_empty() || !is_scarce() {
        true => attempt(),
        false => None,
    };
    if let Some(found) = attempt() {
        return Ok(found);
    }
    if flags.contains(Flags::NO_WAIT) {
        return Err(Unavailable::WouldSleep);
    }
    Counter::ephemeral_sleeps.add(1);
    let how = Sleep {
        interruptible: flags.contains(Flags::INTERRUPTIBLE),
        deadline: None,
    };
    let found = sleepers.wait(how, attempt);
    found.map_err(|_| Unavailable::Interrupted)
}

/// Maps a frame at an address that is this CPU's own: never waits, never fails.
fn alloc_own(frame: &Frame) -> Mapping<'_> {
    if is_direct(frame) {
        return direct::alloc(frame);
    }
    alloc_pinned(frame)
}

/// As [`alloc_own`], for a frame that is not in the direct map.
#[inline]
fn alloc_pinned(frame: &Frame) -> Mapping<'_> {
    machine::preempt_disable();
    Counter::ephemeral_misses.add(1);
    let slot = frame::map_pinned(frame.index());
    Mapping::at_slot(frame, slot as u32)
}

/// As [`alloc`] without flags: always succeeds.
#[inline]
pub fn map(frame: &Frame) -> Mapping<'_> {
    if is_direct(frame) {
        return direct::alloc(frame);
    }
    map_elsewhere(frame)
}

/// As [`map`], for a frame that is known not to be [direct](is_direct).
#[inline(never)]
pub(crate) fn map_elsewhere(frame: &Frame) -> Mapping<'_> {
    if is_unkept() {
        return alloc_pinned(frame);
    }
    let [mapping] = map_each([frame]);
    mapping
}

/// Whether all mappings come from their CPU's own addresses, in any context.
#[inline]
fn is_unkept() -> bool {
    UNKEPT.load(Ordering::Relaxed)
}

/// Ends the mappings without a user of frames that become page tables, of which the caller is the
/// only owner. Any context that may take [`Rank::EphemeralMappings`](crate::lock::Rank).
pub(crate) fn end_unused(frames: Range<u32>) {
    window::end_unused(frames);
}

/// Finds that out anew, after a change of a setting.
fn note_unkept() {
    let is_unkept = backend() != Backend::Uncached && !window::keeps();
    UNKEPT.store(is_unkept, Ordering::Relaxed);
}

/// Out of line, so that the path without a cache is short.
#[inline(never)]
fn map_each<const N: usize>(frames: [&Frame; N]) -> [Mapping<'_>; N] {
    loop {
        if let Ok(mappings) = alloc_each(frames, Flags::empty()) {
            return mappings;
        }
    }
}

/// Maps two frames in one step, for a caller that needs both at once: with few entries, tasks that
/// each held one and waited for another would deadlock.
#[inline]
pub fn map_two<'a>(first: &'a Frame, second: &'a Frame) -> [Mapping<'a>; 2] {
    if is_direct(first) && is_direct(second) {
        return [direct::alloc(first), direct::alloc(second)];
    }
    map_two_elsewhere(first, second)
}

#[inline(never)]
fn map_two_elsewhere<'a>(first: &'a Frame, second: &'a Frame) -> [Mapping<'a>; 2] {
    if is_unkept() {
        return [alloc_own(first), alloc_own(second)];
    }
    // A block takes no address of the window.
    if first.is_block() || second.is_block() {
        return [map(first), map(second)];
    }
    map_each([first, second])
}

/// As [`map_two`], with the flags of [`alloc`].
///
/// # Errors
/// As [`alloc`].
pub fn alloc_two<'a>(
    first: &'a Frame,
    second: &'a Frame,
    flags: Flags,
) -> Result<[Mapping<'a>; 2], Unavailable> {
    if first.is_block() || second.is_block() {
        return Ok([alloc(first, flags)?, alloc(second, flags)?]);
    }
    alloc_each([first, second], flags)
}

/// Copies `len` bytes of `from` at `from_offset` to `to` at `to_offset`.
#[inline]
pub fn copy(to: &Frame, to_offset: usize, from: &Frame, from_offset: usize, len: usize) {
    let [to, from] = map_two(to, from);
    to.copy_from(to_offset, &from, from_offset, len);
}

impl Drop for Mapping<'_> {
    #[inline]
    fn drop(&mut self) {
        match self.slot {
            NONE => direct::free(),
            slot => free_elsewhere(slot),
        }
    }
}

#[inline(never)]
fn free_elsewhere(slot: u32) {
    if (slot as usize) < RING_SLOTS {
        frame::unmap_pinned(slot as usize);
        return unpin();
    }
    free_other(slot);
}

/// Not inlined, so that the way without a cache is short.
#[inline(never)]
fn free_other(slot: u32) {
    if slot & LENT != 0 {
        return unpin();
    }
    match uncached::owns(slot) {
        true => uncached::free(slot),
        false => {
            window::free(slot);
            unpin();
        }
    }
}

/// The end of what pinned the task to its CPU.
fn unpin() {
    if machine::preempt_enable() {
        machine::preempt();
    }
}

impl<'a> Mapping<'a> {
    /// A mapping at an address of the window. The task is pinned.
    fn at_slot(frame: &'a Frame, slot: u32) -> Mapping<'a> {
        let number = (slot & !LENT) as usize;
        Mapping {
            frame,
            address: machine::window_address(number, address(frame.index())),
            slot,
        }
    }

    /// The kernel virtual address of byte 0.
    #[inline]
    pub fn address(&self) -> usize {
        self.address as usize
    }

    /// The frame mapped.
    #[inline]
    pub fn frame(&self) -> &'a Frame {
        self.frame
    }

    /// The place of `len` bytes from `offset` on, which lie inside the page, or the block.
    #[inline]
    pub(crate) fn at(&self, offset: usize, len: usize) -> *mut u8 {
        if !(offset <= PAGE_SIZE && len <= PAGE_SIZE - offset) {
            self.check_in_block(offset, len);
        }
        if self.slot != NONE {
            let number = (self.slot & !LENT) as usize;
            machine::window_used(number, address(self.frame.index()));
        }
        self.address.wrapping_add(offset)
    }

    /// Checks that the mapping reaches all of a block, in the direct map, with these bytes.
    #[cold]
    fn check_in_block(&self, offset: usize, len: usize) {
        assert!(self.slot == NONE, "a mapping of a page is no block's");
        self.frame.check_in_block(offset, len);
    }

    /// Copies out of the page. `offset + to.len()` is at most a page.
    #[inline]
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        let from = self.at(offset, to.len());
        Counter::bytes_copied_within.add(to.len() as u64);
        // SAFETY: `at` checked the range, the page is mapped while `self` lives, and `to` is memory
        // of the kernel, which is in no data frame. A program may write the bytes meanwhile; then
        // what arrives is some mixture, and bytes have no invalid values.
        unsafe { core::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) }
    }

    /// Copies into the page.
    #[inline]
    pub fn write(&self, offset: usize, from: &[u8]) {
        let to = self.at(offset, from.len());
        Counter::bytes_copied_within.add(from.len() as u64);
        // SAFETY: as in `read`, the other way round.
        unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) }
    }

    /// Sets `len` bytes from `offset` on to `byte`.
    #[inline]
    pub fn fill(&self, offset: usize, len: usize, byte: u8) {
        // SAFETY: `at` checked the range; the page is mapped while `self` lives.
        unsafe { core::ptr::write_bytes(self.at(offset, len), byte, len) }
    }

    /// Copies `len` bytes of `from`'s page at `from_offset` to this one at `offset`.
    #[inline]
    pub fn copy_from(&self, offset: usize, from: &Mapping<'_>, from_offset: usize, len: usize) {
        Counter::bytes_copied_within.add(len as u64);
        // SAFETY: `at` checked both ranges; both pages are mapped; `copy` allows that they are the
        // same one.
        unsafe { core::ptr::copy(from.at(from_offset, len), self.at(offset, len), len) }
    }
}
