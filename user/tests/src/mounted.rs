//! Files on a disk. The host provides `/dev/vda` with an ext2 file system of 64 MiB and checks it
//! afterwards; for the tests of errors, a disk with a sector that can be neither read nor written.

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("ext2: a mapping of what is cut off", cut_off),
    ("ext2: a full disk under a mapping", full),
    ("ext2: large files and holes", large),
    ("ext2: a directory with 100000 names", many_names),
    ("ext2: a file that only grows", only_grows),
    ("ext2: the reserve", reserve),
    ("ext2: a watch keeps it not mounted", watched),
    ("bad sector: a page that can't be read", unreadable),
    ("bad sector: a page that can't be written", unwritable),
];

const DISK: &str = "/dev/vda";
const HERE: &str = "/ext2-test";
/// Page of the host's disk with the bad sector.
const BAD_PAGE: usize = 250;

/// The file system, mounted as long as this lives.
pub struct Mounted;

impl Mounted {
    pub fn new() -> Result<Mounted> {
        let mut magic = [0; 2];
        let disk = File::open(DISK).map_err(|_| skip(format!("there is no {DISK}")))?;
        let read = disk.read_exact_at(&mut magic, 1024 + 56);
        if read.is_err() || magic != [0x53, 0xef] {
            return Err(skip(format!("there is no file system on {DISK}")));
        }
        fs::create_dir_all(HERE)?;
        call!(mount(
            c(DISK).as_ptr(),
            c(HERE).as_ptr(),
            c"ext2".as_ptr(),
            0,
            null()
        ));
        Ok(Mounted)
    }

    /// The path of a file.
    pub fn path(name: &str) -> String {
        format!("{HERE}/{name}")
    }

    /// Creates a file.
    pub fn file(&self, name: &str) -> Result<File> {
        let mut options = File::options();
        let options = options.read(true).write(true).create_new(true);
        Ok(options.open(Mounted::path(name))?)
    }

    fn remove(&self, name: &str) -> Outcome {
        Ok(fs::remove_file(Mounted::path(name))?)
    }

    fn about(&self) -> Result<statfs> {
        // SAFETY: all zeros is a valid one.
        let mut about: statfs = unsafe { zeroed() };
        call!(statfs(c(HERE).as_ptr(), &mut about));
        Ok(about)
    }

    /// Returns the free bytes.
    fn free(&self) -> Result<u64> {
        let about = self.about()?;
        Ok(about.f_bfree * about.f_bsize as u64)
    }

    /// Unmounts it; nothing may be in use.
    pub fn end(self) -> Outcome {
        call!(umount2(c(HERE).as_ptr(), 0));
        mem::forget(self);
        Ok(())
    }
}

impl Drop for Mounted {
    /// Unmounts after a failure, for the next test.
    fn drop(&mut self) {
        // SAFETY: a plain call.
        unsafe { libc::umount2(c(HERE).as_ptr(), MNT_DETACH) };
    }
}

/// Maps all of a file, shared.
fn map(file: &File, len: usize) -> Result<*mut u8> {
    let protection = PROT_READ | PROT_WRITE;
    let file = file.as_raw_fd();
    Ok(call!(mmap(null_mut(), len, protection, MAP_SHARED, file, 0)).cast())
}

fn page(memory: *mut u8, index: usize) -> *mut u8 {
    memory.wrapping_add(index * PAGE)
}

fn cut_off() -> Outcome {
    let disk = Mounted::new()?;
    let file = disk.file("cut")?;
    file.write_all_at(&[7; 4 * PAGE], 0)?;
    let memory = map(&file, 4 * PAGE)?;
    for index in 0..4 {
        ensure!(peek(page(memory, index)) == 7, "page {index}");
        poke(page(memory, index), 8);
    }
    file.set_len(PAGE as u64 + 10)?;
    for index in [2, 3] {
        let gone = page(memory, index);
        faults(SIGBUS, BUS_ADRERR, gone as usize, || {
            peek(gone);
        })?;
        faults(SIGBUS, BUS_ADRERR, gone as usize, || {
            poke(gone, 1);
        })?;
    }
    ensure!(peek(page(memory, 1)) == 8, "what is left of it");
    // Bytes behind the end in its last page are not kept.
    poke(page(memory, 1).wrapping_add(100), 9);
    call!(msync(memory.cast(), 2 * PAGE, MS_SYNC));
    file.set_len(4 * PAGE as u64)?;
    for at in [PAGE + 100, 2 * PAGE, 4 * PAGE - 1] {
        ensure!(peek(memory.wrapping_add(at)) == 0, "byte {at} came back");
    }
    poke(page(memory, 3), 3);
    call!(munmap(memory.cast(), 4 * PAGE));
    let mut last = [0];
    file.read_exact_at(&mut last, 3 * PAGE as u64)?;
    ensure!(last == [3], "a store into what grew again");
    drop(file);
    disk.remove("cut")?;
    disk.end()
}

