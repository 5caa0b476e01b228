//! A simulated link between two machines that loses, doubles, reorders, delays, damages and cuts,
//! as a seed decides.

use alloc::{collections::BTreeMap, sync::Arc, vec};

use badlink::Direction;
use fbuf::{Aggregate, BytesSource};
use nucleus::sync::{Rank, SpinLock};

use super::{Device, Features, Mac};
use crate::{packet::Packet, timer::now};

pub use badlink::{GOOD, Trouble};

/// One end of the link.
pub struct End {
    features: Features,
    way: Arc<Way>,
}

/// One direction.
pub struct Way {
    state: SpinLock<Flying>,
}

struct Flying {
    direction: Direction,
    /// By the time of arrival, and in the order of sending.
    packets: BTreeMap<(u64, u64), Packet>,
    sent: u64,
}

/// Makes a link: the devices of both ends, and what arrives at each.
pub fn link(seed: u64, trouble: Trouble, mtu: u16) -> [(Arc<End>, Arc<Way>); 2] {
    let way = |number| {
        let flying = Flying {
            direction: Direction::new(seed * 2 + number, trouble),
            packets: BTreeMap::new(),
            sent: 0,
        };
        Arc::new(Way {
            state: SpinLock::new(Rank::Leaf, flying),
        })
    };
    let (there, back) = (way(0), way(1));
    let end = |number, way: &Arc<Way>| {
        Arc::new(End {
            features: Features {
                mac: Some(Mac([2, 0, 0, 0, 0, number])),
                mtu,
                checksums: false,
                cuts: 0,
            },
            way: way.clone(),
        })
    };
    [
        (end(1, &there), back.clone()),
        (end(2, &back), there.clone()),
    ]
}

impl Way {
    /// Changes how bad this direction is.
    pub fn set_trouble(&self, trouble: Trouble) {
        self.state.lock().direction.set_trouble(trouble);
    }

    /// Returns when the next packet arrives, in nanoseconds since boot.
    pub fn due(&self) -> Option<u64> {
        let state = self.state.lock();
        state.packets.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes the next packet that has arrived.
    pub fn next(&self) -> Option<Packet> {
        let mut state = self.state.lock();
        let first = state.packets.first_entry()?;
        (first.key().0 <= now()).then(|| first.remove())
    }
}

impl Device for End {
    fn features(&self) -> Features {
        self.features
    }

    #[allow(clippy::disallowed_methods, reason = "tests on the host")]
    fn send(&self, packet: &mut Packet) -> bool {
        let mut bytes = vec![0; packet.len()];
        packet.peek(0, &mut bytes);
        let times = self.way.state.lock().direction.send(now(), &mut bytes);
        for time in times.into_iter().flatten() {
            let mut data = Aggregate::new();
            let filled = data.fill_from(&mut BytesSource::new(&bytes), bytes.len());
            if filled == Ok(bytes.len()) {
                let arrived = Packet {
                    data,
                    ..Packet::default()
                };
                let mut state = self.way.state.lock();
                state.sent += 1;
                let place = (time, state.sent);
                state.packets.insert(place, arrived);
            }
        }
        true
    }
}
