//! Writing files: bytes go to the server before a call returns, and into the cached pages.

use alloc::vec::Vec;
use core::{ops::Range, sync::atomic::Ordering};

use abi::{Errno, Result};
use fbuf::{Source, View};
use nucleus::{
    Frame, PAGE_SIZE, ephemeral,
    frame::Owned,
    pmap::{self, Pending},
};
use vm::PagerError;

use super::{client::Fid, content::Content, node::Node, reading::slices_of};
use crate::page_cache::{PAGE, SizeLimit, new_page};

/// Bytes on their way to the server.
struct Batch {
    slices: Vec<View>,
    len: usize,
    /// Whole new pages, to replace the cached ones, and the end of each in the batch.
    whole: Vec<(u64, Owned, usize)>,
    /// Pages that were written in part; `true` if the bytes went into the page that is in memory.
    parts: [Option<(u64, bool)>; 2],
}

impl Content {
    /// As [`FileData::write_within`](crate::vnode::FileData::write_within).
    pub(super) fn write_served(
        &self,
        node: &Node,
        limit: &SizeLimit,
        offset: u64,
        append: bool,
        from: &mut dyn Source,
    ) -> Result<(usize, u64)> {
        let _turn = self.writers.write();
        let start = match append {
            true => node.refresh()?.size,
            false => offset,
        };
        if from.left() == 0 {
            return Ok((0, start));
        }
        let most = self.store.properties.size_max.saturating_sub(start);
        let room = limit.room(start)?.min(most);
        if room == 0 {
            return Err(Errno::EFBIG);
        }
        let len = from.left().min(usize::try_from(room).unwrap_or(usize::MAX));
        let fid = node.open_handle(true)?;
        if start + len as u64 > self.size() {
            self.clear_behind_end(self.size(), start)?;
        }
        self.store.written.store(true, Ordering::Release);
        let mut done = 0;
        let mut result = Ok(());
        while done < len && result.is_ok() {
            let at = start + done as u64;
            let gathered = self.gather(&fid, at, len - done, from);
            let (batch, end) = match gathered {
                Ok(batch) => (batch, Ok(())),
                Err((batch, error)) => (batch, Err(error)),
            };
            let (n, sent) = send(&fid, at, &batch.slices, batch.len);
            self.settle_batch(at, batch, n);
            done += n;
            self.extend_to(start + done as u64);
            result = sent.and(end);
            if n == 0 {
                break;
            }
        }
        node.forget_attributes();
        match result {
            Err(error) if done == 0 => Err(error),
            _ => Ok((done, start + done as u64)),
        }
    }

    /// Takes up to `max` bytes for byte `at` on out of `from`, as many as one message carries. An
    /// error comes with the bytes that were taken before it.
    fn gather(
        &self,
        fid: &Fid,
        at: u64,
        max: usize,
        from: &mut dyn Source,
    ) -> core::result::Result<Batch, (Batch, Errno)> {
        let mut batch = Batch {
            slices: Vec::new(),
            len: 0,
            whole: Vec::new(),
            parts: [None; 2],
        };
        // The first and the last page are cut by the borders of the data, not of the message.
        let most = fid.client.max_data() - (at % PAGE) as usize;
        let max = max.min(most);
        let pages = max.div_ceil(PAGE_SIZE) + 1;
        let reserved = batch.slices.try_reserve_exact(pages);
        if reserved.is_err() || batch.whole.try_reserve_exact(pages).is_err() {
            return Err((batch, Errno::ENOMEM));
        }
        while batch.len < max && from.left() > 0 {
            let here = at + batch.len as u64;
            let in_page = (here % PAGE) as usize;
            let n = (PAGE_SIZE - in_page).min(max - batch.len).min(from.left());
            let taken = match n == PAGE_SIZE {
                true => self.take_page(here / PAGE, from, &mut batch),
                false => self.take_part(here / PAGE, in_page, n, from, &mut batch),
            };
            match taken {
                Ok(taken) if taken == n => {}
                Ok(0) => break,
                Ok(_) => {
                    // A page that came in part only ends the batch: the next one begins in it.
                    break;
                }
                Err(error) => return Err((batch, error)),
            }
        }
        Ok(batch)
    }

    /// Takes a whole page: it replaces the cached one when the server has it. Without a copy where
    /// the source can.
    fn take_page(&self, index: u64, from: &mut dyn Source, batch: &mut Batch) -> Result<usize> {
        let (frame, n) = match from.take_slice(PAGE_SIZE) {
            Some(slice) => match slice.into_page() {
                Ok(page) => {
                    let mut pending = Pending::new();
                    // The stores of earlier mappings are being written now.
                    pmap::clear_modified(&page, &mut pending);
                    pending.flush();
                    (page, PAGE_SIZE)
                }
                Err(slice) => {
                    let frame = new_page()?;
                    ephemeral::copy(&frame, 0, slice.frame(), slice.offset, slice.len);
                    (Owned::new(frame), slice.len)
                }
            },
            None => {
                let frame = new_page()?;
                let n = from.take_into(&frame, 0, PAGE_SIZE)?;
                (Owned::new(frame), n)
            }
        };
        if n == 0 {
            return Ok(0);
        }
        batch.add(&frame, 0, n);
        match n == PAGE_SIZE {
            true => batch.whole.push((index, frame, batch.len)),
            false => batch.note_part(index, false),
        }
        Ok(n)
    }

