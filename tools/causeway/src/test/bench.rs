//! `causeway bench` as a user calls it: a table, results and a report; a wrong name; a guest that is killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::Report;
use super::boot::Bench;
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
    report.run("bench: a wrong name", || {
        let output = finished(command(&["bench", "frok"]))?;
        let errors = String::from_utf8_lossy(&output.stderr);
        if output.status.code() == Some(outcome::FAILURE.into()) && errors.contains("fork") {
            Ok(())
        } else {
            Err(format!("{}: {errors}", output.status))
        }
    });
    report.run("bench: a guest is killed", || killed(bench));
    report.run("bench: one of two guests is killed", || one_killed(bench));
    report.run("bench: Ctrl-C", || interrupted(bench));
}

/// The folder for a bench's files.
fn folder(bench: &Bench, name: &str) -> PathBuf {
    bench.path(&format!("bench-{name}"))
}

fn command(words: &[&str]) -> Command {
    let program = std::env::current_exe().unwrap_or_else(|_| "causeway".into());
    let mut command = Command::new(program);
    command
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// A bench of the small experiments, with the kernel that is built already.
fn measured(bench: &Bench, against: &str, out: &Path) -> Command {
    let mut command = command(&["bench", "--against", against]);
    command
        .arg("--kernel")
        .arg(&bench.fast)
        .arg("--out")
        .arg(out)
        .args(SMALL);
    command
}

fn finished(mut command: Command) -> Result<Output, String> {
    command.output().map_err(|error| error.to_string())
}

fn results(folder: &Path) -> Result<Results, String> {
    Results::read(&folder.join("results.json")).map_err(|error| format!("{error:#}"))
}

/// A table, results that the schema allows, and a report.
fn small(bench: &Bench) -> Result<(), String> {
    let out = folder(bench, "small");
    let output = finished(measured(bench, "causeway", &out))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let all = || {
        format!(
            "{}\n{text}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        )
    };
    if !output.status.success() {
        return Err(all());
    }
    let results = results(&out)?;
    let row = results.row("calls/null").ok_or_else(all)?;
    if row.ratio.is_none()
        || !results
            .rows
            .iter()
            .any(|row| row.experiment() == "process-vm")
    {
        return Err(format!("rows or ratios are missing: {}", all()));
    }
    if !(text.contains("null") && text.contains("ratio") && text.contains("system_calls 1.00")) {
        return Err(format!("no table: {text}"));
    }
    let report = fs::read_to_string(out.join("report.html"))
        .map_err(|error| format!("the report: {error}"))?;
    if report.contains("calls/null") || report.contains("process-vm") {
        Ok(())
    } else {
        Err(format!("the report, {} bytes, names no row", report.len()))
    }
}

/// `--compare` of those results with a copy in which a row is slower.
fn slower(bench: &Bench) -> Result<(), String> {
    let out = folder(bench, "small");
    let mut changed = results(&out)?;
    let (old, new) = (out.join("results.json"), out.join("slower.json"));
    let compared = || {
        let mut run = command(&["bench", "--compare"]);
        run.arg(&old).arg(&new);
        finished(run)
    };
    changed.write(&new).map_err(|error| format!("{error:#}"))?;
    let same = compared()?;
    if !same.status.success() {
        return Err(format!(
            "two equal files differ: {}",
            String::from_utf8_lossy(&same.stdout)
        ));
    }
    for row in changed.rows.iter_mut().filter(|row| row.id == "calls/null") {
        for value in row.runs[0].iter_mut().flatten() {
            *value *= 1.5;
        }
        row.ratio = row.ratio_of(0, 1);
    }
    changed.write(&new).map_err(|error| format!("{error:#}"))?;
    let output = compared()?;
    let text = String::from_utf8_lossy(&output.stdout);
    if output.status.code() == Some(1) && text.contains("calls/null: +50.0%") {
        Ok(())
    } else {
        Err(format!("{}: {text}", output.status))
    }
}

/// The small bench, whose first guest is killed as soon as there is one.
fn without_a_guest(bench: &Bench, against: &str, out: &Path) -> Result<Output, String> {
    let mut run = measured(bench, against, out)
        .spawn()
        .map_err(|error| error.to_string())?;
    let guest = guest_of(&mut run)?;
    kill_process(guest, Signal::KILL).map_err(|error| error.to_string())?;
    run.wait_with_output().map_err(|error| error.to_string())
}

/// A guest that is killed loses one experiment; the other is measured, and the results say so.
fn killed(bench: &Bench) -> Result<(), String> {
    let out = folder(bench, "killed");
    let output = without_a_guest(bench, "none", &out)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let all = || {
        format!(
            "{}\n{text}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        )
    };
    let results = results(&out)?;
    let lost = results.failures.first().ok_or_else(all)?;
    let measured = results
        .rows
        .iter()
        .filter(|row| row.status == Status::Measured);
    if output.status.code() == Some(1)
        && lost.experiment.as_deref() == Some("calls")
        && lost.why.contains("signal: 9")
        && text.contains("failed: Causeway, pair 1, calls")
        && measured.clone().any(|row| row.experiment() == "process-vm")
    {
        Ok(())
    } else {
        Err(all())
    }
}

/// When one of two guests is killed it is booted anew, and the other goes on: all but one experiment has its ratio.
fn one_killed(bench: &Bench) -> Result<(), String> {
    let out = folder(bench, "one-killed");
    let output = without_a_guest(bench, "causeway", &out)?;
    let results = results(&out)?;
    let whole = |row: &&Row| row.experiment() == "process-vm" && row.ratio.is_some();
    if output.status.code() == Some(1)
        && results.failures.len() == 1
        && results.rows.iter().any(|row| whole(&row))
        && results
            .row("calls/null")
            .is_some_and(|row| row.ratio.is_none())
    {
        Ok(())
    } else {
        Err(format!(
            "{}\n{}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        ))
    }
}

/// Ctrl-C ends the guest and leaves results.
fn interrupted(bench: &Bench) -> Result<(), String> {
    let out = folder(bench, "interrupted");
    let mut run = measured(bench, "none", &out)
        .spawn()
        .map_err(|error| error.to_string())?;
    let guest = guest_of(&mut run)?;
    kill_process(Pid::from_child(&run), Signal::INT).map_err(|error| error.to_string())?;
    let output = run.wait_with_output().map_err(|error| error.to_string())?;
    if Path::new("/proc").join(guest.to_string()).exists() {
        return Err("the guest runs on".into());
    }
    if output.status.code() != Some(130) {
        return Err(format!(
            "{}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    results(&out).map(drop)
}

/// The emulator that a bench has started, once it has.
fn guest_of(bench: &mut Child) -> Result<Pid, String> {
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
    Err("it started no guest".into())
}
