//! `causeway bench --sharing`: how often the kernel accesses cache lines that another CPU writes.
//!
//! The guest's experiment `sharing` does one operation on all CPUs at once, and the emulator's
//! plugin writes down which lines of memory the kernel touches meanwhile. Two processors cannot
//! time sixty-four, but an operation that touches no shared line takes as long on each of them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};
use signal_hook::consts::SIGINT;

use super::lines::Line;
use super::machine::{Course, Side, Stage, System};
use super::options::Bench;
use super::shared_lines::Part;
use super::{names, sides, stop_by_signal};
use crate::compare::Ground;
use crate::outcome;
use crate::profile::{Detail, Plugin};
use crate::project::{self, Profile};
use crate::qemu::{self, Accelerator};
use crate::root::Root;
use crate::run;
use crate::symbols::Functions;

/// The guest's experiment.
const EXPERIMENT: &str = "sharing";

/// CPUs of the machines.
const CPUS: [u32; 4] = [2, 4, 8, 16];

/// The instructions of a row that are shown.
const SHOWN: usize = 6;

/// The accesses to shared lines that an operation may have at most, by row; all others may have 2.
const GOALS: [(&str, f64); 8] = [
    ("map-threads", 20.0),
    ("dontneed-threads", 20.0),
    ("protect-threads", 20.0),
    ("create-unlink", 20.0),
    ("rename", 20.0),
    ("clone", 500.0),
    ("fork", 500.0),
    ("exec", 500.0),
];
const GOAL: f64 = 2.0;

/// Where the direct map and the kernel's image are in a kernel that is not moved.
const DIRECT_MAP: std::ops::Range<u64> = 0xffff_8000_0000_0000..0xffff_c000_0000_0000;
const IMAGE: u64 = 0xffff_ffff_8000_0000;

/// What was counted in a row.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its name, without the experiment's.
    pub name: String,
    /// Operations that all CPUs did together.
    operations: f64,
    part: Part,
}

impl Row {
    /// Returns accesses to shared lines in one operation.
    pub fn shared(&self) -> f64 {
        self.part.shared as f64 / self.operations
    }

    /// Returns all accesses in one operation.
    pub fn all(&self) -> f64 {
        self.part.all as f64 / self.operations
    }

    /// Returns how many of the former there may be at most.
    pub fn goal(&self) -> f64 {
        let own = GOALS.iter().find(|(name, _)| *name == self.name);
        own.map_or(GOAL, |(_, goal)| *goal)
    }
}

/// The rows of a kernel, or why there is no number: in the order in which they were counted.
pub type Rows = Vec<(String, Result<Row, String>)>;

/// Counts, prints the tables, and returns the exit status.
///
/// # Errors
/// When something cannot be built or started, or a name is wrong.
pub fn bench(options: &Bench) -> Result<u8> {
    let stop = stop_by_signal()?;
    let home = project::home()?;
    let kernel = run::kernel_of(options.kernel.as_deref(), Profile::Release)?;
    let sides = sides(options, &home, &kernel)?;
    let counts = match options.smp {
        Some(cpus) => vec![cpus],
        None => CPUS.to_vec(),
    };
    if counts.contains(&1) {
        bail!("one CPU shares nothing: --smp wants 2 or more");
    }
    let mut columns = Vec::new();
    for cpus in counts {
        for side in &sides {
            eprintln!("{} with {cpus} CPUs", side.kernel.name);
            let rows = count(side, cpus, options, &stop)?;
            columns.push((side.clone(), cpus, rows));
            if stop.load(Ordering::SeqCst) {
                break;
            }
        }
    }
    println!("{}", table(&columns));
    for (side, cpus, rows) in &columns {
        if let System::Causeway { file, .. } = &side.system {
            let functions = Functions::of(file)?;
            println!("{}", places(*cpus, rows, &functions));
        }
    }
    let has_failed = |rows: &Rows| rows.is_empty() || rows.iter().any(|(_, row)| row.is_err());
    Ok(match stop.load(Ordering::SeqCst) {
        true => outcome::SIGNAL + SIGINT as u8,
        false => u8::from(columns.iter().any(|(.., rows)| has_failed(rows))),
    })
}

