//! `/dev/fbuf`.

use abi::{Errno, Result};
use fbuf::region::{CHUNK, Domain, Mode, Path, REGION_SIZE, REGION_START, default_mode};
use fs::device::{RequestFile, register_char_device};
use nucleus::{VirtAddr, user};

use super::{Words, exchange, path::PathFile, request, words};
use crate::process::thread;

/// The major of devices that have none of their own.
pub const MAJOR: u32 = 10;
/// Free for local use on Linux.
pub const MINOR: u32 = 241;

/// The version of the interface.
const VERSION: u64 = 1;
/// The bit of a mode that asks for the kernel's default.
const BY_DEFAULT: u64 = 4;

/// Registers the device.
///
/// # Errors
/// `EBUSY` if the number is taken.
pub fn register() -> Result<()> {
    register_char_device(MAJOR, MINOR..=MINOR, |at, _, _| {
        Ok(RequestFile::new(at, answer))
    })
}

fn answer(command: u32, argument: VirtAddr) -> Result<usize> {
    match command {
        request::ENTER => exchange(argument, |_| enter()),
        request::PATH => {
            let [mode, limit, ..]: Words = user::read(argument)?;
            make_path(mode, limit)
        }
        _ => Err(Errno::ENOTTY),
    }
}

fn enter() -> Result<Words> {
    let space = thread::current_space().ok_or(Errno::ENOTTY)?;
    let owner = thread::with_current(|thread| thread.process().pid()).unwrap_or(0);
    let domain = Domain::enter(space.map(), owner, space.domain_place())?;
    Ok(words([
        VERSION,
        REGION_START.0 as u64,
        REGION_SIZE as u64,
        CHUNK as u64,
        domain.id(),
        default_mode().bits().into(),
    ]))
}

/// Makes a path of which the caller is the originator; returns its descriptor.
///
/// # Errors
/// `EPERM` before the caller has entered; `EINVAL` for an unknown mode; `EMFILE`; those of
/// [`Path::new`].
fn make_path(mode: u64, limit: u64) -> Result<usize> {
    let mode = chosen_mode(mode)?;
    let domain = super::domain().ok_or(Errno::EPERM)?;
    let limit = usize::try_from(limit).map_err(|_| Errno::EINVAL)?;
    PathFile::open(|| Path::new(&domain, mode, limit))
}

/// Returns the mode that a word of a request chooses.
///
/// # Errors
/// `EINVAL` for an unknown one.
pub fn chosen_mode(word: u64) -> Result<Mode> {
    let mode = match word {
        BY_DEFAULT => Some(default_mode()),
        mode => u32::try_from(mode).ok().and_then(Mode::from_bits),
    };
    mode.ok_or(Errno::EINVAL)
}
