//! Switching between kernel threads.

use core::arch::global_asm;
use core::cell::UnsafeCell;

use super::fpu;

global_asm!(
    r#"
    .text
    /* switch_stacks(rdi: where to keep the old stack pointer, rsi: the new one) */
    .balign 16
    .globl switch_stacks
switch_stacks:
    push rbp
    push rbx
    push r12
    push r13
    push r14
    push r15
    mov [rdi], rsp
    mov rsp, rsi
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbx
    pop rbp
    ret

    /* A new thread's first return: entry in r12, argument in r13; rbp is 0, the end of
       backtraces. */
    .balign 16
    .globl start_thread
start_thread:
    mov rdi, r13
    call r12
    ud2
    "#
);

unsafe extern "C" {
    fn switch_stacks(from: *mut usize, to: usize);
    fn start_thread();
}

/// The registers of a kernel thread while it does not run.
pub(crate) struct Context {
    stack_pointer: UnsafeCell<usize>,
}

// SAFETY: the stack pointer is touched only by `switch`, whose caller promises that no other CPU
// switches from or to this context at the same time.
unsafe impl Sync for Context {}

impl Context {
    /// A thread that will run `entry(arg)` when first switched to, with interrupts off.
    ///
    /// # Safety
    /// `top` is the end of a stack that lives as long as the context and that nothing else uses.
    pub(crate) unsafe fn new(top: usize, entry: extern "C" fn(usize) -> !, arg: usize) -> Context {
        // In the order in which `switch_stacks` takes them, the return address last.
        let frame = [
            0,
            0,
            arg,
            entry as usize,
            0,
            0,
            start_thread as *const () as usize,
        ];
        let top = top as *mut usize;
        // SAFETY: the caller gives a stack, which is larger than this.
        let stack_pointer = unsafe {
            let start = top.sub(frame.len());
            start.copy_from_nonoverlapping(frame.as_ptr(), frame.len());
            start as usize
        };
        Context {
            stack_pointer: UnsafeCell::new(stack_pointer),
        }
    }

    /// The thread that runs now, on the stack that the CPU was started with.
    pub(crate) fn current_boot() -> Context {
        Context {
            stack_pointer: UnsafeCell::new(0),
        }
    }

    /// Leaves `from`, which is the running thread, and runs `to` until something switches back.
    ///
    /// # Safety
    /// Interrupts are off. Both contexts live until `from` runs again; `to` does not run on any
    /// CPU, and no other CPU switches to it.
    #[inline]
    pub(crate) unsafe fn switch(from: &Context, to: &Context) {
        fpu::save_live();
        // SAFETY: the caller's promise; `to` holds what `switch_stacks` or `new` put there.
        unsafe { switch_stacks(from.stack_pointer.get(), *to.stack_pointer.get()) };
    }
}
