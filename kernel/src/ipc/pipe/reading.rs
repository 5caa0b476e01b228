//! The reader's side of a pipe: taking slices off.

use core::{mem, sync::atomic::Ordering::Relaxed};

use abi::{Errno, Result};
use fbuf::{Aggregate, Sink};
use nucleus::{Frame, counters::Counter, frame, sync::MutexGuard, task::Sleep};

use super::queue::{ABOVE_SLOTS, Pipe, Status, keep};
use crate::process::signal;

impl Pipe {
    /// Reads what is there, waiting for the first bytes unless `wait` is false.
    ///
    /// # Errors
    /// `EAGAIN`, a restart number, or that of the sink.
    pub fn read(&self, wait: bool, to: &mut dyn Sink) -> Result<usize> {
        if to.room() == 0 {
            return Ok(0);
        }
        loop {
            let n = {
                let reading = self.reading.lock();
                match self.has_packets.load(Relaxed) {
                    false => self.drain(&reading, to, usize::MAX)?,
                    true => self.drain_packet(&reading, to)?,
                }
            };
            if n > 0 {
                return Ok(n);
            }
            let status = self.status();
            if status.bytes > 0 {
                continue;
            }
            if status.writers == 0 {
                return Ok(0);
            }
            if !wait {
                return Err(Errno::EAGAIN);
            }
            self.wait_for_bytes()?;
        }
    }

    /// Sleeps until there are bytes or no writer.
    pub fn wait_for_bytes(&self) -> Result<()> {
        self.readers
            .wait(Sleep::INTERRUPTIBLE, || {
                let status = self.status();
                (status.bytes > 0 || status.writers == 0).then_some(())
            })
            .map_err(signal::woken)
    }

    /// The lock that [`drain`](Pipe::drain) wants.
    pub fn lock_reading(&self) -> MutexGuard<'_, ()> {
        self.reading.lock()
    }

    /// Moves bytes that are there, `max` at most, to a sink. Wakes writers once, at the end.
    ///
    /// # Errors
    /// That of the sink, if it took nothing.
    pub fn drain(
        &self,
        _reading: &MutexGuard<'_, ()>,
        to: &mut dyn Sink,
        max: usize,
    ) -> Result<usize> {
        let mut total = 0;
        let mut freed_slot = false;
        let mut emptied: Option<Frame> = None;
        let result = loop {
            if total == max || to.room() == 0 {
                break Ok(());
            }
            // A handle of the first slice keeps its frame while bytes are copied without the lock.
            let first = {
                let mut queue = self.lock();
                keep(queue.aside(), &mut emptied);
                queue.data.slices().next().cloned()
            };
            let Some(first) = first else { break Ok(()) };
            let n = first.len.min(max - total);
            let taken = match to.put_frame(&first.frame, first.offset, n) {
                Ok(0) => break Ok(()),
                Ok(taken) => taken,
                Err(error) => break Err(error),
            };
            total += taken;
            let old = {
                let mut queue = self.lock();
                let was_full = !queue.has_slot();
                let old = queue.take_slice(taken);
                freed_slot |= was_full && queue.has_slot();
                old
            };
            drop(first);
            if let Some(old) = old
                && old.frame.handles() == 1
                && !frame::is_scarce()
            {
                emptied = Some(old.frame);
            }
        };
        if emptied.is_some() {
            keep(self.lock().aside(), &mut emptied);
        }
        if freed_slot {
            self.writers.wake_all();
        }
        fbuf::moved(total, result)
    }

    /// Copies handles of the first slices, `max` bytes at most (`tee`). `status` is a look at the pipe before, which says how
    /// many there are.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn duplicate(&self, max: usize, status: Status) -> Result<Aggregate> {
        let mut copy = status.room_for_all()?;
        let queue = self.lock();
        queue.data.share_front(&mut copy, max, status.slices);
        Ok(copy)
    }

    /// Takes slices off, `max` bytes at most. What is not used goes back by [`put_back`](Pipe::put_back). `status` is a
    /// look at the pipe before, which says how many there are.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn take(&self, _reading: &MutexGuard<'_, ()>, max: usize, status: Status) -> Result<Taken> {
        let mut data = status.room_for_all()?;
        let mut queue = self.lock();
        let was_full = !queue.has_slot();
        if queue.data.len() <= max && data.capacity() >= queue.slots + ABOVE_SLOTS {
            // The pipe goes on with the other chain's memory.
            queue.packets.first += queue.data.len() as u64;
            mem::swap(&mut data, &mut queue.data);
        }
        while data.slice_count() < status.slices
            && let Some(slice) = queue.take_slice(max.saturating_sub(data.len()))
        {
            data.append(slice)?;
        }
        Ok(Taken { data, was_full })
    }

    /// Moves all there is, `max` bytes at most, to another pipe that is empty: the two chains change places, so nothing is
    /// allocated. `None`, and nothing has happened, where that is not all that there is to do: a chain that is empty, too long or
    /// without the other pipe's room, bytes in `to`, or nobody who reads it.
    pub fn exchange(&self, to: &Pipe, max: usize) -> Option<usize> {
        let _reading = self.reading.lock();
        let _tail = to.writing.lock();
        let (mut source, mut target) = Pipe::lock_pair(self, to);
        let n = source.data.len();
        if n == 0
            || n > max
            || !target.data.is_empty()
            || target.readers == 0
            || source.data.slice_count() > target.slots
            || source.data.capacity() < target.slots + ABOVE_SLOTS
            || target.data.capacity() < source.slots + ABOVE_SLOTS
        {
            return None;
        }
        let was_full = !source.has_slot();
        source.packets.first += n as u64;
        mem::swap(&mut source.data, &mut target.data);
        drop((source, target));
        Counter::bytes_passed.add(n as u64);
        to.tell_readers(true);
        if was_full {
            self.writers.wake_all();
        }
        Some(n)
    }

    /// Puts back in front what was taken and not used, and tells writers of the room that the rest left.
    pub fn put_back(&self, _reading: &MutexGuard<'_, ()>, taken: Taken) {
        let mut unused = taken.data;
        if !unused.is_empty() {
            let mut queue = self.lock();
            let was_empty = queue.data.is_empty();
            while let Some(slice) = unused.pop_back() {
                // At most what was there before, and the two places above the slots: nothing is allocated unless
                // writers have filled the pipe meanwhile.
                let len = slice.len;
                if queue.data.prepend(slice).is_err() {
                    break;
                }
                queue.packets.first -= len as u64;
            }
            drop(queue);
            if was_empty {
                self.readers.wake_all();
            }
        }
        // Writers sleep only while the pipe is full.
        if taken.was_full {
            self.writers.wake_all();
        }
    }
}

/// What a splice has taken off a pipe.
pub struct Taken {
    /// What has not been passed on.
    pub data: Aggregate,
    was_full: bool,
}
