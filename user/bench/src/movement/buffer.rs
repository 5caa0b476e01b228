//! Buffers for sending and receiving, and stamps by which a receiver checks them.

use std::io::{Error, Result};
use std::ptr;
use std::slice;

use super::wrong;

/// The size of a page in bytes.
pub const PAGE: usize = 4096;

/// Private anonymous memory with nothing else in its pages.
#[derive(Debug)]
pub struct Buffer {
    map: *mut u8,
    mapped: usize,
    offset: usize,
    len: usize,
}

impl Buffer {
    /// Makes a buffer of `len` bytes that begins `offset` bytes behind the start of a page, all
    /// present.
    ///
    /// # Errors
    /// Those of `mmap`.
    pub fn new(len: usize, offset: usize) -> Result<Buffer> {
        let mapped = (offset + len).next_multiple_of(PAGE).max(PAGE);
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let map = unsafe {
            libc::mmap(
                ptr::null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
                -1,
                0,
            )
        };
        if map == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        Ok(Buffer {
            map: map.cast(),
            mapped,
            offset,
            len,
        })
    }

    /// Returns its bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: this buffer owns the mapping, which is readable, initialised by the kernel, and
        // lives as long as `self`.
        unsafe { slice::from_raw_parts(self.map.add(self.offset), self.len) }
    }

    /// Returns its bytes for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `bytes`; the exclusive borrow of `self` makes this the only reference.
        unsafe { slice::from_raw_parts_mut(self.map.add(self.offset), self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: this buffer owns the mapping, and nothing borrows from it any more.
        unsafe { libc::munmap(self.map.cast(), self.mapped) };
    }
}

/// Writes the message's number into each page of the message, as `fbufs.txt` section 4 does: the
/// smallest change that dirties each page.
pub fn stamp(message: &mut [u8], number: u64) {
    for piece in message.chunks_mut(PAGE) {
        let mark = number.to_le_bytes();
        let len = piece.len().min(mark.len());
        piece[..len].copy_from_slice(&mark[..len]);
    }
}

/// Checks the stamps that [`stamp`] wrote.
///
/// # Errors
/// When a stamp is missing or another message's.
pub fn check_stamp(message: &[u8], number: u64) -> Result<()> {
    for (at, piece) in message.chunks(PAGE).enumerate() {
        let mark = number.to_le_bytes();
        let len = piece.len().min(mark.len());
        if piece[..len] != mark[..len] {
            return Err(wrong(format!(
                "message {number} has {:x?} in page {at}",
                &piece[..len]
            )));
        }
    }
    Ok(())
}

/// Writes the message's number over all of the message.
pub fn fill(message: &mut [u8], number: u64) {
    let mark = number.to_le_bytes();
    let mut words = message.chunks_exact_mut(mark.len());
    for word in &mut words {
        word.copy_from_slice(&mark);
    }
    let rest = words.into_remainder();
    rest.copy_from_slice(&mark[..rest.len()]);
}

/// Reads all bytes that [`fill`] wrote.
///
/// # Errors
/// When some are another message's.
pub fn check_filled(message: &[u8], number: u64) -> Result<()> {
    let mark = number.to_le_bytes();
    let words = message.chunks_exact(mark.len());
    let rest = words.remainder();
    // Without a branch for each word, which the compiler could not vectorise.
    let sum = words.fold(0, |sum, word| {
        let word = word.try_into().map_or(!number, u64::from_le_bytes);
        sum | (word ^ number)
    });
    match sum == 0 && *rest == mark[..rest.len()] {
        true => Ok(()),
        false => Err(wrong(format!("message {number} has bytes of another one"))),
    }
}

/// Returns a byte of a pattern that repeats neither with pages nor with powers of two.
fn pattern(seed: u64, at: usize) -> u8 {
    let mixed = (at as u64 + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8
}

/// Fills `bytes` with a pattern that depends on `seed`.
pub fn fill_pattern(bytes: &mut [u8], seed: u64) {
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = pattern(seed, at);
    }
}

/// Checks every byte that [`fill_pattern`] wrote.
///
/// # Errors
/// Names the first wrong byte.
pub fn check_pattern(bytes: &[u8], seed: u64) -> Result<()> {
    for (at, &byte) in bytes.iter().enumerate() {
        let expected = pattern(seed, at);
        if byte != expected {
            return Err(wrong(format!(
                "byte {at} of {} is {byte:#04x}, not {expected:#04x}",
                bytes.len()
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_byte_is_found() {
        for (len, offset) in [(1, 0), (64, 9), (PAGE, 0), (3 * PAGE + 5, 1000)] {
            let mut buffer = Buffer::new(len, offset).expect("memory");
            assert_eq!(buffer.bytes().as_ptr() as usize % PAGE, offset);
            stamp(buffer.bytes_mut(), 0x1_0203);
            assert!(check_stamp(buffer.bytes(), 0x1_0203).is_ok());
            assert!(check_stamp(buffer.bytes(), 0x1_0204).is_err());
            fill(buffer.bytes_mut(), 0x102_0304_0506_0708);
            assert!(check_filled(buffer.bytes(), 0x102_0304_0506_0708).is_ok());
            for at in [0, len / 2, len - 1] {
                buffer.bytes_mut()[at] ^= 1;
                let checked = check_filled(buffer.bytes(), 0x102_0304_0506_0708);
                assert!(checked.is_err(), "byte {at}");
                buffer.bytes_mut()[at] ^= 1;
            }
            fill_pattern(buffer.bytes_mut(), 7);
            assert!(check_pattern(buffer.bytes(), 7).is_ok());
            for at in [0, len / 2, len - 1] {
                buffer.bytes_mut()[at] ^= 1;
                assert!(check_pattern(buffer.bytes(), 7).is_err(), "byte {at}");
                buffer.bytes_mut()[at] ^= 1;
            }
        }
    }

    #[test]
    fn an_old_page_is_found_by_its_stamp() {
        let mut buffer = Buffer::new(4 * PAGE, 0).expect("memory");
        stamp(buffer.bytes_mut(), 5);
        let old = buffer.bytes()[2 * PAGE..3 * PAGE].to_vec();
        stamp(buffer.bytes_mut(), 6);
        buffer.bytes_mut()[2 * PAGE..3 * PAGE].copy_from_slice(&old);
        assert!(check_stamp(buffer.bytes(), 6).is_err());
    }
}
