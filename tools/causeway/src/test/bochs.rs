//! Guests in Bochs, which emulates what QEMU's software emulation does not: address-space tags
//! (PCID), and the limits of segments.

use std::env;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::Report;
use super::boot::Bench;
use crate::console::Console;
use crate::image;
use crate::root::Root;

/// A processor with tags and `INVPCID`. It has Meltdown, for which tags are off unless the kernel
/// is told that programs are trusted.
const MODEL: &str = "corei7_haswell_4770";
/// What a guest may take; on an idle host none takes a quarter of that.
const TIMEOUT: Duration = Duration::from_secs(900);

/// Tests that switch, fork and change mappings.
const TESTS: &str = "'memory: copy on write' 'memory: random maps' \
     'shootdowns' 'threads: many at once' 'threads: futex between' 'processes: fork with large' \
     'movement: a pipe, memory that changes' 'causeway: children share'";

/// Options of kernels in which 32-bit programs attack the limits of their regions, in long runs.
/// Each run has the attacks on limits that are those of the programs' own segments ([`programs`]),
/// and on limits that are too wide.
const REGIONS: [&[&str]; 2] = [
    &["mitigations=off", "spaces=small", "region=64M"],
    &["mitigations=off", "spaces=small", "region=256M"],
];
/// A kernel whose regions' limits are too wide, which the attacks must find: these at least.
const TOO_WIDE: &[&str] = &[
    "mitigations=off",
    "spaces=small",
    "region=64M",
    "fault_injection=none:LimitTooWide",
];
const FOUND: &[&str] = &["read_ds", "write_es", "locked", "push_past", "call_past"];

/// Runs the group.
pub fn run(bench: &Bench, report: &mut Report, long: bool) {
    if report.wants("bochs: address-space tags, small spaces and segments, 2 CPUs") {
        let name = "bochs: address-space tags, small spaces and segments, 2 CPUs";
        report.run(name, || programs(bench));
    }
    if long && report.wants("bochs: limits of regions, 2 CPUs") {
        for options in REGIONS {
            let name = format!("bochs: limits of regions, 2 CPUs, {}", options.join(" "));
            report.run(&name, || limits(bench, options));
        }
    }
    if report.wants("bochs: limits that are too wide, 2 CPUs") {
        report.run("bochs: limits that are too wide, 2 CPUs", || {
            too_wide(bench)
        });
    }
}

/// Attacks of 32-bit programs on the limits of their regions end as they must.
fn limits(bench: &Bench, options: &[&str]) -> Result<()> {
    let script = "/tests/guest-tests 'walls: limits' && echo passed";
    let text = boot(bench, 2, options, script)?;
    ensure!(text.lines().any(|line| line == "passed"), "{text}");
    Ok(())
}

/// The same attacks find a kernel whose limits are too wide.
fn too_wide(bench: &Bench) -> Result<()> {
    let text = boot(bench, 2, TOO_WIDE, "/tests/guest-tests 'walls: limits'")?;
    for attack in FOUND {
        let found = |line: &str| line.starts_with(attack) && line.contains("in its region ended");
        ensure!(text.lines().any(found), "no {attack} in: {text}");
    }
    let is_changed = text.contains("a neighbour's memory has changed");
    ensure!(is_changed, "no neighbour was reached: {text}");
    Ok(())
}

/// Test programs pass, and spaces that are loaded again have their translations. 32-bit programs in
/// small spaces see what they see in large ones where limits are checked, and their segments serve
/// offsets of both signs by turns. Their attacks on the limits of segments end as they must.
fn programs(bench: &Bench) -> Result<()> {
    let script = format!(
        "/tests/guest-tests {TESTS} && grep space_switches /proc/causeway/counters && \
         /tests/guest-tests small: && cat /proc/causeway/spaces && /tests/guest-tests walls && \
         echo passed"
    );
    let text = boot(bench, 2, &["mitigations=off"], &script)?;
    let counter = |name: &str| -> Result<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let count = line.and_then(|line| line.trim().parse().ok());
        count.with_context(|| format!("no {name}: {text}"))
    };
    ensure!(text.lines().any(|line| line == "passed"), "{text}");
    let [all, kept] = ["space_switches ", "space_switches_kept "].map(counter);
    let (all, kept) = (all?, kept?);
    ensure!(kept * 10 > all, "{kept} of {all} spaces were kept");
    for name in [
        "segments_turned",
        "promotions_segments",
        "promotions_access",
    ] {
        ensure!(counter(name)? > 0, "no {name}: {text}");
    }
    Ok(())
}

