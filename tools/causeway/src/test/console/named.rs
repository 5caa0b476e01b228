//! Guests with names, and the commands that find them.

use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::screen::Terminal;
use super::{Bench, command, end_by, ending, is, of_guest, wait_for};
use crate::outcome;
use crate::test::boot::shown;

/// A detached guest, stopped at the test's end.
struct Detached<'a> {
    bench: &'a Bench,
    name: String,
}

impl<'a> Detached<'a> {
    fn start(bench: &'a Bench, options: &[&str], line: &str) -> Result<Self> {
        let words = [&["--detach"], options, &["sh", "-c", line]].concat();
        let ended = command(bench, &words).output()?;
        ensure!(ended.status.success(), "{}", shown(&ended));
        let name = String::from_utf8_lossy(&ended.stdout).trim().to_string();
        Ok(Self { bench, name })
    }

    fn command(&self, before: &[&str], behind: &[&str]) -> Command {
        let words = [before, &[&self.name], behind].concat();
        of_guest(self.bench, &words)
    }

    fn exec(&self, line: &str) -> Command {
        self.command(&["exec"], &["sh", "-c", line])
    }
}

impl Drop for Detached<'_> {
    fn drop(&mut self) {
        // It has ended, if the test passed.
        let _ = self.command(&["stop", "--time", "0"], &[]).output();
    }
}

/// The life of a guest, from its start to `rm`.
pub fn life(bench: &Bench) -> Result<()> {
    let line = "trap 'echo asked; exit 5' TERM; echo ready; while :; do sleep 0.1; done";
    let guest = Detached::start(bench, &["--name", "web", "--tty"], line)?;
    ensure!(guest.name == "web", "{}", guest.name);
    is(&of_guest(bench, &["ps", "--quiet"]).output()?, 0, "web\n")?;
    let mode = fs::metadata(bench.path("causeway"))?.permissions().mode();
    ensure!(mode & 0o777 == 0o700, "{mode:o}");
    let second = command(bench, &["--name", "web", "true"]).output()?;
    is(&second, outcome::FAILURE, "")?;
    let mut logs = guest.command(&["logs", "--follow"], &[]).spawn()?;
    // Pipes of its own, a terminal of its own, statuses.
    let ended = guest.exec("cat; echo err >&2; exit 9").output()?;
    is(&ended, 9, "")?;
    ensure!(ended.stderr == b"err\n", "{}", shown(&ended));
    let none = guest.command(&["exec"], &["no-such"]).output()?;
    is(&none, outcome::NOT_FOUND, "")?;
    let mut terminal = Terminal::new()?;
    let mut child = terminal.start(&mut guest.exec("tty; read key; exit 8"), [true; 3])?;
    terminal.expect("/dev/")?;
    terminal.press("\r")?;
    ensure!(child.wait()?.code() == Some(8), "{:?}", terminal.text());
    copies(bench, &guest)?;
    // A user who looks, and goes.
    let mut terminal = Terminal::new()?;
    let mut child = terminal.start(&mut guest.command(&["attach"], &[]), [true; 3])?;
    wait_for("a raw terminal", || {
        terminal.is_cooked().is_ok_and(|is| !is)
    })?;
    terminal.press("\x01d")?;
    ensure!(child.wait()?.code() == Some(0), "{:?}", terminal.text());
    // A further program whose host side is killed gets SIGHUP.
    let mut child = guest
        .exec("trap 'echo >/tmp/gone; exit' HUP; echo up; sleep 9 & wait")
        .spawn()?;
    let mut output = child.stdout.take().context("no pipe")?;
    output.read_exact(&mut [0; 3])?;
    child.kill()?;
    child.wait()?;
    wait_for("the hang-up", || {
        let ended = guest.exec("test -e /tmp/gone").output();
        ended.is_ok_and(|ended| ended.status.success())
    })?;
    // The end, seen by all.
    let mut waiting = guest.exec("sleep 99").spawn()?;
    is(&guest.command(&["stop"], &[]).output()?, 0, "")?;
    let waiting = waiting.wait()?.code();
    ensure!(waiting == Some(outcome::LEFT.into()), "{waiting:?}");
    wait_for("the end of the log", || {
        logs.try_wait().is_ok_and(|ended| ended.is_some())
    })?;
    is(&logs.wait_with_output()?, 0, "ready\r\nasked\r\n")?;
    is(&guest.exec("true").output()?, outcome::FAILURE, "")?;
    let all = of_guest(bench, &["ps", "--all"]).output()?;
    ensure!(shown(&all).contains("ended (5)"), "{}", shown(&all));
    is(&guest.command(&["rm"], &[]).output()?, 0, "")?;
    is(
        &of_guest(bench, &["ps", "--all", "--quiet"]).output()?,
        0,
        "",
    )
}

