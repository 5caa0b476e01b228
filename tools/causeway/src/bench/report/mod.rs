//! `report.html`: the results of a bench as one page that needs no other file.
//!
//! [`view`] sorts the rows, [`head`] summarises them, [`part`] writes a paper's part with its
//! [`figure`]s, the paper's own numbers ([`published`]) and the [`table`] of its rows, [`setting`]
//! the machine and the commands. [`picture`] draws.

mod figure;
mod head;
mod part;
pub mod picture;
mod published;
mod setting;
mod table;
mod view;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::results::Results;
use view::View;

/// The page's style. No comment in it may end the element.
const STYLE: &str = include_str!("style.css");

/// The page's security policy: a browser loads or runs nothing but that style.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// Writes the page to a file, which is there whole or not at all.
///
/// # Errors
/// When the folder or the file cannot be written.
pub fn write(results: &Results, file: &Path) -> Result<()> {
    let cannot = || format!("cannot write {}", file.display());
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).with_context(cannot)?;
    }
    let new = file.with_extension("html.new");
    fs::write(&new, page(results)).with_context(cannot)?;
    fs::rename(&new, file).with_context(cannot)
}

/// The page's text.
pub fn page(results: &Results) -> String {
    let counted = results
        .machine
        .clock
        .counts()
        .then(|| in_instructions(results));
    let view = View::new(counted.as_ref().unwrap_or(results));
    document(&view).into_string()
}

/// Names the unit of times `instr` where the clock counts instructions.
fn in_instructions(results: &Results) -> Results {
    let mut counted = results.clone();
    let rename = |unit: &mut String| {
        if unit == "ns" {
            *unit = "instr".into();
        }
    };
    for row in &mut counted.rows {
        rename(&mut row.unit);
        if let Some(floor) = &mut row.floor {
            rename(&mut floor.unit);
        }
    }
    counted
}

fn document(view: &View) -> Markup {
    let title = head::title(view);
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header { (head::head(view, &title)) }
                main {
                    @for part in &view.parts { (part::part(view, part)) }
                    (setting::setting(view))
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
