//! The page's head: a summary of the run, the verdict in a few numbers, warnings, the contents.

use maud::{Markup, html};

use super::picture::strip::{self, Dot, Strip};
use super::view::View;
use crate::bench::experiments;
use crate::bench::number;
use crate::bench::results::{Clock, Results, Row, Status};
use crate::bench::verdict::Verdict;

/// Pairs below which figures should not be quoted.
const QUOTABLE: u32 = 5;

/// The page's title.
pub fn title(view: &View) -> String {
    if view.is_pair() {
        format!("{} beside {}", view.name(0), view.name(1))
    } else {
        format!("{} measured", view.name(0))
    }
}

/// Everything before the first part.
pub fn head(view: &View, title: &str) -> Markup {
    html! {
        h1 { (title) }
        p.lead { (measured(view)) }
        (verdict(view))
        (warnings(view))
        (contents(view))
        @if view.mean().is_some() { div.glance { (overview(view)) (behind(view)) } }
    }
}

/// Summarises the run in a sentence or two.
fn measured(view: &View) -> Markup {
    let results = view.results;
    let machine = &results.machine;
    let rows = view.judged().count();
    html! {
        (rows) " rows, measured by "
        @if view.is_pair() {
            "the same static program on both kernels, row by row in turn, each in the same virtual machine, "
            (count(results.pairs as usize, "pair")) ". "
        } @else {
            "one static program, in " (count(results.pairs as usize, "boot")) ". "
        }
        (count(machine.cpus as usize, "CPU")) ", " (machine.memory) " of memory, "
        (clock(results)) "."
    }
}

/// How the clock was made, in a few words.
fn clock(results: &Results) -> &'static str {
    match results.machine.clock {
        Clock::Kvm => "on the host’s own processor (KVM)",
        Clock::Tcg => "on QEMU’s software emulation (TCG)",
        Clock::Busy => "by counting the instructions that an emulated CPU executes",
        Clock::Icount => "on an emulated clock that counts instructions",
    }
}

/// A number of things.
pub fn count(number: usize, thing: &str) -> String {
    let many = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{many}")
}

/// The few numbers.
fn verdict(view: &View) -> Markup {
    let not_yet = view
        .judged()
        .filter(|row| row.status == Status::NotYet)
        .count();
    let failed = view
        .judged()
        .filter(|row| row.status == Status::Failed)
        .count();
    html! {
        @if view.mean().is_some() {
            dl.verdict {
                @if let Some(mean) = view.mean() {
                    div.mean {
                        dt { "of " (view.name(1)) "’s time, geometric mean" }
                        dd { (number::ratio(mean)) }
                    }
                }
                (figure("ahead", view.count(Verdict::Ahead), "rows ahead"))
                (figure("equal", view.count(Verdict::Equal), "equal, within 3%"))
                (figure("behind", view.count(Verdict::Behind), "behind"))
                @if not_yet > 0 { (figure("unknown", not_yet, "not yet here")) }
                @if failed > 0 { (figure("behind", failed, "failed")) }
            }
        }
    }
}

fn figure(class: &str, value: usize, what: &str) -> Markup {
    html! {
        div class=(class) { dt { (what) } dd { (value) } }
    }
}

