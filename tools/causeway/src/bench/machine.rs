//! The machine that all kernels of a bench get, and one boot of it.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ChildStdin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::experiments;
use super::lines::{self, Line};
use super::network::{self, Network};
use super::pin;
use super::results::Kernel;
use super::second::{self, Part, Wire};
use super::sections::Sections;
use super::shared_lines::SharedLines;
use crate::compare::Ground;
use crate::console::Console;
use crate::disk::Disk;
use crate::guest::{Ending, Guest};
use crate::linux::{Linux, Mitigations};
use crate::profile::Plugin;
use crate::qemu::Machine;
use crate::root::Root;
use crate::symbols;

/// The guest's first program.
const INIT: &str = "/bench-init";
const INIT_SCRIPT: &str = include_str!("init.sh");

/// The disks of experiments that need some: their names here, and their bytes, nearly all of which
/// are never written.
const DISKS: [(&str, u64); 2] = [("files", 512 << 20), ("swap", 4 << 30)];

/// MiB of the memory disk of experiments that need one, in the short set and in the full one: as
/// much as they read.
const MEMORY_DISK: [u32; 2] = [128, 512];

/// The interval at which a wait checks for Ctrl-C.
const GLANCE: Duration = Duration::from_millis(50);

/// The word that asks the guest's program for the full set.
pub const FULL: &str = "--full";

/// How many of the console's other lines a failure shows.
const SHOWN: usize = 6;

/// A kernel's file, and the data for its command line.
#[derive(Clone, Debug)]
pub enum System {
    /// Causeway, with these options. Older ones have no memory disks.
    Causeway {
        file: PathBuf,
        options: Vec<String>,
        has_memory_disks: bool,
    },
    /// Linux, with the mitigations that the user chose.
    Linux(Linux, Mitigations),
}

/// One of the kernels that take turns.
#[derive(Clone, Debug)]
pub struct Side {
    pub system: System,
    /// How the results name it.
    pub kernel: Kernel,
    /// The experiments that it runs of those asked for; all of them if there are none here.
    pub only: &'static [String],
    /// It is booted in no more pairs than these, the first ones.
    pub pairs: u32,
}

impl Side {
    /// The experiments that it runs of these.
    pub fn names(&self, asked: &[String]) -> Vec<String> {
        let wanted = |name: &&String| self.only.is_empty() || self.only.contains(name);
        asked.iter().filter(wanted).cloned().collect()
    }

    /// The file with the kernel's symbols, if it has any.
    fn file(&self) -> Option<&Path> {
        match &self.system {
            System::Causeway { file, .. } => Some(file),
            System::Linux(..) => None,
        }
    }
}

/// State that all boots of a bench share: the machine, the root, the options of the guest's
/// program.
pub struct Stage {
    ground: Ground,
    archive: PathBuf,
    /// Behind the names of the experiments, such as [`FULL`].
    words: Vec<String>,
    /// How long a guest may report nothing.
    limit: Duration,
    /// The network of experiments that need one.
    network: Option<network::Options>,
    /// What the emulator counts between marks, if it does, and the plugin's file.
    counter: Option<(Plugin, PathBuf)>,
    /// The archive and the boots' disks stand in it.
    folder: TempDir,
}

/// How a boot ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Course {
    /// All experiments came to their end.
    Whole,
    /// The guest ended or was ended before that; why.
    Broken(String),
    /// The user wants no more.
    Stopped,
}

impl Stage {
    /// Packs the root, which has busybox and the guest's `bench`, with the first program.
    ///
    /// # Errors
    /// When the archive cannot be written.
    pub fn new(
        ground: Ground,
        mut root: Root,
        words: Vec<String>,
        limit: Duration,
        network: Option<network::Options>,
        counter: Option<Plugin>,
    ) -> Result<Self> {
        let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
        let archive = folder.path().join("root.cpio");
        root.file(INIT.trim_start_matches('/'), 0o755, INIT_SCRIPT);
        root.write(&archive)?;
        let counter = match counter {
            Some(plugin) => Some((plugin, plugin.build(folder.path())?)),
            None => None,
        };
        Ok(Self {
            ground,
            archive,
            words,
            limit,
            network,
            counter,
            folder,
        })
    }

