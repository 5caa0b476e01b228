//! The command line.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

use crate::bench;
use crate::commands;
use crate::console::Console;
use crate::disk::Disk;
use crate::image;
use crate::install;
use crate::launch::Launch;
use crate::link;
use crate::net;
use crate::outcome;
use crate::peer;
use crate::profile::Detail;
use crate::project;
use crate::qemu::{self, Accelerator, Boot, Iommu, Machine};
use crate::root::debian::{Architecture, There};
use crate::root::place::{Place, RootBy};
use crate::root::{debian, ext2, inventory};
use crate::run::kernel_of;
use crate::share::Share;
use crate::swap::Swap;

/// Runs Linux programs on the Causeway kernel in a virtual machine.
#[derive(Parser, Debug)]
#[command(name = "causeway", version, max_term_width = 100)]
pub struct Options {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Start a guest: a shell, or one command
    Run(Run),
    /// List the guests that have a name
    Ps(commands::Ps),
    Logs(commands::Logs),
    /// Run a further command in a running guest
    Exec(commands::Exec),
    Attach(commands::Attach),
    /// End a guest: ask its first program, then end the machine
    Stop(commands::Stop),
    /// Send the first program of a guest a signal
    Kill(commands::Kill),
    /// Remove what is kept of a guest that has ended
    Rm(commands::Rm),
    Cp(commands::Cp),
    /// Make a folder or a disk that can be a guest's root
    Root(Root),
    /// Show what is kept in the cache folder, or remove it
    Cache(inventory::Cache),
    /// Stand between two guests as a bad network
    Link(link::Options),
    /// Start a guest that waits for gdb
    Debug(Debug),
    /// Count which of the kernel's functions the instructions of a command go to
    Profile(Profile),
    /// Make an image of a CD that boots by GRUB
    Image(Image),
    /// Check the format, the lints and the host tests after a change
    Check(Check),
    /// Run every test
    Test(Test),
    /// Run the experiments on this kernel and on Linux in turn, and show what came of them
    Bench(bench::options::Bench),
    /// Serve the guests' experiments with a network, until it is ended
    Peer(peer::Options),
    /// Measure this kernel against Linux: its start, or a script with --script
    CompareLinux(Compare),
    /// Build the kernel and print where it is
    Build(Build),
    #[command(hide = true)]
    Launch(Launch),
    /// Put this program, its kernel, its manual and its completion below a prefix
    #[command(hide = true)]
    Install(install::Install),
}

/// Options of every guest.
#[derive(Args, Clone, Debug)]
pub struct Guest {
    /// Use this folder as the guest's root, or this image with an ext2 file system, which the guest
    /// changes unless `:ro` stands behind it [default: Debian's busybox with its applets]
    #[arg(long, value_name = "DIR|FILE")]
    pub root: Option<PathBuf>,
    /// How the guest gets a folder as root [default: memory, and ext2 for a folder of more than
    /// 128 MiB]
    #[arg(long, value_enum, value_name = "WAY")]
    pub root_by: Option<RootBy>,
    /// CPUs, 1 to 64
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=64))]
    pub smp: u32,
    /// Memory, in M or G [default: 512M, and more for a large root in memory]
    #[arg(long = "mem", value_name = "SIZE")]
    pub memory: Option<String>,
    /// Show this folder of the host in the guest, `:ro` behind it for reading only; may be repeated
    #[arg(long = "share", value_name = "HOSTDIR:GUESTDIR")]
    pub shares: Vec<Share>,
    /// Give the guest this file as a disk (the first one is /dev/vda, or /dev/vdb beside a root
    /// that is a disk), `:ro` behind it for reading only; may be repeated
    #[arg(long = "disk", value_name = "FILE")]
    pub disks: Vec<Disk>,
    /// Give the guest swap space: a new one of SIZE (in K, M or G), or a FILE that `mkswap` has
    /// prepared; it becomes the last disk
    #[arg(long = "swap", value_name = "SIZE|FILE")]
    pub swap: Option<Swap>,
    #[command(flatten)]
    pub net: net::Options,
    /// What `uname -r` gives in the guest [default: 6.1.0-causeway]
    #[arg(long, value_name = "STRING")]
    pub release: Option<String>,
    /// Give the guest none of the host's random numbers
    #[arg(long)]
    pub no_entropy: bool,
    /// Put the guest's devices behind an IOMMU; `--iommu=caching` for one that keeps absent
    /// translations, too
    #[arg(long, value_enum, value_name = "KIND", num_args = 0..=1, require_equals = true,
          default_missing_value = "on")]
    pub iommu: Option<Iommu>,
    /// More options for the kernel's command line
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true)]
    pub append: Vec<String>,
    /// Which build of the kernel
    #[arg(long, value_enum, default_value = "release")]
    pub profile: project::Profile,
    /// Use this kernel and build none
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,
    /// How to run the guest's instructions
    #[arg(long = "accel", value_enum, default_value = "auto")]
    pub accelerator: Accelerator,
    /// A word for QEMU's command line, as it is, for QEMU in the folder `/`; may be repeated
    #[arg(long = "qemu", value_name = "WORD", allow_hyphen_values = true)]
    pub qemu: Vec<String>,
}

