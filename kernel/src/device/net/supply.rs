//! Frames for the buffers of a device, and those of packets, which come back.
//!
//! A buffer of several pages begins with two frames and goes on with blocks
//! ([`Frame::alloc_block`]) that are as large as all before them: 1, 1, 2, 4, 8 pages, and one
//! more. So the longest packet has six slices in place of 17, and a packet keeps at most a page
//! more than twice its bytes. By `bench network --busy`, see `docs/performance.md`.
//!
//! Frames are zeroed, so that a device that says to have written more than it has shows nothing of
//! others. Those that only this device has written to need not be: it could as well hand over the
//! same bytes again.

use alloc::{collections::VecDeque, vec::Vec};

use nucleus::{
    Frame, OutOfMemory, dma,
    ephemeral::{self, Backend},
    frame::{self, Contents, LARGEST_BLOCK},
};

/// Frames or blocks of each order in a packet.
const IN_PACKET: [usize; LARGEST_BLOCK + 1] = [3, 1, 1, 1];
/// Where blocks are not used, frames in a packet.
const SINGLE: usize = 17;
/// Frames that are taken one by one after there was no block.
const PATIENCE: usize = 1024;

/// Where frames come from, and go.
pub struct Supply {
    /// Frames and blocks of packets that only slices show, whose parts become no page of anything:
    /// only the device writes to them. By order.
    given: [VecDeque<Frame>; LARGEST_BLOCK + 1],
    /// Packets whose frames are remembered.
    packets: usize,
    /// Pages of packets end at those of the buffer: there are no blocks.
    has_pages: bool,
    /// Frames to be taken before another attempt to take a block.
    singles: usize,
}

impl Supply {
    /// Makes a supply that remembers the frames of so many of the longest packets, without blocks
    /// if packets are to fill pages. Those of a receive buffer that has grown are zeroed anew where
    /// it remembers fewer, which takes a sixth of a packet's instructions.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(packets: usize, has_pages: bool) -> Result<Supply, OutOfMemory> {
        let mut supply = Supply {
            given: [const { VecDeque::new() }; LARGEST_BLOCK + 1],
            packets,
            has_pages,
            singles: 0,
        };
        for order in 0..=LARGEST_BLOCK {
            let most = supply.most(order);
            let room = supply.given[order].try_reserve_exact(most);
            room.map_err(|_| OutOfMemory)?;
        }
        Ok(supply)
    }

    /// Adds frames to a buffer, the last one first, until its first one is there: `missing` pages.
    /// Returns how many pages were added.
    pub fn fill(&mut self, buffer: &mut Vec<Frame>, missing: usize) -> usize {
        if frame::is_scarce() {
            self.clear();
        }
        let mut left = missing;
        while left > 0 {
            let Some(frame) = self.take_before(left) else {
                break;
            };
            left -= frame.frames();
            buffer.push(frame);
        }
        missing - left
    }

    /// Takes a frame or block that ends `end` pages behind the beginning of a buffer.
    fn take_before(&mut self, end: usize) -> Option<Frame> {
        // As large as what is before it, and no larger than what is left.
        let begin = (end - 1).checked_ilog2().map_or(0, |order| 1 << order);
        let order = ((end - begin).ilog2() as usize).min(LARGEST_BLOCK);
        if order > 0 && self.may_have_blocks() {
            let block = self.take(order);
            if block.is_some() {
                return block;
            }
            self.singles = PATIENCE;
        }
        self.singles = self.singles.saturating_sub(1);
        let frame = self.take(0);
        if frame.is_none() {
            self.clear();
        }
        frame
    }

    /// Whether blocks are worth an attempt: where mappings and remapping units know pages only,
    /// they are not.
    fn may_have_blocks(&self) -> bool {
        !self.has_pages
            && self.singles == 0
            && dma::takes_blocks()
            && ephemeral::backend() == Backend::Direct
    }

    /// Takes a frame or block that shows nothing of others.
    fn take(&mut self, order: usize) -> Option<Frame> {
        let given = &mut self.given[order];
        match given.front() {
            Some(first) if first.handles() == 1 => given.pop_front(),
            // Packets that wait for their program are passed over.
            Some(_) => {
                given.rotate_left(1);
                Frame::alloc_block(order, Contents::Zeroed).ok()
            }
            None => Frame::alloc_block(order, Contents::Zeroed).ok(),
        }
    }

    /// Notes a frame or block of a packet, which is used again when no slice shows it.
    pub fn keep(&mut self, frame: Frame) {
        let order = frame.frames().ilog2() as usize;
        let most = self.most(order);
        let list = &mut self.given[order];
        if list.len() == most {
            list.pop_front();
        }
        list.push_back(frame);
    }

    /// Forgets all of them: memory is short.
    fn clear(&mut self) {
        self.given.iter_mut().for_each(VecDeque::clear);
    }

    /// Returns how many frames or blocks of an order are remembered.
    fn most(&self, order: usize) -> usize {
        match (self.has_pages, order) {
            (true, 0) => self.packets,
            (true, _) => 0,
            (false, 0) => self.packets * SINGLE,
            (false, order) => self.packets * IN_PACKET[order],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nucleus::{
        PAGE_SIZE,
        frame::DirectMap,
        sim::{below, on_machines_with},
    };

    /// However much of a buffer was used before, a packet of any length keeps at most a page more
    /// than twice its pages, and a long one is few slices.
    #[test]
    fn packets_keep_little_more_than_their_bytes() {
        on_machines_with("frames for buffers", [1], 4096, 10, || {
            let mut supply = Supply::new(4, false).unwrap();
            let (mut buffer, mut pages) = (Vec::new(), 0);
            let has_blocks = supply.may_have_blocks() && frame::direct_map() == DirectMap::All;
            for _ in 0..200 {
                pages += supply.fill(&mut buffer, SINGLE - pages);
                assert_eq!(pages, SINGLE);
                let len = 1 + below(SINGLE * PAGE_SIZE);
                let (mut left, mut kept, mut slices) = (len, 0, 0);
                while left > 0 {
                    let frame = buffer.pop().unwrap();
                    left -= left.min(frame.size());
                    kept += frame.frames();
                    slices += 1;
                    supply.keep(frame);
                }
                pages -= kept;
                assert!(kept <= 2 * len.div_ceil(PAGE_SIZE) + 1, "{len}: {kept}");
                assert!(slices <= 6 || !has_blocks, "{len}: {slices}");
            }
        });
    }
}
