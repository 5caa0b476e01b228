//! The host's network cards (virtio 1.1, 5.1).
//!
//! A card has pairs of queues, one pair for each CPU where it has so many. Each pair is served by a
//! task of its own: an interrupt does no more than wake it and silence the pair, and interrupts
//! come again when the task has found nothing to do.
//!
//! - `card`: starting a device, its configuration, its end;
//! - `receiver`: buffers that the device fills, and the packets in them; `supply`: their frames;
//! - `sender`: packets on their way out;
//! - `control`: commands to the device; `header`: what stands before each packet.
//!
//! No byte of a packet is copied between the device and the socket, but for small packets, which
//! share a frame, for the headers of those that are sent, and for those of large ones that arrive.
//!
//! Where a packet socket reads a card's packets from fbufs, the card fills pages of these.
//!
//! The device is not believed: lengths, counts and the fields of headers are checked against what
//! it was given. One that says what can't be is reset, and the log says why; its link is gone until
//! it is started again. After a few times it is not.

mod card;
mod control;
mod header;
mod receiver;
mod sender;
mod supply;
#[cfg(test)]
mod tests;

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::sync::atomic::Ordering::Relaxed;

use bitflags::bitflags;
use fbuf::{Aggregate, region::Pool};
use net::packet::Checksum;
use nucleus::{
    log,
    task::{self, Spawn},
    virtio::{self, Kind},
};

use crate::socket::inet::stack;

use card::{Above, Card};

bitflags! {
    /// Feature bits of a device (5.1.3).
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    struct Feature: u64 {
        /// It computes checksums of packets that are sent.
        const SUMS = 1 << 0;
        /// It may hand over packets without their checksums.
        const RECEIVES_UNSUMMED = 1 << 1;
        const MTU = 1 << 3;
        const MAC = 1 << 5;
        /// It may hand over several segments as one packet.
        const RECEIVES_TCP_V4 = 1 << 7;
        const RECEIVES_TCP_V6 = 1 << 8;
        /// It cuts packets into segments.
        const CUTS_TCP_V4 = 1 << 11;
        const CUTS_TCP_V6 = 1 << 12;
        /// A packet may fill several buffers.
        const MERGED_BUFFERS = 1 << 15;
        const STATUS = 1 << 16;
        const CONTROL = 1 << 17;
        const RECEIVE_MODES = 1 << 18;
        const PAIRS = 1 << 22;
    }
}

/// Starts the cards; returns the numbers of their interfaces. Those that can't be used are left
/// out; the log says why.
pub fn start() -> Vec<u32> {
    let mut started = Vec::new();
    for found in virtio::take(Kind::Network) {
        match Card::start(found) {
            Ok(card) => {
                let Ok(index) = stack().network().add_interface(card.clone()) else {
                    log!("net: there is no room for a card");
                    continue;
                };
                let Some(interface) = stack().network().interface(index) else {
                    continue;
                };
                let above: Arc<dyn Above> = Arc::new(Interface(interface));
                match card.serve(&above) {
                    Ok(()) => started.push(index),
                    Err(_) => log!("net: no memory for the tasks of a card"),
                }
            }
            Err(error) => log!("net: a card can't be used: {error:?}"),
        }
    }
    started
}

/// The interface of a card.
struct Interface(Arc<net::ip::Interface>);

impl Above for Interface {
    fn receive(&self, data: Aggregate, checksum: Checksum) {
        stack().receive_from_device(&self.0, data, checksum);
    }

    fn note_dropped(&self) {
        self.0.traffic.receive_dropped.fetch_add(1, Relaxed);
    }

    fn note_carrier(&self) {
        stack().note_carrier(self.0.index());
    }

    fn pool(&self) -> Option<Arc<Pool>> {
        self.0.pools().latest()
    }
}

fn spawn(name: &'static str, body: impl FnOnce() + Send + 'static) -> abi::Result<()> {
    task::spawn(Spawn::kernel(name), Box::new(body))?;
    Ok(())
}
