//! Named things side by side: a line for each, and marks on it for each series.

use maud::{Markup, html};

use super::scale::{Axis, Spread};
use super::{Series, WIDTH, frame, place};
use crate::bench::number::{self, Unit};

/// One mark: a value, or a span of them without one.
#[derive(Clone, Debug)]
pub struct Mark {
    pub series: Series,
    /// Nothing where only the ends of a span are known.
    pub value: Option<f64>,
    pub least: f64,
    pub most: f64,
}

impl Mark {
    /// A single value.
    pub fn value(series: Series, value: f64) -> Self {
        Mark {
            series,
            value: Some(value),
            least: value,
            most: value,
        }
    }

    fn values(&self) -> impl Iterator<Item = f64> {
        [self.least, self.most].into_iter().chain(self.value)
    }
}

/// A thing and its marks.
#[derive(Clone, Debug)]
pub struct Item {
    pub label: String,
    pub marks: Vec<Mark>,
}

/// One picture of marks.
#[derive(Clone, Debug)]
pub struct Dots<'a> {
    pub title: &'a str,
    /// The values' unit; "×" for ratios.
    pub unit: &'a str,
    pub items: Vec<Item>,
    /// A value at which a line stands from top to bottom, as 1 for ratios.
    pub line_at: Option<f64>,
    /// The name of each series, in the order of the legend.
    pub legend: Vec<(Series, String)>,
}

const LEFT: f64 = 34.0;
const TOP: f64 = 26.0;
/// Height of an item: its label above its line.
const STEP: f64 = 38.0;
const BOTTOM: f64 = 24.0;

