//! The two 16550 serial ports: the first is the person's console, the second the kernel's log.

use super::clock;
use super::cpu::{irqs_disable, irqs_restore};
use super::port::{in8, out8};
use core::sync::atomic::{AtomicBool, Ordering};

/// The console.
pub static CONSOLE: Port = Port::new(0x3f8);
/// The log.
pub static LOG: Port = Port::new(0x2f8);

/// Bytes that the transmitter takes at once when it says that it is empty.
const FIFO: usize = 16;

const DATA: u16 = 0;
const INTERRUPTS: u16 = 1;
const FIFO_CONTROL: u16 = 2;
const LINE_CONTROL: u16 = 3;
const MODEM_CONTROL: u16 = 4;
const LINE_STATUS: u16 = 5;
const SCRATCH: u16 = 7;

const RECEIVED: u8 = 1;
const TRANSMITTER_EMPTY: u8 = 0x20;
const TRANSMITTER_IDLE: u8 = 0x40;

/// One serial port.
pub struct Port {
    base: u16,
    /// Set once by [`start`](Port::start): there is a device, and it takes bytes.
    works: AtomicBool,
    /// Held while one FIFO's worth of bytes is handed over, interrupts off.
    busy: AtomicBool,
}

impl Port {
    const fn new(base: u16) -> Port {
        Port {
            base,
            works: AtomicBool::new(false),
            busy: AtomicBool::new(false),
        }
    }

    fn read(&self, register: u16) -> u8 {
        // SAFETY: a UART does no DMA; its registers change nothing but the serial line.
        unsafe { in8(self.base + register) }
    }

    fn write(&self, register: u16, value: u8) {
        // SAFETY: as in `read`.
        unsafe { out8(self.base + register, value) };
    }

    /// Sets 115200 baud, 8 bits, FIFOs on. A port that is not there stays off.
    pub fn start(&self) {
        self.write(SCRATCH, 0x5a);
        if self.read(SCRATCH) != 0x5a {
            return;
        }
        self.write(INTERRUPTS, 0);
        self.write(LINE_CONTROL, 0x80);
        self.write(DATA, 1);
        self.write(INTERRUPTS, 0);
        self.write(LINE_CONTROL, 3);
        self.write(FIFO_CONTROL, 0x07);
        // Data terminal ready, request to send, and the gate of the interrupt line.
        self.write(MODEM_CONTROL, 0x0b);
        self.works.store(true, Ordering::Relaxed);
    }

    /// From now on a byte that arrives raises the port's interrupt.
    pub fn enable_interrupt(&self) {
        if self.works.load(Ordering::Relaxed) {
            self.write(INTERRUPTS, RECEIVED);
        }
    }

    /// Sends all bytes, waiting for the transmitter as long as it takes: the other end may have
    /// stopped reading. Only a FIFO's worth is sent in one piece; other callers' bytes may stand
    /// between two pieces.
    pub fn put(&self, bytes: &[u8]) {
        if !self.works.load(Ordering::Relaxed) {
            return;
        }
        for piece in bytes.chunks(FIFO) {
            while !self.put_piece(piece) {
                core::hint::spin_loop();
            }
        }
    }

    fn put_piece(&self, piece: &[u8]) -> bool {
        let irqs = irqs_disable();
        let locked = !self.busy.swap(true, Ordering::Acquire);
        let ready = locked && self.read(LINE_STATUS) & TRANSMITTER_EMPTY != 0;
        if ready {
            for &byte in piece {
                self.write(DATA, byte);
            }
        }
        if locked {
            self.busy.store(false, Ordering::Release);
        }
        irqs_restore(irqs);
        ready
    }

    /// Waits until what was sent has left the port: at most for so many nanoseconds, if a limit is
    /// given.
    pub fn drain(&self, limit: Option<u64>) {
        if !self.works.load(Ordering::Relaxed) {
            return;
        }
        let start = clock::nanoseconds();
        while self.read(LINE_STATUS) & TRANSMITTER_IDLE == 0
            && limit.is_none_or(|limit| clock::nanoseconds() - start < limit)
        {
            core::hint::spin_loop();
        }
    }

    /// Takes the port from its holder: for the panicking CPU, after it has stopped the others.
    pub fn seize(&self) {
        self.busy.store(false, Ordering::Release);
    }

    /// Takes a byte that has arrived.
    pub fn get(&self) -> Option<u8> {
        let ready = self.works.load(Ordering::Relaxed) && self.read(LINE_STATUS) & RECEIVED != 0;
        ready.then(|| self.read(DATA))
    }
}
