//! The start of this kernel and of Linux, measured in turn.
//!
//! Both get the same archive with busybox and the same machine. Time runs from QEMU's start to the
//! shell's prompt on the console; memory is all that is not free at that prompt.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::Pair;
use crate::console::Console;
use crate::guest::Guest;
use crate::options;
use crate::qemu::{self, Machine};
use crate::root::Root;
use crate::screen::{Screen, Watch};

/// The shell's prompt, by `/etc/profile` of the default root.
const PROMPT: &str = "causeway:~# ";

/// How long a start may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// The first program on Linux: the steps that Causeway's kernel takes itself before the shell
/// starts.
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
pub(super) fn compare(options: &options::Compare, pair: &Pair) -> Result<()> {
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let archive = folder.path().join("root.cpio");
    let mut root = Root::busybox()?;
    root.file("init", 0o755, INIT);
    root.write(&archive)?;
    let ours = pair.ours(&archive, &Console::person().command_line(&[], &[]));
    let theirs = pair.theirs(&archive, &[]);
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
    let size = stripped(&pair.kernel, &folder.path().join("stripped"))?;
    println!(
        "kernel, stripped: {:.2} MiB",
        size as f64 / f64::from(1 << 20)
    );
    Ok(())
}

/// Starts a machine, waits for the prompt, asks for the free memory, and ends it.
fn start(machine: &Machine) -> Result<Start> {
    let memory = qemu::kibibytes(&machine.memory)?;
    let begin = Instant::now();
    let (mut guest, mut keys, screen) = Guest::start(machine, false)?;
    let _watch = Watch::new(guest.killer(), PATIENCE);
    let mut screen = Screen::new(screen);
    screen.read_until(PROMPT)?;
    let time = begin.elapsed();
    keys.write_all(b"grep MemFree /proc/meminfo; echo do\"\"ne\r")?;
    let text = screen.read_until("done\r\n")?;
    guest.kill();
    guest.wait(None)?;
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
        used: memory.saturating_sub(free),
    })
}

/// The size of a program without symbols, in bytes.
fn stripped(program: &Path, to: &Path) -> Result<u64> {
    // It warns of the segment of the kernel's relocations, which is in no section.
    let strip = Command::new("strip")
        .arg("-o")
        .arg(to)
        .arg(program)
        .output()
        .context("cannot run strip: install Debian's package binutils")?;
    if !strip.status.success() {
        bail!("strip failed: {}", String::from_utf8_lossy(&strip.stderr));
    }
    Ok(std::fs::metadata(to)?.len())
}
