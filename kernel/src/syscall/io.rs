//! Reading, writing and seeking.

use abi::{
    Errno, Result,
    raw::general::{
        __NR_fdatasync, __NR_fsync, __NR_ioctl, __NR_lseek, __NR_pread64, __NR_preadv,
        __NR_preadv2, __NR_pwrite64, __NR_pwritev, __NR_pwritev2, __NR_read, __NR_readv, __NR_sync,
        __NR_sync_file_range, __NR_syncfs, __NR_write, __NR_writev, FASYNC, O_APPEND, O_NONBLOCK,
        RWF_APPEND, RWF_DSYNC, RWF_HIPRI, RWF_NOWAIT, RWF_SYNC,
    },
    raw::ioctl::{FIOASYNC, FIOCLEX, FIONBIO, FIONCLEX, FIONREAD},
};
use fbuf::{Sink, Source, UserSink, UserSource};
use fs::{Kind, OpenFlags};
use nucleus::{VirtAddr, user};

use super::{Call, Entry, file_size};
use crate::{
    files::OpenFile,
    mounts, pipe,
    socket::{SocketFile, inet::interface},
};

/// The calls of this module.
pub const CALLS: &[Entry] = &[
    Entry::new(__NR_read, "read", read),
    Entry::new(__NR_write, "write", write),
    Entry::new(__NR_pread64, "pread64", pread),
    Entry::new(__NR_pwrite64, "pwrite64", pwrite),
    Entry::new(__NR_readv, "readv", readv),
    Entry::new(__NR_writev, "writev", writev),
    Entry::new(__NR_preadv, "preadv", preadv),
    Entry::new(__NR_pwritev, "pwritev", pwritev),
    Entry::new(__NR_preadv2, "preadv2", preadv2),
    Entry::new(__NR_pwritev2, "pwritev2", pwritev2),
    Entry::new(__NR_lseek, "lseek", lseek),
    Entry::new(__NR_ioctl, "ioctl", ioctl),
    Entry::new(__NR_fsync, "fsync", fsync),
    Entry::new(__NR_fdatasync, "fdatasync", fsync),
    Entry::new(__NR_syncfs, "syncfs", fsync),
    Entry::new(__NR_sync_file_range, "sync_file_range", sync_range),
    Entry::new(__NR_sync, "sync", sync),
];

/// Offsets beyond this are negative to a program.
const LARGEST_OFFSET: u64 = i64::MAX as u64;

fn read_from(open: &OpenFile, at: Option<u64>, extra: u32, to: &mut dyn Sink) -> Result<usize> {
    let flags = OpenFlags::from_bits_retain(open.flags().bits() | extra);
    open.readable()?.read(at, flags, to)
}

fn write_to(open: &OpenFile, at: Option<u64>, extra: u32, from: &mut dyn Source) -> Result<usize> {
    let flags = OpenFlags::from_bits_retain(open.flags().bits() | extra);
    let result = file_size::write(open, at, flags, from);
    signal_broken_pipe(&result);
    result
}

