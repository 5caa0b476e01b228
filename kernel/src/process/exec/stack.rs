//! The first stack of a program: strings, auxiliary vector, environment, arguments.

use alloc::{boxed::Box, vec, vec::Vec};

use abi::{Errno, Result, raw::auxvec};
use nucleus::{PAGE_SIZE, Prot, VirtAddr, VirtRange, processor, random, trap::UserContext};
use vm::{Map, MapRequest, Place};

use super::{
    elf::Class,
    held::Held,
    image::{Image, no_memory},
    words::Words,
};
use crate::process::{CLOCK_TICKS, Credentials, rseq};

/// Bytes of stack that are mapped at once; more by faults.
const START: usize = 33 * PAGE_SIZE;
/// Bytes of a signal frame beside the FPU state, rounded up (`AT_MINSIGSTKSZ`).
const FRAME: u64 = 768;

/// The longest argument or environment string, its NUL included (`MAX_ARG_STRLEN`).
pub const STRING_MAX: usize = 32 * PAGE_SIZE;

/// Writes downward into an address space that does not run yet, a page at a time.
pub struct Stack<'a> {
    map: &'a Map,
    /// The lowest address written or buffered so far.
    at: usize,
    /// The bytes that are not written yet, at the end of the buffer.
    buffer: Box<[u8]>,
    buffered: usize,
    /// The lowest address allowed.
    floor: usize,
    /// Bytes of a word.
    word: usize,
    /// Charged for each page.
    held: &'a mut Held,
}

impl<'a> Stack<'a> {
    /// Starts at `top`; at most `limit` bytes, words as `class` has them. `held` is charged for its
    /// pages.
    #[allow(clippy::disallowed_methods, reason = "one page")]
    pub fn new(
        map: &'a Map,
        top: VirtAddr,
        limit: usize,
        class: Class,
        held: &'a mut Held,
    ) -> Stack<'a> {
        Stack {
            map,
            at: top.0,
            buffer: vec![0; PAGE_SIZE].into_boxed_slice(),
            buffered: 0,
            floor: top.0.saturating_sub(limit),
            word: class.word(),
            held,
        }
    }

    /// Where the stack is now.
    pub fn pointer(&self) -> VirtAddr {
        VirtAddr(self.at)
    }

    /// Pushes bytes.
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

    pub fn push_word(&mut self, word: u64) -> Result<()> {
        let bytes = word.to_le_bytes();
        let free = &mut self.buffer[..PAGE_SIZE - self.buffered];
        match free.last_chunk_mut() {
            Some(place) if self.word == bytes.len() && self.at - self.floor >= bytes.len() => {
                *place = bytes;
                self.buffered += bytes.len();
                self.at -= bytes.len();
                Ok(())
            }
            _ => self.push(&bytes[..self.word]),
        }
    }

    /// Pushes a string and its NUL; returns where it begins.
    ///
    /// # Errors
    /// Those of [`push`](Self::push).
    pub fn push_string(&mut self, string: &[u8]) -> Result<u64> {
        self.push(&[0])?;
        self.push(string)?;
        Ok(self.at as u64)
    }

    /// Leaves bytes out so that after pushing `words` more words the pointer is a multiple of 16.
    pub fn align_for(&mut self, words: usize) -> Result<()> {
        let end = self.at.wrapping_sub(words * self.word);
        self.push(&[0; 16][..end & 15])
    }

    pub fn flush(&mut self) -> Result<()> {
        let from = PAGE_SIZE - self.buffered;
        let bytes = &self.buffer[from..];
        let written = self.map.write_all(VirtAddr(self.at), bytes);
        written.map_err(|_| Errno::ENOMEM)?;
        self.held.add(self.buffered);
        self.buffered = 0;
        Ok(())
    }
}

pub struct Contents<'a> {
    pub path: &'a [u8],
    pub arguments: &'a mut Words,
    pub environment: &'a mut Words,
    pub credentials: &'a Credentials,
    /// `AT_SECURE`.
    pub secure: bool,
    pub class: Class,
    pub main: &'a Image,
    /// How many program headers the program has.
    pub header_count: usize,
    /// Where the object for the time is; 0 if there is none.
    pub vdso: u64,
    /// Where the interpreter was loaded; 0 if there is none.
    pub loader_base: u64,
}

pub struct Built {
    /// The stack pointer to start with.
    pub pointer: VirtAddr,
    pub arguments: VirtRange,
    pub environment: VirtRange,
    pub auxiliary: Vec<u64>,
}

