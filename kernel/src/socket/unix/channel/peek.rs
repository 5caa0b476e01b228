//! Looking at bytes that stay where they are.

use abi::Result;
use fbuf::{Sink, queue::Chain};

use super::{Channel, ChannelState, Received};
use crate::socket::unix::{
    credentials::Sender,
    rights::{self, Rights},
};

impl Channel {
    /// Copies bytes that are there, from the one at `skip` on, and leaves them in place.
    ///
    /// # Errors
    /// Those of the sink, if it took nothing.
    pub fn peek(&self, to: &mut dyn Sink, skip: usize, received: &mut Received) -> Result<usize> {
        let reading = self.queue.lock_reading();
        let total = self.queue.peek(&reading, to, skip, |chain| {
            if skip < chain.data.len() {
                let sender = sender_at(chain, skip);
                received.sender.get_or_insert(sender);
            }
            end_of_peek(chain, skip, received)
        })?;
        self.peek_rights(skip, total, received);
        Ok(total)
    }

    /// Duplicates the rights of a call that takes `total` bytes from the one at `skip` on.
    fn peek_rights(&self, skip: usize, total: usize, received: &mut Received) {
        let find = |chain: &Chain<ChannelState>| {
            let start = chain.start() + skip as u64;
            chain.state.marks.iter().position(|mark| {
                mark.at < start + total as u64 && mark.end > start && mark.rights.is_some()
            })
        };
        let is_guarded = {
            let chain = self.queue.lock();
            match find(&chain).and_then(|at| chain.state.marks[at].rights.as_ref()) {
                Some(rights) => rights.has_sockets(),
                None => return,
            }
        };
        let _sockets = is_guarded.then(rights::sockets);
        let chain = self.queue.lock();
        if let Some(at) = find(&chain)
            && let Some(rights) = &chain.state.marks[at].rights
        {
            received.rights = Some(Rights::duplicate(rights));
        }
    }
}

/// Returns the sender of the byte at `skip`.
fn sender_at(chain: &Chain<ChannelState>, skip: usize) -> Option<Sender> {
    let at = chain.start() + skip as u64;
    let state = &chain.state;
    let passed = state.marks.iter().take_while(|mark| mark.at <= at);
    passed.last().map_or(state.first_sender, |mark| mark.sender)
}

/// Returns the place in the chain where a call that begins at `skip` ends, if only marks end it.
fn end_of_peek(chain: &Chain<ChannelState>, skip: usize, received: &Received) -> usize {
    let start = chain.start() + skip as u64;
    let mut end = chain.urgent_after(start);
    for mark in &chain.state.marks {
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
    usize::try_from(end - chain.start()).unwrap_or(usize::MAX)
}
