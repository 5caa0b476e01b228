//! A simulated link between two machines that loses, doubles, reorders, delays, damages and cuts,
//! as a seed decides.

use alloc::{sync::Arc, vec, vec::Vec};

use fbuf::{Aggregate, BytesSource};
use nucleus::sync::{Rank, SpinLock};

use super::{Device, Features, Mac};
use crate::{packet::Packet, timer::now};

/// How bad a link is: chances out of 1000, times in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Trouble {
    /// Packets that are lost.
    pub lost: u64,
    /// Packets that arrive twice.
    pub doubled: u64,
    /// Packets that take up to `lateness` longer than others.
    pub late: u64,
    /// See `late`.
    pub lateness: u64,
    /// Packets of IP in which a bit changes.
    pub damaged: u64,
    /// The time that a packet takes.
    pub delay: u64,
    /// The link is cut for half of this time, again and again; 0 for never.
    pub cut: u64,
}

/// A link on which nothing is lost.
pub const GOOD: Trouble = Trouble {
    lost: 0,
    doubled: 0,
    late: 0,
    lateness: 0,
    damaged: 0,
    delay: 1_000_000,
    cut: 0,
};

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
    trouble: Trouble,
    random: u64,
    packets: Vec<(u64, Packet)>,
    dropped: u64,
}

impl Flying {
    fn random(&mut self) -> u64 {
        // SplitMix64.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn one_of(&mut self, per_mille: u64) -> bool {
        self.random() % 1000 < per_mille
    }
}

/// Makes a link: the devices of both ends, and what arrives at each.
pub fn link(seed: u64, trouble: Trouble, mtu: u16) -> [(Arc<End>, Arc<Way>); 2] {
    let way = |number| {
        let flying = Flying {
            trouble,
            random: seed * 2 + number,
            packets: Vec::new(),
            dropped: 0,
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
        self.state.lock().trouble = trouble;
    }

    /// Returns when the next packet arrives, in nanoseconds since boot.
    pub fn due(&self) -> Option<u64> {
        let state = self.state.lock();
        state.packets.iter().map(|(at, _)| *at).min()
    }

    /// Takes the next packet that has arrived.
    pub fn next(&self) -> Option<Packet> {
        let mut state = self.state.lock();
        let now = now();
        let arrived = state.packets.iter().enumerate();
        let first = arrived.min_by_key(|(_, (at, _))| *at)?;
        let at = (first.1.0 <= now).then_some(first.0)?;
        Some(state.packets.remove(at).1)
    }
}

impl Device for End {
    fn features(&self) -> Features {
        self.features
    }

    #[allow(clippy::disallowed_methods, reason = "tests on the host")]
    fn send(&self, packet: Packet) -> bool {
        let mut bytes = vec![0; packet.len()];
        packet.peek(0, &mut bytes);
        let mut state = self.way.state.lock();
        let trouble = state.trouble;
        let is_cut = trouble.cut > 0 && now() / trouble.cut % 2 == 1;
        if state.one_of(trouble.lost) || is_cut {
            state.dropped += 1;
            return true;
        }
        // Ethernet has a checksum of its own.
        let is_ip = bytes[12..14] != [8, 6];
        if is_ip && state.one_of(trouble.damaged) {
            let bit = 14 * 8 + state.random() as usize % ((bytes.len() - 14) * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let copies = 1 + u64::from(state.one_of(trouble.doubled));
        let mut times = [0; 2];
        for time in &mut times {
            let late = match state.one_of(trouble.late) {
                true => state.random() % trouble.lateness.max(1),
                false => 0,
            };
            *time = now() + trouble.delay + late;
        }
        drop(state);
        for time in times.into_iter().take(copies as usize) {
            let mut data = Aggregate::new();
            let filled = data.fill_from(&mut BytesSource::new(&bytes), bytes.len());
            if filled == Ok(bytes.len()) {
                let arrived = Packet {
                    data,
                    ..Packet::default()
                };
                self.way.state.lock().packets.push((time, arrived));
            }
        }
        true
    }
}
