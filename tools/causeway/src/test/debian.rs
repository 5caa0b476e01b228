//! Debian's programs, in a guest and on Linux with the same root.
//!
//! Each script of `user/strangers/debian` runs in a root of Debian's packages. What it prints, and its
//! status, must be what `NAME.out` beside it says: what it printed on Linux in the same virtual machine with
//! the same root. `causeway test --record debian` writes these files anew with Debian's cloud kernel.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::Report;
use super::boot::{self, Bench, Plan};
use super::strangers::same;
use crate::compare;
use crate::guest::Ending;
use crate::options;
use crate::project;
use crate::qemu::{Boot, Machine};
use crate::root::{Root, debian};

/// What the root has besides what Debian calls essential.
const PACKAGES: &[&str] = &[
    "bash",
    "bc",
    "bzip2",
    "coreutils",
    "curl",
    "file",
    "findutils",
    "gawk",
    "gcc",
    "gdb",
    "git",
    "grep",
    "gzip",
    "iproute2",
    "less",
    "libc6-dev",
    "make",
    "mount",
    "netbase",
    "nginx-light",
    "perl",
    "procps",
    "python3",
    "redis-server",
    "redis-tools",
    "sed",
    "sqlite3",
    "strace",
    "tar",
    "util-linux",
    "xz-utils",
];

/// Scripts that run in one boot, each with a folder of its own.
struct Batch {
    scripts: &'static [&'static str],
    /// Only with `--long`.
    long: bool,
}

/// In pairs that take about the same time, since two guests run at once.
const BATCHES: &[Batch] = &[
    Batch {
        scripts: &["bash", "coreutils", "text", "procps", "machine", "jobs"],
        long: false,
    },
    Batch {
        scripts: &["gcc", "perl"],
        long: false,
    },
    Batch {
        scripts: &["git", "sqlite", "pysqlite"],
        long: false,
    },
    Batch {
        scripts: &["redis", "nginx", "python", "archives"],
        long: false,
    },
];

/// What a script printed, with its status as the last line; and the time of its whole boot.
struct Printed {
    text: String,
    time: Duration,
}

/// Runs them, or writes anew what they print on Linux.
///
/// # Errors
/// When there are no scripts or a record is missing; when recording, also when the root cannot be made or a script
/// does not come to its end.
pub fn run(bench: &Bench, report: &mut Report, options: &options::Test) -> Result<()> {
    let batches: Vec<Vec<&str>> = BATCHES
        .iter()
        .filter(|batch| options.long || !batch.long)
        .map(|batch| named(batch.scripts, &options.groups))
        .filter(|scripts| !scripts.is_empty())
        .collect();
    if !report.wants(&format!("debian: {}", batches.concat().join(" "))) {
        return Ok(());
    }
    let scripts = project::home()?.join("user/strangers/debian");
    let archive = match archive(bench, &scripts) {
        Ok(archive) => archive,
        Err(why) if !options.record => {
            report.note("debian: its root", Err(format!("{why:#}")));
            return Ok(());
        }
        Err(why) => return Err(why),
    };
    let linux = options.record.then(compare::linux).transpose()?;
    for two in batches.chunks(2) {
        let printed: Vec<Result<Vec<Printed>, String>> = std::thread::scope(|scope| {
            let guests: Vec<_> = two
                .iter()
                .map(|batch| scope.spawn(|| boot(bench, linux.as_deref(), &archive, batch)))
                .collect();
            guests
                .into_iter()
                .map(|guest| guest.join().unwrap_or_else(|_| Err("panicked".into())))
                .collect()
        });
        for (batch, printed) in two.iter().zip(printed) {
            if options.record {
                write(&scripts, batch, &printed.map_err(anyhow::Error::msg)?)?;
            } else {
                judge(report, &scripts, batch, printed)?;
            }
        }
    }
    Ok(())
}

