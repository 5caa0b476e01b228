//! Files of the root file system, a tmpfs: bytes and names.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::{hint, ptr, slice};

use crate::movement::{
    Buffer, PAGE, check_pattern, check_stamp, fill_pattern, size_name, stamp, wrong,
};
use crate::{Bench, Experiment, Failure, Meter, call};

/// The experiment; its help describes it.
pub const EXPERIMENT: Experiment = Experiment {
    name: "file",
    title: "reading, writing and mapping files in memory; making, naming and finding them",
    help: "\
A file under /tmp, which on both kernels is a file system in memory; SIZE bytes at once.

write-new-SIZE   write to a file that has been cut to nothing before, the cut included: MiB/s
write-kept-SIZE  write a buffer that is left alone to a file that has been cut to nothing: MiB/s
write-over-SIZE  write over what is there: MiB/s
read-SIZE        read all of it: MiB/s
mmap-read-SIZE   map it, read a word of every page, unmap it: MiB/s
create-unlink    open with O_CREAT, close, unlink: ns
open-close       open and close a file that exists, four folders deep: ns
stat             its attributes by name: ns
readdir          a folder with 1,000 names, read whole by getdents64 of 32 KiB: ns
rename           there and back, one of the two: ns

What was written is read back and compared.",
    run,
};

const SIZES: [usize; 6] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
const SHORT: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];

/// Bytes that a batch moves.
const BATCH_BYTES: usize = 4 << 20;

/// Names in the folder.
const NAMES: usize = 1000;

/// Measures with a file at a path, a size of bytes.
type Bytes = fn(&mut Meter, &Path, usize) -> Result<(), Failure>;
/// Measures with names in a folder.
type Names = fn(&mut Meter, &Path) -> Result<(), Failure>;

fn run(bench: &mut Bench) -> Result<(), Failure> {
    let folder = PathBuf::from(format!("/tmp/bench-file-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let outcome = rows(bench, &folder);
    // Files that cannot be removed vanish with the guest.
    let _ = fs::remove_dir_all(&folder);
    outcome
}

fn rows(bench: &mut Bench, folder: &Path) -> Result<(), Failure> {
    let bytes: [(&str, Bytes); 5] = [
        ("write-new", write_new),
        ("write-kept", write_kept),
        ("write-over", write_over),
        ("read", read),
        ("mmap-read", mmap_read),
    ];
    for size in SIZES {
        if !bench.is_full() && !SHORT.contains(&size) {
            continue;
        }
        for (name, measure) in bytes {
            let row = bench.row(format!("file/{name}-{}", size_name(size)));
            let row = row.bytes(size as u64).batch(batch(size));
            row.run(|meter| measure(meter, &folder.join("data"), size))?;
        }
    }
    let names: [(&str, u64, Names); 5] = [
        ("file/create-unlink", 200, create_unlink),
        ("file/open-close", 500, open_close),
        ("file/stat", 500, stat),
        ("file/readdir", 4, readdir),
        ("file/rename", 200, rename),
    ];
    for (name, batch, measure) in names {
        let row = bench.row(name).batch(batch);
        row.run(|meter| measure(meter, folder))?;
    }
    Ok(())
}

/// Returns the repetitions that move [`BATCH_BYTES`].
fn batch(size: usize) -> u64 {
    (BATCH_BYTES / size).max(1) as u64
}

/// Makes the file at `path`, open for reading and writing, with a pattern of `size` bytes.
fn patterned(path: &Path, size: usize, seed: u64) -> io::Result<(File, Buffer)> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)?;
    let mut buffer = Buffer::new(size, 0)?;
    fill_pattern(buffer.bytes_mut(), seed);
    file.write_all_at(buffer.bytes(), 0)?;
    Ok((file, buffer))
}

fn write_new(meter: &mut Meter, path: &Path, size: usize) -> Result<(), Failure> {
    let (file, mut buffer) = patterned(path, size, 1)?;
    let mut number = 0;
    meter.measure(|count| {
        for _ in 0..count {
            number += 1;
            stamp(buffer.bytes_mut(), number);
            file.set_len(0)?;
            file.write_all_at(buffer.bytes(), 0)?;
        }
        Ok(())
    })?;
    read_back(&file, &buffer)
}

fn write_kept(meter: &mut Meter, path: &Path, size: usize) -> Result<(), Failure> {
    let (file, buffer) = patterned(path, size, 5)?;
    meter.measure(|count| {
        for _ in 0..count {
            file.set_len(0)?;
            file.write_all_at(buffer.bytes(), 0)?;
        }
        Ok(())
    })?;
    read_back(&file, &buffer)
}

fn write_over(meter: &mut Meter, path: &Path, size: usize) -> Result<(), Failure> {
    let (file, mut buffer) = patterned(path, size, 2)?;
    let mut number = 0;
    meter.measure(|count| {
        for _ in 0..count {
            number += 1;
            stamp(buffer.bytes_mut(), number);
            file.write_all_at(buffer.bytes(), 0)?;
        }
        Ok(())
    })?;
    read_back(&file, &buffer)
}

