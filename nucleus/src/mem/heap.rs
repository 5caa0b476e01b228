//! The kernel heap on bare metal; on the simulated machine the host's is used.
//!
//! Up to [`LARGEST`] bytes: size classes. A *slab* is a frame cut into objects of one class; its
//! bookkeeping stands in the frame's record, so that objects are naturally aligned and slabs hold
//! nothing else. It is a single frame for every class, because a block of several may not be found
//! any more when memory is short, and small allocations must not fail while the reserve lasts. Each
//! CPU keeps a list of free objects per class, filled and emptied in batches, so the usual
//! allocation and free take no lock and no atomic operation. Above that: whole frames, exactly as
//! many as needed, from the buddy allocator; where it has no neighbouring ones, or the block is
//! larger than its largest, single frames are mapped (`mapped`). So no allocation fails while
//! frames enough are free.
//!
//! On the simulated machine this is built for its own tests.
//!
//! The heap may use the reserve to the last frame ([`frame::is_scarce`](crate::frame::is_scarce)).

#[cfg(all(test, not(target_os = "none")))]
mod tests;

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::cpu::percpu::{PerCpu, Restart};
use crate::frame;
use crate::frame::record::{self, FrameList, NONE, Type, record};
use crate::hw::machine;
use crate::lock::{Rank, SpinLock};
#[cfg(target_os = "none")]
use crate::mem::mapped;
use crate::{PAGE_SHIFT, PAGE_SIZE};

/// Sizes of the classes in bytes, each a multiple of 16. Steps of at most a half, and of at most a
/// quarter from 256 to 640, so that little of an object is lost; above 112, whole cache lines, so
/// that objects of two CPUs share none (with classes of 160 and 224 bytes an operation of
/// `bench --sharing epoll` shared up to 13, without them 0.3); above 384, of which a frame holds 9,
/// 8, 7, 6, 5, 4, 3 and 2 objects.
const CLASSES: [usize; 20] = [
    16, 32, 48, 64, 80, 96, 112, 128, 192, 256, 320, 384, 448, 512, 576, 640, 768, 1024, 1344, 2048,
];
const LARGEST: usize = CLASSES[CLASSES.len() - 1];

/// Class by size in units of 16 bytes, rounded up.
const CLASS_OF: [u8; LARGEST / 16 + 1] = {
    let mut table = [0; LARGEST / 16 + 1];
    let mut units = 0;
    let mut class = 0;
    while units < table.len() {
        if units * 16 > CLASSES[class] {
            class += 1;
        }
        table[units] = class as u8;
        units += 1;
    }
    table
};

/// The class for a layout, `None` for whole frames.
#[inline]
fn class_of(layout: Layout) -> Option<usize> {
    if layout.size() > LARGEST {
        return None;
    }
    let class = CLASS_OF[layout.size().div_ceil(16)] as usize;
    if layout.align() <= 16 {
        return Some(class);
    }
    // A slab begins at a frame, so an object is aligned to what divides its size.
    (class..CLASSES.len()).find(|&c| CLASSES[c].is_multiple_of(layout.align()))
}

/// Returns the bytes of the heap that an object of so many bytes takes.
pub const fn size_of_block(bytes: usize) -> usize {
    match bytes > LARGEST {
        true => bytes.next_multiple_of(PAGE_SIZE),
        false => CLASSES[CLASS_OF[bytes.div_ceil(16)] as usize],
    }
}

/// Free objects that a CPU keeps per class, and how many move at once: 8 KiB of each class, between
/// 4 and 32 objects.
const fn batch(class: usize) -> usize {
    let n = 4096 / CLASSES[class];
    if n < 4 {
        4
    } else if n > 32 {
        32
    } else {
        n
    }
}

/// Free objects of one class, linked through their first words.
struct List {
    first: UnsafeCell<*mut u8>,
    /// Changed by the list's CPU only; any may look.
    len: AtomicUsize,
}

// SAFETY: the first object is only touched inside `PerCpu::with`, which gives the list to one user
// at a time on its own CPU; the length is atomic.
unsafe impl Sync for List {}

