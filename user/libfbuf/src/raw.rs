//! Raw calls: the requests of `/dev/fbuf`, mappings, futexes, `poll`, descriptors over sockets.

use std::io::{self, Error};
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// The requests, as the kernel numbers them. Each reads and writes eight words.
pub mod request {
    pub const ENTER: u64 = 0xc040_fb00;
    pub const PATH: u64 = 0xc040_fb01;
    pub const ATTACH: u64 = 0xc040_fb10;
    pub const GROW: u64 = 0xc040_fb11;
    pub const SHRINK: u64 = 0xc040_fb12;
    pub const SEND: u64 = 0xc040_fb13;
    pub const RECEIVE: u64 = 0xc040_fb14;
    pub const FREE: u64 = 0xc040_fb15;
    pub const NOTICES: u64 = 0xc040_fb16;
    pub const SECURE: u64 = 0xc040_fb17;
    pub const CALL: u64 = 0xc040_fb18;
    pub const LEAVE: u64 = 0xc040_fb19;
    pub const IDLE: u64 = 0xc040_fb1a;
    pub const RANGES: u64 = 0xc040_fb1b;
    pub const WAIT: u64 = 0xc040_fb1c;
    pub const TAKE: u64 = 0xc040_fb1d;
    pub const WHOSE: u64 = 0xc040_fb22;
    pub const PASS: u64 = 0xc040_fb23;
    pub const RING: u64 = 0xc040_fb24;
    pub const FRAMES: u64 = 0xc040_fb30;
    pub const FRAMES_TAKE: u64 = 0xc040_fb31;
}

/// A flag of `SEND` and `RECEIVE`: they fail with `EAGAIN` instead of waiting.
pub const DONT_WAIT: u64 = 1;

/// The words of a request and of its answer.
pub type Words = [u64; 8];

/// Returns the error of a number.
pub fn error(number: i32) -> Error {
    Error::from_raw_os_error(number)
}

/// Converts the result of a call that returns -1 for an error.
pub fn checked<T: PartialEq + From<i8>>(result: T) -> io::Result<T> {
    match result == T::from(-1) {
        true => Err(Error::last_os_error()),
        false => Ok(result),
    }
}

