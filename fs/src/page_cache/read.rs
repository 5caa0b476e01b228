//! Reading.

use abi::Result;
use fbuf::{Sink, moved};
use nucleus::PAGE_SIZE;

use super::{
    backing_store::{BackingStore, Found},
    cache::{PAGE, PageCache},
};

impl<S: BackingStore> PageCache<S> {
    /// As [`Vnode::read`](crate::Vnode::read).
    ///
    /// # Errors
    /// `EIO`, `ENOMEM`, and those of the sink, if nothing was read before.
    pub fn read(&self, offset: u64, to: &mut dyn Sink) -> Result<usize> {
        let keeps = to.keeps();
        // Such a sink does not fault; while the lock is held no page that it keeps is written.
        let _turn = keeps.then(|| self.writers.lock());
        let copies = keeps && !self.may_share();
        let room = to.room();
        let left = || {
            let left = self.size().saturating_sub(offset);
            usize::try_from(left).unwrap_or(usize::MAX).min(room)
        };
        let mut len = left();
        if len == 0 {
            return Ok(0);
        }
        let pages = offset / PAGE..(offset + len as u64).div_ceil(PAGE);
        S::read_begins(self, &pages);
        let mut done = 0;
        // The page that was just brought in: this is its first use.
        let mut fresh = u64::MAX;
        while done < len {
            let at = offset + done as u64;
            let (index, in_page) = (at / PAGE, (at % PAGE) as usize);
            let n = (PAGE_SIZE - in_page).min(len - done);
            let found = match self.object.resident(index) {
                Some(frame) => Found::Page(frame),
                None => match S::find(self, index..pages.end) {
                    Ok(found) => {
                        fresh = index;
                        found
                    }
                    Err(error) => return moved(done, Err(error)),
                },
            };
            let put = match found {
                Found::Page(frame) => {
                    if in_page == 0 && index != fresh {
                        S::read_uses(self, &frame);
                    }
                    match copies {
                        true => to.put_frame_copy(&frame, in_page, n),
                        false => to.put_frame(&frame, in_page, n),
                    }
                }
                Found::Hole => to.put_zeros(n),
                Found::Again => {
                    len = len.min(left());
                    continue;
                }
                Found::End => break,
            };
            match put {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) => return moved(done, Err(error)),
            }
        }
        S::read_ends(self, pages.end);
        Ok(done)
    }
}
