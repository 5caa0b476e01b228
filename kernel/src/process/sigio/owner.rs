//! The owner of a file description, and the signal that tells it of readiness.

use alloc::sync::{Arc, Weak};

use abi::{
    Errno, Result,
    raw::general::{
        F_OWNER_PGRP, F_OWNER_PID, F_OWNER_TID, POLL_ERR, POLL_HUP, POLL_IN, POLL_OUT, SIGBUS,
        SIGCHLD, SIGFPE, SIGILL, SIGIO, SIGSEGV, SIGSYS, SIGTRAP,
    },
};
use fs::Ready;

use crate::process::{
    Credentials, Group, Pid, Process, Thread, pid_table,
    signal::{self, Fields, Info},
};

/// `si_code` where the signal gives `POLL_*` another meaning.
const SI_SIGIO: i32 = -5;
/// Signals whose codes have another meaning.
const WITH_OWN_CODES: [u32; 7] = [SIGILL, SIGFPE, SIGSEGV, SIGBUS, SIGTRAP, SIGCHLD, SIGSYS];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Kind {
    Thread = F_OWNER_TID,
    Process = F_OWNER_PID,
    Group = F_OWNER_PGRP,
}

impl Kind {
    /// From `f_owner_ex::type`.
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn from_number(number: u32) -> Result<Kind> {
        match number {
            F_OWNER_TID => Ok(Kind::Thread),
            F_OWNER_PID => Ok(Kind::Process),
            F_OWNER_PGRP => Ok(Kind::Group),
            _ => Err(Errno::EINVAL),
        }
    }

    /// For `f_owner_ex::type`.
    pub fn number(self) -> u32 {
        self as u32
    }
}

/// Kept without keeping it: an id that is used again is another's.
#[derive(Clone)]
enum Target {
    Nobody,
    Thread(Weak<Thread>),
    Process(Weak<Process>),
    Group(Weak<Group>),
}

/// The receiver of the signal, the sender's user, and the signal's number.
#[derive(Clone)]
pub struct Owner {
    kind: Kind,
    target: Target,
    /// Real and effective user of the process that named the owner: the signal is sent as if by it.
    uid: u32,
    euid: u32,
    /// `F_SETSIG`; 0 for SIGIO without particulars.
    pub signal: u32,
}

impl Owner {
    pub const fn nobody() -> Owner {
        Owner {
            kind: Kind::Thread,
            target: Target::Nobody,
            uid: 0,
            euid: 0,
            signal: 0,
        }
    }

    /// Whether no owner was ever named, or 0 was.
    pub fn is_nobody(&self) -> bool {
        matches!(self.target, Target::Nobody)
    }

    /// Names the owner, on the account of `who`; 0 for none.
    ///
    /// # Errors
    /// `ESRCH` if there is none with that id.
    pub fn name(&mut self, kind: Kind, id: Pid, who: &Credentials) -> Result<()> {
        let target = match kind {
            _ if id == 0 => Target::Nobody,
            Kind::Thread => {
                let thread = pid_table::find_thread(id).ok_or(Errno::ESRCH)?;
                Target::Thread(Arc::downgrade(&thread))
            }
            Kind::Process => {
                let process = Process::find(id).ok_or(Errno::ESRCH)?;
                Target::Process(Arc::downgrade(&process))
            }
            Kind::Group => {
                let group = Group::find(id).ok_or(Errno::ESRCH)?;
                Target::Group(Arc::downgrade(&group))
            }
        };
        if !matches!(target, Target::Nobody) {
            self.uid = who.real_uid;
            self.euid = who.effective_uid;
        }
        self.kind = kind;
        self.target = target;
        Ok(())
    }

    /// Returns the kind of owner that was named last, and its id: 0 if it is gone.
    pub fn id(&self) -> (Kind, Pid) {
        let id = match &self.target {
            Target::Nobody => None,
            Target::Thread(thread) => living_thread(thread).map(|thread| thread.tid()),
            Target::Process(process) => living_process(process).map(|process| process.pid()),
            Target::Group(group) => living_group(group).map(|group| group.id),
        };
        (self.kind, id.unwrap_or(0))
    }

    /// Tells the owner that the file which it may know as `fd` has become ready: `code` is one of
    /// `POLL_*`.
    pub fn tell(&self, fd: i32, code: u32) {
        match &self.target {
            Target::Nobody => {}
            Target::Thread(thread) => {
                if let Some(thread) = living_thread(thread) {
                    self.tell_one(thread.process(), Some(&thread), fd, code);
                }
            }
            Target::Process(process) => {
                if let Some(process) = living_process(process) {
                    self.tell_one(&process, None, fd, code);
                }
            }
            Target::Group(group) => {
                if let Some(group) = living_group(group) {
                    for process in pid_table::members(group.id) {
                        self.tell_one(&process, None, fd, code);
                    }
                }
            }
        }
    }

    fn tell_one(&self, process: &Process, thread: Option<&Thread>, fd: i32, code: u32) {
        let receiver = match thread {
            Some(thread) => thread.credentials(),
            None => process.credentials(),
        };
        // A zombie hears nothing.
        let Some(receiver) = receiver else { return };
        if !self.may_signal(&receiver) {
            return;
        }
        let send = |info| match thread {
            Some(thread) => signal::send_to_thread(thread, info),
            None => signal::send_to_process(process, info),
        };
        if self.signal != 0 {
            let code_sent = match WITH_OWN_CODES.contains(&self.signal) {
                true => SI_SIGIO,
                false => code as i32,
            };
            let band = band(code).bits();
            let info = Info::new(self.signal, code_sent, Fields::Poll { band, fd });
            if send(info).is_ok() {
                return;
            }
        }
        // Also where there is no room for one more with particulars: SIGIO then says that some were
        // lost.
        let _ = send(Info::kernel(SIGIO));
    }

    fn may_signal(&self, receiver: &Credentials) -> bool {
        self.euid == 0
            || [self.euid, self.uid]
                .iter()
                .any(|&uid| uid == receiver.saved_uid || uid == receiver.real_uid)
    }
}

/// The readiness that a `POLL_*` code stands for (`si_band`).
fn band(code: u32) -> Ready {
    match code {
        POLL_IN => Ready::IN | Ready::RDNORM,
        POLL_OUT => Ready::OUT | Ready::WRNORM | Ready::WRBAND,
        POLL_ERR => Ready::ERR,
        POLL_HUP => Ready::HUP | Ready::ERR,
        _ => Ready::empty(),
    }
}

fn living_thread(thread: &Weak<Thread>) -> Option<Arc<Thread>> {
    let thread = thread.upgrade()?;
    pid_table::find_thread(thread.tid()).filter(|found| Arc::ptr_eq(found, &thread))
}

fn living_process(process: &Weak<Process>) -> Option<Arc<Process>> {
    let process = process.upgrade()?;
    Process::find(process.pid()).filter(|found| Arc::ptr_eq(found, &process))
}

fn living_group(group: &Weak<Group>) -> Option<Arc<Group>> {
    let group = group.upgrade()?;
    Group::find(group.id).filter(|found| Arc::ptr_eq(found, &group))
}
