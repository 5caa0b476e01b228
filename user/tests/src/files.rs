//! Files: reading, writing, sizes, descriptors, devices.

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("files: a table that becomes a process's own", own_table),
    (
        "files: locks outlive the other threads of a program",
        locks_through_exec,
    ),
    ("files: large tables are copied whole", large_tables),
    ("files: a file against a model", model),
    ("files: holes", holes),
    ("files: flags of open", open_flags),
    ("files: seeking", seeking),
    ("files: descriptors are shared and copied", descriptors),
    ("files: append from several processes", append),
    ("files: sizes", sizes),
    ("files: a large file", large),
    ("files: permissions", permissions),
    ("files: times and modes", attributes),
    ("files: devices", devices),
    ("files: record locks", locks),
    ("files: sendfile", send_file),
    ("files: the lowest record lock is reported", lowest_record),
    (
        "files: two locks handed to and fro are no cycle",
        to_and_fro,
    ),
];

fn model() -> Outcome {
    let (path, open) = file("model", b"")?;
    let mut model: Vec<u8> = Vec::new();
    let mut numbers = Numbers::new(99);
    for step in 0..3000 {
        let at = numbers.below(60_000) as usize;
        let size = numbers.below(9000) as usize;
        match numbers.below(8) {
            0 => {
                call!(ftruncate(open, at as i64));
                model.resize(at, 0);
            }
            1..=3 => {
                let bytes = vec![step as u8; size];
                let count = call!(pwrite(open, bytes.as_ptr().cast(), size, at as i64)) as usize;
                ensure!(count == size, "a write of {size} gave {count}");
                if size != 0 {
                    model.resize(model.len().max(at + size), 0);
                    model[at..at + size].copy_from_slice(&bytes);
                }
            }
            _ => {
                let mut bytes = vec![0xeeu8; size];
                let count = call!(pread(open, bytes.as_mut_ptr().cast(), size, at as i64)) as usize;
                let expected = model.get(at..model.len().min(at + size)).unwrap_or(&[]);
                equal!(&bytes[..count], expected, step, size, at);
            }
        }
    }
    ensure!(fs::read(&path)? == model, "the whole file differs");
    Ok(fs::remove_file(&path)?)
}

fn holes() -> Outcome {
    let (_, open) = file("holes", b"")?;
    call!(pwrite(open, b"end".as_ptr().cast(), 3, 100 << 20));
    // SAFETY: all zeros is a valid stat to be overwritten.
    let mut stat: stat = unsafe { zeroed() };
    call!(fstat(open, &mut stat));
    equal!(stat.st_size, (100 << 20) + 3);
    ensure!(stat.st_blocks < 1000, stat.st_blocks);
    let mut bytes = [1u8; 100];
    call!(pread(open, bytes.as_mut_ptr().cast(), 100, 50 << 20));
    ensure!(bytes == [0; 100], "a hole is not zero");
    Ok(())
}

fn open_flags() -> Outcome {
    let folder = folder("flags")?;
    let path = c(&format!("{folder}/f"));
    refused!(ENOENT, open(path.as_ptr(), O_RDWR));
    let open = call!(open(path.as_ptr(), O_RDWR | O_CREAT | O_EXCL, 0o640));
    refused! { open(path.as_ptr(), O_RDWR | O_CREAT | O_EXCL, 0o640) => EEXIST; }
    call!(write(open, b"some text".as_ptr().cast(), 9));
    let reader = call!(open(path.as_ptr(), O_RDONLY));
    refused!(EBADF, write(reader, b"x".as_ptr().cast(), 1));
    let writer = call!(open(path.as_ptr(), O_WRONLY));
    let mut byte = 0u8;
    refused!(EBADF, read(writer, (&raw mut byte).cast(), 1));
    call!(open(path.as_ptr(), O_WRONLY | O_TRUNC));
    equal!(call!(read(reader, (&raw mut byte).cast(), 1)), 0);
    refused!(EISDIR, open(c(&folder).as_ptr(), O_WRONLY));
    refused!(ENOTDIR, open(path.as_ptr(), O_RDONLY | O_DIRECTORY));
    let link = c(&format!("{folder}/l"));
    call!(symlink(path.as_ptr(), link.as_ptr()));
    refused! {
        open(link.as_ptr(), O_RDONLY | O_NOFOLLOW) => ELOOP;
        read(call!(open(c(&folder).as_ptr(), O_RDONLY)), (&raw mut byte).cast(), 1) => EISDIR;
    }
    let there = call!(open(c(&folder).as_ptr(), O_PATH | O_DIRECTORY));
    let inside = call!(openat(there, c"f".as_ptr(), O_RDONLY));
    refused!(EBADF, openat(999, c"f".as_ptr(), O_RDONLY));
    refused!(ENOTDIR, openat(inside, c"f".as_ptr(), O_RDONLY));
    let flags = call!(fcntl(open, F_GETFL));
    equal!(flags & O_ACCMODE, O_RDWR, flags);
    call!(fcntl(open, F_SETFL, O_APPEND | O_NONBLOCK));
    let flags = call!(fcntl(open, F_GETFL));
    ensure!(flags & O_APPEND != 0 && flags & O_NONBLOCK != 0, flags);
    Ok(())
}

