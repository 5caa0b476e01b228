//! A person at the console: a prompt, editing, keys that mean something, the end.

use std::io::{Read, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};

use super::Report;
use super::boot::{Bench, Plan};
use crate::guest::{Ending, Guest};
use crate::run::Console;

/// What the shell of the default root prints when it waits for a command.
const PROMPT: &str = "# ";

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Types at a guest and reads what it prints.
struct Typist {
    guest: Guest,
    keys: ChildStdin,
    screen: Arc<Mutex<Vec<u8>>>,
    /// How much of the screen was looked at.
    seen: usize,
}

impl Typist {
    fn start(bench: &Bench, cpus: u32) -> Result<Self> {
        let root = bench.root()?;
        let mut plan = Plan::new(&root, &[]);
        plan.cpus = cpus;
        let machine = bench.machine(&plan, &Console::person().command_line(&[], &[]));
        let (guest, keys, mut output) = Guest::start(&machine, false)?;
        let screen = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&screen);
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut buffer) {
                let mut screen = shared.lock().unwrap_or_else(PoisonError::into_inner);
                screen.extend_from_slice(&buffer[..count]);
            }
        });
        Ok(Self {
            guest,
            keys,
            screen,
            seen: 0,
        })
    }

    /// Presses keys.
    fn press(&mut self, keys: &str) -> Result<(), String> {
        self.keys
            .write_all(keys.as_bytes())
            .map_err(|error| format!("cannot type: {error}"))
    }

    /// Waits until the screen shows `text` after what was looked at before.
    fn expect(&mut self, text: &str) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            {
                let screen = self.screen.lock().unwrap_or_else(PoisonError::into_inner);
                let new = &screen[self.seen..];
                let found = (0..=new.len()).find(|&at| new[at..].starts_with(text.as_bytes()));
                if let Some(at) = found {
                    self.seen += at + text.len();
                    return Ok(());
                }
                if Instant::now() > deadline {
                    return Err(format!("no {text:?} in {:?}", String::from_utf8_lossy(new)));
                }
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until what was started has the terminal: keys typed before are the shell's.
    fn pause(&self) {
        thread::sleep(Duration::from_millis(300));
    }

    /// Types a command and waits for the prompt and what stands before it.
    fn command(&mut self, line: &str, answer: &str) -> Result<(), String> {
        self.press(&format!("{line}\r"))?;
        self.expect(answer)?;
        self.expect(PROMPT)
    }

    /// Waits for the end of the guest.
    fn end(mut self) -> Result<Ending, String> {
        self.guest
            .wait(Some(Instant::now() + PATIENCE))
            .map_err(|error| error.to_string())
    }
}

/// Runs the tests.
pub fn run(bench: &Bench, report: &mut Report) {
    if report.wants("session: a person at the console") {
        for cpus in [1, 2] {
            for (name, test) in SESSIONS {
                report.run(&format!("session: {name}, {cpus} CPUs"), || {
                    let mut typist =
                        Typist::start(bench, cpus).map_err(|error| format!("{error:#}"))?;
                    typist.expect(PROMPT)?;
                    test(&mut typist)?;
                    typist.press("\x03\rexit 0\r")?;
                    let ending = typist.end()?;
                    if ending == Ending::Status(0) {
                        Ok(())
                    } else {
                        Err(format!("{ending:?}"))
                    }
                });
            }
        }
        report.run("session: exit gives the shell's status", || {
            let mut typist = Typist::start(bench, 1).map_err(|error| format!("{error:#}"))?;
            typist.expect(PROMPT)?;
            typist.press("exit 7\r")?;
            let ending = typist.end()?;
            if ending == Ending::Status(7) {
                Ok(())
            } else {
                Err(format!("{ending:?}"))
            }
        });
        for word in ["poweroff", "halt", "poweroff -f"] {
            report.run(&format!("session: {word}"), || {
                let mut typist = Typist::start(bench, 2).map_err(|error| format!("{error:#}"))?;
                typist.expect(PROMPT)?;
                typist.press(&format!("{word}\r"))?;
                let ending = typist.end()?;
                if ending == Ending::Status(0) {
                    Ok(())
                } else {
                    Err(format!("{ending:?}"))
                }
            });
        }
        report.run("session: reboot", || {
            let mut typist = Typist::start(bench, 1).map_err(|error| format!("{error:#}"))?;
            typist.expect(PROMPT)?;
            typist.press("reboot\r")?;
            let ending = typist.end()?;
            if ending == Ending::Restart {
                Ok(())
            } else {
                Err(format!("{ending:?}"))
            }
        });
        report.run("session: the user's terminal is given back", || {
            terminal_is_given_back(bench)
        });
    }
}

