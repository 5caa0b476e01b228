//! The reason why a row has no number.

use std::{fmt, io};

/// The reason why a row has no number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The kernel lacks a feature that the row needs; the text names it.
    Missing(String),
    /// Something went wrong.
    Error(String),
    /// Standard output is closed, or standard input, which paces the bench, has ended: the only
    /// failure that ends the program.
    Output(String),
}

impl Failure {
    /// Makes a failure of `errno` and the name of the failed call.
    pub fn last(what: &str) -> Self {
        Self::of(what, &io::Error::last_os_error())
    }

    /// Makes a failure of an error and the name of its origin: `ENOSYS` means that it is missing.
    pub fn of(what: &str, error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ENOSYS) => Self::Missing("ENOSYS".into()),
            _ => Self::Error(format!("{what}: {error}")),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(text) | Self::Error(text) | Self::Output(text) => f.write_str(text),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::of("input or output", &error)
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Self::Error(text)
    }
}

impl From<&str> for Failure {
    fn from(text: &str) -> Self {
        Self::Error(text.into())
    }
}

/// Calls a function of the C library; the result `-1`, or a pointer of that value, becomes the
/// [`Failure`] of `errno`.
///
/// `call!(read(fd, at, len))?` returns the count of bytes; `call!(syscall(SYS_gettid))?` makes any
/// system call.
#[macro_export]
macro_rules! call {
    ($name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: the experiment passes what the call asks for: memory that lives, descriptors of
        // its own.
        #[allow(unused_unsafe, clippy::macro_metavars_in_unsafe)]
        let result = unsafe { libc::$name($($argument),*) };
        if result as i64 == -1 {
            Err($crate::Failure::last(stringify!($name)))
        } else {
            Ok(result)
        }
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_unknown_call_is_missing() {
        assert_eq!(
            call!(syscall(100_000)),
            Err(Failure::Missing("ENOSYS".into()))
        );
        let refused = call!(close(-1));
        assert!(
            matches!(&refused, Err(Failure::Error(text)) if text.starts_with("close: ")),
            "{refused:?}"
        );
    }
}
