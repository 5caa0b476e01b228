//! `causeway bench`: the guest's experiments on this kernel and on another one, in turn.
//!
//! A bench goes through the modules so: [`options`] says what is asked for and [`names`] which experiments are meant;
//! [`machine`] boots each kernel with the same root, whose first program runs the guest's `bench`; what that prints is
//! read by [`lines`] and gathered by [`collect`], which makes [`results`] of it by [`statistics`] and by what
//! [`experiments`] knows about each experiment. [`progress`] shows how far it is, [`table`] what came of it. [`revision`] builds
//! an older kernel to compare with, [`switches`] are mechanisms to switch off, [`diff`] compares two files of results, and
//! [`report`] makes a page of one.

mod collect;
mod diff;
pub mod experiments;
pub mod icount;
pub mod lines;
mod machine;
mod names;
mod number;
pub mod options;
mod progress;
pub mod report;
pub mod results;
mod revision;
pub mod statistics;
mod switches;
mod table;
mod verdict;

use std::fs;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::compare::{self, Ground};
use crate::linux::{Linux, Mitigations};
use crate::outcome;
use crate::project::{self, Profile};
use crate::qemu::{self, Accelerator};
use crate::root::Root;
use crate::run;
use collect::Collection;
use lines::Line;
use machine::{Course, Side, Stage, System};
use options::Bench;
use progress::Progress;
use results::{Clock, Kernel, Machine, Results, Status};

/// How many batches a row has where instructions are counted: of three, one that the timer's tick or a background task
/// falls into does not matter.
const COUNTED_BATCHES: &str = "3";

/// After so many boots of a kernel without a word its other experiments are given up.
const SILENT_BOOTS: u32 = 2;

/// Runs the experiments, or compares two files of results; returns the exit status.
///
/// # Errors
/// When something cannot be built or started, or a name or file is wrong.
pub fn bench(options: &Bench) -> Result<u8> {
    if let [old, new] = &options.compare[..] {
        let (text, failed) = diff::compare(
            &Results::read(old)?,
            &Results::read(new)?,
            options.threshold,
        );
        print!("{text}");
        return Ok(u8::from(failed));
    }
    if let Some(file) = &options.report {
        let beside = file.parent().map(Path::to_owned).unwrap_or_default();
        let folder = options.out.clone().unwrap_or(beside);
        return page(&Results::read(file)?, &folder).map(|()| 0);
    }
    let home = project::home()?;
    let program = project::guest_program("bench")?;
    let known = names::known(&program)?;
    if options.list {
        let width = known.iter().map(|it| it.name.len()).max().unwrap_or(0);
        for it in &known {
            println!("{:<width$}  {}", it.name, it.title);
        }
        return Ok(0);
    }
    let names = names::chosen(&options.names, &known)?;
    qemu::kibibytes(&options.memory)?;
    let kernel = run::kernel_of(options.kernel.as_deref(), Profile::Release)?;
    let wanted = if options.icount {
        Accelerator::Icount
    } else {
        Accelerator::Auto
    };
    let (accelerator, _) = qemu::choose(wanted, &kernel)?;
    let ground = Ground {
        cpus: options.cpus(),
        memory: options.memory.clone(),
        accelerator,
    };
    let sides = sides(options, &home, &kernel)?;
    let mut root = Root::busybox()?;
    root.host_file("bin/bench", &program, 0o755)?;
    for side in &sides {
        if let System::Linux(linux, _) = &side.system {
            linux.add_modules(&mut root, &experiments::modules(&names))?;
        }
    }
    let stage = Stage::new(ground, root, words(options), options.limit())?;
    let folder = options
        .out
        .clone()
        .unwrap_or_else(|| home.join("out/bench"));
    let machine = described(options, accelerator, stage.flags(&sides[0]));
    let kernels = sides.iter().map(|side| side.kernel.clone()).collect();
    let mut session = Session {
        stage,
        sides,
        names,
        pairs: options.pairs(),
        collection: Collection::new(machine, kernels),
        stop: stop_by_signal()?,
    };
    let ended = session.run(&folder);
    // What was measured is shown even when a boot could not be started.
    let results = session.collection.results();
    let status = show(&results, &folder)?;
    ended?;
    Ok(if session.stop.load(Ordering::SeqCst) {
        outcome::SIGNAL + SIGINT as u8
    } else {
        status
    })
}