type Session = fn(&mut Typist) -> Result<(), String>;

const SESSIONS: &[(&str, Session)] = &[
    ("commands", |typist| {
        typist.command("echo one two", "\r\none two\r\n")?;
        typist.command("false; echo status $?", "\r\nstatus 1\r\n")?;
        typist.command("tty", "\r\n/dev/console\r\n")
    }),
    ("line editing", |typist| {
        // Left and delete, the start of the line, history, and completion of a name.
        typist.press("echo abXc\x1b[D\x1b[D\x1b[3~\r")?;
        typist.expect("\r\nabc\r\n")?;
        typist.expect(PROMPT)?;
        typist.press("xx\x01echo \x05yy\r")?;
        typist.expect("\r\nxxyy\r\n")?;
        typist.expect(PROMPT)?;
        typist.press("\x1b[A\r")?;
        typist.expect("\r\nxxyy\r\n")?;
        typist.expect(PROMPT)?;
        typist.press("cat /etc/hostn\t\r")?;
        typist.expect("\r\ncauseway\r\n")?;
        typist.expect(PROMPT)
    }),
    ("the terminal's own editing", |typist| {
        // cat reads in canonical mode: erase, kill, word erase, end of file.
        typist.press("cat\r")?;
        typist.expect("cat\r\n")?;
        typist.pause();
        typist.press("helpo\x7f\x7flo\r")?;
        typist.expect("\r\nhello\r\n")?;
        typist.press("nothing\x15something\r")?;
        typist.expect("\r\nsomething\r\n")?;
        typist.press("one two\x17three\r")?;
        typist.expect("\r\none three\r\n")?;
        typist.press("\x04")?;
        typist.expect(PROMPT)
    }),
    ("Ctrl-C", |typist| {
        typist.press("sleep 1000\r")?;
        typist.expect("sleep 1000\r\n")?;
        typist.pause();
        typist.press("\x03")?;
        typist.expect(PROMPT)?;
        typist.command("echo status $?", "\r\nstatus 130\r\n")?;
        typist.press("while :; do :; done\r")?;
        typist.expect("done\r\n")?;
        typist.pause();
        typist.press("\x03")?;
        typist.expect(PROMPT)?;
        typist.press("cat /dev/zero | cat > /dev/null\r")?;
        typist.expect("/dev/null\r\n")?;
        typist.pause();
        typist.press("\x03")?;
        typist.expect(PROMPT)
    }),
    ("Ctrl-\\ quits", |typist| {
        typist.press("sleep 1000\r")?;
        typist.expect("sleep 1000\r\n")?;
        typist.pause();
        typist.press("\x1c")?;
        typist.expect("Quit")?;
        typist.expect(PROMPT)
    }),
    ("Ctrl-Z, jobs, bg and fg", |typist| {
        typist.press("sleep 1000\r")?;
        typist.expect("sleep 1000\r\n")?;
        typist.pause();
        typist.press("\x1a")?;
        typist.expect("Stopped")?;
        typist.expect(PROMPT)?;
        typist.command("jobs", "Stopped")?;
        typist.command("bg", "sleep 1000")?;
        typist.command("jobs", "Running")?;
        typist.press("fg\r")?;
        typist.expect("sleep 1000\r\n")?;
        typist.pause();
        typist.press("\x03")?;
        typist.expect(PROMPT)?;
        typist.press("cat\r")?;
        typist.expect("cat\r\n")?;
        typist.pause();
        typist.press("\x1a")?;
        typist.expect("Stopped")?;
        typist.expect(PROMPT)?;
        typist.press("fg\r")?;
        typist.expect("cat\r\n")?;
        typist.pause();
        typist.press("back again\r")?;
        typist.expect("\r\nback again\r\n")?;
        typist.press("\x04")?;
        typist.expect(PROMPT)
    }),
    ("a background job may not read the terminal", |typist| {
        typist.press("cat &\r")?;
        typist.expect(PROMPT)?;
        typist.pause();
        typist.command("jobs", "Stopped (tty input)")?;
        // While `sleep` runs the shell notes the job's end; at once, it may still know it as stopped: 128 and SIGTTIN.
        typist.command("kill -9 %1; sleep 1; wait %1; echo $?", "\r\n137\r\n")
    }),
    ("Ctrl-D on an empty line", |typist| {
        typist.command("sh", "")?;
        typist.press("\x04")?;
        typist.expect(PROMPT)
    }),
    ("vi", |typist| {
        typist.press("vi /tmp/file\r")?;
        typist.expect("1/1 100%")?;
        // vi takes an Escape and what follows at once for one key: a pause ends the insertion.
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
        typist.press("q")?;
        typist.expect(PROMPT)
    }),
    ("ps", |typist| {
        typist.press("ps\r")?;
        typist.expect("PID")?;
        typist.expect("ps")?;
        typist.expect(PROMPT)
    }),
    ("stty and raw input", |typist| {
        typist.command("stty -echo; echo silent; stty echo", "silent")?;
        typist.command("stty | head -1", "speed")?;
        typist.press("read -n 1 key; echo; echo got $key\r")?;
        typist.expect("got $key\r\n")?;
        typist.press("k")?;
        typist.expect("got k\r\n")?;
        typist.expect(PROMPT)
    }),
];

