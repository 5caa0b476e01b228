//! The machine's memory at the start: the frames' records, the free frames, and those that come
//! later from what was in use.

use core::ops::Range;
use core::sync::atomic::Ordering;

use super::device_reach::Cause;
use super::record::{self, Record, Type, record};
use super::{
    Depth, Frame, HEAP, KERNEL, TOTAL, buddy, cache, counts, device_reach, directmap, give_run,
    heap_frames, table_cache, targets,
};
use crate::hw::{Region, machine};
use crate::{OutOfMemory, PAGE_SHIFT, PAGE_SIZE};

/// The first frame of these regions, and the one after the last that can have a record.
fn limits(regions: &[Region]) -> Option<(u64, u64)> {
    let start = regions.iter().map(|r| r.start).min()?;
    let limit = start + record::MAX_FRAMES as u64;
    Some((start, limit.min(u32::MAX as u64)))
}

fn largest_free(regions: &[Region], end: u64) -> Option<&Region> {
    let free = regions.iter().filter(|r| r.free && r.start < end);
    free.max_by_key(|r| r.end.min(end) - r.start)
}

/// The frames that the records of so many frames take.
fn frames_of_records(count: u64) -> u64 {
    (count * size_of::<Record>() as u64).div_ceil(PAGE_SIZE as u64)
}

/// Whether further frames up to `end` can have records beside those of these regions: records reach
/// from the first frame to the last, whatever lies between, and take half of the largest free
/// region at most.
#[cfg(any(target_os = "none", test))]
pub(crate) fn records_reach(regions: &[Region], end: u64) -> bool {
    let Some((start, limit)) = limits(regions).filter(|&(_, limit)| end <= limit) else {
        return false;
    };
    let needed = frames_of_records(end.saturating_sub(start));
    largest_free(regions, limit).is_some_and(|r| needed <= (r.end.min(limit) - r.start) / 2)
}

/// Takes over the machine's memory. The records are put at the end of the largest free region.
///
/// # Errors
/// [`OutOfMemory`] if no free region can hold the records.
///
/// # Safety
/// The regions are memory, don't overlap, and are reached by [`machine::ptr`]; what is `free` is
/// unused. The machine has one CPU and no task yet.
pub(crate) unsafe fn init(regions: &[Region]) -> Result<(), OutOfMemory> {
    let (start, limit) = limits(regions).ok_or(OutOfMemory)?;
    let end = regions.iter().map(|r| r.end).max().unwrap_or(start);
    let end = end.min(limit);
    // What the kernel itself uses is in the direct map.
    let direct_end = end.min(directmap::end());
    let largest = largest_free(regions, direct_end).ok_or(OutOfMemory)?;
    let count = (end - start) as usize;
    let needed = frames_of_records(end - start);
    let records_end = largest.end.min(direct_end);
    let records = records_end
        .checked_sub(needed)
        .filter(|&first| first > largest.start)
        .ok_or(OutOfMemory)?;
    // SAFETY: free memory, which is taken out of the free ones below; the rest is the caller's
    // promise.
    unsafe {
        record::start(
            start as u32..end as u32,
            machine::ptr(crate::PhysAddr(records << PAGE_SHIFT)).cast(),
        );
        buddy::start();
        cache::start(count);
        table_cache::start(count);
        heap_frames::start();
    }
    #[cfg(not(target_os = "none"))]
    {
        super::injection::reset();
        super::reach::reset();
    }
    HEAP.store(0, Ordering::Relaxed);
    KERNEL.store(0, Ordering::Relaxed);
    let mut total = 0;
    for region in regions.iter().filter(|r| r.start < end) {
        let region_end = region.end.min(end);
        if region.persistent {
            for index in region.start..region_end {
                record(index as u32).set_kind(Type::Absent, Type::Kernel);
            }
            continue;
        }
        total += (region_end - region.start) as usize;
        let used = match (region.free, region.start == largest.start) {
            (false, _) => region.start..region_end,
            (true, true) => records..records_end,
            (true, false) => region_end..region_end,
        };
        add_free(region.start as u32..used.start as u32);
        for index in used.clone() {
            record(index as u32).set_kind(Type::Absent, Type::Kernel);
        }
        add_free(used.end as u32..region_end as u32);
        KERNEL.fetch_add((used.end - used.start) as usize, Ordering::Relaxed);
    }
    TOTAL.store(total, Ordering::Relaxed);
    // A 64th of the memory, at most 4 MiB: what all system calls in progress may still need.
    buddy::set_reserve((total / 64).min(1024));
    targets::start(total, buddy::reserved(Depth::Data));
    Ok(())
}

/// Notes that a frame which was in use at [`init`] has descriptors of the processor.
#[cfg_attr(not(target_os = "none"), allow(dead_code))]
pub(crate) fn set_descriptor(number: u64) {
    if let Some(record) = record::find(number) {
        record.set_kind(Type::Kernel, Type::Descriptor);
    }
}

fn add_free(frames: Range<u32>) {
    for index in frames.clone() {
        record(index).set_kind(Type::Absent, Type::Free);
        record(index).set_direct(directmap::starts_direct(index));
    }
    // A block is in one place.
    let border = frames.clone().find(|&it| !directmap::starts_direct(it));
    let border = border.unwrap_or(frames.end);
    buddy::give_run(frames.start..border);
    buddy::give_run(border..frames.end);
}

/// Gives the allocator memory that was in use at [`init`]: the root archive, the loader's data.
///
/// # Safety
/// The frames are of a region in use, and are not used any more.
pub(crate) unsafe fn release(frames: Range<u64>) {
    let managed = record::managed();
    let start = frames.start.max(managed.start as u64) as u32;
    let end = frames.end.min(managed.end as u64) as u32;
    if start < end {
        give_run(start..end, Type::Kernel);
    }
}

/// Makes a frame that was in use at [`init`] a data frame with this handle as its only one, its
/// bytes as they are. `None` if it has no record.
///
/// # Safety
/// As for [`release`].
pub(crate) unsafe fn adopt(number: u64) -> Option<Frame> {
    // SAFETY: the caller's promise.
    let frame = unsafe { adopt_uncounted(number) }?;
    KERNEL.fetch_sub(1, Ordering::Relaxed);
    Some(frame)
}

/// As [`adopt`], for a frame of persistent memory, which is of a medium.
///
/// # Safety
/// As for [`release`].
pub(crate) unsafe fn adopt_persistent(number: u64) -> Option<Frame> {
    // SAFETY: the caller's promise.
    let frame = unsafe { adopt_uncounted(number) }?;
    record(frame.index).set_of_medium();
    Some(frame)
}

/// As [`adopt`], for a frame that is counted nowhere.
///
/// # Safety
/// As for [`release`].
unsafe fn adopt_uncounted(number: u64) -> Option<Frame> {
    let index = u32::try_from(number).ok()?;
    if !record::managed().contains(&index) {
        return None;
    }
    directmap::hide_adopted(index);
    record(index).set_kind(Type::Kernel, Type::Writable);
    device_reach::restore(device_reach::run(index..index + 1), Cause::Other);
    counts::start(index);
    Some(Frame { index })
}
