//! The headers of an ELF file. Reading is strict: inconsistent headers are `ENOEXEC`, and no number
//! from the file is used before it was checked.

use alloc::vec::Vec;

use abi::{
    Errno, Result,
    raw::{elf, elf_uapi},
};
use nucleus::{PAGE_SIZE, Prot, addr::USER_END, user};

/// Bytes of the file header; that of a 32-bit program is shorter.
pub const HEADER_LEN: usize = size_of::<elf_uapi::elf64_hdr>();
/// More program headers than fit in this many bytes are refused, as on Linux.
const PROGRAM_HEADERS_MAX: usize = 65_536;
/// Values of the class in a file's identity.
const ELFCLASS32: u8 = 1;
const ELFCLASS64: u8 = 2;
/// The longest path of an interpreter.
const INTERPRETER_MAX: u64 = 4096;

/// For which processor mode a program is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Long mode.
    X64,
    /// Compatibility mode, for programs of the i386.
    I386,
}

impl Class {
    pub const fn program_header_len(self) -> usize {
        match self {
            Class::X64 => size_of::<elf_uapi::elf64_phdr>(),
            Class::I386 => size_of::<elf_uapi::elf32_phdr>(),
        }
    }

    /// Bytes of an address, and of the words on a program's first stack.
    pub const fn word(self) -> usize {
        match self {
            Class::X64 => 8,
            Class::I386 => 4,
        }
    }

    /// Where the program's part of the address space ends.
    pub const fn end(self) -> u64 {
        match self {
            Class::X64 => USER_END.0 as u64,
            Class::I386 => 0xffff_e000,
        }
    }
}

/// The file header's part that matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    pub class: Class,
    /// Loaded where the kernel likes, rather than where the file says.
    pub relocatable: bool,
    /// Where the program begins, before relocation.
    pub entry: u64,
    /// Where the program headers stand in the file.
    pub table_offset: u64,
    /// How many there are, 1 at least.
    pub table_count: usize,
}

/// A piece of the file that becomes memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Before relocation.
    pub address: u64,
    pub memory_len: u64,
    /// Congruent to `address` modulo the page size.
    pub file_offset: u64,
    /// At most `memory_len`; the rest is zero.
    pub file_len: u64,
    pub prot: Prot,
}

/// How to load a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    pub header: Header,
    pub segments: Vec<Segment>,
    /// Where the interpreter's path stands in the file: offset and length, its NUL included.
    pub interpreter: Option<(u64, usize)>,
    /// Whether the stack is to be executable.
    pub executable_stack: bool,
    /// Where the program headers are in memory, before relocation; 0 if in no segment.
    pub table_address: u64,
    /// First page and end of all segments, before relocation.
    pub start: u64,
    pub end: u64,
    /// The largest alignment that a segment asks for, a power of two of at least a page.
    pub align: u64,
}

/// Reads fields of the structure of a class that begins `$bytes`, as `u64`s.
///
/// # Errors
/// `ENOEXEC` if there are too few bytes.
macro_rules! fields {
    ($class:expr, $bytes:expr, $wide:ident or $narrow:ident: $($field:ident),*) => {
        match $class {
            Class::X64 => user::from_bytes($bytes)
                .map(|it: elf_uapi::$wide| [$(it.$field as u64),*]),
            Class::I386 => user::from_bytes($bytes)
                .map(|it: elf_uapi::$narrow| [$(it.$field as u64),*]),
        }
        .ok_or(Errno::ENOEXEC)
    };
}

/// Reads the file header from the first bytes of a file.
///
/// # Errors
/// `ENOEXEC` if it is not a program for this machine.
pub fn header(bytes: &[u8]) -> Result<Header> {
    let identity = bytes.get(..elf::EI_NIDENT).ok_or(Errno::ENOEXEC)?;
    let class = match identity[elf::EI_CLASS] {
        ELFCLASS32 => Class::I386,
        ELFCLASS64 => Class::X64,
        _ => return Err(Errno::ENOEXEC),
    };
    let [kind, machine, entry, table_offset, entry_len, table_count] = fields!(
        class, bytes, elf64_hdr or elf32_hdr:
        e_type, e_machine, e_entry, e_phoff, e_phentsize, e_phnum
    )?;
    let machine_good = match class {
        Class::X64 => machine == u64::from(elf_uapi::EM_X86_64),
        Class::I386 => [elf_uapi::EM_386, elf_uapi::EM_486].contains(&(machine as u32)),
    };
    let (table_count, entry_len) = (table_count as usize, entry_len as usize);
    let relocatable = kind == u64::from(elf::ET_DYN);
    let good = identity[..elf::SELFMAG] == elf::ELFMAG
        && identity[elf::EI_DATA] == elf::ELFDATA
        && identity[elf::EI_VERSION] == elf::EV_CURRENT
        && (kind == u64::from(elf_uapi::ET_EXEC) || relocatable)
        && machine_good
        && entry_len == class.program_header_len()
        && table_count >= 1
        && table_count * entry_len <= PROGRAM_HEADERS_MAX;
    if !good {
        return Err(Errno::ENOEXEC);
    }
    Ok(Header {
        class,
        relocatable,
        entry,
        table_offset,
        table_count,
    })
}

