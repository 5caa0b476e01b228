//! Block devices as files. The host provides `/dev/vda` (its size is no multiple of a page),
//! `/dev/vdb`, which is read-only, and `/dev/md0`. Afterwards it compares the contents of the first
//! one with those that [`byte`] defines.

use crate::{call80, refused80};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("disks: the end, and what does not fit", ends),
    ("disks: what a disk says of itself", says),
    ("disks: what it says to 32-bit programs", says_narrow),
    ("disks: past the cache", direct),
    ("disks: mappings and reads agree", mapped),
    ("disks: a disk that is read-only", read_only),
    ("disks: one has it to himself", exclusive),
    ("disks: known by name and number", known),
    ("disks: zeros and discards", zeros),
    ("disks: several processes write it all", patterns),
];

const BLKROGET: libc::Ioctl = 0x125e;
const BLKGETSIZE: libc::Ioctl = 0x1260;
const BLKFLSBUF: libc::Ioctl = 0x1261;
const BLKSSZGET: libc::Ioctl = 0x1268;
const BLKBSZGET: libc::Ioctl = 0x8008_1270;
const BLKGETSIZE64: libc::Ioctl = 0x8008_1272;
const BLKDISCARD: libc::Ioctl = 0x1277;
const BLKPBSZGET: libc::Ioctl = 0x127b;
const BLKZEROOUT: libc::Ioctl = 0x127f;
const HDIO_GETGEO: libc::Ioctl = 0x301;

const SECTOR: usize = 512;

/// Opens a disk; skips the test where there is none.
fn open(name: &str, flags: c_int) -> Result<c_int> {
    if !Path::new(name).exists() {
        return Err(skip(format!("there is no {name}")));
    }
    let name = c(name);
    Ok(call!(open(name.as_ptr(), flags | O_CLOEXEC)))
}

fn close(file: c_int) -> Outcome {
    call!(close(file));
    Ok(())
}

fn size(file: c_int) -> Result<u64> {
    let mut size = 0u64;
    call!(ioctl(file, BLKGETSIZE64, &mut size));
    Ok(size)
}

fn pwrite(file: c_int, bytes: &[u8], at: u64) -> Result<usize> {
    Ok(call!(pwrite(
        file,
        bytes.as_ptr().cast(),
        bytes.len(),
        at as off_t
    )) as usize)
}

fn pread(file: c_int, len: usize, at: u64) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let n = call!(pread(file, bytes.as_mut_ptr().cast(), len, at as off_t));
    bytes.truncate(n as usize);
    Ok(bytes)
}

fn ends() -> Outcome {
    let disk = open("/dev/vda", O_RDWR)?;
    let size = size(disk)?;
    ensure!(size % PAGE as u64 != 0, "{size} bytes");
    equal!(call!(lseek(disk, 0, SEEK_END)) as u64, size);
    refused!(EINVAL, lseek(disk, 1, SEEK_END));
    ensure!(pread(disk, 10, size)?.is_empty(), "bytes behind the end");
    ensure!(pread(disk, 10, size + 5000)?.is_empty());
    refused! { pwrite(disk, [0u8; 4].as_ptr().cast(), 4, size as off_t) => ENOSPC; }
    equal!(pwrite(disk, &[7; 100], size - 60)?, 60);
    ensure!(pread(disk, 100, size - 60)? == [7; 60], "what it wrote");
    refused!(EINVAL, ftruncate(disk, 0));
    call!(fsync(disk));
    call!(fdatasync(disk));
    let at = map_with(PAGE, PROT_READ, MAP_SHARED, disk)?;
    ensure!(u32::from(peek(at)) < 256, "the first byte");
    close(disk)
}

