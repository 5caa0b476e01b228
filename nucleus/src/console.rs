//! The serial console (first port): bytes that a person types and reads.

use crate::task::WaitQueue;

/// Writes all bytes as they are, waiting for the port where it must. Any context.
pub fn write(bytes: &[u8]) {
    todo!()
}

/// Takes bytes that have arrived; 0 if none.
pub fn read(to: &mut [u8]) -> usize {
    todo!()
}

/// Woken when bytes arrive.
pub fn arrivals() -> &'static WaitQueue {
    todo!()
}