/// Makes a request whose answer is words only. Interrupted requests are made again.
pub fn ask(fd: BorrowedFd<'_>, request: u64, words: &mut Words) -> io::Result<i32> {
    loop {
        match ask_once(fd, request, words) {
            Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Makes a request, which a signal interrupts.
pub fn ask_once(fd: BorrowedFd<'_>, request: u64, words: &mut Words) -> io::Result<i32> {
    // SAFETY: the requests read and write these eight words. `NOTICES` is the exception, which
    // `notices` makes.
    checked(unsafe { libc::ioctl(fd.as_raw_fd(), request as _, words.as_mut_ptr()) })
}

/// Ends this process's part in a path, also where other processes have copies of its descriptor.
pub fn leave(fd: BorrowedFd<'_>) {
    // It fails only where there is nothing to end.
    let _ = ask(fd, request::LEAVE, &mut [0; 8]);
}

/// Reads notices, pairs of the first and the end address of pages; returns how many were read.
pub fn notices(fd: BorrowedFd<'_>, to: &mut [[u64; 2]]) -> io::Result<usize> {
    let mut words = [0; 8];
    words[0] = to.as_mut_ptr() as u64;
    words[1] = to.len() as u64;
    // The request writes at most `to.len()` pairs to `to`.
    ask(fd, request::NOTICES, &mut words)?;
    Ok((words[0] as usize).min(to.len()))
}

/// Reads which pages a received message includes, as [`notices`] does; returns how many ranges
/// there are, which may be more than were read.
pub fn ranges(fd: BorrowedFd<'_>, message: u64, to: &mut [[u64; 2]]) -> io::Result<usize> {
    let mut words = [0; 8];
    words[0] = message;
    words[1] = to.as_mut_ptr() as u64;
    words[2] = to.len() as u64;
    // The request writes at most `to.len()` pairs to `to`.
    ask(fd, request::RANGES, &mut words)?;
    Ok(words[0] as usize)
}

/// Receives a message that waits, and reads which pages it includes, as [`ranges`] does; their
/// number is the sixth word of the answer.
pub fn receive_with_ranges(fd: BorrowedFd<'_>, to: &mut [[u64; 2]]) -> io::Result<Words> {
    let mut words = [0; 8];
    words[0] = DONT_WAIT;
    words[1] = to.as_mut_ptr() as u64;
    words[2] = to.len() as u64;
    // The request writes at most `to.len()` pairs to `to`.
    ask(fd, request::RECEIVE, &mut words)?;
    Ok(words)
}

/// Reads from a file at an offset, or where it is without one.
pub fn read_at(file: BorrowedFd<'_>, offset: Option<u64>, to: &mut [u8]) -> io::Result<usize> {
    let (fd, at) = (file.as_raw_fd(), to.as_mut_ptr().cast());
    // SAFETY: the call writes at most as many bytes as the slice has.
    let count = checked(unsafe {
        match offset {
            Some(offset) => libc::pread(fd, at, to.len(), offset as libc::off_t),
            None => libc::read(fd, at, to.len()),
        }
    })?;
    Ok(count as usize)
}

/// Maps memory at a fixed address; returns `EEXIST` if something is there, unless `flags` has
/// `MAP_FIXED`.
///
/// # Safety
/// With `MAP_FIXED`, no reference to what is mapped there may be used afterwards.
pub unsafe fn map(
    at: usize,
    len: usize,
    rights: i32,
    flags: i32,
    file: Option<(BorrowedFd<'_>, usize)>,
) -> io::Result<()> {
    let flags = match flags & libc::MAP_FIXED {
        0 => flags | libc::MAP_FIXED_NOREPLACE,
        _ => flags,
    };
    let (fd, offset) = file.map_or((-1, 0), |(fd, offset)| (fd.as_raw_fd(), offset));
    let wanted = ptr::with_exposed_provenance_mut(at);
    // SAFETY: the caller vouches for what is there.
    let found = unsafe { libc::mmap(wanted, len, rights, flags, fd, offset as libc::off_t) };
    if found == libc::MAP_FAILED {
        return Err(Error::last_os_error());
    }
    if found != wanted {
        // A kernel that does not know `MAP_FIXED_NOREPLACE` maps it elsewhere.
        // SAFETY: just mapped, and unused.
        unsafe { libc::munmap(found, len) };
        return Err(error(libc::EEXIST));
    }
    Ok(())
}

/// A word of a path that this process writes, whose waiters are to be woken: the path's descriptor,
/// unless it is by memfds.
pub type Bell<'a> = (Option<BorrowedFd<'a>>, &'a AtomicU32);

/// Wakes all waiters of a word that was changed.
pub fn ring((path, word): Bell<'_>) {
    let Some(path) = path else {
        return futex_wake(word);
    };
    let mut words = [0; 8];
    words[0] = word.as_ptr() as u64;
    // It fails only where no process can wait.
    let _ = ask(path, request::RING, &mut words);
}

/// Sleeps while the word, which the originator of a path writes, has this value and the originator
/// is there. Rings the bell before, by the same call. Wakes spuriously, too. Returns false for an
/// error.
pub fn path_wait(fd: BorrowedFd<'_>, bell: Option<Bell<'_>>, word: &AtomicU32, value: u32) -> bool {
    let (at, value) = (word.as_ptr() as u64, value.into());
    let (request, mut words) = match bell {
        Some((Some(own), bell)) => {
            let (own, bell) = (own.as_raw_fd() as u64, bell.as_ptr() as u64);
            (request::PASS, [own, bell, at, value, 0, 0, 0, 0])
        }
        _ => (request::WAIT, [at, value, 0, 0, 0, 0, 0, 0]),
    };
    let result = ask_once(fd, request, &mut words);
    let number = result.err().and_then(|why| why.raw_os_error());
    number.is_none_or(|it| [libc::EAGAIN, libc::EINTR, libc::EPIPE].contains(&it))
}

/// Sleeps while the word, which other processes may write, has this value. Wakes spuriously, too.
/// Returns false if threads cannot sleep there: a peer named an address where there is no chunk.
pub fn futex_wait(word: &AtomicU32, value: u32, most: Duration) -> bool {
    let most = libc::timespec {
        tv_sec: most.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(most.subsec_nanos()),
    };
    // SAFETY: the word and the time live across the call, which writes neither.
    let result = checked(unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            value,
            &raw const most,
        )
    });
    let number = result.err().and_then(|why| why.raw_os_error());
    number.is_none_or(|it| [libc::EAGAIN, libc::ETIMEDOUT, libc::EINTR].contains(&it))
}

/// Wakes all waiters of a word in every process.
fn futex_wake(word: &AtomicU32) {
    // SAFETY: the word lives across the call, which only takes its address.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// A descriptor and the events that are waited for; `poll` ignores a negative one.
pub fn waited(fd: RawFd, events: libc::c_short) -> libc::pollfd {
    libc::pollfd {
        fd,
        events,
        revents: 0,
    }
}

/// Waits for events of descriptors for at most so many milliseconds (-1: forever), which come into
/// the entries. A signal ends it, too.
pub fn poll(entries: &mut [libc::pollfd], milliseconds: i32) -> io::Result<()> {
    let len = entries.len() as libc::nfds_t;
    // SAFETY: the slice has so many entries.
    match checked(unsafe { libc::poll(entries.as_mut_ptr(), len, milliseconds) }) {
        Err(why) if why.kind() != io::ErrorKind::Interrupted => Err(why),
        _ => Ok(()),
    }
}

/// Sends a byte by a socket, which wakes those that poll its other end. Never blocks: where there
/// is no room, the other end is readable already.
pub fn ring_doorbell(socket: BorrowedFd<'_>) {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let byte = 1u8;
    // SAFETY: `byte` lives across the call.
    unsafe { libc::send(socket.as_raw_fd(), (&raw const byte).cast(), 1, flags) };
}

/// Takes the bytes that are waiting at a socket; at most so many that a peer cannot keep it busy.
pub fn clear_doorbell(socket: BorrowedFd<'_>) {
    let mut bytes = [0u8; 64];
    // SAFETY: the buffer has that length.
    unsafe {
        libc::recv(
            socket.as_raw_fd(),
            bytes.as_mut_ptr().cast(),
            bytes.len(),
            libc::MSG_DONTWAIT,
        )
    };
}

/// Room for control messages with a descriptor, aligned as its header must be.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// Sends bytes and a descriptor by a Unix socket.
///
/// # Errors
/// Those of `sendmsg`; `EMSGSIZE` when not all bytes were sent.
pub fn send_descriptor(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptor: BorrowedFd<'_>,
) -> io::Result<()> {
    let mut control = Control([0; 64]);
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let size = mem::size_of::<RawFd>() as u32;
    // SAFETY: the header points to memory that lives across the call, which has room for a
    // descriptor; `CMSG_FIRSTHDR` is not null, since there is room.
    let sent = checked(unsafe {
        let mut header: libc::msghdr = mem::zeroed();
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = libc::CMSG_SPACE(size) as _;
        let first = libc::CMSG_FIRSTHDR(&raw const header);
        (*first).cmsg_level = libc::SOL_SOCKET;
        (*first).cmsg_type = libc::SCM_RIGHTS;
        (*first).cmsg_len = libc::CMSG_LEN(size) as _;
        let data = libc::CMSG_DATA(first).cast::<RawFd>();
        data.write_unaligned(descriptor.as_raw_fd());
        libc::sendmsg(socket.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL)
    })?;
    match sent as usize == bytes.len() {
        true => Ok(()),
        false => Err(error(libc::EMSGSIZE)),
    }
}

/// Receives what [`send_descriptor`] sent: so many bytes, and a descriptor.
///
/// # Errors
/// `EPIPE` when the other end is closed, `EPROTO` for anything else.
pub fn receive_descriptor(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<OwnedFd> {
    let mut control = Control([0; 64]);
    let mut part = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    let mut found = Vec::new();
    // SAFETY: the header points to memory that lives across the calls. The kernel wrote
    // `msg_controllen` bytes of control messages, whose descriptors nothing else owns.
    let received = unsafe {
        let mut header: libc::msghdr = mem::zeroed();
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = control.0.len() as _;
        let flags = libc::MSG_CMSG_CLOEXEC;
        let received = loop {
            match checked(libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags)) {
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                result => break result?,
            }
        };
        let first = libc::CMSG_FIRSTHDR(&raw const header);
        if !first.is_null()
            && (*first).cmsg_level == libc::SOL_SOCKET
            && (*first).cmsg_type == libc::SCM_RIGHTS
        {
            let len = (*first).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
            let data = libc::CMSG_DATA(first).cast::<RawFd>();
            for index in 0..len / mem::size_of::<RawFd>() {
                found.push(OwnedFd::from_raw_fd(data.add(index).read_unaligned()));
            }
        }
        received as usize
    };
    match (<[OwnedFd; 1]>::try_from(found), received) {
        (_, 0) => Err(error(libc::EPIPE)),
        (Ok([it]), received) if received == bytes.len() => Ok(it),
        _ => Err(error(libc::EPROTO)),
    }
}
