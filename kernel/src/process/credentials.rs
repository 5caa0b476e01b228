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
