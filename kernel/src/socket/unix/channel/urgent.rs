//! The urgent byte: the last one of a call that sends with `MSG_OOB`.
//!
//! It has its place in the stream, where a call to receive stops. It is received there like others only by who asked for
//! that (`SO_OOBINLINE`); else by `MSG_OOB`, and is passed over when the stream comes to it. There is one at a time:
//! the next one makes it a byte like others.

use abi::{Errno, Result};
use fbuf::{Sink, Slice};
use nucleus::ephemeral;

use super::{Channel, Queue};
use crate::socket::unix::rights::Rights;

impl Channel {
    /// Gives the urgent byte to `to`, and takes it out of the stream unless `peeks`.
    ///
    /// # Errors
    /// `EINVAL` if there is none, that of the sink, `ENOMEM`.
    pub fn receive_urgent(&self, to: &mut dyn Sink, peeks: bool) -> Result<()> {
        let mut byte = [0];
        let removed = {
            let _reading = self.reading.lock();
            let mut queue = self.queue.lock();
            let place = (queue.urgent.ok_or(Errno::EINVAL)? - queue.taken) as usize;
            let slice = queue.rest_of_slice(place).ok_or(Errno::EINVAL)?;
            ephemeral::map(&slice.frame).read(slice.offset, &mut byte);
            match peeks {
                true => None,
                false => Some(queue.remove_urgent(place)?),
            }
        };
        // Frames are not freed under the spin lock, nor files closed under the other.
        drop(removed);
        if to.room() > 0 {
            to.put_bytes(&byte)?;
        }
        Ok(())
    }

    /// Whether the next byte is the urgent one.
    pub fn is_at_urgent(&self) -> bool {
        let queue = self.queue.lock();
        queue.urgent == Some(queue.taken)
    }
}

impl Queue {
    /// Takes the urgent byte out of its place; what follows moves up. Rights that came with it alone go with it.
    fn remove_urgent(&mut self, place: usize) -> Result<(Option<Slice>, Option<Rights>)> {
        // With room for one slice more, since the byte may split one, nothing fails once the chain is apart.
        self.data.reserve(1)?;
        let mut behind = self.data.split_off(place)?;
        let byte = behind.take_slice(1);
        while let Some(slice) = self.data.pop_back() {
            behind.prepend(slice)?;
        }
        self.data = behind;
        self.urgent = None;
        let at = self.taken + place as u64;
        let mut alone = None;
        let mut empty = None;
        for (number, mark) in self.marks.iter_mut().enumerate() {
            mark.at -= u64::from(mark.at > at);
            mark.end -= u64::from(mark.end > at);
            if mark.at == at && mark.end == at {
                alone = alone.or(mark.rights.take());
                empty = Some(number);
            }
        }
        // A mark at which another one begins stands for no byte, and must not part those around it.
        if let Some(number) = empty
            && self.marks.get(number + 1).is_some_and(|next| next.at == at)
        {
            self.marks.remove(number);
        }
        Ok((byte, alone))
    }

    /// Passes over the urgent byte in front, and over rights that came with it alone.
    pub(super) fn skip_urgent(&mut self) -> (Option<Slice>, Option<Rights>) {
        self.urgent = None;
        let byte = self.take(1);
        let mut alone = None;
        while let Some(mark) = self.marks.front_mut()
            && mark.at < self.taken
        {
            if mark.end > self.taken {
                break;
            }
            self.first_sender = mark.sender;
            alone = alone.or(mark.rights.take());
            self.marks.pop_front();
        }
        (byte, alone)
    }
}
