//! `causeway bench` as a user calls it: a table, results and a report; a wrong name; a guest that
//! is killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::Report;
use super::boot::{Bench, causeway, shown, text};
use crate::bench::results::{Results, Row, Status};
use crate::outcome;

/// Two experiments that every kernel has, cut to a few rows.
const SMALL: [&str; 8] = [
    "calls",
    "process-vm",
    "--rows",
    "null",
    "--rows",
    "4KiB",
    "--runs",
    "1",
];

/// How long a killed guest's bench may take to start its guest.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs them.
pub fn run(bench: &Bench, report: &mut Report) {
    if !report.wants("bench") {
        return;
    }
    report.run("bench: two experiments against itself", || small(bench));
    report.run("bench: a slower row is found", || slower(bench));
    report.run("bench: a network, by QEMU's own and by the host's", || {
        network(bench)
    });
    report.run("bench: a wrong name", || {
        let output = causeway(&["bench", "frok"]).output()?;
        let named = text(&output.stderr).contains("fork");
        ends(&output, outcome::FAILURE, named)
    });
    report.run("bench: a guest is killed", || killed(bench));
    report.run("bench: one of two guests is killed", || one_killed(bench));
    report.run("bench: Ctrl-C", || interrupted(bench));
}

/// The folder for a bench's files.
fn folder(bench: &Bench, name: &str) -> PathBuf {
    bench.path(&format!("bench-{name}"))
}

/// A bench of the small experiments, with the kernel that is built already.
fn measured(bench: &Bench, against: &str, out: &Path) -> Command {
    let mut command = causeway(&["bench", "--against", against]);
    command.arg("--kernel").arg(&bench.fast);
    command.arg("--out").arg(out).args(SMALL);
    command
}

/// Checks a status and what else holds of an output.
fn ends(output: &Output, status: u8, holds: bool) -> Result<()> {
    let ended = output.status.code() == Some(status.into());
    ensure!(ended && holds, "{}", shown(output));
    Ok(())
}

fn results(folder: &Path) -> Result<Results> {
    Results::read(&folder.join("results.json"))
}

/// A table, results that the schema allows, and a report.
fn small(bench: &Bench) -> Result<()> {
    let out = folder(bench, "small");
    let output = measured(bench, "causeway", &out).output()?;
    ends(&output, 0, true)?;
    let results = results(&out)?;
    let has_ratio = |row: &Row| row.ratio.is_some();
    let mut rows = results.rows.iter();
    ensure!(
        results.row("calls/null").is_some_and(has_ratio)
            && rows.any(|row| row.experiment() == "process-vm"),
        "rows or ratios are missing: {}",
        shown(&output)
    );
    let table = text(&output.stdout);
    let parts = ["null", "ratio", "system_calls 1.00"];
    let whole = parts.iter().all(|part| table.contains(part));
    ensure!(whole, "no table: {table}");
    let report = fs::read_to_string(out.join("report.html")).context("the report")?;
    ensure!(
        report.contains("calls/null") || report.contains("process-vm"),
        "the report, {} bytes, names no row",
        report.len()
    );
    Ok(())
}

/// Rows over the card with the peer of this program: counted instructions by QEMU's network, where
/// the card has no offloads, and times by whatever the host has.
fn network(bench: &Bench) -> Result<()> {
    let rows = [
        "send-64KiB",
        "receive-16KiB",
        "udp-latency",
        "close-accept",
        "web-64KiB",
    ];
    for (name, words) in [("busy", &["--busy", "--net", "user"][..]), ("card", &[])] {
        let out = folder(bench, name);
        let mut run = causeway(&["bench", "network", "--against", "none", "--runs", "1"]);
        run.arg("--kernel").arg(&bench.fast).arg("--out").arg(&out);
        run.args(words);
        for row in rows {
            run.args(["--rows", row]);
        }
        let output = run.output()?;
        ends(&output, 0, true)?;
        let results = results(&out)?;
        for row in rows {
            let mut found = results.rows.iter().filter(|it| it.id.ends_with(row));
            let has_value = |it: &Row| it.value(0).is_some_and(|value| value > 0.0);
            ensure!(found.any(has_value), "{row}: {}", shown(&output));
        }
    }
    Ok(())
}

