//! Attacks: programs of an ordinary user that try to stop the kernel, to gain rights, or to make
//! others pay, on 1, 2 and 4 CPUs with little memory.

use super::Report;
use super::boot::Bench;
use super::programs::{CPUS, count};
use super::swap::space;
use crate::disk::Disk;

/// The time for one attack beside what it was given: its start and its end.
const GRACE: u64 = 30;
/// How many attacks there can be: the guest's time limit counts on it.
const MOST: u64 = 120;

/// The attacks that run once more with swap space, and its size: half of memory.
const BOMBS: &str = "attacks: bombs";
const SWAP: &str = "128M";

/// In a whole test: how many attacks at a time, for how many seconds.
const MIXED: (u64, u64) = (6, 20);

/// Runs the attacks with one of these words in their names, or all, each for so many seconds.
pub fn run(bench: &Bench, report: &mut Report, words: &[String], seconds: u64) {
    let (each, bombs) = (seconds.to_string(), [BOMBS.to_owned()]);
    for cpus in CPUS {
        let machine = format!("{cpus} CPUs");
        if !words.is_empty() || report.wants(&format!("attacks, {machine}")) {
            let command = command(words, &["--seconds", &each]);
            let limit = if words.is_empty() { MOST } else { 40 } * (seconds + GRACE) / 4 + 60;
            attack(bench, report, &machine, &command, (cpus, limit), None);
        }
    }
    let machine = "2 CPUs and swap";
    let wanted = match words.is_empty() {
        true => report.wants(&format!("attacks, {machine}")),
        false => words.iter().any(|word| BOMBS.contains(word.as_str())),
    };
    if wanted {
        match space(bench, SWAP) {
            Ok(swap) => {
                let command = command(&bombs, &["--seconds", &each]);
                let limit = 40 * (seconds + GRACE) / 4 + 60;
                attack(bench, report, machine, &command, (2, limit), Some(swap));
            }
            Err(why) => report.note(&format!("attacks, {machine}"), Err(why)),
        }
    }
    if words.is_empty() && report.wants("attacks, mixed") {
        mix(bench, report, words, 2, MIXED);
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
    let limit = seconds * 2 + 600;
    attack(
        bench,
        report,
        &machine,
        &command(words, &options),
        (cpus, limit),
        None,
    );
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

/// Boots once for this command.
fn attack(
    bench: &Bench,
    report: &mut Report,
    machine: &str,
    command: &[&str],
    (cpus, limit): (u32, u64),
    swap: Option<Disk>,
) {
    let mut guest = bench.guest(command).cpus(cpus).memory("256M");
    if let Some(swap) = swap {
        guest = guest.disk(swap).option("swap=/dev/vda");
    }
    match guest.timeout(limit).run_shown() {
        Ok(finished) => count(report, machine, &finished),
        Err(why) => report.note(&format!("attacks, {machine}"), Err(why)),
    }
}
