//! Sending and receiving bytes.

use abi::{
    Errno, Result,
    raw::net::{MSG_OOB, MSG_WAITALL, SO_OOBINLINE, SO_PASSCRED},
};

use super::{
    UnixSocket,
    channel::{Attached, Channel, Received},
    credentials::{self, Sender},
    end::Inbox,
};
use crate::socket::{Incoming, Outgoing};

impl UnixSocket {
    /// Sends all bytes, waiting for room as the call allows.
    ///
    /// # Errors
    /// `ENOTCONN`; `EISCONN` and `EOPNOTSUPP` with an address; `EPIPE` if the receiver is gone, a
    /// pending error, those of the control messages and of waiting; each only if nothing was sent.
    pub(super) fn send_bytes(&self, message: &mut Outgoing<'_>) -> Result<usize> {
        let own = &self.end.common;
        let is_urgent = message.has(MSG_OOB);
        if is_urgent && message.data.left() == 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut attached = Attached::default();
        if !message.control.is_empty() {
            let parsed = credentials::parse(message.control)?;
            attached = Attached {
                sender: parsed.sender,
                rights: parsed.rights,
                ..Attached::default()
            };
        }
        attached.is_urgent = is_urgent;
        let other = self.connected.get();
        if message.to.is_some() {
            return Err(match other {
                Some(_) => Errno::EISCONN,
                None => Errno::EOPNOTSUPP,
            });
        }
        let other = other.ok_or(Errno::ENOTCONN)?;
        let Inbox::Bytes(channel) = &other.inbox else {
            return Err(Errno::ENOTCONN);
        };
        if self.end.is_send_shut() {
            return Err(Errno::EPIPE);
        }
        if attached.sender.is_none() && (own.is_on(SO_PASSCRED) || other.common.is_on(SO_PASSCRED))
        {
            attached.sender = Sender::current();
        }
        let mut total = 0;
        while message.data.left() > 0 {
            if let Some(error) = own.take_error() {
                return fbuf::moved(total, Err(error));
            }
            let error = match channel.fill(message.data, own.send_buffer(), &mut attached, || {
                other.common.readers.wake_beside();
            }) {
                Ok(n) if n > 0 => {
                    total += n;
                    other.common.readers.wake_shared(false);
                    continue;
                }
                Ok(_) => {
                    let is_offered =
                        message.timeout.waits() && channel.offer_bytes(message.data, &attached);
                    let ready = || {
                        channel.has_room(own.send_buffer())
                            || self.end.is_send_shut()
                            || own.has_error()
                            || is_offered && channel.has_pulled()
                    };
                    let waited = message.timeout.wait_until(&own.writers, ready);
                    if is_offered {
                        total += channel.withdraw_bytes(message.data);
                    }
                    match waited {
                        // What the receiver took counts, even if it has left.
                        _ if message.data.left() == 0 => continue,
                        Ok(()) if self.end.is_send_shut() => Errno::EPIPE,
                        Ok(()) => continue,
                        Err(error) => error,
                    }
                }
                Err(error) => error,
            };
            return fbuf::moved(total, Err(error));
        }
        Ok(total)
    }

    /// Receives bytes: those that are there, or as many as the call insists on.
    ///
    /// # Errors
    /// `EINVAL` if it never was connected; a pending error, those of waiting and of the sink; each
    /// only if nothing was received.
    pub(super) fn receive_bytes(
        &self,
        channel: &Channel,
        message: &mut Incoming<'_>,
    ) -> Result<usize> {
        let own = &self.end.common;
        let other = self.connected.get().ok_or(Errno::EINVAL)?;
        let peeks = message.peeks();
        if message.has(MSG_OOB) {
            if own.is_on(SO_OOBINLINE) {
                return Err(Errno::EINVAL);
            }
            let limit = other.common.send_buffer();
            let freed = || other.common.writers.wake_shared(false);
            channel.receive_urgent(message.data, peeks, limit, freed)?;
            message.answer |= MSG_OOB;
            return Ok(1);
        }
        // Where a look begins, as far as the option says.
        let skip = own.peek_from().filter(|_| peeks).unwrap_or(0);
        let room = message.data.room();
        let enough = match message.has(MSG_WAITALL) && !peeks {
            true => room,
            false => own.receive_low_water().min(room),
        };
        let mut received = Received {
            minds_sender: own.is_on(SO_PASSCRED),
            inline_urgent: own.is_on(SO_OOBINLINE),
            ..Received::default()
        };
        let mut total = 0;
        let result = loop {
            let n = match peeks {
                true => channel.peek(message.data, skip, &mut received),
                false => channel.drain(
                    message.data,
                    room,
                    other.common.send_buffer(),
                    &mut received,
                    || other.common.writers.wake_beside(),
                ),
            };
            drop(received.lost.take());
            if core::mem::take(&mut received.made_room) {
                other.common.writers.wake_shared(false);
            }
            match n {
                Ok(n) => total += n,
                Err(error) => break Err(error),
            }
            if received.is_over || total >= enough.max(1) {
                break Ok(());
            }
            let there = channel.status().bytes;
            if there > skip && room == 0 {
                // A call for no bytes does not wait.
                break Ok(());
            }
            if there > 0 && !peeks {
                continue;
            }
            if let Some(error) = own.take_error() {
                break Err(error);
            }
            if self.end.is_receive_shut() {
                // Bytes sent before the end are visible now, if ever.
                match channel.status().bytes > skip && total == 0 && room > 0 {
                    true => continue,
                    false => break Ok(()),
                }
            }
            let have = if peeks { skip + total } else { 0 };
            let is_offered = !peeks && !received.minds_sender && channel.offer(message.data);
            let ready = || {
                channel.status().bytes > have
                    || self.end.is_receive_shut()
                    || own.has_error()
                    || is_offered && channel.has_put()
            };
            let waited = message.timeout.wait_until(&own.readers, ready);
            if is_offered {
                let n = channel.withdraw(message.data, &mut received);
                total += n;
                if n > 0 && total >= enough {
                    break Ok(());
                }
            }
            match waited {
                // A look starts anew.
                Ok(()) if peeks && total > 0 => break Ok(()),
                Ok(()) => {}
                Err(error) => break Err(error),
            }
        };
        if let Some(sender) = received.sender {
            if message.wants_address {
                message.from = other.name().map(|name| name.address());
            }
            credentials::put_sender(own, message, sender);
        }
        message.rights = received.rights.unwrap_or_default();
        own.note_received(total, peeks);
        fbuf::moved(total, result)
    }
}