fn says() -> Outcome {
    let disk = open("/dev/vda", O_RDONLY)?;
    let (mut sectors, mut number) = (0u64, 0i32);
    call!(ioctl(disk, BLKGETSIZE, &mut sectors));
    ensure!(sectors * SECTOR as u64 == size(disk)?, "{sectors} sectors");
    for (command, expected) in [
        (BLKROGET, 0),
        (BLKSSZGET, 512),
        (BLKPBSZGET, 512),
        (BLKBSZGET, 512),
    ] {
        call!(ioctl(disk, command, &mut number));
        ensure!(number == expected, "{command:#x} gives {number}");
    }
    refused!(ENOTTY, ioctl(disk, HDIO_GETGEO, &mut sectors));
    refused!(EFAULT, ioctl(disk, BLKGETSIZE64, 8));
    let about = fs::metadata("/dev/vda")?;
    ensure!(about.file_type().is_block_device(), "no block device");
    close(disk)
}

/// `unsigned long` and `size_t` have four bytes there, in commands and results.
fn says_narrow() -> Outcome {
    const IOCTL: u32 = 54;
    const BLKBSZGET_NARROW: u32 = 0x8004_1270;
    const BLKBSZSET_NARROW: u32 = 0x4004_1271;
    const BLKGETSIZE64_NARROW: u32 = 0x8004_1272;
    let disk = open("/dev/vda", O_RDONLY)?;
    let bytes = size(disk)?;
    let memory = low_map(PAGE)?.cast::<u64>();
    let ask = |command: u32| -> Result<u64> {
        // SAFETY: the page is ours.
        unsafe { memory.write_volatile(u64::MAX) };
        call80!(IOCTL, disk, command, memory as usize);
        // SAFETY: as above.
        Ok(unsafe { memory.read_volatile() })
    };
    let sectors = ask(BLKGETSIZE as u32)?;
    equal!(sectors as u32 as u64 * SECTOR as u64, bytes, sectors);
    equal!(sectors >> 32, u32::MAX.into());
    ensure!(ask(BLKGETSIZE64_NARROW)? == bytes, "its bytes");
    ensure!(ask(BLKBSZGET_NARROW)? as u32 == 512, "its blocks");
    // SAFETY: as above.
    unsafe { memory.write_volatile(1024) };
    call80!(IOCTL, disk, BLKBSZSET_NARROW, memory as usize);
    ensure!(ask(BLKBSZGET_NARROW)? as u32 == 1024, "its blocks, set");
    refused80!(EFAULT, IOCTL, disk, BLKGETSIZE as u32, 8);
    close(disk)
}

/// Page-aligned memory for `O_DIRECT`.
fn aligned() -> Result<*mut u8> {
    map(16 * PAGE)
}

fn direct() -> Outcome {
    let cached = open("/dev/md0", O_RDWR)?;
    let disk = open("/dev/md0", O_RDWR | O_DIRECT)?;
    let memory = aligned()?;
    let read =
        |len: usize, at: i64| Ok::<_, Failure>(call!(pread(disk, memory.cast(), len, at)) as usize);
    // Direct reads see cached writes, and cached reads see direct writes.
    pwrite(cached, b"through the pages", 8192 + 100)?;
    ensure!(read(PAGE, 8192)? == PAGE, "a short read");
    // SAFETY: mapped by `aligned`.
    let seen = unsafe { std::slice::from_raw_parts(memory.add(100), 17) };
    ensure!(seen == b"through the pages", "read past them: {seen:?}");
    // SAFETY: as above.
    unsafe { memory.write_bytes(b'x', 3 * SECTOR) };
    ensure!(pread(cached, 4, 4096)?.len() == 4, "a short read");
    let n = call!(pwrite(
        disk,
        memory.cast(),
        3 * SECTOR,
        4096 + SECTOR as i64
    ));
    ensure!(n as usize == 3 * SECTOR, "a short write");
    let found = pread(cached, 5 * SECTOR, 4096)?;
    let marked = found.iter().map(|&byte| byte == b'x');
    let expected = (0..5 * SECTOR).map(|at| (SECTOR..4 * SECTOR).contains(&at));
    ensure!(marked.eq(expected), "the pages are old");
    for (len, at) in [(100, 0), (512, 100), (513, 512)] {
        refused!(EINVAL, pread(disk, memory.cast(), len, at));
        refused!(EINVAL, pwrite(disk, memory.cast(), len, at));
    }
    let end = size(disk)? as i64;
    ensure!(read(PAGE, end)? == 0, "bytes behind the end");
    ensure!(read(PAGE, end - 512)? == 512, "a read over the end");
    // Aligned, but not mapped.
    let nowhere = ptr::without_provenance_mut(PAGE);
    refused!(EFAULT, pread(disk, nowhere, 512, 0));
    refused!(EFAULT, pwrite(disk, nowhere, 512, 0));
    refused!(EINVAL, pread(disk, ptr::dangling_mut(), 512, 0));
    close(disk)?;
    close(cached)
}

