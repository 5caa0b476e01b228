//! The files of `/proc`.

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("proc: maps", maps),
    ("proc: stat, status and cmdline", process),
    ("proc: exe, cwd and fd", links),
    ("proc: processes are listed", listed),
    ("proc: threads are listed piece by piece", listed_threads),
    ("proc: a child is alive before it runs", newborn),
    ("proc: the memory of a zombie is back", zombies),
    ("proc: the machine", machine),
    ("proc: faults of the processor", faults),
    ("proc: mounts", mounts),
    ("proc: Causeway's counters", counters),
    ("proc: unknown calls are counted", unknown_calls),
    ("proc: memory limits the threads", threads_max),
    (
        "proc: refused options have names and programs",
        refused_options,
    ),
];

/// Each thread is listed once, by rising id, whatever the size of the buffer; those of others are
/// not, and places far behind the end are no error.
fn listed_threads() -> Outcome {
    const THREADS: usize = 50;
    let (over, others) = (AtomicBool::new(false), spawn_sleeper()?);
    let outcome = thread::scope(|scope| {
        for _ in 0..THREADS {
            let wait = || {
                while !over.load(SeqCst) {
                    pause_ms(5);
                }
            };
            scope.spawn(wait);
        }
        let outcome = (|| {
            let folder = File::open("/proc/self/task")?;
            let mut found = Vec::new();
            loop {
                let names = entries(&folder)?;
                if names.is_empty() {
                    break;
                }
                ensure!(names.len() < 10);
                found.extend(names.iter().filter_map(|name| name.parse::<pid_t>().ok()));
            }
            equal!(found.len(), THREADS + 1);
            ensure!(found.is_sorted_by(|one, next| one < next), found);
            ensure!(found.contains(&call!(getpid())) && !found.contains(&others));
            for place in [i64::from(u32::MAX), 1 << 32, i64::MAX] {
                call!(lseek(folder.as_raw_fd(), place, SEEK_SET));
                ensure!(entries(&folder)?.is_empty(), place);
            }
            for name in [others, 0] {
                let path = format!("/proc/self/task/{name}");
                ensure!(fs::metadata(&path).is_err(), path);
            }
            Ok(())
        })();
        over.store(true, SeqCst);
        outcome
    });
    kill_child(others)?;
    outcome
}

/// Reads some names of a directory, into a small buffer.
fn entries(folder: &File) -> Result<Vec<String>> {
    let mut bytes = [0_u8; 200];
    let (fd, size) = (folder.as_raw_fd(), bytes.len());
    let got = call!(syscall(SYS_getdents64, fd, bytes.as_mut_ptr(), size)) as usize;
    let (mut names, mut at) = (Vec::new(), 0);
    while at < got {
        let length = u16::from_ne_bytes([bytes[at + 16], bytes[at + 17]]) as usize;
        let name = CStr::from_bytes_until_nul(&bytes[at + 19..at + length]);
        names.push(name.map_err(|_| "no end")?.to_string_lossy().into_owned());
        at += length;
    }
    Ok(names)
}

