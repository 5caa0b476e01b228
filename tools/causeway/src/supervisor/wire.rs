//! The messages between a guest's supervisor and the commands that use it, on the guest's socket.
//!
//! Each side first sends its [`VERSION`]. Messages are framed as those between host and guest
//! ([`session::frame`]). The first one is the client's [`Request`], with its standard input, output
//! and error beside it where they are needed; the supervisor moves their bytes itself. [`Note`]s
//! and [`Answer`]s follow. A client that closes its connection is gone, and its session hangs up.
//! Without a session, further requests may follow on the same connection, which lasts as long as
//! the supervisor: they reach the same guest, whichever has its name by then.

use std::io::ErrorKind::{ConnectionReset, UnexpectedEof};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, ensure};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, send, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use session::{FRAME, MAX_MESSAGE, Window};

use crate::sessions::{Event, Program};

/// The version of these messages, and of all types in them: to be raised with every change, since a
/// detached guest keeps its supervisor while `causeway` is replaced.
pub const VERSION: u32 = 1;

/// In front of the version. As the frame of a message it would be too long for one.
const MAGIC: [u8; 4] = *b"cway";

/// What the other side's first bytes say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Greeting {
    /// It speaks this version.
    Version(u32),
    /// It speaks none.
    None,
    /// It is gone.
    Gone,
}

/// The most descriptors beside a message.
const MOST: usize = 3;

/// A client's first message.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Run a further program, with the descriptors beside this message.
    Exec(Program),
    /// Connect the descriptors to the first program.
    Attach {
        /// The size of their terminal.
        window: Option<Window>,
        /// Whether the first one is a terminal, whose keys are read.
        has_keys: bool,
    },
    /// Send the first program a signal.
    Signal(u8),
    /// End the machine.
    End,
    /// Nothing: the client waits for the end of the connection, which is the supervisor's.
    Watch,
}

/// A client's later message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Note {
    /// Its terminal has this size.
    Window(Window),
    /// Its program is to get this signal.
    Signal(u8),
}

/// A message to a client.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// Something has happened to its session.
    Event(Event),
    /// It is done.
    Done,
}

/// Tells the other side this version, if that can be done at once.
pub fn greet(to: &UnixStream) {
    let bytes = [MAGIC, VERSION.to_le_bytes()].concat();
    let _ = send(to, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

/// Reads the other side's version.
///
/// # Errors
/// When nothing comes in the time that the connection has.
pub fn greeting(mut from: &UnixStream) -> io::Result<Greeting> {
    let mut bytes = [0; 8];
    match from.read_exact(&mut bytes) {
        Err(error) if matches!(error.kind(), UnexpectedEof | ConnectionReset) => {
            return Ok(Greeting::Gone);
        }
        read => read?,
    }
    let (magic, version) = bytes.split_at(MAGIC.len());
    let version = version.try_into().map(u32::from_le_bytes);
    Ok(match version {
        Ok(version) if magic == MAGIC => Greeting::Version(version),
        _ => Greeting::None,
    })
}

/// Whether a message is short enough to be written.
pub fn fits(message: &impl Serialize) -> bool {
    session::frame(message, &mut vec![0; FRAME + MAX_MESSAGE]).is_ok()
}

/// Writes a message, and sends descriptors beside it.
///
/// # Errors
/// When the other side is gone, or the message is too long.
pub fn write(
    mut to: &UnixStream,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> Result<()> {
    let mut buffer = vec![0; FRAME + MAX_MESSAGE];
    let framed = session::frame(message, &mut buffer).ok();
    let framed = framed.context("the arguments are too long")?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ensure!(
            beside.push(SendAncillaryMessage::ScmRights(descriptors)),
            "too many descriptors"
        );
    }
    let (head, body) = framed.split_at(FRAME);
    // The first bytes carry the descriptors, and are few enough to go at once.
    let sent = sendmsg(to, &[IoSlice::new(head)], &mut beside, SendFlags::NOSIGNAL)?;
    to.write_all(&head[sent..])?;
    to.write_all(body)?;
    Ok(())
}

/// Writes a short message if that can be done at once; else the other side has stopped reading.
pub fn write_now(to: &UnixStream, message: &impl Serialize) {
    let mut buffer = [0; 1024];
    if let Ok(framed) = session::frame(message, &mut buffer) {
        let _ = send(to, framed, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }
}

/// Reads a message, and the descriptors beside it; `None` when the other side is gone.
///
/// # Errors
/// When it is no message of this kind.
pub fn read<M: DeserializeOwned>(mut from: &UnixStream) -> Result<Option<(M, Vec<OwnedFd>)>> {
    let mut descriptors = Vec::new();
    let mut head = [0; FRAME];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let count = {
        let mut parts = [IoSliceMut::new(&mut head)];
        match recvmsg(from, &mut parts, &mut beside, flags) {
            Ok(received) => received.bytes,
            Err(rustix::io::Errno::CONNRESET) => 0,
            Err(error) => return Err(error.into()),
        }
    };
    if count == 0 {
        return Ok(None);
    }
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    from.read_exact(&mut head[count..])?;
    let length = session::length(head).ok().context("no message")?;
    let mut body = vec![0; length];
    from.read_exact(&mut body)?;
    let message = session::parse(&body).ok();
    let message = message.context("no message of this version")?;
    Ok(Some((message, descriptors)))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn messages_and_descriptors_arrive() {
        let (here, there) = UnixStream::pair().unwrap();
        let (mut reader, writer) = std::io::pipe().unwrap();
        let long = Program::new(&vec![OsString::from("x".repeat(1000)); 100]);
        let request = Request::Exec(long);
        let sent = request.clone();
        let sender = std::thread::spawn(move || {
            write(&here, &sent, &[writer.as_fd(), writer.as_fd()]).unwrap();
            write(&here, &Note::Signal(9), &[]).unwrap();
        });
        let (read_request, descriptors) = read::<Request>(&there).unwrap().unwrap();
        assert_eq!(read_request, request);
        assert_eq!(descriptors.len(), 2);
        let (note, none) = read::<Note>(&there).unwrap().unwrap();
        assert_eq!((note, none.len()), (Note::Signal(9), 0));
        sender.join().unwrap();
        assert!(read::<Note>(&there).unwrap().is_none());
        let mut file = std::fs::File::from(descriptors.into_iter().next().unwrap());
        file.write_all(b"hello").unwrap();
        let mut got = [0; 5];
        reader.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"hello");
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for bytes in [&[1, 0, 0, 0, 0xff][..], &[0xff; 4], &[5, 0]] {
            let (mut here, there) = UnixStream::pair().unwrap();
            here.write_all(bytes).unwrap();
            drop(here);
            assert!(read::<Request>(&there).is_err(), "{bytes:?}");
        }
    }
}
