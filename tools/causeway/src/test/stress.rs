//! Debian's `stress-ng`: many programs at once that use the kernel hard and check what it does for them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;

use super::Report;
use super::boot::{Bench, Plan};
use crate::guest::Ending;
use crate::project;
use crate::root::{Root, debian};

/// What the root has besides what every Debian root has.
const PACKAGES: [&str; 2] = ["stress-ng", "procps"];

/// The stressors, one worker of each.
const STRESSORS: [&str; 27] = [
    "cpu",
    "fork",
    "pthread",
    "futex",
    "pipe",
    "sock",
    "epoll",
    "mmap",
    "shm",
    "signal",
    "kill",
    "alarm",
    "itimer",
    "timer",
    "timerfd",
    "sigabrt",
    "sigchld",
    "sigfd",
    "sigfpe",
    "sigio",
    "sigpending",
    "sigpipe",
    "sigq",
    "sigrt",
    "sigsegv",
    "sigsuspend",
    "sigtrap",
];

/// Bytes of memory for those that would fill a small machine, or would not come round once in a short time.
const SIZES: &str = "--mmap-bytes 1M --shm-bytes 1M";

/// It fills a pipe from one process and asks for signals in another one: who fills it first, on Linux too, gets none.
const MAY_BE_IDLE: &str = "sigio";

/// Kilobytes that may be less free afterwards: the kernel's own caches, and files that were not read before.
const KEPT: u64 = 16 << 10;

/// How long stopping may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// One run: its CPUs, its time, and whether the kernel is the fast one.
struct Run {
    cpus: u32,
    seconds: u32,
    fast: bool,
}

/// Runs them: a short time, and for five minutes each on 2 and on 4 CPUs if it is `long`.
///
/// # Errors
/// When the root cannot be made.
pub fn run(bench: &Bench, report: &mut Report, long: bool) -> Result<()> {
    if !report.wants("stress: stress-ng") {
        return Ok(());
    }
    let archive = archive(bench)?;
    let runs = match long {
        false => [(4, 12, false), (2, 12, true)],
        true => [(2, 300, true), (4, 300, true)],
    };
    for (cpus, seconds, fast) in runs {
        let name = format!("stress: {seconds} seconds, {cpus} CPUs");
        let run = Run {
            cpus,
            seconds,
            fast,
        };
        report.run(&name, || stress(bench, &archive, &run));
    }
    Ok(())
}

/// The archive of the root.
fn archive(bench: &Bench) -> Result<PathBuf> {
    let folder = project::home()?.join("target/roots/stress");
    if !folder.exists() {
        let packages: Vec<String> = PACKAGES.iter().map(ToString::to_string).collect();
        debian::make(&folder, &packages, true, false)?;
    }
    let archive = bench.path("stress.cpio");
    Root::folder(&folder)?.write(&archive)?;
    Ok(archive)
}

/// Boots and judges one run.
fn stress(bench: &Bench, archive: &Path, run: &Run) -> Result<(), String> {
    let words: Vec<String> = STRESSORS.iter().map(|name| format!("--{name} 1")).collect();
    let line = format!(
        "free() {{ awk '/^MemFree/ {{ print \"free\", $2 }}' /proc/meminfo; }}
         cd /tmp; ls /usr/lib >/dev/null; free
         stress-ng {} {SIZES} --timeout {} --verify --metrics-brief </dev/null 2>&1; echo status $?
         free; ps -A -o comm= | grep -c stress-ng",
        words.join(" "),
        run.seconds
    );
    let command = ["/bin/bash", "-c", &line];
    let mut plan = Plan::new(archive, &command);
    plan.cpus = run.cpus;
    plan.memory = "1G";
    plan.timeout = Duration::from_secs(run.seconds.into()) + PATIENCE;
    plan.fast = run.fast;
    let finished = bench.boot(&plan)?;
    // The last command finds nothing.
    if finished.ending != Ending::Status(1) {
        let kernel = if run.fast {
            &bench.fast
        } else {
            &bench.checked
        };
        return Err(finished.why(kernel));
    }
    // In a short time on a busy host not all get far enough to count something; half of them do.
    let idle = match run.seconds {
        0..60 => STRESSORS.len() / 2,
        _ => 0,
    };
    judge(&finished.text(), idle)
}

/// What is wrong with what a run printed; so many stressors may have done nothing.
fn judge(text: &str, may_be_idle: usize) -> Result<(), String> {
    let mut wrong: Vec<&str> = text.lines().filter(|line| is_complaint(line)).collect();
    if !text.lines().any(|line| line == "status 0") {
        wrong.push("stress-ng did not end with status 0");
    }
    let idle: Vec<String> = STRESSORS
        .iter()
        .filter(|&&name| name != MAY_BE_IDLE && operations(text, name).unwrap_or(0) == 0)
        .map(|name| format!("{name} did nothing"))
        .collect();
    if idle.len() > may_be_idle {
        wrong.extend(idle.iter().map(String::as_str));
    }
    let free: Vec<u64> = text
        .lines()
        .filter_map(|line| line.strip_prefix("free ")?.parse().ok())
        .collect();
    let lost = match free[..] {
        [before, after] if before <= after + KEPT => None,
        [before, after] => Some(format!("{before} KB were free before, {after} after")),
        _ => Some("it is not known how much memory was free".into()),
    };
    wrong.extend(lost.as_deref());
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(wrong.join("\n    ")),
    }
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

/// What a stressor has done, of the line `stress-ng: metrc: [PID] NAME COUNT ...`.
fn operations(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["stress-ng:", "metrc:", _, first, count, ..] if first == name => count.parse().ok(),
            _ => None,
        }
    })
}
