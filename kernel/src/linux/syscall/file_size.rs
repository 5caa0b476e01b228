//! Changes of files: how large a process may make one (`RLIMIT_FSIZE`), and whether its set-id bits
//! stay.

use abi::{Result, raw::general as raw};
use fbuf::Source;
use fs::{OpenFlags, vnode::SizeLimit};

use super::Call;
use crate::process::{
    INFINITY,
    files::OpenFile,
    signal::{self, Info},
};

/// Changes the size of a file by `change`, which obeys the limit of the calling process; SIGXFSZ
/// is sent if that refused something.
///
/// # Errors
/// Those of `change`: `EFBIG` beyond the limit.
pub(super) fn within<T>(
    call: &Call<'_>,
    change: impl FnOnce(&SizeLimit) -> Result<T>,
) -> Result<T> {
    let limit = SizeLimit::new(call.process().limits().soft(raw::RLIMIT_FSIZE));
    let result = change(&limit);
    if limit.has_refused() {
        // A standard signal always finds room.
        let _ = signal::send_to_thread(call.thread, Info::kernel(raw::SIGXFSZ));
    }
    result
}

/// Writes as [`File::write`](fs::File::write) for the calling thread, but a regular file not beyond
/// the limit of its process. Whether set-id bits stay is judged by the writer's credentials, not by
/// those of the thread that opened the file.
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
        _ => within(call, |limit| file.write_within(limit, at, flags, from)),
    }
}
