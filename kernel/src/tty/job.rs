//! Job control: the session that a terminal controls and its foreground group.

use alloc::sync::Arc;
use core::any::Any;

use abi::{
    Errno, Result,
    raw::general::{SIGCONT, SIGHUP, SIGTTIN},
};
use fs::Credentials;

use super::terminal::Tty;
use crate::process::{
    Group, Pid, Process, Session, Thread,
    pid_table::ControllingTerminal,
    signal::{self, ERESTARTSYS, Info},
    thread,
};

impl Tty {
    /// The controlling terminal of a session.
    pub fn of_session(session: &Session) -> Option<Arc<Tty>> {
        let terminal: Arc<dyn Any + Send + Sync> = session.terminal()?;
        terminal.downcast().ok()
    }

    /// Whether this terminal controls the session of `process`.
    pub(super) fn controls(&self, process: &Process) -> bool {
        self.is_terminal_of(&process.session())
    }

    fn is_terminal_of(&self, session: &Session) -> bool {
        let terminal = session.terminal();
        terminal.is_some_and(|tty| core::ptr::addr_eq(&*tty, self))
    }

    /// Checks that this terminal controls the session of `process`.
    ///
    /// # Errors
    /// `ENOTTY`.
    pub(super) fn check_controls(&self, process: &Process) -> Result<()> {
        match self.controls(process) {
            true => Ok(()),
            false => Err(Errno::ENOTTY),
        }
    }

    /// May the current thread read (`SIGTTIN`), or print or change settings (`SIGTTOU`), now? Its
    /// process group is stopped if it is not in the foreground.
    ///
    /// # Errors
    /// `EIO` where a stop would be for ever, or unnoticed; else a restart number: the call is made
    /// again after the stop.
    pub(super) fn check_foreground(&self, signal: u32) -> Result<()> {
        thread::with_current(|thread| self.check_foreground_of(thread, signal)).unwrap_or(Ok(()))
    }

    fn check_foreground_of(&self, thread: &Thread, signal: u32) -> Result<()> {
        let process = thread.process();
        if !self.controls(process) {
            return Ok(());
        }
        let foreground = self.foreground();
        let group = process.group();
        if foreground == 0 || foreground == group.id {
            return Ok(());
        }
        if thread.blocks_or_ignores(signal) {
            return if signal == SIGTTIN {
                Err(Errno::EIO)
            } else {
                Ok(())
            };
        }
        if crate::process::pid_table::is_orphaned(group.id) {
            return Err(Errno::EIO);
        }
        // The group has at least the caller.
        let _ = signal::send_to_group(group.id, Info::kernel(signal));
        Err(ERESTARTSYS)
    }

    /// `TIOCSPGRP`.
    ///
    /// # Errors
    /// `ENOTTY` if this is not the caller's controlling terminal, `EINVAL`, `ESRCH` without such a
    /// group, `EPERM` for one of another session.
    pub(super) fn set_foreground(&self, process: &Process, group: i32) -> Result<()> {
        self.check_controls(process)?;
        let group = Pid::try_from(group).map_err(|_| Errno::EINVAL)?;
        let group = Group::find(group).ok_or(Errno::ESRCH)?;
        if !Arc::ptr_eq(&group.session, &process.session()) {
            return Err(Errno::EPERM);
        }
        self.control.lock().foreground = group.id;
        Ok(())
    }

    /// `TIOCSCTTY`: makes this the controlling terminal of the caller's session. `steal`: even if
    /// it controls another one.
    ///
    /// # Errors
    /// `EPERM` if the caller is not a leader of a session without a terminal, or the terminal is
    /// taken.
    pub(super) fn take_control(
        self: &Arc<Tty>,
        process: &Process,
        who: &Credentials,
        steal: bool,
    ) -> Result<()> {
        let session = process.session();
        let is_leader = process.pid() == session.id;
        let current = self.control.lock().session;
        if is_leader && current == session.id {
            return Ok(());
        }
        if !is_leader || session.terminal().is_some() {
            return Err(Errno::EPERM);
        }
        if current != 0 {
            if !steal || !who.is_root() {
                return Err(Errno::EPERM);
            }
            if let Some(victim) = Group::find(current) {
                victim.session.set_terminal(None);
            }
        }
        self.adopt(process);
        Ok(())
    }

    /// Opened by a leader of a session without a terminal: becomes its controlling terminal, if it
    /// is free.
    pub fn take_control_if_free(self: &Arc<Tty>, process: &Process) {
        let session = process.session();
        if process.pid() == session.id
            && session.terminal().is_none()
            && self.control.lock().session == 0
        {
            self.adopt(process);
        }
    }

    fn adopt(self: &Arc<Tty>, process: &Process) {
        let session = process.session();
        let foreground = process.group_id();
        {
            let mut control = self.control.lock();
            control.session = session.id;
            control.foreground = foreground;
        }
        session.set_terminal(Some(self.clone()));
    }

    /// `TIOCNOTTY`: the caller's session gives the terminal up, if the caller leads it.
    ///
    /// # Errors
    /// `ENOTTY` if this is not the caller's controlling terminal.
    pub(super) fn give_up(&self, process: &Process) -> Result<()> {
        self.check_controls(process)?;
        let session = process.session();
        if process.pid() == session.id {
            session.set_terminal(None);
            self.session_ended(session.id);
        }
        Ok(())
    }

    /// The session that it controls, 0 for none.
    pub(super) fn session(&self) -> Pid {
        self.control.lock().session
    }

    /// Its last descriptor was closed: the session that it controls has no terminal from now on,
    /// without a signal.
    pub(super) fn leave_session(&self) {
        let Some(group) = Group::find(self.session()) else {
            return;
        };
        let session = &group.session;
        if self.is_terminal_of(session) {
            let gone = session.set_terminal(None);
            drop(gone);
        }
    }
}

impl ControllingTerminal for Tty {
    fn device(&self) -> u64 {
        Tty::device(self)
    }

    fn foreground(&self) -> Pid {
        Tty::foreground(self)
    }

    fn session_ended(&self, session: Pid) {
        let group = {
            let mut control = self.control.lock();
            if control.session != session {
                return;
            }
            control.session = 0;
            core::mem::take(&mut control.foreground)
        };
        if group != 0 {
            // The group may have no members any more.
            let _ = signal::send_to_group(group, Info::kernel(SIGHUP));
            let _ = signal::send_to_group(group, Info::kernel(SIGCONT));
        }
    }
}
