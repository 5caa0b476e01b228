//! The results of a bench: the contents of `results.json`.
//!
//! These structures *are* the schema; `docs/results.md` explains it to readers of the file, and
//! `docs/results.schema.json` is made from them (a test holds it to that). A field may be added in
//! a version of the schema; a change of a field's meaning raises [`SCHEMA`].
//!
//! Kernels are numbered everywhere: [`Results::kernels`]`[k]` made [`Row::runs`]`[k]` and
//! [`Row::counters`]`[k]`. Kernel 0 is the one that is judged, kernel 1 the one that it is held
//! against; further ones are kernel 0 with mechanisms switched off.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::statistics::{self, Ratio};
use super::verdict::Verdict;

/// The version of the schema that this program writes and reads.
pub const SCHEMA: u32 = 1;

/// One bench: some pairs of boots of the same machine, and the measurements of the guest's
/// experiments.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Results {
    /// The version of this schema, [`SCHEMA`].
    pub schema: u32,
    /// The machine of all kernels.
    pub machine: Machine,
    /// The kernel that is judged, the one it is held against, and further ones; at least one.
    pub kernels: Vec<Kernel>,
    /// How many times the kernels were booted together; fewer than asked for if the user stopped.
    pub pairs: u32,
    /// The part of the kernels' turns during which the host was calm, from 0 to 1; `null` where
    /// they took none.
    #[serde(default)]
    pub calm: Option<f64>,
    /// The measurements, in the order in which the guest reports them.
    pub rows: Vec<Row>,
    /// Failures of whole guests; empty when all went well.
    pub failures: Vec<Failure>,
}

/// The machine of all kernels.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// How QEMU runs the guest's instructions: `kvm` or `tcg`.
    pub accelerator: String,
    /// The unit of the guests' clock.
    pub clock: Clock,
    /// The first line of `qemu-system-x86_64 --version`.
    pub qemu: String,
    /// The guests' CPUs.
    pub cpus: u32,
    /// The guests' memory as QEMU counts it: `1G`.
    pub memory: String,
    /// The host: its processor, how many of them, its kernel.
    pub host: String,
    /// QEMU's flags that both kernels got, in one line.
    pub flags: String,
    /// The commands that repeat this, one a line.
    pub commands: Vec<String>,
    /// `default` (as each kernel ships), `on` or `off`, with the meaning for each kernel.
    pub mitigations: String,
    /// Which set of batches the guest measured: `short`, `full`, or `batches` where their number
    /// was given.
    pub set: String,
    /// When it began, in seconds since 1970 (UTC).
    pub began: u64,
}

/// The unit of the guests' clock.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Clock {
    /// Time of the host's processor, which runs the guest itself.
    Kvm,
    /// Time of an emulator: good for ratios, not for a real machine's figures.
    Tcg,
    /// Instructions, one a nanosecond: repeats to the digit on one CPU.
    Icount,
    /// Instructions that the CPU executed, one a nanosecond; it waited in real time for a peer.
    Busy,
}

impl Clock {
    /// Whether a nanosecond is an instruction.
    pub fn counts(self) -> bool {
        matches!(self, Self::Icount | Self::Busy)
    }
}

/// A kernel that was booted.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Kernel {
    /// `causeway` or `linux`; two of one name have different `version`s, `commit`s or `options`.
    pub name: String,
    /// The name of the kernel's file or, of Causeway, the workspace's version.
    pub version: String,
    /// The commit of Causeway's source, with `+` behind it where the source was changed since.
    pub commit: Option<String>,
    /// Options on its command line besides those of every bench: switches, mitigations.
    pub options: String,
}

