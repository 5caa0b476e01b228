//! TCP's urgent data as programs see it: one byte, and its place in the stream.

use abi::{Errno, Result};
use fbuf::BytesSource;

use super::{Stream, Written};

impl Stream {
    /// Adds one byte as urgent data: it is read apart, or in its place where the receiver wants
    /// it so (`in_line`).
    ///
    /// # Errors
    /// `ENOMEM`; `EAGAIN` when it must be in line and there is no room.
    pub fn write_urgent(&self, byte: u8, in_line: bool) -> Result<Written> {
        if in_line {
            match self.fill_urgent(&mut BytesSource::new(&[byte]))? {
                Written::Bytes(0) => return Err(Errno::EAGAIN),
                Written::Bytes(_) => {}
                ended => return Ok(ended),
            }
        } else {
            let mut chain = self.queue.lock();
            if let Some(ended) = chain.state.refusal() {
                return Ok(ended);
            }
            chain.urgent = Some(chain.end());
            chain.state.urgent = Some(byte);
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
        let byte = chain.urgent.and(chain.state.urgent).ok_or(Errno::EINVAL)?;
        if !peek {
            chain.state.urgent = None;
        }
        Ok(byte)
    }
}
