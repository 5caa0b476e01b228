//! Attacks: programs of an ordinary user that try to stop the kernel, to gain rights, or to make
//! others pay, on 1, 2 and 4 CPUs with little memory.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Report;
use super::boot::{Bench, Plan};
use super::programs::{CPUS, ON_FOUR, ON_ONE, count, shown};
use super::swap::space;
use crate::disk::Disk;

/// The seconds of an attack on average beside those in which it attacks: its start, its end, and
/// the look at the machine after it. With one second each, 138 attacks took 1.2 s on average, and
/// the longest 12 s; one that stands still is ended by the guest.
const BESIDE: u64 = 12;
/// The seconds in which a guest starts.
const START: u64 = 60;

/// The attacks that run once more with swap space, and its size: half of memory.
const BOMBS: &str = "attacks: bombs";
const SWAP: &str = "128M";

/// Attacks that take most of the time of all: in a whole test they run with 2 CPUs only.
const LONG: [&str; 3] = ["!tables", "!exhausted", "!meshes"];

/// In a whole test: how long each goes on where a race is most likely.
const EACH: Duration = Duration::from_millis(100);
/// In a whole test: how many attacks at a time, for how many seconds.
const MIXED: (u64, u64) = (6, 20);

/// Runs the attacks with one of these words in their names, or all, each for so many seconds, on
/// machines with these numbers of CPUs. Without a time and words, all of them go on for [`EACH`] on
/// 2 CPUs, where a race is most likely, and a part of them runs once on each other number of CPUs.
pub fn run(bench: &Bench, report: &mut Report, cpus: &[u32], words: &[String], given: Option<u64>) {
    for &cpus in cpus {
        let machine = format!("{cpus} CPUs");
        if words.is_empty() && !report.wants(&format!("attacks, {machine}")) {
            continue;
        }
        let each = match (given, words, cpus) {
            (None, [], 2) => EACH,
            (None, [], _) => Duration::ZERO,
            _ => Duration::from_secs(given.unwrap_or(1)),
        };
        let part = if cpus == 1 { ON_ONE } else { ON_FOUR };
        let fewer: Vec<_> = part.iter().chain(&LONG).map(ToString::to_string).collect();
        let words = match (given, words) {
            (None, []) if cpus != 2 => &fewer,
            _ => words,
        };
        attack(bench, report, &machine, words, (cpus, each), None);
    }
    if words.iter().any(|word| BOMBS.contains(word.as_str())) {
        with_swap(bench, report, Duration::from_secs(given.unwrap_or(1)));
    }
}

/// Runs those that take all memory with swap space, and then several at a time.
pub fn together(bench: &Bench, report: &mut Report, given: Option<u64>) {
    if report.wants("attacks, 2 CPUs and swap") {
        with_swap(bench, report, Duration::from_secs(given.unwrap_or(0)));
    }
    if report.wants("attacks, mixed") {
        mix(bench, report, &[], 2, MIXED);
    }
}

/// Runs those that take all memory with swap space.
fn with_swap(bench: &Bench, report: &mut Report, each: Duration) {
    let (machine, bombs) = ("2 CPUs and swap", [BOMBS.to_owned()]);
    match space(bench, SWAP) {
        Ok(swap) => attack(bench, report, machine, &bombs, (2, each), Some(swap)),
        Err(why) => report.note(&format!("attacks, {machine}"), Err(why)),
    }
}

/// Runs attacks with one of these words in their names, so many at a time, for so many seconds.
pub fn mixed(bench: &Bench, report: &mut Report, words: &[String], how: (u64, u64)) {
    for cpus in CPUS {
        mix(bench, report, words, cpus, how);
    }
}

fn mix(
    bench: &Bench,
    report: &mut Report,
    words: &[String],
    cpus: u32,
    (at_once, seconds): (u64, u64),
) {
    let machine = format!("{at_once} mixed, {cpus} CPUs");
    let (at_once, for_seconds) = (at_once.to_string(), seconds.to_string());
    let options = ["--mixed", &at_once, "--seconds", &for_seconds];
    let guest = bench.guest(&command(words, &options)).cpus(cpus);
    judge(report, &machine, &guest.timeout(seconds * 2 + 600));
}

/// Returns how many attacks have one of these words in their names, or are there at all: the
/// program lists them on the host, too.
///
/// # Errors
/// When a word is in no name.
fn number_of(bench: &Bench, words: &[String]) -> Result<u64> {
    let program = bench.program("attacks");
    let listed = Command::new(&program).arg("--list").args(words).output();
    let listed = listed.with_context(|| program.display().to_string())?;
    let text = String::from_utf8_lossy(&listed.stdout);
    ensure!(listed.status.success(), "{}", text.trim());
    Ok(text.lines().count() as u64)
}

/// The program and its arguments.
fn command<'a>(words: &'a [String], options: &[&'a str]) -> Vec<&'a str> {
    let words = words.iter().map(String::as_str);
    ["/tests/attacks"]
        .into_iter()
        .chain(options.iter().copied())
        .chain(words)
        .collect()
}

/// Boots once for the attacks with one of these words in their names, each for so long.
fn attack(
    bench: &Bench,
    report: &mut Report,
    machine: &str,
    words: &[String],
    (cpus, each): (u32, Duration),
    swap: Option<Disk>,
) {
    let number = match number_of(bench, words) {
        Ok(number) => number,
        Err(why) => return report.note(&format!("attacks, {machine}"), Err(why)),
    };
    let seconds = each.as_secs_f64().to_string();
    let mut guest = bench.guest(&command(words, &["--seconds", &seconds]));
    if let Some(swap) = swap {
        guest = guest.disk(swap).option("swap=/dev/vda");
    }
    let limit = number * (each.as_secs() + BESIDE) + START;
    judge(report, machine, &guest.cpus(cpus).timeout(limit));
}

/// Boots a guest with little memory that runs attacks, and counts them.
fn judge(report: &mut Report, machine: &str, guest: &Plan<'_>) {
    match shown(machine, &guest.clone().memory("256M")) {
        Ok(finished) => count(report, machine, &finished),
        Err(why) => report.note(&format!("attacks, {machine}"), Err(why)),
    }
}
