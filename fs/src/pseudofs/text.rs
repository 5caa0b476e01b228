//! Generated text, and an open file of it.

use alloc::{sync::Arc, vec::Vec};
use core::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

use abi::raw::general::{SEEK_CUR, SEEK_SET};
use abi::{Errno, Result};
use fbuf::{Sink, Source};
use nucleus::{
    PAGE_SIZE,
    sync::{Rank, SpinLock},
};
use vm::account::{Kind, Stock};

use super::entry::{Show, Store};
use crate::{Attributes, File, Location, OpenFlags};

/// The most bytes of one `write`.
const WRITE_MAX: usize = 4096;

/// Text under construction: written by `write!` or [`push`](Text::push). When memory runs out it
/// takes no more, and its reader gets `ENOMEM`.
#[derive(Default)]
pub struct Text {
    bytes: Vec<u8>,
    failed: bool,
}

/// The largest width of [`Text::push_number`] and [`Text::push_hex`]: no number has more digits.
const WIDEST: usize = 24;

impl Text {
    /// Adds bytes as they are.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) {
        if self.bytes.try_reserve(bytes.len()).is_err() {
            self.failed = true;
        } else if !self.failed {
            self.bytes.extend_from_slice(bytes);
        }
    }

    /// Adds bytes with spaces, tabs, newlines and backslashes as octal escapes, as in
    /// `/proc/mounts`.
    pub fn push_escaped(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            match byte {
                b' ' | b'\t' | b'\n' | b'\\' => {
                    let digit = |shift: u8| b'0' + (byte >> shift & 7);
                    self.push(&[b'\\', digit(6), digit(3), digit(0)]);
                }
                _ => self.push(&[byte]),
            }
        }
    }

    /// Adds bytes with newlines as octal escapes, as in `/proc/PID/maps`.
    pub fn push_escaped_newlines(&mut self, bytes: &[u8]) {
        for (i, part) in bytes.split(|&b| b == b'\n').enumerate() {
            if i > 0 {
                self.push(b"\\012");
            }
            self.push(part);
        }
    }

    /// Adds a number in decimal, with leading spaces up to `width` digits, [`WIDEST`] at most.
    /// Files with thousands of numbers use this: the formatter of `write!` takes many times as
    /// long.
    pub fn push_number(&mut self, number: u64, width: usize) {
        self.push_digits::<10>(number, width, b' ');
    }

    /// Adds a number in hexadecimal, with leading zeros up to `width` digits.
    pub fn push_hex(&mut self, number: u64, width: usize) {
        self.push_digits::<16>(number, width, b'0');
    }

    fn push_digits<const BASE: u64>(&mut self, mut number: u64, width: usize, fill: u8) {
        debug_assert!(width <= WIDEST);
        let mut digits = [fill; WIDEST];
        let mut first = WIDEST;
        loop {
            first -= 1;
            digits[first] = b"0123456789abcdef"[(number % BASE) as usize];
            number /= BASE;
            if number == 0 {
                break;
            }
        }
        self.push(&digits[first.min(WIDEST - width.min(WIDEST))..]);
    }

    /// Adds spaces until there are `column` bytes after byte `start`.
    pub fn pad_to(&mut self, start: usize, column: usize) {
        const SPACES: [u8; 64] = [b' '; 64];
        let mut left = (start + column).saturating_sub(self.len());
        while left > 0 {
            let now = left.min(SPACES.len());
            self.push(&SPACES[..now]);
            if self.failed {
                return;
            }
            left -= now;
        }
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Tells whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

impl fmt::Write for Text {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.push(s.as_bytes());
        Ok(())
    }
}

impl Text {
    /// The target of `write!` and `writeln!`: the caller has nothing to unwrap, since the reader
    /// sees a failure.
    pub fn write_fmt(&mut self, args: fmt::Arguments<'_>) {
        // Only a broken `Display` fails here, and then its text is short.
        let _ = fmt::Write::write_fmt(self, args);
    }
}

/// An open text. It is generated when it is read from the start, and kept for reads that continue.
///
/// The position is not locked across a read, because generating takes locks of any rank; concurrent
/// reads at one shared position may return the same bytes.
pub(super) struct TextFile {
    location: Location,
    show: Arc<Show>,
    store: Option<Arc<Store>>,
    content: SpinLock<Option<Arc<Vec<u8>>>>,
    /// Charges it to who opened the file.
    stock: Stock,
    position: AtomicU64,
}

