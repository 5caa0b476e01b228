//! `RLIMIT_FSIZE`: how large a process may make a file.

use abi::{Errno, Result, raw::general as raw};
use fbuf::{Slice, Source};
use fs::{File, Kind, OpenFlags};
use nucleus::Frame;

use crate::process::{
    INFINITY, Limits,
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

/// Whether the current process may set a file's size.
///
/// # Errors
/// `EFBIG`, and SIGXFSZ is sent.
pub(super) fn check(size: u64) -> Result<()> {
    if size > limit() {
        Err(refuse())
    } else {
        Ok(())
    }
}

/// Writes as [`File::write`], but a regular file not beyond the limit of the writing process.
///
/// # Errors
/// `EFBIG` if not even a byte is allowed, and SIGXFSZ is sent; else those of the file.
pub(super) fn write(
    limits: &Limits,
    open: &OpenFile,
    at: Option<u64>,
    flags: OpenFlags,
    from: &mut dyn Source,
) -> Result<usize> {
    let file = open.writable()?;
    let limit = limits.soft(raw::RLIMIT_FSIZE);
    if limit == INFINITY || !is_regular(file) || from.left() == 0 {
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
    let mut clipped = Clipped {
        left: from.left().min(usize::try_from(room).unwrap_or(usize::MAX)),
        from,
    };
    file.write(at, flags, &mut clipped)
}

fn is_regular(file: &dyn File) -> bool {
    file.location()
        .is_some_and(|place| place.vnode().kind() == Kind::Regular)
}

fn size(file: &dyn File) -> Result<u64> {
    let place = file.location().ok_or(Errno::EBADF)?;
    Ok(place.attributes()?.size)
}

/// The first bytes of another source.
struct Clipped<'a> {
    from: &'a mut dyn Source,
    left: usize,
}

impl Source for Clipped<'_> {
    fn left(&self) -> usize {
        self.left
    }

    fn take_into(&mut self, frame: &Frame, offset: usize, len: usize) -> Result<usize> {
        let n = self.from.take_into(frame, offset, len.min(self.left))?;
        self.left -= n;
        Ok(n)
    }

    fn take_bytes(&mut self, to: &mut [u8]) -> Result<usize> {
        let len = to.len().min(self.left);
        let n = self.from.take_bytes(&mut to[..len])?;
        self.left -= n;
        Ok(n)
    }

    fn slices(&self, bytes: usize, most: usize) -> usize {
        self.from.slices(bytes.min(self.left), most)
    }

    fn take_slice(&mut self, max: usize) -> Option<Slice> {
        let slice = self.from.take_slice(max.min(self.left))?;
        self.left -= slice.len;
        Some(slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fbuf::BytesSource;

    #[test]
    fn no_more_than_the_first_bytes_are_taken() {
        let mut from = BytesSource { from: b"abcdef" };
        let mut clipped = Clipped {
            from: &mut from,
            left: 4,
        };
        let mut to = [0; 3];
        assert_eq!(clipped.take_bytes(&mut to), Ok(3));
        assert_eq!(clipped.take_bytes(&mut to), Ok(1));
        assert_eq!(clipped.left(), 0);
        assert_eq!(clipped.take_bytes(&mut to), Ok(0));
        assert_eq!(from.left(), 2);
    }
}