fn seeking() -> Outcome {
    let (_, open) = file("seek", b"0123456789")?;
    ensure!(call!(lseek(open, 4, SEEK_SET)) == 4, "SEEK_SET");
    ensure!(call!(lseek(open, -1, SEEK_CUR)) == 3, "SEEK_CUR");
    ensure!(call!(lseek(open, -2, SEEK_END)) == 8, "SEEK_END");
    let mut bytes = [0u8; 10];
    equal!(call!(read(open, bytes.as_mut_ptr().cast(), 10)), 2);
    equal!(call!(read(open, bytes.as_mut_ptr().cast(), 10)), 0);
    equal!(call!(lseek(open, 100, SEEK_SET)), 100);
    equal!(call!(read(open, bytes.as_mut_ptr().cast(), 10)), 0);
    refused!(EINVAL, lseek(open, -1, SEEK_SET));
    refused!(EINVAL, lseek(open, 0, 77));
    refused!(EINVAL, pread(open, bytes.as_mut_ptr().cast(), 1, -1));
    Ok(())
}

fn descriptors() -> Outcome {
    let (path, open) = file("descriptors", b"0123456789")?;
    let copy = call!(dup(open));
    let mut bytes = [0u8; 3];
    call!(read(open, bytes.as_mut_ptr().cast(), 3));
    call!(read(copy, bytes.as_mut_ptr().cast(), 3));
    ensure!(&bytes == b"345", "a copy has another position: {bytes:?}");
    child(|| {
        let mut bytes = [0u8; 2];
        call!(read(open, bytes.as_mut_ptr().cast(), 2));
        ensure!(&bytes == b"67", "a child has another position: {bytes:?}");
        Ok(())
    })?;
    equal!(call!(lseek(open, 0, SEEK_CUR)), 8);
    ensure!(call!(dup2(open, 77)) == 77, "dup2");
    equal!(call!(fcntl(open, F_DUPFD_CLOEXEC, 50)), 50);
    equal!(call!(fcntl(50, F_GETFD)), FD_CLOEXEC);
    refused!(EINVAL, dup3(open, open, 0));
    refused!(EBADF, dup(888));
    refused!(EBADF, dup2(open, 1 << 30));
    call!(close(copy));
    refused!(EBADF, close(copy));
    let again = call!(open(c(&path).as_ptr(), O_RDONLY));
    equal!(again, copy);
    Ok(())
}

fn append() -> Outcome {
    let (path, _) = file("append", b"")?;
    let children: Vec<_> = (0..4u8)
        .map(|number| {
            spawn(|| {
                let open = call!(open(c(&path).as_ptr(), O_WRONLY | O_APPEND));
                let line = [b'a' + number; 99];
                for _ in 0..200 {
                    call!(write(open, line.as_ptr().cast(), 99));
                }
                Ok(())
            })
        })
        .collect::<Result<_, _>>()?;
    for child in children {
        wait(child)?;
    }
    let bytes = fs::read(&path)?;
    ensure!(bytes.len() == 4 * 200 * 99, "{} bytes", bytes.len());
    for record in bytes.chunks(99) {
        ensure!(record.iter().all(|byte| *byte == record[0]));
    }
    Ok(())
}

fn sizes() -> Outcome {
    let (path, open) = file("sizes", &[7; 10_000])?;
    call!(ftruncate(open, 5000));
    call!(ftruncate(open, 9000));
    let bytes = fs::read(&path)?;
    ensure!(bytes[..5000].iter().all(|&b| b == 7), "the start was lost");
    ensure!(bytes[5000..].iter().all(|&b| b == 0));
    refused!(EINVAL, ftruncate(open, -1));
    refused!(EISDIR, truncate(c"/tmp".as_ptr(), 0));
    call!(ftruncate(open, 50_000));
    call!(setrlimit(RLIMIT_FSIZE, &limit_of(20_000)));
    // SAFETY: ignores the signal.
    unsafe { libc::signal(SIGXFSZ, SIG_IGN) };
    refused!(EFBIG, pwrite(open, b"x".as_ptr().cast(), 1, 20_000));
    // A file beyond the limit may shrink.
    call!(ftruncate(open, 40_000));
    refused!(EFBIG, ftruncate(open, 40_001));
    Ok(())
}

