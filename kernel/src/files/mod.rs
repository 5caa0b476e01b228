//! Tables of open files.

use alloc::sync::Arc;

use abi::Result;

/// What the descriptors of a process (or of several, `CLONE_FILES`) refer to.
pub struct Table {
    _private: (),
}

impl Table {
    /// No open files.
    pub fn new() -> Arc<Table> {
        todo!()
    }

    /// A copy with the same open files (`fork`, `execve` and `unshare` of a shared table).
    pub fn duplicate(&self) -> Result<Arc<Table>> {
        todo!()
    }

    /// Closes what is marked close-on-exec.
    pub fn close_on_exec(&self) {
        todo!()
    }
}
