//! Address spaces.

use abi::{Errno, Result, raw::general as raw};
use fs::MountFlags;
use nucleus::{PAGE_SIZE, Prot, VirtAddr, VirtRange, addr::USER_END};
use vm::{Backing, LargeAdvice, MapError, MapRequest, Place};

use super::{Call, SystemCall, call, lock, memfd, note_unsupported};
use crate::process::{self, exec::elf::Class};

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_mmap, mmap),
    call!(__NR_munmap, munmap),
    call!(__NR_mprotect, mprotect),
    call!(__NR_mremap, mremap),
    call!(__NR_brk, brk),
    call!(__NR_msync, msync),
];

/// Flags that `MAP_SHARED_VALIDATE` accepts.
const VALIDATED: u32 = raw::MAP_SHARED
    | raw::MAP_PRIVATE
    | raw::MAP_FIXED
    | raw::MAP_ANONYMOUS
    | raw::MAP_DENYWRITE
    | raw::MAP_EXECUTABLE
    | raw::MAP_UNINITIALIZED
    | raw::MAP_GROWSDOWN
    | raw::MAP_LOCKED
    | raw::MAP_NORESERVE
    | raw::MAP_POPULATE
    | raw::MAP_NONBLOCK
    | raw::MAP_STACK
    | raw::MAP_HUGETLB
    | raw::MAP_32BIT
    | raw::MAP_FIXED_NOREPLACE;

/// Mappings with `MAP_32BIT` end here at the latest.
const END_32BIT: usize = 1 << 31;

/// The errno of most calls.
pub(super) fn errno(error: MapError) -> Errno {
    match error {
        MapError::NoMemory | MapError::NotMapped => Errno::ENOMEM,
        MapError::Invalid => Errno::EINVAL,
        MapError::Access => Errno::EACCES,
        MapError::Exists => Errno::EEXIST,
        MapError::Again => Errno::EAGAIN,
        MapError::Io => Errno::EIO,
        MapError::Unsupported => Errno::EOPNOTSUPP,
    }
}

/// Changes an address space; waits for memory where that is short.
///
/// # Errors
/// Those of `change`.
#[inline(always)]
pub(super) fn with_memory<T>(
    change: impl FnMut() -> core::result::Result<T, MapError>,
) -> core::result::Result<T, MapError> {
    process::with_room(MapError::NoMemory, change)
}

fn prot(bits: u32) -> Prot {
    let mut prot = Prot::empty();
    prot.set(Prot::READ, bits & raw::PROT_READ != 0);
    prot.set(Prot::WRITE, bits & raw::PROT_WRITE != 0);
    prot.set(Prot::EXEC, bits & raw::PROT_EXEC != 0);
    prot
}

/// The pages of a range that starts at one.
///
/// # Errors
/// `EINVAL` if it does not start at a page or ends too far up.
pub(super) fn pages(start: VirtAddr, len: usize) -> Result<VirtRange> {
    if !start.is_page_aligned() {
        return Err(Errno::EINVAL);
    }
    let end = start
        .checked_add(len)
        .and_then(VirtAddr::page_ceil)
        .filter(|end| *end >= start)
        .ok_or(Errno::EINVAL)?;
    Ok(VirtRange::new(start, end))
}

/// Calls `step` for `range` a piece at a time: the thread may be killed meanwhile.
///
/// # Errors
/// `EINTR`, those of `step`.
pub(super) fn in_pieces(
    call: &Call<'_>,
    range: VirtRange,
    step: impl Fn(VirtRange) -> Result<()>,
) -> Result<()> {
    const AT_ONCE: usize = 1 << 20;
    let mut start = range.start;
    while start < range.end {
        let end = VirtAddr((start.0 + AT_ONCE).min(range.end.0));
        step(VirtRange::new(start, end))?;
        if call.thread.is_dying() {
            return Err(Errno::EINTR);
        }
        start = end;
    }
    Ok(())
}

/// Whether the whole range lies where programs may map.
pub(super) fn is_user(range: VirtRange) -> bool {
    range.end <= USER_END
}

fn place(address: VirtAddr, flags: u32) -> Result<Place> {
    if flags & raw::MAP_FIXED_NOREPLACE != 0 || flags & raw::MAP_FIXED != 0 {
        if !address.is_page_aligned() {
            return Err(Errno::EINVAL);
        }
        return Ok(if flags & raw::MAP_FIXED_NOREPLACE != 0 {
            Place::FixedNoReplace(address)
        } else {
            Place::Fixed(address)
        });
    }
    let hint = address.page_floor();
    Ok(if hint.0 == 0 {
        Place::Any
    } else {
        Place::Hint(hint)
    })
}