impl Guest {
    /// The kernel's file: the one that the user named, else the one that [`install::kernel`] finds.
    ///
    /// # Errors
    /// When there is none, or it does not build.
    pub fn kernel(&self) -> Result<PathBuf> {
        match &self.kernel {
            Some(kernel) => kernel_of(Some(kernel), self.profile),
            None => install::kernel(self.profile),
        }
    }

    /// The same guest with the kernel where it was linked, not at a random place.
    pub fn unmoved(&self) -> Guest {
        let mut guest = self.clone();
        guest.append.push("kaslr=off".into());
        guest
    }

    /// The machine that boots `kernel` with the root and the shares that the user asked for, and
    /// runs `command` on `console`. Files that are made for it go into `temporary`.
    ///
    /// # Errors
    /// When the root cannot be packed, or is too large for the memory.
    pub fn machine(
        &self,
        kernel: &Path,
        console: Console,
        command: &[String],
        accelerator: Accelerator,
        temporary: &Path,
    ) -> Result<Machine> {
        let place = Place::of(self.root.as_deref(), self.root_by, temporary)?;
        let size = match &place {
            Place::Archive(root) => fs::metadata(root)?.len(),
            Place::Disk(..) | Place::Share(..) => 0,
        };
        let memory = match &self.memory {
            Some(memory) => {
                qemu::check_memory(memory, size)?;
                memory.clone()
            }
            None => qemu::memory_for(size),
        };
        let mut append = self.net.kernel()?;
        append.extend(self.options());
        if !self.no_entropy && !accelerator.counts() {
            append.push(qemu::seed()?);
        }
        append.extend(
            (0..)
                .zip(&self.shares)
                .map(|(number, share)| share.option(number)),
        );
        let (mut disks, mut shares) = (self.disks.clone(), self.shares.clone());
        let root = match place {
            Place::Archive(archive) => Some(archive),
            Place::Disk(disk, mode) => {
                append.push(format!("root=/dev/vda {mode}"));
                disks.insert(0, disk);
                None
            }
            Place::Share(share, mode) => {
                append.push(format!("{} {mode}", share.root_option(shares.len())));
                shares.push(share);
                None
            }
        };
        if let Some(swap) = &self.swap {
            append.push(format!("swap=/dev/{}", Disk::name(disks.len())));
            disks.push(swap.disk(temporary)?);
        }
        let boot = Boot::Kernel {
            kernel: kernel.into(),
            root,
            command_line: console.command_line(&append, command),
        };
        self.with(boot, memory, accelerator, &disks, &shares)
    }

    /// The options for the kernel's command line that do not depend on the machine.
    pub fn options(&self) -> Vec<String> {
        let release = self.release.iter().map(|text| format!("release={text}"));
        release.chain(self.append.iter().cloned()).collect()
    }

