//! Restartable sequences: a structure in a thread's memory where the kernel keeps the number of the CPU that the thread runs on,
//! and finds the stretch of code that is to begin anew if anything came between.
//!
//! The thread looks at its structure itself, on the way to its program, when it was switched to since the last time (the task
//! says so, see `Task::watch_switches`) or is about to run a signal's handler. Without one it pays a look at a flag of its
//! own; with one, a read and a write of its memory for each switch.

use abi::{Errno, Result};
use nucleus::{
    VirtAddr,
    addr::USER_END,
    task::{self, Task},
    trap::UserContext,
    user,
};

use super::{Own, Thread};
use crate::process::signal::{self, Info};

/// Bytes of `struct rseq`, and what its address is a multiple of.
pub const SIZE: u32 = 32;
/// Bytes of it that mean something (`AT_RSEQ_FEATURE_SIZE`): up to its flags.
pub const FEATURES: u32 = 20;

/// Where its fields stand.
const CRITICAL_SECTION: usize = 8;
const FLAGS: usize = 16;
/// What `cpu_id` says while nobody keeps it up to date.
const UNINITIALIZED: u32 = u32::MAX;

/// What a thread has registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Registration {
    /// Of its `struct rseq`.
    pub address: VirtAddr,
    /// What stands before the code that is gone to in place of a stretch that was disturbed.
    pub signature: u32,
}

/// `struct rseq_cs`: a stretch of code.
struct Section {
    start: u64,
    len: u64,
    /// Where the program goes on when it was disturbed in the stretch.
    abort: u64,
}

fn read<T: user::Plain>(at: VirtAddr) -> Result<T> {
    user::read(at).map_err(|_| Errno::EFAULT)
}

impl Section {
    /// Reads and checks it.
    ///
    /// # Errors
    /// `EINVAL` for what is none, `EFAULT`.
    fn read(at: u64, signature: u32) -> Result<Section> {
        let [head, start, len, abort]: [u64; 4] = read(VirtAddr(at as usize))?;
        let end = start.checked_add(len).ok_or(Errno::EINVAL)?;
        let limit = USER_END.0 as u64;
        let inside = abort.wrapping_sub(start) < len;
        // Version and flags; of the latter there are none any more.
        if head != 0 || start >= limit || end >= limit || abort >= limit || inside {
            return Err(Errno::EINVAL);
        }
        let before = abort.checked_sub(4).ok_or(Errno::EINVAL)?;
        if read::<u32>(VirtAddr(before as usize))? != signature {
            return Err(Errno::EINVAL);
        }
        Ok(Section { start, len, abort })
    }
}

impl Registration {
    /// Has the program go on at the other place if it was in a stretch.
    ///
    /// # Errors
    /// `EINVAL` if the program has registered nonsense, `EFAULT`.
    fn abort(&self, context: &mut UserContext) -> Result<()> {
        let field = self.address + CRITICAL_SECTION;
        let at: u64 = read(field)?;
        if at == 0 {
            return Ok(());
        }
        let section = Section::read(at, self.signature)?;
        let inside = context.regs.rip.wrapping_sub(section.start) < section.len;
        if inside && read::<u32>(self.address + FLAGS)? != 0 {
            return Err(Errno::EINVAL);
        }
        // Left, one way or the other.
        user::write(field, &0u64).map_err(|_| Errno::EFAULT)?;
        if inside {
            context.regs.rip = section.abort;
        }
        Ok(())
    }

    fn store_cpu(&self, cpu: u64) -> Result<()> {
        user::write(self.address, &cpu).map_err(|_| Errno::EFAULT)
    }

    /// The program does without: its structure says so.
    ///
    /// # Errors
    /// `EFAULT`.
    pub fn withdraw(&self) -> Result<()> {
        self.store_cpu(u64::from(UNINITIALIZED) << 32)
    }
}

/// The thread that `task` runs goes back to its program: brings its structure up to date if it was switched to since.
pub fn attend(thread: &Thread, own: &Own, context: &mut UserContext, task: &Task) {
    let Some(registration) = own.rseq else { return };
    if !task.take_switched() {
        return;
    }
    // A switch from here on is noticed at the next look, which comes before the program goes on.
    let cpu = task::cpu() as u64;
    let done = registration
        .abort(context)
        .and_then(|()| registration.store_cpu(cpu << 32 | cpu));
    if done.is_err() {
        signal::force(thread, Info::kernel(abi::raw::general::SIGSEGV));
    }
}

/// A handler is about to run, on top of whatever the program did.
///
/// # Errors
/// The program has registered nonsense.
pub fn before_handler(own: &Own, context: &mut UserContext) -> Result<()> {
    match own.rseq {
        Some(registration) => registration.abort(context),
        None => Ok(()),
    }
}
