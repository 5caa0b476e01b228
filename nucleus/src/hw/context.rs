//! Switching between kernel threads. A CPU of the simulated machine switches as a real one does:
//! the host is an x86-64, too.

use core::arch::naked_asm;
use core::cell::UnsafeCell;

use super::machine;

/// Fills the return stack of a CPU that predicts returns by it with returns to nowhere, where that
/// is wanted: the next thread may return more often than this one called, and programs have filled
/// what lies below. Changes rcx.
#[cfg(target_os = "none")]
macro_rules! fill_returns {
    () => {
        r#"
    3:
        .byte 0xeb, 8f - 4f
    4:
        nop
        .pushsection .patch_sites, "a"
        .quad 3b
        .quad 6 << 56 | 0x001f0f
        .popsection
        mov ecx, 16
    5:
        call 6f
        int3
    6:
        call 7f
        int3
    7:
        add rsp, 16
        dec ecx
        jnz 5b
        lfence
    8:
        "#
    };
}
/// The simulated machine predicts nothing.
#[cfg(not(target_os = "none"))]
macro_rules! fill_returns {
    () => {
        ""
    };
}

/// Leaves the running stack, whose pointer goes to `*from`, for the one at `to`.
///
/// # Safety
/// `to` was put where it is by a switch or by [`prepare`], and has not been switched to since.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn switch_stacks(from: *mut usize, to: usize) {
    naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        fill_returns!(),
        "mov [rdi], rsp",
        "mov rsp, rsi",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    );
}

/// A new stack's first return: entry in r12, argument in r13; rbp is 0, the end of backtraces.
#[unsafe(naked)]
extern "C" fn start_thread() {
    naked_asm!("mov rdi, r13", "call r12", "ud2");
}

/// Makes the stack that ends at `top` begin with `entry(arg)`; returns the stack pointer to switch
/// to.
///
/// # Safety
/// `top` is the end of a stack on which nothing runs, and a multiple of 16.
pub(super) unsafe fn prepare(top: usize, entry: extern "C" fn(usize) -> !, arg: usize) -> usize {
    let start = start_thread as *const () as usize;
    // In the order in which `switch_stacks` takes them, the return address last.
    let frame = [0, 0, arg, entry as usize, 0, 0, start];
    // SAFETY: the caller gives a stack, which is larger than this.
    unsafe {
        let at = (top as *mut usize).sub(frame.len());
        at.copy_from_nonoverlapping(frame.as_ptr(), frame.len());
        at as usize
    }
}

/// A kernel thread's place on its stack while it does not run.
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
    /// `top`, a multiple of 16, is the end of a stack that lives as long as the context and that
    /// nothing else uses.
    pub(crate) unsafe fn new(top: usize, entry: extern "C" fn(usize) -> !, arg: usize) -> Context {
        Context {
            // SAFETY: the caller's promise.
            stack_pointer: UnsafeCell::new(unsafe { prepare(top, entry, arg) }),
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
        machine::leave_thread();
        // SAFETY: the caller's promise; `to` holds what `switch_stacks` or `new` put there.
        unsafe { switch_stacks(from.stack_pointer.get(), *to.stack_pointer.get()) };
    }
}
