//! Raw sockets.

use alloc::sync::Arc;
use core::net::{IpAddr, SocketAddr};

use abi::{
    Errno, Result,
    raw::{
        ioctl::{FIONREAD, TIOCOUTQ},
        net as raw,
    },
};
use fs::Ready;
use net::{
    Family,
    raw::{self as packets, Filter, Manner},
};
use nucleus::{
    VirtAddr, frame,
    sync::{Rank, SpinLock},
    task::Watch,
    user,
};

use super::{
    control, domain,
    ip_options::{self, IpOptions},
    name::{self, Asked},
    stack,
};
use crate::socket::{
    Address, Answer, Common, Incoming, Outgoing, Patience, Shutdown, Socket, Value,
};

const AF_UNSPEC: u32 = 0;
/// The level of raw sockets' options, and what they have: `ICMP_FILTER`, and the place of a sum.
const SOL_RAW: u32 = 255;
const ICMP_FILTER: u32 = 1;
const IPV6_CHECKSUM: u32 = 7;
/// The option of `SOL_ICMPV6`.
const ICMPV6_FILTER: u32 = 1;
/// Where ICMP for IPv6 has its sum, which is always made.
const SUM: i32 = 2;

/// A raw socket as the calls see it.
pub struct Packets {
    common: Common,
    packets: Arc<packets::Socket>,
    ip: SpinLock<IpOptions>,
}

impl Packets {
    /// A new one.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn make(family: Family, protocol: u8) -> Result<Arc<dyn Socket>> {
        if frame::is_scarce() {
            return Err(Errno::ENOMEM);
        }
        let common = Common::new(domain(family), raw::SOCK_RAW, protocol.into());
        let options = packets::Options {
            user: common.owner().0,
            tag: common.inode(),
            ..packets::Options::default()
        };
        Ok(Arc::new(Packets {
            common,
            packets: packets::Socket::new(stack(), family, protocol, options),
            ip: SpinLock::new(Rank::Leaf, IpOptions::default()),
        }))
    }

    /// The address that a program gives; what stands in the port's place means nothing.
    fn read_name(&self, address: &Address, asked: Asked) -> Result<IpAddr> {
        let family = self.packets.family();
        let name = name::read(family, address, asked)?;
        // Raw sockets of IPv6 have nothing to do with IPv4.
        name::check_version(family, true, name, asked)?;
        Ok(name.ip())
    }

    fn is(&self, protocol: u8) -> bool {
        self.packets.protocol() == protocol
    }

    fn shown(&self, address: Option<IpAddr>) -> Address {
        let family = self.packets.family();
        let port = match family {
            Family::V4 => 0,
            // Linux shows the protocol's number there.
            Family::V6 => self.packets.protocol().into(),
        };
        let address = address.unwrap_or(family.unspecified());
        name::write(family, Some(SocketAddr::new(address, port)))
    }
}

impl Socket for Packets {
    fn common(&self) -> &Common {
        &self.common
    }

    fn bind(&self, address: &Address) -> Result<()> {
        self.packets.bind(self.read_name(address, Asked::Bind)?)
    }

    fn connect(&self, address: &Address, _: Patience) -> Result<()> {
        if address.family() == Some(AF_UNSPEC) {
            return self.packets.connect(None);
        }
        let to = self.read_name(address, Asked::Connect)?;
        self.packets.connect(Some(to))
    }

    fn name(&self) -> Result<Address> {
        Ok(self.shown(self.packets.summary().local))
    }

    fn peer_name(&self) -> Result<Address> {
        let remote = self.packets.summary().remote.ok_or(Errno::ENOTCONN)?;
        Ok(self.shown(Some(remote)))
    }

    fn shutdown(&self, what: Shutdown) -> Result<()> {
        self.packets.shut(what.receive, what.send)
    }

    fn send(&self, message: &mut Outgoing<'_>) -> Result<usize> {
        if message.has(raw::MSG_OOB) {
            return Err(Errno::EOPNOTSUPP);
        }
        let to = match &message.to {
            Some(to) => Some(self.read_name(to, Asked::Send)?),
            None => None,
        };
        let wishes = control::wishes(&message.control)?;
        let ip = *self.ip.lock();
        let (service, hops) = match to.or(self.packets.summary().remote) {
            Some(to) => (ip.service_for(to), ip.hops_for(to)),
            None => (0, 0),
        };
        let manner = Manner {
            to,
            from: wishes.from,
            service: wishes.service.unwrap_or(service),
            hops: wishes.hops.unwrap_or(hops),
        };
        self.packets.send(message.data, manner)
    }

