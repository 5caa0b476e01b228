//! Open files on their way from one process to another (`SCM_RIGHTS`).
//!
//! Files in flight are charged to the user that sent them. Local sockets in flight are listed
//! besides, with how often each is: a socket in the queue of a socket may be reachable from nowhere
//! else, and [`collect`](super::collect) finds such cycles by that list.

use alloc::{
    boxed::Box,
    collections::BTreeMap,
    sync::{Arc, Weak},
    vec::Vec,
};
use core::ops::Range;
use core::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};

use abi::{Errno, Result, raw::general::RLIMIT_NOFILE};
use nucleus::{
    sync::{Mutex, MutexGuard, Rank, SpinLock},
    task::{self, WaitQueue},
};
use vm::account::{Charge, Kind};

use crate::{
    process::{Process, Shared, files::OpenFile, turn::Turn},
    socket::SocketFile,
};

/// What an open file in flight is charged with, in bytes: no process may have it otherwise.
const FILE_BYTES: usize = 512;
/// The most files that go with one message (`SCM_MAX_FD`).
pub const MAX_FILES: usize = 253;

/// Files that go with a message. When dropped without having arrived, they are closed.
pub struct Rights {
    flight: Option<Box<Flight>>,
}

struct Flight {
    files: Vec<Arc<OpenFile>>,
    /// Of their sender; taken back when the files are closed.
    _charge: Option<Charge>,
    /// Some of them are local sockets.
    has_sockets: bool,
    /// The next of those [`UNDELIVERED`].
    next: Option<Box<Flight>>,
}

/// A local socket in flight.
pub struct InFlight {
    pub file: Weak<OpenFile>,
    /// How often.
    pub count: usize,
}

/// The local sockets in flight, by the address of their open file. While it is locked, no such
/// socket arrives: what queues hold of them can be looked at in peace.
pub type Sockets = BTreeMap<usize, InFlight>;

static SOCKETS: Mutex<Sockets> = Mutex::new(crate::rank::IN_FLIGHT, BTreeMap::new());
/// How many entries it has, readable without the lock.
static SOCKET_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Locks the list of sockets in flight.
pub fn sockets() -> MutexGuard<'static, Sockets> {
    SOCKETS.lock()
}

/// Whether any socket is in flight.
pub fn any_sockets() -> bool {
    SOCKET_COUNT.load(Relaxed) > 0
}

fn key(file: &Arc<OpenFile>) -> usize {
    Arc::as_ptr(file).addr()
}

fn is_unix_socket(file: &OpenFile) -> bool {
    SocketFile::of(file).is_ok_and(|socket| socket.carries_files())
}

impl Rights {
    /// Makes the rights to files that `process` sends with the credentials `who`.
    ///
    /// # Errors
    /// `ETOOMANYREFS` if its user has too many in flight already.
    pub fn new(files: Vec<Arc<OpenFile>>, process: &Process, who: &Shared) -> Result<Rights> {
        let account = process.account();
        let limit = process.limits().soft(RLIMIT_NOFILE);
        let count = files.len();
        let charge = account.charge(Kind::FilesInFlight, count, count * FILE_BYTES);
        // Those before these: the last message may go beyond the limit.
        let before = account.user().things(Kind::FilesInFlight) - count;
        if before as u64 > limit && !who.credentials.may_exceed_limits() {
            return Err(Errno::ETOOMANYREFS);
        }
        let has_sockets = files.iter().any(|file| is_unix_socket(file));
        if has_sockets {
            let mut sockets = SOCKETS.lock();
            for file in files.iter().filter(|file| is_unix_socket(file)) {
                let entry = sockets.entry(key(file)).or_insert_with(|| InFlight {
                    file: Arc::downgrade(file),
                    count: 0,
                });
                entry.count += 1;
            }
            SOCKET_COUNT.store(sockets.len(), Relaxed);
        }
        Ok(Rights::begin(files, Some(charge), has_sockets))
    }

    fn begin(files: Vec<Arc<OpenFile>>, charge: Option<Charge>, has_sockets: bool) -> Rights {
        let flight = Flight {
            files,
            _charge: charge,
            has_sockets,
            next: None,
        };
        Rights {
            flight: Some(Box::new(flight)),
        }
    }

    /// Makes rights to files without a sender, none of them sockets.
    #[cfg(test)]
    pub fn unsent(files: Vec<Arc<OpenFile>>) -> Rights {
        Rights::begin(files, None, false)
    }

    /// The files.
    pub fn files(&self) -> &[Arc<OpenFile>] {
        self.flight.as_ref().map_or(&[], |flight| &flight.files)
    }

    /// Whether the list of sockets must be [locked](sockets) while they are taken out of a queue.
    pub fn has_sockets(&self) -> bool {
        self.flight
            .as_ref()
            .is_some_and(|flight| flight.has_sockets)
    }

    /// They have arrived. `sockets` is the list, where it is locked already.
    pub fn arrive(mut self, sockets: Option<&mut Sockets>) -> Vec<Arc<OpenFile>> {
        match self.flight.take() {
            None => Vec::new(),
            Some(mut flight) => {
                flight.land(sockets);
                core::mem::take(&mut flight.files)
            }
        }
    }

    /// A second handle of each (`MSG_PEEK`).
    pub fn duplicate(&self) -> Vec<Arc<OpenFile>> {
        self.files().to_vec()
    }
}

