//! Guests as commands: streams, statuses, terminals, and guests with names.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use super::Report;
use super::boot::{Bench, causeway, shown};
use crate::outcome;

/// The time for an answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Bytes that must arrive as they are.
const MANY: usize = 100_000_000;

/// Commands with options of `causeway run`, their output, a part of their errors, and their status.
const COMMANDS: &[(&[&str], &str, &str, u8)] = &[
    (
        &["sh", "-c", "echo out; echo err >&2; exit 3"],
        "out\n",
        "err\n",
        3,
    ),
    (
        &["no-such"],
        "",
        "causeway: no-such: not found",
        outcome::NOT_FOUND,
    ),
    (
        &["/etc"],
        "",
        "causeway: /etc: Permission denied",
        outcome::NOT_EXECUTED,
    ),
    (&["sh", "-c", "kill -9 $$"], "", "", 137),
    (&["sh", "-c", "kill -TERM $$"], "", "", 143),
    (
        &["poweroff", "-f"],
        "",
        "before the command had ended",
        outcome::LEFT,
    ),
    (
        &["reboot", "-f"],
        "",
        "before the command had ended",
        outcome::LEFT,
    ),
    (
        &["--timeout", "1", "sleep", "9"],
        "",
        "in time",
        outcome::TIMEOUT,
    ),
    (&["--env", "A=b c", "sh", "-c", "echo $A"], "b c\n", "", 0),
    (&["--workdir", "/x/y", "pwd"], "/x/y\n", "", 0),
    (
        &["--user", "1000:5", "sh", "-c", "id -u; id -g"],
        "1000\n5\n",
        "",
        0,
    ),
    (
        &["--user", "nobody-such", "true"],
        "",
        "no user nobody-such",
        outcome::NOT_EXECUTED,
    ),
    (&["--hostname", "a-name", "hostname"], "a-name\n", "", 0),
    (&["--init", "sh", "-c", "echo $$"], "1\n", "", 0),
    (&["sh", "-c", "tty; wc -c"], "not a tty\n0\n", "", 0),
];

/// Runs the tests.
pub fn run(bench: &Bench, report: &mut Report) {
    if !report.wants("console: a guest as a command") {
        return;
    }
    for &(words, output, errors, status) in COMMANDS {
        report.run(&format!("console: {}", words.join(" ")), || {
            let ended = command(bench, words).output()?;
            let said = String::from_utf8_lossy(&ended.stderr);
            ensure!(
                ended.status.code() == Some(status.into())
                    && ended.stdout == output.as_bytes()
                    && said.contains(errors)
                    && (said.is_empty() == errors.is_empty()),
                "{}",
                shown(&ended)
            );
            Ok(())
        });
    }
    let tests: [(&str, fn(&Bench) -> Result<()>); 10] = [
        ("variables of a file", variables),
        ("100 MB in and out", many_bytes),
        ("output that nobody reads any more", closed_output),
        ("input that the command has closed", closed_input),
        ("a blocked output holds up no other", blocked_output),
        ("a terminal and its sizes", sizes),
        ("each stream a terminal or not", mixed),
        ("guests with names", named),
        ("programs that end at once", short),
        ("the end of the host command", killed),
    ];
    for (name, test) in tests {
        report.run(&format!("console: {name}"), || test(bench));
    }
}

/// `causeway run` with these words behind its own options, and folders of names of this run's.
fn command(bench: &Bench, words: &[&str]) -> Command {
    let mut command = causeway(&["run", "--kernel"]);
    command.arg(&bench.fast).args(words);
    command.env("XDG_RUNTIME_DIR", bench.path(""));
    command
}

/// Another subcommand.
fn of_guest(bench: &Bench, words: &[&str]) -> Command {
    let mut command = causeway(words);
    command.env("XDG_RUNTIME_DIR", bench.path(""));
    command
}

/// Checks status and output.
fn is(ended: &Output, status: u8, output: &str) -> Result<()> {
    let text = String::from_utf8_lossy(&ended.stdout);
    ensure!(
        ended.status.code() == Some(status.into()) && text == output,
        "status {status} and {output:?} expected: {}",
        shown(ended)
    );
    Ok(())
}

