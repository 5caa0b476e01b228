//! Datagram sockets: UDP, UDP-Lite and raw ones, such as `ping` uses.
//!
//! `options` has the options of their levels, and the groups that UDP sockets join.

use alloc::sync::Arc;
use core::{
    net::SocketAddr,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use abi::{Errno, Result, raw::ioctl as raw_ioctl, raw::net as raw};
use fbuf::{Aggregate, Source};
use fs::Ready;
use net::{
    Family,
    datagram::{self, MAX_V4, Protocol, SendOptions},
    ip::{ICMP, ICMP_V6},
    ports::NameOptions,
};
use nucleus::{
    VirtAddr,
    sync::{Mutex, Rank, SpinLock},
    task::Watch,
    user,
};
use vm::account::{Kind, Stock};

use super::{
    AF_UNSPEC, IPPROTO_UDP, IPPROTO_UDPLITE, check_port,
    control::{self, Ancillary},
    domain,
    ip_options::IpOptions,
    name::{self, Asked},
    name_options, ready_bits, stack,
};
use crate::socket::{
    Address, Answer, Common, Incoming, Outgoing, Shutdown, Socket, Timeout, Value,
};

mod options;

/// A datagram socket as the system calls see it.
pub struct Datagrams {
    common: Common,
    socket: Arc<datagram::Socket>,
    ip: SpinLock<IpOptions>,
    /// The interface that was given with the peer's address; 0 for none.
    scope: AtomicU32,
    /// A datagram that is being put together (`MSG_MORE`, `UDP_CORK`).
    corked: Mutex<Corked>,
}

struct Corked {
    /// `UDP_CORK` is on.
    always: bool,
    data: Option<Aggregate>,
    to: Option<SocketAddr>,
    /// Charges the frames of the data.
    stock: Stock,
}

impl Corked {
    /// Without a datagram; charged to the current process.
    fn new() -> Corked {
        Corked {
            always: false,
            data: None,
            to: None,
            stock: Stock::of_current(Kind::Sockets),
        }
    }
}

impl Datagrams {
    /// Creates a socket without a name.
    ///
    /// # Errors
    /// `ENOMEM`: a raw one has no place among those that receive.
    pub fn create(family: Family, protocol: Protocol) -> Result<Arc<dyn Socket>> {
        let (kind, number) = match protocol {
            Protocol::Udp => (raw::SOCK_DGRAM, IPPROTO_UDP),
            Protocol::UdpLite => (raw::SOCK_DGRAM, IPPROTO_UDPLITE),
            Protocol::Ping => {
                let number = match family {
                    Family::V4 => ICMP,
                    Family::V6 => ICMP_V6,
                };
                (raw::SOCK_DGRAM, number.into())
            }
            Protocol::Raw(number) => (raw::SOCK_RAW, number.into()),
        };
        let common = Common::new(domain(family), kind, number);
        let options = datagram::Options {
            name: NameOptions {
                // Raw sockets of IPv6 never handle IPv4.
                v6_only: !protocol.has_ports() || protocol == Protocol::Ping,
                ..name_options(&common)
            },
            // Packets of this protocol have their header.
            has_header: protocol == Protocol::Raw(255),
            ..datagram::Options::default()
        };
        let socket = stack().datagram_socket(family, protocol, options);
        if let Some(error) = socket.take_error() {
            return Err(error);
        }
        Ok(Arc::new(Datagrams {
            common,
            socket,
            ip: SpinLock::new(Rank::Leaf, IpOptions::default()),
            scope: AtomicU32::new(0),
            corked: Mutex::new(fbuf::rank::QUEUE_WRITING, Corked::new()),
        }))
    }

    /// Reads an address from the program. Raw sockets ignore the port.
    fn read_name(&self, address: &Address, asked: Asked) -> Result<SocketAddr> {
        let family = self.socket.family();
        let mut name = name::read(family, address, asked)?;
        name::check_version(family, self.socket.options().name.v6_only, name, asked)?;
        if !self.socket.protocol().has_ports() {
            name.set_port(0);
        }
        Ok(name)
    }

    /// Writes a name for the program. As on Linux, raw sockets of IPv6 show the protocol's number
    /// in the place of the port.
    fn write_name(&self, name: Option<SocketAddr>) -> Address {
        let family = self.socket.family();
        match (self.socket.protocol(), family) {
            (Protocol::Raw(number), Family::V6) => {
                let ip = name.map_or(family.unspecified(), |name| name.ip());
                name::write(family, Some(SocketAddr::new(ip, number.into())))
            }
            _ => name::write(family, name),
        }
    }

    fn send_to(
        &self,
        to: Option<SocketAddr>,
        ancillary: &Ancillary,
        data: &mut dyn Source,
    ) -> Result<usize> {
        // The interface of an address that is valid on one link only.
        let scope = self.scope.load(Relaxed);
        let peer = to.or_else(|| self.socket.remote());
        let ip = *self.ip.lock();
        let (service, hops) = match peer {
            Some(peer) => (ip.service_for(peer.ip()), ip.hops_for(peer.ip())),
            None => (0, 0),
        };
        let how = SendOptions {
            to,
            from: ancillary.from,
            service: ancillary.service.unwrap_or(service),
            hops: ancillary.hops.unwrap_or(hops),
            interface: ancillary.interface.max(scope),
        };
        self.socket.send(data, how)
    }

    /// Adds to the datagram that is being put together; sends it unless more is to come.
    fn send_corked(
        &self,
        corked: &mut Corked,
        to: Option<SocketAddr>,
        ancillary: &Ancillary,
        message: &mut Outgoing<'_>,
    ) -> Result<usize> {
        let len = message.data.left();
        let data = corked.data.get_or_insert_default();
        if data.len() + len > MAX_V4 {
            return Err(Errno::EMSGSIZE);
        }
        let added = data.fill_from(message.data, len)?;
        corked.stock.cover(data.frame_count());
        corked.to = corked.to.or(to);
        if !message.has(raw::MSG_MORE) && !corked.always {
            self.push(corked, ancillary)?;
        }
        Ok(added)
    }

    /// Sends the datagram that was put together.
    fn push(&self, corked: &mut Corked, ancillary: &Ancillary) -> Result<()> {
        let to = corked.to.take();
        if let Some(mut data) = corked.data.take() {
            corked.stock.cover(0);
            let len = data.len();
            let mut source = fbuf::AggregateSource::new(&mut data, len);
            self.send_to(to, ancillary, &mut source)?;
        }
        Ok(())
    }
}

impl Socket for Datagrams {
    fn common(&self) -> &Common {
        &self.common
    }

    fn take_error(&self) -> Option<Errno> {
        self.socket.take_error()
    }

    fn bind(&self, address: &Address) -> Result<()> {
        let name = self.read_name(address, Asked::Bind)?;
        check_port(name.port())?;
        self.socket.bind(name)
    }

    fn connect(&self, address: &Address, _: Timeout) -> Result<()> {
        if address.family() == Some(AF_UNSPEC) {
            self.socket.disconnect();
            return Ok(());
        }
        let name = self.read_name(address, Asked::Connect)?;
        self.scope.store(name::scope(address), Relaxed);
        self.socket.connect(name)
    }

    fn name(&self) -> Result<Address> {
        Ok(self.write_name(self.socket.local()))
    }

    fn peer_name(&self) -> Result<Address> {
        let remote = self.socket.remote().ok_or(Errno::ENOTCONN)?;
        Ok(self.write_name(Some(remote)))
    }

    fn shutdown(&self, what: Shutdown) -> Result<()> {
        self.socket.shut(what.receive, what.send)
    }

    fn send(&self, message: &mut Outgoing<'_>) -> Result<usize> {
        if message.has(raw::MSG_OOB) {
            return Err(Errno::EOPNOTSUPP);
        }
        let has_ports = self.socket.protocol().has_ports();
        let is_v6 = self.socket.family() == Family::V6;
        let to = match &message.to {
            // With IPv6, an address without a family is no address.
            Some(to) if has_ports && is_v6 && to.family() == Some(AF_UNSPEC) => None,
            Some(to) => Some(self.read_name(to, Asked::Send)?),
            None => None,
        };
        let mut ancillary = control::read(&message.control)?;
        if let (0, Some(to)) = (ancillary.interface, &message.to) {
            ancillary.interface = name::scope(to);
        }
        let mut corked = self.corked.lock();
        if corked.always || corked.data.is_some() || message.has(raw::MSG_MORE) {
            return self.send_corked(&mut corked, to, &ancillary, message);
        }
        drop(corked);
        self.send_to(to, &ancillary, message.data)
    }

    fn receive(&self, message: &mut Incoming<'_>) -> Result<usize> {
        if message.has(raw::MSG_OOB) {
            return Err(Errno::EOPNOTSUPP);
        }
        let family = self.socket.family();
        if message.has(raw::MSG_ERRQUEUE) {
            let report = self.socket.take_report().ok_or(Errno::EAGAIN)?;
            return control::take_report(report, family, message);
        }
        let datagram = loop {
            match self.socket.receive(message.peeks()) {
                Ok(Some(datagram)) => break datagram,
                Ok(None) => return Ok(0),
                Err(Errno::EAGAIN) => {}
                Err(error) => return Err(error),
            }
            let readable = || self.socket.readiness().readable;
            let queue = &self.socket.waits().readable;
            message.timeout.wait_until(queue, readable)?;
        };
        if message.wants_address {
            message.from = Some(name::write(family, Some(datagram.from)));
        }
        if message.control.is_wanted {
            let dropped = self.socket.dropped();
            let ip = *self.ip.lock();
            control::describe(&datagram, family, ip, &self.common, dropped, message);
        }
        control::take(datagram, message)
    }

    fn poll<'a>(&'a self, watch: Option<&mut dyn Watch<'a>>) -> Ready {
        if let Some(watch) = watch {
            watch.add(&self.socket.waits().readable);
            watch.add(&self.socket.waits().writable);
        }
        ready_bits(self.socket.readiness())
    }

    fn ioctl(&self, command: u32, argument: VirtAddr) -> Result<usize> {
        let number = match command {
            raw_ioctl::FIONREAD => self.socket.summary().next,
            // Datagrams are received as soon as they are sent.
            raw_ioctl::TIOCOUTQ => 0,
            _ => return Err(Errno::ENOTTY),
        };
        user::write(argument, &(number as i32))?;
        Ok(0)
    }

    fn set_option(&self, level: u32, name: u32, value: &Value) -> Result<()> {
        self.set(level, name, value)
    }

    fn option(&self, level: u32, name: u32) -> Result<Answer> {
        self.get(level, name)
    }

    fn option_changed(&self, name: u32) {
        let common = &self.common;
        self.socket.set_options(|options| match name {
            raw::SO_REUSEADDR => options.name.reuse_address = common.is_on(name),
            raw::SO_REUSEPORT => options.name.reuse_port = common.is_on(name),
            raw::SO_BINDTODEVICE => options.name.interface = common.device(),
            raw::SO_BROADCAST => options.broadcast = common.is_on(name),
            raw::SO_RCVBUF | raw::SO_RCVBUFFORCE => {
                options.receive_buffer = common.receive_buffer();
            }
            _ => {}
        });
    }

    fn release(&self) {
        self.socket.close();
    }
}
