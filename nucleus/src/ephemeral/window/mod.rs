//! The window: mappings in a range of addresses of the kernel, with page-table entries of their own
//! (`ephemeral-mappings.txt` 4.2), for frames that have no place in the direct map, or for all.
//!
//! Where mappings are *kept* when they end, as in the paper, a cache of them is looked through by
//! the frame; one that is found costs nothing. Where they are not, which `directmap=kernel` wants,
//! so that no page stays in a kernel mapping without a user, private ones come from the ring of the
//! CPU ([`frame`](crate::frame)), and the cache has the shared ones only.
//!
//! # Better than the paper
//!
//! - *Parts* (`ephemeral.parts`): private mappings come from a cache that each CPU has for itself,
//!   behind a lock that no other CPU takes. One that is empty leaves its caller to the common one,
//!   which is all that the paper has.
//! - *Late invalidation* (`ephemeral.late`): a shared mapping is not announced to the other CPUs. A
//!   CPU that uses it looks at the mask, as the paper's `sf_buf_alloc` does for private ones, and
//!   drops the one translation by itself. So no CPU is ever interrupted for an ephemeral mapping.
//! - *Flushes for other reasons*: entries are not global, so each load of a root drops all of
//!   them. Mappings are ended some time before their addresses are used again
//!   ([`cache`]), and changes are numbered ([`next_change`]), so that a CPU which has dropped
//!   everything since need not drop the one translation again ([`flushed_since`]).
//!
//! All of it holds on processors that translate ahead of use: an entry that is cleared in memory
//! can't be translated any more, by any CPU; so what a TLB holds of it was there before the change
//! was numbered, and goes with any flush after that. A mapping that is inactive but valid
//! may be translated at any time, and is the right one.

mod cache;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::{Flags, Mapping, Unavailable};
use crate::counters::Counter;
use crate::cpu::percpu::Restart;
use crate::frame::record::NONE;
use crate::frame::{self, DirectMap, RING_SLOTS};
use crate::hw::machine::{self, MAX_CPUS, WINDOW_PAGES, WINDOW_SINGLE};
use crate::lock::{Rank, SpinLock};
use crate::mem::mistake::Mistake;
use crate::sync::Mutex;
use crate::task::{self, WaitQueue};
use crate::{Frame, Unchanged};
use cache::{Lists, Translations, Use};

/// The most entries that the cache can have.
pub const MAX_ENTRIES: usize = WINDOW_PAGES - FIRST;
/// The first address of the caches.
const FIRST: usize = RING_SLOTS + WINDOW_SINGLE;
/// With fewer entries for each CPU there are no parts. On four CPUs PostMark's small configuration
/// finds 87% of its mappings in parts of 8 entries, 94% of 16, 96% of 32, 97% of 64 and 99% of 128;
/// in one cache of as many entries in all 97%, and 99.7% where the parts would have 32 or more.
const SMALLEST_PART: usize = 32;
/// Mappings that a call wants at most.
const WANTED: usize = 2;
/// The share of the entries that stays common where there are parts, as a divisor. On four CPUs
/// `web-server` with 6144 entries misses 2.8 times a request with a half, 2.4 with this, 2.3 with
/// an eighth, and 0.9 without parts, since one program uses much. Shared mappings have no other.
const COMMON: usize = 4;

/// The common cache, and that of each CPU.
static CACHES: Restart<[SpinLock<Lists>; 1 + MAX_CPUS]> = Restart::new(no_caches());

const fn no_caches() -> [SpinLock<Lists>; 1 + MAX_CPUS] {
    [const { SpinLock::new(Rank::EphemeralMappings, Lists::new()) }; 1 + MAX_CPUS]
}

/// What TLBs may hold of each address, from [`FIRST`] on.
static TRANSLATIONS: AtomicPtr<Translations> = AtomicPtr::new(ptr::null_mut());
/// Entries of the common cache, of all, and of a CPU's own.
static ENTRIES: AtomicUsize = AtomicUsize::new(DEFAULT_ENTRIES);
static COMMON_ENTRIES: AtomicUsize = AtomicUsize::new(0);
static PART: AtomicUsize = AtomicUsize::new(0);
/// 32 MiB of addresses: less than half a MiB of bookkeeping. Not measured against other numbers.
pub const DEFAULT_ENTRIES: usize = if MAX_ENTRIES > 8192 {
    8192
} else {
    MAX_ENTRIES
};

