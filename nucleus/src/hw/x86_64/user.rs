//! Running a program.

use super::cpu::{self, msr, rflags, write_msr};
use super::entry::{self, INT_80, SYSCALL};
use super::fault::{self, vector};
use super::fpu::UserState;
use super::gdt::{KERNEL_CODE, USER_CODE, USER_CODE_32, USER_DATA};
use super::{irq, percpu};
use crate::VirtAddr;
use crate::counters::Counter;
use crate::hw::Window;
use crate::hw::registers::{Event, Registers};

/// Prepares this CPU for `syscall`.
pub fn enable_syscall() {
    let selectors = u64::from(USER_CODE_32) << 48 | u64::from(KERNEL_CODE) << 32;
    let mask = rflags::INTERRUPT
        | rflags::DIRECTION
        | rflags::TRAP
        | rflags::ALIGNMENT
        | rflags::NESTED
        | rflags::IO_PRIVILEGE;
    // SAFETY: the entry is prepared for these selectors and flags. `syscall` in compatibility mode
    // exists on one maker's CPUs only; no program for Linux relies on it, and it goes to the same
    // entry, which treats it as any other.
    unsafe {
        write_msr(msr::STAR, selectors);
        write_msr(msr::LSTAR, entry::syscall_address() as u64);
        write_msr(msr::CSTAR, entry::syscall_address() as u64);
        write_msr(msr::SFMASK, mask);
    }
}

/// Makes registers that came from anywhere safe to enter a program with. False if the program
/// can't even be entered there: the processor would fault in the kernel, or a program in a small
/// space would run 64-bit code.
#[inline]
fn make_safe(regs: &mut Registers) -> bool {
    regs.rflags = regs.rflags & rflags::PROGRAM | rflags::INTERRUPT | 2;
    regs.ss = u64::from(USER_DATA);
    if regs.cs == u64::from(USER_CODE_32) {
        regs.rip &= 0xffff_ffff;
        regs.rsp &= 0xffff_ffff;
        return !percpu::is_small() || regs.rip < percpu::window().end as u64;
    }
    if percpu::is_small() {
        return false;
    }
    regs.cs = u64::from(USER_CODE);
    (regs.rip << 16) as i64 >> 16 == regs.rip as i64
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
    if !make_safe(regs) {
        return Event::Exception {
            vector: vector::PROTECTION as u8,
            code: 0,
        };
    }
    cpu::irqs_disable();
    // Comes back with interrupts off and no wish left to reschedule.
    percpu::preempt_program();
    if must_return() {
        cpu::irqs_enable();
        return Event::Interrupt;
    }
    state.make_live([regs.fs_base, regs.gs_base]);
    // SAFETY: interrupts are off, the registers were made safe, and lie where `UserContext` puts
    // them; the scheduler loaded the task's address space.
    let exit = unsafe { entry::enter_user(regs) };
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
