//! Programs of an ordinary user that attack the kernel: they try to stop it, to gain rights, or to
//! use memory that others need.
//!
//! usage: `attacks [--list] [--seconds N] [--mixed N] [WORD...]`: runs those whose names contain a
//! WORD, or all, for N seconds each; with `--mixed`, so many of them at a time, chosen at random
//! again and again (or all), for N seconds in all. It starts as root, and prepares what an attack
//! finds on a machine (programs with a set-id bit, files of others); the attack itself is an
//! ordinary user's.
//!
//! After each attack the machine must answer, and its memory must be back.

mod bombs;
mod crowds;
mod execution;
mod exhausted;
mod holdups;
mod ids;
mod limits;
mod mappings;
mod meshes;
mod mixed;
mod randomness;
mod rules;
mod signals;
mod tables;
mod victims;
mod view;

use std::sync::OnceLock;

use support::prelude::*;
use support::runner::{Part, Runner};

/// Joins the attacks of modules, in the order in which they run.
macro_rules! attacks_of {
    ($($($name:ident)::+),*) => { [$($($name)::+::TESTS),*].concat() };
}

/// The user that attacks, and its group.
pub const USER: u32 = 1000;
/// The time of an attack beside that in which it attacks: its start and its end, on a host whose
/// processors several guests share.
const GRACE: Duration = Duration::from_secs(60);
/// The memory in KiB that an attack may leave in caches, without what its end leaves of the
/// kernel's heap ([`Memory::in_slabs`]): 2 MiB of stacks, 1 MiB of page tables, and tables that
/// have grown.
const LEFT_IN_CACHES: i64 = 8192;

/// How late a sleeper of root may wake beside an attack in any case: hosts that are busy with other
/// things, too, were seen to be late by 350 ms. How late it is on an idle host the bench measures.
const LATE: Duration = Duration::from_secs(1);
/// How much later than beside programs that only compute, in the same machine at the same time.
const TIMES: u32 = 10;

/// The setting that some attacks change as root: few ids come again soon.
pub const PID_MAX: &str = "/proc/sys/kernel/pid_max";

/// How long an attack goes on.
static TIME: OnceLock<Duration> = OnceLock::new();
/// The machine's memory before the first attack.
static MEMORY: OnceLock<Memory> = OnceLock::new();

fn main() {
    let (mut words, mut list, mut seconds, mut at_once) = (Vec::new(), false, 1.0, None);
    let mut part = Part::WHOLE;
    let mut rest = std::env::args().skip(1);
    while let Some(word) = rest.next() {
        match word.as_str() {
            "--list" => list = true,
            "--part" => part = Part::of_word(rest.next()),
            "--mixed" => at_once = rest.next().and_then(|n| n.parse().ok()),
            "--seconds" => seconds = rest.next().and_then(|n| n.parse().ok()).unwrap_or(seconds),
            _ => words.push(word),
        }
    }
    let time = Duration::from_secs_f64(seconds);
    TIME.get_or_init(|| at_once.map_or(time, |_: usize| mixed::EACH));
    let attacks: Vec<Test> = attacks_of! {
        signals,
        mappings,
        randomness,
        meshes,
        crowds,
        bombs::queues,
        bombs::memory,
        bombs::loans,
        bombs,
        rules,
        tables,
        limits,
        view,
        execution,
        ids,
        exhausted,
        holdups
    };
    let runner = Runner {
        words,
        part,
        list,
        limit: time + GRACE,
        after_group: || Ok(()),
        afterwards: || {
            nothing_runs()?;
            answers()?;
            memory_is_back()
        },
        failing: 0,
    };
    // What the machine keeps after a first process of each kind is no loss.
    if !list && answers().and_then(|()| child(|| Ok(()))).is_ok() {
        match Memory::now() {
            Ok(memory) => drop(MEMORY.set(memory)),
            Err(why) => println!("  the memory at the start is not known: {why}"),
        }
    }
    if let Some(at_once) = at_once {
        let outcome = match runner.unknown(&attacks) {
            0 => mixed::run(&runner.chosen(&attacks), at_once, time),
            _ => Err("not all words are known".into()),
        };
        match &outcome {
            Ok(()) => println!("ok attacks: mixed\nattacks: 1 passed, 0 failed"),
            Err(why) => println!("FAIL attacks: mixed: {why}\nattacks: 0 passed, 1 failed"),
        }
        std::process::exit(i32::from(outcome.is_err()));
    }
    std::process::exit(runner.run("attacks", &attacks));
}

