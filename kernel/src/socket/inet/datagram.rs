//! UDP and UDP-Lite sockets.

use alloc::sync::Arc;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use abi::{Errno, Result, raw::ioctl as raw_ioctl, raw::net as raw};
use fbuf::{Aggregate, Source};
use fs::Ready;
use net::{
    Family,
    udp::{self, Manner, Protocol},
};
use nucleus::{
    VirtAddr,
    sync::{Mutex, Rank, SpinLock},
    task::Watch,
    user,
};

use super::{
    IPPROTO_UDP, IPPROTO_UDPLITE, check_port,
    control::{self, Wishes},
    domain, interface,
    ip_options::{self, IpOptions},
    name::{self, Asked},
    stack,
};
use crate::socket::{Address, Answer, Common, Incoming, Outgoing, Shutdown, Socket, Value};

const AF_UNSPEC: u32 = 0;
/// Options of `SOL_UDP`.
const UDP_CORK: u32 = 1;
const UDP_NO_CHECK6_TX: u32 = 101;
const UDP_NO_CHECK6_RX: u32 = 102;
/// Those that only UDP-Lite has.
const UDPLITE_SEND_CSCOV: u32 = 10;
const UDPLITE_RECV_CSCOV: u32 = 11;
/// The level that means the same as `SOL_UDP`.
const SOL_UDPLITE: u32 = IPPROTO_UDPLITE;
/// Bytes that a sum covers at least: the header's.
const MIN_COVERAGE: i32 = 8;

/// A UDP socket as the calls see it.
pub struct Datagrams {
    common: Common,
    udp: Arc<udp::Socket>,
    ip: SpinLock<IpOptions>,
    /// A datagram that is being put together (`MSG_MORE`, `UDP_CORK`).
    corked: Mutex<Corked>,
}

#[derive(Default)]
struct Corked {
    /// The option is on.
    always: bool,
    data: Option<Aggregate>,
    to: Option<SocketAddr>,
}

impl Datagrams {
    /// A new one without a name.
    pub fn make(family: Family, protocol: Protocol) -> Arc<dyn Socket> {
        let number = match protocol {
            Protocol::Udp => IPPROTO_UDP,
            Protocol::UdpLite => IPPROTO_UDPLITE,
        };
        let common = Common::new(domain(family), raw::SOCK_DGRAM, number);
        let options = udp::Options {
            user: common.owner().0,
            tag: common.inode(),
            ..udp::Options::default()
        };
        Arc::new(Datagrams {
            common,
            udp: udp::Socket::new(stack(), family, protocol, options),
            ip: SpinLock::new(Rank::Leaf, IpOptions::default()),
            corked: Mutex::new(Rank::Pipe, Corked::default()),
        })
    }

    fn read_name(&self, address: &Address, asked: Asked) -> Result<SocketAddr> {
        let family = self.udp.family();
        let name = name::read(family, address, asked)?;
        name::check_version(family, self.udp.summary().options.v6_only, name, asked)?;
        Ok(name)
    }

    fn send_to(
        &self,
        to: Option<SocketAddr>,
        wishes: &Wishes,
        data: &mut dyn Source,
    ) -> Result<usize> {
        let peer = to.or_else(|| self.udp.summary().remote);
        let ip = *self.ip.lock();
        let (service, hops) = match peer {
            Some(peer) => (ip.service_for(peer.ip()), ip.hops_for(peer.ip())),
            None => (0, 0),
        };
        let manner = Manner {
            to,
            from: wishes.from,
            service: wishes.service.unwrap_or(service),
            hops: wishes.hops.unwrap_or(hops),
        };
        self.udp.send(data, manner)
    }

