//! The ways into the kernel and back out, in assembly: traps, `syscall`, [`enter_flat`] and
//! [`enter_other`].
//!
//! While a program runs, the stack pointer in this CPU's task state is the address just past the
//! `ss` field of the program's [`Registers`](crate::hw::registers::Registers): a trap or a system
//! call pushes the program's registers straight into that structure, takes the kernel's stack
//! pointer back from the CPU's own data, and returns from `enter_flat` or `enter_other` as if that
//! had been a function. Traps from kernel code push the same frame onto the kernel stack they find.
//!
//! Three traps can come at an instant when the GS base or the stack is not the kernel's (double
//! fault, NMI, machine check). They have stacks of their own, at whose top stands the CPU's data.
//!
//! # The guarded ways
//!
//! Where [`mitigations`](super::mitigations) wants any of them, the same ways are taken through
//! `guarded_*`, in pages of their own (`.entry.text`). With isolated page tables a program runs
//! under a root that maps, of the kernel's half, only these pages, the interrupt descriptor table
//! and the first page of each CPU's [`PerCpu`]; so the CPU's stack pointer is a small stack there,
//! and what it pushed is copied behind the switch of roots. Without a mitigation none of this runs:
//! descriptor table and `syscall` lead to the ways above, and the ways out were not patched.

use core::arch::global_asm;
use core::mem::offset_of;
use core::ops::Range;

use super::gdt::{KERNEL_DATA, USER_CODE, USER_CODE_32, USER_DATA};
use super::mitigations;
use super::patch::Site;
use super::percpu::{ENTRY_SP, PerCpu};
use crate::hw::registers::Registers;

/// What the ways out give as the vector when the program executed `syscall`.
pub const SYSCALL: u64 = 0x100;
/// The gate of 32-bit system calls.
pub const INT_80: u64 = 0x80;

/// Bytes between two vectors' entries.
pub const STUB: usize = 16;

/// Registers at a trap from kernel code: as [`Registers`] without the bases.
#[repr(C)]
pub struct TrapFrame {
    /// `r15` to `rdi`.
    pub general: [u64; 15],
    pub error: u64,
    pub rip: u64,
    pub cs: u64,
    pub rflags: u64,
    pub rsp: u64,
    pub ss: u64,
}

/// Why a program was left.
#[repr(C)]
pub struct Exit {
    /// The trap's vector, or [`SYSCALL`].
    pub vector: u64,
    /// The trap's error code, 0 if it has none.
    pub error: u64,
}

const WORD: usize = 8;
const RIP: usize = offset_of!(Registers, rip);
const FLAGS: usize = offset_of!(Registers, rflags);
const SP: usize = offset_of!(Registers, rsp);
const ORIG_RAX: usize = offset_of!(Registers, orig_rax);
const RCX: usize = offset_of!(Registers, rcx);
const R11: usize = offset_of!(Registers, r11);
const END: usize = offset_of!(Registers, ss) + WORD;

const _: () = {
    assert!(offset_of!(Registers, r15) == 0 && offset_of!(Registers, r14) == WORD);
    assert!(offset_of!(Registers, rdi) == 14 * WORD && ORIG_RAX == 15 * WORD);
    assert!(RIP == 16 * WORD && END == 21 * WORD);
    assert!(size_of::<TrapFrame>() == END);
};

