//! Sending, receiving and readiness.

use alloc::sync::Arc;

use abi::{Errno, Result};
use fbuf::{Sink, Source};
use nucleus::frame::Owned;

use super::{Phase, Socket, connection::Connection};
use crate::{
    Readiness,
    stream::{Completion, Read, Stream, StreamStatus, Written},
};

/// What is next to read.
#[derive(Clone, Copy, Default, Debug)]
pub struct NextBytes {
    /// How many bytes there are.
    pub bytes: usize,
    /// How many of them come before a whole page, at least: of many small pieces, some.
    pub before_page: usize,
    /// The peer has ended its stream behind them.
    pub has_ended: bool,
}

/// The stream for a call that moves bytes.
enum Way {
    To(Arc<Stream>),
    /// The connection is still being made.
    NotYet,
    /// There is no connection.
    None,
}

impl Socket {
    /// Sends bytes, as many as there is room for.
    ///
    /// # Errors
    /// `EAGAIN` when there is no room (the socket's waits wake when there is), `EPIPE` without a
    /// connection to send on, the pending error, or that of the source.
    pub fn send(&self, from: &mut dyn Source) -> Result<usize> {
        self.send_by(from, Stream::write)
    }

    /// As [`send`](Socket::send) for bytes that stay stable until the program is
    /// [told](Socket::take_completion) that they have arrived, where the call's `are_enough` to be
    /// lent; adds to `lent` how many of them were. The caller
    /// [notes](Socket::await_completion) the end of a call that has sent bytes.
    ///
    /// # Errors
    /// As [`send`](Socket::send), and `ENOBUFS` without memory for the news.
    pub fn send_stable(
        &self,
        from: &mut dyn Source,
        are_enough: bool,
        lent: &mut usize,
    ) -> Result<usize> {
        self.send_by(from, |outbound, from| {
            outbound.prepare_completion(self.account())?;
            outbound.write_stable(from, are_enough, lent)
        })
    }

    /// Notes that a call has sent stable bytes.
    pub fn await_completion(&self, is_copied: bool) {
        if let (_, Some(outbound)) = self.streams() {
            outbound.await_completion(is_copied);
        }
    }

    /// Takes the news that bytes of some calls have arrived; `None` without any.
    pub fn take_completion(&self) -> Option<Completion> {
        self.streams().1?.take_completion()
    }

    #[inline(always)]
    fn send_by(
        &self,
        from: &mut dyn Source,
        write: impl FnOnce(&Stream, &mut dyn Source) -> Result<Written>,
    ) -> Result<usize> {
        let Way::To(outbound) = self.way_out()? else {
            return Err(Errno::EAGAIN);
        };
        let written = write(&outbound, from)?;
        if outbound.uses_packets() {
            self.transmit();
        }
        match written {
            Written::Bytes(0) if from.left() > 0 => Err(Errno::EAGAIN),
            Written::Bytes(n) => {
                if self.inner().announces {
                    self.announce();
                }
                Ok(n)
            }
            Written::Abandoned => {
                // The peer has closed: the bytes are lost and a reset comes back, which the next
                // call reports.
                self.provoke_reset();
                swallow(from)
            }
            Written::Ended => Err(self.why_ended()),
        }
    }

    /// Whether bytes may be sent, for a call without any.
    ///
    /// # Errors
    /// As [`send`](Socket::send).
    pub fn check_sends(&self) -> Result<()> {
        match self.way_out()? {
            Way::To(outbound) if outbound.takes_nothing() => Err(self.why_ended()),
            Way::To(_) => Ok(()),
            Way::NotYet | Way::None => Err(Errno::EAGAIN),
        }
    }

    /// Sends one byte as urgent data.
    ///
    /// # Errors
    /// As [`send`](Socket::send).
    pub fn send_urgent(&self, byte: u8) -> Result<()> {
        let Way::To(outbound) = self.way_out()? else {
            return Err(Errno::EAGAIN);
        };
        // In a segment it has a place among the others.
        let in_line = outbound.uses_packets() || self.peer_wants_urgent_in_line();
        match outbound.write_urgent(byte, in_line)? {
            Written::Bytes(_) => {
                if outbound.uses_packets() {
                    self.transmit();
                }
                Ok(())
            }
            Written::Abandoned => {
                self.provoke_reset();
                Ok(())
            }
            Written::Ended => Err(self.why_ended()),
        }
    }