fn full() -> Outcome {
    let disk = Mounted::new()?;
    let before = disk.free()?;
    let pages = before as usize / PAGE + 64;
    let file = disk.file("full")?;
    file.set_len((pages * PAGE) as u64)?;
    let memory = map(&file, pages * PAGE)?;
    // The first store into a hole allocates a block or faults.
    let stored =
        fault_of(|| (0..pages).for_each(|index| poke(page(memory, index), index as u8 | 1)))?;
    let fault = stored.ok_or("more was stored than there is room")?;
    ensure!(fault.signal == SIGBUS, "{fault:x?}");
    let kept = (fault.address - memory as usize) / PAGE;
    ensure!(kept * PAGE * 10 > before as usize * 9, kept);
    ensure!(peek(page(memory, kept)) == 0, "a hole that can be read");
    let write = file.write_at(&[1; PAGE], (kept * PAGE) as u64);
    let error = write.map_err(|error| error.raw_os_error());
    ensure!(error == Err(Some(ENOSPC)), "a write: {error:?}");
    // No block that was allocated leaks.
    call!(msync(memory.cast(), pages * PAGE, MS_SYNC));
    file.sync_all()?;
    call!(munmap(memory.cast(), pages * PAGE));
    let dropped = POSIX_FADV_DONTNEED;
    // SAFETY: a plain call.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, dropped) };
    let mut found = [0; PAGE];
    for index in 0..kept {
        let at = (index * PAGE) as u64;
        file.read_exact_at(&mut found, at)?;
        ensure!(found[0] == index as u8 | 1, "page {index} is {}", found[0]);
    }
    drop(file);
    disk.remove("full")?;
    disk.end()?;
    let disk = Mounted::new()?;
    ensure!(disk.free()? == before, "blocks that did not come back");
    disk.end()
}

fn large() -> Outcome {
    let disk = Mounted::new()?;
    let file = disk.file("large")?;
    let places = [0, 5000, (1 << 31) - 3, 3 << 30, (5 << 30) + 777];
    for (at, byte) in places.iter().zip(1u8..) {
        file.write_all_at(&[byte; 9], *at)?;
    }
    let about = file.metadata()?;
    let end = (5u64 << 30) + 777 + 9;
    ensure!(about.size() == end, "{} bytes", about.size());
    ensure!(about.blocks() * 512 < 200_000, about.blocks());
    file.sync_all()?;
    let number: c_int = file.as_raw_fd();
    // SAFETY: a plain call.
    unsafe { libc::posix_fadvise(number, 0, 0, POSIX_FADV_DONTNEED) };
    for (at, byte) in places.iter().zip(1u8..) {
        let mut found = [0; 11];
        let n = file.read_at(&mut found, *at)?;
        ensure!(n >= 9 && found[..9] == [byte; 9], "at {at}: {found:?}");
    }
    let mut hole = [1; 100];
    file.read_exact_at(&mut hole, (4 << 30) + 5)?;
    ensure!(hole == [0; 100], "a hole");
    let data = call!(lseek(number, 1 << 30, SEEK_DATA));
    let wanted = (((1u64 << 31) - 3) / PAGE as u64 * PAGE as u64) as off_t;
    ensure!(data <= wanted + 4093 && data >= wanted, data);
    let none = call!(lseek(number, 4 << 30, SEEK_HOLE));
    ensure!(none == 4 << 30, "a hole from {none:#x} on");
    refused!(ENXIO, lseek(number, end as off_t, SEEK_DATA));
    refused!(EFBIG, ftruncate(number, i64::MAX));
    file.set_len(1 << 31)?;
    file.set_len(6 << 30)?;
    let data = call!(lseek(number, (1 << 31) - 1, SEEK_DATA));
    ensure!(data == (1 << 31) - 1, "what was not cut off: {data:#x}");
    refused!(ENXIO, lseek(number, 3 << 30, SEEK_DATA));
    drop(file);
    disk.remove("large")?;
    disk.end()
}

