//! A card by a packet socket, which gives and takes whole frames.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libfbuf::{Domain, Fragment, Frames, Member, Received};

use crate::error;
use crate::poll::checked;
use crate::wire::Mac;

/// Bytes of frames that may wait at the socket: a message of 1 MiB in small packets, each of which
/// counts for more than its bytes.
static WAITING: libc::c_int = 8 << 20;

static IS_WANTED: libc::c_int = 1;
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

/// Chunks of fbufs for frames: what may wait at the socket in small packets, each of which has a
/// page, and a message of 1 MiB in packets of 16 KiB for many clients.
const CHUNKS: usize = 8;

/// Most addresses that are removed from an interface.
const MOST_ADDRESSES: usize = 64;

/// Most parts of one frame.
pub(crate) const PARTS: usize = 64;

/// A card that this process has.
#[derive(Debug)]
pub(crate) struct Interface {
    socket: OwnedFd,
    mac: Mac,
    mtu: usize,
    /// Where frames come in fbufs.
    frames: Option<Frames>,
}

impl Interface {
    /// Brings an interface up, takes the system's addresses from it, and opens it.
    pub(crate) fn open(name: &str) -> io::Result<Interface> {
        let udp = socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
        let mut request = Request::new(name)?;
        let index = request.ask(&udp, libc::SIOCGIFINDEX)?.number();
        let mac = request.ask(&udp, libc::SIOCGIFHWADDR)?.mac();
        let mtu = request.ask(&udp, libc::SIOCGIFMTU)?.number();
        let flags = request.ask(&udp, libc::SIOCGIFFLAGS)?.flags();
        request.set_flags(flags | libc::IFF_UP as libc::c_short);
        request.ask(&udp, libc::SIOCSIFFLAGS)?;
        for _ in 0..MOST_ADDRESSES {
            if request.ask(&udp, libc::SIOCGIFADDR).is_err() {
                break;
            }
            // The address 0.0.0.0 removes the first.
            request.set_no_address();
            request.ask(&udp, libc::SIOCSIFADDR)?;
        }
        // It sees no frame before it is bound to the interface.
        let socket = socket(libc::AF_PACKET, libc::SOCK_RAW, 0)?;
        let size = mem::size_of::<libc::c_int>() as libc::socklen_t;
        let fd = socket.as_raw_fd();
        for option in [libc::SO_RCVBUFFORCE, libc::SO_RCVBUF] {
            // SAFETY: the value lives across the call and has that size.
            let set = unsafe {
                let value = (&raw const WAITING).cast();
                libc::setsockopt(fd, libc::SOL_SOCKET, option, value, size)
            };
            if set == 0 {
                break;
            }
        }
        // Frames that this system sends are not wanted; a kernel without this option shows them,
        // and they are for others. SAFETY: as above.
        unsafe {
            let value = (&raw const IS_WANTED).cast();
            libc::setsockopt(fd, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, value, size)
        };
        // SAFETY: all zeros is a valid address.
        let mut name: libc::sockaddr_ll = unsafe { mem::zeroed() };
        name.sll_family = libc::AF_PACKET as u16;
        name.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        name.sll_ifindex = index;
        let len = mem::size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the address lives across the call and has that length.
        checked(unsafe { libc::bind(fd, (&raw const name).cast(), len) })?;
        Ok(Interface {
            socket,
            mac,
            mtu: usize::try_from(mtu).map_err(|_| error(libc::EINVAL))?,
            frames: None,
        })
    }

    /// Has frames put into fbufs from now on, if the system has such.
    pub(crate) fn use_fbufs(&mut self, domain: &Domain) {
        // Where it has none, frames are received by a copy.
        self.frames = Frames::new(domain, self.socket.as_fd(), CHUNKS).ok();
    }

    /// Returns the membership in the path of these fbufs.
    pub(crate) fn member(&self) -> Option<&Member> {
        self.frames.as_ref().map(Frames::member)
    }

    /// Takes frames that wait in fbufs. Returns whether there may be more, and whether there are
    /// frames to be [received](Interface::receive).
    pub(crate) fn take(&mut self, each: impl FnMut(Received)) -> io::Result<(bool, bool)> {
        match &mut self.frames {
            Some(frames) => frames.take(self.socket.as_fd(), each),
            None => Ok((false, true)),
        }
    }

    pub(crate) fn mac(&self) -> Mac {
        self.mac
    }

    pub(crate) fn mtu(&self) -> usize {
        self.mtu
    }

