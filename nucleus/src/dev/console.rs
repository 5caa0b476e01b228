//! The serial console (first port): bytes that a person types and reads.

use crate::cpu::percpu::Restart;
use crate::hw::machine;
use crate::lock::{InterruptScope, Rank, SpinLock};
use crate::task::WaitQueue;

/// Bytes that are kept until they are read; a paste of a screen fits twice.
const ROOM: usize = 4096;

struct Ring {
    bytes: [u8; ROOM],
    /// The oldest byte.
    start: usize,
    len: usize,
}

const fn empty() -> SpinLock<Ring> {
    let ring = Ring {
        bytes: [0; ROOM],
        start: 0,
        len: 0,
    };
    SpinLock::new(Rank::Console, ring)
}

static RING: Restart<SpinLock<Ring>> = Restart::new(empty());
static ARRIVALS: Restart<WaitQueue> = Restart::new(WaitQueue::new());

/// Forgets what was typed on an earlier machine.
///
/// # Safety
/// The machine has one CPU and no task yet.
#[cfg(not(target_os = "none"))]
pub(crate) unsafe fn reset() {
    // SAFETY: the caller's promise.
    unsafe {
        RING.set(empty());
        ARRIVALS.set(WaitQueue::new());
    }
}

/// Writes all bytes as they are, waiting for the port where it must. Any context.
pub fn write(bytes: &[u8]) {
    machine::console_put(bytes);
}

/// Takes bytes that have arrived; 0 if none.
pub fn read(to: &mut [u8]) -> usize {
    let mut ring = RING.lock_irq();
    // The port may hold bytes for which there was no room when they arrived; it does not interrupt
    // again. What is taken here is counted here: the interrupt that it raised finds nothing and
    // wakes no task.
    ring.fill();
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

impl Ring {
    /// Takes from the port what has arrived, as far as there is room. The rest stays in the port,
    /// which then takes no more from the other end. Returns whether something came.
    fn fill(&mut self) -> bool {
        let before = self.len;
        while self.len < ROOM
            && let Some(byte) = machine::console_get()
        {
            let end = (self.start + self.len) % ROOM;
            self.bytes[end] = byte;
            self.len += 1;
        }
        self.len > before
    }
}

/// The port has received something. Interrupts off.
pub(crate) fn on_input() {
    let _scope = InterruptScope::enter();
    if RING.lock_irq().fill() {
        ARRIVALS.wake_all();
    }
}
