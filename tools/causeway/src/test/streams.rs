//! `causeway run` as a command among others: its streams, its status, its terminal.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::Report;
use super::boot::{Bench, causeway, shown, text};
use super::pty::Pty;
use crate::outcome;

/// The time for what is to happen at once, and for a start.
const SOON: Duration = Duration::from_secs(30);

/// Says which of its streams are terminals.
const WHICH: &str = "a=-; b=-; c=-; [ -t 0 ] && a=i; [ -t 1 ] && b=o; [ -t 2 ] && c=e; echo $a$b$c";

/// Options, a line of the shell, and the output and status of it.
const LINES: &[(&[&str], &str, &str, i32)] = &[
    (&[], "exit 7", "", 7),
    (&[], "kill -9 $$", "", 137),
    (
        &["--env", "A=b c", "--env", "D="],
        "echo \"$A,$D\"",
        "b c,\n",
        0,
    ),
    (&["--workdir", "/new/folder"], "pwd", "/new/folder\n", 0),
    (&["--user", "1000:100"], "id -u; id -g", "1000\n100\n", 0),
    (&["--hostname", "elsewhere"], "hostname", "elsewhere\n", 0),
    (&["--init"], "echo $$; exit 3", "1\n", 3),
    (&["--smp", "2"], "sleep 100 & echo on; exit 4", "on\n", 4),
    (&[], "poweroff -f; sleep 10", "", outcome::LEFT as i32),
    (&[], "reboot -f; sleep 10", "", outcome::LEFT as i32),
];

/// Runs the tests.
pub fn run(bench: &Bench, report: &mut Report) {
    if !report.wants("command line: streams") {
        return;
    }
    for &(options, line, output, status) in LINES {
        report.run(&format!("streams: {options:?} {line}"), || {
            let mut command = guest(bench, options);
            let got = command.args(["sh", "-c", line]).output()?;
            let is = got.status.code() == Some(status) && text(&got.stdout) == output;
            ensure!(is, "{}", shown(&got));
            Ok(())
        });
    }
    report.run("streams: output and errors are two", || {
        let line = "echo out; echo err >&2";
        let got = guest(bench, &[]).args(["sh", "-c", line]).output()?;
        let is = got.stdout == b"out\n" && got.stderr == b"err\n";
        ensure!(is, "{}", shown(&got));
        Ok(())
    });
    report.run("streams: a command that is missing, or no program", || {
        for (name, status, why) in [
            ("none", 127, "causeway: none: not found\n"),
            (
                "/etc/passwd",
                126,
                "causeway: /etc/passwd: Permission denied\n",
            ),
        ] {
            let got = guest(bench, &[]).arg(name).output()?;
            let is = got.status.code() == Some(status) && text(&got.stderr) == why;
            ensure!(is, "{}", shown(&got));
        }
        Ok(())
    });
    report.run("streams: bytes come as they are, both ways", || {
        bytes(bench)
    });
    report.run("streams: ends pass, both ways", || ends(bench));
    report.run("streams: each is a terminal or not", || terminals(bench));
    report.run("streams: sizes of the terminal", || sizes(bench));
    report.run("streams: a machine ends with its command", || killed(bench));
}

/// `causeway run` with the fast kernel and these options, up to its command.
fn guest(bench: &Bench, options: &[&str]) -> Command {
    let mut command = causeway(&["run", "--kernel"]);
    command.arg(&bench.fast).args(options).arg("--");
    command
}

/// Writes to a program's input beside it, and returns its output.
fn feed(command: &mut Command, input: Vec<u8>) -> Result<Output> {
    let mut child = command.stdin(Stdio::piped()).spawn()?;
    let mut stdin = child.stdin.take().context("no input")?;
    let writer = thread::spawn(move || {
        // One that is not read is no fault of the program's.
        let _ = stdin.write_all(&input);
    });
    let output = child.wait_with_output()?;
    let _ = writer.join();
    Ok(output)
}

/// Much of everything, through `cat`.
fn bytes(bench: &Bench) -> Result<()> {
    let bytes = |count: u32| (0..count).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8);
    for count in [0, 1, 4096, 5_000_000] {
        let input: Vec<u8> = bytes(count).collect();
        for line in ["cat", "cat >&2"] {
            let got = feed(guest(bench, &[]).args(["sh", "-c", line]), input.clone())?;
            let (full, empty) = match line {
                "cat" => (&got.stdout, &got.stderr),
                _ => (&got.stderr, &got.stdout),
            };
            ensure!(
                got.status.success(),
                "{count} bytes, {line}: {}",
                got.status
            );
            ensure!(*full == input && empty.is_empty(), "{count} bytes, {line}");
        }
    }
    Ok(())
}

