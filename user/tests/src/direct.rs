//! `O_DIRECT`: disks move bytes from and to the memory of programs, past the page cache. On the
//! host's disk with an ext2 file system, see [`mounted`](crate::mounted), and on the memory disk
//! `/dev/md0` as a device.

use crate::mounted::Mounted;
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("ext2: past the cache, what is refused", refused_or_short),
    ("ext2: past the cache, a limit of the size", limited),
    ("ext2: past the cache, pages and mappings agree", agrees),
    ("ext2: past the cache, holes and the end", holes),
    ("ext2: past the cache, vectors", vectors),
    ("ext2: past the cache, buffers that are the file", itself),
    ("ext2: past the cache, forks and kills", forks),
    ("ext2: past the cache, threads and a model", model),
    ("disks: past the cache, vectors and flags", device),
];

const SECTOR: usize = 512;

/// A file, open for transfers past the cache and for others, that `Mounted` has to remove.
struct Both {
    direct: c_int,
    cached: File,
    path: String,
}

impl Both {
    fn new(disk: &Mounted, name: &str) -> Result<Self> {
        let cached = disk.file(name)?;
        let path = Mounted::path(name);
        let flags = O_RDWR | O_DIRECT | O_CLOEXEC;
        let direct = call!(open(c(&path).as_ptr(), flags));
        Ok(Self {
            direct,
            cached,
            path,
        })
    }

    fn read(&self, to: *mut u8, len: usize, at: usize) -> Result<usize> {
        Ok(call!(pread(self.direct, to.cast(), len, at as off_t)) as usize)
    }

    fn write(&self, from: *const u8, len: usize, at: usize) -> Result<usize> {
        Ok(call!(pwrite(self.direct, from.cast(), len, at as off_t)) as usize)
    }

    /// The bytes in the page cache.
    fn bytes(&self, at: usize, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.cached.read_exact_at(&mut bytes, at as u64)?;
        Ok(bytes)
    }

    /// Closes and removes it.
    fn end(self) -> Outcome {
        call!(close(self.direct));
        drop(self.cached);
        Ok(fs::remove_file(&self.path)?)
    }
}

/// Memory of the program as a slice, for a moment.
fn slice<'a>(memory: *const u8, len: usize) -> &'a [u8] {
    // SAFETY: callers pass memory that they mapped, and do not change it meanwhile.
    unsafe { std::slice::from_raw_parts(memory, len) }
}

fn set(memory: *mut u8, len: usize, byte: u8) {
    // SAFETY: callers pass memory that they mapped.
    unsafe { memory.write_bytes(byte, len) };
}

fn is_all(bytes: &[u8], byte: u8) -> bool {
    bytes.iter().all(|&it| it == byte)
}

