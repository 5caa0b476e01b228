//! Instruction counts from release to release: the table in `docs/performance.md`, and whether a
//! build keeps to it.
//!
//! With `--icount` a boot is the same every time, so a count is a property of the build: a change
//! of it comes from the source, the compiler, the emulator or the C library inside the guest's
//! program. The table names these beside each release's counts.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::number;
use super::results::{Better, Results};
use crate::compare;
use crate::qemu;

/// The rows of the table: the paths through the kernel that matter, none of which takes long.
pub const ROWS: [&str; 39] = [
    "calls/getpid-syscall",
    "calls/read-zero",
    "calls/stat",
    "calls/open-close",
    "calls/poll-64",
    "signals/self",
    "signals/fault",
    "switches/processes-2-same",
    "switches/yield-process",
    "futex/threads-same",
    "threads/create-join",
    "exec/vfork-least",
    "exec/fork-static",
    "fork/0MiB",
    "fork/1MiB-child-writes",
    "map-fault-unmap/read-private-file",
    "map-fault-unmap/write-private-file",
    "map-fault-unmap/write-zero-fill",
    "map-fault-unmap/untouched",
    "fault-ahead/file-normal",
    "mmap-threads/protect-64-alone",
    "memory-calls/touch-1MiB",
    "memory-calls/touch-64MiB",
    "memory-calls/touch-64MiB-shared",
    "memory-calls/brk-64KiB",
    "process-vm/read-64KiB",
    "pipe/latency",
    "pipe/bandwidth-4KiB",
    "pipe/bandwidth-64KiB",
    "unix-socket/stream-latency",
    "unix-socket/stream-bandwidth-4KiB",
    "tcp-loopback/latency",
    "tcp-loopback/connect-close",
    "splice/vmsplice-64KiB",
    "splice/sendfile-pipe-64KiB",
    "file/write-new-4KiB",
    "file/read-4KiB",
    "file/create-unlink",
    "fbuf/latency-ring-64B",
];

/// How much more a row may take than in the table, as a part, when both were made with the same
/// tools.
pub const TOLERANCE: f64 = 0.03;

/// The tolerance when they were not. Other choices of a compiler about inlining and registers move
/// single rows by a tenth and more in either direction, without any change of the source; this
/// tolerance finds a path through the kernel that does something else.
pub const TOLERANCE_OF_OTHER_TOOLS: f64 = 0.30;

/// The heading under which the file has the table.
const HEADING: &str = "## Instruction counts";
/// The first cells of the line with the releases, and of the line with their tools.
const RELEASES: &str = "row";
const TOOLS: &str = "made with";

/// A release's counts.
#[derive(Clone, PartialEq, Debug)]
pub struct Column {
    /// The release's name.
    pub release: String,
    /// The compiler, the emulator and the C library, which influence the counts.
    pub tools: String,
    /// For each row, instructions for an operation or, of a rate, for a MiB.
    pub counts: BTreeMap<String, f64>,
}

impl Column {
    /// The counts of kernel 0 in results, which are those of this build.
    ///
    /// # Errors
    /// When the compiler does not tell its version.
    pub fn of(results: &Results) -> Result<Self> {
        let counted = |id: &&str| {
            let row = results.row(id)?;
            Some((
                (*id).to_owned(),
                count(row.value(0)?, &row.unit, row.better),
            ))
        };
        Ok(Self {
            release: env!("CARGO_PKG_VERSION").into(),
            tools: tools()?,
            counts: ROWS.iter().filter_map(counted).collect(),
        })
    }
}

/// Converts a value to instructions, each of which takes a nanosecond.
fn count(value: f64, unit: &str, better: Better) -> f64 {
    const SECOND: f64 = 1e9;
    match (unit, better) {
        ("s", _) => value * SECOND,
        (_, Better::More) => SECOND / value,
        (_, Better::Less) => value,
    }
}

/// The tools that decide about counts.
fn tools() -> Result<String> {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    // `rustc 1.95.0 (…)`, `QEMU emulator version 7.2.22 (…)`, `glibc 2.36`.
    let compiler = compare::version(&rustc);
    let compiler = compiler
        .split(' ')
        .nth(1)
        .with_context(|| format!("{rustc} does not tell its version"))?;
    let emulator = compare::version(qemu::QEMU);
    let emulator = emulator.split(' ').nth(3).unwrap_or("?");
    let library = Command::new("getconf").arg("GNU_LIBC_VERSION").output();
    let library = library.map_or_else(
        |_| "?".into(),
        |output| String::from_utf8_lossy(&output.stdout).into_owned(),
    );
    Ok(format!(
        "rustc {compiler}, QEMU {}, {}",
        release_of(emulator),
        library.trim()
    ))
}

/// Returns the first two numbers of a version: the others stand for fixes only.
fn release_of(version: &str) -> String {
    version.split('.').take(2).collect::<Vec<_>>().join(".")
}