/// Boots a kernel with so many CPUs and counts the rows that the options name.
fn count(side: &Side, cpus: u32, options: &Bench, stop: &Arc<AtomicBool>) -> Result<Rows> {
    let program = project::guest_program("bench")?;
    let known = names::known(&program)?;
    let experiments = names::chosen(&[EXPERIMENT.to_owned()], &known)?;
    qemu::kibibytes(&options.memory)?;
    let ground = Ground {
        cpus,
        memory: options.memory.clone(),
        accelerator: Accelerator::Tcg,
        iommu: None,
    };
    let mut root = Root::busybox()?;
    root.host_file("bench", &program, 0o755)?;
    // A guest that waits before each row is in no other one when the row's part is read.
    let mut words: Vec<String> = ["--turns", "--batches", "1"].map(Into::into).to_vec();
    for name in &options.names {
        words.extend(["--rows".into(), format!("/{name}")]);
    }
    let limit = options.limit();
    let plugin = Some(Plugin::Sharing);
    let stage = Stage::new(ground, root, words, limit, None, plugin)?;
    let mut side = side.clone();
    if let System::Causeway { options, .. } = &mut side.system {
        // The addresses that are counted are those in the kernel's file.
        options.push("kaslr=off".into());
    }
    let mut boot = stage.boot(&side, &experiments)?;
    let mut rows = Vec::new();
    loop {
        match boot.next(stop)? {
            Ok(Line::Waiting(next)) => boot.answer(next != "again"),
            Ok(Line::Row(row)) => {
                let name = short(&row.row);
                let part = boot.shared_lines.as_mut().and_then(|lines| lines.last());
                let counted = part.map(|part| Row {
                    name: name.clone(),
                    operations: row.operations as f64 * f64::from(cpus),
                    part,
                });
                rows.push((name, counted.ok_or("nothing was counted".into())));
            }
            Ok(Line::Missing { row, why } | Line::Error { row, why }) => {
                rows.push((short(&row), Err(why)));
            }
            Ok(_) => {}
            Err(Course::Whole | Course::Stopped) => return Ok(rows),
            Err(Course::Broken(why)) => {
                rows.push(("all further rows".into(), Err(why)));
                return Ok(rows);
            }
        }
    }
}

/// A row's name without the experiment's.
fn short(row: &str) -> String {
    row.rsplit('/').next().unwrap_or(row).to_owned()
}

/// The accesses to shared lines, in brackets all accesses, of one operation: a line for each row.
fn table(columns: &[(Side, u32, Rows)]) -> String {
    let mut text = String::from("| row | goal |");
    for (side, cpus, _) in columns {
        let _ = write!(text, " {}, {cpus} CPUs |", side.kernel.name);
    }
    text.push_str("\n|---|---:|");
    text.push_str(&"---:|".repeat(columns.len()));
    let mut names: Vec<&String> = Vec::new();
    for (name, _) in columns.iter().flat_map(|(.., rows)| rows) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    for name in names {
        let cells: Vec<Option<&Result<Row, String>>> = columns
            .iter()
            .map(|(.., rows)| rows.iter().find(|(it, _)| it == name).map(|(_, row)| row))
            .collect();
        let goal = cells.iter().flatten().find_map(|row| row.as_ref().ok());
        let goal = goal.map_or(String::new(), |row| row.goal().to_string());
        let _ = write!(text, "\n| `{name}` | {goal} |");
        for cell in cells {
            let _ = match cell {
                Some(Ok(row)) => write!(text, " {} ({:.0}) |", number(row.shared()), row.all()),
                Some(Err(why)) => write!(text, " {} |", why.lines().next().unwrap_or_default()),
                None => write!(text, " |"),
            };
        }
    }
    text.push('\n');
    text
}

