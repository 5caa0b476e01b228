//! Pictures as inline SVG, drawn for a column as wide as a phone and never shrunk below it.
//!
//! [`scale`] places values, [`curves`] draws lines over sizes, [`dots`] compares named things, and
//! [`strip`] shows many ratios at once. Colours are the page's variables, so that a picture follows
//! the page from light to dark and onto paper; no two series differ by colour alone.

pub mod curves;
pub mod dots;
pub mod scale;
pub mod strip;

use maud::{Markup, html};

/// Width of a picture in its own units, which are a browser's pixels on a phone.
pub const WIDTH: f64 = 344.0;

/// The owner of a series of values, which decides its colour, mark and kind of line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Series {
    Causeway,
    /// Causeway with the mechanism switched off.
    Off,
    Linux,
    /// The paper's own system.
    Paper,
    /// The system that the paper compares its own with.
    PaperOld,
}

impl Series {
    /// The class that the page's style knows it by.
    pub fn class(self) -> &'static str {
        match self {
            Series::Causeway => "causeway",
            Series::Off => "off",
            Series::Linux => "linux",
            Series::Paper => "paper",
            Series::PaperOld => "paper-old",
        }
    }

    /// Its mark at a place, with a text that a pointer resting on it shows.
    fn mark(self, x: f64, y: f64, text: &str) -> Markup {
        let class = format!("mark {}", self.class());
        let path = match self {
            Series::Causeway | Series::Paper => None,
            Series::Linux => Some(format!("M{:.1} {:.1}h7v7h-7z", x - 3.5, y - 3.5)),
            Series::Off => Some(format!("M{:.1} {:.1}l4.2 7.6h-8.4z", x, y - 4.6)),
            Series::PaperOld => Some(format!(
                "M{:.1} {:.1}l4.6 4.6l-4.6 4.6l-4.6 -4.6z",
                x,
                y - 4.6
            )),
        };
        html! {
            @if let Some(path) = path {
                path class=(class) d=(path) { title { (text) } }
            } @else {
                circle class=(class) cx=(place(x)) cy=(place(y)) r="4" { title { (text) } }
            }
        }
    }
}

/// A coordinate with the one digit behind the point that a screen can show.
fn place(value: f64) -> String {
    format!("{value:.1}")
}

/// A picture of this height, with a description for screen readers.
fn frame(class: &str, height: f64, description: &str, inside: Markup) -> Markup {
    html! {
        svg class=(class) viewBox={ "0 0 " (WIDTH) " " (place(height)) } role="img"
            aria-label=(description) xmlns="http://www.w3.org/2000/svg" { (inside) }
    }
}

/// Moves places apart until none is nearer to the next than `least`, keeping their order and, as
/// far as there is room, staying between `top` and `bottom`.
fn apart(places: &[f64], least: f64, top: f64, bottom: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by(|a, b| places[*a].total_cmp(&places[*b]));
    let mut moved = places.to_vec();
    let mut limit = top;
    for &index in &order {
        moved[index] = moved[index].max(limit);
        limit = moved[index] + least;
    }
    let mut limit = bottom;
    for &index in order.iter().rev() {
        moved[index] = moved[index].min(limit);
        limit = moved[index] - least;
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_moved_apart() {
        let moved = apart(&[50.0, 50.0, 52.0], 10.0, 0.0, 100.0);
        assert_eq!(moved, [50.0, 60.0, 70.0]);
        let moved = apart(&[95.0, 99.0], 10.0, 0.0, 100.0);
        assert_eq!(moved, [90.0, 100.0]);
        assert!(apart(&[], 10.0, 0.0, 100.0).is_empty());
    }
}
