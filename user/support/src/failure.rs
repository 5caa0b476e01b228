//! Why a test failed, and the macros that make it fail.

use std::any::Any;
use std::fmt::{self, Debug, Write};
use std::io;
use std::panic::Location;

use libc::c_int;

/// Why a test failed, in words for its report.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure(String);

/// A result whose error is a [`Failure`] unless another one is named.
pub type Result<T = (), E = Failure> = std::result::Result<T, E>;

/// The result of a test.
pub type Outcome = Result;

/// A test and its name.
pub type Test = (&'static str, fn() -> Outcome);

/// The start of the failure of a test that cannot run on this machine.
const SKIP: &str = "skip: ";

/// Returns the failure of a test that cannot run on this machine.
pub fn skip(why: impl fmt::Display) -> Failure {
    Failure(format!("{SKIP}{why}"))
}

/// Returns the error number of the last failed call.
pub fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

impl Failure {
    /// Returns why the test was skipped, if it was.
    pub fn skipped(&self) -> Option<&str> {
        self.0.strip_prefix(SKIP)
    }

    /// Describes the call of the C library that has just failed.
    pub fn of_call(name: &str, line: u32) -> Failure {
        Failure(format!(
            "{name} (line {line}): {}",
            io::Error::last_os_error()
        ))
    }

    /// Describes a condition that does not hold, with the values that it depends on.
    pub fn of_condition(condition: &str, line: u32, values: &[(&str, &dyn Debug)]) -> Failure {
        let mut text = format!("{condition} (line {line}) does not hold");
        for (name, value) in values {
            let _ = write!(text, "; {name}: {value:?}");
        }
        Failure(text)
    }

    /// Describes a value that differs from the wanted one, and the values that say in which case.
    pub fn of_difference(
        condition: (&str, u32),
        (found, wanted): (&dyn Debug, &dyn Debug),
        values: &[(&str, &dyn Debug)],
    ) -> Failure {
        let (name, line) = condition;
        let mut text = format!("{name} (line {line}) is {found:?}, {wanted:?} expected");
        for (name, value) in values {
            let _ = write!(text, "; {name}: {value:?}");
        }
        Failure(text)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Failure(text)
    }
}

impl From<&str> for Failure {
    fn from(text: &str) -> Self {
        Failure(text.into())
    }
}

/// Describes an error by its text and the line of the `?` that returned it.
macro_rules! from_errors {
    ($($error:ty),* $(,)?) => {$(
        impl From<$error> for Failure {
            #[track_caller]
            fn from(error: $error) -> Self {
                let place = Location::caller();
                Failure(format!("{}, line {}: {error}", place.file(), place.line()))
            }
        }
    )*};
}

from_errors!(
    io::Error,
    std::ffi::NulError,
    std::num::ParseIntError,
    std::num::TryFromIntError,
    std::str::Utf8Error,
    std::string::FromUtf8Error,
    std::sync::mpsc::RecvError,
    std::sync::mpsc::RecvTimeoutError,
    std::time::SystemTimeError,
);

impl From<c_int> for Failure {
    #[track_caller]
    fn from(error: c_int) -> Self {
        io::Error::from_raw_os_error(error).into()
    }
}

impl From<Box<dyn Any + Send>> for Failure {
    fn from(_: Box<dyn Any + Send>) -> Self {
        "a thread panicked".into()
    }
}

/// Fails the test unless the condition holds. A format string says why; without one, the report has
/// the condition's text and the values that follow it.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $message:literal $($rest:tt)*) => {
        if !$condition {
            return Err($crate::failure::Failure::from(format!($message $($rest)*)));
        }
    };
    ($condition:expr $(, $value:expr)* $(,)?) => {
        if !$condition {
            return Err($crate::failure::Failure::of_condition(
                stringify!($condition), line!(), &[$((stringify!($value), &$value)),*]
            ));
        }
    };
}

/// Fails the test unless the first value equals the second; the report has both, and the values
/// that follow them.
#[macro_export]
macro_rules! equal {
    ($found:expr, $wanted:expr $(, $value:expr)* $(,)?) => {
        match (&$found, &$wanted) {
            (found, wanted) => {
                if *found != *wanted {
                    return Err($crate::failure::Failure::of_difference(
                        (stringify!($found), line!()), (&found, &wanted),
                        &[$((stringify!($value), &$value)),*]
                    ));
                }
            }
        }
    };
}

/// Returns the result of a call of the C library; fails the test if that is -1.
#[macro_export]
macro_rules! call {
    ($name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: the test passes what the call asks for, or means the kernel to refuse it.
        #[allow(unused_unsafe, clippy::macro_metavars_in_unsafe)]
        let result = unsafe { libc::$name($($argument),*) };
        if result as i64 == -1 {
            return Err($crate::failure::Failure::of_call(stringify!($name), line!()));
        }
        result
    }};
}

/// Fails the test unless each call of the C library fails with its error number: one call as
/// `refused!(ERROR, call(..))`, or a table with a line `call(..) => ERROR;` for each.
#[macro_export]
macro_rules! refused {
    ($error:ident, $name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: the test means the kernel to refuse what it passes.
        #[allow(unused_unsafe, clippy::macro_metavars_in_unsafe)]
        let result = unsafe { libc::$name($($argument),*) };
        let error = $crate::failure::errno();
        $crate::ensure!(
            result as i64 == -1,
            "{}{} (line {}) succeeded with {:?}, {} expected",
            stringify!($name), stringify!(($($argument),*)), line!(), result, stringify!($error)
        );
        $crate::ensure!(
            error == libc::$error,
            "{}{} (line {}) failed with {error}, {} ({}) expected",
            stringify!($name), stringify!(($($argument),*)), line!(), stringify!($error),
            libc::$error
        );
    }};
    ($($name:ident($($argument:expr),* $(,)?) => $error:ident;)+) => {
        $($crate::refused!($error, $name($($argument),*));)+
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(outcome: Outcome) -> String {
        outcome.err().map_or("ok".into(), |why| why.to_string())
    }

    #[test]
    fn failures_name_the_values() {
        let (found, case) = (3, "a case");
        let differ = || -> Outcome {
            equal!(found, 4, case);
            Ok(())
        };
        let why = text(differ());
        assert!(
            why.starts_with("found (line ") && why.ends_with("is 3, 4 expected; case: \"a case\"")
        );
        let hold = || -> Outcome {
            ensure!(found > 4, case);
            Ok(())
        };
        assert!(text(hold()).ends_with("does not hold; case: \"a case\""));
        let say = || -> Outcome {
            ensure!(found > 4, "only {found}");
            Ok(())
        };
        assert_eq!(text(say()), "only 3");
    }

    #[test]
    fn calls_must_fail_as_said() {
        let closes = || -> Outcome {
            refused! {
                close(-1) => EBADF;
                dup(-1) => EBADF;
            }
            Ok(())
        };
        assert_eq!(text(closes()), "ok");
        let wrong = || -> Outcome {
            refused!(EINVAL, close(-1));
            Ok(())
        };
        assert!(text(wrong()).contains("failed with 9, EINVAL (22) expected"));
        let right = || -> Outcome {
            refused!(EINVAL, getpid());
            Ok(())
        };
        assert!(text(right()).contains("succeeded"));
    }

    #[test]
    fn errors_tell_their_place() {
        let open = || -> Outcome {
            std::fs::read("/none")?;
            Ok(())
        };
        assert!(text(open()).contains("failure.rs, line"));
        assert_eq!(skip("one CPU").skipped(), Some("one CPU"));
    }
}
