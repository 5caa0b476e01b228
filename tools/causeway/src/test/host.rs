//! The workspace's own tests, and what the compiler and its helpers think of the code.
//!
//! All of it is work for processors alone, whose only clock is a simulated one. So it is done beside the guests, of which most leave a processor
//! idle: nobody's load makes it fail, and at its low priority it delays them little.

use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::Report;
use crate::project;

/// Runs them.
///
/// # Errors
/// When there is no cargo.
pub fn run(report: &mut Report) -> Result<()> {
    let home = project::home()?;
    if report.wants("host: tests of the workspace") {
        let output = project::cargo_at_low_priority(&home)
            .args(["test", "--workspace", "--quiet"])
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .context("cannot run cargo")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let (mut passed, mut failed) = (0, 0);
        for line in text.lines().filter(|line| line.starts_with("test result:")) {
            let count = |what: &str| -> u32 {
                let words: Vec<_> = line.split_whitespace().collect();
                let at = words
                    .iter()
                    .position(|word| word.trim_end_matches(';') == what);
                at.and_then(|at| words.get(at - 1)?.parse().ok())
                    .unwrap_or(0)
            };
            passed += count("passed");
            failed += count("failed");
        }
        println!("{passed} of {} host tests passed", passed + failed);
        report.passed(passed);
        if !output.status.success() {
            println!("{text}");
            report.note(
                "host tests",
                Err(format!("{failed} failed, {}", output.status)),
            );
        }
    }
    if report.wants("host: format and lints") {
        let user = home.join("user");
        let kernel = ["--package", "kernel", "--target", project::TARGET];
        for (name, folder, words) in [
            ("host: format", &home, vec!["fmt", "--all", "--check"]),
            (
                "host: format of the guest programs",
                &user,
                vec!["fmt", "--all", "--check"],
            ),
            (
                "host: lints",
                &home,
                vec!["clippy", "--quiet", "--workspace", "--all-targets"],
            ),
            (
                "host: lints of the kernel",
                &home,
                [&["clippy", "--quiet"][..], &kernel].concat(),
            ),
            (
                "host: lints of the guest programs",
                &user,
                vec!["clippy", "--quiet", "--all-targets"],
            ),
        ] {
            if !has(words[0]) {
                println!("skip: {name}: this Rust has no cargo {}", words[0]);
                continue;
            }
            if words.contains(&"--target") && !project::has_target() {
                println!("skip: {name}: this Rust has the kernel's library as source only");
                continue;
            }
            let mut command = project::cargo_at_low_priority(folder);
            command.args(&words);
            if words[0] == "clippy" {
                command.args(["--", "-D", "warnings"]);
            }
            report.run(name, || {
                let output = command
                    .stdin(Stdio::null())
                    .output()
                    .map_err(|e| e.to_string())?;
                if output.status.success() {
                    return Ok(());
                }
                print!("{}", String::from_utf8_lossy(&output.stdout));
                eprint!("{}", String::from_utf8_lossy(&output.stderr));
                Err(format!("cargo {} in {}", words.join(" "), folder.display()))
            });
        }
    }
    Ok(())
}

/// Whether cargo has this helper.
fn has(helper: &str) -> bool {
    Command::new("cargo")
        .args([helper, "--version"])
        .output()
        .is_ok_and(|output| output.status.success())
}
