//! Reading files: pages that are not in memory come in clusters, straight into their frames.

use core::ops::Range;

use abi::{Errno, Result};
use fbuf::{Sink, View};
use nucleus::{Frame, PAGE_SIZE, ephemeral};
use vm::PagerError;

use super::{content::Content, node::Node};
use crate::page_cache::{PAGE, SHORTAGE, reclaim_clean};

impl Content {
    /// As [`Vnode::read`](crate::Vnode::read). A read that would report the end asks the server,
    /// once, whether it still is there.
    pub(super) fn read_asking(&self, node: &Node, offset: u64, to: &mut dyn Sink) -> Result<usize> {
        let done = self.read(offset, to)?;
        if done > 0 || to.room() == 0 || offset < self.size() {
            return Ok(done);
        }
        let now = node.recent()?.size;
        if offset >= now {
            return Ok(0);
        }
        self.grow(now);
        self.read(offset, to)
    }

    /// Notes that it has grown on the server: the last page, with zeros beyond the old end, is
    /// stale.
    fn grow(&self, size: u64) {
        let old = self.size();
        if !old.is_multiple_of(PAGE) {
            self.discard(old / PAGE..old / PAGE + 1);
        }
        self.extend_to(size);
    }

    /// Makes page `index` resident, with those of `window` around it that are not and that one
    /// message can bring.
    ///
    /// # Errors
    /// [`PagerError::BeyondEnd`] if it is not in the file; the known size is right then.
    pub(super) fn read_in(
        &self,
        node: &Node,
        index: u64,
        window: Range<u64>,
    ) -> core::result::Result<(), PagerError> {
        let size = self.size();
        let pages = size.div_ceil(PAGE);
        if index >= pages {
            return Err(PagerError::BeyondEnd);
        }
        let fid = node.open_handle(false).map_err(|_| PagerError::Io)?;
        let most = (fid.client.max_data() / PAGE_SIZE).max(1) as u64;
        let mut window = window.start.min(index)..window.end.clamp(index + 1, pages);
        if window.end - window.start > most {
            window = index..window.end.min(index + most);
        }
        let busy = loop {
            match self.object.set_busy(index, window.clone()) {
                Err(PagerError::OutOfMemory)
                    if reclaim_clean(SHORTAGE) > 0
                        || vm::wait_for_memory() == vm::MemoryWait::Retry => {}
                busy => break busy?,
            }
        };
        let Some(busy) = busy else {
            return Ok(());
        };
        let first = busy.first();
        let room = busy.frames().len() as u64 * PAGE;
        let wanted = (size - first * PAGE).min(room) as usize;
        let read = read_frames(wanted, busy.frames(), &mut |done, slices| {
            fid.read(first * PAGE + done as u64, slices)
        });
        let read = read.map_err(|error| match error {
            Errno::ENOMEM => PagerError::OutOfMemory,
            _ => PagerError::Io,
        })?;
        let count = read.div_ceil(PAGE_SIZE);
        if let Some(last) = count.checked_sub(1) {
            let used = read - last * PAGE_SIZE;
            ephemeral::map(&busy.frames()[last]).fill(used, PAGE_SIZE - used, 0);
        }
        self.store.listing.note_resident();
        busy.publish(count);
        if read < wanted {
            self.shrunk(node, first * PAGE + read as u64)?;
            if index >= first + count as u64 {
                return Err(PagerError::BeyondEnd);
            }
        }
        Ok(())
    }

    /// The server had nothing at `end`, which should be inside of the file.
    fn shrunk(&self, node: &Node, end: u64) -> core::result::Result<(), PagerError> {
        let now = node.refresh().map_err(|_| PagerError::Io)?;
        // A file that claims to be longer than can be read of it can't be mapped.
        let size = now.size.min(end);
        if size < self.size() {
            self.drop_pages(size.div_ceil(PAGE)..u64::MAX, Some(size));
        }
        Ok(())
    }
}

/// Reads `wanted` bytes into frames with `read`, which may return fewer at a time; returns how many
/// there were.
fn read_frames(
    wanted: usize,
    frames: &[Frame],
    read: &mut dyn FnMut(usize, &[View]) -> Result<usize>,
) -> Result<usize> {
    let mut slices = nucleus::try_vec(frames.len())?;
    let mut done = 0;
    while done < wanted {
        slices.clear();
        slices.extend(slices_of(frames, done, wanted));
        match read(done, &slices)? {
            0 => break,
            n => done += n.min(wanted - done),
        }
    }
    Ok(done)
}

/// The bytes `from..to` of frames in a row.
pub(super) fn slices_of(frames: &[Frame], from: usize, to: usize) -> impl Iterator<Item = View> {
    let first = from / PAGE_SIZE;
    frames[first..]
        .iter()
        .enumerate()
        .map_while(move |(i, frame)| {
            let start = (first + i) * PAGE_SIZE;
            let offset = from.max(start) - start;
            let end = to.min(start + PAGE_SIZE).checked_sub(start)?;
            (end > offset).then(|| View::of(frame, offset, end - offset))
        })
}