fn refused_or_short() -> Outcome {
    let disk = Mounted::new()?;
    refused!(
        EINVAL,
        open(c"/tmp".as_ptr(), O_RDWR | O_TMPFILE | O_DIRECT, 0o600)
    );
    let file = Both::new(&disk, "refused")?;
    let memory = map(4 * PAGE)?;
    file.cached.write_all_at(&[5; 3 * PAGE + 100], 0)?;
    let fd = file.direct;
    for (at, offset, len) in [(0, 0, 100), (100, 0, SECTOR), (0, 8, SECTOR), (0, 0, 513)] {
        let start = memory.wrapping_add(offset).cast();
        refused!(EINVAL, pread(fd, start, len, at));
        refused!(EINVAL, pwrite(fd, start, len, at));
    }
    equal!(file.read(memory, 0, 0)?, 0);
    // Behind the end nothing is looked at.
    equal!(file.read(memory.wrapping_add(8), 100, 4 * PAGE)?, 0);
    equal!(file.read(memory, 4 * PAGE, 0)?, 3 * PAGE + 100);
    ensure!(is_all(slice(memory, 3 * PAGE + 100), 5), "what it has");
    equal!(file.read(memory, SECTOR, 3 * PAGE)?, 100);
    // Two pages, then none, or one that can't be written.
    unmap(memory.wrapping_add(2 * PAGE), PAGE)?;
    for round in 0..2 {
        equal!(file.read(memory, 4 * PAGE, 0)?, 2 * PAGE, round);
        refused!(
            EFAULT,
            pread(fd, memory.wrapping_add(2 * PAGE).cast(), PAGE, 0)
        );
        if round == 0 {
            equal!(file.write(memory, 3 * PAGE, 0)?, 2 * PAGE);
            refused!(
                EFAULT,
                pwrite(fd, memory.wrapping_add(2 * PAGE).cast(), PAGE, 0)
            );
        }
        let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
        let there = memory.wrapping_add(2 * PAGE).cast();
        call!(mmap(there, PAGE, PROT_READ, flags, -1, 0));
    }
    equal!(file.write(memory, 4 * PAGE, 0)?, 4 * PAGE);
    refused!(
        EFAULT,
        pread(
            fd,
            ptr::dangling_mut::<u8>().wrapping_sub(1).cast(),
            SECTOR,
            0
        )
    );
    // The flag comes and goes.
    call!(fcntl(fd, F_SETFL, 0));
    equal!(file.read(memory.wrapping_add(8), 100, 100)?, 100);
    call!(fcntl(fd, F_SETFL, O_DIRECT));
    ensure!(call!(fcntl(fd, F_GETFL)) & O_DIRECT != 0, "its flags");
    refused!(EINVAL, pread(fd, memory.wrapping_add(8).cast(), 100, 100));
    // SAFETY: all zeros is a valid one.
    let mut about: statx = unsafe { zeroed() };
    let mask = STATX_DIOALIGN;
    call!(statx(fd, c"".as_ptr(), AT_EMPTY_PATH, mask, &mut about));
    ensure!(about.stx_mask & mask != 0, "what statx says");
    let aligns = (about.stx_dio_mem_align, about.stx_dio_offset_align);
    equal!(aligns, (SECTOR as u32, SECTOR as u32));
    call!(statx(AT_FDCWD, c"/tmp".as_ptr(), 0, mask, &mut about));
    ensure!(about.stx_mask & mask == 0, "a folder in memory");
    file.end()?;
    disk.end()
}

/// What ends at the limit is short; a signal is sent only if not even the first byte may be
/// written.
fn limited() -> Outcome {
    let disk = Mounted::new()?;
    let file = Both::new(&disk, "limited")?;
    file.cached.write_all_at(&[5; 4 * PAGE], 0)?;
    let memory = map(4 * PAGE)?;
    let fd = file.direct;
    let writer = spawn(|| {
        call!(setrlimit(RLIMIT_FSIZE, &limit_of(2 * PAGE as u64)));
        equal!(file.write(memory, 3 * PAGE, PAGE)?, PAGE);
        equal!(file.write(memory, 2 * PAGE, 0)?, 2 * PAGE);
        // SAFETY: ignores the signal.
        unsafe { libc::signal(SIGXFSZ, SIG_IGN) };
        refused!(EFBIG, pwrite(fd, memory.cast(), PAGE, 2 * PAGE as off_t));
        // SAFETY: as before.
        unsafe { libc::signal(SIGXFSZ, SIG_DFL) };
        call!(pwrite(fd, memory.cast(), PAGE, 2 * PAGE as off_t));
        Ok(())
    })?;
    equal!(wait(writer)?, End::Signal(SIGXFSZ));
    ensure!(is_all(&file.bytes(2 * PAGE, 2 * PAGE)?, 5), "the rest");
    file.end()?;
    disk.end()
}