/// Waits for something that comes soon.
fn wait_for(what: &str, mut is_there: impl FnMut() -> bool) -> Result<()> {
    let start = Instant::now();
    while !is_there() {
        ensure!(start.elapsed() < PATIENCE, "{what} does not come");
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn variables(bench: &Bench) -> Result<()> {
    let file = bench.file("variables", b"# none\nA=1\nB=two words\nC\n")?;
    let mut command = command(bench, &["--env-file"]);
    command.arg(file).args(["--env", "A=2", "--env", "D"]);
    command.args(["sh", "-c", "echo \"$A,$B,$C,$D,${E-none}\""]);
    is(
        &command.env("C", "c").env("D", "d").output()?,
        0,
        "2,two words,c,d,none\n",
    )
}

fn many_bytes(bench: &Bench) -> Result<()> {
    let bytes: Vec<u8> = (0..MANY as u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    let (from, to) = (bench.file("in", &bytes)?, bench.path("out"));
    let mut child = command(bench, &["cat"])
        .stdin(Stdio::piped())
        .stdout(File::create(&to)?)
        .spawn()?;
    let mut input = child.stdin.take().context("no pipe")?;
    std::io::copy(&mut File::open(&from)?, &mut input)?;
    drop(input);
    is(&child.wait_with_output()?, 0, "")?;
    ensure!(fs::read(&to)? == bytes, "other bytes come out");
    fs::remove_file(from)?;
    fs::remove_file(to)?;
    Ok(())
}

fn closed_output(bench: &Bench) -> Result<()> {
    let line = "trap '' PIPE; while echo y; do :; done 2>/dev/null; exit 42";
    let mut child = command(bench, &["sh", "-c", line]).spawn()?;
    let mut output = child.stdout.take().context("no pipe")?;
    output.read_exact(&mut [0; 1000])?;
    drop(output);
    is(&child.wait_with_output()?, 42, "")
}

fn closed_input(bench: &Bench) -> Result<()> {
    let mut child = command(bench, &["sh", "-c", "exec <&-; sleep 1; exit 7"])
        .stdin(Stdio::piped())
        .spawn()?;
    let mut input = child.stdin.take().context("no pipe")?;
    let error = loop {
        if let Err(error) = input.write_all(&[0; 1 << 16]) {
            break error;
        }
    };
    ensure!(error.kind() == ErrorKind::BrokenPipe, "{error}");
    is(&child.wait_with_output()?, 7, "")
}

/// Standard output is full, and standard error goes on.
fn blocked_output(bench: &Bench) -> Result<()> {
    let line = "yes & sleep 0.5; seq 100000 >&2; kill $!; exit 6";
    let mut child = command(bench, &["sh", "-c", line]).spawn()?;
    let errors = child.stderr.take().context("no pipe")?;
    let lines = BufReader::new(errors).lines();
    // Standard error has its end only with the host command.
    let last = lines.map_while(Result::ok).find(|line| line == "100000");
    ensure!(last.is_some(), "the errors end early");
    let ended = child.wait_with_output()?;
    ensure!(ended.status.code() == Some(6), "{}", ended.status);
    Ok(())
}

/// A pseudo-terminal, whose screen a thread keeps.
struct Terminal {
    user: File,
    side: PathBuf,
    screen: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    fn new() -> Result<Self> {
        let pty = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        grantpt(&pty)?;
        unlockpt(&pty)?;
        let side = ptsname(&pty, Vec::new())?.to_string_lossy().into_owned();
        let user = File::from(pty);
        let screen: Arc<Mutex<Vec<u8>>> = Arc::default();
        let mut from = user.try_clone()?;
        let kept = Arc::clone(&screen);
        // Open on this side, the terminal has no end before the test's.
        let held = File::options().read(true).write(true).open(&side)?;
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(&buffer[..count]);
            }
            drop(held);
        });
        let terminal = Self {
            user,
            side: side.into(),
            screen,
        };
        terminal.resize(24, 80)?;
        Ok(terminal)
    }

    /// The terminal as a program's stream.
    fn side(&self) -> Result<File> {
        Ok(File::options().read(true).write(true).open(&self.side)?)
    }

    fn resize(&self, rows: u16, columns: u16) -> Result<()> {
        tcsetwinsize(
            &self.user,
            Winsize {
                ws_row: rows,
                ws_col: columns,
                ws_xpixel: 0,
                ws_ypixel: 0,
            },
        )?;
        Ok(())
    }

    fn is_cooked(&self) -> Result<bool> {
        let modes = tcgetattr(self.side()?)?.local_modes;
        Ok(modes.contains(LocalModes::ICANON | LocalModes::ECHO))
    }

    fn press(&mut self, keys: &str) -> Result<()> {
        Ok(self.user.write_all(keys.as_bytes())?)
    }

    fn text(&self) -> String {
        let screen = self.screen.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&screen).into_owned()
    }

    fn expect(&self, text: &str) -> Result<()> {
        let seen = wait_for(text, || self.text().contains(text));
        seen.with_context(|| format!("{:?}", self.text()))
    }

    /// Starts a command whose chosen streams are this terminal.
    fn start(&self, command: &mut Command, streams: [bool; 3]) -> Result<Child> {
        let [input, output, errors] = streams;
        if input {
            command.stdin(self.side()?);
        }
        if output {
            command.stdout(self.side()?);
        }
        if errors {
            command.stderr(self.side()?);
        }
        Ok(command.spawn()?)
    }
}