    /// The machine that boots a CD image.
    ///
    /// # Errors
    /// When the memory is too little.
    pub fn image_machine(&self, image: &Path, accelerator: Accelerator) -> Result<Machine> {
        let memory = self.memory.clone();
        let memory = memory.unwrap_or_else(|| qemu::memory_for(0));
        qemu::at_least(&memory, qemu::LEAST_OF_IMAGE, "")?;
        let boot = Boot::Image(image.into());
        self.with(boot, memory, accelerator, &self.disks, &self.shares)
    }

    /// The machine that boots so, with these disks and shares.
    pub fn with(
        &self,
        boot: Boot,
        memory: String,
        accelerator: Accelerator,
        disks: &[Disk],
        shares: &[Share],
    ) -> Result<Machine> {
        let shares = (0..).zip(shares);
        let disks = (0..).zip(disks);
        Ok(Machine {
            boot,
            cpus: self.smp,
            memory,
            accelerator,
            entropy: !self.no_entropy,
            iommu: self.iommu,
            extra: shares
                .flat_map(|(number, share)| share.qemu(number))
                .chain(disks.flat_map(|(number, disk)| disk.qemu(number)))
                .chain(self.net.qemu(self.smp)?)
                .chain(self.qemu.iter().cloned())
                .collect(),
        })
    }
}

#[derive(Args, Debug)]
#[command(after_help = outcome::HELP)]
pub struct Run {
    #[command(flatten)]
    pub guest: Guest,
    /// Kill the guest after this many seconds
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub timeout: Option<Duration>,
    /// Show the kernel's log on standard error
    #[arg(long)]
    pub log: bool,
    /// Boot this CD image, made by `causeway image`, which has its own root and options
    #[arg(long, value_name = "FILE", value_parser = image::bootable, conflicts_with_all = ["root", "root_by", "append", "shares",
          "swap", "release", "command", "name", "detach", "hostname", "init", "environment", "files",
          "directory", "user"])]
    pub image: Option<PathBuf>,
    /// Let `netserver`, a process that serves others through fbufs, have the card and the address
    /// of --ip; `--netserver=OPTIONS` with more of its options
    #[arg(long, value_name = "OPTIONS", num_args = 0..=1, require_equals = true,
          default_missing_value = "", allow_hyphen_values = true, requires = "own",
          conflicts_with_all = ["user", "image"])]
    pub netserver: Option<String>,
    #[command(flatten)]
    pub guest_name: commands::Name,
    #[command(flatten)]
    pub program: commands::ProgramOptions,
    /// Run this program with these arguments in place of a shell, and end with its status
    #[arg(value_name = "CMD", trailing_var_arg = true)]
    pub command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub struct Root {
    #[command(subcommand)]
    pub system: System,
}

#[derive(Subcommand, Debug)]
pub enum System {
    /// Install Debian 12's packages, with what they depend on and what Debian calls essential
    Debian {
        /// The folder to make
        #[arg(value_name = "DIR")]
        folder: PathBuf,
        /// Debian's packages; NAME:i386 for a 32-bit one [default: bash coreutils findutils grep
        /// mount sed gawk tar gzip procps python3 sqlite3]
        packages: Vec<String>,
        /// `i386` makes a root of 32-bit programs
        #[arg(long, value_enum, default_value_t)]
        arch: Architecture,
        /// Install these packages in a root that is there; its other files stay as they are
        #[arg(long, requires = "packages", conflicts_with_all = ["replace", "fresh", "arch"])]
        add: bool,
        /// Make the folder anew if it is such a root already: what was changed in it is lost
        #[arg(long)]
        replace: bool,
        /// Ask for the newest versions, even if these packages were installed before
        #[arg(long)]
        fresh: bool,
    },
    /// Make an image of a disk with an ext2 file system, which `causeway run --root` takes
    Ext2 {
        /// The image to make
        #[arg(value_name = "FILE")]
        image: PathBuf,
        /// The folder with its files [default: Debian's busybox with its applets]
        #[arg(value_name = "DIR")]
        folder: Option<PathBuf>,
        /// How large the file system is, in M or G [default: twice its files and 256M]
        #[arg(long, value_name = "SIZE", value_parser = ext2::size)]
        size: Option<u64>,
    },
}