/// Of these scripts those that are words of the command line, all if none is.
fn named(scripts: &[&'static str], words: &[String]) -> Vec<&'static str> {
    let is_word = |name: &str| words.iter().any(|word| word == name);
    let any = BATCHES
        .iter()
        .any(|batch| batch.scripts.iter().any(|name| is_word(name)));
    let wanted = scripts.iter().filter(|name| !any || is_word(name));
    wanted.copied().collect()
}

/// The archive of the root with the scripts.
fn archive(bench: &Bench, scripts: &Path) -> Result<PathBuf> {
    let folder = project::home()?.join("target/roots/debian");
    let packages: Vec<String> = PACKAGES.iter().map(ToString::to_string).collect();
    // Beside the folder, so that a root of other packages is made anew.
    let list = folder.with_extension("packages");
    let wanted = packages.join("\n");
    if fs::read_to_string(&list).ok().as_ref() != Some(&wanted) {
        debian::make(&folder, &packages, true, false)?;
        fs::write(&list, wanted)?;
    }
    let mut root = Root::folder(&folder)?;
    root.directory("strangers", 0o755);
    for entry in fs::read_dir(scripts).context("no scripts")? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default();
        root.host_file(Path::new("strangers").join(name), &path, 0o755)?;
    }
    root.symlink("init", "strangers/prepare");
    let archive = bench.path("debian.cpio");
    root.write(&archive)?;
    Ok(archive)
}

/// What each script of a batch printed.
fn boot(
    bench: &Bench,
    linux: Option<&Path>,
    archive: &Path,
    batch: &[&str],
) -> Result<Vec<Printed>, String> {
    let begin = Instant::now();
    let mut command = vec!["/bin/bash", "/strangers/prepare"];
    command.extend(batch);
    let mut plan = Plan::new(archive, &command);
    plan.cpus = 2;
    plan.memory = "2G";
    plan.timeout = Duration::from_secs(900);
    plan.fast = true;
    let text = match linux {
        None => {
            let finished = bench.boot(&plan)?;
            if finished.ending != Ending::Status(0) {
                return Err(finished.why(&bench.fast));
            }
            finished.text()
        }
        Some(linux) => on_linux(&bench.machine(&plan, ""), linux, batch, plan.timeout)?,
    };
    let time = begin.elapsed();
    batch
        .iter()
        .map(|name| {
            let text = part(&text, name).ok_or_else(|| format!("{name} did not end: {text}"))?;
            Ok(Printed { text, time })
        })
        .collect()
}

/// The same machine with Linux, which runs `/init` with the words of its command line that it does not know.
fn on_linux(
    machine: &Machine,
    linux: &Path,
    batch: &[&str],
    patience: Duration,
) -> Result<String, String> {
    let Boot::Kernel { root, .. } = &machine.boot else {
        return Err("this machine boots no kernel".into());
    };
    let machine = Machine {
        boot: Boot::Kernel {
            kernel: linux.into(),
            root: root.clone(),
            command_line: format!("console=ttyS0 quiet loglevel=0 -- {}", batch.join(" ")),
        },
        cpus: machine.cpus,
        memory: "4G".into(),
        accelerator: machine.accelerator,
        extra: Vec::new(),
    };
    let finished =
        boot::finish(&machine, b"", patience, |_| ()).map_err(|error| format!("{error:#}"))?;
    Ok(finished.text())
}

/// What stands between the lines that `prepare` writes before and after a script's output, and its status.
fn part(text: &str, name: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("===== {name}\n"))?;
    let (output, rest) = rest.split_once("===== status ")?;
    let (status, _) = rest.split_once('\n')?;
    Some(format!("{output}status {status}\n"))
}

/// Compares what was printed with what Linux printed.
fn judge(
    report: &mut Report,
    scripts: &Path,
    batch: &[&str],
    printed: Result<Vec<Printed>, String>,
) -> Result<()> {
    let printed = match printed {
        Ok(printed) => printed,
        Err(why) => {
            report.note(&format!("debian: {}", batch.join(" ")), Err(why));
            return Ok(());
        }
    };
    for (name, printed) in batch.iter().zip(printed) {
        let file = recorded(scripts, name);
        let expected =
            fs::read_to_string(&file).with_context(|| format!("no {}", file.display()))?;
        report.note(
            &format!(
                "debian: {name} ({:.1} s for its boot)",
                printed.time.as_secs_f64()
            ),
            same(expected.as_bytes(), printed.text.as_bytes()),
        );
    }
    Ok(())
}

/// Keeps what was printed.
fn write(scripts: &Path, batch: &[&str], printed: &[Printed]) -> Result<()> {
    for (name, printed) in batch.iter().zip(printed) {
        let file = recorded(scripts, name);
        fs::write(&file, &printed.text)
            .with_context(|| format!("cannot write {}", file.display()))?;
        println!("wrote {}", file.display());
    }
    Ok(())
}

/// The file with what a script printed on Linux.
fn recorded(scripts: &Path, name: &str) -> PathBuf {
    scripts.join(name).with_extension("out")
}