/// Repeats `body` until the time of the attack is over; at least once.
pub fn while_attacking(mut body: impl FnMut() -> Outcome) -> Outcome {
    let end = Instant::now() + *TIME.get().ok_or("no time is set")?;
    loop {
        body()?;
        if Instant::now() >= end {
            return Ok(());
        }
    }
}

/// Becomes an ordinary user, for good.
pub fn become_user(user: u32) -> Outcome {
    call!(setgroups(0, null()));
    call!(setresgid(user, user, user));
    call!(setresuid(user, user, user));
    Ok(())
}

/// Runs `body` as an ordinary user in a child, which must end with status 0.
#[track_caller]
pub fn as_user(body: impl FnOnce() -> Outcome) -> Outcome {
    child(|| {
        become_user(USER)?;
        body()
    })
}

/// Runs `attack` as an ordinary user while root sleeps again and again on each CPU; prints the
/// longest time by which a sleep was late.
///
/// Fails if the attack does, or a sleep was late by more than [`LATE`] and [`TIMES`] the worst of
/// a second beside programs that only compute.
#[track_caller]
pub fn beside(attack: impl FnOnce() -> Outcome) -> Outcome {
    let late = latest(|| as_user(attack))?;
    println!("  late by {} µs at most", late.as_micros());
    if late > LATE {
        let own = latest(|| as_user(compute))?;
        println!("  late by {} µs beside computation", own.as_micros());
        ensure!(late < LATE + own * TIMES, late, own);
    }
    Ok(())
}

/// Runs `body` while root sleeps for a millisecond again and again on each CPU; returns the longest
/// time by which a sleep was late.
fn latest(body: impl FnOnce() -> Outcome) -> Result<Duration> {
    let late = shared_value(AtomicU64::new(0))?;
    let mut sleepers = Vec::new();
    for cpu in 0..cpus() {
        sleepers.push(spawn(|| {
            pin(cpu)?;
            loop {
                let start = Instant::now();
                pause_ms(1);
                late.fetch_max(start.elapsed().as_micros() as u64, Relaxed);
            }
        })?);
    }
    let outcome = body();
    for sleeper in sleepers {
        kill_child(sleeper)?;
    }
    outcome?;
    Ok(Duration::from_micros(
        late.load(Relaxed).saturating_sub(1000),
    ))
}

/// Keeps each CPU busy for a second, twice over, without a call of the kernel.
fn compute() -> Outcome {
    let end = Instant::now() + Duration::from_secs(1);
    let busy = || {
        while Instant::now() < end {
            std::hint::spin_loop();
        }
        Ok(())
    };
    let busy = (0..2 * cpus()).map(|_| spawn(busy));
    wait_all(busy.collect::<Result<Vec<_>>>()?)
}

/// Ends what an attack has left running, and waits until its user may have new processes: the
/// out-of-memory rule may have ended the process that was to clean up, and holds its user back.
fn nothing_runs() -> Outcome {
    // One that was ended has not set it back.
    fs::write(PID_MAX, "32768")?;
    child(|| {
        become_user(USER)?;
        wait_until("processes of the attack do not end", || {
            // Good, too, if there are processes of other users only.
            // SAFETY: signals the processes of a user that has none but the attack's.
            if unsafe { kill(-1, SIGKILL) } != 0 {
                equal!(errno(), ESRCH);
            }
            Ok(processes_of_user()? <= 1)
        })?;
        // SAFETY: the child only exits.
        wait_until("its user gets no process", || match unsafe { fork() } {
            0 => exit(0),
            -1 => Ok(false),
            pid => wait_ok(pid).map(|()| true),
        })
    })
}