impl List {
    const fn new() -> List {
        List {
            first: UnsafeCell::new(null_mut()),
            len: AtomicUsize::new(0),
        }
    }

    /// # Safety
    /// Inside `PerCpu::with` of the CPU whose list it is.
    #[inline]
    unsafe fn pop(&self) -> Option<*mut u8> {
        // SAFETY: the caller is the list's only user; its objects are free, and a free object's
        // first word is the next one.
        unsafe {
            let object = *self.first.get();
            if object.is_null() {
                return None;
            }
            *self.first.get() = object.cast::<*mut u8>().read();
            self.len.store(self.len() - 1, Ordering::Relaxed);
            Some(object)
        }
    }

    /// # Safety
    /// As [`List::pop`]; `object` is a free object of the class.
    #[inline]
    unsafe fn push(&self, object: *mut u8) -> usize {
        // SAFETY: as above.
        unsafe {
            object.cast::<*mut u8>().write(*self.first.get());
            *self.first.get() = object;
        }
        let len = self.len() + 1;
        self.len.store(len, Ordering::Relaxed);
        len
    }

    fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }
}

/// Each CPU's free objects.
static LISTS: PerCpu<[List; CLASSES.len()]> =
    PerCpu::new([const { [const { List::new() }; CLASSES.len()] }; machine::MAX_CPUS]);

/// Slabs of one class that have a free object, in a list. A slab's bookkeeping is in the record of
/// its frame: its neighbours, and in `in_use` the number of objects in use and, from bit 16 on,
/// one more than the number of the first free object. (`rmap` and `use_count` are not touched: a
/// CPU that follows a stale hint may read them in any frame's record.)
struct Slabs {
    list: FrameList,
    /// Slabs with no object in use; one is kept, so that a single object coming and going does not
    /// make and unmake a slab.
    empty: usize,
    /// All slabs of the class.
    all: usize,
    /// Objects that are in none: in use, or kept by CPUs.
    out: usize,
}

static SLABS: Restart<[SpinLock<Slabs>; CLASSES.len()]> = Restart::new(new_slabs());

const fn new_slabs() -> [SpinLock<Slabs>; CLASSES.len()] {
    [const {
        let none = Slabs {
            list: FrameList::EMPTY,
            empty: 0,
            all: 0,
            out: 0,
        };
        SpinLock::new(Rank::Heap, none)
    }; CLASSES.len()]
}

/// Objects in use, and the first free one.
fn state(class: usize, index: u32) -> (u32, *mut u8) {
    let both = record(index).in_use.load(Ordering::Relaxed);
    let first = match both >> 16 {
        0 => null_mut(),
        n => record::bytes(index).wrapping_add((n as usize - 1) * CLASSES[class]),
    };
    (both & 0xffff, first)
}

fn set_state(class: usize, index: u32, in_use: u32, first: *mut u8) {
    let n = if first.is_null() {
        0
    } else {
        (first as usize - record::bytes(index) as usize) / CLASSES[class] + 1
    };
    record(index)
        .in_use
        .store(in_use | (n as u32) << 16, Ordering::Relaxed);
}

impl Slabs {
    /// Takes one object out of a slab.
    fn take(&mut self, class: usize) -> Option<*mut u8> {
        let index = self.list.first;
        if index == NONE {
            return None;
        }
        let (in_use, object) = state(class, index);
        // SAFETY: a slab on the list has a free object, whose first word is the next one. The lock
        // of the class is held.
        let next = unsafe { object.cast::<*mut u8>().read() };
        set_state(class, index, in_use + 1, next);
        self.out += 1;
        if in_use == 0 {
            self.empty -= 1;
        }
        if next.is_null() {
            self.list.unlink(index);
        }
        Some(object)
    }

    /// Puts an object back into its slab; returns the slab if it should be given up.
    ///
    /// # Safety
    /// `object` is a free object of this class that is on no list.
    unsafe fn give(&mut self, class: usize, object: *mut u8) -> Option<u32> {
        let index = frame_of(object);
        let (in_use, first) = state(class, index);
        // SAFETY: the object is free and ours by the caller's promise.
        unsafe { object.cast::<*mut u8>().write(first) };
        set_state(class, index, in_use - 1, object);
        self.out -= 1;
        if first.is_null() {
            self.list.link(index);
        }
        if in_use == 1 {
            if self.empty > 0 {
                self.list.unlink(index);
                self.all -= 1;
                return Some(index);
            }
            self.empty += 1;
        }
        None
    }
}