    /// The machine in which a kernel runs these experiments, with these disks.
    ///
    /// # Errors
    /// When no random bytes can be had for the card.
    fn machine(
        &self,
        side: &Side,
        names: &[String],
        disks: &[Disk],
        network: Option<&Network>,
        wire: Option<(&Wire, Part)>,
    ) -> Result<Machine> {
        let part = wire.map(|(_, part)| part);
        let mut command = vec![INIT.to_owned(), names.join(",")];
        // The second guest serves, and needs no turns.
        if part != Some(Part::Second) {
            command.extend(self.words.iter().cloned());
        }
        command.extend(network.map(Network::bench).into_iter().flatten());
        command.extend(part.map(Part::bench).into_iter().flatten());
        let alone = part.and_then(Part::own);
        let full = self.words.iter().any(|word| word == FULL);
        let memory_disk =
            experiments::need_memory_disk(names).then(|| MEMORY_DISK[usize::from(full)]);
        let (file, line) = match &side.system {
            System::Causeway {
                file,
                options,
                has_memory_disks,
            } => {
                command.insert(0, "/bin/sh".into());
                let mut options = options.clone();
                if let (Some(size), true) = (memory_disk, has_memory_disks) {
                    options.push(format!("md={size}M"));
                }
                if let Some(network) = network {
                    options.extend(network.causeway()?);
                }
                options.extend(alone.map(|own| format!("ip={own}")));
                (file, Console::pipes().command_line(&options, &command))
            }
            System::Linux(linux, mitigations) => {
                let own = linux.command_line(*mitigations, self.ground.accelerator);
                // Its first program finds what the kernel does not know in its environment.
                let disk = memory_disk.map(|size| format!("memory_disk={} ", size << 10));
                let disk = disk.unwrap_or_default();
                let address = network.map(Network::linux);
                let address = address.or(alone.map(|own| format!("address={own}")));
                let address = address.map(|address| address + " ").unwrap_or_default();
                // Nothing may stand between the guest's lines.
                let line = format!(
                    "{own} loglevel=1 {disk}{address}rdinit={INIT} -- {}",
                    command[1..].join(" ")
                );
                (&linux.kernel, line)
            }
        };
        let mut machine = self.ground.machine(file, &self.archive, &line);
        machine.extra.extend(pin::FLAGS.map(Into::into));
        let words = disks.iter().enumerate();
        let words = words.flat_map(|(number, disk)| disk.qemu(number));
        machine.extra.extend(words);
        if let Some(network) = network {
            machine.extra.extend(network.qemu(machine.cpus)?);
        }
        if let Some((wire, part)) = wire {
            machine.extra.extend(wire.qemu(part));
        }
        Ok(machine)
    }

    /// QEMU's flags that all kernels get.
    pub fn flags(&self, side: &Side) -> String {
        // Without disks and card no error is possible, and nothing to be shown.
        let Ok(machine) = self.machine(side, &[], &[], None, None) else {
            return String::new();
        };
        let command = machine.command(Path::new("LOG"));
        let mut words = command
            .get_args()
            .map(|word| word.to_string_lossy().into_owned())
            .skip_while(|word| !word.starts_with("-machine"));
        let mut flags = Vec::new();
        while let Some(word) = words.next() {
            if ["-kernel", "-append", "-initrd"].contains(&word.as_str()) {
                words.next();
            } else {
                flags.push(word);
            }
        }
        flags.join(" ")
    }

    /// Boots a kernel that shall run these experiments.
    ///
    /// # Errors
    /// When QEMU cannot be started.
    pub fn boot(&self, side: &Side, names: &[String]) -> Result<Boot> {
        let scratch =
            tempfile::tempdir_in(&self.folder).context("cannot make a temporary folder")?;
        let disks = if experiments::need_disks(names) {
            empty_disks(scratch.path())?
        } else {
            Vec::new()
        };
        let network = self
            .network
            .as_ref()
            .filter(|_| experiments::need_network(names));
        let network = network.map(Network::new).transpose()?;
        let is_pair = self.network.is_some() && experiments::need_second(names);
        let wire = is_pair.then(|| Wire::new(scratch.path()));
        let second = wire.as_ref().map(|wire| self.second(side, wire));
        let second = second.transpose()?;
        let has_other = network.is_some();
        let wire = wire.as_ref().map(|wire| (wire, Part::First { has_other }));
        let mut machine = self.machine(side, names, &disks, network.as_ref(), wire)?;
        let file = scratch.path().join("parts");
        if let Some((plugin, built)) = &self.counter {
            machine.extra.extend(plugin.parts_into(built, &file));
        }
        let plugin = self.counter.as_ref().map(|counter| counter.0);
        let sections = (plugin == Some(Plugin::Counter)).then(|| Sections::of(&file));
        let shared_lines = (plugin == Some(Plugin::Sharing)).then(|| SharedLines::of(&file));
        let (guest, keys, screen) = Guest::start(&machine, false)?;
        Ok(Boot {
            _scratch: scratch,
            guest,
            keys,
            lines: read(screen),
            file: side.file().map(Path::to_owned),
            limit: self.limit,
            others: VecDeque::new(),
            pinned: false,
            sections,
            shared_lines,
            _network: network,
            _second: second,
        })
    }

    /// Boots the guest at the other end of a wire.
    fn second(&self, side: &Side, wire: &Wire) -> Result<Second> {
        let names = [second::EXPERIMENT.to_owned()];
        let wire = Some((wire, Part::Second));
        let mut machine = self.machine(side, &names, &[], None, wire)?;
        machine.cpus = 1;
        let (guest, keys, screen) = Guest::start(&machine, false)?;
        Ok(Second {
            _guest: guest,
            _keys: keys,
            _lines: read(screen),
        })
    }
}

/// The guest that serves the one that measures; it ends when this is dropped.
struct Second {
    _guest: Guest,
    _keys: ChildStdin,
    /// Taken from the console, and not looked at.
    _lines: Receiver<String>,
}

