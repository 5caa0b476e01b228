//! The writer's side of a pipe: filling frames and linking slices.

use abi::{Errno, Result};
use fbuf::{Aggregate, Slice, Source};
use nucleus::{Frame, PAGE_SIZE, counters::Counter, frame::Contents, task::Sleep};

use super::queue::{ABOVE_SLOTS, PIPE_BUF, Pipe, Tail, keep};
use crate::process::signal;

impl Pipe {
    /// Sleeps until another slice fits or there is no reader.
    pub fn wait_for_slot(&self) -> Result<()> {
        self.writers
            .wait(Sleep::INTERRUPTIBLE, || {
                let status = self.status();
                (status.has_slot() || status.readers == 0).then_some(())
            })
            .map_err(signal::woken)
    }

    /// Writes all that the source has, waiting for room unless `wait` is false.
    ///
    /// # Errors
    /// `EPIPE` without a reader (the caller sends SIGPIPE), `EAGAIN`, a restart number, or that of the
    /// source; each only if nothing was written.
    pub fn write(&self, wait: bool, from: &mut dyn Source) -> Result<usize> {
        let whole = from.left() <= PIPE_BUF;
        self.write_in_steps(wait, from, |from| {
            let mut tail = self.writing.lock();
            self.fill(&mut tail, from, whole)
        })
    }

    /// Writes all that the source has by `step`, which adds what fits and says 0 when no slot is free.
    ///
    /// # Errors
    /// As [`write`](Pipe::write).
    pub(super) fn write_in_steps(
        &self,
        wait: bool,
        from: &mut dyn Source,
        step: impl Fn(&mut dyn Source) -> Result<usize>,
    ) -> Result<usize> {
        let mut total = 0;
        while from.left() > 0 {
            let error = match step(from) {
                Ok(0) if !wait => Errno::EAGAIN,
                Ok(0) => match self.wait_for_slot() {
                    Ok(()) => continue,
                    Err(error) => error,
                },
                Ok(n) => {
                    total += n;
                    continue;
                }
                Err(error) => error,
            };
            if total > 0 && error == Errno::EPIPE {
                // The caller learns of what was written; the signal must come all the same.
                super::broken_pipe();
            }
            return fbuf::moved(total, Err(error));
        }
        Ok(total)
    }

    /// Adds slices that fit, without copying; what is left in `from` did not fit. Wakes readers.
    ///
    /// # Errors
    /// `EPIPE` without a reader; `ENOMEM`.
    pub fn append(&self, from: &mut Aggregate) -> Result<usize> {
        let _tail = self.writing.lock();
        let mut queue = self.lock();
        if queue.readers == 0 {
            return Err(Errno::EPIPE);
        }
        let was_empty = queue.data.is_empty();
        let before = from.len();
        // There is room for all slots: nothing is allocated.
        if from.slice_count() <= queue.free_slots() {
            if was_empty && from.capacity() >= queue.slots + ABOVE_SLOTS {
                core::mem::swap(&mut queue.data, from);
            } else {
                queue.data.join(from)?;
            }
        }
        while queue.has_slot()
            && let Some(slice) = from.pop_front()
        {
            queue.data.append(slice)?;
        }
        let total = before - from.len();
        drop(queue);
        Counter::bytes_passed.add(total as u64);
        if total > 0 {
            self.tell_readers(was_empty);
        }
        Ok(total)
    }

    /// Adds bytes that fit: all or none of them with `whole`. Wakes readers once, at the end.
    fn fill(&self, tail: &mut Tail, from: &mut dyn Source, whole: bool) -> Result<usize> {
        let mut total = 0;
        let mut was_empty = false;
        let result = loop {
            if from.left() == 0 {
                break Ok(());
            }
            match self.fill_some(tail, from, whole && total == 0) {
                Ok((0, _)) => break Ok(()),
                Ok((n, empty)) => {
                    total += n;
                    was_empty |= empty;
                }
                Err(error) => break Err(error),
            }
        };
        if total > 0 {
            self.tell_readers(was_empty);
        }
        fbuf::moved(total, result)
    }

