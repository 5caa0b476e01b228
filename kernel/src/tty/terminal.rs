//! A terminal: a line discipline between a wire and the programs that read and write it.

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use abi::{
    Errno, Result,
    raw::general::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTSTP, VMIN, VTIME, termios2, winsize},
};
use fbuf::{Sink, Source};
use nucleus::{
    frame,
    sync::{Mutex, MutexGuard, Rank, SpinLock},
    task::{Sleep, WaitQueue, Woken},
    time,
};

use super::{
    held::Held,
    line::{Effect, Key, Line},
};
use crate::process::{
    Group, Pid, Process,
    signal::{self, Info},
};

/// Typed bytes that wait while the line discipline's own buffer is full: a generous paste.
const HELD: usize = 64 * 1024;
/// Echoed bytes that wait while output is stopped.
const ECHO_HELD: usize = 4096;
/// Bytes that pass through the kernel's stack at a time.
const PIECE: usize = 512;

/// The wire of a terminal: a serial port, the other side of a pseudo terminal.
pub trait Driver: Send + Sync {
    /// Sends bytes. Called with the terminal's lock held, in the order in which they are to appear.
    fn write(&self, bytes: &[u8]);

    /// Throws unsent bytes away.
    fn flush_output(&self) {}

    /// Bytes not sent yet (`TIOCOUTQ`).
    fn unsent(&self) -> usize {
        0
    }

    /// Whether a piece of a program's output may be sent now; a waiter for it is woken through
    /// [`Tty::writers`].
    fn has_room(&self) -> bool {
        true
    }

    /// How many typed bytes wait for the line discipline before their sender has to wait.
    fn input_limit(&self) -> usize {
        HELD
    }

    /// Unread input was thrown away.
    fn input_flushed(&self) {}

    /// Output was stopped, or goes on; called for no change, too.
    fn flow_changed(&self, _stopped: bool) {}

    /// The settings are others now.
    fn settings_changed(&self, _old: &termios2, _new: &termios2) {}

    /// A file of the terminal is being opened.
    ///
    /// # Errors
    /// `EIO` where it can't be.
    fn opened(&self) -> Result<()> {
        Ok(())
    }

    /// A file of the terminal was closed. Returns whether that was the last one and the terminal is
    /// to be given up by the session it controls.
    fn closed(&self) -> bool {
        false
    }
}

/// A terminal.
pub struct Tty {
    /// As `/proc/PID/stat` and `TIOCGDEV` show it.
    device: u64,
    driver: Box<dyn Driver>,
    pub(super) state: Mutex<State>,
    pub(super) control: SpinLock<Control>,
    /// Woken when there is something to read.
    pub(super) readers: WaitQueue,
    /// Woken when output goes on.
    pub(super) writers: WaitQueue,
    /// Counts hang-ups: files opened before one are dead.
    hangups: AtomicU64,
    /// `TIOCEXCL`.
    pub(super) exclusive: AtomicBool,
    /// Woken when held bytes went to the line discipline.
    pub(super) drained: WaitQueue,
}

/// The state under the terminal's sleeping lock.
pub(super) struct State {
    pub line: Line,
    /// Typed and not yet given to the line discipline.
    held: Held,
    /// Echoed while output was stopped.
    echo: Vec<u8>,
}

/// Whom the terminal controls.
pub(super) struct Control {
    /// 0: no session.
    pub session: Pid,
    /// The foreground process group; 0: none.
    pub foreground: Pid,
    pub window: winsize,
}

/// Collects bytes for the driver, so that it is called once for many.
struct Batch<'a> {
    driver: &'a dyn Driver,
    bytes: [u8; 128],
    len: usize,
}

impl Batch<'_> {
    fn add(&mut self, bytes: &[u8]) {
        if self.len + bytes.len() > self.bytes.len() {
            self.flush();
        }
        if bytes.len() > self.bytes.len() {
            self.driver.write(bytes);
        } else {
            self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
            self.len += bytes.len();
        }
    }

    fn flush(&mut self) {
        if self.len > 0 {
            self.driver.write(&self.bytes[..self.len]);
            self.len = 0;
        }
    }
}

impl Tty {
    /// A terminal on `driver` with default settings.
    pub fn new(device: u64, driver: Box<dyn Driver>) -> Result<Arc<Tty>> {
        Ok(Arc::new(Tty {
            device,
            driver,
            state: Mutex::new(
                crate::rank::TTY,
                State {
                    line: Line::new()?,
                    held: Held::new(),
                    echo: Vec::new(),
                },
            ),
            control: SpinLock::new(
                Rank::Leaf,
                Control {
                    session: 0,
                    foreground: 0,
                    window: winsize {
                        ws_row: 0,
                        ws_col: 0,
                        ws_xpixel: 0,
                        ws_ypixel: 0,
                    },
                },
            ),
            readers: WaitQueue::new(),
            writers: WaitQueue::new(),
            hangups: AtomicU64::new(0),
            exclusive: AtomicBool::new(false),
            drained: WaitQueue::new(),
        }))
    }

