//! Advice on the use of files, and writeback: `posix_fadvise`, `readahead`, `fsync` and related
//! calls. Handles to files, which no file system here supports.

use abi::{Errno, Result, raw::general as raw};
use core::ops::Range;

use fs::{Kind, page_cache::Access};
use nucleus::PAGE_SIZE;

use super::{Call, FlagSet, SystemCall, call, choice, flag_set, path};
use crate::{mounts, process::files::OpenFile};

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_fsync, |call| sync_file(call, false)),
    call!(__NR_fdatasync, |call| sync_file(call, true)),
    call!(__NR_syncfs, syncfs),
    call!(__NR_sync_file_range, sync_range).flags(&[&RANGE_FLAGS]),
    call!(__NR_sync, sync),
    call!(__NR_fadvise64, fadvise).flags(&[&ADVICE]).note(
        "for files on disks, and for all who have the file open; files in memory have nothing \
             to read ahead",
    ),
    call!(__NR_readahead, readahead).note("files in memory have nothing to read ahead"),
    call!(__NR_name_to_handle_at, name_to_handle_at)
        .flags(&[&HANDLE_FLAGS])
        .note("no file system gives handles: EOPNOTSUPP(95)"),
    call!(__NR_open_by_handle_at, open_by_handle_at).note("there are no handles: ESTALE(116)"),
];

const RANGE_FLAGS: FlagSet = flag_set!(
    "flags",
    [
        raw::SYNC_FILE_RANGE_WAIT_BEFORE,
        raw::SYNC_FILE_RANGE_WRITE,
        raw::SYNC_FILE_RANGE_WAIT_AFTER
    ],
    EINVAL
);
const ADVICE: FlagSet = choice!(
    "advice",
    [
        raw::POSIX_FADV_NORMAL,
        raw::POSIX_FADV_RANDOM,
        raw::POSIX_FADV_SEQUENTIAL,
        raw::POSIX_FADV_WILLNEED,
        raw::POSIX_FADV_DONTNEED,
        raw::POSIX_FADV_NOREUSE
    ],
    EINVAL
);
const HANDLE_FLAGS: FlagSet = flag_set!(
    "flags",
    [raw::AT_SYMLINK_FOLLOW, raw::AT_EMPTY_PATH],
    EINVAL
);

/// The vnode of an open file; files without a name have none.
fn kind(open: &OpenFile) -> Option<Kind> {
    open.location().map(|place| place.vnode().kind())
}

fn sync_file(call: &mut Call<'_>, data_only: bool) -> Result<usize> {
    let open = call.opened(0)?;
    open.file().sync(data_only)?;
    Ok(0)
}

fn syncfs(call: &mut Call<'_>) -> Result<usize> {
    let open = call.opened(0)?;
    if let Some(place) = open.location() {
        place.mount().root().sync(false)?;
    }
    Ok(0)
}

fn sync_range(call: &mut Call<'_>) -> Result<usize> {
    call.flags(3, &RANGE_FLAGS)?;
    let (from, len) = (call.args[1] as i64, call.args[2] as i64);
    if from < 0 || len < 0 || from.checked_add(len).is_none() {
        return Err(Errno::EINVAL);
    }
    let open = call.opened(0)?;
    let place = open.location().ok_or(Errno::ESPIPE)?;
    match place.vnode().kind() {
        Kind::Regular | Kind::Directory | Kind::BlockDevice | Kind::Link => {}
        _ => return Err(Errno::ESPIPE),
    }
    let Some(file) = open.file().cached() else {
        // No range of it is known to be dirty: all of it is brought to where it belongs.
        place.vnode().sync(false)?;
        return Ok(0);
    };
    let flags = call.unsigned(3);
    let range = pages(from as u64, len as u64);
    let waits = raw::SYNC_FILE_RANGE_WAIT_BEFORE | raw::SYNC_FILE_RANGE_WAIT_AFTER;
    if flags & raw::SYNC_FILE_RANGE_WAIT_BEFORE != 0 {
        file.wait_written(range.clone());
    }
    if flags & raw::SYNC_FILE_RANGE_WRITE != 0 {
        // All three together are a promise for all that is dirty now.
        file.write_out(range.clone(), flags & waits == waits)?;
    }
    if flags & raw::SYNC_FILE_RANGE_WAIT_AFTER != 0 {
        file.wait_written(range);
    }
    if flags & waits != 0 {
        open.file().check_written()?;
    }
    Ok(0)
}