fn mmap(call: &mut Call<'_>) -> Result<usize> {
    let address = call.address(0);
    let len = call.size(1);
    let prot_bits = call.unsigned(2);
    let flags = call.unsigned(3);
    let offset = call.args[5];
    if !offset.is_multiple_of(PAGE_SIZE as u64) || len == 0 {
        return Err(Errno::EINVAL);
    }
    let whole = VirtAddr(len).page_ceil().ok_or(Errno::ENOMEM)?.0;
    let shared = match flags & raw::MAP_TYPE {
        raw::MAP_PRIVATE => false,
        raw::MAP_SHARED => true,
        raw::MAP_SHARED_VALIDATE => {
            if flags & !(VALIDATED | raw::MAP_TYPE) != 0 {
                return Err(Errno::EOPNOTSUPP);
            }
            true
        }
        _ => return Err(Errno::EINVAL),
    };
    if flags & raw::MAP_HUGETLB != 0 {
        // There are no huge pages set aside.
        note_unsupported(call.caller(), "flags", raw::MAP_HUGETLB.into());
        return Err(if flags & raw::MAP_ANONYMOUS != 0 {
            Errno::ENOMEM
        } else {
            Errno::EINVAL
        });
    }
    let prot = prot(prot_bits);
    let mut request = MapRequest {
        place: place(address, flags)?,
        shared,
        grows_down: flags & raw::MAP_GROWSDOWN != 0,
        populate: flags & (raw::MAP_POPULATE | raw::MAP_NONBLOCK) == raw::MAP_POPULATE,
        no_reserve: flags & raw::MAP_NORESERVE != 0,
        ..MapRequest::zero(whole, prot)
    };
    if flags & raw::MAP_STACK != 0 {
        // A thread's: used from its end, and most of it never.
        request.large = LargeAdvice::Refused;
    }
    if flags & raw::MAP_LOCKED != 0 {
        request.lock = lock::may_lock(call)?;
    } else {
        lock::renew_privilege(call);
    }
    if flags & raw::MAP_ANONYMOUS == 0 {
        offset
            .checked_add(whole as u64)
            .filter(|end| i64::try_from(*end).is_ok())
            .ok_or(Errno::EOVERFLOW)?;
        let open = call.opened(4)?;
        if !open.flags().reads() {
            return Err(Errno::EACCES);
        }
        if shared && !open.flags().writes() {
            if prot.contains(Prot::WRITE) {
                return Err(Errno::EACCES);
            }
            request.max_prot = Prot::READ | Prot::EXEC;
        }
        // An existing mapping could still be written.
        if shared
            && open.flags().writes()
            && let Some(place) = open.location()
            && place.vnode().only_grows()
        {
            return Err(Errno::EACCES);
        }
        if shared {
            request.max_prot = memfd::check_mapping(&open, prot, request.max_prot)?;
        }
        if let Some(place) = open.location()
            && place.mount().has(MountFlags::NO_EXECUTE)
        {
            if prot.contains(Prot::EXEC) {
                return Err(Errno::EPERM);
            }
            request.max_prot &= Prot::READ | Prot::WRITE;
        }
        if request.grows_down {
            return Err(Errno::EINVAL);
        }
        let pager = open.file().pager()?;
        if pager.shows_given_pages() {
            if prot.intersects(Prot::WRITE | Prot::EXEC) {
                return Err(Errno::EPERM);
            }
            request.shared = false;
            request.max_prot = Prot::READ;
        }
        request.backing = Backing::Object { pager, offset };
    } else if shared && request.grows_down {
        return Err(Errno::EINVAL);
    }
    let low = flags & raw::MAP_32BIT != 0 || sees_less(call);
    if low && flags & (raw::MAP_FIXED | raw::MAP_FIXED_NOREPLACE) == 0 {
        return map_low(call, request);
    }
    map(call, request)
}

fn map(call: &Call<'_>, request: MapRequest) -> Result<usize> {
    match with_memory(|| call.space().map().map_as(&request)) {
        Ok(at) => Ok(at.0),
        // A place outside of the addresses that programs may map.
        Err(MapError::NotMapped) => Err(Errno::ENOMEM),
        Err(error) => Err(errno(error)),
    }
}

/// Whether the result of a call has less room than an address: a 64-bit program calls by `int
/// 0x80`.
pub(super) fn sees_less(call: &Call<'_>) -> bool {
    call.own.compatible_call && call.space().layout.class == Class::X64
}

/// `MAP_32BIT`: the lowest free place in the first two gigabytes.
pub(super) fn map_low(call: &Call<'_>, request: MapRequest) -> Result<usize> {
    const FIRST: usize = 0x4000_0000;
    let mut at = FIRST;
    let mut taken = alloc::vec::Vec::new();
    let mut full = false;
    call.space().map().for_each_entry(&mut |entry| {
        if entry.range.end.0 > FIRST && entry.range.start.0 < END_32BIT {
            full |= taken.try_reserve(1).is_err();
            if !full {
                taken.push(entry.range);
            }
        }
    });
    if full {
        return Err(Errno::ENOMEM);
    }
    for range in taken {
        if range.start.0 >= at && range.start.0 - at >= request.len {
            break;
        }
        at = at.max(range.end.0);
    }
    if at
        .checked_add(request.len)
        .is_none_or(|end| end > END_32BIT)
    {
        return Err(Errno::ENOMEM);
    }
    let place = Place::FixedNoReplace(VirtAddr(at));
    map(call, MapRequest { place, ..request })
}

