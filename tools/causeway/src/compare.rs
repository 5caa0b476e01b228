//! `causeway compare-linux`: the start of this kernel and of Linux, measured in turn.
//!
//! Both get the same archive with busybox and the same machine. Time runs from QEMU's start to the
//! shell's prompt on the console, memory is what is not free at that prompt.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::guest::Guest;
use crate::options;
use crate::project::{self, Profile};
use crate::qemu::{self, Boot, Machine};
use crate::root::Root;
use crate::run::Console;

/// The shell's prompt, by `/etc/profile` of the default root.
const PROMPT: &str = "causeway:~# ";

/// How long a start may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// The first program on Linux: what Causeway's kernel does itself before it starts the shell.
const INIT: &str = "#!/bin/sh
mount -t proc proc /proc
mount -t devtmpfs dev /dev
export HOME=/root USER=root TERM=linux
cd /root
exec setsid -c /bin/sh -l
";

/// One start.
struct Start {
    /// From QEMU's start to the prompt.
    time: Duration,
    /// Of the guest's memory, in KiB.
    used: u64,
}

/// Measures and prints a table.
///
/// # Errors
/// When a kernel is missing or does not get to its prompt.
pub fn compare(options: &options::Compare) -> Result<()> {
    let kernel = project::kernel(Profile::Release)?;
    let linux = match &options.linux {
        Some(file) => file.clone(),
        None => fetch_linux()?,
    };
    let (accelerator, why) = qemu::choose(qemu::Accelerator::Auto, &kernel)?;
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let archive = folder.path().join("root.cpio");
    let mut root = Root::busybox()?;
    root.file("init", 0o755, INIT);
    root.write(&archive)?;
    let machine = |kernel: &Path, command_line: String| Machine {
        boot: Boot::Kernel {
            kernel: kernel.into(),
            root: Some(archive.clone()),
            command_line,
        },
        cpus: options.smp,
        memory: "512M".into(),
        accelerator,
        extra: Vec::new(),
    };
    let ours = machine(&kernel, Console::person().command_line(&[], &[]));
    let theirs = machine(&linux, "console=ttyS0 quiet".into());
    println!(
        "{accelerator:?} ({why}), {} CPUs, 512 MiB; {}",
        options.smp,
        version(qemu::QEMU)
    );
    println!(
        "Linux: {}\n",
        linux.file_name().unwrap_or_default().to_string_lossy()
    );
    println!("| pair | Causeway, s | Linux, s | ratio | Causeway, MiB | Linux, MiB |");
    println!("|---|---|---|---|---|---|");
    let mut ratios = Vec::new();
    for pair in 1..=options.pairs {
        let (a, b) = (start(&ours)?, start(&theirs)?);
        let ratio = a.time.as_secs_f64() / b.time.as_secs_f64();
        println!(
            "| {pair} | {:.2} | {:.2} | {ratio:.2} | {:.1} | {:.1} |",
            a.time.as_secs_f64(),
            b.time.as_secs_f64(),
            a.used as f64 / 1024.0,
            b.used as f64 / 1024.0
        );
        ratios.push(ratio);
    }
    ratios.sort_by(f64::total_cmp);
    println!(
        "\nmedian ratio {:.2}, from {:.2} to {:.2}",
        ratios[ratios.len() / 2],
        ratios[0],
        ratios[ratios.len() - 1]
    );
    let size = stripped(&kernel, &folder.path().join("stripped"))?;
    println!(
        "kernel, stripped: {:.2} MiB",
        size as f64 / f64::from(1 << 20)
    );
    Ok(())
}

/// Starts a machine, waits for the prompt, asks for the free memory, and ends it.
fn start(machine: &Machine) -> Result<Start> {
    let begin = Instant::now();
    let (mut guest, mut keys, mut screen) = Guest::start(machine, false)?;
    let killer = guest.killer();
    // Should the prompt never come, the end of the machine ends the reading.
    let (done, waiting) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        if waiting.recv_timeout(PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            killer.kill();
        }
    });
    let mut shown = Vec::new();
    let mut read_until = |text: &str| -> Result<String> {
        let mut buffer = [0; 4096];
        loop {
            if let Some(at) = shown
                .windows(text.len())
                .position(|window| window == text.as_bytes())
            {
                let rest = shown.split_off(at + text.len());
                return Ok(
                    String::from_utf8_lossy(&std::mem::replace(&mut shown, rest)).into_owned(),
                );
            }
            let count = screen.read(&mut buffer)?;
            if count == 0 {
                bail!(
                    "no {text:?} on the console: {:?}",
                    String::from_utf8_lossy(&shown)
                );
            }
            shown.extend_from_slice(&buffer[..count]);
        }
    };
    read_until(PROMPT)?;
    let time = begin.elapsed();
    keys.write_all(b"grep MemFree /proc/meminfo; echo do\"\"ne\r")?;
    let text = read_until("done\r\n")?;
    guest.kill();
    guest.wait(None)?;
    drop(done);
    let free: u64 = text
        .lines()
        .find_map(|line| {
            line.trim()
                .strip_prefix("MemFree:")?
                .split_whitespace()
                .next()?
                .parse()
                .ok()
        })
        .with_context(|| format!("no MemFree in {text:?}"))?;
    Ok(Start {
        time,
        used: (512 << 10) - free,
    })
}

fn fetch_linux() -> Result<PathBuf> {
    let home = project::home()?;
    let output = Command::new(home.join("scripts/linux-kernel.sh"))
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("cannot run scripts/linux-kernel.sh")?;
    if !output.status.success() {
        bail!("there is no Linux to compare with; its messages above say why");
    }
    Ok(home.join(String::from_utf8_lossy(&output.stdout).trim()))
}

/// The size of a program without symbols, in bytes.
fn stripped(program: &Path, to: &Path) -> Result<u64> {
    let status = Command::new("strip")
        .arg("-o")
        .arg(to)
        .arg(program)
        .status()
        .context("cannot run strip: install Debian's package binutils")?;
    if !status.success() {
        bail!("strip failed: {status}");
    }
    Ok(std::fs::metadata(to)?.len())
}

/// The first line of what a program says about its version.
fn version(program: &str) -> String {
    let output = Command::new(program).arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    text.unwrap_or_default()
        .lines()
        .next()
        .unwrap_or_default()
        .into()
}