/// Tasks that wait for an entry.
static SLEEPERS: WaitQueue = WaitQueue::new();

/// How the window works: the settings of `ephemeral.parts` and so on.
static PARTS: AtomicBool = AtomicBool::new(true);
static LATE: AtomicBool = AtomicBool::new(true);
static PRIVATE: AtomicBool = AtomicBool::new(true);
static KEEP: AtomicU32 = AtomicU32::new(KEEP_AUTO);
static AHEAD: AtomicUsize = AtomicUsize::new(MAX_AHEAD);
static USES_FLUSHES: AtomicBool = AtomicBool::new(true);
/// The most inactive mappings that are ended together. By `--icount` with 6144 entries, 64 are 1%
/// faster than 16 in `disk-dump/direct-128MiB`, where each page is a miss, 5% than 4 and 22% than
/// one. In `web-server/nasa` the CPU has flushed by itself before 92% of the addresses are used
/// again, with 16 before 58%, with 4 before 13%, and never with one.
pub const MAX_AHEAD: usize = 64;
const KEEP_AUTO: u32 = 0;
const KEEP_ON: u32 = 1;

/// Whether mappings stay when they end: by `ephemeral.keep`, or else where frames need no mapping
/// to be seen.
pub(super) fn keeps() -> bool {
    match KEEP.load(Ordering::Relaxed) {
        KEEP_AUTO => frame::direct_map() != DirectMap::Kernel,
        keep => keep == KEEP_ON,
    }
}

/// Changes of the window after which TLBs may hold something of an address that is wrong. A change
/// is numbered when its entries are cleared.
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// Numbers a change, whose entries have been cleared.
fn next_change() -> u64 {
    CHANGES.fetch_add(1, Ordering::SeqCst) + 1
}

/// What a CPU knows of its own flushes.
#[repr(align(64))]
struct Flushed {
    /// How often it had dropped all translations when it looked last, and the number of the last
    /// change at that time.
    at: AtomicU64,
    seen: AtomicU64,
    /// It has dropped all translations after this change.
    upto: AtomicU64,
}

static FLUSHED: [Flushed; MAX_CPUS] = [const {
    Flushed {
        at: AtomicU64::new(0),
        seen: AtomicU64::new(0),
        upto: AtomicU64::new(0),
    }
}; MAX_CPUS];

/// Whether this CPU is known to have dropped all its translations since a change. The caller is
/// pinned; what an interrupt does in between makes the answer no better than it is.
fn flushed_since(change: u64) -> bool {
    if !uses_flushes() {
        return false;
    }
    let own = &FLUSHED[machine::cpu()];
    let irqs = machine::irqs_disable();
    let flushes = machine::flushes();
    if flushes != own.at.load(Ordering::Relaxed) {
        // All changes that were seen then came before the flush.
        let seen = own.seen.load(Ordering::Relaxed);
        own.upto.store(seen, Ordering::Relaxed);
        own.at.store(flushes, Ordering::Relaxed);
        own.seen
            .store(CHANGES.load(Ordering::SeqCst), Ordering::Relaxed);
    }
    let upto = own.upto.load(Ordering::Relaxed);
    machine::irqs_restore(irqs);
    change <= upto + u64::from(Mistake::ChangeSkipped.is_made())
}

fn translations<'a>(slot: u32) -> &'a Translations {
    let first = TRANSLATIONS.load(Ordering::Relaxed);
    debug_assert!((slot as usize) - FIRST < ENTRIES.load(Ordering::Relaxed));
    // SAFETY: one for each address of the caches, of which `slot` is one in use or behind the
    // caller's lock, so that `configure` does not free them.
    unsafe { &*first.add(slot as usize - FIRST) }
}

/// The cache that an address in use belongs to.
fn cache_of(slot: u32) -> &'static SpinLock<Lists> {
    &CACHES[cache_number(slot)]
}

/// The number of the cache that an address belongs to, if it belongs to one.
fn cache_number(slot: u32) -> usize {
    let number = slot as usize - FIRST;
    match number.checked_sub(COMMON_ENTRIES.load(Ordering::Relaxed)) {
        None => 0,
        Some(number) => 1 + number / PART.load(Ordering::Relaxed),
    }
}

/// Held while the caches are changed as a whole.
static CONFIGURING: Mutex<()> = Mutex::new(Rank::EphemeralCaches, ());

