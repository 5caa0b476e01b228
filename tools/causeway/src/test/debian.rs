//! Debian's programs, in a guest and on Linux with the same root.
//!
//! Each script of `user/strangers/debian` runs in a root of Debian's packages. Its output and
//! status must be those in `NAME.out` beside it, which come from Linux in the same virtual machine
//! with the same root. `causeway test --record debian` writes these files anew with Debian's cloud
//! kernel. In a root of 32-bit programs some of them print the same, in small address spaces, too.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::boot::{Bench, finish};
use super::roots;
use super::strangers::same;
use super::{Report, side_by_side};
use crate::linux::Linux;
use crate::options;
use crate::project;
use crate::qemu::{Boot, Machine};
use crate::root::Root;
use crate::root::debian::Architecture;

/// The time for a batch, in seconds.
const TIMEOUT: u64 = 900;

/// A root of Debian's packages, and the scripts that run in it.
struct System {
    /// Of its folder in `target/roots`.
    name: &'static str,
    /// Separated by blanks; Debian's essential packages come on top.
    packages: &'static str,
    architecture: Architecture,
    /// In pairs that take about the same time, since two guests run at once.
    batches: &'static [Batch],
    /// The kernels that run them.
    kernels: &'static [Kernel],
    /// Only with `--long`, or when a script of it is named.
    long: bool,
}

impl System {
    /// The group of its scripts.
    fn group(&self) -> &'static str {
        match self.architecture {
            Architecture::Amd64 => "debian",
            Architecture::I386 => "debian for i386",
        }
    }

    /// Its folder.
    fn folder(&self) -> Result<PathBuf> {
        let packages: Vec<&str> = self.packages.split_whitespace().collect();
        roots::folder_for(self.architecture, self.name, &packages)
    }
}

/// The folder of the root of every day.
///
/// # Errors
/// When it cannot be made.
pub(super) fn folder() -> Result<PathBuf> {
    SYSTEMS[0].folder()
}

/// The folder of the root of 32-bit programs.
///
/// # Errors
/// When it cannot be made.
pub(super) fn folder_of_32_bits() -> Result<PathBuf> {
    SYSTEMS[1].folder()
}

/// Scripts that run in one boot, each in a folder of its own.
type Batch = &'static [&'static str];

/// A kernel that runs scripts.
struct Kernel {
    /// Follows the group's name.
    suffix: &'static str,
    options: &'static str,
    /// Of its system's batches, those that it runs without `--long` and without a script's name.
    short: Range<usize>,
}

/// The kernel without options.
const DEFAULT: Kernel = Kernel {
    suffix: "",
    options: "",
    short: 0..usize::MAX,
};
/// 32-bit programs in address spaces of their own and in regions, where they print the same.
const SPACES: &[Kernel] = &[
    Kernel {
        short: 0..1,
        ..DEFAULT
    },
    Kernel {
        suffix: ", regions of 64 MiB",
        options: "spaces=small region=64M",
        short: 1..2,
    },
    Kernel {
        suffix: ", regions of 256 MiB",
        options: "spaces=small region=256M",
        short: 0..1,
    },
];

const SYSTEMS: &[System] = &[
    System {
        name: "debian",
        packages: "bash bc bzip2 coreutils curl file findutils gawk gcc gdb git grep gzip iproute2 less libc6-dev \
                   make mount netbase nginx-light perl procps python3 redis-server redis-tools sed sqlite3 strace \
                   tar util-linux xz-utils",
        architecture: Architecture::Amd64,
        batches: &[
            &["bash", "coreutils", "text", "procps", "machine", "jobs"],
            &["gcc", "perl"],
            &["git", "sqlite", "pysqlite"],
            &["redis", "nginx", "python", "archives"],
        ],
        kernels: &[DEFAULT],
        long: false,
    },
    System {
        name: "debian-32",
        packages: "bash bc bzip2 coreutils file findutils gawk grep gzip less mount perl procps python3 sed sqlite3 \
                   tar util-linux xz-utils",
        architecture: Architecture::I386,
        batches: &[
            &["bash", "coreutils", "text"],
            &["python", "sqlite", "perl"],
        ],
        kernels: SPACES,
        long: false,
    },
    System {
        name: "more",
        packages: "acl apt attr bash bsdextrautils coreutils cpio dash dpkg e2fsprogs expect htop iproute2 \
                   iputils-ping jq libcap2-bin lsof lua5.4 mount nano netcat-openbsd nodejs openssh-client \
                   openssh-server php-cli procps psmisc python3 rsync ruby screen socat tcl tmux unzip util-linux \
                   vim-tiny zip zsh zstd",
        architecture: Architecture::Amd64,
        batches: &[&["more"]],
        kernels: &[DEFAULT],
        long: true,
    },
];

/// A script's output, with its status as the last line; and the time of its whole boot.
struct Printed {
    text: String,
    time: Duration,
}