    /// A part of a page: into the page that is in memory, if it is.
    fn take_part(
        &self,
        index: u64,
        at: usize,
        n: usize,
        from: &mut dyn Source,
        batch: &mut Batch,
    ) -> Result<usize> {
        let resident = self.own_page(index)?;
        let (frame, in_memory) = match resident {
            Some(frame) => (frame, true),
            None => (new_page()?, false),
        };
        let n = from.take_into(&frame, at, n)?;
        if n > 0 {
            batch.add(&frame, at, n);
            batch.note_part(index, in_memory);
        }
        Ok(n)
    }

    /// Updates the cached pages after the server has taken the first `n` bytes of a batch.
    fn settle_batch(&self, at: u64, batch: Batch, n: usize) {
        for (index, frame, end) in batch.whole {
            if end <= n {
                self.store.listing.note_resident();
                if self.object.replace(index, frame, || true).is_err() {
                    // The old page must not stay; that it goes needs no memory.
                    self.drop_pages(index..index + 1, None);
                }
            } else if end < n + PAGE_SIZE {
                self.drop_pages(index..index + 1, None);
            }
        }
        for (index, in_memory) in batch.parts.into_iter().flatten() {
            // A concurrent read may have brought the old bytes; and the refused bytes are not in
            // the file.
            let end = ((index + 1) * PAGE).min(at + batch.len as u64);
            let refused = end > at + n as u64;
            if !in_memory || refused {
                self.drop_pages(index..index + 1, None);
            }
        }
    }

    /// Writes pages among `pages` that mappings have modified to the server.
    pub(super) fn write_back_mapped(
        &self,
        node: &Node,
        pages: Range<u64>,
    ) -> core::result::Result<(), PagerError> {
        if !self.was_mapped_writable.load(Ordering::Acquire) {
            return Ok(());
        }
        let most = node.fid().client.max_data() / PAGE_SIZE;
        let put = self.object.write_back(pages, most, &mut |first, frames| {
            let at = first * PAGE;
            let left = self.size().saturating_sub(at);
            let len = usize::try_from(left).map_or(usize::MAX, |left| left);
            let len = len.min(frames.len() * PAGE_SIZE);
            if len == 0 {
                // Behind the end, there is nothing to keep.
                return Ok(());
            }
            self.store.written.store(true, Ordering::Release);
            node.forget_attributes();
            let mut slices = nucleus::try_vec(frames.len())?;
            slices.extend(slices_of(frames, 0, len));
            let fid = node.open_handle(true);
            let sent = fid.and_then(|fid| send(&fid, at, &slices, len).1);
            sent.map_err(|error| match error {
                Errno::ENOMEM => PagerError::OutOfMemory,
                _ => PagerError::Io,
            })
        });
        // Without memory the pages stay modified, and are written later.
        if put == Err(PagerError::Io) {
            self.store.lost.store(true, Ordering::Release);
        }
        put
    }
}

impl Batch {
    fn add(&mut self, frame: &Frame, offset: usize, len: usize) {
        self.slices.push(View::of(frame, offset, len));
        self.len += len;
    }

    /// There are two at most: where the data begins, and where it ends.
    fn note_part(&mut self, index: u64, in_memory: bool) {
        let free = self.parts.iter_mut().find(|part| part.is_none());
        debug_assert!(free.is_some(), "a batch has more than two pages in part");
        if let Some(part) = free {
            *part = Some((index, in_memory));
        }
    }
}

/// Sends `len` bytes of slices to byte `at` on, in as many messages as the server needs. Returns
/// how many it took, and why not all.
fn send(fid: &Fid, at: u64, slices: &[View], len: usize) -> (usize, Result<()>) {
    let mut done = 0;
    let mut rest: Option<Vec<View>> = None;
    while done < len {
        match fid.write(at + done as u64, rest.as_deref().unwrap_or(slices)) {
            // A server that takes nothing and gives no reason has no room.
            Ok(0) => return (done, Err(Errno::ENOSPC)),
            Ok(n) => done += n,
            Err(error) => return (done, Err(error)),
        }
        if done < len {
            match after(slices, done) {
                Ok(left) => rest = Some(left),
                Err(error) => return (done, Err(error)),
            }
        }
    }
    (done, Ok(()))
}

/// Returns the slices without their first `n` bytes.
fn after(slices: &[View], n: usize) -> Result<Vec<View>> {
    let mut skip = n;
    let mut left = nucleus::try_vec(slices.len())?;
    for slice in slices {
        let cut = skip.min(slice.len);
        skip -= cut;
        if cut < slice.len {
            let (offset, len) = (slice.offset + cut, slice.len - cut);
            left.push(View::of(&slice.frame, offset, len));
        }
    }
    Ok(left)
}
