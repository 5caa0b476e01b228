//! The receiver's side of a stream: taking slices off.

use abi::{Errno, Result};
use fbuf::{Sink, Slice};
use nucleus::{Frame, frame, sync::MutexGuard};

use super::Stream;

/// How bytes are read.
#[derive(Clone, Copy, Default, Debug)]
pub struct Read {
    /// They stay in the stream (`MSG_PEEK`).
    pub peek: bool,
    /// They are thrown away instead of copied (`MSG_TRUNC`).
    pub discard: bool,
}

impl Stream {
    /// Moves bytes that are there to a sink: `max` at most. Stops before an urgent byte's place. Wakes the
    /// writer when a third of the room is free.
    ///
    /// # Errors
    /// That of the sink, if it took nothing.
    pub fn read(&self, to: &mut dyn Sink, max: usize, how: Read) -> Result<usize> {
        let reading = self.reading.lock();
        let max = max.min(self.up_to_mark(how.peek));
        if how.peek {
            return self.copy(&reading, to, max);
        }
        let mut total = 0;
        let mut freed = false;
        let mut emptied: Option<Frame> = None;
        let result = loop {
            if total == max || !how.discard && to.room() == 0 {
                break Ok(());
            }
            // A handle of the first slice keeps its frame while bytes are copied without the lock.
            let first = {
                let mut chain = self.chain.lock();
                chain.keep(&mut emptied);
                chain.data.slices().next().cloned()
            };
            // Without a place to keep it, the emptied frame is freed here.
            emptied = None;
            let Some(first) = first else { break Ok(()) };
            let n = first.len.min(max - total);
            let taken = if how.discard {
                n
            } else {
                match to.put_frame(&first.frame, first.offset, n) {
                    Ok(0) => break Ok(()),
                    Ok(taken) => taken,
                    Err(error) => break Err(error),
                }
            };
            total += taken;
            let (old, made_room) = {
                let mut chain = self.chain.lock();
                let was_writable = chain.is_writable();
                let old = chain.data.take_slice(taken);
                (old, !was_writable && chain.is_writable())
            };
            drop(first);
            if made_room {
                freed = true;
                self.sender.writable.wake_beside();
            }
            if let Some(old) = old
                && old.frame.handles() == 1
                && !frame::is_scarce()
            {
                emptied = Some(old.frame);
            }
        };
        drop(reading);
        if freed {
            self.sender.writable.wake_all();
        }
        fbuf::moved(total, result)
    }

    /// Reads the urgent byte.
    ///
    /// # Errors
    /// `EINVAL` when there is none, or when it is in line.
    pub fn read_urgent(&self, peek: bool) -> Result<u8> {
        let mut chain = self.chain.lock();
        let urgent = chain.urgent.as_mut().filter(|urgent| !urgent.in_line);
        let urgent = urgent.ok_or(Errno::EINVAL)?;
        let byte = urgent.byte.ok_or(Errno::EINVAL)?;
        if !peek {
            urgent.byte = None;
        }
        Ok(byte)
    }

    /// Bytes that may be read at once: up to the urgent byte's place, which a read that starts there passes.
    fn up_to_mark(&self, peek: bool) -> usize {
        let mut chain = self.chain.lock();
        let taken = chain.taken();
        match &chain.urgent {
            Some(urgent) if urgent.place > taken => (urgent.place - taken) as usize,
            Some(urgent) if urgent.place == taken && chain.data.is_empty() => usize::MAX,
            Some(_) if !peek => {
                chain.urgent = None;
                usize::MAX
            }
            _ => usize::MAX,
        }
    }

    /// Copies bytes without taking them off.
    fn copy(&self, _reading: &MutexGuard<'_, ()>, to: &mut dyn Sink, max: usize) -> Result<usize> {
        let (mut total, mut at) = (0, 0);
        while total < max && to.room() > 0 {
            // The writer only adds behind, and no other reader is here: the slice at `at` stays where it is.
            let slice = self.chain.lock().data.slices().nth(at).cloned();
            let Some(Slice { frame, offset, len }) = slice else {
                break;
            };
            match to.put_frame(&frame, offset, len.min(max - total)) {
                Ok(0) => break,
                Ok(n) => total += n,
                Err(error) => return fbuf::moved(total, Err(error)),
            }
            at += 1;
        }
        Ok(total)
    }
}