/// Runs them, or records their output on Linux.
///
/// # Errors When there are no scripts or a record is missing; when recording, also when the root
/// cannot be made or a script does not come to its end.
pub fn run(bench: &Bench, report: &mut Report, options: &options::Test) -> Result<()> {
    SYSTEMS
        .iter()
        .try_for_each(|system| run_in(system, bench, report, options))?;
    if !options.record && report.wants("debian: swap tools") {
        report.run("debian: swap tools", || swap_tools(bench));
    }
    Ok(())
}

/// Debian's tools for swap space. The machine in which Linux runs the scripts has no device for it,
/// so their expected output comes from their manuals.
const SWAP_TOOLS: &str = "
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8
exec 2>&1; D=/dev/md0; id=01234567-89ab-cdef-0123-456789abcdef
total() { free -k | awk '/^Swap/ { print \"free\", $2, $3, $4 }'; vmstat -s | grep 'total swap'; }
swapon $D; echo $?; mkswap -U $id $D; total; swapon -p 5 $D; echo $?; total; swapon -s
swapon --show=NAME,TYPE,SIZE,USED,PRIO --noheadings --bytes; vmstat | awk 'NR == 3 { print $3, NF }'
swapon $D; echo $?; swaplabel $D; swapoff $D; echo $?; total; swapon -s | wc -l; swapoff $D; echo $?";

const SWAP_TOOLS_SAY: &str = "\
swapon: /dev/md0: read swap header failed
255
Setting up swapspace version 1, size = 16 MiB (16773120 bytes)
no label, UUID=01234567-89ab-cdef-0123-456789abcdef
free 0 0 0
0 K total swap
0
free 16380 0 16380
16380 K total swap
Filename Type Size Used Priority
/dev/md0 partition 16380 0 5
/dev/md0 partition 16773120 0 5
0 17
swapon: /dev/md0: swapon failed: Device or resource busy
255
UUID: 01234567-89ab-cdef-0123-456789abcdef
0
free 0 0 0
0 K total swap
0
swapoff: /dev/md0: swapoff failed: Invalid argument
4
";

fn swap_tools(bench: &Bench) -> Result<()> {
    let scripts = project::home()?.join("user/strangers/debian");
    let archive = archive(bench, &SYSTEMS[0], &scripts)?;
    let guest = bench.bash(SWAP_TOOLS).root(&archive).memory("2G");
    let finished = guest.option("md=16M").timeout(300).fast().run()?;
    let lines = finished.text();
    let lines = lines.lines().map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.join(" ") + "\n"
    });
    let said: String = lines.collect();
    same(SWAP_TOOLS_SAY.as_bytes(), said.as_bytes()).with_context(|| finished.why())
}

fn run_in(
    system: &System,
    bench: &Bench,
    report: &mut Report,
    options: &options::Test,
) -> Result<()> {
    let named = |name: &&&str| options.groups.iter().any(|word| word == **name);
    let any = SYSTEMS
        .iter()
        .flat_map(|system| system.batches.concat())
        .any(|name| named(&&name));
    // What 64-bit programs print counts for all.
    if options.record && system.architecture != Architecture::Amd64 {
        return Ok(());
    }
    if system.long && !options.long && !system.batches.concat().iter().any(|name| named(&name)) {
        return Ok(());
    }
    let batches: Vec<(usize, Vec<&str>)> = system
        .batches
        .iter()
        .map(|batch| {
            let wanted = batch.iter().filter(|name| !any || named(name));
            wanted.copied().collect()
        })
        .enumerate()
        .filter(|(_, batch): &(usize, Vec<&str>)| !batch.is_empty())
        .collect();
    if batches.is_empty()
        || !report.wants(&format!(
            "{}: {}",
            system.group(),
            batches
                .iter()
                .flat_map(|(_, batch)| batch)
                .copied()
                .collect::<Vec<_>>()
                .join(" ")
        ))
    {
        return Ok(());
    }
    let scripts = project::home()?.join("user/strangers/debian");
    let archive = match archive(bench, system, &scripts) {
        Ok(archive) => archive,
        Err(why) if !options.record => {
            report.note(&format!("{}: its root", system.group()), Err(why));
            return Ok(());
        }
        Err(why) => return Err(why),
    };
    let linux = options.record.then(|| Linux::find(None)).transpose()?;
    let linux = linux.map(|linux| linux.kernel);
    let boots: Vec<(&Kernel, &Vec<&str>)> = system
        .kernels
        .iter()
        .flat_map(|kernel| batches.iter().map(move |batch| (kernel, batch)))
        .filter(|(kernel, (at, _))| options.long || any || kernel.short.contains(at))
        .map(|(kernel, (_, batch))| (kernel, batch))
        .collect();
    for two in boots.chunks(2) {
        let printed = side_by_side(two, |(kernel, batch)| {
            boot(bench, linux.as_deref(), &archive, kernel.options, batch)
        });
        for ((kernel, batch), printed) in two.iter().zip(printed) {
            if options.record {
                write(&scripts, batch, &printed?)?;
            } else {
                let group = format!("{}{}", system.group(), kernel.suffix);
                judge(report, &group, &scripts, batch, printed)?;
            }
        }
    }
    Ok(())
}

