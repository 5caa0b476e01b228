//! `/dev/fbuf` and the descriptors of fbuf paths: what programs ask of [`fbuf::region`].
//!
//! A domain is the caller's address space; a path's descriptor is the capability to attach to it.
//!
//! - [`device`]: enter the region, make a path.
//! - [`path`]: the file of a path, with all other requests.
//!
//! A request takes and gives an array of eight words; those that are not named are zero:
//!
//! | request | takes | gives |
//! |---|---|---|
//! | `ENTER` | | version (1), region's start, its bytes, bytes of a chunk, domain, default mode |
//! | `PATH` | mode, limit in chunks | the descriptor, as the result of `ioctl` |
//! | `ATTACH` | | path, originator's domain, mode, number of the receiver, from 1 |
//! | `GROW` | chunks | address of the run |
//! | `SHRINK` | address of the run | |
//! | `SEND` | receiver or 0 for all, root, 1: do not wait | message, notices of this path that wait (pages) |
//! | `RECEIVE` | 1: do not wait; place and room for the message's pages, as `RANGES`, or 0 | root, message, sender's domain, bytes, notices of the caller that wait (pages); the message's pairs |
//! | `FREE` | message | |
//! | `NOTICES` | place for pairs of addresses, room for so many | pairs |
//! | `SECURE`, `IDLE` | address, bytes | |
//! | `RING` | address of a word that was changed | |
//! | `WAIT` | address of a word, value | |
//! | `PASS` | descriptor of another path, address to ring for there; then as `WAIT` | |
//! | `WHOSE` | address | start and end of its path's addresses, path, 1: the caller's own, 2: the sender reads it |
//! | `CALL` | receiver or 0, root, descriptor of the path of answers | as `RECEIVE`; the request's message |
//! | `LEAVE` | | |
//!
//! `FRAMES` and `FRAMES_TAKE` are requests of packet sockets (`kernel/src/socket/packet/fbufs.rs`).

pub mod device;
mod path;

pub use device::chosen_mode;
pub use path::PathFile;

use abi::Result;
use alloc::sync::Arc;
use fbuf::region::Domain;
use nucleus::{VirtAddr, user};

use crate::process::thread;

/// The words of a request.
pub type Words = [u64; 8];

/// The requests, in the encoding of Linux's `_IOWR` with the letter 0xfb and 64 bytes.
pub mod request {
    const fn number(number: u32) -> u32 {
        0xc040_fb00 | number
    }

    pub const ENTER: u32 = number(0x00);
    pub const PATH: u32 = number(0x01);
    pub const ATTACH: u32 = number(0x10);
    pub const GROW: u32 = number(0x11);
    pub const SHRINK: u32 = number(0x12);
    pub const SEND: u32 = number(0x13);
    pub const RECEIVE: u32 = number(0x14);
    pub const FREE: u32 = number(0x15);
    pub const NOTICES: u32 = number(0x16);
    pub const SECURE: u32 = number(0x17);
    pub const CALL: u32 = number(0x18);
    pub const LEAVE: u32 = number(0x19);
    pub const IDLE: u32 = number(0x1a);
    pub const RANGES: u32 = number(0x1b);
    pub const WAIT: u32 = number(0x1c);
    pub const TAKE: u32 = number(0x1d);
    pub const WHOSE: u32 = number(0x22);
    pub const PASS: u32 = number(0x23);
    pub const RING: u32 = number(0x24);
    pub const FRAMES: u32 = number(0x30);
    pub const FRAMES_TAKE: u32 = number(0x31);
}

/// Takes the words at `argument`, and gives those that `answer` returns.
fn exchange(argument: VirtAddr, answer: impl FnOnce(Words) -> Result<Words>) -> Result<usize> {
    let words = user::read(argument)?;
    user::write(argument, &answer(words)?)?;
    Ok(0)
}

/// Returns the words that begin with `first`, the others zero.
fn words<const N: usize>(first: [u64; N]) -> Words {
    let mut words = [0; 8];
    for (word, value) in words.iter_mut().zip(first) {
        *word = value;
    }
    words
}

/// Returns the caller's domain, if its address space has entered the region.
fn domain() -> Option<Arc<Domain>> {
    thread::current_space()?.domain()
}
