//! 32-bit calls by `int 0x80` whose structures differ from the 64-bit ones, compared with the
//! results of the 64-bit calls.

use support::prelude::*;

pub mod files;
pub mod objects;
pub mod processes;
pub mod small;
pub mod sockets;
pub mod time;

/// Fails the test unless the 32-bit call succeeds; returns its result.
#[macro_export]
macro_rules! call80 {
    ($number:expr, $($argument:expr),*) => {{
        let result = int80($number, [$($argument as u32),*]);
        ensure!(
            !(-4095..0).contains(&result),
            "32-bit call {} (line {}) failed with {}", $number, line!(), -result
        );
        result
    }};
}

/// Fails the test unless the 32-bit call fails with this error.
#[macro_export]
macro_rules! refused80 {
    ($error:ident, $number:expr, $($argument:expr),*) => {
        equal!(int80($number, [$($argument as u32),*]), -libc::$error, $number);
    };
}

/// Memory below 2 GiB, allocated piece by piece.
struct Low {
    at: *mut u8,
    used: usize,
}

impl Low {
    fn new() -> Result<Low> {
        let at = low_map(64 * PAGE)?;
        Ok(Low { at, used: 0 })
    }

    /// Returns the address of so many zero bytes.
    fn room(&mut self, len: usize) -> u32 {
        let at = self.at as usize + self.used;
        self.used += len.next_multiple_of(8) + 8;
        assert!(self.used <= 64 * PAGE);
        at as u32
    }

    fn bytes(&mut self, bytes: &[u8]) -> u32 {
        let at = self.room(bytes.len());
        // SAFETY: the room is this long.
        unsafe { (at as usize as *mut u8).copy_from(bytes.as_ptr(), bytes.len()) };
        at
    }

    fn words(&mut self, words: &[u32]) -> u32 {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.bytes(&bytes)
    }

    fn text(&mut self, text: &str) -> u32 {
        self.bytes(CString::new(text).unwrap_or_default().as_bytes_with_nul())
    }
}

/// `N` words of low memory.
fn words<const N: usize>(at: u32) -> [u32; N] {
    // SAFETY: the callers name memory that they were given.
    unsafe { (at as usize as *const [u32; N]).read_volatile() }
}

fn read_bytes(at: u32, len: usize) -> Vec<u8> {
    // SAFETY: the callers name memory that they were given.
    unsafe { std::slice::from_raw_parts(at as usize as *const u8, len).to_vec() }
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}
