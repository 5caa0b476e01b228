//! The virtual machine: QEMU's command line, and whether KVM can be used.

use std::fs;
use std::io::Read;
use std::path::{self, Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::launch;
use session::size;

/// The emulator's program.
pub const QEMU: &str = "qemu-system-x86_64";

/// The statuses with which QEMU ends when the kernel writes to the debug-exit port.
pub mod status {
    /// The first program ended; the log has its status.
    pub const DONE: i32 = 33;
    /// The kernel panicked.
    pub const PANIC: i32 = 35;
    /// The kernel could not start.
    pub const BAD_START: i32 = 37;
    /// A program asked for a restart.
    pub const RESTART: i32 = 39;
}

/// The options that make runs repeat: an instruction takes a nanosecond of the guest's time, an
/// idle CPU takes none of the host's, and the date and the CPU's random numbers are always the
/// same.
const COUNTED: [&str; 6] = [
    "-icount",
    "shift=0,sleep=off",
    "-rtc",
    "base=2026-01-01T00:00:00,clock=vm",
    "-seed",
    "1",
];

/// The options that count instructions but let an idle CPU wait for the world outside.
const BUSY: [&str; 4] = ["-icount", "shift=0,sleep=on", "-seed", "1"];

/// How the guest's instructions are run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Accelerator {
    /// KVM where it really works, else emulation.
    Auto,
    /// The host's CPU.
    Kvm,
    /// Emulation.
    Tcg,
    /// Emulation of one CPU whose clock is the count of its instructions, so that every run is the
    /// same.
    Icount,
    /// As `icount`, but an idle CPU waits in real time, so that others can answer the guest.
    Busy,
}

impl Accelerator {
    /// Whether the guest's clock counts instructions while its CPU is busy.
    pub fn counts(self) -> bool {
        matches!(self, Self::Icount | Self::Busy)
    }
}

/// The unit that translates the addresses of devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Iommu {
    /// As QEMU makes it.
    On,
    /// One that keeps absent translations, too, with four levels of tables.
    Caching,
    /// As QEMU makes it, but virtio devices go round it.
    Around,
}

impl Iommu {
    fn device(self) -> &'static str {
        match self {
            Iommu::On | Iommu::Around => "intel-iommu,intremap=on",
            Iommu::Caching => "intel-iommu,intremap=on,caching-mode=on,aw-bits=48",
        }
    }
}

/// Makes virtio devices use the IOMMU, which they go round unless told.
fn behind_iommu(words: &mut [String]) {
    let mut is_device = false;
    for word in words {
        let is_virtio = word.starts_with("virtio-") && word.contains("-pci");
        if is_device && is_virtio {
            if !word.contains(",disable-legacy=on") {
                word.push_str(",disable-legacy=on");
            }
            word.push_str(",iommu_platform=on");
        }
        is_device = word == "-device";
    }
}

/// The source that the machine boots from.
#[derive(Clone, Debug)]
pub enum Boot {
    /// This kernel with this archive and command line.
    Kernel {
        kernel: PathBuf,
        root: Option<PathBuf>,
        command_line: String,
    },
    /// A bootable CD image.
    Image(PathBuf),
}

/// A machine to start.
#[derive(Clone, Debug)]
pub struct Machine {
    pub boot: Boot,
    /// CPUs, 1 to 64.
    pub cpus: u32,
    /// Memory, in QEMU's words: `512M`.
    pub memory: String,
    /// Not `Auto`, which must be decided by [`choose`] before. `Icount` and `Busy` have one CPU.
    pub accelerator: Accelerator,
    /// Whether the guest gets the host's random numbers; never with `Icount`, whose runs repeat.
    pub entropy: bool,
    /// Whether the devices are behind an IOMMU.
    pub iommu: Option<Iommu>,
    /// More words for QEMU's command line.
    pub extra: Vec<String>,
}

