//! The region: one range of addresses in every process, and how it is read.
//!
//! All of it may be read at any time once a process has entered: where there is no chunk, it holds
//! zeros, and zeros are the empty node. What is read may change while it is read, so that it is
//! read by volatile words, or copied by the C library's `memcpy`, into values of the reader's own.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::process;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::memfd;
use crate::raw::{self, error, request};

/// The region's first address.
pub const REGION_START: usize = 0x6000_0000_0000;
/// Bytes of the region.
pub const REGION_SIZE: usize = 64 << 30;
/// Bytes of a chunk, the unit in which the kernel hands out the region.
pub const CHUNK: usize = 2 << 20;
/// Most bytes of a run of chunks, and of a leaf.
pub(crate) const LONGEST: usize = 32 * CHUNK;
/// Bytes of a page.
pub const PAGE: usize = 4096;

/// What provides the region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backend {
    /// The kernel, by `/dev/fbuf`.
    Device,
    /// Files in memory (`memfd_create`), on any Linux: the same interface without what only a
    /// kernel can do (messages through the kernel, secured and uncached paths).
    Memfd,
}

/// A process that has entered the region. A child of `fork` has not: it calls
/// [`enter`](Domain::enter) itself. Of the values of this crate that its parent made, it uses only
/// the descriptors of paths. Dropping paths, members and fbufs ends nothing; channels and received
/// messages are not dropped in the child, where their rings are not mapped.
#[derive(Clone, Debug)]
pub struct Domain {
    pub(crate) provider: Provider,
}

#[derive(Clone, Debug)]
pub(crate) enum Provider {
    Device(Arc<OwnedFd>),
    Memfd,
}

/// The process that has entered, and by which backend.
static ENTERED: Mutex<Option<(u32, Backend)>> = Mutex::new(None);

/// Locks what no panic leaves half done.
pub(crate) fn lock<T>(it: &Mutex<T>) -> MutexGuard<'_, T> {
    it.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Domain {
    /// Enters the region. A process may enter more than once, by the same backend.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] where there is no such device; `EEXIST` when the program has
    /// something else at these addresses, or has entered by the other backend.
    pub fn enter(backend: Backend) -> io::Result<Domain> {
        let mut entered = lock(&ENTERED);
        let here = entered.filter(|it| it.0 == process::id());
        if here.is_some_and(|it| it.1 != backend) {
            return Err(error(libc::EEXIST));
        }
        let provider = match backend {
            Backend::Device => {
                let device: OwnedFd = File::open("/dev/fbuf")?.into();
                let mut words = [0; 8];
                raw::ask(device.as_fd(), request::ENTER, &mut words)?;
                let expected = [1, REGION_START, REGION_SIZE, CHUNK].map(|it| it as u64);
                if words[..4] != expected {
                    // A later version, which this crate does not know.
                    return Err(error(libc::EPROTO));
                }
                Provider::Device(Arc::new(device))
            }
            Backend::Memfd => {
                if here.is_none() {
                    memfd::start();
                    empty(REGION_START..REGION_START + REGION_SIZE, 0)?;
                }
                Provider::Memfd
            }
        };
        *entered = Some((process::id(), backend));
        Ok(Domain { provider })
    }

    /// Enters by the device if there is one, else by memfds.
    ///
    /// # Errors
    /// Those of [`enter`](Domain::enter).
    pub fn enter_any() -> io::Result<Domain> {
        match Domain::enter(Backend::Device) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => Domain::enter(Backend::Memfd),
            result => result,
        }
    }

    /// Returns what provides the region.
    pub fn backend(&self) -> Backend {
        match self.provider {
            Provider::Device(_) => Backend::Device,
            Provider::Memfd => Backend::Memfd,
        }
    }
}

/// Maps zeros that can only be read, which children do not inherit. With `MAP_FIXED` in `flags`
/// they replace what is there.
pub(crate) fn empty(range: Range<usize>, flags: i32) -> io::Result<()> {
    let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let len = range.len();
    // SAFETY: the region's readers take whatever is there.
    unsafe { raw::map(range.start, len, libc::PROT_READ, flags, None)? };
    without_children(range)
}