/// Makes the caches, if they are not there.
///
/// # Errors
/// [`Unchanged::OutOfMemory`].
pub(super) fn start() -> Result<(), Unchanged> {
    // Before the first task, nothing else does it.
    let _configuring = task::has_current().then(|| CONFIGURING.lock());
    match TRANSLATIONS.load(Ordering::Relaxed).is_null() {
        true => configure(entries()),
        false => Ok(()),
    }
}

/// Makes new caches of so many entries, with parts if there are enough and they are wanted.
fn configure(entries: usize) -> Result<(), Unchanged> {
    let cpus = machine::cpu_count();
    let for_parts = entries - entries / COMMON;
    let has_parts = PARTS.load(Ordering::Relaxed) && for_parts >= cpus * SMALLEST_PART;
    let part = if has_parts { for_parts / cpus } else { 0 };
    let common = entries - part * cpus;
    machine::window_start(FIRST..FIRST + entries)?;
    let mut translations: Vec<Translations> = crate::try_vec(entries)?;
    translations.extend((0..entries).map(|_| Translations::new()));
    let mut new: Vec<Lists> = crate::try_vec(1 + cpus)?;
    new.push(Lists::with_entries(FIRST as u32, common)?);
    for cpu in 0..cpus {
        let first = FIRST + common + cpu * part;
        new.push(Lists::with_entries(first as u32, part)?);
    }
    if !TRANSLATIONS.load(Ordering::Relaxed).is_null() {
        close()?;
        // No entry is in use now, nor found.
        machine::flush_kernel();
        Counter::ephemeral_flush_resize.add(1);
    }
    let count = ENTRIES.swap(entries, Ordering::Relaxed);
    COMMON_ENTRIES.store(common, Ordering::Relaxed);
    PART.store(part.max(1), Ordering::Relaxed);
    let translations = Box::into_raw(translations.into_boxed_slice());
    let old = TRANSLATIONS.swap(translations.cast(), Ordering::Relaxed);
    if !old.is_null() {
        let old = ptr::slice_from_raw_parts_mut(old, count);
        // SAFETY: made of a box of so many here, earlier; no address is in use, so nothing refers
        // to one.
        drop(unsafe { Box::from_raw(old) });
    }
    for (cache, new) in CACHES.iter().zip(&mut new) {
        core::mem::swap(&mut *cache.lock_irq(), new);
    }
    SLEEPERS.wake_all();
    Ok(())
}

/// Closes all caches and waits until their mappings have ended; none, if a use of one may last.
fn close() -> Result<(), Unchanged> {
    for (number, cache) in CACHES.iter().enumerate() {
        if !cache.lock_irq().close() {
            CACHES[..number].iter().for_each(|it| it.lock_irq().open());
            SLEEPERS.wake_all();
            return Err(Unchanged::InUse);
        }
    }
    // What is still in use is private, so its users run, or wait for other CPUs only.
    for cache in CACHES.iter() {
        while !cache.lock_irq().end_all() {
            task::yield_now();
        }
    }
    Ok(())
}

/// Forgets an earlier machine.
///
/// # Safety
/// The machine has one CPU and no task yet.
#[cfg(not(target_os = "none"))]
pub(super) unsafe fn reset() {
    // SAFETY: the caller promises to be alone. The old machine's lists are its own heap's, which
    // the host's allocator has.
    unsafe { CACHES.set(no_caches()) };
    TRANSLATIONS.store(ptr::null_mut(), Ordering::Relaxed);
    ENTRIES.store(DEFAULT_ENTRIES, Ordering::Relaxed);
    PARTS.store(true, Ordering::Relaxed);
    LATE.store(true, Ordering::Relaxed);
    PRIVATE.store(true, Ordering::Relaxed);
    KEEP.store(KEEP_AUTO, Ordering::Relaxed);
    AHEAD.store(MAX_AHEAD, Ordering::Relaxed);
    USES_FLUSHES.store(true, Ordering::Relaxed);
    CHANGES.store(0, Ordering::Relaxed);
    for own in &FLUSHED {
        for number in [&own.at, &own.seen, &own.upto] {
            number.store(0, Ordering::Relaxed);
        }
    }
}

/// How many entries the cache has.
pub fn entries() -> usize {
    ENTRIES.load(Ordering::Relaxed)
}