fn many_names() -> Outcome {
    const NAMES: u32 = 100_000;
    /// Less than the largest file.
    const EACH: u32 = 25_000;
    let disk = Mounted::new()?;
    let path = |what: u32| c(&format!("{HERE}/many/name-{what}"));
    fs::create_dir(format!("{HERE}/many"))?;
    for name in 0..NAMES {
        let first = name / EACH * EACH;
        if name == first {
            let file = call!(open(path(name).as_ptr(), O_CREAT | O_EXCL, 0o644));
            call!(close(file));
        } else {
            call!(link(path(first).as_ptr(), path(name).as_ptr()));
        }
    }
    let mut numbers = Numbers::new(5);
    for _ in 0..10_000 {
        let name = numbers.below(2 * u64::from(NAMES)) as u32;
        let there = Path::new(&format!("{HERE}/many/name-{name}")).exists();
        ensure!(there == (name < NAMES), "name {name}: {there}");
    }
    refused!(EEXIST, link(path(0).as_ptr(), path(77_777).as_ptr()));
    let mut seen = vec![false; NAMES as usize];
    for entry in fs::read_dir(format!("{HERE}/many"))? {
        let name = entry?.file_name();
        let number = name
            .to_str()
            .and_then(|name| name.strip_prefix("name-")?.parse::<usize>().ok());
        let slot = number.and_then(|number| seen.get_mut(number));
        let slot = slot.ok_or_else(|| format!("{name:?} was never there"))?;
        ensure!(!mem::replace(slot, true), "{name:?} twice");
    }
    let missed = seen.iter().position(|&seen| !seen);
    ensure!(missed.is_none(), "name {missed:?} is not listed");
    // In another order than they were made.
    for name in (0..NAMES).map(|name| (u64::from(name) * 77_773 % u64::from(NAMES)) as u32) {
        call!(unlink(path(name).as_ptr()));
    }
    fs::remove_dir(format!("{HERE}/many"))?;
    disk.end()
}

/// The host made `log` append-only.
fn only_grows() -> Outcome {
    let disk = Mounted::new()?;
    let log = c(&format!("{HERE}/log"));
    let log = log.as_ptr();
    refused!(EPERM, open(log, O_RDWR));
    refused!(EPERM, open(log, O_WRONLY | O_APPEND | O_TRUNC));
    refused!(EPERM, truncate(log, 0));
    refused!(EPERM, unlink(log));
    let file = call!(open(log, O_RDWR | O_APPEND));
    equal!(call!(pwrite(file, b"more\n".as_ptr().cast(), 5, 0)), 5);
    let size = call!(lseek(file, 0, SEEK_END));
    ensure!(size == 10, "{size} bytes");
    refused!(EPERM, fcntl(file, F_SETFL, 0));
    call!(fcntl(file, F_SETFL, O_APPEND | O_NONBLOCK));
    let map = |how| {
        // SAFETY: nothing is there yet.
        unsafe { libc::mmap(null_mut(), PAGE, PROT_READ, how, file, 0) }
    };
    let error = || io::Error::last_os_error().raw_os_error();
    ensure!(map(MAP_SHARED) == MAP_FAILED, "mapped shared");
    ensure!(error() == Some(EACCES), "{:?}", error());
    let own = map(MAP_PRIVATE);
    ensure!(own != MAP_FAILED && peek(own.cast()) == b'l');
    call!(munmap(own, PAGE));
    call!(close(file));
    disk.end()
}