fn sizes(bench: &Bench) -> Result<()> {
    let mut terminal = Terminal::new()?;
    let line = "trap 'stty size' WINCH; echo $TERM $(tty); stty size; \
                while ! read -t 1 key; do :; done; exit 5";
    let mut command = command(bench, &["sh", "-c", line]);
    let mut child = terminal.start(command.env("TERM", "vt220"), [true; 3])?;
    drop(command);
    terminal.expect("vt220 /dev/")?;
    terminal.expect("24 80\r\n")?;
    ensure!(!terminal.is_cooked()?, "the terminal is not raw");
    for (rows, columns) in [(0, 0), (10_000, 10_000), (50, 132)] {
        terminal.resize(rows, columns)?;
        kill_process(Pid::from_child(&child), Signal::WINCH)?;
        // busybox takes a terminal without lines for an error.
        terminal.expect(&match rows {
            0 => "stty: standard input".into(),
            _ => format!("\n{rows} {columns}\r\n"),
        })?;
    }
    terminal.press("k\r")?;
    let ended = child.wait()?;
    ensure!(ended.code() == Some(5), "{ended}: {:?}", terminal.text());
    ensure!(terminal.is_cooked()?, "the terminal is not given back");
    Ok(())
}

fn mixed(bench: &Bench) -> Result<()> {
    let line = "for n in 0 1 2; do test -t $n && echo $n >>/tmp/is; done; \
                cat /tmp/is 2>/dev/null | tr -d '\\n' >/tmp/all; read all </tmp/all; exit 4$all";
    for (streams, status) in [
        // Only the keys: the guest has none.
        ([true, false, false], 4),
        ([false, true, false], 41),
        ([false, false, true], 42),
        ([false, true, true], 412 % 256),
        ([true, false, true], 402 % 256),
    ] {
        let terminal = Terminal::new()?;
        let mut command = command(bench, &["sh", "-c", line]);
        let child = terminal.start(&mut command, streams)?;
        drop(command);
        let ended = child.wait_with_output()?;
        ensure!(
            ended.status.code() == Some(status),
            "{streams:?}: {}",
            shown(&ended)
        );
    }
    Ok(())
}

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

fn named(bench: &Bench) -> Result<()> {
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
fn short(bench: &Bench) -> Result<()> {
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

/// The machine ends with the host command, however that ends.
fn killed(bench: &Bench) -> Result<()> {
    for (signal, status) in [
        (Signal::KILL, None),
        (Signal::TERM, Some(143)),
        (Signal::HUP, Some(129)),
        (Signal::USR1, None),
    ] {
        let mut child = command(bench, &["sh", "-c", "echo up; sleep 99"]).spawn()?;
        let mut output = child.stdout.take().context("no pipe")?;
        output.read_exact(&mut [0; 3])?;
        let id = child.id();
        let path = format!("/proc/{id}/task/{id}/children");
        let children = fs::read_to_string(&path).context(path)?;
        let Some(machine) = children.split_whitespace().next() else {
            bail!("no machine");
        };
        let machine = format!("/proc/{machine}/cmdline");
        kill_process(Pid::from_child(&child), signal)?;
        let ended = child.wait()?;
        ensure!(ended.code() == status, "{signal:?}: {ended}");
        wait_for("the machine's end", || {
            fs::read(&machine).map_or(true, |words| words.is_empty())
        })?;
    }
    Ok(())
}
