//! Python's own regression tests, from Debian's package, in a guest.
//!
//! `user/strangers/python/linux.txt` has the outcomes on Linux in the same virtual machine with the
//! same root: the number of tests of a module, and those that do not pass there (skipped, for the
//! most part). `known.txt` beside it lists the differences here, each with its reason. Any other
//! difference fails.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use super::boot::Bench;
use super::{Report, roots, side_by_side};
use crate::project;
use crate::root::Root;

/// The root's packages besides those of every Debian root.
const PACKAGES: [&str; 4] = ["python3", "libpython3.11-testsuite", "procps", "netbase"];

/// Modules that run in one boot, separated by blanks.
struct Batch {
    /// Only where all tests are asked for.
    is_long: bool,
    modules: &'static str,
}

/// Neighbours run at the same time: of about the same length.
const BATCHES: &[Batch] = &[
    short(
        "test_os test_mmap test_tempfile test_shutil test_select test_epoll test_selectors test_poll",
    ),
    short("test_signal test_threading"),
    long("test_subprocess"),
    long("test_socket"),
    long("test_asyncio"),
    long("test_multiprocessing_main_handling test_multiprocessing_fork"),
    long("test_multiprocessing_forkserver test_multiprocessing_spawn"),
    long(
        "test_posix test_fcntl test_time test_resource test_pty test_openpty test_fork1 test_wait3 \
         test_wait4 test_popen test_pipes test_eintr test_threadsignals test_thread test_queue \
         test_faulthandler test_logging test_asyncore test_ftplib test_smtplib",
    ),
    long(
        "test_io test_fileio test_fileinput test_largefile test_pathlib test_glob test_posixpath \
         test_stat test_mailbox test_shelve test_dbm",
    ),
];

const fn short(modules: &'static str) -> Batch {
    Batch {
        is_long: false,
        modules,
    }
}

const fn long(modules: &'static str) -> Batch {
    Batch {
        is_long: true,
        modules,
    }
}

impl Batch {
    /// Its name in reports.
    fn name(&self) -> String {
        format!("python: {}", self.modules)
    }
}

/// Outcomes by test: `ok`, `skipped`, `failure`, `error`.
type Outcomes = BTreeMap<String, String>;

/// The expected outcomes of a module's tests.
#[derive(Default)]
struct Expected {
    /// On Linux.
    count: usize,
    /// On Linux, of those that are not `ok` there.
    others: Outcomes,
    /// The known differences here.
    known: Outcomes,
}

/// The folder of the root.
///
/// # Errors
/// When it cannot be made.
pub(super) fn folder() -> Result<PathBuf> {
    roots::folder("python", &PACKAGES)
}

/// Runs them: the short batches, or all.
///
/// # Errors
/// When the root cannot be made.
pub fn run(bench: &Bench, report: &mut Report, all: bool) -> Result<()> {
    let batches: Vec<&Batch> = BATCHES
        .iter()
        .filter(|batch| (all || !batch.is_long) && report.wants(&batch.name()))
        .collect();
    if batches.is_empty() {
        return Ok(());
    }
    let home = project::home()?;
    let scripts = home.join("user/strangers/python");
    let expected = read_expected(&scripts)?;
    let mut root = Root::folder(&folder()?)?;
    root.directory("python-tests", 0o755);
    for name in ["run.sh", "report.py"] {
        root.host_file(
            Path::new("python-tests").join(name),
            &scripts.join(name),
            0o644,
        )?;
    }
    let archive = bench.path("python.cpio");
    root.write(&archive)?;
    // Most of them wait most of the time: two guests at once.
    for two in batches.chunks(2) {
        let finished = side_by_side(two, |batch| boot(bench, &archive, batch));
        for (batch, finished) in two.iter().zip(finished) {
            judge(report, batch, finished, &expected);
        }
    }
    Ok(())
}

/// The output of one batch, and its time.
fn boot(bench: &Bench, archive: &Path, batch: &Batch) -> Result<(String, Duration)> {
    let begin = Instant::now();
    let line = format!(
        "bash /python-tests/run.sh {} 2>&1; grep . /proc/causeway/unsupported; true",
        batch.modules
    );
    let guest = bench.bash(&line).root(archive).cpus(2).memory("1536M");
    let text = guest.timeout(1800).fast().output()?;
    Ok((text, begin.elapsed()))
}

/// Compares each module of a batch with the expected outcomes.
fn judge(
    report: &mut Report,
    batch: &Batch,
    finished: Result<(String, Duration)>,
    expected: &BTreeMap<String, Expected>,
) {
    let (text, time) = match finished {
        Ok(finished) => finished,
        Err(why) => {
            report.note(&batch.name(), Err(why));
            return;
        }
    };
    for module in batch.modules.split(' ') {
        let outcomes = outcomes_of(&text, module);
        let name = format!(
            "python: {module}, {} tests ({:.1} s for its boot)",
            outcomes.len(),
            time.as_secs_f64()
        );
        let outcome = match expected.get(module) {
            Some(expected) => differences(expected, &outcomes),
            None => Err(anyhow!("nothing is known of it on Linux")),
        };
        report.note(&name, outcome);
    }
}

/// The lines `MODULE TEST OUTCOME` of one module.
fn outcomes_of(text: &str, module: &str) -> Outcomes {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (first, test, outcome) = (words.next()?, words.next()?, words.next()?);
            (first == module && words.next().is_none()).then(|| (test.into(), outcome.into()))
        })
        .collect()
}

/// Returns the differences as an error, if there are any.
fn differences(expected: &Expected, outcomes: &Outcomes) -> Result<()> {
    let mut wrong = Vec::new();
    if outcomes.len() != expected.count {
        wrong.push(format!(
            "{} tests, {} on Linux",
            outcomes.len(),
            expected.count
        ));
    }
    for (test, outcome) in outcomes {
        let linux = expected.others.get(test).map_or("ok", String::as_str);
        if outcome != linux && expected.known.get(test) != Some(outcome) && outcome != "ok" {
            wrong.push(format!("{test} is {outcome}, {linux} on Linux"));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n    "));
    Ok(())
}

/// Reads the lists: `MODULE = COUNT`, `MODULE TEST OUTCOME`, and for known differences `MODULE TEST
/// OUTCOME REASON...`.
fn read_expected(folder: &Path) -> Result<BTreeMap<String, Expected>> {
    let mut all: BTreeMap<String, Expected> = BTreeMap::new();
    let linux = fs::read_to_string(folder.join("linux.txt")).context("no linux.txt")?;
    let known = fs::read_to_string(folder.join("known.txt")).context("no known.txt")?;
    for (is_known, line) in linux
        .lines()
        .map(|line| (false, line))
        .chain(known.lines().map(|line| (true, line)))
    {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [] => {}
            [first, ..] if first.starts_with('#') => {}
            [module, "=", count] => {
                all.entry(module.into()).or_default().count =
                    count.parse().with_context(|| format!("no count: {line}"))?;
            }
            [module, test, outcome, ..] => {
                let expected = all.entry(module.into()).or_default();
                let list = if is_known {
                    &mut expected.known
                } else {
                    &mut expected.others
                };
                list.insert(test.into(), outcome.into());
            }
            _ => anyhow::bail!("not a line of Python's outcomes: {line}"),
        }
    }
    Ok(all)
}
