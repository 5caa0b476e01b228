//! The command line.

use std::ffi::{CStr, OsString};
use std::net::SocketAddr;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Arg, ArgAction, Command, value_parser};

use crate::experiments;
use crate::harness::Experiment;

/// The first word that makes the program exit at once, or start itself as often as the second word
/// says.
pub const NOTHING: &CStr = c"--nothing";

/// The user's options.
#[derive(Clone, Debug)]
pub struct Options {
    /// Experiments in this order.
    pub experiments: Vec<&'static Experiment>,
    /// Only list the experiments.
    pub list: bool,
    /// Measure the full set, with more time for each row.
    pub full: bool,
    /// Repetitions of each experiment, one after the other.
    pub runs: u32,
    /// Exactly so many batches a row instead of a time.
    pub batches: Option<u32>,
    /// Measure repeatedly, and wait for a line of standard input before each pass, experiment and
    /// row.
    pub turns: bool,
    /// Only rows whose names contain one of these; all, if there is none.
    pub rows: Vec<String>,
    /// The peer on the network, for experiments that need one.
    pub peer: Option<SocketAddr>,
    /// The card that leads to the other guest, for experiments that need two.
    pub card: Option<String>,
    /// Serve the other guest's rows.
    pub second: bool,
}

impl Options {
    /// Returns the duration of a row's batches.
    pub fn time(&self) -> Duration {
        let whole = Duration::from_millis(if self.full { 1000 } else { 60 });
        whole / if self.turns { 2 } else { 1 }
    }

    /// Returns the time limit of a row, in seconds of the guest's clock.
    pub fn limit(&self) -> u32 {
        if self.full { 600 } else { 120 }
    }

    /// Returns whether a row is asked for.
    pub fn wants(&self, row: &str) -> bool {
        self.rows.is_empty() || self.rows.iter().any(|word| row.contains(word.as_str()))
    }
}

fn command() -> Command {
    let names = experiments::ALL
        .iter()
        .map(|experiment| PossibleValue::new(experiment.name).help(experiment.title));
    Command::new("bench")
        .about(
            "Measures what the kernel below does for programs; prints a line of JSON for each row.",
        )
        .after_help("bench NAME --help tells what an experiment does and which rows it has.")
        .disable_help_flag(true)
        .arg(
            Arg::new("names")
                .value_name("NAME")
                .num_args(0..)
                .value_parser(PossibleValuesParser::new(names))
                .help("Experiments; all, if none is named"),
        )
        .arg(flag("list").help("Lists the experiments and ends"))
        .arg(flag("full").help("Measures rows of the full set, too, and each row for longer"))
        .arg(
            number("runs")
                .default_value("1")
                .help("Does each experiment N times"),
        )
        .arg(
            number("batches")
                .help("Does exactly N batches a row, at addresses that are not random"),
        )
        .arg(flag("turns").help(
            "Repeats all, and waits for a line of standard input before each pass, experiment \
             and row; `skip` skips it",
        ))
        .arg(
            Arg::new("rows")
                .long("rows")
                .value_name("WORD")
                .action(ArgAction::Append)
                .help("Only rows whose names contain this; may be given again"),
        )
        .arg(
            Arg::new("peer")
                .long("peer")
                .value_name("ADDRESS:PORT")
                .value_parser(value_parser!(SocketAddr))
                .help("Where `causeway peer` serves, for experiments with a network"),
        )
        .arg(
            Arg::new("card")
                .long("card")
                .value_name("NAME")
                .help("The card that leads to another guest, for experiments with two"),
        )
        .arg(flag("second").help("Serves another guest's bench, for experiments with two"))
        .arg(
            flag("help")
                .short('h')
                .help("Tells this, or what an experiment does"),
        )
}

fn flag(name: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue)
}

fn number(name: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .value_name("N")
        .value_parser(value_parser!(u32).range(1..))
}

/// Parses the command line, whose first word is the program's own name.
///
/// # Errors
/// When there is nothing to measure: the exit status, after printing help (0) or the mistake in the
/// options (2).
pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Options, i32> {
    let mut command = command();
    let found = match command.try_get_matches_from_mut(words) {
        Ok(found) => found,
        Err(error) => {
            let _ = error.print();
            return Err(error.exit_code());
        }
    };
    let named: Vec<&str> = found
        .get_many::<String>("names")
        .into_iter()
        .flatten()
        .map(String::as_str)
        .collect();
    let wanted = |experiment: &&Experiment| named.is_empty() || named.contains(&experiment.name);
    let experiments: Vec<&'static Experiment> =
        experiments::ALL.iter().copied().filter(wanted).collect();
    if found.get_flag("help") {
        if named.is_empty() {
            let _ = command.print_help();
        }
        for experiment in experiments.iter().filter(|_| !named.is_empty()) {
            println!(
                "{}: {}\n\n{}",
                experiment.name,
                experiment.title,
                experiment.help.trim()
            );
            println!("\n{}", command.render_usage());
        }
        return Err(0);
    }
    Ok(Options {
        experiments,
        list: found.get_flag("list"),
        full: found.get_flag("full"),
        runs: found.get_one("runs").copied().unwrap_or(1),
        batches: found.get_one("batches").copied(),
        turns: found.get_flag("turns"),
        card: found.get_one("card").cloned(),
        second: found.get_flag("second"),
        peer: found.get_one("peer").copied(),
        rows: found
            .get_many("rows")
            .into_iter()
            .flatten()
            .cloned()
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &str) -> Result<Options, i32> {
        parse(words.split_whitespace().map(OsString::from))
    }

    #[test]
    fn no_name_means_all() {
        let options = parsed("bench").expect("good options");
        assert_eq!(options.experiments.len(), experiments::ALL.len());
        assert_eq!(
            (options.runs, options.batches, options.full),
            (1, None, false)
        );
        assert!(options.wants("calls/null"));
    }

    #[test]
    fn options_are_heard() {
        let options =
            parsed("bench calls --full --turns --runs 3 --batches 7 --rows null --rows ppid");
        let options = options.expect("good options");
        assert_eq!(options.experiments[0].name, "calls");
        assert_eq!(
            (options.runs, options.batches, options.full),
            (3, Some(7), true)
        );
        assert!(options.turns);
        assert!(options.wants("calls/getppid") && !options.wants("calls/clock"));
        assert!(options.time() > parsed("bench").expect("good options").time());
    }

    #[test]
    fn bad_options_end_with_status_2() {
        for words in [
            "nosuch",
            "--runs 0",
            "--runs x",
            "--batches 0",
            "--batches",
            "--odd",
        ] {
            assert_eq!(parsed(&format!("bench {words}")).err(), Some(2), "{words}");
        }
        assert_eq!(parsed("bench calls --help").err(), Some(0));
    }

    #[test]
    fn names_are_plain_and_unique() {
        let mut names: Vec<&str> = experiments::ALL.iter().map(|one| one.name).collect();
        assert!(!names.contains(&"again"), "a pass is called so");
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), experiments::ALL.len());
        for experiment in experiments::ALL {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            assert!(experiment.name.chars().all(plain), "{}", experiment.name);
            assert!(!experiment.title.is_empty() && !experiment.help.is_empty());
        }
    }
}
