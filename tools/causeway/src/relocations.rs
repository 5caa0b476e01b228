//! The table of the kernel's relocations, by which it moves itself at boot.
//!
//! The linker keeps the relocations that it has applied (`--emit-relocs`), in sections that no
//! loader loads. This adds a copy of the kernel's file whose segment `relocations` names the places
//! that hold an address of the kernel's: two counts, then the places, first those of 64-bit
//! addresses, then those of 32-bit ones, each as a 32-bit physical address. The code is as it would
//! be without: it holds addresses as they are, and needs no table of them at run time.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, bail, ensure};
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader, Rela, SectionHeader, Sym};
use object::{LittleEndian as Little, ReadRef};

/// The address that the kernel is linked at, for physical address 0.
const KERNEL_BASE: u64 = 0xffff_ffff_8000_0000;
/// The symbols at the table that the linker made, without places, and around the words that it
/// filled with addresses without noting so.
const TABLE: &str = "kernel_relocations";
const WORDS: [&str; 2] = ["__got_start", "__got_end"];
/// The symbols at the image's borders.
const IMAGE: [&str; 2] = ["__image_start", "__image_end"];
/// Bytes to which a segment in the file is aligned as in memory.
const PAGE: usize = 4096;

/// Returns the file of a kernel with a table, which stands beside `kernel` and is made if it is
/// older; `kernel` itself if that can have none.
///
/// # Errors
/// When the file is no kernel or cannot be written.
pub fn with_table(kernel: &Path) -> Result<PathBuf> {
    let made = kernel.with_extension("relocatable");
    let time = |path: &Path| -> Option<SystemTime> { fs::metadata(path).ok()?.modified().ok() };
    if time(&made).is_some() && time(&made) > time(kernel) {
        return Ok(made);
    }
    let mut bytes =
        fs::read(kernel).with_context(|| format!("cannot read {}", kernel.display()))?;
    let added = add_table(&mut bytes);
    if !added.with_context(|| format!("the relocations of {}", kernel.display()))? {
        return Ok(kernel.into());
    }
    // A file that is there whole or not at all, even if another run makes it now.
    let folder = made.parent().context("a kernel in no folder")?;
    let new = tempfile::NamedTempFile::new_in(folder)?;
    fs::write(new.path(), &bytes)?;
    new.persist(&made)?;
    Ok(made)
}

/// Adds the table to a kernel's file. False if the kernel has no place for it.
fn add_table(file: &mut Vec<u8>) -> Result<bool> {
    let Some((at, places)) = places(file)? else {
        return Ok(false);
    };
    let mut table = Vec::new();
    for list in &places {
        table.extend(u32::try_from(list.len())?.to_le_bytes());
    }
    for place in places.iter().flatten() {
        table.extend(place.to_le_bytes());
    }
    file.resize(file.len().next_multiple_of(PAGE), 0);
    let offset = file.len() as u64;
    file.extend(&table);
    // Where the program header has its offset and its sizes.
    const OFFSET: usize = 8;
    const SIZES: usize = 32;
    let size = (table.len() as u64).to_le_bytes();
    file[at + OFFSET..at + OFFSET + 8].copy_from_slice(&offset.to_le_bytes());
    file[at + SIZES..at + SIZES + 16].copy_from_slice(&[size, size].concat());
    drop_sections(file)?;
    Ok(true)
}

/// Marks the sections of relocations as unused: GRUB refuses a file that has some.
fn drop_sections(file: &mut [u8]) -> Result<()> {
    /// Where a section's header has its type.
    const TYPE: usize = 4;
    let header = FileHeader64::<Little>::parse(&*file)?;
    let sections = header.sections(Little, &*file)?;
    let start = header.e_shoff(Little) as usize + TYPE;
    let size = usize::from(header.e_shentsize(Little));
    let mut types = Vec::new();
    for (n, section) in sections.iter().enumerate() {
        if section.sh_type(Little) == elf::SHT_RELA {
            types.push(start + n * size);
        }
    }
    for at in types {
        file[at..at + 4].copy_from_slice(&elf::SHT_NULL.to_le_bytes());
    }
    Ok(())
}

/// The place in the file of the segment's header, and the places of 64-bit and 32-bit addresses.
type Places = (usize, [Vec<u32>; 2]);

