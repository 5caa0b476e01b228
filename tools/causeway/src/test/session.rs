//! A person at the console: a prompt, editing, keys that mean something, the end.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::ChildStdin;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use rustix::termios::LocalModes;

use super::Report;
use super::boot::{Bench, causeway};
use super::console::Terminal;
use crate::console::Console;
use crate::guest::{Ending, Guest};
use crate::outcome;
use crate::screen::{Screen, Watch};

/// The prompt of the default root's shell.
const PROMPT: &str = "# ";

/// The time for an answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Types at a guest and reads its screen.
struct Typist {
    guest: Guest,
    keys: ChildStdin,
    screen: Screen,
}

impl Typist {
    /// Boots a guest and waits for its prompt.
    fn start(bench: &Bench, cpus: u32) -> Result<Self> {
        let machine = bench.guest(&[]).cpus(cpus).machine_on(Console::person())?;
        let (guest, keys, output) = Guest::start(&machine, false)?;
        let mut typist = Self {
            guest,
            keys,
            screen: Screen::new(output),
        };
        typist.expect(PROMPT)?;
        Ok(typist)
    }

    /// Presses keys.
    fn press(&mut self, keys: &str) -> Result<()> {
        let typed = self.keys.write_all(keys.as_bytes());
        typed.context("cannot type")
    }

    /// Waits until the screen shows `text` behind the parts that were expected before.
    fn expect(&mut self, text: &str) -> Result<()> {
        let _watch = Watch::new(self.guest.killer(), PATIENCE);
        self.screen.read_until(text).map(drop)
    }

    /// Presses keys and waits for the answer, if there is one, and the prompt behind it.
    fn keys(&mut self, keys: &str, answer: &str) -> Result<()> {
        self.press(keys)?;
        if !answer.is_empty() {
            self.expect(answer)?;
        }
        self.expect(PROMPT)
    }

    /// Types a command and waits for its answer and the prompt behind it.
    fn command(&mut self, line: &str, answer: &str) -> Result<()> {
        self.keys(&format!("{line}\r"), answer)
    }

    /// Starts a program and waits until it has the terminal: the shell would read keys that come
    /// before. `echo` is the end of the line as the terminal shows it.
    fn start_program(&mut self, line: &str, echo: &str) -> Result<()> {
        self.press(&format!("{line}\r"))?;
        self.expect(&format!("{echo}\r\n"))?;
        thread::sleep(Duration::from_millis(300));
        Ok(())
    }

    /// Presses the last keys and checks how the guest ends.
    fn end(mut self, keys: &str, wanted: &Ending) -> Result<()> {
        self.press(keys)?;
        let ending = self.guest.wait(Some(Instant::now() + PATIENCE))?;
        ensure!(ending == *wanted, "{ending:?}");
        Ok(())
    }
}

/// Runs the tests.
pub fn run(bench: &Bench, report: &mut Report) {
    if !report.wants("session: a person at the console") {
        return;
    }
    for cpus in [1, 2] {
        for (name, test) in SESSIONS {
            report.run(&format!("session: {name}, {cpus} CPUs"), || {
                let mut typist = Typist::start(bench, cpus)?;
                test(&mut typist)?;
                typist.end("\x03\rexit 0\r", &Ending::Status(0))
            });
        }
    }
    for (name, cpus, keys, ending) in [
        (
            "exit gives the shell's status",
            1,
            "exit 7\r",
            Ending::Status(7),
        ),
        ("poweroff", 2, "poweroff\r", Ending::Status(0)),
        ("halt", 2, "halt\r", Ending::Status(0)),
        ("poweroff -f", 2, "poweroff -f\r", Ending::Status(0)),
        ("reboot", 1, "reboot\r", Ending::Restart),
    ] {
        report.run(&format!("session: {name}"), || {
            Typist::start(bench, cpus)?.end(keys, &ending)
        });
    }
    report.run("session: the user's terminal is given back", || {
        terminal_is_given_back(bench)
    });
}

type Session = fn(&mut Typist) -> Result<()>;