/// The pages that have bytes of `len` from `from` on; all from there on if `len` is 0.
fn pages(from: u64, len: u64) -> Range<u64> {
    let page = PAGE_SIZE as u64;
    let end = match len {
        0 => u64::MAX,
        len => from.saturating_add(len).div_ceil(page),
    };
    from / page..end
}

fn sync(_: &mut Call<'_>) -> Result<usize> {
    for root in mounts::namespace().roots() {
        // It never fails: errors of writeback are not reported here.
        let _ = root.sync(false);
    }
    fs::device::sync_all();
    Ok(0)
}

fn fadvise(call: &mut Call<'_>) -> Result<usize> {
    let open = call.opened(0)?;
    match kind(&open) {
        Some(Kind::Fifo) => return Err(Errno::ESPIPE),
        None if open.downcast::<crate::ipc::pipe::End>().is_some() => return Err(Errno::ESPIPE),
        None => return Err(Errno::EINVAL),
        Some(_) => {}
    }
    if (call.args[2] as i64) < 0 {
        return Err(Errno::EINVAL);
    }
    call.choice(3, &ADVICE)?;
    let Some(file) = open.file().cached() else {
        return Ok(0);
    };
    let (from, len) = (call.args[1], call.args[2]);
    match call.unsigned(3) {
        raw::POSIX_FADV_SEQUENTIAL => file.set_access(Access::Sequential),
        raw::POSIX_FADV_RANDOM => file.set_access(Access::Random),
        raw::POSIX_FADV_NOREUSE => file.set_access(Access::Once),
        raw::POSIX_FADV_WILLNEED => file.prefetch(pages(from, len)),
        raw::POSIX_FADV_DONTNEED => {
            file.write_out(pages(from, len), false)?;
            // Pages of which the range has a part only may be wanted by others; the last one of the
            // file is none of these.
            let first = from.div_ceil(PAGE_SIZE as u64);
            let end = match from.saturating_add(len) {
                end if len == 0 || end >= file.size() => u64::MAX,
                end => end / PAGE_SIZE as u64,
            };
            file.give_up(first..end.max(first), usize::MAX);
        }
        _ => file.set_access(Access::Normal),
    }
    Ok(0)
}

fn readahead(call: &mut Call<'_>) -> Result<usize> {
    let open = call.files().get(call.int(0))?;
    open.readable()?;
    match kind(&open) {
        Some(Kind::Regular | Kind::BlockDevice) => {}
        _ => return Err(Errno::EINVAL),
    }
    if let Some(file) = open.file().cached()
        && call.size(2) > 0
    {
        file.prefetch(pages(call.args[1], call.args[2]));
    }
    Ok(0)
}

fn name_to_handle_at(call: &mut Call<'_>) -> Result<usize> {
    let flags = call.flags(4, &HANDLE_FLAGS)?;
    let mut how = flags & raw::AT_EMPTY_PATH;
    if flags & raw::AT_SYMLINK_FOLLOW == 0 {
        how |= raw::AT_SYMLINK_NOFOLLOW;
    }
    path::target(call, call.int(0), call.address(1), how)?;
    call.note_refused();
    Err(Errno::EOPNOTSUPP)
}

fn open_by_handle_at(call: &mut Call<'_>) -> Result<usize> {
    call.require(raw::CAP_DAC_READ_SEARCH)?;
    Err(Errno::ESTALE)
}
