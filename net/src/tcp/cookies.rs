//! SYN cookies (RFC 4987 3.6): the first number of an answer has all that is kept of a SYN, and a
//! keyed hash by which the confirmation is known. The timestamp has the options.

use super::{
    Pair,
    secret::Secret,
    segment::{Flags, Options, Sacks, Segment, Seq},
};

/// The time in which a cookie is made, and in the next of which it is taken, in nanoseconds.
const PERIOD: u64 = 64_000_000_000;
const MS: u64 = 1_000_000;
/// Bits of the number of the period, and of the place in [`LARGEST`]; the others are the hash.
const PERIOD_BITS: u32 = 5;
const LARGEST_BITS: u32 = 3;
const HASH_BITS: u32 = 32 - PERIOD_BITS - LARGEST_BITS;
/// The sizes of segments that a cookie can tell.
const LARGEST: [u16; 1 << LARGEST_BITS] = [88, 536, 1200, 1300, 1400, 1440, 1460, 8940];
/// Bits of a timestamp that have options: the scale, no scale, SACK.
const OPTION_BITS: u32 = 6;
const NO_SCALE: u32 = 15;
const MAY_SACK: u32 = 16;

/// The maker of cookies.
pub struct Cookies {
    secret: Secret,
}

impl Cookies {
    /// A maker with a key of its own.
    pub fn new() -> Cookies {
        Cookies {
            secret: Secret::new(),
        }
    }

    fn number(&self, pair: &Pair, start: Seq, period: u64, size: u32) -> Seq {
        let head = (period as u32 % (1 << PERIOD_BITS)) << LARGEST_BITS | size;
        let hash = self.secret.hash((pair, start.0, period, size)) as u32;
        Seq(head << HASH_BITS | hash >> (32 - HASH_BITS))
    }

    /// Returns what is added to the clock of such connections.
    pub fn clock(&self, pair: &Pair) -> u32 {
        self.secret.hash((pair.local.ip(), pair.remote.ip())) as u32
    }

    /// Returns the answer to a SYN. `own` is the largest payload that our path takes.
    pub fn answer(&self, pair: &Pair, syn: &Segment, own: u16, now: u64) -> Segment {
        let asked = syn.options.largest.unwrap_or(LARGEST[1]);
        let fitting = LARGEST.iter().rposition(|largest| *largest <= asked);
        let size = fitting.unwrap_or(0) as u32;
        let clock = ((now / MS) as u32).wrapping_add(self.clock(pair));
        let bits = syn
            .options
            .scale
            .map_or(NO_SCALE, |scale| scale.min(14).into())
            | if syn.options.may_sack { MAY_SACK } else { 0 };
        let stamps = syn.options.stamps.map(|(theirs, _)| {
            let step = 1 << OPTION_BITS;
            let stamp = (clock / step * step) | bits;
            // The clock never goes back.
            let stamp = if stamp > clock {
                stamp.wrapping_sub(step)
            } else {
                stamp
            };
            (stamp, theirs)
        });
        // Without timestamps nothing tells of the options.
        let has_options = stamps.is_some();
        Segment {
            seq: self.number(pair, syn.seq, now / PERIOD, size),
            ack: syn.seq + 1,
            flags: Flags::SYN.with(Flags::ACK),
            window: u16::MAX,
            options: Options {
                largest: Some(own),
                scale: syn.options.scale.filter(|_| has_options).map(|_| 7),
                may_sack: syn.options.may_sack && has_options,
                stamps,
                sacks: Sacks::default(),
            },
            ..Segment::default()
        }
    }

    /// Returns what the SYN said that a segment confirms; `None` if it confirms no cookie.
    pub fn recall(&self, pair: &Pair, segment: &Segment, now: u64) -> Option<Segment> {
        let (cookie, start) = (segment.ack - 1, segment.seq - 1);
        let size = cookie.0 >> HASH_BITS & ((1 << LARGEST_BITS) - 1);
        let period = now / PERIOD;
        let is_ours = [period, period.wrapping_sub(1)]
            .into_iter()
            .any(|period| self.number(pair, start, period, size) == cookie);
        is_ours.then(|| {
            let stamps = segment.options.stamps;
            let bits = stamps.map_or(NO_SCALE, |(_, echo)| echo);
            let scale = bits & 15;
            Segment {
                seq: start,
                flags: Flags::SYN,
                window: segment.window,
                options: Options {
                    largest: Some(LARGEST[size as usize]),
                    scale: (scale != NO_SCALE).then_some(scale as u8),
                    may_sack: bits & MAY_SACK != 0,
                    stamps,
                    sacks: Sacks::default(),
                },
                ..Segment::default()
            }
        })
    }
}