/// Lists the warnings for readers who want to quote a figure.
fn warnings(view: &View) -> Markup {
    let results = view.results;
    let mut texts: Vec<Markup> = Vec::new();
    match results.machine.clock {
        Clock::Kvm => {}
        Clock::Tcg => texts.push(html! {
            "The clock ran on QEMU’s software emulation. Ratios hold between kernels on this machine; "
            "times and rates are not those of a processor."
        }),
        Clock::Icount | Clock::Busy => texts.push(html! {
            "One nanosecond is one instruction. Caches, TLB misses and waiting for devices cost nothing here, so "
            "instructions that a processor finds slow look cheap."
        }),
    }
    if results.pairs < QUOTABLE && !results.machine.clock.counts() {
        texts.push(html! {
            "Only " (count(results.pairs as usize, "pair")) ": quote figures from at least five."
        });
    }
    let noisy: Vec<&Row> = view.judged().filter(|row| row.noisy).collect();
    if !noisy.is_empty() {
        texts.push(html! {
            (count(noisy.len(), "row")) " spread so much between pairs that their medians may be more than 7% off; "
            "they carry the mark " span.noise { "noise" } " and say little."
        });
    }
    let failed: Vec<&Row> = view
        .judged()
        .filter(|row| row.status == Status::Failed)
        .collect();
    if !failed.is_empty() {
        texts.push(html! {
            (count(failed.len(), "row")) " failed: "
            @for (index, row) in failed.iter().take(6).enumerate() {
                @if index > 0 { ", " }
                code { (row.id) }
            }
            @if failed.len() > 6 { " and others" }
            "."
        });
    }
    for failure in &results.failures {
        texts.push(html! {
            (view.name(failure.kernel as usize)) ", pair " (failure.pair) ", did not come to its end"
            @if let Some(experiment) = &failure.experiment { " (in " code { (experiment) } ")" }
            ": " (failure.why)
        });
    }
    html! {
        @if !texts.is_empty() {
            ul.warnings aria-label="Warnings" { @for text in texts { li { (text) } } }
        }
    }
}

fn contents(view: &View) -> Markup {
    html! {
        nav aria-label="Contents" {
            ul {
                @for part in &view.parts {
                    li { a href={ "#" (part.anchor()) } { (part.short()) } }
                }
                li { a href="#setting" { "Machine and commands" } }
            }
        }
    }
}

/// Every ratio at once.
fn overview(view: &View) -> Markup {
    let strips: Vec<Strip> = view
        .parts
        .iter()
        .map(|part| Strip {
            label: part.short().into(),
            dots: part
                .groups
                .iter()
                .flat_map(|group| &group.rows)
                .filter(|row| row.experiment() != "floors")
                .filter_map(|row| {
                    Some(Dot {
                        name: row.id.clone(),
                        ratio: row.ratio?.median,
                        verdict: Verdict::of(row).word(),
                    })
                })
                .collect(),
        })
        .collect();
    html! {
        @if let Some(picture) = strip::draw(&strips, view.name(0)) {
            section {
                h2 { "Every row at once" }
                figure.wide {
                    (picture)
                    figcaption {
                        "A dot for each row: the time of an operation on " (view.name(0)) " divided by that on " (view.name(1))
                        ", the median of the pairs. For rates the inverse, so that left of 1 is always good for "
                        (view.name(0)) "."
                    }
                }
            }
        }
    }
}

/// The rows that are behind, with the reasons that were found.
fn behind(view: &View) -> Markup {
    let mut rows: Vec<(&Row, f64)> = view
        .judged()
        .filter(|row| Verdict::of(row) == Verdict::Behind)
        .filter_map(|row| Some((row, row.ratio?.median)))
        .collect();
    rows.sort_by(|a, b| b.1.total_cmp(&a.1));
    html! {
        @if !rows.is_empty() {
            section {
                h2 id="behind" { "Where " (view.name(0)) " is behind" }
                div.scroll tabindex="0" role="region" aria-label="Rows behind" {
                    table.behind-rows {
                        caption { (count(rows.len(), "row")) ", the furthest first" }
                        thead { tr { th scope="col" { "Row" } th.number scope="col" { "Ratio" } th.number scope="col" { "Least – most" } th scope="col" { "Reason, where known" } } }
                        tbody {
                            @for (row, ratio) in rows {
                                tr {
                                    th scope="row" { code { (row.id) } @if row.noisy { " " span.noise { "noise" } } }
                                    td.number.behind { (number::ratio(ratio)) }
                                    td.number.small {
                                        @if let Some(ratio) = row.ratio { (number::ratio(ratio.least)) " – " (number::ratio(ratio.most)) }
                                    }
                                    @match experiments::reason_of(&row.id) {
                                        Some(reason) => td.words { (reason) },
                                        None => td.words.unknown { "–" },
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