/// Returns how many processes the user has that have not ended.
pub fn processes_of_user() -> Result<usize> {
    let mut count = 0;
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<pid_t>().ok()) else {
            continue;
        };
        let status = read_text(&format!("/proc/{pid}/status"));
        let of_user = format!("Uid:\t{USER}\t");
        count +=
            usize::from(status.is_ok_and(|text| text.contains(&of_user) && !text.contains("Z (")));
    }
    Ok(count)
}

/// Waits up to ten seconds until `is_so`.
pub fn wait_until(why: &str, is_so: impl Fn() -> Result<bool>) -> Outcome {
    for _ in 0..1000 {
        if is_so()? {
            return Ok(());
        }
        pause_ms(10);
    }
    Err(why.into())
}

/// A program can be started, and ends.
fn answers() -> Outcome {
    let start = Instant::now();
    let status = Command::new("/bin/true").status();
    let status = status.map_err(|why| format!("the machine does not start a program: {why}"))?;
    ensure!(status.success(), status);
    let time = start.elapsed();
    ensure!(time < Duration::from_secs(5), time);
    Ok(())
}

/// What the machine's memory holds.
struct Memory {
    /// The KiB that could be allocated.
    available: i64,
    /// The KiB of the kernel's heap around its objects. A frame stays as long as it holds one that
    /// is used, or that a CPU keeps to use it next: of each of 15 sizes a few dozen, which after
    /// thousands of processes stand in almost as many frames. The more CPUs, the more of them: with
    /// four up to 15 MiB.
    in_slabs: i64,
    /// The texts of [`Memory::FILES`].
    texts: Vec<String>,
}

impl Memory {
    /// The files that say what memory holds, line by line.
    const FILES: [&str; 4] = [
        "/proc/meminfo",
        "/proc/causeway/memory",
        "/proc/causeway/heap",
        "/proc/causeway/accounts",
    ];

    fn now() -> Result<Memory> {
        let read = |file: &&str| read_text(file);
        let texts: Vec<String> = Memory::FILES.iter().map(read).collect::<Result<_>>()?;
        let mut in_slabs = 0;
        for line in texts[2].lines() {
            let numbers = line.split_whitespace().map(str::parse);
            let numbers: Vec<i64> = numbers.collect::<std::result::Result<_, _>>()?;
            let [size, slabs, in_use, _] = numbers[..] else {
                return Err(format!("{}: {line}", Memory::FILES[2]).into());
            };
            in_slabs += slabs * PAGE as i64 - size * in_use;
        }
        Ok(Memory {
            available: field_of(&texts[0], "MemAvailable")? as i64,
            in_slabs: in_slabs / 1024,
            texts,
        })
    }

    /// The KiB that are missing against `before`.
    fn missing(&self, before: &Memory) -> i64 {
        before.available + before.in_slabs - self.available - self.in_slabs
    }

    /// Prints the lines that differ from those of before.
    fn print_changes(&self, before: &Memory) {
        for ((file, old), new) in Memory::FILES.iter().zip(&before.texts).zip(&self.texts) {
            for (sign, these, others) in [('-', old, new), ('+', new, old)] {
                let differs = |line: &&str| others.lines().all(|other| other != *line);
                for line in these.lines().filter(differs) {
                    println!("  {file}: {sign} {line}");
                }
            }
        }
    }
}

/// All memory that could be allocated before the first attack can be again.
fn memory_is_back() -> Outcome {
    let before = MEMORY.get().ok_or("the memory at the start is not known")?;
    let mut now = Memory::now()?;
    for _ in 0..100 {
        if now.missing(before) <= LEFT_IN_CACHES {
            return Ok(());
        }
        pause_ms(50);
        now = Memory::now()?;
    }
    now.print_changes(before);
    let (missing, now, before) = (now.missing(before), now.available, before.available);
    Err(format!("{missing} KiB are missing: {now} are available, {before} before").into())
}
