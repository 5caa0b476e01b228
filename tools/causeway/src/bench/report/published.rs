//! The papers' own tables and figures, with our numbers beside theirs.

use maud::{Markup, html};

use super::figure::{rows_of, titled};
use super::picture::Series;
use super::picture::dots::{Dots, Item, Mark};
use super::view::View;
use crate::bench::experiments::{Compared, Gain, Listed, Published, Values};
use crate::bench::number::{self, Unit};
use crate::bench::verdict::Verdict;

/// A table or figure of a paper, of an experiment that is here or is not yet.
pub fn published(view: &View, one: &Published, is_here: bool) -> Markup {
    let missing = if is_here { NOT_MEASURED } else { NOT_YET };
    html! {
        div.published {
            h4 { "The paper’s " (one.place) ": " (one.title) }
            @match &one.values {
                Some(Values::Compared { unit, old, new, items }) => (compared(view, one, missing, (old, new, unit), items)),
                Some(Values::Gains { what, items, here }) => (gains(view, what, items, here)),
                Some(Values::List { unit, items }) => (list(view, one, missing, unit, items)),
                None => {}
            }
            @if !one.note.is_empty() { p.note { (one.note) } }
        }
    }
}

/// Two systems: their picture and ours, and both as a table.
fn compared(
    view: &View,
    one: &Published,
    missing: &str,
    (old, new, unit): (&str, &str, &str),
    items: &[Compared],
) -> Markup {
    let theirs = Dots {
        title: &one.title,
        unit,
        items: items
            .iter()
            .map(|item| Item {
                label: item.label.clone(),
                marks: vec![
                    Mark::value(Series::Paper, item.new),
                    Mark::value(Series::PaperOld, item.old),
                ],
            })
            .collect(),
        line_at: None,
        legend: vec![(Series::Paper, new.into()), (Series::PaperOld, old.into())],
    };
    let rows = pairs(items.iter().map(|item| (&item.label, &item.row)));
    let ours = rows_of(view, "Measured here", &rows);
    let here = ours.is_some();
    html! {
        div.panels {
            @if let Some(picture) = theirs.draw() { (titled("In the paper", picture, html! {})) }
            @if let Some(ours) = ours { (ours) } @else if items.iter().any(|item| !item.row.is_empty()) { (blank(missing)) }
        }
        div.scroll tabindex="0" role="region" aria-label=(one.title) {
            table.compared {
                caption { (one.place) ": " (one.title) }
                thead {
                    tr {
                        th scope="col" { "" }
                        th.number scope="col" { (old) ", " (unit) }
                        th.number scope="col" { (new) ", " (unit) }
                        th.number scope="col" { (new) " ÷ " (old) }
                        @if here {
                            th.number scope="col" { (view.name(0)) }
                            @if view.is_pair() {
                                th.number scope="col" { (view.name(1)) }
                                th.number scope="col" { "Ratio" }
                            }
                        }
                    }
                }
                tbody {
                    @for item in items {
                        tr {
                            th scope="row" { (item.label) }
                            td.number.paper { (number::trimmed(item.old)) }
                            td.number.paper { (number::trimmed(item.new)) }
                            td.number.paper { (number::ratio(item.new / item.old)) }
                            @if here { (our_cells(view, &item.row)) }
                        }
                    }
                }
            }
        }
    }
}

/// A row's values and ratio as cells, of both kernels if there are two.
fn our_cells(view: &View, id: &str) -> Markup {
    let row = view.row(id);
    let values = [0, 1].map(|kernel| row.and_then(|row| row.value(kernel)));
    let unit = Unit::of(
        row.map_or("", |row| &row.unit),
        values.into_iter().flatten(),
    );
    let cell = |value: Option<f64>| match value {
        Some(value) => format!("{} {}", unit.digits(value), unit.name),
        None => "–".into(),
    };
    html! {
        td.number { (cell(values[0])) }
        @if view.is_pair() {
            td.number { (cell(values[1])) }
            td.number class=(row.map_or("", |row| Verdict::of(row).word())) {
                (row.and_then(|row| row.ratio).map_or("–".into(), |ratio| number::ratio(ratio.median)))
            }
        }
    }
}

/// How many times as high a rate became, in the paper and by the same switch here.
fn gains(view: &View, what: &str, items: &[Gain], here: &[(String, String, String)]) -> Markup {
    let mut marks: Vec<Item> = items
        .iter()
        .map(|gain| Item {
            label: gain.label.clone(),
            marks: vec![Mark {
                series: Series::Paper,
                value: gain.most.is_none().then_some(gain.least),
                least: gain.least,
                most: gain.most.unwrap_or(gain.least),
            }],
        })
        .collect();
    let ours: Vec<Item> = here
        .iter()
        .filter_map(|(label, id, option)| {
            // The cost of the mechanism's absence is the gain of its presence.
            let ratio = view.row(id)?.ratio_of(view.with_option(option)?, 0)?;
            Some(Item {
                label: format!("{label}, against {option}"),
                marks: vec![Mark {
                    series: Series::Causeway,
                    value: Some(ratio.median),
                    least: ratio.least,
                    most: ratio.most,
                }],
            })
        })
        .collect();
    let is_here = !ours.is_empty();
    marks.extend(ours);
    let title = format!("{what} with the mechanism, in what it is without");
    let mut legend = vec![(Series::Paper, "the paper".into())];
    if is_here {
        legend.push((Series::Causeway, view.name(0).into()));
    }
    let dots = Dots {
        title: &title,
        unit: "×",
        items: marks,
        line_at: Some(1.0),
        legend,
    };
    html! {
        div.panels {
            @if let Some(picture) = dots.draw() { (titled(&title, picture, html! {})) }
            @if !is_here && !here.is_empty() { (blank(&format!("No run with {} is in these results.", options(here)))) }
        }
    }
}

/// One number for each of several mechanisms, and our rows that measure the same.
fn list(view: &View, one: &Published, missing: &str, unit: &str, items: &[Listed]) -> Markup {
    let theirs = Dots {
        title: &one.title,
        unit,
        items: items
            .iter()
            .map(|item| Item {
                label: item.label.clone(),
                marks: vec![Mark::value(Series::Paper, item.value)],
            })
            .collect(),
        line_at: None,
        legend: vec![(Series::Paper, "the paper".into())],
    };
    let rows = pairs(items.iter().map(|item| (&item.label, &item.row)));
    html! {
        div.panels {
            @if let Some(picture) = theirs.draw() { (titled("In the paper", picture, html! {})) }
            @if let Some(ours) = rows_of(view, "Measured here", &rows) { (ours) }
            @else if rows.iter().any(|(_, row)| !row.is_empty()) { (blank(missing)) }
        }
    }
}

/// Labels and rows as [`rows_of`] takes them.
fn pairs<'a>(items: impl Iterator<Item = (&'a String, &'a String)>) -> Vec<(String, String)> {
    items
        .map(|(label, row)| (label.clone(), row.clone()))
        .collect()
}

/// The options that switch the mechanism off, each once.
fn options(here: &[(String, String, String)]) -> String {
    let mut options: Vec<&str> = here.iter().map(|(_, _, option)| &**option).collect();
    options.dedup();
    options.join(" or ")
}

/// The text for rows that the guest lacks.
const NOT_YET: &str = "Not yet here: the paper’s numbers stand alone.";

/// The text for rows that the guest has and the results lack.
const NOT_MEASURED: &str = "Not measured here.";

/// A text in place of a picture of our rows.
fn blank(text: &str) -> Markup {
    html! { div.blank { p { (text) } } }
}