/// All boots of a bench.
struct Session {
    stage: Stage,
    sides: Vec<Side>,
    names: Vec<String>,
    pairs: u32,
    collection: Collection,
    /// Set when the user wants no more.
    stop: Arc<AtomicBool>,
}

impl Session {
    /// Boots the kernels in turn. Results are in `folder` after each boot.
    fn run(&mut self, folder: &Path) -> Result<()> {
        let experiments = |side: &Side| {
            side.names(&self.names).len() as u64 * u64::from(self.pairs.min(side.pairs))
        };
        let mut progress = Progress::new(self.sides.iter().map(experiments).sum());
        for pair in 1..=self.pairs {
            for kernel in 0..self.sides.len() {
                if self.stop.load(Ordering::SeqCst) {
                    return Ok(());
                }
                if pair > self.sides[kernel].pairs {
                    continue;
                }
                let title = self.sides[kernel].kernel.title();
                progress.boot(format!("pair {pair} of {}, {title}", self.pairs));
                self.collection.begin(pair);
                let ended = self.turn(pair, kernel, &mut progress);
                self.collection
                    .results()
                    .write(&folder.join("results.json"))?;
                ended?;
            }
        }
        Ok(())
    }

    /// A kernel's turn: all its experiments, in one boot, or more when one of them ends the guest.
    fn turn(&mut self, pair: u32, kernel: usize, progress: &mut Progress) -> Result<()> {
        let side = &self.sides[kernel];
        let mut left = side.names(&self.names);
        let mut silent = 0;
        while !left.is_empty() {
            let (mut heard, collection) = (false, &mut self.collection);
            let names = left.clone();
            let course = self.stage.boot(side, &names, &self.stop, |line| {
                heard = true;
                match &line {
                    Line::Row(lines::Measured { row, .. })
                    | Line::Missing { row, .. }
                    | Line::Error { row, .. } => {
                        progress.now(row);
                    }
                    Line::Done(name) => {
                        left.retain(|it| it != name);
                        progress.done(name);
                    }
                    Line::Begun(name) => progress.now(name),
                    Line::End(_) => {}
                }
                collection.hear(kernel, pair, line);
            })?;
            let why = match course {
                Course::Stopped => break,
                Course::Whole if left.is_empty() => break,
                Course::Whole => "the guest left it out".into(),
                Course::Broken(why) => why,
            };
            silent = if heard { 0 } else { silent + 1 };
            let failed = if silent == SILENT_BOOTS {
                std::mem::take(&mut left)
            } else {
                // After the last experiment nothing is lost.
                left.drain(..left.len().min(1)).collect::<Vec<_>>()
            };
            progress.skip(failed.len());
            for name in failed {
                progress.say(&format!("{}, {name}: {why}", side.kernel.title()));
                self.collection.fail(kernel, pair, Some(name), why.clone());
            }
        }
        Ok(())
    }
}

/// Writes the files, prints the table, and says whether all went well: the exit status.
fn show(results: &Results, folder: &Path) -> Result<u8> {
    let file = folder.join("results.json");
    results.write(&file)?;
    let width = rustix::termios::tcgetwinsize(io::stdout()).ok();
    let width = width
        .map(|size| usize::from(size.ws_col))
        .filter(|width| *width > 0);
    let width = width.filter(|_| io::stdout().is_terminal());
    println!(
        "{}{}",
        table::machine(results),
        table::table(results, width)
    );
    println!("{}", table::summary(results));
    println!("results: {}", file.display());
    page(results, folder)?;
    let failed = |row: &results::Row| row.outcomes.iter().any(|it| it.status == Status::Failed);
    Ok(u8::from(
        !results.failures.is_empty() || results.rows.iter().any(failed),
    ))
}

/// Writes the page into a folder and says where it is.
fn page(results: &Results, folder: &Path) -> Result<()> {
    let file = folder.join("report.html");
    report::write(results, &file)?;
    println!("report: {}", file.display());
    Ok(())
}

