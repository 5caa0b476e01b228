//! All protocols of one machine.

use alloc::sync::Arc;
use core::time::Duration;

use abi::Result;
use nucleus::{Pieces, sync::Mutex};
use vm::account;

use crate::{
    Family,
    datagram::{self, Protocol, SocketTable},
    tcp::{self, Tcp},
};

/// The protocols of one machine.
pub struct Stack {
    tcp: Arc<Tcp>,
    udp: Arc<Mutex<SocketTable>>,
    udp_lite: Arc<Mutex<SocketTable>>,
    raw: Arc<Mutex<SocketTable>>,
}

impl Stack {
    /// A stack without sockets.
    pub fn new() -> Stack {
        let table = || Arc::new(Mutex::new(crate::rank::NET, SocketTable::default()));
        Stack {
            tcp: Arc::new(Tcp::new()),
            udp: table(),
            udp_lite: table(),
            raw: table(),
        }
    }

    fn table(&self, protocol: Protocol) -> &Arc<Mutex<SocketTable>> {
        match protocol {
            Protocol::Udp => &self.udp,
            Protocol::UdpLite => &self.udp_lite,
            Protocol::Raw(_) => &self.raw,
        }
    }

    /// Creates a TCP socket without a name.
    pub fn tcp_socket(&self, family: Family, options: tcp::Options) -> Arc<tcp::Socket> {
        tcp::Socket::new(&self.tcp, family, options, account::current())
    }

    /// Creates a datagram socket without a name. A raw one receives packets from now on.
    pub fn datagram_socket(
        &self,
        family: Family,
        protocol: Protocol,
        options: datagram::Options,
    ) -> Arc<datagram::Socket> {
        datagram::Socket::new(self.table(protocol), family, protocol, options)
    }

    /// Lists all TCP sockets that have a name, and the connections in TIME-WAIT.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn tcp_sockets(&self) -> Result<Pieces<tcp::Connection>> {
        self.tcp.lock().list()
    }

    /// Lists the datagram sockets of a protocol that have a name, or all raw sockets: the number
    /// in `Protocol::Raw` is ignored.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn datagram_sockets(&self, protocol: Protocol) -> Result<Pieces<Arc<datagram::Socket>>> {
        let table = self.table(protocol).lock();
        Ok(Pieces::try_collect(table.list().cloned())?)
    }

    /// Runs the timers that are due; returns when the next one will be, since boot.
    pub fn run_timers(&self) -> Option<Duration> {
        self.tcp.run_timers().map(Duration::from_nanos)
    }

    /// Runs the timers for ever: retransmissions, the end of TIME-WAIT. Sleeps in between.
    pub fn serve(&self) -> ! {
        self.tcp.serve()
    }
}

impl Default for Stack {
    fn default() -> Stack {
        Stack::new()
    }
}
