//! Frames that each CPU keeps for the kernel's heap, where devices reach what is open.
//!
//! A frame of the heap is out of the devices' reach, and each that leaves or returns alone costs an
//! IOTLB invalidation. The slabs of a process that starts and ends come and go one by one, so a CPU
//! keeps some and takes or returns [`BATCH`] of them by one invalidation. They are of type `Heap`
//! and count as free; when memory is short, a CPU gives up its own, and not those of others. Where
//! devices' reach does not follow the types of frames, nothing is kept.

use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

use super::buddy::{self, Depth};
use super::cache::{self, Stack};
use super::device_reach::{self, Cause};
use super::record::{NONE, Type, address, record};
use super::{HEAP, check_junk, junk, targets};
use crate::cpu::percpu::PerCpu;
use crate::hw::machine;

/// Frames that a CPU keeps at most: what a shell that starts a pipeline of two programs takes and
/// returns.
const FRAMES: usize = 32;
/// Frames that leave or return together.
const BATCH: usize = FRAMES / 2;

static KEPT: PerCpu<Stack<FRAMES>> = PerCpu::new([const { Stack::new() }; machine::MAX_CPUS]);
/// How many a CPU uses: none while devices' reach is not watched.
static CAPACITY: AtomicUsize = AtomicUsize::new(0);

/// Starts with nothing kept.
///
/// # Safety
/// The machine has one CPU and no task yet.
pub(super) unsafe fn start() {
    KEPT.reset();
    KEPT.iter().for_each(Stack::clear);
    CAPACITY.store(0, Relaxed);
}

/// Keeps frames from now on, or no longer, on a machine with so many frames.
pub(super) fn keep(is_kept: bool, managed: usize) {
    CAPACITY.store(if is_kept { share(managed) } else { 0 }, Relaxed);
}

/// Lets each CPU keep so many, if any, that all of them together have at most a 256th of the
/// memory.
#[cfg(target_os = "none")]
pub(super) fn set_shares(managed: usize) {
    if CAPACITY.load(Relaxed) > 0 {
        CAPACITY.store(share(managed), Relaxed);
    }
}

fn share(managed: usize) -> usize {
    (managed / 256 / cache::sharing_cpus()).clamp(2, FRAMES)
}

/// Takes one of those kept, or makes some of which it keeps all but one.
#[inline]
pub(super) fn take() -> Option<u32> {
    match CAPACITY.load(Relaxed) {
        0 => None,
        most => take_kept(most),
    }
}

fn take_kept(most: usize) -> Option<u32> {
    KEPT.with(|kept| {
        let kept = kept?;
        let ready = kept.pop().inspect(|&index| check_junk(index));
        ready.or_else(|| {
            // Out of the reserve, one is taken at a time.
            let batch = BATCH.min(most);
            let is_spare = buddy::available() >= targets::targets().low + batch;
            if !is_spare {
                return None;
            }
            let mut frames = [NONE; BATCH];
            let taken = frames[..batch].iter_mut().map_while(|to| {
                *to = cache::take(Depth::Heap)?;
                Some(())
            });
            let taken = taken.count();
            let frames = &frames[..taken];
            let (&first, rest) = frames.split_first()?;
            device_reach::withdraw(frames.iter().map(|&it| it..it + 1), Cause::Heap);
            for &index in frames {
                check_junk(index);
                record(index).set_kind(Type::Free, Type::Heap);
            }
            HEAP.fetch_add(frames.len(), Relaxed);
            rest.iter().rev().for_each(|&index| kept.push(index));
            Some(first)
        })
    })
}

/// Keeps a frame of the heap that is free; returns whether it does.
#[inline]
pub(super) fn give(index: u32) -> bool {
    match CAPACITY.load(Relaxed) {
        0 => false,
        most => give_kept(index, most),
    }
}

fn give_kept(index: u32, most: usize) -> bool {
    KEPT.with(|kept| {
        let Some(kept) = kept else { return false };
        if kept.len() >= most {
            free(kept, BATCH.min(most));
        }
        junk(index);
        kept.push(index);
        true
    })
}

/// Frees some of those that a CPU keeps, by one batch.
#[cold]
fn free(kept: &Stack<FRAMES>, count: usize) {
    let mut frames = [NONE; FRAMES];
    let taken = frames[..count].iter_mut().map_while(|to| {
        *to = kept.pop()?;
        Some(())
    });
    let taken = taken.count();
    let frames = &frames[..taken];
    for &index in frames {
        check_junk(index);
        machine::frame_freed(address(index));
        record(index).set_kind(Type::Heap, Type::Free);
        junk(index);
    }
    device_reach::restore(frames.iter().map(|&it| it..it + 1), Cause::Heap);
    HEAP.fetch_sub(frames.len(), Relaxed);
    frames.iter().for_each(|&index| cache::give(index));
}

/// Frees what this CPU keeps; returns whether that was anything.
#[cold]
pub(super) fn drain() -> bool {
    KEPT.with(|kept| {
        let any = kept.is_some_and(|it| it.len() > 0);
        if let Some(kept) = kept.filter(|_| any) {
            free(kept, FRAMES);
        }
        any
    })
}

/// Frames that CPUs keep.
pub(super) fn kept() -> usize {
    KEPT.iter().map(Stack::len).sum()
}
