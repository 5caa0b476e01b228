//! The side of a pseudo terminal that reads its output and types its input.

use alloc::sync::Arc;

use abi::{
    Errno, Result,
    raw::{
        general::{
            O_CLOEXEC, O_NONBLOCK, RLIMIT_NOFILE, SIGINT, SIGQUIT, SIGTSTP, TCIFLUSH, TCIOFLUSH,
            TCOFLUSH,
        },
        ioctl::{
            FIONREAD, TCFLSH, TIOCGPGRP, TIOCGPKT, TIOCGPTLCK, TIOCGPTN, TIOCGPTPEER, TIOCGSID,
            TIOCOUTQ, TIOCPKT, TIOCSIG, TIOCSPTLCK,
        },
    },
};
use fbuf::{Sink, Source};
use fs::{Asynchronous, File, Location, OpenFlags, Ready};
use nucleus::{
    VirtAddr,
    task::{Sleep, Watch},
    user,
};

use super::{
    devpts::SlaveNode,
    pair::{Found, Pair},
};
use crate::{
    process::{files::OpenFile, signal, thread},
    tty::{self, Tty, settings::put},
};

/// Bytes that pass through the kernel's stack at a time.
const PIECE: usize = 512;

/// An open `/dev/ptmx`: the master of one pseudo terminal. Its drop hangs the terminal up.
pub struct Master {
    location: Location,
    /// The file system in which the terminal has its node.
    pts: Location,
    node: Arc<SlaveNode>,
    tty: Arc<Tty>,
    pair: Arc<Pair>,
}

impl Master {
    pub(super) fn new(
        location: Location,
        pts: Location,
        node: Arc<SlaveNode>,
        pair: Arc<Pair>,
    ) -> Master {
        Master {
            location,
            pts,
            tty: node.tty.clone(),
            node,
            pair,
        }
    }

    /// Returns the terminal.
    pub fn tty(&self) -> &Arc<Tty> {
        &self.tty
    }

    /// Returns how many printed bytes the master has not read.
    pub fn unread(&self) -> usize {
        self.pair.wire().printed.len()
    }

    /// Lets the terminal be opened, and gives its node to a user.
    pub fn unlock_for(&self, uid: u32) {
        self.pair.wire().locked = false;
        self.node.give_to(uid);
    }

    /// Opens the terminal, whatever its node is called where the caller is.
    ///
    /// # Errors
    /// Those of [`tty::open`].
    pub fn open_terminal(&self, flags: OpenFlags) -> Result<Arc<tty::TtyFile>> {
        let place = Location::inside(self.pts.mount(), self.node.clone());
        tty::open(self.tty.clone(), flags, Some(place))
    }

    /// Takes bytes, or a status byte, or waits.
    fn take(&self, wait: bool, piece: &mut [u8]) -> Result<Found> {
        let attempt = || match self.pair.take(piece) {
            Found::Nothing => None,
            Found::Closed => Some(Err(Errno::EIO)),
            found => Some(Ok(found)),
        };
        if !wait {
            let mut attempt = attempt;
            return attempt().unwrap_or(Err(Errno::EAGAIN));
        }
        self.pair
            .readers
            .wait(Sleep::INTERRUPTIBLE, attempt)
            .map_err(signal::woken)?
    }

    /// `TIOCGPTPEER`: opens the terminal for the caller.
    fn open_peer(&self, flags: u32) -> Result<usize> {
        let flags = OpenFlags::from_bits_retain(flags);
        let limit = thread::with_current(|me| me.process().limits().soft(RLIMIT_NOFILE));
        let (limit, own) = limit.zip(thread::current_shared()).ok_or(Errno::EIO)?;
        let slot = own.files.reserve(0, limit)?;
        let file = self.open_terminal(flags)?;
        Ok(slot.install(OpenFile::new(file, flags), flags.has(O_CLOEXEC)))
    }

    /// `TCFLSH` seen from this side: its input is the terminal's output.
    fn flush(&self, what: u32) -> Result<usize> {
        if !matches!(what, TCIFLUSH | TCOFLUSH | TCIOFLUSH) {
            return Err(Errno::EINVAL);
        }
        if what != TCOFLUSH {
            self.pair.wire().printed.clear();
            self.tty.writers.wake_shared(false);
        }
        if what != TCIFLUSH {
            self.tty.forget_held();
        }
        Ok(0)
    }
}

