//! The switches of this floor: see [`nucleus::switches`].

use nucleus::switches::{Switch, Values::OneOf};

use crate::region::{Mode, default_mode, set_default_mode};

/// The default mode of fbuf paths.
pub const SWITCHES: &[Switch] = &[Switch {
    name: "fbuf",
    // In the order of the modes' bits.
    values: OneOf(&[
        "cached,volatile",
        "uncached,volatile",
        "cached,secured",
        "uncached,secured",
    ]),
    default: "cached,volatile",
    is_live: true,
    get: || [default_mode().bits(), 0],
    set: |[n, _]| {
        set_default_mode(Mode::from_bits(n).unwrap_or_else(default_mode));
        Ok(())
    },
}];
