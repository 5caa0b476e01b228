//! Starting the other CPUs, one after the other.

use core::arch::global_asm;
use core::sync::atomic::{AtomicUsize, Ordering};

use super::init;
use crate::hw::x86_64::acpi::Tables;
use crate::hw::x86_64::layout::{KERNEL_BASE, ptr};
use crate::hw::x86_64::memory::{LOW_FRAMES, MemoryMap};
use crate::hw::x86_64::percpu::{self, MAX_CPUS};
use crate::hw::x86_64::{apic, clock, cpu, space};
use crate::mem::KernelStack;
use crate::{PAGE_SHIFT, PhysAddr, task};

global_asm!(
    r#"
    .set BASE, {base}
    .section .rodata.trampoline, "a"
    .code16
    /* A CPU starts here, in real mode, with its code segment at this page's copy below 1 MiB. */
trampoline:
    cli
    cld
    movw %cs, %ax
    movw %ax, %ds
    lgdtl (1f - trampoline)
    movl %cr0, %eax
    orl $1, %eax
    movl %eax, %cr0
    ljmpl $0x18, $(cpu_start32 - BASE)
    .balign 4
1:  .short 31
    .long boot_gdt - BASE
trampoline_end:

    .section .boot.text, "ax"
    .code32
cpu_start32:
    movw $0x10, %ax
    movw %ax, %ds
    movl %cr4, %eax
    orl $0x20, %eax
    movl %eax, %cr4
    movl $(boot_l4 - BASE), %eax
    movl %eax, %cr3
    movl $0xc0000080, %ecx
    rdmsr
    orl $0x900, %eax
    wrmsr
    movl $0x80010023, %eax
    movl %eax, %cr0
    ljmp $0x08, $(cpu_start64 - BASE)
    .code64
cpu_start64:
    movabsq $1f, %rax
    jmpq *%rax
1:
    xorl %eax, %eax
    movl %eax, %ds
    movl %eax, %ss
    /* The stack is in the kernel's address space only. */
    movq {root}(%rip), %rax
    movq %rax, %cr3
    movq {stack}(%rip), %rsp
    xorl %ebp, %ebp
    call {main}
    ud2
    .text
    "#,
    base = const KERNEL_BASE,
    root = sym space::ROOT,
    stack = sym STACK,
    main = sym main,
    options(att_syntax)
);

unsafe extern "C" {
    static trampoline: u8;
    static trampoline_end: u8;
}

/// The stack for the CPU that is being started.
static STACK: AtomicUsize = AtomicUsize::new(0);
/// The number of the CPU that is being started, until it takes it; 0, the boot CPU's, for none.
static STARTING: AtomicUsize = AtomicUsize::new(0);
/// The number of the last CPU that has come up.
static UP: AtomicUsize = AtomicUsize::new(0);

/// How long after the first call a CPU is called again: a real one may have missed it.
const MISSED: u64 = 20_000_000;
/// How long it may take to answer: a virtual one may have to wait for a real one.
const PATIENCE: u64 = 5_000_000_000;

/// Finds a page below 1 MiB for the first instructions of other CPUs.
pub fn find_page(memory: &MemoryMap) -> Option<u8> {
    // The first page holds the firmware's interrupt vectors and data.
    let usable = memory
        .ranges()
        .iter()
        .find(|r| r.start.max(8) < r.end.min(LOW_FRAMES))?;
    Some(usable.start.max(8) as u8)
}

/// Starts the CPUs of the firmware's table. They come up with the kernel's address space, tables
/// and interrupts, and join the scheduler when it runs.
pub fn start(tables: &Tables, page: u8) {
    let code = &raw const trampoline;
    let at = ptr(PhysAddr(u64::from(page) << PAGE_SHIFT));
    // SAFETY: usable memory below 1 MiB, which nothing else uses.
    unsafe {
        at.copy_from_nonoverlapping(code, (&raw const trampoline_end).offset_from_unsigned(code));
    };
    let own = apic::id();
    for &id in tables.cpus().iter().filter(|&&id| id != own) {
        let index = percpu::cpu_count();
        if index == MAX_CPUS {
            break;
        }
        let Ok(stack) = KernelStack::alloc() else {
            crate::log!("no memory to start CPU {index}");
            break;
        };
        if init::make_interrupt_stacks(index).is_err() {
            crate::log!("no memory to start CPU {index}");
            break;
        }
        STACK.store(stack.leak(), Ordering::Release);
        STARTING.store(index, Ordering::Release);
        if start_one(id, index, page) {
            percpu::set_cpu_count(index + 1);
        } else {
            crate::log!("the CPU with local APIC {id} does not start");
            // It may still come up later, and must then find nothing that another one uses.
            break;
        }
    }
}

/// Resets a CPU and calls it. It is reset once only: it may be slow, and a reset in the middle of
/// its start would let it begin anew with a number that it has taken already. A call to a CPU that
/// runs does nothing.
fn start_one(id: u32, index: usize, page: u8) -> bool {
    apic::send_init(id);
    apic::send_start(id, page);
    if !has_begun(MISSED) {
        apic::send_start(id, page);
        // A number that was not taken is taken back, so that a CPU that comes too late finds
        // nothing.
        if !has_begun(PATIENCE) && STARTING.swap(0, Ordering::AcqRel) != 0 {
            return false;
        }
    }
    // A CPU that has taken its number needs nothing but time.
    while UP.load(Ordering::Acquire) != index {
        core::hint::spin_loop();
    }
    true
}

/// Whether the CPU takes its number within this time.
fn has_begun(patience: u64) -> bool {
    let limit = clock::nanoseconds() + patience;
    while STARTING.load(Ordering::Acquire) != 0 {
        if clock::nanoseconds() > limit {
            return false;
        }
        core::hint::spin_loop();
    }
    true
}

/// Another CPU's first Rust code, on its own stack, in the kernel's address space.
extern "C" fn main() -> ! {
    let index = STARTING.swap(0, Ordering::AcqRel);
    if index == 0 {
        // Too late: it was given up.
        cpu::halt();
    }
    init::set_up_cpu(index);
    apic::enable();
    UP.store(index, Ordering::Release);
    init::wait_for_scheduler();
    cpu::irqs_disable();
    task::run_on_this_cpu()
}
