//! TCP's urgent data as programs see it: one byte, and its place in the stream.

use abi::{Errno, Result};
use fbuf::{BytesSource, Slice, queue::Chain};

use super::{Stream, StreamState, Written};

/// The urgent byte.
pub(super) struct Urgent {
    /// Bytes of the stream before it, not counting itself unless it is in line.
    pub place: u64,
    /// The byte, until it is read; `None` too when it is in line.
    pub byte: Option<u8>,
    /// It stands in the stream (`SO_OOBINLINE`).
    in_line: bool,
}

impl StreamState {
    /// Returns how many bytes lie before the urgent one's place in a chain that begins at `start`.
    pub(super) fn bytes_before_mark(&self, start: u64) -> usize {
        match &self.urgent {
            Some(urgent) if urgent.place > start => (urgent.place - start) as usize,
            _ => usize::MAX,
        }
    }
}

/// Clips the front of the chain to the bytes before the urgent one's place. A read that
/// `has_taken` bytes before ends there; the next one passes it, which forgets the urgent byte.
#[cold]
pub(super) fn up_to_mark(
    chain: &mut Chain<StreamState>,
    mut slice: Slice,
    has_taken: bool,
) -> Option<Slice> {
    let (start, state) = (chain.start(), &mut chain.state);
    match &state.urgent {
        Some(urgent) if urgent.place == start && has_taken => return None,
        Some(urgent) if urgent.place <= start => state.urgent = None,
        _ => {}
    }
    slice.len = slice.len.min(state.bytes_before_mark(start));
    Some(slice)
}

impl Stream {
    /// Adds one byte as urgent data: it is read apart, or in its place where the receiver wants
    /// it so (`in_line`).
    ///
    /// # Errors
    /// `ENOMEM`; `EAGAIN` when it must be in line and there is no room.
    pub fn write_urgent(&self, byte: u8, in_line: bool) -> Result<Written> {
        let mut place = self.queue.lock().end();
        if in_line {
            match self.write(&mut BytesSource::new(&[byte]))? {
                Written::Bytes(0) => return Err(Errno::EAGAIN),
                Written::Bytes(_) => {}
                ended => return Ok(ended),
            }
        }
        {
            let mut chain = self.queue.lock();
            if !in_line {
                if let Some(ended) = chain.state.refusal() {
                    return Ok(ended);
                }
                place = chain.end();
            }
            chain.state.urgent = Some(Urgent {
                place,
                byte: (!in_line).then_some(byte),
                in_line,
            });
        }
        self.receiver.readable.wake_all();
        Ok(Written::Bytes(1))
    }

    /// Reads the urgent byte.
    ///
    /// # Errors
    /// `EINVAL` when there is none, or when it is in line.
    pub fn read_urgent(&self, peek: bool) -> Result<u8> {
        let mut chain = self.queue.lock();
        let urgent = chain.state.urgent.as_mut().filter(|urgent| !urgent.in_line);
        let byte = &mut urgent.ok_or(Errno::EINVAL)?.byte;
        match peek {
            true => *byte,
            false => byte.take(),
        }
        .ok_or(Errno::EINVAL)
    }
}