/// Keeps a part of the region from being inherited.
pub(crate) fn without_children(range: Range<usize>) -> io::Result<()> {
    let at = ptr::with_exposed_provenance_mut(range.start);
    // SAFETY: changes nothing in this process.
    raw::checked(unsafe { libc::madvise(at, range.len(), libc::MADV_DONTFORK) }).map(drop)
}

/// Bytes in the region that may change while they are read; they lie within it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bytes {
    start: usize,
    len: usize,
}

impl Bytes {
    /// Returns `len` bytes at an address that a peer wrote; `None` unless all are in the region.
    pub(crate) fn new(start: u64, len: u64) -> Option<Bytes> {
        let start = usize::try_from(start).ok()?;
        let len = usize::try_from(len).ok()?;
        let end = start.checked_add(len)?;
        let is_inside =
            len <= LONGEST && start >= REGION_START && end <= REGION_START + REGION_SIZE;
        is_inside.then_some(Bytes { start, len })
    }

    pub(crate) fn start(self) -> usize {
        self.start
    }

    pub(crate) fn len(self) -> usize {
        self.len
    }

    pub(crate) fn address(self) -> *const u8 {
        ptr::with_exposed_provenance(self.start)
    }

    /// Returns whether all of them have these addresses.
    pub(crate) fn is_within(self, range: &Range<usize>) -> bool {
        range.start <= self.start && self.start + self.len <= range.end
    }

    /// Returns the part that starts at `from` and has at most `len` bytes.
    pub(crate) fn part(self, from: usize, len: usize) -> Bytes {
        let from = from.min(self.len);
        Bytes {
            start: self.start + from,
            len: len.min(self.len - from),
        }
    }

    /// Returns these bytes and the others, if those follow directly.
    pub(crate) fn and(self, after: Bytes) -> Option<Bytes> {
        let is_next = self.start + self.len == after.start;
        Bytes::new(self.start as u64, (self.len + after.len) as u64).filter(|_| is_next)
    }

    /// Copies the first bytes, as many as both sides have; returns how many.
    pub(crate) fn copy_to(self, to: &mut [u8]) -> usize {
        let len = self.len.min(to.len());
        // SAFETY: the region may be read anywhere; a process that has `Bytes` has entered. What
        // another process writes meanwhile is copied as it is found.
        unsafe { libc::memcpy(to.as_mut_ptr().cast(), self.address().cast(), len) };
        len
    }

    /// Returns the place of the first `byte`.
    pub(crate) fn find(self, byte: u8) -> Option<usize> {
        // SAFETY: as above.
        let found = unsafe { libc::memchr(self.address().cast(), byte.into(), self.len) };
        (!found.is_null()).then(|| (found.addr() - self.start).min(self.len.saturating_sub(1)))
    }

    /// Reads the first words, each once and anew. `None` if they are not all inside, or not
    /// aligned.
    pub(crate) fn words<const N: usize>(self) -> Option<[u64; N]> {
        let is_inside = 8 * N <= self.len && self.start % 8 == 0;
        is_inside.then(|| {
            std::array::from_fn(|index| {
                let at = ptr::with_exposed_provenance::<u64>(self.start + 8 * index);
                // SAFETY: as above, and aligned.
                unsafe { at.read_volatile() }
            })
        })
    }

    /// Reads one word at an offset; each call reads it anew. `None` if it is not all inside, or not
    /// aligned.
    pub(crate) fn word(self, offset: usize) -> Option<u64> {
        let is_inside = offset.checked_add(8)? <= self.len;
        let at = self.start + offset;
        // SAFETY: as above, and aligned.
        (is_inside && at % 8 == 0)
            .then(|| unsafe { ptr::with_exposed_provenance::<u64>(at).read_volatile() })
    }
}
