//! Terminals.

use crate::process::Pid;

/// A terminal: line discipline, window size, the session it controls and its foreground group.
pub struct Tty {
    _private: (),
}

impl Tty {
    /// The foreground process group, 0 if none.
    pub fn foreground(&self) -> Pid {
        todo!()
    }

    /// The terminal's device number.
    pub fn device(&self) -> u64 {
        todo!()
    }

    /// The leader of `session`, which this terminal controls, has ended: the terminal controls no session any more
    /// and its foreground group gets SIGHUP and SIGCONT.
    pub fn session_ended(&self, session: Pid) {
        let _ = session;
        todo!()
    }
}
