//! Address spaces (`uvm.txt` 3).

use alloc::sync::Arc;
use nucleus::{Access, Pmap, Prot, VirtAddr, VirtRange};

use crate::Pager;

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

/// How the program says it will use an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// Fault-ahead: three pages behind, four ahead.
    Normal,
    /// Fault-ahead: none.
    Random,
    /// Fault-ahead: none behind, eight ahead.
    Sequential,
    /// Give up the pages; private ones read zero or the object's content after it.
    DontNeed,
    /// As `DontNeed` for private anonymous memory, at leisure.
    Free,
    /// Map what is resident now.
    WillNeed,
    DontFork,
    DoFork,
    WipeOnFork,
    KeepOnFork,
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
    /// The name in `/proc/PID/maps` (`[stack]`, `[heap]`, `[vdso]`) where there is no file.
    pub label: &'static str,
}

/// Limits that the map enforces, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub address_space: u64,
    pub data: u64,
    pub stack: u64,
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
    pub shared: bool,
    pub backing: Backing,
    pub label: &'static str,
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
    pub shared_resident: usize,
    pub page_tables: usize,
    pub entries: usize,
}

/// An address space: entries over a [`Pmap`]. All methods may be called by any task.
pub struct Map {
    _private: (),
}

impl Map {
    /// Nothing mapped. Where mappings, heap and stack start is randomised unless `fixed_layout`.
    pub fn new(limits: Limits, fixed_layout: bool) -> Result<Arc<Map>, MapError> {
        todo!()
    }

    /// The hardware side, for [`nucleus::task::set_pmap`].
    pub fn pmap(&self) -> &Arc<Pmap> {
        todo!()
    }

    /// Establishes a mapping in one step (`uvm.txt` 3.1).
    pub fn map(&self, request: MapRequest) -> Result<VirtAddr, MapError> {
        todo!()
    }

    /// Removes what is mapped in the range, in two phases (`uvm.txt` 3.1).
    pub fn unmap(&self, range: VirtRange) -> Result<(), MapError> {
        todo!()
    }

    /// Changes the protection; everything in the range must be mapped.
    pub fn protect(&self, range: VirtRange, prot: Prot) -> Result<(), MapError> {
        todo!()
    }

    /// `mremap`: moves and resizes. `to` is `None` to stay where it is.
    pub fn remap(
        &self,
        old: VirtRange,
        new_len: usize,
        may_move: bool,
        to: Option<VirtAddr>,
        keep_old: bool,
    ) -> Result<VirtAddr, MapError> {
        todo!()
    }

    /// `madvise`.
    pub fn advise(&self, range: VirtRange, advice: Advice) -> Result<(), MapError> {
        todo!()
    }

    /// Which pages of a wholly mapped range are resident (`mincore`); calls `page` for each.
    pub fn resident(&self, range: VirtRange, page: &mut dyn FnMut(bool)) -> Result<(), MapError> {
        todo!()
    }

    /// Writes shared dirty pages back (`msync`).
    pub fn sync(&self, range: VirtRange) -> Result<(), MapError> {
        todo!()
    }

    /// Sets where the heap starts (`execve`); `brk` starts there, randomised unless the layout is fixed.
    pub fn set_heap_start(&self, start: VirtAddr) {
        todo!()
    }

    /// `brk`: moves the end of the heap if it can and returns where it is.
    pub fn set_break(&self, to: VirtAddr) -> VirtAddr {
        todo!()
    }

    /// Resolves a fault at `addr`, any value: the one fault routine. May sleep.
    pub fn fault(&self, addr: VirtAddr, access: Access) -> Result<(), Fault> {
        todo!()
    }

    /// A copy for a child: entries by their inheritance, private ones copy-on-write (`uvm.txt` 5.2).
    pub fn fork(&self) -> Result<Arc<Map>, MapError> {
        todo!()
    }

    /// Removes everything. No task runs in it any more.
    pub fn tear_down(&self) {
        todo!()
    }

    /// Calls `f` for each entry, in order of address.
    pub fn for_each_entry(&self, f: &mut dyn FnMut(&Entry)) {
        todo!()
    }

    /// Sizes for `/proc` and `getrusage`.
    pub fn sizes(&self) -> Sizes {
        todo!()
    }

    /// Where the heap is: start and current end.
    pub fn heap(&self) -> VirtRange {
        todo!()
    }

    /// Limits from now on.
    pub fn set_limits(&self, limits: Limits) {
        todo!()
    }

    /// Reads another address space (`/proc/PID/mem`, `cmdline`, `process_vm_readv`); returns how many bytes could be.
    pub fn read(&self, from: VirtAddr, to: &mut [u8]) -> usize {
        todo!()
    }

    /// Writes another address space, copy-on-write kept (building a stack before `execve` returns); returns how many bytes could be.
    pub fn write(&self, to: VirtAddr, from: &[u8]) -> usize {
        todo!()
    }
}
