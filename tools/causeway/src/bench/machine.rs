//! The machine that all kernels of a bench get, and one boot of it.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::experiments;
use super::lines::{self, Line};
use super::results::Kernel;
use crate::compare::Ground;
use crate::disk::Disk;
use crate::guest::{Ending, Guest};
use crate::linux::{Linux, Mitigations};
use crate::qemu::Machine;
use crate::root::Root;
use crate::run::Console;
use crate::symbols;

/// The guest's first program.
const INIT: &str = "/bench-init";
const INIT_SCRIPT: &str = include_str!("init.sh");

/// The disks of experiments that need some: their names here, and their bytes, nearly all of which are never written.
const DISKS: [(&str, u64); 2] = [("files", 512 << 20), ("swap", 4 << 30)];

/// How often a wait looks whether the user wants an end.
const GLANCE: Duration = Duration::from_millis(50);

/// How many of the console's other lines a failure shows.
const SHOWN: usize = 6;

/// A kernel's file, and what is needed for its command line.
#[derive(Clone, Debug)]
pub enum System {
    /// Causeway, with these options.
    Causeway { file: PathBuf, options: Vec<String> },
    /// Linux, with the mitigations that the user chose.
    Linux(Linux, Mitigations),
}

/// One of the kernels that are booted in turn.
#[derive(Clone, Debug)]
pub struct Side {
    pub system: System,
    /// How the results name it.
    pub kernel: Kernel,
    /// The experiments that it runs of those asked for; all of them if there are none here.
    pub only: &'static [&'static str],
    /// It is booted in no more pairs than these, the first ones.
    pub pairs: u32,
}

impl Side {
    /// The experiments that it runs of these.
    pub fn names(&self, asked: &[String]) -> Vec<String> {
        let wanted = |name: &&String| self.only.is_empty() || self.only.contains(&name.as_str());
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

/// What all boots of a bench share: the machine, the root, the options of the guest's program.
pub struct Stage {
    ground: Ground,
    archive: PathBuf,
    /// Behind the names of the experiments, such as `--full`.
    words: Vec<String>,
    /// How long a guest may report nothing.
    limit: Duration,
    /// Empty ones, for the experiments that need some.
    disks: Vec<Disk>,
    /// The archive and the disks stand in it.
    _folder: TempDir,
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
    ) -> Result<Self> {
        let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
        let archive = folder.path().join("root.cpio");
        root.file(INIT.trim_start_matches('/'), 0o755, INIT_SCRIPT);
        root.write(&archive)?;
        let disk = |(name, bytes): (&str, u64)| {
            let path = folder.path().join(name);
            File::create(&path)
                .and_then(|file| file.set_len(bytes))
                .with_context(|| format!("cannot make {}", path.display()))?;
            Disk::at(&path).map_err(anyhow::Error::msg)
        };
        let disks = DISKS.into_iter().map(disk).collect::<Result<_>>()?;
        Ok(Self {
            disks,
            ground,
            archive,
            words,
            limit,
            _folder: folder,
        })
    }

    /// The machine in which a kernel runs these experiments.
    pub fn machine(&self, side: &Side, names: &[String]) -> Machine {
        let mut command = vec![INIT.to_owned(), names.join(",")];
        command.extend(self.words.iter().cloned());
        let (file, line) = match &side.system {
            System::Causeway { file, options } => {
                command.insert(0, "/bin/sh".into());
                (file, Console::pipes().command_line(options, &command))
            }
            System::Linux(linux, mitigations) => {
                let own = linux.command_line(*mitigations, self.ground.accelerator);
                // Nothing may stand between the guest's lines.
                let line = format!(
                    "{own} loglevel=1 rdinit={INIT} -- {}",
                    command[1..].join(" ")
                );
                (&linux.kernel, line)
            }
        };
        let mut machine = self.ground.machine(file, &self.archive, &line);
        if experiments::need_disks(names) {
            let words = self.disks.iter().enumerate();
            let words = words.flat_map(|(number, disk)| disk.qemu(number));
            machine.extra.extend(words);
        }
        machine
    }

    /// Empties the disks: each boot begins with new ones.
    fn empty_disks(&self) -> Result<()> {
        for (disk, bytes) in self.disks.iter().zip(DISKS.map(|(_, bytes)| bytes)) {
            let name = disk.file().display();
            let file = File::create(disk.file()).with_context(|| format!("cannot empty {name}"))?;
            // It is a hole until it is written.
            file.set_len(bytes)
                .with_context(|| format!("cannot make {name}"))?;
        }
        Ok(())
    }

    /// QEMU's flags that all kernels get.
    pub fn flags(&self, side: &Side) -> String {
        let command = self.machine(side, &[]).command(Path::new("LOG"));
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

    /// Boots a kernel, lets it run these experiments, and gives each of its lines to `hear` as it comes.
    ///
    /// # Errors
    /// When QEMU cannot be started.
    pub fn boot(
        &self,
        side: &Side,
        names: &[String],
        stop: &AtomicBool,
        mut hear: impl FnMut(Line),
    ) -> Result<Course> {
        self.empty_disks()?;
        let (mut guest, _keys, screen) = Guest::start(&self.machine(side, names), false)?;
        let lines = read(screen);
        let mut others = VecDeque::new();
        let mut last = Instant::now();
        loop {
            if stop.load(Ordering::SeqCst) {
                guest.kill();
                guest.wait(None)?;
                return Ok(Course::Stopped);
            }
            match lines.recv_timeout(GLANCE) {
                Ok(line) => match lines::parse(&line) {
                    Some(Line::End(0)) => {
                        guest.kill();
                        guest.wait(None)?;
                        return Ok(Course::Whole);
                    }
                    Some(Line::End(status)) => {
                        guest.kill();
                        guest.wait(None)?;
                        let why = format!("the bench's program ended with status {status}");
                        return Ok(Course::Broken(with(why, &others)));
                    }
                    Some(line) => {
                        last = Instant::now();
                        hear(line);
                    }
                    None => {
                        if !line.trim().is_empty() {
                            others.push_back(line.trim_end().to_owned());
                        }
                        others.drain(..others.len().saturating_sub(SHOWN));
                    }
                },
                Err(RecvTimeoutError::Timeout) if last.elapsed() < self.limit => {}
                Err(RecvTimeoutError::Timeout) => {
                    guest.kill();
                    guest.wait(None)?;
                    let why = format!(
                        "the guest reported nothing for {} s and was ended",
                        self.limit.as_secs_f64()
                    );
                    return Ok(Course::Broken(with(why, &others)));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let ending = guest.wait(None)?;
                    // Ctrl-C in a terminal ends QEMU, too.
                    if stop.load(Ordering::SeqCst) {
                        return Ok(Course::Stopped);
                    }
                    let panic = symbols::panic_report(&guest.log(), side.file());
                    others.extend(panic);
                    return Ok(Course::Broken(with(reason(&ending), &others)));
                }
            }
        }
    }
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
    }
}

/// A reason, and what the console showed last.
fn with(mut why: String, others: &VecDeque<String>) -> String {
    for line in others {
        why.push_str("\n  ");
        why.push_str(line);
    }
    why
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