/// A write to what nobody reads sends SIGPIPE too.
pub fn signal_broken_pipe(result: &Result<usize>) {
    if matches!(result, Err(Errno::EPIPE)) {
        pipe::broken_pipe();
    }
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

pub(super) fn read(call: &mut Call<'_>) -> Result<usize> {
    let open = call.files().get(call.int(0))?;
    let mut to = UserSink::new(call.address(1), check_size(call.size(2))?)?;
    read_from(&open, None, 0, &mut to)
}

pub(super) fn write(call: &mut Call<'_>) -> Result<usize> {
    let open = call.files().get(call.int(0))?;
    let mut from = UserSource::new(call.address(1), check_size(call.size(2))?)?;
    write_to(&open, None, 0, &mut from)
}

fn pread(call: &mut Call<'_>) -> Result<usize> {
    let at = offset(call.args[3])?;
    let open = call.files().get(call.int(0))?;
    let mut to = UserSink::new(call.address(1), check_size(call.size(2))?)?;
    read_from(&open, Some(at), 0, &mut to)
}

fn pwrite(call: &mut Call<'_>) -> Result<usize> {
    let at = offset(call.args[3])?;
    let open = call.files().get(call.int(0))?;
    let mut from = UserSource::new(call.address(1), check_size(call.size(2))?)?;
    write_to(&open, Some(at), 0, &mut from)
}

fn readv(call: &mut Call<'_>) -> Result<usize> {
    let open = call.files().get(call.int(0))?;
    let mut to = UserSink::vector(call.address(1), call.size(2))?;
    read_from(&open, None, 0, &mut to)
}

fn writev(call: &mut Call<'_>) -> Result<usize> {
    let open = call.files().get(call.int(0))?;
    let mut from = UserSource::vector(call.address(1), call.size(2))?;
    write_to(&open, None, 0, &mut from)
}

fn preadv(call: &mut Call<'_>) -> Result<usize> {
    let at = offset(call.args[3])?;
    let open = call.files().get(call.int(0))?;
    let mut to = UserSink::vector(call.address(1), call.size(2))?;
    read_from(&open, Some(at), 0, &mut to)
}

fn pwritev(call: &mut Call<'_>) -> Result<usize> {
    let at = offset(call.args[3])?;
    let open = call.files().get(call.int(0))?;
    let mut from = UserSource::vector(call.address(1), call.size(2))?;
    write_to(&open, Some(at), 0, &mut from)
}

/// The position of `preadv2` and `pwritev2`: -1 is the file's own.
fn optional_offset(argument: u64) -> Result<Option<u64>> {
    if argument == u64::MAX {
        return Ok(None);
    }
    offset(argument).map(Some)
}

/// The flags of one transfer as flags of the file.
fn transfer_flags(flags: u32, known: u32) -> Result<u32> {
    if flags & !known != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
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
    let extra = transfer_flags(call.unsigned(5), RWF_HIPRI | RWF_NOWAIT)?;
    let open = call.files().get(call.int(0))?;
    let mut to = UserSink::vector(call.address(1), call.size(2))?;
    read_from(&open, at, extra, &mut to)
}

fn pwritev2(call: &mut Call<'_>) -> Result<usize> {
    let at = optional_offset(call.args[3])?;
    let known = RWF_HIPRI | RWF_NOWAIT | RWF_APPEND | RWF_SYNC | RWF_DSYNC;
    let extra = transfer_flags(call.unsigned(5), known)?;
    let open = call.files().get(call.int(0))?;
    let mut from = UserSource::vector(call.address(1), call.size(2))?;
    write_to(&open, at, extra, &mut from)
}

pub(super) fn lseek(call: &mut Call<'_>) -> Result<usize> {
    let open = call.files().get(call.int(0))?;
    if open.is_path() {
        return Err(Errno::EBADF);
    }
    let position = open.file().seek(call.args[1] as i64, call.unsigned(2))?;
    Ok(position as usize)
}

fn ioctl(call: &mut Call<'_>) -> Result<usize> {
    let (fd, command, argument) = (call.int(0), call.unsigned(1), call.address(2));
    let open = call.files().get(fd)?;
    if open.is_path() {
        return Err(Errno::EBADF);
    }
    let flag = |at: VirtAddr| user::read::<i32>(at).map_err(|_| Errno::EFAULT);
    match command {
        FIOCLEX | FIONCLEX => call.files().set_close_on_exec(fd, command == FIOCLEX)?,
        FIONBIO => open.set_flag(O_NONBLOCK, flag(argument)? != 0),
        FIOASYNC => open.set_flag(FASYNC, flag(argument)? != 0),
        _ => {
            let result = open.file().ioctl(command, argument);
            if result != Err(Errno::ENOTTY) {
                return result;
            }
            if command == FIONREAD {
                return bytes_left(&open, argument);
            }
            // Any socket answers questions about interfaces.
            SocketFile::of(&open).map_err(|_| Errno::ENOTTY)?;
            return interface::ioctl(command, argument, call.own.compatible_call);
        }
    }
    Ok(0)
}

/// `FIONREAD` of a regular file: bytes from the position to the end.
fn bytes_left(open: &OpenFile, argument: VirtAddr) -> Result<usize> {
    let attributes = open.location().ok_or(Errno::ENOTTY)?.attributes()?;
    if attributes.kind != Kind::Regular {
        return Err(Errno::ENOTTY);
    }
    let position = open.file().seek(0, abi::raw::general::SEEK_CUR)?;
    let left = attributes.size.saturating_sub(position) as i32;
    user::write(argument, &left).map_err(|_| Errno::EFAULT)?;
    Ok(0)
}

pub(super) fn fsync(call: &mut Call<'_>) -> Result<usize> {
    let open = call.files().get(call.int(0))?;
    if open.is_path() {
        return Err(Errno::EBADF);
    }
    let place = open.location().ok_or(Errno::EINVAL)?;
    match place.vnode().kind() {
        _ if call.number == __NR_syncfs => place.mount().root().sync()?,
        Kind::Regular | Kind::Directory | Kind::BlockDevice => place.vnode().sync()?,
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}

fn sync_range(call: &mut Call<'_>) -> Result<usize> {
    let (from, len) = (call.args[1] as i64, call.args[2] as i64);
    if from < 0 || len < 0 || from.checked_add(len).is_none() || call.unsigned(3) & !7 != 0 {
        return Err(Errno::EINVAL);
    }
    let open = call.files().get(call.int(0))?;
    let place = open.location().ok_or(Errno::ESPIPE)?;
    match place.vnode().kind() {
        Kind::Regular | Kind::Directory | Kind::BlockDevice | Kind::Link => {
            place.vnode().sync()?;
            Ok(0)
        }
        _ => Err(Errno::ESPIPE),
    }
}

pub(super) fn sync(call: &mut Call<'_>) -> Result<usize> {
    let _ = call;
    for mount in mounts::namespace().all() {
        // The call has no way to say that one of them failed.
        let _ = mount.root().sync();
    }
    Ok(0)
}
