//! What `/proc` and `/sys` say of the machine, and the settings that root may change.

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("accounts: settings act", settings),
    ("accounts: locks are listed", locks),
    ("accounts: the machine's figures", machine),
    ("accounts: processors in sysfs", processors),
];

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
