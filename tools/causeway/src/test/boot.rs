//! Guests whose console is captured: [`Bench::guest`] plans a boot, [`Plan::run`] runs it to its
//! end, and [`Finished`] judges what came of it.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use crate::console::Console;
use crate::disk::Disk;
use crate::guest::{Ending, Guest};
use crate::input::Bytes;
use crate::net;
use crate::qemu::{self, Accelerator, Boot, Iommu, Machine};
use crate::root::Root;
use crate::screen::{Screen, Watch};
use crate::symbols;

/// State that all boots of a test run share.
#[derive(Clone)]
pub struct Bench {
    /// The kernel with assertions, and the fast one.
    pub checked: PathBuf,
    pub fast: PathBuf,
    /// The folder of the guest programs.
    pub programs: PathBuf,
    /// How the guests run.
    pub accelerator: Accelerator,
    /// Whether the guests' devices are behind an IOMMU, unless a test says otherwise.
    pub iommu: Option<Iommu>,
    /// Archives and other files of this run.
    folder: Arc<TempDir>,
}

impl Bench {
    /// Decides how guests run.
    ///
    /// # Errors
    /// When QEMU is missing.
    pub fn new(checked: PathBuf, fast: PathBuf, programs: PathBuf) -> Result<Self> {
        let (accelerator, why) = qemu::choose(Accelerator::Auto, &fast)?;
        println!("guests run with {accelerator:?}: {why}");
        Self::with(checked, fast, programs, accelerator)
    }

    /// Guests that run by this accelerator.
    ///
    /// # Errors
    /// When there is no place for temporary files.
    pub fn with(
        checked: PathBuf,
        fast: PathBuf,
        programs: PathBuf,
        accelerator: Accelerator,
    ) -> Result<Self> {
        let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
        let folder = Arc::new(folder);
        Ok(Self {
            checked,
            fast,
            programs,
            accelerator,
            iommu: None,
            folder,
        })
    }

    /// The same with the guests' devices behind an IOMMU, or none.
    pub fn behind(&self, iommu: Option<Iommu>) -> Self {
        Self {
            iommu,
            ..self.clone()
        }
    }

    /// The same with files of its own.
    ///
    /// # Errors
    /// When there is no place for temporary files.
    pub fn apart(&self) -> Result<Self> {
        let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
        let folder = Arc::new(folder);
        Ok(Self {
            folder,
            ..self.clone()
        })
    }

    /// A path for a file of this run.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A file of this run with these bytes.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn file(&self, name: &str, bytes: &[u8]) -> Result<PathBuf> {
        let path = self.path(name);
        fs::write(&path, bytes)?;
        Ok(path)
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

    /// The archive of busybox's root with the guests' test programs in `/tests`, and `/bin/bench`.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn root(&self) -> Result<PathBuf> {
        let path = self.path("root.cpio");
        if !path.exists() {
            let mut root = Root::busybox()?;
            root.directory("tests", 0o755);
            for (place, name) in [
                ("tests", "guest-tests"),
                ("tests", "random-calls"),
                ("tests", "attacks"),
                ("tests", "exchange"),
                ("tests", "carry"),
                ("tests", "netserver"),
                ("tests", "fbuf-echo"),
                ("tests", "fbuf-fan-out"),
                ("tests", "fbuf-pipeline"),
                ("bin", "bench"),
            ] {
                root.host_file(Path::new(place).join(name), &self.program(name), 0o755)?;
            }
            root.write(&path).context("the guests' root")?;
        }
        Ok(path)
    }

    /// The file on the host of a test program.
    pub fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    /// Plans a boot that runs a command: by default on the checked kernel with [`Bench::root`], one
    /// CPU, 512 MiB, no input, and a minute of time.
    pub fn guest(&self, command: &[&str]) -> Plan<'_> {
        Plan {
            bench: self,
            root: RootPlace::Default,
            cpus: 1,
            memory: "512M".into(),
            options: Vec::new(),
            command: command.iter().map(ToString::to_string).collect(),
            line: None,
            disks: Vec::new(),
            words: Vec::new(),
            input: Vec::new(),
            timeout: Duration::from_secs(60),
            is_fast: false,
            entropy: true,
            iommu: self.iommu,
        }
    }

    /// Plans a boot that runs a line of the shell.
    pub fn shell(&self, line: &str) -> Plan<'_> {
        self.guest(&["/bin/sh", "-c", line])
    }

    /// Plans a boot that runs a line of bash.
    pub fn bash(&self, line: &str) -> Plan<'_> {
        self.guest(&["/bin/bash", "-c", line])
    }
}

