//! Guests with names, and the commands that find them.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::screen::Terminal;
use super::{Bench, command, end_by, ending, is, of_guest, soon, wait_for};
use crate::outcome;
use crate::test::boot::shown;

/// A detached guest, stopped at the test's end.
pub struct Detached<'a> {
    bench: &'a Bench,
    pub name: String,
}

impl<'a> Detached<'a> {
    pub fn start(bench: &'a Bench, options: &[&str], line: &str) -> Result<Self> {
        let words = [&["--detach"], options, &["sh", "-c", line]].concat();
        let ended = command(bench, &words).output()?;
        ensure!(ended.status.success(), "{}", shown(&ended));
        let name = String::from_utf8_lossy(&ended.stdout).trim().to_string();
        Ok(Self { bench, name })
    }

    pub fn command(&self, before: &[&str], behind: &[&str]) -> Command {
        let words = [before, &[&self.name], behind].concat();
        of_guest(self.bench, &words)
    }

    pub fn exec(&self, line: &str) -> Command {
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

/// A detached guest keeps nothing of its starter's: neither the folder nor a descriptor, but for
/// one that is named as a file.
pub fn leaves_its_starter(bench: &Bench) -> Result<()> {
    let folder = bench.path("starter");
    fs::create_dir(&folder)?;
    let variables = bench.file("named-variables", b"A=named\n")?;
    let words = ["--detach", "--env-file", "/dev/fd/6"];
    let words = [&words[..], &["sh", "-c", "echo $A; sleep 999"]].concat();
    let run = command(bench, &words);
    let mut shell = Command::new("sh");
    shell.args(["-c", "\"$@\" 5>&2 6<\"$0\""]).arg(variables);
    shell.arg(run.get_program()).args(run.get_args());
    shell.env("XDG_RUNTIME_DIR", bench.path(""));
    shell.current_dir(&folder);
    // The pipe of the errors ends when its last writer has closed it.
    let ended = soon("the end of the starter's errors", move || shell.output())??;
    ensure!(ended.status.success(), "{}", shown(&ended));
    let name = String::from_utf8_lossy(&ended.stdout).trim().to_string();
    let guest = Detached { bench, name };
    for process in fs::read_dir("/proc")? {
        // Of those that have ended meanwhile there is nothing to see.
        let stands_in = fs::read_link(process?.path().join("cwd"));
        ensure!(
            stands_in.ok().as_ref() != Some(&folder),
            "the folder is busy"
        );
    }
    wait_for("the variable", || {
        let logs = guest.command(&["logs"], &[]).output();
        logs.is_ok_and(|logs| logs.stdout == b"named\n")
    })?;
    is(&guest.command(&["kill"], &[]).output()?, 0, "")
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

/// Commands that wait for a guest's end leave alone the one that gets its name meanwhile.
pub fn replaced(bench: &Bench) -> Result<()> {
    let line = "trap 'echo asked; sleep 1; exit 5' TERM; echo ready; while :; do sleep 0.1; done";
    let first = Detached::start(bench, &["--name", "web"], line)?;
    let has_logged = |text: &str| {
        let logs = first.command(&["logs"], &[]).output();
        logs.is_ok_and(|logs| logs.stdout == text.as_bytes())
    };
    wait_for("the trap", || has_logged("ready\n"))?;
    let logs = first.command(&["logs", "--follow"], &[]).spawn()?;
    let stop = first.command(&["stop", "--time", "3"], &[]).spawn()?;
    wait_for("the signal", || has_logged("ready\nasked\n"))?;
    for child in [&logs, &stop] {
        kill_process(Pid::from_child(child), Signal::STOP)?;
    }
    wait_for("the end", || {
        let all = of_guest(bench, &["ps", "--all"]).output();
        all.is_ok_and(|all| shown(&all).contains("ended (5)"))
    })?;
    let line = "echo second; sleep 99";
    let second = Detached::start(bench, &["--name", "web"], line)?;
    let start = Instant::now();
    for child in [&logs, &stop] {
        kill_process(Pid::from_child(child), Signal::CONT)?;
    }
    is(&stop.wait_with_output()?, 0, "")?;
    is(&second.exec("echo on").output()?, 0, "on\n")?;
    let logs = logs.wait_with_output()?;
    ensure!(start.elapsed() < super::PATIENCE, "the log goes on");
    is(&logs, 0, "ready\nasked\n")?;
    is(&second.exec("echo on").output()?, 0, "on\n")
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

/// `attach` takes keys from a terminal on standard input only.
pub fn attached(bench: &Bench) -> Result<()> {
    let line = "read word & n=0; while :; do n=$((n+1)); echo tick$n; sleep 0.2; done";
    let line_of_words = "while :; do read word && echo got $word; echo tick; sleep 0.2; done";
    for (options, line) in [(&[][..], line), (&["--tty"][..], line_of_words)] {
        let guest = Detached::start(bench, options, line)?;
        // Standard input is a file.
        let words = bench.file("words", b"word\nword\n")?;
        for file in [words.as_path(), Path::new("/dev/null")] {
            let terminal = Terminal::new()?;
            let mut attach = guest.command(&["attach"], &[]);
            attach.stdin(File::open(file)?);
            let mut child = terminal.start(&mut attach, [false, true, true])?;
            drop(attach);
            // A shell that waits for a line says nothing.
            let seen = match options {
                [] => terminal.expect("tick"),
                _ => {
                    thread::sleep(Duration::from_millis(500));
                    Ok(())
                }
            };
            let ended = child.try_wait()?;
            child.kill()?;
            child.wait()?;
            seen?;
            let text = terminal.text();
            ensure!(
                ended.is_none(),
                "{options:?}, {file:?}: {ended:?}, {text:?}"
            );
            ensure!(!text.contains("got"), "{options:?}, {file:?}: {text:?}");
        }
        // It is a terminal, whatever the program has.
        for keys in ["\x01d", "word\r\x01d"] {
            let mut terminal = Terminal::new()?;
            let mut attach = guest.command(&["attach"], &[]);
            let mut child = terminal.start(&mut attach, [true; 3])?;
            drop(attach);
            let ended = wait_for("a raw terminal", || {
                terminal.is_cooked().is_ok_and(|is| !is)
            })
            .and_then(|()| terminal.press(keys))
            .and_then(|()| wait_for("the end", || child.try_wait().is_ok_and(|it| it.is_some())));
            if ended.is_err() {
                child.kill()?;
            }
            let code = child.wait()?.code();
            ended.with_context(|| format!("{options:?}: {code:?}, {:?}", terminal.text()))?;
            ensure!(code == Some(0), "{options:?}: {:?}", terminal.text());
            ensure!(terminal.is_cooked()?, "the terminal is not given back");
        }
        is(&guest.exec("echo on").output()?, 0, "on\n")?;
    }
    Ok(())
}

/// A program that ignores the request, and what is kept of it.
pub fn stubborn(bench: &Bench) -> Result<()> {
    let line = "trap '' TERM; echo ready; while :; do sleep 0.1; done";
    let guest = Detached::start(bench, &["--name", "web"], line)?;
    wait_for("the trap", || {
        let logs = guest.command(&["logs"], &[]).output();
        logs.is_ok_and(|logs| logs.stdout == b"ready\n")
    })?;
    let kept = guest.command(&["rm"], &[]).output()?;
    is(&kept, outcome::FAILURE, "")?;
    ensure!(shown(&kept).contains("runs"), "{}", shown(&kept));
    is(&guest.exec("echo on").output()?, 0, "on\n")?;
    let start = Instant::now();
    is(
        &guest.command(&["stop", "--time", "1"], &[]).output()?,
        0,
        "",
    )?;
    let took = start.elapsed();
    ensure!(took > Duration::from_secs(1), "it is ended after {took:?}");
    let all = of_guest(bench, &["ps", "--all"]).output()?;
    ensure!(shown(&all).contains("ended (121)"), "{}", shown(&all));
    is(&guest.command(&["rm"], &[]).output()?, 0, "")
}

/// Guests that want one name at one moment: one gets it, the others are told.
pub fn twins(bench: &Bench) -> Result<()> {
    for options in [&["--name", "twin"][..], &["--name", "twin", "--detach"]] {
        let words = [options, &["sleep", "3"]].concat();
        let start = |_| Ok(command(bench, &words).spawn()?);
        let twins: Vec<Child> = (0..3).map(start).collect::<Result<_>>()?;
        let mut won = 0;
        for twin in twins {
            let ended = twin.wait_with_output()?;
            match ended.status.code() {
                Some(0) => won += 1,
                _ => {
                    is(&ended, outcome::FAILURE, "")?;
                    ensure!(shown(&ended).contains("runs already"), "{}", shown(&ended));
                }
            }
        }
        ensure!(won == 1, "{options:?}: {won} of 3 have the name");
    }
    is(&of_guest(bench, &["stop", "twin"]).output()?, 0, "")
}
