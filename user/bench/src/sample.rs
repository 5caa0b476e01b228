//! Units, and the lines of JSON that the program prints.

use std::fmt::Write;

use crate::counters::Counts;

/// Unit of a row's samples.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Time of one operation. Less is better, as for all but rates.
    Nanoseconds,
    /// Time of something long, such as a whole pipeline.
    Seconds,
    /// 1,048,576 bytes in each second. More is better.
    MebibytesPerSecond,
    /// Operations in each second. More is better.
    OperationsPerSecond,
    /// Bytes of memory.
    Bytes,
    /// Pages of 4,096 bytes.
    Pages,
    /// Page faults.
    Faults,
    /// Entries of an address space's map.
    Entries,
    /// Hundredths of a whole.
    Percent,
}

impl Unit {
    /// Returns its written form.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nanoseconds => "ns",
            Self::Seconds => "s",
            Self::MebibytesPerSecond => "MiB/s",
            Self::OperationsPerSecond => "ops/s",
            Self::Bytes => "bytes",
            Self::Pages => "pages",
            Self::Faults => "faults",
            Self::Entries => "entries",
            Self::Percent => "%",
        }
    }

    /// Returns whether `less` or `more` is better.
    pub fn better(self) -> &'static str {
        match self {
            Self::MebibytesPerSecond | Self::OperationsPerSecond => "more",
            Self::Nanoseconds
            | Self::Seconds
            | Self::Bytes
            | Self::Pages
            | Self::Faults
            | Self::Entries
            | Self::Percent => "less",
        }
    }
}

/// Result of a row.
#[derive(Clone, PartialEq, Debug)]
pub struct Record {
    /// `experiment/variant`.
    pub row: String,
    /// Sets the unit of the samples.
    pub unit: Unit,
    /// A value per operation for each batch, in the order in which they were made.
    pub samples: Vec<f64>,
    /// Operations in all these batches.
    pub operations: u64,
    /// Bytes that one of them moves, for rates; otherwise 0.
    pub bytes: u64,
    /// The kernel's counters per operation.
    pub counters: Counts,
    /// Notes for the reader.
    pub note: Option<String>,
}

impl Record {
    /// Returns the line without its end.
    pub fn line(&self) -> String {
        let mut line = format!(
            "{{\"row\":{},\"unit\":{},\"better\":{},\"samples\":[",
            quoted(&self.row),
            quoted(self.unit.name()),
            quoted(self.unit.better())
        );
        for (index, sample) in self.samples.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let _ = write!(line, "{comma}{}", number(*sample));
        }
        let _ = write!(line, "],\"operations\":{}", self.operations);
        if self.bytes > 0 {
            let _ = write!(line, ",\"bytes\":{}", self.bytes);
        }
        line.push_str(",\"counters\":{");
        let mut comma = "";
        for (name, value) in self.counters.nonzero() {
            let _ = write!(line, "{comma}{}:{}", quoted(name), number(value));
            comma = ",";
        }
        line.push('}');
        if let Some(note) = &self.note {
            let _ = write!(line, ",\"note\":{}", quoted(note));
        }
        line.push('}');
        line
    }
}

/// Returns the line of a row without a number: `key` is `missing` or `error`.
pub fn without_number(row: &str, key: &str, why: &str) -> String {
    format!(
        "{{\"row\":{},{}:{}}}",
        quoted(row),
        quoted(key),
        quoted(why)
    )
}

/// Returns the line before an experiment's rows.
pub fn start(experiment: &str) -> String {
    format!("{{\"experiment\":{}}}", quoted(experiment))
}

/// Returns the line that asks for a line of standard input, and names the next experiment or row.
pub fn wait(next: &str) -> String {
    format!("{{\"waiting\":{}}}", quoted(next))
}

/// Returns the line at an experiment's end.
pub fn end(experiment: &str) -> String {
    format!("{{\"experiment\":{},\"done\":true}}", quoted(experiment))
}

/// Formats a JSON number with five significant digits or more and without an exponent.
fn number(value: f64) -> String {
    if !value.is_finite() {
        return "0".into();
    }
    let digits = match value.abs() {
        size if size >= 1000.0 => 1,
        size if size >= 1.0 => 4,
        _ => 6,
    };
    let text = format!("{value:.digits$}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text.is_empty() || text == "-0" {
        "0"
    } else {
        text
    }
    .into()
}

/// Formats a JSON string.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            c if c < ' ' => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn parsed(line: &str) -> Value {
        assert!(!line.contains('\n'), "{line}");
        serde_json::from_str(line).expect("a line of JSON")
    }

    #[test]
    fn a_record_has_the_agreed_shape() {
        let record = Record {
            row: "sample/one".into(),
            unit: Unit::MebibytesPerSecond,
            samples: vec![0.000_123, 12.5, 123_456.78],
            operations: 300,
            bytes: 64,
            counters: Counts::of(&[("system_calls", 1.0), ("forks", 0.0), ("tlb_remote", 0.25)]),
            note: Some("a \"note\"\nof two lines \\".into()),
        };
        assert_eq!(
            parsed(&record.line()),
            json!({
                "row": "sample/one", "unit": "MiB/s", "better": "more",
                "samples": [0.000123, 12.5, 123456.8], "operations": 300, "bytes": 64,
                "counters": {"system_calls": 1, "tlb_remote": 0.25},
                "note": "a \"note\"\nof two lines \\",
            })
        );
        let bare = Record {
            samples: vec![],
            note: None,
            unit: Unit::Nanoseconds,
            bytes: 0,
            counters: Counts::default(),
            ..record
        };
        assert_eq!(
            parsed(&bare.line()),
            json!({
                "row": "sample/one", "unit": "ns", "better": "less",
                "samples": [], "operations": 300, "counters": {},
            })
        );
    }

    #[test]
    fn rows_without_a_number_say_why() {
        assert_eq!(
            parsed(&without_number("a/b", "missing", "ENOSYS")),
            json!({"row": "a/b", "missing": "ENOSYS"})
        );
        assert_eq!(
            parsed(&without_number("a/b", "error", "tab\there")),
            json!({"row": "a/b", "error": "tab\there"})
        );
        assert_eq!(parsed(&start("fork")), json!({"experiment": "fork"}));
        assert_eq!(
            parsed(&end("fork")),
            json!({"experiment": "fork", "done": true})
        );
    }

    #[test]
    fn numbers_are_plain() {
        for (value, text) in [
            (0.0, "0"),
            (-0.000_000_1, "0"),
            (1.0, "1"),
            (100.0, "100"),
            (1e12, "1000000000000"),
            (f64::NAN, "0"),
            (2.0 / 3.0, "0.666667"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