fn agrees() -> Outcome {
    let disk = Mounted::new()?;
    let file = Both::new(&disk, "agrees")?;
    let memory = map(16 * PAGE)?;
    file.cached.write_all_at(&[1; 16 * PAGE], 0)?;
    file.cached.sync_all()?;
    let before = (
        counter("direct_bytes_read")?,
        counter("direct_bytes_written")?,
    );
    let fallbacks = counter("direct_fallbacks")?;
    let mapped = call!(mmap(
        null_mut(),
        16 * PAGE,
        READ_WRITE,
        MAP_SHARED,
        file.cached.as_raw_fd(),
        0
    ))
    .cast::<u8>();
    for round in 2..20u8 {
        // Seen past the cache: a write and a store.
        file.cached
            .write_all_at(&[round; 100], 5 * PAGE as u64 + 50)?;
        poke(mapped.wrapping_add(9 * PAGE + 7), round);
        equal!(file.read(memory, 16 * PAGE, 0)?, 16 * PAGE);
        let there = |at: usize| peek(memory.wrapping_add(at));
        let found = (
            there(5 * PAGE + 50),
            there(5 * PAGE + 149),
            there(9 * PAGE + 7),
        );
        equal!(found, (round, round, round));
        // Seen in the cache and in the mapping.
        set(memory, 3 * SECTOR, round + 100);
        let at = 2 * PAGE + SECTOR;
        ensure!(
            peek(mapped.wrapping_add(at)) != round + 100,
            "seen too early"
        );
        equal!(file.write(memory, 3 * SECTOR, at)?, 3 * SECTOR);
        ensure!(
            is_all(slice(mapped.wrapping_add(at), 3 * SECTOR), round + 100),
            "the mapping"
        );
        ensure!(
            is_all(&file.bytes(at, 3 * SECTOR)?, round + 100),
            "the pages"
        );
        ensure!(is_all(&file.bytes(2 * PAGE, SECTOR)?, 1), "bytes before");
    }
    let after = (
        counter("direct_bytes_read")?,
        counter("direct_bytes_written")?,
    );
    equal!(after.0 - before.0, 18 * 16 * PAGE as u64);
    equal!(after.1 - before.1, 18 * 3 * SECTOR as u64);
    equal!(counter("direct_fallbacks")?, fallbacks);
    unmap(mapped, 16 * PAGE)?;
    file.end()?;
    disk.end()
}

fn holes() -> Outcome {
    let disk = Mounted::new()?;
    let file = Both::new(&disk, "holes")?;
    let memory = map(8 * PAGE)?;
    // Blocks with other bytes, which the new file must not show.
    let soil = Both::new(&disk, "soil")?;
    soil.cached.write_all_at(&vec![b'x'; 4 << 20], 0)?;
    soil.cached.sync_all()?;
    soil.end()?;
    // SAFETY: a plain call.
    unsafe { libc::sync() };
    file.cached.set_len(100 * PAGE as u64)?;
    set(memory, 8 * PAGE, 9);
    equal!(file.read(memory, 8 * PAGE, 3 * PAGE)?, 8 * PAGE);
    ensure!(is_all(slice(memory, 8 * PAGE), 0), "a hole");
    // Into a hole, and over its borders.
    set(memory, 8 * PAGE, 7);
    equal!(file.write(memory, SECTOR, 10 * PAGE + SECTOR)?, SECTOR);
    equal!(file.write(memory, 2 * PAGE, 11 * PAGE - SECTOR)?, 2 * PAGE);
    let found = file.bytes(10 * PAGE, 4 * PAGE)?;
    let expected = |at: usize| match at {
        _ if (SECTOR..2 * SECTOR).contains(&at) => 7,
        _ if (PAGE - SECTOR..3 * PAGE - SECTOR).contains(&at) => 7,
        _ => 0,
    };
    let wrong = (0..found.len()).find(|&at| found[at] != expected(at));
    ensure!(wrong.is_none(), "byte {wrong:?} of what is in a hole");
    equal!(file.read(memory, 4 * PAGE, 10 * PAGE)?, 4 * PAGE);
    ensure!(
        slice(memory, 4 * PAGE) == found,
        "past the cache it is something else"
    );
    // Beyond the end, over it, and by appending.
    set(memory, 8 * PAGE, 8);
    equal!(file.write(memory, 2 * PAGE, 99 * PAGE)?, 2 * PAGE);
    equal!(file.write(memory, SECTOR, 120 * PAGE)?, SECTOR);
    equal!(
        file.cached.metadata()?.len(),
        120 * PAGE as u64 + SECTOR as u64
    );
    ensure!(is_all(&file.bytes(99 * PAGE, 2 * PAGE)?, 8), "over the end");
    ensure!(is_all(&file.bytes(101 * PAGE, 19 * PAGE)?, 0), "a new hole");
    call!(fcntl(file.direct, F_SETFL, O_DIRECT | O_APPEND));
    equal!(
        call!(write(file.direct, memory.cast(), SECTOR)) as usize,
        SECTOR
    );
    equal!(
        file.cached.metadata()?.len(),
        120 * PAGE as u64 + 2 * SECTOR as u64
    );
    call!(fcntl(file.direct, F_SETFL, O_DIRECT));
    // Large: several requests.
    let large = map(5 << 20)?;
    set(large, 5 << 20, 3);
    equal!(file.write(large, 5 << 20, 0)?, 5 << 20);
    equal!(file.write(large, 5 << 20, 0)?, 5 << 20);
    set(large, 5 << 20, 0);
    equal!(file.read(large, 5 << 20, 0)?, 5 << 20);
    ensure!(is_all(slice(large, 5 << 20), 3), "five mebibytes");
    unmap(large, 5 << 20)?;
    file.end()?;
    disk.end()
}