global_asm!(
    r#"
    /* All general registers but rdi, whose place holds the vector until then. */
    .macro PUSH_REST
    push rsi
    push rdx
    push rcx
    push rax
    push r8
    push r9
    push r10
    push r11
    push rbx
    push rbp
    push r12
    push r13
    push r14
    push r15
    .endm

    .macro POP_REST
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbp
    pop rbx
    pop r11
    pop r10
    pop r9
    pop r8
    pop rax
    pop rcx
    pop rdx
    pop rsi
    .endm

    .macro POP_ALL
    POP_REST
    pop rdi
    .endm

    /* The registers that a function leaves as they are, of the caller of a way out. */
    .macro PUSH_CALLEE_SAVED
    push rbp
    push rbx
    push r12
    push r13
    push r14
    push r15
    .endm

    .macro POP_CALLEE_SAVED
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbx
    pop rbp
    .endm

    /* The kernel's side of a way out: its registers and stack pointer, and the address just past
       the program's in `top`. */
    .macro LEAVE_KERNEL top
    PUSH_CALLEE_SAVED
    mov gs:[{kernel_sp}], rsp
    lea rax, [rdi + {end}]
    mov gs:[\top], rax
    mov rsp, rdi
    .endm

    /* Where the mitigations want it, the function that follows is patched with a short jump to the
       jump here. */
    .macro UNLESS_GUARDED function, guarded
    .balign 16
    .skip 11, 0x90
    .byte 0xe9
    .long \guarded - . - 4
    .globl \function
    .type \function, @function
\function:
    .pushsection .patch_sites, "a"
    .quad \function
    .quad {site_guard} << 56 | 0x90f9eb
    .popsection
    .endm

    /* `sysret` only for what it can do beside 64-bit code with the usual segments at an address
       with which it can't fault after the switch of privilege: rcx and r11 that hold rip and the
       flags, and no trap or resume flag. Otherwise goes on at `other`. */
    .macro UNLESS_SYSRET other
    mov rcx, [rsp + {rip}]
    cmp rcx, [rsp + {rcx}]
    jne \other
    mov r11, [rsp + {flags}]
    cmp r11, [rsp + {r11}]
    jne \other
    test r11d, 0x10100
    jnz \other
    .endm

    /* As POP_REST, but for rcx and r11, which `sysret` takes. */
    .macro POP_REST_FOR_SYSRET
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbp
    pop rbx
    add rsp, 8
    pop r10
    pop r9
    pop r8
    pop rax
    add rsp, 8
    pop rdx
    pop rsi
    .endm

    /* Room for `clac`, written over when the CPU has SMAP. */
    .macro CLOSE_USER_ON_ENTRY
9999:
    nop dword ptr [rax]
    .pushsection .patch_sites, "a"
    .quad 9999b
    .quad 0xca010f
    .popsection
    .endm

    /* Room for three bytes that are written there where the kind of site is patched. */
    .macro SITE kind, bytes
9999:
    nop dword ptr [rax]
    .pushsection .patch_sites, "a"
    .quad 9999b
    .quad \kind << 56 | \bytes
    .popsection
    .endm

    /* What follows, up to `END_PART`, is jumped over unless the kind of site is patched: then the
       jump is a no-op. */
    .macro PART kind
9999:
    .byte 0xeb, 9998f - 9997f
9997:
    nop
    .pushsection .patch_sites, "a"
    .quad 9999b
    .quad \kind << 56 | 0x001f0f
    .popsection
    .endm
    .macro END_PART
9998:
    .endm

    /* Overwrites the CPU's buffers before a program runs. The selector stands in a page that
       programs' roots have, too. */
    .macro CLEAR_BUFFERS
    PART {site_clear}
    verw word ptr [rip + clear_selector]
    END_PART
    .endm

    /* Restricts predictions as the kernel needs it, or as the program wants it. Changes rax, rcx
       and rdx. */
    .macro CONTROL field
    PART {site_control}
    mov ecx, {spec_ctrl}
    mov eax, gs:[\field]
    xor edx, edx
    wrmsr
    END_PART
    .endm

    /* Pushes the program's registers at a system call; its stack pointer is in `scratch`. */
    .macro PUSH_CALLER
    push {user_data}
    push qword ptr gs:[{scratch}]
    push r11
    push {user_code}
    push rcx
    push rax
    push rdi
    PUSH_REST
    .endm

    /* The same at `syscall` in 32-bit code, which is an invalid opcode. */
    .macro PUSH_CALLER_32
    push {user_data}
    push qword ptr gs:[{scratch}]
    push r11
    push {user_code_32}
    sub rcx, 2
    push rcx
    push -1
    push rdi
    PUSH_REST
    .endm

    /* At a trap on a stack of its own: pushes what was interrupted, and keeps its GS base in r12
       and r13. */
    .macro PUSH_ON_OWN_STACK
    xchg rdi, [rsp]
    PUSH_REST
    cld
    CLOSE_USER_ON_ENTRY
    mov ecx, {gs_base}
    rdmsr
    mov r12d, eax
    mov r13d, edx
    .endm

    /* Takes the kernel's GS base, which stands above what was pushed; rcx names its register. */
    .macro SET_GS_BASE
    mov rax, [rsp + {end}]
    mov rdx, rax
    shr rdx, 32
    wrmsr
    .endm

    .macro RESTORE_GS_BASE
    mov ecx, {gs_base}
    mov eax, r12d
    mov edx, r13d
    wrmsr
    .endm

    /* One stub of 16 bytes per vector: an error code where the CPU pushes none, then the vector. */
    .macro STUBS common, own_stack
    .set vector, 0
    .rept 256
    .balign 16
    .if vector == 8 || (vector >= 10 && vector <= 14) || vector == 17
    .elseif vector == 21 || vector == 29 || vector == 30
    .else
    push 0
    .endif
    push vector
    .if vector == 2 || vector == 8 || vector == 18
    jmp \own_stack
    .else
    jmp \common
    .endif
    .set vector, vector + 1
    .endr
    .endm

    .text
    .balign 16
    .globl trap_stubs
    .type trap_stubs, @function
trap_stubs:
    STUBS trap_common, trap_on_own_stack

    .balign 16
    .type trap_common, @function
trap_common:
    test byte ptr [rsp + 3 * 8], 3
    jnz 1f

trap_from_kernel:
    xchg rdi, [rsp]
    PUSH_REST
    cld
    CLOSE_USER_ON_ENTRY
    mov rsi, rsp
    sub rsp, 8
    call {kernel_trap}
    add rsp, 8
    POP_ALL
    add rsp, 8
    iretq

    /* From a program: rsp points into its registers. */
1:
    swapgs
    xchg rdi, [rsp]
    PUSH_REST
trap_from_program:
    mov rax, rdi
    mov rdx, [rsp + {orig_rax}]
    mov qword ptr [rsp + {orig_rax}], -1
    mov rsp, gs:[{kernel_sp}]
    cld
    CLOSE_USER_ON_ENTRY
    POP_CALLEE_SAVED
    ret

    .balign 16
    .globl syscall_entry
    .type syscall_entry, @function
syscall_entry:
    /* SFMASK cleared the interrupt, direction, trap and alignment flags. */
    swapgs
    mov gs:[{scratch}], rsp
    mov rsp, gs:[{entry_sp}]
    PUSH_CALLER
syscall_leave:
    mov rsp, gs:[{kernel_sp}]
    mov eax, {syscall}
    POP_CALLEE_SAVED
    ret

    .balign 16
    .globl syscall_entry_32
    .type syscall_entry_32, @function
syscall_entry_32:
    swapgs
    mov gs:[{scratch}], rsp
    mov rsp, gs:[{entry_sp}]
    PUSH_CALLER_32
syscall_leave_32:
    mov rsp, gs:[{kernel_sp}]
    mov eax, {invalid_opcode}
    xor edx, edx
    POP_CALLEE_SAVED
    ret

    UNLESS_GUARDED enter_flat_registers, enter_flat_guarded
    LEAVE_KERNEL {entry_sp}
    UNLESS_SYSRET enter_by_iret
    POP_REST_FOR_SYSRET
    pop rdi
    mov rsp, [rsp + {sp} - {orig_rax}]
    swapgs
    sysretq

    UNLESS_GUARDED enter_other_registers, enter_other_guarded
    LEAVE_KERNEL {entry_sp}
enter_by_iret:
    POP_ALL
    add rsp, 8
    swapgs
    iretq

    /* The CPU's data stands just above what the CPU pushed: 5 words, the error code, the vector. */
    .balign 16
    .type trap_on_own_stack, @function
trap_on_own_stack:
    PUSH_ON_OWN_STACK
    SET_GS_BASE
    mov rsi, rsp
    sub rsp, 8
    call {own_stack_trap}
    add rsp, 8
    RESTORE_GS_BASE
    POP_ALL
    add rsp, 8
    iretq

    .section .entry.text, "ax"
    .balign 4096
    .globl guarded_stubs
    .type guarded_stubs, @function
guarded_stubs:
    STUBS guarded_trap, guarded_trap_on_own_stack

    .balign 16
    .type guarded_trap, @function
guarded_trap:
    test byte ptr [rsp + 3 * 8], 3
    jnz 1f
    /* No speculation goes on with a program's GS base, here or behind `swapgs`. */
    SITE {site_fence}, 0xe8ae0f
    jmp trap_from_kernel
1:
    swapgs
    SITE {site_fence}, 0xe8ae0f
    mov gs:[{scratch}], rdi
    mov rdi, gs:[{kernel_root}]
    SITE {site_isolate}, 0xdf220f
    mov rdi, gs:[{context_end}]
    xchg rdi, rsp
    push qword ptr [rdi + 6 * 8]
    push qword ptr [rdi + 5 * 8]
    push qword ptr [rdi + 4 * 8]
    push qword ptr [rdi + 3 * 8]
    push qword ptr [rdi + 2 * 8]
    push qword ptr [rdi + 1 * 8]
    push qword ptr gs:[{scratch}]
    mov rdi, [rdi]
    PUSH_REST
    CONTROL {kernel_controls}
    jmp trap_from_program

    .balign 16
    .globl guarded_syscall_entry
    .type guarded_syscall_entry, @function
guarded_syscall_entry:
    swapgs
    mov gs:[{scratch}], rsp
    mov rsp, gs:[{kernel_root}]
    SITE {site_isolate}, 0xdc220f
    mov rsp, gs:[{context_end}]
    PUSH_CALLER
    CONTROL {kernel_controls}
    jmp syscall_leave

    .balign 16
    .globl guarded_syscall_entry_32
    .type guarded_syscall_entry_32, @function
guarded_syscall_entry_32:
    swapgs
    mov gs:[{scratch}], rsp
    mov rsp, gs:[{kernel_root}]
    SITE {site_isolate}, 0xdc220f
    mov rsp, gs:[{context_end}]
    PUSH_CALLER_32
    CONTROL {kernel_controls}
    jmp syscall_leave_32

    .balign 16
    .type enter_flat_guarded, @function
enter_flat_guarded:
    LEAVE_KERNEL {context_end}
    /* No indirect branch and no return follows. */
    CONTROL {program_controls}
    UNLESS_SYSRET enter_by_iret_guarded
    POP_REST_FOR_SYSRET
    mov rdi, [rsp]
    mov gs:[{scratch}], rdi
    mov rsp, [rsp + 8 + {sp} - {orig_rax}]
    mov rdi, gs:[{user_root}]
    SITE {site_isolate}, 0xdf220f
    CLEAR_BUFFERS
    mov rdi, gs:[{scratch}]
    swapgs
    sysretq

    .balign 16
    .type enter_other_guarded, @function
enter_other_guarded:
    LEAVE_KERNEL {context_end}
    CONTROL {program_controls}
enter_by_iret_guarded:
    POP_REST
    /* At rdi: rdi, orig_rax, and what `iretq` takes. */
    mov rdi, rsp
    mov rsp, gs:[{entry_sp}]
    push qword ptr [rdi + 6 * 8]
    push qword ptr [rdi + 5 * 8]
    push qword ptr [rdi + 4 * 8]
    push qword ptr [rdi + 3 * 8]
    push qword ptr [rdi + 2 * 8]
    push qword ptr [rdi]
    mov rdi, gs:[{user_root}]
    SITE {site_isolate}, 0xdf220f
    CLEAR_BUFFERS
    pop rdi
    swapgs
    iretq

    /* Above what the CPU pushed: its data, the top of the stack for the handler, and the kernel's
       own root. What was interrupted may have run under any root. */
    .balign 16
    .type guarded_trap_on_own_stack, @function
guarded_trap_on_own_stack:
    PUSH_ON_OWN_STACK
    mov rbx, cr3
    mov rax, [rsp + {end} + 2 * 8]
    SITE {site_isolate}, 0xd8220f
    SET_GS_BASE
    lfence
    PART {site_control}
    mov ecx, {spec_ctrl}
    rdmsr
    mov r15d, eax
    mov eax, gs:[{kernel_controls}]
    wrmsr
    END_PART
    mov r14, rsp
    mov rsi, rsp
    mov rsp, [rsp + {end} + 8]
    call {own_stack_trap}
    mov rsp, r14
    PART {site_control}
    mov ecx, {spec_ctrl}
    mov eax, r15d
    xor edx, edx
    wrmsr
    END_PART
    RESTORE_GS_BASE
    SITE {site_isolate}, 0xdb220f
    CLEAR_BUFFERS
    POP_ALL
    add rsp, 8
    iretq

    .balign 2
clear_selector:
    .short {kernel_data}
    .text
    "#,
    kernel_trap = sym super::fault::kernel_trap,
    own_stack_trap = sym super::fault::own_stack_trap,
    kernel_sp = const offset_of!(PerCpu, kernel_sp),
    scratch = const offset_of!(PerCpu, scratch),
    entry_sp = const ENTRY_SP,
    kernel_root = const offset_of!(PerCpu, kernel_root),
    user_root = const offset_of!(PerCpu, user_root),
    context_end = const offset_of!(PerCpu, context_end),
    kernel_data = const KERNEL_DATA,
    site_isolate = const Site::Isolate as u64,
    site_clear = const Site::Clear as u64,
    site_fence = const Site::Fence as u64,
    site_guard = const Site::Guard as u64,
    site_control = const Site::Control as u64,
    kernel_controls = const offset_of!(PerCpu, kernel_controls),
    program_controls = const offset_of!(PerCpu, program_controls),
    spec_ctrl = const super::cpu::msr::SPEC_CTRL,
    user_data = const USER_DATA,
    user_code = const USER_CODE,
    user_code_32 = const USER_CODE_32,
    invalid_opcode = const super::fault::vector::INVALID_OPCODE,
    syscall = const SYSCALL,
    orig_rax = const ORIG_RAX,
    rip = const RIP,
    flags = const FLAGS,
    sp = const SP,
    rcx = const RCX,
    r11 = const R11,
    end = const END,
    gs_base = const super::cpu::msr::GS_BASE,
);