/// Programs that may have ended before the host has heard of them.
pub fn short(bench: &Bench) -> Result<()> {
    for _ in 0..5 {
        is(
            &command(bench, &["--init", "echo", "hi"]).output()?,
            0,
            "hi\n",
        )?;
    }
    let guest = Detached::start(bench, &["--smp", "2"], "sleep 999")?;
    for _ in 0..100 {
        is(&guest.command(&["exec"], &["true"]).output()?, 0, "")?;
        let ended = guest.exec("echo x >&2; exit 3").output()?;
        is(&ended, 3, "")?;
        ensure!(ended.stderr == b"x\n", "{}", shown(&ended));
    }
    is(&guest.command(&["kill"], &[]).output()?, 0, "")
}

/// `kill`, and what is not there.
pub fn killed(bench: &Bench) -> Result<()> {
    let all = |words: &[&str]| of_guest(bench, words).output();
    let line = "trap 'exit 9' USR1; echo ready; while :; do sleep 0.1; done";
    for (signal, status) in [("USR1", 9), ("sigterm", 143), ("9", 137)] {
        let guest = Detached::start(bench, &["--name", "web"], line)?;
        wait_for("the trap", || {
            let logs = guest.command(&["logs"], &[]).output();
            logs.is_ok_and(|logs| logs.stdout == b"ready\n")
        })?;
        let mut waiting = guest.exec("echo up; sleep 99").spawn()?;
        let up = waiting.stdout.as_mut().context("no pipe")?;
        up.read_exact(&mut [0; 3])?;
        is(
            &guest.command(&["kill", "-s", signal], &[]).output()?,
            0,
            "",
        )?;
        let ended = format!("ended ({status})");
        wait_for(&ended, || {
            // Guests of other tests may have ended so, too.
            let is_it = |line: &str| line.starts_with("web ") && line.contains(&ended);
            all(&["ps", "--all"]).is_ok_and(|list| shown(&list).lines().any(is_it))
        })?;
        let code = waiting.wait()?.code();
        ensure!(code == Some(outcome::LEFT.into()), "{code:?}");
        is(&guest.command(&["rm"], &[]).output()?, 0, "")?;
    }
    for words in [
        &["exec", "web", "true"][..],
        &["attach", "web"],
        &["stop", "web"],
        &["kill", "web"],
        &["logs", "web"],
        &["rm", "web"],
        &["exec", "a/b", "true"],
        &["cp", "web:/x", "/tmp/x"],
    ] {
        is(&all(words)?, outcome::FAILURE, "")?;
    }
    let none = command(bench, &["--detach", "no-such"]).output()?;
    is(&none, outcome::NOT_FOUND, "")?;
    let names = all(&["ps", "--all", "--quiet"])?.stdout;
    ensure!(!names.starts_with(b"web\n"), "web is still there");
    Ok(())
}

/// A command may come as soon as the guest has its name, and a guest may end meanwhile.
pub fn early(bench: &Bench) -> Result<()> {
    for round in 0..3 {
        let name = format!("early{round}");
        let first = command(bench, &["--name", &name, "sleep", "1"]).spawn()?;
        let place = bench.path("causeway").join(&name);
        wait_for("the name", || place.exists())?;
        let start = Instant::now();
        let mut count = 0;
        // The last ones find the guest while it ends, or after that.
        loop {
            let ended = of_guest(bench, &["exec", &name, "echo", "hi"]).output()?;
            match ended.status.code() {
                Some(0) => is(&ended, 0, "hi\n")?,
                Some(code) if code == i32::from(outcome::LEFT) => break,
                // Before the socket is there, and behind the end.
                _ => {
                    is(&ended, outcome::FAILURE, "")?;
                    if count > 0 {
                        break;
                    }
                }
            }
            count += usize::from(ended.status.success());
            ensure!(start.elapsed() < super::PATIENCE, "the guest does not end");
        }
        ensure!(count > 0, "no command ran");
        is(&first.wait_with_output()?, 0, "")?;
    }
    Ok(())
}

