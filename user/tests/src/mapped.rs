//! What the kernel's own page tables lead to while programs run, and where its short-lived mappings
//! come from.

use crate::proc::only_causeway;
use support::prelude::*;

pub const TESTS: &[Test] = &[
    (
        "mapped: the kernel maps the pages that it touches",
        touched_pages,
    ),
    ("mapped: the source of mappings is changed", backends),
    ("mapped: a wait for a mapping is interrupted", interrupted),
];

/// A line of `/proc/causeway/mapped`.
#[derive(Debug)]
struct Line {
    frame: u64,
    place: String,
    number: usize,
}

fn mapped() -> Result<Vec<Line>> {
    let text = read_text("/proc/causeway/mapped")?;
    let read = |line: &str| {
        let mut words = line.split(' ').skip(1);
        Some(Line {
            frame: u64::from_str_radix(words.next()?, 16).ok()?,
            place: words.next()?.to_owned(),
            number: words.next().unwrap_or("0").parse().ok()?,
        })
    };
    let lines = text
        .lines()
        .map(|line| read(line).ok_or_else(|| format!("the line `{line}`").into()));
    lines.collect()
}

/// The frames of pages of this process that are in memory.
fn frames_of(area: *mut u8, pages: usize) -> Result<BTreeSet<u64>> {
    let mut open = File::open("/proc/self/pagemap")?;
    open.seek(SeekFrom::Start(area as u64 / PAGE as u64 * 8))?;
    let mut words = vec![0; pages * 8];
    open.read_exact(&mut words)?;
    let words = words
        .chunks(8)
        .map(|it| u64::from_le_bytes(it.try_into().unwrap_or_default()));
    let frames = words.filter(|word| word >> 63 != 0);
    Ok(frames.map(|word| word & ((1 << 55) - 1)).collect())
}

/// Makes the kernel touch pages of all kinds: of programs, pipes, files; new and copied ones.
fn churn(stop: &AtomicBool) -> Outcome {
    let (reader, writer) = pipe(0)?;
    let path = format!("/tmp/mapped-{}", std::process::id());
    let bytes = vec![7; 3 * PAGE + 100];
    while !stop.load(SeqCst) {
        fs::write(&path, &bytes)?;
        fs::read(&path)?;
        write_bytes(&writer, &bytes)?;
        let mut found = Vec::new();
        while found.len() < bytes.len() {
            found.extend(read_bytes(&reader, bytes.len() - found.len())?);
        }
        ensure!(found == bytes, "other bytes came out of the pipe");
        child(|| {
            let area = map(8 * PAGE)?;
            (0..8).for_each(|page| poke(area.wrapping_add(page * PAGE), 1));
            Ok(())
        })?;
    }
    fs::remove_file(&path)?;
    Ok(())
}

/// While programs run, the kernel's half of the address space maps no page of theirs but the few
/// that a CPU touches at the time; what it has of its own there does not grow with them.
fn touched_pages() -> Outcome {
    only_causeway()?;
    let setting = read_text("/proc/causeway/directmap")?;
    if setting.trim() != "kernel" {
        return Err(skip("the kernel maps all memory"));
    }
    const PAGES: usize = 2000;
    /// Pages at a time: two by what a task does, and two by an interrupt.
    const TOUCHED: usize = 4;
    let own = |lines: &[Line]| lines.iter().filter(|line| line.place == "direct").count();
    let before = own(&mapped()?);
    ensure!(before < 1000, "{before} pages of the kernel");
    let stop = shared_value(AtomicBool::new(false))?;
    let children: Result<Vec<_>> = (0..cpus() + 1).map(|_| spawn(|| churn(stop))).collect();
    let area = map(PAGES * PAGE)?;
    (0..PAGES).for_each(|page| poke(area.wrapping_add(page * PAGE), 1));
    let frames = frames_of(area, PAGES)?;
    ensure!(frames.len() == PAGES, "{} frames", frames.len());
    let mut seen = 0;
    for _ in 0..100 {
        let lines = mapped()?;
        ensure!(
            own(&lines) <= before + 8,
            "{before} pages became {}",
            own(&lines)
        );
        let mut by_cpu = vec![0; cpus()];
        for line in lines {
            match line.place.as_str() {
                "direct" => ensure!(!frames.contains(&line.frame), "{line:?} is this program's"),
                "cpu" => by_cpu[line.number] += 1,
                _ => return Err(format!("{line:?}").into()),
            }
        }
        // The tables are looked through while other CPUs go on: one may touch page after page.
        ensure!(
            by_cpu.iter().all(|&count| count <= TOUCHED * 64),
            "{by_cpu:?}"
        );
        seen += by_cpu.iter().sum::<usize>();
    }
    stop.store(true, SeqCst);
    wait_all(children?)?;
    ensure!(
        cpus() > 1 || seen == 0,
        "one CPU maps {seen} pages for nobody"
    );
    Ok(())
}

fn field(name: &str) -> Result<u64> {
    let text = read_text("/proc/causeway/ephemeral")?;
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let value = value.ok_or_else(|| format!("no {name} in {text}"))?;
    Ok(value.parse()?)
}

