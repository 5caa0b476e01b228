//! The control port: messages in both directions.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

use session::{FRAME, MAX_MESSAGE, ToGuest, ToHost};

/// Bytes to the guest beyond which no more requests are taken for it.
const FULL: usize = 2 * MAX_MESSAGE;

/// The end of the control port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Lost {
    /// QEMU has closed it.
    Closed,
    /// The guest has sent something that is no message.
    Wrong,
}

/// This program's end of the control port.
pub struct Control {
    socket: UnixStream,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    /// Memory for messages while they are written.
    scratch: Vec<u8>,
}

impl Control {
    /// Takes a socket that does not block.
    pub fn new(socket: UnixStream) -> Self {
        Self {
            socket,
            incoming: Vec::new(),
            outgoing: Vec::new(),
            scratch: vec![0; FRAME + MAX_MESSAGE],
        }
    }

    /// The socket, to wait for.
    pub fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Whether messages wait until the guest takes them.
    pub fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Whether so much waits that nothing should be added on others' request.
    pub fn is_full(&self) -> bool {
        self.outgoing.len() >= FULL
    }

    /// Sends a message, or keeps it until the guest takes it; returns whether it fits into one.
    pub fn send(&mut self, message: &ToGuest<'_>) -> bool {
        match session::frame(message, &mut self.scratch) {
            Ok(bytes) => {
                self.outgoing.extend_from_slice(bytes);
                self.flush();
                true
            }
            Err(session::BadMessage) => false,
        }
    }

    /// Passes on what the guest takes. That the port is lost shows when it is read.
    pub fn flush(&mut self) {
        let mut done = 0;
        while done < self.outgoing.len() {
            match self.socket.write(&self.outgoing[done..]) {
                Ok(count) => done += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => done = self.outgoing.len(),
            }
        }
        self.outgoing.drain(..done);
    }

    /// Returns the messages that have come.
    ///
    /// # Errors
    /// When there is no further one, and never will be.
    pub fn receive(&mut self) -> Result<Vec<ToHost>, Lost> {
        let mut buffer = [0; 4096];
        match self.socket.read(&mut buffer) {
            Ok(0) => return Err(Lost::Closed),
            Ok(count) => self.incoming.extend_from_slice(&buffer[..count]),
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::Interrupted => return Ok(Vec::new()),
                _ => return Err(Lost::Closed),
            },
        }
        let mut messages = Vec::new();
        let mut rest = &self.incoming[..];
        while let Some((head, body)) = rest.split_first_chunk::<FRAME>() {
            let len = session::length(*head).map_err(|_| Lost::Wrong)?;
            let Some((message, behind)) = body.split_at_checked(len) else {
                break;
            };
            messages.push(session::parse(message).map_err(|_| Lost::Wrong)?);
            rest = behind;
        }
        let done = self.incoming.len() - rest.len();
        self.incoming.drain(..done);
        Ok(messages)
    }
}