/// The frame behind an address in the direct map.
fn frame_of(address: *mut u8) -> u32 {
    let base = machine::ptr(crate::PhysAddr(0)) as usize;
    ((address as usize - base) >> PAGE_SHIFT) as u32
}

/// Makes a slab and returns its frame.
fn new_slab(class: usize) -> Option<u32> {
    let index = frame::take_own(Type::Heap).ok()?;
    let base = record::bytes(index);
    let size = CLASSES[class];
    let mut next: *mut u8 = null_mut();
    for i in (0..PAGE_SIZE / size).rev() {
        // SAFETY: inside the frame just taken, which nothing else uses; aligned to 16.
        unsafe {
            let object = base.add(i * size);
            object.cast::<*mut u8>().write(next);
            next = object;
        }
    }
    set_state(class, index, 0, next);
    Some(index)
}

fn free_slab(index: u32) {
    frame::give_run(index..index + 1, Type::Heap);
}

/// Takes objects out of the shared slabs: one to return, and a batch for this CPU.
#[cold]
fn refill(class: usize, list: Option<&List>) -> *mut u8 {
    let mut slabs = SLABS[class].lock_irq();
    if slabs.list.first == NONE {
        // The frames come from under other locks and after a look at the pools: not inside ours.
        drop(slabs);
        let Some(index) = new_slab(class) else {
            return null_mut();
        };
        slabs = SLABS[class].lock_irq();
        slabs.list.link(index);
        slabs.all += 1;
        slabs.empty += 1;
    }
    let Some(object) = slabs.take(class) else {
        return null_mut();
    };
    if let Some(list) = list {
        for _ in 1..batch(class) {
            let Some(object) = slabs.take(class) else {
                break;
            };
            // SAFETY: the caller is inside `with`, and the object came out of a slab of the class.
            unsafe { list.push(object) };
        }
    }
    object
}

/// Puts a batch of this CPU's objects back into the shared slabs.
#[cold]
fn spill(class: usize, list: &List) {
    let mut unused = [NONE; 32];
    let mut n = 0;
    {
        let mut slabs = SLABS[class].lock_irq();
        for _ in 0..batch(class) {
            // SAFETY: the caller is inside `with`; a popped object is free and on no list.
            unsafe {
                let Some(object) = list.pop() else { break };
                if let Some(index) = slabs.give(class, object) {
                    unused[n] = index;
                    n += 1;
                }
            }
        }
    }
    for &index in &unused[..n] {
        free_slab(index);
    }
}

/// What is known of the objects of one size. All of it is in whole frames, so there may be far more
/// memory in slabs than in objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Class {
    /// Bytes of an object.
    pub size: usize,
    /// Frames that hold nothing else.
    pub slabs: usize,
    /// Objects in use.
    pub in_use: usize,
    /// Free objects that CPUs keep for themselves.
    pub kept: usize,
}

/// The classes of small objects, the smallest first: exact when nothing else runs. What is larger
/// has frames of its own.
pub fn classes() -> impl Iterator<Item = Class> {
    CLASSES.iter().enumerate().map(|(class, &size)| {
        let (slabs, out) = {
            let slabs = SLABS[class].lock_irq();
            (slabs.all, slabs.out)
        };
        let kept = LISTS.iter().map(|lists| lists[class].len()).sum();
        Class {
            size,
            slabs,
            in_use: out.saturating_sub(kept),
            kept,
        }
    })
}

/// Frames that a large allocation needs, and the number that it is aligned to.
fn large(layout: Layout) -> (usize, usize) {
    (
        layout.size().div_ceil(PAGE_SIZE),
        layout.align().div_ceil(PAGE_SIZE),
    )
}