impl Rights {
    /// They will not arrive, if they have not: the files are left to [`close_undelivered`]. Returns
    /// whether there are any.
    fn end(&mut self) -> bool {
        let Some(mut flight) = self.flight.take() else {
            return false;
        };
        let had_sockets = flight.has_sockets;
        flight.land(None);
        let mut first = UNDELIVERED.lock();
        flight.next = first.take();
        *first = Some(flight);
        drop(first);
        if had_sockets {
            // Sockets may have been reachable by these only.
            MAY_BE_GARBAGE.store(true, SeqCst);
        }
        true
    }
}

impl Flight {
    /// Takes sockets that are no longer in flight off the list.
    fn land(&mut self, sockets: Option<&mut Sockets>) {
        if !core::mem::take(&mut self.has_sockets) {
            return;
        }
        let mut guard = None;
        let sockets = match sockets {
            Some(sockets) => sockets,
            None => guard.insert(SOCKETS.lock()),
        };
        for file in self.files.iter().filter(|file| is_unix_socket(file)) {
            if let Some(entry) = sockets.get_mut(&key(file)) {
                entry.count -= 1;
                if entry.count == 0 {
                    sockets.remove(&key(file));
                }
            }
        }
        SOCKET_COUNT.store(sockets.len(), Relaxed);
    }
}

impl Drop for Rights {
    fn drop(&mut self) {
        // Where they arrived there is nothing to close, and the caller may hold locks.
        if self.end() {
            close_undelivered();
        }
    }
}

/// Drops rights together, and looks for garbage once.
pub fn drop_all(all: Vec<Rights>) {
    let mut any = false;
    for mut rights in all {
        any |= rights.end();
    }
    if any {
        close_undelivered();
    }
}

/// Whether `file` is a local socket in flight.
pub fn is_in_flight(file: &Arc<OpenFile>) -> bool {
    any_sockets() && is_unix_socket(file) && SOCKETS.lock().contains_key(&key(file))
}

/// Files that have not arrived, to be closed. They are charged until they are.
static UNDELIVERED: SpinLock<Option<Box<Flight>>> = SpinLock::new(Rank::Leaf, None);
/// Sockets have come into it since the last search for garbage.
static MAY_BE_GARBAGE: AtomicBool = AtomicBool::new(false);
/// The task that does the rest sleeps here.
static WORK: WaitQueue = WaitQueue::new();
/// How many messages' files a thread closes that only drops rights itself: others may drop more as
/// fast as it closes them.
const AT_ONCE: usize = 1024;

/// The tasks that close files, by address; 0 is free. The first place is the kernel's task's own.
static CLOSERS: SpinLock<[usize; CLOSERS_MAX]> = SpinLock::new(Rank::Leaf, [0; CLOSERS_MAX]);
const CLOSERS_MAX: usize = 8;

/// The current task closes files that have not arrived.
struct Closing {
    place: usize,
}

impl Closing {
    /// Begins.
    ///
    /// # Errors
    /// [`Busy`].
    fn begin(mut places: Range<usize>) -> core::result::Result<Closing, Busy> {
        let task = Arc::as_ptr(&task::current()).addr();
        let mut closers = CLOSERS.lock();
        if closers.contains(&task) {
            return Err(Busy::Nested);
        }
        let place = places.find(|&place| closers[place] == 0);
        let place = place.ok_or(Busy::Full)?;
        closers[place] = task;
        Ok(Closing { place })
    }

    /// Closes the files of one message; returns whether there was one.
    fn close_next(&self) -> bool {
        let mut first = UNDELIVERED.lock();
        let Some(mut flight) = first.take() else {
            return false;
        };
        *first = flight.next.take();
        drop(first);
        drop(flight);
        true
    }
}

/// Why a task does not close files now.
enum Busy {
    /// It closes one already, which led here, and will go on with the next.
    Nested,
    /// As many others as may be are at it.
    Full,
}

impl Drop for Closing {
    fn drop(&mut self) {
        CLOSERS.lock()[self.place] = 0;
    }
}

/// Closes files that have not arrived, as many as one thread may be asked for; a task closes the
/// rest, and looks for garbage. Closing a socket drops its queue, which may hold sockets again:
/// those are closed by the same thread when it comes back from the first, so no chain of sockets is
/// closed by recursion.
fn close_undelivered() {
    match Closing::begin(1..CLOSERS_MAX) {
        Err(Busy::Nested) => return,
        Err(Busy::Full) => {}
        Ok(closing) => {
            for _ in 0..AT_ONCE {
                if !closing.close_next() {
                    break;
                }
            }
        }
    }
    if has_work() {
        WORK.wake_all();
    }
}

fn has_work() -> bool {
    MAY_BE_GARBAGE.load(SeqCst) || UNDELIVERED.lock().is_some()
}

/// A socket in flight was closed: only sockets in flight may lead to it now.
pub fn suspect() {
    MAY_BE_GARBAGE.store(true, SeqCst);
    WORK.wake_all();
}

/// Does what is left to a task, forever: closes files, and calls `collect` when there may be
/// garbage.
pub fn serve(collect: fn()) -> ! {
    loop {
        WORK.wait_soundly(|| has_work().then_some(()));
        let mut turn = Turn::new();
        if let Ok(closing) = Closing::begin(0..1) {
            while closing.close_next() {
                turn.next();
            }
        }
        if MAY_BE_GARBAGE.swap(false, SeqCst) {
            // It looks at all sockets in flight.
            turn.end();
            collect();
        }
    }
}
