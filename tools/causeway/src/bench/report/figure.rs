//! Figures of this bench's rows: curves over sizes, rows side by side, mechanisms on and off.

use std::cmp::Reverse;

use maud::{Markup, html};

use super::picture::Series;
use super::picture::curves::{Across, Line, Panel, Point};
use super::picture::dots::{Dots, Item, Mark};
use super::view::{Group, View};
use crate::bench::experiments::Figure;
use crate::bench::pattern;
use crate::bench::results::{Better, Row};
use crate::bench::verdict::Verdict;

/// Rows that a figure of a switched mechanism shows: those in which it matters most.
const SWITCHED: usize = 8;
/// Letters that have room beside a curve.
const LABEL: usize = 15;

/// All of an experiment's figures, or nothing if none can be drawn.
pub fn figures(view: &View, group: &Group) -> Option<Markup> {
    let declared = group.place.map_or(&[][..], |place| &place.figures);
    let drawn: Vec<Markup> = declared
        .iter()
        .flat_map(|figure| match figure {
            Figure::Curves {
                across,
                x_label,
                floor,
                panels,
            } => panels
                .iter()
                .filter_map(|panel| curves(view, group, (x_label, *across, floor), panel))
                .collect(),
            Figure::Dots { title, rows } => Vec::from_iter(rows_of(view, title, rows)),
        })
        .collect();
    panels(drawn)
}

/// Returns the costs of its rows with each mechanism switched off that matters to it, or nothing if
/// none was.
pub fn without(view: &View, group: &Group) -> Option<Markup> {
    let switched = view.switched();
    panels(
        switched
            .filter_map(|(kernel, options)| switched_off(group, kernel, options))
            .collect(),
    )
}

/// Pictures side by side, if there are any.
fn panels(drawn: Vec<Markup>) -> Option<Markup> {
    (!drawn.is_empty()).then(|| html! { div.panels { @for one in drawn { (one) } } })
}

/// A picture with its title above it.
pub fn titled(title: &str, picture: Markup, below: Markup) -> Markup {
    html! {
        figure {
            figcaption { (title) }
            (picture)
            (below)
        }
    }
}

/// A kernel's series.
fn series(kernel: usize) -> Series {
    match kernel {
        0 => Series::Causeway,
        1 => Series::Linux,
        _ => Series::Off,
    }
}

/// Returns the label of a kernel's line: its name, or as much of the option that makes it differ as
/// there is room for.
fn label(view: &View, kernel: usize) -> String {
    let options = &view.results.kernels[kernel].options;
    match options.split_once('=') {
        Some((_, setting)) if kernel > 1 && options.len() > LABEL => setting.into(),
        Some(_) if kernel > 1 => options.clone(),
        // Where another kernel's name is enough, its options have no room.
        _ if kernel == 1 && view.results.kernels[0].name != view.results.kernels[1].name => {
            let words = view.name(1).split_whitespace();
            words.take(1).collect()
        }
        _ => view.name(kernel).into(),
    }
}

/// A floor's name in the words of a picture.
fn in_words(floor: &str) -> String {
    match floor.split_once('_') {
        Some(("memcpy", _)) => "bare copy".into(),
        _ => floor.replace('_', " "),
    }
}

/// The least, the median and the greatest of a kernel's runs.
fn spread_of(row: &Row, kernel: usize) -> Option<(f64, f64, f64)> {
    let runs = row.runs.get(kernel)?.iter().flatten().copied();
    let least = runs.clone().reduce(f64::min)?;
    Some((least, row.value(kernel)?, runs.reduce(f64::max)?))
}

fn curves(
    view: &View,
    group: &Group,
    (x_label, across, floor_name): (&str, Across, &str),
    (title, pattern): &(String, String),
) -> Option<Markup> {
    let rows: Vec<(f64, &Row)> = group
        .rows
        .iter()
        .filter_map(|row| Some((pattern::number(pattern, &row.id)?, *row)))
        .collect();
    let unit = &rows.first()?.1.unit;
    let lines: Vec<Line> = (0..view.results.kernels.len())
        .map(|kernel| Line {
            series: series(kernel),
            label: label(view, kernel),
            points: rows
                .iter()
                .filter(|(_, row)| row.unit == *unit)
                .filter_map(|(x, row)| {
                    let (least, y, most) = spread_of(row, kernel)?;
                    let x = *x;
                    Some(Point { x, y, least, most })
                })
                .collect(),
        })
        // One place is no line; the switched kernels have the others' rows only here and there.
        .filter(|line| line.series != Series::Off || line.points.len() > 1)
        .collect();
    let floor = view.floor(floor_name, unit);
    // Which option a shortened label stands for.
    let short: Vec<(&str, &str)> = view
        .switched()
        .filter(|(kernel, options)| {
            let label = label(view, *kernel);
            label != *options && lines.iter().any(|line| line.label == label)
        })
        .map(|(_, options)| {
            (
                options.split_once('=').map_or("", |(_, setting)| setting),
                options,
            )
        })
        .collect();
    let better = rows.first()?.1.better;
    let crossings: Vec<String> = lines
        .split_first()
        .into_iter()
        .flat_map(|(ours, others)| others.iter().map(move |other| (ours, other)))
        .filter_map(|(ours, other)| {
            let (word, from) = crossing(ours, other, better)?;
            Some(format!(
                "{word} {} from {} on.",
                other.label,
                across.text(from)
            ))
        })
        .collect();
    let picture = Panel {
        title,
        x_label,
        across,
        unit,
        lines,
        floor: floor.map(|value| (in_words(floor_name), value)),
    }
    .draw()?;
    let below = html! {
        @if !crossings.is_empty() { p.below { (crossings.join(" ")) } }
        @for (setting, options) in short { p.below { (setting) ": with " (options) } }
    };
    Some(titled(title, picture, below))
}

