//! Paths on any Linux: a path's chunks are a file in memory, at a place of the region that no other
//! originator of the machine has. The file's seals keep receivers from mapping it to write.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process;
use std::sync::Mutex;

use crate::raw::{self, checked, error};
use crate::region::{self, CHUNK, PAGE, REGION_SIZE, REGION_START, lock};

/// Chunks of a place: the most that a path can have.
pub(crate) const MOST_CHUNKS: usize = 32;

const PLACE: usize = MOST_CHUNKS * CHUNK;
const PLACES: usize = REGION_SIZE / PLACE;

/// The first word of the page behind a path's chunks; then the place and the mode's bits follow.
const MAGIC: u64 = u64::from_le_bytes(*b"fbufs/01");

/// A place that this process has mapped.
struct Mapped {
    /// The file: two descriptors of it are one path.
    file: (u64, u64),
    users: usize,
}

static MAPPED: Mutex<BTreeMap<usize, Mapped>> = Mutex::new(BTreeMap::new());

/// Forgets the places of the parent, of which a child has inherited nothing.
pub(crate) fn start() {
    lock(&MAPPED).clear();
}

/// A path's chunks in this process; its drop leaves zeros in their place.
#[derive(Debug)]
pub(crate) struct Chunks {
    /// The process that has mapped them.
    process: u32,
    place: usize,
    /// The originator's: the name that keeps the place, and the chunks that are handed out.
    own: Option<(OwnedFd, Mutex<u32>)>,
}

/// Makes a path's file, and maps it for writing here.
pub(crate) fn create(mode: u64) -> io::Result<(OwnedFd, Chunks)> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a string.
    let fd = checked(unsafe { libc::memfd_create(c"fbuf".as_ptr(), flags) })?;
    // SAFETY: the kernel has just made it, and nothing else owns it.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.set_len((PLACE + PAGE) as u64)?;
    let mut mapped = lock(&MAPPED);
    // Different processes begin at different places, so that few names are tried.
    let first = process::id() as usize * 7;
    let (place, name) = (0..PLACES)
        .map(|step| (first + step) % PLACES)
        .filter(|place| !mapped.contains_key(place))
        .find_map(|place| Some((place, name(place)?)))
        .ok_or_else(|| error(libc::ENOSPC))?;
    let header = [MAGIC, place as u64, mode].map(u64::to_le_bytes);
    file.write_all_at(header.as_flattened(), PLACE as u64)?;
    let mut chunks = map(
        place,
        &file,
        libc::PROT_READ | libc::PROT_WRITE,
        &mut mapped,
    )?;
    drop(mapped);
    chunks.own = Some((name, Mutex::new(0)));
    // What is mapped here stays writable; later mappings cannot be. A kernel that does not know
    // that seal relies on the receivers, which map it for reading.
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    for seals in [seals | libc::F_SEAL_FUTURE_WRITE, seals] {
        // SAFETY: takes a number.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } == 0 {
            break;
        }
    }
    Ok((file.into(), chunks))
}

/// Maps another's path for reading; returns its mode's bits, too. `EINVAL` for a descriptor that is
/// no path's, `EEXIST` when this process has another path at its place.
pub(crate) fn attach(fd: BorrowedFd<'_>) -> io::Result<(u64, Chunks)> {
    let file = File::from(fd.try_clone_to_owned()?);
    // SAFETY: takes and gives numbers.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    let needed = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    // A file that shrinks would end its readers.
    if seals < 0 || seals & needed != needed || file.metadata()?.len() != (PLACE + PAGE) as u64 {
        return Err(error(libc::EINVAL));
    }
    let mut header = [[0; 8]; 3];
    file.read_exact_at(header.as_flattened_mut(), PLACE as u64)?;
    let [magic, place, mode] = header.map(u64::from_le_bytes);
    if magic != MAGIC || place >= PLACES as u64 {
        return Err(error(libc::EINVAL));
    }
    let chunks = map(place as usize, &file, libc::PROT_READ, &mut lock(&MAPPED))?;
    Ok((mode, chunks))
}

