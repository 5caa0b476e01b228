//! What the loader left: memory map, command line, root archive, the firmware's root pointer. It is
//! read through the boot page tables, and nothing in it is trusted.

use core::sync::atomic::{AtomicU64, Ordering};

use super::layout::{BOOT_MAPPED, image, ptr};
use super::memory::MemoryMap;
use super::start::{LOADER_MULTIBOOT2, LOADER_PVH};
use crate::PhysAddr;
use crate::hw::MAX_COMMAND_LINE;

/// Entries of a memory map that are looked at.
const MAX_ENTRIES: u32 = 1024;

/// What was found.
#[derive(Debug)]
pub struct Found {
    pub memory: MemoryMap,
    command_line: [u8; MAX_COMMAND_LINE],
    command_line_len: usize,
    /// Physical address and bytes of the root archive; memory that is marked as in use.
    pub archive: Option<(u64, u64)>,
    pub root_pointer: Option<u64>,
    /// Random bytes (`seed=` and 64 hexadecimal digits), which the command line and the loader's
    /// memory do not have any more.
    pub seed: Option<[u8; 32]>,
}

impl Found {
    /// The command line.
    pub fn command_line(&self) -> &str {
        // `read_command_line` has replaced what is not.
        core::str::from_utf8(&self.command_line[..self.command_line_len]).unwrap_or("")
    }
}

/// Why the kernel can't start from what it was given.
pub type Problem = &'static str;

/// Reads a value in the loader's memory.
fn read<T: Copy>(at: u64) -> Option<T> {
    let end = at.checked_add(size_of::<T>() as u64)?;
    if end > BOOT_MAPPED {
        return None;
    }
    // SAFETY: the boot page tables map it, and every `T` below is made of integers.
    Some(unsafe { ptr(PhysAddr(at)).cast::<T>().read_unaligned() })
}

#[repr(C)]
#[derive(Clone, Copy)]
struct StartInfo {
    magic: u32,
    version: u32,
    flags: u32,
    modules: u32,
    module_list: u64,
    command_line: u64,
    root_pointer: u64,
    memory_map: u64,
    memory_map_entries: u32,
    reserved: u32,
}

const START_INFO_MAGIC: u32 = 0x336e_c578;
const USABLE: u32 = 1;

#[repr(C)]
#[derive(Clone, Copy)]
struct MemoryEntry {
    start: u64,
    bytes: u64,
    kind: u32,
    reserved: u32,
}

/// The data that arrived with the 32-bit entry: which loader, and its structure's address.
pub fn read_all(loader: u32, info: u64) -> Result<Found, Problem> {
    let mut found = Found {
        memory: MemoryMap::new(),
        command_line: [0; MAX_COMMAND_LINE],
        command_line_len: 0,
        archive: None,
        root_pointer: None,
        seed: None,
    };
    match loader {
        LOADER_PVH => read_pvh(info, &mut found)?,
        LOADER_MULTIBOOT2 => read_multiboot2(info, &mut found)?,
        _ => return Err("the kernel was entered by no loader that it knows"),
    }
    if found.memory.ranges().is_empty() {
        return Err("the loader gave no memory map");
    }
    let image = image();
    if let Some((start, bytes)) = found.archive {
        if !found.memory.contains(start, bytes) {
            return Err("the root archive does not lie in usable memory");
        }
        let page = crate::PAGE_SIZE as u64;
        if start / page * page < image.end && start + bytes > image.start {
            return Err("the root archive lies in the kernel");
        }
        found.memory.reserve(start, bytes);
    }
    found.memory.reserve(image.start, image.end - image.start);
    Ok(found)
}

fn read_pvh(info: u64, found: &mut Found) -> Result<(), Problem> {
    const BROKEN: Problem = "the loader's PVH start information is damaged";
    let info: StartInfo = read(info).ok_or(BROKEN)?;
    if info.magic != START_INFO_MAGIC || info.version < 1 {
        return Err(BROKEN);
    }
    let entries = || {
        (0..u64::from(info.memory_map_entries.min(MAX_ENTRIES))).map_while(|i| {
            read::<MemoryEntry>(
                info.memory_map
                    .checked_add(i * size_of::<MemoryEntry>() as u64)?,
            )
        })
    };
    add_memory(&mut found.memory, entries);
    if info.root_pointer != 0 {
        found.root_pointer = Some(info.root_pointer);
    }
    if info.command_line != 0 {
        read_command_line(info.command_line, BOOT_MAPPED, found)?;
    }
    if info.modules > 0 {
        let [start, bytes]: [u64; 2] = read(info.module_list).ok_or(BROKEN)?;
        add_archive(start, bytes, found);
    }
    Ok(())
}

/// First all that is usable, then minus all that is not: entries of the two kinds that overlap
/// are not usable.
fn add_memory<I: Iterator<Item = MemoryEntry>>(memory: &mut MemoryMap, entries: impl Fn() -> I) {
    for entry in entries().filter(|e| e.kind == USABLE) {
        memory.add(entry.start, entry.bytes);
    }
    for entry in entries().filter(|e| e.kind != USABLE && e.bytes != 0) {
        memory.remove(entry.start, entry.bytes);
    }
}

fn add_archive(start: u64, bytes: u64, found: &mut Found) {
    if bytes != 0 && found.archive.is_none() {
        found.archive = Some((start, bytes));
    }
}

