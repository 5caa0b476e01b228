//! All protocols of one machine.

use alloc::{
    boxed::Box,
    sync::{Arc, Weak},
};
use core::{net::Ipv6Addr, time::Duration};

use abi::Result;
use fbuf::Aggregate;
use nucleus::{Pieces, sync::Mutex};
use vm::account;

use crate::{
    Family,
    configure::Configurator,
    datagram::{self, Protocol, SocketTable},
    ip::{self, Interface, Network, Received, Refusal, Report, Upper},
    packet::{Checksum, Packet},
    switches,
    tcp::{self, Tcp},
    timer::Alarm,
};

/// The protocols of one machine.
pub struct Stack {
    network: Arc<Network>,
    configurator: Arc<Configurator>,
    tcp: Arc<Tcp>,
    alarm: Arc<Alarm>,
    udp: Arc<Mutex<SocketTable>>,
    udp_lite: Arc<Mutex<SocketTable>>,
    ping: Arc<Mutex<SocketTable>>,
    raw: Arc<Mutex<SocketTable>>,
}

impl Stack {
    /// A stack without sockets.
    pub fn new() -> Stack {
        let table = || Arc::new(Mutex::new(crate::rank::NET, SocketTable::default()));
        let alarm = Arc::new(Alarm::new());
        let network = Arc::new(Network::new(alarm.clone()));
        let tcp = Arc::new(Tcp::new(network.clone(), alarm.clone()));
        let (udp, ping, raw) = (table(), table(), table());
        let configurator = Arc::new(Configurator::new(network.clone(), alarm.clone()));
        network.set_upper(Box::new(Protocols {
            configurator: Arc::downgrade(&configurator),
            tcp: Arc::downgrade(&tcp),
            udp: Arc::downgrade(&udp),
            ping: Arc::downgrade(&ping),
            raw: Arc::downgrade(&raw),
        }));
        let stack = Stack {
            network,
            configurator,
            tcp,
            alarm,
            udp,
            udp_lite: table(),
            ping,
            raw,
        };
        stack.set_loopback_by_packets(switches::loopback_mtu());
        stack
    }

    fn table(&self, protocol: Protocol) -> &Arc<Mutex<SocketTable>> {
        match protocol {
            Protocol::Udp => &self.udp,
            Protocol::UdpLite => &self.udp_lite,
            Protocol::Ping => &self.ping,
            Protocol::Raw(_) => &self.raw,
        }
    }

    /// Creates a TCP socket without a name.
    pub fn tcp_socket(&self, family: Family, options: tcp::Options) -> Arc<tcp::Socket> {
        tcp::Socket::new(&self.tcp, family, options, account::current())
    }

    /// Creates a datagram socket without a name. A raw one receives packets from now on, or has an
    /// error to [take](datagram::Socket::take_error), `ENOMEM`, and will not.
    pub fn datagram_socket(
        &self,
        family: Family,
        protocol: Protocol,
        options: datagram::Options,
    ) -> Arc<datagram::Socket> {
        datagram::Socket::new(
            self.table(protocol),
            &self.network,
            family,
            protocol,
            options,
        )
    }

