//! Experiments and their rows: each row is measured in a process of its own.

use std::io::{self, BufRead, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{FromRawFd, OwnedFd};
use std::panic::{self, AssertUnwindSafe};
use std::{fmt, fs};

use crate::marks;
use crate::meter::{Length, Meter};
use crate::options::Options;
use crate::sample::{self, Record, Unit};
use crate::{Failure, call, cpus};

/// An experiment: rows measured under one name.
pub struct Experiment {
    /// The first part of its rows' names: small letters, digits, hyphens.
    pub name: &'static str,
    /// A line for the list.
    pub title: &'static str,
    /// Describes it and its rows.
    pub help: &'static str,
    /// Measures the rows, one after the other.
    pub run: fn(&mut Bench) -> Result<(), Failure>,
}

impl fmt::Debug for Experiment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Measures the experiments that the options name; returns the exit status.
pub fn run(options: &Options) -> i32 {
    if options.list {
        let mut list = String::new();
        for experiment in &options.experiments {
            list += &format!("{:<12} {}\n", experiment.name, experiment.title);
        }
        return i32::from(io::stdout().write_all(list.as_bytes()).is_err());
    }
    let mut print = |line: &str| io::stdout().write_all(format!("{line}\n").as_bytes());
    match passes(options, &mut print, &mut line_of_input) {
        Ok(()) => 0,
        Err(why) => {
            eprintln!("bench: {why}");
            1
        }
    }
}

/// Measures all experiments; with turns, repeatedly until the input ends.
fn passes(
    options: &Options,
    print: &mut dyn FnMut(&str) -> io::Result<()>,
    pace: &mut dyn FnMut() -> io::Result<Pace>,
) -> Result<(), Failure> {
    loop {
        for experiment in &options.experiments {
            for _ in 0..options.runs {
                Bench::new(experiment, options, print, pace).all()?;
            }
        }
        if !options.turns || wait(print, pace, AGAIN)? == Pace::Skip {
            return Ok(());
        }
    }
}

/// Announces the next step, and waits for the answer.
fn wait(
    print: &mut dyn FnMut(&str) -> io::Result<()>,
    pace: &mut dyn FnMut() -> io::Result<Pace>,
    next: &str,
) -> Result<Pace, Failure> {
    print(&sample::wait(next)).map_err(gone("output"))?;
    pace().map_err(gone("input"))
}

/// Returns the failure for an error of this standard stream.
fn gone(stream: &str) -> impl Fn(io::Error) -> Failure {
    move |error| Failure::Output(format!("standard {stream}: {error}"))
}

/// The answer to a bench with turns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pace {
    /// Measure it.
    Go,
    /// Skip it.
    Skip,
}

/// Name of another pass through the experiments.
const AGAIN: &str = "again";

/// Waits for a line of standard input: `skip`, or anything else to continue.
fn line_of_input() -> io::Result<Pace> {
    let mut line = Vec::new();
    if io::stdin().lock().read_until(b'\n', &mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(match line.trim_ascii() {
        b"skip" => Pace::Skip,
        _ => Pace::Go,
    })
}

/// A running experiment.
pub struct Bench<'a> {
    experiment: &'a Experiment,
    options: &'a Options,
    print: &'a mut dyn FnMut(&str) -> io::Result<()>,
    pace: &'a mut dyn FnMut() -> io::Result<Pace>,
}

impl<'a> Bench<'a> {
    /// Makes an experiment whose lines go to `print`; with turns, `pace` ends each wait.
    pub fn new(
        experiment: &'a Experiment,
        options: &'a Options,
        print: &'a mut dyn FnMut(&str) -> io::Result<()>,
        pace: &'a mut dyn FnMut() -> io::Result<Pace>,
    ) -> Self {
        Self {
            experiment,
            options,
            print,
            pace,
        }
    }

    /// Returns whether this is to be measured; with turns, waits for the answer.
    fn may(&mut self, next: &str) -> Result<bool, Failure> {
        Ok(!self.options.turns || wait(self.print, self.pace, next)? == Pace::Go)
    }

    /// Runs the experiment. A failure outside of any row becomes an error row with the experiment's
    /// name.
    fn all(mut self) -> Result<(), Failure> {
        let name = self.experiment.name;
        self.print(&sample::start(name))?;
        if !self.may(name)? {
            return self.print(&sample::end(name));
        }
        match (self.experiment.run)(&mut self) {
            Err(failure @ Failure::Output(_)) => return Err(failure),
            Err(failure) => self.print(&unmeasured(name, &failure))?,
            Ok(()) => {}
        }
        self.print(&sample::end(name))
    }

