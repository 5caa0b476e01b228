//! Looking at bytes that stay where they are.

use abi::Result;
use fbuf::{Sink, Slice};

use super::{Channel, Queue, Received};
use crate::socket::unix::{
    credentials::Sender,
    rights::{self, Rights},
};

impl Channel {
    /// Copies bytes that are there, from the one at `skip` on, without taking them off.
    ///
    /// # Errors
    /// That of the sink, if it took nothing.
    pub fn peek(&self, to: &mut dyn Sink, skip: usize, received: &mut Received) -> Result<usize> {
        let _reading = self.reading.lock();
        // Nobody else takes bytes off meanwhile: places in the chain stay as they are.
        let mut total = 0;
        while to.room() > 0 {
            let place = skip + total;
            let slice = {
                let queue = self.queue.lock();
                if place < queue.data.len() {
                    let sender = queue.sender_at(skip);
                    received.sender.get_or_insert(sender);
                }
                let left = queue.end_of_peek(skip, received) - place;
                queue.rest_of_slice(place).map(|mut slice| {
                    slice.len = slice.len.min(left);
                    slice
                })
            };
            let Some(slice) = slice else { break };
            let n = slice.len.min(to.room());
            if n == 0 {
                break;
            }
            match to.put_frame(&slice.frame, slice.offset, n) {
                Ok(taken) if taken == n => total += n,
                Ok(taken) => {
                    total += taken;
                    break;
                }
                Err(error) => return fbuf::moved(total, Err(error)),
            }
        }
        self.peek_rights(skip, total, received);
        Ok(total)
    }

    /// Duplicates the rights that a call which took `total` bytes from the one at `skip` on would have got.
    fn peek_rights(&self, skip: usize, total: usize, received: &mut Received) {
        let find = |queue: &Queue| {
            let start = queue.taken + skip as u64;
            queue.marks.iter().position(|mark| {
                mark.at < start + total as u64 && mark.end > start && mark.rights.is_some()
            })
        };
        let is_guarded = {
            let queue = self.queue.lock();
            match find(&queue).and_then(|at| queue.marks[at].rights.as_ref()) {
                Some(rights) => rights.has_sockets(),
                None => return,
            }
        };
        let _sockets = is_guarded.then(rights::sockets);
        let queue = self.queue.lock();
        if let Some(at) = find(&queue)
            && let Some(rights) = &queue.marks[at].rights
        {
            received.rights = Some(Rights::duplicate(rights));
        }
    }
}

impl Queue {
    /// The bytes from a place in the chain on, as far as they lie in one slice.
    pub(super) fn rest_of_slice(&self, place: usize) -> Option<Slice> {
        let mut left = place;
        for slice in self.data.slices() {
            if left < slice.len {
                let mut slice = slice.clone();
                slice.offset += left;
                slice.len -= left;
                return Some(slice);
            }
            left -= slice.len;
        }
        None
    }

    /// Who sent the byte at `skip`.
    fn sender_at(&self, skip: usize) -> Option<Sender> {
        let at = self.taken + skip as u64;
        let passed = self.marks.iter().take_while(|mark| mark.at <= at);
        passed.last().map_or(self.first_sender, |mark| mark.sender)
    }

    /// Where one call that begins at `skip` would end, if the bytes that are there were endless.
    fn end_of_peek(&self, skip: usize, received: &Received) -> usize {
        let start = self.taken + skip as u64;
        let mut end = match self.urgent {
            Some(urgent) if urgent > start => urgent,
            _ => u64::MAX,
        };
        for mark in &self.marks {
            let other = received.sender.is_some_and(|sender| sender != mark.sender);
            if received.minds_sender && other && mark.at > start {
                end = end.min(mark.at);
                break;
            }
            if mark.rights.is_some() && mark.end > start {
                end = end.min(mark.end);
                break;
            }
        }
        usize::try_from(end - self.taken).unwrap_or(usize::MAX)
    }
}
