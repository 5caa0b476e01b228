//! Cache lines that CPUs share: the operations that share few go on doing so.

use std::fs;

use anyhow::{Context, Result, anyhow, ensure};

use super::Report;
use super::boot::{Bench, causeway, shown, text};
use crate::bench::sharing::read_table;
use crate::project;

/// The file that has the table, and the heading above it.
const FILE: &str = "docs/performance.md";
const HEADING: &str = "## Sharing";

/// The rows that are looked at: the others vary with how the host runs the guest's CPUs.
const ROWS: [&str; 12] = [
    "getppid",
    "open-close",
    "stat",
    "pread",
    "pipe",
    "unix-socket",
    "tcp",
    "futex-threads",
    "epoll",
    "signal",
    "timer",
    "kill",
];

/// What a row may have: so many times its accesses in the table, and so many more.
const TIMES: f64 = 1.5;
const MORE: f64 = 3.0;
/// More in rows whose operation takes a page and gives it back: two CPUs whose pages lie beside
/// each other have these pages' records in one cache line, which makes 4.5 accesses (one run in
/// six).
const WITH_A_PAGE: [&str; 2] = ["pipe", "unix-socket"];
const MORE_WITH_A_PAGE: f64 = 6.0;

/// Runs them.
pub fn run(bench: &Bench, report: &mut Report) {
    if !report.wants("sharing: cache lines") {
        return;
    }
    let read = || -> Result<[Vec<(String, f64)>; 2]> {
        let file = fs::read_to_string(project::home()?.join(FILE))?;
        let (_, part) = file
            .split_once(HEADING)
            .with_context(|| format!("{FILE} has no heading {HEADING:?}"))?;
        let mut command = causeway(&["bench", "--sharing", "--smp", "4", "--against", "none"]);
        let output = command
            .args(ROWS)
            .arg("--kernel")
            .arg(&bench.fast)
            .output()?;
        ensure!(output.status.success(), "{}", shown(&output));
        Ok([read_table(part), read_table(&text(&output.stdout))])
    };
    let [old, new] = match read() {
        Ok(tables) => tables,
        Err(why) => return report.note("sharing: a boot", Err(why)),
    };
    let find = |table: &[(String, f64)], row: &str| {
        let found = table.iter().find(|(name, _)| name == row);
        found.map(|(_, shared)| *shared)
    };
    for row in ROWS {
        let more = match WITH_A_PAGE.contains(&row) {
            true => MORE_WITH_A_PAGE,
            false => MORE,
        };
        let outcome = match (find(&old, row), find(&new, row)) {
            (Some(old), Some(new)) if new <= old * TIMES + more => Ok(()),
            (Some(old), Some(new)) => Err(anyhow!(
                "{new} accesses to shared lines, {old} in the table of {FILE}: \
                 `causeway bench --sharing --smp 4 {row}` says where"
            )),
            _ => Err(anyhow!("no count, or none in the table of {FILE}")),
        };
        report.note(&format!("sharing: {row}"), outcome);
    }
}
