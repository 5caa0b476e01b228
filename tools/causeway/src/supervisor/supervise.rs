//! A guest from its start to its end.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use session::{Part, Terminal, Window};
use signal_hook::consts::SIGWINCH;
use signal_hook::iterator::Signals;

use super::daemon::Daemon;
use super::place::{self, Place, State};
use super::record;
use super::server::Server;
use crate::console::Console;
use crate::guest::{Control, Ending, Guest};
use crate::input::Keys;
use crate::netserver;
use crate::options;
use crate::outcome::{self, explain};
use crate::qemu::{self, Boot, Machine};
use crate::scratch::Scratch;
use crate::sessions::{
    self, Descriptor, Event, FIRST, Handle, Observer, Ports, Program, Streams, Switch,
};
use crate::signals::{self, Guard};
use crate::terminal::{self, Raw};

/// The sessions of a guest that others can reach.
const SESSIONS: u8 = session::MAX_SESSIONS;

/// How long output is kept for its reader after the machine was ended from outside.
const GRACE: Duration = Duration::from_secs(2);

/// The terminal of a detached guest until a client attaches its own.
const UNATTENDED: Terminal = Terminal {
    window: Window {
        rows: 24,
        columns: 80,
    },
    streams: [true; 3],
    newlines: true,
};

/// What happens to the first program.
#[derive(Default)]
struct Course {
    /// Its status, as `wait` says it, once it has ended.
    ended: Option<i32>,
    failed: Option<(Part, i32)>,
    /// Why bytes of its streams were lost.
    broken: Option<String>,
    /// Why the guest and this program don't understand each other.
    fault: Option<String>,
}

/// What other threads know and decide.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Course>>);