const SESSIONS: &[(&str, Session)] = &[
    ("commands", |typist| {
        typist.command("echo one two", "\r\none two\r\n")?;
        typist.command("false; echo status $?", "\r\nstatus 1\r\n")?;
        typist.command("tty", "\r\n/dev/console\r\n")
    }),
    ("line editing", |typist| {
        // Left and delete, the start of the line, history, and completion of a name.
        typist.command("echo abXc\x1b[D\x1b[D\x1b[3~", "\r\nabc\r\n")?;
        typist.command("xx\x01echo \x05yy", "\r\nxxyy\r\n")?;
        typist.command("\x1b[A", "\r\nxxyy\r\n")?;
        typist.command("cat /etc/hostn\t", "\r\ncauseway\r\n")
    }),
    ("the terminal's own editing", |typist| {
        // cat reads in canonical mode: erase, kill, word erase, end of file.
        typist.start_program("cat", "cat")?;
        for (keys, line) in [
            ("helpo\x7f\x7flo\r", "\r\nhello\r\n"),
            ("nothing\x15something\r", "\r\nsomething\r\n"),
            ("one two\x17three\r", "\r\none three\r\n"),
        ] {
            typist.press(keys)?;
            typist.expect(line)?;
        }
        typist.keys("\x04", "")
    }),
    ("Ctrl-C", |typist| {
        typist.start_program("sleep 1000", "sleep 1000")?;
        typist.keys("\x03", "")?;
        typist.command("echo status $?", "\r\nstatus 130\r\n")?;
        typist.start_program("while :; do :; done", "done")?;
        typist.keys("\x03", "")?;
        typist.start_program("cat /dev/zero | cat > /dev/null", "/dev/null")?;
        typist.keys("\x03", "")
    }),
    ("Ctrl-\\ quits", |typist| {
        typist.start_program("sleep 1000", "sleep 1000")?;
        typist.keys("\x1c", "Quit")
    }),
    ("Ctrl-Z, jobs, bg and fg", |typist| {
        typist.start_program("sleep 1000", "sleep 1000")?;
        typist.keys("\x1a", "Stopped")?;
        typist.command("jobs", "Stopped")?;
        typist.command("bg", "sleep 1000")?;
        typist.command("jobs", "Running")?;
        typist.start_program("fg", "sleep 1000")?;
        typist.keys("\x03", "")?;
        typist.start_program("cat", "cat")?;
        typist.keys("\x1a", "Stopped")?;
        typist.start_program("fg", "cat")?;
        typist.press("back again\r")?;
        typist.expect("\r\nback again\r\n")?;
        typist.keys("\x04", "")
    }),
    ("a background job may not read the terminal", |typist| {
        typist.command("cat &", "")?;
        thread::sleep(Duration::from_millis(300));
        typist.command("jobs", "Stopped (tty input)")?;
        // While `sleep` runs the shell notes the job's end; at once, it may still know it as
        // stopped: 128 and SIGTTIN.
        typist.command("kill -9 %1; sleep 1; wait %1; echo $?", "\r\n137\r\n")
    }),
    ("Ctrl-D on an empty line", |typist| {
        typist.command("sh", "")?;
        typist.keys("\x04", "")
    }),
    ("vi", |typist| {
        typist.press("vi /tmp/file\r")?;
        typist.expect("1/1 100%")?;
        // vi takes an Escape and a key that follows at once for one key: a pause ends the
        // insertion.
        for keys in ["ifirst line\rsecond line", "\x1b", "ggxiF", "\x1b", ":wq\r"] {
            typist.press(keys)?;
            thread::sleep(Duration::from_millis(500));
        }
        typist.expect(PROMPT)?;
        typist.command(
            "cat /tmp/file; wc -l /tmp/file",
            "\r\nFirst line\r\nsecond line\r\n2 /tmp/file",
        )
    }),
    ("top", |typist| {
        typist.press("top\r")?;
        typist.expect("Mem:")?;
        typist.expect("PID")?;
        typist.keys("q", "")
    }),
    ("ps", |typist| {
        typist.press("ps\r")?;
        typist.expect("PID")?;
        typist.keys("", "ps")
    }),
    ("stty and raw input", |typist| {
        typist.command("stty -echo; echo silent; stty echo", "silent")?;
        typist.command("stty | head -1", "speed")?;
        typist.press("read -n 1 key; echo; echo got $key\r")?;
        typist.expect("got $key\r\n")?;
        typist.keys("k", "got k\r\n")
    }),
];

/// `causeway run` on a terminal of its own: raw while the guest runs, as before afterwards, whether
/// the guest ends, is killed by keys, or the command gets a signal.
fn terminal_is_given_back(bench: &Bench) -> Result<()> {
    for (name, ending, status) in [
        ("exit", "exit 3\r", (Some(3), None)),
        ("Ctrl-A x", "\x01x", (Some(outcome::KILLED.into()), None)),
        ("SIGTERM", "", (None, Some(Signal::TERM.as_raw()))),
    ] {
        let mut terminal = Terminal::new()?;
        let before = terminal.modes()?;
        let mut command = causeway(&["run", "--kernel"]);
        let mut child = terminal.start(command.arg(&bench.fast), [true; 3])?;
        drop(command);
        terminal.expect(PROMPT)?;
        let cooked = LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        ensure!(
            !terminal.modes()?.local_modes.intersects(cooked),
            "{name}: the terminal is not raw while the guest runs"
        );
        match ending {
            "" => kill_process(Pid::from_child(&child), Signal::TERM)?,
            keys => terminal.press(keys)?,
        }
        let ended = child.wait()?;
        let after = terminal.modes()?;
        ensure!(
            (ended.code(), ended.signal()) == status,
            "{name}: {ended}, {status:?} expected"
        );
        ensure!(
            after.local_modes == before.local_modes && after.input_modes == before.input_modes,
            "{name}: the terminal was not given back as it was"
        );
    }
    Ok(())
}
