//! The arguments and environment of a program that is put together.

use alloc::vec::Vec;

use abi::{Errno, Result};
use nucleus::{PAGE_SIZE, VirtAddr, user};

use super::{
    elf::Class,
    held::Held,
    stack::{STRING_MAX, Stack},
};

/// Pointers that are read at once.
const STEP: usize = 64;

/// Strings for a program: some of the kernel's, before those in the memory of the caller of
/// `execve`. The latter may be very many, so they take a number each.
#[derive(Default)]
pub struct Words {
    /// The kernel's, without their NUL, the last one first.
    own: Vec<Own>,
    /// Where the caller's are; once they are pushed, where they are on the new stack.
    rest: Vec<u64>,
    /// Of those, how many at the front are left out.
    skipped: usize,
}

struct Own {
    bytes: Vec<u8>,
    /// Where it is on the new stack.
    at: u64,
}

impl Words {
    /// Reads the pointer array at `array`, which ends with a null pointer and may be none at all;
    /// at most `max` pointers, each of a word of `class`. `held` is charged for them.
    ///
    /// # Errors
    /// `EFAULT`, `E2BIG`, `ENOMEM`.
    pub fn read(array: VirtAddr, max: usize, class: Class, held: &mut Held) -> Result<Words> {
        let mut rest = Vec::new();
        let mut next = (array.0 != 0).then_some(array);
        while let Some(at) = next {
            // Never beyond the page: the next one may be missing.
            let in_page = (PAGE_SIZE - at.page_offset()) / class.word();
            let mut pointers = [0; STEP];
            let pointers = &mut pointers[..in_page.clamp(1, STEP)];
            match class {
                Class::X64 => user::read_all(pointers, at)?,
                Class::I386 => {
                    let mut narrow = [0u32; STEP];
                    let narrow = &mut narrow[..pointers.len()];
                    user::read_all(narrow, at)?;
                    let both = pointers.iter_mut().zip(&*narrow);
                    both.for_each(|(to, &from)| *to = from.into());
                }
            }
            let count = pointers.iter().position(|&pointer| pointer == 0);
            let found = &pointers[..count.unwrap_or(pointers.len())];
            if rest.len() + found.len() > max {
                return Err(Errno::E2BIG);
            }
            let before = rest.capacity();
            rest.try_reserve(found.len())?;
            held.add((rest.capacity() - before) * size_of::<u64>());
            rest.extend_from_slice(found);
            let behind = at.checked_add(pointers.len() * class.word());
            next = match count {
                Some(_) => None,
                None => Some(behind.ok_or(Errno::EFAULT)?),
            };
        }
        Ok(Words {
            rest,
            ..Words::default()
        })
    }

    /// Strings of the kernel's.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn of(list: Vec<Vec<u8>>) -> Result<Words> {
        let mut words = Words::default();
        words.own.try_reserve(list.len())?;
        list.into_iter().rev().for_each(|it| words.put(it));
        Ok(words)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.own.len() + self.rest.len() - self.skipped
    }

    /// Puts some of the kernel's in the place of the first one, or where it would be.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn replace_first(&mut self, by: impl DoubleEndedIterator<Item = Vec<u8>>) -> Result<()> {
        if self.own.pop().is_none() && self.skipped < self.rest.len() {
            self.skipped += 1;
        }
        for bytes in by.rev() {
            self.own.try_reserve(1)?;
            self.put(bytes);
        }
        Ok(())
    }

    fn put(&mut self, bytes: Vec<u8>) {
        self.own.push(Own { bytes, at: 0 });
    }

    /// Pushes the strings so that the first has the lowest address.
    ///
    /// # Errors
    /// `E2BIG`, `ENOMEM`, `EFAULT` if one cannot be read.
    pub fn push_strings(&mut self, stack: &mut Stack<'_>) -> Result<()> {
        for word in self.rest[self.skipped..].iter_mut().rev() {
            let string = user::copy_in_string(VirtAddr(*word as usize), STRING_MAX - 1)?;
            *word = stack.push_string(&string.ok_or(Errno::E2BIG)?)?;
        }
        for own in &mut self.own {
            own.at = stack.push_string(&own.bytes)?;
        }
        Ok(())
    }

    /// Pushes where the strings are, and a null pointer behind that.
    ///
    /// # Errors
    /// `E2BIG`, `ENOMEM`.
    pub fn push_addresses(&self, stack: &mut Stack<'_>) -> Result<()> {
        stack.push_word(0)?;
        let rest = self.rest[self.skipped..].iter().rev();
        let mut all = rest.chain(self.own.iter().map(|own| &own.at));
        all.try_for_each(|&at| stack.push_word(at))
    }
}