/// Boots a guest that runs a line of the shell; returns what it printed.
fn boot(bench: &Bench, cpus: u32, options: &[&str], script: &str) -> Result<String> {
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let path = |name: &str| folder.path().join(name);
    let options: Vec<String> = options.iter().map(ToString::to_string).collect();
    let command = ["/bin/sh", "-c", script].map(String::from);
    let line = Console::person().command_line(&options, &command);
    let mut root = Root::busybox()?;
    root.directory("tests", 0o755);
    root.host_file("tests/guest-tests", &bench.program("guest-tests"), 0o755)?;
    root.write(&path("root.cpio"))?;
    image::make(
        &bench.checked,
        &path("root.cpio"),
        &line,
        &path("guest.iso"),
    )?;
    fs::write(path("bochsrc"), machine(folder.path(), cpus)?)?;
    // Its debugger waits for a command at the start.
    fs::write(path("commands"), "continue\n")?;
    let mut bochs = Command::new("bochs")
        // It replaces variables in its configuration, and some values overflow its buffers.
        .env_clear()
        .envs(
            ["PATH", "HOME"]
                .into_iter()
                .filter_map(|name| Some((name, env::var_os(name)?))),
        )
        .args(["-q", "-f", "bochsrc", "-rc", "commands"])
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(fs::File::create(path("output"))?)
        .stderr(Stdio::null())
        .spawn()
        .context("cannot run bochs: install Debian's packages bochs, bochsbios and vgabios")?;
    let end = Instant::now() + TIMEOUT;
    let text = || fs::read(path("console")).map(|it| String::from_utf8_lossy(&it).into_owned());
    while bochs.try_wait()?.is_none() {
        if Instant::now() > end {
            bochs.kill()?;
            bochs.wait()?;
            bail!("no end; {}", text().unwrap_or_default());
        }
        thread::sleep(Duration::from_millis(50));
    }
    text().with_context(|| {
        let log = fs::read_to_string(path("log")).unwrap_or_default();
        format!("the guest printed nothing; Bochs: {log}")
    })
}

/// Returns Bochs's description of the machine. Its screen is a VNC server without a client.
fn machine(folder: &Path, cpus: u32) -> Result<String> {
    let file = |name: &str| folder.join(name);
    let mut text = String::new();
    writeln!(text, "romimage: file=/usr/share/bochs/BIOS-bochs-latest")?;
    writeln!(text, "vgaromimage: file=/usr/share/vgabios/vgabios.bin")?;
    writeln!(text, "megs: 512")?;
    writeln!(
        text,
        "cpu: model={MODEL}, count={cpus}, ips=100000000, reset_on_triple_fault=0"
    )?;
    writeln!(text, "clock: sync=none, time0=1700000000")?;
    writeln!(
        text,
        "ata0-master: type=cdrom, path={}, status=inserted",
        file("guest.iso").display()
    )?;
    writeln!(text, "boot: cdrom")?;
    writeln!(
        text,
        "com1: enabled=1, mode=file, dev={}",
        file("console").display()
    )?;
    writeln!(text, "log: {}", file("log").display())?;
    writeln!(text, "panic: action=fatal")?;
    writeln!(
        text,
        "error: action=ignore\ninfo: action=ignore\ndebug: action=ignore"
    )?;
    writeln!(text, "display_library: rfb, options=\"timeout=0\"")?;
    writeln!(text, "speaker: enabled=0")?;
    // Its mixer ends Bochs now and then where the host has no card.
    writeln!(text, "sound: driver=dummy")?;
    Ok(text)
}