    fn receive(&self, message: &mut Incoming<'_>) -> Result<usize> {
        if message.has(raw::MSG_OOB) {
            return Err(Errno::EOPNOTSUPP);
        }
        if message.has(raw::MSG_ERRQUEUE) {
            return Err(Errno::EAGAIN);
        }
        let datagram = loop {
            match self.packets.receive(message.peeks()) {
                Ok(Some(datagram)) => break datagram,
                Ok(None) => return Ok(0),
                Err(Errno::EAGAIN) => {}
                Err(error) => return Err(error),
            }
            let readable = || self.packets.is_readable().then_some(());
            let queue = &self.packets.waits().readable;
            message.patience.wait(queue, readable)?;
        };
        message.from = Some(name::write(self.packets.family(), Some(datagram.from)));
        let dropped = self.packets.summary().dropped;
        let ip = *self.ip.lock();
        let family = self.packets.family();
        control::describe(&datagram, family, ip, &self.common, dropped, message);
        control::take(datagram, message)
    }

    fn signals_broken_pipe(&self) -> bool {
        false
    }

    fn poll<'a>(&'a self, watch: Option<&mut dyn Watch<'a>>) -> Ready {
        if let Some(watch) = watch {
            watch.add(&self.packets.waits().readable);
            watch.add(&self.packets.waits().writable);
        }
        let summary = self.packets.summary();
        let mut ready = Ready::OUT | Ready::WRNORM;
        ready.set(Ready::IN | Ready::RDNORM, self.packets.is_readable());
        ready.set(Ready::RDHUP, summary.read_shut);
        ready.set(Ready::HUP, summary.read_shut && summary.write_shut);
        ready
    }

    fn ioctl(&self, command: u32, argument: VirtAddr) -> Result<usize> {
        let number = match command {
            FIONREAD => self.packets.summary().next,
            // What is sent is received at once.
            TIOCOUTQ => 0,
            _ => return Err(Errno::ENOTTY),
        };
        user::write(argument, &(number as i32)).map_err(|_| Errno::EFAULT)?;
        Ok(0)
    }

    fn set_option(&self, level: u32, name: u32, value: &Value) -> Result<()> {
        match (level, name) {
            (SOL_RAW, ICMP_FILTER) if self.packets.family() == Family::V4 => {
                if !self.is(packets::ICMP) {
                    return Err(Errno::EOPNOTSUPP);
                }
                let mut bytes = [0; 4];
                value.bytes(&mut bytes)?;
                let mut filter = Filter::default();
                filter.0[0] = u32::from_le_bytes(bytes);
                self.packets.set_options(|options| options.filter = filter);
                Ok(())
            }
            (raw::SOL_ICMPV6, ICMPV6_FILTER) if self.is(packets::ICMP_V6) => {
                let mut bytes = [0; 32];
                value.bytes(&mut bytes)?;
                self.packets.set_options(|options| {
                    let words = bytes.chunks_exact(4).zip(&mut options.filter.0);
                    for (from, to) in words {
                        *to = u32::from_le_bytes([from[0], from[1], from[2], from[3]]);
                    }
                });
                Ok(())
            }
            (SOL_RAW, IPV6_CHECKSUM) if self.is(packets::ICMP_V6) => match value.int()? {
                SUM => Ok(()),
                _ => Err(Errno::EINVAL),
            },
            _ => ip_options::set(&self.ip, self.packets.family(), level, name, value),
        }
    }

    fn option(&self, level: u32, name: u32) -> Result<Answer> {
        let filter = self.packets.summary().options.filter;
        match (level, name) {
            (SOL_RAW, ICMP_FILTER) if self.packets.family() == Family::V4 => {
                match self.is(packets::ICMP) {
                    true => Ok(Answer::of(&filter.0[0])),
                    false => Err(Errno::EOPNOTSUPP),
                }
            }
            (raw::SOL_ICMPV6, ICMPV6_FILTER) if self.is(packets::ICMP_V6) => {
                Ok(Answer::of(&filter.0))
            }
            (SOL_RAW, IPV6_CHECKSUM) if self.is(packets::ICMP_V6) => Ok(Answer::Int(SUM)),
            _ => ip_options::get(&self.ip, self.packets.family(), level, name),
        }
    }

    fn option_changed(&self, name: u32) {
        if matches!(name, raw::SO_RCVBUF | raw::SO_RCVBUFFORCE) {
            let bytes = self.common.receive_buffer();
            self.packets
                .set_options(|options| options.receive_buffer = bytes);
        }
    }

    fn release(&self) {
        self.packets.close();
    }
}