/// Where one line crosses another for good, if they cross once: "Ahead of" or "Behind", and from
/// where on.
fn crossing(ours: &Line, other: &Line, better: Better) -> Option<(&'static str, f64)> {
    let mut both: Vec<(f64, f64)> = ours
        .points
        .iter()
        .filter_map(|point| {
            let its = other.points.iter().find(|its| its.x == point.x)?;
            let ratio = match better {
                Better::Less => point.y / its.y,
                Better::More => its.y / point.y,
            };
            Some((point.x, ratio))
        })
        .collect();
    both.sort_by(|a, b| a.0.total_cmp(&b.0));
    let sides: Vec<(f64, Verdict)> = both
        .into_iter()
        .map(|(x, ratio)| (x, Verdict::of_ratio(ratio)))
        .filter(|(_, side)| matches!(side, Verdict::Ahead | Verdict::Behind))
        .collect();
    let mut changes = sides.windows(2).filter(|pair| pair[0].1 != pair[1].1);
    let (from, side) = changes.next()?[1];
    let word = match side {
        Verdict::Ahead => "Ahead of",
        _ => "Behind",
    };
    changes.next().is_none().then_some((word, from))
}

/// Some rows side by side, each kernel a mark.
pub fn rows_of(view: &View, title: &str, rows: &[(String, String)]) -> Option<Markup> {
    let found: Vec<(&str, &Row)> = rows
        .iter()
        .filter_map(|(label, id)| Some((&**label, view.row(id)?)))
        .collect();
    let unit = &found.first()?.1.unit;
    let kernels = view.results.kernels.len().min(2);
    let items: Vec<Item> = found
        .iter()
        .filter(|(_, row)| row.unit == *unit)
        .map(|(label, row)| Item {
            label: (*label).into(),
            marks: (0..kernels)
                .filter_map(|kernel| {
                    let (least, value, most) = spread_of(row, kernel)?;
                    Some(Mark {
                        series: series(kernel),
                        value: Some(value),
                        least,
                        most,
                    })
                })
                .collect(),
        })
        .collect();
    let has = |series: Series| {
        let mut marks = items.iter().flat_map(|item| &item.marks);
        marks.any(|mark| mark.series == series)
    };
    let legend = (0..kernels)
        .filter(|kernel| has(series(*kernel)))
        .map(|kernel| (series(kernel), view.name(kernel).into()))
        .collect();
    let picture = Dots {
        title,
        unit,
        items,
        line_at: None,
        legend,
    }
    .draw()?;
    Some(titled(title, picture, html! {}))
}

/// Returns the costs of an experiment's rows with a mechanism off, as a ratio to those with it.
fn switched_off(group: &Group, kernel: usize, options: &str) -> Option<Markup> {
    let mut items: Vec<(f64, Item)> = group
        .rows
        .iter()
        .filter_map(|row| {
            let ratio = row.ratio_of(kernel, 0)?;
            let item = Item {
                label: row.variant().into(),
                marks: vec![Mark {
                    series: Series::Off,
                    value: Some(ratio.median),
                    least: ratio.least,
                    most: ratio.most,
                }],
            };
            Some((ratio.median, item))
        })
        .filter(|(ratio, _)| ratio.is_finite() && *ratio > 0.0)
        .collect();
    let all = items.len();
    items.sort_by_key(|(ratio, _)| Reverse((ratio.ln().abs() * 1e6) as u64));
    items.truncate(SWITCHED);
    let title = format!("With {options}");
    let picture = Dots {
        title: &title,
        unit: "×",
        items: items.into_iter().map(|(_, item)| item).collect(),
        line_at: Some(1.0),
        legend: vec![(Series::Off, "times the cost as it ships".into())],
    }
    .draw()?;
    let below = html! {
        @if all > SWITCHED { p.below { "The " (SWITCHED) " of " (all) " rows in which it matters most." } }
    };
    Some(titled(&title, picture, below))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(values: &[f64]) -> Line {
        let points = values.iter().enumerate().map(|(x, &y)| Point {
            x: x as f64,
            y,
            least: y,
            most: y,
        });
        Line {
            series: Series::Causeway,
            label: String::new(),
            points: points.collect(),
        }
    }

    #[test]
    fn lines_cross_once_or_not_at_all() {
        let other = line(&[10.0; 4]);
        let crossed = |values: &[f64]| crossing(&line(values), &other, Better::More);
        assert_eq!(crossed(&[5.0, 8.0, 12.0, 20.0]), Some(("Ahead of", 2.0)));
        assert_eq!(crossed(&[12.0, 10.0, 10.1, 5.0]), Some(("Behind", 3.0)));
        assert_eq!(crossed(&[12.0, 12.0, 12.0]), None);
        assert_eq!(crossed(&[12.0, 5.0, 12.0]), None);
        assert_eq!(crossed(&[f64::NAN]), None);
        let less = crossing(&line(&[5.0, 20.0]), &other, Better::Less);
        assert_eq!(less, Some(("Behind", 1.0)));
    }
}