/// `--compare` of those results with a copy in which a row is slower.
fn slower(bench: &Bench) -> Result<()> {
    let out = folder(bench, "small");
    let mut changed = results(&out)?;
    let (old, new) = (out.join("results.json"), out.join("slower.json"));
    let compared = || {
        let mut run = causeway(&["bench", "--compare"]);
        run.arg(&old).arg(&new).output()
    };
    changed.write(&new)?;
    ends(&compared()?, 0, true).context("two equal files differ")?;
    for row in changed.rows.iter_mut().filter(|row| row.id == "calls/null") {
        for value in row.runs[0].iter_mut().flatten() {
            *value *= 1.5;
        }
        row.ratio = row.ratio_of(0, 1);
    }
    changed.write(&new)?;
    let output = compared()?;
    let named = text(&output.stdout).contains("calls/null: +50.0%");
    ends(&output, 1, named)
}

/// Runs the small bench, whose first guest is killed at its start.
fn without_a_guest(bench: &Bench, against: &str, out: &Path) -> Result<Output> {
    let mut run = measured(bench, against, out).spawn()?;
    kill_process(guest_of(&mut run)?, Signal::KILL)?;
    Ok(run.wait_with_output()?)
}

/// A guest that is killed loses one experiment; the other is measured, and the results say so.
fn killed(bench: &Bench) -> Result<()> {
    let out = folder(bench, "killed");
    let output = without_a_guest(bench, "none", &out)?;
    let results = results(&out)?;
    let lost = results.failures.first();
    let lost = lost.with_context(|| shown(&output))?;
    let measured = |row: &Row| row.status == Status::Measured && row.experiment() == "process-vm";
    let told = text(&output.stdout).contains("failed: Causeway, pair 1, calls");
    let holds = lost.experiment.as_deref() == Some("calls")
        && lost.why.contains("signal: 9")
        && told
        && results.rows.iter().any(measured);
    ends(&output, 1, holds)
}

/// When one of two guests is killed it is booted anew, and the other goes on: all but one
/// experiment has its ratio.
fn one_killed(bench: &Bench) -> Result<()> {
    let out = folder(bench, "one-killed");
    let output = without_a_guest(bench, "causeway", &out)?;
    let results = results(&out)?;
    let is_whole = |row: &Row| row.experiment() == "process-vm" && row.ratio.is_some();
    let lost = results.row("calls/null");
    let holds = results.failures.len() == 1
        && results.rows.iter().any(is_whole)
        && lost.is_some_and(|row| row.ratio.is_none());
    ends(&output, 1, holds)
}

/// Ctrl-C ends the guest and leaves results.
fn interrupted(bench: &Bench) -> Result<()> {
    let out = folder(bench, "interrupted");
    let mut run = measured(bench, "none", &out).spawn()?;
    let guest = guest_of(&mut run)?;
    kill_process(Pid::from_child(&run), Signal::INT)?;
    let output = run.wait_with_output()?;
    let runs_on = Path::new("/proc").join(guest.to_string()).exists();
    ensure!(!runs_on, "the guest runs on");
    ends(&output, 130, true)?;
    results(&out).map(drop)
}

/// The emulator that a bench has started, once it has.
fn guest_of(bench: &mut Child) -> Result<Pid> {
    let (id, start) = (bench.id(), Instant::now());
    let children = format!("/proc/{id}/task/{id}/children");
    while start.elapsed() < PATIENCE && bench.try_wait().is_ok_and(|ended| ended.is_none()) {
        // Cargo and a QEMU that is asked for its version come first.
        let text = fs::read_to_string(&children).unwrap_or_default();
        for child in text.split_ascii_whitespace() {
            let read =
                |name| fs::read_to_string(format!("/proc/{child}/{name}")).unwrap_or_default();
            if read("comm").starts_with("qemu-system")
                && read("cmdline").contains("bench-init")
                && let Some(child) = child.parse().ok().and_then(Pid::from_raw)
            {
                return Ok(child);
            }
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    bail!("it started no guest")
}