fn vectors() -> Outcome {
    let disk = Mounted::new()?;
    let file = Both::new(&disk, "vectors")?;
    transfer_vectors(file.direct, |at, len| file.bytes(at, len), &file.cached)?;
    file.end()?;
    disk.end()
}

/// Writes and reads vectors of pieces that lie anywhere in memory, by the position.
fn transfer_vectors(
    direct: c_int,
    bytes: impl Fn(usize, usize) -> Result<Vec<u8>>,
    cached: &File,
) -> Outcome {
    const MOST: usize = 64 * PAGE;
    let memory = map(2 * MOST)?;
    let mut numbers = Numbers::new(5);
    cached.write_all_at(&vec![0; MOST], 0)?;
    for round in 0..40u8 {
        let mut pieces = Vec::new();
        let (mut offset, mut len) = (0, 0);
        while len < MOST / 2 && pieces.len() < 60 {
            offset += numbers.below(9) as usize * SECTOR;
            let piece = numbers.below(12) as usize * SECTOR;
            pieces.push(vector(memory.wrapping_add(offset), piece));
            offset += piece;
            len += piece;
        }
        let byte = |at: usize| (at / SECTOR) as u8 ^ round;
        let mut at = 0;
        for piece in &pieces {
            for sector in (0..piece.iov_len).step_by(SECTOR) {
                let start = piece.iov_base.cast::<u8>().wrapping_add(sector);
                set(start, SECTOR, byte(at));
                at += SECTOR;
            }
        }
        call!(lseek(direct, 0, SEEK_SET));
        let count = pieces.len() as c_int;
        equal!(call!(writev(direct, pieces.as_ptr(), count)) as usize, len);
        let found = bytes(0, len)?;
        let wrong = (0..len).find(|&at| found[at] != byte(at));
        ensure!(wrong.is_none(), "byte {wrong:?} of round {round}");
        set(memory, 2 * MOST, 0xff);
        call!(lseek(direct, 0, SEEK_SET));
        equal!(call!(readv(direct, pieces.as_ptr(), count)) as usize, len);
        equal!(call!(lseek(direct, 0, SEEK_CUR)) as usize, len);
        let mut at = 0;
        for piece in &pieces {
            let start = piece.iov_base.cast::<u8>();
            for sector in (0..piece.iov_len).step_by(SECTOR) {
                let found = slice(start.wrapping_add(sector), SECTOR);
                ensure!(is_all(found, byte(at)), "byte {at} read in round {round}");
                at += SECTOR;
            }
        }
        // One piece that is not aligned.
        let bad = [pieces[0], vector(memory.wrapping_add(4), SECTOR)];
        refused!(EINVAL, readv(direct, bad.as_ptr(), 2));
        refused!(EINVAL, writev(direct, bad.as_ptr(), 2));
    }
    unmap(memory, 2 * MOST)
}