/// The whole table, oldest release first.
#[derive(Clone, PartialEq, Debug)]
pub struct Table(Vec<Column>);

impl Table {
    /// Reads it from the file's text.
    ///
    /// # Errors
    /// When there is no such table, or when a cell is no count.
    pub fn parse(text: &str) -> Result<Self> {
        let mut columns: Vec<Column> = Vec::new();
        for line in lines(text)? {
            let mut cells = line.trim().trim_matches('|').split('|').map(str::trim);
            let first = cells.next().unwrap_or_default();
            match first {
                RELEASES => {
                    columns.extend(cells.map(|release| Column {
                        release: release.into(),
                        tools: String::new(),
                        counts: BTreeMap::new(),
                    }));
                }
                TOOLS => {
                    for (column, cell) in columns.iter_mut().zip(cells) {
                        column.tools = cell.into();
                    }
                }
                _ if first.starts_with('-') => {}
                _ => {
                    let row = first.trim_matches('`');
                    for (column, cell) in columns.iter_mut().zip(cells) {
                        let digits = cell.replace(',', "");
                        if digits.is_empty() {
                            continue;
                        }
                        let count = digits.parse().ok().filter(|count: &f64| *count > 0.0);
                        let count =
                            count.with_context(|| format!("{row}: {cell:?} is no count"))?;
                        column.counts.insert(row.into(), count);
                    }
                }
            }
        }
        if columns.is_empty() {
            bail!("the table under {HEADING:?} names no release");
        }
        Ok(Self(columns))
    }

    /// The counts to keep to.
    pub fn last(&self) -> &Column {
        self.0.last().expect("a table has at least one release")
    }

    /// Takes a release's counts in place of those that it has, or as a new last column.
    pub fn put(&mut self, column: Column) {
        self.0.retain(|it| it.release != column.release);
        self.0.push(column);
    }

    /// The file's text with this table in place of the one that it has.
    ///
    /// # Errors
    /// When it has none.
    pub fn written_into(&self, text: &str) -> Result<String> {
        let old = lines(text)?;
        let start = old[0].as_ptr() as usize - text.as_ptr() as usize;
        let last = old[old.len() - 1];
        let end = last.as_ptr() as usize - text.as_ptr() as usize + last.len();
        Ok(format!("{}{}{}", &text[..start], self.text(), &text[end..]))
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |first: &str, cell: &dyn Fn(&Column) -> String| {
            let cells: Vec<String> = self.0.iter().map(cell).collect();
            let _ = writeln!(text, "| {first} | {} |", cells.join(" | "));
        };
        line(RELEASES, &|column| column.release.clone());
        line("---", &|_| "---:".into());
        line(TOOLS, &|column| column.tools.clone());
        for row in ROWS {
            line(&format!("`{row}`"), &|column| {
                let count = column.counts.get(row);
                count.map_or(String::new(), |count| number::digits(*count))
            });
        }
        text.trim_end().into()
    }
}

/// The lines of the table, at least one.
fn lines(text: &str) -> Result<Vec<&str>> {
    let (_, part) = text
        .split_once(HEADING)
        .with_context(|| format!("no heading {HEADING:?}"))?;
    let lines: Vec<&str> = part
        .lines()
        .skip(1)
        .take_while(|line| !line.starts_with('#'))
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'))
        .collect();
    if lines.is_empty() {
        bail!("no table under {HEADING:?}");
    }
    Ok(lines)
}

/// The change of a row since the table was written.
#[derive(Clone, PartialEq, Debug)]
pub enum Verdict {
    /// It takes as much as it did, within the tolerance.
    Kept,
    /// It takes less by more than the tolerance.
    Less,
    /// It takes more by more than the tolerance.
    More,
    /// It gives no count any more.
    Lost,
    /// The table has no count to compare it with.
    New,
}

/// A row, the counts of the table and of the build, and the verdict.
#[derive(Clone, PartialEq, Debug)]
pub struct Judgement {
    pub row: &'static str,
    pub old: Option<f64>,
    pub new: Option<f64>,
    pub verdict: Verdict,
}

impl std::fmt::Display for Judgement {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let digits = |count: Option<f64>| count.map_or_else(|| "nothing".into(), number::digits);
        write!(f, "{}: ", self.row)?;
        match (self.old, self.new) {
            (Some(old), Some(new)) => write!(
                f,
                "{} instructions, {:+.1}% of the table's {}",
                digits(self.new),
                (new / old - 1.0) * 100.0,
                digits(self.old)
            ),
            _ => write!(
                f,
                "{}, the table has {}",
                digits(self.new),
                digits(self.old)
            ),
        }
    }
}

/// How much a build may take more than a release: less when both were made with the same tools.
pub fn tolerance(old: &Column, new: &Column) -> f64 {
    if old.tools == new.tools {
        TOLERANCE
    } else {
        TOLERANCE_OF_OTHER_TOOLS
    }
}

