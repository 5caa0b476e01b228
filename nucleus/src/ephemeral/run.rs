//! A run: mappings of several frames at consecutive addresses, made and ended in one step.
//!
//! Frames that are neighbours in the direct map need none. Others get neighbouring addresses of
//! their CPU's ring, whatever becomes of single mappings that end: a cache finds frames one by one,
//! so a run would be a miss there as well. A CPU's ring is free but for what the caller holds, so a
//! run never sleeps for one; only the uncached backend's addresses are common to all CPUs.

use super::{Backend, Flags, Unavailable, backend, direct, is_direct, may_sleep, uncached, unpin};
use crate::counters::Counter;
use crate::frame::record::{NONE, address};
use crate::frame::{self, RING_SLOTS};
use crate::hw::machine::{self, WINDOW_RUN};
use crate::{Frame, PAGE_SIZE};

/// The most frames of a run.
pub const LONGEST_RUN: usize = WINDOW_RUN;

/// Frames mapped at consecutive addresses, private to the CPU that the task is pinned to while the
/// run lives; dropping it ends all of the mappings.
pub struct MappedRun<'a, F: AsRef<Frame>> {
    frames: &'a [F],
    /// The address of byte 0. On the simulated machine the other pages are elsewhere.
    address: *mut u8,
    /// The first address's number in the window, [`NONE`] for the direct map.
    slot: u32,
}

/// Maps frames at consecutive addresses, all or none: [`LONGEST_RUN`] at most, and at least one.
/// The caller holds few mappings besides. Sleeps only with `ephemeral=uncached`.
///
/// # Errors
/// As [`alloc`](super::alloc).
pub fn alloc_run<F: AsRef<Frame>>(
    frames: &[F],
    flags: Flags,
) -> Result<MappedRun<'_, F>, Unavailable> {
    assert!(
        (1..=LONGEST_RUN).contains(&frames.len()),
        "a run of {} frames",
        frames.len()
    );
    if let Some(address) = in_direct_map(frames) {
        direct::pin();
        return Ok(MappedRun {
            frames,
            address,
            slot: NONE,
        });
    }
    let slot = match backend() == Backend::Uncached && may_sleep() {
        true => uncached::alloc_run(frames, flags)?,
        false => {
            machine::preempt_disable();
            Counter::ephemeral_misses.add(frames.len() as u64);
            frame::map_pinned_run(frames.iter().map(|it| it.as_ref().index())) as u32
        }
    };
    Ok(MappedRun {
        frames,
        address: window_page(frames, slot, 0),
        slot,
    })
}

/// As [`alloc_run`] without flags: always succeeds.
pub fn map_run<F: AsRef<Frame>>(frames: &[F]) -> MappedRun<'_, F> {
    loop {
        if let Ok(run) = alloc_run(frames, Flags::empty()) {
            return run;
        }
    }
}

/// The address of the frames if they are one range of the direct map.
fn in_direct_map<F: AsRef<Frame>>(frames: &[F]) -> Option<*mut u8> {
    let first = frames[0].as_ref();
    let is_next = |(frame, index): (&F, u32)| {
        let frame = frame.as_ref();
        is_direct(frame) && frame.index() == index
    };
    let rest = frames[1..].iter().zip(first.index() + 1..);
    (is_direct(first) && { rest }.all(is_next)).then(|| first.bytes())
}

/// Where the kernel reaches page `number` of a run from an address of the window on.
fn window_page<F: AsRef<Frame>>(frames: &[F], slot: u32, number: usize) -> *mut u8 {
    let frame = frames[number].as_ref();
    machine::window_address(slot as usize + number, address(frame.index()))
}

impl<F: AsRef<Frame>> Drop for MappedRun<'_, F> {
    fn drop(&mut self) {
        if self.slot == NONE {
            return direct::free();
        }
        let (slot, count) = (self.slot as usize, self.frames.len());
        if slot < RING_SLOTS {
            frame::unmap_pinned_run(slot, count);
            return unpin();
        }
        uncached::free_run(slot, count);
    }
}

impl<'a, F: AsRef<Frame>> MappedRun<'a, F> {
    /// The kernel virtual address of byte 0.
    pub fn address(&self) -> usize {
        self.address as usize
    }

    /// The frames mapped.
    pub fn frames(&self) -> &'a [F] {
        self.frames
    }

    /// The places of `len` bytes from `offset` on, which lie inside the run, with the number of
    /// bytes of each. One place, but on the simulated machine, whose memory no page table orders.
    fn places(&self, offset: usize, len: usize) -> impl Iterator<Item = (*mut u8, usize)> {
        let size = self.frames.len() * PAGE_SIZE;
        assert!(
            offset <= size && len <= size - offset,
            "an access of {len} bytes at {offset} goes beyond the run"
        );
        let ordered = match self.slot {
            NONE => size,
            _ => machine::WINDOW_ORDERED.min(size),
        };
        let (mut at, end) = (offset, offset + len);
        core::iter::from_fn(move || {
            if at == end {
                return None;
            }
            let number = at / ordered;
            let page = match number {
                0 => self.address,
                _ => window_page(self.frames, self.slot, number),
            };
            if self.slot != NONE {
                let frame = self.frames[number].as_ref();
                machine::window_used(self.slot as usize + number, address(frame.index()));
            }
            let count = (ordered - at % ordered).min(end - at);
            let place = page.wrapping_add(at % ordered);
            at += count;
            Some((place, count))
        })
    }

    /// Copies out of the run. `offset + to.len()` is at most its size.
    pub fn read(&self, offset: usize, mut to: &mut [u8]) {
        Counter::bytes_copied_within.add(to.len() as u64);
        for (from, count) in self.places(offset, to.len()) {
            let (part, rest) = to.split_at_mut(count);
            // SAFETY: `places` checked the range, and the pages are mapped while `self` lives; see
            // `Mapping::read`.
            unsafe { core::ptr::copy_nonoverlapping(from, part.as_mut_ptr(), count) }
            to = rest;
        }
    }

    /// Copies into the run.
    pub fn write(&self, offset: usize, mut from: &[u8]) {
        Counter::bytes_copied_within.add(from.len() as u64);
        for (to, count) in self.places(offset, from.len()) {
            let (part, rest) = from.split_at(count);
            // SAFETY: as in `read`, the other way round.
            unsafe { core::ptr::copy_nonoverlapping(part.as_ptr(), to, count) }
            from = rest;
        }
    }

    /// Sets `len` bytes from `offset` on to `byte`.
    pub fn fill(&self, offset: usize, len: usize, byte: u8) {
        for (to, count) in self.places(offset, len) {
            // SAFETY: `places` checked the range; the pages are mapped while `self` lives.
            unsafe { core::ptr::write_bytes(to, byte, count) }
        }
    }
}
