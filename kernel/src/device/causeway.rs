//! `/dev/causeway`: what Linux has no call for. Requests are about the caller's address space, and
//! may name another process that receives a part of it; `docs/device.md` says what programs may
//! rely on, and the crate `user/libcauseway` wraps it.

use alloc::sync::Arc;

use abi::{Errno, Result};
use fs::{File, Location, OpenFlags, device::RequestFile};
use nucleus::{PAGE_SIZE, Prot, VirtAddr, VirtRange, addr::USER_END, user};
use vm::{Handing, Inherit, Lock, Map, MapError, Passing, Place};

use crate::process::{Ids, Pid, Space, View, pid_table, process_of, thread};

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
    /// Passes a part of the address space to a process.
    pub const PASS: u32 = 0xc040_ca04;
}

/// Grows as fields are added; the fields that exist keep their places.
const VERSION: u32 = 2;

/// What children inherit, by number, as in FreeBSD's `minherit`.
const INHERIT: [Inherit; 4] = [Inherit::Share, Inherit::Copy, Inherit::None, Inherit::Zero];

/// How a part of an address space is passed, by number.
const WAYS: [Way; 5] = [
    Way::Entries(Passing::Copy),
    Way::Entries(Passing::Move),
    Way::Entries(Passing::Share),
    Way::Pages(Handing::Lend),
    Way::Pages(Handing::Transfer),
];

#[derive(Clone, Copy)]
enum Way {
    /// Map entries, whatever their pages are.
    Entries(Passing),
    /// Page by page.
    Pages(Handing),
}

/// The flag of `PASS` that says that the receiver is named by a pidfd.
const BY_PIDFD: u64 = 1;

/// Bits of an entry's flags.
mod flag {
    pub const SHARED: u64 = 1;
    pub const GROWS_DOWN: u64 = 2;
    pub const LOCKED: u64 = 4;
    pub const LOCKED_ON_FAULT: u64 = 8;
    pub const CHILDREN_SHARE: u64 = 16;
}

/// Opens the device.
///
/// # Errors
/// None.
pub fn open(at: &Location, _: u64, _: OpenFlags) -> Result<Arc<dyn File>> {
    Ok(RequestFile::new(at, answer))
}

fn answer(command: u32, argument: VirtAddr) -> Result<usize> {
    let space = thread::current_space().ok_or(Errno::ENOTTY)?;
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
        request::PASS => {
            let words = user::read(argument)?;
            give(argument, pass(map, words)?)
        }
        _ => Err(Errno::ENOTTY),
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

/// Takes the receiver, flags, how, start, length, and the receiver's address or 0; returns the last
/// three words as the receiver's address, the pages that were passed, and those that were copied.
fn pass(map: &Map, words: [u64; 8]) -> Result<[u64; 8]> {
    let [receiver, flags, how, start, len, address, ..] = words;
    let how = usize::try_from(how).ok().and_then(|how| WAYS.get(how));
    let how = *how.ok_or(Errno::EINVAL)?;
    if flags & !BY_PIDFD != 0 {
        return Err(Errno::EINVAL);
    }
    let end = start
        .checked_add(len)
        .filter(|&end| end <= USER_END.0 as u64);
    let end = end.ok_or(Errno::EFAULT)?;
    let range = VirtRange::new(VirtAddr(start as usize), VirtAddr(end as usize));
    let address = match address {
        0 => None,
        // None there is a program's.
        address if address >= USER_END.0 as u64 => return Err(Errno::EFAULT),
        address if !address.is_multiple_of(PAGE_SIZE as u64) => return Err(Errno::EINVAL),
        address => Some(VirtAddr(address as usize)),
    };
    let target = receiver_of(receiver, flags)?;
    let to = target.map();
    let pages = len.div_ceil(PAGE_SIZE as u64);
    let goes_on = || !thread::is_current_dying();
    let (at, passed, copied) = match how {
        Way::Entries(how) => {
            let place = address.map_or(Place::Any, Place::Fixed);
            let at = map.pass_entries(range, to, place, how, &goes_on);
            let at = at.map_err(errno)?;
            (at, pages, 0)
        }
        Way::Pages(how) => {
            let handed = map.hand_over(range, to, address, how, &goes_on);
            let handed = handed.map_err(errno)?;
            (handed.at, handed.passed as u64, handed.copied as u64)
        }
    };
    Ok([
        receiver,
        flags,
        words[2],
        start,
        len,
        at.0 as u64,
        passed,
        copied,
    ])
}

/// Returns the address space of the receiver, which the caller may write as by `process_vm_writev`.
///
/// # Errors
/// `ESRCH`, `EPERM`; `EBADF` for a descriptor that is no pidfd.
fn receiver_of(receiver: u64, flags: u64) -> Result<Arc<Space>> {
    let thread = match flags & BY_PIDFD {
        0 => Pid::try_from(receiver)
            .ok()
            .and_then(pid_table::find_thread),
        _ => {
            let fd = i32::try_from(receiver).map_err(|_| Errno::EBADF)?;
            let shared = thread::current_shared().ok_or(Errno::EBADF)?;
            process_of(&*shared.files.get(fd)?)?.leader()
        }
    };
    let thread = thread.ok_or(Errno::ESRCH)?;
    View::space_of(&thread, Ids::Real)
}

fn errno(error: MapError) -> Errno {
    match error {
        MapError::NotMapped | MapError::Access => Errno::EFAULT,
        // No request asks for addresses that must be free.
        MapError::Invalid | MapError::Exists => Errno::EINVAL,
        MapError::NoMemory => Errno::ENOMEM,
        MapError::Again => Errno::EAGAIN,
        MapError::Io => Errno::EIO,
        MapError::Unsupported => Errno::EOPNOTSUPP,
    }
}
