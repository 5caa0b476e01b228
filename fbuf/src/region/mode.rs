//! How a path maps and protects fbufs, and the default for paths that do not choose.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Receivers read a page only while a message includes it.
const UNCACHED: u32 = 1;
/// The originator may not write what it has sent.
const SECURED: u32 = 2;

/// The mode of a path (`fbufs.txt` 3.2.2, 3.2.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mode(u32);

impl Mode {
    /// The bits of all modes.
    pub const BITS: u32 = UNCACHED | SECURED;

    /// Returns the mode with these bits: 1 for uncached, 2 for secured.
    pub fn from_bits(bits: u32) -> Option<Mode> {
        (bits & !Mode::BITS == 0).then_some(Mode(bits))
    }

    /// Returns the bits.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Whether receivers read the path's chunks as long as they are members.
    pub fn is_cached(self) -> bool {
        self.0 & UNCACHED == 0
    }

    /// Whether the originator may not write what it has sent.
    pub fn is_secured(self) -> bool {
        self.0 & SECURED != 0
    }
}

static DEFAULT: AtomicU32 = AtomicU32::new(0);

/// Returns the mode of paths that do not choose one.
pub fn default_mode() -> Mode {
    Mode(DEFAULT.load(Relaxed))
}

/// Sets the [`default_mode`].
pub fn set_default_mode(mode: Mode) {
    DEFAULT.store(mode.0, Relaxed);
}
