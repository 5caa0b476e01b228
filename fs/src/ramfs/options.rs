//! Mount options.

use abi::{Errno, Result};
use nucleus::{PAGE_SIZE, frame};

/// The options of a file system.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The most pages that files may have; half of memory if `None`.
    pub pages: Option<u64>,
    /// The most vnodes; one for each page of half of memory if `None`.
    pub nodes: Option<u64>,
    /// The root's permission bits.
    pub mode: u32,
    /// The root's uid and gid.
    pub owner: (u32, u32),
}

impl Default for Options {
    fn default() -> Options {
        Options {
            pages: None,
            nodes: None,
            mode: 0o755,
            owner: (0, 0),
        }
    }
}

impl Options {
    /// Reads the options of `mount -t tmpfs`: `size=N[kmg%]`, `nr_blocks=N[kmg]`,
    /// `nr_inodes=N[kmg]` (0: no limit), `mode=OCTAL`, `uid=N`, `gid=N`. Words of other file
    /// systems and flags (`rw`, `noatime`) are ignored.
    ///
    /// # Errors
    /// `EINVAL` for a malformed value.
    pub fn parse(text: &[u8]) -> Result<Options> {
        let mut options = Options {
            mode: 0o1777,
            ..Options::default()
        };
        for word in text.split(|&b| b == b',') {
            let Some(equals) = word.iter().position(|&b| b == b'=') else {
                continue;
            };
            let (name, value) = (&word[..equals], &word[equals + 1..]);
            let bad = Errno::EINVAL;
            match name {
                b"size" => {
                    let bytes = match value.strip_suffix(b"%") {
                        Some(percent) => {
                            let total = (frame::usage().total * PAGE_SIZE) as u64;
                            let percent = number(percent, 10).ok_or(bad)?;
                            (total / 100).checked_mul(percent).ok_or(bad)?
                        }
                        None => scaled(value).ok_or(bad)?,
                    };
                    options.pages = Some(limit(bytes.div_ceil(PAGE_SIZE as u64)));
                }
                b"nr_blocks" => options.pages = Some(limit(scaled(value).ok_or(bad)?)),
                b"nr_inodes" => options.nodes = Some(limit(scaled(value).ok_or(bad)?)),
                b"mode" => options.mode = number(value, 8).ok_or(bad)? as u32 & 0o7777,
                b"uid" => options.owner.0 = number(value, 10).ok_or(bad)? as u32,
                b"gid" => options.owner.1 = number(value, 10).ok_or(bad)? as u32,
                _ => {}
            }
        }
        Ok(options)
    }
}

/// 0 means no limit; the largest one leaves room for sums.
fn limit(n: u64) -> u64 {
    const NONE: u64 = u64::MAX / 2;
    if n == 0 { NONE } else { n.min(NONE) }
}

fn number(digits: &[u8], radix: u32) -> Option<u64> {
    u64::from_str_radix(core::str::from_utf8(digits).ok()?, radix).ok()
}

/// Reads a number with a unit.
fn scaled(value: &[u8]) -> Option<u64> {
    let (shift, digits) = match value.split_last()? {
        (b'k' | b'K', digits) => (10, digits),
        (b'm' | b'M', digits) => (20, digits),
        (b'g' | b'G', digits) => (30, digits),
        _ => (0, value),
    };
    number(digits, 10)?.checked_mul(1 << shift)
}
