//! How a process is told of a message that came into an empty queue (`mq_notify`).

use alloc::{
    sync::{Arc, Weak},
    vec::Vec,
};

use abi::raw::general as raw;

use crate::process::{
    Credentials, Pid, Process, pid_table,
    signal::{Fields, Info},
};

/// Bytes that the C library knows its request by. The kernel sends them back with the last one
/// changed.
pub const COOKIE: usize = 32;
/// The last byte: a message came; the request is over.
const WOKEN: u8 = 1;
const REMOVED: u8 = 2;

/// A socket that takes the message for a thread of the C library.
pub trait Mailbox: Send + Sync {
    /// Adds a datagram; one that finds no room is lost, and the socket is told.
    fn deliver(&self, data: Vec<u8>);
}

#[derive(Clone)]
pub enum How {
    /// No notification, but no other process can register.
    None,
    /// A signal with a value.
    Signal { signal: u32, value: u64 },
    /// A datagram to a socket where a thread of the C library waits, which calls the program's
    /// function.
    Thread {
        socket: Arc<dyn Mailbox>,
        cookie: [u8; COOKIE],
    },
}

/// A process's wish to be told once.
pub struct Notice {
    process: Weak<Process>,
    /// How many programs the process had executed: a later one has asked for nothing.
    programs: u64,
    /// The id of the registered process.
    pub pid: Pid,
    how: How,
}

impl Notice {
    pub fn new(process: &Arc<Process>, how: How) -> Notice {
        Notice {
            process: Arc::downgrade(process),
            programs: pid_table::programs(process.pid()),
            pid: process.pid(),
            how,
        }
    }

    /// Whether `process` asked for it: another may have its id by now.
    pub fn is_of(&self, process: &Process) -> bool {
        core::ptr::eq(self.process.as_ptr(), process)
    }

    /// Way and signal, as the queue's file shows them.
    pub fn shown(&self) -> (u32, u32) {
        match &self.how {
            How::None => (raw::SIGEV_NONE, 0),
            How::Signal { signal, .. } => (raw::SIGEV_SIGNAL, *signal),
            How::Thread { .. } => (raw::SIGEV_THREAD, 0),
        }
    }

    /// Tells that a message came, from `sender`; a program that the process has executed since is
    /// told nothing, whatever its rights are.
    pub fn tell(self, sender: Pid, who: &Credentials) {
        match self.how {
            How::None => {}
            How::Signal { signal, value } => {
                let Some(process) = self.process.upgrade() else {
                    return;
                };
                let fields = Fields::Value {
                    pid: sender,
                    uid: who.real_uid,
                    value,
                };
                let info = Info::new(signal, raw::SI_MESGQ, fields);
                // Like a timer's, it is lost where there is no room for it.
                pid_table::send_to_program(&process, self.programs, info);
            }
            How::Thread { socket, cookie } => answer(&*socket, cookie, WOKEN),
        }
    }

    /// Tells that nothing will be told any more.
    pub fn withdraw(self) {
        if let How::Thread { socket, cookie } = self.how {
            answer(&*socket, cookie, REMOVED);
        }
    }
}

fn answer(socket: &dyn Mailbox, mut cookie: [u8; COOKIE], what: u8) {
    cookie[COOKIE - 1] = what;
    socket.deliver(cookie.to_vec());
}