/// One thing measured.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// `experiment/variant`, the same from version to version.
    pub id: String,
    /// The unit of the values: `ns` (an operation), `MiB/s`, `ops/s`, `bytes`, `pages` or `s`.
    pub unit: String,
    /// Which values are good.
    pub better: Better,
    /// For each kernel, for each pair, the median of the samples; `null` where that boot gave none.
    pub runs: Vec<Vec<Option<f64>>>,
    /// Kernel 0's cost in kernel 1's: below 1 is good for kernel 0, whatever the unit. `null` when
    /// no pair has both.
    pub ratio: Option<Ratio>,
    /// How far the runs lie apart, as a part of their median; see [`statistics::spread`].
    pub spread: f64,
    /// Whether so many pairs with this `spread` leave more doubt than [`statistics::NOISE`]: the
    /// figure says little.
    pub noisy: bool,
    /// The bare hardware's cost that this row is held against.
    pub floor: Option<Floor>,
    /// For each kernel, the events of an operation by their names in `/proc/causeway/counters`;
    /// medians of the pairs.
    pub counters: Vec<BTreeMap<String, f64>>,
    /// The outcome on each kernel.
    pub outcomes: Vec<Outcome>,
    /// The outcome on kernel 0.
    pub status: Status,
    /// The guest's note about the row.
    pub note: Option<String>,
}

/// Which values of a row are good.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// A time or an amount of memory.
    Less,
    /// A rate.
    More,
}

/// The outcome of a row.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum Status {
    /// There is a value.
    #[serde(rename = "measured")]
    Measured,
    /// The kernel answered `ENOSYS`: it cannot do this yet.
    #[serde(rename = "not yet")]
    NotYet,
    /// It was tried, and failed.
    #[serde(rename = "failed")]
    Failed,
    /// There is nothing to measure: something that the row needs is not there, or the guest
    /// reported nothing.
    #[serde(rename = "none")]
    Nothing,
}

/// The outcome of a row on one kernel.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// The best that came of it in any pair.
    pub status: Status,
    /// The reason of a failure or of a missing row; `null` otherwise.
    pub why: Option<String>,
}

/// A bare cost that a row is held against.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Floor {
    /// Its name in `/proc/causeway/hw_cost`.
    pub name: String,
    /// Its value on kernel 0, in `unit`.
    pub value: f64,
    /// `ns` or `MiB/s`.
    pub unit: String,
}

/// A guest that did not come to its end.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// The kernel's number.
    pub kernel: u32,
    /// The pair, from 1.
    pub pair: u32,
    /// The experiment that ran then, if one did.
    pub experiment: Option<String>,
    /// The reason.
    pub why: String,
}

impl Results {
    /// Reads a file that [`Self::write`] wrote.
    ///
    /// # Errors
    /// When it cannot be read, is not such a file, or has another version of the schema.
    pub fn read(file: &Path) -> Result<Self> {
        let text = fs::read_to_string(file)
            .with_context(|| format!("cannot read the results {}", file.display()))?;
        Self::parse(&text).with_context(|| format!("{} holds no results", file.display()))
    }

