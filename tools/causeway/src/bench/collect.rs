//! Gathers the guests' reports, boot by boot, and makes results of them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::experiments;
use super::lines::{Line, Measured};
use super::results::{
    Better, Failure, Floor, Kernel, Machine, Outcome, Results, Row, SCHEMA, Status,
};
use super::statistics;

/// The experiment whose rows are the bare machine's costs.
const FLOORS: &str = "floors/";

/// The reason that the guest gives when the kernel does not know a call.
const NOT_YET: &str = "ENOSYS";

/// The reports so far.
#[derive(Debug)]
pub struct Collection {
    machine: Machine,
    kernels: Vec<Kernel>,
    pairs: u32,
    /// The turns, and how many of them were calm.
    turns: (u32, u32),
    /// The ids in the order in which they were first reported.
    order: Vec<String>,
    /// For each id, each kernel's report in each pair.
    reports: BTreeMap<String, BTreeMap<(usize, u32), Line>>,
    failures: Vec<Failure>,
}

impl Collection {
    /// Nothing yet, of these kernels on this machine.
    pub fn new(machine: Machine, kernels: Vec<Kernel>) -> Self {
        Self {
            machine,
            kernels,
            pairs: 0,
            turns: (0, 0),
            order: Vec::new(),
            reports: BTreeMap::new(),
            failures: Vec::new(),
        }
    }

    /// A kernel's boot of this pair, from 1, begins.
    pub fn begin(&mut self, pair: u32) {
        self.pairs = self.pairs.max(pair);
    }

    /// A row had a turn, while the host was calm or not.
    pub fn turn(&mut self, calm: bool) {
        self.turns.0 += 1;
        self.turns.1 += u32::from(calm);
    }

    /// A kernel reported this. Of a row's turns in a boot the best counts, unless one failed.
    pub fn hear(&mut self, kernel: usize, pair: u32, line: Line) {
        let row = match &line {
            Line::Row(Measured { row, .. })
            | Line::Missing { row, .. }
            | Line::Error { row, .. } => row.clone(),
            Line::Begun(_) | Line::Waiting(_) | Line::Done(_) | Line::End(_) => return,
        };
        if !row.contains('/') {
            // A failure between two rows has the experiment's name only.
            if let Line::Error { why, .. } | Line::Missing { why, .. } = line {
                self.fail(kernel, pair, Some(row), why);
            }
            return;
        }
        if !self.reports.contains_key(&row) {
            self.order.push(row.clone());
        }
        let reports = self.reports.entry(row).or_default();
        match reports.entry((kernel, pair)) {
            Entry::Vacant(place) => drop(place.insert(line)),
            Entry::Occupied(mut place) if counts(&line, place.get()) => drop(place.insert(line)),
            Entry::Occupied(_) => {}
        }
    }

    /// A kernel's guest did not come to the end of this experiment.
    pub fn fail(&mut self, kernel: usize, pair: u32, experiment: Option<String>, why: String) {
        self.failures.push(Failure {
            kernel: u32::try_from(kernel).unwrap_or(u32::MAX),
            pair,
            experiment,
            why,
        });
    }

    /// Returns the reports as results.
    pub fn results(&self) -> Results {
        let mut rows: Vec<Row> = self.order.iter().map(|id| self.row(id)).collect();
        let floors: BTreeMap<String, Floor> = rows
            .iter()
            .filter_map(|row| {
                let name = row.id.strip_prefix(FLOORS)?;
                let floor = Floor {
                    name: name.into(),
                    value: row.value(0)?,
                    unit: row.unit.clone(),
                };
                Some((name.to_owned(), floor))
            })
            .collect();
        for row in &mut rows {
            row.floor = experiments::floor_of(&row.id).and_then(|name| floors.get(name).cloned());
        }
        // A guest that was restarted after a failure reports late the rows that others report
        // early; rows of one experiment stay in the order of the reports.
        rows.sort_by_key(|row| self.first_of(row.experiment()));
        Results {
            schema: SCHEMA,
            machine: self.machine.clone(),
            kernels: self.kernels.clone(),
            pairs: self.pairs,
            calm: match self.turns {
                (0, _) => None,
                (turns, calm) => Some(f64::from(calm) / f64::from(turns)),
            },
            rows,
            failures: self.failures.clone(),
        }
    }

    /// Where an experiment was reported first.
    fn first_of(&self, experiment: &str) -> usize {
        let of = |id: &String| {
            id.split_once('/')
                .is_some_and(|(name, _)| name == experiment)
        };
        self.order.iter().position(of).unwrap_or(usize::MAX)
    }

