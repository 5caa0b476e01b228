//! null, zero, full, random, urandom.

use alloc::sync::Arc;

use abi::{
    Errno, Result,
    raw::general::{SEEK_CUR, SEEK_END, SEEK_SET},
};
use fbuf::{Sink, Source};
use fs::{File, Location, OpenFlags};
use nucleus::{VirtAddr, random, user};
use vm::{Anonymous, Pager};

/// Minors.
pub const NULL: u32 = 3;
pub const ZERO: u32 = 5;
pub const FULL: u32 = 7;
pub const RANDOM: u32 = 8;
pub const URANDOM: u32 = 9;

/// `ioctl`: bits of entropy in the pool.
const RNDGETENTCNT: u32 = 0x8004_5200;
/// The pool is as full as Linux's ever is.
const ENTROPY: i32 = 256;
/// Pages of a mapping of `/dev/zero`: more than an address space has.
const ZERO_PAGES: u64 = 1 << 36;

struct Memory {
    minor: u32,
    location: Location,
}

/// Opens the device with this minor.
///
/// # Errors
/// `ENXIO` for one that there is not.
pub fn open(at: &Location, minor: u32) -> Result<Arc<dyn File>> {
    match minor {
        NULL | ZERO | FULL | RANDOM | URANDOM => Ok(Arc::new(Memory {
            minor,
            location: at.clone(),
        })),
        _ => Err(Errno::ENXIO),
    }
}

impl File for Memory {
    fn read(&self, _: Option<u64>, _: OpenFlags, to: &mut dyn Sink) -> Result<usize> {
        match self.minor {
            NULL => Ok(0),
            ZERO | FULL => to.put_zeros(to.room()),
            _ => {
                let mut total = 0;
                let mut piece = [0; 256];
                while to.room() > 0 {
                    let n = to.room().min(piece.len());
                    random::fill(&mut piece[..n]);
                    match to.put_bytes(&piece[..n]) {
                        Ok(0) => break,
                        Ok(n) => total += n,
                        Err(error) => return fbuf::moved(total, Err(error)),
                    }
                }
                // Bytes that went out to a program must not stay on a kernel stack.
                piece.fill(0);
                core::hint::black_box(&piece);
                Ok(total)
            }
        }
    }

    fn write(&self, _: Option<u64>, _: OpenFlags, from: &mut dyn Source) -> Result<usize> {
        match self.minor {
            FULL => Err(Errno::ENOSPC),
            // The bytes need not even be looked at; those for the random generator add nothing to
            // its own sources.
            _ => Ok(from.left()),
        }
    }

    fn seek(&self, _: i64, whence: u32) -> Result<u64> {
        match whence {
            SEEK_SET | SEEK_CUR | SEEK_END => Ok(0),
            _ => Err(Errno::EINVAL),
        }
    }

    fn has_readiness(&self) -> bool {
        self.minor == RANDOM
    }

    fn ioctl(&self, command: u32, argument: VirtAddr) -> Result<usize> {
        match (self.minor, command) {
            (RANDOM | URANDOM, RNDGETENTCNT) => {
                user::write(argument, &ENTROPY)?;
                Ok(0)
            }
            _ => Err(Errno::ENOTTY),
        }
    }

    fn location(&self) -> Option<&Location> {
        Some(&self.location)
    }

    fn pager(&self) -> Result<Arc<dyn Pager>> {
        match self.minor {
            ZERO => {
                let pager = Anonymous::new(ZERO_PAGES)?;
                Ok(pager)
            }
            _ => Err(Errno::ENODEV),
        }
    }
}