    /// Starts a row named `experiment/variant`; see [`Row`].
    pub fn row(&mut self, name: impl Into<String>) -> Row<'_, 'a> {
        let name = name.into();
        let own = name.strip_prefix(self.experiment.name);
        assert!(
            own.is_some_and(|rest| rest.starts_with('/')),
            "the row {name} is not one of {}",
            self.experiment.name
        );
        Row {
            bench: self,
            name,
            unit: Unit::Nanoseconds,
            batch: 1,
            bytes: 0,
            needs: 1,
            cpu: Some(0),
            waits: false,
            note: None,
        }
    }

    /// Returns whether the rows of the full set are wanted.
    pub fn is_full(&self) -> bool {
        self.options.full
    }

    /// Returns whether this guest serves another one's rows.
    pub fn is_second(&self) -> bool {
        self.options.second
    }

    /// Returns the name of the card that leads to the second guest.
    ///
    /// # Errors
    /// When the host has started none.
    pub fn card(&self) -> Result<String, Failure> {
        let why = "a second guest, as `causeway bench` starts one (not with --icount)";
        let card = self.options.card.clone();
        card.ok_or_else(|| Failure::Missing(why.into()))
    }

    /// Returns the peer's address.
    ///
    /// # Errors
    /// When the host has started none.
    pub fn peer(&self) -> Result<SocketAddr, Failure> {
        let why = "a peer on the network, as `causeway bench` starts one (not with --icount)";
        let peer = self.options.peer;
        peer.ok_or_else(|| Failure::Missing(why.into()))
    }

    /// Returns the count of CPUs.
    pub fn cpus(&self) -> usize {
        cpus::count()
    }

    fn print(&mut self, line: &str) -> Result<(), Failure> {
        (self.print)(line).map_err(gone("output"))
    }
}

/// A row before it is measured: by default nanoseconds, one operation a batch, on CPU 0.
#[must_use = "a row is measured by `measure`, `run` or `value`"]
pub struct Row<'b, 'a> {
    bench: &'b mut Bench<'a>,
    name: String,
    unit: Unit,
    batch: u64,
    bytes: u64,
    needs: usize,
    cpu: Option<usize>,
    waits: bool,
    note: Option<String>,
}

impl Row<'_, '_> {
    /// Sets the unit of the samples.
    pub fn unit(mut self, unit: Unit) -> Self {
        self.unit = unit;
        self
    }

    /// Sets the operations in a batch, the same on every machine so that counts of instructions
    /// repeat. A batch of about a millisecond is far above the clock's own cost.
    pub fn batch(mut self, operations: u64) -> Self {
        self.batch = operations;
        self
    }

    /// Makes the row a rate: each operation moves so many bytes.
    pub fn bytes(mut self, bytes: u64) -> Self {
        self.bytes = bytes;
        self.unit(Unit::MebibytesPerSecond)
    }

    /// Skips the row where there are fewer CPUs.
    pub fn cpus(mut self, least: usize) -> Self {
        self.needs = least;
        self
    }

    /// Skips the row where instructions are counted: a clock that counts them does not advance
    /// during a disk's work.
    pub fn waits_for_disks(mut self) -> Self {
        self.waits = true;
        self
    }

    /// Binds the row to this CPU, or to none.
    pub fn pinned(mut self, cpu: Option<usize>) -> Self {
        self.cpu = cpu;
        self
    }

    /// Adds a note for the row's reader.
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }

    /// Measures `body`, which does as many operations as it is told.
    ///
    /// # Errors
    /// [`Failure::Output`] only: a failure of the body is the row's own outcome.
    pub fn measure(self, body: impl FnMut(u64) -> Result<(), Failure>) -> Result<(), Failure> {
        self.run(|meter| meter.measure(body))
    }

    /// Lets `body` prepare, measure with the [`Meter`], and clean up, all in the row's process.
    ///
    /// # Errors
    /// [`Failure::Output`] only: a failure of the body is the row's own outcome.
    pub fn run(self, body: impl FnOnce(&mut Meter) -> Result<(), Failure>) -> Result<(), Failure> {
        if self.needs > cpus::count() || !self.bench.options.wants(&self.name) {
            return Ok(());
        }
        if self.waits && self.bench.options.batches.is_some() {
            let why = Failure::Missing("a clock: a disk's time is no instructions".into());
            return self.bench.print(&unmeasured(&self.name, &why));
        }
        if !self.bench.may(&self.name)? {
            return Ok(());
        }
        let limit = self.bench.options.limit();
        let line = match alone(limit, || self.line(body)) {
            Ok(line) => line,
            Err(failure) => unmeasured(&self.name, &failure),
        };
        self.bench.print(&line)
    }

    /// Prints a value that needs no measuring, or why there is none.
    ///
    /// # Errors
    /// [`Failure::Output`] only.
    pub fn value(self, value: Result<f64, Failure>) -> Result<(), Failure> {
        if self.needs > cpus::count() || !self.bench.options.wants(&self.name) {
            return Ok(());
        }
        let line = match value {
            Ok(value) => {
                let mut meter = self.meter();
                meter.value(value);
                self.record(meter).line()
            }
            Err(failure) => unmeasured(&self.name, &failure),
        };
        self.bench.print(&line)
    }

    fn meter(&self) -> Meter {
        let length = Length::of(self.bench.options);
        Meter::new(length, self.unit, self.batch, self.bytes)
    }

    /// Measures in this process.
    fn line(&self, body: impl FnOnce(&mut Meter) -> Result<(), Failure>) -> String {
        let mut meter = self.meter();
        marks::separate();
        let outcome = match self.cpu {
            Some(cpu) => cpus::pin(cpu),
            None => Ok(()),
        };
        match outcome.and_then(|()| body(&mut meter)) {
            Ok(()) if meter.samples.is_empty() => {
                unmeasured(&self.name, &"the row measured nothing".into())
            }
            Ok(()) => self.record(meter).line(),
            Err(failure) => unmeasured(&self.name, &failure),
        }
    }

    fn record(&self, meter: Meter) -> Record {
        Record {
            row: self.name.clone(),
            unit: self.unit,
            samples: meter.samples,
            operations: meter.operations,
            bytes: self.bytes,
            counters: meter.counters,
            note: meter.note.or(self.note.clone()),
        }
    }
}

