//! Programs from outside of this project: busybox's applets, in the guest and on the host.
//!
//! Each script of `user/strangers` runs with the same busybox in the guest and on the host, and
//! must print the same and end with the same status; so must they with Debian's 32-bit busybox. On
//! the host its applets are links in a folder on the PATH, so that no other program of the host is
//! run.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, bail};

use super::Report;
use super::boot::Bench;
use crate::project;
use crate::root::{BUSYBOX, Root};

/// How large the file is that the long pipeline reads.
const BIG: usize = 20 << 20;

/// The pipeline of six stages.
const PIPELINE: &str =
    "cat big | tr a-z b-za | grep -v 77 | cut -d ' ' -f 2-9 | tail -n +1000 | md5sum";

/// Runs them.
///
/// # Errors
/// When they cannot be prepared.
pub fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    let mut scripts: Vec<_> = fs::read_dir(project::home()?.join("user/strangers"))
        .context("no scripts")?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "sh"))
        .collect();
    scripts.sort();
    if report.wants("strangers: scripts") {
        let archive = bench.path("strangers.cpio");
        archive_with(Path::new(BUSYBOX), &scripts, &archive)?;
        compare(bench, report, &scripts, &archive, "", &[1, 2, 4])?;
    }
    if report.wants("strangers: 32-bit scripts") {
        match busybox_32()? {
            Some(busybox) => {
                let archive = bench.path("strangers-32.cpio");
                archive_with(&busybox, &scripts, &archive)?;
                compare(bench, report, &scripts, &archive, "32-bit ", &[2])?;
            }
            None => report.note(
                "Debian's 32-bit busybox",
                Err(anyhow!("scripts/busybox-i386.sh could not fetch it")),
            ),
        }
    }
    if report.wants("strangers: a long pipeline") {
        let folder = bench.fresh_folder("pipeline")?;
        big_file(&folder.join("big"))?;
        let applets = bench.fresh_folder("applets")?;
        link_applets(&applets)?;
        let expected = Command::new(BUSYBOX)
            .args(["sh", "-c", PIPELINE])
            .current_dir(&folder)
            .env_clear()
            .env("PATH", &applets)
            .output()?
            .stdout;
        let mut root = Root::busybox()?;
        root.host_file("big", &folder.join("big"), 0o644)?;
        let archive = bench.path("pipeline.cpio");
        root.write(&archive)?;
        for cpus in [1, 4] {
            report.run(
                &format!("a pipeline of six stages over 20 MiB, {cpus} CPUs"),
                || {
                    let line = format!("cd /; {PIPELINE}");
                    let guest = bench.shell(&line).root(&archive).cpus(cpus);
                    let finished = guest.timeout(180).fast().run()?;
                    finished.ended(0)?;
                    same(&expected, &finished.output)
                },
            );
        }
    }
    Ok(())
}

/// The archive of a root with this busybox and the scripts.
fn archive_with(busybox: &Path, scripts: &[PathBuf], archive: &Path) -> Result<()> {
    let mut root = Root::busybox()?;
    root.host_file("bin/busybox", busybox, 0o755)?;
    root.directory("strangers", 0o755);
    for script in scripts {
        let name = script.file_name().unwrap_or_default();
        root.host_file(Path::new("strangers").join(name), script, 0o755)?;
    }
    root.write(archive)
}

/// Runs each script in guests and compares its output and status with the host's.
fn compare(
    bench: &Bench,
    report: &mut Report,
    scripts: &[PathBuf],
    archive: &Path,
    kind: &str,
    guests: &[u32],
) -> Result<()> {
    let applets = bench.fresh_folder("applets")?;
    link_applets(&applets)?;
    for script in scripts {
        let name = script
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let (expected, status) = on_the_host(bench, &applets, script)?;
        for &cpus in guests {
            report.run(&format!("{kind}stranger {name}, {cpus} CPUs"), || {
                let path = format!("/strangers/{name}.sh");
                let line = format!(
                    "mkdir /tmp/work; cd /tmp/work; cp {path} .; {}",
                    run_line(&name)
                );
                let guest = bench.shell(&line).root(archive).cpus(cpus);
                let finished = guest.timeout(90).run()?;
                finished.ended(status)?;
                same(&expected, &finished.output)
            });
        }
    }
    Ok(())
}

/// Debian's `busybox-static` for i386, fetched the first time; none where that fails.
pub(super) fn busybox_32() -> Result<Option<PathBuf>> {
    let output = Command::new(project::home()?.join("scripts/busybox-i386.sh"))
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run scripts/busybox-i386.sh")?;
    let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    Ok(output.status.success().then_some(path))
}

/// The output and status of a script on the host.
fn on_the_host(bench: &Bench, applets: &Path, script: &Path) -> Result<(Vec<u8>, u8)> {
    let folder = bench.fresh_folder("work")?;
    let name = script.file_name().unwrap_or_default();
    fs::copy(script, folder.join(name))?;
    // Errors of a script go to the same place as its output, as on the guest's console.
    let output = Command::new(BUSYBOX)
        .args([
            "sh",
            "-c",
            &run_line(&script.file_stem().unwrap_or_default().to_string_lossy()),
        ])
        .current_dir(&folder)
        .env_clear()
        .env("PATH", applets)
        .env("HOME", "/root")
        .env("USER", "root")
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {} on the host", script.display()))?;
    Ok((output.stdout, output.status.code().unwrap_or(255) as u8))
}

/// Runs a script with its output in a file, so that no program finds a terminal, and shows it.
fn run_line(name: &str) -> String {
    format!("sh ./{name}.sh </dev/null >../output 2>&1; status=$?; cat ../output; exit $status")
}

/// A folder with a link for each applet.
fn link_applets(folder: &Path) -> Result<()> {
    let list = Command::new(BUSYBOX).arg("--list").output()?.stdout;
    for name in String::from_utf8_lossy(&list).lines() {
        std::os::unix::fs::symlink(BUSYBOX, folder.join(name))?;
    }
    Ok(())
}

/// A file of numbered lines of words that look random, the same at each run.
fn big_file(path: &Path) -> Result<()> {
    let mut file = std::io::BufWriter::new(fs::File::create(path)?);
    let mut number = 0x1234_5678_9abc_def1u64;
    let (mut written, mut line) = (0, 0u32);
    while written < BIG {
        let mut text = format!("{line:08}");
        while text.len() < 190 {
            number ^= number << 13;
            number ^= number >> 7;
            number ^= number << 17;
            text.push(' ');
            let letters =
                (0..3 + number % 9).map(|at| (b'a' + (number >> (5 * at) & 31) as u8 % 26) as char);
            text.extend(letters);
        }
        text.push('\n');
        text.truncate(BIG - written);
        file.write_all(text.as_bytes())?;
        written += text.len();
        line += 1;
    }
    file.flush()?;
    Ok(())
}

/// Whether two outputs are the same; else the first line that differs.
pub(super) fn same(expected: &[u8], found: &[u8]) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    let (expected, found) = (
        String::from_utf8_lossy(expected),
        String::from_utf8_lossy(found),
    );
    let (mut wanted, mut given) = (expected.lines(), found.lines());
    for number in 1.. {
        match (wanted.next(), given.next()) {
            (None, None) => break,
            (left, right) if left == right => {}
            (left, right) => {
                bail!(
                    "line {number} is {:?} on Linux and {:?} here",
                    left.unwrap_or("missing"),
                    right.unwrap_or("missing")
                );
            }
        }
    }
    bail!("the ends of lines differ")
}
