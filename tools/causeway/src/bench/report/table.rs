//! The table of a part's rows.

use std::collections::BTreeSet;

use maud::{Markup, html};

use super::view::{Group, Part, View};
use crate::bench::experiments;
use crate::bench::number::{self, Unit};
use crate::bench::results::{Better, Row, Status};
use crate::bench::statistics::Ratio;
use crate::bench::verdict::Verdict;

/// Counters of a row that are shown.
const COUNTERS: usize = 5;

/// Events of an operation that are too few to say anything, and so many bytes.
const RARE: f64 = 0.05;
const FEW_BYTES: f64 = 512.0;

/// All rows of a part, by experiment.
pub fn table(view: &View, part: &Part) -> Markup {
    html! {
        @if view.is_pair() {
            p.note {
                "Medians of the boots. Ratios below 1 are good for " (view.name(0)) ". Events of an operation: " (view.name(0)) " / "
                (view.name(1)) "; one number where that does not count them."
            }
        }
        div.scroll tabindex="0" role="region" aria-label={ "Rows: " (part.title()) } {
            table.rows {
                caption { (part.title()) }
                thead {
                    tr {
                        th scope="col" { "Row" }
                        th.number scope="col" { (view.name(0)) }
                        @if view.is_pair() { th.number scope="col" { (view.name(1)) } }
                        th.unit scope="col" { "Unit" }
                        @if view.is_pair() {
                            th.number scope="col" { "Ratio" }
                            th.range scope="col" { "Least – most" }
                        }
                        th.number scope="col" { "Floor" }
                        th.number scope="col" { "× floor" }
                        th scope="col" { "Events of an operation" }
                    }
                }
                @for group in part.groups.iter().filter(|group| !group.rows.is_empty()) { (rows(view, group)) }
            }
        }
    }
}

fn rows(view: &View, group: &Group) -> Markup {
    let columns = if view.is_pair() { 9 } else { 6 };
    html! {
        tbody {
            tr.group { th colspan=(columns) scope="rowgroup" { (group.title()) " " code { (group.name) } } }
            @for row in &group.rows { (self::row(view, row)) }
        }
    }
}

fn row(view: &View, row: &Row) -> Markup {
    let verdict = Verdict::of(row);
    let values = [0, 1].map(|kernel| row.value(kernel));
    let unit = Unit::of(&row.unit, values.into_iter().flatten());
    html! {
        tr class=(verdict.word()) {
            th scope="row" {
                (row.variant())
                @if verdict == Verdict::Behind { " " span.is-behind { "behind" } }
                @if row.noisy { " " span.noise { "noise" } }
                @if let Some(why) = missing(row) { span.remark { (why) } }
                @if let Some(note) = &row.note { span.remark { (note) } }
                @if verdict == Verdict::Behind {
                    @if let Some(reason) = experiments::reason_of(&row.id) { span.remark.reason { (reason) } }
                }
            }
            td.number { (value(row, 0, &unit)) }
            @if view.is_pair() { td.number { (value(row, 1, &unit)) } }
            td.unit { (unit.name) }
            @if view.is_pair() {
                @if let Some(ratio) = row.ratio {
                    td.number.ratio { (number::ratio(ratio.median)) }
                    td.range { (range(&ratio)) span { (number::ratio(ratio.least)) " – " (number::ratio(ratio.most)) } }
                } @else {
                    td.number { "–" }
                    td.range { "" }
                }
            }
            (floor(row))
            td.counters { (counters(view, row)) }
        }
    }
}

/// Why kernel 0 has no value, where it is not that it has no such call.
fn missing(row: &Row) -> Option<&str> {
    let why = row.outcomes.first()?.why.as_deref()?;
    (row.value(0).is_none() && why != NO_CALL).then_some(why)
}

/// The reason that a call does not exist.
const NO_CALL: &str = "ENOSYS";

/// A kernel's value, or why there is none.
fn value(row: &Row, kernel: usize, unit: &Unit) -> Markup {
    if let Some(value) = row.value(kernel) {
        return html! { (unit.digits(value)) };
    }
    let outcome = row.outcomes.get(kernel);
    let why = outcome.and_then(|outcome| outcome.why.as_deref());
    let (class, word) = match outcome.map(|outcome| outcome.status) {
        Some(Status::NotYet) if kernel == 0 && why == Some(NO_CALL) => ("not-yet", "not yet"),
        Some(Status::NotYet) if kernel == 0 => ("not-yet", "missing"),
        Some(Status::NotYet) => ("none", "has none"),
        Some(Status::Failed) => ("failed", "failed"),
        _ => ("none", "–"),
    };
    html! { span class=(class) title=[why] { (word) } }
}

