//! A running guest: its console, its log, its end.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::log::Log;
use crate::outcome;
use crate::qemu::{self, Machine};
use crate::scratch::{Scratch, short_path};
use crate::signals;

/// How long a kernel that panicked may take to stop.
const PANIC_GRACE: Duration = Duration::from_secs(5);

/// How a guest ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ending {
    /// The first program ended with this status, or the guest powered itself off (0); as the log
    /// says.
    Status(u8),
    /// The guest ended in order, and its log does not have the status.
    NoStatus,
    /// The guest asked for a restart.
    Restart,
    /// The kernel panicked.
    Panic,
    /// The kernel could not start.
    BadStart,
    /// It did not end in time.
    Timeout,
    /// The user ended it.
    Killed,
    /// The emulator ended for a reason of its own.
    Lost(String),
    /// The emulator would not start the machine, and has said why.
    Refused,
}

/// A started machine.
pub struct Guest {
    child: Child,
    killer: Killer,
    log: Arc<Log>,
    reader: Option<JoinHandle<()>>,
    /// The path of the log's socket, by a folder that is open.
    socket: PathBuf,
    _open: File,
    _folder: Scratch,
}

impl Guest {
    /// Starts a machine. Each line of its log is shown on standard error if `show_log`.
    ///
    /// # Errors
    /// When QEMU cannot be started.
    pub fn start(machine: &Machine, show_log: bool) -> Result<(Self, ChildStdin, ChildStdout)> {
        Self::start_with(machine, move |line| {
            if show_log {
                // The guest goes on without a reader.
                let _ = write!(io::stderr(), "{line}\r\n");
            }
        })
    }

    /// Starts a machine; a thread calls `each` with each line of its log.
    ///
    /// # Errors
    /// When QEMU cannot be started.
    pub fn start_with(
        machine: &Machine,
        each: impl FnMut(&str) + Send + 'static,
    ) -> Result<(Self, ChildStdin, ChildStdout)> {
        let folder = Scratch::new()?;
        let (open, short) = short_path(folder.path()).context("cannot make the log's socket")?;
        let socket = short.join("log");
        let listener = UnixListener::bind(&socket).context("cannot make the log's socket")?;
        let mut child = machine
            .command(&socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(qemu::missing)?;
        let input = child.stdin.take().context("no pipe to QEMU")?;
        let output = child.stdout.take().context("no pipe from QEMU")?;
        let log = Arc::new(Log::new()?);
        let lines = Arc::clone(&log);
        let reader = thread::spawn(move || {
            if let Ok((stream, _)) = listener.accept() {
                lines.read(stream, each);
            }
        });
        let killer = match Killer::of(&child) {
            Ok(killer) => killer,
            Err(error) => {
                child.kill()?;
                child.wait()?;
                return Err(error);
            }
        };
        Ok((
            Self {
                child,
                killer,
                log,
                reader: Some(reader),
                socket,
                _open: open,
                _folder: folder,
            },
            input,
            output,
        ))
    }

    /// The log's lines so far, as far as they are kept.
    pub fn log(&self) -> Vec<String> {
        self.log.lines()
    }

    /// Returns a handle by which another thread waits until the kernel runs.
    pub fn up(&self) -> Up {
        Up(Arc::clone(&self.log))
    }

    /// Returns a handle by which another thread ends the machine.
    pub fn killer(&self) -> Killer {
        self.killer.clone()
    }

    /// QEMU's process.
    pub fn process(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Ends the machine at once.
    pub fn kill(&mut self) {
        self.killer.kill();
    }

    /// Waits for the end, no longer than until `deadline`; then the machine is killed.
    ///
    /// # Errors
    /// When QEMU's status cannot be read.
    pub fn wait(&mut self, deadline: Option<Instant>) -> Result<Ending> {
        let mut panicked: Option<Instant> = None;
        let ended = loop {
            let hung = panicked.map(|since| since + PANIC_GRACE);
            let until = [deadline, hung].into_iter().flatten().min();
            self.rest(until, panicked.is_some())?;
            if let Some(ended) = self.child.try_wait()? {
                break ended;
            }
            if panicked.is_none() && self.log.has_panicked() {
                panicked = Some(Instant::now());
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                self.kill();
                self.child.wait()?;
                self.finish_log();
                return Ok(if panicked.is_some() {
                    Ending::Panic
                } else {
                    Ending::Timeout
                });
            }
        };
        self.finish_log();
        Ok(match ended.code() {
            Some(qemu::status::DONE) => self.log.status().map_or(Ending::NoStatus, Ending::Status),
            Some(qemu::status::PANIC) => Ending::Panic,
            Some(qemu::status::BAD_START) => Ending::BadStart,
            Some(qemu::status::RESTART) => Ending::Restart,
            _ if panicked.is_some() => Ending::Panic,
            // Another kernel powers off so.
            Some(0) if let Some(status) = self.log.status() => Ending::Status(status),
            Some(0) => Ending::Lost(
                "the machine was reset without a word (a triple fault, or QEMU was asked to quit)"
                    .into(),
            ),
            Some(1) if self.log.is_empty() => Ending::Refused,
            // It was not there to be executed.
            Some(status) if status == i32::from(outcome::FAILURE) => Ending::Refused,
            _ => Ending::Lost(format!("QEMU ended with {ended}")),
        })
    }

    /// Waits until QEMU ends, the kernel panics if that is not known, or `until`, if there is one.
    fn rest(&self, until: Option<Instant>, is_panic_known: bool) -> Result<()> {
        let wait = |until: Instant| until.saturating_duration_since(Instant::now());
        let timeout = until.map(|until| Timespec::try_from(wait(until)));
        let end = PollFd::new(&self.killer.0, PollFlags::IN);
        let panic = PollFd::from_borrowed_fd(self.log.panic(), PollFlags::IN);
        let mut all = [end, panic];
        let some = if is_panic_known { 1 } else { 2 };
        match poll(&mut all[..some], timeout.transpose()?.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error).context("cannot wait for QEMU"),
        }
    }

    /// Waits until the whole log is here. QEMU must have ended.
    fn finish_log(&mut self) {
        // If QEMU never connected, the reader waits for a connection: this one.
        let _ = UnixStream::connect(&self.socket);
        if let Some(reader) = self.reader.take() {
            // A reader that panicked has said so itself.
            let _ = reader.join();
        }
    }
}

/// Tells another thread when the kernel runs.
pub struct Up(Arc<Log>);

impl Up {
    /// How long a kernel may take to its log's first line; one without a log is taken to run then.
    const PATIENCE: Duration = Duration::from_secs(10);

