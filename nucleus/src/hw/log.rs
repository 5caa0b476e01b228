//! The kernel's log: a ring in memory (`dmesg`), copied to the second serial port, never to the
//! console, so that what a program prints stays clean.

use core::cell::UnsafeCell;
use core::fmt::Write;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::hw::machine;

/// Bytes of the log that are kept: some thousand lines.
pub const CAPACITY: usize = 64 << 10;
/// A longer line is cut.
const LINE: usize = 512;

/// The lock is its own and not a `SpinLock`: a panic inside must still be able to say so.
struct Ring {
    /// The CPU that writes, plus one; 0 if none.
    writer: AtomicUsize,
    bytes: UnsafeCell<[u8; CAPACITY]>,
    /// Bytes written since boot.
    end: AtomicU64,
}

// SAFETY: `bytes` is only touched by the CPU that set `writer`.
unsafe impl Sync for Ring {}

static LOG: Ring = Ring {
    writer: AtomicUsize::new(0),
    bytes: UnsafeCell::new([0; CAPACITY]),
    end: AtomicU64::new(0),
};

impl Ring {
    /// Runs `f` with the bytes, alone; `None` if this CPU itself is in the middle of it (an
    /// exception or a panic inside), so that nothing waits for itself.
    fn with<R>(&self, f: impl FnOnce(&mut [u8; CAPACITY]) -> R) -> Option<R> {
        let irqs = machine::irqs_disable();
        let me = machine::cpu() + 1;
        while let Err(writer) =
            self.writer
                .compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed)
        {
            if writer == me {
                machine::irqs_restore(irqs);
                return None;
            }
            machine::spin_hint();
        }
        // SAFETY: `writer` says that this CPU is the only one here, and interrupts are off.
        let result = f(unsafe { &mut *self.bytes.get() });
        self.writer.store(0, Ordering::Release);
        machine::irqs_restore(irqs);
        Some(result)
    }
}

/// A line on the stack, so that it goes out whole.
struct Line {
    bytes: [u8; LINE],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        // The last byte is for the line's end.
        for byte in s.bytes().take(LINE - 1 - self.len) {
            // A line is one line, whatever a program's name has in it.
            self.bytes[self.len] = if byte == b'\n' { b' ' } else { byte };
            self.len += 1;
        }
        Ok(())
    }
}

/// Begins a new log, for a new simulated machine: the last one may have stopped in the middle of a
/// line.
///
/// # Safety
/// The machine has one CPU and no task yet.
#[cfg(not(target_os = "none"))]
pub(crate) unsafe fn reset() {
    LOG.writer.store(0, Ordering::Relaxed);
    LOG.end.store(0, Ordering::Relaxed);
}

/// Appends one line. Use [`log!`](crate::log!). Any context, interrupts and panics included.
pub fn line(args: core::fmt::Arguments<'_>) {
    let mut line = Line {
        bytes: [0; LINE],
        len: 0,
    };
    let now = machine::nanoseconds() / 1000;
    // Writing to a `Line` does not fail; a `Display` that does leaves what it wrote.
    let _ = write!(
        line,
        "[{:5}.{:06}] {args}",
        now / 1_000_000,
        now % 1_000_000
    );
    line.bytes[line.len] = b'\n';
    let text = &line.bytes[..=line.len];
    let done = LOG.with(|ring| {
        let mut end = LOG.end.load(Ordering::Relaxed);
        for &byte in text {
            ring[end as usize % CAPACITY] = byte;
            end += 1;
        }
        LOG.end.store(end, Ordering::Release);
        machine::log_put(text);
    });
    if done.is_none() {
        machine::log_put(text);
    }
}

/// Copies out of the ring from byte `offset` since boot on, or from the oldest that is left;
/// returns the bytes copied and the offset to go on with.
pub fn read(offset: u64, to: &mut [u8]) -> (usize, u64) {
    let mut copied = 0;
    let mut at = offset;
    while copied < to.len() {
        // A piece at a time: interrupts are off meanwhile.
        let piece = &mut to[copied..];
        let len = piece.len().min(LINE);
        let piece = &mut piece[..len];
        let got = LOG.with(|ring| {
            let end = LOG.end.load(Ordering::Relaxed);
            at = at.clamp(end.saturating_sub(CAPACITY as u64), end);
            let n = piece.len().min((end - at) as usize);
            for byte in &mut piece[..n] {
                *byte = ring[at as usize % CAPACITY];
                at += 1;
            }
            n
        });
        match got {
            None | Some(0) => break,
            Some(n) => copied += n,
        }
    }
    (copied, at)
}

/// Appends a line to the kernel's log, with the time in front.
#[macro_export]
macro_rules! log {
    ($($arg:tt)*) => { $crate::log::line(format_args!($($arg)*)) };
}