fn large() -> Outcome {
    let path = format!("{}/large", folder("large")?);
    let open = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)?;
    let mut block = vec![0u8; 1 << 20];
    for number in 0..32u8 {
        block
            .iter_mut()
            .enumerate()
            .for_each(|(at, byte)| *byte = number ^ (at >> 9) as u8);
        open.write_all_at(&block, u64::from(number) << 20)?;
    }
    for number in (0..32u8).rev() {
        let mut back = vec![0u8; 1 << 20];
        open.read_exact_at(&mut back, u64::from(number) << 20)?;
        let wrong = back
            .iter()
            .enumerate()
            .find(|&(at, &byte)| byte != number ^ (at >> 9) as u8);
        ensure!(wrong.is_none(), "block {number} differs at {wrong:?}");
    }
    Ok(fs::remove_file(&path)?)
}

fn permissions() -> Outcome {
    if call!(getuid()) != 0 {
        return Err(skip("needs root"));
    }
    let folder = folder("permissions")?;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
    let secret = format!("{folder}/secret");
    fs::write(&secret, "x")?;
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600))?;
    let open = format!("{folder}/open");
    fs::write(&open, "x")?;
    fs::set_permissions(&open, fs::Permissions::from_mode(0o644))?;
    let closed = format!("{folder}/closed");
    fs::create_dir(&closed)?;
    fs::write(format!("{closed}/f"), "x")?;
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700))?;
    child(|| {
        call!(setgid(1000));
        call!(setuid(1000));
        refused!(EACCES, open(c(&secret).as_ptr(), O_RDONLY));
        call!(open(c(&open).as_ptr(), O_RDONLY));
        refused!(EACCES, open(c(&open).as_ptr(), O_WRONLY));
        refused!(EACCES, open(c(&format!("{closed}/f")).as_ptr(), O_RDONLY));
        refused!(EACCES, unlink(c(&open).as_ptr()));
        refused!(EACCES, mkdir(c(&format!("{folder}/d")).as_ptr(), 0o700));
        refused!(EPERM, chmod(c(&open).as_ptr(), 0o777));
        refused!(EPERM, chown(c(&open).as_ptr(), 1000, 1000));
        refused!(EACCES, access(c(&secret).as_ptr(), R_OK));
        call!(access(c(&open).as_ptr(), R_OK));
        refused! { execve(c(&open).as_ptr(), [null()].as_ptr(), [null()].as_ptr()) => EACCES; }
        Ok(())
    })?;
    // A sticky folder: only the owner removes.
    child(|| {
        let theirs = format!("/tmp/theirs-{}", std::process::id());
        fs::write(&theirs, "x")?;
        child(|| {
            call!(setuid(1000));
            refused!(EPERM, unlink(c(&theirs).as_ptr()));
            Ok(())
        })?;
        Ok(fs::remove_file(&theirs)?)
    })?;
    // Root reads all, but runs only what someone may run.
    call!(open(c(&secret).as_ptr(), O_RDWR));
    refused!(EACCES, access(c(&secret).as_ptr(), X_OK));
    Ok(())
}

fn attributes() -> Outcome {
    let (path, open) = file("attributes", b"text")?;
    let before = fs::metadata(&path)?;
    ensure!(
        before.len() == 4 && before.nlink() == 1 && before.is_file(),
        "{before:?}"
    );
    call!(fchmod(open, 0o4751));
    equal!(fs::metadata(&path)?.mode() & 0o7777, 0o4751);
    let times = [time_spec(1_000_000, 5), time_spec(2_000_000, 7)];
    call!(futimens(open, times.as_ptr()));
    let now = fs::metadata(&path)?;
    ensure!(
        now.atime() == 1_000_000 && now.mtime() == 2_000_000,
        "{} {}",
        now.atime(),
        now.mtime()
    );
    ensure!(now.mtime_nsec() == 7, "{} ns", now.mtime_nsec());
    let omitted = time_spec(0, UTIME_OMIT);
    let times = [omitted; 2];
    // Nothing is to be changed: the path is not even resolved.
    call!(utimensat(-1, c"nowhere".as_ptr(), times.as_ptr(), 0));
    call!(write(open, b"more".as_ptr().cast(), 4));
    ensure!(fs::metadata(&path)?.mtime() > 1_600_000_000);
    call!(umask(0o077));
    let made = format!("{}/made", folder("attributes")?);
    fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o666)
        .open(&made)?;
    equal!(fs::metadata(&made)?.mode() & 0o777, 0o600);
    ensure!(fs::metadata(&made)?.ino() != now.ino());
    Ok(())
}