    /// The terminal's device number.
    pub fn device(&self) -> u64 {
        self.device
    }

    /// The foreground process group, 0 if none.
    pub fn foreground(&self) -> Pid {
        self.control.lock().foreground
    }

    /// How often it was hung up.
    pub(super) fn hangups(&self) -> u64 {
        self.hangups.load(Relaxed)
    }

    pub(super) fn driver(&self) -> &dyn Driver {
        &*self.driver
    }

    /// Changes the settings before anyone uses the terminal.
    pub fn adjust_settings(&self, change: impl FnOnce(&mut termios2)) {
        let mut state = self.state.lock();
        let mut settings = *state.line.settings();
        change(&mut settings);
        state.line.set_settings(settings);
    }

    /// Takes typed bytes. Signals for keys go out before this returns, whether or not a program
    /// reads.
    pub fn receive(&self, bytes: &[u8]) {
        let mut state = self.state.lock();
        for &byte in bytes {
            let in_turn = state.held.is_empty() && state.line.has_room();
            if in_turn || (!state.held.quotes_next() && state.line.is_urgent(byte)) {
                self.input(&mut state, byte);
            } else if state.held.len() < HELD && !frame::is_scarce() && state.held.reserve() {
                // Beyond this the byte is lost, as on a wire without flow control.
                let quotes = state.line.quotes(byte);
                state.held.push(byte, quotes);
            }
        }
        self.wake_readers(&state);
    }

    /// How many bytes a sender that must not lose any may type now.
    pub(super) fn input_room(&self) -> usize {
        let limit = self.driver.input_limit().min(HELD);
        limit.saturating_sub(self.state.lock().held.len())
    }

    /// Throws input away that did not reach the line discipline.
    pub(super) fn forget_held(&self) {
        self.state.lock().held.clear();
        self.drained.wake_all();
    }

    /// Waits until less than half of the held bytes' room is taken: for a sender that can wait,
    /// where no key may be lost.
    pub fn wait_for_room(&self) {
        let has_room = || (self.state.lock().held.len() < HELD / 2).then_some(());
        self.drained.wait_soundly(has_room);
    }

    fn wake_readers(&self, state: &State) {
        if state.line.available() > 0 {
            self.readers.wake_shared(false);
        }
    }

    /// Gives one byte to the line discipline and does what follows from it.
    fn input(&self, state: &mut State, byte: u8) {
        // Earlier output goes before the key's own echo.
        if state.line.flushes(byte) {
            self.driver.flush_output();
        }
        let effect = self.with_screen(state, |line, screen| line.input(byte, screen));
        let Effect {
            key,
            flushed,
            flow_changed,
        } = effect;
        if flushed {
            state.held.clear();
            state.echo.clear();
            self.drained.wake_all();
            self.driver.input_flushed();
        }
        if flow_changed {
            self.flow_changed(state);
        }
        if let Some(key) = key {
            let signal = match key {
                Key::Interrupt => SIGINT,
                Key::Quit => SIGQUIT,
                Key::Suspend => SIGTSTP,
            };
            self.signal_foreground(signal);
        }
    }

    /// Sends a signal to the foreground group, if there is one.
    pub(super) fn signal_foreground(&self, signal: u32) {
        let group = self.foreground();
        if group != 0 {
            // A group without members gets no signal.
            let _ = signal::send_to_group(group, Info::kernel(signal));
        }
    }

