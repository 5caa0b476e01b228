//! Instruction counts: they repeat, this build keeps to the table of the last release, and a
//! planted slowdown of a call or a fault is found.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, ensure};

use super::Report;
use super::boot::{Bench, causeway, shown, text};
use crate::bench::icount::{self, Column, ROWS, Table, Verdict};
use crate::bench::results::Results;
use crate::project;

/// The file that has the table.
const FILE: &str = "docs/performance.md";

/// The threshold of `--compare` in percent: a tenth of the planted slowdowns.
const THRESHOLD: &str = "1";

/// A slowdown that makes a path longer, a row that must show it, and rows that must not.
const PLANTED: [(&str, &str, &[&str]); 2] = [
    (
        "fault_injection=slow-calls",
        "calls/getpid-syscall",
        &["memory-calls/touch-1MiB", "splice/sendfile-pipe-64KiB"],
    ),
    (
        "fault_injection=slow-faults",
        "map-fault-unmap/write-zero-fill",
        &["calls/getpid-syscall", "pipe/latency"],
    ),
];

/// Runs them; with `update` the table gets this build's counts, and judges none.
pub fn run(bench: &Bench, report: &mut Report, update: bool) {
    if !report.wants("icount: instruction counts") {
        return;
    }
    let first = match counted(bench, "first", &[]) {
        Ok(first) => first,
        Err(why) => return report.note("icount: a boot", Err(why)),
    };
    if update {
        return report.note("icount: the table is written anew", written(&first));
    }
    report.run("icount: counts repeat to the digit", || {
        let second = counted(bench, "second", &[])?;
        same(&first, &second)
    });
    kept(&first, report);
    for (slowdown, found, others) in PLANTED {
        report.run(&format!("icount: {slowdown} is found"), || {
            counted(bench, slowdown, &["--append", slowdown])?;
            planted(bench, slowdown, found, others)
        });
    }
}

/// The folder for the results of a boot.
fn folder(bench: &Bench, name: &str) -> PathBuf {
    bench.path(&format!("icount-{name}"))
}

/// Counts the rows in a boot of the fast kernel.
fn counted(bench: &Bench, name: &str, more: &[&str]) -> Result<Results> {
    let mut words = vec!["bench", "--icount", "--against", "none"];
    let mut experiments: Vec<&str> = ROWS
        .iter()
        .filter_map(|row| row.split('/').next())
        .collect();
    experiments.dedup();
    words.extend(experiments);
    for row in ROWS {
        words.extend(["--rows", row]);
    }
    words.extend(more);
    let (kernel, folder) = (&bench.fast, folder(bench, name));
    let mut command = causeway(&words);
    command
        .arg("--kernel")
        .arg(kernel)
        .arg("--out")
        .arg(&folder);
    let output = command.output()?;
    ensure!(output.status.success(), "{}", shown(&output));
    Results::read(&folder.join("results.json"))
}

/// Whether two boots had the same values and the same events.
fn same(first: &Results, second: &Results) -> Result<()> {
    let differ: Vec<String> = first
        .rows
        .iter()
        .filter(|row| second.row(&row.id) != Some(row))
        .map(|row| {
            let again = second.row(&row.id).and_then(|row| row.value(0));
            format!("{}: {:?}, then {again:?}", row.id, row.value(0))
        })
        .collect();
    ensure!(differ.is_empty(), "{}", differ.join("; "));
    Ok(())
}

/// Notes for each row whether it keeps to the table.
fn kept(results: &Results, report: &mut Report) {
    let read = || -> Result<(Table, Column)> {
        let text = fs::read_to_string(project::home()?.join(FILE))?;
        Ok((Table::parse(&text)?, Column::of(results)?))
    };
    let (table, new) = match read() {
        Ok(read) => read,
        Err(error) => return report.note("icount: the table", Err(error)),
    };
    let old = table.last();
    if old.tools != new.tools {
        println!(
            "  the table's counts are of {}, these of {}: up to {:.0}% more is allowed in place of {:.0}%",
            old.tools,
            new.tools,
            icount::TOLERANCE_OF_OTHER_TOOLS * 100.0,
            icount::TOLERANCE * 100.0
        );
    }
    let mut stale = false;
    for it in icount::judge(old, &new) {
        stale |= matches!(it.verdict, Verdict::Less | Verdict::New);
        match it.verdict {
            Verdict::Kept | Verdict::Less | Verdict::New => {
                report.note(&format!("icount: {it}"), Ok(()));
            }
            Verdict::More => report.note(
                &format!("icount: {}", it.row),
                Err(anyhow!(
                    "{it} ({}): mend it, or say why it has to be and write the table anew by \
                     `causeway test --counts`",
                    old.release
                )),
            ),
            Verdict::Lost => report.note(
                &format!("icount: {}", it.row),
                Err(anyhow!("the guest's bench measures it no more")),
            ),
        }
    }
    if stale {
        println!(
            "  {FILE} is behind: rows take less than it says, or are new. `causeway test --counts` writes it anew, so \
             that what was gained is kept"
        );
    }
}

/// Whether the comparison with the plain kernel names the row that a slowdown makes longer, as one
/// beyond the threshold, and not the others.
fn planted(bench: &Bench, slowdown: &str, found: &str, others: &[&str]) -> Result<()> {
    let [plain, slow] = ["first", slowdown].map(|name| folder(bench, name).join("results.json"));
    let words = ["bench", "--threshold", THRESHOLD, "--compare"];
    let output = causeway(&words).arg(&plain).arg(&slow).output()?;
    let text = text(&output.stdout);
    let names = |row: &str| {
        let beyond = |line: &str| line.trim().starts_with(&format!("{row}: +"));
        text.lines()
            .any(|line| beyond(line) && line.contains("beyond"))
    };
    let others = others.iter().any(|row| names(row));
    ensure!(
        output.status.code() == Some(1) && names(found) && !others,
        "{}: {text}",
        output.status
    );
    // The table's tolerance finds it, too.
    let column = |file: &Path| Column::of(&Results::read(file)?);
    let judged = icount::judge(&column(&plain)?, &column(&slow)?);
    let verdict = judged.iter().find(|it| it.row == found);
    ensure!(
        verdict.is_some_and(|it| matches!(it.verdict, Verdict::More)),
        "the table lets it pass: {verdict:?}"
    );
    Ok(())
}

/// Writes the table with this build's counts.
fn written(results: &Results) -> Result<()> {
    let file = project::home()?.join(FILE);
    let text = fs::read_to_string(&file)?;
    let mut table = Table::parse(&text)?;
    table.put(Column::of(results)?);
    Ok(fs::write(&file, table.written_into(&text)?)?)
}
