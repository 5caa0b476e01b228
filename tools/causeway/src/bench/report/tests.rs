//! The page of the results in `example.json`, and of results that lack much.

use std::path::Path;

use super::*;
use crate::bench::results::{Clock, Row, Status};

/// Results with every kind of row, in five pairs, with two switches.
fn example() -> Results {
    Results::parse(include_str!("example.json")).unwrap()
}

/// A word that must never reach the page as it is.
const HOSTILE: &str = "</style><script>alert(1)</script>\"'&<u>";

/// Whether no number that is none got into the page.
fn is_sound(page: &str) {
    let text = page.split("</style>").nth(1).unwrap();
    for word in ["NaN", "inf\"", "Infinity", ">inf", "-inf"] {
        assert!(!text.contains(word), "{word}");
    }
    assert!(page.contains("</html>"));
}

#[test]
fn the_page_needs_nothing_else() {
    let page = page(&example());
    is_sound(&page);
    for word in ["<script", "<link", "<img", "@import", "url(", " src="] {
        assert!(!page.contains(word), "{word}");
    }
    let outside = page.replace("http://www.w3.org/2000/svg", "");
    assert!(!outside.contains("http:") && !outside.contains("https:"));
}

#[test]
fn every_row_is_on_the_page() {
    let results = example();
    let page = page(&results);
    for row in &results.rows {
        assert!(page.contains(&format!(">{}", row.variant())), "{}", row.id);
    }
    assert_eq!(
        page.matches(">noise<").count() > 1,
        results.rows.iter().any(|row| row.noisy)
    );
    assert!(page.contains("not yet"));
}

#[test]
fn pictures_have_marks_and_descriptions() {
    let page = page(&example());
    let pictures: Vec<&str> = page
        .split("<svg class=\"")
        .skip(1)
        .filter(|svg| !svg.starts_with("range"))
        .map(|svg| svg.split("</svg>").next().unwrap())
        .collect();
    assert!(pictures.len() > 40, "{}", pictures.len());
    for svg in pictures {
        assert!(
            svg.contains("class=\"mark ") || svg.contains("class=\"dot "),
            "{svg}"
        );
        let label = svg.split("aria-label=\"").nth(1).unwrap();
        assert!(label.find('"').unwrap() > 20, "{label}");
    }
}

#[test]
fn headings_are_in_order() {
    let page = page(&example());
    let mut last = 0;
    for part in page.split("<h").skip(1) {
        let Some(level) = part.chars().next().and_then(|level| level.to_digit(10)) else {
            continue;
        };
        assert!(level <= last + 1, "{}", &part[..part.len().min(80)]);
        last = level;
    }
    assert_eq!(page.matches("<h1").count(), 1);
    assert_eq!(
        page.matches("<table").count(),
        page.matches("<caption>").count()
    );
}

#[test]
fn links_lead_somewhere() {
    let page = page(&example());
    for link in page.split("href=\"#").skip(1) {
        let target = &link[..link.find('"').unwrap()];
        assert_eq!(
            page.matches(&format!("id=\"{target}\"")).count(),
            1,
            "{target}"
        );
    }
}

#[test]
fn hostile_names_stay_text() {
    let mut results = example();
    for row in &mut results.rows {
        row.id += HOSTILE;
        row.unit = HOSTILE.into();
        row.note = Some(HOSTILE.into());
        row.outcomes[0].why = Some(HOSTILE.into());
        for counters in &mut row.counters {
            counters.insert(HOSTILE.into(), 1e12);
        }
        if let Some(floor) = &mut row.floor {
            floor.name = HOSTILE.into();
        }
    }
    let machine = &mut results.machine;
    for text in [
        &mut machine.accelerator,
        &mut machine.qemu,
        &mut machine.memory,
        &mut machine.host,
        &mut machine.flags,
        &mut machine.mitigations,
        &mut machine.set,
    ] {
        *text = HOSTILE.into();
    }
    machine.commands = vec![HOSTILE.into()];
    for kernel in &mut results.kernels {
        kernel.name = HOSTILE.into();
        kernel.version = HOSTILE.into();
        kernel.commit = Some(HOSTILE.into());
        kernel.options = HOSTILE.into();
    }
    let page = page(&results);
    assert!(!page.contains("<script") && !page.contains("<u>"));
    assert_eq!(page.matches("</style>").count(), 1);
}

/// The page of the example after a change of each of its rows.
fn changed(change: impl Fn(&mut Row)) -> String {
    let mut results = example();
    results.rows.iter_mut().for_each(change);
    page(&results)
}

#[test]
fn what_is_missing_or_no_number_is_left_out() {
    is_sound(&page(&Results {
        rows: vec![],
        ..example()
    }));
    for value in [f64::NAN, f64::INFINITY, 0.0, f64::MIN_POSITIVE, f64::MAX] {
        is_sound(&changed(|row| {
            row.runs
                .iter_mut()
                .flatten()
                .for_each(|run| *run = Some(value));
            if let Some(ratio) = &mut row.ratio {
                (ratio.median, ratio.least, ratio.most) = (value, value, value);
            }
            if let Some(floor) = &mut row.floor {
                floor.value = value;
            }
            for counters in &mut row.counters {
                counters.values_mut().for_each(|counter| *counter = value);
            }
        }));
    }
    let page = changed(|row| {
        row.runs.iter_mut().flatten().for_each(|run| *run = None);
        row.ratio = None;
        row.status = Status::NotYet;
        row.outcomes[0].status = Status::NotYet;
    });
    is_sound(&page);
    assert!(page.contains("not yet here"));
}

#[test]
fn one_kernel_alone_makes_a_page() {
    let mut results = example();
    results.kernels.truncate(1);
    for row in &mut results.rows {
        row.runs.truncate(1);
        row.counters.truncate(1);
        row.outcomes.truncate(1);
        row.ratio = None;
    }
    let page = page(&results);
    is_sound(&page);
    assert!(!page.contains("Linux’s"));
}

#[test]
fn counted_instructions_are_called_so() {
    let mut results = example();
    results.machine.clock = Clock::Icount;
    let page = page(&results);
    is_sound(&page);
    let unit = |name: &str| page.contains(&format!("<td class=\"unit\">{name}</td>"));
    assert!(unit("k instr") && unit("instr") && !unit("µs") && !unit("ns"));
}

#[test]
fn the_page_is_written_whole() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a/report.html");
    write(&example(), &file).unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), page(&example()));
    assert!(write(&example(), Path::new("/dev/null/report.html")).is_err());
}