fn mapped() -> Outcome {
    let disk = open("/dev/md0", O_RDWR)?;
    let at = 64 * PAGE as u64;
    let protection = PROT_READ | PROT_WRITE;
    let none = null_mut();
    let memory = call!(mmap(
        none,
        4 * PAGE,
        protection,
        MAP_SHARED,
        disk,
        at as i64
    ))
    .cast::<u8>();
    pwrite(disk, b"by write", at + PAGE as u64)?;
    // SAFETY: four pages are mapped.
    let page = |n: usize| unsafe { memory.add(n * PAGE) };
    ensure!(peek(page(1)) == b'b', "a write is not seen");
    for n in 0..4 {
        poke(page(n), b'0' + n as u8);
    }
    equal!(pread(disk, 1, at + 2 * PAGE as u64)?, b"2");
    call!(msync(memory.cast(), 4 * PAGE, MS_SYNC));
    // The mapping keeps the pages after the last close; the last unmapping writes them back.
    poke(page(3), b'!');
    close(disk)?;
    let disk = open("/dev/md0", O_RDWR)?;
    equal!(pread(disk, 1, at + 3 * PAGE as u64)?, b"!");
    poke(page(3), b'?');
    call!(munmap(memory.cast(), 4 * PAGE));
    call!(ioctl(disk, BLKFLSBUF, 0));
    close(disk)?;
    let disk = open("/dev/md0", O_RDONLY)?;
    equal!(pread(disk, 1, at + 3 * PAGE as u64)?, b"?");
    close(disk)
}

fn read_only() -> Outcome {
    let disk = open("/dev/vdb", O_RDONLY)?;
    let mut number = 0i32;
    call!(ioctl(disk, BLKROGET, &mut number));
    ensure!(number == 1, "it may be written");
    ensure!(pread(disk, 100, 0)?.len() == 100, "a short read");
    refused!(EBADF, pwrite(disk, [0u8; 4].as_ptr().cast(), 4, 0));
    refused!(EACCES, open(c"/dev/vdb".as_ptr(), O_RDWR));
    close(disk)
}

fn exclusive() -> Outcome {
    let disk = open("/dev/md0", O_RDONLY | O_EXCL)?;
    refused!(EBUSY, open(c"/dev/md0".as_ptr(), O_RDWR | O_EXCL));
    close(open("/dev/md0", O_RDWR)?)?;
    close(disk)?;
    close(open("/dev/md0", O_RDWR | O_EXCL)?)
}

fn known() -> Outcome {
    let disk = open("/dev/vda", O_RDONLY)?;
    let size = size(disk)?;
    close(disk)?;
    let read = |path: &str| fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
    ensure!(
        read("/sys/block/vda/size")?.trim() == (size / 512).to_string(),
        "its size"
    );
    ensure!(read("/sys/dev/block/254:0/dev")? == "254:0\n", "its number");
    equal!(read("/sys/class/block/vdb/ro")?, "1\n");
    equal!(read("/sys/block/md0/queue/logical_block_size")?, "512\n");
    let partitions = read("/proc/partitions")?;
    let line = format!(" 254        0 {:10} vda\n", size / 1024);
    ensure!(partitions.contains(&line), "{partitions}");
    let before = fields("vda")?;
    let disk = open("/dev/vda", O_RDONLY | O_DIRECT)?;
    let memory = aligned()?;
    call!(pread(disk, memory.cast(), 16 * PAGE, 0));
    close(disk)?;
    let after = fields("vda")?;
    // Sectors and requests that were read.
    ensure!(after[2] == before[2] + 128, "{before:?}, then {after:?}");
    ensure!(after[0] > before[0] && after.len() == 17, before, after);
    Ok(())
}

