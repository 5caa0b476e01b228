//! Slices that move between pipes and other files: `splice`, `tee`, `sendfile`,
//! `copy_file_range`. Only files that can't pass their pages on copy bytes.

use core::sync::atomic::Ordering::Relaxed;

use abi::Result;
use fbuf::{Moving, Source, queue::Front};
use fs::{File, OpenFlags};
use nucleus::PAGE_SIZE;

use super::{
    queue::Pipe,
    state::PipeState,
    transfer::{Write, with_signal},
};

/// Bytes on their way at once between two files: a full pipe.
const PIECE: usize = super::DEFAULT_SLOTS * PAGE_SIZE;

/// Memory of a pipe for slices beyond its slots.
struct Promise<'a> {
    pipe: &'a Pipe,
    slices: usize,
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        self.pipe.queue.lock().state.promised -= self.slices;
    }
}

impl Pipe {
    /// Makes sure that so many slices can be added beyond the pipe's slots.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn promise(&self, slices: usize) -> Result<Promise<'_>> {
        self.queue
            .promise(slices, |state| state.promised += slices)?;
        Ok(Promise { pipe: self, slices })
    }

    /// Adds slices that fit, or all of them if the call `exceeds` the pipe's slots; the others stay
    /// in `from`. Wakes readers.
    ///
    /// # Errors
    /// `EPIPE` without a reader, and SIGPIPE is sent; `ENOMEM`.
    fn append(&self, from: &mut Moving, exceeds: bool) -> Result<usize> {
        let mut call = Write::of_slices(exceeds);
        let n = self.queue.append(from, &mut call).map_err(with_signal)?;
        if n > 0 {
            self.tell_readers(call.was_empty);
        }
        Ok(n)
    }

    /// Moves slices that fit, `max` bytes at most, to another pipe. Wakes its readers and the
    /// writers of this one.
    ///
    /// # Errors
    /// As [`append`](Pipe::append), if this pipe has bytes; a restart number.
    fn pass(&self, to: &Pipe, max: usize) -> Result<usize> {
        let mut call = Write::default();
        let reading = self.lock_reading()?;
        let (n, freed_slot) = self
            .queue
            .pass(&reading, &to.queue, max, &mut call)
            .map_err(with_signal)?;
        drop(reading);
        if n > 0 {
            to.tell_readers(call.was_empty);
        }
        if freed_slot {
            self.writers.wake_shared(false);
        }
        Ok(n)
    }

    /// Adds handles of slices that fit, `max` bytes at most, to another pipe. Wakes its readers.
    ///
    /// # Errors
    /// As [`append`](Pipe::append), if this pipe has bytes.
    fn share(&self, to: &Pipe, max: usize) -> Result<usize> {
        let mut call = Write::default();
        let n = self
            .queue
            .share(&to.queue, max, &mut call)
            .map_err(with_signal)?;
        if n > 0 {
            to.tell_readers(call.was_empty);
        }
        Ok(n)
    }

    /// Returns a source of the first `max` bytes, for a file to write. They stay in the pipe, and
    /// other readers wait, until [`settle`](Pipe::settle) says how many were written. Without any
    /// bytes nothing is lent.
    ///
    /// # Errors
    /// A restart number.
    #[inline(always)]
    fn lend(&self, max: usize) -> Result<Front<'_, PipeState>> {
        let _reading = self.lock_reading()?;
        let front = self.queue.front(max);
        self.is_lent.store(front.left() > 0, Relaxed);
        Ok(front)
    }

    /// Takes off the first `n` bytes of those that were lent.
    fn settle(&self, n: usize) {
        let reading = self.queue.lock_reading();
        let freed_slot = self.queue.remove(&reading, n);
        self.is_lent.store(false, Relaxed);
        drop(reading);
        self.loans.wake_all();
        if freed_slot {
            self.writers.wake_shared(false);
        }
    }
}

