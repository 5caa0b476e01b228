//! Requests to a map, and its answers.
#![allow(missing_docs, reason = "fields and variants whose names say it")]

use alloc::sync::Arc;
use nucleus::{OutOfMemory, Prot, VirtAddr, VirtRange};

use crate::object::{Pager, PagerError};
use crate::swap::PageInError;

/// The layer below a mapping's anonymous layer.
#[derive(Clone)]
pub enum Backing {
    /// None: zero-fill. With `shared`, the map makes an [`Anonymous`](crate::Anonymous) object.
    Zero,
    /// An object, from byte `offset` (page-aligned) on.
    Object { pager: Arc<dyn Pager>, offset: u64 },
}

/// The place of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Anywhere, from the top of the mapping area down.
    Any,
    /// At this address if it is free, else anywhere.
    Hint(VirtAddr),
    /// At this address, replacing what is mapped there.
    Fixed(VirtAddr),
    /// At this address, or [`MapError::Exists`].
    FixedNoReplace(VirtAddr),
    /// At this address, replacing mappings that [stay](MapRequest::stays), or
    /// [`MapError::Exists`] if there are others.
    FixedOverStaying(VirtAddr),
}

/// The inheritance of an entry at fork (`uvm.txt` 5.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Inherit {
    None,
    Share,
    Copy,
    Zero,
}

/// Whether an entry's pages are locked into memory (`uvm.txt` 3.2: the wiring that the map must
/// record).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub enum Lock {
    /// Not locked.
    #[default]
    None,
    /// Locked from the first fault on (`MLOCK_ONFAULT`).
    OnFault,
    /// Locked and resident.
    Full,
}

/// Advice for `madvise`, or for the faults of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// Fault-ahead: three pages behind, four ahead.
    Normal,
    /// No fault-ahead.
    Random,
    /// Fault-ahead: none behind, eight ahead.
    Sequential,
    /// Discards the pages: private ones then read zero or the object's content. Locked entries
    /// refuse it.
    DontNeed,
    /// As `DontNeed`, for locked entries, too.
    DontNeedLocked,
    /// As `DontNeed` for private anonymous memory, but lazily.
    Free,
    /// Starts reading pages that are not resident, and maps those that are.
    WillNeed,
    /// Not needed soon: reclaimed first when memory is short.
    Cold,
    /// Not needed for long: paged out now.
    PageOut,
    /// Punches a hole into what a shared mapping maps: its pages read zero.
    Remove,
    DontFork,
    DoFork,
    WipeOnFork,
    KeepOnFork,
    /// Large pages where possible.
    Large,
    /// No large pages from now on.
    NotLarge,
}

/// Advice about large pages.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum LargeAdvice {
    #[default]
    None,
    /// `MADV_HUGEPAGE`.
    Wanted,
    /// `MADV_NOHUGEPAGE`.
    Refused,
}

/// A mapping, with its final attributes.
#[derive(Clone)]
pub struct MapRequest {
    pub place: Place,
    /// Bytes, rounded up to pages.
    pub len: usize,
    pub prot: Prot,
    /// The most that `protect` may permit later.
    pub max_prot: Prot,
    pub backing: Backing,
    /// Writes go to the object rather than to an anonymous layer.
    pub shared: bool,
    /// A stack: faults below it extend it downward within `RLIMIT_STACK`; a guard gap stays.
    pub grows_down: bool,
    /// Bring all pages in before returning.
    pub populate: bool,
    /// Locks the pages, at least as [`Map::lock_all`](crate::Map::lock_all) asks for all new
    /// mappings.
    pub lock: Lock,
    /// Advice about large pages. If refused, the mapping need not be aligned for them.
    pub large: LargeAdvice,
    /// `MAP_NORESERVE`: no overcommit check.
    pub no_reserve: bool,
    /// The mapping is tied to its address space and its place: it cannot be moved, resized or
    /// passed on, children do not inherit it, and `mlockall` does not lock it.
    pub stays: bool,
    /// The name in `/proc/PID/maps` (`[stack]`, `[heap]`, `[vdso]`) where there is no file.
    pub label: &'static str,
}

/// Limits that the map enforces, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub address_space: u64,
    pub data: u64,
    pub stack: u64,
    /// Limit for locked entries, unless the program is
    /// [privileged](crate::Map::set_lock_privilege).
    pub locked: u64,
}

/// Why a map operation failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapError {
    /// Out of memory, of address space or of a limit: `ENOMEM`.
    NoMemory,
    /// Bad range or alignment: `EINVAL`.
    Invalid,
    /// Part of the range is not mapped: `ENOMEM` or `EFAULT`, depending on the call.
    NotMapped,
    /// Exceeds the entry's maximal protection: `EACCES`.
    Access,
    /// `FixedNoReplace` found a mapping: `EEXIST`.
    Exists,
    /// Limit for locked memory: `EAGAIN`.
    Again,
    /// The backing store failed: `EIO`.
    Io,
    /// Not supported by what is mapped there: `EOPNOTSUPP`.
    Unsupported,
}

/// Why a fault cannot be resolved: which signal, with which code.
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
    /// Out of memory: the kernel kills a process and retries.
    OutOfMemory,
}

/// A description of an entry, for `/proc`.
pub struct Entry {
    pub range: VirtRange,
    pub prot: Prot,
    /// The most that `protect` may permit.
    pub max_prot: Prot,
    pub shared: bool,
    pub grows_down: bool,
    pub lock: Lock,
    /// Inheritance by children.
    pub inherit: Inherit,
    /// The anonymous layer is shared with children.
    pub shares_anonymous: bool,
    pub backing: Backing,
    pub label: &'static str,
    /// May be in large pages.
    pub large_eligible: bool,
    /// Advice about large pages.
    pub large: LargeAdvice,
    /// Pages that are mapped now, and anonymous pages.
    pub resident_pages: usize,
    pub anonymous_pages: usize,
}

/// Sizes, in pages.
#[derive(Clone, Copy, Default, Debug)]
pub struct Sizes {
    pub total: usize,
    pub peak: usize,
    pub resident: usize,
    pub data: usize,
    pub stack: usize,
    pub text: usize,
    /// In locked entries.
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
    /// Returns a request for `len` bytes of private zero-fill memory anywhere, with these rights.
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
            stays: false,
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
            PagerError::Io => Fault::Io,
            PagerError::OutOfMemory => Fault::OutOfMemory,
            PagerError::Protected => Fault::Protection,
        }
    }
}
