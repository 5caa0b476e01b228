//! Return addresses by the chain of frame pointers, which the kernel is compiled with.

use super::layout::KERNEL_BASE;
use super::space;

/// Frames that are shown at most.
const DEPTH: usize = 48;

/// The caller's frame pointer.
#[inline(always)]
pub fn frame_pointer() -> usize {
    let pointer;
    // SAFETY: reads a register.
    unsafe { core::arch::asm!("mov {}, rbp", out(reg) pointer, options(nomem, nostack)) };
    pointer
}

/// Calls `show` with each return address from the frame at `pointer` outwards. The chain may be
/// broken: every step is checked before it is read.
pub fn walk(mut pointer: usize, mut show: impl FnMut(usize)) {
    for _ in 0..DEPTH {
        let readable = pointer.is_multiple_of(8)
            && pointer >> 47 == 0x1_ffff
            && space::is_mapped(pointer)
            && space::is_mapped(pointer + 8);
        if !readable {
            return;
        }
        // SAFETY: the kernel maps both words.
        let [next, address] = unsafe { *(pointer as *const [usize; 2]) };
        if address < KERNEL_BASE {
            return;
        }
        show(address);
        pointer = next;
    }
}