impl Root {
    /// Makes the folder or the image.
    ///
    /// # Errors
    /// As [`debian::make`] and [`ext2::make`].
    pub fn make(&self) -> Result<()> {
        match &self.system {
            System::Debian {
                folder,
                packages,
                arch,
                add,
                replace,
                fresh,
            } => {
                let there = There::of(*add, *replace);
                debian::make(folder, packages, *arch, there, *fresh)
            }
            System::Ext2 {
                image,
                folder,
                size,
            } => ext2::make(folder.as_deref(), image, *size),
        }
    }
}

#[derive(Args, Debug)]
pub struct Debug {
    #[command(flatten)]
    pub guest: Guest,
    /// The TCP port of this machine that gdb connects to
    #[arg(long, default_value_t = 1234)]
    pub gdb_port: u16,
    /// Start gdb in this terminal; the guest's console output goes to a file
    #[arg(long)]
    pub gdb: bool,
    /// Run this program in place of a shell
    #[arg(value_name = "CMD", trailing_var_arg = true)]
    pub command: Vec<String>,
}

/// Counts every instruction by QEMU's emulator, from the first one of a program on, and prints on
/// standard error which of the kernel's functions they were
#[derive(Args, Debug)]
pub struct Profile {
    #[command(flatten)]
    pub guest: Guest,
    /// How many lines to print
    #[arg(long, value_name = "N", default_value_t = 40)]
    pub top: usize,
    /// Count the instructions of this Linux, which runs the command in the same machine [default:
    /// Debian's cloud kernel, fetched by scripts/linux-kernel.sh]
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true,
          conflicts_with_all = ["kernel", "profile", "inlined", "lines", "root_by", "swap", "release", "shares"])]
    pub linux: Option<Option<PathBuf>>,
    /// Count for inlined functions of their own, not for the one that they were inlined into
    #[arg(long, conflicts_with = "lines")]
    pub inlined: bool,
    /// Count for source lines
    #[arg(long)]
    pub lines: bool,
    /// Kill the guest after this many seconds
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub timeout: Option<Duration>,
    /// The program to run, with its arguments
    #[arg(value_name = "CMD", trailing_var_arg = true, required = true)]
    pub command: Vec<String>,
}

impl Profile {
    /// The unit that an instruction is counted for.
    pub fn detail(&self) -> Detail {
        if self.lines {
            Detail::Line
        } else if self.inlined {
            Detail::Inlined
        } else {
            Detail::Function
        }
    }
}

#[derive(Args, Debug)]
pub struct Image {
    #[command(flatten)]
    pub guest: Guest,
    /// The image to write
    #[arg(short, long, value_name = "FILE", default_value = "causeway.iso")]
    pub output: PathBuf,
    /// Run this program in place of a shell
    #[arg(value_name = "CMD", trailing_var_arg = true)]
    pub command: Vec<String>,
}

#[derive(Args, Debug)]
pub struct Check {
    /// Run also the host tests that have passed since they were built
    #[arg(long)]
    pub all: bool,
}

#[derive(Args, Debug)]
pub struct Test {
    /// How long the program of random system calls runs, in seconds
    #[arg(long, value_name = "S", default_value_t = 10,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: u64,
    /// Run also what takes too long for every day
    #[arg(long)]
    pub long: bool,
    /// Run only the scripts of Debian's programs, on Linux, and write down what they print; with
    /// `--long` also the long ones
    #[arg(long)]
    pub record: bool,
    /// Run only the instruction counts, and write them into docs/performance.md as those of this
    /// release
    #[arg(long)]
    pub counts: bool,
    /// Run only the guest tests with one of these in their names, on 1, 2 and 4 CPUs, with the
    /// kernel that is built fastest
    #[arg(long, value_name = "NAME", num_args = 1.., conflicts_with = "groups")]
    pub guest: Vec<String>,
    /// Run only the attacks with one of these in their names (`attacks`: all), on 1, 2 and 4 CPUs,
    /// with the kernel that is built fastest
    #[arg(long, value_name = "NAME", num_args = 1.., conflicts_with_all = ["groups", "guest"])]
    pub attack: Vec<String>,
    /// More options for the kernel's command line, with --guest
    #[arg(
        long,
        value_name = "OPTIONS",
        default_value = "",
        requires = "guest",
        allow_hyphen_values = true
    )]
    pub append: String,
    /// How long each attack goes on, in seconds [default: 1; in a whole test 0.1 on 2 CPUs, and one
    /// round of it on 1 and 4]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
    pub attack_seconds: Option<u64>,
    /// With --attack: so many attacks at a time, chosen at random again and again
    #[arg(long, value_name = "N", requires = "attack")]
    pub attack_mixed: Option<u64>,
    /// Put the devices of all guests behind an IOMMU, which some are in any case
    #[arg(long, value_enum, value_name = "KIND", num_args = 0..=1, require_equals = true,
          default_missing_value = "on")]
    pub iommu: Option<Iommu>,
    /// Only the groups of tests with one of these words in their names
    #[arg(value_name = "WORD")]
    pub groups: Vec<String>,
}

