//! The guest's network: a virtio card, and what stands behind it on the host.

use std::fmt;
use std::fs;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};

/// Returns a port of this host that is free, until another program takes it.
///
/// # Errors
/// When the host has none.
pub fn free_port() -> Result<u16> {
    let any = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok(any.local_addr()?.port())
}

/// What stands behind the card.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Net {
    /// QEMU's own network: the host is the router, and gives addresses by DHCP.
    User,
    /// There is no card.
    None,
    /// An interface of the host's that exists.
    Tap(String),
    /// Other guests with the same address: a group of this host, or the two ends of a connection.
    Socket(SocketAddr),
}

impl FromStr for Net {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (kind, value) = match text.split_once('=') {
            Some((kind, value)) => (kind, Some(value)),
            None => (text, None),
        };
        Ok(match (kind, value) {
            ("user", None) => Self::User,
            ("none", None) => Self::None,
            ("tap", Some(name)) => {
                // The kernel's limit for names, and nothing that QEMU takes for its own.
                let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
                ensure!(
                    (1..16).contains(&name.len()) && name.chars().all(is_plain),
                    "{name:?} is no name of an interface"
                );
                Self::Tap(name.into())
            }
            ("socket", Some(address)) => {
                let parsed = address.parse::<SocketAddr>();
                let parsed = parsed.ok().filter(|it| it.is_ipv4() && it.port() > 0);
                Self::Socket(parsed.with_context(|| {
                    format!("{address:?} is no IPv4 address and port, as in 230.0.0.1:7000")
                })?)
            }
            _ => bail!("a network is user, none, tap=NAME or socket=ADDRESS:PORT"),
        })
    }
}

/// A port of the host that leads to one of the guest's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Port {
    address: Ipv4Addr,
    host: u16,
    guest: u16,
    is_udp: bool,
}

impl FromStr for Port {
    type Err = anyhow::Error;

    /// `[ADDRESS:]HOST:GUEST[/udp]`.
    fn from_str(text: &str) -> Result<Self> {
        const FORM: &str =
            "a port is HOSTPORT:GUESTPORT, with ADDRESS: before it or /udp behind it";
        let (ports, is_udp) = match text.split_once('/') {
            None | Some((_, "tcp")) => (text.trim_end_matches("/tcp"), false),
            Some((ports, "udp")) => (ports, true),
            Some(_) => bail!("{FORM}"),
        };
        let parts: Vec<_> = ports.split(':').collect();
        let (address, host, guest) = match parts[..] {
            [host, guest] => (Ipv4Addr::LOCALHOST, host, guest),
            [address, host, guest] => (address.parse().ok().context(FORM)?, host, guest),
            _ => bail!("{FORM}"),
        };
        let number = |text: &str| text.parse().ok().filter(|&port| port > 0).context(FORM);
        Ok(Self {
            address,
            host: number(host)?,
            guest: number(guest)?,
            is_udp,
        })
    }
}

/// The guest's own address: `ADDRESS/BITS`, and `,GATEWAY` behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Own {
    address: IpAddr,
    bits: u8,
    gateway: Option<IpAddr>,
}

impl FromStr for Own {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        const FORM: &str = "an address is ADDRESS/BITS or ADDRESS/BITS,GATEWAY";
        let (network, gateway) = match text.split_once(',') {
            Some((network, gateway)) => (network, Some(gateway)),
            None => (text, None),
        };
        let (address, bits) = network.split_once('/').context(FORM)?;
        let address: IpAddr = address.parse().ok().context(FORM)?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.parse().ok().filter(|&bits| bits <= most);
        let gateway = gateway.map(|text| text.parse::<IpAddr>().ok().context(FORM));
        let gateway = gateway.transpose()?;
        ensure!(
            gateway.is_none_or(|it| it.is_ipv4() == address.is_ipv4()),
            FORM
        );
        Ok(Self {
            address,
            bits: bits.context(FORM)?,
            gateway,
        })
    }
}

