//! random, urandom.

use alloc::sync::Arc;

use abi::{
    Errno, Result,
    raw::general::{CAP_SYS_ADMIN, O_NONBLOCK, SEEK_CUR, SEEK_END, SEEK_SET},
};
use fbuf::{Sink, Source};
use fs::{File, Location, OpenFlags, Ready};
use nucleus::{
    VirtAddr, random,
    task::{Sleep, Watch},
    user,
};

use crate::process::{signal, thread};

/// Minors.
pub const RANDOM: u32 = 8;
pub const URANDOM: u32 = 9;

/// `ioctl`s.
mod request {
    /// Gives the bits of entropy in the pool.
    pub const GET_COUNT: u32 = 0x8004_5200;
    /// Takes bits that the pool is to have more.
    pub const ADD_TO_COUNT: u32 = 0x4004_5201;
    /// Takes a count of bits, a length and bytes.
    pub const ADD: u32 = 0x4008_5203;
    /// Empty the pool, which has no meaning any more.
    pub const ZAP: u32 = 0x5204;
    pub const CLEAR: u32 = 0x5206;
    /// Makes a new key.
    pub const RESEED: u32 = 0x5207;
}

/// Bytes that are copied at a time.
const PIECE: usize = 256;

struct Random {
    minor: u32,
    location: Location,
}

/// Opens the device with this minor, [`RANDOM`] or [`URANDOM`].
pub fn open(at: &Location, minor: u32) -> Arc<dyn File> {
    Arc::new(Random {
        minor,
        location: at.clone(),
    })
}

impl File for Random {
    fn read(&self, _: Option<u64>, flags: OpenFlags, to: &mut dyn Sink) -> Result<usize> {
        if self.minor == RANDOM && !random::is_seeded() && to.room() > 0 {
            if flags.has(O_NONBLOCK) {
                return Err(Errno::EAGAIN);
            }
            random::wait_until_seeded(Sleep::INTERRUPTIBLE).map_err(signal::woken)?;
        }
        let mut piece = [0; PIECE];
        let result = copy(to, &mut piece);
        random::erase(&mut piece);
        result
    }

    /// Mixes the bytes into the pool. They count as nothing: the writer may know them.
    fn write(&self, _: Option<u64>, _: OpenFlags, from: &mut dyn Source) -> Result<usize> {
        let mut piece = [0; PIECE];
        let mut total = 0;
        while from.left() > 0 && !vm::is_dying() {
            match from.take_bytes(&mut piece) {
                Ok(0) => break,
                Ok(n) => {
                    random::mix(&piece[..n]);
                    total += n;
                }
                Err(error) => return fbuf::moved(total, Err(error)),
            }
            if total >= PIECE && has_signal() {
                break;
            }
        }
        random::erase(&mut piece);
        Ok(total)
    }

    fn seek(&self, _: i64, whence: u32) -> Result<u64> {
        match whence {
            SEEK_SET | SEEK_CUR | SEEK_END => Ok(0),
            _ => Err(Errno::EINVAL),
        }
    }

    fn has_readiness(&self) -> bool {
        self.minor == RANDOM
    }

    fn poll<'a>(&'a self, watch: Option<&mut dyn Watch<'a>>) -> Ready {
        if self.minor == RANDOM
            && let Some(watch) = watch
        {
            watch.add(random::seeded());
        }
        Ready::of(self.minor != RANDOM || random::is_seeded(), true)
    }

    fn ioctl(&self, command: u32, argument: VirtAddr) -> Result<usize> {
        let for_root = || match thread::with_current(|thread| {
            thread
                .credentials()
                .is_some_and(|who| who.may(CAP_SYS_ADMIN))
        }) {
            Some(true) => Ok(()),
            _ => Err(Errno::EPERM),
        };
        match command {
            request::GET_COUNT => user::write(argument, &random::entropy())?,
            request::ADD_TO_COUNT => {
                for_root()?;
                let bits = user::read::<i32>(argument)?;
                random::add(&[], u32::try_from(bits).map_err(|_| Errno::EINVAL)?);
            }
            request::ADD => {
                for_root()?;
                add(argument)?;
            }
            request::ZAP | request::CLEAR => for_root()?,
            request::RESEED => {
                for_root()?;
                if !random::is_seeded() {
                    return Err(Errno::ENODATA);
                }
                random::reseed();
            }
            _ => return Err(Errno::ENOTTY),
        }
        Ok(0)
    }

    fn location(&self) -> Option<&Location> {
        Some(&self.location)
    }
}

/// Gives random bytes, fewer than wanted if a signal comes.
fn copy(to: &mut dyn Sink, piece: &mut [u8; PIECE]) -> Result<usize> {
    let mut total = 0;
    while to.room() > 0 {
        let n = to.room().min(piece.len());
        random::fill(&mut piece[..n]);
        match to.put_bytes(&piece[..n]) {
            Ok(0) => break,
            Ok(n) => total += n,
            Err(error) => return fbuf::moved(total, Err(error)),
        }
        if total >= PIECE && has_signal() {
            break;
        }
    }
    Ok(total)
}

/// Tells whether the calling program has a signal to handle, so that a long copy ends early.
fn has_signal() -> bool {
    thread::with_current(|thread| thread.signals.needs_attention()).unwrap_or(false)
}

/// Adds the bytes of `struct rand_pool_info` with the entropy that it says they have.
fn add(at: VirtAddr) -> Result<()> {
    let [bits, length]: [i32; 2] = user::read(at)?;
    let bits = u32::try_from(bits).map_err(|_| Errno::EINVAL)?;
    let length = usize::try_from(length).map_err(|_| Errno::EINVAL)?;
    let mut bytes = [0; PIECE];
    let mut done = 0;
    while done < length && !(done > 0 && has_signal()) {
        let count = (length - done).min(PIECE);
        let piece = &mut bytes[..count];
        user::copy_in(piece, VirtAddr(at.0.wrapping_add(8 + done)))?;
        random::mix(piece);
        done += count;
    }
    random::erase(&mut bytes);
    random::add(&[], bits.min(u32::try_from(8 * done).unwrap_or(u32::MAX)));
    Ok(())
}