/// From the least to the most ratio, on a logarithmic line from an eighth to eight.
fn range(ratio: &Ratio) -> Markup {
    let at = |ratio: f64| match ratio > 0.0 {
        true => 40.0 + (ratio.log2() / 3.0).clamp(-1.0, 1.0) * 37.0,
        false => 3.0,
    };
    let place = |ratio: f64| format!("{:.1}", at(ratio));
    html! {
        svg.range viewBox="0 0 80 14" width="80" height="14" aria-hidden="true" {
            line class="track" x1="3" x2="77" y1="7" y2="7" {}
            line class="mid" x1="40" x2="40" y1="1" y2="13" {}
            line class="span" x1=(place(ratio.least)) x2=(place(ratio.most)) y1="7" y2="7" {}
            circle class="dot" cx=(place(ratio.median)) cy="7" r="3.2" {}
        }
    }
}

/// The floor, and how many times it the row takes.
fn floor(row: &Row) -> Markup {
    let Some(floor) = &row.floor else {
        return html! { td.number { } td.number { } };
    };
    let times = row
        .value(0)
        .filter(|_| floor.unit == row.unit)
        .map(|value| match row.better {
            Better::Less => value / floor.value,
            Better::More => floor.value / value,
        })
        .filter(|times| times.is_finite());
    html! {
        td.number.floor { span { (floor.name) } " " (number::with_unit(floor.value, &floor.unit)) }
        td.number { (times.map_or("–".into(), number::ratio)) }
    }
}

/// The counters that explain most: by their kind, and of one kind those that count most.
fn counters(view: &View, row: &Row) -> Markup {
    let kernels = if view.is_pair() { 2 } else { 1 };
    let counts = |name: &str| -> Vec<Option<f64>> {
        (0..kernels)
            .map(|kernel| {
                let known = view.counts(kernel, name);
                known.then(|| row.counters[kernel].get(name).copied().unwrap_or(0.0))
            })
            .collect()
    };
    let names: BTreeSet<&str> = row
        .counters
        .iter()
        .take(kernels)
        .flat_map(|counters| counters.keys().map(String::as_str))
        .collect();
    let most = |counts: &[Option<f64>]| counts.iter().flatten().copied().fold(0.0, f64::max);
    let mut shown: Vec<(&str, Vec<Option<f64>>)> = names
        .into_iter()
        .map(|name| (name, counts(name)))
        .filter(|(name, counts)| match name.starts_with("bytes_") {
            true => most(counts) >= FEW_BYTES,
            false => most(counts) >= RARE,
        })
        .collect();
    shown.sort_by(|(name, counts), (other, others)| {
        let kinds = kind(name).cmp(&kind(other));
        kinds.then(most(others).total_cmp(&most(counts)))
    });
    let digits = |name: &str, value: f64| match name.starts_with("bytes_") {
        true => number::with_unit(value, "bytes"),
        false => number::trimmed(value),
    };
    html! {
        @for (name, counts) in shown.into_iter().take(COUNTERS) {
            span {
                (name) " "
                b {
                    (counts[0].map_or("·".into(), |count| digits(name, count)))
                    @if let Some(Some(other)) = counts.get(1) { " / " (digits(name, *other)) }
                }
            }
            " "
        }
    }
}

/// Returns the rank of a counter's kind of event: those that the papers are about come first.
fn kind(name: &str) -> usize {
    const KINDS: [&str; 15] = [
        "tlb_remote",
        "ipi_shootdown",
        "interrupts_shootdown",
        "ipi",
        "interrupts_call",
        "interrupts_reschedule",
        "tlb_local",
        "ephemeral_remote",
        "ephemeral_local",
        "page_faults",
        "space_switches",
        "pages_copied",
        "bytes_copied",
        "pages_",
        "page_tables",
    ];
    let last = match name {
        "system_calls" | "interrupts_timer" => 1,
        _ => 0,
    };
    let kind = KINDS.iter().position(|kind| name.starts_with(kind));
    kind.unwrap_or(KINDS.len() + last)
}
