//! The ways into the kernel and back out, in assembly: traps, `syscall`, and [`enter_user`].
//!
//! While a program runs, the stack pointer in this CPU's task state is the address just past the
//! `ss` field of the program's [`Registers`](crate::hw::registers::Registers): a trap or a system
//! call pushes the program's registers straight into that structure, takes the kernel's stack
//! pointer back from the CPU's own data, and returns from `enter_user` as if that had been a
//! function. Traps from kernel code push the same frame onto the kernel stack they find.
//!
//! Three traps can come at an instant when the GS base or the stack is not the kernel's (double
//! fault, NMI, machine check). They have stacks of their own, at whose top stands the CPU's data.

use alloc::boxed::Box;
use core::arch::{asm, global_asm};

use super::gdt::{InterruptStack, KERNEL_CODE, USER_CODE, USER_DATA};
use super::percpu::{ENTRY_SP, PerCpu};
use super::vectors;
use crate::addr::USER_END;
use crate::hw::registers::Registers;
use core::mem::offset_of;

/// What `enter_user` gives as the vector when the program executed `syscall`.
pub const SYSCALL: u64 = 0x100;
/// The gate of 32-bit system calls.
pub const INT_80: u64 = 0x80;

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
const CS: usize = offset_of!(Registers, cs);
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

    .macro POP_ALL
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
    pop rdi
    .endm

    /* Room for `clac`, written over when the CPU has SMAP. */
    .macro CLOSE_USER_ON_ENTRY
9999:
    nop dword ptr [rax]
    .pushsection .smap_sites, "a"
    .quad 9999b
    .quad 0xca010f
    .popsection
    .endm

    .text
    /* One stub of 16 bytes per vector: an error code where the CPU pushes none, then the vector. */
    .balign 16
    .globl trap_stubs
    .type trap_stubs, @function
trap_stubs:
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
    jmp trap_on_own_stack
    .else
    jmp trap_common
    .endif
    .set vector, vector + 1
    .endr

    .balign 16
    .type trap_common, @function
trap_common:
    test byte ptr [rsp + 3 * 8], 3
    jnz 1f

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
    mov rax, rdi
    mov rdx, [rsp + {orig_rax}]
    mov qword ptr [rsp + {orig_rax}], -1
    mov rsp, gs:[{kernel_sp}]
    cld
    CLOSE_USER_ON_ENTRY
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbx
    pop rbp
    ret

    .balign 16
    .globl syscall_entry
    .type syscall_entry, @function
syscall_entry:
    /* SFMASK cleared the interrupt, direction, trap and alignment flags. */
    swapgs
    mov gs:[{scratch}], rsp
    mov rsp, gs:[{entry_sp}]
    push {user_data}
    push qword ptr gs:[{scratch}]
    push r11
    push {user_code}
    push rcx
    push rax
    push rdi
    PUSH_REST
    mov rsp, gs:[{kernel_sp}]
    mov eax, {syscall}
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbx
    pop rbp
    ret

    .balign 16
    .globl enter_user_registers
    .type enter_user_registers, @function
enter_user_registers:
    push rbp
    push rbx
    push r12
    push r13
    push r14
    push r15
    mov gs:[{kernel_sp}], rsp
    lea rax, [rdi + {end}]
    mov gs:[{entry_sp}], rax
    mov rsp, rdi
    /* `sysret` only for what it can do: 64-bit code, rcx and r11 that hold rip and the flags, no
       trap or resume flag, and an address with which it can't fault after the switch of
       privilege. */
    mov rcx, [rsp + {rip}]
    cmp rcx, [rsp + {rcx}]
    jne 1f
    mov r11, [rsp + {flags}]
    cmp r11, [rsp + {r11}]
    jne 1f
    cmp dword ptr [rsp + {cs}], {user_code}
    jne 1f
    test r11d, 0x10100
    jnz 1f
    movabs rax, {user_end}
    cmp rcx, rax
    jae 1f
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
    pop rdi
    mov rsp, [rsp + {sp} - {orig_rax}]
    swapgs
    sysretq
1:
    POP_ALL
    add rsp, 8
    swapgs
    iretq

    /* The CPU's data stands just above what the CPU pushed: 5 words, the error code, the vector. */
    .balign 16
    .type trap_on_own_stack, @function
trap_on_own_stack:
    xchg rdi, [rsp]
    PUSH_REST
    cld
    CLOSE_USER_ON_ENTRY
    mov ecx, {gs_base}
    rdmsr
    mov r12d, eax
    mov r13d, edx
    mov rax, [rsp + {end}]
    mov rdx, rax
    shr rdx, 32
    wrmsr
    mov rsi, rsp
    sub rsp, 8
    call {own_stack_trap}
    add rsp, 8
    mov ecx, {gs_base}
    mov eax, r12d
    mov edx, r13d
    wrmsr
    POP_ALL
    add rsp, 8
    iretq
    "#,
    kernel_trap = sym super::fault::kernel_trap,
    own_stack_trap = sym super::fault::own_stack_trap,
    kernel_sp = const offset_of!(PerCpu, kernel_sp),
    scratch = const offset_of!(PerCpu, scratch),
    entry_sp = const ENTRY_SP,
    user_data = const USER_DATA,
    user_code = const USER_CODE,
    syscall = const SYSCALL,
    orig_rax = const ORIG_RAX,
    rip = const RIP,
    cs = const CS,
    flags = const FLAGS,
    sp = const SP,
    rcx = const RCX,
    r11 = const R11,
    end = const END,
    user_end = const USER_END.0,
    gs_base = const super::cpu::msr::GS_BASE,
);

