//! The end of a kernel that found itself broken: one CPU stops the others, writes why and from
//! where to the log port, and stops the machine. No lock, no allocation.

use core::fmt::Write;
use core::sync::atomic::{AtomicUsize, Ordering};

use super::{apic, backtrace, clock, cpu, layout, percpu, serial};
use crate::PhysAddr;
use crate::power::Stop;

/// The CPU that panics, plus 1; all ones when the machine stops for another reason.
static PANICKING: AtomicUsize = AtomicUsize::new(0);
/// Where a trap came from that is about to panic: instruction and frame pointer.
static ORIGIN: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

/// Whether some CPU has panicked or stops the machine, so that an NMI means "stop".
pub fn in_progress() -> bool {
    PANICKING.load(Ordering::Relaxed) != 0
}

/// From now on an NMI means "stop".
pub fn begin_stop() {
    let _ = PANICKING.compare_exchange(0, usize::MAX, Ordering::AcqRel, Ordering::Relaxed);
}

/// The next panic's backtrace starts in the interrupted code, not in the handler.
pub fn set_origin(rip: usize, frame_pointer: usize) {
    ORIGIN[0].store(rip, Ordering::Relaxed);
    ORIGIN[1].store(frame_pointer, Ordering::Relaxed);
}

struct Log;

impl Write for Log {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        serial::LOG.put(text.as_bytes());
        Ok(())
    }
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    cpu::irqs_disable();
    let me = percpu::cpu() + 1;
    match PANICKING.compare_exchange(0, me, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {}
        // A panic while it panicked: what was written so far must do.
        Err(first) if first == me => super::stop(Stop::Panic),
        Err(_) => cpu::halt(),
    }
    apic::stop_others();
    // The others need a moment to arrive; one of them may be in the middle of a line.
    clock::delay(1_000_000);
    serial::LOG.seize();
    // Writing to the port can't fail.
    let _ = write!(Log, "\npanic: {} (", info.message());
    if let Some(at) = info.location() {
        let _ = write!(Log, "{}:{}, ", at.file(), at.line());
    }
    let _ = writeln!(Log, "CPU {})", me - 1);
    // For a debugger that looks for the addresses in the kernel's file.
    let direct_map = layout::ptr(PhysAddr(0)) as usize;
    let _ = writeln!(
        Log,
        "slide: {:x}, direct map: {direct_map:x}",
        layout::slide()
    );
    let _ = write!(Log, "backtrace:");
    let origin = ORIGIN.each_ref().map(|word| word.load(Ordering::Relaxed));
    let start = if origin[0] != 0 {
        let _ = write!(Log, " {:x}", origin[0]);
        origin[1]
    } else {
        backtrace::frame_pointer()
    };
    backtrace::walk(start, |address| {
        let _ = write!(Log, " {address:x}");
    });
    let _ = writeln!(Log);
    super::stop(Stop::Panic)
}
