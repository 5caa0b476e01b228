//! The operations of a socket, which an address family implements.

use alloc::sync::Arc;
use core::{any::Any, sync::atomic::AtomicU32, time::Duration};

use abi::{Errno, Result, raw::net as raw};
use fs::{Linger, Ready};
use nucleus::{VirtAddr, task::Watch};
use vm::Pager;

use super::{Address, Answer, Common, Incoming, Outgoing, PeerCredentials, Timeout, Value};
use crate::{bpf::Program, process::signal};

/// Connections that may wait to be accepted, whatever a program asks for (`net.core.somaxconn`).
pub static BACKLOG_MAX: AtomicU32 = AtomicU32::new(4096);

/// The directions that `shutdown` ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shutdown {
    /// Nothing more is received.
    pub receive: bool,
    /// Nothing more is sent.
    pub send: bool,
}

/// A socket of some address family.
///
/// Calls come from any number of threads at once. A default body is that of a socket that does not
/// have the operation. Sleeps go through [`Timeout::wait`], on queues that live as long as the
/// socket, so that observers by [`poll`](Socket::poll) see every later change.
pub trait Socket: Any + Send + Sync {
    /// Options, type and pending error.
    fn common(&self) -> &Common;

    /// Takes the pending error, which is reported once (`SO_ERROR`).
    fn take_error(&self) -> Option<Errno> {
        self.common().take_error()
    }

    /// Gives it a name. `address` are the program's bytes, 0 to 128, family included.
    fn bind(&self, _address: &Address) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Makes it accept connections; `backlog` of them may wait.
    fn listen(&self, _backlog: u32) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    /// The next connection.
    fn accept(&self, _timeout: Timeout) -> Result<Arc<dyn Socket>> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Connects to `address`, or ends a connection of datagrams (`AF_UNSPEC`).
    fn connect(&self, _address: &Address, _timeout: Timeout) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Its own name (`getsockname`).
    fn name(&self) -> Result<Address>;

    /// The name at the other end (`getpeername`); `ENOTCONN` without one.
    fn peer_name(&self) -> Result<Address> {
        Err(Errno::ENOTCONN)
    }

    /// Ends one direction or both.
    fn shutdown(&self, _what: Shutdown) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Sends a message; returns the bytes taken from its data. Called by [`send`].
    fn send(&self, _message: &mut Outgoing<'_>) -> Result<usize> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Receives a message; returns the bytes put into its data, or the message's whole length where
    /// `MSG_TRUNC` was asked for and the family has messages.
    fn receive(&self, _message: &mut Incoming<'_>) -> Result<usize> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Returns the readiness now; registers with `watch` first, if given.
    fn poll<'a>(&'a self, watch: Option<&mut dyn Watch<'a>>) -> Ready;

    /// As [`File::ready_now`](fs::File::ready_now).
    fn ready_now(&self) -> Option<Ready> {
        None
    }

    /// `ioctl`; the argument may be an address in the program. `FIONBIO` and similar commands are
    /// served before.
    fn ioctl(&self, _command: u32, _argument: VirtAddr) -> Result<usize> {
        Err(Errno::ENOTTY)
    }

    /// Sets an option that is not common to all sockets. The caller counts `ENOPROTOOPT` as
    /// unsupported.
    fn set_option(&self, _level: u32, _name: u32, _value: &Value) -> Result<()> {
        Err(Errno::ENOPROTOOPT)
    }

    /// The value of an option that is not common to all sockets.
    fn option(&self, _level: u32, _name: u32) -> Result<Answer> {
        Err(Errno::ENOPROTOOPT)
    }

    /// The value of an option whose question, `given`, is in the place of the answer; `None` for
    /// others.
    fn exchange_option(&self, _level: u32, _name: u32, _given: &Value) -> Option<Result<Answer>> {
        None
    }

    /// Sets or removes the filter of what it receives (`SO_ATTACH_FILTER`).
    fn set_filter(&self, _filter: Option<Program>) -> Result<()> {
        Err(Errno::ENOPROTOOPT)
    }

    /// Returns what `mmap` maps: the ring of a packet socket, what a TCP socket receives.
    fn mapping(&self) -> Result<Arc<dyn Pager>> {
        Err(Errno::ENODEV)
    }

    /// A common option has been changed: for a family that has to act on it.
    fn option_changed(&self, _name: u32) {}

    /// Returns what `close` waits for, up to so long, where its peer has not got all.
    fn lingers(&self, _time: Duration) -> Option<Arc<dyn Linger>> {
        None
    }

    /// Returns the sizes of the send and receive buffers that programs see.
    fn buffers(&self) -> (usize, usize) {
        let common = self.common();
        (common.send_buffer(), common.receive_buffer())
    }

    /// Whether it heeds [`Common::peek_from`].
    fn looks_from_a_place(&self) -> bool {
        false
    }

    /// Whether it tells programs that bytes of theirs have arrived (`SO_ZEROCOPY`).
    fn completes_sends(&self) -> bool {
        false
    }

    /// Whether it can carry open files, itself among them, so that sockets may hold each other.
    fn carries_files(&self) -> bool {
        false
    }

    /// Whether it accepts connections.
    fn is_listening(&self) -> bool {
        false
    }

    /// Returns the credentials at the other end.
    fn peer_credentials(&self) -> Option<PeerCredentials> {
        None
    }

    /// The last open file over it was closed: connections end, the name is free again.
    fn release(&self);
}

/// Sends a message by [`Socket::send`]. The end of a stream's connection (`EPIPE`) sends SIGPIPE
/// too, unless the program does not want it (`MSG_NOSIGNAL`).
///
/// # Errors
/// Those of [`Socket::send`].
pub fn send(socket: &dyn Socket, mut message: Outgoing<'_>) -> Result<usize> {
    match socket.send(&mut message) {
        Err(Errno::EPIPE)
            if !message.has(raw::MSG_NOSIGNAL) && socket.common().kind == raw::SOCK_STREAM =>
        {
            Err(signal::broken_pipe())
        }
        result => result,
    }
}

/// An address family.
pub struct Family {
    /// `AF_*`.
    pub domain: u32,
    /// Makes a socket of a type (`SOCK_*`) for a protocol (0: the usual one).
    pub create: fn(kind: u32, protocol: u32) -> Result<Arc<dyn Socket>>,
    /// Makes two that are connected, where the family can.
    pub pair: Option<fn(kind: u32, protocol: u32) -> Result<[Arc<dyn Socket>; 2]>>,
}
