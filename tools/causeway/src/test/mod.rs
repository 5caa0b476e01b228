//! `causeway test`: everything that `make test` runs, with one line for each thing tested.
//!
//! [`host`] runs the tests of the workspace, beside all others: [`programs`] boots guests that run
//! the test programs of `user/`, [`attacks`] those that an ordinary user would attack the kernel
//! with, [`strangers`] runs scripts in a guest and on the host and compares their outputs, [`disk`]
//! gives guests disks and looks at the images, [`devices`] memory of devices, [`ext2`] does so with
//! roots that stay or whose machine is killed, [`database`] with Debian's sqlite3 on them, [`swap`]
//! gives small guests swap space, [`iommu`] runs some of all of these with the devices behind an
//! IOMMU, [`network`] guests with a network card, [`bad_link`] two of them with a bad link,
//! [`servers`] one with Debian's servers and clients, [`debian`] compares the output of scripts of
//! Debian's programs with Linux's, [`install`] installs the host command and runs it without the
//! source, [`bench`] runs `causeway bench` on a few rows, [`experiments`] each row of the guest's
//! bench once, [`compare`] runs `causeway compare-linux` where there is a Linux, [`icount`]
//! compares instruction counts with the last release's, [`sharing`] counts accesses to cache lines
//! that CPUs share, [`stress`] runs Debian's `stress-ng`,
//! [`pressure`] does so in a machine that is too small for it, [`python`] compares the outcomes of
//! Python's own tests with Linux's, [`report`] opens the page of a bench in a browser, [`session`]
//! types at a guest's console, [`console`] uses guests as commands, [`starts`] starts guests that
//! must fail, or start in unusual ways, and [`ways`] gives guests a folder as root in each way.
//! [`zero_copy`] passes pages over network cards, [`netserver`] data by UDP/IP in a process.
//! [`boot`] plans and runs a boot for all of them.

mod attacks;
mod bad_link;
mod bench;
mod bochs;
mod boot;
mod compare;
mod console;
mod database;
mod debian;
mod devices;
mod disk;
mod experiments;
mod ext2;
pub mod host;
mod icount;
mod install;
mod iommu;
mod netserver;
mod network;
mod pressure;
mod programs;
mod python;
mod report;
mod roots;
mod servers;
mod session;
mod shares;
mod sharing;
mod starts;
mod strangers;
mod stress;
mod swap;
mod ways;
mod zero_copy;

use std::path::PathBuf;
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};

use programs::CPUS;

use crate::options;
use crate::project::{self, Profile};
use crate::qemu::Accelerator;

/// Characters of a failure in the summary: five lines of a terminal. The failure's own lines have
/// all.
const LONGEST_REASON: usize = 400;

/// Counts and prints the tests that passed and failed.
pub struct Report {
    passed: u32,
    /// The names of those that failed, and why.
    failed: Vec<String>,
    /// Only groups with one of these words in their names are run.
    words: Vec<String>,
    /// Whether there was such a group.
    any: bool,
    /// The names of all groups, where they are only asked for and none is run.
    names: Option<Vec<String>>,
    /// When the tests began.
    start: Instant,
}

impl Report {
    /// Of the groups with one of these words in their names, or of all.
    fn new(words: &[String]) -> Self {
        Self {
            passed: 0,
            failed: Vec::new(),
            words: words.to_vec(),
            any: false,
            names: None,
            start: Instant::now(),
        }
    }

    /// Of no group: only their names are asked for.
    fn of_names() -> Self {
        Self {
            names: Some(Vec::new()),
            ..Self::new(&[])
        }
    }

    /// A report for tests that run beside these.
    fn beside(&self) -> Self {
        Self {
            start: self.start,
            names: self.names.as_ref().map(|_| Vec::new()),
            ..Self::new(&self.words)
        }
    }

    /// Adds the counts of a report that ran beside.
    fn add(&mut self, beside: Self) {
        self.passed += beside.passed;
        self.failed.extend(beside.failed);
        self.any |= beside.any;
        if let Some(names) = &mut self.names {
            names.extend(beside.names.into_iter().flatten());
        }
    }

