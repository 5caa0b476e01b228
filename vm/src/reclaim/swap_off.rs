//! `swapoff`: removing a swap device, whose pages are read back.

use alloc::sync::Arc;
use nucleus::task;

use crate::amap::anon;
use crate::chunks::{Chunk, Hand, Registry, SLOTS};
use crate::memory_wait::{MemoryWait, wait_for_memory, wait_for_room};
use crate::object;
use crate::swap::{DeviceId, Home, PageInError, Paged, Removal, SwapError, page_in};

/// Removes the device: it takes no more pages, and its pages are read back as far as memory
/// suffices, or go to other devices through the pagedaemon. Continues until the device is empty or
/// `interrupted` returns true.
///
/// # Errors
/// [`SwapError::NotFound`]; [`SwapError::NoMemory`] if there is no room for the pages,
/// [`SwapError::Io`] if one cannot be read, [`SwapError::Interrupted`]: the device is in use as
/// before, and no page is lost.
pub fn swap_off(id: DeviceId, interrupted: &dyn Fn() -> bool) -> Result<(), SwapError> {
    let removal = Removal::begin(id)?;
    let result = drain(&removal, interrupted);
    if result.is_err() {
        removal.cancel();
    }
    result
}

fn drain(removal: &Removal, interrupted: &dyn Fn() -> bool) -> Result<(), SwapError> {
    // Pages that move from one amap to another may be missed; the next round finds them.
    while !removal.take_out() {
        if !removal.goes_on() {
            return Err(SwapError::NoMemory);
        }
        empty_all(&anon::CHUNKS, removal, interrupted)?;
        empty_all(&object::CHUNKS, removal, interrupted)?;
        task::yield_now();
    }
    Ok(())
}

/// Reads all pages of the chunks back from the device.
fn empty_all<T: Paged>(
    chunks: &Registry<Arc<Chunk<T>>>,
    removal: &Removal,
    interrupted: &dyn Fn() -> bool,
) -> Result<(), SwapError> {
    let mut hand = Hand::default();
    while !removal.is_drained()
        && let Some(chunk) = chunks.next(&mut hand)
    {
        if interrupted() {
            return Err(SwapError::Interrupted);
        }
        empty(&chunk, removal)?;
    }
    Ok(())
}

/// Reads all pages of the chunk back from the device.
fn empty<T: Paged>(chunk: &Arc<Chunk<T>>, removal: &Removal) -> Result<(), SwapError> {
    loop {
        let mut swapped = None;
        chunk.visit(u32::MAX, &mut |i, location| {
            if location.slot().is_some_and(|slot| slot.is_on(removal.id)) {
                match location.is_swapped() {
                    true => swapped = Some(i),
                    false => location.dirty(),
                }
            }
        });
        let Some(index) = swapped else {
            return Ok(());
        };
        // Programs go on and must not be killed for this: when memory is exhausted, the pagedaemon
        // refuses the removal first.
        if wait_for_room(&|| removal.goes_on()) == MemoryWait::Exhausted {
            return Err(SwapError::NoMemory);
        }
        match page_in(chunk.clone(), index, (SLOTS, SLOTS)) {
            Ok(()) => {}
            Err(PageInError::OutOfMemory) if wait_for_memory() == MemoryWait::Retry => {}
            Err(PageInError::OutOfMemory) => return Err(SwapError::NoMemory),
            Err(_) => return Err(SwapError::Io),
        }
    }
}
