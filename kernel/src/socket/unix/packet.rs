//! Sending and receiving datagrams and packets.

use alloc::sync::Arc;

use abi::{
    Errno, Result,
    raw::net::{MSG_OOB, MSG_TRUNC, SO_PASSCRED},
};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::{
    UnixSocket,
    connect::may_send,
    credentials::{self, Sender},
    end::{End, Inbox},
    messages::{Message, Messages, Push},
    name::{Asked, Name},
};
use crate::socket::{Incoming, Outgoing, Timeout};

/// Bytes of a send buffer that a message can't use.
const RESERVED: usize = 32;

/// Datagrams that may wait at a socket which is not connected to their sender
/// (`/proc/sys/net/unix/max_dgram_qlen`); one more than that may.
pub static MAX_WAITING: AtomicU32 = AtomicU32::new(10);

/// Returns how many messages may be before one of `from` to `to`. A receiver connected to its
/// sender takes all that the sender's buffer allows.
fn max_waiting(from: &Arc<End>, to: &Arc<End>) -> usize {
    if to.sends_to(from) {
        usize::MAX
    } else {
        MAX_WAITING.load(Relaxed) as usize
    }
}

/// Whether a datagram of `from` to `to` would have to wait; `from` is told when it no longer would.
pub(super) fn is_full(from: &Arc<End>, to: &Arc<End>) -> bool {
    match &to.inbox {
        Inbox::Messages(messages) => messages.is_full(max_waiting(from, to), from),
        Inbox::Bytes(_) => false,
    }
}

impl UnixSocket {
    /// Sends a message, whole.
    ///
    /// # Errors
    /// `ENOTCONN`, `EMSGSIZE`, `ECONNREFUSED`, `EPERM` if the receiver is connected to another,
    /// `EPIPE`, a pending error, those of the address, of the control messages, of waiting and of
    /// the source.
    pub(super) fn send_message(&self, message: &mut Outgoing<'_>) -> Result<usize> {
        let own = &self.end.common;
        if message.has(MSG_OOB) {
            return Err(Errno::EOPNOTSUPP);
        }
        if let Some(error) = own.take_error() {
            return Err(error);
        }
        if !self.is_datagram() && self.connected.get().is_none() {
            return Err(Errno::ENOTCONN);
        }
        self.bind_if_curious()?;
        let parsed = credentials::parse(message.control)?;
        let asked = match &message.to {
            Some(address) if self.is_datagram() => Some(Asked::read(address)?),
            _ => None,
        };
        let mut to = match &asked {
            Some(asked) => Name::find(asked, own.kind)?,
            None => self.other().ok_or(Errno::ENOTCONN)?,
        };
        let len = message.data.left();
        if len > own.send_buffer().saturating_sub(RESERVED) {
            return Err(Errno::EMSGSIZE);
        }
        self.wait_for_buffer(message.timeout)?;
        let sender = match parsed.sender {
            None if own.is_on(SO_PASSCRED) || to.common.is_on(SO_PASSCRED) => Sender::current(),
            sender => sender,
        };
        let mut waiting = {
            let mut tail = self.end.tail.lock();
            Message::new(&self.end, &mut tail, message.data, sender, parsed.rights)?
        };
        loop {
            if !self.is_datagram() {
                // A connection was there: only its other end can be gone.
            } else if !may_send(&self.end, &to) {
                return Err(Errno::EPERM);
            }
            let Inbox::Messages(messages) = &to.inbox else {
                return Err(Errno::EPROTOTYPE);
            };
            match messages.push(waiting, max_waiting(&self.end, &to))? {
                Push::Done => {
                    to.common.readers.wake_shared(false);
                    return Ok(len);
                }
                Push::Closed => return Err(self.undeliverable(&to)),
                Push::Full(again) => {
                    waiting = again;
                    let ready = || self.end.is_send_shut() || !is_full(&self.end, &to);
                    message.timeout.wait_until(&own.writers, ready)?;
                    if self.end.is_send_shut() {
                        return Err(Errno::EPIPE);
                    }
                }
            }
            // The name may have changed its owner meanwhile.
            if let Some(asked) = &asked {
                to = Name::find(asked, own.kind)?;
            }
        }
    }

    /// Waits until this socket's own buffer has room.
    fn wait_for_buffer(&self, timeout: Timeout) -> Result<()> {
        let own = &self.end.common;
        let ready = || self.end.may_charge() || self.end.is_send_shut() || own.has_error();
        timeout.wait_until(&own.writers, ready)?;
        if let Some(error) = own.take_error() {
            return Err(error);
        }
        match self.end.is_send_shut() {
            true => Err(Errno::EPIPE),
            false => Ok(()),
        }
    }

    /// The error for a receiver that takes nothing. One that is gone is no longer connected to.
    fn undeliverable(&self, to: &Arc<End>) -> Errno {
        if !to.is_closed() || !self.is_datagram() {
            return Errno::EPIPE;
        }
        let old = {
            let mut target = self.target.lock();
            match &*target {
                Some(now) if Arc::ptr_eq(now, to) => {
                    self.end.set_peer(None);
                    target.take()
                }
                _ => None,
            }
        };
        if let Some(old) = old {
            self.disconnected(&old);
        }
        Errno::ECONNREFUSED
    }

    /// Receives a message, or what of it there is room for.
    ///
    /// # Errors
    /// `ENOTCONN` for a socket of packets without a connection; a pending error, those of waiting
    /// and of the sink.
    pub(super) fn receive_message(
        &self,
        messages: &Messages,
        message: &mut Incoming<'_>,
    ) -> Result<usize> {
        let own = &self.end.common;
        if message.has(MSG_OOB) {
            return Err(Errno::EOPNOTSUPP);
        }
        if !self.is_datagram() && self.connected.get().is_none() {
            return Err(Errno::ENOTCONN);
        }
        // Where a look begins, as far as the option says.
        let skip = own.peek_from();
        let next = || {
            if let Some(error) = own.take_error() {
                return Some(Err(error));
            }
            // Checked first: messages sent before the end are visible then.
            let no_more = self.end.is_receive_shut();
            let first = match message.peeks() {
                true => messages.look(skip),
                false => messages.pop().map(|first| (first, 0)),
            };
            match first {
                Some(first) => Some(Ok(Some(first))),
                None if no_more && (message.timeout.waits() || !self.is_datagram()) => {
                    Some(Ok(None))
                }
                None => None,
            }
        };
        let Some((got, skip)) = message.timeout.wait(&own.readers, next)?? else {
            return Ok(0);
        };
        let whole = got.len() - skip;
        let n = got.copy(message.data, skip)?;
        if n < whole {
            message.answer |= MSG_TRUNC;
        }
        match message.peeks() {
            true => {
                own.note_received(n, true);
                got.seen.store(true, Relaxed);
            }
            false => own.note_received(whole, false),
        }
        if message.wants_address {
            message.from = got.from.as_ref().map(|name| name.address());
        }
        own.put_time(&mut message.control, got.time);
        credentials::put_sender(own, message, got.sender);
        message.rights = match message.peeks() {
            true => got.peek_rights(),
            false => got.receive_rights(),
        };
        Ok(match message.has(MSG_TRUNC) {
            true => whole,
            false => n,
        })
    }
}