/// While all mappings are in use, a copy between address spaces waits for one: a signal ends the
/// wait, and otherwise it goes on when there are some again.
fn interrupted() -> Outcome {
    only_causeway()?;
    let settings = [
        ("ephemeral", "window"),
        ("ephemeral.keep", "on"),
        ("ephemeral.scarce", "on"),
    ];
    let file = |name: &str| format!("/proc/causeway/{name}");
    let mut before = Vec::new();
    for (name, _) in settings {
        let text = read_text(&file(name))?;
        let line = text.lines().next().unwrap_or_default();
        before.push(line.trim_start_matches("backend ").to_owned());
    }
    // Each copy is of a page that is not there yet: others are copied where no task may sleep.
    let pages = map(4 * PAGE)?;
    let parent = call!(getpid());
    // Whether the other memory is read or written, how many bytes are copied, or why not.
    let copy = |writes: bool, page: usize| {
        let mut byte = 7u8;
        let there = vector(pages.wrapping_add(page * PAGE), 1);
        let here = vector(&raw mut byte, 1);
        // SAFETY: both ranges are live, the other one in the parent.
        let n = unsafe {
            match writes {
                true => process_vm_writev(parent, &here, 1, &there, 1, 0),
                false => process_vm_readv(parent, &here, 1, &there, 1, 0),
            }
        };
        let error = if n == -1 { errno() } else { 0 };
        (n, error, byte)
    };
    handle(SIGUSR1, ignore_signal, 0)?;
    let result = (|| {
        for (name, value) in settings {
            fs::write(file(name), value)?;
        }
        let slept = field("sleeps")?;
        for (page, writes) in [false, true].into_iter().enumerate() {
            let waiter = spawn(|| {
                equal!(copy(writes, page), (-1, EINTR, 7));
                Ok(())
            })?;
            await_sleep(waiter)?;
            call!(kill(waiter, SIGUSR1));
            wait_ok(waiter)?;
        }
        for (page, writes) in [false, true].into_iter().enumerate() {
            let waiter = spawn(|| {
                let byte = if writes { 7 } else { 0 };
                equal!(copy(writes, 2 + page), (1, 0, byte));
                Ok(())
            })?;
            await_sleep(waiter)?;
            fs::write(file("ephemeral.scarce"), "off")?;
            wait_ok(waiter)?;
            fs::write(file("ephemeral.scarce"), "on")?;
        }
        let bytes = [0, 1, 2, 3].map(|page| peek(pages.wrapping_add(page * PAGE)));
        equal!(bytes, [0, 0, 0, 7]);
        ensure!(field("sleeps")? >= slept + 4, "the waits were not counted");
        Ok(())
    })();
    for ((name, _), value) in settings.iter().zip(&before).rev() {
        fs::write(file(name), value)?;
    }
    result
}

/// Invalidations here and elsewhere as mappings without the window ended, which the sums contain.
fn invalidations() -> Result<Vec<u64>> {
    let mut counts = Vec::new();
    for place in ["local", "remote"] {
        let text = read_text("/proc/causeway/ephemeral")?;
        let causes: u64 = text
            .lines()
            .filter_map(|line| line.strip_prefix(place)?.strip_prefix('_')?.split_once(' '))
            .filter_map(|(_, count)| count.parse::<u64>().ok())
            .sum();
        let sum = text
            .lines()
            .find_map(|line| line.strip_prefix(place)?.strip_prefix(' '));
        let sum: u64 = sum.ok_or(format!("no {place} in {text}"))?.parse()?;
        // Other CPUs go on counting while the file is written.
        ensure!(sum <= causes, "{sum} are {causes} by cause in {text}");
        counts.push(field(&format!("{place}_uncached"))?);
    }
    Ok(counts)
}

/// Bytes arrive wherever mappings come from, and each source shows what it costs.
fn backends() -> Outcome {
    only_causeway()?;
    const FILE: &str = "/proc/causeway/ephemeral";
    let was = read_text(FILE)?;
    let was = was
        .lines()
        .next()
        .and_then(|line| line.strip_prefix("backend "));
    let was = was.ok_or("the first line is not the backend")?.to_owned();
    let path = format!("/tmp/backends-{}", std::process::id());
    let bytes: Vec<u8> = (0..40 * PAGE).map(|at| (at / 7) as u8).collect();
    for backend in ["window", "uncached", "direct"] {
        fs::write(FILE, backend)?;
        let before = [field("hits")?, field("misses")?];
        let told = invalidations()?;
        for _ in 0..3 {
            fs::write(&path, &bytes)?;
            ensure!(fs::read(&path)? == bytes, "other bytes by {backend}");
        }
        let now = [field("hits")?, field("misses")?];
        let made = now[1] - before[1];
        match (backend, was.as_str()) {
            ("uncached", _) => {
                ensure!(made >= 120, "{made} mappings were made");
                let told = told.iter().zip(invalidations()?);
                let told: Vec<u64> = told.map(|(before, now)| now - before).collect();
                let least = [120, 120 * (cpus() as u64 - 1)];
                ensure!(
                    told.iter().zip(least).all(|(&told, least)| told >= least),
                    "{told:?} invalidations at the ends of {made} mappings"
                );
            }
            ("window", _) => ensure!(now != before, "no mapping of the window is counted"),
            _ => {}
        }
    }
    fs::write(FILE, &was)?;
    let refused = fs::write(FILE, "other")
        .err()
        .and_then(|e| e.raw_os_error());
    equal!(refused, Some(EINVAL));
    let entries = field("entries")?.to_string();
    for entries in ["16", "5000", entries.as_str()] {
        fs::write("/proc/causeway/ephemeral.entries", entries)?;
        equal!(field("entries")?.to_string(), entries);
        ensure!(
            fs::read(&path)? == bytes,
            "other bytes with {entries} entries"
        );
    }
    fs::remove_file(&path)?;
    Ok(())
}
