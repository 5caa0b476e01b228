//! What many calls ask of their arguments and of their caller.

use alloc::{sync::Arc, vec::Vec};
use core::time::Duration;

use abi::{
    Errno, Result,
    raw::general::{AT_FDCWD, UIO_MAXIOV},
};
use nucleus::{
    VirtAddr, time,
    user::{self, Plain, ToUser},
};

use super::{Call, path::At, read_timespec};
use crate::flags::FlagSet;
use crate::process::{self, Pid, Process, Thread, files::OpenFile, pid_table};
use crate::unsupported::{Caller, WHOLE_CALL, note_unsupported};

impl Call<'_> {
    /// Returns the caller for [`FlagSet::check`] where the value is not an argument by itself.
    pub fn caller(&self) -> Caller<'_> {
        Caller {
            number: self.number,
            compatible: self.own.compatible_call,
            thread: &**self.thread,
        }
    }

    /// Counts the call as one that is refused whatever its arguments.
    pub fn note_refused(&self) {
        note_unsupported(self.caller(), WHOLE_CALL, 0);
    }

    /// Argument `n` as flags of `set`, of which unknown ones are counted and refused, or left out
    /// where `set` says so.
    ///
    /// # Errors
    /// The set's own.
    #[inline]
    pub fn flags(&self, n: usize, set: &FlagSet) -> Result<u32> {
        self.known(u64::from(self.unsigned(n)), set)
    }

    /// Argument `n` as one of the values of `set`; unknown ones are counted and refused.
    ///
    /// # Errors
    /// The set's own.
    #[inline]
    pub fn choice(&self, n: usize, set: &FlagSet) -> Result<u32> {
        self.known(u64::from(self.unsigned(n)), set)
    }

    fn known(&self, value: u64, set: &FlagSet) -> Result<u32> {
        set.check(self.caller(), value).map(|known| known as u32)
    }

    /// Reads the structure that argument `n` points to, unless it is null.
    ///
    /// # Errors
    /// `EFAULT`.
    #[inline]
    pub fn read_if<T: Plain>(&self, n: usize) -> Result<Option<T>> {
        match self.args[n] {
            0 => Ok(None),
            _ => self.read(n).map(Some),
        }
    }

    /// Writes the structure that argument `n` points to, unless it is null.
    ///
    /// # Errors
    /// `EFAULT`.
    #[inline]
    pub fn write_if<T: ToUser>(&self, n: usize, value: &T) -> Result<()> {
        match self.args[n] {
            0 => Ok(()),
            _ => self.write(n, value),
        }
    }

    /// Reads the `count` values that argument `n` points to.
    ///
    /// # Errors
    /// `EFAULT`, `ENOMEM`.
    pub fn read_many<T: Plain + Copy>(&self, n: usize, count: usize) -> Result<Vec<T>> {
        let mut values = nucleus::try_filled(count, user::zeroed())?;
        user::read_all(&mut values, self.address(n))?;
        Ok(values)
    }

    /// Writes values one after the other where argument `n` points.
    ///
    /// # Errors
    /// `EFAULT`.
    pub fn write_many<T: ToUser>(&self, n: usize, values: &[T]) -> Result<()> {
        for (i, value) in values.iter().enumerate() {
            let at = self.address(n).checked_add(i * size_of::<T>());
            user::write(at.ok_or(Errno::EFAULT)?, value)?;
        }
        Ok(())
    }

    /// The time since boot at which the relative time ends that argument `n` points to; none for
    /// null.
    ///
    /// # Errors
    /// `EFAULT`, `EINVAL`.
    pub fn timeout(&self, n: usize) -> Result<Option<Duration>> {
        match self.args[n] {
            0 => Ok(None),
            _ => read_timespec(self.address(n))
                .map(|time| Some(time::since_boot().saturating_add(time))),
        }
    }

    /// The open file of the descriptor in argument `n`, which was not opened for its path only.
    ///
    /// # Errors
    /// `EBADF`.
    #[inline]
    pub fn opened(&self, n: usize) -> Result<Arc<OpenFile>> {
        let open = self.files().get(self.int(n))?;
        if open.is_path() {
            return Err(Errno::EBADF);
        }
        Ok(open)
    }

    /// # Errors
    /// `EPERM` if the caller does not have the capability.
    pub fn require(&self, capability: u32) -> Result<()> {
        match self.credentials().may(capability) {
            true => Ok(()),
            false => Err(Errno::EPERM),
        }
    }

    /// Waits for memory where it is scarce: for calls that take some for long.
    ///
    /// # Errors
    /// `ENOMEM`.
    #[inline]
    pub fn takes_memory(&self) -> Result<()> {
        Ok(process::make_room()?)
    }

    /// As [`takes_memory`](Self::takes_memory) for a call that seldom takes any: it waits only if
    /// `attempt` found none, and then tries again.
    ///
    /// # Errors
    /// Those of `attempt`; `ENOMEM`.
    pub fn may_take_memory<T>(&self, attempt: impl Fn() -> Result<T>) -> Result<T> {
        match attempt() {
            Err(Errno::ENOMEM) => {
                self.takes_memory()?;
                attempt()
            }
            result => result,
        }
    }

    /// The path in argument `n`, from the working directory on.
    pub fn cwd(&self, n: usize) -> At {
        (AT_FDCWD, self.address(n))
    }

    /// The directory in argument `n` and the path in the next one.
    pub fn at(&self, n: usize) -> At {
        (self.int(n), self.address(n + 1))
    }

    /// The process with the id, or a thread with the id, in argument `n`; 0 is the caller.
    ///
    /// # Errors
    /// `ESRCH`.
    pub fn process_named(&self, n: usize) -> Result<Arc<Process>> {
        match self.int(n) {
            0 => Ok(self.process().clone()),
            id => find(id, |id| self.find_process(id)),
        }
    }

    /// Finds a process by its id or a thread's. Of the caller's own it asks no table, which all
    /// CPUs share.
    pub fn find_process(&self, id: Pid) -> Option<Arc<Process>> {
        let own = self.process();
        match id == own.pid() {
            true => Some(own.clone()),
            false => Process::find_by_thread(id),
        }
    }

    /// Finds a thread by its id, the caller's own as [`find_process`](Call::find_process) does.
    pub fn find_thread(&self, id: Pid) -> Option<Arc<Thread>> {
        match id == self.thread.tid() {
            true => Some(self.thread.clone()),
            false => pid_table::find_thread(id),
        }
    }

    /// The thread with the id in argument `n`; 0 is the caller.
    ///
    /// # Errors
    /// `ESRCH`.
    pub fn thread_named(&self, n: usize) -> Result<Arc<Thread>> {
        match self.int(n) {
            0 => Ok(self.thread.clone()),
            id => find(id, |id| self.find_thread(id)),
        }
    }
}

/// What `find` finds by an id, of which negative ones name nothing.
pub(super) fn find<T>(id: i32, find: impl FnOnce(Pid) -> Option<T>) -> Result<T> {
    Pid::try_from(id).ok().and_then(find).ok_or(Errno::ESRCH)
}

/// The ranges of an array of `iovec`s, which need not be in the caller's memory.
///
/// # Errors
/// `EINVAL` for more than [`UIO_MAXIOV`] or for more bytes than fit in a signed number, `EFAULT`,
/// `ENOMEM`.
pub(super) fn ranges(array: VirtAddr, count: usize) -> Result<Vec<[u64; 2]>> {
    if count > UIO_MAXIOV as usize {
        return Err(Errno::EINVAL);
    }
    let mut ranges = nucleus::try_vec(count)?;
    let mut total = 0u64;
    for at in 0..count {
        let [base, len]: [u64; 2] = user::read(VirtAddr(array.0.wrapping_add(at * 16)))?;
        total = total.checked_add(len).ok_or(Errno::EINVAL)?;
        if total > i64::MAX as u64 {
            return Err(Errno::EINVAL);
        }
        if len > 0 {
            ranges.push([base, len]);
        }
    }
    Ok(ranges)
}