#[cold]
fn alloc_large(layout: Layout) -> *mut u8 {
    let (frames, align) = large(layout);
    if frames.max(align) == 1 {
        let frame = frame::take_own(Type::Heap);
        return frame.map_or(null_mut(), record::bytes);
    }
    if frame::large_fails() {
        return null_mut();
    }
    let order = frames.max(align).next_power_of_two().ilog2() as usize;
    let Some(index) = frame::take_neighbours(order) else {
        return mapped::alloc(frames, align).unwrap_or(null_mut());
    };
    let end = index + (1 << order);
    if index + (frames as u32) < end {
        frame::give_run(index + frames as u32..end, Type::Heap);
    }
    record::bytes(index)
}

/// Frees the frames of large blocks that were freed where the flush that this takes could not be
/// waited for. For the pagedaemon; the caller may wait.
pub fn trim() {
    mapped::trim();
}

/// The simulated machine's heap has neighbouring frames only.
#[cfg(not(target_os = "none"))]
mod mapped {
    pub(crate) fn contains(_: *mut u8) -> bool {
        false
    }

    pub fn alloc(_: usize, _: usize) -> Option<*mut u8> {
        None
    }

    pub fn free(_: *mut u8, _: usize) {}

    pub fn trim() -> bool {
        false
    }
}

struct Heap;

// SAFETY: blocks come out of free lists that hold each object once, with the size and alignment
// of their class or of whole frames; `dealloc` finds the class from the layout as `alloc` did.
unsafe impl GlobalAlloc for Heap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(class) = class_of(layout) else {
            return alloc_large(layout);
        };
        LISTS.with(|lists| {
            let list = lists.map(|lists| &lists[class]);
            // SAFETY: inside `with`.
            match list.and_then(|list| unsafe { list.pop() }) {
                Some(object) => object,
                None => refill(class, list),
            }
        })
    }

    #[inline]
    unsafe fn dealloc(&self, object: *mut u8, layout: Layout) {
        let Some(class) = class_of(layout) else {
            let (frames, _) = large(layout);
            if mapped::contains(object) {
                return mapped::free(object, frames);
            }
            let index = frame_of(object);
            return frame::give_run(index..index + frames as u32, Type::Heap);
        };
        debug_assert_eq!(record(frame_of(object)).kind(), Type::Heap);
        if cfg!(debug_assertions) {
            // A dangling reference then shows.
            // SAFETY: the object is the caller's to give up, of its class's size.
            unsafe { core::ptr::write_bytes(object, 0xdd, CLASSES[class]) };
        }
        LISTS.with(|lists| match lists {
            Some(lists) => {
                let list = &lists[class];
                // SAFETY: inside `with`; the object is free now.
                if unsafe { list.push(object) } > 2 * batch(class) {
                    spill(class, list);
                }
            }
            None => {
                // SAFETY: the object is free now and on no list.
                let unused = unsafe { SLABS[class].lock_irq().give(class, object) };
                if let Some(index) = unused {
                    free_slab(index);
                }
            }
        });
    }

    unsafe fn realloc(&self, object: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller keeps `size`, rounded up to the alignment, within `isize`.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (class_of(layout), class_of(new)) {
            (Some(old), Some(new)) if old == new => return object,
            (None, None) if large(layout).0 == large(new).0 => return object,
            _ => {}
        }
        // SAFETY: the contract of `realloc`; the two blocks are different.
        unsafe {
            let to = self.alloc(new);
            if !to.is_null() {
                core::ptr::copy_nonoverlapping(object, to, size.min(layout.size()));
                self.dealloc(object, layout);
            }
            to
        }
    }
}

/// Forgets all objects of an earlier machine.
///
/// # Safety
/// The machine has one CPU and no task yet, and no object is in use.
#[cfg(not(target_os = "none"))]
unsafe fn start() {
    LISTS.reset();
    for list in LISTS.iter().flatten() {
        // SAFETY: the caller promises to be alone.
        unsafe {
            *list.first.get() = null_mut();
        }
        list.len.store(0, Ordering::Relaxed);
    }
    // SAFETY: as above.
    unsafe { SLABS.set(new_slabs()) };
}

#[cfg(target_os = "none")]
#[global_allocator]
static HEAP: Heap = Heap;
