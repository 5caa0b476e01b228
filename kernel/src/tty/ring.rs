//! Unread input: bytes, and which of them end a line.

use alloc::collections::VecDeque;

use nucleus::OutOfMemory;

/// Bytes a terminal keeps for its readers, as on Linux.
pub const CAPACITY: usize = 4096;

/// A typed byte.
#[derive(Clone, Copy)]
struct Typed {
    byte: u8,
    ends_line: bool,
}

/// A ring of typed bytes: those of finished lines, then those of the unfinished one.
pub struct Ring {
    typed: VecDeque<Typed>,
    /// Bytes of finished lines not yet read.
    finished: usize,
}

impl Ring {
    /// Nothing typed. All memory is allocated here.
    pub fn new() -> Result<Ring, OutOfMemory> {
        let mut typed = VecDeque::new();
        typed.try_reserve_exact(CAPACITY).map_err(|_| OutOfMemory)?;
        Ok(Ring { typed, finished: 0 })
    }

    /// The bytes of memory that it takes.
    pub const BYTES: usize = CAPACITY * size_of::<Typed>();

    /// Typed bytes not yet read, the unfinished line included.
    pub fn len(&self) -> usize {
        self.typed.len()
    }

    /// Bytes of finished lines not yet read.
    pub fn finished(&self) -> usize {
        self.finished
    }

    /// Bytes of the unfinished line.
    pub fn unfinished(&self) -> usize {
        self.len() - self.finished
    }

    /// Bytes that can still be typed.
    pub fn room(&self) -> usize {
        CAPACITY - self.len()
    }

    /// Appends a byte. The caller has checked [`room`](Ring::room); without room the byte is
    /// dropped.
    pub fn push(&mut self, byte: u8) {
        self.add(byte, false);
    }

    /// Appends a byte that ends the line.
    pub fn push_delimiter(&mut self, byte: u8) {
        if self.add(byte, true) {
            self.finished = self.len();
        }
    }

    fn add(&mut self, byte: u8, ends_line: bool) -> bool {
        let fits = self.room() > 0;
        if fits {
            self.typed.push_back(Typed { byte, ends_line });
        }
        fits
    }

    /// The byte `back` before the end of the unfinished line (1 is the last one).
    pub fn back(&self, back: usize) -> Option<u8> {
        (back >= 1 && back <= self.unfinished()).then(|| self.typed[self.len() - back].byte)
    }

    /// Takes the last `count` bytes of the unfinished line away.
    pub fn erase(&mut self, count: usize) {
        self.typed
            .truncate(self.len() - count.min(self.unfinished()));
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.typed.clear();
        self.finished = 0;
    }

    /// Forgets where lines end. All that was typed becomes one finished line, though nothing ends
    /// it (a change to canonical mode), or an unfinished one (a change to raw mode).
    pub fn forget_lines(&mut self, is_finished: bool) {
        for typed in &mut self.typed {
            typed.ends_line = false;
        }
        self.finished = if is_finished { self.len() } else { 0 };
    }

    /// Takes up to `to.len()` bytes, whatever they are.
    pub fn take(&mut self, to: &mut [u8]) -> usize {
        let n = to.len().min(self.len());
        for (slot, typed) in to.iter_mut().zip(self.typed.drain(..n)) {
            *slot = typed.byte;
        }
        self.finished = self.finished.saturating_sub(n);
        n
    }

    /// Takes bytes of the first finished line. `end_of_file` is the delimiter that is not passed
    /// on. Returns the number of bytes and whether the line ended with them. An end-of-file byte
    /// right behind a full buffer is taken too, so that it is not read as an empty line by the next
    /// call.
    pub fn take_line(&mut self, to: &mut [u8], end_of_file: u8) -> (usize, bool) {
        let mut n = 0;
        while self.finished > 0
            && let Some(&Typed { byte, ends_line }) = self.typed.front()
        {
            let is_end_of_file = ends_line && byte == end_of_file;
            if !is_end_of_file {
                let Some(slot) = to.get_mut(n) else {
                    return (n, false);
                };
                *slot = byte;
                n += 1;
            }
            self.typed.pop_front();
            self.finished -= 1;
            if ends_line {
                return (n, true);
            }
        }
        (n, false)
    }
}
