//! Blocks: neighbouring frames that are one buffer of a device.
//!
//! A block has one record in use, that of its first frame, and its handles are handles of that
//! frame: all of the block is free when the last one goes. So the bytes of a long packet cost one
//! count where they would cost one for each page. The other frames have no handle, and nothing
//! reaches them but by the first one. A block is in the direct map: an [ephemeral
//! mapping](crate::ephemeral) of its first frame reaches all of it. It is never mapped for a
//! program beyond its first page. Remapping units map its pages in a row, and the first one's
//! record counts [what is held](super::held) for that.

use super::{
    Contents, Depth, Frame, OutOfMemory, buddy, cache, check_junk, counts, directmap, fails,
    make_free, record::Type, record::bytes, record::record, refuses_blocks, targets,
};
use crate::PAGE_SIZE;
use crate::counters::Counter;

/// The largest order: 32 KiB.
pub const LARGEST_BLOCK: usize = 3;

impl Frame {
    /// Takes a block of 2^`order` frames, for a device. Order 0 is any frame. Nothing that is kept
    /// ready is given up for it.
    ///
    /// # Errors
    /// [`OutOfMemory`]: there are no such frames in a row, or not all memory is in the direct map.
    pub fn alloc_block(order: usize, contents: Contents) -> Result<Frame, OutOfMemory> {
        if order == 0 {
            return Frame::alloc(contents);
        }
        let is_possible = order <= LARGEST_BLOCK
            && directmap::first_place(Depth::Data) == directmap::Place::Direct;
        if !is_possible || fails() || refuses_blocks() {
            return Err(OutOfMemory);
        }
        let first = buddy::take(order, Depth::Block).ok_or(OutOfMemory)?;
        targets::look();
        for index in first..first + (1 << order) {
            check_junk(index);
            record(index).set_kind(Type::Free, Type::Writable);
            counts::start(index);
        }
        record(first).set_block(order);
        if contents == Contents::Zeroed {
            // SAFETY: the frames have just been taken from the free ones, so nothing else uses
            // them; they lie in a row in the direct map, as `Depth::Block` promises.
            unsafe { core::ptr::write_bytes(bytes(first), 0, PAGE_SIZE << order) };
            Counter::pages_zeroed.add(1 << order);
        }
        Ok(Frame { index: first })
    }

    /// The number of frames that the handle keeps: 1, or those of a block.
    #[inline]
    pub fn frames(&self) -> usize {
        1 << record(self.index).order()
    }

    /// The bytes that the handle reaches: a page, or those of a block.
    #[inline]
    pub fn size(&self) -> usize {
        PAGE_SIZE << record(self.index).order()
    }

    /// Whether it is one of a block, which is in the direct map.
    #[inline]
    pub(crate) fn is_block(&self) -> bool {
        record(self.index).order() > 0
    }

    /// Checks that the frame is one of a block with `len` bytes from `offset` on.
    ///
    /// # Panics
    /// If it is not.
    #[cold]
    #[inline(never)]
    pub(crate) fn check_in_block(&self, offset: usize, len: usize) {
        let size = self.size();
        assert!(
            offset <= size && len <= size - offset && self.is_direct(),
            "an access of {len} bytes at {offset} goes beyond the page"
        );
    }
}

/// Frees a block, whose last handle is gone.
#[cold]
#[inline(never)]
pub(super) fn free(first: u32, order: usize) {
    let frames = first..first + (1 << order);
    for index in frames.clone() {
        make_free(index);
    }
    cache::give_block(frames);
}

#[cfg(all(test, not(target_os = "none")))]
mod tests {
    extern crate std;

    use super::*;
    use crate::ephemeral;
    use crate::frame::{Bundle, Owned, usage};
    use crate::sim::{below, on_machines_with};
    use std::vec::Vec;

    /// Blocks hold what is written anywhere in them, and go as a whole, by whatever way the last
    /// handle goes.
    #[test]
    fn blocks_are_one_buffer() {
        on_machines_with("blocks are one buffer", [1, 2], 1024, 20, || {
            let before = usage();
            for _ in 0..20 {
                let mut blocks = Vec::new();
                let mut held = 0;
                while let Ok(block) = Frame::alloc_block(below(4), Contents::Zeroed) {
                    held += block.frames();
                    assert_eq!(block.size(), block.frames() * PAGE_SIZE);
                    blocks.push(block);
                    if below(20) == 0 {
                        break;
                    }
                }
                assert_eq!(usage().data, before.data + held);
                for (n, block) in blocks.iter().enumerate() {
                    let view = ephemeral::map(block);
                    view.fill(0, block.size(), n as u8);
                }
                for (n, block) in blocks.iter().enumerate() {
                    let mut byte = [0; 3];
                    let at = below(block.size() - 2);
                    ephemeral::map(block).read(at, &mut byte);
                    assert_eq!(byte, [n as u8; 3]);
                }
                let mut bundle = Bundle::new();
                for block in blocks {
                    let size = block.frames();
                    match below(4) {
                        0 => bundle.add(block),
                        1 => drop(Owned::new(block)),
                        2 => {
                            let (own, other) = (Owned::new(block.clone()), block);
                            drop(own.clone());
                            assert_eq!(own.frames(), size);
                            drop(other);
                            bundle.add_owned(own);
                        }
                        _ => drop(block),
                    }
                }
                drop(bundle);
                assert_eq!(usage().data, before.data);
                assert_eq!(usage().free, before.free);
            }
        });
    }

    /// A block that was taken before mappings came from the window is copied beside one of these.
    #[test]
    fn blocks_take_no_address_of_the_window() {
        on_machines_with("blocks beside the window", [1], 1024, 5, || {
            let Ok(block) = Frame::alloc_block(3, Contents::Zeroed) else {
                return;
            };
            let page = Frame::alloc(Contents::Zeroed).unwrap();
            ephemeral::set_backend(ephemeral::Backend::Window).unwrap();
            let last = block.size() - 5;
            ephemeral::map(&block).fill(last, 5, 9);
            ephemeral::copy(&page, 7, &block, last, 5);
            let mut bytes = [0; 5];
            ephemeral::map(&page).read(7, &mut bytes);
            assert_eq!(bytes, [9; 5]);
            let flags = ephemeral::Flags::empty();
            let [to, from] = ephemeral::alloc_two(&page, &block, flags).unwrap();
            to.copy_from(20, &from, last, 5);
            to.read(20, &mut bytes);
            assert_eq!(bytes, [9; 5]);
        });
    }

    #[test]
    #[should_panic(expected = "goes beyond the page")]
    fn the_end_of_a_block_is_its_end() {
        on_machines_with("the end of a block", [1], 1024, 1, || {
            let block = Frame::alloc_block(2, Contents::Zeroed).unwrap();
            ephemeral::map(&block).fill(0, 4 * PAGE_SIZE, 1);
            ephemeral::map(&block).fill(4 * PAGE_SIZE - 1, 2, 1);
        });
    }
}