    /// The results in a file's text.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn parse(text: &str) -> Result<Self> {
        let version: Version = serde_json::from_str(text).context("no version of the schema")?;
        if version.schema != SCHEMA {
            bail!(
                "they have version {} of the schema, this program knows {SCHEMA}",
                version.schema
            );
        }
        let results: Self = serde_json::from_str(text)?;
        results.check()?;
        Ok(results)
    }

    /// Writes them to a file, which is there whole or not at all.
    ///
    /// # Errors
    /// When the folder or the file cannot be written.
    pub fn write(&self, file: &Path) -> Result<()> {
        let cannot = || format!("cannot write {}", file.display());
        let mut text = serde_json::to_string_pretty(self).with_context(cannot)?;
        text.push('\n');
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder).with_context(cannot)?;
        }
        let new = file.with_extension("json.new");
        fs::write(&new, text).with_context(cannot)?;
        fs::rename(&new, file).with_context(cannot)
    }

    /// Checks the rules that the form of the file does not express.
    ///
    /// # Errors
    /// A sentence that names the row.
    pub fn check(&self) -> Result<()> {
        let kernels = self.kernels.len();
        if kernels == 0 {
            bail!("no kernel is named");
        }
        for row in &self.rows {
            let id = &row.id;
            if !id.contains('/') {
                bail!("row {id:?} names no experiment");
            }
            if self.rows.iter().filter(|other| other.id == *id).count() > 1 {
                bail!("row {id} is there twice");
            }
            let lengths = [row.runs.len(), row.counters.len(), row.outcomes.len()];
            if lengths != [kernels; 3] {
                bail!("row {id} has not one entry for each of {kernels} kernels");
            }
            if row
                .runs
                .iter()
                .any(|runs| runs.len() != self.pairs as usize)
            {
                bail!(
                    "row {id} has not one value for each of {} pairs",
                    self.pairs
                );
            }
            let all = row.runs.iter().flatten().flatten();
            if all.clone().any(|value| !value.is_finite() || *value < 0.0) {
                bail!("row {id} has a value that cannot be");
            }
            if row.outcomes[0].status != row.status {
                bail!("row {id} has two statuses");
            }
            if (row.status == Status::Measured) != row.runs[0].iter().any(Option::is_some) {
                bail!("row {id} is measured and has no value, or the other way round");
            }
        }
        Ok(())
    }

    /// Returns the kernels' titles; where two would be the same, with the part that differs.
    pub fn titles(&self) -> Vec<String> {
        let titles: Vec<String> = self.kernels.iter().map(Kernel::title).collect();
        let alike = |title: &String| titles.iter().filter(|other| *other == title).count() > 1;
        self.kernels
            .iter()
            .zip(&titles)
            .map(|(kernel, title)| match &kernel.commit {
                Some(commit) if alike(title) => {
                    let short: String = commit.chars().take(7).collect();
                    let changed = if commit.ends_with('+') { "+" } else { "" };
                    format!("{title} {short}{changed}")
                }
                _ if alike(title) => format!("{title} {}", kernel.version),
                _ => title.clone(),
            })
            .collect()
    }

    /// The row with this id.
    pub fn row(&self, id: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.id == id)
    }
}

/// The field of every version of the schema.
#[derive(Deserialize)]
struct Version {
    schema: u32,
}

impl Row {
    /// The part of the id before the first `/`.
    pub fn experiment(&self) -> &str {
        self.id.split_once('/').map_or(&*self.id, |(name, _)| name)
    }

    /// The part of the id behind the first `/`.
    pub fn variant(&self) -> &str {
        self.id.split_once('/').map_or("", |(_, variant)| variant)
    }

    /// The median of a kernel's runs, in the row's unit.
    pub fn value(&self, kernel: usize) -> Option<f64> {
        let runs = self.runs.get(kernel)?;
        statistics::median(&runs.iter().copied().flatten().collect::<Vec<_>>())
    }

    /// The ratio of any kernel's cost to that of another one.
    pub fn ratio_of(&self, kernel: usize, to: usize) -> Option<Ratio> {
        statistics::ratio(self.runs.get(kernel)?, self.runs.get(to)?, self.better)
    }

    /// Whether kernel 0 is behind kernel 1 by more than the tolerance of equal.
    pub fn is_behind(&self) -> bool {
        Verdict::of(self) == Verdict::Behind
    }
}

impl Kernel {
    /// The name by which a table's reader knows it: `Causeway`, `Linux`, or `Causeway loan=off`.
    pub fn title(&self) -> String {
        let name = match self.name.as_str() {
            "causeway" => "Causeway",
            "linux" => "Linux",
            other => other,
        };
        format!("{name} {}", self.options).trim_end().into()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Results of two kernels in three pairs with one row, `fork/empty`, for the tests of their
    /// readers.
    pub(crate) fn example() -> Results {
        let runs = vec![
            vec![Some(500.0), Some(510.0), Some(490.0)],
            vec![Some(1000.0), Some(1000.0), None],
        ];
        let kernel = |name: &str| Kernel {
            name: name.into(),
            version: "1".into(),
            commit: None,
            options: String::new(),
        };
        let measured = Outcome {
            status: Status::Measured,
            why: None,
        };
        Results {
            schema: SCHEMA,
            machine: Machine {
                accelerator: "tcg".into(),
                clock: Clock::Tcg,
                qemu: "QEMU emulator version 7.2".into(),
                cpus: 2,
                memory: "1G".into(),
                host: "a processor, 2 of them".into(),
                flags: "-machine q35".into(),
                commands: vec!["causeway bench".into()],
                mitigations: "default".into(),
                set: "short".into(),
                began: 0,
            },
            kernels: vec![kernel("causeway"), kernel("linux")],
            pairs: 3,
            calm: None,
            rows: vec![Row {
                id: "fork/empty".into(),
                unit: "ns".into(),
                better: Better::Less,
                ratio: statistics::ratio(&runs[0], &runs[1], Better::Less),
                spread: statistics::spread(&runs[0], &runs[1], Better::Less),
                noisy: false,
                runs,
                floor: Some(Floor {
                    name: "trap".into(),
                    value: 100.0,
                    unit: "ns".into(),
                }),
                counters: vec![
                    BTreeMap::from([("tlb_local_page".into(), 1.0)]),
                    BTreeMap::new(),
                ],
                outcomes: vec![measured.clone(), measured],
                status: Status::Measured,
                note: None,
            }],
            failures: vec![],
        }
    }

    #[test]
    fn what_was_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a/results.json");
        example().write(&file).unwrap();
        assert_eq!(Results::read(&file).unwrap(), example());
    }

