//! Results as the page shows them: rows in their places, and names of the kernels.

use crate::bench::experiments::{self, Experiment, Paper};
use crate::bench::results::{Results, Row, Status};
use crate::bench::verdict::Verdict;

/// An experiment with its rows; none if the results lack it.
#[derive(Clone, Debug)]
pub struct Group<'a> {
    /// The guest's name of it.
    pub name: &'a str,
    pub place: Option<&'static Experiment>,
    pub rows: Vec<&'a Row>,
}

impl Group<'_> {
    /// Its heading.
    pub fn title(&self) -> &str {
        self.place.map_or(self.name, |place| &place.title)
    }

    /// Whether it is something that the guest or kernel 0 cannot do yet.
    pub fn is_missing(&self) -> bool {
        let has = |status| self.rows.iter().any(|row| row.status == status);
        let lacks_guest = self.place.is_some_and(|place| !place.is_here);
        !has(Status::Measured) && (has(Status::NotYet) || lacks_guest)
    }
}

/// A part of the page.
#[derive(Clone, Debug)]
pub struct Part<'a> {
    /// Nothing for experiments without a place.
    pub paper: Option<&'static Paper>,
    pub groups: Vec<Group<'a>>,
}

impl Part<'_> {
    pub fn title(&self) -> &'static str {
        self.paper.map_or("Other experiments", |it| &it.title)
    }

    pub fn short(&self) -> &'static str {
        self.paper.map_or("Others", |it| &it.short)
    }

    /// Its name in the page's addresses.
    pub fn anchor(&self) -> String {
        self.short().to_lowercase().replace(' ', "-")
    }
}

/// Results, with values that the page needs repeatedly.
#[derive(Clone, Debug)]
pub struct View<'a> {
    pub results: &'a Results,
    /// A name for each kernel, all different.
    pub names: Vec<String>,
    pub parts: Vec<Part<'a>>,
}

impl<'a> View<'a> {
    pub fn new(results: &'a Results) -> Self {
        Self {
            results,
            names: results.titles(),
            parts: parts(results),
        }
    }

    /// A kernel's name.
    pub fn name(&self, kernel: usize) -> &str {
        self.names.get(kernel).map_or("", String::as_str)
    }

    /// Whether there is a kernel to be held against.
    pub fn is_pair(&self) -> bool {
        self.results.kernels.len() > 1
    }

    /// The kernels with a mechanism switched off, and their options.
    pub fn switched(&self) -> impl Iterator<Item = (usize, &'a str)> {
        let kernels = self.results.kernels.iter().enumerate().skip(2);
        kernels.map(|(number, kernel)| (number, kernel.options.as_str()))
    }

    /// The kernel whose command line has an option.
    pub fn with_option(&self, option: &str) -> Option<usize> {
        self.switched()
            .find(|(_, options)| options.split_whitespace().any(|one| one == option))
            .map(|(number, _)| number)
    }

    /// A row by its id.
    pub fn row(&self, id: &str) -> Option<&'a Row> {
        self.results.row(id)
    }

    /// Whether a kernel counts such events at all, as far as these results show.
    pub fn counts(&self, kernel: usize, name: &str) -> bool {
        let mut rows = self.results.rows.iter();
        rows.any(|row| {
            row.counters
                .get(kernel)
                .is_some_and(|counters| counters.contains_key(name))
        })
    }

    /// The value of a floor in a unit, if it was measured and is of that unit.
    pub fn floor(&self, name: &str, unit: &str) -> Option<f64> {
        let row = self.row(&format!("floors/{name}"))?;
        row.value(0).filter(|_| row.unit == unit)
    }

    /// How many rows have this verdict; floors are none.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.judged()
            .filter(|row| Verdict::of(row) == verdict)
            .count()
    }

    /// The rows that are judged: all but the floors.
    pub fn judged(&self) -> impl Iterator<Item = &'a Row> {
        let results = self.results;
        results
            .rows
            .iter()
            .filter(|row| row.experiment() != "floors")
    }

    /// The geometric mean of the ratios, if there is one.
    pub fn mean(&self) -> Option<f64> {
        let logs: Vec<f64> = self
            .judged()
            .filter_map(|row| row.ratio)
            .filter(|ratio| ratio.median > 0.0 && ratio.median.is_finite())
            .map(|ratio| ratio.median.ln())
            .collect();
        (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
    }
}

/// The rows by paper and experiment, in the report's order. Results of most experiments, not of
/// some that were asked for, have the papers' other ones too.
fn parts(results: &Results) -> Vec<Part<'_>> {
    let rows_of = |name: &str| -> Vec<&Row> {
        results
            .rows
            .iter()
            .filter(|row| row.experiment() == name)
            .collect()
    };
    let guests = || experiments::all().filter(|(_, it)| it.is_here);
    let measured = guests().filter(|(_, it)| !rows_of(&it.name).is_empty());
    let is_whole = measured.count() * 2 > guests().count();
    let mut parts = Vec::new();
    for paper in experiments::papers() {
        let groups: Vec<Group> = paper
            .experiments
            .iter()
            .map(|place| Group {
                name: &place.name,
                place: Some(place),
                rows: rows_of(&place.name),
            })
            .filter(|group| !group.rows.is_empty() || (is_whole && group.is_missing()))
            .collect();
        if !groups.is_empty() {
            parts.push(Part {
                paper: Some(paper),
                groups,
            });
        }
    }
    let mut others: Vec<Group> = Vec::new();
    for row in &results.rows {
        let name = row.experiment();
        if experiments::find(name).is_none() && others.iter().all(|group| group.name != name) {
            others.push(Group {
                name,
                place: None,
                rows: rows_of(name),
            });
        }
    }
    if !others.is_empty() {
        parts.push(Part {
            paper: None,
            groups: others,
        });
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::results::tests::example;

    #[test]
    fn every_row_is_in_one_part() {
        let mut results = example();
        let mut stranger = results.rows[0].clone();
        stranger.id = "stranger/row".into();
        results.rows.push(stranger);
        let view = View::new(&results);
        let shown = view
            .parts
            .iter()
            .flat_map(|part| &part.groups)
            .map(|group| group.rows.len());
        assert_eq!(shown.sum::<usize>(), 2);
        let mean = view.mean().unwrap();
        assert!((0.49..0.52).contains(&mean), "{mean}");
        assert_eq!(
            View::new(&Results {
                rows: vec![],
                ..example()
            })
            .mean(),
            None
        );
    }
}