/// Takes the name of a place, which one process of the machine can have.
fn name(place: usize) -> Option<OwnedFd> {
    // SAFETY: makes a descriptor.
    let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return None;
    }
    // SAFETY: the kernel has just made it, and nothing else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut address = libc::sockaddr_un {
        sun_family: libc::AF_UNIX as libc::sa_family_t,
        sun_path: [0; 108],
    };
    // A name that begins with zero is no file's.
    let text = format!("\0libfbuf/{place}");
    for (to, from) in address.sun_path.iter_mut().zip(text.bytes()) {
        *to = from as libc::c_char;
    }
    let len = size_of::<libc::sa_family_t>() + text.len();
    // SAFETY: the address lives across the call and has that length.
    let bound = unsafe { libc::bind(fd, (&raw const address).cast(), len as libc::socklen_t) };
    (bound == 0).then_some(socket)
}

fn range_of(place: usize) -> Range<usize> {
    let start = REGION_START + place * PLACE;
    start..start + PLACE
}

fn map(
    place: usize,
    file: &File,
    rights: i32,
    mapped: &mut BTreeMap<usize, Mapped>,
) -> io::Result<Chunks> {
    let about = file.metadata()?;
    let id = (about.dev(), about.ino());
    match mapped.get_mut(&place) {
        // Also the originator's own memory, in threads that play both parts.
        Some(it) if it.file == id => it.users += 1,
        Some(_) => return Err(error(libc::EEXIST)),
        None => {
            let range = range_of(place);
            let flags = libc::MAP_SHARED | libc::MAP_FIXED;
            let from = Some((file.as_fd(), 0));
            // SAFETY: the region's readers take whatever is there; its writers write what is
            // theirs, and nothing of this process is at this place.
            unsafe { raw::map(range.start, range.len(), rights, flags, from)? };
            region::without_children(range)?;
            mapped.insert(place, Mapped { file: id, users: 1 });
        }
    }
    Ok(Chunks {
        process: process::id(),
        place,
        own: None,
    })
}

impl Chunks {
    /// Returns the addresses of its place.
    pub(crate) fn range(&self) -> Range<usize> {
        range_of(self.place)
    }

    /// Hands out a run of so many chunks.
    pub(crate) fn grow(&self, chunks: usize, limit: usize) -> io::Result<usize> {
        let (_, used) = self.own.as_ref().ok_or_else(|| error(libc::EPERM))?;
        let mut used = lock(used);
        let first = (0..=MOST_CHUNKS.saturating_sub(chunks))
            .find(|first| *used & bits(*first, chunks) == 0)
            .filter(|_| chunks <= MOST_CHUNKS && used.count_ones() as usize + chunks <= limit)
            .ok_or_else(|| error(libc::ENOSPC))?;
        *used |= bits(first, chunks);
        Ok(range_of(self.place).start + first * CHUNK)
    }

    /// Takes a run back. Its memory stays, as the seals want it.
    pub(crate) fn shrink(&self, start: usize, chunks: usize) {
        let first = (start - range_of(self.place).start) / CHUNK;
        if let Some((_, used)) = &self.own {
            *lock(used) &= !bits(first, chunks);
        }
    }
}

fn bits(first: usize, chunks: usize) -> u32 {
    ((((1u64 << chunks) - 1) << first) & u64::from(u32::MAX)) as u32
}

impl Drop for Chunks {
    fn drop(&mut self) {
        if self.process != process::id() {
            return;
        }
        let mut mapped = lock(&MAPPED);
        let Some(it) = mapped.get_mut(&self.place) else {
            return;
        };
        it.users -= 1;
        if it.users == 0 && region::empty(range_of(self.place), libc::MAP_FIXED).is_ok() {
            mapped.remove(&self.place);
        }
    }
}
