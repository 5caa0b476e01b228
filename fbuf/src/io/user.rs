//! Transfers to and from the current program's memory.
//!
//! Bytes are copied between a frame's ephemeral mapping and the program. Every call may fault:
//! no spin lock may be held, nor a lock that the page-fault handler takes.

use alloc::{sync::Arc, vec::Vec};
use core::ops::Range;

use abi::{Errno, Result};
use nucleus::{
    Access, Frame, PAGE_SIZE, VirtAddr, VirtRange, addr::USER_END, ephemeral::Mapping,
    frame::Owned, user, user::BadAddress,
};
use vm::{CopyReason, Fault, Map, PinnedPages};

use super::{Sink, Source, moved};

/// The most bytes that one system call moves, as on Linux: the largest page-aligned `i32`.
pub const MAX_TRANSFER: usize = 0x7fff_f000;

/// Buffers that fit without an allocation (Linux's `UIO_FASTIOV`).
const INLINE: usize = 8;
/// The most buffers in one call, `UIO_MAXIOV`.
const MAX_BUFFERS: usize = 1024;
/// Bytes of a `struct iovec`, an address and a length.
const IOVEC: usize = 16;
/// The same of a 32-bit program.
const IOVEC_32: usize = 8;

/// Returns address and length of a `struct iovec` of either size.
fn iovec(raw: &[u8]) -> (usize, usize) {
    let number = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        usize::from_le_bytes(word)
    };
    let (at, len) = raw.split_at(raw.len() / 2);
    (number(at), number(len))
}

/// One buffer of the program, inside the user part of the address space.
#[derive(Clone, Copy, Default)]
struct Buffer {
    at: VirtAddr,
    len: usize,
}

impl Buffer {
    /// # Errors
    /// `EFAULT` if part of it lies beyond the user part of the address space.
    fn new(at: VirtAddr, len: usize) -> Result<Buffer> {
        match at.checked_add(len) {
            Some(end) if end <= USER_END => Ok(Buffer { at, len }),
            _ if len == 0 => Ok(Buffer {
                at: VirtAddr(0),
                len,
            }),
            _ => Err(Errno::EFAULT),
        }
    }
}

/// Buffers of the current program, used in order: a sink that writes its memory, a source that
/// reads it.
pub struct UserBuffers {
    few: [Buffer; INLINE],
    /// Used instead of `few` when there are more than [`INLINE`].
    many: Vec<Buffer>,
    count: usize,
    /// The first buffer that is not used up.
    next: usize,
    /// Bytes in all of them that are not used up.
    left: usize,
}

impl UserBuffers {
    /// Makes one buffer, of at most [`MAX_TRANSFER`] bytes.
    ///
    /// # Errors
    /// `EFAULT` if it lies outside the user part of the address space.
    pub fn new(at: VirtAddr, len: usize) -> Result<UserBuffers> {
        let mut few = [Buffer::default(); INLINE];
        let len = len.min(MAX_TRANSFER);
        few[0] = Buffer::new(at, len)?;
        Ok(UserBuffers {
            few,
            many: Vec::new(),
            count: 1,
            next: 0,
            left: len,
        })
    }

    /// Makes the buffers that `count` `struct iovec`s at `array` name.
    ///
    /// # Errors
    /// `EINVAL` for more than 1024 or a negative length, `EFAULT` for a bad address, `ENOMEM`.
    pub fn vector(array: VirtAddr, count: usize) -> Result<UserBuffers> {
        UserBuffers::read(array, count, IOVEC)
    }

    /// As [`vector`](UserBuffers::vector), for a 32-bit program.
    ///
    /// # Errors
    /// As [`vector`](UserBuffers::vector).
    pub fn vector_32(array: VirtAddr, count: usize) -> Result<UserBuffers> {
        UserBuffers::read(array, count, IOVEC_32)
    }

    /// Reads an array of `struct iovec` of `size` bytes each.
    fn read(array: VirtAddr, count: usize, size: usize) -> Result<UserBuffers> {
        if count > MAX_BUFFERS {
            return Err(Errno::EINVAL);
        }
        let mut all = UserBuffers {
            few: [Buffer::default(); INLINE],
            many: Vec::new(),
            count,
            next: 0,
            left: 0,
        };
        if count > INLINE {
            all.many.try_reserve_exact(count)?;
            all.many.resize(count, Buffer::default());
        }
        let mut raw = [0; INLINE * IOVEC];
        for first in (0..count).step_by(INLINE) {
            let raw = &mut raw[..(count - first).min(INLINE) * size];
            let address = array.checked_add(first * size).ok_or(Errno::EFAULT)?;
            user::copy_in(raw, address)?;
            for (i, raw) in raw.chunks_exact(size).enumerate() {
                let (at, len) = iovec(raw);
                // A negative length.
                if len >> (size * 4 - 1) != 0 {
                    return Err(Errno::EINVAL);
                }
                // Bytes beyond the limit of one call are cut off, not refused.
                let len = len.min(MAX_TRANSFER - all.left);
                all.slots()[first + i] = Buffer::new(VirtAddr(at), len)?;
                all.left += len;
            }
        }
        Ok(all)
    }

