//! Slices that move between pipes and other files: `splice`, `tee`, `sendfile`,
//! `copy_file_range`. Only files that can't pass their pages on copy bytes.

use abi::{Errno, Result};
use fbuf::{
    Aggregate, AggregateSink, AggregateSource,
    queue::{Reading, Taken},
};
use fs::{File, OpenFlags};
use nucleus::PAGE_SIZE;

use super::{queue::Pipe, state::PipeStatus, transfer::Write};
use crate::process::signal;

/// Bytes on their way at once between two files: a full pipe.
const PIECE: usize = super::DEFAULT_SLOTS * PAGE_SIZE;

impl Pipe {
    /// Adds slices that fit; the others stay in `from`. Wakes readers.
    ///
    /// # Errors
    /// `EPIPE` without a reader, and SIGPIPE is sent; `ENOMEM`.
    fn append(&self, from: &mut Aggregate) -> Result<usize> {
        let mut call = Write::default();
        let n = match self.queue.append(from, &mut call) {
            Err(Errno::EPIPE) => return Err(signal::broken_pipe()),
            result => result?,
        };
        if n > 0 {
            self.tell_readers(call.was_empty);
        }
        Ok(n)
    }

    /// Puts back in front what was taken and not used; wakes readers of that, and writers of the
    /// room that the rest left. Writers sleep only while the pipe is full.
    fn put_back(&self, reading: &Reading<'_>, taken: Taken) {
        if self.queue.put_back(reading, taken.data) {
            self.readers.wake_all();
        }
        if taken.was_full {
            self.writers.wake_all();
        }
    }

    /// Moves all bytes to an empty pipe, if that is all there is to do ([`Queue::exchange`]).
    ///
    /// [`Queue::exchange`]: fbuf::queue::Queue::exchange
    fn exchange(&self, to: &Pipe, max: usize) -> Option<usize> {
        let (n, was_full) = self.queue.exchange(&to.queue, max)?;
        to.tell_readers(true);
        if was_full {
            self.writers.wake_all();
        }
        Some(n)
    }
}

/// Waits until there are bytes in `from`; `None` at the end of the stream.
fn await_bytes(from: &Pipe, wait: bool) -> Result<Option<PipeStatus>> {
    signal::take_or_wait(&from.readers, wait, || {
        let status = from.status();
        (status.bytes > 0 || status.writers == 0).then(|| Some(status).filter(|it| it.bytes > 0))
    })
}

/// Waits until a slice fits into `to`.
fn await_slot(to: &Pipe, wait: bool) -> Result<PipeStatus> {
    let status = signal::take_or_wait(&to.writers, wait, || {
        Some(to.status()).filter(|it| it.has_slot() || it.readers == 0)
    })?;
    match status.readers {
        0 => Err(signal::broken_pipe()),
        _ => Ok(status),
    }
}

/// Moves slices from a pipe to another one (`splice`).
///
/// # Errors
/// `EAGAIN`, `EPIPE`, a restart number, `ENOMEM`.
pub fn pipe_to_pipe(from: &Pipe, to: &Pipe, len: usize, wait: bool) -> Result<usize> {
    if let Some(n) = from.exchange(to, len) {
        return Ok(n);
    }
    loop {
        let Some(status) = await_bytes(from, wait)? else {
            return Ok(0);
        };
        await_slot(to, wait)?;
        let reading = from.queue.lock_reading();
        let mut moving = from.queue.take(&reading, len, status.slices)?;
        let result = to.append(&mut moving.data);
        from.put_back(&reading, moving);
        match result {
            // Another thread was faster at one of the two ends.
            Ok(0) => continue,
            result => return result,
        }
    }
}

/// Adds bytes of `from`, which keeps them, to another pipe (`tee`).
///
/// # Errors
/// As [`pipe_to_pipe`].
pub fn tee(from: &Pipe, to: &Pipe, len: usize, wait: bool) -> Result<usize> {
    loop {
        let Some(status) = await_bytes(from, wait)? else {
            return Ok(0);
        };
        await_slot(to, wait)?;
        let mut copy = from.queue.duplicate(len, status.slices)?;
        match to.append(&mut copy) {
            Ok(0) => continue,
            result => return result,
        }
    }
}

/// Moves bytes from a pipe to another kind of file (`splice`).
///
/// # Errors
/// `EAGAIN`, a restart number, those of the file's write.
pub fn pipe_to_file(
    from: &Pipe,
    to: &dyn File,
    at: Option<u64>,
    flags: OpenFlags,
    len: usize,
    wait: bool,
) -> Result<usize> {
    loop {
        let Some(status) = await_bytes(from, wait)? else {
            return Ok(0);
        };
        let reading = from.queue.lock_reading();
        let mut moving = from.queue.take(&reading, len, status.slices)?;
        if moving.data.is_empty() {
            continue;
        }
        let whole = moving.data.len();
        let result = to.write(
            at,
            flags,
            &mut AggregateSource::new(&mut moving.data, whole),
        );
        // A file may count bytes as written without taking them, as /dev/null does.
        let taken = whole - moving.data.len();
        if let Ok(written) = result {
            moving.data.clip_front(written.saturating_sub(taken));
        }
        from.put_back(&reading, moving);
        return result;
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
    let status = await_slot(to, wait)?;
    let room = status.slots * PAGE_SIZE - status.bytes.min((status.slots - 1) * PAGE_SIZE);
    let mut moving = Aggregate::new();
    let mut sink = AggregateSink::new(&mut moving, len.min(room));
    from.read(at, flags, &mut sink)?;
    let mut total = 0;
    while !moving.is_empty() {
        total += match to.append(&mut moving) {
            Ok(0) => match await_slot(to, true) {
                Ok(_) => 0,
                Err(error) => return fbuf::moved(total, Err(error)),
            },
            Ok(n) => n,
            Err(error) => return fbuf::moved(total, Err(error)),
        };
        // Without a position bytes can't be read again, so they wait for room. A file is read
        // again from where this call ends.
        if at.is_some() && total > 0 {
            break;
        }
    }
    Ok(total)
}

/// Moves `len` bytes from one file, from `from_at` on, to another (`sendfile`,
/// `copy_file_range`). Returns fewer at the end of the file or where the receiver takes no more.
///
/// # Errors
/// Those of read and write, if nothing was moved.
pub fn file_to_file(
    (from, from_flags, from_at): (&dyn File, OpenFlags, u64),
    (to, to_flags, to_at): (&dyn File, OpenFlags, Option<u64>),
    len: usize,
) -> Result<usize> {
    let mut total = 0;
    while total < len {
        let mut moving = Aggregate::new();
        let want = PIECE.min(len - total);
        let read = from.read(
            Some(from_at + total as u64),
            from_flags,
            &mut AggregateSink::new(&mut moving, want),
        );
        let read = match read {
            Ok(0) => break,
            Ok(n) => n,
            Err(error) => return fbuf::moved(total, Err(error)),
        };
        let mut source = AggregateSource::new(&mut moving, read);
        let written = to.write(to_at.map(|at| at + total as u64), to_flags, &mut source);
        match written {
            Ok(n) => {
                total += n;
                if n < read {
                    break;
                }
            }
            Err(error) => return fbuf::moved(total, Err(error)),
        }
    }
    Ok(total)
}