impl File for Master {
    fn read(&self, at: Option<u64>, flags: OpenFlags, to: &mut dyn Sink) -> Result<usize> {
        if at.is_some() {
            return Err(Errno::ESPIPE);
        }
        let mut piece = [0; PIECE];
        let mut total = 0;
        // In packet mode a byte in front says what follows: 0 for data.
        let packet = self.pair.wire().packet;
        while to.room() > usize::from(packet && total == 0) {
            let head = usize::from(packet && total == 0);
            let room = (to.room() - head).min(PIECE);
            let wait = total == 0 && !flags.has(O_NONBLOCK);
            let found = match self.take(wait, &mut piece[..room]) {
                Ok(found) => found,
                Err(_) if total > 0 => break,
                Err(error) => return Err(error),
            };
            let n = match found {
                Found::Status(status) if total == 0 => return to.put_bytes(&[status]),
                Found::Bytes(n) => n,
                _ => break,
            };
            self.tty.writers.wake_shared(false);
            if head > 0 {
                total += to.put_bytes(&[0])?;
            }
            match to.put_bytes(&piece[..n]) {
                Ok(put) => total += put,
                Err(error) => return fbuf::moved(total, Err(error)),
            }
            if n < room {
                break;
            }
        }
        Ok(total)
    }

    fn write(&self, at: Option<u64>, flags: OpenFlags, from: &mut dyn Source) -> Result<usize> {
        if at.is_some() {
            return Err(Errno::ESPIPE);
        }
        let mut piece = [0; PIECE];
        let mut total = 0;
        while from.left() > 0 {
            let room = self.tty.input_room();
            if room == 0 {
                if flags.has(O_NONBLOCK) {
                    return fbuf::moved(total, Err(Errno::EAGAIN));
                }
                let ready = || (self.tty.input_room() > 0).then_some(());
                if let Err(woken) = self.tty.drained.wait(Sleep::INTERRUPTIBLE, ready) {
                    return fbuf::moved(total, Err(signal::woken(woken)));
                }
                continue;
            }
            let n = match from.take_bytes(&mut piece[..room.min(PIECE)]) {
                Ok(0) => break,
                Ok(n) => n,
                Err(error) => return fbuf::moved(total, Err(error)),
            };
            self.tty.receive(&piece[..n]);
            total += n;
        }
        Ok(total)
    }

    fn poll<'a>(&'a self, set: Option<&mut dyn Watch<'a>>) -> Ready {
        if let Some(set) = set {
            set.add(&self.pair.readers);
            set.add(&self.tty.drained);
        }
        let (readable, status, closed) = self.pair.readiness();
        let mut ready = Ready::empty();
        if readable {
            ready |= Ready::IN | Ready::RDNORM;
        }
        if status {
            ready |= Ready::PRI;
        }
        if closed {
            ready |= Ready::HUP;
        }
        if self.tty.input_room() > 0 {
            ready |= Ready::OUT | Ready::WRNORM;
        }
        ready
    }

    fn asynchronous(&self) -> Asynchronous {
        Asynchronous::Foreground(self.tty.foreground())
    }

    fn ioctl(&self, command: u32, argument: VirtAddr) -> Result<usize> {
        match command {
            TIOCGPTN => put(argument, &self.node.number),
            TIOCSPTLCK => {
                let locked = user::read::<i32>(argument)? != 0;
                self.pair.wire().locked = locked;
                Ok(0)
            }
            TIOCGPTLCK => put(argument, &i32::from(self.pair.wire().locked)),
            TIOCGPTPEER => self.open_peer(argument.0 as u32),
            TIOCPKT => {
                self.pair.set_packet(user::read::<i32>(argument)? != 0);
                Ok(0)
            }
            TIOCGPKT => put(argument, &i32::from(self.pair.wire().packet)),
            TIOCSIG => match argument.0 as u32 {
                signal @ (SIGINT | SIGQUIT | SIGTSTP) => {
                    self.tty.signal_foreground(signal);
                    Ok(0)
                }
                _ => Err(Errno::EINVAL),
            },
            FIONREAD => put(argument, &(self.pair.wire().printed.len() as i32)),
            // Bytes are typed when a write returns.
            TIOCOUTQ => put(argument, &0i32),
            TCFLSH => self.flush(argument.0 as u32),
            TIOCGPGRP => put(argument, &(self.tty.foreground() as i32)),
            TIOCGSID => match self.tty.session() {
                0 => Err(Errno::ENOTTY),
                session => put(argument, &(session as i32)),
            },
            // Settings, window and the rest are those of the terminal.
            _ => self.tty.control_from_master(command, argument),
        }
    }

    fn location(&self) -> Option<&Location> {
        Some(&self.location)
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        self.node.remove();
        self.pair.orphan();
        self.tty.hang_up();
    }
}
