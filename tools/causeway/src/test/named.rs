//! Guests with names, and the commands that find them.

use std::fs;
use std::io::{Read, Write};
use std::process::{Command, Output, Stdio};
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

/// Runs the tests.
pub fn run(bench: &Bench, report: &mut Report) {
    if !report.wants("command line: named guests") {
        return;
    }
    type Test = fn(&Names<'_>) -> Result<()>;
    let tests: [(&str, Test); 8] = [
        ("a life from run to rm", life),
        ("exec has streams, a status and options", exec),
        ("a name has one guest, and is free after a kill", one_owner),
        ("many commands at a time, and one too many", many),
        ("a command hangs up with its user", hang_up),
        ("a terminal is attached and left", attach),
        ("copies in and out", copies),
        ("what is not there is said so", missing),
    ];
    for (number, (name, test)) in (0..).zip(tests) {
        report.run(&format!("named guests: {name}"), || {
            let folder = bench.fresh_folder(&format!("names{number}"))?;
            let names = Names { bench, folder };
            let tested = test(&names);
            names.end();
            tested
        });
    }
}

/// A folder of names of its own.
struct Names<'a> {
    bench: &'a Bench,
    folder: std::path::PathBuf,
}

impl Names<'_> {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = causeway(words);
        command.env("XDG_RUNTIME_DIR", &self.folder);
        command
    }

    /// Runs a command to its end.
    fn get(&self, words: &[&str]) -> Result<Output> {
        Ok(self.command(words).output()?)
    }

    /// Runs a command, which must end so.
    fn is(&self, words: &[&str], status: u8, output: &str) -> Result<()> {
        let got = self.get(words)?;
        let is = got.status.code() == Some(status.into()) && text(&got.stdout) == output;
        ensure!(is, "{words:?}: {}", shown(&got));
        Ok(())
    }

    /// `causeway run` with the fast kernel.
    fn guest(&self, words: &[&str]) -> Command {
        let mut command = self.command(&["run", "--kernel"]);
        command.arg(&self.bench.fast).args(words);
        command
    }

    /// Starts a detached guest that runs a line of the shell.
    fn detach(&self, name: &str, line: &str) -> Result<()> {
        let words = ["--detach", "--name", name, "--", "sh", "-c", line];
        let got = self.guest(&words).output()?;
        let is = got.status.success() && text(&got.stdout).trim() == name;
        ensure!(is, "{}", shown(&got));
        Ok(())
    }

    /// Ends what a test has left.
    fn end(&self) {
        let Ok(names) = self.get(&["ps", "--quiet"]) else {
            return;
        };
        for name in text(&names.stdout).lines() {
            let _ = self.get(&["stop", "--time", "0", name]);
        }
    }
}

