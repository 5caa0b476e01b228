//! The results as a table on a terminal: a part for each paper and experiment, a line for each row.

use std::fmt::Write;

use super::experiments;
use super::number::{self, Unit};
use super::results::{Clock, Outcome, Results, Row, Status};
use super::verdict::Verdict;

/// Events rarer than this are not shown: they come from other programs, or from the measurement.
const RARE: f64 = 0.005;

/// Fewer pairs have no middle half that could be narrow by more than luck.
const FEW: u32 = 3;

/// The columns before the counters, which have no width of their own.
const HEADINGS: [&str; 8] = ["", "unit", "", "", "ratio", "least–most", "floor", ""];

/// Writes the table; lines are cut to `width` characters, if there is one. Events are those whose
/// names contain one of `wanted`, or all.
pub fn table(results: &Results, width: Option<usize>, wanted: &[String]) -> String {
    let rows = results.rows.iter();
    let lines: Vec<[String; 9]> = rows.map(|row| cells(results, row, wanted)).collect();
    let mut headings = HEADINGS.map(str::to_owned);
    let titles = results.titles();
    for (title, heading) in titles.iter().take(2).zip(&mut headings[2..4]) {
        heading.clone_from(title);
    }
    let widths: Vec<usize> = (0..8)
        .map(|column| {
            let cells = lines.iter().map(|line| line[column].chars().count());
            cells
                .chain([headings[column].chars().count()])
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    let mut put = |line: &str| {
        let line = line.trim_end();
        match width {
            Some(width) if line.chars().count() > width => {
                text.extend(line.chars().take(width.saturating_sub(1)));
                text.push('…');
            }
            _ => text.push_str(line),
        }
        text.push('\n');
    };
    let mut order: Vec<usize> = (0..lines.len()).collect();
    // Rows without an entry come last.
    order.sort_by_key(|&at| {
        let found = experiments::find(results.rows[at].experiment());
        found.map_or(usize::MAX, |(number, ..)| number)
    });
    let (mut paper, mut experiment) = (None, "");
    for at in order {
        let row = &results.rows[at];
        if row.experiment() != experiment {
            experiment = row.experiment();
            let found = experiments::find(experiment);
            let part = found.map_or("Other experiments", |(_, paper, _)| &*paper.title);
            if paper != Some(part) {
                put(&format!("\n{}", part.to_uppercase()));
                paper = Some(part);
            }
            put(&format!("\n{}", heading(experiment)));
            put(&joined(&headings, &widths, "an operation's events"));
        }
        let [cells @ .., events] = &lines[at];
        put(&joined(cells, &widths, events));
        for kernel in 2..results.kernels.len() {
            if let Some(line) = switched(results, row, kernel, wanted) {
                put(&line);
            }
        }
    }
    text
}

fn heading(experiment: &str) -> String {
    match experiments::find(experiment) {
        Some((.., it)) if it.section.is_empty() => format!("{experiment}: {}", it.title),
        Some((.., it)) => format!("{experiment}: {} ({})", it.title, it.section),
        None => experiment.into(),
    }
}

/// A line of cells: names to the left, numbers to the right.
fn joined(cells: &[String], widths: &[usize], last: &str) -> String {
    let mut line = String::from(" ");
    for (column, (cell, width)) in cells.iter().zip(widths).enumerate() {
        let gap = width - cell.chars().count();
        let (before, behind) = if [0, 1, 7].contains(&column) {
            (0, gap)
        } else {
            (gap, 0)
        };
        let _ = write!(line, " {:before$}{cell}{:behind$} ", "", "");
    }
    line + last
}

/// Variant, unit, both values, ratio, its range, floor, marks, events.
fn cells(results: &Results, row: &Row, wanted: &[String]) -> [String; 9] {
    let values = [row.value(0), row.value(1)];
    let unit = Unit::of(&row.unit, values.into_iter().flatten());
    let value = |kernel: usize| match (row.value(kernel), row.outcomes.get(kernel)) {
        (Some(value), _) => unit.digits(value),
        (None, Some(outcome)) => short(outcome).into(),
        (None, None) => String::new(),
    };
    let (ratio, range) = match row.ratio {
        Some(it) => (
            number::ratio(it.median),
            match row.runs[0].len() {
                1 => String::new(),
                _ => format!("{}–{}", number::ratio(it.least), number::ratio(it.most)),
            },
        ),
        None => Default::default(),
    };
    let floor = row.floor.as_ref().map(|floor| {
        format!(
            "{} {}",
            floor.name,
            number::with_unit(floor.value, &floor.unit)
        )
    });
    [
        row.variant().into(),
        unit.name.into(),
        value(0),
        if results.kernels.len() > 1 {
            value(1)
        } else {
            String::new()
        },
        ratio,
        range,
        floor.unwrap_or_default(),
        marks(row),
        events(row, 0, wanted),
    ]
}

/// Returns the text in place of a value.
fn short(outcome: &Outcome) -> &'static str {
    match outcome.status {
        Status::NotYet => "not yet",
        Status::Failed => "failed",
        Status::Measured | Status::Nothing => "–",
    }
}

/// Returns the marks of a row.
fn marks(row: &Row) -> String {
    let marks = [(row.is_behind(), "behind"), (row.noisy, "noise")];
    let marks: Vec<_> = marks
        .iter()
        .filter(|mark| mark.0)
        .map(|mark| mark.1)
        .collect();
    marks.join(", ")
}

/// The events of an operation on a kernel, most first.
fn events(row: &Row, kernel: usize, wanted: &[String]) -> String {
    let counters = row.counters.get(kernel);
    let mut events: Vec<(&String, f64)> = counters
        .into_iter()
        .flatten()
        .map(|(name, count)| (name, *count))
        .filter(|(name, count)| {
            let is_wanted = |word: &String| name.contains(word.as_str());
            *count >= RARE && (wanted.is_empty() || wanted.iter().any(is_wanted))
        })
        .collect();
    events.sort_by(|a, b| b.1.total_cmp(&a.1));
    let texts = events
        .iter()
        .map(|(name, count)| format!("{name} {}", number::digits(*count)));
    texts.collect::<Vec<_>>().join(", ")
}

/// A line for a kernel with switches thrown: its value, its cost in the first kernel's, and an
/// operation's events.
fn switched(results: &Results, row: &Row, kernel: usize, wanted: &[String]) -> Option<String> {
    let value = number::with_unit(row.value(kernel)?, &row.unit);
    let ratio = row.ratio_of(kernel, 0)?;
    Some(format!(
        "      with {}: {value}, {} times {} ({}–{}); {}",
        results.kernels[kernel].options,
        number::ratio(ratio.median),
        results.titles()[0],
        number::ratio(ratio.least),
        number::ratio(ratio.most),
        events(row, kernel, wanted),
    ))
}

/// The machine and the kernels, for the top of the table.
pub fn machine(results: &Results) -> String {
    let machine = &results.machine;
    let mut text = String::new();
    for (kernel, title) in results.kernels.iter().zip(results.titles()) {
        let commit = kernel.commit.as_ref().map(|commit| format!(" ({commit})"));
        let _ = writeln!(
            text,
            "{title}: {}{}",
            kernel.version,
            commit.unwrap_or_default()
        );
    }
    let clock = match machine.clock {
        Clock::Kvm => "the clock is the host's processor's",
        Clock::Tcg => "emulated: ratios say more than times",
        Clock::Busy => "executed instructions, one a nanosecond; idle time is none",
        Clock::Icount => "the clock counts instructions: one is a nanosecond",
    };
    let _ = writeln!(
        text,
        "{} CPUs, {}, {} ({clock}); {}; mitigations: {}; {} set, {} pairs",
        machine.cpus,
        machine.memory,
        machine.accelerator,
        machine.qemu,
        machine.mitigations,
        machine.set,
        results.pairs,
    );
    text
}

/// Counts the rows that are ahead, equal, behind, noisy, missing or failed, and lists the failures.
pub fn summary(results: &Results) -> String {
    let rows = &results.rows;
    let count = |which: &dyn Fn(&Row) -> bool| rows.iter().filter(|row| which(row)).count();
    let mut parts = vec![format!("{} rows", rows.len())];
    let titles = results.titles();
    if let Some(other) = titles.get(1) {
        parts.push(format!(
            "{} ahead of {other}",
            count(&|row| Verdict::of(row) == Verdict::Ahead),
        ));
        parts.push(format!(
            "{} equal",
            count(&|row| Verdict::of(row) == Verdict::Equal)
        ));
        parts.push(format!("{} behind", count(&Row::is_behind)));
    }
    parts.push(format!("{} noise", count(&|row| row.noisy)));
    parts.push(format!(
        "{} not yet",
        count(&|row| row.status == Status::NotYet)
    ));
    parts.push(format!(
        "{} failed",
        count(&|row| row.outcomes.iter().any(|it| it.status == Status::Failed))
    ));
    let mut text = parts.join(", ") + "\n";
    if let Some(calm) = results.calm {
        let _ = writeln!(
            text,
            "the host was calm in {:.0}% of the turns",
            calm * 100.0
        );
    }
    if results.pairs < FEW && !results.machine.clock.counts() {
        let _ = writeln!(
            text,
            "so few pairs cannot tell what is noise; at least {FEW} can (--runs)"
        );
    }
    for row in rows {
        for (title, outcome) in titles.iter().zip(&row.outcomes) {
            if let (Status::Failed | Status::Measured, Some(why)) = (outcome.status, &outcome.why) {
                let _ = writeln!(text, "failed: {} on {title}: {why}", row.id);
            }
        }
    }
    for failure in &results.failures {
        let title = titles.get(failure.kernel as usize);
        let title = title.map_or("", String::as_str);
        let at = failure.experiment.as_deref().unwrap_or("the start");
        let _ = writeln!(
            text,
            "failed: {title}, pair {}, {at}: {}",
            failure.pair, failure.why
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::results::tests::example;

    #[test]
    fn a_row_has_its_values_ratio_floor_and_events() {
        let text = table(&example(), None, &[]);
        let line = text
            .lines()
            .find(|line| line.trim_start().starts_with("empty"))
            .unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(
            words,
            [
                "empty",
                "ns",
                "500",
                "1,000",
                "0.51",
                "0.50–0.51",
                "trap",
                "100",
                "ns",
                "tlb_local_page",
                "1.00"
            ]
        );
    }

    #[test]
    fn what_is_behind_noisy_or_missing_is_marked() {
        let mut results = example();
        results.rows[0].runs.swap(0, 1);
        results.rows[0].ratio = results.rows[0].ratio_of(0, 1);
        results.rows[0].noisy = true;
        let text = table(&results, None, &[]);
        assert!(text.contains("behind, noise"), "{text}");
        assert!(
            summary(&results).starts_with("1 rows, 0 ahead of Linux, 0 equal, 1 behind, 1 noise")
        );

        let row = &mut results.rows[0];
        row.runs[0] = vec![None; 3];
        row.ratio = None;
        row.noisy = false;
        row.status = Status::NotYet;
        row.outcomes[0].status = Status::NotYet;
        row.outcomes[1].status = Status::Failed;
        row.outcomes[1].why = Some("EPIPE".into());
        row.runs[1] = vec![None; 3];
        let text = table(&results, None, &[]);
        assert!(
            text.contains("not yet") && text.contains("failed") && !text.contains("behind"),
            "{text}"
        );
        assert!(summary(&results).contains("failed: fork/empty on Linux: EPIPE"));
    }

    #[test]
    fn variants_have_lines_with_their_events() {
        let mut results = example();
        results.kernels.push(results.kernels[0].clone());
        results.kernels[2].options = "ephemeral=window".into();
        let row = &mut results.rows[0];
        row.runs.push(row.runs[1].clone());
        row.counters
            .push([("ephemeral_hits".into(), 7.0), ("forks".into(), 1.0)].into());
        let text = table(&results, None, &["phemeral".into()]);
        let line = text
            .lines()
            .find(|line| line.contains("with ephemeral=window"));
        assert!(line.unwrap().ends_with("; ephemeral_hits 7.00"), "{text}");
        assert!(!text.contains("tlb_local_page"), "{text}");
    }

    #[test]
    fn long_lines_are_cut() {
        let text = table(&example(), Some(40), &[]);
        assert!(text.lines().all(|line| line.chars().count() <= 40));
        assert!(text.contains('…'));
    }
}
