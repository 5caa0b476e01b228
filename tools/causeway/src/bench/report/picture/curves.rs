//! Lines over a size or a count, both axes logarithmic unless said otherwise.

use maud::{Markup, html};

use super::scale::{Axis, Spread};
use super::{Series, WIDTH, apart, frame, place};
use crate::bench::number::{self, Unit};

/// The quantity along the lower axis.
#[derive(serde::Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Across {
    Bytes,
    Count,
}

impl Across {
    /// A value of it in few letters.
    pub fn text(self, value: f64) -> String {
        match self {
            Across::Bytes => number::bytes(value),
            Across::Count => number::trimmed(value),
        }
    }
}

/// One measured place of a line.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    pub x: f64,
    pub y: f64,
    pub least: f64,
    pub most: f64,
}

impl Point {
    /// Whether it can stand on logarithmic axes.
    fn shows(&self) -> bool {
        [self.x, self.y]
            .iter()
            .all(|value| value.is_finite() && *value > 0.0)
    }
}

/// A line with its label, which is written at its end.
#[derive(Clone, Debug)]
pub struct Line {
    pub series: Series,
    pub label: String,
    pub points: Vec<Point>,
}

/// One picture of lines.
#[derive(Clone, Debug)]
pub struct Panel<'a> {
    pub title: &'a str,
    /// The name of the lower axis, as in "bytes a write".
    pub x_label: &'a str,
    pub across: Across,
    /// The results' unit of the values.
    pub unit: &'a str,
    pub lines: Vec<Line>,
    /// A value that holds for all sizes, such as the time of a trap, with its label.
    pub floor: Option<(String, f64)>,
}

const HEIGHT: f64 = 246.0;
const LEFT: f64 = 50.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = 40.0;

impl Panel<'_> {
    /// The picture, or nothing if no line has a place that can be drawn.
    pub fn draw(&self) -> Option<Markup> {
        let lines: Vec<Line> = self
            .lines
            .iter()
            .map(|line| {
                let mut line = line.clone();
                line.points.retain(Point::shows);
                for point in &mut line.points {
                    let near = |value: f64| {
                        if value > 0.0 && value.is_finite() {
                            value
                        } else {
                            point.y
                        }
                    };
                    (point.least, point.most) = (near(point.least), near(point.most));
                }
                line.points.sort_by(|a, b| a.x.total_cmp(&b.x));
                line
            })
            .filter(|line| !line.points.is_empty())
            .collect();
        let floor = self
            .floor
            .as_ref()
            .filter(|(_, value)| value.is_finite() && *value > 0.0);
        let points = || lines.iter().flat_map(|line| &line.points);
        let x = Axis::over(Spread::Binary, points().map(|point| point.x))?;
        let y = Axis::over(
            Spread::Log,
            points()
                .flat_map(|point| [point.y, point.least, point.most])
                .chain(floor.iter().map(|(_, value)| *value)),
        )?;
        let end = WIDTH - self.beside();
        let across = |value: f64| LEFT + x.at(value) * (end - LEFT);
        let down = |value: f64| HEIGHT - BOTTOM - y.at(value) * (HEIGHT - BOTTOM - TOP);
        let ends: Vec<f64> = lines
            .iter()
            .map(|line| line.points.last().map_or(0.0, |point| down(point.y)))
            .chain(floor.iter().map(|(_, value)| down(*value)))
            .collect();
        let labels = apart(&ends, 13.0, TOP + 4.0, HEIGHT - BOTTOM);
        Some(frame(
            "panel",
            HEIGHT,
            &self.description(&lines),
            html! {
                text class="axis-name" x="0" y="11" { (self.y_name()) }
                @for tick in y.ticks(5) {
                    line class="grid" x1=(LEFT) x2=(place(end)) y1=(place(down(tick))) y2=(place(down(tick))) {}
                    text class="tick" x=(LEFT - 6.0) y=(place(down(tick) + 4.0)) text-anchor="end" { (self.y_text(tick)) }
                }
                line class="base" x1=(LEFT) x2=(place(end)) y1=(HEIGHT - BOTTOM) y2=(HEIGHT - BOTTOM) {}
                @for tick in self.x_ticks(&x, &lines) {
                    line class="base" x1=(place(across(tick))) x2=(place(across(tick))) y1=(HEIGHT - BOTTOM) y2=(HEIGHT - BOTTOM + 4.0) {}
                    text class="tick" x=(place(across(tick))) y=(HEIGHT - BOTTOM + 17.0) text-anchor="middle" { (self.across.text(tick)) }
                }
                text class="axis-name" x=(place(f64::midpoint(LEFT, end))) y=(HEIGHT - 5.0) text-anchor="middle" { (self.x_label) }
                @if let Some((_, value)) = floor {
                    line class="line floor" x1=(LEFT) x2=(place(end)) y1=(place(down(*value))) y2=(place(down(*value))) {}
                }
                @for line in lines.iter().rev() {
                    g {
                        path class={ "line " (line.series.class()) } d=(path(line, &across, &down)) {}
                        @for point in &line.points {
                            (whisker(line.series, across(point.x), down(point.least), down(point.most)))
                            (line.series.mark(across(point.x), down(point.y), &self.point_text(line, point)))
                        }
                    }
                }
                @for (line, label) in lines.iter().zip(&labels) {
                    text class={ "label " (line.series.class()) } x=(place(end + 9.0)) y=(place(label + 4.0)) { (line.label) }
                }
                @if let (Some((name, _)), Some(label)) = (floor, labels.last()) {
                    text class="label floor" x=(place(end + 9.0)) y=(place(label + 4.0)) { (name) }
                }
            },
        ))
    }

    /// How much room the labels take on the right.
    fn beside(&self) -> f64 {
        let labels = self.lines.iter().map(|line| &line.label);
        let names = labels.chain(self.floor.iter().map(|(name, _)| name));
        let letters = names.map(|name| name.chars().count()).max().unwrap_or(0);
        (18.0 + 7.2 * letters as f64).clamp(50.0, 130.0)
    }

    /// Returns the ticks of the lower axis: round sizes, or the counts that were measured.
    fn x_ticks(&self, x: &Axis, lines: &[Line]) -> Vec<f64> {
        if self.across == Across::Bytes {
            return x.ticks(6);
        }
        let mut counts: Vec<f64> = lines
            .iter()
            .flat_map(|line| &line.points)
            .map(|point| point.x)
            .collect();
        counts.sort_by(f64::total_cmp);
        counts.dedup_by(|next, last| x.at(*next) - x.at(*last) < 0.1);
        counts
    }

    /// Returns the name of the upright axis.
    fn y_name(&self) -> String {
        match self.unit {
            "ns" => "time".into(),
            "instr" => "instructions".into(),
            unit => unit.into(),
        }
    }

    /// A round value on the upright axis.
    fn y_text(&self, value: f64) -> String {
        match self.unit {
            "ns" => {
                let unit = Unit::of("ns", [value * 1.000_001]);
                format!("{} {}", number::trimmed(unit.scaled(value)), unit.name)
            }
            _ if value >= 1e6 => format!("{}M", number::trimmed(value / 1e6)),
            _ if value >= 1e4 => format!("{}k", number::trimmed(value / 1e3)),
            _ => number::trimmed(value),
        }
    }

    fn point_text(&self, line: &Line, point: &Point) -> String {
        format!(
            "{}, {}: {} ({} to {})",
            line.label,
            self.across.text(point.x),
            number::with_unit(point.y, self.unit),
            number::with_unit(point.least, self.unit),
            number::with_unit(point.most, self.unit),
        )
    }

    /// The picture in words: each line's first and last place.
    fn description(&self, lines: &[Line]) -> String {
        let mut text = format!("{}, over {}.", self.title, self.x_label);
        for line in lines {
            if let (Some(first), Some(last)) = (line.points.first(), line.points.last()) {
                text += &format!(
                    " {}: {} at {}, {} at {}.",
                    line.label,
                    number::with_unit(first.y, self.unit),
                    self.across.text(first.x),
                    number::with_unit(last.y, self.unit),
                    self.across.text(last.x),
                );
            }
        }
        if let Some((name, value)) = &self.floor {
            text += &format!(" {name}: {}.", number::with_unit(*value, self.unit));
        }
        text
    }
}

