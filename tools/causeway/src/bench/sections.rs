//! Instructions that the CPU executed in the batches of a row, by the plugin of `causeway profile`:
//! between two marks of the guest's program, its own and the kernel's. An idle CPU executes none,
//! so a wait for the peer counts for nothing but the way into it and out of it.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::lines::{Line, Measured};
use super::results::Better;

/// The file that a boot's plugin writes.
#[derive(Debug)]
pub struct Sections {
    path: PathBuf,
    /// Open once the plugin has made it.
    file: Option<File>,
    /// What has been read of it, up to the end of a line.
    text: String,
    /// The counts of rows that have not been reported, a list for each; the last one may grow.
    rows: VecDeque<Vec<f64>>,
}

impl Sections {
    /// The sections that come into this file.
    pub fn of(path: &Path) -> Self {
        Self {
            path: path.into(),
            file: None,
            text: String::new(),
            rows: VecDeque::new(),
        }
    }

    /// Puts instructions into the place of a row's times: of one operation, or a rate where an
    /// instruction takes a nanosecond. A row that measures no time stays as it is.
    pub fn counted(&mut self, row: Measured) -> Line {
        self.read();
        if !["ns", "s", "MiB/s", "ops/s"].contains(&&*row.unit) {
            return Line::Row(row);
        }
        // The first batch warms up. The guest may be in a later row already, and the rows before
        // it that failed have fewer counts.
        let wanted = row.samples.len() + 1;
        let found = self.rows.iter().position(|counts| counts.len() == wanted);
        let Some(counts) = found.and_then(|at| self.rows.drain(..=at).next_back()) else {
            let why = format!("no {wanted} counts of instructions came");
            return Line::Error { row: row.row, why };
        };
        let batch = row.operations as f64 / row.samples.len() as f64;
        let samples = counts[1..].iter().map(|&count| {
            let seconds = count / batch / 1e9;
            match (&*row.unit, row.better) {
                ("MiB/s", _) => row.bytes as f64 / f64::from(1 << 20) / seconds,
                (_, Better::More) => 1.0 / seconds,
                ("s", _) => seconds,
                _ => seconds * 1e9,
            }
        });
        Line::Row(Measured {
            samples: samples.collect(),
            ..row
        })
    }

    /// Reads what has come.
    fn read(&mut self) {
        /// A part with nothing in it, which marks the start of a row, has no more instructions.
        const NOTHING: f64 = 50.0;
        if self.file.is_none() {
            self.file = File::open(&self.path).ok();
        }
        if let Some(file) = &mut self.file {
            // What cannot be read is missing, which the caller says.
            let _ = file.read_to_string(&mut self.text);
        }
        let end = self.text.rfind('\n').map_or(0, |at| at + 1);
        let lines: String = self.text.drain(..end).collect();
        let sum = |line: &str| -> Option<f64> {
            let (programs, kernel) = line.split_once(' ')?;
            Some(programs.parse::<f64>().ok()? + kernel.parse::<f64>().ok()?)
        };
        for count in lines.lines().filter_map(sum) {
            match self.rows.back_mut() {
                Some(counts) if count > NOTHING => counts.push(count),
                _ => self.rows.push_back(Vec::new()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::lines;

    #[test]
    fn counts_stand_in_the_place_of_times() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sections");
        let mut sections = Sections::of(&path);
        let row = |text: &str| match lines::parse(text) {
            Some(Line::Row(row)) => row,
            other => panic!("{other:?}"),
        };
        let time = r#"{"row":"a/b","unit":"ns","better":"less","samples":[9,9],"operations":20}"#;
        let rate = r#"{"row":"a/c","unit":"MiB/s","better":"more","samples":[9],
                       "operations":1,"bytes":1048576}"#;
        let size = r#"{"row":"a/d","unit":"bytes","better":"less","samples":[9],"operations":1}"#;
        let mut lines =
            String::from("0 0\n100 100\n0 0\n100 100\n40 60\n100 20\n0 0\n100 1000\n50");
        std::fs::write(&path, &lines).unwrap();
        let Line::Row(counted) = sections.counted(row(time)) else {
            panic!()
        };
        assert_eq!(counted.samples, [10.0, 12.0]);
        lines.push_str("0000 500000\n0 0\n");
        std::fs::write(&path, &lines).unwrap();
        let Line::Row(counted) = sections.counted(row(rate)) else {
            panic!()
        };
        assert_eq!(counted.samples, [1000.0]);
        assert_eq!(sections.counted(row(size)), Line::Row(row(size)));
        assert!(matches!(sections.counted(row(time)), Line::Error { .. }));
    }
}
