//! `swapoff`: a device is given up, and all that is in it comes back.

use alloc::sync::Arc;
use nucleus::task;

use super::bring_in::bring_in;
use super::table::{self, DeviceId, SwapError};
use crate::chunks::{Chunk, SLOTS};
use crate::location::{Home, Paged};
use crate::pagedaemon::{Hand, Registry};
use crate::pager::PagerError;
use crate::{anon, object};

/// Gives the device up: nothing more goes there, and all pages in it are brought back. Goes on until that is so or `interrupted` says
/// to stop.
///
/// # Errors
/// [`SwapError::NotFound`]; [`SwapError::NoMemory`] if there is no room for the pages, [`SwapError::Io`] if one
/// can't be read, [`SwapError::Interrupted`]: the device is in use as before, and no page is lost.
pub fn remove(id: DeviceId, interrupted: &dyn Fn() -> bool) -> Result<(), SwapError> {
    table::set_draining(id, true)?;
    let result = drain(id, interrupted);
    if result.is_err() {
        table::set_draining(id, false)?;
    }
    result
}

fn drain(id: DeviceId, interrupted: &dyn Fn() -> bool) -> Result<(), SwapError> {
    // Pages that are on their way from one amap to another may be missed; they are met in the next round.
    while !table::take_out(id) {
        empty_all(&anon::CHUNKS, id, interrupted)?;
        empty_all(&object::CHUNKS, id, interrupted)?;
        task::yield_now();
    }
    Ok(())
}

/// Takes all pages of the chunks out of the device.
fn empty_all<T: Paged>(
    chunks: &Registry<Chunk<T>>,
    id: DeviceId,
    interrupted: &dyn Fn() -> bool,
) -> Result<(), SwapError> {
    let mut hand = Hand::default();
    while !table::is_empty(id)
        && let Some(chunk) = chunks.next(&mut hand)
    {
        if interrupted() {
            return Err(SwapError::Interrupted);
        }
        empty(&chunk, id)?;
    }
    Ok(())
}

/// Takes all pages of the chunk out of the device.
fn empty<T: Paged>(chunk: &Arc<Chunk<T>>, id: DeviceId) -> Result<(), SwapError> {
    loop {
        let mut swapped = None;
        chunk.visit(u32::MAX, &mut |i, location| {
            if location.slot().is_some_and(|slot| slot.is_on(id)) {
                match location.is_swapped() {
                    true => swapped = Some(i),
                    false => location.dirty(),
                }
            }
        });
        let Some(index) = swapped else {
            return Ok(());
        };
        match bring_in(chunk.clone(), index, (SLOTS, SLOTS)) {
            Ok(()) => {}
            Err(PagerError::OutOfMemory) => return Err(SwapError::NoMemory),
            Err(_) => return Err(SwapError::Io),
        }
    }
}
