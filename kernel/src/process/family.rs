//! Who belongs to whom: parents and children, groups, sessions, ids.

use alloc::sync::Arc;

use nucleus::sync::SpinLock;

use super::Pid;
use crate::tty::Tty;

/// A process's place in the family.
pub struct Kin {
    _private: (),
}

/// A process group.
pub struct Group {
    id: Pid,
    session: Arc<Session>,
}

/// A session.
pub struct Session {
    id: Pid,
    terminal: SpinLock<Option<Arc<Tty>>>,
}

impl Group {
    /// The group's id.
    pub fn id(&self) -> Pid {
        self.id
    }

    /// The session that it belongs to.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// The group with this id.
    pub fn find(id: Pid) -> Option<Arc<Group>> {
        let _ = id;
        todo!()
    }

    /// Whether no member has a parent in another group of the same session: a stop by the terminal would be for ever.
    pub fn is_orphaned(&self) -> bool {
        todo!()
    }
}

impl Session {
    /// The session's id, that of its leader.
    pub fn id(&self) -> Pid {
        self.id
    }

    /// The controlling terminal.
    pub fn terminal(&self) -> Option<Arc<Tty>> {
        self.terminal.lock().clone()
    }

    /// Sets or takes away the controlling terminal; returns the old one.
    pub fn set_terminal(&self, terminal: Option<Arc<Tty>>) -> Option<Arc<Tty>> {
        core::mem::replace(&mut *self.terminal.lock(), terminal)
    }
}