    /// Copies the start of the next frame, which stays; returns the frame's length.
    pub(crate) fn peek(&self, to: &mut [u8]) -> io::Result<usize> {
        self.receive_with(to, libc::MSG_PEEK | libc::MSG_TRUNC)
    }

    /// Takes the next frame; returns how many bytes were taken.
    pub(crate) fn receive(&self, to: &mut [u8]) -> io::Result<usize> {
        self.receive_with(to, 0)
    }

    fn receive_with(&self, to: &mut [u8], flags: libc::c_int) -> io::Result<usize> {
        let flags = flags | libc::MSG_DONTWAIT;
        let fd = self.socket.as_raw_fd();
        // SAFETY: the buffer has that length.
        let received = unsafe { libc::recv(fd, to.as_mut_ptr().cast(), to.len(), flags) };
        checked(received).map(|it| it as usize)
    }

    /// Sends a frame.
    pub(crate) fn send(&self, parts: &[&[u8]]) -> io::Result<()> {
        let parts = parts.iter().map(|part| libc::iovec {
            iov_base: part.as_ptr().cast_mut().cast(),
            iov_len: part.len(),
        });
        // SAFETY: the parts live across the call.
        unsafe { self.send_parts(parts) }
    }

    /// Sends a frame from where it lies. The kernel reads it once, whatever another process writes
    /// there meanwhile.
    pub(crate) fn send_fragments<'a>(
        &self,
        parts: impl Iterator<Item = Fragment<'a>>,
    ) -> io::Result<()> {
        let parts = parts.map(|part| libc::iovec {
            iov_base: std::ptr::with_exposed_provenance_mut(part.address()),
            iov_len: part.len(),
        });
        // SAFETY: the region can be read anywhere.
        unsafe { self.send_parts(parts) }
    }

    /// # Safety
    /// The parts can be read.
    unsafe fn send_parts(&self, parts: impl Iterator<Item = libc::iovec>) -> io::Result<()> {
        let none = libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        let mut list = [none; PARTS];
        let mut count = 0;
        for part in parts {
            *list.get_mut(count).ok_or_else(|| error(libc::EMSGSIZE))? = part;
            count += 1;
        }
        // SAFETY: all zeros is a valid header.
        let mut header: libc::msghdr = unsafe { mem::zeroed() };
        header.msg_iov = list.as_mut_ptr();
        header.msg_iovlen = count as _;
        let fd = self.socket.as_raw_fd();
        // SAFETY: the header and the list live across the call; the caller vouches for the parts.
        checked(unsafe { libc::sendmsg(fd, &raw const header, libc::MSG_DONTWAIT) }).map(drop)
    }
}

impl AsFd for Interface {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn socket(domain: libc::c_int, kind: libc::c_int, protocol: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: makes a descriptor.
    let fd = checked(unsafe { libc::socket(domain, kind | libc::SOCK_CLOEXEC, protocol) })?;
    // SAFETY: the kernel has just made it, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A request about an interface: `struct ifreq`.
struct Request(libc::ifreq);

impl Request {
    fn new(name: &str) -> io::Result<Request> {
        // SAFETY: all zeros is a valid request.
        let mut request: libc::ifreq = unsafe { mem::zeroed() };
        if name.len() >= request.ifr_name.len() {
            return Err(error(libc::ENODEV));
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        Ok(Request(request))
    }

    fn ask(&mut self, socket: &OwnedFd, request: libc::c_ulong) -> io::Result<&mut Request> {
        let fd = socket.as_raw_fd();
        // SAFETY: the requests read and write this structure.
        checked(unsafe { libc::ioctl(fd, request as _, &raw mut self.0) })?;
        Ok(self)
    }

    fn number(&self) -> libc::c_int {
        // SAFETY: the request wrote a number, or it is a part of what it wrote.
        unsafe { self.0.ifr_ifru.ifru_ifindex }
    }

    fn flags(&self) -> libc::c_short {
        // SAFETY: as above.
        unsafe { self.0.ifr_ifru.ifru_flags }
    }

    fn set_flags(&mut self, flags: libc::c_short) {
        self.0.ifr_ifru.ifru_flags = flags;
    }

    fn mac(&self) -> Mac {
        // SAFETY: as above.
        let bytes = unsafe { self.0.ifr_ifru.ifru_hwaddr.sa_data };
        std::array::from_fn(|at| bytes[at] as u8)
    }

    fn set_no_address(&mut self) {
        self.0.ifr_ifru.ifru_addr = libc::sockaddr {
            sa_family: libc::AF_INET as u16,
            sa_data: [0; 14],
        };
    }
}
