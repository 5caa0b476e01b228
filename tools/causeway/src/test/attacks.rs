//! Attacks: programs of an ordinary user that try to stop the kernel, to gain rights, or to make
//! others pay, on 1, 2 and 4 CPUs with little memory.

use super::Report;
use super::boot::Bench;
use super::programs::{CPUS, count};

/// The time for one attack beside what it was given: its start and its end.
const GRACE: u64 = 30;
/// How many attacks there can be: the guest's time limit counts on it.
const MOST: u64 = 120;

/// Runs the attacks with one of these words in their names, or all, each for so many seconds.
pub fn run(bench: &Bench, report: &mut Report, words: &[String], seconds: u64) {
    for cpus in CPUS {
        let machine = format!("{cpus} CPUs");
        if !words.is_empty() || report.wants(&format!("attacks, {machine}")) {
            let seconds_each = seconds.to_string();
            let mut command = vec!["/tests/attacks", "--seconds", &seconds_each];
            command.extend(words.iter().map(String::as_str));
            let limit = if words.is_empty() { MOST } else { 10 } * (seconds + GRACE) / 4 + 60;
            let guest = bench.guest(&command).cpus(cpus).memory("256M");
            match guest.timeout(limit).run_shown() {
                Ok(finished) => count(report, &machine, &finished),
                Err(why) => report.note(&format!("attacks, {machine}"), Err(why)),
            }
        }
    }
}
