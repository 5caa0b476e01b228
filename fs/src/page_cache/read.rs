//! Reading.

use abi::Result;
use fbuf::{Sink, Slice, counters::Counter, moved};
use nucleus::{Frame, PAGE_SIZE, pmap};
use vm::{Moved, Mover, PagerError, Why};

use super::{
    backing_store::BackingStore,
    cache::{PAGE, PageCache, errno},
    readahead::Access,
};

/// Pages that are lent together.
const TOGETHER: usize = 16;

impl<S: BackingStore> PageCache<S> {
    /// As [`Vnode::read`](crate::Vnode::read).
    ///
    /// # Errors
    /// `EIO`, `ENOMEM`, and those of the sink, if nothing was read before.
    pub fn read(&self, offset: u64, to: &mut dyn Sink) -> Result<usize> {
        let keeps = to.keeps();
        // Such a sink does not fault; while the lock is held no page that it keeps is written.
        let _turn = keeps.then(|| self.writers.write());
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
        let streams = self.store.streams();
        if let Some(next) = streams.and_then(|it| it.touched(&pages, self.pages())) {
            S::prefetch(self, next);
        }
        let mut done = 0;
        // Where the next pages may be passed: some are copied before the history is asked again.
        let mut passes_from = 0;
        let mut why = None;
        let mut copied = 0;
        // The page that was just brought in: this is its first use.
        let mut fresh = u64::MAX;
        while done < len {
            let at = offset + done as u64;
            let (index, in_page) = (at / PAGE, (at % PAGE) as usize);
            let n = (PAGE_SIZE - in_page).min(len - done);
            let may_pass = in_page == 0 && !keeps && done >= passes_from;
            if may_pass && len - done >= vm::least_move() {
                match self.pass_pages(index, (len - done) / PAGE_SIZE, to) {
                    Ok(passed) => {
                        done += passed * PAGE_SIZE;
                        continue;
                    }
                    Err(now) => {
                        if now != Why::NotLent {
                            passes_from = done + TOGETHER * PAGE_SIZE;
                        }
                        why = Some(now);
                    }
                }
            }
            let note_use = |frame: &Frame| {
                let is_first = in_page == 0 && index != fresh;
                if is_first && streams.is_some_and(|it| !it.is(Access::Once)) {
                    // Its mappings, if it has any, don't show this use.
                    pmap::set_referenced(frame);
                }
            };
            if keeps && let Some(page) = self.lend_page(index) {
                note_use(&page);
                match to.put_slice(Slice::within(page, in_page, n)) {
                    Ok(0) => break,
                    Ok(n) => done += n,
                    Err(error) => return moved(done, Err(error)),
                }
                continue;
            }
            let found = match (self.object.resident(index), streams) {
                (None, Some(streams)) => {
                    let wanted = index..pages.end;
                    match self.miss(index, streams, |it| it.missed(wanted, self.pages())) {
                        Ok(()) | Err(PagerError::BeyondEnd) => {}
                        Err(error) => return moved(done, Err(errno(error))),
                    }
                    fresh = index;
                    len = len.min(left());
                    continue;
                }
                (None, None) => match self.object.bring_in(index) {
                    Ok(found) => found,
                    Err(error) => return moved(done, Err(errno(error))),
                },
                (found, _) => found,
            };
            let put = match found {
                Some(frame) => {
                    note_use(&frame);
                    to.put_frame(&frame, in_page, n)
                }
                None => to.put_zeros(n),
            };
            match put {
                Ok(0) => break,
                Ok(n) => {
                    done += n;
                    copied += n;
                }
                Err(error) => return moved(done, Err(error)),
            }
        }
        if let Some(why) = why {
            vm::count_moved(Mover::FileRead, Moved::Copied(why), copied);
        }
        if let Some(streams) = streams {
            streams.ended(pages.end);
        }
        Ok(done)
    }

    /// Lends resident pages from page `index` on to a sink that takes pages in the place of its own
    /// (`uvm.txt` 7), `most` at most; returns how many.
    ///
    /// # Errors
    /// Why the first one is to be copied, as those of a file whose lent pages are mostly written
    /// soon.
    #[inline(never)]
    fn pass_pages(
        &self,
        index: u64,
        most: usize,
        to: &mut dyn Sink,
    ) -> core::result::Result<usize, Why> {
        // The file's history first: where that says no, the program's has not to count pages.
        let most = most.min(TOGETHER);
        vm::may_move(most, &self.lent)?;
        let most = to.places(most)?;
        let mut pages = [const { None }; TOGETHER];
        let count = {
            // No page is being written now.
            let _turn = self.writers.write();
            let lent = (index..).map(|index| self.lend_page(index));
            let lent = lent.take_while(Option::is_some);
            let places = pages[..most].iter_mut().zip(lent);
            places.map(|(place, page)| *place = page).count()
        };
        let streams = self.store.streams();
        if streams.is_some_and(|it| !it.is(Access::Once)) {
            pages
                .iter()
                .flatten()
                .for_each(|page| pmap::set_referenced(page));
        }
        if count == 0 {
            return Err(Why::NotLent);
        }
        match to.take_pages(&mut pages[..count]) {
            0 => Err(Why::NotTaken),
            taken => {
                Counter::bytes_passed.add((taken * PAGE_SIZE) as u64);
                vm::count_moved(Mover::FileRead, Moved::Passed, taken * PAGE_SIZE);
                Ok(taken)
            }
        }
    }
}
