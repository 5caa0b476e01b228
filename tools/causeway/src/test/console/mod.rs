//! Guests as commands: streams, statuses, terminals, and guests with names.

mod copies;
mod exec;
mod hostile;
mod named;
mod screen;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};

pub use self::screen::Terminal;
use super::Report;
use super::boot::{Bench, causeway, shown};
use crate::{outcome, signals};

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
    // The log's lines of programs are no panic, and no status.
    (
        &["sh", "-c", "echo 'panic: no' >/dev/kmsg; sleep 7; exit 5"],
        "",
        "",
        5,
    ),
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
    let tests: [(&str, fn(&Bench) -> Result<()>); 30] = [
        ("variables of a file", variables),
        ("100 MB in and out", many_bytes),
        ("output that nobody reads any more", closed_output),
        ("files that can't be written or read", broken_files),
        ("input that the command has closed", closed_input),
        ("a blocked output holds up no other", blocked_output),
        ("a terminal and its sizes", sizes),
        ("each stream a terminal or not", mixed),
        ("the end of the host command", killed),
        ("what a signal leaves behind", left_behind),
        ("guests with names", named::life),
        ("a guest and its starter", named::leaves_its_starter),
        ("programs that end at once", named::short),
        ("signals to a guest, and names of none", named::killed),
        ("a guest with the name of one that ended", named::replaced),
        ("a command for a guest that starts or ends", named::early),
        ("more commands than sessions", named::many),
        ("users who are killed", named::left),
        ("terminals and files that are attached", named::attached),
        ("a program that ignores SIGTERM", named::stubborn),
        ("guests that want the same name", named::twins),
        ("the streams of a further command", exec::streams),
        ("the options of a further command", exec::options),
        ("signals to a further command", exec::signals),
        ("copies", copies::all),
        ("a shell that powers off", powers_off),
        ("a time limit and a slow start", late),
        ("a log without end", named::endless_log),
        ("a host that sends nonsense", hostile::nonsense),
        ("nonsense for a number that is taken", hostile::busy),
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

/// Returns what work on another thread comes to, which is to end soon.
fn soon<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let work = thread::spawn(work);
    wait_for(what, || work.is_finished())?;
    work.join().ok().with_context(|| format!("{what}: a panic"))
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

/// A full disk and a folder are told, and a program that does not see them has no success.
fn broken_files(bench: &Bench) -> Result<()> {
    for (line, status) in [("echo x", outcome::FAILURE), ("echo x; exit 3", 3)] {
        let mut command = command(bench, &["sh", "-c", line]);
        let ended = command.stdout(File::options().write(true).open("/dev/full")?);
        let ended = ended.output()?;
        is(&ended, status, "")?;
        let errors = shown(&ended);
        ensure!(
            errors.contains("standard output: No space left"),
            "{errors}"
        );
    }
    let mut command = command(bench, &["sh", "-c", "cat; exit 0"]);
    let ended = command.stdin(File::open("/")?).output()?;
    is(&ended, outcome::FAILURE, "")?;
    let errors = shown(&ended);
    ensure!(
        errors.contains("standard input: Is a directory"),
        "{errors}"
    );
    Ok(())
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

/// A shell is left by its `exit`, or with the machine.
fn powers_off(bench: &Bench) -> Result<()> {
    for (word, status) in [("exit 3", 3), ("poweroff", 0), ("reboot", 0)] {
        let mut terminal = Terminal::new()?;
        let mut command = command(bench, &[]);
        let mut child = terminal.start(&mut command, [true; 3])?;
        drop(command);
        terminal.expect("# ")?;
        terminal.press(&format!("{word}\r"))?;
        let ended = child.wait()?;
        ensure!(
            ended.code() == Some(status),
            "{ended}: {:?}",
            terminal.text()
        );
        ensure!(terminal.is_cooked()?, "the terminal is not given back");
    }
    Ok(())
}

/// The time for a guest does not count what is done before its start; here, a pipe of variables is
/// read that is written late.
fn late(bench: &Bench) -> Result<()> {
    let pipe = bench.path("late");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
    let words = ["--timeout", "2", "--env-file"];
    let mut command = command(bench, &words);
    let command = command.arg(&pipe).args(["sh", "-c", "echo $A; exit 3"]);
    let child = command.spawn()?;
    thread::sleep(Duration::from_secs(3));
    fs::write(&pipe, "A=late\n")?;
    is(&child.wait_with_output()?, 3, "late\n")
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

/// The machine ends with the host command, however that ends.
fn killed(bench: &Bench) -> Result<()> {
    for signal in ending().chain([Signal::KILL]) {
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
        ensure!(
            ended.signal() == Some(signal.as_raw()),
            "{signal:?}: {ended}"
        );
        wait_for("the machine's end", || {
            fs::read(&machine).map_or(true, |words| words.is_empty())
        })?;
    }
    Ok(())
}

/// Signals that end this program's commands, but for those that a background job of a shell, or
/// `nohup`, lets them ignore.
fn ending() -> impl Iterator<Item = Signal> {
    let all = [
        Signal::TERM,
        Signal::HUP,
        Signal::INT,
        Signal::QUIT,
        Signal::USR1,
        Signal::ALARM,
    ];
    all.into_iter()
        .filter(|signal| !signals::is_ignored(signal.as_raw()))
}

/// Ends a command by a signal, which must be what its parent sees, and give the terminal back.
fn end_by(terminal: &Terminal, child: &mut Child, signal: Signal) -> Result<()> {
    ensure!(!terminal.is_cooked()?, "the terminal is not raw");
    kill_process(Pid::from_child(child), signal)?;
    let ended = child.wait()?;
    ensure!(
        ended.signal() == Some(signal.as_raw()),
        "{signal:?}: {ended}"
    );
    ensure!(
        terminal.is_cooked()?,
        "{signal:?}: the terminal is not given back"
    );
    Ok(())
}

/// A signal leaves neither a raw terminal nor a temporary file behind, while the guest runs and
/// before it does.
fn left_behind(bench: &Bench) -> Result<()> {
    // Longer than a socket's path may be, with a comma, which QEMU's options have between values.
    let folder = bench.fresh_folder(&format!("temporary,{}", "x".repeat(150)))?;
    let is_empty = || -> Result<bool> { Ok(fs::read_dir(&folder)?.next().is_none()) };
    let name = bench.path("causeway").join("gone");
    for signal in ending() {
        let terminal = Terminal::new()?;
        let words = ["--swap", "1M", "sh", "-c", "echo up; sleep 99"];
        let mut command = command(bench, &words);
        command.env("TMPDIR", &folder);
        let mut child = terminal.start(&mut command, [true; 3])?;
        drop(command);
        terminal.expect("up\r\n")?;
        ensure!(!is_empty()?, "the folders are elsewhere");
        // Ignored, as by every program in Rust.
        kill_process(Pid::from_child(&child), Signal::PIPE)?;
        end_by(&terminal, &mut child, signal)?;
        ensure!(is_empty()?, "{signal:?}: a folder is left");
    }
    // Large enough for a signal while it is packed.
    let root = bench.fresh_folder("left-root")?;
    File::create(root.join("file"))?.set_len(60 << 20)?;
    for signal in ending() {
        let mut command = command(bench, &["--name", "gone", "--root"]);
        command.arg(&root).arg("true").env("TMPDIR", &folder);
        let mut child = command.spawn()?;
        drop(command);
        wait_for("the folder", || is_empty().is_ok_and(|is| !is))?;
        kill_process(Pid::from_child(&child), signal)?;
        let ended = child.wait()?;
        ensure!(ended.signal() == Some(signal.as_raw()), "{ended}");
        ensure!(is_empty()?, "{signal:?}: a folder is left by a start");
        ensure!(!name.exists(), "{signal:?}: a name is left by a start");
    }
    Ok(())
}
