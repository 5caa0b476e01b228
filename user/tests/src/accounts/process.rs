//! What `/proc` says of a process: its memory, its statistics, its family.

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
        sleep_forever()
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
            sleep_forever()
        })?;
        read_bytes(&reader, 1)?;
        let found = fs::read(format!("/proc/{closed}/maps"));
        kill_child(closed)?;
        ensure!(found.is_err(), "what is not dumpable can be looked into");
        Ok(())
    })
}
