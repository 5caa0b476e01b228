//! Debian's `stress-ng`: many programs at once that load the kernel and check its results.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use super::Report;
use super::boot::Bench;
use super::roots;
use crate::root::Root;

/// The root's packages besides those of every Debian root.
const PACKAGES: [&str; 2] = ["stress-ng", "procps"];

/// The stressors, one worker of each, and the amount of each in a short run: an amount instead of a
/// time, so that a busy host takes longer and finds the same.
const STRESSORS: [(&str, u32); 27] = [
    ("cpu", 4),
    ("fork", 60),
    ("pthread", 150),
    ("futex", 3),
    ("pipe", 3000),
    ("sock", 2),
    ("epoll", 40),
    ("mmap", 20),
    ("shm", 64),
    ("signal", 3000),
    ("kill", 300),
    ("alarm", 150),
    ("itimer", 15),
    ("timer", 15),
    ("timerfd", 5000),
    ("sigabrt", 60),
    ("sigchld", 100),
    ("sigfd", 10_000),
    ("sigfpe", 10_000),
    ("sigio", 0),
    ("sigpending", 3000),
    ("sigpipe", 200),
    ("sigq", 10_000),
    ("sigrt", 5000),
    ("sigsegv", 4000),
    ("sigsuspend", 80),
    ("sigtrap", 4000),
];

/// Bytes of memory for stressors that would fill a small machine, or would not finish one round in
/// a short time. The options stand behind their stressor, or `stress-ng` takes them for another
/// one's.
const SIZES: [(&str, &str); 2] = [("mmap", "--mmap-bytes 1M"), ("shm", "--shm-bytes 1M")];

/// A stressor that fills a pipe from one process and asks for signals in another one: if the first
/// one is faster, on Linux too, there are no signals. So it has no amount, and runs for a time
/// only.
const MAY_BE_IDLE: &str = "sigio";

/// Kilobytes that may be less free afterwards: the kernel's own caches, and files that were not
/// read before.
const KEPT: u64 = 16 << 10;

/// How long stopping may take.
const PATIENCE: u64 = 120;

/// How long an amount may take, in seconds, where a host is as busy as it gets.
const MOST: u32 = 400;

/// One run: its CPUs, how many seconds if not by amount, and whether the kernel is the fast one.
struct Run {
    cpus: u32,
    seconds: Option<u32>,
    is_fast: bool,
}

/// Runs them: a certain amount, and for five minutes each on 2 and on 4 CPUs if it is `long`.
///
/// # Errors
/// When the root cannot be made.
pub fn run(bench: &Bench, report: &mut Report, long: bool) -> Result<()> {
    if !report.wants("stress: stress-ng") {
        return Ok(());
    }
    let archive = archive(bench)?;
    let runs = match long {
        false => [(4, None, false), (2, None, true)],
        true => [(2, Some(300), true), (4, Some(300), true)],
    };
    for (cpus, seconds, is_fast) in runs {
        let name = match seconds {
            Some(seconds) => format!("stress: {seconds} seconds, {cpus} CPUs"),
            None => format!("stress: a certain amount, {cpus} CPUs"),
        };
        let run = Run {
            cpus,
            seconds,
            is_fast,
        };
        report.run(&name, || stress(bench, &archive, &run));
    }
    Ok(())
}

/// The folder of the root.
///
/// # Errors
/// When it cannot be made.
pub(super) fn folder() -> Result<PathBuf> {
    roots::folder("stress", &PACKAGES)
}

/// The archive of the root.
fn archive(bench: &Bench) -> Result<PathBuf> {
    let archive = bench.path("stress.cpio");
    Root::folder(&folder()?)?.write(&archive)?;
    Ok(archive)
}

/// Boots and judges one run.
fn stress(bench: &Bench, archive: &Path, run: &Run) -> Result<()> {
    let words: Vec<String> = STRESSORS
        .iter()
        .filter_map(|&(name, amount)| {
            let size = SIZES.iter().find(|(of, _)| *of == name);
            let size = size.map_or("", |(_, words)| words);
            match run.seconds {
                Some(_) => Some(format!("--{name} 1 {size}")),
                None if name == MAY_BE_IDLE => None,
                None => Some(format!("--{name} 1 {size} --{name}-ops {amount}")),
            }
        })
        .collect();
    let seconds = run.seconds.unwrap_or(MOST);
    let line = format!(
        "free() {{ awk '/^MemFree/ {{ print \"free\", $2 }}' /proc/meminfo; }}
         cd /tmp; ls /usr/lib >/dev/null; free
         stress-ng {} --timeout {} --verify --metrics-brief </dev/null 2>&1; echo status $?
         free; ps -A -o comm= | grep -c stress-ng",
        words.join(" "),
        seconds
    );
    let guest = bench.bash(&line).root(archive).cpus(run.cpus).memory("1G");
    let guest = guest.timeout(u64::from(seconds) + PATIENCE);
    let finished = guest.fast_if(run.is_fast).run()?;
    // The last command finds nothing.
    finished.ended(1)?;
    judge(&finished.text())
}

/// Checks the output of a run.
fn judge(text: &str) -> Result<()> {
    let stressors = STRESSORS.iter().map(|(name, _)| *name);
    let mut wrong = complaints(text, stressors.filter(|name| *name != MAY_BE_IDLE));
    let free: Vec<u64> = text
        .lines()
        .filter_map(|line| line.strip_prefix("free ")?.parse().ok())
        .collect();
    match free[..] {
        [before, after] if before <= after + KEPT => {}
        [before, after] => wrong.push(format!("{before} KB were free before, {after} after")),
        _ => wrong.push("it is not known how much memory was free".into()),
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n    "));
    Ok(())
}

/// Returns the complaints of `stress-ng`, and the stressors that did nothing.
pub(super) fn complaints<'a>(text: &str, stressors: impl Iterator<Item = &'a str>) -> Vec<String> {
    let said = text.lines().filter(|line| is_complaint(line));
    let mut wrong: Vec<String> = said.map(str::to_owned).collect();
    if !text.lines().any(|line| line == "status 0") {
        wrong.push("stress-ng did not end with status 0".into());
    }
    let idle = stressors.filter(|name| operations(text, name).unwrap_or(0) == 0);
    wrong.extend(idle.map(|name| format!("{name} did nothing")));
    wrong
}

/// Whether `stress-ng` reports a failure, or leaves something out.
fn is_complaint(line: &str) -> bool {
    let Some(said) = line.strip_prefix("stress-ng: ") else {
        return false;
    };
    let kinds = ["fail:", "error:", "warn:"];
    let is_bad = kinds.iter().any(|kind| said.starts_with(kind));
    is_bad || said.contains("skipping")
}

/// Returns the operations of a stressor, from the line `stress-ng: metrc: [PID] NAME COUNT ...`.
fn operations(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["stress-ng:", "metrc:", _, first, count, ..] if first == name => count.parse().ok(),
            _ => None,
        }
    })
}