    /// Adds to the datagram that is being put together; sends it unless more is to come.
    fn send_corked(
        &self,
        corked: &mut Corked,
        to: Option<SocketAddr>,
        wishes: &Wishes,
        message: &mut Outgoing<'_>,
    ) -> Result<usize> {
        let len = message.data.left();
        let data = corked.data.get_or_insert_default();
        if data.len() + len > udp::MAX_V4 {
            return Err(Errno::EMSGSIZE);
        }
        let added = data.fill_from(message.data, len)?;
        corked.to = corked.to.or(to);
        if !message.has(raw::MSG_MORE) && !corked.always {
            self.push(corked, wishes)?;
        }
        Ok(added)
    }

    /// Sends the datagram that was put together.
    fn push(&self, corked: &mut Corked, wishes: &Wishes) -> Result<()> {
        let to = corked.to.take();
        if let Some(mut data) = corked.data.take() {
            let len = data.len();
            let mut source = fbuf::AggregateSource::new(&mut data, len);
            self.send_to(to, wishes, &mut source)?;
        }
        Ok(())
    }

    /// `IP_ADD_MEMBERSHIP` and its like.
    fn membership(&self, level: u32, name: u32, value: &Value) -> Option<Result<()>> {
        let (group, join) = match (level, name) {
            (raw::SOL_IP, raw::IP_ADD_MEMBERSHIP | raw::IP_DROP_MEMBERSHIP) => {
                let group = || {
                    let mut bytes = [0; 8];
                    if value.bytes(&mut bytes)? < 8 {
                        return Err(Errno::EINVAL);
                    }
                    interface::chosen(value)?;
                    Ok(IpAddr::from(Ipv4Addr::new(
                        bytes[0], bytes[1], bytes[2], bytes[3],
                    )))
                };
                (group(), name == raw::IP_ADD_MEMBERSHIP)
            }
            (raw::SOL_IPV6, raw::IPV6_ADD_MEMBERSHIP | raw::IPV6_DROP_MEMBERSHIP)
                if self.udp.family() == Family::V6 =>
            {
                let group = || {
                    let bytes: [u8; 20] = value.read()?;
                    interface::check_index(i32::from_le_bytes([
                        bytes[16], bytes[17], bytes[18], bytes[19],
                    ]))?;
                    let mut ip = [0; 16];
                    ip.copy_from_slice(&bytes[..16]);
                    Ok(IpAddr::from(Ipv6Addr::from(ip)))
                };
                (group(), name == raw::IPV6_ADD_MEMBERSHIP)
            }
            (raw::SOL_IP | raw::SOL_IPV6, raw::MCAST_JOIN_GROUP | raw::MCAST_LEAVE_GROUP) => {
                let group = || {
                    // The interface's number, padding, and a `struct sockaddr_storage`.
                    let bytes: [u8; 36] = value.read()?;
                    interface::check_index(i32::from_le_bytes([
                        bytes[0], bytes[1], bytes[2], bytes[3],
                    ]))?;
                    let address = Address::new(&bytes[8..]);
                    let family = if level == raw::SOL_IP {
                        Family::V4
                    } else {
                        Family::V6
                    };
                    Ok(name::read(family, &address, Asked::Connect)?.ip())
                };
                (group(), name == raw::MCAST_JOIN_GROUP)
            }
            _ => return None,
        };
        Some(group.and_then(|group| {
            if join {
                self.udp.join(group)
            } else {
                self.udp.leave(group)
            }
        }))
    }

    fn set_udp(&self, name: u32, value: &Value) -> Result<()> {
        let number = value.int()?;
        let on = number != 0;
        let is_lite = self.udp.protocol() == Protocol::UdpLite;
        match name {
            UDP_CORK => {
                let mut corked = self.corked.lock();
                corked.always = on;
                if !on {
                    self.push(&mut corked, &Wishes::default())?;
                }
                Ok(())
            }
            // No sums are made on the loopback interface anyway.
            UDP_NO_CHECK6_TX | UDP_NO_CHECK6_RX => Ok(()),
            UDPLITE_SEND_CSCOV if is_lite => {
                let covered = coverage(number);
                self.udp
                    .set_options(|options| options.send_coverage = covered);
                Ok(())
            }
            UDPLITE_RECV_CSCOV if is_lite => {
                let covered = Some(coverage(number));
                self.udp
                    .set_options(|options| options.receive_coverage = covered);
                Ok(())
            }
            _ => Err(Errno::ENOPROTOOPT),
        }
    }
}

