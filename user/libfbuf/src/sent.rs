//! What messages through the kernel hold until notices tell that all receivers have freed it.

use std::collections::BTreeMap;
use std::io;
use std::mem;
use std::ops::Range;

use crate::aggregate::Aggregate;
use crate::contents::Contents;
use crate::region::{CHUNK, PAGE};
use crate::space::Space;

/// Messages of a path that receivers may read. For each page, the last of them that includes it:
/// the kernel gives notice of a page once no message includes it.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    messages: Messages,
    /// Messages that the last one holds along.
    chained: usize,
    /// By chunk, for each page: the place of its message, and one; 0: none.
    holders: BTreeMap<usize, Box<[u32; CHUNK / PAGE]>>,
}

/// The messages, each at a place of its own.
#[derive(Debug, Default)]
struct Messages {
    places: Vec<Option<Held>>,
    /// Places without a message.
    free: Vec<usize>,
    /// How many there are, and their bytes.
    count: usize,
    bytes: u64,
}

#[derive(Debug)]
struct Held {
    aggregate: Aggregate,
    /// Earlier messages all of whose pages are this one's, too.
    earlier: Vec<Held>,
    /// All of those, and the ones that they hold.
    chained: usize,
    /// Pages of which it is the last message.
    pages: usize,
}

/// Messages that one may hold along before notices are read: a send withdraws those of pages that
/// it includes again.
const MOST_CHAINED: usize = 32;

impl Sent {
    /// Returns whether notices should be read before the next message is sent.
    pub(crate) fn is_chained(&self) -> bool {
        self.chained >= MOST_CHAINED
    }

    /// Returns how many messages it holds, and their bytes.
    pub(crate) fn in_flight(&self) -> (usize, u64) {
        (self.messages.count, self.messages.bytes)
    }

    /// Holds an aggregate that was sent, under the lock that was held when it was sent.
    ///
    /// # Errors
    /// `EXDEV` if it reaches another path of this process, which the caller has excluded before.
    pub(crate) fn hold(&mut self, space: &Space, aggregate: Aggregate) -> io::Result<()> {
        let mut ranges: Vec<Range<usize>> = Vec::new();
        aggregate.pages(space, |range| match ranges.last_mut() {
            Some(last) if last.contains(&range.start) || last.end == range.start => {
                last.end = last.end.max(range.end);
            }
            _ => ranges.push(range),
        })?;
        let place = self.messages.free_place();
        let mark = place as u32 + 1;
        let mut held = Held {
            aggregate,
            earlier: Vec::new(),
            chained: 0,
            pages: 0,
        };
        for range in &ranges {
            self.each(range.clone(), |holders, messages| {
                let before = holders[0];
                if before != mark {
                    holders.fill(mark);
                    held.pages += holders.len();
                    held.earlier.extend(messages.leave(before, holders.len()));
                }
            });
        }
        for earlier in mem::take(&mut held.earlier) {
            if earlier.aggregate.is_same(&held.aggregate) {
                // The new message holds it.
                held.earlier.extend(earlier.earlier);
            } else {
                held.earlier.push(earlier);
            }
        }
        self.chained = held.earlier.iter().map(|it| it.chained).sum::<usize>() + held.earlier.len();
        held.chained = self.chained;
        if space.mode().is_secured {
            space.close_headers(ranges.into_iter());
        }
        if held.pages == 0 {
            // All of it is others': the kernel keeps it.
            self.messages.free.push(place);
        } else {
            self.messages.put(place, held);
        }
        Ok(())
    }

    /// Takes notice that no message includes these pages; returns messages that no receiver
    /// has any more, to be dropped outside the lock.
    pub(crate) fn take_notice(&mut self, pages: Range<usize>) -> Vec<impl Drop + use<>> {
        let mut gone = Vec::new();
        self.each(pages, |holders, messages| {
            gone.extend(messages.leave(holders[0], holders.len()));
            holders.fill(0);
        });
        gone.into_iter().map(Some).map(Gone).collect()
    }

    /// Calls `each` with the holders of neighbouring pages of a range that have the same one, and
    /// with the messages.
    fn each(&mut self, pages: Range<usize>, mut each: impl FnMut(&mut [u32], &mut Messages)) {
        let mut start = pages.start;
        while start < pages.end {
            let end = pages.end.min((start / CHUNK + 1) * CHUNK);
            let chunk = self.holders.entry(start / CHUNK);
            let chunk = chunk.or_insert_with(|| Box::new([0; CHUNK / PAGE]));
            let first = start % CHUNK / PAGE;
            let count = (end - start).div_ceil(PAGE);
            for holders in chunk[first..first + count].chunk_by_mut(|a, b| a == b) {
                each(holders, &mut self.messages);
            }
            start = end;
        }
    }
}

impl Messages {
    /// Returns a place without a message, which is no longer free.
    fn free_place(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        })
    }

    fn put(&mut self, place: usize, held: Held) {
        self.count += 1;
        self.bytes += held.aggregate.len();
        self.places[place] = Some(held);
    }

    /// Takes so many pages from their holder; returns the message if those were its last.
    fn leave(&mut self, holder: u32, pages: usize) -> Option<Held> {
        let place = (holder as usize).checked_sub(1)?;
        let message = self.places.get_mut(place)?;
        let held = message.as_mut()?;
        held.pages -= pages;
        if held.pages > 0 {
            return None;
        }
        self.count -= 1;
        self.bytes -= held.aggregate.len();
        self.free.push(place);
        message.take()
    }
}

/// A message that no receiver has any more.
struct Gone(Option<Held>);

impl Drop for Gone {
    fn drop(&mut self) {
        // Not by recursion: a message may have been sent again many times.
        let mut left = Vec::from_iter(self.0.take());
        while let Some(mut held) = left.pop() {
            left.append(&mut held.earlier);
            drop(held.aggregate);
        }
    }
}