/// The reserve is for root only.
fn reserve() -> Outcome {
    const USER: u32 = 1000;
    let disk = Mounted::new()?;
    let about = disk.about()?;
    let reserve = about.f_bfree - about.f_bavail;
    ensure!(reserve > 100, "a reserve of {reserve} blocks");
    let file = disk.file("taken")?;
    let number = file.as_raw_fd();
    let take = || {
        // A MiB at a time, then a page.
        let mut end = file.metadata()?.size() as off_t;
        for step in [1 << 20, PAGE as off_t] {
            // SAFETY: a plain call.
            while unsafe { libc::posix_fallocate(number, end, step) } == 0 {
                end += step;
            }
        }
        refused!(ENOSPC, fallocate(number, 0, end, PAGE as off_t));
        Ok(())
    };
    let child = spawn(|| {
        call!(setgid(USER));
        call!(setuid(USER));
        take()
    })?;
    wait_ok(child)?;
    let left = disk.about()?;
    ensure!(
        left.f_bavail == 0 && left.f_bfree == reserve,
        "{} blocks of {reserve} are left, {} for users",
        left.f_bfree,
        left.f_bavail
    );
    take()?;
    let left = disk.about()?;
    ensure!(left.f_bfree < 8, "{} blocks are left to root", left.f_bfree);
    drop(file);
    disk.remove("taken")?;
    ensure!(disk.about()?.f_bavail == about.f_bavail, "room lost");
    disk.end()
}

/// The disk with a bad sector.
fn bad_disk() -> Result<File> {
    let mut mark = [0; 10];
    let disk = File::options().read(true).write(true).open(DISK);
    let disk = disk.map_err(|_| skip(format!("there is no {DISK}")))?;
    match disk.read_exact_at(&mut mark, 0).is_ok() && mark == *b"bad sector" {
        true => Ok(disk),
        false => Err(skip(format!("{DISK} has no bad sector"))),
    }
}

fn unreadable() -> Outcome {
    let disk = bad_disk()?;
    let memory = map(&disk, 2 * BAD_PAGE * PAGE)?;
    let bad = page(memory, BAD_PAGE);
    for _ in 0..2 {
        faults(SIGBUS, BUS_ADRERR, bad as usize, || {
            peek(bad);
        })?;
    }
    // Its neighbours are unharmed.
    ensure!(peek(page(memory, BAD_PAGE - 1)) == b'.', "the page before");
    ensure!(peek(page(memory, BAD_PAGE + 1)) == b'.', "the page after");
    let read = disk.read_at(&mut [0; 100], (BAD_PAGE * PAGE) as u64);
    let error = read.map_err(|error| error.raw_os_error());
    ensure!(error == Err(Some(EIO)), "a read: {error:?}");
    call!(munmap(memory.cast(), 2 * BAD_PAGE * PAGE));
    Ok(())
}

fn unwritable() -> Outcome {
    let disk = bad_disk()?;
    let other = disk.try_clone()?;
    let second = File::options().write(true).open(DISK)?;
    let write = |index: usize, byte: u8| disk.write_all_at(&[byte; PAGE], (index * PAGE) as u64);
    let synced = |file: &File| file.sync_all().map_err(|error| error.raw_os_error());
    for index in BAD_PAGE - 2..BAD_PAGE + 3 {
        write(index, b'x')?;
    }
    // Each open file reports the error once, and the bytes stay cached.
    ensure!(synced(&disk) == Err(Some(EIO)), "no error");
    ensure!(synced(&disk) == Ok(()), "the error was told twice");
    ensure!(synced(&other) == Ok(()), "the same open file, told twice");
    equal!(synced(&second), Err(Some(EIO)));
    // By a mapping: the store succeeds, `msync` reports the error.
    let memory = map(&disk, 2 * BAD_PAGE * PAGE)?;
    poke(page(memory, BAD_PAGE), b'y');
    poke(page(memory, BAD_PAGE + 1), b'z');
    refused!(EIO, msync(memory.cast(), 2 * BAD_PAGE * PAGE, MS_SYNC));
    call!(munmap(memory.cast(), 2 * BAD_PAGE * PAGE));
    Ok(())
}

/// Watches of a directory and a file do not keep the file system in use.
fn watched() -> Outcome {
    let disk = Mounted::new()?;
    drop(disk.file("watched")?);
    let watch = call!(inotify_init1(0));
    for path in [HERE.to_owned(), format!("{HERE}/watched")] {
        call!(inotify_add_watch(watch, c(&path).as_ptr(), IN_ALL_EVENTS));
    }
    disk.remove("watched")?;
    disk.end()
}
