//! `causeway bench`: the guest's experiments on this kernel and on another one, in turn.
//!
//! A bench goes through the modules in this order: [`options`] has the command line and [`names`]
//! finds the experiments; [`machine`] boots each kernel with the same root, whose first program
//! runs the guest's `bench`, and [`turns`] lets them measure row by row in turn while the host is
//! [`calm`]. [`lines`] parses the guests' output, [`collect`] gathers it and makes [`results`] of
//! it with [`statistics`] and the entries of [`experiments`]. [`progress`] shows the state of the
//! run, [`table`] its outcome. [`revision`] builds an older kernel to compare with, [`diff`]
//! compares two files of results, and [`report`] makes a page of one.
//!
//! [`sharing`] counts accesses to cache lines that CPUs share, in boots of its own;
//! [`shared_lines`] reads what the emulator's plugin finds.

mod calm;
mod collect;
mod diff;
pub mod experiments;
pub mod icount;
pub mod lines;
mod machine;
mod names;
mod network;
mod number;
pub mod options;
mod pattern;
mod pin;
mod progress;
pub mod report;
pub mod results;
mod revision;
mod second;
mod sections;
mod shared_lines;
pub mod sharing;
pub mod statistics;
mod table;
mod turns;
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
use crate::profile::Plugin;
use crate::project::{self, Profile};
use crate::qemu::{self, Accelerator};
use crate::root::{BUSYBOX, Root};
use crate::run;
use collect::Collection;
use machine::{Side, Stage, System};
use options::Bench;
use results::{Clock, Kernel, Machine, Results, Status};
use turns::Session;

/// The number of batches of a row when instructions are counted: the median of three is independent
/// of one that a timer tick or a background task falls into.
const COUNTED_BATCHES: &str = "3";

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
    if options.sharing {
        return sharing::bench(options);
    }
    let home = project::home()?;
    // `exec` measures how this program starts, which is not to be larger for that.
    let is_named = |name: &str| options.names.iter().any(|it| it == name);
    let program = match is_named("fbuf") && !is_named("exec") {
        true => project::guest_bench()?,
        false => project::guest_program("bench")?,
    };
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
    let wanted = match (options.busy, options.icount) {
        (true, _) => Accelerator::Busy,
        (false, true) => Accelerator::Icount,
        (false, false) => Accelerator::Auto,
    };
    let (accelerator, _) = qemu::choose(wanted, &kernel)?;
    let ground = Ground {
        cpus: options.cpus(),
        memory: options.memory.clone(),
        accelerator,
        iommu: options.iommu,
    };
    let sides = sides(options, &home, &kernel)?;
    let mut root = match &options.root {
        Some(folder) => Root::folder(folder)?,
        None => Root::busybox()?,
    };
    if options.root.is_some() {
        root.host_file("busybox", Path::new(BUSYBOX), 0o755)?;
    }
    let has_card = experiments::need_network(&names) || experiments::need_second(&names);
    let network = (has_card && !options.icount).then(|| options.network.clone());
    root.host_file("bench", &program, 0o755)?;
    for side in &sides {
        if let System::Linux(linux, _) = &side.system {
            linux.add_modules(&mut root, &experiments::modules(&names))?;
        }
    }
    // A count must not depend on input from outside, and turns would not improve it.
    let paced = sides.len() > 1 && !options.counts();
    let words = words(options, paced);
    let counter = options.busy.then_some(Plugin::Counter);
    let stage = Stage::new(ground, root, words, options.limit(), network, counter)?;
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
        paced,
        collection: Collection::new(machine, kernels),
        stop: stop_by_signal()?,
    };
    let ended = session.run(&folder);
    // Measurements are shown even when a later boot could not be started.
    let results = session.collection.results();
    let status = show(&results, &folder, &options.events)?;
    ended?;
    Ok(if session.stop.load(Ordering::SeqCst) {
        outcome::SIGNAL + SIGINT as u8
    } else {
        status
    })
}

/// Writes the files, prints the table, and says whether all went well: the exit status.
fn show(results: &Results, folder: &Path, events: &[String]) -> Result<u8> {
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
        table::table(results, width, events)
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
fn words(options: &Bench, paced: bool) -> Vec<String> {
    let mut words = Vec::new();
    if paced {
        words.push("--turns".into());
    }
    if options.full {
        words.push(machine::FULL.into());
    }
    if options.counts() {
        words.extend(["--batches".into(), COUNTED_BATCHES.into()]);
    }
    for row in &options.rows {
        words.extend(["--rows".into(), row.clone()]);
    }
    words
}

/// The kernels that take turns.
fn sides(options: &Bench, home: &Path, kernel: &Path) -> Result<Vec<Side>> {
    let named = options
        .kernel
        .as_ref()
        .map(|file| file.display().to_string());
    let version = named.unwrap_or_else(|| env!("CARGO_PKG_VERSION").into());
    let causeway = |file: &Path, commit: Option<String>, option: &str| Side {
        system: System::Causeway {
            file: file.into(),
            options: [option, options.mitigations().causeway_options()]
                .into_iter()
                .filter(|it| !it.is_empty())
                .map(str::to_owned)
                .collect(),
            has_memory_disks: true,
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
    // The commit of a kernel that the user names is unknown.
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
            let chosen = options.mitigations();
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
            let mut side = causeway(&revision.kernel, Some(revision.commit.clone()), "");
            if let System::Causeway {
                options,
                has_memory_disks,
                ..
            } = &mut side.system
            {
                *has_memory_disks = revision.has_memory_disks(home);
                if !revision.has_mitigations(home) {
                    options.clear();
                }
            }
            side.kernel.version = name.into();
            sides.push(side);
        }
    }
    // Kernel 1 is the reference of kernel 0; without another one it is the same kernel.
    if sides.len() == 1 && (options.switches || !options.variant.is_empty()) {
        sides.push(causeway(kernel, current.clone(), ""));
    }
    for variant in &options.variant {
        sides.push(causeway(kernel, current.clone(), variant.trim()));
    }
    if options.switches {
        for switch in experiments::switches() {
            sides.push(Side {
                only: &switch.experiments,
                pairs: experiments::SWITCHED_PAIRS,
                ..causeway(kernel, current.clone(), &switch.option)
            });
        }
    }
    Ok(sides)
}

/// Describes the machine for the results.
fn described(options: &Bench, accelerator: Accelerator, flags: String) -> Machine {
    let (accelerator, clock) = match accelerator {
        Accelerator::Kvm => ("kvm", Clock::Kvm),
        Accelerator::Icount => ("tcg", Clock::Icount),
        Accelerator::Busy => ("tcg", Clock::Busy),
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
            options.mitigations(),
            options.mitigations().explained()
        ),
        set: if options.counts() {
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