/// Reads the program headers. `table` are the bytes of the file at the header's `table_offset`.
///
/// # Errors
/// `ENOEXEC` if anything does not add up.
pub fn program(header: Header, table: &[u8]) -> Result<Program> {
    let mut program = Program {
        header,
        segments: Vec::new(),
        interpreter: None,
        executable_stack: false,
        table_address: 0,
        start: u64::MAX,
        end: 0,
        align: PAGE_SIZE as u64,
    };
    let class = header.class;
    let len = class.program_header_len();
    for at in 0..header.table_count {
        let entry = table.get(at * len..).ok_or(Errno::ENOEXEC)?;
        let [kind, flags, offset, address, file_len, memory_len, align] = fields!(
            class, entry, elf64_phdr or elf32_phdr:
            p_type, p_flags, p_offset, p_vaddr, p_filesz, p_memsz, p_align
        )?;
        let flags = flags as u32;
        match kind as u32 {
            elf::PT_LOAD => {
                let mut prot = Prot::empty();
                prot.set(Prot::READ, flags & elf::PF_R != 0);
                prot.set(Prot::WRITE, flags & elf::PF_W != 0);
                prot.set(Prot::EXEC, flags & elf::PF_X != 0);
                let segment = Segment {
                    address,
                    memory_len,
                    file_offset: offset,
                    file_len,
                    prot,
                };
                program.add(segment, align)?;
            }
            elf::PT_INTERP if program.interpreter.is_none() => {
                if !(2..=INTERPRETER_MAX).contains(&file_len) {
                    return Err(Errno::ENOEXEC);
                }
                program.interpreter = Some((offset, file_len as usize));
            }
            elf::PT_GNU_STACK => program.executable_stack = flags & elf::PF_X != 0,
            _ => {}
        }
    }
    if program.segments.is_empty() {
        return Err(Errno::ENOEXEC);
    }
    Ok(program)
}

impl Program {
    /// Adds a segment after a check of its numbers.
    fn add(&mut self, segment: Segment, align: u64) -> Result<()> {
        let page = PAGE_SIZE as u64;
        let Segment {
            address,
            memory_len,
            file_offset,
            file_len,
            ..
        } = segment;
        if memory_len == 0 {
            return Ok(());
        }
        let end = address.checked_add(memory_len).ok_or(Errno::ENOEXEC)?;
        let file_end = file_offset.checked_add(file_len).ok_or(Errno::ENOEXEC)?;
        if end > self.header.class.end()
            || file_end > i64::MAX as u64 - page
            || file_len > memory_len
            || address % page != file_offset % page
        {
            return Err(Errno::ENOEXEC);
        }
        if align.is_power_of_two() && align <= 1 << 30 {
            self.align = self.align.max(align);
        }
        let table = self.header.table_offset;
        if (file_offset..file_end).contains(&table) {
            self.table_address = address + (table - file_offset);
        }
        self.start = self.start.min(address & !(page - 1));
        self.end = self.end.max(end);
        self.segments.try_reserve(1)?;
        self.segments.push(segment);
        Ok(())
    }
}

/// The first line of a script.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Script {
    /// The interpreter's path.
    pub path: Vec<u8>,
    /// The rest of the line as one argument.
    pub argument: Option<Vec<u8>>,
}

/// Parses the first line of a script; `None` if the file is no script.
///
/// # Errors
/// `ENOEXEC` if there is no path, or no end of line within the bytes that Linux looks at.
pub fn script(start: &[u8]) -> Result<Option<Script>> {
    let Some(line) = start.strip_prefix(b"#!") else {
        return Ok(None);
    };
    let blank = |b: &u8| *b == b' ' || *b == b'\t';
    let end = line.iter().position(|b| *b == b'\n' || *b == 0);
    let line = match end {
        Some(end) => &line[..end],
        // A file that ends without a newline is shorter than the buffer; a cut line must at least
        // hold the whole path.
        None => line,
    };
    let cut = end.is_none() && start.len() >= SCRIPT_LINE_MAX;
    let from = line.iter().position(|b| !blank(b)).ok_or(Errno::ENOEXEC)?;
    let line = &line[from..];
    let path_end = line.iter().position(blank);
    if cut && path_end.is_none() {
        return Err(Errno::ENOEXEC);
    }
    let path = &line[..path_end.unwrap_or(line.len())];
    let rest = &line[path.len()..];
    let argument = rest.iter().position(|b| !blank(b)).map(|from| {
        let to = rest.iter().rposition(|b| !blank(b)).unwrap_or(from);
        rest[from..=to].to_vec()
    });
    Ok(Some(Script {
        path: path.to_vec(),
        argument,
    }))
}

