//! Rows that got better or worse from one file of results to another (`--compare A.json B.json`).
//!
//! A row's figure in a pair is its ratio to the other kernel, where both files have the same one: a
//! host that was slower the second time was so for both. Where there is no such ratio, and with an
//! instruction count, which needs none, it is the first kernel's cost. A change is beyond noise
//! when the middle halves of the pairs' figures do not touch.

use std::fmt::Write;

use super::number;
use super::results::{Better, Clock, Results, Row, Status};
use super::statistics;

/// Smaller changes are never beyond noise where time is measured: one pair alone has no spread that
/// could tell.
const LEAST_CHANGE: f64 = 0.02;

/// The change of a row.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Change {
    /// The new cost in the old one; above 1 is worse.
    Worse(f64),
    /// The same below 1.
    Better(f64),
    /// Nothing beyond noise.
    Same,
    /// It gave values before, and gives none now.
    Lost,
    /// It gives values, and did not before.
    Found,
}

/// Returns each row of either file with its change.
pub fn changes<'a>(old: &'a Results, new: &'a Results) -> Vec<(&'a str, Change)> {
    let mut all: Vec<(&str, Change)> = Vec::new();
    for before in &old.rows {
        let measured = before.status == Status::Measured;
        let change = match new
            .row(&before.id)
            .filter(|row| row.status == Status::Measured)
        {
            Some(after) if measured => Some(change(old, new, before, after)),
            Some(_) => Some(Change::Found),
            // A bench of fewer experiments has lost nothing.
            None if measured && covers(new, before.experiment()) => Some(Change::Lost),
            None => None,
        };
        all.extend(change.map(|change| (&*before.id, change)));
    }
    let added = new
        .rows
        .iter()
        .filter(|row| old.row(&row.id).is_none() && row.status == Status::Measured);
    all.extend(added.map(|row| (&*row.id, Change::Found)));
    all
}

/// Whether an experiment was run.
fn covers(results: &Results, experiment: &str) -> bool {
    let failed = |it: &super::results::Failure| {
        it.experiment
            .as_deref()
            .is_none_or(|name| name == experiment)
    };
    results
        .rows
        .iter()
        .any(|row| row.experiment() == experiment)
        || results.failures.iter().any(failed)
}

fn change(old: &Results, new: &Results, before: &Row, after: &Row) -> Change {
    let clock = new.machine.clock;
    let relative =
        !clock.counts() && same_other(old, new) && before.ratio.is_some() && after.ratio.is_some();
    let (a, b) = (figures(before, relative), figures(after, relative));
    let quartiles =
        |values: &[f64]| [0.25, 0.5, 0.75].map(|part| statistics::quantile(values, part));
    let ([Some(a_low), Some(a_mid), Some(a_high)], [Some(b_low), Some(b_mid), Some(b_high)]) =
        (quartiles(&a), quartiles(&b))
    else {
        return Change::Same;
    };
    let change = b_mid / a_mid;
    let least = if clock == Clock::Icount {
        0.0
    } else {
        LEAST_CHANGE
    };
    if !change.is_finite() || (change - 1.0).abs() <= least {
        Change::Same
    } else if b_low > a_high {
        Change::Worse(change)
    } else if b_high < a_low {
        Change::Better(change)
    } else {
        Change::Same
    }
}

/// Whether both were held against the same kernel on the same kind of machine.
fn same_other(old: &Results, new: &Results) -> bool {
    let other = |results: &Results| {
        let kernel = results.kernels.get(1)?;
        Some((
            kernel.name.clone(),
            kernel.version.clone(),
            kernel.commit.clone(),
            kernel.options.clone(),
        ))
    };
    other(old).is_some() && other(old) == other(new)
}

/// A row's cost in each pair; less is better whatever the unit.
fn figures(row: &Row, relative: bool) -> Vec<f64> {
    if relative {
        return statistics::ratios(&row.runs[0], &row.runs[1], row.better);
    }
    let values = row.runs[0].iter().copied().flatten();
    match row.better {
        Better::Less => values.collect(),
        Better::More => values.map(|value| 1.0 / value).collect(),
    }
}

/// Why two files can hardly be compared, in sentences.
fn warnings(old: &Results, new: &Results) -> Vec<String> {
    let (a, b) = (&old.machine, &new.machine);
    let texts = |it: &super::results::Machine| {
        [
            ("clock", format!("{:?}", it.clock).to_lowercase()),
            ("QEMU", it.qemu.clone()),
            ("number of CPUs", it.cpus.to_string()),
            ("memory", it.memory.clone()),
            ("mitigations", it.mitigations.clone()),
            ("host", it.host.clone()),
        ]
    };
    texts(a)
        .into_iter()
        .zip(texts(b))
        .filter(|(a, b)| a.1 != b.1)
        .map(|((what, a), (_, b))| format!("the {what} differs: {a}, then {b}"))
        .collect()
}

