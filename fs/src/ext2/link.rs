//! The text of a symbolic link: in the inode if it is short, else in a block.

use alloc::vec::Vec;

use abi::{Errno, Result};

use super::inode::Inode;

impl Inode {
    /// Text of this length, in bytes, or more needs a block.
    const LONG: usize = 60;

    /// Sets the text of a new link.
    ///
    /// # Errors
    /// `ENOENT` if it is empty, `ENAMETOOLONG`, `ENOSPC`, `EIO`, `ENOMEM`.
    pub(super) fn set_text(&self, text: &[u8]) -> Result<()> {
        if text.is_empty() {
            return Err(Errno::ENOENT);
        }
        if text.len() >= self.fs.geometry.block_size {
            return Err(Errno::ENAMETOOLONG);
        }
        if text.len() >= Inode::LONG {
            let (_, block) = self.append_block()?;
            self.fs.buffers.store(&block, 0, text);
        }
        self.set(|record| {
            record.size = text.len() as u64;
            if text.len() < Inode::LONG {
                let mut words = text.chunks(4).map(|chunk| {
                    let mut word = [0; 4];
                    word[..chunk.len()].copy_from_slice(chunk);
                    u32::from_le_bytes(word)
                });
                record.blocks = core::array::from_fn(|_| words.next().unwrap_or(0));
            }
        });
        Ok(())
    }

    /// Returns the text of a link.
    pub(super) fn text(&self) -> Result<Vec<u8>> {
        let record = self.record().clone();
        let damaged = || self.fs.damaged("a link's text can't be; inode", self.ino);
        let len = usize::try_from(record.size).map_err(|_| damaged())?;
        let mut text = nucleus::try_filled(len.min(self.fs.geometry.block_size), 0)?;
        if record.has_blocks(self.fs.geometry.sectors()) {
            if len == 0 || len >= self.fs.geometry.block_size {
                return Err(damaged());
            }
            self.block(0)?.ok_or_else(damaged)?.read(0, &mut text);
        } else {
            let bytes: Vec<u8> = record
                .blocks
                .iter()
                .flat_map(|it| it.to_le_bytes())
                .collect();
            if len == 0 || len >= Inode::LONG {
                return Err(damaged());
            }
            text.copy_from_slice(&bytes[..len]);
        }
        match text.contains(&0) {
            true => Err(damaged()),
            false => Ok(text),
        }
    }
}