#[derive(Args, Debug)]
pub struct Compare {
    /// How many runs of each, in turn
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub pairs: u32,
    /// How the guest's instructions are run; with `icount`, on one CPU, a microsecond is 1000
    /// instructions
    #[arg(long = "accel", value_enum, default_value = "auto")]
    pub accelerator: Accelerator,
    /// CPUs, 1 to 64
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=64))]
    pub smp: u32,
    /// Memory, in M or G
    #[arg(long = "mem", value_name = "SIZE", default_value = "512M")]
    pub memory: String,
    /// Put the devices behind an IOMMU
    #[arg(long, value_enum, value_name = "KIND", num_args = 0..=1, require_equals = true,
          default_missing_value = "on")]
    pub iommu: Option<Iommu>,
    /// Run this bash script in both and compare its `RESULT name microseconds` and `COUNT name
    /// number` lines, in place of the start
    #[arg(long, value_name = "FILE", requires = "root")]
    pub script: Option<PathBuf>,
    /// The root for the script, with bash
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Run the script in Causeway with these options on the kernel's command line, too
    #[arg(
        long,
        value_name = "OPTIONS",
        requires = "script",
        allow_hyphen_values = true
    )]
    pub append: Vec<String>,
    /// Give each kernel a copy of this file as a disk, made anew for each run of the script (the
    /// first one is /dev/vda), `:ro` behind it for reading only; may be repeated
    #[arg(long = "disk", value_name = "FILE", requires = "script")]
    pub disks: Vec<Disk>,
    /// Give each kernel swap space: a new one of SIZE (in K, M or G), or a copy of a FILE that
    /// `mkswap` has prepared; it becomes the last disk
    #[arg(long = "swap", value_name = "SIZE|FILE", requires = "script")]
    pub swap: Option<Swap>,
    /// The Linux kernel [default: Debian's cloud kernel, fetched by scripts/linux-kernel.sh]
    #[arg(long, value_name = "FILE")]
    pub linux: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct Build {
    /// Which build
    #[arg(long, value_enum, default_value = "release")]
    pub profile: project::Profile,
}

/// The longest time that can be asked for, in seconds: some thirty years.
const LONGEST: u64 = 1_000_000_000;

