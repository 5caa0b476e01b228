//! The memory of a path in its originator, which divides it into fbufs.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::process;
use std::ptr;
use std::slice;
use std::sync::{Arc, Mutex, Weak};

use crate::allocator::{Allocator, Runs};
use crate::memfd::{self, Chunks};
use crate::nodes::HeaderPages;
use crate::raw::{self, error, request};
use crate::region::{CHUNK, Domain, LONGEST, PAGE, Provider, lock};

/// How a path's fbufs are mapped and protected.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Mode {
    /// Pages are mapped in receivers when they are sent and unmapped when they are freed. Cached
    /// paths map a chunk once, in all.
    pub is_uncached: bool,
    /// Sending takes the originator's right to write until all receivers have freed the message.
    /// On volatile paths the originator may write at any time.
    pub is_secured: bool,
}

impl Mode {
    /// Cached and volatile: the fastest, and the only mode that needs no kernel.
    pub const CACHED_VOLATILE: Mode = Mode {
        is_uncached: false,
        is_secured: false,
    };

    const UNCACHED: u64 = 1;
    const SECURED: u64 = 2;
    /// The kernel's choice (the switch `fbuf`).
    pub(crate) const DEFAULT: u64 = 4;

    pub(crate) fn bits(self) -> u64 {
        Self::UNCACHED * u64::from(self.is_uncached) + Self::SECURED * u64::from(self.is_secured)
    }

    pub(crate) fn of(bits: u64) -> Mode {
        Mode {
            is_uncached: bits & Self::UNCACHED != 0,
            is_secured: bits & Self::SECURED != 0,
        }
    }
}

/// A path's memory in its originator. Clones are the same memory. What lies in it holds one, and so
/// the path stays until the last fbuf is dropped.
#[derive(Clone)]
pub(crate) struct Space {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    fd: OwnedFd,
    mode: Mode,
    source: Source,
    division: Mutex<Division>,
}

/// The process and the paths that it originates.
static SPACES: Mutex<(u32, Vec<Weak<Inner>>)> = Mutex::new((0, Vec::new()));

/// Where a path's chunks come from.
enum Source {
    /// The kernel, for the process that has made the path.
    Device {
        process: u32,
    },
    Memfd {
        chunks: Chunks,
        limit: usize,
    },
}

/// The path ends with its memory. What a child has inherited ends nothing.
impl Drop for Inner {
    fn drop(&mut self) {
        if matches!(self.source, Source::Device { process } if process == process::id()) {
            raw::leave(self.fd.as_fd());
        }
    }
}

/// How the memory is divided.
#[derive(Default)]
struct Division {
    allocator: Allocator,
    headers: HeaderPages,
}

impl fmt::Debug for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Space")
            .field("fd", &self.inner.fd)
            .field("mode", &self.inner.mode)
            .finish_non_exhaustive()
    }
}

/// The source of runs for the allocator.
struct RunSource<'a>(&'a Inner);

impl Runs for RunSource<'_> {
    fn grow(&mut self, chunks: usize) -> io::Result<usize> {
        match &self.0.source {
            Source::Memfd {
                chunks: from,
                limit,
            } => from.grow(chunks, *limit),
            Source::Device { .. } => {
                let mut words = [0; 8];
                words[0] = chunks as u64;
                raw::ask(self.0.fd.as_fd(), request::GROW, &mut words)?;
                Ok(words[0] as usize)
            }
        }
    }

    fn shrink(&mut self, start: usize, chunks: usize) -> bool {
        match &self.0.source {
            Source::Memfd { chunks: to, .. } => {
                to.shrink(start, chunks);
                true
            }
            Source::Device { .. } => {
                let mut words = [0; 8];
                words[0] = start as u64;
                raw::ask(self.0.fd.as_fd(), request::SHRINK, &mut words).is_ok()
            }
        }
    }

    fn set_idle(&mut self, start: usize, pages: usize) {
        if let Source::Device { .. } = self.0.source {
            let mut words = [0; 8];
            words[..2].copy_from_slice(&[start as u64, (pages * PAGE) as u64]);
            // It fails while a device may be writing them; then they are written to swap.
            let _ = raw::ask(self.0.fd.as_fd(), request::IDLE, &mut words);
        }
    }

    fn drop_contents(&mut self, start: usize, pages: usize) {
        let at = ptr::with_exposed_provenance_mut(start);
        // SAFETY: free memory of this process. It fails where the memory has to stay: by memfds,
        // whose seals keep it, and for pages that are secured.
        unsafe { libc::madvise(at, pages * PAGE, libc::MADV_REMOVE) };
    }
}