fn life(names: &Names<'_>) -> Result<()> {
    names.detach("web", "echo first; echo second >&2; read word; sleep 1000")?;
    let list = text(&names.get(&["ps"])?.stdout);
    let line = list.lines().nth(1).unwrap_or_default();
    ensure!(
        line.starts_with("web ") && line.contains(" running "),
        "{list}"
    );
    names.is(
        &["exec", "web", "--", "sh", "-c", "echo hi; exit 3"],
        3,
        "hi\n",
    )?;
    let start = Instant::now();
    while text(&names.get(&["logs", "web"])?.stdout) != "first\nsecond\n" {
        ensure!(start.elapsed() < SOON, "the log is another one");
        thread::sleep(Duration::from_millis(20));
    }
    names.is(&["rm", "web"], outcome::FAILURE, "")?;
    names.is(&["stop", "--time", "5", "web"], 0, "")?;
    names.is(&["ps", "--quiet"], 0, "")?;
    names.is(&["logs", "--follow", "web"], 0, "first\nsecond\n")?;
    let all = text(&names.get(&["ps", "--all"])?.stdout);
    ensure!(all.contains("ended (143)"), "{all}");
    names.is(&["rm", "web"], 0, "")?;
    names.is(&["ps", "--all", "--quiet"], 0, "")?;
    // A program that does not mind is ended with its machine, and one is killed.
    names.detach("deaf", "trap '' TERM; while :; do sleep 1; done")?;
    let start = Instant::now();
    names.is(&["stop", "--time", "1", "deaf"], 0, "")?;
    ensure!(
        start.elapsed() < Duration::from_secs(8),
        "{:?}",
        start.elapsed()
    );
    names.detach("killed", "trap 'exit 9' USR1; while :; do sleep 0.1; done")?;
    names.is(&["kill", "--signal", "USR1", "killed"], 0, "")?;
    let start = Instant::now();
    loop {
        let all = text(&names.get(&["ps", "--all"])?.stdout);
        if all.contains("ended (9)") {
            return Ok(());
        }
        ensure!(start.elapsed() < SOON, "{all}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn exec(names: &Names<'_>) -> Result<()> {
    names.detach("web", "sleep 1000")?;
    let mut command = names.command(&["exec", "web", "md5sum"]);
    let mut child = command.stdin(Stdio::piped()).spawn()?;
    let mut stdin = child.stdin.take().context("no input")?;
    let writer = thread::spawn(move || stdin.write_all(&[0; 3_000_000]));
    let got = child.wait_with_output()?;
    writer.join().ok().context("the writer panicked")??;
    let sum = "c9fc2d3dd83ab67a129ac10b09c9ebbb  -\n";
    ensure!(text(&got.stdout) == sum, "{}", shown(&got));
    let options = ["exec", "-e", "A=b", "-w", "/tmp", "-u", "1000", "web", "--"];
    let line = ["sh", "-c", "echo $A; pwd; id -u; echo oh >&2; kill -15 $$"];
    let got = names.get(&[&options[..], &line].concat())?;
    let is = got.stdout == b"b\n/tmp\n1000\n" && got.stderr == b"oh\n";
    ensure!(is && got.status.code() == Some(143), "{}", shown(&got));
    names.is(&["exec", "web", "none"], 127, "")?;
    names.is(&["exec", "web", "/etc/passwd"], 126, "")?;
    // The end of the guest is not the end of the command.
    let child = names.command(&["exec", "web", "sleep", "1000"]).spawn()?;
    thread::sleep(Duration::from_millis(500));
    names.is(&["stop", "--time", "0", "web"], 0, "")?;
    let got = child.wait_with_output()?;
    ensure!(
        got.status.code() == Some(outcome::LEFT.into()),
        "{}",
        shown(&got)
    );
    Ok(())
}

fn one_owner(names: &Names<'_>) -> Result<()> {
    let run = ["--name", "one", "--", "sh", "-c", "echo up; sleep 1000"];
    let mut first = names.guest(&run).spawn()?;
    let mut stdout = first.stdout.take().context("no output")?;
    stdout.read_exact(&mut [0; 3])?;
    let second = names.guest(&run).output()?;
    let is = second.status.code() == Some(outcome::FAILURE.into());
    ensure!(
        is && text(&second.stderr).contains("runs already"),
        "{}",
        shown(&second)
    );
    names.is(&["exec", "one", "echo", "hi"], 0, "hi\n")?;
    let attached = names.get(&["attach", "one"])?;
    ensure!(
        text(&attached.stderr).contains("foreground"),
        "{}",
        shown(&attached)
    );
    kill_process(Pid::from_child(&first), Signal::KILL)?;
    first.wait()?;
    names.is(&["exec", "one", "true"], outcome::FAILURE, "")?;
    names.detach("one", "sleep 1000")?;
    names.is(&["exec", "one", "echo", "hi"], 0, "hi\n")
}

fn many(names: &Names<'_>) -> Result<()> {
    names.detach("web", "sleep 1000")?;
    let most = usize::from(session::MAX_SESSIONS) - 1;
    let start = |_| {
        let mut command = names.command(&["exec", "web", "cat"]);
        Ok(command.stdin(Stdio::piped()).spawn()?)
    };
    let mut children: Vec<_> = (0..most).map(start).collect::<Result<_>>()?;
    for child in &mut children {
        child
            .stdin
            .as_mut()
            .context("no input")?
            .write_all(b"up\n")?;
        let mut up = [0; 3];
        child
            .stdout
            .as_mut()
            .context("no output")?
            .read_exact(&mut up)?;
    }
    let more = names.get(&["exec", "web", "true"])?;
    let is = more.status.code() == Some(outcome::FAILURE.into());
    ensure!(
        is && text(&more.stderr).contains("in use"),
        "{}",
        shown(&more)
    );
    for mut child in children {
        drop(child.stdin.take());
        ensure!(child.wait()?.success());
    }
    for round in 0..20 {
        let word = round.to_string();
        names.is(&["exec", "web", "echo", &word], 0, &format!("{word}\n"))?;
    }
    Ok(())
}

fn hang_up(names: &Names<'_>) -> Result<()> {
    names.detach("web", "sleep 1000")?;
    let line = "trap 'echo yes >/tmp/hung; exit' HUP; echo up; while :; do sleep 0.1; done";
    let mut child = names.command(&["exec", "web", "sh", "-c", line]).spawn()?;
    let mut stdout = child.stdout.take().context("no output")?;
    stdout.read_exact(&mut [0; 3])?;
    kill_process(Pid::from_child(&child), Signal::KILL)?;
    child.wait()?;
    let start = Instant::now();
    while names.get(&["exec", "web", "cat", "/tmp/hung"])?.stdout != b"yes\n" {
        ensure!(start.elapsed() < SOON, "the command does not hang up");
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn attach(names: &Names<'_>) -> Result<()> {
    let words = ["--detach", "--tty", "--name", "tty", "--", "sh"];
    let started = names.guest(&words).output()?;
    ensure!(started.status.success(), "{}", shown(&started));
    for _ in 0..2 {
        let mut pty = Pty::new(24, 80)?;
        let mut command = names.command(&["attach", "tty"]);
        command
            .stdin(pty.side()?)
            .stdout(pty.side()?)
            .stderr(pty.side()?);
        let mut child = command.spawn()?;
        drop(command);
        // Keys that come before it is attached wait in the terminal.
        pty.press("echo on$((1+1)); stty size\r")?;
        pty.expect("on2\r\n24 80\r\n")?;
        pty.press("\x01d")?;
        let ended = child.wait()?;
        ensure!(ended.success(), "{ended}");
        pty.expect("goes on")?;
    }
    ensure!(text(&names.get(&["logs", "tty"])?.stdout).contains("on2\r\n"));
    let mut pty = Pty::new(5, 6)?;
    let mut command = names.command(&["exec", "tty", "sh", "-c", "stty size; read key; exit 6"]);
    command
        .stdin(pty.side()?)
        .stdout(pty.side()?)
        .stderr(pty.side()?);
    let mut child = command.spawn()?;
    drop(command);
    pty.expect("5 6\r\n")?;
    pty.resize(7, 8)?;
    pty.press("x\r")?;
    ensure!(child.wait()?.code() == Some(6));
    Ok(())
}

fn copies(names: &Names<'_>) -> Result<()> {
    names.detach("web", "sleep 1000")?;
    let here = names.folder.join("here");
    fs::create_dir_all(here.join("sub"))?;
    let bytes: Vec<u8> = (0..300_000u32)
        .map(|n| (n.wrapping_mul(40_503) >> 7) as u8)
        .collect();
    fs::write(here.join("sub/file"), &bytes)?;
    let (file, folder) = (here.join("sub/file"), here.display().to_string());
    let file = file.display().to_string();
    let back = names.folder.join("back").display().to_string();
    for (from, to) in [
        (&file[..], "web:/tmp/other"),
        (&folder, "web:/tmp"),
        (&folder, "web:/new"),
        ("web:/tmp/other", &back),
    ] {
        names.is(&["cp", from, to], 0, "")?;
    }
    let line = "find /tmp/here /new -type f; cmp /tmp/other /new/sub/file";
    let found = "/tmp/here/sub/file\n/new/sub/file\n";
    names.is(&["exec", "web", "sh", "-c", line], 0, found)?;
    ensure!(fs::read(&back)? == bytes);
    let whole = names.folder.join("whole").display().to_string();
    names.is(&["cp", "web:/new", &whole], 0, "")?;
    ensure!(fs::read(format!("{whole}/sub/file"))? == bytes);
    names.is(&["cp", "/none", "web:/tmp"], outcome::FAILURE, "")?;
    names.is(&["cp", "web:/none", &back], outcome::FAILURE, "")?;
    names.is(&["exec", "web", "rm", "/bin/tar"], 0, "")?;
    let got = names.get(&["cp", &file, "web:/tmp"])?;
    ensure!(text(&got.stderr).contains("has no tar"), "{}", shown(&got));
    Ok(())
}

fn missing(names: &Names<'_>) -> Result<()> {
    for words in [
        &["exec", "none", "true"][..],
        &["attach", "none"],
        &["stop", "none"],
        &["kill", "none"],
        &["logs", "none"],
        &["rm", "none"],
        &["exec", "a/b", "true"],
        &["cp", "none:/x", "/tmp/x"],
    ] {
        names.is(words, outcome::FAILURE, "")?;
    }
    let wrong = names.guest(&["--detach", "--", "none"]).output()?;
    let is = wrong.status.code() == Some(127) && text(&wrong.stderr).contains("not found");
    ensure!(is, "{}", shown(&wrong));
    let wrong = names
        .guest(&["--detach", "--append", "nonsense=1"])
        .output()?;
    let is = wrong.status.code() == Some(outcome::BAD_START.into());
    ensure!(
        is && text(&wrong.stderr).contains("nonsense"),
        "{}",
        shown(&wrong)
    );
    names.is(&["ps", "--all", "--quiet"], 0, "")
}
