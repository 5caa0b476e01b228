//! Sessions: the messages by which the host command starts programs in a guest and follows them.
//!
//! A guest with sessions has one virtio console device with several ports:
//!
//! | port | carries |
//! |---|---|
//! | [`CONTROL`] | messages in both directions, each framed by [`frame`] |
//! | [`data_port`]`(n)` | standard input of session `n` to the guest, its standard output to the host |
//! | [`error_port`]`(n)` | standard error of session `n` to the host |
//!
//! What a terminal shows goes with standard output if that is the terminal, else with standard
//! error: one of the two is, where there is a terminal. The streams are bytes as they are. Their
//! ends are messages that count them, since the device does not keep ports in step with each other.
//!
//! # A session's life
//!
//! ```text
//! host                                   guest
//! Start ─────────────────────────────▶   makes pipes and a terminal, starts the program
//!       ◀───────────────────────────── Started, or Failed (then Free)
//! bytes, Window, Signal, HangUp ─────▶
//!       ◀───────────────────────────── bytes, InputClosed
//! EndOfInput, CloseOutput ───────────▶
//!       ◀───────────────────────────── EndOfOutput for each stream, Ended
//! EndOfInput, if not sent before ────▶   discards input up to there
//!       ◀───────────────────────────── Free: the number may be used again
//! ```
//!
//! The host sends input after `Started` only. [`EndOfOutput`](ToHost::EndOfOutput) is sent once for
//! [`Stream::Output`] and once for [`Stream::Error`] (after no bytes, where that is the terminal),
//! also after `CloseOutput`.
//! After a session whose program is the guest's first one the machine powers off, once all output
//! has left it; no `Free` follows then.
#![no_std]
#![forbid(unsafe_code)]

pub mod size;

use serde::{Deserialize, Serialize};

/// The version of these messages, in [`ToHost::Ready`].
pub const VERSION: u16 = 1;

/// The number of the control port; the device keeps port 0 for itself.
pub const CONTROL: u32 = 1;

/// The most sessions of a guest, its first program's included: QEMU's device names 32 ports at
/// once, and tells of no more.
pub const MAX_SESSIONS: u8 = 15;

/// The longest message, in bytes, without its frame.
pub const MAX_MESSAGE: usize = 256 * 1024;

/// Bytes in front of a message: its length, little-endian.
pub const FRAME: usize = 4;

/// Returns the port of a session's standard input and output, or terminal.
pub const fn data_port(session: u8) -> u32 {
    2 + 2 * session as u32
}

/// Returns the port of a session's standard error.
pub const fn error_port(session: u8) -> u32 {
    3 + 2 * session as u32
}

/// The size of a terminal, in characters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Window {
    /// Lines.
    pub rows: u16,
    /// Characters in a line.
    pub columns: u16,
}

/// A stream from the guest to the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Stream {
    /// Standard output, or the terminal.
    Output,
    /// Standard error.
    Error,
}

/// A terminal of the host's that the session has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Terminal {
    /// Its size.
    pub window: Window,
    /// Whether standard input, output and error are the terminal; the others are pipes. Output or
    /// error is it.
    pub streams: [bool; 3],
    /// Whether the guest puts a carriage return before each newline: the host's terminal is raw.
    pub newlines: bool,
}

/// A program to start.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Start<'a> {
    /// The session, from 0; less than the number that the kernel's command line gives.
    pub session: u8,
    /// The terminal, if one of the host's streams is one.
    pub terminal: Option<Terminal>,
    /// The program and its arguments, each ended by a zero byte; empty for a login shell.
    pub arguments: &'a [u8],
    /// `NAME=VALUE`, each ended by a zero byte, beside and instead of the guest's own variables.
    pub environment: &'a [u8],
    /// The working directory, made if it is missing; empty for the user's home.
    pub directory: &'a [u8],
    /// `NAME`, `UID`, `NAME:GROUP` or `UID:GID`; empty for root.
    pub user: &'a [u8],
    /// Whether the end of the program is the end of the guest. Of one session only, the first.
    pub is_first: bool,
    /// Whether the program becomes process 1; of the first session only.
    pub is_init: bool,
}

/// The part of a [`Start`] that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Part {
    /// The program is not found, or can't be executed.
    Program,
    /// The working directory can't be entered.
    Directory,
    /// The user or group does not exist.
    User,
    /// Memory, identifiers or ports are missing, or the message is wrong.
    Session,
}

/// Messages to the guest.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToGuest<'a> {
    /// Starts a program.
    #[serde(borrow)]
    Start(Start<'a>),
    /// The session's input ends.
    EndOfInput {
        /// The session.
        session: u8,
        /// How many bytes it has in all.
        after: u64,
    },
    /// The session's output is no longer read: writers get `EPIPE`; a terminal hangs up.
    CloseOutput {
        /// The session.
        session: u8,
        /// The stream.
        stream: Stream,
    },
    /// The session's terminal has this size now.
    Window {
        /// The session.
        session: u8,
        /// The new size.
        window: Window,
    },
    /// The session's program gets this signal.
    Signal {
        /// The session.
        session: u8,
        /// Linux's number.
        signal: u8,
    },
    /// The session's host side is gone: its terminal hangs up, its pipes are closed at this side,
    /// and its program gets `SIGHUP`, unless it is the guest's first one. `EndOfInput` is sent all
    /// the same. A program that lives on outlives its session: that is `Free` without `Ended` then.
    HangUp {
        /// The session.
        session: u8,
    },
}

