//! The details of a signal (`siginfo_t`).

use abi::raw::general as raw;

use crate::process::Pid;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// 1 to 64.
    pub signal: u32,
    /// `SI_*`, `SEGV_*`, `CLD_*` ...
    pub code: i32,
    /// `si_errno`; 0 but for what `rt_sigqueueinfo` passes on.
    pub errno: i32,
    /// The fields that belong to the code.
    pub fields: Fields,
}

/// The fields of `siginfo_t` that depend on the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fields {
    /// Nothing known.
    None,
    /// Sent by a process.
    User { pid: Pid, uid: u32 },
    /// Sent with a value.
    Value { pid: Pid, uid: u32, value: u64 },
    /// A POSIX timer expired.
    Timer { id: i32, overrun: i32, value: u64 },
    /// A child changed its state; times in clock ticks.
    Child {
        pid: Pid,
        uid: u32,
        status: i32,
        user: u64,
        system: u64,
    },
    /// An access or an instruction at this address.
    Fault { address: u64 },
    /// A system call that a filter caught (`SYS_SECCOMP`): where, which, and by which entry.
    SystemCall {
        address: u64,
        number: u32,
        architecture: u32,
    },
    /// A file became ready (`SIGIO`): `POLL*` bits, and the descriptor by which its owner knows it.
    Poll { band: u32, fd: i32 },
}

impl Info {
    /// With the fields that belong to `code`.
    pub const fn new(signal: u32, code: i32, fields: Fields) -> Info {
        Info {
            signal,
            code,
            errno: 0,
            fields,
        }
    }

    /// Sent by the kernel itself.
    pub const fn kernel(signal: u32) -> Info {
        Info::new(signal, raw::SI_KERNEL as i32, Fields::None)
    }

    /// Sent by a process with `kill`.
    pub const fn user(signal: u32, pid: Pid, uid: u32) -> Info {
        Info::new(signal, raw::SI_USER as i32, Fields::User { pid, uid })
    }

    /// Caused by an access or an instruction.
    pub const fn fault(signal: u32, code: u32, address: u64) -> Info {
        Info::new(signal, code as i32, Fields::Fault { address })
    }

    /// The bytes of `siginfo_t` as 8-byte words.
    pub fn encode(&self) -> [u64; 16] {
        let pair = |low: u32, high: u32| low as u64 | (high as u64) << 32;
        let mut words = [0; 16];
        words[0] = pair(self.signal, self.errno as u32);
        words[1] = self.code as u32 as u64;
        match self.fields {
            Fields::None => {}
            Fields::User { pid, uid } => words[2] = pair(pid, uid),
            Fields::Value { pid, uid, value } => {
                words[2] = pair(pid, uid);
                words[3] = value;
            }
            Fields::Timer { id, overrun, value } => {
                words[2] = pair(id as u32, overrun as u32);
                words[3] = value;
            }
            Fields::Child {
                pid,
                uid,
                status,
                user,
                system,
            } => {
                words[2] = pair(pid, uid);
                words[3] = status as u32 as u64;
                words[4] = user;
                words[5] = system;
            }
            Fields::Fault { address } => words[2] = address,
            Fields::SystemCall {
                address,
                number,
                architecture,
            } => {
                words[2] = address;
                words[3] = pair(number, architecture);
            }
            Fields::Poll { band, fd } => {
                words[2] = u64::from(band);
                words[3] = fd as u32 as u64;
            }
        }
        words
    }

    /// Decodes the argument of `rt_sigqueueinfo` for `signal`.
    pub fn decode(signal: u32, words: &[u64; 16]) -> Info {
        Info {
            signal,
            code: words[1] as i32,
            errno: (words[0] >> 32) as i32,
            fields: Fields::Value {
                pid: words[2] as u32,
                uid: (words[2] >> 32) as u32,
                value: words[3],
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_is_that_of_linux() {
        let words = Info::fault(raw::SIGSEGV, raw::SEGV_ACCERR, 0x1234).encode();
        assert_eq!(words[0], 11);
        assert_eq!(words[1], 2);
        assert_eq!(words[2], 0x1234);
        let (pid, uid, value) = (5, 6, 8);
        let queued = Info {
            errno: 7,
            ..Info::new(34, raw::SI_QUEUE, Fields::Value { pid, uid, value })
        };
        assert_eq!(Info::decode(34, &queued.encode()), queued);
    }
}