    /// There is more to read. Readers sleep only while the pipe is empty; observers want to hear of each write.
    pub(super) fn tell_readers(&self, was_empty: bool) {
        if was_empty || self.readers.is_observed() {
            self.readers.wake_all();
        }
    }

    /// One step of [`fill`](Pipe::fill): up to two slices are filled, then linked together, so
    /// that a reader sees all or nothing of a write of at most [`PIPE_BUF`] bytes. Returns the bytes added and whether
    /// the pipe was empty.
    fn fill_some(
        &self,
        tail: &mut Tail,
        from: &mut dyn Source,
        whole: bool,
    ) -> Result<(usize, bool)> {
        let mut spare: [Option<Frame>; 2] = [None, None];
        let (continues, free_slots) = {
            let mut queue = self.lock();
            if queue.readers == 0 {
                return Err(Errno::EPIPE);
            }
            let continues = tail.used < PAGE_SIZE && queue.continues(tail);
            let free_slots = queue.free_slots();
            for frame in spare.iter_mut().take(free_slots) {
                *frame = queue.aside().spare.pop();
            }
            (continues, free_slots)
        };
        if !continues {
            // When nobody else has a handle of the tail frame, it is empty again. A reader or another pipe
            // may have one still; then the frame is theirs.
            if tail.frame.as_ref().is_some_and(|frame| frame.handles() > 1) {
                tail.frame = None;
            }
            tail.used = 0;
        }
        let mut in_place = if continues { PAGE_SIZE - tail.used } else { 0 };
        if whole && from.left() > in_place + free_slots * PAGE_SIZE {
            self.give_back(&mut spare);
            return Ok((0, false));
        }
        let mut slices: [Option<Slice>; 2] = [None, None];
        let mut slots = free_slots;
        let mut result = Ok(());
        for slot in &mut slices {
            if from.left() == 0 || (in_place == 0 && slots == 0) {
                break;
            }
            match next_slice(tail, &mut in_place, &mut slots, from, &mut spare) {
                Ok(Some(slice)) => *slot = Some(slice),
                Ok(None) => break,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        let (mut total, mut was_empty) = (0, false);
        if slices[0].is_some() {
            let mut queue = self.lock();
            was_empty = queue.data.is_empty();
            for slice in slices.into_iter().flatten() {
                total += slice.len;
                queue.data.append(slice)?;
            }
        }
        self.give_back(&mut spare);
        fbuf::moved(total, result).map(|n| (n, was_empty))
    }

    fn give_back(&self, spare: &mut [Option<Frame>; 2]) {
        if spare.iter().any(Option::is_some) {
            let mut queue = self.lock();
            for frame in spare {
                keep(queue.aside(), frame);
            }
        }
    }
}

/// Makes the next slice: in place behind the last one, passed on by the source, or in a frame of its own.
fn next_slice(
    tail: &mut Tail,
    in_place: &mut usize,
    slots: &mut usize,
    from: &mut dyn Source,
    spare: &mut [Option<Frame>; 2],
) -> Result<Option<Slice>> {
    if *slots > 0
        && let Some(slice) = from.take_slice(PAGE_SIZE)
    {
        Counter::bytes_passed.add(slice.len as u64);
        *in_place = 0;
        *slots -= 1;
        // What is written next starts a frame of its own.
        tail.frame = None;
        return Ok(Some(slice));
    }
    if *in_place == 0 {
        if *slots == 0 {
            return Ok(None);
        }
        *slots -= 1;
    }
    if tail.used == PAGE_SIZE || tail.frame.is_none() {
        let recycled = spare.iter_mut().find_map(Option::take);
        let frame = match recycled {
            Some(frame) => frame,
            None => vm::alloc_frame(Contents::Stale).map_err(|_| Errno::ENOMEM)?,
        };
        tail.frame = Some(frame);
        tail.used = 0;
    }
    *in_place = 0;
    let Some(frame) = &tail.frame else {
        return Ok(None);
    };
    let n = from.take_into(frame, tail.used, from.left().min(PAGE_SIZE - tail.used))?;
    if n == 0 {
        return Ok(None);
    }
    let slice = Slice {
        frame: frame.clone(),
        offset: tail.used,
        len: n,
    };
    tail.used += n;
    Ok(Some(slice))
}