    /// Whether a group of tests is to be run; if so, prints its name and when it begins.
    pub fn wants(&mut self, group: &str) -> bool {
        if let Some(names) = &mut self.names {
            names.push(group.into());
            return false;
        }
        let wanted =
            self.words.is_empty() || self.words.iter().any(|word| group.contains(word.as_str()));
        if wanted {
            self.any = true;
            println!("== {group} (after {})", minutes(self.start.elapsed()));
        }
        wanted
    }

    /// Counts tests that passed and printed their own lines.
    pub fn passed(&mut self, count: u32) {
        self.passed += count;
    }

    /// Notes one test's outcome.
    pub fn note(&mut self, name: &str, outcome: Result<()>) {
        match outcome {
            Ok(()) => {
                self.passed += 1;
                println!("ok {name}");
            }
            Err(why) => {
                let line = format!("{name}: {why:#}");
                println!("FAIL {line}");
                self.failed.push(line);
            }
        }
    }

    /// Prints the failed tests, the counts and the time; returns the exit status.
    ///
    /// # Errors
    /// When no group was asked for that exists.
    fn summary(&self) -> Result<u8> {
        let words = self.words.join(" or ");
        ensure!(
            self.any || words.is_empty(),
            "no group of tests has a name with {words}"
        );
        println!();
        for line in &self.failed {
            let first = line.lines().next().unwrap_or_default();
            let start: String = first.chars().take(LONGEST_REASON).collect();
            println!("failed: {start}");
        }
        println!(
            "{} passed, {} failed ({})",
            self.passed,
            self.failed.len(),
            minutes(self.start.elapsed())
        );
        Ok(u8::from(!self.failed.is_empty()))
    }

    /// Runs one test and notes its outcome and time.
    pub fn run(&mut self, name: &str, test: impl FnOnce() -> Result<()>) {
        let start = Instant::now();
        let outcome = test();
        self.note(
            &format!("{name} ({:.1} s)", start.elapsed().as_secs_f64()),
            outcome,
        );
    }
}

/// A time as `1:02 minutes`.
fn minutes(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02} minutes", seconds / 60, seconds % 60)
}

/// Runs two or more guests at once, one for each item.
fn side_by_side<T: Sync, R: Send>(
    items: &[T],
    boot: impl Fn(&T) -> Result<R> + Sync,
) -> Vec<Result<R>> {
    thread::scope(|scope| {
        let boot = &boot;
        let guests: Vec<_> = items
            .iter()
            .map(|it| scope.spawn(move || boot(it)))
            .collect();
        let ended = guests.into_iter().map(std::thread::ScopedJoinHandle::join);
        ended
            .map(|ended| ended.unwrap_or_else(|_| Err(anyhow!("panicked"))))
            .collect()
    })
}

/// Some groups of tests.
type Groups<'a> = Box<dyn FnOnce(&mut Report) -> Result<()> + Send + 'a>;

/// Groups that always run.
fn without_error<'a>(run: impl FnOnce(&mut Report) + Send + 'a) -> Groups<'a> {
    Box::new(|report| {
        run(report);
        Ok(())
    })
}

/// Groups that run at once, beside those that mostly wait.
const LANES: usize = 2;