/// Everything that QEMU emulates, but for the promise that byte-wise string instructions are fast:
/// emulated they take a turn for each byte, and a kernel or C library that trusts the promise
/// (Linux does) would lose every comparison.
const EMULATED_CPU: &str = "max,-erms,-fsrm";

impl Machine {
    /// QEMU's command line for this machine: the first serial port on QEMU's standard input and
    /// output, the second one connected to the socket `log`. QEMU works in the folder `/`, so that
    /// it keeps no file system of its user's busy; a path in `extra` must be absolute.
    pub fn command(&self, log: &Path) -> Command {
        let mut qemu = launch::command(QEMU);
        qemu.current_dir("/");
        let cpu = match self.accelerator {
            Accelerator::Kvm => "max",
            _ => EMULATED_CPU,
        };
        // Interrupts are remapped only where QEMU has the I/O APIC.
        let machine = match (self.accelerator, self.iommu) {
            (Accelerator::Kvm, Some(_)) => "q35,kernel-irqchip=split",
            _ => "q35",
        };
        qemu.args(["-machine", machine, "-cpu", cpu, "-m", &self.memory]);
        qemu.args(["-smp", &self.cpus.to_string()]);
        qemu.args(match self.accelerator {
            Accelerator::Kvm => ["-accel", "kvm"],
            Accelerator::Icount | Accelerator::Busy => ["-accel", "tcg,thread=single"],
            _ => ["-accel", "tcg,thread=multi"],
        });
        match self.accelerator {
            Accelerator::Icount => drop(qemu.args(COUNTED)),
            Accelerator::Busy => drop(qemu.args(BUSY)),
            _ => {}
        }
        qemu.args([
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-vga",
            "none",
        ]);
        qemu.arg("-no-reboot");
        qemu.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=0x04"]);
        let mut devices = Vec::new();
        if self.entropy && !self.accelerator.counts() {
            devices.extend(["-device", "virtio-rng-pci"].map(String::from));
        }
        let mut extra = self.extra.clone();
        if let Some(iommu) = self.iommu {
            // Before all devices that are behind it.
            qemu.args(["-device", iommu.device()]);
            if iommu != Iommu::Around {
                behind_iommu(&mut devices);
                behind_iommu(&mut extra);
            }
        }
        qemu.args(devices);
        qemu.args([
            "-chardev",
            "stdio,id=console,signal=off",
            "-serial",
            "chardev:console",
        ]);
        qemu.arg("-chardev")
            .arg(format!("socket,id=log,path={}", value(log)));
        qemu.args(["-serial", "chardev:log"]);
        match &self.boot {
            Boot::Kernel {
                kernel,
                root,
                command_line,
            } => {
                qemu.arg("-kernel")
                    .arg(absolute(kernel))
                    .args(["-append", command_line]);
                // The BIOS leaves the disks alone, which nothing boots from: with three of them it
                // would keep memory for its drivers that QEMU has put the root into.
                qemu.args(["-boot", "strict=on"]);
                if let Some(root) = root {
                    qemu.arg("-initrd").arg(absolute(root));
                }
            }
            Boot::Image(image) => {
                qemu.arg("-cdrom").arg(absolute(image));
                qemu.args(["-boot", "d"]);
            }
        }
        qemu.args(extra);
        qemu
    }
}

/// A path that means the same from any folder. Where there is no current one, QEMU says that the
/// file is missing.
fn absolute(path: &Path) -> PathBuf {
    path::absolute(path).unwrap_or_else(|_| path.into())
}

/// The word of the kernel's command line with random bytes of the host's, for the machine's first
/// decisions. No program can read it.
///
/// # Errors
/// When the host gives none.
pub fn seed() -> Result<String> {
    let mut bytes = [0; 32];
    let source = fs::File::open("/dev/urandom").context("cannot open /dev/urandom")?;
    (&source).read_exact(&mut bytes)?;
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("seed={digits}"))
}

