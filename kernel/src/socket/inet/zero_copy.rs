//! `TCP_ZEROCOPY_RECEIVE`: pages that a connection has received are shown in a read-only mapping of
//! the socket; bytes beside them are copied to a buffer, or left for `recv`.

use alloc::{format, sync::Arc};

use abi::{Errno, Result};
use fbuf::UserBuffers;
use net::{
    stream::Read,
    tcp::{self, Phase},
};
use nucleus::{PAGE_SIZE, VirtAddr, user};
use vm::{Description, GivenPages, Pager};

use crate::socket::{Answer, Value, file::SOCKET_DEVICE};

/// Bytes of a `struct tcp_zerocopy_receive`: all, and those up to a field's end.
const WHOLE: usize = 64;
const TO_LENGTH: usize = 12;
const TO_UNREAD: usize = 20;
const TO_ERROR: usize = 24;
/// The most bytes that a program may give: those behind the structure are zeros.
const MOST_GIVEN: usize = PAGE_SIZE;
/// In the flags of the message: it wants the time, which is not known.
const WANTS_TIME: u32 = 2;

/// Returns what a mapping of a socket refers to.
///
/// # Errors
/// `ENOMEM`.
pub fn mapping(inode: u64) -> Result<Arc<dyn Pager>> {
    Ok(GivenPages::new(Description {
        device: SOCKET_DEVICE,
        inode,
        name: format!("socket:[{inode}]").into_bytes(),
    })?)
}

/// The structure, as far as it was given. The other fields are zeros.
struct Fields([u8; WHOLE]);

impl Fields {
    fn read(given: &Value) -> Result<Fields> {
        if !(TO_LENGTH..=MOST_GIVEN).contains(&given.len) {
            return Err(Errno::EINVAL);
        }
        let mut fields = Fields([0; WHOLE]);
        given.bytes(&mut fields.0)?;
        let mut at = WHOLE;
        while at < given.len {
            let mut piece = [0; WHOLE];
            let piece = &mut piece[..WHOLE.min(given.len - at)];
            user::copy_in(piece, given.at + at)?;
            if piece.iter().any(|&byte| byte != 0) {
                return Err(Errno::EINVAL);
            }
            at += piece.len();
        }
        Ok(fields)
    }

    fn word(&self, at: usize) -> u32 {
        let bytes = &self.0[at..at + 4];
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    fn address(&self, at: usize) -> VirtAddr {
        VirtAddr((u64::from(self.word(at + 4)) << 32 | u64::from(self.word(at))) as usize)
    }

    fn put(&mut self, at: usize, word: u32) {
        self.0[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }
}

/// What a call does.
#[derive(Default)]
struct Received {
    /// Bytes of the pages that were shown.
    shown: usize,
    /// Bytes that are next and are in no page.
    hint: usize,
    /// Bytes that were copied, or the negative number of the error.
    copied: i32,
}

/// Receives by pages.
///
/// # Errors
/// `EINVAL` for a structure or a place that can't be, `ENOTCONN` for a listener, `EIO` at the end
/// of the stream, `EFAULT`.
pub fn receive(socket: &tcp::Socket, given: &Value) -> Result<Answer> {
    let mut fields = Fields::read(given)?;
    let at = fields.address(0);
    // `msg_flags` and `reserved`.
    if fields.word(60) != 0 || fields.word(56) & !WANTS_TIME != 0 || !at.is_page_aligned() {
        return Err(Errno::EINVAL);
    }
    if socket.phase() == Phase::Listening {
        return Err(Errno::ENOTCONN);
    }
    let buffer = Buffer {
        at: fields.address(24),
        room: (fields.word(32) as i32).max(0) as usize,
    };
    let received = receive_to(socket, at, fields.word(8) as usize, &buffer)?;
    let next = socket.next_bytes();
    let is_over = received.shown == 0 && received.copied <= 0 && received.hint == 0;
    if is_over && next.bytes == 0 && next.has_ended {
        return Err(Errno::EIO);
    }
    fields.put(8, received.shown as u32);
    fields.put(12, received.hint as u32);
    fields.put(32, received.copied as u32);
    fields.put(56, 0);
    if given.len >= TO_UNREAD {
        // The end of the stream is there to read, too.
        fields.put(16, next.bytes.max(next.has_ended.into()) as u32);
    }
    if given.len >= TO_ERROR {
        let error = socket.take_error();
        fields.put(
            20,
            error.map_or(0, |error| -i32::from(error.number())) as u32,
        );
    }
    Ok(Answer::Bytes(fields.0[..given.len.min(WHOLE)].into()))
}

/// Where bytes go that are in no page.
struct Buffer {
    at: VirtAddr,
    room: usize,
}

impl Buffer {
    /// Copies the next `len` bytes here.
    fn take(&self, socket: &tcp::Socket, len: usize) -> Result<usize> {
        let mut to = UserBuffers::new(self.at, len)?;
        socket.receive(&mut to, len, Read::default())
    }
}

fn receive_to(
    socket: &tcp::Socket,
    at: VirtAddr,
    length: usize,
    buffer: &Buffer,
) -> Result<Received> {
    let next = socket.next_bytes();
    if (1..=buffer.room).contains(&next.bytes) {
        let copied = buffer.take(socket, next.bytes)? as i32;
        return Ok(Received {
            hint: socket.next_bytes().before_page,
            copied,
            ..Received::default()
        });
    }
    if next.bytes < PAGE_SIZE {
        return Ok(Received {
            hint: next.bytes,
            ..Received::default()
        });
    }
    let room = vm::with_current(|map| map.shows_from(at)).flatten();
    let wanted = length.min(room.ok_or(Errno::EINVAL)?).min(next.bytes);
    let pages = wanted / PAGE_SIZE;
    let mut shown = 0;
    socket.give_pages(pages, |pages| {
        let at = at + shown;
        let count = vm::with_current(|map| map.show(at, pages)).unwrap_or(0);
        shown += count * PAGE_SIZE;
        count
    });
    let mut received = Received {
        shown,
        ..Received::default()
    };
    if pages == 0 {
        received.hint = wanted;
    } else if shown < pages * PAGE_SIZE {
        let next = socket.next_bytes();
        // A page that could not be shown is read.
        received.hint = match next.before_page {
            0 => PAGE_SIZE.min(next.bytes),
            before => before,
        };
    }
    let wanted = received.hint.min(buffer.room);
    if wanted > 0 {
        received.copied = match buffer.take(socket, wanted) {
            Ok(copied) => {
                received.hint -= copied;
                copied as i32
            }
            Err(error) => -i32::from(error.number()),
        };
    }
    Ok(received)
}
