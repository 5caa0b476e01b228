//! The command line of `causeway bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::network;
use crate::linux::Mitigations;
use crate::options::seconds;
use crate::qemu::Iommu;

/// For `--help`.
const HELP: &str = "\
The kernels are booted together, each in the same machine with the same root, and the same program \
measures the same rows in them in turn, one at a time. The table shows medians; a ratio below 1 is \
good for Causeway. results.json and report.html are written into the folder that --out names.

Examples:
  causeway bench                          the short set against Linux
  causeway bench fork pipe --full         two experiments, all rows, for longer
  causeway bench --against causeway       against itself: what is noise
  causeway bench --against HEAD~10        against an older state of this source
  causeway bench --against causeway --append faultahead=0,0
                                          against itself: what an option does
  causeway bench pipe --variant movement=copy --variant movement=loan
                                          several options side by side
  causeway bench --icount                 in instructions, on one CPU
  causeway bench --sharing stat fork      cache lines that CPUs share
  causeway bench --compare A.json B.json  what improved or got worse from A to B
  causeway bench --report A.json          the page of existing results

Exit status:
  0    everything was measured (--compare: nothing got worse beyond --threshold)
  1    something failed; the table says what (--compare: something got worse)
  125  causeway itself failed; the message says what to do
  130  it was ended by Ctrl-C; what was measured until then is kept";

/// The options of `causeway bench`.
#[derive(Args, Debug, Clone)]
#[command(after_help = HELP)]
pub struct Bench {
    /// Experiments to run, as --list names them [default: all]
    #[arg(value_name = "NAMES")]
    pub names: Vec<String>,
    /// Measure every row of the experiments, and each for longer
    #[arg(long)]
    pub full: bool,
    /// Only rows whose names contain this; may be given again
    #[arg(long, value_name = "WORD")]
    pub rows: Vec<String>,
    /// Boot the kernels so many times [default: 5, with --icount or --busy 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: Option<u32>,
    /// Count instructions in place of time: one CPU, emulated, and a fixed number of batches
    #[arg(long)]
    pub icount: bool,
    /// Count the instructions that the CPU executes, for experiments with a network: as --icount,
    /// but an idle CPU waits in real time for its peer, and its time counts for nothing
    #[arg(long, conflicts_with = "icount")]
    pub busy: bool,
    /// Count how often the kernel accesses cache lines that another CPU writes, in the rows of the
    /// experiment `sharing` with these words in their names, with 2, 4, 8 and 16 CPUs
    #[arg(long, conflicts_with_all = ["icount", "busy", "rows", "runs"])]
    pub sharing: bool,
    /// What the kernel is held against: `linux`, itself (`causeway`), an older state of its source,
    /// or `none`
    #[arg(long, value_name = "causeway|linux|none|REV", default_value = "linux")]
    pub against: String,
    /// List the experiments, and run none
    #[arg(long)]
    pub list: bool,
    /// Compare two files of results, and run none
    #[arg(long, num_args = 2, value_names = ["A.json", "B.json"], conflicts_with_all = ["names", "list"])]
    pub compare: Vec<PathBuf>,
    /// Make the page of a file of results anew, in --out or beside the file, and run none
    #[arg(long, value_name = "FILE.json", conflicts_with_all = ["names", "list", "compare"])]
    pub report: Option<PathBuf>,
    /// From how many percent on a row that got worse makes --compare end with status 1
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0, requires = "compare", value_parser = percent)]
    pub threshold: f64,
    /// CPUs, 1 to 64 [default: 2, with --icount or --busy 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub smp: Option<u32>,
    /// Memory, in M or G
    #[arg(long = "mem", value_name = "SIZE", default_value = "1G")]
    pub memory: String,
    /// Use this folder as the guests' root, with the experiments added [default: Debian's busybox]
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
    #[command(flatten)]
    pub network: network::Options,
    /// Put the devices behind an IOMMU
    #[arg(long, value_enum, value_name = "KIND", num_args = 0..=1, require_equals = true,
          default_missing_value = "on")]
    pub iommu: Option<Iommu>,
    /// What both kernels do against flaws of the CPU: as each ships, all that it can, or nothing
    /// [default: default, with --icount or --busy off]
    #[arg(long, value_enum)]
    pub mitigations: Option<Mitigations>,
    /// More options for the command line of the kernel that is judged, and not for what it is held
    /// against
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true)]
    pub append: Vec<String>,
    /// Another kernel beside these: the one that is judged, with these options in place of
    /// --append's; may be given again
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true)]
    pub variant: Vec<String>,
    /// In the table, only events whose names contain this; may be given again
    #[arg(long, value_name = "WORD")]
    pub events: Vec<String>,
    /// Use this kernel of Causeway's and build none
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,
    /// The Linux kernel [default: Debian's cloud kernel, fetched by scripts/linux-kernel.sh]
    #[arg(long, value_name = "FILE")]
    pub linux: Option<PathBuf>,
    /// The folder for results.json and report.html [default: out/bench in the project's folder]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Run the experiments that a switch of the kernel matters to with the switch thrown, too
    #[arg(long)]
    pub switches: bool,
    /// End a guest that reports nothing for so many seconds [default: 180, with --full,
    /// --icount or --busy 900]
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub limit: Option<Duration>,
}

