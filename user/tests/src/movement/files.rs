//! Files: pages that a program writes or reads may change hands, and neither sees what is written
//! to the other one afterwards.

use super::{SWITCH, WAYS};
use crate::large::Switched;
use crate::mounted::Mounted;
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("movement: a file in memory and a model", in_memory),
    ("ext2: movement, a file and a model", on_disk),
    ("movement: pages written to a file are lent", lent),
];

/// Pages of the file at most, and of the program's buffers.
const PAGES: usize = 64;
const SIZE: usize = PAGES * PAGE;
const STEPS: usize = 400;

fn in_memory() -> Outcome {
    let (path, file) = file("movement-model", &[])?;
    let done = by_all_ways(file);
    call!(close(file));
    fs::remove_file(path)?;
    done
}

fn on_disk() -> Outcome {
    let disk = Mounted::new()?;
    let file = disk.file("movement-model")?;
    let done = by_all_ways(file.as_raw_fd());
    drop(file);
    fs::remove_file(Mounted::path("movement-model"))?;
    disk.end()?;
    done
}

fn by_all_ways(file: c_int) -> Outcome {
    for (seed, way) in (300..).zip(WAYS) {
        let _way = Switched::to(SWITCH, way)?;
        model(file, seed)?;
    }
    Ok(())
}

/// Memory of the program, and what must be there.
struct Known {
    memory: *mut u8,
    bytes: Vec<u8>,
}

impl Known {
    fn new() -> Result<Self> {
        Ok(Self {
            memory: map(SIZE)?,
            bytes: vec![0; SIZE],
        })
    }

    /// Writes the first bytes of some pages.
    fn write(&mut self, numbers: &mut Numbers) {
        for page in (0..PAGES)
            .filter(|_| numbers.below(3) == 0)
            .collect::<Vec<_>>()
        {
            let (at, byte) = (
                page * PAGE + numbers.below(64) as usize,
                numbers.next() as u8,
            );
            poke(self.memory.wrapping_add(at), byte);
            self.bytes[at] = byte;
        }
    }

    fn check(&self, what: &str) -> Outcome {
        // SAFETY: the memory is mapped, and no other thread runs.
        let found = unsafe { std::slice::from_raw_parts(self.memory, SIZE) };
        same(found, &self.bytes, what)
    }
}

fn same(found: &[u8], expected: &[u8], what: &str) -> Outcome {
    equal!(found.len(), expected.len());
    let differs = found.iter().zip(expected).position(|(a, b)| a != b);
    match differs {
        None => Ok(()),
        Some(at) => {
            let (is, wanted) = (found[at], expected[at]);
            ensure!(false, "{what}: byte {at:#x} is {is}, not {wanted}");
            Ok(())
        }
    }
}

/// A piece of so many bytes at most, mostly of whole pages: its start, and its length.
fn piece(numbers: &mut Numbers, most: usize) -> (usize, usize) {
    let unit = if numbers.below(4) == 0 { 8 } else { PAGE };
    let units = (most / unit) as u64;
    let start = numbers.below(units);
    let len = 1 + numbers.below(units - start);
    (start as usize * unit, len as usize * unit)
}

