//! The guest test programs, on 1, 2 and 4 CPUs.

use std::time::Duration;

use super::Report;
use super::boot::{Bench, Finished, Plan, finish};
use crate::guest::Ending;
use crate::run::Console;

/// Kernels with mechanisms switched off or on (`docs/architecture.md`): a name, and their options.
const VARIANTS: [(&str, &str); 3] = [
    ("old mappings", "ephemeral=uncached"),
    (
        "old page tables",
        "shootdown=broadcast ptcache=off faultahead=0,0 fork=copy",
    ),
    ("small pages only", "large=off"),
];
/// The tests that they run: short ones, which the mechanisms matter to.
const PART: &[&str] = &[
    "memory:",
    "large:",
    "protection: no",
    "pipes: v",
    "pipes: what",
    "pipes: a page",
    "files: a file",
    "unix sockets: files",
];

/// Boots and runs them; the program of random calls runs for `seconds`.
pub fn run(bench: &Bench, report: &mut Report, seconds: u64) {
    let root = match bench.root() {
        Ok(root) => root,
        Err(error) => return report.note("the guests' root", Err(format!("{error:#}"))),
    };
    for cpus in [1, 2, 4] {
        if report.wants(&format!("guest: test programs, {cpus} CPUs")) {
            let command = ["/tests/guest-tests"];
            let mut plan = Plan::new(&root, &command);
            plan.cpus = cpus;
            plan.timeout = Duration::from_secs(240);
            match watched(bench, &plan) {
                Ok(finished) => count(bench, report, &format!("{cpus} CPUs"), &finished),
                Err(why) => report.note(&format!("guest tests, {cpus} CPUs"), Err(why)),
            }
        }
    }
    for (name, options) in VARIANTS {
        if report.wants(&format!("guest: test programs, {name}")) {
            let command = [["/tests/guest-tests"].as_slice(), PART].concat();
            let mut plan = Plan::new(&root, &command);
            plan.cpus = 2;
            plan.append = options;
            plan.timeout = Duration::from_secs(240);
            match watched(bench, &plan) {
                Ok(finished) => count(bench, report, name, &finished),
                Err(why) => report.note(&format!("guest tests, {name}"), Err(why)),
            }
        }
    }
    for cpus in [2, 4] {
        if report.wants(&format!("guest: random calls, {cpus} CPUs")) {
            let seconds_word = seconds.to_string();
            let command = ["/tests/random-calls", "--seconds", &seconds_word];
            let mut plan = Plan::new(&root, &command);
            plan.cpus = cpus;
            plan.timeout = Duration::from_secs(seconds + 60);
            let outcome = watched(bench, &plan).and_then(|finished| {
                if finished.ending == Ending::Status(0) {
                    Ok(())
                } else {
                    Err(finished.why(&bench.checked))
                }
            });
            report.note(&format!("random calls, {cpus} CPUs"), outcome);
        }
    }
}

/// Boots and shows each line as it comes.
fn watched(bench: &Bench, plan: &Plan) -> Result<Finished, String> {
    let words: Vec<String> = plan.command.iter().map(ToString::to_string).collect();
    let options = plan.append.split_whitespace().map(str::to_owned);
    let options: Vec<String> = options.collect();
    let machine = bench.machine(plan, &Console::pipes().command_line(&options, &words));
    finish(&machine, b"", plan.timeout, |line| println!("  {line}"))
        .map_err(|error| format!("{error:#}"))
}

/// Counts the lines of the test program on a machine.
fn count(bench: &Bench, report: &mut Report, machine: &str, finished: &Finished) {
    let text = finished.text();
    let mut whole = false;
    for line in text.lines() {
        if line.starts_with("ok ") {
            report.passed(1);
        } else if let Some((name, why)) = line
            .strip_prefix("FAIL ")
            .and_then(|rest| rest.split_once(": "))
        {
            report.note(&format!("{name}, {machine}"), Err(why.into()));
        }
        whole |= line.starts_with("guest tests:");
    }
    if !whole || !matches!(finished.ending, Ending::Status(0 | 1)) {
        report.note(
            &format!("guest tests, {machine}: to the end"),
            Err(finished.why(&bench.checked)),
        );
    }
}
