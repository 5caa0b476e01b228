//! Moving bytes between files without a program's memory in between: `sendfile`, `splice`, `tee`,
//! `vmsplice`, `copy_file_range`.

use abi::{Errno, Result, raw::general as raw};
use alloc::sync::Arc;
use fbuf::{MAX_TRANSFER, Source, UserBuffers};
use fs::{Kind, OpenFlags};
use nucleus::{VirtAddr, user};

use super::{Call, FlagSet, SystemCall, call, file_size, flag_set};
use crate::{
    ipc::pipe::{End, Pipe, splice as moving},
    process::files::OpenFile,
    socket::SocketFile,
};

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_sendfile, sendfile),
    call!(__NR_copy_file_range, copy_file_range).flags(&[&COPY_FLAGS]),
    call!(__NR_splice, splice).flags(&[&FLAGS]),
    call!(__NR_tee, tee).flags(&[&FLAGS]),
    call!(__NR_vmsplice, vmsplice).flags(&[&FLAGS]),
];

/// All flags of the splice family.
const FLAGS: FlagSet = flag_set!(
    "flags",
    [
        raw::SPLICE_F_MOVE,
        raw::SPLICE_F_NONBLOCK,
        raw::SPLICE_F_MORE,
        raw::SPLICE_F_GIFT
    ],
    EINVAL
);
const COPY_FLAGS: FlagSet = flag_set!("flags", [], EINVAL);

/// An offset in the program's memory that a call reads and moves on, or the file's own position.
enum Position {
    Own,
    At { place: VirtAddr, value: u64 },
}

impl Position {
    fn read(place: VirtAddr) -> Result<Position> {
        if place.0 == 0 {
            return Ok(Position::Own);
        }
        let value: i64 = user::read(place)?;
        let value = value.cast_unsigned();
        Ok(Position::At { place, value })
    }

    /// Where to start; an own position is asked for.
    fn start(&self, open: &OpenFile) -> Result<u64> {
        match self {
            Position::Own => open.file().seek(0, raw::SEEK_CUR),
            Position::At { value, .. } => Ok(*value),
        }
    }

    /// Where `splice` starts in a file for `len` bytes, `None` in one that has no position.
    ///
    /// # Errors
    /// `EINVAL` for an offset in such a file, and as [`check_end`]; those of the file.
    fn of_splice(&self, open: &OpenFile, len: usize) -> Result<Option<u64>> {
        let own = match open.file().seek(0, raw::SEEK_CUR) {
            Ok(own) => own,
            Err(Errno::ESPIPE) if matches!(self, Position::Own) => return Ok(None),
            Err(Errno::ESPIPE) => return Err(Errno::EINVAL),
            Err(error) => return Err(error),
        };
        let start = match self {
            Position::Own => own,
            Position::At { value, .. } => *value,
        };
        check_end(start, len)?;
        Ok(Some(start))
    }

    /// `n` bytes behind `start` were moved. A position is set only if `set_own`: without an offset
    /// from the caller the file has moved its own already.
    fn advance(&self, open: &OpenFile, start: u64, n: usize, set_own: bool) -> Result<()> {
        let end = start + n as u64;
        match self {
            Position::Own if set_own => {
                open.file().seek(end as i64, raw::SEEK_SET)?;
            }
            Position::Own => {}
            Position::At { place, .. } => {
                user::write(*place, &(end as i64))?;
            }
        }
        Ok(())
    }
}

/// Checks that `len` bytes from `start` on end where a file can.
///
/// # Errors
/// `EINVAL`.
fn check_end(start: u64, len: usize) -> Result<()> {
    let end = start.checked_add(len as u64);
    let is_good = end.is_some_and(|end| i64::try_from(end).is_ok());
    is_good.then_some(()).ok_or(Errno::EINVAL)
}

fn kind(open: &OpenFile) -> Result<Kind> {
    match open.location() {
        Some(place) => Ok(place.vnode().kind()),
        None => Ok(open.file().attributes()?.kind),
    }
}

