//! The connection of the two sides of a pseudo terminal.

use alloc::{collections::VecDeque, sync::Arc};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use abi::{
    Errno, Result,
    raw::general::{
        EXTPROC, IXON, TIOCPKT_DOSTOP, TIOCPKT_FLUSHREAD, TIOCPKT_FLUSHWRITE, TIOCPKT_IOCTL,
        TIOCPKT_NOSTOP, TIOCPKT_START, TIOCPKT_STOP, VSTART, VSTOP, termios2,
    },
};
use nucleus::{
    sync::{Rank, SpinGuard, SpinLock},
    task::WaitQueue,
};
use vm::account::{self, Charge, Kind};

use crate::tty::{ring::Ring, terminal::Driver};

/// Printed bytes that wait for the master before programs that print have to wait: what Linux's two
/// buffers hold.
const PRINTED: usize = 8192 + 4096;
/// Bytes that may wait in all, echo included. One piece of a program's output, tabs expanded, fits
/// between both.
const PRINTED_MAX: usize = 2 * PRINTED;

/// What a pair is charged with, in bytes: its input, its output and its echo at their largest, as
/// what their buffers have grown to is kept, and its records.
const BYTES: usize = Ring::BYTES + 2 * INPUT_LIMIT + PRINTED_MAX.next_power_of_two() + 4096 + 4096;

/// Bytes that the master may type ahead of the line discipline.
const INPUT_LIMIT: usize = 8192;

/// The number that there may not be: as on Linux, one more than the most pseudo terminals
/// (`/proc/sys/kernel/pty/max`).
static LIMIT: AtomicU32 = AtomicU32::new(4096);
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Returns `/proc/sys/kernel/pty/max`.
pub fn limit() -> u32 {
    LIMIT.load(Relaxed)
}

/// Sets `/proc/sys/kernel/pty/max`; the pseudo terminals that there are stay.
pub fn set_limit(limit: u32) {
    LIMIT.store(limit, Relaxed);
}

/// Returns how many pseudo terminals there are.
pub fn count() -> u32 {
    COUNT.load(Relaxed)
}

/// The wire between both sides. Its lock is held for a copy of a few hundred bytes at most.
pub struct Pair {
    wire: SpinLock<Wire>,
    /// Woken when the master has something to read, or never will.
    pub(super) readers: WaitQueue,
    /// On the process that opened the master.
    _charge: Option<Charge>,
}

/// The state of the wire.
#[derive(Default)]
pub(super) struct Wire {
    /// Printed and not yet read by the master (`FIONREAD`).
    pub printed: VecDeque<u8>,
    /// `TIOCSPTLCK`: the terminal can't be opened.
    pub locked: bool,
    /// Open files of the terminal.
    opens: u32,
    /// The terminal was open and is no more: the master reads `EIO`.
    closed: bool,
    /// The master is gone.
    orphan: bool,
    /// `TIOCPKT`: reads of the master begin with a status byte.
    pub packet: bool,
    /// `TIOCPKT_*` that the master has not read.
    status: u8,
    /// The last that `flow_changed` said.
    stopped: bool,
}

/// The result of a read of the master.
pub(super) enum Found {
    /// A status byte of packet mode.
    Status(u8),
    /// So many bytes.
    Bytes(usize),
    /// Nothing now.
    Nothing,
    /// Nothing, and no open terminal that could print.
    Closed,
}

impl Pair {
    /// A new pair, its terminal locked.
    ///
    /// # Errors
    /// `ENOSPC` for one too many.
    pub(super) fn new() -> Result<Arc<Pair>> {
        if COUNT.fetch_add(1, Relaxed) + 1 >= limit() {
            COUNT.fetch_sub(1, Relaxed);
            return Err(Errno::ENOSPC);
        }
        let wire = Wire {
            locked: true,
            ..Wire::default()
        };
        Ok(Arc::new(Pair {
            wire: SpinLock::new(Rank::Leaf, wire),
            readers: WaitQueue::new(),
            _charge: account::current().map(|account| account.charge(Kind::Terminals, 1, BYTES)),
        }))
    }

