//! Running a program.

use super::cpu::{self, msr, rflags, write_msr};
use super::entry::{self, INT_80, SYSCALL};
use super::fault::{self, vector};
use super::gdt::{self, KERNEL_CODE, USER_CODE, USER_CODE_32, USER_DATA};
use super::user_state::UserState;
use super::{irq, percpu};
use crate::VirtAddr;
use crate::addr::USER_END;
use crate::counters::Counter;
use crate::hw::registers::{Event, Registers};
use crate::hw::{Window, segment, segment::WRITABLE};

/// Bits of the addresses of the half that programs have.
const USER_BITS: u32 = 47;
const _: () = assert!(USER_END.0 >> USER_BITS == 0 && USER_END.0 >> (USER_BITS - 1) != 0);

/// Prepares this CPU for `syscall`.
pub fn enable_syscall() {
    let selectors = u64::from(USER_CODE_32) << 48 | u64::from(KERNEL_CODE) << 32;
    let mask = rflags::INTERRUPT
        | rflags::DIRECTION
        | rflags::TRAP
        | rflags::ALIGNMENT
        | rflags::NESTED
        | rflags::IO_PRIVILEGE;
    // SAFETY: the entries are prepared for these selectors and flags. Where 32-bit code has
    // `syscall`, it has an entry of its own; `sysenter` faults there without a code segment.
    unsafe {
        write_msr(msr::STAR, selectors);
        write_msr(msr::LSTAR, entry::syscall_address() as u64);
        write_msr(msr::CSTAR, entry::syscall_32_address() as u64);
        write_msr(msr::SFMASK, mask);
        write_msr(msr::SYSENTER_CS, 0);
    }
}

/// Whether registers that came from anywhere, their flags apart, are safe to enter a 64-bit program
/// with: 64-bit code of the program's half, with the usual segments.
#[inline]
fn is_flat(regs: &Registers) -> bool {
    let segments = (u64::from(USER_CODE), u64::from(USER_DATA));
    (regs.cs, regs.ss) == segments && regs.rip >> USER_BITS == 0
}

/// Makes registers safe that may name other segments, by the descriptors that this CPU has: what
/// the program could load itself, and an instruction pointer within the limit of its code.
///
/// # Errors
/// The vector and the error code of what the program has instead: the fault of the processor if it
/// went on there.
///
/// # Context
/// Interrupts are off, and stay off until the program is entered; its state is live.
#[inline(never)]
fn make_safe(regs: &mut Registers) -> Result<(), (u64, u64)> {
    /// Of programs' privilege, code or data.
    const MASK: u64 = 0x78 << 40;
    const CODE: u64 = 0x78 << 40;
    const DATA: u64 = 0x70 << 40;
    const LONG: u64 = 1 << 53;
    let this = percpu::this();
    let find = |selector: &mut u64, kind: u64, mask: u64, absent: u64| {
        *selector = *selector & 0xffff | 3;
        let error = *selector & 0xfffc;
        match gdt::descriptor(this, *selector).filter(|word| word & mask == kind) {
            Some(word) if word & segment::PRESENT != 0 => Ok(word),
            Some(_) => Err((absent, error)),
            None => Err((vector::PROTECTION, error)),
        }
    };
    let code = find(&mut regs.cs, CODE, MASK, vector::ABSENT)?;
    find(
        &mut regs.ss,
        DATA | WRITABLE,
        MASK | WRITABLE,
        vector::STACK,
    )?;
    let is_there = if code & LONG != 0 {
        (regs.rip << 16) as i64 >> 16 == regs.rip as i64
    } else {
        regs.rip &= 0xffff_ffff;
        regs.rsp &= 0xffff_ffff;
        regs.rip <= segment::limit(code)
    };
    is_there.then_some(()).ok_or((vector::PROTECTION, 0))
}

/// Runs the program in the current address space until something happens; see
/// [`UserContext::run`](crate::hw::user_context::UserContext::run).
#[inline]
pub(crate) fn run(
    regs: &mut Registers,
    state: &mut UserState,
    must_return: impl FnOnce() -> bool,
) -> Event {
    debug_assert_eq!(percpu::preempt_count(), 0);
    debug_assert!(cpu::irqs_enabled());
    regs.rflags = regs.rflags & rflags::PROGRAM | rflags::INTERRUPT | 2;
    cpu::irqs_disable();
    // Comes back with interrupts off and no wish left to reschedule.
    percpu::preempt_program();
    if must_return() {
        cpu::irqs_enable();
        return Event::Interrupt;
    }
    let has_flat_segments = state.make_live([regs.fs_base, regs.gs_base]);
    let exit = if has_flat_segments && is_flat(regs) {
        // SAFETY: interrupts are off, the registers are safe, and lie where `UserContext` puts
        // them; the scheduler loaded the task's address space.
        unsafe { entry::enter_flat(regs) }
    } else if let Err((vector, code)) = make_safe(regs) {
        cpu::irqs_enable();
        return Event::Exception {
            vector: vector as u8,
            code,
        };
    } else {
        // SAFETY: as above, made safe.
        unsafe { entry::enter_other(regs) }
    };
    match exit.vector {
        SYSCALL => {
            cpu::irqs_enable();
            Event::SystemCall
        }
        vector::PAGE_FAULT => {
            let addr = VirtAddr(cpu::fault_address());
            // Its segments may be older than the window.
            let base = percpu::segments_base();
            cpu::irqs_enable();
            let addr = Window { base, end: 0 }.program_address(addr);
            let access = fault::access(exit.error);
            Event::PageFault {
                addr,
                access,
                present: fault::present(exit.error),
            }
        }
        INT_80 => {
            cpu::irqs_enable();
            regs.orig_rax = regs.rax;
            Event::SystemCall32
        }
        number @ vector::DEVICES.. => {
            irq::handle(number, true);
            percpu::preempt_program();
            cpu::irqs_enable();
            Event::Interrupt
        }
        vector::PROTECTION
            if percpu::segments_base() != 0 && exit.error == 0 && state.turn_segments(regs) =>
        {
            Counter::segments_turned.add(1);
            cpu::irqs_enable();
            Event::Interrupt
        }
        number => {
            cpu::irqs_enable();
            Event::Exception {
                vector: number as u8,
                code: exit.error,
            }
        }
    }
}

/// Zeroes the selectors that a program may have loaded: called where a CPU starts.
pub fn clear_selectors() {
    // SAFETY: 64-bit code uses none of these; the bases are set afterwards.
    unsafe {
        core::arch::asm!("mov ds, {0:e}", "mov es, {0:e}", "mov fs, {0:e}", "mov gs, {0:e}",
            in(reg) 0u32, options(nostack, preserves_flags));
    }
}