/// The options of the guest's program.
fn words(options: &Bench) -> Vec<String> {
    let mut words = Vec::new();
    if options.full {
        words.push("--full".into());
    }
    if options.icount {
        words.extend(["--batches".into(), COUNTED_BATCHES.into()]);
    }
    for row in &options.rows {
        words.extend(["--rows".into(), row.clone()]);
    }
    words
}

/// The kernels that are booted in turn.
fn sides(options: &Bench, home: &Path, kernel: &Path) -> Result<Vec<Side>> {
    let named = options
        .kernel
        .as_ref()
        .map(|file| file.display().to_string());
    let version = named.unwrap_or_else(|| env!("CARGO_PKG_VERSION").into());
    let causeway = |file: &Path, commit: Option<String>, option: &str| Side {
        system: System::Causeway {
            file: file.into(),
            options: Some(option)
                .filter(|it| !it.is_empty())
                .map(str::to_owned)
                .into_iter()
                .collect(),
        },
        kernel: Kernel {
            name: "causeway".into(),
            version: version.clone(),
            commit,
            options: option.into(),
        },
        only: &[],
        pairs: u32::MAX,
    };
    // Nobody knows what a kernel was built from that the user names.
    let current = match &options.kernel {
        Some(_) => None,
        None => revision::current(home),
    };
    let mut sides = vec![causeway(kernel, current.clone(), &options.append.join(" "))];
    match options.against.as_str() {
        "none" => {}
        "causeway" => sides.push(causeway(kernel, current.clone(), "")),
        "linux" => {
            let linux = Linux::find(options.linux.as_deref())?;
            let chosen = options.mitigations;
            sides.push(Side {
                kernel: Kernel {
                    name: "linux".into(),
                    version: linux.release.clone(),
                    commit: None,
                    options: match chosen {
                        Mitigations::Default => String::new(),
                        other => format!("mitigations={other}"),
                    },
                },
                system: System::Linux(linux, chosen),
                only: &[],
                pairs: u32::MAX,
            });
        }
        name => {
            let revision = revision::kernel(home, name)?;
            let mut side = causeway(&revision.kernel, Some(revision.commit), "");
            side.kernel.version = name.into();
            sides.push(side);
        }
    }
    if options.switches {
        // Kernel 1 is what kernel 0 is held against: without one, itself.
        if sides.len() == 1 {
            sides.push(causeway(kernel, current.clone(), ""));
        }
        for switch in switches::SWITCHES {
            sides.push(Side {
                only: switch.experiments,
                pairs: switches::PAIRS,
                ..causeway(kernel, current.clone(), switch.option)
            });
        }
    }
    Ok(sides)
}

/// What the results say about the machine.
fn described(options: &Bench, accelerator: Accelerator, flags: String) -> Machine {
    let (accelerator, clock) = match accelerator {
        Accelerator::Kvm => ("kvm", Clock::Kvm),
        Accelerator::Icount => ("tcg", Clock::Icount),
        Accelerator::Tcg | Accelerator::Auto => ("tcg", Clock::Tcg),
    };
    let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = processors
        .lines()
        .find_map(|line| Some(line.strip_prefix("model name")?.split_once(':')?.1.trim()));
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let host = format!(
        "{}, {} CPUs, Linux {}",
        model.unwrap_or("unknown processor"),
        std::thread::available_parallelism().map_or(1, usize::from),
        kernel.trim()
    );
    let words: Vec<String> = std::env::args_os()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    Machine {
        accelerator: accelerator.into(),
        clock,
        qemu: compare::version(qemu::QEMU),
        cpus: options.cpus(),
        memory: options.memory.clone(),
        host,
        commands: vec![words.join(" "), format!("{} {flags}", qemu::QEMU)],
        flags,
        mitigations: format!(
            "{} ({})",
            options.mitigations,
            options.mitigations.explained()
        ),
        set: if options.icount {
            "batches"
        } else if options.full {
            "full"
        } else {
            "short"
        }
        .into(),
        began: SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |time| time.as_secs()),
    }
}

/// A flag that Ctrl-C sets; a second Ctrl-C ends this program at once, and its guests with it.
fn stop_by_signal() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let status = i32::from(outcome::SIGNAL) + signal;
        signal_hook::flag::register_conditional_shutdown(signal, status, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .context("cannot watch for signals")?;
    }
    Ok(stop)
}