/// A positive number of seconds, whole or not.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a positive number of seconds, at most {LONGEST}");
    let seconds: f64 = text.parse().map_err(|_| wrong())?;
    let duration = Duration::try_from_secs_f64(seconds).map_err(|_| wrong())?;
    if duration.is_zero() || duration > Duration::from_secs(LONGEST) {
        Err(wrong())
    } else {
        Ok(duration)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Options::command().debug_assert();
    }

    /// Text after the options is wrapped line by line: a sentence must not be broken in the source,
    /// and lines of a table must fit.
    #[test]
    fn help_is_not_broken_in_mid_sentence() {
        let mut command = Options::command();
        command.build();
        install::for_each(&command, &mut |command| {
            let help = command.get_after_help().map(ToString::to_string);
            let lines: Vec<_> = help.iter().flat_map(|help| help.lines()).collect();
            let name = command.get_name();
            for line in &lines {
                assert!(!line.starts_with(' ') || line.len() <= 80, "{name}: {line}");
            }
            for pair in lines.windows(2) {
                let is_prose = |line: &str| !line.is_empty() && !line.starts_with(' ');
                let are_broken = pair.iter().all(|line| is_prose(line));
                assert!(!are_broken, "{name}: {pair:?}");
            }
            let width = |command: &clap::Command, columns: usize| {
                let mut command = command.clone().term_width(columns);
                let help = command.render_long_help().to_string();
                help.lines().map(str::len).max().unwrap_or(0)
            };
            assert!(
                width(command, 80) <= 80 && width(command, 100) <= 100,
                "{name}"
            );
        });
    }

    #[test]
    fn an_image_has_its_own_root() {
        let command = Options::command();
        let run = command.find_subcommand("run").unwrap();
        let image = run.get_arguments().find(|it| it.get_id() == "image");
        let refused = run.get_arg_conflicts_with(image.unwrap());
        for option in ["root", "root_by", "shares", "swap", "append"] {
            let is_refused = refused.iter().any(|it| it.get_id() == option);
            assert!(is_refused, "{option}");
        }
    }

    #[test]
    fn commands_for_running_guests_say_more_than_a_line() {
        let mut command = Options::command();
        for (name, line, more) in [
            ("attach", "Connect this terminal", "Ctrl-A d leaves"),
            ("cp", "Copy a file", "no set-id bits"),
            ("logs", "Print what", "the last 8 to 16 MiB"),
        ] {
            let short = command.render_help().to_string();
            let subcommand = command.find_subcommand_mut(name).unwrap();
            let long = subcommand.render_long_help().to_string();
            let long = long.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(long.contains(line) && long.contains(more), "{long}");
            assert!(short.contains(line) && !short.contains(more), "{short}");
        }
    }

    #[test]
    fn words_after_the_command_are_its_own() {
        let options =
            Options::try_parse_from(["causeway", "run", "--smp", "2", "ls", "-l", "--log"]);
        let Ok(Options {
            command: Command::Run(run),
        }) = options
        else {
            panic!("{options:?}")
        };
        assert_eq!(run.command, ["ls", "-l", "--log"]);
        assert!(!run.log);
    }

    #[test]
    fn disks_are_compared_by_a_script() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("disk");
        fs::write(&file, [0; 1024]).unwrap();
        let disk = file.display().to_string();
        let parse = |words: &[&str]| {
            let all = ["causeway", "compare-linux"].iter().chain(words);
            Options::try_parse_from(all)
        };
        let script = ["--root", "/", "--script", "script.sh"];
        let wanted = [
            "--disk",
            &disk,
            "--disk",
            &format!("{disk}:ro"),
            "--swap",
            "1M",
        ];
        let Ok(Options {
            command: Command::CompareLinux(compare),
        }) = parse(&[&script[..], &wanted].concat())
        else {
            panic!("the options are refused")
        };
        let writable: Vec<_> = compare.disks.iter().map(Disk::is_writable).collect();
        assert_eq!(writable, [true, false]);
        assert_eq!(compare.swap, Some(Swap::Size(1 << 20)));
        let refused = |words: &[&str]| parse(words).unwrap_err().to_string();
        assert!(refused(&wanted).contains("--script"));
        assert!(refused(&[&script[..], &["--disk", "/nowhere"]].concat()).contains("/nowhere"));
        assert!(refused(&[&script[..], &["--swap", &disk]].concat()).contains("mkswap"));
    }

    #[test]
    fn cpus_and_seconds_have_limits() {
        assert!(Options::try_parse_from(["causeway", "run", "--smp", "65"]).is_err());
        for wrong in ["0", "-1", "1e10", "1e19", "inf", "NaN"] {
            let all = ["causeway", "run", "--timeout", wrong];
            assert!(Options::try_parse_from(all).is_err(), "{wrong}");
        }
        let longest = seconds("1e9").unwrap();
        assert!(std::time::Instant::now().checked_add(longest).is_some());
    }
}