unsafe extern "C" {
    /// The gate of [`vectors::HW_COST`], in `selftest::hw_cost`.
    fn hw_cost_answer();
}

unsafe extern "C" {
    static trap_stubs: u8;
    fn syscall_entry();
    fn enter_user_registers(registers: *mut Registers) -> Exit;
    static __smap_sites_start: [u64; 2];
    static __smap_sites_end: [u64; 2];
}

/// Runs the program with these registers until it traps, with interrupts off before and after.
///
/// # Safety
/// Interrupts are off; the current address space is the program's; the code and stack selectors
/// are a program's, the flags hold no privilege, `rip` is canonical; `registers` lies at 8 modulo
/// 16, because the CPU aligns a stack pointer that it takes from the task state.
#[inline]
pub unsafe fn enter_user(registers: &mut Registers) -> Exit {
    debug_assert_eq!(core::ptr::from_mut(registers) as usize % 16, 8);
    // SAFETY: the caller's promise.
    unsafe { enter_user_registers(registers) }
}

/// Where `syscall` goes.
pub fn syscall_address() -> usize {
    syscall_entry as *const () as usize
}

/// Replaces the no-ops at the borders with `stac` and `clac`. Once, before the text is
/// write-protected and before other CPUs run; only for a CPU with SMAP.
pub fn patch_smap() {
    let mut site = &raw const __smap_sites_start;
    let end = &raw const __smap_sites_end;
    while site < end {
        // SAFETY: the linker script collects pairs of the address of a 3-byte no-op in the text and
        // the 3-byte instruction for it; the boot page tables let text be written.
        unsafe {
            let [address, instruction] = *site;
            let bytes = instruction.to_le_bytes();
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, 3);
            site = site.add(1);
        }
    }
    // SAFETY: a serializing instruction, after which the patched text is fetched anew.
    unsafe {
        asm!("push rbx", "cpuid", "pop rbx", inout("eax") 0 => _, out("ecx") _, out("edx") _);
    };
}

/// Bytes between two vectors' entries.
pub const STUB: usize = 16;
const PRESENT: u64 = 1 << 15;
const INTERRUPT_GATE: u64 = 0xe << 8;
const FROM_PROGRAMS: u64 = 3 << 13;

/// An interrupt descriptor table.
#[repr(C, align(16))]
pub struct Table([[u64; 2]; 256]);

static mut TABLE: Table = Table([[0; 2]; 256]);

/// Where a trap goes in a table of [`table_with`].
pub struct Gate {
    pub vector: u8,
    pub to: usize,
    /// Whether programs may raise it.
    pub from_programs: bool,
}

impl Gate {
    fn encode(&self, stack: u64) -> [u64; 2] {
        let privilege = if self.from_programs { FROM_PROGRAMS } else { 0 };
        let attributes = PRESENT | privilege | INTERRUPT_GATE | stack;
        let to = self.to as u64;
        let low = to & 0xffff
            | u64::from(KERNEL_CODE) << 16
            | attributes << 32
            | (to >> 16 & 0xffff) << 48;
        [low, to >> 32]
    }
}

/// Fills the interrupt descriptor table. Once, on the boot CPU.
pub fn build_table() {
    for vector in 0..=255u8 {
        let to = match vector {
            vectors::HW_COST => hw_cost_answer as *const () as usize,
            _ => (&raw const trap_stubs) as usize + usize::from(vector) * STUB,
        };
        let stack = match vector {
            2 => InterruptStack::NonMaskable as u64,
            8 => InterruptStack::DoubleFault as u64,
            18 => InterruptStack::MachineCheck as u64,
            _ => 0,
        };
        let gate = Gate {
            vector,
            to,
            // Breakpoint, overflow, and the 32-bit system call are for programs to raise.
            from_programs: matches!(vector, 3 | 4 | 0x80),
        };
        // SAFETY: only the boot CPU runs, and the table is loaded afterwards.
        unsafe { (&raw mut TABLE.0[usize::from(vector)]).write(gate.encode(stack)) };
    }
}

/// A table as the kernel's own but for some gates, whose traps stay on the stack that they find.
pub fn table_with(gates: &[Gate]) -> Box<Table> {
    // SAFETY: the table is filled in, and does not change any more.
    let mut table = Box::new(Table(unsafe { (&raw const TABLE.0).read() }));
    for gate in gates {
        table.0[usize::from(gate.vector)] = gate.encode(0);
    }
    table
}

impl Table {
    /// Makes this CPU use it.
    ///
    /// # Safety
    /// The table stays until the CPU uses another one, and its gates bear whatever traps come until
    /// then.
    pub unsafe fn load(&self) {
        #[repr(C, packed)]
        struct Pointer {
            limit: u16,
            base: u64,
        }
        let pointer = Pointer {
            limit: (size_of::<Table>() - 1) as u16,
            base: core::ptr::from_ref(self) as u64,
        };
        // SAFETY: the caller's promise.
        unsafe { asm!("lidt [{}]", in(reg) &pointer, options(readonly, nostack, preserves_flags)) };
    }
}

/// Makes this CPU use the kernel's table.
pub fn load_table() {
    let table = &raw const TABLE;
    // SAFETY: the table is static, does not change any more, and it has gates for all traps.
    unsafe { (&*table).load() };
}
