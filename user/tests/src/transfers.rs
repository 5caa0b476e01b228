//! Programs that change, share and give up the memory that a disk reads or writes for them past the
//! page cache, and are killed meanwhile, while root drains and sets the page-table cache: the disk
//! reaches what it was given, no memory of others, and is not given up.

use crate::audit::nothing_is_wrong;
use crate::mounted::Mounted;
use support::prelude::*;

pub const TESTS: &[Test] = &[(
    "ext2: past the cache, memory that changes under the disk",
    changing,
)];

/// How long the attack goes on.
const TIME: Duration = Duration::from_secs(4);
/// The memory of a transfer, and bytes of the file.
const LEN: usize = 64 * PAGE;
/// What the file has everywhere, and no other memory has.
const MARK: u8 = 0xd5;

/// Pages of the memory: the first one, and how many.
fn some_pages(numbers: &mut Numbers) -> (usize, usize) {
    let first = numbers.below(64) as usize;
    (first, 1 + numbers.below(64 - first as u64) as usize)
}

/// Reads into the memory and writes from it, whatever becomes of it.
fn transfer(direct: c_int, memory: usize, seed: u64) -> Outcome {
    let mut numbers = Numbers::new(seed);
    loop {
        let (first, count) = some_pages(&mut numbers);
        let start = (memory + first * PAGE) as *mut u8;
        // Some of these fail, as others unmap the memory.
        // SAFETY: the memory is the attack's own.
        unsafe {
            match numbers.below(3) {
                0 => pwrite(direct, start.cast(), count * PAGE, 2 * LEN as off_t),
                _ => pread(direct, start.cast(), count * PAGE, 0),
            };
        }
    }
}

/// Does to the memory what programs can do, again and again.
fn change(memory: usize, pipe: [c_int; 2], shared: c_int, seed: u64) -> Outcome {
    let mut numbers = Numbers::new(seed);
    let anonymous = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    let other = map(LEN)?;
    loop {
        let (first, count) = some_pages(&mut numbers);
        let start = (memory + first * PAGE) as *mut c_void;
        let len = count * PAGE;
        // SAFETY: the memory is the attack's own, and holds no object of Rust's.
        unsafe {
            match numbers.below(12) {
                0 => drop(munmap(start, len)),
                1 => drop(madvise(start, len, MADV_DONTNEED)),
                2 => drop(madvise(start, len, MADV_FREE)),
                3 => drop(mprotect(start, len, PROT_READ)),
                4 => drop(write(pipe[1], start, len)),
                5 => drop(read(pipe[0], start, len)),
                6 => drop(mremap(
                    start,
                    len,
                    len,
                    MREMAP_MAYMOVE | MREMAP_FIXED,
                    other,
                )),
                7 => {
                    mmap(start, len, READ_WRITE, MAP_SHARED | MAP_FIXED, shared, 0);
                }
                8 => {
                    ftruncate(shared, PAGE as off_t);
                    ftruncate(shared, LEN as off_t);
                }
                9 => {
                    let child = fork();
                    if child == 0 {
                        _exit(0);
                    }
                    waitpid(child, null_mut(), 0);
                }
                10 => drop(madvise(start, len, MADV_PAGEOUT)),
                _ => {}
            }
            if numbers.below(2) == 0 {
                mmap(memory as *mut c_void, LEN, READ_WRITE, anonymous, -1, 0);
            }
        }
    }
}

/// A process whose threads transfer and change the same memory.
fn attack(direct: c_int, seed: u64) -> Outcome {
    let memory = map(LEN)? as usize;
    let mut ends = [0; 2];
    call!(pipe2(ends.as_mut_ptr(), O_NONBLOCK));
    let shared = call!(memfd_create(c"shared".as_ptr(), 0));
    call!(ftruncate(shared, LEN as off_t));
    thread::scope(|scope| {
        for n in 0..2 {
            scope.spawn(move || transfer(direct, memory, seed * 8 + n));
        }
        scope.spawn(move || change(memory, ends, shared, seed * 8 + 3));
        change(memory, ends, shared, seed * 8 + 4)
    })
}

/// Memory of others: fresh and old, all of it what its owner wrote.
fn watch(stop: &AtomicBool) -> Outcome {
    let kept = map(LEN)?;
    touch(kept, LEN, 0x11);
    while !stop.load(SeqCst) {
        let fresh = map(LEN)?;
        for (memory, expected) in [(fresh, 0), (kept, 0x11)] {
            for page in 0..64 {
                for at in [1, 2048, PAGE - 1] {
                    let found = peek(memory.wrapping_add(page * PAGE + at));
                    ensure!(found == 0, found, page, at);
                }
                equal!(peek(memory.wrapping_add(page * PAGE)), expected, page);
            }
        }
        touch(fresh, LEN, 0x22);
        unmap(fresh, LEN)?;
    }
    Ok(())
}

/// Sets the page-table cache, and looks at what devices reach.
fn set(stop: &AtomicBool) -> Outcome {
    let words = [
        "drain",
        "off",
        "drain",
        "on",
        "ratio=1 total=1",
        "drain",
        "adaptive",
    ];
    for word in words.iter().cycle() {
        fs::write("/proc/causeway/ptcache", word)?;
        read_text("/proc/causeway/iommu")?;
        if stop.load(SeqCst) {
            break;
        }
    }
    fs::write("/proc/causeway/ptcache", "adaptive")?;
    Ok(fs::write("/proc/causeway/ptcache", "on")?)
}

fn changing() -> Outcome {
    crate::proc::only_causeway()?;
    let disk = Mounted::new()?;
    let path = Mounted::path("changing");
    let cached = disk.file("changing")?;
    cached.write_all_at(&vec![MARK; 4 * LEN], 0)?;
    cached.sync_all()?;
    let flags = O_RDWR | O_DIRECT | O_CLOEXEC;
    let direct = call!(open(c(&path).as_ptr(), flags));
    let stop = shared_value(AtomicBool::new(false))?;
    let others = [
        spawn(|| watch(stop))?,
        spawn(|| watch(stop))?,
        spawn(|| set(stop))?,
    ];
    let end = Instant::now() + TIME;
    let mut numbers = Numbers::new(1);
    let mut attacks = || -> Outcome {
        let mut running = Vec::new();
        while Instant::now() < end {
            let seed = numbers.next() >> 8;
            running.push(spawn(move || attack(direct, seed))?);
            pause_ms(numbers.below(40));
            if running.len() > 2 {
                let victim = running.swap_remove(numbers.below(3) as usize);
                kill_child(victim)?;
                nothing_is_wrong()?;
            }
        }
        for left in running {
            kill_child(left)?;
        }
        Ok(())
    };
    let outcome = attacks();
    stop.store(true, SeqCst);
    wait_all(others)?;
    outcome?;
    let state = read_text("/proc/causeway/iommu")?;
    let fine = |line: &str| !line.starts_with("device") || line.ends_with("faults 0 blocked 0");
    ensure!(state.lines().all(fine), "{state}");
    // The disk goes on, and what was not written to is what it was.
    let memory = map(LEN)?;
    equal!(call!(pread(direct, memory.cast(), LEN, 0)) as usize, LEN);
    // SAFETY: the memory was just read into.
    let found = unsafe { std::slice::from_raw_parts(memory, LEN) };
    ensure!(
        found.iter().all(|&byte| byte == MARK),
        "the file has changed"
    );
    call!(close(direct));
    drop(cached);
    fs::remove_file(&path)?;
    disk.end()
}