fn sendfile(call: &mut Call<'_>) -> Result<usize> {
    let to = call.files().get(call.int(0))?;
    let from = call.files().get(call.int(1))?;
    let len = call.size(3).min(MAX_TRANSFER);
    let position = Position::read(call.address(2))?;
    let (reader, writer) = (from.readable()?, to.writable()?);
    if isize::try_from(call.size(3)).is_err() || to.flags().has(raw::O_APPEND) || !writer.splices()
    {
        return Err(Errno::EINVAL);
    }
    match (kind(&from)?, &position) {
        (Kind::Regular | Kind::BlockDevice, _) => {}
        (Kind::Fifo | Kind::Socket, Position::At { .. }) => return Err(Errno::ESPIPE),
        _ => return Err(Errno::EINVAL),
    }
    let start = position.start(&from)?;
    check_end(start, call.size(3))?;
    // Only bytes that are written make packets in a pipe.
    let mut to_flags = to.flags();
    if pipe(&to).is_some() {
        to_flags.remove(OpenFlags::from_bits_retain(raw::O_DIRECT));
    }
    let write = |_, source: &mut dyn Source| file_size::write(call, &to, None, to_flags, source);
    let n = moving::file_to_file((reader, from.flags(), start), write, len)?;
    position.advance(&from, start, n, true)?;
    Ok(n)
}

