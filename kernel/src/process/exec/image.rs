//! A program's segments in memory.

use alloc::vec::Vec;

use abi::{Errno, Result};
use fbuf::BytesSink;
use fs::Location;
use nucleus::{PAGE_SIZE, Prot, VirtAddr, VirtRange};
use vm::{Backing, Fault, Map, MapError, MapRequest, Place};

use crate::process::exec::elf::{self, Program};

/// Where a program was put.
pub struct Image {
    /// The offset of the program's addresses.
    pub bias: u64,
    pub entry: u64,
    /// Its program headers; 0 if they are not in memory.
    pub table: u64,
    /// From the first to the last executable segment.
    pub code: VirtRange,
    /// The first page after it.
    pub end: VirtAddr,
}

/// The errno for a map that could not be made as the program wants it.
pub fn no_memory(error: MapError) -> Errno {
    match error {
        MapError::Invalid | MapError::Exists => Errno::ENOEXEC,
        _ => Errno::ENOMEM,
    }
}

/// Reads up to `to.len()` bytes of a file from `offset` on; returns how many there are.
///
/// # Errors
/// Those of the file system.
pub fn read(file: &Location, offset: u64, to: &mut [u8]) -> Result<usize> {
    let mut filled = 0;
    while filled < to.len() {
        let mut sink = BytesSink {
            to: &mut to[filled..],
            filled: 0,
        };
        let n = file.vnode().read(offset + filled as u64, &mut sink)?;
        if n == 0 {
            break;
        }
        filled += n;
    }
    Ok(filled)
}

/// `len` bytes of a file from `offset` on.
///
/// # Errors
/// `ENOEXEC` if it is not so long, `ENOMEM`, and those of the file system.
pub fn read_exactly(file: &Location, offset: u64, len: usize) -> Result<Vec<u8>> {
    let mut bytes = nucleus::try_filled(len, 0)?;
    if read(file, offset, &mut bytes)? != len {
        return Err(Errno::ENOEXEC);
    }
    Ok(bytes)
}

/// Parses the headers of a program, whose first bytes are `start`.
///
/// # Errors
/// `ENOEXEC` if it is no program for this machine.
pub fn program(file: &Location, start: &[u8]) -> Result<Program> {
    let header = elf::header(start)?;
    let len = header.table_count * header.class.program_header_len();
    elf::program(header, &read_exactly(file, header.table_offset, len)?)
}

/// Maps a program: where it says, or if it does not care, at the layout's place for programs or
/// (`anywhere`) among the other mappings.
///
/// # Errors
/// `ENOEXEC` if it can't lie there, `ENOMEM`.
pub fn map(map: &Map, program: &Program, file: &Location, anywhere: bool) -> Result<Image> {
    let bias = place(map, program, anywhere)?;
    segments(map, program, file, bias)?;
    let end = bias.wrapping_add(program.end);
    Ok(Image {
        bias,
        entry: bias.wrapping_add(program.header.entry),
        table: match program.table_address {
            0 => 0,
            address => bias.wrapping_add(address),
        },
        code: code(program, bias),
        end: VirtAddr(end.next_multiple_of(PAGE_SIZE as u64) as usize),
    })
}

/// From the first to the last executable segment.
fn code(program: &Program, bias: u64) -> VirtRange {
    let code = || {
        program
            .segments
            .iter()
            .filter(|s| s.prot.contains(Prot::EXEC))
    };
    let start = code().map(|s| s.address).min().unwrap_or(program.start);
    let end = code()
        .map(|s| s.address + s.file_len)
        .max()
        .unwrap_or(program.start);
    VirtRange::new(
        VirtAddr(bias.wrapping_add(start) as usize),
        VirtAddr(bias.wrapping_add(end) as usize),
    )
}

/// The offset of the program's addresses; the room for it is free.
fn place(map: &Map, program: &Program, anywhere: bool) -> Result<u64> {
    if !program.header.relocatable {
        return Ok(0);
    }
    // Room for the alignment, of which the part that is not used is free again. The first segment
    // keeps its distance from an aligned address.
    let within = program.start % program.align;
    let slack = program.align - PAGE_SIZE as u64 + within;
    let len = program
        .end
        .checked_sub(program.start)
        .and_then(|len| len.checked_add(slack))
        .ok_or(Errno::ENOEXEC)?;
    let found = map
        .map(MapRequest {
            place: if anywhere {
                Place::Any
            } else {
                Place::Hint(map.layout().program_base)
            },
            ..MapRequest::zero(
                usize::try_from(len).map_err(|_| Errno::ENOMEM)?,
                Prot::empty(),
            )
        })
        .map_err(no_memory)?;
    let end = found
        .checked_add(len as usize)
        .and_then(VirtAddr::page_ceil)
        .ok_or(Errno::ENOMEM)?;
    map.unmap(VirtRange::new(found, end)).map_err(no_memory)?;
    let aligned = (found.0 as u64).next_multiple_of(program.align);
    Ok(aligned.wrapping_sub(program.start - within))
}

/// Maps the segments of a program: file pages by the file's pager, zeros after them.
fn segments(map: &Map, program: &Program, file: &Location, bias: u64) -> Result<()> {
    let pager = file.pager().ok_or(Errno::ENOEXEC)?;
    let page = PAGE_SIZE as u64;
    for segment in &program.segments {
        let start = bias.wrapping_add(segment.address);
        let offset_in_page = start % page;
        let first = start - offset_in_page;
        let file_end = start + segment.file_len;
        let end = start + segment.memory_len;
        let file_pages_end = file_end.next_multiple_of(page);
        let pages_end = end.next_multiple_of(page);
        if pages_end > map.layout().end.0 as u64 || first < nucleus::addr::USER_START.0 as u64 {
            return Err(Errno::ENOEXEC);
        }
        let mut request = MapRequest {
            place: Place::Fixed(VirtAddr(first as usize)),
            backing: Backing::Object {
                pager: pager.clone(),
                offset: segment.file_offset - offset_in_page,
            },
            ..MapRequest::zero((file_pages_end - first) as usize, segment.prot)
        };
        if segment.file_len > 0 {
            map.map(request.clone()).map_err(no_memory)?;
        }
        let zeros_from = if segment.file_len > 0 {
            file_pages_end
        } else {
            first
        };
        if pages_end > zeros_from {
            request.place = Place::Fixed(VirtAddr(zeros_from as usize));
            request.len = (pages_end - zeros_from) as usize;
            request.backing = Backing::Zero;
            map.map(request).map_err(no_memory)?;
        }
        // The last page of the file part goes on with zeros, where the program may write at all.
        if segment.file_len > 0
            && segment.memory_len > segment.file_len
            && segment.prot.contains(Prot::WRITE)
        {
            let tail = (file_pages_end - file_end) as usize;
            let zeros = [0; PAGE_SIZE];
            let zeroed = map.write_all(VirtAddr(file_end as usize), &zeros[..tail]);
            zeroed.map_err(|fault| match fault {
                Fault::OutOfMemory => Errno::ENOMEM,
                _ => Errno::ENOEXEC,
            })?;
        }
    }
    Ok(())
}
