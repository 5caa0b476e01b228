//! What callers say to a map and hear from it.

use alloc::sync::Arc;
use nucleus::{OutOfMemory, Prot, VirtAddr, VirtRange};

use crate::object::{Pager, PagerError};
use crate::swap::PageInError;

/// What lies below a mapping's anonymous layer.
#[derive(Clone)]
pub enum Backing {
    /// Nothing: zero-fill. With `shared`, the map makes an [`Anonymous`](crate::Anonymous) object.
    Zero,
    /// An object from byte `offset` (page-aligned) on.
    Object { pager: Arc<dyn Pager>, offset: u64 },
}

/// Where a mapping goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Anywhere, from the top of the mapping area down.
    Any,
    /// At this address if it is free, anywhere otherwise.
    Hint(VirtAddr),
    /// Exactly here, replacing what is there.
    Fixed(VirtAddr),
    /// Exactly here, or [`MapError::Exists`].
    FixedNoReplace(VirtAddr),
}

/// What a child gets of an entry at fork (`uvm.txt` 5.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Inherit {
    None,
    Share,
    Copy,
    Zero,
}

/// Whether an entry's pages are locked into memory (`uvm.txt` 3.2: the wiring that has to be kept in the map).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub enum Lock {
    /// No.
    #[default]
    None,
    /// Each from its first fault on (`MLOCK_ONFAULT`).
    OnFault,
    /// All of them.
    Full,
}

/// How the program says it will use an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// Fault-ahead: three pages behind, four ahead.
    Normal,
    /// Fault-ahead: none.
    Random,
    /// Fault-ahead: none behind, eight ahead.
    Sequential,
    /// Give up the pages; private ones read zero or the object's content after it. Locked entries refuse it.
    DontNeed,
    /// The same for locked entries, too.
    DontNeedLocked,
    /// As `DontNeed` for private anonymous memory, at leisure.
    Free,
    /// Begin to read what is not in memory, and map what is.
    WillNeed,
    /// Not needed soon: the first to go when memory is short.
    Cold,
    /// Not needed for long: out of memory now, as far as it can be had again.
    PageOut,
    /// Give the pages of a shared mapping up in what it maps: they read zero for everybody.
    Remove,
    DontFork,
    DoFork,
    WipeOnFork,
    KeepOnFork,
    /// Large pages, where they can be.
    Large,
    /// No large pages from now on.
    NotLarge,
}

/// What a program said about large pages for an entry.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum LargeAdvice {
    #[default]
    None,
    /// `MADV_HUGEPAGE`.
    Wanted,
    /// `MADV_NOHUGEPAGE`.
    Refused,
}

/// One mapping, with its final attributes.
#[derive(Clone)]
pub struct MapRequest {
    pub place: Place,
    /// Bytes, rounded up to pages.
    pub len: usize,
    pub prot: Prot,
    /// What `protect` may raise it to later.
    pub max_prot: Prot,
    pub backing: Backing,
    /// Writes go to the object rather than to an anonymous layer.
    pub shared: bool,
    /// A stack: faults within `RLIMIT_STACK` below it extend it downward, a guard gap stays.
    pub grows_down: bool,
    /// Fault everything in before returning.
    pub populate: bool,
    /// Locks the pages: at least as much as all later mappings of the map are locked ([`Map::lock_all`](crate::Map::lock_all)).
    pub lock: Lock,
    /// What is said of large pages from the start. Refused: it need not lie where they fit in, either.
    pub large: LargeAdvice,
    /// `MAP_NORESERVE`: not even an obvious overcommit is refused.
    pub no_reserve: bool,
    /// The name in `/proc/PID/maps` (`[stack]`, `[heap]`, `[vdso]`) where there is no file.
    pub label: &'static str,
}

/// Limits that the map enforces, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub address_space: u64,
    pub data: u64,
    pub stack: u64,
    /// Pages of locked entries, unless the program is [privileged](crate::Map::set_lock_privilege).
    pub locked: u64,
}

