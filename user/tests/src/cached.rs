//! Pages of a disk in memory, as programs see and steer them: advice, read-ahead, write-back, and the settings of it. On `/dev/md0`, where the host
//! gives one.

use std::fs;
use std::path::Path;
use std::ptr::null_mut;

use libc::{c_int, off_t, off64_t};

use crate::support::{Outcome, PAGE, c, pause_ms, peek, poke};
use crate::{SKIP, Test, call, ensure, refused};

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
    /// The disk, mapped and open, none of its pages in memory.
    fn open() -> Result<Disk, String> {
        if !Path::new(DISK).exists() {
            return Err(format!("{SKIP}there is no {DISK}"));
        }
        let file = call!(open(c(DISK).as_ptr(), libc::O_RDWR | libc::O_CLOEXEC));
        let memory = call!(mmap(
            null_mut(),
            PAGES * PAGE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
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

    /// All its pages leave memory.
    fn forget(&self) -> Outcome {
        call!(fdatasync(self.file));
        self.advise(0, 0, libc::POSIX_FADV_DONTNEED)?;
        let resident = self.resident()?.iter().filter(|&&here| here).count();
        ensure!(resident == 0, "{resident} pages stay");
        Ok(())
    }

    fn resident(&self) -> Result<Vec<bool>, String> {
        let mut pages = vec![0u8; PAGES];
        call!(mincore(
            self.memory.cast(),
            PAGES * PAGE,
            pages.as_mut_ptr()
        ));
        Ok(pages.into_iter().map(|page| page & 1 != 0).collect())
    }

    /// Waits until exactly these pages are in memory: they come by themselves.
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
        Err(format!("in memory are {here:?}, and not {pages:?}"))
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
    disk.advise(0, 32 * PAGE, libc::POSIX_FADV_WILLNEED)?;
    disk.comes(0..32)?;
    call!(readahead(disk.file, (32 * PAGE) as off64_t, 16 * PAGE));
    disk.comes(0..48)?;
    // Of a page that is named in part, the rest may be wanted.
    disk.advise(100, 48 * PAGE - 100, libc::POSIX_FADV_DONTNEED)?;
    disk.comes(0..1)?;
    disk.forget()?;
    disk.advise(0, 0, libc::POSIX_FADV_RANDOM)?;
    disk.read(0)?;
    disk.comes(0..1)?;
    disk.forget()?;
    disk.advise(0, 0, libc::POSIX_FADV_NORMAL)?;
    disk.read(0)?;
    let here = disk.resident()?.iter().filter(|&&here| here).count();
    ensure!(here > 1, "{here} pages are read");
    disk.forget()?;
    // Windows of who came no farther are smaller.
    for advice in [libc::POSIX_FADV_SEQUENTIAL, libc::POSIX_FADV_NOREUSE] {
        disk.advise(0, 0, advice)?;
        disk.read(0)?;
        ensure!(disk.resident()?[0], "advice {advice}: the page is not read");
        disk.forget()?;
    }
    disk.advise(0, 0, libc::POSIX_FADV_NORMAL)?;
    // SAFETY: a plain call.
    let error = unsafe { libc::posix_fadvise(disk.file, 0, 0, 77) };
    ensure!(error == libc::EINVAL, "unknown advice: {error}");
    disk.close()
}

/// A line of `/proc/meminfo` in KiB.
fn meminfo(name: &str) -> Result<u64, String> {
    let text = fs::read_to_string("/proc/meminfo").map_err(|error| error.to_string())?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|rest| rest.trim_start_matches(':').split_whitespace().next());
    let number = number.and_then(|number| number.parse().ok());
    number.ok_or_else(|| format!("no {name} in /proc/meminfo"))
}

fn dirty() -> Outcome {
    let disk = Disk::open()?;
    let kib = (PAGES * PAGE / 1024) as u64;
    let before = meminfo("Dirty")?;
    disk.write(PAGES)?;
    let after = meminfo("Dirty")?;
    ensure!(
        after >= before + kib,
        "{after} KiB are dirty, {before} before"
    );
    ensure!(meminfo("Buffers")? >= kib, "pages of devices are buffers");
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    call!(sync_file_range(
        disk.file,
        0,
        (PAGES / 2 * PAGE) as off64_t,
        flags
    ));
    let half = meminfo("Dirty")?;
    ensure!(
        half + kib / 2 <= after,
        "half was written, {half} KiB are dirty"
    );
    call!(fdatasync(disk.file));
    ensure!(meminfo("Dirty")? + kib <= after, "all was written");
    // By a mapping, page by page.
    ensure!(
        peek(disk.memory) == 0x5a,
        "the mapping shows what was written"
    );
    let before = meminfo("Dirty")?;
    for page in 0..8 {
        // SAFETY: inside of the mapping.
        poke(unsafe { disk.memory.add(page * PAGE) }, 7);
    }
    let after = meminfo("Dirty")?;
    ensure!(
        after >= before + 32,
        "{after} KiB are dirty, {before} before"
    );
    call!(msync(disk.memory.cast(), 8 * PAGE, libc::MS_SYNC));
    ensure!(meminfo("Dirty")? + 32 <= after, "msync writes");
    // A store after that is seen, too.
    poke(disk.memory, 8);
    ensure!(meminfo("Dirty")? >= 4, "a page is dirty again");
    call!(msync(disk.memory.cast(), PAGE, libc::MS_ASYNC));
    call!(msync(
        disk.memory.cast(),
        PAGE,
        libc::MS_SYNC | libc::MS_INVALIDATE
    ));
    call!(mlock(disk.memory.cast(), PAGE));
    refused!(
        EBUSY,
        msync(disk.memory.cast(), 2 * PAGE, libc::MS_INVALIDATE)
    );
    call!(munlock(disk.memory.cast(), PAGE));
    disk.close()
}

fn settings() -> Outcome {
    let text = |error: std::io::Error| error.to_string();
    for (name, value, bad) in [
        ("dirty_ratio", "30", "101"),
        ("dirty_background_ratio", "5", "-1"),
        ("dirty_expire_centisecs", "1000", "x"),
        ("dirty_writeback_centisecs", "700", "99999999999"),
    ] {
        let path = format!("/proc/sys/vm/{name}");
        let usual = fs::read_to_string(&path).map_err(text)?;
        fs::write(&path, value).map_err(text)?;
        let now = fs::read_to_string(&path).map_err(text)?;
        ensure!(now.trim() == value, "{name}: {now}");
        ensure!(fs::write(&path, bad).is_err(), "{name} takes {bad}");
        fs::write(&path, usual).map_err(text)?;
    }
    fs::write("/proc/sys/vm/drop_caches", "3").map_err(text)?;
    Ok(())
}