impl Space {
    /// Makes a path whose originator is this process.
    pub(crate) fn new(domain: &Domain, bits: u64, limit: usize) -> io::Result<Space> {
        let (fd, bits, source) = match &domain.provider {
            Provider::Device(device) => {
                let mut words = [0; 8];
                let bits = match bits {
                    // The kernel tells its default in the answer to `ENTER`.
                    Mode::DEFAULT => {
                        raw::ask(device.as_fd(), request::ENTER, &mut words)?;
                        words[5]
                    }
                    bits => bits,
                };
                words[..2].copy_from_slice(&[bits, limit as u64]);
                let fd = raw::ask(device.as_fd(), request::PATH, &mut words)?;
                // SAFETY: the kernel has just made it, and nothing else owns it.
                let fd = unsafe { OwnedFd::from_raw_fd(fd) };
                let process = process::id();
                (fd, bits, Source::Device { process })
            }
            Provider::Memfd => {
                let bits = bits & !Mode::DEFAULT;
                if bits != 0 {
                    return Err(error(libc::EOPNOTSUPP));
                }
                let limit = if limit == 0 {
                    memfd::MOST_CHUNKS
                } else {
                    limit
                };
                if limit > memfd::MOST_CHUNKS {
                    return Err(error(libc::EINVAL));
                }
                let (fd, chunks) = memfd::create(bits)?;
                (fd, bits, Source::Memfd { chunks, limit })
            }
        };
        let inner = Arc::new(Inner {
            fd,
            mode: Mode::of(bits),
            source,
            division: Mutex::default(),
        });
        let mut spaces = lock(&SPACES);
        if spaces.0 != process::id() {
            *spaces = (process::id(), Vec::new());
        }
        spaces.1.retain(|it| it.strong_count() > 0);
        spaces.1.push(Arc::downgrade(&inner));
        Ok(Space { inner })
    }

    /// Returns the path of this process that has a run with this address.
    pub(crate) fn find(address: usize) -> Option<Weak<Inner>> {
        // Their drop may need the list.
        let spaces: Vec<_> = {
            let spaces = lock(&SPACES);
            let own = spaces.1.iter().filter(|_| spaces.0 == process::id());
            own.filter_map(Weak::upgrade).collect()
        };
        let mut spaces = spaces.into_iter().map(|inner| Space { inner });
        let found = spaces.find(|it| it.has_run_at(address))?;
        Some(Arc::downgrade(&found.inner))
    }

    /// Returns whether a run of the path has this address.
    pub(crate) fn has_run_at(&self, address: usize) -> bool {
        lock(&self.inner.division).allocator.has(address)
    }

    pub(crate) fn mode(&self) -> Mode {
        self.inner.mode
    }

    pub(crate) fn is_same(&self, other: &Space) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Hands out an fbuf of at least `len` bytes.
    ///
    /// # Errors
    /// `ENOSPC` at the path's limit and for more than the longest run has; `ENOMEM`.
    pub(crate) fn allocate(&self, len: usize) -> io::Result<Fbuf> {
        let pages = len.max(1).div_ceil(PAGE);
        if pages > LONGEST / PAGE {
            return Err(error(libc::ENOSPC));
        }
        let mut division = lock(&self.inner.division);
        let runs = &mut RunSource(&self.inner);
        let start = division.allocator.allocate(pages, runs)?;
        Ok(Fbuf {
            space: self.clone(),
            start,
            len: pages * PAGE,
        })
    }

    /// Gives idle runs back.
    pub(crate) fn trim(&self) {
        let mut division = lock(&self.inner.division);
        division.allocator.trim(&mut RunSource(&self.inner));
    }

    /// Hands out a slot for a node.
    pub(crate) fn allocate_node(&self) -> io::Result<usize> {
        let division = &mut *lock(&self.inner.division);
        let (allocator, headers) = (&mut division.allocator, &mut division.headers);
        headers.allocate(|| allocator.allocate(1, &mut RunSource(&self.inner)))
    }

    /// Takes a slot back.
    pub(crate) fn free_node(&self, address: usize) {
        let division = &mut *lock(&self.inner.division);
        if let Some(page) = division.headers.free(address) {
            let runs = &mut RunSource(&self.inner);
            division.allocator.free(page, 1, runs);
        }
    }

    /// Keeps those of these pages that hold nodes from being written to.
    pub(crate) fn close_headers(&self, pages: impl Iterator<Item = Range<usize>>) {
        let mut division = lock(&self.inner.division);
        pages.for_each(|pages| division.headers.close(pages));
    }

    /// Returns the addresses of its place by memfds.
    pub(crate) fn range(&self) -> Option<Range<usize>> {
        match &self.inner.source {
            Source::Memfd { chunks, .. } => Some(chunks.range()),
            Source::Device { .. } => None,
        }
    }

    pub(crate) fn is_by_device(&self) -> bool {
        matches!(self.inner.source, Source::Device { .. })
    }
}

impl AsFd for Space {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.fd.as_fd()
    }
}

/// An fbuf that this process may write: contiguous pages at an address that is the same in all
/// processes. It becomes immutable as a part of an [`Aggregate`](crate::Aggregate).
pub struct Fbuf {
    space: Space,
    start: usize,
    len: usize,
}

impl Fbuf {
    pub(crate) fn space(&self) -> &Space {
        &self.space
    }

    pub(crate) fn start(&self) -> usize {
        self.start
    }
}

impl fmt::Debug for Fbuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fbuf({:#x}, {} bytes)", self.start, self.len)
    }
}

impl Deref for Fbuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped for this value alone; other processes can only read.
        unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(self.start), self.len) }
    }
}

impl DerefMut for Fbuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { slice::from_raw_parts_mut(ptr::with_exposed_provenance_mut(self.start), self.len) }
    }
}

impl Drop for Fbuf {
    fn drop(&mut self) {
        let inner = &self.space.inner;
        let mut division = lock(&inner.division);
        let pages = self.len / PAGE;
        division
            .allocator
            .free(self.start, pages, &mut RunSource(inner));
    }
}

const _: () = assert!(CHUNK % PAGE == 0);
