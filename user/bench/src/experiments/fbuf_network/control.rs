//! Requests between two guests in Ethernet frames of a type of their own, which pass whether the
//! kernel or a program has the card. Each is repeated until it is answered.

use std::ffi::CString;
use std::fs;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use crate::movement::{checked, wrong};

use super::ends::poll;

/// A type for local experiments (IEEE 802).
const TYPE: u16 = 0x88b5;

/// How long an answer may take, and how often is asked.
const PATIENCE: Duration = Duration::from_millis(500);
const TRIES: u32 = 20;

/// Bytes of the header and of what follows: an act, a number and two words.
const HEADER: usize = 14;
const FRAME: usize = 60;

/// The acts.
const START: u8 = 1;
const TIMES: u8 = 2;
const ANSWER: u8 = 3;
const SEND: u8 = 4;
const MORE: u8 = 5;

/// What the guest that measures wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    /// A receiver of messages of a size, by the way with this number.
    Start { way: u8, size: u32 },
    /// A sender of messages of a size to this guest.
    Send { way: u8, size: u32 },
    /// So many messages of that sender, and the answer when all are acknowledged.
    More(u64),
    /// The answer alone.
    Times,
}

/// The time since the start of a guest and that in which its CPU was idle, in hundredths of a
/// second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Times {
    pub up: u64,
    pub idle: u64,
}

impl Times {
    pub(super) fn now() -> io::Result<Times> {
        let text = fs::read_to_string("/proc/uptime")?;
        let number = |word: &str| word.replace('.', "").parse().ok();
        let mut words = text.split_whitespace().map(number);
        match (words.next().flatten(), words.next().flatten()) {
            (Some(up), Some(idle)) => Ok(Times { up, idle }),
            _ => Err(wrong("/proc/uptime has other words")),
        }
    }
}

/// This guest's end.
#[derive(Debug)]
pub(super) struct Control {
    socket: OwnedFd,
    index: libc::c_int,
    number: u32,
}

impl Control {
    /// Opens this guest's end at a card.
    pub(super) fn open(card: &str) -> io::Result<Control> {
        let index = index(card)?;
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: makes a descriptor.
        let fd = checked(unsafe { libc::socket(libc::AF_PACKET, kind, TYPE.to_be().into()) })?;
        // SAFETY: the kernel has just made it, and nothing else owns it.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let address = address(index);
        let len = mem::size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the address lives across the call and has that length.
        checked(unsafe { libc::bind(fd, (&raw const address).cast(), len) })?;
        Ok(Control {
            socket,
            index,
            // Another row's process has other numbers.
            number: std::process::id() << 8,
        })
    }

    /// Sends an order until it is answered.
    pub(super) fn ask(&mut self, order: Order) -> io::Result<Times> {
        self.number += 1;
        let (act, words) = match order {
            Order::Start { way, size } => (START, [way.into(), size.into()]),
            Order::Send { way, size } => (SEND, [way.into(), size.into()]),
            Order::More(count) => (MORE, [count, 0]),
            Order::Times => (TIMES, [0; 2]),
        };
        for _ in 0..TRIES {
            self.send(act, self.number, words)?;
            while poll(self.socket.as_raw_fd(), PATIENCE)? {
                if let Some((ANSWER, number, [up, idle])) = self.take()?
                    && number == self.number
                {
                    return Ok(Times { up, idle });
                }
            }
        }
        Err(wrong("the second guest does not answer"))
    }

    /// Waits for an order; returns its number, too.
    pub(super) fn hear(&mut self) -> io::Result<(u32, Order)> {
        loop {
            poll(self.socket.as_raw_fd(), Duration::MAX)?;
            match self.take()? {
                Some((act @ (START | SEND), number, [way, size])) => {
                    let (way, size) = (way as u8, size as u32);
                    return Ok(match act {
                        START => (number, Order::Start { way, size }),
                        _ => (number, Order::Send { way, size }),
                    });
                }
                Some((MORE, number, [count, _])) => return Ok((number, Order::More(count))),
                Some((TIMES, number, _)) => return Ok((number, Order::Times)),
                _ => {}
            }
        }
    }

    pub(super) fn answer(&mut self, number: u32, times: Times) -> io::Result<()> {
        self.send(ANSWER, number, [times.up, times.idle])
    }

    fn send(&self, act: u8, number: u32, words: [u64; 2]) -> io::Result<()> {
        let mut frame = [0; FRAME];
        frame[..6].fill(0xff);
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
        frame[12..HEADER].copy_from_slice(&TYPE.to_be_bytes());
        frame[HEADER] = act;
        frame[16..20].copy_from_slice(&number.to_le_bytes());
        frame[24..32].copy_from_slice(&words[0].to_le_bytes());
        frame[32..40].copy_from_slice(&words[1].to_le_bytes());
        let to = address(self.index);
        let len = mem::size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the frame and the address live across the call and have those lengths.
        checked(unsafe {
            let (fd, at) = (self.socket.as_raw_fd(), frame.as_ptr().cast());
            libc::sendto(fd, at, FRAME, 0, (&raw const to).cast(), len)
        })?;
        Ok(())
    }

    /// Takes a frame that waits; `None` for others.
    fn take(&self) -> io::Result<Option<(u8, u32, [u64; 2])>> {
        let mut frame = [0u8; FRAME];
        // SAFETY: the buffer has that length.
        let len = checked(unsafe {
            let (fd, at) = (self.socket.as_raw_fd(), frame.as_mut_ptr().cast());
            libc::recv(fd, at, FRAME, 0)
        })?;
        let is_one = len as usize == FRAME && frame[12..HEADER] == TYPE.to_be_bytes();
        let word = |at: usize| {
            let bytes = frame[at..at + 8].try_into();
            bytes.map_or(0, u64::from_le_bytes)
        };
        Ok(is_one.then(|| (frame[HEADER], word(16) as u32, [word(24), word(32)])))
    }
}

/// Returns the card's index.
fn index(card: &str) -> io::Result<libc::c_int> {
    let name = CString::new(card)?;
    // SAFETY: the name ends with a zero and lives across the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index as libc::c_int),
    }
}

fn address(index: libc::c_int) -> libc::sockaddr_ll {
    // SAFETY: all zeros is a valid address.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = TYPE.to_be();
    address.sll_ifindex = index;
    address.sll_halen = 6;
    address.sll_addr = [0xff; 8];
    address
}