/// How many bytes a sum shall cover, the header's included; 0 for all.
fn coverage(asked: i32) -> u16 {
    match asked {
        0 => 0,
        ..MIN_COVERAGE => MIN_COVERAGE as u16,
        _ => u16::try_from(asked).unwrap_or(u16::MAX),
    }
}

impl Socket for Datagrams {
    fn common(&self) -> &Common {
        &self.common
    }

    fn take_error(&self) -> Option<Errno> {
        self.udp.take_error()
    }

    fn bind(&self, address: &Address) -> Result<()> {
        let name = self.read_name(address, Asked::Bind)?;
        check_port(name.port())?;
        self.udp.bind(name)
    }

    fn connect(&self, address: &Address, _: crate::socket::Patience) -> Result<()> {
        if address.family() == Some(AF_UNSPEC) {
            self.udp.disconnect();
            return Ok(());
        }
        self.udp.connect(self.read_name(address, Asked::Connect)?)
    }

    fn name(&self) -> Result<Address> {
        Ok(name::write(self.udp.family(), self.udp.summary().local))
    }

    fn peer_name(&self) -> Result<Address> {
        let remote = self.udp.summary().remote.ok_or(Errno::ENOTCONN)?;
        Ok(name::write(self.udp.family(), Some(remote)))
    }

    fn shutdown(&self, what: Shutdown) -> Result<()> {
        self.udp.shut(what.receive, what.send)
    }

    fn send(&self, message: &mut Outgoing<'_>) -> Result<usize> {
        if message.has(raw::MSG_OOB) {
            return Err(Errno::EOPNOTSUPP);
        }
        let to = match &message.to {
            // No family at all is no address, on IPv6.
            Some(to) if to.family() == Some(AF_UNSPEC) && self.udp.family() == Family::V6 => None,
            Some(to) => Some(self.read_name(to, Asked::Send)?),
            None => None,
        };
        let wishes = control::wishes(&message.control)?;
        let mut corked = self.corked.lock();
        if corked.always || corked.data.is_some() || message.has(raw::MSG_MORE) {
            return self.send_corked(&mut corked, to, &wishes, message);
        }
        drop(corked);
        self.send_to(to, &wishes, message.data)
    }

    fn receive(&self, message: &mut Incoming<'_>) -> Result<usize> {
        if message.has(raw::MSG_OOB) {
            return Err(Errno::EOPNOTSUPP);
        }
        if message.has(raw::MSG_ERRQUEUE) {
            let report = self.udp.take_report().ok_or(Errno::EAGAIN)?;
            return control::take_report(report, self.udp.family(), message);
        }
        let datagram = loop {
            match self.udp.receive(message.peeks()) {
                Ok(Some(datagram)) => break datagram,
                Ok(None) => return Ok(0),
                Err(Errno::EAGAIN) => {}
                Err(error) => return Err(error),
            }
            let readable = || self.udp.readiness().readable.then_some(());
            message
                .patience
                .wait(&self.udp.waits().readable, readable)?;
        };
        message.from = Some(name::write(self.udp.family(), Some(datagram.from)));
        let dropped = self.udp.summary().dropped;
        let ip = *self.ip.lock();
        control::describe(
            &datagram,
            self.udp.family(),
            ip,
            &self.common,
            dropped,
            message,
        );
        control::take(datagram, message)
    }

    fn signals_broken_pipe(&self) -> bool {
        false
    }