/// Random calls and stores, beside plain bytes.
fn model(file: c_int, seed: u64) -> Outcome {
    let mut numbers = Numbers::new(seed);
    let mut bytes: Vec<u8> = Vec::new();
    let mut buffers = [Known::new()?, Known::new()?];
    let rights = PROT_READ | PROT_WRITE;
    call!(ftruncate(file, 0));
    for _ in 0..STEPS {
        let own = &mut buffers[numbers.below(2) as usize];
        let (from, len) = piece(&mut numbers, SIZE);
        // Where the file is not longer than its most.
        let at = match numbers.below(4) {
            0 => numbers.below((SIZE - len) as u64 + 1) as usize,
            _ => numbers.below(((SIZE - len) / PAGE) as u64 + 1) as usize * PAGE,
        };
        match numbers.below(13) {
            0..=3 => {
                own.write(&mut numbers);
                let memory = own.memory.wrapping_add(from).cast();
                equal!(call!(pwrite(file, memory, len, at as off_t)) as usize, len);
                bytes.resize(bytes.len().max(at + len), 0);
                bytes[at..at + len].copy_from_slice(&own.bytes[from..from + len]);
            }
            4 | 5 => {
                let memory = own.memory.wrapping_add(from).cast();
                let n = call!(pread(file, memory, len, at as off_t)) as usize;
                equal!(n, bytes.len().saturating_sub(at).min(len));
                if n > 0 {
                    own.bytes[from..from + n].copy_from_slice(&bytes[at..at + n]);
                }
            }
            6 => own.write(&mut numbers),
            7 => {
                call!(ftruncate(file, at as off_t));
                bytes.resize(at, 0);
            }
            8 if !bytes.is_empty() => {
                let kind = if numbers.below(2) == 0 {
                    MAP_SHARED
                } else {
                    MAP_PRIVATE
                };
                let memory = map_with(bytes.len(), rights, kind, file)?;
                for _ in 0..8 {
                    let at = numbers.below(bytes.len() as u64) as usize;
                    let byte = numbers.next() as u8;
                    poke(memory.wrapping_add(at), byte);
                    if kind == MAP_SHARED {
                        bytes[at] = byte;
                    }
                }
                unmap(memory, bytes.len())?;
            }
            9 => {
                call!(fdatasync(file));
                call!(posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED));
            }
            10 => {
                // The bytes are gone here, and only here.
                call!(madvise(own.memory.cast(), SIZE, MADV_DONTNEED));
                own.bytes.fill(0);
            }
            11 => {
                let child = spawn(|| {
                    own.write(&mut Numbers::new(seed));
                    own.check("a child's memory")
                })?;
                wait_ok(child)?;
            }
            _ => {
                // Without swap space it does nothing.
                call!(madvise(own.memory.cast(), SIZE, MADV_PAGEOUT));
            }
        }
        own.check("the program's memory")?;
    }
    let mut found = vec![0; bytes.len() + 1];
    let n = call!(pread(file, found.as_mut_ptr().cast(), found.len(), 0)) as usize;
    same(&found[..n], &bytes, "the file")?;
    for own in buffers {
        own.check("the program's memory")?;
        unmap(own.memory, SIZE)?;
    }
    Ok(())
}

/// Whole pages that a program leaves alone are not copied into a file.
fn lent() -> Outcome {
    let _way = Switched::to(SWITCH, "auto")?;
    let (path, file) = file("movement-lent", &[])?;
    let memory = map(SIZE)?;
    (0..PAGES).for_each(|page| poke(memory.wrapping_add(page * PAGE), page as u8));
    let [lent, copied] = [counter("pages_lent")?, counter("bytes_copied_in")?];
    equal!(call!(pwrite(file, memory.cast(), SIZE, 0)) as usize, SIZE);
    let [lent, copied] = [
        counter("pages_lent")? - lent,
        counter("bytes_copied_in")? - copied,
    ];
    equal!(lent, PAGES as u64);
    ensure!(copied < PAGE as u64, "{copied} bytes were copied");
    // The file keeps them when the program writes, and when it unmaps its memory.
    (0..PAGES / 2).for_each(|page| poke(memory.wrapping_add(page * PAGE), 0xee));
    unmap(memory, SIZE)?;
    let mut bytes = vec![0u8; SIZE];
    equal!(
        call!(pread(file, bytes.as_mut_ptr().cast(), SIZE, 0)) as usize,
        SIZE
    );
    (0..PAGES).try_for_each(|page| -> Outcome {
        equal!(bytes[page * PAGE], page as u8);
        Ok(())
    })?;
    call!(close(file));
    Ok(fs::remove_file(path)?)
}
