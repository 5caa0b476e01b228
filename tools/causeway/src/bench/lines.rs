//! The guest's reports: one JSON object a line on its console, between lines of other kinds.
//!
//! A kernel may write to the console too, in front of a line or behind it, so an object is looked
//! for anywhere in a line; one that was cut in two is lost, and its row then counts as not
//! reported.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Deserializer, Value};

use super::results::Better;
use super::statistics;

/// The meaning of a line of the guest.
#[derive(Clone, PartialEq, Debug)]
pub enum Line {
    /// A row was measured.
    Row(Measured),
    /// The kernel lacks something that the row needs, for this reason: `ENOSYS`, or why not.
    Missing { row: String, why: String },
    /// The row was tried, and failed.
    Error { row: String, why: String },
    /// An experiment begins.
    Begun(String),
    /// This experiment or row comes next, when the guest may go on.
    Waiting(String),
    /// An experiment has ended.
    Done(String),
    /// The bench's program has ended with this status; the last line of a guest.
    End(i32),
}

/// The guest's measurement of a row.
#[derive(Deserialize, Clone, PartialEq, Debug)]
pub struct Measured {
    /// `experiment/variant`.
    pub row: String,
    /// The unit of the samples.
    pub unit: String,
    /// Which samples are good.
    pub better: Better,
    /// One value a batch, of one operation; at least one.
    pub samples: Vec<f64>,
    /// Operations of one batch.
    #[serde(default)]
    pub operations: u64,
    /// Bytes that an operation moves, for rates.
    #[serde(default)]
    pub bytes: u64,
    /// Events of one operation; those that did not happen are left out.
    #[serde(default)]
    pub counters: BTreeMap<String, f64>,
    /// A note for the reader.
    #[serde(default)]
    pub note: Option<String>,
}

impl Measured {
    /// The median of the samples.
    pub fn value(&self) -> f64 {
        // A line without samples is none (see `parse`).
        statistics::median(&self.samples).unwrap_or_default()
    }
}

/// Returns the meaning of a line of the console, or `None` for a line of another kind.
pub fn parse(line: &str) -> Option<Line> {
    // The rest of the line is not parsed: a kernel may have written there.
    let starts = line.match_indices('{').map(|(at, _)| at);
    starts
        .filter_map(|at| {
            Deserializer::from_str(&line[at..])
                .into_iter::<Value>()
                .next()?
                .ok()
        })
        .find_map(|value| meaning(&value))
}

fn meaning(value: &Value) -> Option<Line> {
    let text = |name: &str| Some(value.get(name)?.as_str()?.to_owned());
    if let Some(row) = text("row") {
        if let Some(why) = text("missing") {
            return Some(Line::Missing { row, why });
        }
        if let Some(why) = text("error") {
            return Some(Line::Error { row, why });
        }
        let measured: Measured = serde_json::from_value(value.clone()).ok()?;
        let sound = |sample: &f64| sample.is_finite() && *sample >= 0.0;
        if measured.samples.is_empty() || !measured.samples.iter().all(sound) {
            let why = "the guest reported samples that cannot be".into();
            return Some(Line::Error { row, why });
        }
        return Some(Line::Row(measured));
    }
    if let Some(name) = text("experiment") {
        return if value.get("done").is_some() {
            Some(Line::Done(name))
        } else {
            Some(Line::Begun(name))
        };
    }
    if let Some(next) = text("waiting") {
        return Some(Line::Waiting(next));
    }
    let status = value.get("end")?.as_i64()?;
    Some(Line::End(i32::try_from(status).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: &str = r#"{"row":"fork/empty","unit":"ns","better":"less","samples":[3.5,1,2],"operations":10,"counters":{"fault_zero":0.5},"note":"a {brace}"}"#;

    #[test]
    fn a_row_is_read() {
        let Some(Line::Row(row)) = parse(ROW) else {
            panic!("no row")
        };
        assert_eq!(
            (&*row.row, row.value(), row.operations),
            ("fork/empty", 2.0, 10)
        );
        assert_eq!(row.counters["fault_zero"], 0.5);
        assert_eq!(row.note.as_deref(), Some("a {brace}"));
    }

    #[test]
    fn what_a_kernel_writes_around_a_row_does_not_matter() {
        let plain = parse(ROW);
        assert_eq!(
            parse(&format!(
                "[   1.5] clocksource: {{}} unstable{ROW}[  1.6] x\r"
            )),
            plain
        );
        assert_eq!(parse(&format!("{{\"a\": {ROW}")), plain);
        assert_eq!(parse("[    0.1] Linux version 6.1 {built}"), None);
        assert_eq!(parse(&ROW[..60]), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn what_could_not_be_measured_says_why() {
        assert_eq!(
            parse(r#"{"row":"fbuf/page","missing":"ENOSYS"}"#),
            Some(Line::Missing {
                row: "fbuf/page".into(),
                why: "ENOSYS".into()
            })
        );
        assert_eq!(
            parse(r#"{"row":"pipe/64B","error":"write: EPIPE"}"#),
            Some(Line::Error {
                row: "pipe/64B".into(),
                why: "write: EPIPE".into()
            })
        );
        for samples in ["[]", "[-1]", "[1,-0.5]"] {
            let line = ROW.replace("[3.5,1,2]", samples);
            assert!(
                matches!(parse(&line), Some(Line::Error { .. })),
                "{samples}"
            );
        }
    }

    #[test]
    fn the_course_of_a_guest() {
        assert_eq!(
            parse(r#"{"experiment":"fork"}"#),
            Some(Line::Begun("fork".into()))
        );
        assert_eq!(
            parse(r#"{"experiment":"fork","done":true}"#),
            Some(Line::Done("fork".into()))
        );
        assert_eq!(
            parse(r#"{"waiting":"fork/empty"}"#),
            Some(Line::Waiting("fork/empty".into()))
        );
        assert_eq!(parse("{\"end\":0}\r"), Some(Line::End(0)));
    }
}
