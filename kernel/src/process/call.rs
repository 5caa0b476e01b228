//! One system call in progress.

use alloc::sync::Arc;

use abi::{Errno, Result};
use nucleus::{
    VirtAddr,
    trap::UserContext,
    user::{self, Plain, ToUser},
};

use super::{
    Credentials, FsContext, Own, Process, Space, Thread, files, signal::ERESTART_RESTARTBLOCK,
};

pub type Handler = fn(&mut Call<'_>) -> Result<usize>;

/// A system call in progress: the calling thread and its arguments. Nothing here takes a lock.
pub struct Call<'a> {
    pub thread: &'a Arc<Thread>,
    /// The state of the thread; only the thread itself changes it.
    pub own: &'a mut Own,
    /// The program's registers.
    pub context: &'a mut UserContext,
    /// The arguments; those of a 32-bit call are zero-extended.
    pub args: [u64; 6],
    pub number: u32,
}

impl Call<'_> {
    /// Argument `n` as an address in the program.
    #[inline]
    pub fn address(&self, n: usize) -> VirtAddr {
        VirtAddr(self.args[n] as usize)
    }

    /// Argument `n` as C's `int`.
    #[inline]
    pub fn int(&self, n: usize) -> i32 {
        self.args[n] as i32
    }

    /// Argument `n` as C's `unsigned int`.
    #[inline]
    pub fn unsigned(&self, n: usize) -> u32 {
        self.args[n] as u32
    }

    /// Argument `n` as `size_t`.
    #[inline]
    pub fn size(&self, n: usize) -> usize {
        self.args[n] as usize
    }

    #[inline]
    pub fn process(&self) -> &Arc<Process> {
        self.thread.process()
    }

    #[inline]
    pub fn files(&self) -> &Arc<files::FileTable> {
        &self.own.files
    }

    /// Working directory, root and umask.
    #[inline]
    pub fn fs(&self) -> &Arc<FsContext> {
        &self.own.fs
    }

    #[inline]
    pub fn credentials(&self) -> &Arc<Credentials> {
        &self.own.credentials
    }

    #[inline]
    pub fn space(&self) -> &Arc<Space> {
        &self.own.space
    }

    /// Reads the structure that argument `n` points to.
    ///
    /// # Errors
    /// `EFAULT`.
    pub fn read<T: Plain>(&self, n: usize) -> Result<T> {
        user::read(self.address(n)).map_err(|_| Errno::EFAULT)
    }

    /// Reads, as words, a structure that may grow: argument `n` points to `size` bytes of it. Words
    /// missing in a shorter one are zero, and excess bytes of a longer one must be zero.
    ///
    /// # Errors
    /// `EFAULT`; `E2BIG` if there is more than this kernel knows, or more than a page.
    pub fn read_words<const N: usize>(&self, n: usize, size: usize) -> Result<[u64; N]> {
        if size > nucleus::PAGE_SIZE {
            return Err(Errno::E2BIG);
        }
        let address = self.address(n);
        let mut words = [0u64; N];
        for (at, word) in words.iter_mut().enumerate() {
            let mut bytes = [0; 8];
            let known = size.saturating_sub(at * 8).min(8);
            let from = VirtAddr(address.0.wrapping_add(at * 8));
            user::copy_in(&mut bytes[..known], from)?;
            *word = u64::from_le_bytes(bytes);
        }
        for at in N * 8..size {
            let at = VirtAddr(address.0.wrapping_add(at));
            if user::read::<u8>(at)? != 0 {
                return Err(Errno::E2BIG);
            }
        }
        Ok(words)
    }

    /// Writes the structure that argument `n` points to.
    ///
    /// # Errors
    /// `EFAULT`.
    pub fn write<T: ToUser>(&self, n: usize, value: &T) -> Result<()> {
        user::write(self.address(n), value).map_err(|_| Errno::EFAULT)
    }

    /// The answer of a call that a signal interrupted and that can't be made again with the same
    /// arguments (a relative time): if no handler runs, `handler` is called with `args` instead.
    pub fn restart_with(&mut self, handler: Handler, args: [u64; 6]) -> Errno {
        self.own.restart = Some((handler, args));
        ERESTART_RESTARTBLOCK
    }
}
