//! Reading, writing and seeking.

use abi::{
    Errno, Result,
    raw::general::{O_APPEND, O_NONBLOCK, RWF_APPEND, RWF_DSYNC, RWF_HIPRI, RWF_NOWAIT, RWF_SYNC},
    raw::ioctl::{
        FICLONE, FICLONERANGE, FIDEDUPERANGE, FIGETBSZ, FIOASYNC, FIOCLEX, FIOGETOWN, FIONBIO,
        FIONCLEX, FIONREAD, FIOSETOWN, SIOCGPGRP, SIOCSPGRP,
    },
};
use fbuf::{Sink, Source, UserBuffers};
use fs::{Kind, OpenFlags};
use nucleus::{VirtAddr, user};

use super::{
    Call, FlagSet, SystemCall, call, fcntl, file_size, flag_set, note_unsupported,
    option_names::is_known_request,
};
use crate::{
    process::files::OpenFile,
    socket::{SocketFile, inet},
};

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_read, |call| read(call, None)),
    call!(__NR_write, |call| write(call, None)),
    call!(__NR_pread64, |call| read(call, Some(offset(call.args[3])?))),
    call!(__NR_pwrite64, |call| {
        write(call, Some(offset(call.args[3])?))
    }),
    call!(__NR_readv, |call| readv(call, None)),
    call!(__NR_writev, |call| writev(call, None)),
    call!(__NR_preadv, |call| readv(call, Some(offset(call.args[3])?))),
    call!(__NR_pwritev, |call| {
        writev(call, Some(offset(call.args[3])?))
    }),
    call!(__NR_preadv2, preadv2).flags(&[&TRANSFER_FLAGS]),
    call!(__NR_pwritev2, pwritev2).flags(&[&TRANSFER_FLAGS]),
    call!(__NR_lseek, lseek),
    call!(__NR_ioctl, ioctl),
];

const TRANSFER_FLAGS: FlagSet = flag_set!(
    "flags",
    [RWF_HIPRI, RWF_DSYNC, RWF_SYNC, RWF_NOWAIT, RWF_APPEND],
    EOPNOTSUPP
);

/// Offsets beyond this are negative to a program.
const LARGEST_OFFSET: u64 = i64::MAX as u64;

fn read_from(
    call: &Call<'_>,
    open: &OpenFile,
    at: Option<u64>,
    extra: u32,
    to: &mut dyn Sink,
) -> Result<usize> {
    let flags = OpenFlags::from_bits_retain(open.flags().bits() | extra);
    let result = open.readable()?.read(at, flags, to);
    call.thread.io.count_read(&result);
    result
}

fn write_to(
    call: &Call<'_>,
    open: &OpenFile,
    at: Option<u64>,
    extra: u32,
    from: &mut dyn Source,
) -> Result<usize> {
    let flags = OpenFlags::from_bits_retain(open.flags().bits() | extra);
    let result = file_size::write(call, open, at, flags, from);
    call.thread.io.count_write(&result);
    result
}

/// `EINVAL` for a number of bytes that is negative to a program.
fn check_size(size: usize) -> Result<usize> {
    isize::try_from(size).map_err(|_| Errno::EINVAL)?;
    Ok(size)
}

/// An offset in an argument.
fn offset(argument: u64) -> Result<u64> {
    if argument > LARGEST_OFFSET {
        return Err(Errno::EINVAL);
    }
    Ok(argument)
}

// Always inlined: a call of its own would cost the fast path of `read` and `write`.
#[inline(always)]
fn read(call: &Call<'_>, at: Option<u64>) -> Result<usize> {
    let open = call.files().get(call.int(0))?;
    let mut to = UserBuffers::new(call.address(1), check_size(call.size(2))?)?;
    read_from(call, &open, at, 0, &mut to)
}

#[inline(always)]
fn write(call: &Call<'_>, at: Option<u64>) -> Result<usize> {
    let open = call.files().get(call.int(0))?;
    let mut from = UserBuffers::new(call.address(1), check_size(call.size(2))?)?;
    write_to(call, &open, at, 0, &mut from)
}

#[inline]
fn readv(call: &Call<'_>, at: Option<u64>) -> Result<usize> {
    let open = call.files().get(call.int(0))?;
    let mut to = UserBuffers::vector(call.address(1), call.size(2))?;
    read_from(call, &open, at, 0, &mut to)
}

#[inline]
fn writev(call: &Call<'_>, at: Option<u64>) -> Result<usize> {
    let open = call.files().get(call.int(0))?;
    let mut from = UserBuffers::vector(call.address(1), call.size(2))?;
    write_to(call, &open, at, 0, &mut from)
}

