//! The page cache of a disk as programs see and control it: advice, readahead, writeback and its
//! settings. The tests need `/dev/md0` from the host.

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("disks: advice about pages is followed", advice),
    (
        "disks: dirty pages are counted, and written when asked",
        dirty,
    ),
    ("disks: settings of writing back", settings),
];

const DISK: &str = "/dev/md0";
/// Pages that these tests use.
const PAGES: usize = 64;

struct Disk {
    file: c_int,
    memory: *mut u8,
}

impl Disk {
    /// The disk, open and mapped, with no page cached.
    fn open() -> Result<Disk> {
        if !Path::new(DISK).exists() {
            return Err(skip(format!("there is no {DISK}")));
        }
        let file = call!(open(c(DISK).as_ptr(), O_RDWR | O_CLOEXEC));
        let memory = call!(mmap(
            null_mut(),
            PAGES * PAGE,
            PROT_READ | PROT_WRITE,
            MAP_SHARED,
            file,
            0
        ));
        let disk = Disk {
            file,
            memory: memory.cast(),
        };
        disk.forget()?;
        Ok(disk)
    }

    fn advise(&self, from: usize, len: usize, advice: c_int) -> Outcome {
        // SAFETY: a plain call.
        let error = unsafe { libc::posix_fadvise(self.file, from as off_t, len as off_t, advice) };
        ensure!(error == 0, "posix_fadvise({advice}): error {error}");
        Ok(())
    }

    /// Evicts all its pages.
    fn forget(&self) -> Outcome {
        call!(fdatasync(self.file));
        self.advise(0, 0, POSIX_FADV_DONTNEED)?;
        let resident = self.resident()?.iter().filter(|&&here| here).count();
        ensure!(resident == 0, "{resident} pages stay");
        Ok(())
    }

    fn resident(&self) -> Result<Vec<bool>> {
        let mut pages = vec![0u8; PAGES];
        call!(mincore(
            self.memory.cast(),
            PAGES * PAGE,
            pages.as_mut_ptr()
        ));
        Ok(pages.into_iter().map(|page| page & 1 != 0).collect())
    }

    /// Waits until exactly these pages are cached: readahead brings them asynchronously.
    fn comes(&self, pages: std::ops::Range<usize>) -> Outcome {
        let mut here = Vec::new();
        for _ in 0..500 {
            here = self.resident()?;
            if here
                .iter()
                .enumerate()
                .all(|(i, here)| *here == pages.contains(&i))
            {
                return Ok(());
            }
            pause_ms(2);
        }
        Err(format!("in memory are {here:?}, and not {pages:?}").into())
    }

    fn read(&self, page: usize) -> Outcome {
        let mut byte = 0u8;
        let at = (page * PAGE) as off_t;
        let n = call!(pread(self.file, (&raw mut byte).cast(), 1, at));
        ensure!(n == 1, "read {n} bytes");
        Ok(())
    }

    fn write(&self, pages: usize) -> Outcome {
        let bytes = vec![0x5a; pages * PAGE];
        let n = call!(pwrite(self.file, bytes.as_ptr().cast(), bytes.len(), 0));
        ensure!(n as usize == bytes.len(), "wrote {n} bytes");
        Ok(())
    }

    fn close(self) -> Outcome {
        call!(munmap(self.memory.cast(), PAGES * PAGE));
        call!(close(self.file));
        Ok(())
    }
}