/// Compares a file with its last written contents.
fn read_back(file: &File, written: &Buffer) -> Result<(), Failure> {
    let mut again = vec![0; written.bytes().len()];
    file.read_exact_at(&mut again, 0)?;
    match again == written.bytes() && file.metadata()?.len() == again.len() as u64 {
        true => Ok(()),
        false => Err(wrong("the file is not what was written").into()),
    }
}

fn read(meter: &mut Meter, path: &Path, size: usize) -> Result<(), Failure> {
    let (file, mut buffer) = patterned(path, size, 3)?;
    buffer.bytes_mut().fill(0);
    meter.measure(|count| {
        for _ in 0..count {
            file.read_exact_at(buffer.bytes_mut(), 0)?;
        }
        Ok(())
    })?;
    check_pattern(buffer.bytes(), 3)?;
    Ok(())
}

/// A file mapped for reading.
struct Mapped<'a>(&'a [u8]);

impl Mapped<'_> {
    fn new(file: &File, size: usize) -> io::Result<Mapped<'_>> {
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let at = unsafe {
            libc::mmap(
                ptr::null_mut(),
                size,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping is `size` bytes long, lives until the drop, and nothing writes to the
        // file meanwhile.
        Ok(Mapped(unsafe { slice::from_raw_parts(at.cast(), size) }))
    }
}

impl Drop for Mapped<'_> {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and nothing borrows from it any more.
        unsafe { libc::munmap(self.0.as_ptr().cast_mut().cast(), self.0.len()) };
    }
}

fn mmap_read(meter: &mut Meter, path: &Path, size: usize) -> Result<(), Failure> {
    let (file, mut buffer) = patterned(path, size, 4)?;
    stamp(buffer.bytes_mut(), 77);
    file.write_all_at(buffer.bytes(), 0)?;
    meter.measure(|count| {
        for _ in 0..count {
            let mapped = Mapped::new(&file, size)?;
            check_stamp(hint::black_box(mapped.0), 77)?;
        }
        Ok(())
    })?;
    let mapped = Mapped::new(&file, size)?;
    match mapped.0 == buffer.bytes() {
        true => Ok(()),
        false => Err(wrong("the mapping does not show what was written").into()),
    }
}

fn create_unlink(meter: &mut Meter, folder: &Path) -> Result<(), Failure> {
    let path = folder.join("short-lived");
    meter.measure(|count| {
        for _ in 0..count {
            drop(File::create_new(&path)?);
            fs::remove_file(&path)?;
        }
        Ok(())
    })
}

/// A small file, four folders below the root.
fn deep_file(folder: &Path) -> io::Result<PathBuf> {
    let path = folder.join("inner");
    fs::create_dir_all(&path)?;
    let path = path.join("file");
    fs::write(&path, vec![1; PAGE])?;
    Ok(path)
}

fn open_close(meter: &mut Meter, folder: &Path) -> Result<(), Failure> {
    let path = deep_file(folder)?;
    meter.measure(|count| {
        for _ in 0..count {
            drop(File::open(&path)?);
        }
        Ok(())
    })
}

fn stat(meter: &mut Meter, folder: &Path) -> Result<(), Failure> {
    let path = deep_file(folder)?;
    meter.measure(|count| {
        for _ in 0..count {
            if fs::metadata(&path)?.len() != PAGE as u64 {
                return Err(wrong("the file has another size").into());
            }
        }
        Ok(())
    })
}

fn readdir(meter: &mut Meter, folder: &Path) -> Result<(), Failure> {
    let full = folder.join("full");
    fs::create_dir_all(&full)?;
    for number in 0..NAMES {
        File::create(full.join(format!("name-{number}")))?;
    }
    let open = File::open(&full)?;
    let mut entries = vec![0u8; 32 << 10];
    meter.measure(|count| {
        for _ in 0..count {
            call!(lseek(open.as_raw_fd(), 0, libc::SEEK_SET))?;
            let mut names = 0;
            loop {
                let filled = call!(syscall(
                    libc::SYS_getdents64,
                    open.as_raw_fd(),
                    entries.as_mut_ptr(),
                    entries.len()
                ))?;
                if filled == 0 {
                    break;
                }
                names += count_entries(&entries[..filled as usize]);
            }
            // Each folder lists itself and its parent, too.
            if names != NAMES + 2 {
                return Err(format!("{names} names of {NAMES}").into());
            }
        }
        Ok(())
    })
}

/// Counts the entries that `getdents64` returned. Each has its two-byte length behind two words.
fn count_entries(mut entries: &[u8]) -> usize {
    let mut count = 0;
    while let Some(length) = entries.get(16..18) {
        let length = usize::from(length[0]) | usize::from(length[1]) << 8;
        entries = entries.get(length..).unwrap_or_default();
        count += 1;
    }
    count
}

fn rename(meter: &mut Meter, folder: &Path) -> Result<(), Failure> {
    let (one, other) = (folder.join("one"), folder.join("other"));
    fs::write(&one, "renamed")?;
    meter.measure(|count| {
        for _ in 0..count / 2 {
            fs::rename(&one, &other)?;
            fs::rename(&other, &one)?;
        }
        Ok(())
    })?;
    match fs::read(&one)? == b"renamed" && !other.exists() {
        true => Ok(()),
        false => Err(wrong("the file is not under its name").into()),
    }
}