    /// Waits until the kernel has set its serial ports up: what the console was sent before is
    /// lost, as on any machine.
    pub fn wait(&self) {
        self.0.wait_for_line(Self::PATIENCE);
    }
}

/// Ends a machine for its user; clones are of the same machine.
#[derive(Clone)]
pub struct Control {
    killer: Killer,
    is_killed: Arc<AtomicBool>,
}

impl Control {
    /// Of this machine, which no user has ended.
    pub fn of(guest: &Guest) -> Self {
        Self {
            killer: guest.killer(),
            is_killed: Arc::default(),
        }
    }

    /// Ends the machine at once, as its user wants.
    pub fn kill(&self) {
        self.is_killed.store(true, Ordering::SeqCst);
        self.killer.kill();
    }

    /// Whether its user has ended it.
    pub fn is_killed(&self) -> bool {
        self.is_killed.load(Ordering::SeqCst)
    }

    /// Ends the machine by a fault, which is told elsewhere.
    pub fn give_up(&self) {
        self.killer.kill();
    }

    /// From now on a signal that ends this program ends the machine, then does `more`.
    pub fn end_by_signal(&self, more: impl FnOnce() + Send + 'static) {
        let killer = self.killer.clone();
        signals::ask(move || {
            killer.kill();
            more();
        });
    }

    /// How the machine has ended, given what its process says.
    pub fn ending(&self, ending: Ending) -> Ending {
        if self.is_killed() {
            Ending::Killed
        } else {
            ending
        }
    }

    /// For a thread that sets the flag, then kills.
    pub fn parts(&self) -> (Killer, Arc<AtomicBool>) {
        (self.killer.clone(), Arc::clone(&self.is_killed))
    }
}

/// Ends a machine from another thread. A process that gets QEMU's number after its end is spared.
#[derive(Clone, Debug)]
pub struct Killer(Arc<OwnedFd>);

impl Killer {
    /// Takes a child that has not been waited for.
    fn of(child: &Child) -> Result<Self> {
        let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty());
        Ok(Self(Arc::new(process.context("cannot watch QEMU")?)))
    }

    /// Ends the machine at once.
    pub fn kill(&self) {
        // It may have ended by itself.
        let _ = pidfd_send_signal(&self.0, Signal::KILL);
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.kill();
        let _ = self.child.wait();
        self.finish_log();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_with_the_number_of_one_that_has_ended_is_spared() {
        let mut first = Command::new("true").spawn().unwrap();
        let killer = Killer::of(&first).unwrap();
        first.wait().unwrap();
        let number = first.id();
        for _ in 0..1000 {
            let last = (number - 1).to_string();
            if fs::write("/proc/sys/kernel/ns_last_pid", last).is_err() {
                return; // Only root chooses numbers.
            }
            let mut second = Command::new("sleep").arg("60").spawn().unwrap();
            let is_same = second.id() == number;
            if is_same {
                killer.kill();
                thread::sleep(Duration::from_millis(100));
            }
            let ended = second.try_wait().unwrap();
            second.kill().unwrap();
            second.wait().unwrap();
            if is_same {
                assert_eq!(ended, None);
                return;
            }
        }
        panic!("the number {number} is not to be had");
    }
}
