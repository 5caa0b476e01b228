//! A part of the page: a paper's experiments with their figures, then the table of all their rows.

use maud::{Markup, html};

use super::view::{Group, Part, View};
use super::{figure, published, table};

/// The part, under a heading of its own.
pub fn part(view: &View, part: &Part) -> Markup {
    let rows = part.groups.iter().any(|group| !group.rows.is_empty());
    html! {
        section.part id=(part.anchor()) {
            h2 { (part.title()) }
            @if let Some(paper) = part.paper { p.about { (paper.about) } }
            @for group in part.groups.iter().filter(|group| shows(view, group)) { (experiment(view, group)) }
            @if rows {
                h3 { "All rows" }
                (table::table(view, part))
            }
        }
    }
}

/// Whether there is more of an experiment than its rows in the table.
fn shows(view: &View, group: &Group) -> bool {
    let published = group.place.is_some_and(|place| !place.published.is_empty());
    published || figure::figures(view, group).is_some() || figure::without(view, group).is_some()
}

/// Writes an experiment's heading, its explanation, and its figures.
fn experiment(view: &View, group: &Group) -> Markup {
    let figures = figure::figures(view, group);
    html! {
        article id={ "experiment-" (group.name) } {
            h3 {
                (group.title())
                @if let Some(place) = group.place {
                    @if !place.section.is_empty() { " " span.section { (place.section) } }
                }
                @if group.is_missing() { " " span.not-yet { "not yet here" } }
            }
            @if let Some(place) = group.place { p.see { (place.see) } }
            @if let Some(figures) = figures { (figures) }
            @if let Some(place) = group.place {
                @for one in &place.published { (published::published(view, one, !group.is_missing())) }
            }
            @if let Some(without) = figure::without(view, group) {
                h4 { "With a mechanism switched off" }
                (without)
            }
        }
    }
}
