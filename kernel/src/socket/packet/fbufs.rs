//! Packets in fbufs whose originator is the kernel: a card writes them where the program reads
//! them.
//!
//! Two requests of `ioctl`, each of which takes and gives eight words:
//!
//! | request | takes | gives |
//! |---|---|---|
//! | `FRAMES` | mode, chunks | the descriptor of the path, as the result |
//! | `FRAMES_TAKE` | place for parts, room for so many; addresses of parts that are free, how many | how many parts; 1: packets wait that are received by a copy |
//!
//! A part is two words: its address; its bytes, and bit 32 if more of its packet follow.

use alloc::sync::{Arc, Weak};

use abi::{Errno, Result};
use fbuf::region::{Part, Path, Pool};
use net::{ip::Interface, packet::Packet};
use nucleus::{
    Frame, VirtAddr, ephemeral,
    sync::{Mutex, OnceArc},
    user,
};

use super::seen::Seen;
use crate::{
    ipc::fbuf::{PathFile, Words, chosen_mode},
    socket::inet::interface,
};

/// Parts that one call gives at most, and addresses that it takes at once.
const MOST_PARTS: usize = 64;
/// Addresses of free parts that one call takes at most.
const MOST_FREED: u64 = 1024;
/// Slices of a packet that is given without a copy at most: the longest one in pages, and headers.
const MOST_SLICES: usize = 20;
/// A flag of a part: more parts of its packet follow.
const MORE: u64 = 1 << 32;

/// The fbufs of a socket.
pub struct Fbufs {
    pool: Arc<Pool>,
    /// The interface whose card fills them.
    filled_by: Mutex<Option<Weak<Interface>>>,
}

impl Fbufs {
    /// Makes fbufs and their path as the first words of a request say.
    ///
    /// # Errors
    /// `EOPNOTSUPP` unless the mode is cached, `EINVAL`, and those of [`Pool::new`].
    fn new([mode, chunks, ..]: Words) -> Result<(Arc<Fbufs>, Arc<Path>)> {
        if !chosen_mode(mode)?.is_cached() {
            return Err(Errno::EOPNOTSUPP);
        }
        let chunks = usize::try_from(chunks).map_err(|_| Errno::EINVAL)?;
        let (pool, path) = Pool::new(chunks)?;
        let filled_by = Mutex::new(net::rank::NET, None);
        Ok((Arc::new(Fbufs { pool, filled_by }), path))
    }

    /// Makes fbufs of a socket, in which it receives packets from now on, and tells the interface
    /// to which it is bound: the request `FRAMES`. Returns the descriptor of their path.
    ///
    /// # Errors
    /// `EBUSY` if it has some; `EMFILE`, and those of [`new`](Fbufs::new).
    pub fn open(argument: VirtAddr, place: &OnceArc<Fbufs>, index: u32) -> Result<usize> {
        let words = user::read(argument)?;
        if place.get().is_some() {
            return Err(Errno::EBUSY);
        }
        PathFile::open(|| {
            let (made, path) = Fbufs::new(words)?;
            // Another thread's may be there.
            if !core::ptr::eq(place.get_or_insert(|| made.clone()), &*made) {
                made.end();
                return Err(Errno::EBUSY);
            }
            made.begin(index);
            Ok(path)
        })
    }

    /// Lets the card of the interface to which the socket is bound fill them. One of other
    /// interfaces never does: what is in them it has not seen.
    fn begin(&self, index: u32) {
        let Ok(interface) = interface::by_index(index) else {
            return;
        };
        let mut filled_by = self.filled_by.lock();
        interface.pools().add(self.pool.clone());
        *filled_by = Some(Arc::downgrade(&interface));
    }

    /// The socket is bound to another interface.
    pub fn move_to(&self, index: u32) {
        let mut filled_by = self.filled_by.lock();
        let before = filled_by.as_ref().and_then(Weak::upgrade);
        if let Some(interface) = before.filter(|it| it.index() != index) {
            interface.pools().remove(&self.pool);
            *filled_by = None;
        }
    }

    /// The socket is closed.
    pub fn end(&self) {
        // No interface has this number.
        self.move_to(0);
        self.pool.end();
    }