    fn row(&self, id: &str) -> Row {
        let reports = &self.reports[id];
        let all: Vec<&Measured> = reports.values().filter_map(measured).collect();
        let (unit, better) = all.first().map_or((String::new(), Better::Less), |row| {
            (row.unit.clone(), row.better)
        });
        let kernels = 0..self.kernels.len();
        let runs: Vec<Vec<Option<f64>>> = kernels
            .clone()
            .map(|kernel| {
                let of = |pair| measured(reports.get(&(kernel, pair))?).map(Measured::value);
                (1..=self.pairs).map(of).collect()
            })
            .collect();
        let counters = kernels
            .clone()
            .map(|kernel| {
                let of = |pair| measured(reports.get(&(kernel, pair))?).map(|row| &row.counters);
                medians(&(1..=self.pairs).filter_map(of).collect::<Vec<_>>())
            })
            .collect();
        let outcomes: Vec<Outcome> = kernels.map(|kernel| self.outcome(id, kernel)).collect();
        let none = Vec::new();
        let other = runs.get(1).unwrap_or(&none);
        let spread = statistics::spread(&runs[0], other, better);
        Row {
            id: id.into(),
            unit,
            better,
            ratio: statistics::ratio(&runs[0], other, better),
            spread,
            noisy: statistics::doubt(spread, self.pairs) > statistics::NOISE,
            floor: None,
            counters,
            status: outcomes[0].status,
            outcomes,
            note: all.iter().find_map(|row| row.note.clone()),
            runs,
        }
    }

    /// Returns the outcome of a row on a kernel: the best of all pairs, and the reason of the last
    /// one that failed.
    fn outcome(&self, id: &str, kernel: usize) -> Outcome {
        let reports = &self.reports[id];
        let lines = (1..=self.pairs).filter_map(|pair| reports.get(&(kernel, pair)));
        let (mut status, mut why) = (Status::Nothing, None);
        for line in lines {
            match line {
                Line::Row(_) => status = Status::Measured,
                Line::Missing { why: reason, .. } if status != Status::Measured => {
                    // Other things may be missing for good: a file of Causeway's on Linux, a disk.
                    status = if reason == NOT_YET {
                        Status::NotYet
                    } else {
                        Status::Nothing
                    };
                    why = Some(reason.clone());
                }
                Line::Error { why: reason, .. } if status == Status::Nothing => {
                    (status, why) = (Status::Failed, Some(reason.clone()));
                }
                // An error in one pair is to be known even where others gave values.
                Line::Error { why: reason, .. } => why = Some(reason.clone()),
                _ => {}
            }
        }
        if status == Status::Nothing && why.is_none() {
            let experiment = id.split_once('/').map(|(name, _)| name);
            let failure = self
                .failures
                .iter()
                .find(|it| it.kernel as usize == kernel && it.experiment.as_deref() == experiment);
            if let Some(failure) = failure {
                (status, why) = (
                    Status::Failed,
                    failure.why.lines().next().map(str::to_owned),
                );
            }
        }
        Outcome { status, why }
    }
}

/// Whether a turn of a row counts in place of an earlier one.
fn counts(new: &Line, old: &Line) -> bool {
    match (measured(new), measured(old)) {
        (Some(new), Some(old)) if new.better == Better::More => new.value() > old.value(),
        (Some(new), Some(old)) => new.value() < old.value(),
        // A failure must be reported.
        (None, _) => true,
        (Some(_), None) => false,
    }
}

fn measured(line: &Line) -> Option<&Measured> {
    match line {
        Line::Row(row) => Some(row),
        _ => None,
    }
}

