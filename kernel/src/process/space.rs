//! An address space and what `execve` put into it.

use alloc::{sync::Arc, vec::Vec};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

use abi::{Errno, Result};
use fs::{Location, Running};
use nucleus::VirtRange;
use vm::Map;

use crate::elf::Class;

/// An address space in use. Threads that run in it hold it; the last one to let go tears the map down.
pub struct Space {
    map: Arc<Map>,
    layout: Layout,
    /// Kinds of `membarrier` that its programs have registered for.
    barriers: AtomicU32,
}

/// Address spaces that are being torn down now.
static LEAVING: AtomicUsize = AtomicUsize::new(0);

/// Whether the memory of an address space is on its way back, so that nobody need be ended for memory.
pub fn is_any_leaving() -> bool {
    LEAVING.load(Relaxed) > 0
}

/// What `execve` put into an address space.
#[derive(Clone)]
pub struct Layout {
    /// The program file.
    pub exe: Location,
    /// While somebody runs it, nobody writes it.
    pub text: Option<Arc<Running>>,
    /// The program's code: first to last executable segment.
    pub code: VirtRange,
    /// Where the argument strings stand.
    pub arguments: VirtRange,
    /// Where the environment strings stand.
    pub environment: VirtRange,
    /// The stack pointer that the program started with.
    pub stack_start: usize,
    /// For which processor mode the program is made.
    pub class: Class,
    /// The auxiliary vector, as the program got it.
    pub auxiliary: Vec<u64>,
}

impl Space {
    /// An address space that is complete.
    pub fn new(map: Arc<Map>, layout: Layout) -> Arc<Space> {
        Arc::new(Space {
            map,
            layout,
            barriers: AtomicU32::new(0),
        })
    }

    /// A copy for a child.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn fork(&self) -> Result<Arc<Space>> {
        let map = self.map.fork().map_err(|_| Errno::ENOMEM)?;
        let copy = Space::new(map, self.layout.clone());
        copy.barriers.store(self.barriers.load(Relaxed), Relaxed);
        Ok(copy)
    }

    /// The map.
    #[inline]
    pub fn map(&self) -> &Arc<Map> {
        &self.map
    }

    /// What `execve` put into it.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Kinds of `membarrier` that its programs have registered for, in the bits of the commands.
    pub fn barriers(&self) -> &AtomicU32 {
        &self.barriers
    }

    /// The program file (`/proc/PID/exe`).
    pub fn exe(&self) -> &Location {
        &self.layout.exe
    }

    /// Where the argument strings stand, NUL-terminated (`/proc/PID/cmdline`).
    pub fn arguments(&self) -> VirtRange {
        self.layout.arguments
    }

    /// Where the environment strings stand (`/proc/PID/environ`).
    pub fn environment(&self) -> VirtRange {
        self.layout.environment
    }

    /// For which processor mode the program is made.
    pub fn class(&self) -> Class {
        self.layout.class
    }

    /// The auxiliary vector.
    pub fn auxiliary(&self) -> &[u64] {
        &self.layout.auxiliary
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        LEAVING.fetch_add(1, Relaxed);
        self.map.tear_down();
        LEAVING.fetch_sub(1, Relaxed);
    }
}