/// Gives the cache so many entries, 2 to [`MAX_ENTRIES`].
///
/// # Errors
/// See [`Unchanged`].
pub fn set_entries(entries: usize) -> Result<(), Unchanged> {
    let _configuring = CONFIGURING.lock();
    reconfigure(entries.clamp(2, MAX_ENTRIES))
}

/// Makes the caches anew with so many entries, if they are there. [configuring]
fn reconfigure(entries: usize) -> Result<(), Unchanged> {
    if TRANSLATIONS.load(Ordering::Relaxed).is_null() {
        ENTRIES.store(entries, Ordering::Relaxed);
        return Ok(());
    }
    configure(entries)
}

/// Whether each CPU has a part of the cache for itself.
pub fn has_parts() -> bool {
    PARTS.load(Ordering::Relaxed)
}

/// Gives each CPU a part of the cache for itself, or none.
///
/// # Errors
/// See [`Unchanged`].
pub fn set_parts(parts: bool) -> Result<(), Unchanged> {
    let _configuring = CONFIGURING.lock();
    let before = PARTS.swap(parts, Ordering::Relaxed);
    reconfigure(entries()).inspect_err(|_| PARTS.store(before, Ordering::Relaxed))
}

/// Whether CPUs drop translations of shared mappings when they use them, not when one is made.
pub fn is_late() -> bool {
    LATE.load(Ordering::Relaxed)
}

/// See [`is_late`].
pub fn set_late(late: bool) {
    LATE.store(late, Ordering::Relaxed);
}

/// Whether mappings for a short time are private to one CPU.
pub fn is_private() -> bool {
    PRIVATE.load(Ordering::Relaxed)
}

/// Makes kept mappings for a short time private to one CPU, or good for all as soon as they are
/// made, as the paper's are without its flag. For comparison.
pub fn set_private(private: bool) {
    PRIVATE.store(private, Ordering::Relaxed);
}

/// What becomes of a mapping that ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    /// It stays where the frame is in the direct map, or might be.
    Auto = 0,
    /// It stays until its address is wanted.
    On = 1,
    /// It is taken out of the page table.
    Off = 2,
}

/// Returns what becomes of a mapping that ends.
pub fn keep() -> Keep {
    [Keep::Auto, Keep::On, Keep::Off][KEEP.load(Ordering::Relaxed) as usize]
}

/// Sets it, for the mappings that end from now on, and ends those that were kept.
///
/// # Errors
/// See [`Unchanged`].
pub fn set_keep(keep: Keep) -> Result<(), Unchanged> {
    let _configuring = CONFIGURING.lock();
    let before = KEEP.swap(keep as u32, Ordering::Relaxed);
    let result = reconfigure(entries()).inspect_err(|_| KEEP.store(before, Ordering::Relaxed));
    super::note_unkept();
    result
}

/// Mappings that are ended together, [`MAX_AHEAD`] at most: see [`cache`].
pub fn ahead() -> usize {
    AHEAD.load(Ordering::Relaxed)
}

/// Has so many inactive mappings ended together.
pub fn set_ahead(ahead: usize) {
    AHEAD.store(ahead.clamp(1, MAX_AHEAD), Ordering::Relaxed);
}

/// Whether a CPU's flushes for other reasons save invalidations.
pub fn uses_flushes() -> bool {
    USES_FLUSHES.load(Ordering::Relaxed)
}

/// See [`uses_flushes`].
pub fn use_flushes(used: bool) {
    USES_FLUSHES.store(used, Ordering::Relaxed);
}

/// Has all that wait for an entry look again.
pub(super) fn wake_sleepers() {
    SLEEPERS.wake_all();
}

/// Entries in use, and those that map something.
pub fn usage() -> [usize; 2] {
    CACHES.iter().fold([0; 2], |[used, valid], cache| {
        let cache = cache.lock_irq();
        [used + cache.in_use(), valid + cache.valid()]
    })
}

/// Maps frames for the calling task, which may sleep: each from its CPU's cache, or all from the
/// common one.
pub(super) fn alloc<const N: usize>(
    frames: [&Frame; N],
    flags: Flags,
) -> Result<[Mapping<'_>; N], Unavailable> {
    if !PRIVATE.load(Ordering::Relaxed) {
        return alloc_for_all(frames, flags);
    }
    super::wait(&SLEEPERS, flags, || try_alloc(frames))
}