unsafe extern "C" {
    static trap_stubs: u8;
    static guarded_stubs: u8;
    static __entry_start: u8;
    static __entry_end: u8;
    fn syscall_entry();
    fn guarded_syscall_entry();
    fn syscall_entry_32();
    fn guarded_syscall_entry_32();
    fn enter_flat_registers(registers: *mut Registers) -> Exit;
    fn enter_other_registers(registers: *mut Registers) -> Exit;
}

/// Runs the program with these registers until it traps, with interrupts off before and after: in
/// 64-bit code with the usual segments, by the shortest way.
///
/// # Safety
/// As of [`enter_other`]; the selectors are [`USER_CODE`] and [`USER_DATA`](super::gdt::USER_DATA),
/// and `rip` is an address of the half that programs have.
#[inline]
pub unsafe fn enter_flat(registers: &mut Registers) -> Exit {
    debug_assert_eq!(core::ptr::from_mut(registers) as usize % 16, 8);
    // SAFETY: the caller's promise.
    unsafe { enter_flat_registers(registers) }
}

/// As [`enter_flat`] with any segments.
///
/// # Safety
/// Interrupts are off; the current address space is the program's; the code and stack selectors
/// are a program's and present in this CPU's tables, the flags hold no privilege, `rip` is
/// canonical and within the code segment's limit; `registers` lies at 8 modulo
/// 16, because the CPU aligns a stack pointer that it takes from the task state.
#[inline]
pub unsafe fn enter_other(registers: &mut Registers) -> Exit {
    debug_assert_eq!(core::ptr::from_mut(registers) as usize % 16, 8);
    // SAFETY: the caller's promise.
    unsafe { enter_other_registers(registers) }
}

/// Where `syscall` goes.
pub fn syscall_address() -> usize {
    match mitigations::is_guarded() {
        true => guarded_syscall_entry as *const () as usize,
        false => syscall_entry as *const () as usize,
    }
}

/// Where `syscall` in 32-bit code goes, on CPUs that have it there.
pub fn syscall_32_address() -> usize {
    match mitigations::is_guarded() {
        true => guarded_syscall_entry_32 as *const () as usize,
        false => syscall_entry_32 as *const () as usize,
    }
}

/// Where traps go: an entry of [`STUB`] bytes for each vector, one after another.
pub fn stubs() -> usize {
    match mitigations::is_guarded() {
        true => &raw const guarded_stubs as usize,
        false => &raw const trap_stubs as usize,
    }
}

/// What programs' own roots must have: the pages of the guarded ways, and the interrupt descriptor
/// table.
pub fn ways_in() -> Range<usize> {
    &raw const __entry_start as usize..&raw const __entry_end as usize
}
