//! The names of the system that `uname` shows.

use alloc::vec::Vec;

use abi::{Errno, Result};
use nucleus::sync::{Rank, SpinLock};

/// Longest host or domain name.
pub const NAME_MAX: usize = 64;
/// The Linux version whose interface this kernel follows, unless the command line gives another one
/// for programs (`release=STRING`).
static RELEASE: SpinLock<Name> = SpinLock::new(Rank::Leaf, Name::new(b"6.1.0-causeway"));
/// The text of `uname -v`.
const VERSION: &[u8] = b"#1 SMP Causeway";

/// A name that `uname` shows.
#[derive(Clone, Copy)]
pub struct Name {
    bytes: [u8; NAME_MAX],
    len: usize,
}

impl Name {
    /// The bytes, without padding.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    const fn new(text: &[u8]) -> Name {
        let mut bytes = [0; NAME_MAX];
        let mut at = 0;
        while at < text.len() {
            bytes[at] = text[at];
            at += 1;
        }
        Name {
            bytes,
            len: text.len(),
        }
    }
}

static HOST: SpinLock<Name> = SpinLock::new(Rank::Leaf, Name::new(b"causeway"));
static DOMAIN: SpinLock<Name> = SpinLock::new(Rank::Leaf, Name::new(b"(none)"));

/// The host's name.
pub fn hostname() -> Name {
    *HOST.lock()
}

/// The name of the domain.
pub fn domainname() -> Name {
    *DOMAIN.lock()
}

/// Sets the host's name.
///
/// # Errors
/// `EINVAL` if it is too long.
pub fn change_hostname(name: &[u8]) -> Result<()> {
    change_name(&HOST, name)
}

/// Sets the domain's name.
///
/// # Errors
/// `EINVAL` if it is too long.
pub fn change_domainname(name: &[u8]) -> Result<()> {
    change_name(&DOMAIN, name)
}

fn change_name(which: &SpinLock<Name>, name: &[u8]) -> Result<()> {
    let mut new = Name {
        bytes: [0; NAME_MAX],
        len: name.len(),
    };
    let to = new.bytes.get_mut(..name.len()).ok_or(Errno::EINVAL)?;
    to.copy_from_slice(name);
    *which.lock() = new;
    Ok(())
}

/// The release and version strings of `uname`.
pub fn release() -> (Vec<u8>, &'static [u8]) {
    (RELEASE.lock().as_bytes().to_vec(), VERSION)
}

/// Sets the release string, cut off at `uname`'s room.
pub fn set_release(text: &[u8]) {
    *RELEASE.lock() = Name::new(&text[..text.len().min(NAME_MAX)]);
}