/// The archive of the root with the scripts.
fn archive(bench: &Bench, system: &System, scripts: &Path) -> Result<PathBuf> {
    let mut root = Root::folder(&system.folder()?)?;
    root.directory("strangers", 0o755);
    for entry in fs::read_dir(scripts).context("no scripts")? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default();
        root.host_file(Path::new("strangers").join(name), &path, 0o755)?;
    }
    root.symlink("init", "strangers/prepare");
    let archive = bench.path(&format!("{}.cpio", system.name));
    root.write(&archive)?;
    Ok(archive)
}

/// Returns the output of each script of a batch.
fn boot(
    bench: &Bench,
    linux: Option<&Path>,
    archive: &Path,
    options: &str,
    batch: &[&str],
) -> Result<Vec<Printed>> {
    let begin = Instant::now();
    let command = [&["/bin/bash", "/strangers/prepare"], batch].concat();
    let guest = bench.guest(&command).root(archive).cpus(2).timeout(TIMEOUT);
    let guest = guest.memory("2G").option(options).fast();
    let text = match linux {
        None => guest.output()?,
        Some(linux) => on_linux(guest.machine()?, linux, batch)?,
    };
    let time = begin.elapsed();
    if options.contains("spaces=small") {
        let mut joins = text.lines().filter_map(|line| line.strip_prefix("joins "));
        ensure!(
            joins.next_back().is_some_and(|joins| joins != "0"),
            "no program was small"
        );
    }
    batch
        .iter()
        .map(|name| {
            let text = part(&text, name).with_context(|| format!("{name} did not end: {text}"))?;
            Ok(Printed { text, time })
        })
        .collect()
}

/// The same machine with Linux, which runs `/init` with the words of its command line that it does
/// not know.
fn on_linux(mut machine: Machine, linux: &Path, batch: &[&str]) -> Result<String> {
    if let Boot::Kernel {
        kernel,
        command_line,
        ..
    } = &mut machine.boot
    {
        *kernel = linux.into();
        *command_line = format!("console=ttyS0 quiet loglevel=0 -- {}", batch.join(" "));
    }
    machine.memory = "4G".into();
    let timeout = Duration::from_secs(TIMEOUT);
    Ok(finish(&machine, linux, b"", timeout, |_| ())?.text())
}

/// Returns the text between the lines that `prepare` writes before and after a script's output, and
/// its status.
fn part(text: &str, name: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("===== {name}\n"))?;
    let (output, rest) = rest.split_once("===== status ")?;
    let (status, _) = rest.split_once('\n')?;
    Some(format!("{output}status {status}\n"))
}

/// Compares outputs with those on Linux.
fn judge(
    report: &mut Report,
    group: &str,
    scripts: &Path,
    batch: &[&str],
    printed: Result<Vec<Printed>>,
) -> Result<()> {
    let printed = match printed {
        Ok(printed) => printed,
        Err(why) => {
            report.note(&format!("{group}: {}", batch.join(" ")), Err(why));
            return Ok(());
        }
    };
    for (name, printed) in batch.iter().zip(printed) {
        let file = recorded(scripts, name);
        let expected =
            fs::read_to_string(&file).with_context(|| format!("no {}", file.display()))?;
        report.note(
            &format!(
                "{group}: {name} ({:.1} s for its boot)",
                printed.time.as_secs_f64()
            ),
            same(expected.as_bytes(), printed.text.as_bytes()),
        );
    }
    Ok(())
}

/// Records outputs.
fn write(scripts: &Path, batch: &[&str], printed: &[Printed]) -> Result<()> {
    for (name, printed) in batch.iter().zip(printed) {
        let file = recorded(scripts, name);
        fs::write(&file, &printed.text)
            .with_context(|| format!("cannot write {}", file.display()))?;
        println!("wrote {}", file.display());
    }
    Ok(())
}

/// The file with a script's output on Linux.
fn recorded(scripts: &Path, name: &str) -> PathBuf {
    scripts.join(name).with_extension("out")
}

#[cfg(test)]
mod tests {
    use super::SYSTEMS;

    /// Every batch runs in some kernel without `--long`, too.
    #[test]
    fn short_runs_have_each_script() {
        for system in SYSTEMS {
            for batch in 0..system.batches.len() {
                let runs = system.kernels.iter().any(|it| it.short.contains(&batch));
                assert!(runs, "{}: {:?}", system.name, system.batches[batch]);
            }
        }
    }
}