/// Moves slices from a pipe to another one (`splice`).
///
/// # Errors
/// `EAGAIN`, `EPIPE`, a restart number, `ENOMEM`.
pub fn pipe_to_pipe(from: &Pipe, to: &Pipe, len: usize, wait: bool) -> Result<usize> {
    loop {
        // Most splices have nothing to wait for.
        match from.pass(to, len) {
            Ok(0) => {}
            result => return result,
        }
        if from.await_bytes(wait)?.is_none() {
            return Ok(0);
        }
        to.await_slot(wait)?;
    }
}

/// Adds bytes of `from`, which keeps them, to another pipe (`tee`).
///
/// # Errors
/// As [`pipe_to_pipe`].
pub fn tee(from: &Pipe, to: &Pipe, len: usize, wait: bool) -> Result<usize> {
    loop {
        // As above.
        match from.share(to, len) {
            Ok(0) => {}
            result => return result,
        }
        if from.await_bytes(wait)?.is_none() {
            return Ok(0);
        }
        to.await_slot(wait)?;
    }
}

/// Moves bytes from a pipe to another kind of file (`splice`), which `write` writes to.
///
/// # Errors
/// `EAGAIN`, a restart number, those of `write`.
pub fn pipe_to_file(
    from: &Pipe,
    write: impl Fn(&mut dyn Source) -> Result<usize>,
    len: usize,
    wait: bool,
) -> Result<usize> {
    loop {
        let mut lent = from.lend(len)?;
        let there = lent.left();
        if there > 0 {
            let result = write(&mut lent);
            // The file may have taken more slices than it wrote in the end, or fewer, as /dev/null.
            from.settle(result.unwrap_or(0).min(there));
            return result;
        }
        if from.await_bytes(wait)?.is_none() {
            return Ok(0);
        }
    }
}

/// Moves bytes from another kind of file to a pipe (`splice`).
///
/// # Errors
/// `EAGAIN`, `EPIPE`, a restart number, those of the file's read.
pub fn file_to_pipe(
    from: &dyn File,
    at: Option<u64>,
    flags: OpenFlags,
    to: &Pipe,
    len: usize,
    wait: bool,
) -> Result<usize> {
    loop {
        let status = to.await_slot(wait)?;
        let slices = status.slots - status.slices;
        // Bytes of a stream can't go back, so the memory for them comes first.
        let _promise = match at {
            None => Some(to.promise(len.min(slices))?),
            Some(_) => None,
        };
        let mut moving = Moving::new(len, slices);
        from.read(at, flags, &mut moving)?;
        if moving.is_empty() {
            return Ok(0);
        }
        // Another writer may have been faster. A file is read again. Bytes of a stream go in beyond
        // the pipe's slots, no more than it had for them, since not each call may wait.
        match to.append(&mut moving, at.is_none()) {
            Ok(0) => {}
            result => return result,
        }
    }
}

/// Moves `len` bytes from one file, from `from_at` on, to another (`sendfile`,
/// `copy_file_range`). Returns fewer at the end of the file, where the receiver takes no more, and
/// if the thread is to end.
///
/// # Errors
/// Those of read and write, if nothing was moved.
pub fn file_to_file(
    (from, from_flags, from_at): (&dyn File, OpenFlags, u64),
    write: impl Fn(u64, &mut dyn Source) -> Result<usize>,
    len: usize,
) -> Result<usize> {
    let mut total = 0;
    while total < len {
        let mut moving = Moving::new(PIECE.min(len - total), usize::MAX);
        let read = from.read(Some(from_at + total as u64), from_flags, &mut moving);
        let read = match read {
            Ok(0) => break,
            Ok(n) => n,
            Err(error) => return fbuf::moved(total, Err(error)),
        };
        match write(total as u64, &mut moving) {
            Ok(n) => {
                total += n;
                if n < read || total < len && vm::is_dying() {
                    break;
                }
            }
            Err(error) => return fbuf::moved(total, Err(error)),
        }
    }
    Ok(total)
}