/// The source of a guest's root.
#[derive(Clone)]
enum RootPlace {
    /// The archive of [`Bench::root`].
    Default,
    Archive(PathBuf),
    /// The first disk.
    Disk,
}

/// A boot to be made.
#[derive(Clone)]
pub struct Plan<'a> {
    bench: &'a Bench,
    root: RootPlace,
    cpus: u32,
    memory: String,
    options: Vec<String>,
    command: Vec<String>,
    line: Option<String>,
    disks: Vec<Disk>,
    words: Vec<String>,
    input: Vec<u8>,
    timeout: Duration,
    is_fast: bool,
    entropy: bool,
    iommu: Option<Iommu>,
}

/// A processor that needs every mitigation. The emulator only says that it has the registers for
/// them, and ignores what is written there.
pub const FAULTY_CPU: &str = "max,-erms,-fsrm,vendor=GenuineIntel,family=6,model=94,\
                              x-force-features=on,+spec-ctrl,+stibp,+ssbd,+md-clear";

impl Plan<'_> {
    /// The processor has no generator of random numbers, and there is no device with any.
    pub fn without_entropy(mut self) -> Self {
        self.entropy = false;
        self.words(["-cpu", "max,-rdrand,-rdseed"])
    }

    /// The processor has no generator of random numbers; the device is the only source.
    pub fn without_rdrand(self) -> Self {
        self.words(["-cpu", "max,-rdrand,-rdseed"])
    }

    /// The root is this archive.
    pub fn root(mut self, archive: &Path) -> Self {
        self.root = RootPlace::Archive(archive.into());
        self
    }

    /// The root is this disk, the first one.
    pub fn root_disk(mut self, disk: Disk) -> Self {
        let mode = if disk.is_writable() { "rw" } else { "ro" };
        self.root = RootPlace::Disk;
        self.disks.insert(0, disk);
        self.option(&format!("root=/dev/vda {mode}"))
    }

    pub fn cpus(mut self, cpus: u32) -> Self {
        self.cpus = cpus;
        self
    }

    /// Memory in QEMU's words, as `64M`.
    pub fn memory(mut self, memory: &str) -> Self {
        self.memory = memory.into();
        self
    }

    /// An option for the kernel's command line.
    pub fn option(mut self, option: &str) -> Self {
        self.options.push(option.into());
        self
    }

    /// Exactly this command line for the kernel.
    pub fn line(mut self, line: &str) -> Self {
        self.line = Some(line.into());
        self
    }

    /// A further disk.
    pub fn disk(mut self, disk: Disk) -> Self {
        self.disks.push(disk);
        self
    }

    /// Further words for QEMU.
    pub fn words<T: Into<String>>(mut self, words: impl IntoIterator<Item = T>) -> Self {
        self.words.extend(words.into_iter().map(Into::into));
        self
    }

    /// A card, as the options of `causeway run` ask for one.
    ///
    /// # Errors
    /// When they contradict each other.
    pub fn net(mut self, options: &net::Options) -> Result<Self> {
        self.options.extend(options.kernel()?);
        let words = options.qemu(self.cpus)?;
        Ok(self.words(words))
    }

    /// A disk in the first place on which some accesses to one sector fail by `EIO`. `events` are
    /// QEMU's `blkdebug` events, with further conditions after a comma.
    pub fn bad_disk(self, file: &Path, sector: u32, events: &[&str]) -> Self {
        let mut drive = format!(
            "if=none,id=bad,format=raw,rerror=report,werror=report,\
             file.driver=blkdebug,file.image.filename={}",
            file.display()
        );
        for (number, event) in events.iter().enumerate() {
            let inject = format!("file.inject-error.{number}");
            drive += &format!(",{inject}.event={event},{inject}.errno=5,{inject}.sector={sector}");
        }
        self.words(["-drive", &drive, "-device", "virtio-blk-pci,drive=bad"])
    }

    /// Bytes for the command's standard input.
    pub fn input(mut self, input: &[u8]) -> Self {
        self.input = input.into();
        self
    }

    /// The time after which the guest is killed, in seconds.
    pub fn timeout(mut self, seconds: u64) -> Self {
        self.timeout = Duration::from_secs(seconds);
        self
    }

    /// Uses the fast kernel.
    pub fn fast(self) -> Self {
        self.fast_if(true)
    }

    /// Uses the fast kernel or the checked one.
    pub fn fast_if(mut self, is_fast: bool) -> Self {
        self.is_fast = is_fast;
        self
    }

    fn kernel(&self) -> &Path {
        match self.is_fast {
            true => &self.bench.fast,
            false => &self.bench.checked,
        }
    }

    /// The machine.
    ///
    /// # Errors
    /// When the default root cannot be made.
    pub fn machine(&self) -> Result<Machine> {
        self.machine_on(Console::pipes())
    }

    /// The machine with this console.
    ///
    /// # Errors
    /// When the default root cannot be made.
    pub fn machine_on(&self, console: Console) -> Result<Machine> {
        let line = self.line.clone();
        let disks = self.disks.iter().enumerate();
        let boot = Boot::Kernel {
            kernel: self.kernel().into(),
            root: match &self.root {
                RootPlace::Default => Some(self.bench.root()?),
                RootPlace::Archive(archive) => Some(archive.clone()),
                RootPlace::Disk => None,
            },
            command_line: line
                .unwrap_or_else(|| console.command_line(&self.options, &self.command)),
        };
        Ok(Machine {
            boot,
            cpus: self.cpus,
            memory: self.memory.clone(),
            accelerator: self.bench.accelerator,
            entropy: self.entropy,
            iommu: self.iommu,
            extra: disks
                .flat_map(|(number, disk)| disk.qemu(number))
                .chain(self.words.iter().cloned())
                .collect(),
        })
    }

    /// Boots the guest and waits for its end.
    ///
    /// # Errors
    /// When QEMU cannot be started.
    pub fn run(&self) -> Result<Finished> {
        self.run_with(|_| ())
    }

    /// Boots the guest, shows each line of its output as it comes, and waits for its end.
    ///
    /// # Errors
    /// When QEMU cannot be started.
    pub fn run_shown(&self) -> Result<Finished> {
        self.run_with(|line| println!("  {line}"))
    }

    /// Boots the guest and waits for its end; calls `each` with each complete line of output.
    ///
    /// # Errors
    /// When QEMU cannot be started.
    pub fn run_with(&self, each: impl FnMut(&str) + Send + 'static) -> Result<Finished> {
        let machine = self.machine()?;
        finish(&machine, self.kernel(), &self.input, self.timeout, each)
    }

    /// The output of a guest that ends with status 0.
    ///
    /// # Errors
    /// When it ends otherwise.
    pub fn output(&self) -> Result<String> {
        let finished = self.run()?;
        finished.ended(0)?;
        Ok(finished.text())
    }

    /// Runs `guest-tests`, showing its lines.
    ///
    /// # Errors
    /// When a test fails or is skipped.
    pub fn guest_tests(&self) -> Result<()> {
        let finished = self.run_shown()?;
        let (text, passed) = (finished.text(), finished.ending == Ending::Status(0));
        ensure!(
            passed && !text.contains("skip"),
            "{text}; {}",
            finished.why()
        );
        Ok(())
    }

    /// Runs the machine until it has printed `last`, and kills it while it goes on.
    ///
    /// # Errors
    /// When it ends before, or prints something else until the timeout.
    pub fn killed_after(&self, last: &str) -> Result<()> {
        // Time for some of the changes that follow.
        self.stopped_after(last, Duration::from_millis(300))
            .map(drop)
    }

    /// What the machine prints before `last`; it is killed then.
    ///
    /// # Errors
    /// As [`killed_after`](Plan::killed_after).
    pub fn said_before(&self, last: &str) -> Result<String> {
        self.stopped_after(last, Duration::ZERO)
    }

    fn stopped_after(&self, last: &str, more: Duration) -> Result<String> {
        let (mut guest, pipe, from) = Guest::start(&self.machine()?, false)?;
        let watch = Watch::new(guest.killer(), self.timeout);
        let mut screen = Screen::new(from);
        let said = screen.read_until(last);
        if said.is_ok() {
            thread::sleep(more);
        }
        guest.kill();
        drop((pipe, watch));
        guest.wait(None)?;
        said.with_context(|| guest.log().join("\n    "))
    }
}

