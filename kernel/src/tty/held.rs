//! Typed bytes that wait while the line discipline's own buffer is full.

use alloc::collections::VecDeque;

/// Capacity that is kept when the queue is empty.
const KEPT: usize = 512;

/// A queue of typed bytes that knows whether its last one takes the meaning of the next away
/// (`VLNEXT`): a quoted signal key is an ordinary byte and must not overtake the others.
#[derive(Default)]
pub struct Held {
    bytes: VecDeque<u8>,
    quoting: bool,
}

impl Held {
    /// Nothing waits.
    pub const fn new() -> Held {
        Held {
            bytes: VecDeque::new(),
            quoting: false,
        }
    }

    /// Bytes that wait.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether the byte that comes next is quoted by the last one that waits.
    pub fn quotes_next(&self) -> bool {
        self.quoting
    }

    /// Makes room for a byte; returns whether there is.
    pub fn reserve(&mut self) -> bool {
        self.bytes.try_reserve(1).is_ok()
    }

    /// Appends a byte; `quotes` says that it quotes the next one unless it is quoted itself.
    pub fn push(&mut self, byte: u8, quotes: bool) {
        self.quoting = quotes && !self.quoting;
        self.bytes.push_back(byte);
    }

    /// Takes the oldest byte.
    pub fn pop(&mut self) -> Option<u8> {
        let byte = self.bytes.pop_front();
        if self.bytes.is_empty() {
            // The line discipline knows now what its last byte means for the next.
            self.quoting = false;
            if self.bytes.capacity() > KEPT {
                self.bytes = VecDeque::new();
            }
        }
        byte
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        *self = Held::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quote_quotes_one_byte_and_another_quote() {
        let mut held = Held::new();
        held.push(b'a', false);
        assert!(!held.quotes_next());
        held.push(0x16, true);
        assert!(held.quotes_next());
        held.push(0x16, true);
        assert!(!held.quotes_next());
        held.push(0x16, true);
        while held.pop().is_some() {}
        assert!(!held.quotes_next() && held.is_empty());
    }
}