fn copy_file_range(call: &mut Call<'_>) -> Result<usize> {
    let from = call.files().get(call.int(0))?;
    let to = call.files().get(call.int(2))?;
    call.flags(5, &COPY_FLAGS)?;
    let from_position = Position::read(call.address(1))?;
    let to_position = Position::read(call.address(3))?;
    let len = call.size(4).min(MAX_TRANSFER);
    for open in [&from, &to] {
        match kind(open)? {
            Kind::Regular => {}
            Kind::Directory => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
    }
    let reader = from.readable()?;
    to.writable()?;
    if to.flags().has(raw::O_APPEND) {
        return Err(Errno::EBADF);
    }
    let from_start = from_position.start(&from)?;
    let to_start = to_position.start(&to)?;
    for start in [from_start, to_start] {
        // Here alone Linux tells offsets that wrap from others that are negative.
        let end = start.checked_add(call.size(4) as u64);
        end.ok_or(Errno::EOVERFLOW)?;
        i64::try_from(start).map_err(|_| Errno::EINVAL)?;
    }
    let same = match (from.location(), to.location()) {
        (Some(a), Some(b)) => Arc::ptr_eq(a.vnode(), b.vnode()),
        _ => false,
    };
    if same && from_start < to_start + len as u64 && to_start < from_start + len as u64 {
        return Err(Errno::EINVAL);
    }
    let write = |moved, source: &mut dyn Source| {
        file_size::write(call, &to, Some(to_start + moved), to.flags(), source)
    };
    let n = moving::file_to_file((reader, from.flags(), from_start), write, len)?;
    from_position.advance(&from, from_start, n, true)?;
    to_position.advance(&to, to_start, n, true)?;
    Ok(n)
}

/// The pipe of a descriptor, if it is one.
fn pipe(open: &OpenFile) -> Option<&Arc<Pipe>> {
    open.downcast::<End>().map(End::pipe)
}

fn splice(call: &mut Call<'_>) -> Result<usize> {
    let len = call.size(4).min(MAX_TRANSFER);
    if len == 0 {
        return Ok(0);
    }
    let flags = call.flags(5, &FLAGS)?;
    let from = call.files().get(call.int(0))?;
    let to = call.files().get(call.int(2))?;
    let (from_at, to_at) = (call.address(1), call.address(3));
    let (reader, writer) = (from.readable()?, to.writable()?);
    let wait = flags & raw::SPLICE_F_NONBLOCK == 0;
    let waits = |open: &OpenFile| wait && !open.flags().has(raw::O_NONBLOCK);
    match (pipe(&from), pipe(&to)) {
        (None, None) => Err(Errno::EINVAL),
        (Some(source), Some(target)) => {
            if from_at.0 != 0 || to_at.0 != 0 {
                return Err(Errno::ESPIPE);
            }
            if Arc::ptr_eq(source, target) {
                return Err(Errno::EINVAL);
            }
            moving::pipe_to_pipe(source, target, len, waits(&from) && waits(&to))
        }
        (Some(source), None) => {
            if from_at.0 != 0 {
                return Err(Errno::ESPIPE);
            }
            if to.flags().has(raw::O_APPEND) || !writer.splices() {
                return Err(Errno::EINVAL);
            }
            let position = Position::read(to_at)?;
            let start = position.of_splice(&to, call.size(4))?;
            let at = start.filter(|_| matches!(position, Position::At { .. }));
            let write =
                |source: &mut dyn Source| file_size::write(call, &to, at, to.flags(), source);
            let n = moving::pipe_to_file(source, write, len, waits(&from));
            if let (Ok(n), Some(start)) = (&n, at) {
                position.advance(&to, start, *n, false)?;
            }
            n
        }
        (None, Some(target)) => {
            if to_at.0 != 0 {
                return Err(Errno::ESPIPE);
            }
            if !reader.splices_out() {
                return Err(Errno::EINVAL);
            }
            let position = Position::read(from_at)?;
            // A file with a position is read from an explicit one, so that bytes that the pipe does
            // not take are not lost.
            let start = position.of_splice(&from, call.size(4))?;
            // Data that arrive by themselves are not waited for either.
            let mut from_flags = from.flags();
            if !wait && SocketFile::of(&from).is_ok() {
                from_flags |= OpenFlags::from_bits_retain(raw::O_NONBLOCK);
            }
            let n = moving::file_to_pipe(reader, start, from_flags, target, len, waits(&to));
            let n = n.map_err(|error| match error {
                Errno::EISDIR => Errno::EINVAL,
                error => error,
            })?;
            if let Some(start) = start {
                position.advance(&from, start, n, true)?;
            }
            Ok(n)
        }
    }
}

fn tee(call: &mut Call<'_>) -> Result<usize> {
    let flags = call.flags(3, &FLAGS)?;
    let len = call.size(2).min(MAX_TRANSFER);
    if len == 0 {
        return Ok(0);
    }
    let from = call.files().get(call.int(0))?;
    let to = call.files().get(call.int(1))?;
    from.readable()?;
    to.writable()?;
    let source = pipe(&from).ok_or(Errno::EINVAL)?;
    let target = pipe(&to).ok_or(Errno::EINVAL)?;
    if Arc::ptr_eq(source, target) {
        return Err(Errno::EINVAL);
    }
    let wait = flags & raw::SPLICE_F_NONBLOCK == 0
        && !from.flags().has(raw::O_NONBLOCK)
        && !to.flags().has(raw::O_NONBLOCK);
    moving::tee(source, target, len, wait)
}

/// The program's pages are lent to the pipe, or copied: later changes of its memory do not show,
/// and a gift is not needed.
fn vmsplice(call: &mut Call<'_>) -> Result<usize> {
    let flags = call.flags(3, &FLAGS)?;
    let open = call.files().get(call.int(0))?;
    let pipe = pipe(&open).ok_or(Errno::EBADF)?;
    let (array, count) = (call.address(1), call.size(2));
    // Unlike the other calls it does not heed `O_NONBLOCK`.
    let wait = flags & raw::SPLICE_F_NONBLOCK == 0;
    if open.flags().writes() {
        let mut from = UserBuffers::vector(array, count)?;
        pipe.write_what_fits(wait, &mut from)
    } else {
        let mut to = UserBuffers::vector(array, count)?;
        pipe.read(wait, &mut to)
    }
}
