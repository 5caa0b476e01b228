//! The workspace's own tests, and the format and lints of the code: beside the guests in
//! `causeway test`, and by themselves in `causeway check`.
//!
//! All of it needs processors only, and its clock is a simulated one. So `causeway test` runs it
//! beside the guests, of which most leave a processor idle: load on the host cannot make it fail.
//! The tests have the guests' priority: tasks of a simulated machine take turns at each step, and
//! behind guests each turn would wait for a time slice. The lints have a low one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::Value;

use super::boot::text;
use super::{Report, side_by_side};
use crate::project;

/// Runs them; `is_tested` becomes true when only lints are left.
///
/// # Errors
/// When there is no cargo.
pub fn run(report: &mut Report, is_tested: &AtomicBool) -> Result<()> {
    let home = project::home()?;
    if report.wants("host: tests of the workspace") {
        tests(report, &home, &["--workspace"])?;
    }
    // By memfds, on the host's own Linux.
    if cfg!(target_os = "linux") && report.wants("host: tests of libfbuf and netserver") {
        let packages = ["--package", "libfbuf", "--package", "netserver"];
        tests(report, &home.join("user"), &packages)?;
    }
    is_tested.store(true, Ordering::Relaxed);
    if report.wants("host: format and lints") {
        lints(report, &home);
    }
    Ok(())
}

/// Runs the tests of packages of a workspace.
fn tests(report: &mut Report, workspace: &Path, packages: &[&str]) -> Result<()> {
    let output = project::cargo(workspace)
        .arg("test")
        .args(packages)
        // All of them: a failure of one crate says nothing of the next.
        .args(["--quiet", "--no-fail-fast"])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    let text = text(&output.stdout);
    let [passed, failed] = counts(&text);
    println!("{passed} of {} host tests passed", passed + failed);
    report.passed(passed);
    if !output.status.success() {
        println!("{text}");
        let why = anyhow!("{failed} failed, {}", output.status);
        report.note("host tests", Err(why));
    }
    Ok(())
}

/// How many tests passed and failed by the lines of test programs.
fn counts(text: &str) -> [u32; 2] {
    ["passed", "failed"].map(|what| {
        let lines = text.lines().filter(|line| line.starts_with("test result:"));
        let count = |line: &str| {
            let words: Vec<_> = line.split_whitespace().collect();
            let at = words
                .iter()
                .position(|it| it.trim_end_matches(';') == what)?;
            words.get(at - 1)?.parse::<u32>().ok()
        };
        lines.filter_map(count).sum()
    })
}

/// Runs rustfmt and clippy on the workspace, the kernel and the guest programs.
fn lints(report: &mut Report, home: &Path) {
    let user = &home.join("user");
    let target = ["--package", "kernel", "--target", project::TARGET];
    let all = ["--workspace", "--all-targets"];
    for (name, folder, helper, words) in [
        ("format", home, "fmt", &["--all", "--check"][..]),
        (
            "format of the guest programs",
            user,
            "fmt",
            &["--all", "--check"],
        ),
        ("lints", home, "clippy", &all),
        ("lints of the kernel", home, "clippy", &target),
        ("lints of the guest programs", user, "clippy", &all),
    ] {
        let name = format!("host: {name}");
        if !has(helper) {
            println!("skip: {name}: this Rust has no cargo {helper}");
            continue;
        }
        if words.contains(&"--target") && !project::has_target() {
            println!("skip: {name}: this Rust has the kernel's library as source only");
            continue;
        }
        let mut command = project::cargo_at_low_priority(folder);
        command.arg(helper).args(words);
        if helper == "clippy" {
            command.args(["--quiet", "--", "-D", "warnings"]);
        }
        report.run(&name, || {
            let output = command.stdin(Stdio::null()).output()?;
            if !output.status.success() {
                print!("{}", text(&output.stdout));
                eprint!("{}", text(&output.stderr));
                bail!("cargo {helper} {} in {}", words.join(" "), folder.display());
            }
            Ok(())
        });
    }
}

