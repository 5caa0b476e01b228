//! The `ioctl`s of terminals.

use alloc::sync::Arc;
use core::sync::atomic::Ordering::Relaxed;

use abi::{
    Errno, Result,
    raw::{
        general::{
            SIGTTOU, SIGWINCH, TCIFLUSH, TCIOFF, TCIOFLUSH, TCION, TCOFLUSH, TCOOFF, TCOON, VSTART,
            VSTOP, termios, termios2, winsize,
        },
        ioctl::{
            FIONREAD, TCFLSH, TCGETS, TCGETS2, TCSBRK, TCSBRKP, TCSETS, TCSETS2, TCSETSF, TCSETSF2,
            TCSETSW, TCSETSW2, TCXONC, TIOCCBRK, TIOCEXCL, TIOCGDEV, TIOCGETD, TIOCGEXCL,
            TIOCGPGRP, TIOCGSID, TIOCGWINSZ, TIOCNOTTY, TIOCNXCL, TIOCOUTQ, TIOCSBRK, TIOCSCTTY,
            TIOCSETD, TIOCSPGRP, TIOCSTI, TIOCSWINSZ, TIOCVHANGUP,
        },
    },
};
use nucleus::{
    VirtAddr,
    user::{self, as_bytes, from_bytes},
};

use super::terminal::Tty;
use crate::process::{Thread, thread};

/// The only line discipline: `N_TTY`.
const N_TTY: i32 = 0;

/// Answers a command with a value.
pub(super) fn put<T: user::ToUser>(to: VirtAddr, value: &T) -> Result<usize> {
    user::write(to, value)?;
    Ok(0)
}

/// Returns how many of a `struct termios2`'s bytes a command moves: the old structure has no
/// speeds, which stand at the end.
fn settings_len(command: u32) -> usize {
    match command {
        TCGETS | TCSETS | TCSETSW | TCSETSF => size_of::<termios>(),
        _ => size_of::<termios2>(),
    }
}

impl Tty {
    /// `ioctl` by the current thread.
    ///
    /// # Errors
    /// `ENOTTY` for unknown commands, `EFAULT`, and those of the command.
    pub(super) fn control(self: &Arc<Tty>, command: u32, argument: VirtAddr) -> Result<usize> {
        match command {
            TCSETS | TCSETSW | TCSETSF | TCSETS2 | TCSETSW2 | TCSETSF2 | TCFLSH | TCXONC
            | TCSBRK | TCSBRKP | TIOCSPGRP | TIOCSETD => self.check_foreground(SIGTTOU)?,
            _ => {}
        }
        self.control_from_master(command, argument)
    }

    /// Serves [`control`](Tty::control) for the other side of a pseudo terminal, which no job
    /// control stops.
    ///
    /// # Errors
    /// Those of [`control`](Tty::control).
    pub(super) fn control_from_master(
        self: &Arc<Tty>,
        command: u32,
        argument: VirtAddr,
    ) -> Result<usize> {
        match command {
            TCGETS | TCGETS2 => {
                let settings = *self.lock().line.settings();
                user::copy_out(argument, &as_bytes(&settings)[..settings_len(command)])?;
                Ok(0)
            }
            TCSETS | TCSETSW | TCSETSF | TCSETS2 | TCSETSW2 | TCSETSF2 => {
                let mut bytes = [0; size_of::<termios2>()];
                bytes.copy_from_slice(as_bytes(self.lock().line.settings()));
                user::copy_in(&mut bytes[..settings_len(command)], argument)?;
                let settings = from_bytes(&bytes).ok_or(Errno::EINVAL)?;
                self.set_settings(settings, matches!(command, TCSETSF | TCSETSF2))
            }
            TIOCGWINSZ => {
                let window = self.control.lock().window;
                put(argument, &window)
            }
            TIOCSWINSZ => self.set_window(user::read(argument)?),
            FIONREAD => {
                let bytes = self.lock().line.available() as i32;
                put(argument, &bytes)
            }
            TIOCOUTQ => put(argument, &(self.driver().unsent() as i32)),
            TCFLSH => self.flush(argument.0 as u32),
            TCXONC => self.flow(argument.0 as u32),
            // Bytes are on the wire when a write returns, and a break has no effect.
            TCSBRK | TCSBRKP | TIOCSBRK | TIOCCBRK => Ok(0),
            TIOCGETD => put(argument, &N_TTY),
            TIOCSETD => {
                if user::read::<i32>(argument)? == N_TTY {
                    Ok(0)
                } else {
                    Err(Errno::EINVAL)
                }
            }
            TIOCGDEV => put(argument, &(self.device() as u32)),
            TIOCEXCL | TIOCNXCL => {
                self.exclusive.store(command == TIOCEXCL, Relaxed);
                Ok(0)
            }
            TIOCGEXCL => put(argument, &i32::from(self.exclusive.load(Relaxed))),
            // Typing into another's terminal is refused to all, as where Linux has it switched off.
            TIOCSTI => Err(Errno::EIO),
            _ => thread::with_current(|thread| self.control_job(thread, command, argument))
                .unwrap_or(Err(Errno::ENOTTY)),
        }
    }

