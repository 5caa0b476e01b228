//! Stacks that are switched between by hand ([`context`](crate::hw::context)), so that a simulated
//! CPU changes hands in nanoseconds.
//!
//! All fibers of a simulation run on one thread of the host.

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard},
};

use crate::OutOfMemory;

/// Bytes of a fiber's stack; the host commits what is touched.
const STACK: usize = 512 << 10;
/// Bytes below it that can't be touched.
const GUARD: usize = 64 << 10;

unsafe extern "C" {
    fn mmap(at: *mut u8, len: usize, prot: i32, flags: i32, fd: i32, offset: i64) -> *mut u8;
    fn mprotect(at: *mut u8, len: usize, prot: i32) -> i32;
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
