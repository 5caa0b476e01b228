//! To user mode and back: a program of a few instructions, and gates that only return.
//!
//! While it runs, this CPU uses an interrupt table of its own, a kernel stack of its own, and an
//! entry for `syscall` that returns at once; interrupts are off in the program too. GS stays the
//! kernel's: the gates know no other state. What ends the program is a gate that goes on where the
//! kernel left.

use core::arch::global_asm;
use core::sync::atomic::AtomicUsize;

use super::super::{Kind, Measure};
use super::{REFILLED, UNROLLED, undisturbed};
use crate::frame::Contents;
use crate::hw::Window;
use crate::hw::x86_64::cpu::{msr, write_msr};
use crate::hw::x86_64::fault::vector;
use crate::hw::x86_64::gdt::{self, USER_CODE, USER_DATA};
use crate::hw::x86_64::percpu::{self, ENTRY_SP};
use crate::hw::x86_64::{
    entry::{self, INT_80},
    idt::{self, Gate, Table},
    space, user_state,
};
use crate::pmap::{Pending, PmapRef};
use crate::{Frame, OutOfMemory, PAGE_SIZE, PhysAddr, Pmap, Prot, VirtAddr, ephemeral};

/// The vector whose gate ends the program.
const END: u8 = 0x21;
const BREAKPOINT: u8 = 3;
/// Where the program's code is.
const CODE: VirtAddr = VirtAddr(0x40_0000);
/// [`REFILLED`] pages that it can read.
pub const PAGES: VirtAddr = VirtAddr(CODE.0 + PAGE_SIZE);
/// Nothing is here, but the tables on the way to it are.
const HOLE: VirtAddr = VirtAddr(PAGES.0 + (REFILLED + 1) * PAGE_SIZE);

/// The kernel's stack pointer while the program runs; one at a time does.
static KERNEL_SP: AtomicUsize = AtomicUsize::new(0);

global_asm!(
    r#"
    .pushsection .rodata.hw_cost, "a"
    .balign 16
    /* (rsi: rounds, rdx: where nothing is) */
    .globl hw_cost_program
hw_cost_program:
    .globl hw_cost_traps
hw_cost_traps:
1:
    .rept {unrolled}
    int3
    .endr
    dec rsi
    jnz 1b
    int {end}
    .globl hw_cost_faults
hw_cost_faults:
1:
    .rept {unrolled}
    mov rax, [rdx]
    .endr
    dec rsi
    jnz 1b
    int {end}
    .globl hw_cost_calls
hw_cost_calls:
1:
    .rept {unrolled}
    syscall
    .endr
    dec rsi
    jnz 1b
    int {end}
    .globl hw_cost_gates
hw_cost_gates:
1:
    .rept {unrolled}
    int {int_80}
    .endr
    dec rsi
    jnz 1b
    int {end}
    .globl hw_cost_program_end
hw_cost_program_end:
    .popsection

    .text
    /* (rdi: where in the program, rsi: rounds, rdx: for the program) */
    .balign 16
    .globl hw_cost_enter
hw_cost_enter:
    push rbp
    push rbx
    push r12
    push r13
    push r14
    push r15
    push qword ptr gs:[{entry_sp}]
    mov [rip + {kernel_sp}], rsp
    mov rax, rsp
    and rax, -16
    mov gs:[{entry_sp}], rax
    push {user_data}
    push 0
    push 2
    push {user_code}
    push rdi
    iretq

    .balign 16
    .globl hw_cost_leave
hw_cost_leave:
    mov rsp, [rip + {kernel_sp}]
    pop qword ptr gs:[{entry_sp}]
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbx
    pop rbp
    ret

    .balign 16
    .globl hw_cost_return
hw_cost_return:
    iretq

    /* The instruction that faulted, of three bytes, is left out. */
    .balign 16
    .globl hw_cost_skip
hw_cost_skip:
    add rsp, 8
    add qword ptr [rsp], 3
    iretq

    .balign 16
    .globl hw_cost_sysret
hw_cost_sysret:
    sysretq
    "#,
    unrolled = const UNROLLED,
    end = const END,
    int_80 = const INT_80,
    entry_sp = const ENTRY_SP,
    kernel_sp = sym KERNEL_SP,
    user_data = const USER_DATA,
    user_code = const USER_CODE,
);