/// Why a map operation failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapError {
    /// Out of memory, of room or of a limit: `ENOMEM`.
    NoMemory,
    /// Bad range or alignment: `EINVAL`.
    Invalid,
    /// Something in the range is not mapped: `ENOMEM` or `EFAULT`, as the call says.
    NotMapped,
    /// Would exceed the entry's maximal protection: `EACCES`.
    Access,
    /// `FixedNoReplace` found a mapping: `EEXIST`.
    Exists,
    /// Locked memory limit: `EAGAIN`.
    Again,
    /// The backing store failed: `EIO`.
    Io,
    /// What is mapped there can't do that: `EOPNOTSUPP`.
    Unsupported,
}

/// Why a fault can't be resolved: which signal, with which code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// SIGSEGV, SEGV_MAPERR.
    NotMapped,
    /// SIGSEGV, SEGV_ACCERR.
    Protection,
    /// SIGBUS, BUS_ADRERR: beyond the object's end.
    BeyondEnd,
    /// SIGBUS, BUS_ADRERR: the backing store failed.
    Io,
    /// Nothing left; the kernel frees some (kills) and tries again.
    OutOfMemory,
}

/// A copy of what an entry says, for `/proc`.
pub struct Entry {
    pub range: VirtRange,
    pub prot: Prot,
    /// What `protect` may give it.
    pub max_prot: Prot,
    pub shared: bool,
    pub grows_down: bool,
    pub lock: Lock,
    /// What children get.
    pub inherit: Inherit,
    /// Its anonymous layer is shared with children.
    pub shares_anonymous: bool,
    pub backing: Backing,
    pub label: &'static str,
    /// Large pages may come in it.
    pub large_eligible: bool,
    /// What the program said about that.
    pub large: LargeAdvice,
    /// Pages of it mapped now, and how many of them are anonymous.
    pub resident_pages: usize,
    pub anonymous_pages: usize,
}

/// Sizes in pages.
#[derive(Clone, Copy, Default, Debug)]
pub struct Sizes {
    pub total: usize,
    pub peak: usize,
    pub resident: usize,
    pub data: usize,
    pub stack: usize,
    pub text: usize,
    /// Pages of locked entries.
    pub locked: usize,
    pub shared_resident: usize,
    pub page_tables: usize,
    pub entries: usize,
}

impl Limits {
    /// No limits.
    pub const NONE: Limits = Limits {
        address_space: u64::MAX,
        data: u64::MAX,
        stack: u64::MAX,
        locked: u64::MAX,
    };
}

impl MapRequest {
    /// `len` bytes of private zero-fill memory anywhere, with these rights.
    pub fn zero(len: usize, prot: Prot) -> MapRequest {
        MapRequest {
            place: Place::Any,
            len,
            prot,
            max_prot: Prot::all(),
            backing: Backing::Zero,
            shared: false,
            grows_down: false,
            populate: false,
            lock: Lock::None,
            large: LargeAdvice::None,
            no_reserve: false,
            label: "",
        }
    }
}

impl From<OutOfMemory> for MapError {
    fn from(_: OutOfMemory) -> MapError {
        MapError::NoMemory
    }
}

impl From<OutOfMemory> for Fault {
    fn from(_: OutOfMemory) -> Fault {
        Fault::OutOfMemory
    }
}

impl From<PageInError> for Fault {
    fn from(error: PageInError) -> Fault {
        PagerError::from(error).into()
    }
}

impl From<PagerError> for Fault {
    fn from(error: PagerError) -> Fault {
        match error {
            PagerError::BeyondEnd => Fault::BeyondEnd,
            // The fault routine has answered `Sleeps` itself.
            PagerError::Io | PagerError::Sleeps => Fault::Io,
            PagerError::OutOfMemory => Fault::OutOfMemory,
        }
    }
}