fn devices() -> Outcome {
    let mut bytes = [1u8; 64];
    let zero = File::open("/dev/zero")?;
    call!(read(zero.as_raw_fd(), bytes.as_mut_ptr().cast(), 64));
    ensure!(bytes == [0; 64], "/dev/zero gave {bytes:?}");
    let null = call!(open(c"/dev/null".as_ptr(), O_RDWR));
    equal!(call!(write(null, bytes.as_ptr().cast(), 64)), 64);
    equal!(call!(read(null, bytes.as_mut_ptr().cast(), 64)), 0);
    let full = call!(open(c"/dev/full".as_ptr(), O_RDWR));
    refused!(ENOSPC, write(full, bytes.as_ptr().cast(), 1));
    for name in ["/dev/random", "/dev/urandom"] {
        let mut other = [0u8; 64];
        let random = File::open(name)?;
        call!(read(random.as_raw_fd(), bytes.as_mut_ptr().cast(), 64));
        call!(read(random.as_raw_fd(), other.as_mut_ptr().cast(), 64));
        ensure!(bytes != other, "{name} repeats itself");
    }
    let count = call!(getrandom(bytes.as_mut_ptr().cast(), 64, 0));
    ensure!(count == 64, "getrandom gave {count}");
    let stat = fs::metadata("/dev/null")?;
    equal!(stat.rdev(), libc::makedev(1, 3));
    // A private map of /dev/zero is anonymous memory.
    let memory = map_with(PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, zero.as_raw_fd())?;
    poke(memory, 1);
    Ok(())
}

fn locks() -> Outcome {
    let (path, open) = file("locks", b"0123456789")?;
    // SAFETY: all zeros is a valid flock.
    let mut lock: flock = unsafe { zeroed() };
    lock.l_type = F_WRLCK as i16;
    lock.l_start = 2;
    lock.l_len = 3;
    call!(fcntl(open, F_SETLK, &lock));
    child(|| {
        let open = call!(open(c(&path).as_ptr(), O_RDWR));
        let mut other = lock;
        refused!(EAGAIN, fcntl(open, F_SETLK, &other));
        call!(fcntl(open, F_GETLK, &mut other));
        equal!(other.l_pid, call!(getppid()));
        other.l_start = 5;
        other.l_type = F_WRLCK as i16;
        call!(fcntl(open, F_SETLK, &other));
        Ok(())
    })
}

fn send_file() -> Outcome {
    let bytes: Vec<u8> = (0..20_000u32).map(|at| (at / 3) as u8).collect();
    let (_, from) = file("send", &bytes)?;
    let (reader, writer) = pipe(0)?;
    let mut offset = 100i64;
    let count = call!(sendfile(writer, from, &mut offset, 15_000));
    ensure!(count == 15_000 && offset == 15_100, count, offset);
    let mut back = vec![0u8; 15_000];
    let mut at = 0;
    while at < back.len() {
        at += call!(read(
            reader,
            back[at..].as_mut_ptr().cast(),
            back.len() - at
        )) as usize;
    }
    ensure!(back == bytes[100..15_100], "the bytes changed");
    Ok(())
}

/// A lock, or with `F_UNLCK` the end of one, of the byte at `start`.
fn lock_of(kind: c_int, start: off_t) -> flock {
    // SAFETY: all zeros is a valid value.
    let mut lock: flock = unsafe { zeroed() };
    (lock.l_type, lock.l_start, lock.l_len) = (kind as c_short, start, 1);
    lock
}

fn lowest_record() -> Outcome {
    let (_, file) = file("lowest", b"")?;
    for start in [50, 10, 30] {
        call!(fcntl(file, F_SETLK, &lock_of(F_WRLCK, start)));
    }
    child(|| {
        let mut lock = lock_of(F_WRLCK, 0);
        lock.l_len = 0;
        call!(fcntl(file, F_GETLK, &mut lock));
        equal!(lock.l_start, 10);
        equal!(lock.l_type, F_WRLCK as c_short);
        Ok(())
    })
}

