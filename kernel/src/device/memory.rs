//! null, zero, full.

use alloc::sync::Arc;

use abi::{
    Errno, Result,
    raw::general::{SEEK_CUR, SEEK_END, SEEK_SET},
};
use fbuf::{Sink, Source, moved};
use fs::{File, Location, OpenFlags};
use vm::{Anonymous, Pager};

/// Minors.
pub const NULL: u32 = 3;
pub const ZERO: u32 = 5;
pub const FULL: u32 = 7;
/// Pages of a mapping of `/dev/zero`: more than an address space has.
const ZERO_PAGES: u64 = 1 << 36;

/// Zeros between two looks whether the thread is to end.
const PIECE: usize = 1 << 20;

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
        NULL | ZERO | FULL => Ok(Arc::new(Memory {
            minor,
            location: at.clone(),
        })),
        _ => Err(Errno::ENXIO),
    }
}

/// Fills the room of a sink with zeros, unless the thread is to end.
#[inline(never)]
fn many_zeros(to: &mut dyn Sink) -> Result<usize> {
    let mut total = 0;
    loop {
        let wanted = to.room().min(PIECE);
        match to.put_zeros(wanted) {
            Ok(n) => {
                total += n;
                if n < wanted || n == 0 || vm::is_dying() {
                    return Ok(total);
                }
            }
            Err(error) => return moved(total, Err(error)),
        }
    }
}

impl File for Memory {
    fn splices_out(&self) -> bool {
        self.minor != NULL
    }

    fn read(&self, _: Option<u64>, _: OpenFlags, to: &mut dyn Sink) -> Result<usize> {
        match self.minor {
            NULL => Ok(0),
            _ => match to.room() {
                few @ ..=PIECE => to.put_zeros(few),
                _ => many_zeros(to),
            },
        }
    }

    fn write(&self, _: Option<u64>, _: OpenFlags, from: &mut dyn Source) -> Result<usize> {
        match self.minor {
            FULL => Err(Errno::ENOSPC),
            // The bytes need not even be looked at.
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
        false
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