impl Shared {
    fn course(&self) -> MutexGuard<'_, Course> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts a guest, moves its programs' bytes until it ends, and returns the exit status.
///
/// # Errors
/// When the guest can't be prepared or started, or has a name that another one has.
pub fn supervise(options: &options::Run) -> Result<u8> {
    signals::watch()?;
    let mut daemon = options.guest_name.supervisor().map(|_| Daemon::new());
    let name = options.guest_name.name();
    let mut place = name.map(Place::take).transpose()?;
    if let (Some(daemon), Some(place)) = (&mut daemon, &place) {
        daemon.enter(place.folder())?;
    }
    // A guest that has not been started leaves no name behind.
    let undo = place.as_ref().map(|place| {
        let folder = place.folder().to_path_buf();
        signals::undo(move || {
            let _ = fs::remove_dir_all(folder);
        })
    });
    let ended = attend(options, daemon.as_ref(), place.as_ref(), undo);
    let (status, state, why) = match ended {
        Ok((status, state)) => (status, Some(state), String::new()),
        Err(error) => {
            let why = format!("causeway: {error:#}\n");
            eprint!("{why}");
            (outcome::FAILURE, None, why)
        }
    };
    let was_reported = daemon.is_some_and(|daemon| !daemon.report_end(status, &why));
    if let Some(place) = place.take() {
        match state {
            // It has run, and its supervisor was its only observer.
            Some(state) if was_reported => {
                let ended = Some((status, place::now()));
                place.note(&State { ended, ..state })?;
                place.leave();
            }
            _ => place.remove(),
        }
    }
    Ok(status)
}

/// Runs the guest; returns the exit status, and what is known of the guest.
fn attend(
    options: &options::Run,
    daemon: Option<&Daemon>,
    place: Option<&Place>,
    unstarted: Option<Guard>,
) -> Result<(u8, State)> {
    let terminal = match daemon {
        None => terminal::of_streams(),
        Some(_) => options.guest_name.has_terminal().then_some(UNATTENDED),
    };
    let command = match (&options.netserver, options.guest.net.own) {
        (Some(words), Some(own)) => netserver::command(&own, words, &options.command),
        _ => options.command.clone(),
    };
    let program = options.program.program(&command, terminal)?;
    let program = options.guest_name.first(program);
    let kernel = options.guest.kernel()?;
    let folder = Scratch::new()?;
    let (ports, ends) = Ports::new(if place.is_some() { SESSIONS } else { 1 })?;
    let machine = machine(options, &kernel, &ports, folder.path())?;
    let machine = Machine {
        extra: [machine.extra, ends.qemu()].concat(),
        ..machine
    };
    let state = State {
        command: program.command(),
        cpus: machine.cpus,
        memory: machine.memory.clone(),
        started: place::now(),
        is_detached: daemon.is_some(),
        has_terminal: terminal.is_some(),
        ended: None,
    };
    let listener = place.map(Place::listen).transpose()?;
    ends.inherit()?;
    let (mut guest, _keys, serial) = match daemon.cloned() {
        Some(daemon) if options.log => Guest::start_with(&machine, move |line| daemon.log(line))?,
        _ => Guest::start(&machine, options.log)?,
    };
    // The time is the guest's: the kernel has been built and the root packed.
    let deadline = options.timeout.map(|timeout| Instant::now() + timeout);
    drop(ends);
    let serial = Tail::of(serial);
    let (switch, handle) = Switch::new(ports)?;
    let (shared, control) = (Shared::default(), Control::of(&guest));
    let switch = start(switch, &shared, control.clone());
    let streams = match (daemon, place) {
        (Some(_), Some(place)) => Streams {
            recorder: Some(Arc::new(Mutex::new(record::Writer::new(place.folder())))),
            ..Streams::default()
        },
        _ => own_streams(terminal)?,
    };
    let raw = match daemon {
        None => Raw::enter_for(terminal),
        Some(_) => None,
    };
    pass_sizes(&handle)?;
    let stopped = handle.clone();
    control.end_by_signal(move || stopped.stop());
    drop(unstarted);
    let observer = observer(&shared, control.clone(), daemon.cloned());
    handle.open_first(program.clone(), streams, observer);
    if let (Some(listener), Some(place)) = (listener, place) {
        place.note(&state)?;
        let (killer, killed) = control.parts();
        let server = Server {
            handle: handle.clone(),
            killer,
            killed,
            attached: Arc::default(),
        };
        server.start(listener);
    }
    let ending = guest.wait(deadline);
    let is_natural = ending.as_ref().is_ok_and(is_natural);
    finish(switch, &handle, &control, is_natural);
    drop(raw);
    if let Some(signal) = signals::received() {
        return Ok((outcome::SIGNAL + signal as u8, state));
    }
    let status = judge(&shared, control.ending(ending?), &program, |ending| {
        serial.explain(ending);
        explain(ending, &guest.log(), &kernel, options.log);
    });
    Ok((status, state))
}

/// Returns the exit status, and says what explains it.
fn judge(shared: &Shared, ending: Ending, program: &Program, explain: impl FnOnce(&Ending)) -> u8 {
    let course = shared.course();
    if let Some((part, error)) = course.failed {
        let (why, status) = program.failure(part, error);
        eprintln!("causeway: {why}");
        return status;
    }
    if let Some(fault) = &course.fault {
        eprintln!("causeway: {fault}");
        return outcome::FAILURE;
    }
    if !is_natural(&ending) {
        explain(&ending);
        return outcome::status(&ending);
    }
    if let Some(why) = &course.broken {
        eprintln!("causeway: {why}");
    }
    // The log, which programs write as well, does not count where a session has said it.
    match course.ended {
        Some(status) => outcome::of_streams(outcome::of_program(status), course.broken.is_some()),
        None if program.is_command() => {
            let how = match ending {
                Ending::Restart => "restarted",
                _ => "powered off",
            };
            eprintln!("causeway: the guest was {how} before the command had ended");
            outcome::LEFT
        }
        None => 0,
    }
}

/// Whether the guest has ended by itself, in order.
fn is_natural(ending: &Ending) -> bool {
    matches!(
        ending,
        Ending::Status(_) | Ending::NoStatus | Ending::Restart
    )
}

/// The machine, whose kernel knows of its sessions.
fn machine(options: &options::Run, kernel: &Path, ports: &Ports, folder: &Path) -> Result<Machine> {
    let (accelerator, why) = qemu::choose(options.guest.accelerator, kernel)?;
    if options.log {
        eprintln!("accelerator: {accelerator:?} ({why})");
    }
    let mut guest = options.guest.clone();
    guest
        .append
        .push(format!("sessions={}", ports.streams.len()));
    if let Some(hostname) = options.guest_name.hostname() {
        guest.append.push(format!("hostname={hostname}"));
    }
    if options.netserver.is_some() {
        guest.shares.push(netserver::share(folder)?);
    }
    let machine = guest.machine(kernel, Console::person(), &[], accelerator, folder)?;
    let has_kernel = matches!(machine.boot, Boot::Kernel { .. });
    ensure!(has_kernel, "an image has no sessions");
    Ok(machine)
}

/// This program's standard input, output and error. Those that are no terminal are the guest's
/// alone from now on, so that it can close them.
fn own_streams(terminal: Option<Terminal>) -> Result<Streams> {
    let terminals = terminal.map_or([false; 3], |terminal| terminal.streams);
    let descriptors = [
        io::stdin().as_fd().try_clone_to_owned()?,
        io::stdout().as_fd().try_clone_to_owned()?,
        io::stderr().as_fd().try_clone_to_owned()?,
    ];
    sessions::give_up(terminals).context("cannot open /dev/null")?;
    let [input, output, error] = descriptors;
    Ok(Streams {
        input: Some(Descriptor::source(input)),
        keys: terminals[0].then(Keys::default),
        outputs: [output, error].map(|sink| Some(Descriptor::sink(sink))),
        recorder: None,
    })
}

/// Starts the switch's thread.
fn start(switch: Switch, shared: &Shared, control: Control) -> JoinHandle<()> {
    let shared = shared.clone();
    thread::spawn(move || {
        switch.run(|why| {
            shared.course().fault.get_or_insert_with(|| why.into());
            control.give_up();
        });
    })
}

/// Follows the first program.
fn observer(shared: &Shared, control: Control, daemon: Option<Daemon>) -> Observer {
    let shared = shared.clone();
    Box::new(move |event| match event {
        Event::Started => {
            if let Some(daemon) = &daemon {
                daemon.report_start();
            }
        }
        Event::Broken { stream, error } => {
            let why = sessions::broken(stream, error);
            shared.course().broken.get_or_insert(why);
        }
        Event::Ended(status) => shared.course().ended = Some(status),
        Event::Failed { part, error } => {
            shared.course().failed = Some((part, error));
            control.give_up();
        }
        Event::Kill => {
            control.kill();
        }
        Event::Gone | Event::Refused(_) | Event::Detached => {}
    })
}

/// Passes the terminal's sizes on.
fn pass_sizes(handle: &Handle) -> Result<()> {
    let handle = handle.clone();
    let mut signals = Signals::new([SIGWINCH]).context("cannot watch for signals")?;
    thread::spawn(move || {
        for _ in signals.forever() {
            if let Some(window) = terminal::window() {
                handle.window(FIRST, window);
            }
        }
    });
    Ok(())
}

/// Waits until the output of a machine that has ended is where it belongs. The output of one that
/// was ended from outside is dropped if its reader does not take it in time.
fn finish(switch: JoinHandle<()>, handle: &Handle, control: &Control, is_natural: bool) {
    let start = Instant::now();
    while !switch.is_finished() {
        let is_killed = !is_natural || control.is_killed();
        if is_killed && start.elapsed() > GRACE {
            handle.stop();
        }
        thread::sleep(Duration::from_millis(1));
    }
    // If it panicked, it has said so.
    let _ = switch.join();
}

/// The last of what the kernel itself writes on the console.
struct Tail(JoinHandle<VecDeque<u8>>);

impl Tail {
    /// Bytes that are kept.
    const LENGTH: usize = 8192;