impl fmt::Display for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)?;
        match self.gateway {
            Some(gateway) => write!(f, ",{gateway}"),
            None => Ok(()),
        }
    }
}

/// Options about the guest's network.
#[derive(clap::Args, Clone, Default, Debug)]
pub struct Options {
    /// Give the guest a network card: `user` for a network of its own behind the host's, `tap=NAME`
    /// for an interface of the host's, `socket=ADDRESS:PORT` for one with the other guests that
    /// name the same group address (as 230.0.0.1:7000), or with the one that names the same other
    /// address of this host [default: none, or user with --port]
    #[arg(long, value_name = "NET")]
    pub net: Option<Net>,
    /// Let a port of this host (of 127.0.0.1, or of ADDRESS) lead to one of the guest's, `/udp`
    /// behind it for UDP; may be repeated
    #[arg(long = "port", value_name = "[ADDRESS:]HOSTPORT:GUESTPORT")]
    pub ports: Vec<Port>,
    /// Give the guest's card this address [default: asks for one by DHCP]
    #[arg(long = "ip", value_name = "ADDRESS/BITS[,GATEWAY]")]
    pub own: Option<Own>,
    /// Tell the guest that its network carries packets of up to N bytes [default: 1500]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1280..))]
    pub mtu: Option<u16>,
}

impl Options {
    /// Returns what stands behind the card.
    ///
    /// # Errors
    /// When options contradict each other.
    pub fn net(&self) -> Result<Net> {
        match &self.net {
            None if self.ports.is_empty() => Ok(Net::None),
            None => Ok(Net::User),
            Some(net) if self.ports.is_empty() || *net == Net::User => Ok(net.clone()),
            Some(_) => bail!("--port is for --net user"),
        }
    }

    /// Returns QEMU's words for the card, with a queue for each of `cpus` where the host has more
    /// than one.
    ///
    /// # Errors
    /// As [`net`](Options::net), and when no random bytes can be had.
    pub fn qemu(&self, cpus: u32) -> Result<Vec<String>> {
        let mut card = String::from("virtio-net-pci,disable-legacy=on,netdev=net0,romfile=");
        let behind = match self.net()? {
            Net::None => return Ok(Vec::new()),
            Net::User => {
                let mut words = String::from("user,id=net0");
                for port in &self.ports {
                    let Port {
                        address,
                        host,
                        guest,
                        is_udp,
                    } = port;
                    let kind = if *is_udp { "udp" } else { "tcp" };
                    words += &format!(",hostfwd={kind}:{address}:{host}-:{guest}");
                }
                words
            }
            Net::Tap(name) => {
                card += &format!(",mac={}", random_mac()?);
                let mut words =
                    format!("tap,id=net0,ifname={name},script=no,downscript=no,vhost=off");
                if has_queues(&name) {
                    // One alone is for interfaces of the other kind.
                    let queues = cpus.max(2);
                    words += &format!(",queues={queues}");
                    card += &format!(",mq=on,vectors={}", 2 * queues + 2);
                }
                words
            }
            Net::Socket(address) => {
                card += &format!(",mac={}", random_mac()?);
                match address.ip().is_multicast() {
                    // Never beyond this host.
                    true => format!("socket,id=net0,mcast={address},localaddr=127.0.0.1"),
                    false => {
                        let is_free = std::net::TcpListener::bind(address).is_ok();
                        let word = if is_free { "listen" } else { "connect" };
                        format!("socket,id=net0,{word}={address}")
                    }
                }
            }
        };
        if let Some(mtu) = self.mtu {
            card += &format!(",host_mtu={mtu}");
        }
        Ok(vec!["-netdev".into(), behind, "-device".into(), card])
    }

