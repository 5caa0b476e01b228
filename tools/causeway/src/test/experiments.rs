//! The experiments of the guest's bench, with the smallest setting: every experiment comes to its
//! end, and no row fails.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};

use super::Report;
use super::boot::Bench;
use crate::bench::lines::{self, Line};

/// How long a run may take on a busy host.
const PATIENCE: u64 = 300;

/// Boots and judges it on a machine with 2 CPUs, and with one if `long` is asked for, if those are
/// among these numbers of CPUs.
pub fn run(bench: &Bench, report: &mut Report, cpus: &[u32], long: bool) {
    let machines: &[u32] = if long { &[1, 2] } else { &[2] };
    for &cpus in machines.iter().filter(|own| cpus.contains(own)) {
        let name = format!("guest: experiments, {cpus} CPUs");
        if report.wants(&name) {
            report.run(&name, || measure(bench, cpus));
        }
    }
}

/// One run of all experiments, a batch a row.
fn measure(bench: &Bench, cpus: u32) -> Result<()> {
    let boot = |command: &[&str]| {
        let guest = bench.guest(command).cpus(cpus).timeout(PATIENCE);
        guest.fast().output()
    };
    judge(
        &boot(&["/bin/bench", "--batches", "1"])?,
        &boot(&["/bin/bench", "--list"])?,
    )
}

/// Checks the output of the bench, of which `list` names the experiments.
fn judge(text: &str, list: &str) -> Result<()> {
    let mut wrong = Vec::new();
    let mut rows = BTreeSet::new();
    let mut done = BTreeSet::new();
    for line in text.lines() {
        match lines::parse(line) {
            Some(Line::Row(row)) => {
                if !rows.insert(row.row.clone()) {
                    wrong.push(format!("{}: twice", row.row));
                }
            }
            Some(Line::Error { row, why }) => wrong.push(format!("{row}: {why}")),
            Some(Line::Done(name)) => {
                done.insert(name);
            }
            Some(Line::Missing { .. } | Line::Begun(_) | Line::Waiting(_) | Line::End(_)) => {}
            None => wrong.push(format!("an odd line: {line}")),
        }
    }
    let names = list
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    for name in names {
        if !done.contains(name) {
            wrong.push(format!("{name}: not to its end"));
        }
        // Rows that need another kernel or several CPUs may be missing, but not all rows of an
        // experiment.
        if name == "calls" && !rows.iter().any(|row| row.starts_with("calls/")) {
            wrong.push("calls: no row".into());
        }
    }
    if done.is_empty() {
        wrong.push("no experiment".into());
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n    "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::judge;

    const LIST: &str = "calls        System calls\nfork         Processes\n";
    const GOOD: &str = "{\"row\":\"calls/null\",\"unit\":\"ns\",\"better\":\"less\",\"samples\":[1],\"operations\":5,\"counters\":{}}
{\"row\":\"fork/small\",\"missing\":\"ENOSYS\"}
{\"experiment\":\"calls\",\"done\":true}
{\"experiment\":\"fork\",\"done\":true}
";

    #[test]
    fn a_whole_run_passes() {
        assert!(judge(GOOD, LIST).is_ok());
    }

    #[test]
    fn what_is_wrong_is_named() {
        let failing = |text: &str, word: &str| {
            let why = judge(text, LIST).expect_err("it is wrong").to_string();
            assert!(why.contains(word), "{why}");
        };
        failing(&GOOD.replace("missing", "error"), "fork/small: ENOSYS");
        failing(
            &GOOD.replace("\"fork\",\"done\"", "\"other\",\"done\""),
            "fork: not to its end",
        );
        failing(
            &format!("{GOOD}{}", GOOD.lines().next().expect("a line")),
            "twice",
        );
        failing(&format!("{GOOD}Segmentation fault\n"), "an odd line");
        failing(&GOOD.replace("calls/null", "other/null"), "calls: no row");
        failing("", "no experiment");
    }
}