    /// Runs `f` with the line discipline and a screen that reaches the driver, or waits while
    /// output is stopped.
    fn with_screen<R>(
        &self,
        state: &mut State,
        f: impl FnOnce(&mut Line, &mut super::output::Screen<'_>) -> R,
    ) -> R {
        let State { line, echo, .. } = state;
        if line.stopped {
            return f(line, &mut |bytes| {
                if echo.len() + bytes.len() <= ECHO_HELD {
                    echo.extend_from_slice(bytes);
                }
            });
        }
        let mut batch = Batch {
            driver: self.driver(),
            bytes: [0; 128],
            len: 0,
        };
        let result = f(line, &mut |bytes| batch.add(bytes));
        batch.flush();
        result
    }

    /// Output was stopped or started.
    pub(super) fn flow_changed(&self, state: &mut State) {
        self.driver.flow_changed(state.line.stopped);
        if !state.line.stopped {
            let echo = core::mem::take(&mut state.echo);
            self.driver.write(&echo);
            self.writers.wake_shared(false);
        }
    }

    /// Gives held bytes to the line discipline as far as it has room.
    pub(super) fn refill(&self, state: &mut State) {
        if state.held.is_empty() {
            return;
        }
        while state.line.has_room()
            && let Some(byte) = state.held.pop()
        {
            self.input(state, byte);
        }
        self.drained.wake_all();
    }

    /// Throws unread input away.
    pub(super) fn flush_input(&self) {
        let mut state = self.state.lock();
        state.held.clear();
        state.line.flush_input();
        drop(state);
        self.drained.wake_all();
        self.driver.input_flushed();
    }

    /// Whether a program's output has to wait.
    pub(super) fn is_blocked(&self) -> bool {
        self.state.lock().line.stopped || !self.driver.has_room()
    }

    /// Reads as the settings say.
    ///
    /// # Errors
    /// `EAGAIN` with `wait` false, a restart number, that of the sink.
    pub(super) fn read(&self, opened_at: u64, wait: bool, to: &mut dyn Sink) -> Result<usize> {
        let mut total = 0;
        let result = self.read_into(opened_at, wait, to, &mut total);
        fbuf::moved(total, result)
    }

    fn read_into(
        &self,
        opened_at: u64,
        wait: bool,
        to: &mut dyn Sink,
        total: &mut usize,
    ) -> Result<()> {
        let mut piece = [0; PIECE];
        while to.room() > 0 {
            let room = to.room().min(PIECE);
            let (n, over, canonical, minimum, tenths) = {
                let mut state = self.state.lock();
                let (n, over) = state.line.read(&mut piece[..room]);
                self.refill(&mut state);
                self.wake_readers(&state);
                let line = &state.line;
                let (minimum, tenths) = (line.control(VMIN), line.control(VTIME));
                (n, over, line.canonical(), usize::from(minimum), tenths)
            };
            *total += n;
            let mut bytes = &piece[..n];
            while !bytes.is_empty() {
                let taken = to.put_bytes(bytes)?;
                if taken == 0 {
                    return Ok(());
                }
                bytes = &bytes[taken..];
            }
            if over {
                return Ok(());
            }
            if n == room {
                continue;
            }
            if canonical && n > 0 {
                // A line that was finished by a change of settings has no end of its own.
                return Ok(());
            }
            let mut deadline = None;
            if !canonical {
                if minimum > 0 && *total >= minimum {
                    return Ok(());
                }
                if minimum == 0 && (*total > 0 || tenths == 0) {
                    return Ok(());
                }
                if tenths > 0 && (minimum == 0 || *total > 0) {
                    let time = Duration::from_millis(100 * u64::from(tenths));
                    deadline = Some(time::since_boot() + time);
                }
            }
            if self.hangups() != opened_at {
                return Ok(());
            }
            if !wait {
                return Err(Errno::EAGAIN);
            }
            let sleep = Sleep {
                interruptible: true,
                deadline,
            };
            let woken = self.readers.wait(sleep, || {
                let ready = self.state.lock().line.available() > 0 || self.hangups() != opened_at;
                ready.then_some(())
            });
            match woken {
                Ok(()) => {}
                Err(Woken::TimedOut) => return Ok(()),
                Err(Woken::Interrupted) => return Err(signal::ERESTARTSYS),
            }
        }
        Ok(())
    }

    /// Writes through output processing.
    ///
    /// # Errors
    /// `EIO` after a hang-up; `EAGAIN` while output is stopped and `wait` is false; a restart
    /// number; that of the source.
    pub(super) fn write(&self, opened_at: u64, wait: bool, from: &mut dyn Source) -> Result<usize> {
        let mut total = 0;
        let mut piece = [0; PIECE];
        while from.left() > 0 {
            if self.hangups() != opened_at {
                return fbuf::moved(total, Err(Errno::EIO));
            }
            if self.is_blocked() {
                if !wait {
                    return fbuf::moved(total, Err(Errno::EAGAIN));
                }
                let woken = self.writers.wait(Sleep::INTERRUPTIBLE, || {
                    (!self.is_blocked() || self.hangups() != opened_at).then_some(())
                });
                if let Err(woken) = woken {
                    return fbuf::moved(total, Err(signal::woken(woken)));
                }
            }
            let n = match from.take_bytes(&mut piece) {
                Ok(0) => break,
                Ok(n) => n,
                Err(error) => return fbuf::moved(total, Err(error)),
            };
            let mut state = self.state.lock();
            self.with_screen(&mut state, |line, screen| line.write(&piece[..n], screen));
            total += n;
        }
        Ok(total)
    }

    /// All files opened until now read an end of file and can't be written any more. The session
    /// that the terminal controls loses it and its leader gets SIGHUP; the foreground group gets
    /// its own when the leader ends.
    pub fn hang_up(&self) {
        self.hangups.fetch_add(1, Relaxed);
        self.readers.wake_all();
        self.writers.wake_all();
        let (session, foreground) = {
            let mut control = self.control.lock();
            (
                core::mem::take(&mut control.session),
                core::mem::take(&mut control.foreground),
            )
        };
        if session == 0 {
            return;
        }
        if let Some(group) = Group::find(session) {
            group.session.hung_up(foreground);
        }
        if let Some(leader) = Process::find(session) {
            // The leader may have ended and not been waited for.
            let _ = signal::send_to_process(&leader, Info::kernel(SIGHUP));
            let _ = signal::send_to_process(&leader, Info::kernel(SIGCONT));
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}
