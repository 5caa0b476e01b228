//! Names with a number in them: `cpu0`, `node0`, `index0`.

use abi::{Errno, Result};
use alloc::{boxed::Box, format};
use fs::{
    Kind,
    pseudofs::{Directory, EmitName, Entry},
};

use crate::pseudofs::number;

/// `count` names, each a word and a number from 0 on.
pub(super) struct Numbered {
    pub word: &'static str,
    pub count: usize,
    pub kind: Kind,
    /// Makes the entry of a number.
    pub make: Box<dyn Fn(usize) -> Entry + Send + Sync>,
}

impl Directory for Numbered {
    fn lookup(&self, name: &[u8]) -> Result<Entry> {
        name.strip_prefix(self.word.as_bytes())
            .and_then(number)
            .map(|number| number as usize)
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