/// Maps the stack and fills it: from the top down the path, the environment, the arguments, random
/// bytes, then the vectors that a program finds at its stack pointer. Strings take `room` bytes at
/// most.
///
/// # Errors
/// `E2BIG`, `EFAULT`, `ENOMEM`.
pub fn build(
    map: &Map,
    room: usize,
    executable: bool,
    contents: &mut Contents<'_>,
    held: &mut Held,
) -> Result<Built> {
    let top = map.layout().stack_top;
    let mut prot = Prot::READ | Prot::WRITE;
    prot.set(Prot::EXEC, executable);
    map.map(MapRequest {
        place: Place::FixedNoReplace(VirtAddr(top.0 - START)),
        grows_down: true,
        label: "[stack]",
        ..MapRequest::zero(START, prot)
    })
    .map_err(no_memory)?;

    let mut stack = Stack::new(map, top, room + PAGE_SIZE, contents.class, held);
    stack.push_word(0)?;
    stack.push(&[0])?;
    stack.push(contents.path)?;
    let path = stack.pointer();
    contents.environment.push_strings(&mut stack)?;
    let environment = VirtRange::new(stack.pointer(), path);
    contents.arguments.push_strings(&mut stack)?;
    let arguments = VirtRange::new(stack.pointer(), environment.start);
    stack.push(match contents.class {
        Class::X64 => b"x86_64\0",
        Class::I386 => b"i686\0",
    })?;
    let platform = stack.pointer();
    let mut seed = [0; 16];
    random::fill(&mut seed);
    stack.push(&seed)?;
    let auxiliary = auxiliary(contents, path, platform, stack.pointer())?;

    let count = contents.arguments.len();
    let pointers = 1 + count + 1 + contents.environment.len() + 1 + auxiliary.len();
    stack.align_for(pointers)?;
    for word in auxiliary.iter().rev() {
        stack.push_word(*word)?;
    }
    contents.environment.push_addresses(&mut stack)?;
    contents.arguments.push_addresses(&mut stack)?;
    stack.push_word(count as u64)?;
    stack.flush()?;
    Ok(Built {
        pointer: stack.pointer(),
        arguments,
        environment,
        auxiliary,
    })
}

/// The auxiliary vector: properties of the kernel and the machine.
fn auxiliary(
    contents: &Contents<'_>,
    path: VirtAddr,
    platform: VirtAddr,
    seed: VirtAddr,
) -> Result<Vec<u64>> {
    let processor = processor::processor();
    let credentials = contents.credentials;
    let entries = [
        (auxvec::AT_SYSINFO_EHDR, contents.vdso),
        (auxvec::AT_HWCAP, processor.capabilities),
        (auxvec::AT_PAGESZ, PAGE_SIZE as u64),
        (auxvec::AT_CLKTCK, u64::from(CLOCK_TICKS)),
        (auxvec::AT_PHDR, contents.main.table),
        (auxvec::AT_PHENT, contents.class.program_header_len() as u64),
        (auxvec::AT_PHNUM, contents.header_count as u64),
        (auxvec::AT_BASE, contents.loader_base),
        (auxvec::AT_FLAGS, 0),
        (auxvec::AT_ENTRY, contents.main.entry),
        (auxvec::AT_UID, u64::from(credentials.real_uid)),
        (auxvec::AT_EUID, u64::from(credentials.effective_uid)),
        (auxvec::AT_GID, u64::from(credentials.real_gid)),
        (auxvec::AT_EGID, u64::from(credentials.effective_gid)),
        (auxvec::AT_SECURE, u64::from(contents.secure)),
        (auxvec::AT_RANDOM, seed.0 as u64),
        (auxvec::AT_HWCAP2, processor.capabilities2),
        (auxvec::AT_EXECFN, path.0 as u64),
        (auxvec::AT_PLATFORM, platform.0 as u64),
        (
            auxvec::AT_MINSIGSTKSZ,
            UserContext::fpu_size() as u64 + FRAME,
        ),
        (auxvec::AT_RSEQ_FEATURE_SIZE, u64::from(rseq::FEATURES)),
        (auxvec::AT_RSEQ_ALIGN, u64::from(rseq::SIZE)),
        (auxvec::AT_NULL, 0),
    ];
    // Without an object there is no word about it.
    let entries = &entries[usize::from(contents.vdso == 0)..];
    let mut words = nucleus::try_vec(2 * entries.len())?;
    for &(key, value) in entries {
        words.extend_from_slice(&[u64::from(key), value]);
    }
    Ok(words)
}
