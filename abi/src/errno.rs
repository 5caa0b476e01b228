//! An error number as Linux defines it.

use alloc::collections::TryReserveError;

use linux_raw_sys::errno as raw;
use nucleus::{
    OutOfMemory,
    user::{BadAddress, NoString},
};

/// Why a system call, or an operation on its behalf, failed. Programs see its negative.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(u16);

/// The result of an operation whose failure a program may see.
pub type Result<T> = core::result::Result<T, Errno>;

macro_rules! errnos {
    ($($name:ident,)*) => {
        impl Errno {
            $(
                #[doc = concat!("`", stringify!($name), "`")]
                pub const $name: Errno = Errno(raw::$name as u16);
            )*

            /// The symbolic name, such as `ENOENT`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Errno::$name => stringify!($name),)*
                    _ => "E?",
                }
            }
        }
    };
}

impl Errno {
    /// The positive number, 1 to 4095.
    pub const fn number(self) -> u16 {
        self.0
    }

    /// The value a system call returns for this error.
    pub const fn as_return(self) -> isize {
        -(self.0 as isize)
    }

    /// Fails with this error unless a condition holds.
    pub fn unless(self, holds: bool) -> Result<()> {
        if holds { Ok(()) } else { Err(self) }
    }

    /// An error number that never reaches a program: the kernel restarts the call or turns the
    /// number into `EINTR` (Linux keeps the same numbers, 512 to 516, for this).
    pub const fn internal(number: u16) -> Errno {
        Errno(number)
    }
}

impl From<OutOfMemory> for Errno {
    fn from(_: OutOfMemory) -> Errno {
        Errno::ENOMEM
    }
}

impl From<TryReserveError> for Errno {
    fn from(_: TryReserveError) -> Errno {
        Errno::ENOMEM
    }
}

impl From<BadAddress> for Errno {
    fn from(_: BadAddress) -> Errno {
        Errno::EFAULT
    }
}

impl From<NoString> for Errno {
    fn from(why: NoString) -> Errno {
        match why {
            NoString::BadAddress => Errno::EFAULT,
            NoString::OutOfMemory => Errno::ENOMEM,
        }
    }
}

impl core::fmt::Debug for Errno {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

errnos! {
    EPERM,
    ENOENT,
    ESRCH,
    EINTR,
    EIO,
    ENXIO,
    E2BIG,
    ENOEXEC,
    EBADF,
    ECHILD,
    EAGAIN,
    ENOMEM,
    EACCES,
    EFAULT,
    ENOTBLK,
    EBUSY,
    EEXIST,
    EXDEV,
    ENODEV,
    ENOTDIR,
    EISDIR,
    EINVAL,
    ENFILE,
    EMFILE,
    ENOTTY,
    ETXTBSY,
    EFBIG,
    ENOSPC,
    ESPIPE,
    EROFS,
    EMLINK,
    EPIPE,
    EDOM,
    ERANGE,
    EDEADLK,
    ENAMETOOLONG,
    ENOLCK,
    ENOSYS,
    ENOTEMPTY,
    ELOOP,
    ENOMSG,
    EIDRM,
    ECHRNG,
    EL2NSYNC,
    EL3HLT,
    EL3RST,
    ELNRNG,
    EUNATCH,
    ENOCSI,
    EL2HLT,
    EBADE,
    EBADR,
    EXFULL,
    ENOANO,
    EBADRQC,
    EBADSLT,
    EBFONT,
    ENOSTR,
    ENODATA,
    ETIME,
    ENOSR,
    ENONET,
    ENOPKG,
    EREMOTE,
    ENOLINK,
    EADV,
    ESRMNT,
    ECOMM,
    EPROTO,
    EMULTIHOP,
    EDOTDOT,
    EBADMSG,
    EOVERFLOW,
    ENOTUNIQ,
    EBADFD,
    EREMCHG,
    ELIBACC,
    ELIBBAD,
    ELIBSCN,
    ELIBMAX,
    ELIBEXEC,
    EILSEQ,
    ERESTART,
    ESTRPIPE,
    EUSERS,
    ENOTSOCK,
    EDESTADDRREQ,
    EMSGSIZE,
    EPROTOTYPE,
    ENOPROTOOPT,
    EPROTONOSUPPORT,
    ESOCKTNOSUPPORT,
    EOPNOTSUPP,
    EPFNOSUPPORT,
    EAFNOSUPPORT,
    EADDRINUSE,
    EADDRNOTAVAIL,
    ENETDOWN,
    ENETUNREACH,
    ENETRESET,
    ECONNABORTED,
    ECONNRESET,
    ENOBUFS,
    EISCONN,
    ENOTCONN,
    ESHUTDOWN,
    ETOOMANYREFS,
    ETIMEDOUT,
    ECONNREFUSED,
    EHOSTDOWN,
    EHOSTUNREACH,
    EALREADY,
    EINPROGRESS,
    ESTALE,
    EUCLEAN,
    ENOTNAM,
    ENAVAIL,
    EISNAM,
    EREMOTEIO,
    EDQUOT,
    ENOMEDIUM,
    EMEDIUMTYPE,
    ECANCELED,
    ENOKEY,
    EKEYEXPIRED,
    EKEYREVOKED,
    EKEYREJECTED,
    EOWNERDEAD,
    ENOTRECOVERABLE,
    ERFKILL,
    EHWPOISON,
}
