//! An address space and what `execve` put into it.

use alloc::{sync::Arc, vec::Vec};

use fs::Location;
use nucleus::VirtRange;
use vm::Map;

/// An address space in use. Threads that run in it hold it; the last one to let go tears the map down.
pub struct Space {
    map: Arc<Map>,
    /// The program file.
    exe: Location,
    /// Where the argument strings stand.
    arguments: VirtRange,
    /// Where the environment strings stand.
    environment: VirtRange,
    /// The auxiliary vector, as the program got it.
    auxiliary: Vec<u64>,
}

impl Space {
    /// The map.
    pub fn map(&self) -> &Arc<Map> {
        &self.map
    }

    /// The program file (`/proc/PID/exe`).
    pub fn exe(&self) -> &Location {
        &self.exe
    }

    /// Where the argument strings stand, NUL-terminated (`/proc/PID/cmdline`).
    pub fn arguments(&self) -> VirtRange {
        self.arguments
    }

    /// Where the environment strings stand (`/proc/PID/environ`).
    pub fn environment(&self) -> VirtRange {
        self.environment
    }

    /// The auxiliary vector (`/proc/PID/auxv`).
    pub fn auxiliary(&self) -> &[u64] {
        &self.auxiliary
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        self.map.tear_down();
    }
}
