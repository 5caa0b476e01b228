//! The flags and options that calls know. Others are counted ([`crate::unsupported`]).

use abi::{Errno, Result};

use crate::unsupported::{Caller, note_unsupported};

/// How a call treats a flag or option that it does not know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Otherwise {
    /// The call fails, as on Linux.
    Error(Errno),
    /// The flag is counted and has no effect, as Linux ignores unknown flags of that call.
    Ignored,
}

/// Whether values are bits that are combined, or one of several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// Any combination of the known ones.
    Bits,
    /// One of the known ones.
    Choice,
}

/// The values of one argument that a call knows. Made by `flag_set!` and `choice!`.
#[derive(Debug)]
pub struct FlagSet {
    /// The argument's name in Linux's manual.
    pub argument: &'static str,
    /// The known values and their names as written in the source, perhaps with a path.
    pub known: &'static [(&'static str, u64)],
    /// All bits of the known values.
    pub mask: u64,
    /// Combined or alone.
    pub shape: Shape,
    /// The treatment of unknown values.
    pub otherwise: Otherwise,
}

impl FlagSet {
    /// The part of `value` that is not known; 0 if all is.
    pub fn unknown(&self, value: u64) -> u64 {
        match self.shape {
            Shape::Bits => value & !self.mask,
            Shape::Choice if self.known.iter().any(|(_, known)| *known == value) => 0,
            Shape::Choice => value,
        }
    }

    /// Returns the known part of `value`; counts the unknown part, under the names of call and
    /// argument.
    ///
    /// # Errors
    /// The set's own for unknown values.
    pub fn check(&self, call: Caller<'_>, value: u64) -> Result<u64> {
        let known = match self.shape {
            Shape::Bits => value & !self.mask == 0,
            Shape::Choice => self.known.iter().any(|(_, known)| *known == value),
        };
        if known {
            return Ok(value);
        }
        note_unsupported(call, self.argument, self.unknown(value));
        match self.otherwise {
            Otherwise::Error(error) => Err(error),
            Otherwise::Ignored => Ok(value & self.mask),
        }
    }
}

/// Makes a [`FlagSet`] of bits: `flag_set!("flags", [O_CLOEXEC, O_NONBLOCK], EINVAL)`. In the place
/// of an error, `ignored` says that the call's documentation lets unknown bits pass.
macro_rules! flag_set {
    ($argument:literal, [$($flag:expr),* $(,)?], $otherwise:ident) => {
        $crate::flags::FlagSet {
            argument: $argument,
            known: &[$((stringify!($flag), $flag as u64)),*],
            mask: 0 $(| $flag as u64)*,
            shape: $crate::flags::Shape::Bits,
            otherwise: $crate::flags::otherwise!($otherwise),
        }
    };
}

/// Makes a [`FlagSet`] of values of which one is given: `choice!("cmd", [F_DUPFD, F_GETFD],
/// EINVAL)`.
macro_rules! choice {
    ($argument:literal, [$($value:expr),* $(,)?], $otherwise:ident) => {
        $crate::flags::FlagSet {
            argument: $argument,
            known: &[$((stringify!($value), $value as u64)),*],
            mask: 0,
            shape: $crate::flags::Shape::Choice,
            otherwise: $crate::flags::otherwise!($otherwise),
        }
    };
}

macro_rules! otherwise {
    (ignored) => {
        $crate::flags::Otherwise::Ignored
    };
    ($error:ident) => {
        $crate::flags::Otherwise::Error(abi::Errno::$error)
    };
}

pub(crate) use {choice, flag_set, otherwise};

/// The flags of a call that has none yet.
pub const NO_FLAGS: FlagSet = flag_set!("flags", [], EINVAL);
