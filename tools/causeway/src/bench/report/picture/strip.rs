//! Many ratios at once: a dot each, on one logarithmic line, piled up where they are close.

use maud::{Markup, html};

use super::{WIDTH, frame, place};
use crate::bench::number;

/// One row's ratio.
#[derive(Clone, Debug)]
pub struct Dot {
    pub name: String,
    pub ratio: f64,
    /// "ahead", "equal" or "behind": the class of its colour.
    pub verdict: &'static str,
}

/// A named line of dots.
#[derive(Clone, Debug)]
pub struct Strip {
    pub label: String,
    pub dots: Vec<Dot>,
}

const SIDE: f64 = 14.0;
const TOP: f64 = 20.0;
const BOTTOM: f64 = 22.0;
/// Distance between dots in a pile.
const PILE: f64 = 6.0;
/// Places for piles along the line.
const PILES: usize = 54;

/// All strips on one axis around 1, where less is good for `judged`; nothing if there is no ratio
/// at all.
pub fn draw(strips: &[Strip], judged: &str) -> Option<Markup> {
    let known = |dot: &&Dot| dot.ratio.is_finite() && dot.ratio > 0.0;
    let far = strips
        .iter()
        .flat_map(|strip| strip.dots.iter().filter(known))
        .map(|dot| dot.ratio.log2().abs())
        .fold(f64::NEG_INFINITY, f64::max);
    if !far.is_finite() {
        return None;
    }
    // Whole powers of two on both sides; ratios further away are at the end.
    let reach = far.ceil().clamp(1.0, 10.0);
    let at = |ratio: f64| f64::midpoint((ratio.log2() / reach).clamp(-1.0, 1.0), 1.0);
    let across = |place: f64| SIDE + place * (WIDTH - 2.0 * SIDE);

    let mut rows = Vec::new();
    let mut y = TOP;
    for strip in strips {
        let mut piles = vec![0usize; PILES + 1];
        let mut dots = Vec::new();
        for dot in strip.dots.iter().filter(known) {
            let pile = (at(dot.ratio) * PILES as f64).round() as usize;
            dots.push((dot, pile as f64 / PILES as f64, piles[pile]));
            piles[pile] += 1;
        }
        if dots.is_empty() {
            continue;
        }
        let high = piles.iter().max().copied().unwrap_or(1);
        y += 22.0 + PILE * high as f64;
        rows.push((strip.label.as_str(), dots, y, high));
    }
    let base = y + 8.0;
    let every = (reach / 4.0).ceil() as i32;
    let ticks: Vec<i32> = (-(reach as i32)..=reach as i32)
        .filter(|power| power % every == 0)
        .collect();
    Some(frame(
        "strip",
        base + BOTTOM,
        &description(strips),
        html! {
            text class="label ahead" x=(SIDE) y="12" { "◂ " (judged) " takes less time" }
            text class="label behind" x=(WIDTH - SIDE) y="12" text-anchor="end" { "more ▸" }
            @for power in ticks {
                @let x = across(at(f64::from(power).exp2()));
                line class=(if power == 0 { "mid" } else { "grid" }) x1=(place(x)) x2=(place(x)) y1=(TOP) y2=(base) {}
                text class="tick" x=(place(x)) y=(base + 15.0) text-anchor="middle" { (tick(power)) }
            }
            @for (label, dots, y, high) in &rows {
                text class="item" x=(SIDE) y=(place(y - PILE * *high as f64 - 5.0)) { (label) }
                line class="track" x1=(SIDE) x2=(WIDTH - SIDE) y1=(place(y + 4.0)) y2=(place(y + 4.0)) {}
                @for (dot, place_, pile) in dots {
                    circle class={ "dot " (dot.verdict) } cx=(place(across(*place_))) cy=(place(y - PILE * *pile as f64)) r="2.7" {
                        title { (dot.name) ": " (number::ratio(dot.ratio)) }
                    }
                }
            }
        },
    ))
}

/// A power of two as a fraction or a number.
fn tick(power: i32) -> String {
    let value = 1u64 << power.unsigned_abs();
    if power < 0 {
        format!("1/{value}")
    } else {
        value.to_string()
    }
}

fn description(strips: &[Strip]) -> String {
    let mut text = String::from("Ratios of times, a dot for each row.");
    for strip in strips {
        let count = |verdict| {
            strip
                .dots
                .iter()
                .filter(|dot| dot.verdict == verdict)
                .count()
        };
        text += &format!(
            " {}: {} ahead, {} equal, {} behind.",
            strip.label,
            count("ahead"),
            count("equal"),
            count("behind")
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strip(ratios: &[f64]) -> Strip {
        Strip {
            label: "calls".into(),
            dots: ratios
                .iter()
                .map(|&ratio| Dot {
                    name: "a<b".into(),
                    ratio,
                    verdict: "ahead",
                })
                .collect(),
        }
    }

    #[test]
    fn a_dot_for_each_known_ratio() {
        assert!(draw(&[], "A").is_none());
        assert!(draw(&[strip(&[f64::NAN, 0.0])], "A").is_none());
        let svg = draw(&[strip(&[0.5, 0.5, 2.0, f64::INFINITY]), strip(&[])], "A")
            .unwrap()
            .into_string();
        assert_eq!(svg.matches("class=\"dot ").count(), 3);
        assert!(svg.contains("a&lt;b") && !svg.contains("NaN"));
    }

    #[test]
    fn ticks_are_powers_of_two() {
        assert_eq!(tick(-3), "1/8");
        assert_eq!(tick(0), "1");
        assert_eq!(tick(2), "4");
    }
}
