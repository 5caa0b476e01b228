//! `signalfd`: signals that are read rather than delivered.

use alloc::{format, sync::Arc, vec::Vec};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use abi::{Errno, Result, raw::general::O_NONBLOCK};
use fbuf::Sink;
use fs::{File, OpenFlags, Ready};
use nucleus::task::Watch;

use crate::process::{
    Thread,
    signal::{self, Fields, Info, SignalSet},
    thread,
};

/// Bytes of a `struct signalfd_siginfo`.
const UNIT: usize = 128;

/// A file that gives its reader the signals of a set that are pending for the reading thread or its
/// process.
pub struct SignalFile {
    set: AtomicU64,
}

impl SignalFile {
    pub fn new(set: SignalSet) -> Arc<SignalFile> {
        let file = SignalFile {
            set: AtomicU64::new(0),
        };
        file.store(set);
        Arc::new(file)
    }

    fn set(&self) -> SignalSet {
        SignalSet(self.set.load(Relaxed))
    }

    fn store(&self, set: SignalSet) {
        let set = set.without(SignalSet::UNSTOPPABLE);
        self.set.store(set.0, Relaxed);
    }

    /// Gives signals of `set` from now on. `thread` is the caller's, whose process looks again.
    pub fn set_set(&self, set: SignalSet, thread: &Thread) {
        self.store(set);
        thread.process().signals.arrivals.wake_shared(false);
    }

    fn read_by(&self, thread: &Thread, wait: bool, to: &mut dyn Sink) -> Result<usize> {
        let take = || thread.take_pending(self.set());
        let mut total = 0;
        while to.room() >= UNIT {
            let arrivals = &thread.process().signals.arrivals;
            let info = match take() {
                Some(info) => info,
                None if total > 0 => break,
                None => signal::take_or_wait(arrivals, wait, take)?,
            };
            match to.put_bytes(&encode(&info)) {
                Ok(n) => total += n,
                Err(error) => return fbuf::moved(total, Err(error)),
            }
        }
        Ok(total)
    }
}

/// The bytes of `struct signalfd_siginfo`.
fn encode(info: &Info) -> [u8; UNIT] {
    let mut bytes = [0; UNIT];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    let word = u32::to_ne_bytes;
    let long = u64::to_ne_bytes;
    put(0, &word(info.signal));
    put(4, &info.errno.to_ne_bytes());
    put(8, &info.code.to_ne_bytes());
    match info.fields {
        Fields::None => {}
        Fields::User { pid, uid } => {
            put(12, &word(pid));
            put(16, &word(uid));
        }
        Fields::Value { pid, uid, value } => {
            put(12, &word(pid));
            put(16, &word(uid));
            put(44, &word(value as u32));
            put(48, &long(value));
        }
        Fields::Timer { id, overrun, value } => {
            put(24, &id.to_ne_bytes());
            put(32, &overrun.to_ne_bytes());
            put(44, &word(value as u32));
            put(48, &long(value));
        }
        Fields::Child {
            pid,
            uid,
            status,
            user,
            system,
        } => {
            put(12, &word(pid));
            put(16, &word(uid));
            put(40, &status.to_ne_bytes());
            put(56, &long(user));
            put(64, &long(system));
        }
        Fields::Fault { address } => put(72, &long(address)),
        Fields::SystemCall {
            address,
            number,
            architecture,
        } => {
            put(84, &word(number));
            put(88, &long(address));
            put(96, &word(architecture));
        }
        Fields::Poll { band, fd } => {
            put(20, &fd.to_ne_bytes());
            put(28, &word(band));
        }
    }
    bytes
}

impl File for SignalFile {
    fn splices(&self) -> bool {
        false
    }

    fn read(&self, _: Option<u64>, flags: OpenFlags, to: &mut dyn Sink) -> Result<usize> {
        if to.room() < UNIT {
            return Err(Errno::EINVAL);
        }
        let wait = !flags.has(O_NONBLOCK);
        thread::with_current(|thread| self.read_by(thread, wait, to)).unwrap_or(Err(Errno::EINVAL))
    }

    fn seek(&self, _: i64, _: u32) -> Result<u64> {
        Ok(0)
    }

    fn poll<'a>(&'a self, watch: Option<&mut dyn Watch<'a>>) -> Ready {
        let any = thread::with_current(|thread| {
            let signals = &thread.process().signals;
            if let Some(watch) = watch {
                watch.add_shared(&signals.arrivals);
            }
            let pending = signals.pending().union(thread.pending_signals());
            !pending.and(self.set()).is_empty()
        });
        Ready::of(any == Some(true), false)
    }

    fn describe(&self) -> Vec<u8> {
        b"anon_inode:[signalfd]".to_vec()
    }

    fn details(&self, out: &mut dyn FnMut(&[u8])) {
        out(format!("sigmask:\t{:016x}\n", self.set().0).as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_is_that_of_linux() {
        let fields = Fields::Child {
            pid: 3,
            uid: 4,
            status: 5,
            user: 6,
            system: 7,
        };
        let child = Info {
            errno: 2,
            ..Info::new(17, 1, fields)
        };
        let bytes = encode(&child);
        let word = |at: usize| bytes[at];
        assert_eq!(
            [0, 4, 8, 12, 16, 40, 56, 64].map(word),
            [17, 2, 1, 3, 4, 5, 6, 7]
        );
        assert_eq!(bytes.iter().filter(|byte| **byte != 0).count(), 8);
    }
}