    fn control_job(
        self: &Arc<Tty>,
        thread: &Thread,
        command: u32,
        argument: VirtAddr,
    ) -> Result<usize> {
        let process = thread.process();
        let who = thread
            .credentials()
            .map(|who| who.fs.clone())
            .unwrap_or_default();
        match command {
            TIOCGPGRP => {
                self.check_controls(process)?;
                return put(argument, &(self.foreground() as i32));
            }
            TIOCGSID => {
                self.check_controls(process)?;
                return put(argument, &(self.session() as i32));
            }
            TIOCSPGRP => self.set_foreground(process, user::read(argument)?),
            TIOCSCTTY => self.take_control(process, &who, argument.0 == 1),
            TIOCNOTTY => self.give_up(process),
            TIOCVHANGUP => {
                if !who.is_root() {
                    return Err(Errno::EPERM);
                }
                self.hang_up();
                Ok(())
            }
            _ => Err(Errno::ENOTTY),
        }
        .map(|()| 0)
    }

    fn set_settings(&self, settings: termios2, flush: bool) -> Result<usize> {
        if flush {
            self.flush_input();
        }
        let mut state = self.lock();
        let old = *state.line.settings();
        state.line.set_settings(settings);
        self.driver().settings_changed(&old, &settings);
        self.flow_changed(&mut state);
        self.refill(&mut state);
        drop(state);
        // Half a line may be readable now, and the other way round.
        self.readers.wake_all();
        Ok(0)
    }

    /// Gives the terminal another size, and tells the foreground group.
    pub fn set_window(&self, window: winsize) -> Result<usize> {
        let mut control = self.control.lock();
        let size = |w: &winsize| (w.ws_row, w.ws_col, w.ws_xpixel, w.ws_ypixel);
        let changed = size(&control.window) != size(&window);
        control.window = window;
        drop(control);
        if changed {
            self.signal_foreground(SIGWINCH);
        }
        Ok(0)
    }

    fn flush(&self, what: u32) -> Result<usize> {
        if !matches!(what, TCIFLUSH | TCOFLUSH | TCIOFLUSH) {
            return Err(Errno::EINVAL);
        }
        if what != TCOFLUSH {
            self.flush_input();
        }
        if what != TCIFLUSH {
            self.driver().flush_output();
        }
        Ok(0)
    }

    fn flow(&self, action: u32) -> Result<usize> {
        let mut state = self.lock();
        match action {
            TCOOFF | TCOON => {
                state.line.stopped = action == TCOOFF;
                self.flow_changed(&mut state);
            }
            TCIOFF | TCION => {
                let slot = if action == TCIOFF { VSTOP } else { VSTART };
                let byte = state.line.settings().c_cc[slot as usize];
                if byte != super::line::DISABLED {
                    self.driver().write(&[byte]);
                }
            }
            _ => return Err(Errno::EINVAL),
        }
        Ok(0)
    }
}