const MEBIBYTE: u64 = 1 << 20;

/// Enough memory for a guest with a root whose archive has this many bytes: 512 MiB, and for a
/// large root as much more as its files take.
pub fn memory_for(archive: u64) -> String {
    let archive = archive / MEBIBYTE;
    let more = if archive < 64 { 0 } else { archive };
    format!("{}M", (512 + more).next_multiple_of(256))
}

/// The memory with which a kernel starts and runs a shell, beside its archive, in bytes. Measured
/// with the release kernel: with 16 CPUs and an archive of 2 MiB it needs 10 MiB in all, and with
/// archives of 24 and 64 MiB it needs 8 MiB more than these.
const LEAST: u64 = 12 << 20;
/// The memory with which GRUB starts a kernel from a CD: it hangs with 48 MiB.
pub const LEAST_OF_IMAGE: u64 = 64 << 20;

/// Refuses memory with which the kernel cannot start beside the root's archive.
///
/// # Errors
/// A sentence that names the least that works.
pub fn check_memory(memory: &str, archive: u64) -> Result<()> {
    let hint = match archive < 64 * MEBIBYTE {
        true => String::new(),
        false => format!(
            ", as the root takes {} MiB of it; without --mem it has {}",
            archive.div_ceil(MEBIBYTE),
            memory_for(archive)
        ),
    };
    at_least(memory, LEAST + archive, &hint)
}

/// Refuses memory of fewer bytes than `least`.
///
/// # Errors
/// A sentence that names the least and ends with `hint`.
pub fn at_least(memory: &str, least: u64, hint: &str) -> Result<()> {
    if kibibytes(memory)? * 1024 < least {
        bail!(
            "a guest cannot start with {memory} of memory: the least is {}M{hint}",
            least.div_ceil(MEBIBYTE)
        );
    }
    Ok(())
}

/// The KiB of a size in QEMU's words.
///
/// # Errors
/// When it is no number of M or G.
pub fn kibibytes(size: &str) -> Result<u64> {
    let has_unit = !size.ends_with(|c: char| c.is_ascii_digit());
    let text = if has_unit {
        size.into()
    } else {
        format!("{size}M")
    };
    let is_fine = text.ends_with(['K', 'k']);
    match size::bytes(&text).filter(|_| !is_fine) {
        None => bail!("the memory {size:?} is not a number of M or G"),
        // QEMU would take none for an amount of its own.
        Some(0) => bail!("the memory {size:?} is none"),
        Some(u64::MAX) => bail!("the memory {size:?} is too much"),
        Some(bytes) => Ok(bytes >> 10),
    }
}