fn read_command_line(at: u64, end: u64, found: &mut Found) -> Result<(), Problem> {
    for i in 0.. {
        let address = at.checked_add(i).filter(|&a| a < end);
        match address.and_then(read::<u8>) {
            None => return Err("the kernel command line has no end"),
            Some(0) => break,
            Some(_) if i as usize == MAX_COMMAND_LINE => {
                return Err("the kernel command line is longer than 4096 bytes");
            }
            Some(byte) => {
                found.command_line[i as usize] = byte;
                found.command_line_len = i as usize + 1;
            }
        }
    }
    let (line, len) = (&mut found.command_line, &mut found.command_line_len);
    let read = *len;
    take_seed_from(line, len, &mut found.seed);
    if *len < read {
        for (i, byte) in line[..read].iter().enumerate() {
            // SAFETY: a byte of the command line, which was read from there.
            unsafe { *ptr(PhysAddr(at + i as u64)) = *byte };
        }
    }
    // What is not UTF-8 becomes a question mark, byte by byte.
    let mut from = 0;
    while let Err(error) = core::str::from_utf8(&found.command_line[from..found.command_line_len]) {
        from += error.valid_up_to();
        found.command_line[from] = b'?';
        from += 1;
    }
    Ok(())
}

/// The word of the command line that has the seed, and its digits.
const SEED: &[u8] = b"seed=";
const SEED_DIGITS: usize = 64;

/// Takes the words with a seed out of the options of the command line `line` of `len` bytes, which
/// closes up; zeros follow it. The last one counts.
fn take_seed_from(line: &mut [u8], len: &mut usize, seed: &mut Option<[u8; 32]>) {
    let mut at = 0;
    while at < *len {
        let end = line[at..*len].iter().position(|&byte| byte == b' ');
        let end = end.map_or(*len, |blank| at + blank);
        if line[at..end] == *b"--" {
            break;
        }
        let next = (end + 1).min(*len);
        let Some(digits) = line[at..end].strip_prefix(SEED) else {
            at = next;
            continue;
        };
        *seed = from_digits(digits).or(*seed);
        line.copy_within(next..*len, at);
        line[*len - (next - at)..*len].fill(0);
        *len -= next - at;
    }
}

fn from_digits(digits: &[u8]) -> Option<[u8; 32]> {
    let mut bytes = [0; SEED_DIGITS / 2];
    if digits.len() != SEED_DIGITS {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        *byte = (digit(digits[0])? << 4 | digit(digits[1])?) as u8;
    }
    Some(bytes)
}

/// The seed, for its one user.
static KEPT: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

/// Keeps a seed for [`take_seed`].
pub fn keep_seed(seed: &[u8; 32]) {
    for (word, bytes) in KEPT.iter().zip(seed.chunks_exact(8)) {
        let bytes = bytes.try_into().unwrap_or_default();
        word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
    }
}

/// Takes the seed that the loader gave, if any.
pub(crate) fn take_seed() -> Option<[u8; 32]> {
    let words = KEPT.each_ref().map(|word| word.swap(0, Ordering::Relaxed));
    let mut seed = [0; 32];
    for (bytes, word) in seed.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    (words != [0; 4]).then_some(seed)
}

const TAG_END: u32 = 0;
const TAG_COMMAND_LINE: u32 = 1;
const TAG_MODULE: u32 = 3;
const TAG_MEMORY_MAP: u32 = 6;
const TAG_ACPI_OLD: u32 = 14;
const TAG_ACPI_NEW: u32 = 15;

fn read_multiboot2(info: u64, found: &mut Found) -> Result<(), Problem> {
    const BROKEN: Problem = "the loader's multiboot2 information is damaged";
    let total: u32 = read(info).ok_or(BROKEN)?;
    let end = info + u64::from(total);
    let mut at = info + 8;
    loop {
        let [kind, size]: [u32; 2] = read(at).ok_or(BROKEN)?;
        let next = (at + u64::from(size)).next_multiple_of(8);
        if kind == TAG_END {
            return Ok(());
        }
        if size < 8 || at + u64::from(size) > end {
            return Err(BROKEN);
        }
        let body = at + 8;
        match kind {
            TAG_COMMAND_LINE => read_command_line(body, at + u64::from(size), found)?,
            TAG_MODULE if size >= 16 => {
                let [start, stop]: [u32; 2] = read(body).ok_or(BROKEN)?;
                add_archive(start.into(), u64::from(stop.saturating_sub(start)), found);
            }
            TAG_MEMORY_MAP if size >= 16 => {
                let [width, _version]: [u32; 2] = read(body).ok_or(BROKEN)?;
                if width < 24 {
                    return Err(BROKEN);
                }
                let entries = || {
                    let count = ((size - 16) / width).min(MAX_ENTRIES);
                    (0..count).map_while(|i| read(body + 8 + u64::from(i) * u64::from(width)))
                };
                add_memory(&mut found.memory, entries);
            }
            // The loader's copy of the root pointer; the new one wins.
            TAG_ACPI_NEW => found.root_pointer = Some(body),
            TAG_ACPI_OLD if found.root_pointer.is_none() => found.root_pointer = Some(body),
            _ => {}
        }
        at = next;
    }
}
