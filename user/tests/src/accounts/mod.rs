//! `/proc` and `/sys`: a process's memory, its statistics, the settings that root may change.

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("accounts: a process's memory as a file", memory),
    ("accounts: which pages are there", pages),
    ("accounts: sums over the mappings", rollup),
    ("accounts: pages freed at leisure", leisure),
    ("accounts: bytes that calls moved", transfers),
    ("accounts: out of memory, login, slack", judged),
    ("accounts: children and name spaces", family),
    ("accounts: what others may not see", secrets),
    ("accounts: settings act", settings),
    ("accounts: locks are listed", locks),
    ("accounts: the machine's figures", machine),
    ("accounts: processors in sysfs", processors),
    ("accounts: the log by syslog", log),
    ("accounts: a reader that the log overtakes", overtaken),
    ("accounts: what a process makes is charged", charged),
    ("accounts: a charge stays with the user", charged_user),
    (
        "accounts: tables, terminals and filters are charged",
        charged_objects,
    ),
    (
        "accounts: first open files and flock locks are charged",
        charged_files,
    ),
    (
        "accounts: calls that wait for many are charged",
        charged_waits,
    ),
    ("accounts: a user's pipes are limited", pipe_limits),
    ("accounts: a user's segments are limited", segment_limit),
];

fn memory() -> Outcome {
    let area = map(2 * PAGE)?;
    for (i, byte) in b"hello".iter().enumerate() {
        poke(area.wrapping_add(PAGE - 2 + i), *byte);
    }
    let other = spawn_sleeper()?;
    let mut open = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(format!("/proc/{other}/mem"))?;
    let at = area as u64 + PAGE as u64 - 2;
    let mut bytes = [0; 5];
    open.seek(SeekFrom::Start(at))?;
    open.read_exact(&mut bytes)?;
    ensure!(&bytes == b"hello", "the child has {bytes:?}");
    open.seek(SeekFrom::Start(at))?;
    open.write_all(b"HELLO")?;
    open.seek(SeekFrom::Start(at))?;
    open.read_exact(&mut bytes)?;
    ensure!(&bytes == b"HELLO", "after writing, it has {bytes:?}");
    equal!(peek(area.wrapping_add(PAGE - 2)), b'h');
    open.seek(SeekFrom::Start(16))?;
    let error = open.read(&mut bytes).err().and_then(|e| e.raw_os_error());
    ensure!(error == Some(EIO), "nothing mapped gives {error:?}");
    kill_child(other)?;
    open.seek(SeekFrom::Start(at))?;
    let left = open.read(&mut bytes)?;
    ensure!(left == 0, "a dead process gives {left} bytes");
    Ok(())
}

fn pages() -> Outcome {
    let area = map(3 * PAGE)?;
    poke(area.wrapping_add(PAGE), 1);
    let mut open = File::open("/proc/self/pagemap")?;
    open.seek(SeekFrom::Start(area as u64 / PAGE as u64 * 8))?;
    let mut words = [0; 24];
    open.read_exact(&mut words)?;
    let present: Vec<bool> = words.chunks(8).map(|word| word[7] & 0x80 != 0).collect();
    equal!(present, [false, true, false]);
    let mut odd = [0; 7];
    let error = open.read(&mut odd).err().and_then(|e| e.raw_os_error());
    ensure!(error == Some(EINVAL), "7 bytes give {error:?}");
    Ok(())
}