/// Messages to the host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToHost {
    /// The guest takes messages: the first one.
    Ready {
        /// [`VERSION`].
        version: u16,
        /// How many sessions there may be.
        sessions: u8,
    },
    /// The session's program runs.
    Started {
        /// The session.
        session: u8,
        /// The guest's number of the process.
        pid: u32,
    },
    /// The session's program could not be started. `EBUSY` for [`Part::Session`] says that the
    /// number is another program's, which goes on: no `Free` follows then.
    Failed {
        /// The session.
        session: u8,
        /// What of it.
        part: Part,
        /// Linux's error number.
        error: i32,
    },
    /// The stream ends.
    EndOfOutput {
        /// The session.
        session: u8,
        /// The stream.
        stream: Stream,
        /// How many bytes it had in all.
        after: u64,
    },
    /// The session's input is no longer read.
    InputClosed {
        /// The session.
        session: u8,
    },
    /// The session's program has ended.
    Ended {
        /// The session.
        session: u8,
        /// As `wait` gives it on Linux.
        status: i32,
    },
    /// The session's number may be used again.
    Free {
        /// The session.
        session: u8,
    },
}

/// A message that is too long, or that is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadMessage;

/// Writes `message` with its length in front into `to`; returns the part of `to` that it fills.
///
/// # Errors
/// [`BadMessage`] if it does not fit.
pub fn frame<'a>(message: &impl Serialize, to: &'a mut [u8]) -> Result<&'a [u8], BadMessage> {
    let (head, body) = to.split_at_mut_checked(FRAME).ok_or(BadMessage)?;
    let len = postcard::to_slice(message, body)
        .map_err(|_| BadMessage)?
        .len();
    if len > MAX_MESSAGE {
        return Err(BadMessage);
    }
    head.copy_from_slice(&(len as u32).to_le_bytes());
    Ok(&to[..FRAME + len])
}

/// Returns the length of the message behind this frame.
///
/// # Errors
/// [`BadMessage`] if it is more than [`MAX_MESSAGE`].
pub fn length(frame: [u8; FRAME]) -> Result<usize, BadMessage> {
    let len = u32::from_le_bytes(frame) as usize;
    if len > MAX_MESSAGE {
        Err(BadMessage)
    } else {
        Ok(len)
    }
}

/// Reads a message without its frame.
///
/// # Errors
/// [`BadMessage`] if it is none, or has bytes behind it.
pub fn parse<'a, M: Deserialize<'a>>(bytes: &'a [u8]) -> Result<M, BadMessage> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        _ => Err(BadMessage),
    }
}

/// Returns the words of a list whose every word is ended by a zero byte.
///
/// # Errors
/// [`BadMessage`] if the last one is not ended.
pub fn words(list: &[u8]) -> Result<impl Iterator<Item = &[u8]>, BadMessage> {
    match list.split_last() {
        Some((0, rest)) => Ok(Some(rest.split(|&byte| byte == 0)).into_iter().flatten()),
        None => Ok(None.into_iter().flatten()),
        Some(_) => Err(BadMessage),
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    #[test]
    fn a_message_comes_back_as_it_was() {
        let start = ToGuest::Start(Start {
            session: 3,
            terminal: Some(Terminal {
                window: Window {
                    rows: 10_000,
                    columns: 0,
                },
                streams: [true, false, true],
                newlines: true,
            }),
            arguments: b"ls\0-l\0\0",
            environment: b"",
            directory: b"/tmp",
            user: b"1000:100",
            is_first: false,
            is_init: false,
        });
        let mut buffer = [0; 256];
        let framed = frame(&start, &mut buffer).unwrap();
        let (head, body) = framed.split_at(FRAME);
        assert_eq!(length(head.try_into().unwrap()), Ok(body.len()));
        assert_eq!(parse::<ToGuest<'_>>(body).as_ref(), Ok(&start));
        assert_eq!(parse::<ToGuest<'_>>(&body[1..]), Err(BadMessage));
        let mut long = Vec::from(body);
        long.push(0);
        assert_eq!(parse::<ToGuest<'_>>(&long), Err(BadMessage));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let message = ToHost::Free { session: 1 };
        assert_eq!(frame(&message, &mut [0; 3]), Err(BadMessage));
        assert_eq!(frame(&message, &mut [0; FRAME + 1]), Err(BadMessage));
        assert_eq!(length([0xff; FRAME]), Err(BadMessage));
    }

    #[test]
    fn words_end_with_zero_bytes() {
        let split = |list| words(list).map(|words| words.collect::<Vec<_>>());
        assert_eq!(split(b""), Ok(Vec::new()));
        assert_eq!(split(b"a\0\0b\0"), Ok(Vec::from([&b"a"[..], b"", b"b"])));
        assert_eq!(split(b"a\0b"), Err(BadMessage));
    }
}
