//! Packets of a packet socket in fbufs of the kernel: a card writes them there, and no process can.

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

use crate::contents::{Hold, Received};
use crate::nodes::Pieces;
use crate::path::Member;
use crate::raw::{self, error, request};
use crate::region::{Bytes, Domain, lock};

/// Parts that one call takes.
const PARTS: usize = 64;

/// Addresses of free parts that one call tells.
const FREED: usize = 1024;

/// In the second word of a part: more parts of its packet follow.
const MORE: u64 = 1 << 32;

/// The packets of a packet socket, in fbufs that this process reads. Other members of their path
/// read all packets of the card, too.
#[derive(Debug)]
pub struct Frames {
    member: Member,
    freed: Freed,
    parts: Vec<[u64; 2]>,
    addresses: Vec<u64>,
}

/// Addresses of parts that nothing holds, of which the kernel has not been told.
type Freed = Arc<Mutex<Vec<u64>>>;

/// Parts of a packet; its drop frees them.
pub(crate) struct Parts {
    addresses: Pieces,
    freed: Freed,
    _member: Member,
}

impl Drop for Parts {
    fn drop(&mut self) {
        let addresses = self.addresses.as_slice().iter();
        lock(&self.freed).extend(addresses.map(|it| it.start() as u64));
    }
}

impl Frames {
    /// Has the packets of a packet socket put into fbufs, of which there are so many chunks of
    /// 2 MiB. A card fills them if the socket is bound to its interface; other packets are copied.
    ///
    /// # Errors
    /// `EOPNOTSUPP` by memfds, and where the kernel's default mode is uncached; `ENOTTY` from other
    /// kernels; `EBUSY` for a socket that has fbufs or a ring; `ENOSPC`, `ENOMEM`, `EMFILE`.
    pub fn new(domain: &Domain, socket: BorrowedFd<'_>, chunks: usize) -> io::Result<Frames> {
        if domain.backend() != crate::Backend::Device {
            return Err(error(libc::EOPNOTSUPP));
        }
        let mut words = [0; 8];
        words[..2].copy_from_slice(&[crate::space::Mode::DEFAULT, chunks as u64]);
        let fd = raw::ask(socket, request::FRAMES, &mut words)?;
        // SAFETY: the kernel has just made it, and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Frames {
            member: Member::attach(domain, fd)?,
            freed: Freed::default(),
            parts: Vec::with_capacity(PARTS),
            addresses: Vec::with_capacity(FREED),
        })
    }

    /// Returns the membership in the path of the fbufs, whose descriptor is the right to read them.
    pub fn member(&self) -> &Member {
        &self.member
    }

    /// Tells the kernel what is free, and takes packets that wait, a few tens at most, without
    /// waiting for one. Nobody can change their bytes. Returns whether there may be more, and
    /// whether packets wait for which there was no fbuf: they are received from the socket.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn take(
        &mut self,
        socket: BorrowedFd<'_>,
        mut each: impl FnMut(Received),
    ) -> io::Result<(bool, bool)> {
        {
            let mut freed = lock(&self.freed);
            let rest = freed.len().saturating_sub(FREED);
            self.addresses.clear();
            self.addresses.extend(freed.drain(rest..));
        }
        let mut words = [
            self.parts.as_mut_ptr() as u64,
            PARTS as u64,
            self.addresses.as_ptr() as u64,
            self.addresses.len() as u64,
            0,
            0,
            0,
            0,
        ];
        // The request writes at most `PARTS` parts, for which there is room.
        let result = raw::ask(socket, request::FRAMES_TAKE, &mut words);
        if let Err(why) = result {
            if why.raw_os_error() != Some(libc::EINVAL) {
                // An error of the link; nothing was freed.
                lock(&self.freed).extend(&self.addresses);
            }
            return Err(why);
        }
        let count = (words[0] as usize).min(PARTS);
        // SAFETY: the request wrote so many.
        unsafe { self.parts.set_len(count) };
        let mut parts = self.parts.iter().filter_map(|[at, len]| {
            let bytes = Bytes::new(*at, len & (MORE - 1));
            bytes.map(|bytes| (bytes, len & MORE != 0))
        });
        while let Some((first, has_more)) = parts.next() {
            let pieces = match has_more {
                false => [Pieces::One(first), Pieces::One(first)],
                true => {
                    let mut all = vec![first];
                    for (bytes, has_more) in parts.by_ref() {
                        all.push(bytes);
                        if !has_more {
                            break;
                        }
                    }
                    [Pieces::Many(all.clone()), Pieces::Many(all)]
                }
            };
            let [addresses, pieces] = pieces;
            let hold = Hold::Frame(Parts {
                addresses,
                freed: self.freed.clone(),
                _member: self.member.clone(),
            });
            let mut received = Received::new(0, pieces, hold, Vec::new());
            received.set_stable()?;
            each(received);
        }
        // Parts of packets of the longest kind may not have fitted in.
        Ok((count > PARTS / 2, words[1] != 0))
    }
}