/// A buffer is a mapping of the file, of the place that is written and of others.
fn itself() -> Outcome {
    let disk = Mounted::new()?;
    let file = Both::new(&disk, "itself")?;
    for page in 0..8u8 {
        file.cached
            .write_all_at(&[page; PAGE], page as u64 * PAGE as u64)?;
    }
    file.cached.sync_all()?;
    let fd = file.cached.as_raw_fd();
    let mapped = call!(mmap(null_mut(), 8 * PAGE, READ_WRITE, MAP_SHARED, fd, 0)).cast::<u8>();
    let page = |index: usize| mapped.wrapping_add(index * PAGE);
    for index in 0..8 {
        poke(page(index), 10 + index as u8);
    }
    // Two pages change places.
    let both = [vector(page(1), PAGE), vector(page(0), PAGE)];
    equal!(
        call!(pwritev(file.direct, both.as_ptr(), 2, 0)) as usize,
        2 * PAGE
    );
    equal!((peek(page(0)), peek(page(1))), (11, 10));
    equal!(file.write(page(2), PAGE, 2 * PAGE)?, PAGE);
    equal!(file.read(page(3), PAGE, 3 * PAGE)?, PAGE);
    equal!(file.read(page(4), 2 * PAGE, 5 * PAGE)?, 2 * PAGE);
    equal!(
        (peek(page(2)), peek(page(3)), peek(page(4)), peek(page(5))),
        (12, 13, 15, 16)
    );
    // What the disk put there is written back.
    file.cached.sync_all()?;
    equal!(file.read(page(6), PAGE, 0)?, PAGE);
    unmap(mapped, 8 * PAGE)?;
    file.cached.sync_all()?;
    call!(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
    let found: Vec<u8> = (0..8)
        .map(|index| file.bytes(index * PAGE, 1).map(|it| it[0]))
        .collect::<Result<_>>()?;
    equal!(found, [11, 10, 12, 13, 15, 16, 11, 17]);
    file.end()?;
    disk.end()
}

/// A thread reads while others fork; then processes are killed amid transfers.
fn forks() -> Outcome {
    let disk = Mounted::new()?;
    let file = Both::new(&disk, "forks")?;
    const LEN: usize = 40 * PAGE;
    for sector in 0..LEN / SECTOR {
        let at = (sector * SECTOR) as u64;
        file.cached.write_all_at(&[sector as u8; SECTOR], at)?;
    }
    let memory = map(LEN)?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let forking = scope.spawn(|| -> Outcome {
            while !stop.load(SeqCst) {
                child(|| Ok(()))?;
            }
            Ok(())
        });
        // A shared page of memory cannot cross threads as a pointer.
        let result = (0..60).try_for_each(|round| -> Outcome {
            set(memory, LEN, 0xee);
            equal!(file.read(memory, LEN, 0)?, LEN);
            let wrong = (0..LEN).find(|&at| slice(memory, LEN)[at] != (at / SECTOR) as u8);
            ensure!(wrong.is_none(), "byte {wrong:?} in round {round}");
            Ok(())
        });
        stop.store(true, SeqCst);
        let forked = forking
            .join()
            .map_err(|_| "a thread has panicked".to_string())?;
        result.and(forked)
    })?;
    for round in 0..20 {
        let direct = file.direct;
        let busy = spawn(move || {
            let memory = map(LEN)?;
            set(memory, LEN, 1);
            loop {
                call!(pread(direct, memory.cast(), LEN, 0));
                call!(pwrite(direct, memory.cast(), LEN, LEN as off_t));
            }
        })?;
        pause_ms(round % 7);
        kill_child(busy)?;
    }
    let is_sector = |bytes: &[u8], number: usize| is_all(bytes, number as u8);
    for at in [0, LEN] {
        let read = file.read(memory, LEN, at)?;
        ensure!(read == LEN || at == LEN, read);
        let past = slice(memory, read);
        let cached = file.bytes(at, read)?;
        ensure!(past == cached, "the page cache has other bytes from {at}");
        for (number, sector) in past.chunks(SECTOR).enumerate() {
            // What the killed ones wrote is what they had read, if it is there.
            let is_right = is_sector(sector, number) || at == LEN && is_all(sector, 0);
            ensure!(is_right, "sector {number} from {at}");
        }
    }
    file.end()?;
    disk.end()
}

