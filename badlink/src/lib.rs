//! Decides which frames a bad link between two machines loses, doubles, reorders, delays and
//! damages, and when it is cut; a seed makes it repeatable.
//!
//! The tests of `net` carry the frames on the simulated machine, the host command between guests.
#![no_std]
#![forbid(unsafe_code)]

/// Bytes of the Ethernet header, which is never damaged: real links check theirs.
const ETHERNET: usize = 14;
/// The EtherType of ARP, whose frames have no checksum and are not damaged either.
const ARP: [u8; 2] = [8, 6];

/// How bad a link is: chances out of 1000, times in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trouble {
    /// Frames that are lost.
    pub lost: u64,
    /// Frames that arrive twice.
    pub doubled: u64,
    /// Frames that take up to `lateness` longer than others.
    pub late: u64,
    /// See `late`.
    pub lateness: u64,
    /// Frames of IP in which a bit changes.
    pub damaged: u64,
    /// The time that a frame takes.
    pub delay: u64,
    /// The link is cut for this time, and then whole for as long, again and again; 0 for never.
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

/// Counts of one direction of a link.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Frames that were sent.
    pub sent: u64,
    /// Frames that were lost, by chance or while the link was cut.
    pub lost: u64,
    /// Frames that arrive twice.
    pub doubled: u64,
    /// Copies of frames that take longer.
    pub late: u64,
    /// Frames in which a bit has changed.
    pub damaged: u64,
}

/// One direction of a link.
pub struct Direction {
    trouble: Trouble,
    random: u64,
    counts: Counts,
}

impl Direction {
    /// Makes a direction whose decisions follow from the seed.
    pub const fn new(seed: u64, trouble: Trouble) -> Self {
        let counts = Counts {
            sent: 0,
            lost: 0,
            doubled: 0,
            late: 0,
            damaged: 0,
        };
        Self {
            trouble,
            random: seed,
            counts,
        }
    }

    /// Changes how bad it is.
    pub fn set_trouble(&mut self, trouble: Trouble) {
        self.trouble = trouble;
    }

    /// Returns what has happened so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Sends a frame at a time in nanoseconds: damages it, if it is to be, and returns when each of
    /// its copies arrives. No copy arrives of a frame that is lost.
    pub fn send(&mut self, now: u64, frame: &mut [u8]) -> [Option<u64>; 2] {
        let Trouble {
            lost,
            doubled,
            late,
            lateness,
            damaged,
            delay,
            cut,
        } = self.trouble;
        self.counts.sent += 1;
        let is_cut = cut > 0 && now / cut % 2 == 1;
        if self.one_of(lost) || is_cut {
            self.counts.lost += 1;
            return [None; 2];
        }
        let has_sums = frame.len() > ETHERNET && frame[12..14] != ARP;
        if has_sums && self.one_of(damaged) {
            self.counts.damaged += 1;
            let bit = ETHERNET * 8 + self.random() as usize % ((frame.len() - ETHERNET) * 8);
            frame[bit / 8] ^= 1 << (bit % 8);
        }
        let is_doubled = self.one_of(doubled);
        self.counts.doubled += u64::from(is_doubled);
        [true, is_doubled].map(|arrives| {
            let more = match arrives && self.one_of(late) {
                true => {
                    self.counts.late += 1;
                    self.random() % lateness.max(1)
                }
                false => 0,
            };
            arrives.then_some(now + delay + more)
        })
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    const BAD: Trouble = Trouble {
        lost: 50,
        doubled: 20,
        late: 50,
        lateness: 1000,
        damaged: 10,
        delay: 7,
        cut: 0,
    };

    #[test]
    fn chances_are_kept_and_a_seed_decides() {
        let run = |seed| {
            let mut way = Direction::new(seed, BAD);
            let (mut changed, mut copies, mut late) = (0, 0, 0);
            for now in 0..100_000 {
                let mut frame = [0; 60];
                let times = way.send(now, &mut frame);
                assert!(frame[..ETHERNET] == [0; ETHERNET], "a header is damaged");
                changed += frame
                    .iter()
                    .map(|it| u64::from(it.count_ones()))
                    .sum::<u64>();
                for at in times.into_iter().flatten() {
                    copies += 1;
                    assert!((now + 7..now + 1007).contains(&at));
                    late += u64::from(at > now + 7);
                }
            }
            let counts = way.counts();
            assert_eq!(copies, counts.sent - counts.lost + counts.doubled);
            assert_eq!(changed, counts.damaged);
            assert!(late <= counts.late);
            counts
        };
        let counts = run(1);
        assert_eq!(counts.sent, 100_000);
        assert!((4500..5500).contains(&counts.lost), "{counts:?}");
        assert!((1700..2300).contains(&counts.doubled), "{counts:?}");
        assert!((4300..5700).contains(&counts.late), "{counts:?}");
        assert!((800..1200).contains(&counts.damaged), "{counts:?}");
        assert_eq!(run(1), counts);
        assert_ne!(run(2), counts);
    }

    #[test]
    fn frames_of_arp_and_short_ones_are_not_damaged() {
        let all = Trouble {
            damaged: 1000,
            ..GOOD
        };
        let mut way = Direction::new(3, all);
        let mut arp = [0; 60];
        arp[12..14].copy_from_slice(&ARP);
        let before = arp;
        for len in 0..=60 {
            let times = way.send(0, &mut arp[..len]);
            assert_eq!((times, arp), ([Some(GOOD.delay), None], before));
        }
        arp[12] = 0x86;
        way.send(0, &mut arp);
        assert_eq!(way.counts().damaged, 1);
    }

    #[test]
    fn a_cut_link_is_there_again() {
        let cut = Trouble { cut: 10, ..GOOD };
        let mut way = Direction::new(3, cut);
        for now in 0..100 {
            let arrives = way.send(now, &mut []).iter().flatten().count();
            assert_eq!(arrives == 0, now / 10 % 2 == 1);
        }
        assert_eq!(way.counts().lost, 50);
    }
}