/// Whether cargo has this helper.
fn has(helper: &str) -> bool {
    Command::new("cargo")
        .args([helper, "--version"])
        .output()
        .is_ok_and(|output| output.status.success())
}

/// `causeway check`: the format, the lints, and those host tests that may have another outcome than
/// the last time. Returns the exit status.
///
/// A test program that passed is not run again until cargo has built it anew: its machine is a
/// simulated one, and its seeds are fixed. `all` runs every one.
///
/// # Errors
/// When there is no cargo, or the tests do not build.
pub fn check(all: bool) -> Result<u8> {
    let home = project::home()?;
    let mut report = Report::new(&[]);
    lints(&mut report, &home);
    let programs = Program::build_all(&home)?;
    let (due, kept): (Vec<_>, Vec<_>) = programs.into_iter().partition(|it| all || it.is_due());
    let queue = Mutex::new(due.into_iter());
    let shared = Mutex::new(&mut report);
    let runners = vec![(); std::thread::available_parallelism().map_or(1, usize::from)];
    side_by_side(&runners, |()| {
        loop {
            let next = queue.lock().map(|mut queue| queue.next());
            let Ok(Some(program)) = next else {
                return Ok(());
            };
            let (begin, outcome) = (Instant::now(), program.run());
            let seconds = begin.elapsed().as_secs_f64();
            if let Ok(mut report) = shared.lock() {
                report.note(&format!("{} ({seconds:.1} s)", program.name), outcome);
            }
        }
    });
    if !kept.is_empty() {
        println!(
            "{} test programs passed before and are the same",
            kept.len()
        );
    }
    report.summary()
}

/// A test program of the workspace.
struct Program {
    name: String,
    file: PathBuf,
    /// The package's folder, in which it runs.
    folder: PathBuf,
    is_of_tools: bool,
    /// A file that is newer than the program once it has passed.
    stamp: PathBuf,
}

impl Program {
    /// Builds the test programs of the workspace.
    fn build_all(home: &Path) -> Result<Vec<Self>> {
        let output = project::cargo(home)
            .args(["test", "--workspace", "--no-run", "--quiet"])
            .args(["--message-format", "json-render-diagnostics"])
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .context("cannot run cargo")?;
        ensure!(output.status.success(), "the tests do not build");
        let stamps = home.join("target/checked-tests");
        fs::create_dir_all(&stamps)?;
        let text = text(&output.stdout);
        let messages = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        Ok(messages
            .filter_map(|it: Value| {
                let file = PathBuf::from(it["executable"].as_str()?);
                let folder = Path::new(it["manifest_path"].as_str()?).parent()?;
                let package = folder.file_name()?.to_str()?;
                it["profile"]["test"].as_bool()?.then(|| Self {
                    name: format!(
                        "{package}: {}",
                        it["target"]["name"].as_str().unwrap_or("?")
                    ),
                    stamp: stamps.join(file.file_name().unwrap_or_default()),
                    folder: folder.into(),
                    is_of_tools: folder.starts_with(home.join("tools")),
                    file,
                })
            })
            .collect())
    }

    /// Whether it has not passed since it was built. Tests of the tools read other files than their
    /// sources, so those are always run.
    fn is_due(&self) -> bool {
        let time = |file: &Path| fs::metadata(file).and_then(|it| it.modified()).ok();
        let has_passed = time(&self.stamp).is_some_and(|passed| Some(passed) > time(&self.file));
        !has_passed || self.is_of_tools
    }

    fn run(&self) -> Result<()> {
        let output = Command::new("nice")
            .arg(&self.file)
            .arg("--quiet")
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .stdin(Stdio::null())
            .output()?;
        let errors = text(&output.stderr);
        ensure!(
            output.status.success(),
            "{}\n{errors}",
            text(&output.stdout)
        );
        Ok(fs::write(&self.stamp, "")?)
    }
}