/// The position of `preadv2` and `pwritev2`: -1 is the file's own.
fn optional_offset(argument: u64) -> Result<Option<u64>> {
    if argument == u64::MAX {
        return Ok(None);
    }
    offset(argument).map(Some)
}

/// The flags of one transfer as flags of the file. Files in memory are never to be polled for
/// (`RWF_HIPRI`), and always in step with their store (`RWF_SYNC`).
fn transfer_flags(call: &Call<'_>) -> Result<u32> {
    let flags = call.flags(5, &TRANSFER_FLAGS)?;
    let mut extra = 0;
    if flags & RWF_NOWAIT != 0 {
        extra |= O_NONBLOCK;
    }
    if flags & RWF_APPEND != 0 {
        extra |= O_APPEND;
    }
    Ok(extra)
}

fn preadv2(call: &mut Call<'_>) -> Result<usize> {
    let at = optional_offset(call.args[3])?;
    let open = call.files().get(call.int(0))?;
    let extra = transfer_flags(call)?;
    let mut to = UserBuffers::vector(call.address(1), call.size(2))?;
    read_from(call, &open, at, extra, &mut to)
}

fn pwritev2(call: &mut Call<'_>) -> Result<usize> {
    let at = optional_offset(call.args[3])?;
    let open = call.files().get(call.int(0))?;
    let extra = transfer_flags(call)?;
    let mut from = UserBuffers::vector(call.address(1), call.size(2))?;
    let written = write_to(call, &open, at, extra, &mut from)?;
    let flags = call.unsigned(5);
    if flags & (RWF_SYNC | RWF_DSYNC) != 0
        && let Some(place) = open.location()
    {
        match open.file().cached() {
            Some(_) => open.file().sync(flags & RWF_SYNC == 0)?,
            None => place.vnode().sync(false)?,
        }
    }
    Ok(written)
}

fn lseek(call: &mut Call<'_>) -> Result<usize> {
    let open = call.opened(0)?;
    let position = open.file().seek(call.args[1] as i64, call.unsigned(2))?;
    Ok(position as usize)
}

fn ioctl(call: &mut Call<'_>) -> Result<usize> {
    let request = call.unsigned(1);
    let result = control(call);
    if matches!(result, Err(Errno::ENOTTY | Errno::EOPNOTSUPP)) && !is_known_request(request) {
        note_unsupported(call.caller(), "request", request.into());
    }
    result
}

fn control(call: &mut Call<'_>) -> Result<usize> {
    let (fd, command, argument) = (call.int(0), call.unsigned(1), call.address(2));
    let open = call.files().get(fd)?;
    if open.is_path() {
        return Err(Errno::EBADF);
    }
    let flag = |at: VirtAddr| user::read::<i32>(at);
    match command {
        FIOCLEX | FIONCLEX => call.files().set_close_on_exec(fd, command == FIOCLEX)?,
        FIONBIO => open.set_flag(O_NONBLOCK, flag(argument)? != 0),
        FIOASYNC => {
            let on = flag(argument)? != 0;
            if !fcntl::set_asynchronous(call, &open, fd, on)? {
                return Err(Errno::ENOTTY);
            }
        }
        FIOSETOWN | SIOCSPGRP if SocketFile::of(&open).is_ok() => {
            fcntl::set_owner(call, &open, flag(argument)?)?;
        }
        FIOGETOWN | SIOCGPGRP if SocketFile::of(&open).is_ok() => {
            user::write(argument, &fcntl::owner(&open))?;
        }
        _ => match open.file().control(open.flags(), command, argument) {
            // Any socket answers questions about interfaces.
            Err(Errno::ENOTTY) if SocketFile::of(&open).is_ok() => {
                return inet::ioctl::ioctl(command, argument, call.own.compatible_call);
            }
            Err(Errno::ENOTTY) => return of_any_file(&open, command, argument),
            result => return result,
        },
    }
    Ok(0)
}

/// The `ioctl`s that files without any of their own know.
fn of_any_file(open: &OpenFile, command: u32, argument: VirtAddr) -> Result<usize> {
    let attributes = open.location().ok_or(Errno::ENOTTY)?.attributes()?;
    let regular = attributes.kind == Kind::Regular;
    let value = match command {
        // Bytes from the position to the end.
        FIONREAD if regular => {
            let position = open.file().seek(0, abi::raw::general::SEEK_CUR)?;
            attributes.size.saturating_sub(position) as i32
        }
        FIGETBSZ if regular || attributes.kind == Kind::Directory => attributes.block_size as i32,
        // Pages are shared only among their mappings.
        FICLONE | FICLONERANGE | FIDEDUPERANGE if regular => return Err(Errno::EOPNOTSUPP),
        _ => return Err(Errno::ENOTTY),
    };
    user::write(argument, &value)?;
    Ok(0)
}
