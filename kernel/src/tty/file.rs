//! A terminal that was opened.

use alloc::sync::Arc;
use core::sync::atomic::Ordering::Relaxed;

use abi::{
    Errno, Result,
    raw::general::{O_NOCTTY, O_NONBLOCK, SIGTTIN, SIGTTOU, TOSTOP},
};
use fbuf::{Sink, Source};
use fs::{Asynchronous, File, Location, OpenFlags, Ready};
use nucleus::{VirtAddr, task::Watch};

use super::terminal::Tty;
use crate::process::thread;

/// An open file of a terminal.
pub struct TtyFile {
    tty: Arc<Tty>,
    /// The terminal's hang-ups before it was opened.
    opened_at: u64,
    location: Option<Location>,
}

/// Opens a terminal for the current thread, whose controlling terminal it becomes where the rules
/// say so.
///
/// # Errors
/// `EBUSY` for one that another has for itself (`TIOCEXCL`), those of the driver.
pub fn open(tty: Arc<Tty>, flags: OpenFlags, location: Option<Location>) -> Result<Arc<TtyFile>> {
    let is_root = || {
        thread::with_current(|thread| thread.credentials().is_some_and(|who| who.fs.is_root()))
            .unwrap_or(true)
    };
    if tty.exclusive.load(Relaxed) && !is_root() {
        return Err(Errno::EBUSY);
    }
    tty.driver().opened()?;
    if !flags.has(O_NOCTTY) && flags.reads() {
        thread::with_current(|thread| tty.take_control_if_free(thread.process()));
    }
    let opened_at = tty.hangups();
    Ok(Arc::new(TtyFile {
        tty,
        opened_at,
        location,
    }))
}

impl TtyFile {
    fn is_hung_up(&self) -> bool {
        self.tty.hangups() != self.opened_at
    }
}

impl File for TtyFile {
    fn read(&self, at: Option<u64>, flags: OpenFlags, to: &mut dyn Sink) -> Result<usize> {
        if at.is_some() {
            return Err(Errno::ESPIPE);
        }
        if self.is_hung_up() {
            return Ok(0);
        }
        self.tty.check_foreground(SIGTTIN)?;
        self.tty.read(self.opened_at, !flags.has(O_NONBLOCK), to)
    }

    fn write(&self, at: Option<u64>, flags: OpenFlags, from: &mut dyn Source) -> Result<usize> {
        if at.is_some() {
            return Err(Errno::ESPIPE);
        }
        if self.tty.lock().line.settings().c_lflag & TOSTOP != 0 {
            self.tty.check_foreground(SIGTTOU)?;
        }
        self.tty.write(self.opened_at, !flags.has(O_NONBLOCK), from)
    }

    fn poll<'a>(&'a self, watch: Option<&mut dyn Watch<'a>>) -> Ready {
        if let Some(watch) = watch {
            watch.add(&self.tty.readers);
            watch.add(&self.tty.writers);
        }
        if self.is_hung_up() {
            return Ready::all() - Ready::PRI - Ready::NVAL - Ready::RDBAND - Ready::WRBAND;
        }
        let state = self.tty.lock();
        let mut ready = Ready::empty();
        if state.line.readable() {
            ready |= Ready::IN | Ready::RDNORM;
        }
        let stopped = state.line.stopped;
        drop(state);
        if !stopped && self.tty.driver().has_room() {
            ready |= Ready::OUT | Ready::WRNORM;
        }
        ready
    }

    fn asynchronous(&self) -> Asynchronous {
        Asynchronous::Foreground(self.tty.foreground())
    }

    fn ioctl(&self, command: u32, argument: VirtAddr) -> Result<usize> {
        if self.is_hung_up() {
            return Err(Errno::EIO);
        }
        self.tty.control(command, argument)
    }

    fn location(&self) -> Option<&Location> {
        self.location.as_ref()
    }
}

impl Drop for TtyFile {
    fn drop(&mut self) {
        if self.tty.driver().closed() {
            self.tty.leave_session();
        }
    }
}
