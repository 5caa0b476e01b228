//! The network of a boot: its card, and the peer behind it.
//!
//! Where this user can make an interface of the host's, the card is tied to one: then it sums and
//! cuts segments, packets may be long, and the host's own TCP answers. Otherwise QEMU's network
//! passes bytes to and from sockets of the host's; it takes packets of 1,500 bytes at most, and its
//! card has no offloads.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::net;
use crate::peer;
use crate::tap::Tap;

/// The port of the guest's servers, as its program knows it.
const GUEST_PORT: u16 = 8080;

/// The addresses of QEMU's network: the guest's, and the one that leads to the host.
const OWN: &str = "10.0.2.15/24";
const HOST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);

/// What a bench's card is tied to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Way {
    /// An interface of the host's, which only root can make.
    Tap,
    /// QEMU's own network.
    User,
}

/// Options about the card.
#[derive(clap::Args, Debug, Clone)]
pub struct Options {
    /// How the experiments with a network reach their peer [default: tap, and user where no
    /// interface can be made]
    #[arg(long, value_enum, value_name = "WAY")]
    net: Option<Way>,
    /// The longest packet of the card, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1500,
          value_parser = clap::value_parser!(u32).range(576..=65535))]
    mtu: u32,
    /// More properties of the card, as QEMU has them: `csum=off,gso=off` for one that neither sums
    /// nor cuts
    #[arg(long, value_name = "PROPERTIES")]
    card: Option<String>,
}

/// A boot's card and peer. The interface goes when this is dropped.
#[derive(Debug)]
pub struct Link {
    net: net::Options,
    card: String,
    own: String,
    peer: SocketAddr,
    _tap: Option<Tap>,
}

impl Link {
    /// Makes the interface, if there is to be one, and starts the peer.
    ///
    /// # Errors
    /// When the interface is asked for and can't be made, or no port is free.
    pub fn new(options: &Options) -> Result<Self> {
        let mut card = format!(",host_mtu={}", options.mtu);
        if let Some(more) = &options.card {
            card += &format!(",{more}");
        }
        let tap = match options.net {
            Some(Way::User) => None,
            Some(Way::Tap) => Some(Tap::new(options.mtu).context("--net tap")?),
            None => Tap::new(options.mtu).ok(),
        };
        if tap.is_none() && options.mtu > 1500 {
            bail!("packets of more than 1500 bytes need an interface of the host's (--net tap)");
        }
        let (net, own, peer) = match &tap {
            Some(tap) => {
                let net = net::Options {
                    net: Some(net::Net::Tap(tap.name().into())),
                    ..net::Options::default()
                };
                let peer = peer::start(tap.host(), None)?;
                (net, tap.guest_in_network(), peer)
            }
            None => {
                let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
                let forward = free.local_addr()?.port();
                let net = net::Options {
                    ports: vec![format!("{forward}:{GUEST_PORT}").parse()?],
                    ..net::Options::default()
                };
                let peer = peer::start(Ipv4Addr::LOCALHOST, Some(forward))?;
                (net, OWN.into(), (HOST, peer.port()).into())
            }
        };
        Ok(Self {
            net: net::Options {
                own: Some(own.parse()?),
                ..net
            },
            card,
            own,
            peer,
            _tap: tap,
        })
    }

    /// Returns QEMU's words for the card.
    ///
    /// # Errors
    /// When no random bytes can be had.
    pub fn qemu(&self, cpus: u32) -> Result<Vec<String>> {
        let mut words = self.net.qemu(cpus)?;
        if let Some(card) = words.last_mut() {
            card.push_str(&self.card);
        }
        Ok(words)
    }

    /// Returns the options of Causeway's command line.
    ///
    /// # Errors
    /// When the options contradict each other.
    pub fn causeway(&self) -> Result<Vec<String>> {
        self.net.kernel()
    }

    /// Returns the word of Linux's command line, which its first program finds in its environment.
    pub fn linux(&self) -> String {
        format!("address={}", self.own)
    }

    /// Returns the words for the guest's program.
    pub fn bench(&self) -> [String; 2] {
        ["--peer".into(), self.peer.to_string()]
    }
}