/// The numbers of a disk in `/proc/diskstats`.
fn fields(name: &str) -> Result<Vec<u64>> {
    let all = fs::read_to_string("/proc/diskstats")?;
    let mut lines = all.lines().map(|line| line.split_ascii_whitespace());
    let fields = lines.find_map(|mut words| (words.nth(2) == Some(name)).then_some(words));
    let fields = fields.ok_or_else(|| format!("no {name} in:\n{all}"))?;
    fields.map(|word| Ok(word.parse()?)).collect()
}

fn zeros() -> Outcome {
    let disk = open("/dev/md0", O_RDWR)?;
    pwrite(disk, &[9; 8 * PAGE], 0)?;
    for command in [BLKZEROOUT, BLKDISCARD] {
        let range = [PAGE as u64 + 512, 2 * PAGE as u64];
        call!(ioctl(disk, command, range.as_ptr()));
        let found = pread(disk, 8 * PAGE, 0)?;
        let hole = range[0] as usize..(range[0] + range[1]) as usize;
        let kept = |at: usize| !hole.contains(&at);
        let wrong = (0..found.len()).find(|&at| kept(at) != (found[at] == 9));
        ensure!(wrong.is_none(), "{command:#x}: byte {wrong:?}");
        pwrite(disk, &[9; 8 * PAGE], 0)?;
    }
    for range in [[100u64, 512], [0, 100], [u64::MAX - 511, 512], [0, 1 << 40]] {
        refused!(EINVAL, ioctl(disk, BLKZEROOUT, range.as_ptr()));
    }
    // A read-only descriptor may not clear it.
    let reader = open("/dev/md0", O_RDONLY)?;
    for command in [BLKZEROOUT, BLKDISCARD] {
        let range = [0u64, PAGE as u64];
        refused!(EBADF, ioctl(reader, command, range.as_ptr()));
    }
    close(reader)?;
    close(disk)
}

/// Returns the byte that the first disk must have at this offset in the end; the host checks it.
fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

const WRITERS: u64 = 4;
/// Length of a stripe in bytes.
const STRIPE: u64 = 20_000;

fn patterns() -> Outcome {
    let disk = open("/dev/vda", O_RDWR)?;
    let size = size(disk)?;
    let mut children = Vec::new();
    for writer in 0..WRITERS {
        children.push(spawn(move || write_stripes(disk, size, writer))?);
    }
    wait_all(children)?;
    let mut at = 0;
    while at < size {
        let found = pread(disk, 1 << 16, at)?;
        ensure!(!found.is_empty(), "the end comes at {at}");
        let wrong = (at..).zip(&found).find(|&(at, &found)| found != byte(at));
        ensure!(wrong.is_none(), "{wrong:?}");
        at += found.len() as u64;
    }
    call!(fsync(disk));
    close(disk)
}

fn write_stripes(disk: c_int, size: u64, writer: u64) -> Outcome {
    let mut seed = writer + 1;
    let mut start = writer * STRIPE;
    while start < size {
        let end = (start + STRIPE).min(size);
        let mut at = start;
        while at < end {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let len = (1 + (seed >> 33) % 9000).min(end - at);
            let bytes: Vec<u8> = (at..at + len).map(byte).collect();
            ensure!(pwrite(disk, &bytes, at)? as u64 == len, "a short write");
            equal!(pread(disk, bytes.len(), at)?, bytes, at);
            at += len;
        }
        if (seed >> 40) % 8 == 0 {
            call!(fdatasync(disk));
        }
        start += WRITERS * STRIPE;
    }
    Ok(())
}