/// Reads accesses to shared lines by row from the table in `text`: those of the first kernel. Lines
/// of other kinds are left out.
pub fn read_table(text: &str) -> Vec<(String, f64)> {
    let row = |line: &str| {
        let mut cells = line.strip_prefix("| `")?.split('|');
        let name = cells.next()?.trim().trim_end_matches('`').to_owned();
        let first = cells.nth(1)?.trim();
        let shared = first.split(' ').next()?.replace(',', "");
        Some((name, shared.parse().ok()?))
    };
    text.lines().filter_map(row).collect()
}

/// A number with as many digits as say something.
fn number(value: f64) -> String {
    match value {
        0.0 => "0".into(),
        ..10.0 => format!("{value:.2}"),
        _ => format!("{value:.0}"),
    }
}

/// The functions of a row that access shared lines most, and what memory that is.
fn places(cpus: u32, rows: &Rows, functions: &Functions) -> String {
    let mut text = format!("Accesses to shared lines, with {cpus} CPUs, of one operation:\n");
    for (name, row) in rows {
        let Ok(row) = row else { continue };
        if row.shared() <= row.goal() / 2.0 {
            continue;
        }
        let _ = writeln!(text, "\n{name}: {}", number(row.shared()));
        let mut sums: BTreeMap<(String, String), [u64; 3]> = BTreeMap::new();
        for place in &row.part.places {
            let function = functions.name(place.at, Detail::Function);
            let memory = memory_at(place.memory, functions);
            let sum = sums.entry((function, memory)).or_default();
            for (sum, more) in sum
                .iter_mut()
                .zip([place.accesses, place.writes, place.lines])
            {
                *sum += more;
            }
        }
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_by_key(|(_, [accesses, ..])| std::cmp::Reverse(*accesses));
        for ((function, memory), [accesses, writes, lines]) in sums.iter().take(SHOWN) {
            let each = |count: u64| number(count as f64 / row.operations);
            let _ = writeln!(
                text,
                "  {:>8}  {function}: {memory}, {lines} lines, {} writes",
                each(*accesses),
                each(*writes)
            );
        }
    }
    text
}

/// What is at an address of the kernel's.
fn memory_at(address: u64, functions: &Functions) -> String {
    match address {
        IMAGE.. => functions.name(address, Detail::Function),
        _ if DIRECT_MAP.contains(&address) => "heap or frames".into(),
        _ if address < DIRECT_MAP.start => "programs' memory".into(),
        _ => "stacks and tables".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read_as_it_is_written() {
        let row = |name: &str, shared| {
            let part = Part {
                all: 4000,
                shared,
                places: Vec::new(),
            };
            let row = Row {
                name: name.into(),
                operations: 200.0,
                part,
            };
            (name.to_owned(), Ok(row))
        };
        let side = Side {
            system: System::Causeway {
                file: "kernel".into(),
                options: Vec::new(),
                has_memory_disks: true,
            },
            kernel: crate::bench::results::Kernel {
                name: "causeway".into(),
                version: "1".into(),
                commit: None,
                options: String::new(),
            },
            only: &[],
            pairs: 1,
        };
        let mut rows = vec![row("stat", 100), row("fork", 400_000)];
        rows.push(("pipe".into(), Err("no pipes".into())));
        let text = table(&[(side.clone(), 4, rows.clone()), (side, 8, rows)]);
        assert!(
            text.contains("| `stat` | 2 | 0.50 (20) | 0.50 (20) |"),
            "{text}"
        );
        assert!(text.contains("| `fork` | 500 | 2000 (20) |"), "{text}");
        let read = read_table(&text);
        assert_eq!(read, [("stat".into(), 0.5), ("fork".into(), 2000.0)]);
    }
}
