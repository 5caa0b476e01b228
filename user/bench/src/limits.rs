//! Limits of this process.

use crate::{Failure, call};

/// Lets this process open files up to this number.
///
/// # Errors
/// When the process may not raise its limit so far.
pub fn allow_files(count: u64) -> Result<(), Failure> {
    let limit = libc::rlimit {
        rlim_cur: count,
        rlim_max: count,
    };
    call!(setrlimit(libc::RLIMIT_NOFILE, &limit))?;
    Ok(())
}