fn advice() -> Outcome {
    let disk = Disk::open()?;
    disk.advise(0, 32 * PAGE, POSIX_FADV_WILLNEED)?;
    disk.comes(0..32)?;
    call!(readahead(disk.file, (32 * PAGE) as off64_t, 16 * PAGE));
    disk.comes(0..48)?;
    // A page named in part stays: the rest of it may be wanted.
    disk.advise(100, 48 * PAGE - 100, POSIX_FADV_DONTNEED)?;
    disk.comes(0..1)?;
    disk.forget()?;
    disk.advise(0, 0, POSIX_FADV_RANDOM)?;
    disk.read(0)?;
    disk.comes(0..1)?;
    disk.forget()?;
    disk.advise(0, 0, POSIX_FADV_NORMAL)?;
    disk.read(0)?;
    let here = disk.resident()?.iter().filter(|&&here| here).count();
    ensure!(here > 1, "{here} pages are read");
    disk.forget()?;
    // Readahead windows are smaller after a short run.
    for advice in [POSIX_FADV_SEQUENTIAL, POSIX_FADV_NOREUSE] {
        disk.advise(0, 0, advice)?;
        disk.read(0)?;
        ensure!(disk.resident()?[0], "advice {advice}: the page is not read");
        disk.forget()?;
    }
    disk.advise(0, 0, POSIX_FADV_NORMAL)?;
    // SAFETY: a plain call.
    let error = unsafe { libc::posix_fadvise(disk.file, 0, 0, 77) };
    ensure!(error == EINVAL, "unknown advice: {error}");
    disk.close()
}

fn dirty() -> Outcome {
    let disk = Disk::open()?;
    let kib = (PAGES * PAGE / 1024) as u64;
    let before = field("/proc/meminfo", "Dirty")?;
    disk.write(PAGES)?;
    let after = field("/proc/meminfo", "Dirty")?;
    ensure!(after >= before + kib, after, before);
    ensure!(
        field("/proc/meminfo", "Buffers")? >= kib,
        "pages of devices are buffers"
    );
    let flags = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    call!(sync_file_range(
        disk.file,
        0,
        (PAGES / 2 * PAGE) as off64_t,
        flags
    ));
    let half = field("/proc/meminfo", "Dirty")?;
    ensure!(half + kib / 2 <= after, half);
    call!(fdatasync(disk.file));
    ensure!(
        field("/proc/meminfo", "Dirty")? + kib <= after,
        "all was written"
    );
    // By a mapping, page by page.
    equal!(peek(disk.memory), 0x5a);
    let before = field("/proc/meminfo", "Dirty")?;
    for page in 0..8 {
        // SAFETY: inside of the mapping.
        poke(unsafe { disk.memory.add(page * PAGE) }, 7);
    }
    let after = field("/proc/meminfo", "Dirty")?;
    ensure!(after >= before + 32, after, before);
    call!(msync(disk.memory.cast(), 8 * PAGE, MS_SYNC));
    ensure!(
        field("/proc/meminfo", "Dirty")? + 32 <= after,
        "msync writes"
    );
    // A later store is seen, too.
    poke(disk.memory, 8);
    ensure!(
        field("/proc/meminfo", "Dirty")? >= 4,
        "a page is dirty again"
    );
    call!(msync(disk.memory.cast(), PAGE, MS_ASYNC));
    call!(msync(disk.memory.cast(), PAGE, MS_SYNC | MS_INVALIDATE));
    call!(mlock(disk.memory.cast(), PAGE));
    refused!(EBUSY, msync(disk.memory.cast(), 2 * PAGE, MS_INVALIDATE));
    call!(munlock(disk.memory.cast(), PAGE));
    disk.close()
}

fn settings() -> Outcome {
    for (name, value, bad) in [
        ("dirty_ratio", "30", "101"),
        ("dirty_background_ratio", "5", "-1"),
        ("dirty_expire_centisecs", "1000", "x"),
        ("dirty_writeback_centisecs", "700", "99999999999"),
    ] {
        let path = format!("/proc/sys/vm/{name}");
        let usual = fs::read_to_string(&path)?;
        fs::write(&path, value)?;
        let now = fs::read_to_string(&path)?;
        ensure!(now.trim() == value, "{name}: {now}");
        ensure!(fs::write(&path, bad).is_err(), "{name} takes {bad}");
        fs::write(&path, usual)?;
    }
    fs::write("/proc/sys/vm/drop_caches", "3")?;
    Ok(())
}