impl Bench {
    /// Whether instructions are counted, in place of time.
    pub fn counts(&self) -> bool {
        self.icount || self.busy
    }

    /// How many times each kernel is booted. Instructions are the same each time.
    pub fn pairs(&self) -> u32 {
        self.runs.unwrap_or(if self.counts() { 1 } else { 5 })
    }

    /// What the kernels do against flaws of the CPU.
    pub fn mitigations(&self) -> Mitigations {
        self.mitigations.unwrap_or(match self.counts() {
            true => Mitigations::Off,
            false => Mitigations::Default,
        })
    }

    /// The guests' CPUs.
    pub fn cpus(&self) -> u32 {
        self.smp.unwrap_or(if self.counts() { 1 } else { 2 })
    }

    /// How long a guest may report nothing: longer than the guest itself gives any row.
    pub fn limit(&self) -> Duration {
        let seconds = if self.full || self.counts() { 900 } else { 180 };
        self.limit.unwrap_or(Duration::from_secs(seconds))
    }
}

/// A number of percent, 0 or more.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim_end_matches('%').parse().ok();
    number
        .filter(|number: &f64| number.is_finite() && *number >= 0.0)
        .ok_or_else(|| format!("`{text}` is not a number of percent"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::options::{Command, Options};

    fn parsed(words: &str) -> Result<Bench, clap::Error> {
        let words = ["causeway", "bench"]
            .into_iter()
            .chain(words.split_whitespace());
        match Options::try_parse_from(words)?.command {
            Command::Bench(options) => Ok(options),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_not_said_depends_on_the_clock() {
        let plain = parsed("").unwrap();
        assert_eq!(
            (plain.pairs(), plain.cpus(), &*plain.against),
            (5, 2, "linux")
        );
        let counted = parsed("--icount fork").unwrap();
        assert_eq!((counted.pairs(), counted.cpus()), (1, 1));
        assert!(counted.limit() > plain.limit());
        assert_eq!(parsed("--limit 3").unwrap().limit().as_secs(), 3);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for words in [
            "--runs 0",
            "--smp 65",
            "--compare a.json",
            "--compare a.json b.json fork",
            "--report a.json fork",
            "--threshold 3",
            "--threshold=-1 --compare a b",
            "--mitigations some",
        ] {
            assert!(parsed(words).is_err(), "{words}");
        }
        let compare = parsed("--compare a.json b.json --threshold 3%").unwrap();
        assert_eq!((compare.compare.len(), compare.threshold), (2, 3.0));
    }
}