fn munmap(call: &mut Call<'_>) -> Result<usize> {
    let range = pages(call.address(0), call.size(1))?;
    if range.is_empty() || !is_user(range) {
        return Err(Errno::EINVAL);
    }
    with_memory(|| call.space().map().unmap(range)).map_err(errno)?;
    Ok(0)
}

fn mprotect(call: &mut Call<'_>) -> Result<usize> {
    let bits = call.unsigned(2);
    let grows = raw::PROT_GROWSDOWN | raw::PROT_GROWSUP;
    let known = raw::PROT_READ | raw::PROT_WRITE | raw::PROT_EXEC | raw::PROT_SEM | grows;
    if bits & !known != 0 || bits & grows == grows {
        return Err(Errno::EINVAL);
    }
    let start = call.address(0);
    if !start.is_page_aligned() {
        return Err(Errno::EINVAL);
    }
    if call.size(1) == 0 {
        return Ok(0);
    }
    let mut range = pages(start, call.size(1))?;
    if !is_user(range) {
        return Err(Errno::ENOMEM);
    }
    if bits & grows != 0 {
        // From the start of the stack that holds the range on.
        let mut first = None;
        call.space().map().for_each_entry(&mut |entry| {
            if entry.range.contains(start) && entry.label == "[stack]" {
                first = Some(entry.range.start);
            }
        });
        if bits & raw::PROT_GROWSUP != 0 {
            return Err(Errno::EINVAL);
        }
        range = VirtRange::new(first.ok_or(Errno::EINVAL)?, range.end);
    }
    with_memory(|| call.space().map().protect(range, prot(bits))).map_err(errno)?;
    Ok(0)
}

fn mremap(call: &mut Call<'_>) -> Result<usize> {
    let flags = call.unsigned(3);
    let known = raw::MREMAP_MAYMOVE | raw::MREMAP_FIXED | raw::MREMAP_DONTUNMAP;
    let may_move = flags & raw::MREMAP_MAYMOVE != 0;
    let fixed = flags & raw::MREMAP_FIXED != 0;
    let keep_old = flags & raw::MREMAP_DONTUNMAP != 0;
    let whole = |len: usize| VirtAddr(len).page_ceil().ok_or(Errno::EINVAL);
    let old_len = whole(call.size(1))?.0;
    let new_len = whole(call.size(2))?.0;
    if flags & !known != 0
        || ((fixed || keep_old) && !may_move)
        || (keep_old && old_len != new_len)
        || new_len == 0
        // A second mapping of shared pages, by a length of zero, is not to be had.
        || old_len == 0
    {
        return Err(Errno::EINVAL);
    }
    lock::renew_privilege(call);
    let old = pages(call.address(0), old_len)?;
    if !is_user(old) {
        return Err(Errno::EFAULT);
    }
    // A mapping that does not replace others goes to a free place, near the one that is named.
    let to = match call.address(4) {
        to if fixed => Place::Fixed(to),
        to if keep_old && to.0 != 0 => Place::Hint(to),
        _ => Place::Any,
    };
    if let Place::Fixed(to) | Place::Hint(to) = to {
        let new = pages(to, new_len)?;
        if !is_user(new) || !new.intersect(old).is_empty() {
            return Err(Errno::EINVAL);
        }
    }
    let map = call.space().map();
    match with_memory(|| map.remap(old, new_len, may_move, to, keep_old)) {
        Ok(at) => Ok(at.0),
        Err(MapError::NotMapped) => Err(Errno::EFAULT),
        Err(error) => Err(errno(error)),
    }
}

fn brk(call: &mut Call<'_>) -> Result<usize> {
    lock::renew_privilege(call);
    // Where there is none even so, the break stays.
    let _ = process::make_room();
    Ok(call.space().map().set_break(call.address(0)).0)
}

fn msync(call: &mut Call<'_>) -> Result<usize> {
    let flags = call.unsigned(2);
    if flags & !(raw::MS_ASYNC | raw::MS_INVALIDATE | raw::MS_SYNC) != 0
        || flags & raw::MS_ASYNC != 0 && flags & raw::MS_SYNC != 0
        || !call.address(0).is_page_aligned()
    {
        return Err(Errno::EINVAL);
    }
    let range = pages(call.address(0), call.size(1))?;
    if range.is_empty() {
        return Ok(0);
    }
    if !is_user(range) {
        return Err(Errno::ENOMEM);
    }
    let map = call.space().map().clone();
    if flags & raw::MS_INVALIDATE != 0 && map.has_locked(range) {
        return Err(Errno::EBUSY);
    }
    // Mappings share the pages of the file: there is nothing to invalidate. Without MS_SYNC,
    // writeback is only started.
    map.sync(range, flags & raw::MS_SYNC != 0).map_err(errno)?;
    Ok(0)
}
