//! The urgent byte: the last one of a call that sends with `MSG_OOB`.
//!
//! It has its place in the stream, where a call to receive stops. It is received there like others
//! only with `SO_OOBINLINE`; else by `MSG_OOB`, and is passed over when the stream comes to it.
//! There is one at a time: the next one makes it a byte like others.

use abi::{Errno, Result};
use fbuf::{Sink, Slice, queue::Chain};

use super::{Channel, ChannelState, has_made_room};
use crate::socket::unix::rights::Rights;

impl Channel {
    /// Gives the urgent byte to `to`, and takes it out of the stream unless `peeks`. `freed` is
    /// called, with no spin lock held, when a writer that waits would find room within `limit`.
    ///
    /// # Errors
    /// `EINVAL` if there is none, those of the sink, `ENOMEM`.
    pub fn receive_urgent(
        &self,
        to: &mut dyn Sink,
        peeks: bool,
        limit: usize,
        freed: impl Fn(),
    ) -> Result<()> {
        let mut byte = [0];
        let (removed, made_room) = {
            let _reading = self.queue.lock_reading();
            let mut chain = self.queue.lock();
            let at = chain.urgent.ok_or(Errno::EINVAL)?;
            chain.data.peek((at - chain.start()) as usize, &mut byte);
            match peeks {
                true => (None, false),
                false => {
                    let removed = remove_urgent(&mut chain, at)?;
                    (Some(removed), has_made_room(&mut chain, limit))
                }
            }
        };
        // Frames are not freed under the spin lock, nor files closed under the other.
        drop(removed);
        if made_room {
            freed();
        }
        if to.room() > 0 {
            to.put_bytes(&byte)?;
        }
        Ok(())
    }

    /// Returns whether the next byte is the urgent one.
    pub fn is_at_urgent(&self) -> bool {
        self.queue.lock().is_at_urgent()
    }
}

/// Takes the urgent byte out of its place; the bytes behind it move up. Rights that came with it
/// alone go with it. The limits of slices and marks bound the work.
fn remove_urgent(
    chain: &mut Chain<ChannelState>,
    at: u64,
) -> Result<(Option<Slice>, Option<Rights>)> {
    let byte = chain.cut_urgent()?;
    let state = &mut chain.state;
    let mut alone = None;
    let mut empty = None;
    for (number, mark) in state.marks.iter_mut().enumerate() {
        mark.at -= u64::from(mark.at > at);
        mark.end -= u64::from(mark.end > at);
        if mark.at == at && mark.end == at {
            alone = alone.or(mark.rights.take());
            empty = Some(number);
        }
    }
    // A mark at which another one begins stands for no byte, and must not part those around it.
    if let Some(number) = empty
        && state
            .marks
            .get(number + 1)
            .is_some_and(|next| next.at == at)
    {
        state.marks.remove(number);
    }
    Ok((byte, alone))
}

/// Passes over the urgent byte in front, and over rights that came with it alone.
pub(super) fn skip_urgent(chain: &mut Chain<ChannelState>) -> (Option<Slice>, Option<Rights>) {
    let byte = chain.take(1);
    let (start, state) = (chain.start(), &mut chain.state);
    let mut alone = None;
    while let Some(mark) = state.marks.front_mut()
        && mark.at < start
        && mark.end <= start
    {
        state.first_sender = mark.sender;
        alone = alone.or(mark.rights.take());
        state.marks.pop_front();
    }
    (byte, alone)
}