/// The line in `cpuinfo` and the files in `/sys` say the same.
fn faults() -> Outcome {
    let text = read_text("/proc/cpuinfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("bugs\t\t:"));
    let Some(line) = line else {
        return Err("cpuinfo has no line of bugs".into());
    };
    let bugs: Vec<_> = line.split_whitespace().collect();
    for (file, bug) in [
        ("gather_data_sampling", "gds"),
        ("itlb_multihit", "itlb_multihit"),
        ("l1tf", "l1tf"),
        ("mds", "mds"),
        ("meltdown", "cpu_meltdown"),
        ("retbleed", "retbleed"),
        ("spec_rstack_overflow", "srso"),
        ("spec_store_bypass", "spec_store_bypass"),
        ("spectre_v1", "spectre_v1"),
        ("spectre_v2", "spectre_v2"),
        ("srbds", "srbds"),
        ("tsx_async_abort", "taa"),
    ] {
        let path = format!("/sys/devices/system/cpu/vulnerabilities/{file}");
        let state = read_text(&path)?;
        let known = [
            "Not affected",
            "Vulnerable",
            "Mitigation: ",
            "Unknown: ",
            "KVM: ",
        ];
        ensure!(
            state.ends_with('\n') && known.iter().any(|word| state.starts_with(word)),
            "{path}: {state:?}"
        );
        let affected = bugs.contains(&bug);
        ensure!(
            affected != state.starts_with("Not affected"),
            "{path}: {state:?} with {line:?}"
        );
    }
    Ok(())
}

fn maps() -> Outcome {
    let memory = map(5 * PAGE)?;
    call!(mprotect(memory.cast(), PAGE, PROT_READ));
    let text = read_text("/proc/self/maps")?;
    let mut last = 0;
    let (mut found, mut stack, mut program) = (false, false, false);
    let here = 0u8;
    let here = &raw const here as usize;
    let code = maps as *const () as usize;
    for line in text.lines() {
        let mut fields = line.split_whitespace();
        let (range, access) = (fields.next().unwrap_or(""), fields.next().unwrap_or(""));
        let number = |part: Option<&str>| {
            part.and_then(|part| usize::from_str_radix(part, 16).ok())
                .unwrap_or(0)
        };
        let mut ends = range.split('-');
        let (start, end) = (number(ends.next()), number(ends.next()));
        ensure!(start >= last && start < end && end % PAGE == 0, line);
        last = end;
        found |= start == memory as usize && end == start + PAGE && access == "r--p";
        stack |= (start..end).contains(&here) && line.ends_with("[stack]") && access == "rw-p";
        program |= (start..end).contains(&code) && access == "r-xp" && line.contains('/');
    }
    ensure!(found, memory, text);
    ensure!(stack, "the stack is not shown as it is:\n{text}");
    ensure!(program, "the program is not shown as it is:\n{text}");
    Ok(())
}

fn process() -> Outcome {
    let me = call!(getpid());
    let stat = read_text("/proc/self/stat")?;
    let fields: Vec<_> = stat
        .rsplit(')')
        .next()
        .unwrap_or("")
        .split_whitespace()
        .collect();
    ensure!(stat.starts_with(&format!("{me} (")), "stat: {stat}");
    ensure!(fields.len() >= 50, "stat has {} fields", fields.len() + 2);
    equal!(fields[0], "R");
    equal!(fields[1], call!(getppid()).to_string());
    equal!(fields[2], call!(getpgrp()).to_string());
    let size: usize = fields[20].parse().unwrap_or(0);
    ensure!(size > 100 * PAGE, "the size is {size}");
    let status = read_text("/proc/self/status")?;
    for name in [
        "Name:", "State:", "Pid:", "PPid:", "Uid:", "Gid:", "Threads:", "VmSize:", "VmRSS:",
    ] {
        ensure!(status.lines().any(|line| line.starts_with(name)), name);
    }
    let before = field("/proc/self/status", "VmRSS")?;
    let memory = map(500 * PAGE)?;
    (0..500).for_each(|page| poke(memory.wrapping_add(page * PAGE), 1));
    let after = field("/proc/self/status", "VmRSS")?;
    ensure!(after >= before + 1900, before, after);
    let words = fs::read("/proc/self/cmdline")?;
    let first = std::env::args().next().unwrap_or_default();
    ensure!(
        words.starts_with(first.as_bytes()) && words.ends_with(b"\0"),
        "cmdline: {words:?}"
    );
    Ok(())
}

fn links() -> Outcome {
    let exe = fs::read_link("/proc/self/exe")?;
    ensure!(fs::exists(&exe).unwrap_or(false), exe.display());
    call!(chdir(c"/tmp".as_ptr()));
    let cwd = fs::read_link("/proc/self/cwd")?;
    ensure!(cwd.as_os_str() == "/tmp", "cwd is {}", cwd.display());
    let open = call!(open(c"/dev/null".as_ptr(), O_RDONLY));
    let link = fs::read_link(format!("/proc/self/fd/{open}"))?;
    equal!(link.as_os_str(), "/dev/null", open, link.display());
    let (reader, _writer) = pipe(0)?;
    let link = fs::read_link(format!("/proc/self/fd/{reader}"))?;
    ensure!(link.to_string_lossy().starts_with("pipe:["), link.display());
    Ok(())
}

fn listed() -> Outcome {
    let child = spawn_sleeper()?;
    pause_ms(20);
    let listed = |pid: i32| {
        fs::read_dir("/proc").is_ok_and(|mut entries| {
            entries.any(|entry| {
                entry.is_ok_and(|entry| entry.file_name().to_string_lossy() == pid.to_string())
            })
        })
    };
    ensure!(listed(child) && listed(call!(getpid())) && listed(1));
    let stat = read_text(&format!("/proc/{child}/stat"))?;
    ensure!(stat.contains(") S "), "a sleeping process is {stat}");
    kill_child(child)?;
    ensure!(!listed(child), "a dead process is listed");
    Ok(())
}

fn machine() -> Outcome {
    let total = field("/proc/meminfo", "MemTotal")?;
    let free = field("/proc/meminfo", "MemFree")?;
    let available = field("/proc/meminfo", "MemAvailable")?;
    ensure!(
        total > 30_000 && free < total && available <= total,
        "{total} {free} {available}"
    );
    let cpus = cpus();
    let count = |path: &str, start: &str| -> Result<usize> {
        Ok(read_text(path)?
            .lines()
            .filter(|line| line.starts_with(start))
            .count())
    };
    equal!(count("/proc/cpuinfo", "processor")?, cpus);
    equal!(count("/proc/stat", "cpu")?, cpus + 1, cpus);
    let uptime = read_text("/proc/uptime")?;
    let seconds: Vec<f64> = uptime
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    ensure!(seconds.len() == 2 && seconds[0] > 0.0, "uptime: {uptime}");
    let load = read_text("/proc/loadavg")?;
    ensure!(load.split_whitespace().count() == 5, "loadavg: {load}");
    ensure!(!read_text("/proc/version")?.is_empty(), "no version");
    Ok(())
}

fn mounts() -> Outcome {
    let text = read_text("/proc/mounts")?;
    for point in ["/", "/proc", "/dev"] {
        let found = text
            .lines()
            .any(|line| line.split(' ').nth(1) == Some(point));
        ensure!(found, "{point} is not in mounts:\n{text}");
    }
    Ok(())
}

/// Skips the test on another kernel.
pub fn only_causeway() -> Outcome {
    if fs::exists("/proc/causeway").unwrap_or(false) {
        Ok(())
    } else {
        Err(skip("not on this kernel"))
    }
}

fn counters() -> Outcome {
    only_causeway()?;
    let before = (
        counter("system_calls")?,
        counter("fault_zero_fill")?,
        counter("pages_zeroed")?,
    );
    // Every second page: fault-ahead would map adjacent ones.
    let memory = map(200 * PAGE)?;
    (0..100).for_each(|page| poke(memory.wrapping_add(2 * page * PAGE), 1));
    let after = (
        counter("system_calls")?,
        counter("fault_zero_fill")?,
        counter("pages_zeroed")?,
    );
    ensure!(after.0 > before.0 + 5, "system calls: {before:?} {after:?}");
    ensure!(after.1 >= before.1 + 100, before, after);
    ensure!(after.2 >= before.2 + 100, before, after);
    let shootdowns = counter("task_switches")?;
    pause_ms(5);
    ensure!(counter("task_switches")? > shootdowns);
    copies()
}

/// Bytes passed by reference are counted apart from copied ones.
fn copies() -> Outcome {
    const SIZE: usize = 8 * PAGE;
    let (_, open) = file("counted", &[7; SIZE])?;
    let (reader, writer) = pipe(0)?;
    let mut buffer = [0u8; SIZE];
    let passed = counter("bytes_passed")?;
    let mut at = 0i64;
    let spliced = call!(splice(open, &mut at, writer, null_mut(), SIZE, 0));
    ensure!(spliced as usize == SIZE, "spliced {spliced}");
    let grown = counter("bytes_passed")? - passed;
    ensure!(
        (SIZE as u64..SIZE as u64 + 4096).contains(&grown),
        "splice of {SIZE} bytes passed on {grown}"
    );
    let before = [counter("bytes_passed")?, counter("bytes_copied_out")?];
    let got = call!(read(reader, buffer.as_mut_ptr().cast(), SIZE));
    ensure!(got as usize == SIZE && buffer == [7; SIZE], "read {got}");
    let after = [counter("bytes_passed")?, counter("bytes_copied_out")?];
    ensure!(
        after[0] == before[0] && after[1] >= before[1] + SIZE as u64,
        "read of {SIZE} bytes: {before:?} {after:?}"
    );
    for end in [reader, writer, open] {
        call!(close(end));
    }
    Ok(())
}

fn unknown_calls() -> Outcome {
    only_causeway()?;
    for _ in 0..3 {
        crate::refused!(ENOSYS, syscall(777));
    }
    let text = read_text("/proc/causeway/unsupported")?;
    let is_it = |line: &str| line.starts_with("777 - ") && line.split(' ').count() == 4;
    ensure!(
        text.lines().any(is_it),
        "nothing tells of call 777:\n{text}"
    );
    Ok(())
}

/// A superuser's programs, which no limit of their own binds, leave memory for others.
fn threads_max() -> Outcome {
    // Of 128 KiB each, as long as no test has set it.
    let memory = field("/proc/meminfo", "MemTotal")?;
    let most: u64 = read_text("/proc/sys/kernel/threads-max")?.trim().parse()?;
    let wanted = memory / 128;
    ensure!(most <= wanted + wanted / 8, most, wanted);
    ensure!(most >= (wanted - wanted / 8).min(4000), most, wanted);
    Ok(())
}

/// Each is recorded under the name of its program, once however often it was asked for, and the
/// names of a program that changes its own take no room without end.
fn refused_options() -> Outcome {
    const FILE: &str = "/proc/causeway/unsupported";
    const NAMES: u64 = 3000;
    only_causeway()?;
    fs::write(FILE, "0\n")?;
    child(|| {
        call!(prctl(PR_SET_NAME, c"asks a lot".as_ptr()));
        for _ in 0..2 {
            refused!(ENOSYS, syscall(SYS_io_uring_setup, 1, 0));
            refused!(EINVAL, prctl(PR_SET_MM, 1, 0, 0, 0));
        }
        let (reader, writer) = pipe(0)?;
        refused!(ENOTTY, ioctl(reader, 0x1234));
        // Refused on Linux too, where it is no terminal.
        refused!(ENOTTY, ioctl(reader, TIOCGWINSZ, 0));
        call!(close(writer));
        let [socket, _peer] = socket_pair(SOCK_STREAM)?;
        refused!(
            ENOPROTOOPT,
            setsockopt(
                socket.as_raw_fd(),
                SOL_SOCKET,
                250,
                (&raw const reader).cast(),
                4
            )
        );
        call!(setuid(1000));
        Ok(())
    })?;
    let text = read_text(FILE)?;
    let wanted = [
        r"io_uring_setup - 2 asks\040a\040lot",
        r"prctl option=PR_SET_MM 2 asks\040a\040lot",
        r"ioctl request=0x1234 1 asks\040a\040lot",
        r"setsockopt optname=SOL_SOCKET:0xfa 1 asks\040a\040lot",
    ];
    for line in wanted {
        ensure!(text.lines().any(|it| it == line), "no {line}:\n{text}");
    }
    ensure!(!text.contains("TIOCGWINSZ"), text);
    // More names than there is room for.
    child(|| {
        for number in 0..NAMES {
            let name = c(&format!("n{number}"));
            call!(prctl(PR_SET_NAME, name.as_ptr()));
            refused!(EINVAL, prctl(PR_SET_MM, 1, 0, 0, 0));
        }
        Ok(())
    })?;
    let text = read_text(FILE)?;
    ensure!(text.lines().count() < 1000, text.lines().count());
    let count = |line: &str| -> Option<u64> {
        let mut words = line.split(' ');
        let is_one = line.starts_with("prctl option=PR_SET_MM ") && line.contains(" n");
        let is_rest = words.next() == Some("dropped");
        let count = words.nth(1)?.parse().ok()?;
        (is_one || is_rest).then_some(count)
    };
    equal!(text.lines().filter_map(count).sum::<u64>(), NAMES);
    let line = wanted[1];
    ensure!(text.lines().any(|it| it == line), "no {line}:\n{text}");
    // Only root may empty it.
    child(|| {
        call!(setuid(1000));
        ensure!(fs::write(FILE, "0\n").is_err());
        ensure!(!read_text(FILE)?.is_empty());
        Ok(())
    })?;
    fs::write(FILE, "0\n")?;
    ensure!(!read_text(FILE)?.contains("PR_SET_MM"));
    Ok(())
}

fn newborn() -> Outcome {
    for _ in 0..300 {
        let child = spawn_sleeper()?;
        let letter = state(child)?;
        ensure!(matches!(letter, 'R' | 'S'), letter);
        kill_child(child)?;
    }
    Ok(())
}

/// The state letter of a process.
fn state(pid: pid_t) -> Result<char> {
    let stat = read_text(&format!("/proc/{pid}/stat"))?;
    let rest = stat.rsplit(") ").next();
    Ok(rest.and_then(|rest| rest.chars().next()).ok_or(stat)?)
}

/// While a process ends that has much memory, it is no zombie yet: who sees one may rely on its
/// memory.
fn zombies() -> Outcome {
    const SIZE: usize = 64 << 20;
    for _ in 0..10 {
        let is_full = shared_value(AtomicBool::new(false))?;
        let child = spawn(|| {
            let area = map(SIZE)?;
            for at in (0..SIZE).step_by(PAGE) {
                poke(area.wrapping_add(at), 1);
            }
            is_full.store(true, SeqCst);
            sleep_forever()
        })?;
        while !is_full.load(SeqCst) {
            pause_ms(1);
        }
        let free = || field("/proc/meminfo", "MemFree");
        let before = free()?;
        call!(kill(child, SIGKILL));
        while state(child)? != 'Z' {}
        let after = free()?;
        equal!(wait(child)?, End::Signal(SIGKILL));
        ensure!(after >= before + SIZE as u64 / 1024 / 2, before, after);
    }
    Ok(())
}