/// Returns the line of a row that failed.
fn unmeasured(row: &str, failure: &Failure) -> String {
    let key = match failure {
        Failure::Missing(_) => "missing",
        Failure::Error(_) | Failure::Output(_) => "error",
    };
    sample::without_number(row, key, &failure.to_string())
}

/// Runs `body` in a child that leads a process group of its own, and returns its result. The rest
/// of the group is killed afterwards.
///
/// # Errors
/// When it did not end by itself, or took longer than `limit` seconds.
pub fn alone(limit: u32, body: impl FnOnce() -> String) -> Result<String, Failure> {
    let mut ends = [0; 2];
    call!(pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC))?;
    // SAFETY: the kernel has just made these descriptors, and nothing else owns them.
    let [reader, writer] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
    let child = call!(fork())?;
    if child == 0 {
        drop(reader);
        // SAFETY: plain calls about this process.
        unsafe {
            libc::setpgid(0, 0);
            libc::alarm(limit);
        }
        let done = panic::catch_unwind(AssertUnwindSafe(body))
            .is_ok_and(|text| fs::File::from(writer).write_all(text.as_bytes()).is_ok());
        // SAFETY: ends the process without the parent's exit handlers.
        unsafe { libc::_exit(i32::from(!done)) };
    }
    drop(writer);
    // SAFETY: both name the child, which is not reaped yet; it may have made the first call itself.
    unsafe { libc::setpgid(child, child) };
    let mut status = 0;
    let ended = call!(waitpid(child, &mut status, 0));
    // SAFETY: the group is the child's own.
    unsafe { libc::kill(-child, libc::SIGKILL) };
    ended?;
    if libc::WIFSIGNALED(status) {
        let signal = libc::WTERMSIG(status);
        return Err(match signal {
            libc::SIGALRM => format!("it took longer than {limit} seconds").into(),
            _ => format!("ended by signal {signal}").into(),
        });
    }
    if status != 0 {
        return Err("it ended early; standard error tells why".into());
    }
    // The group is dead, so that the other end closes soon.
    let mut text = String::new();
    fs::File::from(reader).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// The pace of a bench without turns.
    fn nobody() -> io::Result<Pace> {
        Err(io::ErrorKind::UnexpectedEof.into())
    }

    /// Returns the lines that an experiment prints with one batch a row.
    fn lines(run: fn(&mut Bench) -> Result<(), Failure>) -> Vec<Value> {
        let experiment = Experiment {
            name: "sample",
            title: "t",
            help: "h",
            run,
        };
        let options = Options {
            experiments: Vec::new(),
            list: false,
            full: false,
            runs: 1,
            batches: Some(1),
            turns: false,
            rows: Vec::new(),
            peer: None,
            card: None,
            second: false,
        };
        let mut lines: Vec<Value> = Vec::new();
        let mut print = |line: &str| {
            lines.push(serde_json::from_str(line).expect("a line of JSON"));
            Ok(())
        };
        Bench::new(&experiment, &options, &mut print, &mut nobody)
            .all()
            .expect("lines are taken");
        assert_eq!(lines.remove(0), serde_json::json!({"experiment": "sample"}));
        lines
    }

    #[test]
    fn each_outcome_has_its_line_and_none_spoils_the_next() {
        let lines = lines(|bench| {
            bench.row("sample/good").batch(7).measure(|_| Ok(()))?;
            bench.row("sample/refused").measure(|_| Err("no".into()))?;
            bench
                .row("sample/missing")
                .measure(|_| call!(syscall(100_000)).map(drop))?;
            bench.row("sample/crash").measure(|_| {
                // SAFETY: ends this process.
                unsafe { libc::raise(libc::SIGKILL) };
                Ok(())
            })?;
            bench.row("sample/exit").run(|_| std::process::exit(3))?;
            bench.row("sample/nothing").run(|_| Ok(()))?;
            bench.row("sample/crowd").cpus(10_000).measure(|_| Ok(()))?;
            bench.row("sample/size").unit(Unit::Pages).value(Ok(12.0))
        });
        let rows: Vec<&str> = lines
            .iter()
            .filter_map(|line| line["row"].as_str())
            .collect();
        assert_eq!(
            rows,
            [
                "sample/good",
                "sample/refused",
                "sample/missing",
                "sample/crash",
                "sample/exit",
                "sample/nothing",
                "sample/size"
            ]
        );
        assert_eq!(lines[0]["operations"], 7);
        assert_eq!(lines[0]["samples"].as_array().map(Vec::len), Some(1));
        assert_eq!(lines[1]["error"], "no");
        assert_eq!(lines[2]["missing"], "ENOSYS");
        assert_eq!(lines[3]["error"], "ended by signal 9");
        assert!(lines[4]["error"].is_string() && lines[5]["error"].is_string());
        assert_eq!(lines[6]["samples"], serde_json::json!([12]));
        assert_eq!(
            lines[7],
            serde_json::json!({"experiment": "sample", "done": true})
        );
    }

    #[test]
    fn a_failure_between_rows_is_told_and_the_experiment_ends() {
        let lines = lines(|_| Err("no disk".into()));
        assert_eq!(
            lines[0],
            serde_json::json!({"row": "sample", "error": "no disk"})
        );
        assert_eq!(lines[1]["done"], true);
    }

    #[test]
    fn a_row_that_hangs_is_ended_with_its_children() {
        let failure = alone(1, || {
            // SAFETY: a child that sleeps for ever, as its parent does.
            unsafe {
                libc::fork();
                loop {
                    libc::pause();
                }
            }
        });
        let text = failure.expect_err("it hangs").to_string();
        assert!(text.contains("1 seconds"), "{text}");
    }

    #[test]
    fn a_paced_bench_says_what_comes_next_and_waits() {
        use std::cell::RefCell;
        static SAMPLE: Experiment = Experiment {
            name: "sample",
            title: "t",
            help: "h",
            run: |bench| {
                bench.row("sample/good").measure(|_| Ok(()))?;
                bench.row("sample/crowd").cpus(10_000).measure(|_| Ok(()))?;
                bench.row("sample/last").measure(|_| Ok(()))
            },
        };
        let words = ["bench", "--batches", "1", "--turns"].map(std::ffi::OsString::from);
        let mut options = crate::options::parse(words).expect("good options");
        options.experiments = vec![&SAMPLE];
        let events = RefCell::new(Vec::new());
        let mut print = |line: &str| {
            let line: Value = serde_json::from_str(line).expect("a line of JSON");
            let word =
                ["waiting", "row"].map(|key| Some(format!("{key} {}", line.get(key)?.as_str()?)));
            events.borrow_mut().extend(word.into_iter().flatten());
            Ok(())
        };
        // The input ends in the fourth pass.
        let (go, skip) = (Pace::Go, Pace::Skip);
        let mut answers = [go, go, skip, go, go, skip, go, go, skip, go].into_iter();
        let mut pace = || answers.next().map_or_else(nobody, Ok);
        let outcome = passes(&options, &mut print, &mut pace);
        assert!(outcome.is_err());
        assert_eq!(
            events.into_inner(),
            [
                "waiting sample",
                "waiting sample/good",
                "row sample/good",
                "waiting sample/last",
                "waiting again",
                "waiting sample",
                "waiting sample/good",
                "waiting sample/last",
                "row sample/last",
                "waiting again",
                "waiting sample",
                "waiting again",
                "waiting sample",
            ]
        );
    }

    #[test]
    fn standard_output_that_is_gone_ends_everything() {
        let experiment = Experiment {
            name: "sample",
            title: "t",
            help: "h",
            run: |bench| bench.row("sample/good").measure(|_| Ok(())),
        };
        let words = ["bench", "--batches", "1"].map(std::ffi::OsString::from);
        let options = crate::options::parse(words).expect("good options");
        let mut print = |_: &str| Err(io::Error::from_raw_os_error(libc::EPIPE));
        let outcome = Bench::new(&experiment, &options, &mut print, &mut nobody).all();
        assert!(matches!(outcome, Err(Failure::Output(_))), "{outcome:?}");
    }
}