/// `causeway run` on a terminal of its own: raw while the guest runs, as before afterwards, whether
/// the guest ends, is killed by keys, or the command gets a signal.
fn terminal_is_given_back(bench: &Bench) -> Result<(), String> {
    let text = |error: rustix::io::Errno| error.to_string();
    for (name, ending) in [("exit", "exit 3\r"), ("Ctrl-A x", "\x01x"), ("SIGTERM", "")] {
        let pty = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).map_err(text)?;
        grantpt(&pty).map_err(text)?;
        unlockpt(&pty).map_err(text)?;
        let path = ptsname(&pty, Vec::new()).map_err(text)?;
        let path = path.to_string_lossy().into_owned();
        let side = || std::fs::File::options().read(true).write(true).open(&path);
        let terminal = side().map_err(|error| format!("{path}: {error}"))?;
        let before = tcgetattr(&terminal).map_err(text)?;
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let stdio = || side().map(Stdio::from).map_err(|error| error.to_string());
        let mut child = Command::new(program)
            .arg("run")
            .arg("--kernel")
            .arg(&bench.fast)
            .stdin(stdio()?)
            .stdout(stdio()?)
            .stderr(stdio()?)
            .spawn()
            .map_err(|error| error.to_string())?;
        let mut user = std::fs::File::from(pty);
        let mut screen = Vec::new();
        let mut buffer = [0; 4096];
        // The shell asks where the cursor is behind its prompt.
        while !String::from_utf8_lossy(&screen).contains(PROMPT) {
            let count = user.read(&mut buffer).map_err(|error| error.to_string())?;
            screen.extend_from_slice(&buffer[..count]);
        }
        let during = tcgetattr(&terminal).map_err(text)?;
        if during
            .local_modes
            .intersects(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
        {
            return Err(format!(
                "{name}: the terminal is not raw while the guest runs"
            ));
        }
        if ending.is_empty() {
            let process = rustix::process::Pid::from_child(&child);
            rustix::process::kill_process(process, rustix::process::Signal::TERM).map_err(text)?;
        } else {
            user.write_all(ending.as_bytes())
                .map_err(|error| error.to_string())?;
        }
        let drain = thread::spawn(move || while user.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {});
        let status = child.wait().map_err(|error| error.to_string())?;
        let after = tcgetattr(&terminal).map_err(text)?;
        drop(terminal);
        drop(drain);
        let expected = match name {
            "exit" => 3,
            "SIGTERM" => 143,
            _ => crate::outcome::KILLED.into(),
        };
        if status.code() != Some(expected) {
            return Err(format!("{name}: {status}, {expected} expected"));
        }
        if after.local_modes != before.local_modes || after.input_modes != before.input_modes {
            return Err(format!("{name}: the terminal was not given back as it was"));
        }
    }
    Ok(())
}
