//! A guest that a thread plays, with the machine's side of the ports.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use session::{FRAME, MAX_MESSAGE, ToGuest, ToHost, VERSION, data_port, error_port};

use super::ports::Ends;

/// The guest's side of all ports. Dropped, the machine has ended.
pub struct Fake {
    ports: BTreeMap<u32, UnixStream>,
    sessions: u8,
}

/// A message of the host's, as the tests look at it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Heard {
    Start {
        session: u8,
        arguments: Vec<u8>,
    },
    EndOfInput {
        session: u8,
        after: u64,
    },
    Other(String),
    /// The host has closed the port.
    Nothing,
}

impl Fake {
    pub fn new(ends: Ends, sessions: u8) -> Self {
        let ports = ends.sockets().into_iter().collect();
        Self { ports, sessions }
    }

    /// The guest takes messages from now on.
    pub fn ready(&self) {
        self.say(&ToHost::Ready {
            version: VERSION,
            sessions: self.sessions,
        });
    }

    pub fn control(&self) -> &UnixStream {
        &self.ports[&session::CONTROL]
    }

    pub fn data(&self, session: u8) -> &UnixStream {
        &self.ports[&data_port(session)]
    }

    pub fn error(&self, session: u8) -> &UnixStream {
        &self.ports[&error_port(session)]
    }

    /// Sends a message; one to a host that has gone is lost.
    pub fn say(&self, message: &ToHost) {
        let _ = self.control().write_all(&framed(message));
    }

    /// Waits for the next message.
    pub fn hear(&self) -> Heard {
        let (mut head, mut body) = ([0; FRAME], vec![0; MAX_MESSAGE]);
        if self.control().read_exact(&mut head).is_err() {
            return Heard::Nothing;
        }
        let len = session::length(head).unwrap();
        if self.control().read_exact(&mut body[..len]).is_err() {
            return Heard::Nothing;
        }
        match session::parse::<ToGuest<'_>>(&body[..len]).unwrap() {
            ToGuest::Start(start) => Heard::Start {
                session: start.session,
                arguments: start.arguments.into(),
            },
            ToGuest::EndOfInput { session, after } => Heard::EndOfInput { session, after },
            other => Heard::Other(format!("{other:?}")),
        }
    }

    /// Waits for the message that starts a program, and starts it.
    pub fn start(&self) -> u8 {
        let Heard::Start { session, .. } = self.hear() else {
            panic!("no program is started");
        };
        self.say(&ToHost::Started { session, pid: 7 });
        session
    }

    /// Ends a program that has sent so many bytes of output and errors.
    pub fn end(&self, session: u8, sent: [u64; 2], status: i32) {
        for (stream, after) in super::slot::STREAMS.into_iter().zip(sent) {
            self.say(&ToHost::EndOfOutput {
                session,
                stream,
                after,
            });
        }
        self.say(&ToHost::Ended { session, status });
    }
}

/// A message with its frame.
pub fn framed(message: &ToHost) -> Vec<u8> {
    let mut buffer = [0; 64];
    session::frame(message, &mut buffer).unwrap().into()
}