/// A kernel at work.
pub struct Boot {
    guest: Guest,
    keys: ChildStdin,
    lines: Receiver<String>,
    /// The kernel's file, for the symbols.
    file: Option<PathBuf>,
    limit: Duration,
    /// The console's last lines of other kinds.
    others: VecDeque<String>,
    /// The CPUs have been given their processors.
    pinned: bool,
    /// The counts of instructions, if there are any.
    sections: Option<Sections>,
    /// The counts of accesses to cache lines, if there are any.
    pub shared_lines: Option<SharedLines>,
    /// The network of this boot.
    _network: Option<Network>,
    /// The other guest of this boot.
    _second: Option<Second>,
    /// The disks of this boot stand in it.
    _scratch: TempDir,
}

impl Boot {
    /// Tells a waiting guest to go on with the next step, or to skip it.
    pub fn answer(&mut self, go: bool) {
        let word = if go { "go" } else { "skip" };
        // A guest that has ended is noticed at the next read of its lines.
        let _ = writeln!(self.keys, "{word}");
    }

    /// Waits for the guest's next line; or says how the boot ended, and with it the machine has.
    ///
    /// # Errors
    /// When QEMU's status cannot be read.
    pub fn next(&mut self, stop: &AtomicBool) -> Result<Result<Line, Course>> {
        let since = Instant::now();
        loop {
            if stop.load(Ordering::SeqCst) {
                return self.end(Course::Stopped);
            }
            match self.lines.recv_timeout(GLANCE) {
                Ok(line) => match lines::parse(&line) {
                    Some(Line::End(0)) => return self.end(Course::Whole),
                    Some(Line::End(status)) => {
                        let why = format!("the bench's program ended with status {status}");
                        return self.end(self.broken(why));
                    }
                    Some(line) => {
                        // All CPUs are there when a program runs.
                        if !std::mem::replace(&mut self.pinned, true) {
                            pin::pin(self.guest.process());
                        }
                        return Ok(Ok(match (line, &mut self.sections) {
                            (Line::Row(row), Some(sections)) => sections.counted(row),
                            (line, _) => line,
                        }));
                    }
                    None => {
                        if !line.trim().is_empty() {
                            self.others.push_back(line.trim_end().to_owned());
                        }
                        let much = self.others.len().saturating_sub(SHOWN);
                        self.others.drain(..much);
                    }
                },
                Err(RecvTimeoutError::Timeout) if since.elapsed() < self.limit => {}
                Err(RecvTimeoutError::Timeout) => {
                    let limit = self.limit.as_secs_f64();
                    let why = format!("the guest reported nothing for {limit} s and was ended");
                    return self.end(self.broken(why));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let ending = self.guest.wait(None)?;
                    // Ctrl-C in a terminal ends QEMU, too.
                    if stop.load(Ordering::SeqCst) {
                        return Ok(Err(Course::Stopped));
                    }
                    let panic = symbols::panic_report(&self.guest.log(), self.file.as_deref());
                    self.others.extend(panic);
                    return Ok(Err(self.broken(reason(&ending))));
                }
            }
        }
    }

    fn end(&mut self, course: Course) -> Result<Result<Line, Course>> {
        self.guest.kill();
        self.guest.wait(None)?;
        Ok(Err(course))
    }

    /// Returns the reason of the failure with the last lines of the console.
    fn broken(&self, mut why: String) -> Course {
        for line in &self.others {
            why.push_str("\n  ");
            why.push_str(line);
        }
        Course::Broken(why)
    }
}

/// New disks in this folder, for the experiments that need some.
fn empty_disks(folder: &Path) -> Result<Vec<Disk>> {
    let disk = |(name, bytes): (&str, u64)| {
        let path = folder.join(name);
        // It is a hole until it is written.
        File::create(&path)
            .and_then(|file| file.set_len(bytes))
            .with_context(|| format!("cannot make {}", path.display()))?;
        Disk::at(&path)
    };
    DISKS.into_iter().map(disk).collect()
}

/// Why a guest that closed its console before its last line ended.
fn reason(ending: &Ending) -> String {
    match ending {
        Ending::Panic => "the kernel panicked".into(),
        Ending::BadStart => "the kernel could not start".into(),
        Ending::Status(status) => format!("the guest ended early, with status {status}"),
        Ending::Restart => "the guest asked for a restart".into(),
        Ending::Timeout | Ending::Killed => "the guest was ended from outside".into(),
        Ending::Lost(why) => why.clone(),
        Ending::NoStatus => "the guest ended, and its log does not say how".into(),
        Ending::Refused => "QEMU cannot start this machine and says why above".into(),
    }
}

/// The lines of a console, as they come.
fn read(screen: impl Read + Send + 'static) -> Receiver<String> {
    let (to, lines) = mpsc::channel();
    // It ends with the console.
    thread::spawn(move || {
        let mut screen = BufReader::new(screen);
        let mut line = Vec::new();
        while screen
            .read_until(b'\n', &mut line)
            .is_ok_and(|count| count != 0)
        {
            if to
                .send(String::from_utf8_lossy(&line).into_owned())
                .is_err()
            {
                return;
            }
            line.clear();
        }
    });
    lines
}