/// Threads that have sectors of the same pages go past the cache and through it, by calls and by
/// mappings, each against its own model.
fn model() -> Outcome {
    const LEN: usize = 96 * PAGE;
    const ROW: usize = 3 * SECTOR;
    let disk = Mounted::new()?;
    let file = Both::new(&disk, "model")?;
    file.cached.write_all_at(&vec![0; LEN], 0)?;
    let threads = (cpus() + 2).min(6);
    thread::scope(|scope| {
        let file = &file;
        let start = |thread| scope.spawn(move || rows::<LEN, ROW>(file, thread, threads));
        let running: Vec<_> = (0..threads).map(start).collect();
        let end = |it: thread::ScopedJoinHandle<'_, Outcome>| {
            it.join()
                .map_err(|_| Failure::from("a thread has panicked".to_string()))?
        };
        let ends: Vec<Outcome> = running.into_iter().map(end).collect();
        ends.into_iter().collect::<Outcome>()
    })?;
    file.end()?;
    disk.end()
}

/// The work of one thread of [`model`].
fn rows<const LEN: usize, const ROW: usize>(file: &Both, thread: usize, threads: usize) -> Outcome {
    let memory = map(2 * PAGE)?;
    let mut numbers = Numbers::new(thread as u64 + 1);
    let mut mine = vec![0u8; LEN];
    for _ in 0..300 {
        let row = numbers.below((LEN / ROW / threads) as u64) as usize * threads + thread;
        let first = numbers.below(3) as usize;
        let len = (1 + numbers.below(3 - first as u64) as usize) * SECTOR;
        let at = row * ROW + first * SECTOR;
        let byte = numbers.next() as u8;
        let place = memory.wrapping_add(numbers.below(8) as usize * SECTOR);
        match numbers.below(6) {
            0 | 1 => {
                set(place, len, byte);
                equal!(file.write(place, len, at)?, len);
                mine[at..at + len].fill(byte);
            }
            2 => {
                file.cached.write_all_at(&vec![byte; len], at as u64)?;
                mine[at..at + len].fill(byte);
            }
            3 | 4 => {
                equal!(file.read(place, len, at)?, len);
                ensure!(
                    slice(place, len) == &mine[at..at + len],
                    "past the cache at {at}"
                );
            }
            _ => ensure!(
                file.bytes(at, len)? == mine[at..at + len],
                "in the pages at {at}"
            ),
        }
    }
    let all = file.bytes(0, LEN)?;
    for row in (thread..LEN / ROW).step_by(threads) {
        let bytes = row * ROW..(row + 1) * ROW;
        ensure!(all[bytes.clone()] == mine[bytes], "row {row} in the end");
    }
    unmap(memory, 2 * PAGE)
}

fn device() -> Outcome {
    const NAME: &str = "/dev/md0";
    if !Path::new(NAME).exists() {
        return Err(skip(format!("there is no {NAME}")));
    }
    let cached = File::options().read(true).write(true).open(NAME)?;
    let direct = call!(open(c(NAME).as_ptr(), O_RDWR | O_DIRECT | O_CLOEXEC));
    let bytes = |at: usize, len: usize| {
        let mut bytes = vec![0; len];
        cached.read_exact_at(&mut bytes, at as u64)?;
        Ok(bytes)
    };
    transfer_vectors(direct, bytes, &cached)?;
    call!(fcntl(cached.as_raw_fd(), F_SETFL, O_DIRECT));
    let memory = map(PAGE)?;
    refused!(EINVAL, pread(cached.as_raw_fd(), memory.cast(), 100, 0));
    call!(fcntl(cached.as_raw_fd(), F_SETFL, 0));
    // SAFETY: all zeros is a valid one.
    let mut about: statx = unsafe { zeroed() };
    let mask = STATX_DIOALIGN;
    call!(statx(direct, c"".as_ptr(), AT_EMPTY_PATH, mask, &mut about));
    equal!(
        (about.stx_dio_mem_align, about.stx_dio_offset_align),
        (512, 512)
    );
    call!(close(direct));
    Ok(())
}
