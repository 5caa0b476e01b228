//! An interrupt to another CPU, and its answer.

use alloc::{boxed::Box, sync::Arc};
use core::arch::global_asm;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::super::{Kind, Measure};
use super::timed;
use crate::OutOfMemory;
use crate::hw::x86_64::{apic, percpu, vectors};
use crate::task::{self, Priority, Spawn};

/// The interrupts that were answered.
static ANSWERS: AtomicU64 = AtomicU64::new(0);

global_asm!(
    r#"
    .text
    /* The gate of the interrupt: counts it and tells the local APIC, on whichever stack it finds.
       Of a program's registers, into which the CPU pushes, it uses three places that are written
       anew at the next way in. */
    .balign 16
    .globl hw_cost_answer
hw_cost_answer:
    push rax
    push rcx
    push rdx
    lock inc qword ptr [rip + {answers}]
    mov rax, [rip + {registers}]
    cmp rax, {x2apic}
    je 1f
    mov dword ptr [rax + {end}], 0
    jmp 2f
1:  mov ecx, {x2apic_end}
    xor eax, eax
    xor edx, edx
    wrmsr
2:  pop rdx
    pop rcx
    pop rax
    iretq
    "#,
    answers = sym ANSWERS,
    registers = sym apic::REGISTERS,
    x2apic = const apic::X2APIC,
    end = const apic::END_OF_INTERRUPT,
    x2apic_end = const crate::hw::x86_64::cpu::msr::X2APIC + (apic::END_OF_INTERRUPT >> 4),
);

/// Measures the interrupt from this task's CPU to another one that is awake, if there is one.
pub fn measure(measure: &mut Measure<'_>) -> Result<(), OutOfMemory> {
    if percpu::cpu_count() < 2 {
        return Ok(());
    }
    // The task that measures has the first CPU; the second is kept from halting by any task there,
    // this one at the least.
    const TARGET: usize = 1;
    let ended = Arc::new(AtomicBool::new(false));
    let seen = ended.clone();
    let spawn = Spawn {
        cpus: 1 << TARGET,
        priority: Priority::Share(19),
        ..Spawn::kernel("hw_cost, awake")
    };
    let body = move || {
        while !seen.load(Ordering::Relaxed) {
            core::hint::spin_loop();
        }
    };
    task::spawn(spawn, Box::new(body))?;
    let mut batch = |operations: u64| {
        timed(|| {
            for _ in 0..operations {
                let before = ANSWERS.load(Ordering::Acquire);
                apic::send(TARGET, vectors::HW_COST);
                while ANSWERS.load(Ordering::Acquire) == before {
                    core::hint::spin_loop();
                }
            }
        })
    };
    measure("ipi", Kind::Time, &mut [&mut batch]);
    ended.store(true, Ordering::Relaxed);
    Ok(())
}
