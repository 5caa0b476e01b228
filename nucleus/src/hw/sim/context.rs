//! Switching between tasks.

use core::cell::Cell;

use super::{fiber, machine::required};

/// A task's place on its stack while it does not run.
pub(crate) struct Context {
    stack_pointer: Cell<usize>,
}

// SAFETY: the stack pointer is touched by `switch` only, and all of it on one thread of the host.
unsafe impl Sync for Context {}

impl Context {
    /// A thread that will run `entry(arg)` when first switched to, with interrupts off.
    ///
    /// # Safety
    /// `top` is the end of a stack that lives as long as the context and that nothing else uses.
    pub(crate) unsafe fn new(top: usize, entry: extern "C" fn(usize) -> !, arg: usize) -> Context {
        Context {
            // SAFETY: the caller's promise.
            stack_pointer: Cell::new(unsafe { fiber::prepare(top, entry, arg) }),
        }
    }

    /// The thread that runs now, on the stack that the CPU was started with.
    pub(crate) fn current_boot() -> Context {
        Context {
            stack_pointer: Cell::new(0),
        }
    }

    /// Leaves `from`, which is the running thread, and runs `to` until something switches back.
    ///
    /// # Safety
    /// Interrupts are off. Both contexts live until `from` runs again; `to` does not run on any
    /// CPU, and no other CPU switches to it.
    pub(crate) unsafe fn switch(from: &Context, to: &Context) {
        required().end_after_panic();
        // SAFETY: the caller's promise.
        unsafe { fiber::switch(from.stack_pointer.as_ptr(), to.stack_pointer.get()) };
    }
}
