//! `/dev/causeway`: what Linux has no call for. Each request is about the caller's own address
//! space; `docs/device.md` says what programs may rely on, and the crate `user/libcauseway` wraps
//! it.

use alloc::sync::Arc;

use abi::{Errno, Result};
use fbuf::{Sink, Source};
use fs::{File, Location, OpenFlags, Ready};
use nucleus::{Prot, VirtAddr, VirtRange, addr::USER_END, user};
use vm::{Inherit, Lock, Map, MapError};

use crate::process::thread;

/// The major of devices that have none of their own.
pub const MAJOR: u32 = 10;
/// Free for local use on Linux.
pub const MINOR: u32 = 240;

/// The requests, in the encoding of Linux's `_IOC` with the letter 0xca.
mod request {
    /// Gives the interface's version, a `u32`.
    pub const VERSION: u32 = 0x8004_ca00;
    /// Takes start, length, and what children get.
    pub const INHERIT: u32 = 0x4018_ca01;
    /// Gives sums over the address space.
    pub const COUNTS: u32 = 0x8040_ca02;
    /// Takes an address; returns the mapping there.
    pub const ENTRY: u32 = 0xc040_ca03;
}

/// Grows as fields are added; the fields that exist keep their places.
const VERSION: u32 = 1;

/// What children inherit, by number, as in FreeBSD's `minherit`.
const INHERIT: [Inherit; 4] = [Inherit::Share, Inherit::Copy, Inherit::None, Inherit::Zero];

/// Bits of an entry's flags.
mod flag {
    pub const SHARED: u64 = 1;
    pub const GROWS_DOWN: u64 = 2;
    pub const LOCKED: u64 = 4;
    pub const LOCKED_ON_FAULT: u64 = 8;
    pub const CHILDREN_SHARE: u64 = 16;
}

struct Causeway {
    location: Location,
}

/// Opens the device.
///
/// # Errors
/// None.
pub fn open(at: &Location, _: u64, _: OpenFlags) -> Result<Arc<dyn File>> {
    Ok(Arc::new(Causeway {
        location: at.clone(),
    }))
}

impl File for Causeway {
    fn read(&self, _: Option<u64>, _: OpenFlags, _: &mut dyn Sink) -> Result<usize> {
        Err(Errno::EINVAL)
    }

    fn write(&self, _: Option<u64>, _: OpenFlags, _: &mut dyn Source) -> Result<usize> {
        Err(Errno::EINVAL)
    }

    fn has_readiness(&self) -> bool {
        false
    }

    fn ready_now(&self) -> Option<Ready> {
        Some(Ready::ALWAYS)
    }

    fn ioctl(&self, command: u32, argument: VirtAddr) -> Result<usize> {
        let space = thread::current_shared().ok_or(Errno::ENOTTY)?.space;
        let map = space.map();
        match command {
            request::VERSION => give(argument, VERSION),
            request::INHERIT => {
                let [start, len, what] = user::read(argument)?;
                inherit(map, start, len, what)
            }
            request::COUNTS => give(argument, counts(map)),
            request::ENTRY => {
                let [address, ..]: [u64; 8] = user::read(argument)?;
                give(argument, entry(map, address)?)
            }
            _ => Err(Errno::ENOTTY),
        }
    }

    fn location(&self) -> Option<&Location> {
        Some(&self.location)
    }
}

fn give<T: user::ToUser>(argument: VirtAddr, value: T) -> Result<usize> {
    user::write(argument, &value)?;
    Ok(0)
}

fn inherit(map: &Map, start: u64, len: u64, what: u64) -> Result<usize> {
    let what = usize::try_from(what)
        .ok()
        .and_then(|what| INHERIT.get(what).copied())
        .ok_or(Errno::EINVAL)?;
    let end = start
        .checked_add(len)
        .filter(|&end| end <= USER_END.0 as u64)
        .ok_or(Errno::ENOMEM)?;
    let range = VirtRange::new(VirtAddr(start as usize), VirtAddr(end as usize));
    map.inherit(range, what).map_err(|error| match error {
        MapError::Invalid => Errno::EINVAL,
        _ => Errno::ENOMEM,
    })?;
    Ok(0)
}

/// Entries; pages that are mapped, in memory, locked, peak; frames in page tables; two words for
/// what may come.
fn counts(map: &Map) -> [u64; 8] {
    let sizes = map.sizes();
    [
        sizes.entries,
        sizes.total,
        sizes.resident,
        sizes.locked,
        sizes.peak,
        sizes.page_tables,
        0,
        0,
    ]
    .map(|count| count as u64)
}

/// Start, end, rights, greatest rights, flags, what children get, pages in memory, anonymous pages.
fn entry(map: &Map, address: u64) -> Result<[u64; 8]> {
    let address = usize::try_from(address).map_err(|_| Errno::ENOMEM)?;
    let entry = map.entry_at(VirtAddr(address)).ok_or(Errno::ENOMEM)?;
    let rights = |prot: Prot| u64::from((prot & (Prot::READ | Prot::WRITE | Prot::EXEC)).bits());
    let flags = [
        (entry.shared, flag::SHARED),
        (entry.grows_down, flag::GROWS_DOWN),
        (entry.lock == Lock::Full, flag::LOCKED),
        (entry.lock == Lock::OnFault, flag::LOCKED_ON_FAULT),
        (entry.shares_anonymous, flag::CHILDREN_SHARE),
    ];
    let inherit = INHERIT.iter().position(|&it| it == entry.inherit);
    Ok([
        entry.range.start.0 as u64,
        entry.range.end.0 as u64,
        rights(entry.prot),
        rights(entry.max_prot),
        flags.iter().filter(|flag| flag.0).map(|flag| flag.1).sum(),
        inherit.unwrap_or(INHERIT.len()) as u64,
        entry.resident_pages as u64,
        entry.anonymous_pages as u64,
    ])
}