/// As many commands as there are sessions, and one more.
pub fn many(bench: &Bench) -> Result<()> {
    let guest = Detached::start(bench, &["--smp", "2"], "sleep 999")?;
    let start = |_| -> Result<Child> {
        let mut child = guest.exec("cat").stdin(Stdio::piped()).spawn()?;
        let input = child.stdin.as_mut().context("no input")?;
        input.write_all(b"up\n")?;
        let output = child.stdout.as_mut().context("no output")?;
        output.read_exact(&mut [0; 3])?;
        Ok(child)
    };
    let most = session::MAX_SESSIONS - 1;
    let children: Vec<Child> = (0..most).map(start).collect::<Result<_>>()?;
    let more = guest.exec("true").output()?;
    is(&more, outcome::FAILURE, "")?;
    ensure!(shown(&more).contains("in use"), "{}", shown(&more));
    for mut child in children {
        drop(child.stdin.take());
        ensure!(child.wait()?.success(), "a command fails");
    }
    is(&guest.exec("echo hi").output()?, 0, "hi\n")
}

/// A detached guest goes on whatever ends those who look at it, and can be attached to again.
pub fn left(bench: &Bench) -> Result<()> {
    let line = "n=0; while read word; do n=$((n+1)); echo $n $word; done";
    let guest = Detached::start(bench, &["--tty"], line)?;
    for (round, signal) in (1..).zip(ending()) {
        let mut terminal = Terminal::new()?;
        let mut child = terminal.start(&mut guest.command(&["attach"], &[]), [true; 3])?;
        wait_for("a raw terminal", || {
            terminal.is_cooked().is_ok_and(|is| !is)
        })?;
        terminal.press(&format!("word{round}\r"))?;
        terminal.expect(&format!("{round} word{round}\r\n"))?;
        end_by(&terminal, &mut child, signal)?;
    }
    // A further program, and a client that ignores a signal.
    for signal in ending() {
        let terminal = Terminal::new()?;
        let mut child = terminal.start(&mut guest.exec("echo up; sleep 99"), [true; 3])?;
        terminal.expect("up\r\n")?;
        kill_process(Pid::from_child(&child), Signal::PIPE)?;
        end_by(&terminal, &mut child, signal)?;
    }
    is(&guest.exec("echo hi").output()?, 0, "hi\n")?;
    is(
        &guest.command(&["stop", "--time", "0"], &[]).output()?,
        0,
        "",
    )
}

/// A program that writes the log without end fills neither the host's memory nor its disk.
pub fn endless_log(bench: &Bench) -> Result<()> {
    let line = "line=$(printf %0450d 1); while :; do echo $line >/dev/kmsg; done";
    let guest = Detached::start(bench, &["--log"], line)?;
    let messages = bench.path("causeway").join(&guest.name).join("messages");
    let mut written = 0;
    // By then it has been cut.
    wait_for("a full log", || {
        let before = written;
        written = fs::metadata(&messages).map_or(0, |file| file.len());
        written < before
    })?;
    let text = fs::read_to_string(&messages)?;
    ensure!(text.len() <= 513 << 10, "{} bytes of log", text.len());
    ensure!(text.lines().count() > 500, "no log");
    is(
        &guest.command(&["stop", "--time", "0"], &[]).output()?,
        0,
        "",
    )
}

/// Files and folders, there and back.
fn copies(bench: &Bench, guest: &Detached<'_>) -> Result<()> {
    let folder = bench.fresh_folder("copied")?;
    let from = folder.join("from");
    fs::create_dir_all(from.join("deep"))?;
    let bytes: Vec<u8> = (0..300_000u32).map(|n| (n / 7) as u8).collect();
    fs::write(from.join("deep/file"), &bytes)?;
    let there = |path: &str| OsString::from(format!("{}:{path}", guest.name));
    let copy = |from: OsString, to: OsString| -> Result<()> {
        let ended = of_guest(bench, &["cp"]).arg(from).arg(to).output()?;
        is(&ended, 0, "")
    };
    let here = |path: &Path| path.as_os_str().to_os_string();
    copy(here(&from), there("/tmp"))?;
    copy(there("/tmp/from"), here(&folder.join("back")))?;
    ensure!(
        fs::read(folder.join("back/deep/file"))? == bytes,
        "a folder"
    );
    copy(here(&from.join("deep/file")), there("/tmp/other"))?;
    copy(there("/tmp/other"), here(&folder.join("file")))?;
    ensure!(fs::read(folder.join("file"))? == bytes, "a file");
    Ok(())
}