impl TextFile {
    pub(super) fn new(location: Location, show: Arc<Show>, store: Option<Arc<Store>>) -> TextFile {
        TextFile {
            location,
            show,
            store,
            content: SpinLock::new(Rank::Leaf, None),
            stock: Stock::of_current(Kind::OpenFiles),
            position: AtomicU64::new(0),
        }
    }

    /// Returns the text for a read at `at`.
    fn content(&self, at: u64) -> Result<Arc<Vec<u8>>> {
        if at > 0 {
            let content = self.content.lock().clone();
            if let Some(content) = content {
                return Ok(content);
            }
        }
        let mut text = Text::default();
        (self.show)(&mut text)?;
        if text.failed {
            return Err(Errno::ENOMEM);
        }
        let content = Arc::new(text.bytes);
        let old = {
            let mut kept = self.content.lock();
            // A small text is part of what an open file is charged with.
            self.stock.cover(content.len() / PAGE_SIZE);
            kept.replace(content.clone())
        };
        // Freed after the lock was released.
        drop(old);
        Ok(content)
    }
}

impl File for TextFile {
    fn read(&self, at: Option<u64>, flags: OpenFlags, to: &mut dyn Sink) -> Result<usize> {
        if !flags.reads() {
            return Err(Errno::EBADF);
        }
        let from = at.unwrap_or_else(|| self.position.load(Ordering::Relaxed));
        let content = self.content(from)?;
        let start = usize::try_from(from).map_or(content.len(), |from| from.min(content.len()));
        let rest = &content[start..];
        let n = to.put_bytes(&rest[..rest.len().min(to.room())])?;
        if at.is_none() {
            self.position.store(from + n as u64, Ordering::Relaxed);
        }
        Ok(n)
    }

    fn write(&self, at: Option<u64>, flags: OpenFlags, from: &mut dyn Source) -> Result<usize> {
        let store = match &self.store {
            Some(store) if flags.writes() => store,
            _ => return Err(Errno::EBADF),
        };
        if from.left() > WRITE_MAX {
            return Err(Errno::EINVAL);
        }
        let mut bytes = nucleus::try_filled(from.left(), 0)?;
        let n = from.take_bytes(&mut bytes)?;
        store(&bytes[..n])?;
        if at.is_none() {
            self.position.fetch_add(n as u64, Ordering::Relaxed);
        }
        Ok(n)
    }

    fn seek(&self, offset: i64, whence: u32) -> Result<u64> {
        let base = match whence {
            SEEK_SET => 0,
            SEEK_CUR => self.position.load(Ordering::Relaxed),
            _ => return Err(Errno::EINVAL),
        };
        let to = (base as i64).checked_add(offset).ok_or(Errno::EOVERFLOW)?;
        let to = u64::try_from(to).map_err(|_| Errno::EINVAL)?;
        self.position.store(to, Ordering::Relaxed);
        Ok(to)
    }

    fn location(&self) -> Option<&Location> {
        Some(&self.location)
    }

    fn attributes(&self) -> Result<Attributes> {
        self.location.attributes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_what_the_formatter_makes_of_them() {
        let mut number = 0u64;
        for i in 0..64 {
            for number in [number, number + 1, !number] {
                for width in [0, 1, 8, 19, WIDEST] {
                    let mut text = Text::default();
                    text.push_number(number, width);
                    text.push_hex(number, width);
                    let wanted = format!("{number:>width$}{number:0width$x}");
                    assert_eq!(text.bytes, wanted.as_bytes());
                }
            }
            number = number << 1 | (i % 3 == 0) as u64;
        }
    }

    #[test]
    fn columns_begin_where_they_shall() {
        let mut text = Text::default();
        text.push(b"front");
        for (column, len) in [(3, 8), (2, 8), (100, 105), (100, 105)] {
            text.pad_to(5, column);
            assert_eq!(text.len(), len);
        }
        assert!(text.bytes[5..].iter().all(|&byte| byte == b' '));
    }
}