/// One process waits for a lock that it is handed while it holds another; the one that hands it
/// over holds nothing when it waits for that other lock. So there never is a cycle.
fn to_and_fro() -> Outcome {
    let (_, file) = file("to-and-fro", b"")?;
    let set = |kind, start| -> Outcome {
        call!(fcntl(file, F_SETLKW, &lock_of(kind, start)));
        Ok(())
    };
    let other = spawn(|| {
        for _ in 0..1000 {
            set(F_WRLCK, 1)?;
            set(F_WRLCK, 0)?;
            set(F_UNLCK, 0)?;
            set(F_UNLCK, 1)?;
        }
        Ok(())
    })?;
    for _ in 0..1000 {
        set(F_WRLCK, 0)?;
        thread::yield_now();
        thread::yield_now();
        set(F_UNLCK, 0)?;
        set(F_WRLCK, 1)?;
        set(F_UNLCK, 1)?;
    }
    wait_all([other])
}

fn own_table() -> Outcome {
    let (path, open) = file("own_table", b"")?;
    let (reader, writer) = pipe(O_CLOEXEC | O_NONBLOCK)?;
    let is_locked = || {
        child(|| {
            let open = call!(open(c(&path).as_ptr(), O_RDWR));
            refused!(EAGAIN, fcntl(open, F_SETLK, &lock_of(F_WRLCK, 0)));
            Ok(())
        })
    };
    child(|| {
        call!(fcntl(open, F_SETLK, &lock_of(F_WRLCK, 0)));
        call!(unshare(CLONE_FILES));
        is_locked()
    })?;
    child(|| {
        call!(fcntl(open, F_SETLK, &lock_of(F_WRLCK, 0)));
        let fd = writer as c_uint;
        call!(syscall(libc::SYS_close_range, fd, fd, CLOSE_RANGE_UNSHARE));
        // The test's own end is open.
        is_locked()
    })?;
    // The last writer is closed by the call, not later.
    let fd = writer as c_uint;
    call!(syscall(libc::SYS_close_range, fd, fd, CLOSE_RANGE_UNSHARE));
    let mut byte = 0u8;
    equal!(call!(read(reader, (&raw mut byte).cast(), 1)), 0);
    call!(close(reader));
    call!(close(open));
    Ok(())
}

fn locks_through_exec() -> Outcome {
    let (_, open) = file("through_exec", b"")?;
    let locker = spawn(|| {
        call!(fcntl(open, F_SETLK, &lock_of(F_WRLCK, 0)));
        thread::spawn(|| pause_ms(60_000));
        pause_ms(20);
        let words = [c("/bin/sleep"), c("60")];
        let words = [words[0].as_ptr(), words[1].as_ptr(), null()];
        call!(execv(words[0], words.as_ptr()));
        Ok(())
    })?;
    let name = format!("/proc/{locker}/comm");
    while read_text(&name)?.trim() != "sleep" {
        pause_ms(5);
    }
    let mut asked = lock_of(F_WRLCK, 0);
    call!(fcntl(open, F_GETLK, &mut asked));
    equal!(asked.l_type, F_WRLCK as c_short);
    equal!(asked.l_pid, locker);
    kill_child(locker)?;
    call!(close(open));
    Ok(())
}

/// A child's table is as its parent's was at one time, while other threads change that.
fn large_tables() -> Outcome {
    const COUNT: c_int = 20_000;
    const LOW: c_int = 50;
    const HIGH: c_int = COUNT + 50;
    child(|| {
        let limit = rlimit {
            rlim_cur: 30_000,
            rlim_max: 30_000,
        };
        call!(setrlimit(RLIMIT_NOFILE, &limit));
        let file = call!(eventfd(0, 0));
        for fd in 100..COUNT {
            call!(dup2(file, fd));
        }
        let over = AtomicBool::new(false);
        let is_open = |fd| {
            // SAFETY: a question about a number.
            unsafe { fcntl(fd, F_GETFD) >= 0 }
        };
        thread::scope(|scope| {
            // The file of one of two descriptors moves between them.
            // SAFETY: numbers.
            unsafe { dup2(file, LOW) };
            scope.spawn(|| {
                while !over.load(SeqCst) {
                    for (from, to) in [(LOW, HIGH), (HIGH, LOW)] {
                        // SAFETY: numbers.
                        unsafe {
                            dup2(from, to);
                            libc::close(from);
                        }
                    }
                }
            });
            scope.spawn(|| {
                while !over.load(SeqCst) {
                    // Marks and descriptors that change beside.
                    // SAFETY: numbers.
                    unsafe {
                        libc::close(dup2(file, COUNT + 60));
                        fcntl(file, F_SETFD, FD_CLOEXEC);
                    }
                }
            });
            let outcome = (0..20).try_for_each(|_| {
                child(|| {
                    ensure!((100..COUNT).all(is_open), "not all are there");
                    ensure!(is_open(LOW) || is_open(HIGH), "it is in neither place");
                    Ok(())
                })
            });
            over.store(true, SeqCst);
            outcome
        })
    })
}
