//! Unread input: bytes, and which of them end a line.

use alloc::{boxed::Box, vec};

/// Bytes a terminal keeps for its readers, as on Linux.
pub const CAPACITY: usize = 4096;

/// A ring of typed bytes. Three positions move through it: `tail` (next byte to read), `canon` (end
/// of the last complete line) and `head` (next byte to be typed); `tail <= canon <= head`.
/// Positions only grow.
pub struct Ring {
    bytes: Box<[u8]>,
    /// One bit per byte: the byte ends a line.
    delimiters: [u64; CAPACITY / 64],
    tail: usize,
    canon: usize,
    head: usize,
}

impl Ring {
    /// Nothing typed.
    pub fn new() -> Ring {
        Ring {
            bytes: vec![0; CAPACITY].into_boxed_slice(),
            delimiters: [0; CAPACITY / 64],
            tail: 0,
            canon: 0,
            head: 0,
        }
    }

    /// Typed bytes not yet read, the unfinished line included.
    pub fn len(&self) -> usize {
        self.head - self.tail
    }

    /// Bytes of finished lines not yet read.
    pub fn finished(&self) -> usize {
        self.canon - self.tail
    }

    /// Bytes of the unfinished line.
    pub fn unfinished(&self) -> usize {
        self.head - self.canon
    }

    /// Bytes that can still be typed.
    pub fn room(&self) -> usize {
        CAPACITY - self.len()
    }

    /// Appends a byte. The caller has checked [`room`](Ring::room); without room the byte is
    /// dropped.
    pub fn push(&mut self, byte: u8) {
        if self.room() == 0 {
            return;
        }
        self.bytes[self.head % CAPACITY] = byte;
        self.mark(self.head, false);
        self.head += 1;
    }

    /// Appends a byte that ends the line.
    pub fn push_delimiter(&mut self, byte: u8) {
        if self.room() == 0 {
            return;
        }
        self.push(byte);
        self.mark(self.head - 1, true);
        self.canon = self.head;
    }

    /// The byte `back` before the end of the unfinished line (1 is the last one).
    pub fn back(&self, back: usize) -> Option<u8> {
        (back >= 1 && back <= self.unfinished()).then(|| self.bytes[(self.head - back) % CAPACITY])
    }

    /// Takes the last `count` bytes of the unfinished line away.
    pub fn erase(&mut self, count: usize) {
        self.head -= count.min(self.unfinished());
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.tail = self.head;
        self.canon = self.head;
    }

    /// Makes all that was typed one finished line, though nothing ends it (a change to canonical
    /// mode).
    pub fn finish_all(&mut self) {
        for at in self.tail..self.head {
            self.mark(at, false);
        }
        self.canon = self.head;
    }

    /// Forgets where lines end (a change to raw mode).
    pub fn forget_lines(&mut self) {
        self.delimiters = [0; CAPACITY / 64];
        self.canon = self.tail;
    }

    /// Takes up to `to.len()` bytes, whatever they are.
    pub fn take(&mut self, to: &mut [u8]) -> usize {
        let n = to.len().min(self.len());
        for slot in &mut to[..n] {
            *slot = self.bytes[self.tail % CAPACITY];
            self.tail += 1;
        }
        self.canon = self.canon.max(self.tail);
        n
    }

    /// Takes bytes of the first finished line. `end_of_file` is the delimiter that is not passed
    /// on. Returns the number of bytes and whether the line ended with them. An end-of-file byte
    /// right behind a full buffer is taken too, so that it is not read as an empty line by the next
    /// call.
    pub fn take_line(&mut self, to: &mut [u8], end_of_file: u8) -> (usize, bool) {
        let mut n = 0;
        while self.tail < self.canon {
            let byte = self.bytes[self.tail % CAPACITY];
            let ends = self.is_marked(self.tail);
            if ends && byte == end_of_file {
                self.tail += 1;
                return (n, true);
            }
            if n == to.len() {
                return (n, false);
            }
            to[n] = byte;
            n += 1;
            self.tail += 1;
            if ends {
                return (n, true);
            }
        }
        (n, false)
    }

    fn mark(&mut self, at: usize, ends: bool) {
        let at = at % CAPACITY;
        let bit = 1 << (at % 64);
        if ends {
            self.delimiters[at / 64] |= bit;
        } else {
            self.delimiters[at / 64] &= !bit;
        }
    }

    fn is_marked(&self, at: usize) -> bool {
        let at = at % CAPACITY;
        self.delimiters[at / 64] & (1 << (at % 64)) != 0
    }
}