    fn slots(&mut self) -> &mut [Buffer] {
        if self.count > INLINE {
            &mut self.many
        } else {
            &mut self.few
        }
    }

    /// Returns the next contiguous bytes, `max` at most; empty only without any or if `max` is 0.
    fn front(&mut self, max: usize) -> Buffer {
        let next = self.next;
        let Some(i) = self.slots()[next..].iter().position(|b| b.len > 0) else {
            return Buffer::default();
        };
        self.next = next + i;
        let Buffer { at, len } = self.slots()[next + i];
        Buffer {
            at,
            len: len.min(max),
        }
    }

    /// Marks the first `n` bytes of the front as used.
    fn advance(&mut self, n: usize) {
        let next = self.next;
        let buffer = &mut self.slots()[next];
        buffer.at = buffer.at + n;
        buffer.len -= n;
        self.left -= n;
    }

    /// Moves up to `len` bytes with `copy(address, bytes done, bytes)`. `copy` fails as a whole;
    /// it is repeated page by page to find out how far it can go.
    fn transfer(
        &mut self,
        len: usize,
        mut copy: impl FnMut(VirtAddr, usize, usize) -> core::result::Result<(), BadAddress>,
    ) -> Result<usize> {
        let mut done = 0;
        while done < len {
            let Buffer { at, len: n } = self.front(len - done);
            if n == 0 {
                break;
            }
            if copy(at, done, n).is_ok() {
                self.advance(n);
                done += n;
                continue;
            }
            let piece = n.min(PAGE_SIZE - at.page_offset());
            if piece == n || copy(at, done, piece).is_err() {
                return moved(done, Err(Errno::EFAULT));
            }
            self.advance(piece);
            done += piece;
        }
        Ok(done)
    }
}

/// Returns the error of a system call for a fault in a buffer.
fn errno(fault: Fault) -> Errno {
    match fault {
        Fault::OutOfMemory => Errno::ENOMEM,
        _ => Errno::EFAULT,
    }
}

/// Returns the address and the count of the whole pages that a buffer begins with.
fn pages_of(Buffer { at, len }: Buffer) -> (VirtAddr, usize) {
    match at.page_offset() {
        0 => (at, len / PAGE_SIZE),
        _ => (at, 0),
    }
}

/// Ways other than a copy.
impl UserBuffers {
    /// Goes on behind the next `n` bytes, which were moved, in as many buffers as they fill.
    pub fn skip(&mut self, mut n: usize) {
        while n > 0 {
            let Buffer { len, .. } = self.front(n);
            if len == 0 {
                break;
            }
            self.advance(len);
            n -= len;
        }
    }

    /// Returns where in the program's memory the next bytes are, and how many stand together.
    pub(crate) fn target(&mut self) -> Option<(VirtAddr, usize)> {
        let Buffer { at, len } = self.front(usize::MAX);
        (len > 0).then_some((at, len))
    }

    /// Returns how many pages, `most` at most, it would take as they are now, in the place of its
    /// own, rather than their bytes.
    ///
    /// # Errors
    /// Why it takes none.
    pub fn places(&mut self, most: usize) -> core::result::Result<usize, CopyReason> {
        let front = self.front(usize::MAX);
        let (_, pages) = pages_of(front);
        vm::takes_pages(front.len, pages, most).map(|()| most.min(pages))
    }

    /// Takes pages out of `pages`, from the first one on, in the place of its own (page transfer,
    /// `uvm.txt` 7); returns how many. The others are offered as bytes next.
    pub fn take_pages(&mut self, pages: &mut [Option<Owned>]) -> usize {
        self.move_pages(pages, |map, at, pages| map.receive(at, pages))
    }

    /// Judges whether [`lend`](UserBuffers::lend) is worth a try now, of `most` pages at most.
    ///
    /// # Errors
    /// Why it is not.
    pub fn lends(&mut self, most: usize) -> core::result::Result<(), CopyReason> {
        let front = self.front(usize::MAX);
        let (_, pages) = pages_of(front);
        vm::lends_pages(front.len, pages, most)
    }

    /// Lends its next whole pages (page loanout, `uvm.txt` 7), as many as `pages` has places for at
    /// most, and goes on behind them; returns how many. No spin lock is held.
    pub fn lend(&mut self, pages: &mut [Option<Owned>]) -> usize {
        self.move_pages(pages, |map, at, pages| map.lend(at, pages))
    }