/// As [`alloc`], for a task that may not sleep: what there is now, if mappings are private.
pub(super) fn alloc_here<const N: usize>(frames: [&Frame; N]) -> Option<[Mapping<'_>; N]> {
    match PRIVATE.load(Ordering::Relaxed) {
        true => try_alloc(frames),
        // It would wait for the other CPUs.
        false => None,
    }
}

fn try_alloc<const N: usize>(frames: [&Frame; N]) -> Option<[Mapping<'_>; N]> {
    machine::preempt_disable();
    let has_part = COMMON_ENTRIES.load(Ordering::Relaxed) < ENTRIES.load(Ordering::Relaxed);
    let own = has_part.then(|| enter_all(&CACHES[1 + machine::cpu()], &frames));
    let slots = own.flatten().or_else(|| enter_all(&CACHES[0], &frames));
    let mappings = slots.map(|slots| {
        slots
            .iter()
            .for_each(|&slot| translations(slot).note_private());
        use_here(frames, slots)
    });
    // Each mapping has pinned the task.
    super::unpin();
    mappings
}

/// As [`alloc`], without the advantage of being private, for comparison: all CPUs might use the
/// mappings.
fn alloc_for_all<const N: usize>(
    frames: [&Frame; N],
    flags: Flags,
) -> Result<[Mapping<'_>; N], Unavailable> {
    let slots = super::wait(&SLEEPERS, flags, || enter_all(&CACHES[0], &frames))?;
    if !is_late() {
        slots
            .iter()
            .for_each(|&slot| translations(slot).clean_everywhere(slot));
    }
    Ok(use_here(frames, slots))
}

/// Pins the task and makes mappings right for its CPU.
fn use_here<const N: usize>(frames: [&Frame; N], slots: [u32; N]) -> [Mapping<'_>; N] {
    let mut slots = slots.into_iter();
    frames.map(|frame| {
        let slot = slots.next().expect("an address for each frame");
        machine::preempt_disable();
        translations(slot).clean_here(slot, Use::Private);
        Mapping::at_slot(frame, slot)
    })
}

/// Enters all of the frames or none.
fn enter_all<const N: usize>(cache: &SpinLock<Lists>, frames: &[&Frame; N]) -> Option<[u32; N]> {
    let mut lists = cache.lock_irq();
    let mut slots = [NONE; N];
    for (at, frame) in frames.iter().enumerate() {
        let Some(slot) = lists.enter(frame.index()) else {
            for &slot in &slots[..at] {
                lists.release(slot, true);
            }
            return None;
        };
        slots[at] = slot;
    }
    Some(slots)
}

/// Maps a frame for all CPUs. The caller may sleep.
pub(super) fn share(frame: &Frame, flags: Flags) -> Result<u32, Unavailable> {
    let enter = || CACHES[0].lock_irq().enter_lasting(frame.index());
    let slot = super::wait(&SLEEPERS, flags, enter)?;
    if !is_late() {
        translations(slot).clean_everywhere(slot);
    }
    Ok(slot)
}

/// One user less of an address.
pub(super) fn free(slot: u32) {
    let is_wanted = cache_of(slot).lock_irq().release(slot, keeps());
    if is_wanted {
        SLEEPERS.wake_all();
    }
}

/// Ends the kept mappings of frames that become page tables, which no mapping but that of page
/// tables lets the kernel write. Other CPUs drop what they hold of them as they drop what they hold
/// of the direct map. The caller has the frames alone.
pub(super) fn end_unused(frames: Range<u32>) {
    if !TRANSLATIONS.load(Ordering::Relaxed).is_null() && keeps() {
        for cache in CACHES.iter() {
            cache.lock_irq().end_unused(frames.clone());
        }
    }
}

/// As [`free`], for an address of [`share`].
pub(super) fn unshare(slot: u32) {
    cache_of(slot).lock_irq().end_lasting();
    free(slot);
}

/// How many use an address; none if the caches have become too small for it meanwhile.
pub(super) fn users(slot: u32) -> usize {
    let cache = CACHES.get(cache_number(slot));
    cache.map_or(0, |cache| cache.lock_irq().users(slot))
}

/// Keeps the caches from being made anew while the guard lives: every mapped address stays one of
/// theirs.
pub(super) fn keep_addresses() -> impl Drop {
    CONFIGURING.lock()
}

/// Makes a shared mapping right for this CPU, to which the caller is pinned.
#[inline]
pub(super) fn check_here(slot: u32) {
    translations(slot).clean_here(slot, Use::Shared);
}