/// How much of a script's first line counts (`BINPRM_BUF_SIZE`).
pub const SCRIPT_LINE_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRAM_HEADER_LEN: usize = Class::X64.program_header_len();

    /// A small valid static program: headers and one segment of code and one of data.
    fn sample() -> Vec<u8> {
        let mut bytes = vec![0u8; HEADER_LEN + 2 * PROGRAM_HEADER_LEN];
        bytes[..4].copy_from_slice(&elf::ELFMAG);
        bytes[4] = 2;
        bytes[5] = 1;
        bytes[6] = 1;
        bytes[16] = 2;
        bytes[18] = 62;
        bytes[20] = 1;
        bytes[24..32].copy_from_slice(&0x40_1000u64.to_le_bytes());
        bytes[32] = HEADER_LEN as u8;
        bytes[54] = PROGRAM_HEADER_LEN as u8;
        bytes[56] = 2;
        let mut segment = |n: usize, flags: u32, offset: u64, at: u64, file: u64, mem: u64| {
            let base = HEADER_LEN + n * PROGRAM_HEADER_LEN;
            bytes[base..base + 4].copy_from_slice(&1u32.to_le_bytes());
            bytes[base + 4..base + 8].copy_from_slice(&flags.to_le_bytes());
            for (slot, value) in [(8, offset), (16, at), (32, file), (40, mem), (48, 4096)] {
                bytes[base + slot..base + slot + 8].copy_from_slice(&value.to_le_bytes());
            }
        };
        segment(0, 5, 0, 0x40_0000, 0x2000, 0x2000);
        segment(1, 6, 0x2100, 0x40_2100, 0x80, 0x5000);
        bytes
    }

    fn load(bytes: &[u8]) -> Result<Program> {
        let header = header(bytes)?;
        let from = usize::try_from(header.table_offset).map_err(|_| Errno::ENOEXEC)?;
        program(header, bytes.get(from..).ok_or(Errno::ENOEXEC)?)
    }

    #[test]
    fn a_static_program_is_understood() {
        let program = load(&sample()).unwrap();
        assert_eq!(program.segments.len(), 2);
        assert_eq!(program.segments[0].prot, Prot::READ | Prot::EXEC);
        assert_eq!(program.table_address, 0x40_0040);
        assert_eq!((program.start, program.end), (0x40_0000, 0x40_7100));
        assert!(!program.header.relocatable);
    }

    /// Damaged headers give an error, or a program whose numbers are safe to use.
    #[test]
    fn random_damage_is_refused_or_harmless() {
        let sample = sample();
        let mut seed = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        for _ in 0..200_000 {
            let mut bytes = sample.clone();
            for _ in 0..1 + next() % 6 {
                let at = next() as usize % bytes.len();
                bytes[at] = match next() % 3 {
                    0 => next() as u8,
                    1 => 0xff,
                    _ => bytes[at] ^ 1 << (next() % 8),
                };
            }
            if next() % 8 == 0 {
                bytes.truncate(next() as usize % bytes.len());
            }
            let Ok(program) = load(&bytes) else { continue };
            assert!(program.start < program.end && program.end <= USER_END.0 as u64);
            for segment in &program.segments {
                assert!(segment.file_len <= segment.memory_len && segment.memory_len > 0);
                assert!(segment.address + segment.memory_len <= USER_END.0 as u64);
                assert!(segment.file_offset.checked_add(segment.file_len).is_some());
                assert_eq!(segment.address % 4096, segment.file_offset % 4096);
            }
            assert!(program.align.is_power_of_two());
        }
    }

    #[test]
    fn script_lines() {
        let line = |text: &[u8]| script(text);
        assert_eq!(line(b"\x7fELF"), Ok(None));
        assert_eq!(
            line(b"#!/bin/sh\n"),
            Ok(Some(Script {
                path: b"/bin/sh".to_vec(),
                argument: None
            }))
        );
        assert_eq!(
            line(b"#! /bin/sh  -e -x \nrest"),
            Ok(Some(Script {
                path: b"/bin/sh".to_vec(),
                argument: Some(b"-e -x".to_vec())
            }))
        );
        assert_eq!(line(b"#!  \n"), Err(Errno::ENOEXEC));
        let long = [b"#!/".to_vec(), vec![b'a'; 253]].concat();
        assert_eq!(line(&long), Err(Errno::ENOEXEC));
    }
}
