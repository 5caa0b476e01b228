//! Counting slots twice: what the table says, and what pages say. No slot leaks if the two agree.

use alloc::vec::Vec;

use crate::amap::anon;
use crate::chunks::{Chunk, Hand, Registry};
use crate::object;
use crate::swap::{self, Home, Paged, SlotNumber, SwapError};

/// What two ways to count found, in slots. They agree when nothing comes or goes meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SwapAudit {
    /// Slots that are in use.
    pub used: usize,
    /// Slots that pages of any process or object have.
    pub found: usize,
}

/// Counts. Costs a way through all pages that may go to swap: for tests, and to find out whether something is wrong.
///
/// # Errors
/// [`SwapError::NoMemory`].
pub fn audit_swap() -> Result<SwapAudit, SwapError> {
    let mut numbers = Vec::new();
    gather(&anon::CHUNKS, &mut numbers)?;
    gather(&object::CHUNKS, &mut numbers)?;
    // An anon that several amaps refer to was met as often.
    numbers.sort_unstable();
    numbers.dedup();
    Ok(SwapAudit {
        used: swap::usage().used,
        found: numbers.len(),
    })
}

fn gather<T: Paged>(
    chunks: &Registry<Chunk<T>>,
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
