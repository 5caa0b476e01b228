//! Waiting for descriptors: `epoll`, and `poll` for one.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Descriptors that are waited for, each with a number.
#[derive(Debug)]
pub(crate) struct Poll(OwnedFd);

/// Events that one wait returns.
const EVENTS: usize = 64;

impl Poll {
    pub(crate) fn new() -> io::Result<Poll> {
        // SAFETY: makes a descriptor.
        let fd = checked(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: the kernel has just made it, and nothing else owns it.
        Ok(Poll(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Waits for a descriptor to be readable, until it is closed.
    pub(crate) fn add(&self, fd: BorrowedFd<'_>, number: u64) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: (libc::EPOLLIN | libc::EPOLLRDHUP) as u32,
            u64: number,
        };
        let (epoll, fd) = (self.0.as_raw_fd(), fd.as_raw_fd());
        // SAFETY: the event lives across the call.
        checked(unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) })?;
        Ok(())
    }

    /// Stops waiting for a descriptor.
    pub(crate) fn remove(&self, fd: BorrowedFd<'_>) {
        let (epoll, fd) = (self.0.as_raw_fd(), fd.as_raw_fd());
        let none = std::ptr::null_mut();
        // SAFETY: takes numbers. It fails only for a descriptor that was not added.
        unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, fd, none) };
    }

    /// Waits at most so many milliseconds (-1: forever); calls `each` with the number of each
    /// descriptor that is ready.
    pub(crate) fn wait(&self, milliseconds: i32, mut each: impl FnMut(u64)) -> io::Result<()> {
        // SAFETY: all zeros is a valid event.
        let mut events: [libc::epoll_event; EVENTS] = unsafe { mem::zeroed() };
        let epoll = self.0.as_raw_fd();
        // SAFETY: the array has that many entries.
        let result =
            unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), EVENTS as i32, milliseconds) };
        match checked(result) {
            Err(why) if why.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(why) => Err(why),
            Ok(count) => {
                events[..count as usize].iter().for_each(|it| each(it.u64));
                Ok(())
            }
        }
    }
}

impl AsFd for Poll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Looks at a descriptor; returns which of these events are there, and those of its end.
pub(crate) fn poll_one(fd: BorrowedFd<'_>, events: libc::c_short) -> io::Result<libc::c_short> {
    let mut entry = libc::pollfd {
        fd: fd.as_raw_fd(),
        events,
        revents: 0,
    };
    // SAFETY: one entry, which lives across the call.
    match checked(unsafe { libc::poll(&raw mut entry, 1, 0) }) {
        Err(why) if why.kind() != io::ErrorKind::Interrupted => Err(why),
        Err(_) => Ok(0),
        Ok(_) => Ok(entry.revents),
    }
}

/// Converts the result of a call that returns -1 for an error.
pub(crate) fn checked<T: PartialEq + From<i8>>(result: T) -> io::Result<T> {
    match result == T::from(-1) {
        true => Err(io::Error::last_os_error()),
        false => Ok(result),
    }
}