    /// Lists all TCP sockets that have a name, and the connections in TIME-WAIT.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn tcp_sockets(&self) -> Result<Pieces<tcp::Connection>> {
        self.tcp.lock().list()
    }

    /// Tells whether a connection to another machine that programs have closed has not yet sent
    /// all of its bytes, and its end, or does not know that they have arrived.
    pub fn is_closing(&self) -> bool {
        self.tcp.lock().is_closing()
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

    /// Returns the interfaces, addresses and routes.
    pub fn network(&self) -> &Arc<Network> {
        &self.network
    }

    /// Returns the interfaces that configure themselves.
    pub fn configurator(&self) -> &Configurator {
        &self.configurator
    }

    /// Notes that the link of an interface came or went.
    pub fn note_carrier(&self, index: u32) {
        self.network.note_carrier(index);
        let interface = self.network.interface(index);
        if interface.is_some_and(|it| it.has_carrier()) {
            self.configurator.restart(index);
        }
    }

    /// Decides whether new TCP connections inside this machine send packets, of `mtu` bytes at
    /// most; else their ends are joined. For experiments and tests.
    pub fn set_loopback_by_packets(&self, mtu: Option<u16>) {
        self.network.loopback().set_mtu(mtu.unwrap_or(u16::MAX));
        self.tcp.set_by_packets(mtu.is_some());
    }

    /// Takes a packet by the number of its interface, with or without a head, and delivers what
    /// follows from it.
    pub fn receive(&self, index: u32, packet: Packet) {
        self.network.receive(index, packet);
        self.deliver();
    }

    /// As [`receive`](Stack::receive), from a card's task, which holds its interface: all bytes are
    /// slices.
    pub fn receive_from_device(
        &self,
        interface: &Arc<Interface>,
        data: Aggregate,
        checksum: Checksum,
    ) {
        self.network.receive_from_device(interface, data, checksum);
        self.deliver();
    }

    fn deliver(&self) {
        if !self.network.run_loopback(MOST_DELIVERED) {
            self.alarm.set(Some(0));
        }
    }

    /// Runs the timers that are due; returns when the next one will be, since boot.
    pub fn run_timers(&self) -> Option<Duration> {
        let times = [
            self.tcp.run_timers(),
            self.network.run_timers(),
            self.configurator.run_timers(),
        ];
        // Timers tell this machine's own programs what did not arrive.
        self.deliver();
        times.into_iter().flatten().min().map(Duration::from_nanos)
    }

    /// Runs the timers for ever: retransmissions, the end of TIME-WAIT. Sleeps in between.
    pub fn serve(&self) -> ! {
        loop {
            let run = || self.run_timers().map(|due| due.as_nanos() as u64);
            self.alarm.serve(run);
        }
    }
}

/// Packets inside this machine that are delivered at a time.
const MOST_DELIVERED: usize = 256;

/// The protocols above IP, as that sees them.
struct Protocols {
    configurator: Weak<Configurator>,
    tcp: Weak<Tcp>,
    udp: Weak<Mutex<SocketTable>>,
    ping: Weak<Mutex<SocketTable>>,
    raw: Weak<Mutex<SocketTable>>,
}

impl Upper for Protocols {
    fn receive(&self, packet: &mut Received) -> Option<Refusal> {
        match packet.protocol {
            ip::TCP => {
                self.tcp.upgrade()?.receive(packet);
                None
            }
            ip::UDP => {
                let is_taken = packet.interface != ip::LOOPBACK
                    && self.configurator.upgrade()?.take_datagram(packet);
                match is_taken {
                    true => None,
                    false => datagram::receive(&*self.udp.upgrade()?, packet),
                }
            }
            _ => Some(Refusal::Protocol),
        }
    }

    fn advertise(&self, interface: u32, router: Ipv6Addr, message: &[u8]) {
        if let Some(configurator) = self.configurator.upgrade() {
            configurator.take_advertisement(interface, router, message);
        }
    }

    fn report(&self, report: Report, quote: &[u8]) {
        match report.protocol {
            ip::UDP => {
                if let Some(udp) = self.udp.upgrade() {
                    datagram::take_report(&udp, &report, quote);
                }
            }
            ip::ICMP | ip::ICMP_V6 => {
                if let Some(ping) = self.ping.upgrade() {
                    datagram::take_report(&ping, &report, quote);
                }
            }
            _ => {
                if let Some(tcp) = self.tcp.upgrade() {
                    tcp.take_report(report);
                }
            }
        }
        if let Some(raw) = self.raw.upgrade()
            && report.protocol != 0
        {
            datagram::take_raw_report(&raw, &report, quote);
        }
    }

    fn may_have_sent(&self, report: &Report) -> bool {
        let has_sender = |table: &Weak<Mutex<SocketTable>>| {
            let table = table.upgrade();
            table.is_some_and(|table| datagram::has_sender(&table, report))
        };
        let has_socket = match report.protocol {
            ip::UDP => has_sender(&self.udp),
            ip::ICMP | ip::ICMP_V6 => has_sender(&self.ping),
            _ => false,
        };
        let raw = self.raw.upgrade();
        has_socket || raw.is_some_and(|raw| datagram::has_raw_sender(&raw, report))
    }

    fn show(&self, packet: &Received, header: &[u8]) -> bool {
        let raw = self.raw.upgrade();
        raw.is_some_and(|raw| datagram::show_raw(&raw, packet, header))
    }

    fn receive_echo(&self, packet: &mut Received) {
        if let Some(ping) = self.ping.upgrade() {
            datagram::receive_echo(&ping, packet);
        }
    }
}

impl Default for Stack {
    fn default() -> Stack {
        Stack::new()
    }
}
