//! An address space and what `execve` put into it.

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use abi::{Errno, Result};
use fbuf::region::Domain;
use fs::{Location, Running};
use nucleus::{
    VirtRange,
    pmap::Promotion,
    sync::{OnceArc, OnceBox},
    trap::LOCAL_SEGMENTS,
};
use vm::{
    Map,
    account::{Account, Charge, Kind},
};

use crate::process::exec::elf::Class;

/// An address space in use. Threads that run in it hold it; the last one to let go tears the map
/// down.
pub struct Space {
    map: Arc<Map>,
    pub layout: Layout,
    /// Kinds of `membarrier` that its programs have registered for, in the bits of the commands.
    pub barriers: AtomicU32,
    /// `PR_SET_DUMPABLE`: whether other processes of its user may look into it. It belongs to the
    /// space, so that no other program is judged by it.
    dumpable: AtomicU32,
    /// Of the last choice of a process to be ended for memory.
    pub(super) weighing: Weighing,
    /// What it is to the fbuf region, once it has entered that.
    domain: OnceArc<Domain>,
    /// For the table of its threads' local segments, once there is one.
    segments: OnceBox<Charge>,
}

/// What the choice of a process to be ended for memory knows of an address space that several may
/// have: it weighs once, and they end together. Changed by the thread alone that chooses.
#[derive(Default)]
pub(super) struct Weighing {
    /// The number of the choice of which the rest is.
    pub choice: AtomicU64,
    /// The pages that its end frees.
    pub pages: AtomicUsize,
    /// The process that is ended last has it.
    pub is_last: AtomicBool,
    /// A process that is never ended has it.
    pub is_spared: AtomicBool,
    /// A process of root's has it.
    pub is_roots: AtomicBool,
}

/// The user's other processes may look into a space that is dumpable like this.
const BY_USER: u32 = 1;

/// How dumpable programs are that have rights which their user has not (`fs.suid_dumpable`).
pub static SET_ID_DUMPABLE: AtomicU32 = AtomicU32::new(0);

/// How many have begun to leave, and how many of these are done: see [`Leaving`].
static BEGUN: AtomicUsize = AtomicUsize::new(0);
static DONE: AtomicUsize = AtomicUsize::new(0);

/// A user of an address space drops it, and is not found among its users any more: no process need
/// be ended for memory meanwhile.
pub struct Leaving(());

impl Leaving {
    pub fn begin() -> Leaving {
        BEGUN.fetch_add(1, Relaxed);
        Leaving(())
    }

    /// Returns how many drops have begun, if all of them are done. As long as this stays the same,
    /// each address space has a user that is found.
    pub fn none() -> Option<usize> {
        let begun = BEGUN.load(Acquire);
        (begun == DONE.load(Acquire)).then_some(begun)
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        DONE.fetch_add(1, Release);
    }
}

/// The addresses of a program, set by `execve`.
#[derive(Clone)]
pub struct Layout {
    pub exe: Location,
    /// No writer opens the file while it runs.
    pub _text: Option<Arc<Running>>,
    /// The program's code: first to last executable segment.
    pub code: VirtRange,
    pub arguments: VirtRange,
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
            dumpable: AtomicU32::new(BY_USER),
            weighing: Weighing::default(),
            domain: OnceArc::new(),
            segments: OnceBox::new(),
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
        copy.dumpable.store(self.dumpable(), Relaxed);
        copy.map.pmap().take_trust(self.map.pmap());
        Ok(copy)
    }

    /// Charges the table of the local segments, once.
    pub fn charge_segments(&self, account: &Arc<Account>) {
        const BYTES: usize = LOCAL_SEGMENTS * size_of::<u64>();
        self.segments
            .get_or_insert(|| Box::new(account.charge(Kind::LocalSegments, 1, BYTES)));
    }

    /// `PR_GET_DUMPABLE`.
    pub fn dumpable(&self) -> u32 {
        self.dumpable.load(Relaxed)
    }

    /// `PR_SET_DUMPABLE`.
    pub fn set_dumpable(&self, value: u32) {
        self.dumpable.store(value, Relaxed);
        if value != BY_USER {
            // Until it executes another program.
            self.distrust();
        }
    }

    /// The CPUs' branch predictions may serve it and the other programs of this user.
    pub fn trust(&self, user: u32) {
        self.map.pmap().set_trust(Some(user));
    }

    /// They serve no other program. In a small space it has no neighbours any more, unless all
    /// programs may be neighbours.
    pub fn distrust(&self) {
        self.map.pmap().set_trust(None);
        self.leave_neighbours();
    }

    fn leave_neighbours(&self) {
        if !self.map.pmap().is_in_shared_group() {
            self.map.promote(Promotion::User);
        }
    }

    /// Its memory holds data that its user may not read: as after a set-id program.
    pub fn make_private(&self) {
        self.set_dumpable(SET_ID_DUMPABLE.load(Relaxed));
        self.leave_neighbours();
    }

    /// Whether other processes of its user may look into it.
    pub fn is_dumpable(&self) -> bool {
        self.dumpable() == BY_USER
    }

    /// Its domain, once it has entered the fbuf region.
    pub fn domain(&self) -> Option<Arc<Domain>> {
        self.domain.get_arc()
    }

    /// Where its domain is kept.
    pub fn domain_place(&self) -> &OnceArc<Domain> {
        &self.domain
    }

    #[inline]
    pub fn map(&self) -> &Arc<Map> {
        &self.map
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let _leaving = Leaving::begin();
        if let Some(domain) = self.domain.take() {
            domain.end();
        }
        self.map.tear_down();
    }
}