fn rollup() -> Outcome {
    let before = read_text("/proc/self/smaps_rollup")?;
    let area = map(200 * PAGE)?;
    (0..200).for_each(|page| poke(area.wrapping_add(page * PAGE), 1));
    let after = read_text("/proc/self/smaps_rollup")?;
    ensure!(after.contains("[rollup]"), "rollup: {after}");
    for name in ["Rss", "Pss", "Private_Dirty", "Anonymous"] {
        let (old, new) = (field_of(&before, name)?, field_of(&after, name)?);
        ensure!(new >= old + 780, "{name} went from {old} to {new} kB");
    }
    // Pages shared with a child count half for each.
    let (reader, writer) = pipe(0)?;
    let other = spawn(|| {
        let sum: u32 = (0..200)
            .map(|page| u32::from(peek(area.wrapping_add(page * PAGE))))
            .sum();
        call!(write(writer, (&raw const sum).cast(), 1));
        loop {
            pause_ms(1000);
        }
    })?;
    read_bytes(&reader, 1)?;
    let shared = read_text("/proc/self/smaps_rollup")?;
    kill_child(other)?;
    let (pss, rss) = (field_of(&shared, "Pss")?, field_of(&shared, "Rss")?);
    ensure!(pss + 380 < rss, rss, pss);
    let all = read_text("/proc/self/smaps")?;
    let sum: u64 = all
        .lines()
        .filter_map(|line| line.strip_prefix("Rss:"))
        .filter_map(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
        .sum();
    let rolled = field_of(&read_text("/proc/self/smaps_rollup")?, "Rss")?;
    ensure!(rolled.abs_diff(sum) < 400, sum, rolled);
    Ok(())
}

fn leisure() -> Outcome {
    let count = || field_of(&read_text("/proc/self/smaps_rollup")?, "LazyFree");
    let kib = PAGE as u64 / 1024;
    let area = map(40 * PAGE)?;
    (0..40).for_each(|page| poke(area.wrapping_add(page * PAGE), 1));
    ensure!(count()? == 0, "{} kB before any was freed", count()?);
    call!(madvise(area.cast(), 30 * PAGE, MADV_FREE));
    // Nothing is reclaimed: the machine is not short of memory.
    ensure!(count()? == 30 * kib, "{} kB of 30 pages", count()?);
    // Written pages are kept; discarded ones are gone.
    poke(area.wrapping_add(3 * PAGE), 2);
    call!(madvise(
        area.wrapping_add(20 * PAGE).cast(),
        20 * PAGE,
        MADV_DONTNEED
    ));
    ensure!(count()? == 19 * kib, "{} kB of 19 pages", count()?);
    call!(munmap(area.cast(), 40 * PAGE));
    ensure!(count()? == 0, "{} kB that are unmapped", count()?);
    Ok(())
}

fn transfers() -> Outcome {
    let (_, open) = file("transfers", &[7; 10_000])?;
    let mut buffer = [0u8; 10_000];
    let before = read_text("/proc/self/io")?;
    call!(pread(open, buffer.as_mut_ptr().cast(), 10_000, 0));
    call!(pwrite(open, buffer.as_ptr().cast(), 3_000, 0));
    let after = read_text("/proc/self/io")?;
    let gained = |name| Ok::<_, Failure>(field_of(&after, name)? - field_of(&before, name)?);
    let (read, written) = (gained("rchar")?, gained("wchar")?);
    let (reads, writes) = (gained("syscr")?, gained("syscw")?);
    // Reading `io` counts as well.
    ensure!(
        (10_000..11_000).contains(&read) && written == 3_000,
        "10,000 and 3,000 bytes show as {read} and {written}"
    );
    ensure!((2..10).contains(&reads) && writes == 1, reads, writes);
    Ok(())
}

fn judged() -> Outcome {
    child(|| {
        let write = |path: &str, value: &str| fs::write(path, value).map_err(|e| e.raw_os_error());
        let adjustment = "/proc/self/oom_score_adj";
        write(adjustment, "300").map_err(|e| format!("{e:?}"))?;
        ensure!(read_text(adjustment)? == "300\n", "300 was written");
        let score: i64 = read_text("/proc/self/oom_score")?
            .trim()
            .parse()
            .unwrap_or(-1);
        ensure!((800..1000).contains(&score), "the score is {score}");
        equal!(write(adjustment, "1001"), Err(Some(EINVAL)));
        child(|| {
            ensure!(
                read_text(adjustment)? == "300\n",
                "a child does not inherit it"
            );
            call!(setuid(1000));
            Ok(())
        })?;
        call!(prctl(PR_SET_TIMERSLACK, 12_345));
        let slack = read_text("/proc/self/timerslack_ns")?;
        ensure!(slack == "12345\n", "the slack is {slack}");
        write("/proc/self/timerslack_ns", "0").map_err(|e| format!("{e:?}"))?;
        let slack = call!(prctl(PR_GET_TIMERSLACK));
        ensure!(slack == 50_000, "the usual slack is {slack}");
        Ok(())
    })?;
    let login = read_text("/proc/self/loginuid")?;
    ensure!(login.parse::<u32>().is_ok(), "loginuid is {login:?}");
    Ok(())
}

fn family() -> Outcome {
    let me = call!(getpid());
    let other = spawn_sleeper()?;
    let children = read_text(&format!("/proc/{me}/task/{me}/children"))?;
    kill_child(other)?;
    ensure!(
        children.split(' ').any(|word| word == other.to_string()),
        "{other} is not among {children:?}"
    );
    for kind in ["mnt", "net", "pid", "user", "uts"] {
        let link = fs::read_link(format!("/proc/self/ns/{kind}"))?;
        let link = link.to_string_lossy().into_owned();
        ensure!(link.starts_with(&format!("{kind}:[")), "{kind} is {link}");
    }
    let groups = read_text("/proc/self/cgroup")?;
    ensure!(groups.lines().all(|line| line.contains(":/")), groups);
    let map = read_text("/proc/self/uid_map")?;
    ensure!(map.split_whitespace().count() == 3, "uid_map is {map:?}");
    Ok(())
}

fn secrets() -> Outcome {
    let other = spawn_sleeper()?;
    let result = child(|| {
        call!(setuid(1000));
        for name in ["mem", "io", "environ", "pagemap", "auxv"] {
            let path = c(&format!("/proc/{other}/{name}"));
            refused!(EACCES, open(path.as_ptr(), O_RDONLY));
        }
        for name in ["maps", "smaps", "smaps_rollup"] {
            let found = fs::read(format!("/proc/{other}/{name}"));
            ensure!(found.is_err(), "{name} of another user can be read");
        }
        Ok(())
    });
    kill_child(other)?;
    result?;
    // A process that is not dumpable is closed to its own user.
    child(|| {
        call!(setuid(1000));
        let (reader, writer) = pipe(0)?;
        let closed = spawn(|| {
            call!(prctl(PR_SET_DUMPABLE, 0));
            call!(write(writer, [0u8].as_ptr().cast(), 1));
            loop {
                pause_ms(1000);
            }
        })?;
        read_bytes(&reader, 1)?;
        let found = fs::read(format!("/proc/{closed}/maps"));
        kill_child(closed)?;
        ensure!(found.is_err(), "what is not dumpable can be looked into");
        Ok(())
    })
}

fn settings() -> Outcome {
    let write = |path: &str, value: &str| {
        fs::write(format!("/proc/sys/{path}"), value).map_err(|e| e.raw_os_error())
    };
    let old = read_text("/proc/sys/kernel/hostname")?;
    write("kernel/hostname", "elsewhere\n").map_err(|e| format!("{e:?}"))?;
    let mut name = [0u8; 64];
    call!(gethostname(name.as_mut_ptr().cast(), 64));
    write("kernel/hostname", &old).map_err(|e| format!("{e:?}"))?;
    ensure!(
        name.starts_with(b"elsewhere\0"),
        "the name is {}",
        String::from_utf8_lossy(&name)
    );
    // A map may have that many entries and no more.
    let most = read_text("/proc/sys/vm/max_map_count")?;
    write("vm/max_map_count", "60").map_err(|e| format!("{e:?}"))?;
    let result = child(|| {
        for page in 0..100 {
            let prot = match page % 2 {
                0 => PROT_READ,
                _ => PROT_NONE,
            };
            if map_with(PAGE, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1).is_err() {
                return Ok(());
            }
        }
        Err("100 mappings where 60 are allowed".into())
    });
    write("vm/max_map_count", most.trim()).map_err(|e| format!("{e:?}"))?;
    result?;
    write("fs/pipe-max-size", "65536").map_err(|e| format!("{e:?}"))?;
    let result = child(|| {
        let (reader, _) = pipe(0)?;
        call!(setuid(1000));
        refused!(EPERM, fcntl(reader, F_SETPIPE_SZ, 1 << 20));
        Ok(())
    });
    write("fs/pipe-max-size", "1048576").map_err(|e| format!("{e:?}"))?;
    result?;
    equal!(write("kernel/pid_max", "5"), Err(Some(EINVAL)));
    child(|| {
        call!(setuid(1000));
        equal!(write("kernel/hostname", "mine"), Err(Some(EACCES)));
        Ok(())
    })
}

fn locks() -> Outcome {
    let (path, open) = file("locks", b"0123456789")?;
    call!(flock(open, LOCK_EX));
    // SAFETY: a structure of numbers.
    let mut lock: flock = unsafe { zeroed() };
    lock.l_type = F_RDLCK as i16;
    lock.l_start = 2;
    lock.l_len = 3;
    call!(fcntl(open, F_SETLK, &raw const lock));
    let inode = std::os::unix::fs::MetadataExt::ino(&fs::metadata(path)?);
    let all = read_text("/proc/locks")?;
    let me = call!(getpid());
    let find = |kind: &str, mode: &str, range: &str| {
        all.lines().any(|line| {
            line.contains(kind)
                && line.contains(&format!("{mode} {me} "))
                && line.ends_with(&format!(":{inode} {range}"))
        })
    };
    ensure!(find("FLOCK ", "WRITE", "0 EOF"), "no flock in\n{all}");
    ensure!(find("POSIX ", "READ", "2 4"), "no record lock in\n{all}");
    Ok(())
}

fn machine() -> Outcome {
    let total = || -> Result<u64> {
        let all = read_text("/proc/stat")?;
        let line = all.lines().find_map(|line| line.strip_prefix("intr "));
        line.and_then(|rest| rest.split(' ').next()?.parse().ok())
            .ok_or_else(|| "no interrupts in stat".into())
    };
    let before = total()?;
    pause_ms(30);
    ensure!(total()? > before, "no interrupt in 30 ms");
    let table = read_text("/proc/interrupts")?;
    let cpus = cpus();
    ensure!(
        table
            .lines()
            .next()
            .unwrap_or("")
            .split_whitespace()
            .count()
            == cpus,
        "the head of interrupts:\n{table}"
    );
    let forks = || -> Result<u64> {
        let all = read_text("/proc/stat")?;
        let line = all.lines().find_map(|line| line.strip_prefix("processes "));
        line.and_then(|rest| rest.parse().ok())
            .ok_or_else(|| "no processes in stat".into())
    };
    let before = forks()?;
    wait(spawn(|| exit(0))?)?;
    ensure!(forks()? > before, "a fork is not counted");
    Ok(())
}

fn processors() -> Outcome {
    // SAFETY: returns a number.
    let cpus = unsafe { libc::sysconf(_SC_NPROCESSORS_CONF) } as usize;
    let base = "/sys/devices/system/cpu";
    let list = match cpus {
        1 => "0\n".to_string(),
        _ => format!("0-{}\n", cpus - 1),
    };
    for name in ["online", "possible", "present"] {
        let found = read_text(&format!("{base}/{name}"))?;
        ensure!(found == list, "{name}: {found:?}, not {list:?}");
    }
    let last = format!("{base}/cpu{}", cpus - 1);
    let core = read_text(&format!("{last}/topology/core_id"))?;
    ensure!(core == format!("{}\n", cpus - 1), "the core is {core}");
    ensure!(!fs::exists(format!("{base}/cpu{cpus}")).unwrap_or(true));
    let line = read_text(&format!("{last}/cache/index0/coherency_line_size"))?;
    ensure!(line == "64\n", "a line has {line} bytes");
    let node = fs::canonicalize(format!("{last}/node0/cpu0"))?;
    ensure!(
        node.as_os_str() == format!("{base}/cpu0").as_str(),
        "the node's CPU is {}",
        node.display()
    );
    let size = fs::metadata(format!("{base}/online"))?.len();
    ensure!(size == 4096, "a file's size is {size}");
    let index = read_text("/sys/class/net/lo/ifindex")?;
    ensure!(index == "1\n", "lo is {index}");
    Ok(())
}

fn log() -> Outcome {
    let log = |action: i32, buffer: &mut [u8]| {
        let (at, len) = (buffer.as_mut_ptr(), buffer.len());
        // SAFETY: the buffer is that long.
        unsafe { libc::syscall(libc::SYS_syslog, action, at, len) }
    };
    let size = log(10, &mut []);
    ensure!(size > 4096, "the log's size is {size}");
    let mut buffer = vec![0; size as usize];
    fs::write("/dev/kmsg", "a line for the log's test\n")?;
    let n = log(3, &mut buffer);
    let all = String::from_utf8_lossy(&buffer[..n.max(0) as usize]).into_owned();
    let last = all.lines().last().unwrap_or("");
    ensure!(
        last.starts_with('<') && last.contains("a line for the log's test"),
        "the last line is {last:?}"
    );
    ensure!(all.lines().all(|line| line.starts_with('<')));
    // A smaller buffer gets the log's end.
    let n = log(3, &mut buffer[..200]);
    ensure!((1..=200).contains(&n), "200 bytes get {n}");
    ensure!(buffer[..n as usize].ends_with(b"\n") && buffer[0] == b'<');
    let n = log(11, &mut []);
    ensure!(n == -1 && errno() == EINVAL, n);
    child(|| {
        call!(setuid(1000));
        refused!(EPERM, syscall(libc::SYS_syslog, 5, 0, 0));
        // `dmesg_restrict`: reading it is root's as well.
        refused!(
            EPERM,
            syscall(libc::SYS_syslog, 3, buffer.as_mut_ptr(), 200)
        );
        refused!(EPERM, syscall(libc::SYS_syslog, 10, 0, 0));
        refused!(EPERM, open(c"/dev/kmsg".as_ptr(), O_RDONLY));
        Ok(())
    })?;
    let setting = "/proc/sys/kernel/dmesg_restrict";
    equal!(read_text(setting)?, "1\n");
    fs::write(setting, "0")?;
    let outcome = child(|| {
        call!(setuid(1000));
        call!(syscall(libc::SYS_syslog, 3, buffer.as_mut_ptr(), 200));
        call!(open(c"/dev/kmsg".as_ptr(), O_RDONLY));
        Ok(())
    });
    fs::write(setting, "1")?;
    outcome
}

/// A reader of `/dev/kmsg` that falls behind is told, and goes on with the oldest line left.
fn overtaken() -> Outcome {
    let log = call!(open(c"/dev/kmsg".as_ptr(), O_RDONLY | O_NONBLOCK));
    let first = read_bytes(&log, 8192)?;
    ensure!(first.ends_with(b"\n"), first);
    let line = format!("{}\n", "x".repeat(400));
    for _ in 0..200 {
        fs::write("/dev/kmsg", &line)?;
    }
    let mut bytes = [0u8; 8192];
    refused!(EPIPE, read(log, bytes.as_mut_ptr().cast(), bytes.len()));
    let next = String::from_utf8_lossy(&read_bytes(&log, 8192)?).into_owned();
    ensure!(next.contains(";x") && next.ends_with("x\n"), next);
    Ok(())
}

/// The KiB that this process is charged with.
fn charged_here() -> Result<u64> {
    field("/proc/self/status", "VmCharged")
}

/// The KiB that a user is charged with for things of a kind.
fn charged_to(user: u32, kind: &str) -> Result<u64> {
    let name = format!("{user} {kind} ");
    let text = read_text("/proc/causeway/accounts")?;
    let line = text.lines().find_map(|line| line.strip_prefix(&name));
    let kib = line.and_then(|line| line.split(' ').nth(1)?.parse().ok());
    Ok(kib.unwrap_or(0))
}

/// Charges come with data and go with it.
fn charged() -> Outcome {
    let bytes = [1_u8; 16 * PAGE];
    let before = charged_here()?;
    let (from, to) = pipe(O_NONBLOCK)?;
    let with_pipe = charged_here()?;
    call!(write(to, bytes.as_ptr().cast(), bytes.len()));
    let full = charged_here()?;
    ensure!(full >= with_pipe + 64, "{before}, {with_pipe}, {full} KiB");
    call!(close(from));
    call!(close(to));
    equal!(charged_here()?, before);

    let [a, b] = socket_pair(SOCK_STREAM)?;
    call!(write(a.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()));
    ensure!(charged_here()? >= before + 64, charged_here()?);
    drop((a, b));
    equal!(charged_here()?, before);

    let memory = call!(memfd_create(c"charged".as_ptr(), 0));
    call!(ftruncate(memory, 1 << 20));
    call!(pwrite(memory, bytes.as_ptr().cast(), bytes.len(), 0));
    ensure!(charged_here()? >= before + 64, charged_here()?);
    call!(close(memory));
    equal!(charged_here()?, before);
    equal!(field("/proc/causeway/accounts", "unbalanced")?, 0);
    Ok(())
}

/// A table of descriptors is its process's, a terminal its opener's, a filter its author's.
fn charged_objects() -> Outcome {
    let before = charged_here()?;
    let master = call!(posix_openpt(O_RDWR | O_NOCTTY));
    ensure!(charged_here()? >= before + 32, charged_here()?);
    call!(close(master));
    equal!(charged_here()?, before);

    child(|| {
        let before = charged_here()?;
        call!(setrlimit(RLIMIT_NOFILE, &limit_of(4096)));
        call!(dup2(0, 4000));
        let with_table = charged_here()?;
        ensure!(with_table >= before + 32, before, with_table);
        child(|| {
            // The copy of the table is charged to the child.
            ensure!(charged_here()? >= with_table - 1, charged_here()?);
            Ok(())
        })?;
        equal!(charged_here()?, with_table);
        Ok(())
    })?;

    child(|| {
        let before = charged_here()?;
        call!(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
        let mut steps = [sock_filter {
            code: (BPF_RET | BPF_K) as u16,
            jt: 0,
            jf: 0,
            k: SECCOMP_RET_ALLOW,
        }; 4096];
        let program = sock_fprog {
            len: 4096,
            filter: steps.as_mut_ptr(),
        };
        let how = SECCOMP_SET_MODE_FILTER;
        call!(syscall(SYS_seccomp, how, 0, &program));
        ensure!(charged_here()? >= before + 32, before, charged_here()?);
        Ok(())
    })?;

    for keep in [text, answers, events, undo] {
        child(|| {
            let before = charged_here()?;
            let freed = keep()?;
            ensure!(charged_here()? >= before + 32, before, charged_here()?);
            freed()?;
            // Their tables may have grown.
            ensure!(charged_here()? <= before + 4, before, charged_here()?);
            Ok(())
        })?;
    }
    equal!(field("/proc/causeway/accounts", "unbalanced")?, 0);
    Ok(())
}

/// A process's first open files are charged, in steps, to each that has them; the locks of whole
/// files one by one.
fn charged_files() -> Outcome {
    const FILES: u64 = 60;
    child(|| {
        let before = charged_here()?;
        let (path, first) = file("charged", b"")?;
        let path = c(&path);
        let mut files = vec![first];
        for _ in 1..FILES {
            files.push(call!(open(path.as_ptr(), O_RDWR)));
        }
        let with_files = charged_here()?;
        // Those of the first step are charged with the start of a process.
        ensure!(with_files >= before + 44, before, with_files);
        child(|| {
            ensure!(charged_here()? + 4 >= with_files, charged_here()?);
            Ok(())
        })?;
        for open in &files {
            call!(flock(*open, LOCK_SH));
        }
        let with_locks = charged_here()?;
        ensure!(
            with_locks >= with_files + FILES / 2 - 1,
            with_files,
            with_locks
        );
        call!(flock(files[0], LOCK_UN));
        call!(close(files[1]));
        ensure!(charged_here()? < with_locks, with_locks, charged_here()?);
        for open in &files[2..] {
            call!(flock(*open, LOCK_UN));
        }
        equal!(charged_here()?, with_files);
        Ok(())
    })?;
    equal!(field("/proc/causeway/accounts", "unbalanced")?, 0);
    Ok(())
}

/// Frees what was kept.
type Free = Box<dyn FnOnce() -> Outcome>;

fn close_later(fd: c_int) -> Result<Free> {
    Ok(Box::new(move || {
        call!(close(fd));
        Ok(())
    }))
}

/// A call that waits for many files or words is charged as long as it sleeps.
fn charged_waits() -> Outcome {
    static WORD: AtomicU32 = AtomicU32::new(0);
    let waits = || charged_to(0, "waits");
    let event = call!(eventfd(0, 0));
    let before = waits()?;
    let polled = thread::spawn(move || {
        let mut all = vec![poll_entry(event, POLLIN); 500];
        call!(poll(all.as_mut_ptr(), 500, -1));
        Ok::<(), Failure>(())
    });
    pause_ms(100);
    let with_poll = waits()?;
    ensure!(with_poll >= before + 32, before, with_poll);
    let waited = thread::spawn(|| {
        let words = [[0, WORD.as_ptr() as u64, 2_u64]; 128];
        let list = words.as_ptr();
        call!(syscall(SYS_futex_waitv, list, 128, 0, null::<u8>(), 0));
        Ok::<(), Failure>(())
    });
    pause_ms(100);
    ensure!(waits()? >= with_poll + 16, with_poll, waits()?);
    call!(write(event, 1_u64.to_ne_bytes().as_ptr().cast(), 8));
    while futex(&WORD, FUTEX_WAKE, 1, None) == 0 {
        pause_ms(1);
    }
    polled.join()??;
    waited.join()??;
    equal!(waits()?, before);
    call!(close(event));
    Ok(())
}

/// Keeps the long text of a file.
fn text() -> Result<Free> {
    const PAGES: usize = 400;
    let memory = map(PAGES * PAGE)?;
    for page in (0..PAGES).step_by(2) {
        call!(mprotect(
            memory.wrapping_add(page * PAGE).cast(),
            PAGE,
            PROT_READ
        ));
    }
    let file = call!(open(c"/proc/self/smaps".as_ptr(), O_RDONLY));
    read_bytes(&file, 1)?;
    unmap(memory, PAGES * PAGE)?;
    close_later(file)
}

/// Keeps answers of the kernel's in a socket.
fn answers() -> Result<Free> {
    let socket = call!(socket(AF_NETLINK, SOCK_RAW, 0));
    let mut question = [0_u8; 32];
    question[0] = 32;
    question[4..6].copy_from_slice(&RTM_GETLINK.to_le_bytes());
    question[6..8].copy_from_slice(&((NLM_F_REQUEST | NLM_F_DUMP) as u16).to_le_bytes());
    for _ in 0..300 {
        // SAFETY: sends from a buffer that is this long; it may be refused.
        unsafe { send(socket, question.as_ptr().cast(), 32, MSG_DONTWAIT) };
    }
    close_later(socket)
}

/// Keeps events of a folder.
fn events() -> Result<Free> {
    let folder = "/tmp/charged";
    fs::create_dir_all(folder)?;
    let inotify = call!(inotify_init1(0));
    call!(inotify_add_watch(
        inotify,
        c(folder).as_ptr(),
        IN_ALL_EVENTS
    ));
    for number in 0..300 {
        File::create(format!("{folder}/{}", number % 2))?;
    }
    fs::remove_dir_all(folder)?;
    close_later(inotify)
}

/// Keeps what is to be undone in a set of semaphores, which is charged itself.
fn undo() -> Result<Free> {
    let set = call!(semget(IPC_PRIVATE, 32_000, 0o600));
    let with_set = charged_here()?;
    let mut operation = sembuf {
        sem_num: 0,
        sem_op: 1,
        sem_flg: SEM_UNDO as i16,
    };
    call!(semop(set, &mut operation, 1));
    ensure!(charged_here()? >= with_set + 60, with_set, charged_here()?);
    Ok(Box::new(move || {
        call!(semctl(set, 0, IPC_RMID));
        Ok(())
    }))
}

/// A change of the user moves threads, and no other charge.
fn charged_user() -> Outcome {
    const FIRST: u32 = 4001;
    const SECOND: u32 = 4002;
    child(|| {
        call!(setreuid(FIRST, 0));
        let memory = call!(memfd_create(c"charged".as_ptr(), 0));
        call!(pwrite(
            memory,
            [1_u8; 16 * PAGE].as_ptr().cast(),
            16 * PAGE,
            0
        ));
        ensure!(
            charged_to(FIRST, "shared_memory")? >= 64,
            "nothing is charged"
        );
        call!(setreuid(SECOND, 0));
        ensure!(
            charged_to(FIRST, "shared_memory")? >= 64,
            "the charge is gone"
        );
        equal!(charged_to(SECOND, "shared_memory")?, 0);
        ensure!(
            charged_to(SECOND, "threads")? > 0,
            "the thread did not move"
        );
        Ok(())
    })?;
    equal!(charged_to(FIRST, "shared_memory")?, 0);
    Ok(())
}

/// Beyond the soft limit pipes are small, beyond the hard one there are none.
fn pipe_limits() -> Outcome {
    const USER: u32 = 4003;
    let old = read_text("/proc/sys/fs/pipe-user-pages-soft")?;
    fs::write("/proc/sys/fs/pipe-user-pages-soft", "40")?;
    fs::write("/proc/sys/fs/pipe-user-pages-hard", "45")?;
    let result = child(|| {
        call!(setresuid(USER, USER, USER));
        let mut sizes = Vec::new();
        for _ in 0..4 {
            let (from, _) = pipe(0)?;
            sizes.push(call!(fcntl(from, F_GETPIPE_SZ)) as usize / PAGE);
        }
        equal!(sizes, [16, 16, 2, 2]);
        let (from, _) = pipe(0)?;
        refused!(EPERM, fcntl(from, F_SETPIPE_SZ, 16 * PAGE));
        for _ in 0..3 {
            pipe(0)?;
        }
        let mut ends = [0; 2];
        refused!(ENFILE, pipe2(ends.as_mut_ptr(), 0));
        Ok(())
    });
    fs::write("/proc/sys/fs/pipe-user-pages-soft", old.trim())?;
    fs::write("/proc/sys/fs/pipe-user-pages-hard", "0")?;
    result
}

/// An ordinary user's segments are no larger than half of memory and swap together.
fn segment_limit() -> Outcome {
    const USER: u32 = 4004;
    let kib = field("/proc/meminfo", "MemTotal")? + field("/proc/meminfo", "SwapTotal")?;
    let third = kib as usize * 1024 / 3;
    child(|| {
        call!(setresuid(USER, USER, USER));
        let segment = call!(shmget(IPC_PRIVATE, third, 0o600));
        refused!(ENOSPC, shmget(IPC_PRIVATE, third, 0o600));
        call!(shmctl(segment, IPC_RMID, null_mut()));
        let segment = call!(shmget(IPC_PRIVATE, third, 0o600));
        call!(shmctl(segment, IPC_RMID, null_mut()));
        Ok(())
    })
}
