//! Slowdowns: a way into the kernel made longer by instructions that do nothing, so that a test
//! sees whether a bench finds what it is told about.
//!
//! A slow way in is a way in of its own, which ends at the usual one. So the usual ones carry
//! nothing for it.

use alloc::boxed::Box;
use core::arch::global_asm;

use crate::hw::x86_64::cpu::{msr, write_msr};
use crate::hw::x86_64::{
    entry::STUB,
    idt::{self, Gate},
};

/// What a slow way in adds to a system call: a few per cent of one that does nothing.
const CALL_NOPS: usize = 16;
/// What a slow way in adds to a page fault: some per cent of one that only brings a page of zeros.
const FAULT_NOPS: usize = 512;
/// The vector of a page fault.
const PAGE_FAULT: u8 = 14;

global_asm!(
    r#"
    .text
    .balign 16
    .globl slow_call
slow_call:
    .rept {calls}
    nop
    .endr
    jmp syscall_entry

    .balign 16
    .globl slow_fault
slow_fault:
    .rept {faults}
    nop
    .endr
    jmp trap_stubs + {stub}
    "#,
    calls = const CALL_NOPS,
    faults = const FAULT_NOPS,
    stub = const PAGE_FAULT as usize * STUB,
);

unsafe extern "C" {
    fn slow_call();
    fn slow_fault();
}

/// Leads this CPU's system calls over the longer way.
pub fn slow_calls() {
    // SAFETY: the slow way in changes no register and no memory, and ends at the entry that it
    // stands for.
    unsafe { write_msr(msr::LSTAR, slow_call as *const () as u64) };
}

/// Leads this CPU's page faults over the longer way.
pub fn slow_faults() {
    let gate = Gate {
        vector: PAGE_FAULT,
        to: slow_fault as *const () as usize,
        from_programs: false,
    };
    let table = Box::leak(idt::table_with(&[gate]));
    // SAFETY: the table stays for good; it is the kernel's own but for a slow way in that changes
    // neither registers nor the stack and ends at the vector's own entry.
    unsafe { table.load() };
}
