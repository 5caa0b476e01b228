//! Traps from kernel code, and what they mean.

use core::mem::offset_of;

use super::cpu;
use super::entry::TrapFrame;
use super::{copy, guard, irq, layout, panic, percpu};
use crate::addr::USER_END;
use crate::hw::{self, handlers};
use crate::{Access, VirtAddr};

/// The vectors that the CPU itself raises and that are treated by name.
pub mod vector {
    pub const NON_MASKABLE: u64 = 2;
    pub const INVALID_OPCODE: u64 = 6;
    pub const DOUBLE_FAULT: u64 = 8;
    pub const ABSENT: u64 = 11;
    pub const STACK: u64 = 12;
    pub const PROTECTION: u64 = 13;
    pub const PAGE_FAULT: u64 = 14;
    /// First vector that a device may use.
    pub const DEVICES: u64 = 32;
}

const ERROR_PRESENT: u64 = 1;
const ERROR_WRITE: u64 = 2;
const ERROR_FETCH: u64 = 16;

/// What a page fault's error code says was tried.
pub fn access(error: u64) -> Access {
    if error & ERROR_FETCH != 0 {
        Access::Execute
    } else if error & ERROR_WRITE != 0 {
        Access::Write
    } else {
        Access::Read
    }
}

/// Whether a page fault met a mapping that forbids the access, rather than none.
pub fn present(error: u64) -> bool {
    error & ERROR_PRESENT != 0
}

/// A trap that interrupted kernel code, on that code's stack, with interrupts off.
pub extern "C" fn kernel_trap(vector: u64, frame: &mut TrapFrame) {
    match vector {
        vector::PAGE_FAULT => page_fault(frame),
        // A non-canonical address in a copy to or from a program.
        vector::PROTECTION | vector::STACK => match copy::fixup(frame.rip) {
            Some(fixup) => frame.rip = fixup,
            None => fatal(vector, frame),
        },
        vector::DEVICES.. => {
            irq::handle(vector, false);
            // The interrupted code had interrupts on, or this would not have come.
            percpu::preempt();
        }
        _ => fatal(vector, frame),
    }
}

fn page_fault(frame: &mut TrapFrame) {
    let addr = VirtAddr(cpu::fault_address());
    if addr >= USER_END && guard::is_spurious(addr, frame.error) {
        return;
    }
    let Some(fixup) = copy::fixup(frame.rip) else {
        fatal(vector::PAGE_FAULT, frame);
    };
    let mut resolved = false;
    let had_interrupts = frame.rflags & cpu::rflags::INTERRUPT != 0;
    if addr < USER_END && had_interrupts && copy::may_resolve(frame.rip) {
        cpu::irqs_enable();
        resolved = handlers::resolve_fault(addr, access(frame.error));
        cpu::irqs_disable();
    }
    if !resolved {
        frame.rip = fixup;
    }
}

/// A double fault, an NMI or a machine check, on a stack of its own.
pub extern "C" fn own_stack_trap(vector: u64, frame: &mut TrapFrame) {
    match vector {
        vector::NON_MASKABLE => {
            if panic::in_progress() {
                cpu::halt();
            }
            // A watchdog or an operator pressed a button that means nothing here.
        }
        _ => fatal(vector, frame),
    }
}

/// A trap that no kernel code may cause.
fn fatal(vector: u64, frame: &TrapFrame) -> ! {
    let frame_pointer = frame.general[offset_of!(hw::registers::Registers, rbp) / size_of::<u64>()];
    panic::set_origin(frame.rip as usize, frame_pointer as usize);
    let address = cpu::fault_address();
    if vector == vector::DOUBLE_FAULT && layout::is_stack_guard(frame.rsp as usize) {
        panic!(
            "kernel stack overflow at {:#x}, stack pointer {:#x}",
            frame.rip, frame.rsp
        );
    }
    let why = match vector {
        vector::PAGE_FAULT => guard::explain(VirtAddr(address), frame.error),
        _ => "",
    };
    panic!(
        "{} in the kernel, error code {:#x}, address {:#x}{why}\n{}",
        name(vector),
        frame.error,
        address,
        Registers(frame)
    );
}

fn name(vector: u64) -> &'static str {
    match vector {
        0 => "divide error",
        1 => "debug trap",
        2 => "non-maskable interrupt",
        3 => "breakpoint",
        6 => "invalid opcode",
        8 => "double fault",
        10 => "invalid task state",
        11 => "segment not present",
        12 => "stack fault",
        13 => "general protection fault",
        14 => "page fault",
        17 => "alignment check",
        18 => "machine check",
        _ => "unexpected trap",
    }
}

/// The general registers, as they lie in a [`TrapFrame`].
const NAMES: [&str; 15] = [
    "r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi",
    "rdi",
];

struct Registers<'a>(&'a TrapFrame);

impl core::fmt::Display for Registers<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let r = self.0;
        writeln!(
            f,
            "rip {:016x} rsp {:016x} flags {:08x}",
            r.rip, r.rsp, r.rflags
        )?;
        for (i, (name, value)) in NAMES.iter().zip(r.general).enumerate() {
            let end = if i % 4 == 3 { '\n' } else { ' ' };
            write!(f, "{name:3} {value:016x}{end}")?;
        }
        Ok(())
    }
}
