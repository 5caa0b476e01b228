//! What this machine takes at least: see [`crate::selftest::hw_cost`].
//!
//! [`program`] goes to user mode and back by bare gates, [`memory`] zeroes and copies pages,
//! [`others`] interrupts another CPU; single instructions are here. All of them but the last work
//! with interrupts off on one CPU, and leave nothing behind there.

mod memory;
mod others;
mod program;

use core::arch::{asm, global_asm};

use super::{Kind, Measure};
use crate::cpu::percpu::Pinned;
use crate::hw::x86_64::{clock, cpu};
use crate::{OutOfMemory, PAGE_SIZE};

/// How often an operation stands in a loop that does nothing else, so that the loop itself counts
/// for little.
const UNROLLED: u64 = 8;
/// Pages that are used again after a switch of address spaces.
const REFILLED: usize = 4;

global_asm!(
    r#"
    .macro HW_COST_LOOP operation:vararg
1:
    .rept {unrolled}
    \operation
    .endr
    dec rsi
    jnz 1b
    .endm
    /* Room for `stac` and `clac`, written over when the CPU has SMAP. */
    .macro HW_COST_SMAP instruction
9999:
    nop dword ptr [rax]
    .pushsection .patch_sites, "a"
    .quad 9999b
    .quad \instruction
    .popsection
    .endm
    .macro HW_COST_REFILL
    .set page, 0
    .rept {refilled}
    mov rax, [rdx + page * {page_size}]
    .set page, page + 1
    .endr
    .endm

    .text
    /* Each: (rdi: a root, rsi: rounds, rdx: a program's pages in it, rcx: another root that has
       them too). */
    .balign 16
    .globl hw_cost_invalidate
hw_cost_invalidate:
    mov r8, cr3
    mov cr3, rdi
    HW_COST_LOOP invlpg [rdx]
    mov cr3, r8
    ret

    .balign 16
    .globl hw_cost_invalidate_and_refill
hw_cost_invalidate_and_refill:
    mov r8, cr3
    mov cr3, rdi
    HW_COST_SMAP 0xcb010f
1:
    .rept {unrolled}
    invlpg [rdx]
    mov rax, [rdx]
    .endr
    dec rsi
    jnz 1b
    HW_COST_SMAP 0xca010f
    mov cr3, r8
    ret

    .balign 16
    .globl hw_cost_flush
hw_cost_flush:
    mov r8, cr3
    HW_COST_LOOP mov cr3, r8
    ret

    .balign 16
    .globl hw_cost_switch
hw_cost_switch:
    mov r8, cr3
    HW_COST_SMAP 0xcb010f
1:
    .rept {unrolled} / 2
    mov cr3, rdi
    HW_COST_REFILL
    mov cr3, rcx
    HW_COST_REFILL
    .endr
    dec rsi
    jnz 1b
    HW_COST_SMAP 0xca010f
    mov cr3, r8
    ret

    .balign 16
    .globl hw_cost_lock
hw_cost_lock:
    HW_COST_LOOP lock inc qword ptr [rsp - 8]
    ret

    .balign 16
    .globl hw_cost_clock
hw_cost_clock:
1:
    .rept {unrolled}
    lfence
    rdtsc
    .endr
    dec rsi
    jnz 1b
    ret
    "#,
    unrolled = const UNROLLED,
    refilled = const REFILLED,
    page_size = const PAGE_SIZE,
);

/// A loop of [`UNROLLED`] operations a round.
type Loop = unsafe extern "C" fn(root: u64, rounds: u64, pages: usize, other: u64);

unsafe extern "C" {
    fn hw_cost_invalidate(root: u64, rounds: u64, pages: usize, other: u64);
    fn hw_cost_invalidate_and_refill(root: u64, rounds: u64, pages: usize, other: u64);
    fn hw_cost_flush(root: u64, rounds: u64, pages: usize, other: u64);
    fn hw_cost_switch(root: u64, rounds: u64, pages: usize, other: u64);
    fn hw_cost_lock(root: u64, rounds: u64, pages: usize, other: u64);
    fn hw_cost_clock(root: u64, rounds: u64, pages: usize, other: u64);
}

/// Measures all costs.
///
/// # Errors
/// [`OutOfMemory`].
pub(crate) fn measure_machine(measure: &mut Measure<'_>) -> Result<(), OutOfMemory> {
    program::measure(measure)?;
    let spaces = [program::Space::new()?, program::Space::new()?];
    let mut each = |name, code: Loop| {
        let mut batch = |operations: u64| {
            let rounds = operations.div_ceil(UNROLLED);
            let took = undisturbed(|| {
                // SAFETY: the loops keep to their registers and a word below the stack, which no
                // interrupt uses now. Both roots have the kernel's half and the pages, and stay
                // alive; the one that is loaded is loaded again at the end, which drops all that
                // the CPU has cached of the others.
                unsafe {
                    let [first, second] = spaces.each_ref().map(|space| space.root().0);
                    code(first, rounds, program::PAGES.0, second);
                }
            });
            took * operations / (rounds * UNROLLED)
        };
        measure(name, Kind::Time, &mut [&mut batch]);
    };
    each("invlpg", hw_cost_invalidate);
    each("invlpg_refill", hw_cost_invalidate_and_refill);
    each("tlb_flush", hw_cost_flush);
    each("space_switch", hw_cost_switch);
    each("lock", hw_cost_lock);
    each("clock", hw_cost_clock);
    drop(spaces);
    others::measure(measure)?;
    memory::measure(measure)
}

/// The picoseconds that `body` takes on this CPU with interrupts off.
fn undisturbed(body: impl FnOnce()) -> u64 {
    let irqs = cpu::irqs_disable();
    let took = timed(body);
    cpu::irqs_restore(irqs);
    took
}

/// The picoseconds that `body` takes on this CPU, interrupts included.
fn timed(body: impl FnOnce()) -> u64 {
    let _pinned = Pinned::new();
    let start = stamp();
    body();
    clock::picoseconds(stamp().saturating_sub(start))
}

/// The time-stamp counter when all before is done.
fn stamp() -> u64 {
    // SAFETY: waits for the instructions before it, nothing else.
    unsafe { asm!("lfence", options(nostack, preserves_flags)) };
    cpu::time_stamp()
}