/// Readers and writers that close their ends.
fn ends(bench: &Bench) -> Result<()> {
    // A program that stops reading, with a writer that does not stop.
    let got = feed(
        guest(bench, &[]).args(["head", "-c", "3"]),
        vec![b'x'; 4_000_000],
    )?;
    ensure!(
        got.status.success() && got.stdout == b"xxx",
        "{}",
        shown(&got)
    );
    // A user who stops reading.
    let line = "yes; echo $? >&2";
    let mut child = guest(bench, &[]).args(["sh", "-c", line]).spawn()?;
    let mut stdout = child.stdout.take().context("no output")?;
    stdout.read_exact(&mut [0; 2])?;
    drop(stdout);
    let got = child.wait_with_output()?;
    ensure!(got.stderr == b"141\n", "{}", shown(&got));
    // A program that closes its output and goes on: the user sees the end of it.
    let line = "echo last; exec >/dev/null; read word; exit 5";
    let mut command = guest(bench, &[]);
    let mut child = command
        .args(["sh", "-c", line])
        .stdin(Stdio::piped())
        .spawn()?;
    let mut output = String::new();
    let mut stdout = child.stdout.take().context("no output")?;
    stdout.read_to_string(&mut output)?;
    let goes_on = child.try_wait()?.is_none();
    drop(child.stdin.take());
    let ended = child.wait()?;
    let is = goes_on && output == "last\n" && ended.code() == Some(5);
    ensure!(is, "{output:?}, {ended}, {goes_on}");
    Ok(())
}

/// Every mixture of terminals and pipes that has a terminal for what it shows.
fn terminals(bench: &Bench) -> Result<()> {
    for wanted in ["---", "i--", "-o-", "--e", "io-", "i-e", "-oe", "ioe"] {
        let mut pty = Pty::new(24, 80)?;
        let has = |letter| wanted.contains(letter);
        let mut command = guest(bench, &[]);
        command.args(["sh", "-c", WHICH]);
        if has('i') {
            command.stdin(pty.side()?);
        }
        if has('o') {
            command.stdout(pty.side()?);
        }
        if has('e') {
            command.stderr(pty.side()?);
        }
        let child = command.spawn()?;
        drop(command);
        // Input alone would have nothing that shows its echo.
        let wanted = if wanted == "i--" { "---" } else { wanted };
        if has('o') {
            pty.expect(&format!("{wanted}\r\n"))?;
        }
        let got = child.wait_with_output()?;
        let is = has('o') || text(&got.stdout) == format!("{wanted}\n");
        ensure!(is && got.status.success(), "{wanted}: {}", shown(&got));
    }
    Ok(())
}

/// Sizes at the start and later, also odd ones.
fn sizes(bench: &Bench) -> Result<()> {
    let line = "while :; do stty size; sleep 0.2; done";
    for (rows, columns) in [(24, 80), (0, 0), (10_000, 10_000)] {
        let mut pty = Pty::new(rows, columns)?;
        let mut command = guest(bench, &[]);
        command.args(["sh", "-c", line]);
        command
            .stdin(pty.side()?)
            .stdout(pty.side()?)
            .stderr(pty.side()?);
        let mut child = Running(command.spawn()?);
        drop(command);
        // Without any size, busybox has nothing to say but this.
        match rows {
            0 => pty.expect("stty: standard input")?,
            _ => pty.expect(&format!("{rows} {columns}\r\n"))?,
        }
        pty.resize(33, 111)?;
        kill_process(Pid::from_child(&child.0), Signal::WINCH)?;
        pty.expect("33 111\r\n")?;
        pty.press("\x01x")?;
        let ended = child.0.wait()?;
        ensure!(ended.code() == Some(outcome::KILLED.into()), "{ended}");
    }
    Ok(())
}

/// A command that a test does not leave behind.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// No machine stays when its command is killed.
fn killed(bench: &Bench) -> Result<()> {
    for signal in [Signal::KILL, Signal::TERM, Signal::INT, Signal::HUP] {
        let mut child = guest(bench, &[])
            .args(["sh", "-c", "echo up; sleep 100"])
            .spawn()?;
        let mut stdout = child.stdout.take().context("no output")?;
        stdout.read_exact(&mut [0; 3])?;
        let machine = machine_of(&child)?;
        kill_process(Pid::from_child(&child), signal)?;
        let ended = child.wait()?;
        let status = 128 + signal.as_raw();
        let is = signal == Signal::KILL || ended.code() == Some(status);
        ensure!(is, "{ended} after signal {}", signal.as_raw());
        let start = Instant::now();
        while is_alive(machine) {
            ensure!(start.elapsed() < SOON, "the machine goes on");
            thread::sleep(Duration::from_millis(10));
        }
    }
    Ok(())
}

/// The process of the machine that a command has started.
pub fn machine_of(child: &Child) -> Result<u32> {
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let mut stat = String::new();
        let Ok(mut file) = File::open(format!("/proc/{pid}/stat")) else {
            continue;
        };
        let is_read = file.read_to_string(&mut stat).is_ok();
        let fields = stat.rsplit(") ").next().unwrap_or_default();
        let parent = fields.split(' ').nth(1);
        if is_read && parent == Some(&child.id().to_string()) {
            return Ok(pid);
        }
    }
    anyhow::bail!("no machine was started")
}

fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().unwrap_or_default();
    !state.is_empty() && !state.starts_with('Z')
}
