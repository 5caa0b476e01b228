//! Detours: a way into the kernel made longer by instructions that do nothing, so that a test sees
//! whether a bench finds what it is told about.
//!
//! A detour is a way in of its own, which ends at the usual one. So the usual ones carry nothing
//! for it.

use alloc::boxed::Box;
use core::arch::global_asm;

use crate::hw::x86_64::cpu::{msr, write_msr};
use crate::hw::x86_64::entry::{self, Gate};

/// What a detour adds to a system call: a few per cent of one that does nothing.
const CALL_NOPS: usize = 16;
/// What a detour adds to a page fault: some per cent of one that only brings a page of zeros.
const FAULT_NOPS: usize = 512;
/// The vector of a page fault.
const PAGE_FAULT: u8 = 14;

global_asm!(
    r#"
    .text
    .balign 16
    .globl detour_call
detour_call:
    .rept {calls}
    nop
    .endr
    jmp syscall_entry

    .balign 16
    .globl detour_fault
detour_fault:
    .rept {faults}
    nop
    .endr
    jmp trap_stubs + {stub}
    "#,
    calls = const CALL_NOPS,
    faults = const FAULT_NOPS,
    stub = const PAGE_FAULT as usize * entry::STUB,
);

unsafe extern "C" {
    fn detour_call();
    fn detour_fault();
}

/// Leads this CPU's system calls over the longer way.
pub fn slow_calls() {
    // SAFETY: the detour changes no register and no memory, and ends at the entry that it stands
    // for.
    unsafe { write_msr(msr::LSTAR, detour_call as *const () as u64) };
}

/// Leads this CPU's page faults over the longer way.
pub fn slow_faults() {
    let gate = Gate {
        vector: PAGE_FAULT,
        to: detour_fault as *const () as usize,
        from_programs: false,
    };
    let table = Box::leak(entry::table_with(&[gate]));
    // SAFETY: the table stays for good; it is the kernel's own but for a detour that changes
    // neither registers nor the stack and ends at the vector's own entry.
    unsafe { table.load() };
}