/// Gives QEMU's monitor at this socket a command, and waits until it is done.
///
/// # Errors
/// When nothing listens there.
pub fn tell_monitor(socket: &Path, command: &str) -> Result<()> {
    const PROMPT: &[u8] = b"(qemu) ";
    let mut stream = UnixStream::connect(socket)?;
    let mut said = Vec::new();
    let mut wait = |stream: &mut UnixStream| -> Result<()> {
        said.clear();
        while !said.ends_with(PROMPT) {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            said.push(byte[0]);
        }
        Ok(())
    };
    wait(&mut stream)?;
    writeln!(stream, "{command}")?;
    wait(&mut stream)
}

/// A guest that has ended.
pub struct Finished {
    pub ending: Ending,
    pub output: Vec<u8>,
    pub log: Vec<String>,
    /// The kernel that it ran.
    kernel: PathBuf,
}

impl Finished {
    /// The output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.output).into_owned()
    }

    /// Why this is not the end that a test wants: the ending, the panic or the end of the log.
    pub fn why(&self) -> String {
        let panic = symbols::panic_report(&self.log, Some(&self.kernel));
        let log = &self.log[self.log.len().saturating_sub(6)..];
        let text = self.text();
        let last: Vec<_> = text.lines().rev().take(4).collect();
        let more = if panic.is_empty() { log } else { &panic };
        format!(
            "{:?}; last output {last:?}; log:\n    {}",
            self.ending,
            more.join("\n    ")
        )
    }

    /// Checks the status.
    ///
    /// # Errors
    /// When the guest ended otherwise.
    pub fn ended(&self, status: u8) -> Result<()> {
        if self.ending != Ending::Status(status) {
            bail!("status {status} expected; {}", self.why());
        }
        Ok(())
    }

    /// Checks the output.
    ///
    /// # Errors
    /// When it is another one.
    pub fn printed(&self, wanted: &str) -> Result<()> {
        let text = self.text();
        ensure!(text == wanted, "{text:?}; {}", self.why());
        Ok(())
    }

    /// Checks that the output contains a text.
    ///
    /// # Errors
    /// When it does not.
    pub fn says(&self, part: &str) -> Result<()> {
        ensure!(self.text().contains(part), "{}", self.why());
        Ok(())
    }

    /// Checks the status, and the output byte by byte.
    ///
    /// # Errors
    /// When one of them is another one; the message names the first byte that differs.
    pub fn is(&self, status: u8, output: &[u8]) -> Result<()> {
        self.ended(status)?;
        let same = self.output.iter().zip(output).take_while(|(a, b)| a == b);
        let at = same.count();
        let part = |bytes: &[u8]| {
            let end = bytes.len().min(at + 60);
            String::from_utf8_lossy(&bytes[at.min(end)..end]).into_owned()
        };
        ensure!(
            self.output == output,
            "the output ({} bytes, {} expected) differs at byte {at}: {:?} in place of {:?}",
            self.output.len(),
            output.len(),
            part(&self.output),
            part(output)
        );
        Ok(())
    }
}

/// Runs a machine to its end; calls `each` with each complete line of output.
///
/// # Errors
/// When QEMU cannot be started.
pub fn finish(
    machine: &Machine,
    kernel: &Path,
    input: &[u8],
    timeout: Duration,
    mut each: impl FnMut(&str) + Send + 'static,
) -> Result<Finished> {
    let (mut guest, mut pipe, mut from) = Guest::start(machine, false)?;
    let reader = thread::spawn(move || {
        let (mut all, mut buffer, mut shown) = (Vec::new(), [0; 4096], 0);
        while let Ok(count @ 1..) = from.read(&mut buffer) {
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
        kernel: kernel.into(),
    })
}

/// This program as a user calls it, its output captured.
pub fn causeway(words: &[&str]) -> Command {
    let program = std::env::current_exe().unwrap_or_else(|_| "causeway".into());
    let mut command = Command::new(program);
    command
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// The status, the output and the errors of a program, for a message.
pub fn shown(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    format!("{}\n{text}\n{errors}", output.status)
}

/// The last bytes of `stdout` or `stderr` as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