    /// As [`lend`](UserBuffers::lend), with partial pages at both ends of a buffer. A buffer of
    /// less than a page is lent only if it begins with one. Where a buffer has more than `most`
    /// bytes, what is lent ends with a page. Returns the number of pages, the offset of the bytes
    /// in the first one, and their number.
    ///
    /// # Errors
    /// Why none is lent.
    pub(crate) fn lend_unaligned(
        &mut self,
        pages: &mut [Option<Owned>],
        most: usize,
    ) -> core::result::Result<(usize, usize, usize), CopyReason> {
        let Buffer { at, mut len } = self.front(usize::MAX);
        let first = at.page_offset();
        if len == 0 || len < PAGE_SIZE && first > 0 {
            return Err(CopyReason::Unaligned);
        }
        if len > most {
            len = ((first + most) & !(PAGE_SIZE - 1)).saturating_sub(first);
        }
        if len == 0 || pages.is_empty() {
            return Err(CopyReason::NoRoom);
        }
        let count = (first + len).div_ceil(PAGE_SIZE).min(pages.len());
        let base = VirtAddr(at.0 - first);
        match vm::with_current(|map| map.lend(base, &mut pages[..count])) {
            None | Some(0) => Err(CopyReason::NotLent),
            Some(lent) => {
                let len = len.min(lent * PAGE_SIZE - first);
                self.advance(len);
                Ok((lent, first, len))
            }
        }
    }

    /// As [`lends`](UserBuffers::lends) and [`lend`](UserBuffers::lend) in one.
    ///
    /// # Errors
    /// Why none is lent.
    pub(crate) fn lend_if_worth(
        &mut self,
        pages: &mut [Option<Owned>],
    ) -> core::result::Result<usize, CopyReason> {
        self.move_pages_if_worth(pages, CopyReason::NotLent, |map, at, pages| {
            map.lend_if_worth(at, pages)
        })
    }

    /// As [`places`](UserBuffers::places) and [`take_pages`](UserBuffers::take_pages) in one.
    ///
    /// # Errors
    /// Why none is taken.
    pub(crate) fn take_if_worth(
        &mut self,
        pages: &mut [Option<Owned>],
    ) -> core::result::Result<usize, CopyReason> {
        self.move_pages_if_worth(pages, CopyReason::NotTaken, |map, at, pages| {
            map.receive_if_worth(at, pages)
        })
    }

    /// As [`move_pages`](UserBuffers::move_pages), if the next bytes begin with enough whole pages.
    ///
    /// # Errors
    /// Why none is moved: `none` if `f` moves none and does not say.
    #[inline(always)]
    fn move_pages_if_worth(
        &mut self,
        pages: &mut [Option<Owned>],
        none: CopyReason,
        f: impl FnOnce(
            &Arc<Map>,
            VirtAddr,
            &mut [Option<Owned>],
        ) -> core::result::Result<usize, CopyReason>,
    ) -> core::result::Result<usize, CopyReason> {
        let front = self.front(usize::MAX);
        if pages_of(front).1 * PAGE_SIZE < vm::least_move() {
            return Err(vm::reason_to_copy(front.len));
        }
        let mut why = none;
        let moved = self.move_pages(pages, |map, at, pages| {
            f(map, at, pages).unwrap_or_else(|reason| {
                why = reason;
                0
            })
        });
        (moved > 0).then_some(moved).ok_or(why)
    }

    /// Goes on behind the next whole pages, as many as `f` moves: `pages.len()` at most.
    fn move_pages(
        &mut self,
        pages: &mut [Option<Owned>],
        f: impl FnOnce(&Arc<Map>, VirtAddr, &mut [Option<Owned>]) -> usize,
    ) -> usize {
        let (at, most) = pages_of(self.front(usize::MAX));
        let most = most.min(pages.len());
        let moved = vm::with_current(|map| f(map, at, &mut pages[..most])).unwrap_or(0);
        if moved > 0 {
            self.advance(moved * PAGE_SIZE);
        }
        moved
    }

    /// Copies its next bytes to `to`, as far as their pages are mapped, and goes on behind them;
    /// returns how many. No fault is resolved: locks may be held.
    pub(crate) fn take_mapped(&mut self, to: &Mapping<'_>, place: Range<usize>) -> usize {
        self.move_mapped(place, |at, offset, n| {
            user::copy_in_page_if_mapped(to, offset, at, n)
        })
    }

    /// Copies bytes of `from` to where its next bytes are, as [`take_mapped`](Self::take_mapped)
    /// does the other way.
    pub(crate) fn put_mapped(&mut self, from: &Mapping<'_>, place: Range<usize>) -> usize {
        self.move_mapped(place, |at, offset, n| {
            user::copy_out_page_if_mapped(at, from, offset, n)
        })
    }

