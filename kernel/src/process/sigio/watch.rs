//! The `O_ASYNC` state of an open file description.

use alloc::{
    sync::{Arc, Weak},
    vec::Vec,
};
use core::sync::atomic::{AtomicU8, Ordering::SeqCst};

use abi::{
    Errno, Result,
    raw::general::{POLL_ERR, POLL_HUP, POLL_IN, POLL_OUT},
};
use fs::{File, Ready};
use nucleus::{
    frame,
    sync::{Mutex, Rank, SpinLock},
    task::{Observation, Observer, WaitQueue, Watch},
};

use super::{
    Owner,
    post::{self, Room},
};

/// Queues that a file may have: that of its readers, then that of its writers.
const QUEUES: usize = 2;
/// Bits for the queues that were woken.
const READERS: u8 = 1;
const WRITERS: u8 = 2;
/// A file that has only one queue: its answer to `poll` says what for.
const ONLY: u8 = 4;

/// The owner of a description, and the observed queues while `O_ASYNC` is set.
pub struct Sigio {
    me: Weak<Sigio>,
    owner: SpinLock<Owner>,
    watching: Mutex<Option<Watching>>,
    /// The queues woken since the last look.
    woken: AtomicU8,
    /// Its place among those that were woken.
    room: Room,
}

struct Watching {
    file: Arc<dyn File>,
    /// The descriptor by which it was asked for.
    fd: i32,
    /// The readiness at the last look.
    before: Ready,
    /// End with it.
    _observations: Vec<Observation>,
}

struct Bell {
    sigio: Weak<Sigio>,
    queue: u8,
}

impl Sigio {
    /// Without an owner, watching nothing.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new() -> Result<Arc<Sigio>> {
        frame::check_not_scarce()?;
        let room = Room::reserve()?;
        Ok(Arc::new_cyclic(|me| Sigio {
            me: me.clone(),
            owner: SpinLock::new(Rank::Leaf, Owner::nobody()),
            watching: Mutex::new(crate::rank::EPOLL, None),
            woken: AtomicU8::new(0),
            room,
        }))
    }

    pub fn owner(&self) -> Owner {
        self.owner.lock().clone()
    }

    pub fn set_owner(&self, owner: Owner) {
        let old = core::mem::replace(&mut *self.owner.lock(), owner);
        drop(old);
    }

    /// Begins to tell the owner of `file`, which it may know as `fd`.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn begin(&self, file: &Arc<dyn File>, fd: i32) -> Result<()> {
        let mut watching = self.watching.lock();
        let counted = &mut Count(0);
        let _ = file.poll(Some(counted));
        let names = match counted.0 {
            1 => [ONLY, ONLY],
            _ => [READERS, WRITERS],
        };
        let mut bells = Bells {
            sigio: &self.me,
            names: names.into_iter(),
            observations: Vec::new(),
            out_of_memory: false,
        };
        let before = file.poll(Some(&mut bells));
        if bells.out_of_memory {
            return Err(Errno::ENOMEM);
        }
        *watching = Some(Watching {
            file: file.clone(),
            fd,
            before,
            _observations: bells.observations,
        });
        Ok(())
    }

    /// Returns its place among those that were woken.
    pub(super) fn room(&self) -> &Room {
        &self.room
    }

    pub fn end(&self) {
        let gone = self.watching.lock().take();
        drop(gone);
    }

    /// Looks at the woken queues and tells the owner. Sleeping locks are taken.
    pub(super) fn look(&self) {
        // Before the look: later wake-ups are looked at again.
        let woken = self.woken.swap(0, SeqCst);
        let mut watching = self.watching.lock();
        let Some(watching) = &mut *watching else {
            return;
        };
        let ready = watching.file.poll(None);
        let new = ready - watching.before;
        watching.before = ready;
        let owner = self.owner();
        for code in reasons(woken, ready, new).into_iter().flatten() {
            owner.tell(watching.fd, code);
        }
    }
}

/// Returns the codes that the owner is told, as Linux's files do: a closed pipe is readable, up to
/// its end; a connection hangs up or fails once.
fn reasons(woken: u8, ready: Ready, new: Ready) -> [Option<u32>; 2] {
    if woken & ONLY != 0 {
        let code = match ready {
            _ if ready.intersects(Ready::IN | Ready::HUP) => Some(POLL_IN),
            _ if ready.intersects(Ready::OUT | Ready::ERR) => Some(POLL_OUT),
            _ => None,
        };
        return [code, None];
    }
    if new.contains(Ready::ERR) {
        return [Some(POLL_ERR), None];
    }
    if new.contains(Ready::HUP) {
        return [Some(POLL_HUP), None];
    }
    let reads = woken & READERS != 0 && ready.contains(Ready::IN);
    let writes = woken & WRITERS != 0 && ready.contains(Ready::OUT);
    [reads.then_some(POLL_IN), writes.then_some(POLL_OUT)]
}

impl Observer for Bell {
    fn woken(&self, _: u8) -> bool {
        let Some(sigio) = self.sigio.upgrade() else {
            return false;
        };
        if sigio.woken.fetch_or(self.queue, SeqCst) == 0 {
            post::note(sigio);
        }
        true
    }
}

/// Observes each of a file's queues under the name that its place gives it.
struct Bells<'s> {
    sigio: &'s Weak<Sigio>,
    names: core::array::IntoIter<u8, QUEUES>,
    observations: Vec<Observation>,
    out_of_memory: bool,
}

struct Count(usize);

impl<'a> Watch<'a> for Count {
    fn add(&mut self, _: &'a WaitQueue) {
        self.0 += 1;
    }

    fn add_shared(&mut self, _: &Arc<WaitQueue>) {
        self.0 += 1;
    }
}

impl Bells<'_> {
    fn observe(&mut self, queue: &WaitQueue) {
        let bell = Bell {
            sigio: self.sigio.clone(),
            queue: self.names.next().unwrap_or(READERS | WRITERS),
        };
        let room = self.observations.try_reserve(1).is_ok();
        match queue.observe(Arc::new(bell), 0, false) {
            Ok(observation) if room => self.observations.push(observation),
            _ => self.out_of_memory = true,
        }
    }
}

impl<'a> Watch<'a> for Bells<'_> {
    fn add(&mut self, queue: &'a WaitQueue) {
        self.observe(queue);
    }

    fn add_shared(&mut self, queue: &Arc<WaitQueue>) {
        self.observe(queue);
    }
}
