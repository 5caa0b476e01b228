//! The structure of a restartable sequence, and the stretch of code that it names.

use abi::{Errno, Result};
use nucleus::{VirtAddr, addr::USER_END, trap::UserContext, user};

/// Bytes of `struct rseq`, and what its address is a multiple of.
pub const SIZE: u32 = 32;
/// Bytes of it that mean something (`AT_RSEQ_FEATURE_SIZE`): up to its flags.
pub const FEATURES: u32 = 20;

/// Where its fields stand.
const CRITICAL_SECTION: usize = 8;
const FLAGS: usize = 16;
/// The value of `cpu_id` while it is not kept up to date.
const UNINITIALIZED: u32 = u32::MAX;

/// The registered structure of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Registration {
    /// Of its `struct rseq`.
    pub address: VirtAddr,
    /// The word before the abort handler of a critical section.
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
    /// `EINVAL` for an invalid section, `EFAULT`.
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
    pub(super) fn abort(&self, context: &mut UserContext) -> Result<()> {
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
        user::write(field, &0u64)?;
        if inside {
            context.regs.rip = section.abort;
        }
        Ok(())
    }

    pub(super) fn store_cpu(&self, cpu: u64) -> Result<()> {
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
