//! User and group ids of a thread.

/// Immutable; a change makes a new one. `fs` holds the ids that file access is judged by.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    pub real_uid: u32,
    pub effective_uid: u32,
    pub saved_uid: u32,
    pub real_gid: u32,
    pub effective_gid: u32,
    pub saved_gid: u32,
    /// File-system user and group id, supplementary groups.
    pub fs: fs::Credentials,
}

impl Credentials {
    /// Effective uid 0: may do what needs a capability on Linux.
    pub fn is_privileged(&self) -> bool {
        self.effective_uid == 0
    }

    /// Whether a signal may be sent to a process with these credentials.
    pub fn may_signal(&self, target: &Credentials) -> bool {
        self.is_privileged()
            || [self.real_uid, self.effective_uid]
                .iter()
                .any(|uid| *uid == target.real_uid || *uid == target.saved_uid)
    }
}