/// Runs all of the groups `busy`, in this order, [`LANES`] at a time; and beside these, one after
/// the other, those `waiting`, once the processors have no other work.
///
/// # Errors
/// The first one of theirs; those after it in the list may not have run.
fn side_by_side_in(
    report: &mut Report,
    busy: Vec<Groups<'_>>,
    waiting: Vec<Groups<'_>>,
    is_free: &(dyn Fn() -> bool + Sync),
) -> Result<()> {
    let [busy, waiting] = [busy, waiting].map(|groups| Mutex::new(groups.into_iter()));
    let lanes = {
        let report = &*report;
        let mut queues = vec![&waiting];
        queues.extend([&busy; LANES]);
        side_by_side(&queues, |queue| {
            let mut own = report.beside();
            let mut outcome = Ok(());
            let next = || queue.lock().ok()?.next();
            while std::ptr::eq(*queue, &raw const waiting) && !is_free() {
                thread::sleep(Duration::from_millis(100));
            }
            while outcome.is_ok()
                && let Some(group) = next()
            {
                outcome = group(&mut own);
            }
            Ok((own, outcome))
        })
    };
    let mut outcomes = Vec::new();
    for lane in lanes {
        let (own, outcome) = lane?;
        report.add(own);
        outcomes.push(outcome);
    }
    outcomes.into_iter().collect()
}

/// Refuses words that no group has in its name, before anything is built.
fn check_words(options: &options::Test) -> Result<()> {
    let mut report = Report::of_names();
    host::run(&mut report, &AtomicBool::new(false))?;
    report::run(&mut report);
    let none = PathBuf::new;
    let bench = boot::Bench::with(none(), none(), none(), Accelerator::Tcg)?;
    groups(&bench, &mut report, options, &|| true)?;
    let names = report.names.unwrap_or_default();
    for word in &options.groups {
        let is_known = names.iter().any(|name| name.contains(word.as_str()));
        ensure!(
            is_known,
            "no group of tests has a name with `{word}`; the groups are:\n  {}",
            names.join("\n  ")
        );
    }
    Ok(())
}

/// Runs the tests and returns the exit status.
///
/// # Errors
/// When something that the tests need cannot be built, or a word is in no group's name.
pub fn test(options: &options::Test) -> Result<u8> {
    // The names of some groups come from files of the source.
    project::home()?;
    if !options.groups.is_empty() {
        check_words(options)?;
    }
    let mut report = Report::new(&options.groups);
    let bench = |checked, fast, programs| -> Result<boot::Bench> {
        let mut bench = boot::Bench::new(checked, fast, programs)?;
        bench.iommu = options.iommu;
        Ok(bench)
    };
    if options.record {
        let kernel = project::kernel(Profile::Release)?;
        let bench = bench(kernel.clone(), kernel, PathBuf::new())?;
        debian::run(&bench, &mut report, options)?;
        return Ok(0);
    }
    if options.counts {
        let kernel = project::kernel(Profile::Release)?;
        let bench = bench(kernel.clone(), kernel, PathBuf::new())?;
        icount::run(&bench, &mut report, true);
        return Ok(u8::from(!report.failed.is_empty()));
    }
    if !options.guest.is_empty() {
        let kernel = project::kernel(Profile::Develop)?;
        let bench = bench(kernel.clone(), kernel, project::guest_programs()?)?;
        programs::some(&bench, &mut report, &options.guest, &options.append);
        return report.summary();
    }
    if !options.attack.is_empty() {
        let kernel = project::kernel(Profile::Develop)?;
        let bench = bench(kernel.clone(), kernel, project::guest_programs()?)?;
        let (words, seconds) = (&options.attack, options.attack_seconds);
        match options.attack_mixed {
            Some(at_once) => {
                let how = (at_once, seconds.unwrap_or(1));
                attacks::mixed(&bench, &mut report, words, how);
            }
            None => attacks::run(&bench, &mut report, &CPUS, words, seconds),
        }
        return report.summary();
    }
    // Debian's roots beside the builds of the kernels, if all of them are needed.
    let all = options.groups.is_empty();
    let roots = thread::spawn(move || all.then(roots::prepare));
    // The host's own tests beside the guests, which leave half of the processors idle.
    let mut beside = report.beside();
    let is_tested = Arc::new(AtomicBool::new(false));
    let seen = is_tested.clone();
    let host = thread::spawn(move || host::run(&mut beside, &is_tested).map(|()| beside));
    let is_free = || seen.load(Ordering::Relaxed) || host.is_finished();
    let guests = guests(&mut report, options, &is_free);
    let host = host
        .join()
        .map_err(|_| anyhow!("the thread of the host's tests panicked"))?;
    // It has said nothing, and leaves no program behind that still makes one.
    let _ = roots.join();
    guests?;
    report.add(host?);
    report.summary()
}