impl Dots<'_> {
    /// The picture, or nothing if no mark can be drawn.
    pub fn draw(&self) -> Option<Markup> {
        let drawn = |value: &f64| value.is_finite() && *value > 0.0;
        let mut items = self.items.clone();
        for item in &mut items {
            item.marks
                .retain(|mark| mark.values().all(|value| drawn(&value)));
        }
        items.retain(|item| !item.marks.is_empty());
        if items.is_empty() {
            return None;
        }
        let values = || {
            items
                .iter()
                .flat_map(|item| &item.marks)
                .flat_map(Mark::values)
        };
        let axis = Axis::over(Spread::Log, values().chain(self.line_at))?;
        let unit = Unit::of(self.unit, values());
        // Room for the digits of a mark at the right end.
        let digits = items.iter().filter_map(highest);
        let letters = digits.map(|mark| self.digits(mark, &unit).chars().count());
        let end = WIDTH - (16.0 + 6.6 * letters.max().unwrap_or(0) as f64).max(46.0);
        let across = |value: f64| LEFT + axis.at(value) * (end - LEFT);
        let height = TOP + STEP * items.len() as f64 + BOTTOM;
        let base = height - BOTTOM;
        Some(frame(
            "dots",
            height,
            &self.description(&items),
            html! {
                (self.legend())
                @for tick in axis.ticks(5) {
                    line class="grid" x1=(place(across(tick))) x2=(place(across(tick))) y1=(TOP - 4.0) y2=(base) {}
                    text class="tick" x=(place(across(tick))) y=(base + 15.0) text-anchor=(anchor(axis.at(tick))) { (number::trimmed(unit.scaled(tick))) }
                }
                text class="tick" x=(WIDTH) y="13" text-anchor="end" { (unit.name) }
                @if let Some(value) = self.line_at {
                    line class="mid" x1=(place(across(value))) x2=(place(across(value))) y1=(TOP - 4.0) y2=(base) {}
                }
                @for (count, item) in items.iter().enumerate() {
                    @let y = TOP + STEP * count as f64 + 24.0;
                    g {
                        text class="item" x="0" y=(y - 12.0) { (item.label) }
                        (self.track(item, y, &across))
                        @for mark in item.marks.iter().rev() {
                            @if across(mark.most) - across(mark.least) >= 1.5 {
                                line class={ "span " (mark.series.class()) } x1=(place(across(mark.least))) x2=(place(across(mark.most))) y1=(y) y2=(y) {}
                            }
                            @if let Some(value) = mark.value {
                                (mark.series.mark(across(value), y, &self.mark_text(item, mark)))
                            }
                        }
                        @if let Some(mark) = highest(item) {
                            text class="value" x=(place(across(mark.most) + 8.0)) y=(y + 4.0) { (self.digits(mark, &unit)) }
                        }
                        @if let Some(mark) = self.other(item, &across, &unit) {
                            text class="value" x=(place(across(mark.least) - 8.0)) y=(y + 4.0) text-anchor="end" { (self.digits(mark, &unit)) }
                        }
                    }
                }
            },
        ))
    }

    /// A line between the marks; to one that is alone, from the line at a value or from the left.
    fn track(&self, item: &Item, y: f64, across: &impl Fn(f64) -> f64) -> Markup {
        let ends = item.marks.iter().map(|mark| across(mark.least));
        let to = highest(item).map_or(LEFT, |mark| across(mark.most));
        let (from, to) = match (item.marks.as_slice(), self.line_at) {
            ([mark], Some(value)) => (across(value), across(mark.value.unwrap_or(mark.least))),
            ([_], None) => (LEFT, to),
            _ => (ends.reduce(f64::min).unwrap_or(LEFT), to),
        };
        html! { line class="track" x1=(place(from)) x2=(place(to)) y1=(y) y2=(y) {} }
    }

    /// The item's lowest mark, where there is room on its left for its digits.
    fn other<'a>(
        &self,
        item: &'a Item,
        across: &impl Fn(f64) -> f64,
        unit: &Unit,
    ) -> Option<&'a Mark> {
        let (lowest, highest) = (
            item.marks
                .iter()
                .min_by(|a, b| a.least.total_cmp(&b.least))?,
            highest(item)?,
        );
        let room = across(lowest.least) - 8.0;
        let letters = self.digits(lowest, unit).chars().count();
        (lowest.series != highest.series && room > 6.6 * letters as f64).then_some(lowest)
    }

    fn digits(&self, mark: &Mark, unit: &Unit) -> String {
        match mark.value {
            Some(value) => number::trimmed(unit.scaled(value)),
            None => format!(
                "{}–{}",
                number::trimmed(unit.scaled(mark.least)),
                number::trimmed(unit.scaled(mark.most))
            ),
        }
    }

    fn legend(&self) -> Markup {
        let mut x = 0.0;
        html! {
            @for (series, name) in &self.legend {
                @let here = x;
                ({ x += 30.0 + 7.2 * name.chars().count() as f64; maud::PreEscaped("") })
                (series.mark(here + 5.0, 9.0, name))
                text class={ "label " (series.class()) } x=(place(here + 14.0)) y="13" { (name) }
            }
        }
    }

    fn name(&self, series: Series) -> &str {
        self.legend
            .iter()
            .find(|(one, _)| *one == series)
            .map_or("", |(_, name)| name)
    }

    fn mark_text(&self, item: &Item, mark: &Mark) -> String {
        let value = match mark.value {
            Some(value) => number::with_unit(value, self.unit),
            None => String::new(),
        };
        let span = if mark.least < mark.most {
            format!(
                " ({} to {})",
                number::with_unit(mark.least, self.unit),
                number::with_unit(mark.most, self.unit)
            )
        } else {
            String::new()
        };
        format!("{}, {}: {value}{span}", item.label, self.name(mark.series))
    }

    fn description(&self, items: &[Item]) -> String {
        let mut text = format!("{}.", self.title);
        for item in items {
            for mark in &item.marks {
                text += &format!(" {}.", self.mark_text(item, mark));
            }
        }
        text
    }
}

/// The mark that reaches furthest.
fn highest(item: &Item) -> Option<&Mark> {
    item.marks.iter().max_by(|a, b| a.most.total_cmp(&b.most))
}

/// Keeps a text at the end of an axis inside the picture.
fn anchor(place: f64) -> &'static str {
    match place {
        _ if place < 0.05 => "start",
        _ => "middle",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dots(items: Vec<Item>) -> Option<String> {
        let dots = Dots {
            title: "Faults",
            unit: "ns",
            items,
            line_at: None,
            legend: vec![
                (Series::Causeway, "Causeway".into()),
                (Series::Linux, "Linux".into()),
            ],
        };
        dots.draw().map(Markup::into_string)
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        assert!(dots(vec![]).is_none());
        let empty = Item {
            label: "<none>".into(),
            marks: vec![Mark::value(Series::Linux, f64::NAN)],
        };
        assert!(dots(vec![empty.clone()]).is_none());
        let full = Item {
            label: "a < b".into(),
            marks: vec![
                Mark::value(Series::Causeway, 1000.0),
                Mark::value(Series::Linux, 2000.0),
            ],
        };
        let svg = dots(vec![empty, full]).unwrap();
        assert!(svg.contains("a &lt; b") && !svg.contains("none"));
        // Two marks, and those of the legend.
        assert_eq!(svg.matches("class=\"mark ").count(), 4);
    }
}