    /// Goes on behind what `copy(address, offset in the page, bytes)` says that it has moved.
    #[inline(always)]
    fn move_mapped(
        &mut self,
        mut place: Range<usize>,
        mut copy: impl FnMut(VirtAddr, usize, usize) -> usize,
    ) -> usize {
        let first = place.start;
        while !place.is_empty() {
            let Buffer { at, len } = self.front(place.len());
            let n = copy(at, place.start, len);
            self.advance(n);
            place.start += n;
            if n < len || len == 0 {
                break;
            }
        }
        place.start - first
    }

    /// Receives whole pages of another address space in the place of its next ones; returns how
    /// many bytes that are, a few pages at most, and goes on behind them. See [`Map::pass_to`].
    ///
    /// # Errors
    /// Why they are to be copied.
    pub(crate) fn receive_from(
        &mut self,
        map: &Map,
        from: VirtRange,
    ) -> core::result::Result<usize, CopyReason> {
        let Buffer { at, len } = self.front(from.len());
        let pages = vm::with_current(|own| map.pass_to(from.start, own, at, len))
            .unwrap_or(Err(CopyReason::NotTaken))?;
        self.advance(pages * PAGE_SIZE);
        Ok(pages * PAGE_SIZE)
    }

    /// Makes the page of its next byte fit for an access. No lock is held that a fault takes.
    ///
    /// # Errors
    /// `EFAULT`, `ENOMEM`.
    pub(crate) fn bring_in(&mut self, access: Access) -> Result<()> {
        let Buffer { at, .. } = self.front(1);
        vm::with_current(|map| map.bring_in(at, access))
            .ok_or(Errno::EFAULT)?
            .map_err(errno)
    }

    /// Returns the bits in which the address or the length of any of its pieces is not 0: the
    /// pieces are aligned to a power of two that is in or below the lowest one.
    pub fn unaligned_bits(&mut self) -> usize {
        let next = self.next;
        let left = self.slots()[next..].iter().filter(|buffer| buffer.len > 0);
        left.fold(0, |bits, buffer| bits | buffer.at.0 | buffer.len)
    }

    /// Pins the next bytes, `most` at most, for a device that reads or writes them; the caller
    /// [goes on](UserBuffers::skip) behind those that it has moved. Fewer where the program's
    /// memory ends or may not be accessed. No lock is held that a fault takes.
    ///
    /// # Errors
    /// `EFAULT` if none can be accessed; `ENOMEM`.
    pub fn pin(&mut self, most: usize, access: Access) -> Result<PinnedPages> {
        let next = self.next;
        let mut ranges = self.slots()[next..].iter().filter(|buffer| buffer.len > 0);
        let range = |buffer: &Buffer, most: usize| {
            VirtRange::new(buffer.at, buffer.at + buffer.len.min(most))
        };
        let first = range(ranges.next().ok_or(Errno::EFAULT)?, most);
        let pinned = vm::with_current(|map| map.pin(first, access)).ok_or(Errno::EFAULT)?;
        let mut pinned = pinned.map_err(errno)?;
        let mut wanted = first.len();
        for buffer in ranges {
            if pinned.len() < wanted || wanted >= most {
                break;
            }
            let range = range(buffer, most - wanted);
            wanted += range.len();
            // What was pinned before counts.
            if pinned.add(range).is_err() {
                break;
            }
        }
        Ok(pinned)
    }
}

impl Sink for UserBuffers {
    fn room(&self) -> usize {
        self.left
    }

    fn program_memory(&mut self) -> Option<&mut UserBuffers> {
        Some(self)
    }

    fn put_frame(&mut self, frame: &Frame, offset: usize, len: usize) -> Result<usize> {
        self.transfer(len, |at, done, n| {
            user::copy_out_page(at, frame, offset + done, n)
        })
    }

    fn put_bytes(&mut self, bytes: &[u8]) -> Result<usize> {
        self.transfer(bytes.len(), |at, done, n| {
            user::copy_out(at, &bytes[done..done + n])
        })
    }

    fn put_zeros(&mut self, len: usize) -> Result<usize> {
        self.transfer(len, |at, _, n| user::clear(at, n))
    }
}

impl Source for UserBuffers {
    fn left(&self) -> usize {
        self.left
    }

    fn program_memory(&mut self) -> Option<&mut UserBuffers> {
        Some(self)
    }

    fn take_into(&mut self, frame: &Frame, offset: usize, len: usize) -> Result<usize> {
        self.transfer(len, |at, done, n| {
            user::copy_in_page(frame, offset + done, at, n)
        })
    }

    fn take_bytes(&mut self, to: &mut [u8]) -> Result<usize> {
        self.transfer(to.len(), |at, done, n| {
            user::copy_in(&mut to[done..done + n], at)
        })
    }
}
