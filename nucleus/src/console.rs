//! The serial console (first port): bytes that a person types and reads.

use crate::arch::machine;
use crate::sync::{Rank, SpinLock};
use crate::task::WaitQueue;

/// Bytes that are kept until somebody reads them; a paste of a screen fits twice.
const ROOM: usize = 4096;

struct Ring {
    bytes: [u8; ROOM],
    /// The oldest byte.
    start: usize,
    len: usize,
}

static RING: SpinLock<Ring> = SpinLock::new(
    Rank::Console,
    Ring {
        bytes: [0; ROOM],
        start: 0,
        len: 0,
    },
);
static ARRIVALS: WaitQueue = WaitQueue::new();

/// Writes all bytes as they are, waiting for the port where it must. Any context.
pub fn write(bytes: &[u8]) {
    machine::console_put(bytes);
}

/// Takes bytes that have arrived; 0 if none.
pub fn read(to: &mut [u8]) -> usize {
    let mut ring = RING.lock_irq();
    let count = to.len().min(ring.len);
    for byte in &mut to[..count] {
        *byte = ring.bytes[ring.start];
        ring.start = (ring.start + 1) % ROOM;
    }
    ring.len -= count;
    count
}

/// Woken when bytes arrive.
pub fn arrivals() -> &'static WaitQueue {
    &ARRIVALS
}

/// The port has received something. Interrupts off. Bytes for which there is no room are lost, as
/// on any serial line that nobody reads.
pub(crate) fn on_input() {
    let mut arrived = false;
    {
        let mut ring = RING.lock_irq();
        while let Some(byte) = machine::console_get() {
            if ring.len < ROOM {
                let end = (ring.start + ring.len) % ROOM;
                ring.bytes[end] = byte;
                ring.len += 1;
                arrived = true;
            }
        }
    }
    if arrived {
        ARRIVALS.wake_all();
    }
}