/// The comparison as text, and whether a row got worse by `threshold` percent or more, or was lost.
pub fn compare(old: &Results, new: &Results, threshold: f64) -> (String, bool) {
    let all = changes(old, new);
    let mut text = String::new();
    for warning in warnings(old, new) {
        let _ = writeln!(text, "warning: {warning}");
    }
    let too_much = 1.0 + threshold / 100.0;
    let mut failed = false;
    let mut part = |title: &str, which: &dyn Fn(Change) -> Option<f64>| {
        let mut found: Vec<(f64, &str)> = all
            .iter()
            .filter_map(|(id, change)| Some((which(*change)?, *id)))
            .collect();
        found.sort_by(|a, b| b.0.total_cmp(&a.0));
        if found.is_empty() {
            return;
        }
        let _ = writeln!(text, "{title}:");
        for (change, id) in found {
            let fatal = change >= too_much;
            failed |= fatal;
            let mark = if fatal {
                "  (beyond the threshold)"
            } else {
                ""
            };
            let percent = if change.is_finite() {
                format!("{:+.1}% ", (change - 1.0) * 100.0)
            } else {
                String::new()
            };
            let values = [old, new].map(|results| {
                let row = results.row(id);
                row.and_then(|row| Some(number::with_unit(row.value(0)?, &row.unit)))
                    .unwrap_or_else(|| "nothing".into())
            });
            let _ = writeln!(
                text,
                "  {id}: {percent}from {} to {}{mark}",
                values[0], values[1]
            );
        }
    };
    part("lost", &|change| {
        (change == Change::Lost).then_some(f64::INFINITY)
    });
    part("worse", &|change| match change {
        Change::Worse(by) => Some(by),
        _ => None,
    });
    part("better", &|change| match change {
        Change::Better(by) => Some(by),
        _ => None,
    });
    part("new", &|change| {
        (change == Change::Found).then_some(f64::NEG_INFINITY)
    });
    let same = all
        .iter()
        .filter(|(_, change)| *change == Change::Same)
        .count();
    let _ = writeln!(
        text,
        "{same} of {} rows are the same within noise",
        all.len()
    );
    (text, failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::results::tests::example;

    /// Twenty rows in five pairs whose values differ by up to 4% in a way that is always the same
    /// for a seed.
    fn noisy(seed: u64) -> Results {
        let mut results = example();
        results.pairs = 5;
        let row = results.rows.remove(0);
        let mut state = seed;
        let mut value = |base: f64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            Some(base * (1.0 + 0.04 * (state >> 33) as f64 / f64::from(1 << 31)))
        };
        for number in 0..20 {
            let mut row = row.clone();
            row.id = format!("fork/{number}");
            row.runs = [500.0, 1000.0]
                .map(|base| (0..5).map(|_| value(base)).collect())
                .to_vec();
            row.ratio = row.ratio_of(0, 1);
            results.rows.push(row);
        }
        results
    }

    /// Makes a row slower by this factor.
    fn slow(results: &mut Results, row: usize, factor: f64) {
        let row = &mut results.rows[row];
        for value in row.runs[0].iter_mut().flatten() {
            *value *= factor;
        }
        row.ratio = row.ratio_of(0, 1);
    }

    #[test]
    fn noise_is_no_change() {
        let old = noisy(1);
        for seed in 2..20 {
            let new = noisy(seed);
            let (text, failed) = compare(&old, &new, 10.0);
            assert!(!failed, "{text}");
            let worse = changes(&old, &new)
                .iter()
                .filter(|it| it.1 != Change::Same)
                .count();
            assert!(worse <= 2, "{text}");
        }
    }

    #[test]
    fn a_planted_slowdown_is_found_and_nothing_else() {
        let (old, mut new) = (noisy(1), noisy(2));
        slow(&mut new, 7, 1.15);
        let (text, failed) = compare(&old, &new, 10.0);
        assert!(failed, "{text}");
        assert!(
            text.contains("fork/7: +1") && text.contains("beyond the threshold"),
            "{text}"
        );
        assert_eq!(text.matches("beyond the threshold").count(), 1, "{text}");
        // Below the threshold it is said, and no failure.
        let (text, failed) = compare(&old, &new, 30.0);
        assert!(!failed && text.contains("fork/7"), "{text}");
        // The other way round it is better.
        let (text, failed) = compare(&new, &old, 10.0);
        assert!(!failed && text.contains("better:\n  fork/7: -"), "{text}");
    }

    #[test]
    fn a_slower_host_is_no_change_but_without_the_other_kernel_nobody_can_tell() {
        let (old, mut new) = (noisy(1), noisy(2));
        for row in &mut new.rows {
            for value in row.runs.iter_mut().flatten().flatten() {
                *value *= 2.0;
            }
        }
        assert!(!compare(&old, &new, 10.0).1);
        new.kernels[1].version = "2".into();
        assert!(compare(&old, &new, 10.0).1);
    }

    #[test]
    fn rates_get_worse_downwards() {
        let (mut old, mut new) = (noisy(1), noisy(2));
        for results in [&mut old, &mut new] {
            results.rows[3].better = Better::More;
        }
        slow(&mut new, 3, 0.8);
        let (text, failed) = compare(&old, &new, 10.0);
        assert!(failed && text.contains("worse:\n  fork/3: +2"), "{text}");
    }

    #[test]
    fn a_row_that_is_lost_fails_and_one_that_was_not_asked_for_does_not() {
        let (old, mut new) = (noisy(1), noisy(1));
        new.rows.truncate(19);
        let (text, failed) = compare(&old, &new, 10.0);
        assert!(failed && text.contains("lost:\n  fork/19"), "{text}");
        new.rows.clear();
        assert!(!compare(&old, &new, 10.0).1);
        let (text, failed) = compare(&new, &old, 10.0);
        assert!(!failed && text.contains("new:"), "{text}");
    }

    #[test]
    fn instructions_have_no_noise() {
        let (mut old, mut new) = (example(), example());
        for results in [&mut old, &mut new] {
            results.machine.clock = Clock::Icount;
            results.rows[0].runs = vec![vec![Some(1000.0); 3]; 2];
        }
        assert_eq!(changes(&old, &new), [("fork/empty", Change::Same)]);
        slow(&mut new, 0, 1.01);
        assert!(matches!(changes(&old, &new)[0].1, Change::Worse(_)));
        assert!(compare(&old, &new, 0.5).1 && !compare(&old, &new, 3.0).1);
    }
}