    fn poll<'a>(&'a self, watch: Option<&mut dyn Watch<'a>>) -> Ready {
        if let Some(watch) = watch {
            watch.add(&self.udp.waits().readable);
            watch.add(&self.udp.waits().writable);
        }
        let ready = self.udp.readiness();
        let mut bits = Ready::OUT | Ready::WRNORM;
        bits.set(Ready::IN | Ready::RDNORM, ready.readable);
        bits.set(Ready::ERR, ready.error);
        bits.set(Ready::RDHUP, ready.read_hung_up);
        bits.set(Ready::HUP, ready.hung_up);
        bits
    }

    fn ioctl(&self, command: u32, argument: VirtAddr) -> Result<usize> {
        let number = match command {
            raw_ioctl::FIONREAD => self.udp.summary().next,
            // What is sent is received at once.
            raw_ioctl::TIOCOUTQ => 0,
            _ => return Err(Errno::ENOTTY),
        };
        user::write(argument, &(number as i32)).map_err(|_| Errno::EFAULT)?;
        Ok(0)
    }

    fn set_option(&self, level: u32, name: u32, value: &Value) -> Result<()> {
        if matches!(level, raw::SOL_UDP | SOL_UDPLITE) {
            return self.set_udp(name, value);
        }
        if let Some(done) = self.membership(level, name, value) {
            return done;
        }
        if level == raw::SOL_IPV6 && name == raw::IPV6_V6ONLY {
            let on = ip_options::v6_only(self.udp.family(), value)?;
            if self.udp.summary().local.is_some() {
                return Err(Errno::EINVAL);
            }
            self.udp.set_options(|options| options.v6_only = on);
            return Ok(());
        }
        ip_options::set(&self.ip, self.udp.family(), level, name, value)?;
        let ip = *self.ip.lock();
        self.udp.set_options(|options| {
            options.multicast_by_loopback = ip.multicast_by_loopback();
            options.multicast_loop = match self.udp.family() {
                Family::V4 => ip.v4(raw::IP_MULTICAST_LOOP),
                Family::V6 => ip.v6(raw::IPV6_MULTICAST_LOOP),
            };
            options.multicast_all = match self.udp.family() {
                Family::V4 => ip.v4(raw::IP_MULTICAST_ALL),
                Family::V6 => ip.v6(raw::IPV6_MULTICAST_ALL),
            };
            options.receive_errors = ip.v4(raw::IP_RECVERR) || ip.v6(raw::IPV6_RECVERR);
        });
        Ok(())
    }

    fn option(&self, level: u32, name: u32) -> Result<Answer> {
        match (level, name) {
            (raw::SOL_UDP | SOL_UDPLITE, UDP_CORK) => Ok(Answer::flag(self.corked.lock().always)),
            (raw::SOL_UDP | SOL_UDPLITE, UDP_NO_CHECK6_TX | UDP_NO_CHECK6_RX) => Ok(Answer::Int(0)),
            (raw::SOL_UDP | SOL_UDPLITE, UDPLITE_SEND_CSCOV | UDPLITE_RECV_CSCOV) => {
                let options = self.udp.summary().options;
                let covered = match name {
                    UDPLITE_SEND_CSCOV => options.send_coverage,
                    _ => options.receive_coverage.unwrap_or(0),
                };
                Ok(Answer::Int(covered.into()))
            }
            (raw::SOL_IPV6, raw::IPV6_V6ONLY) if self.udp.family() == Family::V6 => {
                Ok(Answer::flag(self.udp.summary().options.v6_only))
            }
            _ => ip_options::get(&self.ip, self.udp.family(), level, name),
        }
    }

    fn option_changed(&self, name: u32) {
        let common = &self.common;
        self.udp.set_options(|options| match name {
            raw::SO_REUSEADDR => options.reuse_address = common.is_on(raw::SO_REUSEADDR),
            raw::SO_REUSEPORT => options.reuse_port = common.is_on(raw::SO_REUSEPORT),
            raw::SO_BROADCAST => options.broadcast = common.is_on(raw::SO_BROADCAST),
            raw::SO_RCVBUF | raw::SO_RCVBUFFORCE => {
                options.receive_buffer = common.receive_buffer();
            }
            _ => {}
        });
    }

    fn release(&self) {
        self.udp.close();
    }
}
