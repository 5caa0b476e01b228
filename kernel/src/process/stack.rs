//! The first stack of a program: strings, auxiliary vector, environment, arguments.

use alloc::{boxed::Box, vec, vec::Vec};

use abi::{Errno, Result};
use nucleus::{PAGE_SIZE, VirtAddr, VirtRange, user};
use vm::Map;

/// The longest argument or environment string, its NUL included (`MAX_ARG_STRLEN`).
const STRING_MAX: usize = 32 * PAGE_SIZE;

/// An argument or environment string.
pub enum Word {
    /// In the kernel, without its NUL.
    Bytes(Vec<u8>),
    /// In the memory of the program that calls `execve`.
    User(VirtAddr),
}

/// The pointer array at `array`, which ends with a null pointer; at most `max` pointers.
///
/// # Errors
/// `EFAULT`, `E2BIG`, `ENOMEM`.
pub fn words(array: VirtAddr, max: usize) -> Result<Vec<Word>> {
    let mut words = Vec::new();
    if array.0 == 0 {
        return Ok(words);
    }
    let mut at = array;
    loop {
        let pointer: u64 = user::read(at).map_err(|_| Errno::EFAULT)?;
        if pointer == 0 {
            return Ok(words);
        }
        if words.len() >= max {
            return Err(Errno::E2BIG);
        }
        words.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        words.push(Word::User(VirtAddr(pointer as usize)));
        at = at.checked_add(8).ok_or(Errno::EFAULT)?;
    }
}

/// Writes downward into an address space that does not run yet, a page at a time.
pub struct Stack<'a> {
    map: &'a Map,
    /// The lowest address written or buffered so far.
    at: usize,
    /// What is not written yet, in its last bytes.
    buffer: Box<[u8]>,
    buffered: usize,
    /// The lowest address allowed.
    floor: usize,
}

impl<'a> Stack<'a> {
    /// Starts at `top`; at most `limit` bytes.
    pub fn new(map: &'a Map, top: VirtAddr, limit: usize) -> Stack<'a> {
        Stack {
            map,
            at: top.0,
            buffer: vec![0; PAGE_SIZE].into_boxed_slice(),
            buffered: 0,
            floor: top.0.saturating_sub(limit),
        }
    }

    /// Where the stack is now.
    pub fn pointer(&self) -> VirtAddr {
        VirtAddr(self.at)
    }

    /// Puts bytes below what is there.
    ///
    /// # Errors
    /// `E2BIG` beyond the limit, `ENOMEM`.
    pub fn push(&mut self, mut bytes: &[u8]) -> Result<()> {
        if self.at - self.floor < bytes.len() {
            return Err(Errno::E2BIG);
        }
        while !bytes.is_empty() {
            if self.buffered == PAGE_SIZE {
                self.flush()?;
            }
            let n = bytes.len().min(PAGE_SIZE - self.buffered);
            let (rest, last) = bytes.split_at(bytes.len() - n);
            let end = PAGE_SIZE - self.buffered;
            self.buffer[end - n..end].copy_from_slice(last);
            self.buffered += n;
            self.at -= n;
            bytes = rest;
        }
        Ok(())
    }

    /// Puts a number below what is there.
    pub fn push_word(&mut self, word: u64) -> Result<()> {
        self.push(&word.to_le_bytes())
    }

    /// Puts a string and its NUL below what is there.
    ///
    /// # Errors
    /// As [`push`](Self::push); `EFAULT` if it can't be read.
    pub fn push_string(&mut self, word: &Word) -> Result<()> {
        self.push(&[0])?;
        match word {
            Word::Bytes(bytes) => self.push(bytes),
            Word::User(address) => {
                let bytes = user::copy_in_string(*address, STRING_MAX - 1)
                    .map_err(|_| Errno::EFAULT)?
                    .ok_or(Errno::E2BIG)?;
                self.push(&bytes)
            }
        }
    }

    /// Puts strings so that the first has the lowest address; returns where each stands, last one first, and the whole
    /// range.
    pub fn push_strings(&mut self, words: &[Word]) -> Result<(Vec<u64>, VirtRange)> {
        let end = self.pointer();
        let mut addresses = Vec::new();
        addresses
            .try_reserve_exact(words.len())
            .map_err(|_| Errno::ENOMEM)?;
        for word in words.iter().rev() {
            self.push_string(word)?;
            addresses.push(self.at as u64);
        }
        Ok((addresses, VirtRange::new(self.pointer(), end)))
    }

    /// Leaves bytes out so that after pushing `words` more words the pointer is a multiple of 16.
    pub fn align_for(&mut self, words: usize) -> Result<()> {
        let end = self.at.wrapping_sub(words * 8);
        let mut padding = end & 15;
        while padding > 0 {
            let n = padding.min(8);
            self.push(&[0; 8][..n])?;
            padding -= n;
        }
        Ok(())
    }

    /// Writes what is buffered.
    pub fn flush(&mut self) -> Result<()> {
        let from = PAGE_SIZE - self.buffered;
        let bytes = &self.buffer[from..];
        if self.map.write(VirtAddr(self.at), bytes) != bytes.len() {
            return Err(Errno::ENOMEM);
        }
        self.buffered = 0;
        Ok(())
    }
}
