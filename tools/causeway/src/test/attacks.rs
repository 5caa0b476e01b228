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

/// Runs the attacks with one of these words in their names, or all, each for so many seconds.
pub fn run(bench: &Bench, report: &mut Report, words: &[String], seconds: u64) {
    for cpus in CPUS {
        let machine = format!("{cpus} CPUs");
        if !words.is_empty() || report.wants(&format!("attacks, {machine}")) {
            let words: Vec<_> = words.iter().map(String::as_str).collect();
            attack(bench, report, &machine, &words, (cpus, seconds), None);
        }
    }
    let machine = "2 CPUs and swap";
    let wanted = match words.is_empty() {
        true => report.wants(&format!("attacks, {machine}")),
        false => words.iter().any(|word| BOMBS.contains(word.as_str())),
    };
    if wanted {
        match space(bench, SWAP) {
            Ok(swap) => attack(bench, report, machine, &[BOMBS], (2, seconds), Some(swap)),
            Err(why) => report.note(&format!("attacks, {machine}"), Err(why)),
        }
    }
}

/// Boots once for the attacks with one of these words in their names.
fn attack(
    bench: &Bench,
    report: &mut Report,
    machine: &str,
    words: &[&str],
    (cpus, seconds): (u32, u64),
    swap: Option<Disk>,
) {
    let seconds_each = seconds.to_string();
    let mut command = vec!["/tests/attacks", "--seconds", &seconds_each];
    command.extend(words);
    let limit = if words.is_empty() { MOST } else { 40 } * (seconds + GRACE) / 4 + 60;
    let mut guest = bench.guest(&command).cpus(cpus).memory("256M");
    if let Some(swap) = swap {
        guest = guest.disk(swap).option("swap=/dev/vda");
    }
    match guest.timeout(limit).run_shown() {
        Ok(finished) => count(report, machine, &finished),
        Err(why) => report.note(&format!("attacks, {machine}"), Err(why)),
    }
}
