//! Names with a number in them: `cpu0`, `node0`, `index0`.

use abi::{Errno, Result};
use alloc::{boxed::Box, format};
use fs::{
    Kind,
    pseudofs::{Directory, EmitName, Entry},
};

/// `count` names, each a word and a number from 0 on.
pub(super) struct Numbered {
    pub word: &'static str,
    pub count: usize,
    pub kind: Kind,
    /// Makes the entry of a number.
    pub make: Box<dyn Fn(usize) -> Entry + Send + Sync>,
}

/// Which of several a name is: the word, and a number as it is written.
pub(super) fn number_in(name: &[u8], word: &str) -> Option<usize> {
    let digits = name.strip_prefix(word.as_bytes())?;
    let plain = !digits.is_empty()
        && digits.iter().all(u8::is_ascii_digit)
        && (digits.len() == 1 || digits[0] != b'0');
    core::str::from_utf8(digits)
        .ok()?
        .parse()
        .ok()
        .filter(|_| plain)
}

impl Directory for Numbered {
    fn lookup(&self, name: &[u8]) -> Result<Entry> {
        number_in(name, self.word)
            .filter(|&number| number < self.count)
            .map(|number| (self.make)(number))
            .ok_or(Errno::ENOENT)
    }

    fn list(&self, cursor: u64, emit: &mut EmitName<'_>) -> Result<()> {
        for number in cursor as usize..self.count {
            let name = format!("{}{number}", self.word);
            if !emit(name.as_bytes(), self.kind, number as u64 + 1) {
                break;
            }
        }
        Ok(())
    }
}
