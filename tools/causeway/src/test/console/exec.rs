//! The streams, the options and the signals of a further command.

use std::io::{ErrorKind, Read, Write};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::named::Detached;
use super::{Bench, is, soon, wait_for};
use crate::outcome;
use crate::test::boot::shown;

/// Ends of streams reach the other side as by a pipe, while the command goes on.
pub fn streams(bench: &Bench) -> Result<()> {
    let guest = Detached::start(bench, &[], "sleep 999")?;
    // The command closes its input.
    let mut child = guest.exec("exec <&-; sleep 2; exit 7");
    let mut child = child.stdin(Stdio::piped()).spawn()?;
    let mut input = child.stdin.take().context("no pipe")?;
    let error = soon("the end of the input", move || {
        loop {
            if let Err(error) = input.write_all(&[0; 1 << 16]) {
                return error;
            }
        }
    });
    let is_running = child.try_wait()?.is_none();
    child.kill()?;
    child.wait()?;
    let error = error?;
    ensure!(error.kind() == ErrorKind::BrokenPipe, "{error}");
    ensure!(is_running, "the producer waits for the end of the command");
    // The command closes its output.
    let mut child = guest.exec("echo last; exec >&-; read line; exit 8");
    let mut child = child.stdin(Stdio::piped()).spawn()?;
    let mut output = child.stdout.take().context("no pipe")?;
    let text = soon("the end of the output", move || {
        let mut text = String::new();
        output.read_to_string(&mut text).map(|_| text)
    });
    let input = child.stdin.as_mut().context("no pipe")?;
    input.write_all(b"line\n")?;
    is(&child.wait_with_output()?, 8, "")?;
    let text = text??;
    ensure!(text == "last\n", "{text:?}");
    // The producer closes the input.
    let mut child = guest.exec("wc -c").stdin(Stdio::piped()).spawn()?;
    child.stdin.take().context("no pipe")?.write_all(b"abc")?;
    is(&child.wait_with_output()?, 0, "3\n")?;
    // The reader closes the output.
    let line = "trap '' PIPE; while echo y; do :; done 2>/dev/null; exit 42";
    let mut child = guest.exec(line).spawn()?;
    let mut output = child.stdout.take().context("no pipe")?;
    output.read_exact(&mut [0; 1000])?;
    drop(output);
    is(&child.wait_with_output()?, 42, "")
}

/// Variables, folder and user, as those of `causeway run`.
pub fn options(bench: &Bench) -> Result<()> {
    let guest = Detached::start(bench, &["--env", "FIRST=1"], "sleep 999")?;
    let file = bench.file("variables", b"# none\nA=1\nB=x # y\nC\n")?;
    let file = file.to_string_lossy().into_owned();
    let own = ["exec", "--env-file", &file, "--env", "A=2", "-e", "D"];
    let line = "echo \"$A,$B,$C,$D,${FIRST-none}\"";
    let mut command = guest.command(&own, &["sh", "-c", line]);
    let ended = command.env("C", "c").env("D", "d").output()?;
    is(&ended, 0, "2,x # y,c,d,none\n")?;
    for (options, line, output) in [
        (["--workdir", "/x/y"], "pwd", "/x/y\n"),
        (["--user", "nobody:root"], "id -u; id -g", "65534\n0\n"),
        (["--user", "nobody"], "id -u; id -g", "65534\n65534\n"),
        (["-u", "1000:5"], "id -u; id -g", "1000\n5\n"),
    ] {
        let before = [&["exec"], &options[..]].concat();
        let ended = guest.command(&before, &["sh", "-c", line]).output()?;
        is(&ended, 0, output).with_context(|| options.join(" "))?;
    }
    let long = "x".repeat(100_000);
    let words = ["echo", &long, &long, &long];
    let ended = guest.command(&["exec"], &words).output()?;
    is(&ended, outcome::NOT_EXECUTED, "")?;
    let ended = super::command(bench, &words).output()?;
    is(&ended, outcome::NOT_EXECUTED, "")
}

/// A signal to the host command ends it or its program, whenever it comes.
pub fn signals(bench: &Bench) -> Result<()> {
    let guest = Detached::start(bench, &["--smp", "2"], "sleep 999")?;
    let long = "x".repeat(100_000);
    for round in 0..60 {
        let words = ["sh", "-c", "sleep 99", &long, &long];
        let mut child = guest.command(&["exec"], &words).spawn()?;
        thread::sleep(Duration::from_micros(500 * round));
        kill_process(Pid::from_child(&child), Signal::TERM)?;
        let ended = wait_for("the end", || child.try_wait().is_ok_and(|it| it.is_some()));
        if ended.is_err() {
            child.kill()?;
        }
        let ended = ended.and(Ok(child.wait_with_output()?));
        let ended = ended.with_context(|| format!("round {round}"))?;
        // Before it watches for signals it has the system's way to end.
        let is_told = matches!(ended.status.code(), None | Some(143));
        ensure!(is_told, "round {round}: {}", shown(&ended));
    }
    Ok(())
}
