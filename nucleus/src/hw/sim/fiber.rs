//! Stacks that are switched between by hand, so that a simulated CPU changes hands in nanoseconds.
//!
//! All fibers of a simulation run on one thread of the host.

use core::arch::global_asm;
use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard},
};

use crate::OutOfMemory;

/// Bytes of a fiber's stack; the host commits what is touched.
const STACK: usize = 512 << 10;
/// Bytes below it that can't be touched.
const GUARD: usize = 64 << 10;

global_asm!(
    ".balign 16",
    ".globl causeway_sim_switch",
    // rdi: where the old stack pointer goes, rsi: the new one.
    "causeway_sim_switch:",
    "push rbp",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "mov [rdi], rsp",
    "mov rsp, rsi",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "pop rbp",
    "ret",
    ".balign 16",
    ".globl causeway_sim_begin",
    // The first return of a new fiber: entry in r12, its argument in r13.
    "causeway_sim_begin:",
    "mov rdi, r13",
    "call r12",
    "ud2",
);

unsafe extern "C" {
    fn causeway_sim_switch(from: *mut usize, to: usize);
    fn causeway_sim_begin();

    fn mmap(at: *mut u8, len: usize, prot: i32, flags: i32, fd: i32, offset: i64) -> *mut u8;
    fn mprotect(at: *mut u8, len: usize, prot: i32) -> i32;
}

/// Leaves the running fiber, whose stack pointer goes to `*from`, for the one at `to`.
///
/// # Safety
/// `to` was put where it is by a switch or by [`Stack::prepare`], and has not been switched to
/// since.
pub(super) unsafe fn switch(from: *mut usize, to: usize) {
    // SAFETY: the caller's promise.
    unsafe { causeway_sim_switch(from, to) }
}

/// A stack with a guard below. A dropped one is kept for the next; those that a run leaves behind
/// come back with its end ([`take_back`]).
pub(crate) struct Stack {
    base: usize,
    /// The run that it was made in.
    run: u64,
}

struct Stacks {
    free: Vec<usize>,
    /// Those of the current run.
    used: BTreeSet<usize>,
    run: u64,
}

static STACKS: Mutex<Stacks> = Mutex::new(Stacks {
    free: Vec::new(),
    used: BTreeSet::new(),
    run: 0,
});

fn stacks() -> MutexGuard<'static, Stacks> {
    STACKS
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The run is over, and nothing runs on any of its stacks.
pub(super) fn take_back() {
    let mut stacks = stacks();
    let used = std::mem::take(&mut stacks.used);
    stacks.free.extend(used);
    stacks.run += 1;
}

impl Stack {
    /// As [`new`](Stack::new): there is always memory.
    pub(crate) fn alloc() -> Result<Stack, OutOfMemory> {
        Ok(Stack::new())
    }

    pub(super) fn new() -> Stack {
        let mut stacks = stacks();
        let base = stacks.free.pop().unwrap_or_else(map);
        stacks.used.insert(base);
        Stack {
            base,
            run: stacks.run,
        }
    }

    /// The address just above the stack.
    pub(crate) fn top(&self) -> usize {
        self.base + GUARD + STACK
    }
}

/// Makes the stack that ends at `top` begin with `entry(arg)`; gives the stack pointer to switch
/// to.
///
/// # Safety
/// It is a stack on which nothing runs.
pub(super) unsafe fn prepare(top: usize, entry: extern "C" fn(usize) -> !, arg: usize) -> usize {
    let begin = causeway_sim_begin as *const () as usize;
    // In the order in which the switch takes them; then an end for a walk of the stack.
    let frame = [0, 0, arg, entry as usize, 0, 0, begin, 0, 0];
    // SAFETY: within the stack by the caller's promise.
    unsafe {
        let start = (top as *mut usize).sub(frame.len());
        start.copy_from_nonoverlapping(frame.as_ptr(), frame.len());
        start as usize
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        let mut stacks = stacks();
        if stacks.run == self.run && stacks.used.remove(&self.base) {
            stacks.free.push(self.base);
        }
    }
}

/// New memory for a stack.
fn map() -> usize {
    const READ_WRITE: i32 = 3;
    const PRIVATE_ANONYMOUS: i32 = 0x22;
    // SAFETY: new memory, of which the lower part is made inaccessible.
    unsafe {
        let base = mmap(
            core::ptr::null_mut(),
            STACK + GUARD,
            READ_WRITE,
            PRIVATE_ANONYMOUS,
            -1,
            0,
        );
        assert!(base as isize != -1, "no memory for a stack");
        assert!(mprotect(base, GUARD, 0) == 0, "no guard below a stack");
        base as usize
    }
}