/// A path as the value of one of QEMU's options: a comma ends a value unless it is doubled.
pub fn value(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// Decides between KVM and emulation, and says why.
///
/// KVM is used where the CPU has virtualisation *and* this kernel, started without a root, gets as
/// far as refusing to run: the mere presence of `/dev/kvm` does not mean that a guest can run.
///
/// # Errors
/// When QEMU is not there, or KVM was asked for and does not work.
pub fn choose(wanted: Accelerator, kernel: &Path) -> Result<(Accelerator, &'static str)> {
    match wanted {
        Accelerator::Tcg => Ok((Accelerator::Tcg, "as asked")),
        Accelerator::Kvm => Ok((Accelerator::Kvm, "as asked")),
        Accelerator::Icount | Accelerator::Busy => Ok((wanted, "as asked")),
        Accelerator::Auto => {
            let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
            if !cpus
                .split_ascii_whitespace()
                .any(|flag| flag == "vmx" || flag == "svm")
            {
                Ok((Accelerator::Tcg, "this CPU offers no virtualisation"))
            } else if fs::OpenOptions::new()
                .read(true)
                .write(true)
                .open("/dev/kvm")
                .is_err()
            {
                Ok((Accelerator::Tcg, "/dev/kvm cannot be opened"))
            } else if probe(kernel)? {
                Ok((Accelerator::Kvm, "a probe boot succeeded"))
            } else {
                Ok((Accelerator::Tcg, "a probe boot with KVM failed"))
            }
        }
    }
}

/// Whether a kernel without a root refuses to start under KVM, as it should.
fn probe(kernel: &Path) -> Result<bool> {
    let mut qemu = launch::command(QEMU);
    qemu.args([
        "-machine",
        "q35",
        "-cpu",
        "max",
        "-m",
        "128M",
        "-accel",
        "kvm",
        "-nodefaults",
    ]);
    qemu.args([
        "-no-user-config",
        "-display",
        "none",
        "-vga",
        "none",
        "-no-reboot",
    ]);
    qemu.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=0x04"])
        .arg("-kernel")
        .arg(kernel);
    qemu.stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = qemu.spawn().with_context(missing)?;
    let deadline = Instant::now() + Duration::from_secs(5);
    while Instant::now() < deadline {
        if let Some(ended) = child.try_wait()? {
            return Ok(ended.code() == Some(status::BAD_START));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill()?;
    child.wait()?;
    Ok(false)
}

/// The error message when QEMU cannot be started.
pub fn missing() -> String {
    format!("cannot run {QEMU}: install Debian's package qemu-system-x86 (`make setup` does)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtio_devices_are_put_behind_the_iommu() {
        let machine = |iommu| Machine {
            boot: Boot::Image("/cd".into()),
            cpus: 1,
            memory: "64M".into(),
            accelerator: Accelerator::Tcg,
            entropy: true,
            iommu,
            extra: [
                "-device",
                "virtio-blk-pci,disable-legacy=on,drive=a",
                "-device",
                "edu",
                "-drive",
                "file=virtio-x-pci",
            ]
            .map(String::from)
            .to_vec(),
        };
        let words = |iommu| -> Vec<String> {
            let command = machine(iommu).command(Path::new("/log"));
            let words = command.get_args();
            words.map(|it| it.to_string_lossy().into_owned()).collect()
        };
        let with = words(Some(Iommu::Caching));
        let at = |word: &str| with.iter().position(|it| it == word);
        let unit = at("intel-iommu,intremap=on,caching-mode=on,aw-bits=48");
        let disk = at("virtio-blk-pci,disable-legacy=on,drive=a,iommu_platform=on");
        assert!(
            unit.is_some() && unit < at("edu") && unit < disk,
            "{with:?}"
        );
        assert!(at("virtio-rng-pci,disable-legacy=on,iommu_platform=on") > unit);
        assert!(at("file=virtio-x-pci").is_some());
        let without = words(None).concat();
        assert!(!without.contains("iommu"), "{without}");
    }

    #[test]
    fn memory_grows_with_the_root() {
        assert_eq!(memory_for(3 << 20), "512M");
        assert_eq!(memory_for(200 << 20), "768M");
        assert_eq!(memory_for(600 << 20), "1280M");
        assert!(check_memory("64M", 3 << 20).is_ok());
        assert!(check_memory("1G", 600 << 20).is_ok());
        let error = check_memory("512M", 600 << 20).unwrap_err().to_string();
        assert!(error.contains("--mem"), "{error}");
        assert!(check_memory("16M", 2 << 20).is_ok());
        let error = format!("{:#}", check_memory("1M", 2 << 20).unwrap_err());
        assert!(error.contains("the least is 14M"), "{error}");
        for wrong in [
            "512K",
            "0M",
            "0",
            "-1M",
            "",
            "M",
            "99999999999999999999G",
            "99999999999999G",
        ] {
            assert!(check_memory(wrong, 0).is_err(), "{wrong}");
        }
        assert_eq!(kibibytes("2").unwrap(), 2 << 10);
        assert_eq!(kibibytes("2g").unwrap(), 2 << 20);
    }
}
