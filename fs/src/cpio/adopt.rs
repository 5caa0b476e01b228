//! Files whose pages are the archive's own.
//!
//! Where the data of a file starts at a page of the archive (an archiver pads the entry's name with
//! zero bytes to make it so), the page frames that the loader filled become the file's pages, and
//! nothing is copied. That waits until the whole archive has been read: the frame with the end of
//! one file also holds the headers that follow, and what stands behind the file's end is cleared.

use alloc::{sync::Arc, vec::Vec};
use core::time::Duration;

use abi::{Errno, Result};
use fbuf::{Slice, Source};
use nucleus::{Frame, PAGE_SIZE, ephemeral};

use super::{Damage, What, damage};
use crate::{Vnode, vnode::Change};

/// The data of one file, still to be adopted.
struct Extent {
    file: Arc<dyn Vnode>,
    /// Byte of the archive at which it starts: a page's first one.
    at: usize,
    /// Bytes.
    len: usize,
    modified: Duration,
}

/// Files that wait for their pages, in the archive's order.
#[derive(Default)]
pub struct Adoptions {
    extents: Vec<Extent>,
}

impl Adoptions {
    /// Notes that the `len` bytes from byte `at` of the archive on are what `file` holds.
    pub(super) fn add(&mut self, file: &Arc<dyn Vnode>, at: usize, len: usize) -> Result<()> {
        self.extents.try_reserve(1)?;
        self.extents.push(Extent {
            file: file.clone(),
            at,
            len,
            modified: file.attributes()?.modified,
        });
        Ok(())
    }

    /// Gives the files their pages. `take` gives the frame of a page of the archive, by its number,
    /// which only rises; that frame has no other user.
    ///
    /// # Errors
    /// What the file system refuses, or that `take` had no such page.
    pub fn adopt(
        self,
        mut take: impl FnMut(usize) -> Option<Frame>,
    ) -> core::result::Result<(), Damage> {
        for extent in self.extents {
            extent
                .adopt(&mut take)
                .map_err(|error| damage(extent.at, What::Refused(error)))?;
        }
        Ok(())
    }
}

impl Extent {
    fn adopt(&self, take: &mut dyn FnMut(usize) -> Option<Frame>) -> Result<()> {
        self.file.truncate(0)?;
        let mut pages = Pages {
            take,
            next: self.at / PAGE_SIZE,
            end: (self.at + self.len).div_ceil(PAGE_SIZE),
        };
        let mut at = 0;
        while pages.left() > 0 {
            (_, at) = self.file.write(at, false, &mut pages)?;
        }
        // What follows the end in the last page is another entry's.
        self.file.truncate(self.len as u64)?;
        self.file.set_attributes(Change {
            modified: Some(self.modified),
            ..Change::default()
        })
    }
}

/// Pages of the archive on their way into a file.
struct Pages<'a> {
    take: &'a mut dyn FnMut(usize) -> Option<Frame>,
    next: usize,
    end: usize,
}

impl Pages<'_> {
    fn take(&mut self) -> Result<Frame> {
        let frame = (self.take)(self.next).ok_or(Errno::EIO)?;
        self.next += 1;
        Ok(frame)
    }
}

impl Source for Pages<'_> {
    fn left(&self) -> usize {
        (self.end - self.next) * PAGE_SIZE
    }

    // A file takes whole pages from byte 0 on, so the two that copy serve only one that keeps
    // no frames of others.
    fn take_into(&mut self, to: &Frame, offset: usize, len: usize) -> Result<usize> {
        if offset != 0 || len != PAGE_SIZE {
            return Err(Errno::EINVAL);
        }
        let frame = self.take()?;
        ephemeral::copy(to, 0, &frame, 0, PAGE_SIZE);
        Ok(PAGE_SIZE)
    }

    fn take_bytes(&mut self, to: &mut [u8]) -> Result<usize> {
        if to.len() != PAGE_SIZE {
            return Err(Errno::EINVAL);
        }
        let frame = self.take()?;
        ephemeral::map(&frame).read(0, to);
        Ok(PAGE_SIZE)
    }

    fn take_slice(&mut self, max: usize) -> Option<Slice> {
        if max < PAGE_SIZE || self.left() == 0 {
            return None;
        }
        self.take().ok().map(Slice::whole)
    }
}