    /// Returns the options of the kernel's that go with it.
    ///
    /// # Errors
    /// As [`net`](Options::net).
    pub fn kernel(&self) -> Result<Vec<String>> {
        Ok(match (self.net()?, self.own) {
            (Net::None, Some(_)) => bail!("--ip is for a guest with --net"),
            (_, Some(own)) => vec![format!("ip={own}")],
            // It is sure to be answered, so it is waited for.
            (Net::User, None) => vec!["ip=dhcp".into()],
            (_, None) => Vec::new(),
        })
    }
}

/// Whether an interface of the host's was made for several queues.
fn has_queues(name: &str) -> bool {
    /// `IFF_MULTI_QUEUE`.
    const SEVERAL: u32 = 0x100;
    let flags = fs::read_to_string(format!("/sys/class/net/{name}/tun_flags"));
    let flags = flags.unwrap_or_default();
    let number = flags.trim().strip_prefix("0x");
    let number = number.and_then(|digits| u32::from_str_radix(digits, 16).ok());
    number.is_some_and(|flags| flags & SEVERAL != 0)
}

/// An address of a card that no other guest has, in QEMU's range.
fn random_mac() -> Result<String> {
    let mut bytes = [0; 3];
    let source = fs::File::open("/dev/urandom").context("cannot open /dev/urandom")?;
    (&source).read_exact(&mut bytes)?;
    let [a, b, c] = bytes;
    Ok(format!("52:54:00:{a:02x}:{b:02x}:{c:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(net: Option<&str>, ports: &[&str]) -> Options {
        Options {
            net: net.map(|text| text.parse().unwrap()),
            ports: ports.iter().map(|text| text.parse().unwrap()).collect(),
            own: None,
            mtu: None,
        }
    }

    #[test]
    fn ports_need_no_further_word() {
        let none = options(None, &[]);
        assert_eq!(none.qemu(1).unwrap(), Vec::<String>::new());
        assert_eq!(none.kernel().unwrap(), Vec::<String>::new());
        let ports = options(None, &["8080:80", "0.0.0.0:53:5353/udp"]);
        let [_, behind, _, card] = &ports.qemu(4).unwrap()[..] else {
            panic!();
        };
        assert_eq!(
            behind,
            "user,id=net0,hostfwd=tcp:127.0.0.1:8080-:80,hostfwd=udp:0.0.0.0:53-:5353"
        );
        assert!(card.starts_with("virtio-net-pci,disable-legacy=on,netdev=net0"));
        assert_eq!(ports.kernel().unwrap(), ["ip=dhcp"]);
    }

    #[test]
    fn guests_that_are_joined_have_addresses_of_their_own() {
        let card = || options(Some("socket=230.0.0.1:7000"), &[]).qemu(1).unwrap();
        assert!(card()[1].contains("mcast=230.0.0.1:7000,localaddr=127.0.0.1"));
        assert_ne!(card()[3], card()[3]);
    }

    #[test]
    fn mistakes_are_named() {
        for text in [
            "",
            "80",
            "a:b",
            "0:80",
            "80:0",
            "1:2:3",
            "80:80/sctp",
            "80:70000",
        ] {
            let error = text.parse::<Port>().unwrap_err().to_string();
            assert!(error.contains("HOSTPORT:GUESTPORT"), "{text}: {error}");
        }
        for text in ["", "host", "tap", "tap=", "tap=a,b", "socket=x", "user=1"] {
            assert!(text.parse::<Net>().is_err(), "{text}");
        }
        for text in ["10.0.0.1", "10.0.0.1/33", "10.0.0.1/8,fd00::1", "x/8"] {
            assert!(text.parse::<Own>().is_err(), "{text}");
        }
        let own = |text: &str| text.parse::<Own>().unwrap().to_string();
        for text in ["10.0.0.1/24", "10.0.0.2/24,10.0.0.1", "fd00::2/64,fd00::1"] {
            assert_eq!(own(text), text);
        }
        assert!(options(Some("none"), &["8080:80"]).net().is_err());
    }
}