    fn way_out(&self) -> Result<Way> {
        let mut inner = self.inner();
        if let Some(error) = inner.error.take() {
            return Err(error);
        }
        if inner.write_shut {
            return Err(Errno::EPIPE);
        }
        match (inner.phase, &inner.outbound) {
            (Phase::Connected, Some(outbound)) => Ok(Way::To(outbound.clone())),
            (Phase::Connecting, _) => Ok(Way::NotYet),
            _ => Err(Errno::EPIPE),
        }
    }

    /// Returns the connection, if its segments are packets.
    fn line(&self) -> Option<Arc<Connection>> {
        self.inner().line.clone()
    }

    /// Sends what was written.
    #[inline(never)]
    fn transmit(&self) {
        if let Some(line) = self.line() {
            line.act(&self.tcp, |block, host| block.output(host));
            self.tcp.deliver();
        }
    }

    /// Tells the peer that there is room again, if that is much.
    #[inline(never)]
    fn tell_room(&self) {
        if let Some(line) = self.line() {
            line.act(&self.tcp, |block, host| block.room_grew(host));
            self.tcp.deliver();
        }
    }

    /// Tells the peer's listener that the first bytes have arrived.
    fn announce(&self) {
        self.inner().announces = false;
        if let Some(pair) = self.pair() {
            self.tcp.lock().hand_over(pair.mirrored());
        }
    }

    fn peer_wants_urgent_in_line(&self) -> bool {
        let Some(pair) = self.pair() else {
            return false;
        };
        let table = self.tcp.lock();
        let peer = table.ends.get(&pair.mirrored());
        peer.is_some_and(|peer| peer.socket().inner().options.urgent_in_line)
    }

    /// Makes the peer, whose socket is closed, answer with a reset.
    fn provoke_reset(&self) {
        if let Some(pair) = self.pair() {
            self.tcp.change(|table| {
                if table.ends.contains(&pair.mirrored()) {
                    table.reset(&pair.mirrored());
                } else if table.owns(self) {
                    // The peer's end has timed out and is gone.
                    table.reset(&pair);
                    self.inner().error = Some(Errno::ECONNRESET);
                }
            });
        }
    }

    /// Returns the error of a connection whose streams have ended.
    fn why_ended(&self) -> Errno {
        // The thread that ends it holds the table's lock until it has stored the reason.
        drop(self.tcp.lock());
        self.take_error().unwrap_or(Errno::EPIPE)
    }

    /// Receives up to `max` bytes of those queued. Returns 0 at the end of the stream.
    ///
    /// # Errors
    /// `EAGAIN` when the stream is empty, `ENOTCONN`, the pending error, or that of the sink.
    #[inline(always)]
    pub fn receive(&self, to: &mut dyn Sink, max: usize, how: Read) -> Result<usize> {
        let Way::To(inbound) = self.way_in()? else {
            return self.nothing_to_read(None);
        };
        if max == 0 {
            return Ok(0);
        }
        let n = inbound.read(to, max, how)?;
        if inbound.uses_packets() && n > 0 {
            self.tell_room();
        }
        if n > 0 || to.room() == 0 && !how.discard {
            return Ok(n);
        }
        let status = inbound.status();
        if status.bytes > 0 {
            // They have arrived meanwhile.
            return inbound.read(to, max, how);
        }
        let nothing = self.nothing_to_read(Some(status))?;
        // The last bytes and the end may have come between the two looks.
        match inbound.unread() {
            0 => Ok(nothing),
            _ => inbound.read(to, max, how),
        }
    }

    /// Gives whole pages that are next to read to `give`, which takes as many of them as it
    /// returns; `most` at most. Returns how many.
    pub fn give_pages(
        &self,
        most: usize,
        give: impl FnMut(&mut [Option<Owned>]) -> usize,
    ) -> usize {
        let Some(inbound) = self.streams().0 else {
            return 0;
        };
        let given = inbound.give_pages(most, give);
        if inbound.uses_packets() && given > 0 {
            self.tell_room();
        }
        given
    }

    /// Returns what is next to read.
    pub fn next_bytes(&self) -> NextBytes {
        let Some(inbound) = self.streams().0 else {
            return NextBytes::default();
        };
        let before_page = inbound.before_page();
        let status = inbound.status();
        NextBytes {
            bytes: status.bytes,
            before_page,
            has_ended: status.finished,
        }
    }

