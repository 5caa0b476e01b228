//! Writes to files: how large a process may make one (`RLIMIT_FSIZE`), and whether its set-id bits
//! stay.

use abi::{Errno, Result, raw::general as raw};
use fbuf::{Clipped, Source};
use fs::{File, Kind, Location, OpenFlags};

use super::Call;
use crate::process::{
    INFINITY,
    files::OpenFile,
    signal::{self, Info},
    thread,
};

/// The current process's limit in bytes.
fn limit() -> u64 {
    thread::with_current(|thread| thread.process().limits().soft(raw::RLIMIT_FSIZE))
        .unwrap_or(INFINITY)
}

/// A file would become too large: SIGXFSZ.
fn refuse() -> Errno {
    thread::with_current(|thread| {
        // A standard signal always finds room.
        let _ = signal::send_to_thread(thread, Info::kernel(raw::SIGXFSZ));
    });
    Errno::EFBIG
}

/// Checks that the current process may set a file's size: a file beyond the limit may shrink.
///
/// # Errors
/// `EFBIG`, and SIGXFSZ is sent; those of the file's attributes.
pub(super) fn check(place: &Location, size: u64) -> Result<()> {
    if size > limit() && size > place.attributes()?.size {
        return Err(refuse());
    }
    Ok(())
}

/// Writes as [`File::write`] for the calling thread, but a regular file not beyond the limit of its
/// process. Whether set-id bits stay is judged by the writer, whoever opened the file.
///
/// # Errors
/// `EFBIG` if not even a byte is allowed, and SIGXFSZ is sent; else those of the file.
#[inline]
pub(super) fn write(
    call: &Call<'_>,
    open: &OpenFile,
    at: Option<u64>,
    mut flags: OpenFlags,
    from: &mut dyn Source,
) -> Result<usize> {
    let file = open.writable()?;
    if call.credentials().may(raw::CAP_FSETID) {
        flags |= OpenFlags::KEEPS_PRIVILEGE;
    }
    match call.process().limits().soft(raw::RLIMIT_FSIZE) {
        INFINITY => file.write(at, flags, from),
        limit => write_within(limit, file, at, flags, from),
    }
}

fn write_within(
    limit: u64,
    file: &dyn File,
    at: Option<u64>,
    flags: OpenFlags,
    from: &mut dyn Source,
) -> Result<usize> {
    if !is_regular(file) || from.left() == 0 {
        return file.write(at, flags, from);
    }
    let start = match at {
        _ if flags.has(raw::O_APPEND) => size(file)?,
        Some(at) => at,
        None => file.seek(0, raw::SEEK_CUR)?,
    };
    let room = limit.saturating_sub(start);
    if room == 0 {
        return Err(refuse());
    }
    let room = usize::try_from(room).unwrap_or(usize::MAX);
    file.write(at, flags, &mut Clipped::new(from, room))
}

fn is_regular(file: &dyn File) -> bool {
    file.location()
        .is_some_and(|place| place.vnode().kind() == Kind::Regular)
}

fn size(file: &dyn File) -> Result<u64> {
    let place = file.location().ok_or(Errno::EBADF)?;
    Ok(place.attributes()?.size)
}
