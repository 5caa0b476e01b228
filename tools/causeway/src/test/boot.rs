//! Guests whose console is captured.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::guest::{Ending, Guest};
use crate::input::Bytes;
use crate::qemu::{self, Accelerator, Boot, Machine};
use crate::root::Root;
use crate::run::Console;
use crate::symbols;

/// What all boots of a test run share.
pub struct Bench {
    /// The kernel with assertions, and the fast one.
    pub checked: PathBuf,
    pub fast: PathBuf,
    /// The folder of the guest programs.
    pub programs: PathBuf,
    /// How the guests run.
    pub accelerator: Accelerator,
    /// Archives and other files of this run.
    folder: TempDir,
}

/// What became of a guest.
pub struct Finished {
    pub ending: Ending,
    pub output: Vec<u8>,
    pub log: Vec<String>,
}

impl Finished {
    /// The output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.output).into_owned()
    }

    /// Why this is not the end that a test wants: the ending, the panic or the end of the log.
    pub fn why(&self, kernel: &Path) -> String {
        let panic = symbols::panic_report(&self.log, Some(kernel));
        let log = &self.log[self.log.len().saturating_sub(6)..];
        let text = self.text();
        let last: Vec<_> = text.lines().rev().take(4).collect();
        let more = if panic.is_empty() {
            log.join("\n    ")
        } else {
            panic.join("\n    ")
        };
        format!("{:?}; last output {last:?}; log:\n    {more}", self.ending)
    }
}

/// One boot.
pub struct Plan<'a> {
    pub root: &'a Path,
    pub cpus: u32,
    pub memory: &'a str,
    pub append: &'a str,
    pub command: &'a [&'a str],
    /// Bytes for the command's standard input.
    pub input: &'a [u8],
    pub timeout: Duration,
    /// Whether the fast kernel is used.
    pub fast: bool,
}

impl<'a> Plan<'a> {
    /// One CPU, 512 MiB, a minute, no input, the checked kernel.
    pub fn new(root: &'a Path, command: &'a [&'a str]) -> Self {
        Self {
            root,
            cpus: 1,
            memory: "512M",
            append: "",
            command,
            input: b"",
            timeout: Duration::from_secs(60),
            fast: false,
        }
    }
}

impl Bench {
    /// Decides how guests run.
    ///
    /// # Errors
    /// When QEMU is not there.
    pub fn new(checked: PathBuf, fast: PathBuf, programs: PathBuf) -> Result<Self> {
        let (accelerator, why) = qemu::choose(Accelerator::Auto, &fast)?;
        println!("guests run with {accelerator:?}: {why}");
        let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
        Ok(Self {
            checked,
            fast,
            programs,
            accelerator,
            folder,
        })
    }

    /// A path for a file of this run.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The archive of busybox's root with the guests' test programs in `/tests`, and `/bin/bench`.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn root(&self) -> Result<PathBuf> {
        let path = self.path("root.cpio");
        if !path.exists() {
            let mut root = Root::busybox()?;
            root.directory("tests", 0o755);
            for program in ["guest-tests", "random-calls"] {
                root.host_file(
                    format!("tests/{program}"),
                    &self.programs.join(program),
                    0o755,
                )?;
            }
            root.host_file("bin/bench", &self.programs.join("bench"), 0o755)?;
            root.write(&path)?;
        }
        Ok(path)
    }

    /// Boots a guest that runs a command, and waits for its end.
    ///
    /// # Errors
    /// When QEMU cannot be started.
    pub fn boot(&self, plan: &Plan) -> Result<Finished, String> {
        let command: Vec<String> = plan.command.iter().map(ToString::to_string).collect();
        let append: Vec<String> = if plan.append.is_empty() {
            vec![]
        } else {
            vec![plan.append.into()]
        };
        self.boot_line(plan, &Console::pipes().command_line(&append, &command))
    }

    /// The same with exactly this command line for the kernel.
    ///
    /// # Errors
    /// When QEMU cannot be started.
    pub fn boot_line(&self, plan: &Plan, command_line: &str) -> Result<Finished, String> {
        let machine = self.machine(plan, command_line);
        finish(&machine, plan.input, plan.timeout, |_| ()).map_err(|error| format!("{error:#}"))
    }

    /// The machine of a plan.
    pub fn machine(&self, plan: &Plan, command_line: &str) -> Machine {
        let kernel = if plan.fast { &self.fast } else { &self.checked };
        Machine {
            boot: Boot::Kernel {
                kernel: kernel.clone(),
                root: Some(plan.root.into()),
                command_line: command_line.into(),
            },
            cpus: plan.cpus,
            memory: plan.memory.into(),
            accelerator: self.accelerator,
            extra: Vec::new(),
        }
    }

    /// An empty folder of this run.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn fresh_folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.path(name);
        if path.exists() {
            fs::remove_dir_all(&path)?;
        }
        fs::create_dir_all(&path)?;
        Ok(path)
    }
}

/// Runs a machine to its end; each complete line of output is shown to `each` as it comes.
///
/// # Errors
/// When QEMU cannot be started.
pub fn finish(
    machine: &Machine,
    input: &[u8],
    timeout: Duration,
    mut each: impl FnMut(&str) + Send + 'static,
) -> Result<Finished> {
    let (mut guest, mut pipe, mut from) = Guest::start(machine, false)?;
    let reader = thread::spawn(move || {
        let (mut all, mut buffer, mut shown) = (Vec::new(), [0; 4096], 0);
        while let Ok(count) = from.read(&mut buffer) {
            if count == 0 {
                break;
            }
            all.extend_from_slice(&buffer[..count]);
            while let Some(length) = all[shown..].iter().position(|&byte| byte == b'\n') {
                each(String::from_utf8_lossy(&all[shown..shown + length]).trim_end());
                shown += length + 1;
            }
        }
        all
    });
    let mut bytes = Vec::new();
    let mut encoder = Bytes::default();
    encoder.pass(input, &mut bytes);
    encoder.end(&mut bytes);
    let up = guest.up();
    let writer = thread::spawn(move || {
        up.wait();
        // A guest that ends without reading everything is fine.
        let _ = pipe.write_all(&bytes);
        pipe
    });
    let ending = guest.wait(Some(Instant::now() + timeout))?;
    let output = reader.join().unwrap_or_default();
    drop(writer.join());
    Ok(Finished {
        ending,
        output,
        log: guest.log(),
    })
}