    /// Locks the wire.
    pub(super) fn wire(&self) -> SpinGuard<'_, Wire> {
        self.wire.lock()
    }

    /// Takes bytes for the master to read, `to.len()` at most.
    pub(super) fn take(&self, to: &mut [u8]) -> Found {
        let mut wire = self.wire();
        if wire.packet && wire.status != 0 {
            return Found::Status(core::mem::take(&mut wire.status));
        }
        let n = to.len().min(wire.printed.len());
        if n == 0 {
            return if wire.closed {
                Found::Closed
            } else {
                Found::Nothing
            };
        }
        let (front, back) = wire.printed.as_slices();
        let first = n.min(front.len());
        to[..first].copy_from_slice(&front[..first]);
        to[first..n].copy_from_slice(&back[..n - first]);
        wire.printed.drain(..n);
        Found::Bytes(n)
    }

    /// Whether the master could read, whether a status of packet mode waits, whether the terminal
    /// is closed.
    pub(super) fn readiness(&self) -> (bool, bool, bool) {
        let wire = self.wire();
        let status = wire.packet && wire.status != 0;
        (!wire.printed.is_empty() || status, status, wire.closed)
    }

    /// `TIOCPKT`.
    pub(super) fn set_packet(&self, on: bool) {
        let mut wire = self.wire();
        if on && !wire.packet {
            wire.status = 0;
        }
        wire.packet = on;
    }

    /// The master is closed.
    pub(super) fn orphan(&self) {
        let mut wire = self.wire();
        wire.orphan = true;
        let printed = core::mem::take(&mut wire.printed);
        drop(wire);
        drop(printed);
    }

    /// Tells a master in packet mode: `clear` no longer holds, `set` does.
    fn tell(&self, clear: u32, set: u32) {
        let mut wire = self.wire();
        if !wire.packet {
            return;
        }
        wire.status = wire.status & !(clear as u8) | set as u8;
        drop(wire);
        self.readers.wake_all();
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        COUNT.fetch_sub(1, Relaxed);
    }
}

/// The terminal's end of the wire.
pub(super) struct Slave(pub Arc<Pair>);

impl Driver for Slave {
    fn write(&self, bytes: &[u8]) {
        let mut wire = self.0.wire();
        if wire.orphan || wire.printed.len() + bytes.len() > PRINTED_MAX {
            // The master reads more slowly than the echo comes.
            return;
        }
        if wire.printed.try_reserve(bytes.len()).is_err() {
            return;
        }
        wire.printed.extend(bytes);
        drop(wire);
        self.0.readers.wake_shared(false);
    }

    fn has_room(&self) -> bool {
        let wire = self.0.wire();
        wire.printed.len() < PRINTED || wire.orphan
    }

    fn flush_output(&self) {
        self.0.wire().printed.clear();
        self.0.tell(0, TIOCPKT_FLUSHWRITE);
    }

    fn input_flushed(&self) {
        self.0.tell(0, TIOCPKT_FLUSHREAD);
    }

    fn flow_changed(&self, stopped: bool) {
        let changed = core::mem::replace(&mut self.0.wire().stopped, stopped) != stopped;
        match (changed, stopped) {
            (false, _) => {}
            (true, true) => self.0.tell(TIOCPKT_START, TIOCPKT_STOP),
            (true, false) => self.0.tell(TIOCPKT_STOP, TIOCPKT_START),
        }
    }

    fn settings_changed(&self, old: &termios2, new: &termios2) {
        // The keys that a program at the other side may act upon by itself: ^S and ^Q.
        let usual = |settings: &termios2| {
            settings.c_iflag & IXON != 0
                && settings.c_cc[VSTOP as usize] == 0o23
                && settings.c_cc[VSTART as usize] == 0o21
        };
        if usual(old) != usual(new) {
            let now = if usual(new) {
                TIOCPKT_DOSTOP
            } else {
                TIOCPKT_NOSTOP
            };
            self.0.tell(TIOCPKT_DOSTOP | TIOCPKT_NOSTOP, now);
        }
        if (old.c_lflag | new.c_lflag) & EXTPROC != 0 {
            self.0.tell(0, TIOCPKT_IOCTL);
        }
    }

    fn input_limit(&self) -> usize {
        INPUT_LIMIT
    }

    fn opened(&self) -> Result<()> {
        let mut wire = self.0.wire();
        if wire.locked || wire.orphan {
            return Err(Errno::EIO);
        }
        wire.opens += 1;
        wire.closed = false;
        Ok(())
    }

    fn closed(&self) -> bool {
        let mut wire = self.0.wire();
        wire.opens -= 1;
        if wire.opens > 0 {
            return false;
        }
        wire.closed = true;
        drop(wire);
        self.0.readers.wake_all();
        true
    }
}