    /// Keeps the first `len` bytes of a packet in a socket's fbufs; false if there are none for it.
    pub fn keep(place: &OnceArc<Fbufs>, seen: &Seen<'_>, packet: &Packet, len: usize) -> bool {
        match place.get() {
            Some(fbufs) if len > 0 => fbufs.keep_bytes(seen, packet, len),
            _ => false,
        }
    }

    fn keep_bytes(&self, seen: &Seen<'_>, packet: &Packet, len: usize) -> bool {
        let is_there = seen
            .data_start()
            .is_some_and(|start| self.pass(packet, start, len));
        is_there || {
            let fill = |frame: &Frame, at, len| copy(seen, frame, at, len);
            self.pool.give_copy(len, fill)
        }
    }

    /// Gives bytes of a packet where they lie, if all of it is in these fbufs.
    fn pass(&self, packet: &Packet, start: usize, len: usize) -> bool {
        let slices = packet.data.slices();
        if slices.len() > MOST_SLICES {
            return false;
        }
        let mut parts: [Option<(&Frame, usize, usize)>; MOST_SLICES] = [None; MOST_SLICES];
        let (mut skipped, mut left, mut count) = (start, len, 0);
        for slice in slices {
            let from = skipped.min(slice.len);
            skipped -= from;
            let here = (slice.len - from).min(left);
            left -= here;
            if here > 0 {
                parts[count] = Some((slice.frame(), slice.offset + from, here));
                count += 1;
            }
        }
        left == 0 && self.pool.give(parts[..count].iter().flatten().copied())
    }

    /// Whether parts wait.
    pub fn has_parts(&self) -> bool {
        self.pool.has_parts()
    }

    /// Frees parts, and gives those that wait: the request `FRAMES_TAKE`.
    ///
    /// # Errors
    /// `EFAULT`, `EINVAL` for a socket without fbufs, and for a part that the program does not
    /// have; those before it are free.
    pub fn take(
        argument: VirtAddr,
        place: &OnceArc<Fbufs>,
        has_others: impl FnOnce() -> bool,
    ) -> Result<usize> {
        let fbufs = place.get().ok_or(Errno::EINVAL)?;
        let [to, room, freed, count, ..]: Words = user::read(argument)?;
        let address = |at: u64| usize::try_from(at).map(VirtAddr).map_err(|_| Errno::EFAULT);
        let freed = address(freed)?;
        if count > MOST_FREED {
            return Err(Errno::EINVAL);
        }
        for first in (0..count as usize).step_by(MOST_PARTS) {
            let mut some = [0u64; MOST_PARTS];
            let some = &mut some[..MOST_PARTS.min(count as usize - first)];
            user::read_all(some, freed + first * size_of::<u64>())?;
            some.iter().try_for_each(|at| fbufs.pool.free(*at))?;
        }
        let none = Part {
            page: 0,
            offset: 0,
            len: 0,
            has_more: false,
        };
        let mut parts = [none; MOST_PARTS];
        let parts = &mut parts[..room.min(MOST_PARTS as u64) as usize];
        let mut words = [0u64; 2 * MOST_PARTS];
        let mut given = 0;
        fbufs.pool.take_parts(parts, |at, len, has_more| {
            let more = if has_more { MORE } else { 0 };
            words[2 * given..2 * given + 2].copy_from_slice(&[at.0 as u64, len as u64 | more]);
            given += 1;
        });
        user::write_words(address(to)?, &words[..2 * given])?;
        let mut answer: Words = [0; 8];
        answer[..2].copy_from_slice(&[given as u64, has_others().into()]);
        user::write(argument, &answer)?;
        Ok(0)
    }
}

/// Copies bytes of a packet from byte `from` on into a frame.
fn copy(seen: &Seen<'_>, frame: &Frame, from: usize, len: usize) {
    let mut piece = [0; 512];
    let mut done = 0;
    while done < len {
        let wanted = (len - done).min(piece.len());
        let n = seen.copy(from + done, &mut piece[..wanted]);
        if n == 0 {
            return;
        }
        ephemeral::map(frame).write(done, &piece[..n]);
        done += n;
    }
}
