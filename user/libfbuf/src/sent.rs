//! What messages through the kernel hold until notices tell that all receivers have freed it.

use std::collections::BTreeMap;
use std::io;
use std::mem;
use std::ops::Range;

use crate::aggregate::Aggregate;
use crate::region::{CHUNK, PAGE};
use crate::space::Space;

/// Messages of a path that receivers may read. For each page, the last of them that includes it:
/// the kernel gives notice of a page once no message includes it.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    messages: Vec<Option<Held>>,
    /// Places without a message.
    free: Vec<usize>,
    /// By chunk, for each page: the place of its message, and one; 0: none.
    holders: BTreeMap<usize, Box<[u32; CHUNK / PAGE]>>,
}

#[derive(Debug)]
struct Held {
    aggregate: Aggregate,
    /// Earlier messages all of whose pages are this one's, too.
    earlier: Vec<Held>,
    /// Pages of which it is the last message.
    pages: usize,
}

impl Sent {
    /// Holds an aggregate that is about to be sent; returns its place.
    ///
    /// # Errors
    /// `EXDEV` if it reaches another path of this process.
    pub(crate) fn hold(&mut self, space: &Space, aggregate: Aggregate) -> io::Result<usize> {
        let mut pages = Vec::new();
        aggregate.pages(space, |page| {
            if pages.last() != Some(&page) {
                pages.push(page);
            }
        })?;
        let place = self.free.pop().unwrap_or_else(|| {
            self.messages.push(None);
            self.messages.len() - 1
        });
        let mut held = Held {
            aggregate,
            earlier: Vec::new(),
            pages: 0,
        };
        for &page in &pages {
            let before = mem::replace(self.holder(page), place as u32 + 1) as usize;
            if before == place + 1 {
                continue;
            }
            held.pages += 1;
            if let Some(earlier) = before.checked_sub(1).and_then(|it| self.leave(it)) {
                held.earlier.push(earlier);
            }
        }
        if space.mode().is_secured {
            space.close_headers(pages.into_iter());
        }
        if held.pages == 0 {
            // All of it is others': the kernel keeps it.
            self.free.push(place);
        } else {
            self.messages[place] = Some(held);
        }
        Ok(place)
    }

    fn holder(&mut self, page: usize) -> &mut u32 {
        let chunk = self.holders.entry(page / CHUNK);
        let chunk = chunk.or_insert_with(|| Box::new([0; CHUNK / PAGE]));
        &mut chunk[page % CHUNK / PAGE]
    }

    /// Takes a page from a message; returns the message if that was the last.
    fn leave(&mut self, place: usize) -> Option<Held> {
        let message = self.messages.get_mut(place)?;
        let held = message.as_mut()?;
        held.pages -= 1;
        if held.pages > 0 {
            return None;
        }
        self.free.push(place);
        message.take()
    }

    /// Takes notice that no message includes these pages; returns messages that nobody has any
    /// more, to be dropped outside the lock.
    pub(crate) fn take_notice(&mut self, pages: Range<usize>) -> Vec<impl Drop + use<>> {
        let mut gone = Vec::new();
        for page in pages.step_by(PAGE) {
            if let Some(chunk) = self.holders.get_mut(&(page / CHUNK)) {
                let before = mem::take(&mut chunk[page % CHUNK / PAGE]) as usize;
                let before = before.checked_sub(1);
                gone.extend(before.and_then(|it| self.leave(it)));
            }
        }
        gone.into_iter().map(Some).map(Gone).collect()
    }
}

/// A message that nobody has any more.
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