fn places(file: &[u8]) -> Result<Option<Places>> {
    let header = FileHeader64::<Little>::parse(file)?;
    let sections = header.sections(Little, file)?;
    let symbols = sections.symbols(Little, file, elf::SHT_SYMTAB)?;
    let value = |name: &str| {
        let mut found = symbols.iter().filter(|symbol| {
            let its = symbols.symbol_name(Little, symbol);
            its.is_ok_and(|its| its == name.as_bytes())
        });
        found.next().map(|symbol| symbol.st_value(Little))
    };
    let Some(table) = value(TABLE) else {
        return Ok(None);
    };
    let segments = header.program_headers(Little, file)?;
    let number = segments.iter().position(|segment| {
        segment.p_type(Little) == elf::PT_LOAD && segment.p_vaddr(Little) == table
    });
    let number = number.context("no segment holds the table alone")?;
    let own = header.e_phoff(Little) as usize + number * size_of_val(&segments[0]);

    // The bytes that a loader puts at an address.
    let loaded = |at: u64, count: usize| -> Option<&[u8]> {
        segments.iter().find_map(|segment| {
            let inside = at.checked_sub(segment.p_vaddr(Little))?;
            let is_own = segment.p_type(Little) == elf::PT_LOAD
                && inside + count as u64 <= segment.p_filesz(Little);
            let offset = segment.p_offset(Little) + inside;
            is_own.then(|| file.read_bytes_at(offset, count as u64).ok())?
        })
    };
    let border = |name| {
        let at = value(name).with_context(|| format!("no symbol {name}"))?;
        Ok::<u64, anyhow::Error>(at.wrapping_sub(KERNEL_BASE))
    };
    let image = border(IMAGE[0])?..=border(IMAGE[1])?;
    let physical = |at: u64| u32::try_from(at.wrapping_sub(KERNEL_BASE)).ok();
    let mut places = [Vec::new(), Vec::new()];
    let mut note = |kind: usize, at: u64| -> Result<()> {
        let word = loaded(at, [8, 4][kind]).context("an address where no byte is loaded")?;
        let address = match *word {
            [a, b, c, d] => i64::from(i32::from_le_bytes([a, b, c, d])) as u64,
            _ => u64::from_le_bytes(word.try_into()?),
        };
        if address >= KERNEL_BASE {
            places[kind].push(physical(at).context("an address outside of the kernel")?);
            return Ok(());
        }
        // Physical addresses stay. Another number is a difference that the linker took: it would
        // need to change by something else.
        ensure!(
            image.contains(&address),
            "{address:#x} at {at:#x} is no address"
        );
        Ok(())
    };
    for section in sections.iter() {
        let Some((list, _)) = section.rela(Little, file)? else {
            continue;
        };
        let target = sections.section(object::SectionIndex(section.sh_info(Little) as usize))?;
        if target.sh_flags(Little) & u64::from(elf::SHF_ALLOC) == 0 {
            continue;
        }
        for relocation in list {
            let at = relocation.r_offset(Little);
            match relocation.r_type(Little, false) {
                elf::R_X86_64_64 => note(0, at)?,
                elf::R_X86_64_32S => note(1, at)?,
                // Sign-extended they would be addresses of the kernel, zero-extended none.
                elf::R_X86_64_NONE | elf::R_X86_64_32 => {}
                elf::R_X86_64_PC32
                | elf::R_X86_64_PC64
                | elf::R_X86_64_PLT32
                | elf::R_X86_64_GOTPCREL => {}
                elf::R_X86_64_GOTPCRELX | elf::R_X86_64_REX_GOTPCRELX => {
                    if is_absolute(loaded(at - 2, 2).context("code that is not loaded")?) {
                        note(1, at)?;
                    }
                }
                other => bail!("unknown relocation {other} at {at:#x}"),
            }
        }
    }
    let [start, end] = WORDS.map(value);
    let (start, end) = start
        .zip(end)
        .context("the linker's words have no borders")?;
    for word in (start..end).step_by(8) {
        note(0, word)?;
    }
    for list in &mut places {
        list.sort_unstable();
        ensure!(
            list.windows(2).all(|pair| pair[0] != pair[1]),
            "an address twice"
        );
    }
    Ok(Some((own, places)))
}

/// Whether the linker has made an absolute address of one relative to the instruction: it does so
/// where an instruction with an immediate operand exists. `before` is the opcode and the register.
fn is_absolute(before: &[u8]) -> bool {
    const WITH_IMMEDIATE: [u8; 3] = [0x81, 0xf7, 0xc7];
    WITH_IMMEDIATE.contains(&before[0]) && before[1] >> 6 == 3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn immediates_are_told_from_distances() {
        // mov foo(%rip), %rax; lea; call; jmp; test and sub with an immediate operand.
        let cases = [
            ([0x8b, 0x05], false),
            ([0x8d, 0x3d], false),
            ([0x67, 0xe8], false),
            ([0x90, 0xe9], false),
            ([0xf7, 0xc7], true),
            ([0x81, 0xe8], true),
        ];
        for (before, expected) in cases {
            assert_eq!(is_absolute(&before), expected, "{before:x?}");
        }
    }

    #[test]
    fn a_program_of_the_host_has_no_table() {
        let program = std::env::current_exe().unwrap();
        assert!(places(&fs::read(program).unwrap()).unwrap().is_none());
    }
}