    /// Reads the console to its end.
    fn of(mut console: impl Read + Send + 'static) -> Self {
        Self(thread::spawn(move || {
            let (mut kept, mut buffer) = (VecDeque::new(), [0; 4096]);
            while let Ok(count @ 1..) = console.read(&mut buffer) {
                kept.extend(&buffer[..count]);
                let excess = kept.len().saturating_sub(Self::LENGTH);
                kept.drain(..excess);
            }
            kept
        }))
    }

    /// Waits for the console's end, which is the machine's, and returns its last bytes.
    fn text(self) -> String {
        let bytes: Vec<u8> = self.0.join().unwrap_or_default().into();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Shows it where the machine did not end well.
    fn explain(self, ending: &Ending) {
        if matches!(ending, Ending::BadStart | Ending::Lost(_)) {
            for line in self.text().lines() {
                eprintln!("{}", line.trim_end());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// A console whose last bytes come late.
    struct Slow(u8);

    impl Read for Slow {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            self.0 += 1;
            thread::sleep(Duration::from_millis(100));
            to[0] = b'0' + self.0;
            Ok(usize::from(self.0 < 4))
        }
    }

    #[test]
    fn the_last_bytes_of_the_console_are_waited_for() {
        assert_eq!(Tail::of(Slow(0)).text(), "123");
        let long = io::repeat(b'x').take(100_000).chain(&b"end"[..]);
        let text = Tail::of(long).text();
        assert!(text.len() == Tail::LENGTH && text.ends_with("xend"));
    }

    #[test]
    fn the_status_is_the_sessions() {
        let judged = |command: &[&str], ended, ending| {
            let shared = Shared::default();
            shared.course().ended = ended;
            let command: Vec<_> = command.iter().map(Into::into).collect();
            judge(&shared, ending, &Program::new(&command), |_| ())
        };
        for ending in [Ending::Status(0), Ending::NoStatus, Ending::Restart] {
            assert_eq!(judged(&["x"], Some(7 << 8), ending.clone()), 7);
            assert_eq!(judged(&["x"], Some(9), ending.clone()), 137);
            assert_eq!(judged(&["x"], None, ending.clone()), outcome::LEFT);
            // A shell that powers off.
            assert_eq!(judged(&[], None, ending), 0);
        }
        assert_eq!(judged(&["x"], Some(0), Ending::Panic), outcome::PANIC);
    }
}
