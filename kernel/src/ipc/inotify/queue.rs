//! Events that were not read.

use alloc::{boxed::Box, collections::VecDeque};
use core::sync::atomic::Ordering::Relaxed;

use abi::raw::general::{IN_IGNORED, IN_Q_OVERFLOW};
use nucleus::PAGE_SIZE;
use vm::account::Stock;

use super::MAX_QUEUED;

/// Bytes in front of the name (`struct inotify_event`); names are padded to a multiple of it.
pub(super) const HEAD: usize = 16;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Queued {
    pub watch: i32,
    pub mask: u32,
    pub cookie: u32,
    /// Empty for none.
    pub name: Box<[u8]>,
}

impl Queued {
    /// Bytes that a reader gets, a multiple of [`HEAD`].
    pub fn size(&self) -> usize {
        HEAD + match self.name.len() {
            0 => 0,
            // With a NUL at least.
            len => (len + 1).next_multiple_of(HEAD),
        }
    }

    pub fn head(&self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        let words = [
            self.watch as u32,
            self.mask,
            self.cookie,
            (self.size() - HEAD) as u32,
        ];
        for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// Whether this one says nothing new right after `last`.
    fn repeats(&self, last: &Queued) -> bool {
        last.mask & IN_IGNORED == 0
            && (self.watch, self.mask, &self.name) == (last.watch, last.mask, &last.name)
    }
}

pub(super) struct Queue {
    events: VecDeque<Queued>,
    /// Bytes that a reader would get of all of them.
    bytes: usize,
    overflowed: bool,
    /// Charges their memory.
    stock: Stock,
}

impl Queue {
    /// No events. Those to come are charged by `stock`.
    pub fn new(stock: Stock) -> Queue {
        Queue {
            events: VecDeque::new(),
            bytes: 0,
            overflowed: false,
            stock,
        }
    }

    /// Charges the events. What a reader gets of one is a little more than its name takes.
    fn cover(&self) {
        let bytes = self.events.capacity() * size_of::<Queued>() + self.bytes;
        self.stock.cover(bytes.div_ceil(PAGE_SIZE));
    }

    /// Adds an event unless it repeats the last one. Where there is no room, one that says so takes
    /// its place.
    pub fn push(&mut self, event: Queued) {
        if self.events.back().is_some_and(|last| event.repeats(last)) {
            return;
        }
        let room = self.events.len() < MAX_QUEUED.load(Relaxed);
        if !room || self.events.try_reserve(1).is_err() {
            self.overflow();
            return;
        }
        self.bytes += event.size();
        self.events.push_back(event);
        self.cover();
    }

    /// An event was lost.
    pub fn overflow(&mut self) {
        if !self.overflowed && self.events.try_reserve(1).is_ok() {
            self.overflowed = true;
            self.bytes += HEAD;
            self.events.push_back(Queued {
                watch: -1,
                mask: IN_Q_OVERFLOW,
                cookie: 0,
                name: Box::default(),
            });
        }
    }

    pub fn first_size(&self) -> Option<usize> {
        self.events.front().map(Queued::size)
    }

    pub fn pop(&mut self) -> Option<Queued> {
        let event = self.events.pop_front()?;
        self.bytes -= event.size();
        self.overflowed &= event.mask != IN_Q_OVERFLOW;
        if self.events.is_empty() {
            // A storm must not keep its memory.
            self.events.shrink_to(64);
        }
        self.cover();
        Some(event)
    }

    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Returns the bytes that a reader would get of all events.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vm::account::Kind;

    fn event(mask: u32, name: &[u8]) -> Queued {
        Queued {
            watch: 1,
            mask,
            cookie: 0,
            name: name.into(),
        }
    }

    #[test]
    fn sizes_are_those_of_linux() {
        for (len, size) in [(0, 16), (1, 32), (15, 32), (16, 48), (255, 272)] {
            assert_eq!(event(1, &vec![b'x'; len]).size(), size);
        }
    }

    #[test]
    fn what_repeats_the_last_is_left_out() {
        let mut queue = Queue::new(Stock::new(None, Kind::InotifyInstances));
        for (mask, name) in [(2, &b"a"[..]), (2, b"a"), (2, b"b"), (2, b"a"), (1, b"a")] {
            queue.push(event(mask, name));
        }
        let mut bytes = queue.bytes();
        let mut count = 0;
        while let Some(event) = queue.pop() {
            bytes -= event.size();
            count += 1;
        }
        assert_eq!((count, bytes, queue.bytes()), (4, 0, 0));
    }

    #[test]
    fn a_full_queue_says_so_once() {
        let mut queue = Queue::new(Stock::new(None, Kind::InotifyInstances));
        let most = MAX_QUEUED.load(Relaxed);
        for i in 0..most as u32 + 5 {
            queue.push(event(i + 1, b""));
        }
        let mut last = None;
        for _ in 0..most + 1 {
            last = queue.pop();
        }
        assert_eq!(last.map(|event| event.mask), Some(IN_Q_OVERFLOW));
        assert!(queue.is_empty());
        queue.overflow();
        assert_eq!(queue.pop().map(|event| event.watch), Some(-1));
    }
}