/// For each counter the median over the boots; a boot that does not name it had none of its events.
fn medians(boots: &[&BTreeMap<String, f64>]) -> BTreeMap<String, f64> {
    let mut names: Vec<&String> = boots.iter().flat_map(|boot| boot.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let median = |name: &String| {
        let values: Vec<f64> = boots
            .iter()
            .map(|boot| boot.get(name).copied().unwrap_or_default())
            .collect();
        statistics::median(&values).filter(|value| *value != 0.0)
    };
    names
        .into_iter()
        .filter_map(|name| Some((name.clone(), median(name)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::lines::parse;
    use crate::bench::results::tests::example;

    fn collection() -> Collection {
        let example = example();
        Collection::new(example.machine, example.kernels)
    }

    fn row(id: &str, value: f64) -> Line {
        let line = format!(
            r#"{{"row":"{id}","unit":"ns","better":"less","samples":[{value}],"operations":1,"counters":{{"fault_zero":{value}}}}}"#
        );
        parse(&line).expect("a row")
    }

    fn error(id: &str, why: &str) -> Line {
        Line::Error {
            row: id.into(),
            why: why.into(),
        }
    }

    #[test]
    fn pairs_make_a_row() {
        let mut collection = collection();
        for (pair, ours, theirs) in [(1, 10.0, 20.0), (2, 12.0, 20.0), (3, 11.0, 22.0)] {
            collection.begin(pair);
            collection.hear(0, pair, row("fork/empty", ours));
            collection.hear(1, pair, row("fork/empty", theirs));
        }
        let results = collection.results();
        results.check().unwrap();
        let row = &results.rows[0];
        assert_eq!((row.value(0), row.value(1)), (Some(11.0), Some(20.0)));
        assert_eq!(
            row.ratio.map(|ratio| (ratio.median, ratio.most)),
            Some((0.5, 0.6))
        );
        assert_eq!(row.counters[0]["fault_zero"], 11.0);
        assert_eq!(row.status, Status::Measured);
    }

    #[test]
    fn the_best_turn_of_a_boot_counts_unless_one_failed() {
        let mut collection = collection();
        assert_eq!(collection.results().calm, None);
        for calm in [true, false, true, true] {
            collection.turn(calm);
        }
        for pair in 1..=2 {
            collection.begin(pair);
        }
        for value in [12.0, 10.0, 11.0] {
            collection.hear(0, 1, row("fork/empty", value));
        }
        collection.hear(0, 2, row("fork/empty", 12.0));
        collection.hear(0, 2, error("fork/empty", "EAGAIN"));
        collection.hear(0, 2, row("fork/empty", 10.0));
        let results = collection.results();
        assert_eq!(results.calm, Some(0.75));
        assert_eq!(results.rows[0].runs[0], [Some(10.0), None]);
        assert_eq!(results.rows[0].outcomes[0].why.as_deref(), Some("EAGAIN"));
    }

    #[test]
    fn what_failed_or_is_missing_keeps_its_reason_and_the_rest_its_values() {
        let mut collection = collection();
        collection.begin(1);
        collection.hear(0, 1, row("fork/empty", 10.0));
        collection.hear(
            0,
            1,
            Line::Missing {
                row: "fbuf/page".into(),
                why: "ENOSYS".into(),
            },
        );
        collection.hear(
            0,
            1,
            Line::Missing {
                row: "disk/read".into(),
                why: "no disk".into(),
            },
        );
        collection.hear(0, 1, error("pipe/64B", "EPIPE"));
        collection.hear(0, 1, error("disk", "no disk"));
        collection.fail(
            1,
            1,
            Some("fork".into()),
            "the kernel panicked\n  somewhere".into(),
        );
        let results = collection.results();
        results.check().unwrap();
        let fork = results.row("fork/empty").unwrap();
        assert_eq!((fork.status, fork.ratio), (Status::Measured, None));
        assert_eq!(fork.outcomes[1].status, Status::Failed);
        assert_eq!(fork.outcomes[1].why.as_deref(), Some("the kernel panicked"));
        assert_eq!(results.row("fbuf/page").unwrap().status, Status::NotYet);
        let disk = &results.row("disk/read").unwrap().outcomes[0];
        assert_eq!(
            (disk.status, disk.why.as_deref()),
            (Status::Nothing, Some("no disk"))
        );
        let pipe = results.row("pipe/64B").unwrap();
        assert_eq!(
            (pipe.status, pipe.outcomes[1].status),
            (Status::Failed, Status::Nothing)
        );
        assert_eq!(pipe.outcomes[0].why.as_deref(), Some("EPIPE"));
        let disk = results
            .failures
            .iter()
            .find(|it| it.experiment.as_deref() == Some("disk"));
        assert_eq!(disk.map(|it| &*it.why), Some("no disk"));
    }

    #[test]
    fn a_row_that_failed_once_is_measured_and_the_reason_stays() {
        let mut collection = collection();
        for pair in 1..=2 {
            collection.begin(pair);
        }
        collection.hear(0, 1, row("fork/empty", 10.0));
        collection.hear(0, 2, error("fork/empty", "EAGAIN"));
        let results = collection.results();
        results.check().unwrap();
        assert_eq!(results.rows[0].status, Status::Measured);
        assert_eq!(results.rows[0].outcomes[0].why.as_deref(), Some("EAGAIN"));
        assert_eq!(results.rows[0].runs[0], [Some(10.0), None]);
    }

    #[test]
    fn rows_of_an_experiment_stand_together() {
        let mut collection = collection();
        collection.begin(1);
        for id in ["fork/a", "pipe/a", "fork/b"] {
            collection.hear(0, 1, row(id, 1.0));
        }
        let results = collection.results();
        let ids: Vec<&str> = results.rows.iter().map(|row| &*row.id).collect();
        assert_eq!(ids, ["fork/a", "fork/b", "pipe/a"]);
    }
}