    #[test]
    fn what_the_schema_does_not_allow_is_refused() {
        let refused = |change: &dyn Fn(&mut Results)| {
            let mut results = example();
            change(&mut results);
            let text = serde_json::to_string(&results).unwrap();
            format!("{:#}", Results::parse(&text).unwrap_err())
        };
        assert!(refused(&|it| it.schema = 2).contains("version 2"));
        assert!(refused(&|it| it.kernels.clear()).contains("no kernel"));
        assert!(refused(&|it| it.rows[0].id = "fork".into()).contains("names no experiment"));
        assert!(refused(&|it| it.rows.push(it.rows[0].clone())).contains("twice"));
        assert!(refused(&|it| it.pairs = 2).contains("each of 2 pairs"));
        assert!(refused(&|it| _ = it.rows[0].counters.pop()).contains("each of 2 kernels"));
        assert!(refused(&|it| it.rows[0].runs[0][0] = Some(-1.0)).contains("cannot be"));
        assert!(refused(&|it| it.rows[0].status = Status::Failed).contains("two statuses"));
        assert!(refused(&|it| it.rows[0].runs[0] = vec![None; 3]).contains("no value"));
        let text = serde_json::to_string(&example()).unwrap();
        let unknown = text.replacen("\"pairs\"", "\"extra\":1,\"pairs\"", 1);
        assert!(Results::parse(&unknown).is_err());
        assert!(Results::parse(&text.replace("\"less\"", "\"little\"")).is_err());
        assert!(Results::parse("{}").is_err());
    }

    #[test]
    fn the_schemas_file_is_what_the_structures_say() {
        let schema = schemars::schema_for!(Results);
        let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/results.schema.json"
        );
        if std::env::var_os("CAUSEWAY_WRITE_SCHEMA").is_some() {
            fs::write(file, &text).unwrap();
        }
        assert!(
            fs::read_to_string(file).unwrap() == text,
            "run this test with CAUSEWAY_WRITE_SCHEMA=1 to write docs/results.schema.json anew"
        );
    }

    #[test]
    fn kernels_of_one_name_are_told_apart() {
        let mut results = example();
        assert_eq!(results.titles(), ["Causeway", "Linux"]);
        results.kernels[1] = results.kernels[0].clone();
        results.kernels[1].commit = Some("0123456789ab+".into());
        results.kernels.push(results.kernels[0].clone());
        results.kernels[2].options = "loan=off".into();
        assert_eq!(
            results.titles(),
            ["Causeway 1", "Causeway 0123456+", "Causeway loan=off"]
        );
    }

    #[test]
    fn names_and_values_of_a_row() {
        let row = &example().rows[0];
        assert_eq!((row.experiment(), row.variant()), ("fork", "empty"));
        assert_eq!(row.value(0), Some(500.0));
        assert_eq!(row.value(2), None);
        assert!(!row.is_behind());
        assert!(row.ratio_of(1, 0).is_some_and(|ratio| ratio.median > 1.9));
    }
}