/// Each row's judgement.
pub fn judge(old: &Column, new: &Column) -> Vec<Judgement> {
    let tolerance = tolerance(old, new);
    let judged = |row: &'static str| {
        let (old, new) = (old.counts.get(row).copied(), new.counts.get(row).copied());
        let verdict = match (old, new) {
            (_, None) => Verdict::Lost,
            (None, Some(_)) => Verdict::New,
            (Some(old), Some(new)) if new > old * (1.0 + tolerance) => Verdict::More,
            (Some(old), Some(new)) if new < old * (1.0 - tolerance) => Verdict::Less,
            _ => Verdict::Kept,
        };
        Judgement {
            row,
            old,
            new,
            verdict,
        }
    };
    ROWS.into_iter().map(judged).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::results::tests::example;

    const FILE: &str = "# Figures\n\n## Instruction counts\n\nHow, and why.\n\n\
        | row | 0.1.0 | 0.2.0 |\n| --- | ---: | ---: |\n\
        | made with | rustc 1.0 | rustc 1.1 |\n\
        | `calls/stat` | 2,985 | 2,000.5 |\n| `signals/self` |  | 4,332 |\n\n## Next\n\n| row | x |\n";

    fn column(release: &str, counts: &[(&str, f64)]) -> Column {
        Column {
            release: release.into(),
            tools: "rustc 1.1".into(),
            counts: counts
                .iter()
                .map(|(row, count)| ((*row).into(), *count))
                .collect(),
        }
    }

    #[test]
    fn the_table_is_read_and_written() {
        let mut table = Table::parse(FILE).unwrap();
        assert_eq!(table.0[0].counts, [("calls/stat".into(), 2985.0)].into());
        assert_eq!(table.last().release, "0.2.0");
        assert_eq!(table.last().tools, "rustc 1.1");
        assert_eq!(table.last().counts["calls/stat"], 2000.5);
        table.put(column("0.3.0", &[("calls/stat", 1000.0)]));
        let text = table.written_into(FILE).unwrap();
        assert!(text.starts_with("# Figures\n\n## Instruction counts\n\nHow"));
        assert!(text.ends_with("|\n\n## Next\n\n| row | x |\n"), "{text}");
        assert_eq!(Table::parse(&text).unwrap().last(), table.last());
        // The same release again has one column.
        table.put(column("0.3.0", &[("calls/stat", 900.0)]));
        assert_eq!(
            (table.0.len(), table.last().counts["calls/stat"]),
            (3, 900.0)
        );
    }

    #[test]
    fn what_is_no_table_is_refused() {
        for text in [
            "",
            "## Instruction counts\n\n## Next\n| row | 1 |\n",
            &FILE.replace("2,000.5", "fast"),
            &FILE.replace("| row |", "| line |"),
        ] {
            assert!(Table::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn more_than_the_tolerance_is_a_regression_and_less_is_said() {
        let old = column("1", &[("calls/stat", 1000.0), ("calls/read-zero", 10.0)]);
        let verdict = |count: f64| {
            let new = column("2", &[("calls/stat", count), ("signals/self", 1.0)]);
            let of = |row| {
                let all = judge(&old, &new);
                all.into_iter().find(|it| it.row == row).unwrap().verdict
            };
            assert_eq!(of("calls/read-zero"), Verdict::Lost);
            assert_eq!(of("signals/self"), Verdict::New);
            of("calls/stat")
        };
        assert_eq!(verdict(1030.0), Verdict::Kept);
        assert_eq!(verdict(1030.1), Verdict::More);
        assert_eq!(verdict(970.0), Verdict::Kept);
        assert_eq!(verdict(969.9), Verdict::Less);
    }

    #[test]
    fn other_tools_have_another_tolerance() {
        let old = column("1", &[("calls/stat", 1000.0)]);
        let mut new = column("2", &[("calls/stat", 1200.0)]);
        let verdict = |new: &Column| {
            let all = judge(&old, new);
            all.into_iter().find(|it| it.row == "calls/stat").unwrap()
        };
        assert_eq!(verdict(&new).verdict, Verdict::More);
        assert!(verdict(&new).to_string().contains("+20.0%"));
        new.tools = "rustc 2".into();
        assert_eq!(verdict(&new).verdict, Verdict::Kept);
    }

    #[test]
    fn rates_are_instructions_for_a_mebibyte() {
        assert_eq!(count(250.0, "MiB/s", Better::More), 4e6);
        assert_eq!(count(20_000.0, "ops/s", Better::More), 50_000.0);
        assert_eq!(count(0.5, "s", Better::Less), 5e8);
        assert_eq!(count(236.0, "ns", Better::Less), 236.0);
        assert_eq!(release_of("7.2.22"), "7.2");
        let mut results = example();
        results.rows[0].id = "fork/0MiB".into();
        assert_eq!(
            Column::of(&results).unwrap().counts,
            [("fork/0MiB".into(), 500.0)].into()
        );
    }
}