unsafe extern "C" {
    static hw_cost_program: u8;
    static hw_cost_program_end: u8;
    static hw_cost_traps: u8;
    static hw_cost_faults: u8;
    static hw_cost_calls: u8;
    static hw_cost_gates: u8;
    fn hw_cost_enter(code: usize, rounds: u64, argument: usize);
    fn hw_cost_leave();
    fn hw_cost_return();
    fn hw_cost_skip();
    fn hw_cost_sysret();
}

/// An address space with the program's code and pages.
pub struct Space(PmapRef);

impl Space {
    /// A new one.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new() -> Result<Space, OutOfMemory> {
        let pmap = Pmap::new()?;
        let mut pending = Pending::new();
        let start = &raw const hw_cost_program;
        // SAFETY: the labels stand in this order in one section, which never changes.
        let code = unsafe {
            let len = (&raw const hw_cost_program_end).offset_from_unsigned(start);
            core::slice::from_raw_parts(start, len)
        };
        let frame = Frame::alloc(Contents::Zeroed)?;
        ephemeral::map(&frame).write(0, code);
        pmap.enter(CODE, &frame, Prot::READ | Prot::EXEC, &mut pending)?;
        for page in 0..REFILLED {
            let frame = Frame::alloc(Contents::Zeroed)?;
            pmap.enter(PAGES + page * PAGE_SIZE, &frame, Prot::READ, &mut pending)?;
        }
        Ok(Space(pmap))
    }

    /// Its root table.
    pub fn root(&self) -> PhysAddr {
        self.0.root()
    }
}

/// Measures the ways from user mode into the kernel and back.
pub fn measure(measure: &mut Measure<'_>) -> Result<(), OutOfMemory> {
    let space = Space::new()?;
    let gate = |vector, to: unsafe extern "C" fn()| Gate {
        vector,
        to: to as usize,
        from_programs: true,
    };
    let table = idt::table_with(&[
        gate(BREAKPOINT, hw_cost_return),
        gate(INT_80 as u8, hw_cost_return),
        gate(vector::PAGE_FAULT as u8, hw_cost_skip),
        gate(END, hw_cost_leave),
    ]);
    let mut each = |name, label: *const u8| {
        // SAFETY: both labels stand in the program.
        let offset = unsafe { label.offset_from_unsigned(&raw const hw_cost_program) };
        let mut batch = |operations: u64| {
            let rounds = operations.div_ceil(UNROLLED);
            undisturbed(|| run(&space, &table, CODE.0 + offset, rounds)) * operations
                / (rounds * UNROLLED)
        };
        measure(name, Kind::Time, &mut [&mut batch]);
    };
    each("trap", &raw const hw_cost_traps);
    each("page_fault", &raw const hw_cost_faults);
    each("system_call", &raw const hw_cost_calls);
    each("int_80", &raw const hw_cost_gates);
    Ok(())
}

/// Runs the program from `code` on. Interrupts are off.
fn run(space: &Space, table: &Table, code: usize, rounds: u64) {
    let before = space::current();
    space::load_space(space.root());
    // The program is 64-bit code; the last one may not have been.
    user_state::save_live();
    gdt::set_program(percpu::this(), Window::ALL, None);
    percpu::set_segments_base(Window::ALL.base);
    // SAFETY: the table lives until the kernel's own is loaded again below, and no trap but the
    // program's comes until then, except for those that have their gates and stacks in every table.
    // `syscall` comes from the program only until the register is set back, and the code there
    // returns to it. The program ends at `hw_cost_leave`, which gives back the stack and all
    // registers that a function keeps.
    unsafe {
        table.load();
        write_msr(msr::LSTAR, hw_cost_sysret as *const () as u64);
        hw_cost_enter(code, rounds, HOLE.0);
        write_msr(msr::LSTAR, entry::syscall_address() as u64);
    }
    idt::load();
    space::load_space(before);
}
