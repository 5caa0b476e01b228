//! Advice on memory and questions about it: `madvise`, `process_madvise`, `mincore`.

use alloc::sync::Arc;

use abi::{Errno, Result, raw::general as raw};
use nucleus::{Access, PAGE_SHIFT, VirtAddr, VirtRange, user};
use vm::{Advice, Fault, Map};

use super::{
    Call, FlagSet, NO_FLAGS, SystemCall,
    arguments::ranges,
    call, choice,
    memory::{errno, in_pieces, is_user, pages, with_memory},
    pidfd,
};

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_madvise, madvise).flags(&[&ADVICE]).note(
        "pages are neither merged nor left out of core files, which there are none of: such \
             advice is taken and has no effect",
    ),
    call!(__NR_process_madvise, process_madvise).flags(&[&OTHERS, &NO_FLAGS]),
    call!(__NR_mincore, mincore),
];

const ADVICE: FlagSet = choice!(
    "advice",
    [
        raw::MADV_NORMAL,
        raw::MADV_RANDOM,
        raw::MADV_SEQUENTIAL,
        raw::MADV_WILLNEED,
        raw::MADV_DONTNEED,
        raw::MADV_FREE,
        raw::MADV_REMOVE,
        raw::MADV_DONTFORK,
        raw::MADV_DOFORK,
        raw::MADV_MERGEABLE,
        raw::MADV_UNMERGEABLE,
        raw::MADV_HUGEPAGE,
        raw::MADV_NOHUGEPAGE,
        raw::MADV_DONTDUMP,
        raw::MADV_DODUMP,
        raw::MADV_WIPEONFORK,
        raw::MADV_KEEPONFORK,
        raw::MADV_COLD,
        raw::MADV_PAGEOUT,
        raw::MADV_POPULATE_READ,
        raw::MADV_POPULATE_WRITE,
        raw::MADV_DONTNEED_LOCKED,
    ],
    EINVAL
);
/// The advice that may be given about another process's memory.
const OTHERS: FlagSet = choice!(
    "advice",
    [raw::MADV_COLD, raw::MADV_PAGEOUT, raw::MADV_WILLNEED],
    EINVAL
);

/// Advice that breaks pages, for tests of how broken memory is dealt with.
const POISON: [u32; 2] = [raw::MADV_HWPOISON, raw::MADV_SOFT_OFFLINE];

fn madvise(call: &mut Call<'_>) -> Result<usize> {
    let advice = call.unsigned(2);
    if POISON.contains(&advice) {
        return Err(match call.credentials().may(raw::CAP_SYS_ADMIN) {
            true => Errno::EINVAL,
            false => Errno::EPERM,
        });
    }
    let advice = call.choice(2, &ADVICE).map(|_| advice)?;
    let range = pages(call.address(0), call.size(1))?;
    let map = call.space().map().clone();
    advise(call, &map, range, advice)?;
    Ok(0)
}

/// Gives advice that is known.
fn advise(call: &Call<'_>, map: &Map, range: VirtRange, advice: u32) -> Result<()> {
    let advice = match advice {
        raw::MADV_POPULATE_READ => return populate(call, map, range, Access::Read),
        raw::MADV_POPULATE_WRITE => return populate(call, map, range, Access::Write),
        raw::MADV_NORMAL => Advice::Normal,
        raw::MADV_RANDOM => Advice::Random,
        raw::MADV_SEQUENTIAL => Advice::Sequential,
        raw::MADV_WILLNEED => Advice::WillNeed,
        raw::MADV_DONTNEED => Advice::DontNeed,
        raw::MADV_DONTNEED_LOCKED => Advice::DontNeedLocked,
        raw::MADV_FREE => Advice::Free,
        raw::MADV_REMOVE => Advice::Remove,
        raw::MADV_DONTFORK => Advice::DontFork,
        raw::MADV_DOFORK => Advice::DoFork,
        raw::MADV_WIPEONFORK => Advice::WipeOnFork,
        raw::MADV_KEEPONFORK => Advice::KeepOnFork,
        raw::MADV_COLD => Advice::Cold,
        raw::MADV_PAGEOUT => Advice::PageOut,
        raw::MADV_HUGEPAGE => Advice::Large,
        raw::MADV_NOHUGEPAGE => Advice::NotLarge,
        _ => return Ok(()),
    };
    if range.is_empty() {
        return Ok(());
    }
    if !is_user(range) {
        return Err(Errno::ENOMEM);
    }
    with_memory(|| map.advise(range, advice)).map_err(errno)
}

fn populate(call: &Call<'_>, map: &Map, range: VirtRange, access: Access) -> Result<()> {
    if !is_user(range) {
        return Err(Errno::ENOMEM);
    }
    in_pieces(call, range, |piece| {
        map.populate_for(piece, access)
            .map_err(|fault| match fault {
                Fault::Protection => Errno::EINVAL,
                Fault::NotMapped | Fault::OutOfMemory => Errno::ENOMEM,
                Fault::BeyondEnd | Fault::Io => Errno::EFAULT,
            })
    })
}

fn process_madvise(call: &mut Call<'_>) -> Result<usize> {
    call.flags(4, &NO_FLAGS)?;
    let ranges = ranges(call.address(1), call.size(2))?;
    let process = pidfd::process(call, call.int(0))?;
    let advice = call.unsigned(3);
    call.choice(3, &OTHERS)?;
    let view = pidfd::view(&process)?;
    if !Arc::ptr_eq(&process, call.process()) && !call.credentials().may(raw::CAP_SYS_NICE) {
        return Err(Errno::EPERM);
    }
    let map = view.space().map();
    let mut done = 0;
    for [base, len] in ranges {
        let given = pages(VirtAddr(base as usize), len as usize)
            .and_then(|range| advise(call, map, range, advice));
        match given {
            Ok(()) => done += len as usize,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
}

fn mincore(call: &mut Call<'_>) -> Result<usize> {
    let range = pages(call.address(0), call.size(1)).map_err(|error| {
        if call.address(0).is_page_aligned() {
            Errno::ENOMEM
        } else {
            error
        }
    })?;
    if !is_user(range) {
        return Err(Errno::ENOMEM);
    }
    let map = call.space().map().clone();
    // A piece at a time: the answer is written to the program with no lock held.
    let mut start = range.start;
    let mut to = call.address(2);
    while start < range.end {
        let mut buffer = [0u8; 256];
        let end = VirtAddr((start.0 + (buffer.len() << PAGE_SHIFT)).min(range.end.0));
        let mut count = 0;
        map.resident(VirtRange::new(start, end), &mut |resident| {
            if let Some(slot) = buffer.get_mut(count) {
                *slot = u8::from(resident);
                count += 1;
            }
        })
        .map_err(errno)?;
        user::copy_out(to, &buffer[..count])?;
        to = VirtAddr(to.0.wrapping_add(count));
        start = end;
    }
    Ok(0)
}
