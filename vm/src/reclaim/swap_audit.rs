//! Counts swap slots twice, in the table and in the pages: if the counts agree, no slot leaks.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::amap::anon;
use crate::chunks::{Chunk, Hand, Registry};
use crate::object;
use crate::swap::{self, Home, Paged, SlotNumber, SwapError};

/// The two counts, in slots. They agree if no slot changes its owner meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SwapAudit {
    /// Slots in use.
    pub used: usize,
    /// Slots that pages of processes and objects own.
    pub found: usize,
}

/// Counts the slots by visiting all swap-backed pages: for tests and diagnosis.
///
/// # Errors
/// [`SwapError::NoMemory`].
pub fn audit_swap() -> Result<SwapAudit, SwapError> {
    let mut numbers = Vec::new();
    gather(&anon::CHUNKS, &mut numbers)?;
    gather(&object::CHUNKS, &mut numbers)?;
    // An anon that several amaps refer to was counted as often.
    numbers.sort_unstable();
    numbers.dedup();
    Ok(SwapAudit {
        used: swap::usage().used,
        found: numbers.len(),
    })
}

fn gather<T: Paged>(
    chunks: &Registry<Arc<Chunk<T>>>,
    numbers: &mut Vec<SlotNumber>,
) -> Result<(), SwapError> {
    let mut hand = Hand::default();
    while let Some(chunk) = chunks.next(&mut hand) {
        numbers
            .try_reserve(u32::BITS as usize)
            .map_err(|_| SwapError::NoMemory)?;
        chunk.visit(u32::MAX, &mut |_, location| {
            numbers.extend(location.slot().map(|slot| slot.number()));
        });
    }
    Ok(())
}