/// A line through all its places.
fn path(line: &Line, across: &impl Fn(f64) -> f64, down: &impl Fn(f64) -> f64) -> String {
    let mut path = String::new();
    for (count, point) in line.points.iter().enumerate() {
        let letter = if count == 0 { 'M' } else { 'L' };
        path += &format!("{letter}{:.1} {:.1}", across(point.x), down(point.y));
    }
    path
}

/// From the least to the most that was measured, where there is room to see it.
fn whisker(series: Series, x: f64, least: f64, most: f64) -> Markup {
    html! {
        @if (least - most).abs() >= 2.0 {
            line class={ "whisker " (series.class()) } x1=(place(x)) x2=(place(x)) y1=(place(least)) y2=(place(most)) {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(points: Vec<Point>) -> Option<String> {
        let panel = Panel {
            title: "Pipe <bandwidth>",
            x_label: "bytes a write",
            across: Across::Bytes,
            unit: "MiB/s",
            lines: vec![Line {
                series: Series::Causeway,
                label: "Causeway & more".into(),
                points,
            }],
            floor: Some(("memcpy".into(), f64::NAN)),
        };
        panel.draw().map(Markup::into_string)
    }

    fn point(x: f64, y: f64) -> Point {
        Point {
            x,
            y,
            least: y,
            most: y,
        }
    }

    #[test]
    fn nothing_measured_is_no_picture() {
        assert!(panel(vec![]).is_none());
        assert!(panel(vec![point(64.0, f64::NAN), point(64.0, 0.0)]).is_none());
    }

    #[test]
    fn every_place_has_a_mark_and_names_are_escaped() {
        let svg = panel(vec![
            point(64.0, 10.0),
            point(4096.0, f64::INFINITY),
            point(65536.0, 900.0),
        ])
        .unwrap();
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert!(svg.contains("Causeway &amp; more") && svg.contains("Pipe &lt;bandwidth&gt;"));
    }
}