    /// Offers the peer the buffer that a sink fills next, if that is worth it; returns the stream
    /// of which the caller [takes it back](Stream::withdraw) after it has waited.
    #[inline]
    pub fn offer(&self, to: &mut dyn Sink) -> Option<Arc<Stream>> {
        if to.room() < vm::least_direct() {
            return None;
        }
        let inbound = self.inner().inbound.clone();
        inbound.filter(|inbound| inbound.offer(to))
    }

    /// Offers the peer the bytes that a source gives next, if that is worth it; returns the stream
    /// of which the caller [takes them back](Stream::withdraw_bytes) after it has waited.
    pub fn offer_bytes(&self, from: &mut dyn Source) -> Option<Arc<Stream>> {
        let outbound = {
            let inner = self.inner();
            // Bytes in packets have no reader on this side.
            let is_connected =
                inner.phase == Phase::Connected && !inner.write_shut && inner.line.is_none();
            inner.outbound.clone().filter(|_| is_connected)
        };
        outbound.filter(|outbound| outbound.offer_bytes(from))
    }

    /// Receives the urgent byte.
    ///
    /// # Errors
    /// `EINVAL` if there is none or it is in line, `ENOTCONN`.
    pub fn receive_urgent(&self, peek: bool) -> Result<u8> {
        match self.way_in()? {
            Way::To(inbound) => inbound.read_urgent(peek),
            Way::NotYet => Err(Errno::EINVAL),
            Way::None => Err(Errno::ENOTCONN),
        }
    }

    fn way_in(&self) -> Result<Way> {
        let inner = self.inner();
        Ok(match (&inner.inbound, inner.phase) {
            (Some(inbound), _) => Way::To(inbound.clone()),
            (None, Phase::Connecting) => Way::NotYet,
            (None, _) => Way::None,
        })
    }

    /// Returns the result of a read that finds no bytes.
    fn nothing_to_read(&self, inbound: Option<StreamStatus>) -> Result<usize> {
        let mut inner = self.inner();
        if inbound.is_some_and(|status| status.finished) {
            return Ok(0);
        }
        if let Some(error) = inner.error.take() {
            return Err(error);
        }
        if inner.read_shut {
            return Ok(0);
        }
        match inner.phase {
            Phase::Connected | Phase::Connecting => Err(Errno::EAGAIN),
            Phase::Ended => Ok(0),
            Phase::Idle | Phase::Listening => Err(Errno::ENOTCONN),
        }
    }

    /// Tells whether the next byte to read follows the urgent one's place.
    pub fn is_at_mark(&self) -> bool {
        let inbound = self.streams().0;
        inbound.is_some_and(|stream| stream.status().at_mark)
    }

    /// Returns what can be done now.
    pub fn readiness(&self) -> Readiness {
        let (inbound, outbound) = self.streams();
        let inbound = inbound.map(|stream| stream.status());
        let has_completion = outbound
            .as_ref()
            .is_some_and(|stream| stream.has_completion());
        let outbound = outbound.map(|stream| stream.status());
        let inner = self.inner();
        let mut ready = Readiness {
            error: inner.error.is_some(),
            has_completion,
            ..Readiness::default()
        };
        match inner.phase {
            Phase::Listening => ready.readable = inner.is_readable_without_bytes(),
            Phase::Connecting => {}
            Phase::Idle => {
                ready.hung_up = true;
                ready.writable = true;
                ready.readable = inner.is_readable_without_bytes();
            }
            Phase::Connected => {
                let finished = inbound.is_some_and(|status| status.finished);
                ready.read_hung_up = finished || inner.read_shut;
                ready.readable = finished
                    || inner.is_readable_without_bytes()
                    || inbound.is_some_and(|status| status.is_readable);
                ready.writable =
                    inner.write_shut || outbound.is_some_and(|status| status.is_writable);
                ready.hung_up = ready.read_hung_up && inner.write_shut;
                ready.urgent = inbound.is_some_and(|status| status.urgent);
            }
            Phase::Ended => {
                ready.read_hung_up = true;
                ready.hung_up = true;
                ready.readable = true;
                ready.writable = true;
            }
        }
        ready
    }
}

/// Discards all bytes of a source; returns how many.
fn swallow(from: &mut dyn Source) -> Result<usize> {
    let mut total = 0;
    let mut piece = [0; 256];
    while from.left() > 0 {
        let n = match from.take_bytes(&mut piece) {
            Ok(n) => n,
            Err(error) => return fbuf::moved(total, Err(error)),
        };
        if n == 0 {
            break;
        }
        total += n;
    }
    Ok(total)
}