/// Runs all but the tests of [`host`].
fn guests(
    report: &mut Report,
    options: &options::Test,
    is_free: &(dyn Fn() -> bool + Sync),
) -> Result<()> {
    report::run(report);
    let kernel = project::kernel(Profile::Checked)?;
    let fast_kernel = project::kernel(Profile::Release)?;
    let programs = project::guest_programs()?;
    let mut bench = boot::Bench::new(kernel, fast_kernel, programs)?;
    bench.iommu = options.iommu;
    groups(&bench, report, options, is_free)
}

/// Runs the groups that boot guests; `is_free`: nothing else keeps the processors busy.
fn groups(
    bench: &boot::Bench,
    report: &mut Report,
    options: &options::Test,
    is_free: &(dyn Fn() -> bool + Sync),
) -> Result<()> {
    bench::run(bench, report);
    icount::run(bench, report, false);
    sharing::run(bench, report);
    starts::run(bench, report);
    install::run(bench, report);
    ways::run(bench, report);
    shares::run(bench, report);
    compare::run(bench, report);
    // Guests with one CPU, of which some wait for the host or for each other, beside those with
    // more, which do not need all of the host's processors all the time. The longest come first;
    // the attacks on one CPU are reached while programs run on more. Groups with a network or a
    // terminal wait for the most part.
    if report.names.is_none() {
        bench.root()?;
    }
    let long = options.long;
    let machines = |report: &mut Report, cpus: &[u32]| {
        experiments::run(bench, report, cpus, long);
        programs::run(bench, report, cpus, long);
        attacks::run(bench, report, cpus, &[], options.attack_seconds);
    };
    side_by_side_in(
        report,
        vec![
            Box::new(|report| {
                machines(report, &[2, 4]);
                attacks::together(bench, report, options.attack_seconds);
                stress::run(bench, report, long)?;
                pressure::run(bench, report, long)
            }),
            without_error(|report| machines(report, &[1])),
            without_error(|report| {
                disk::run(bench, report);
                devices::run(bench, report);
                ext2::run(bench, report, long);
                database::run(bench, report, long);
                swap::run(bench, report, long);
            }),
            Box::new(|report| debian::run(bench, report, options)),
            without_error(|report| iommu::run(bench, report)),
            without_error(|report| programs::variants(bench, report)),
            without_error(|report| bochs::run(bench, report, long)),
            without_error(|report| programs::random_calls(bench, report, options.seconds)),
            Box::new(|report| python::run(bench, report, long)),
            without_error(|report| programs::short_of_memory(bench, report, long)),
            Box::new(|report| strangers::run(bench, report)),
        ],
        vec![
            without_error(|report| console::run(bench, report)),
            without_error(|report| network::run(bench, report)),
            without_error(|report| zero_copy::run(bench, report)),
            without_error(|report| netserver::run(bench, report, long)),
            without_error(|report| servers::run(bench, report)),
            without_error(|report| bad_link::run(bench, report, long)),
            without_error(|report| session::run(bench, report)),
        ],
        is_free,
    )
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::options::{Command, Options};

    #[test]
    fn words_of_no_group_are_refused_before_anything_is_built() {
        let check = |words: &[&str]| {
            let all = ["causeway", "test"].iter().chain(words);
            match Options::try_parse_from(all).unwrap().command {
                Command::Test(options) => check_words(&options).map_err(|why| why.to_string()),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(
            check(&["starts", "python", "attacks, 4 CPUs", "sqlite"]),
            Ok(())
        );
        for words in [&["nosuch"][..], &["starts", "nosuch"]] {
            let why = check(words).unwrap_err();
            assert!(
                why.contains("`nosuch`") && why.contains("starts: CPUs"),
                "{why}"
            );
        }
    }
}
