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
use core::{
    sync::atomic::{
        AtomicBool, AtomicUsize,
        Ordering::{Relaxed, SeqCst},
    },
    time::Duration,
};

use abi::{Errno, Result, raw::general::RLIMIT_NOFILE};
use nucleus::{
    sync::{Mutex, MutexGuard, Rank, SpinLock},
    task::{self, Sleep, WaitQueue},
    time,
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
    /// The next in a list of those [`UNDELIVERED`].
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
        let kind = Kind::FilesInFlight;
        let charge = account.charge_if(kind, count, count * FILE_BYTES, |user| {
            // Those before these: the last message may go beyond the limit.
            let before = user.things(kind) - count;
            before as u64 <= limit || who.credentials.may_exceed_limits()
        });
        let charge = charge.ok_or(Errno::ETOOMANYREFS)?;
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
    /// They will not arrive: returns the files, if they have not arrived already.
    fn end(&mut self) -> Option<Box<Flight>> {
        let mut flight = self.flight.take()?;
        let had_sockets = flight.has_sockets;
        flight.land(None);
        if had_sockets {
            // Sockets may have been reachable by these only.
            MAY_BE_GARBAGE.store(true, SeqCst);
        }
        Some(flight)
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
        if let Some(flight) = self.end() {
            close(flight);
        }
    }
}

/// Whether `file` is a local socket in flight.
pub fn is_in_flight(file: &Arc<OpenFile>) -> bool {
    any_sockets() && is_unix_socket(file) && SOCKETS.lock().contains_key(&key(file))
}

/// Sockets have come into a list of files to be closed since the last search for garbage.
static MAY_BE_GARBAGE: AtomicBool = AtomicBool::new(false);
/// The task that does the rest sleeps here.
static WORK: WaitQueue = WaitQueue::new();
/// The files of how many messages a thread closes that drops rights.
const AT_ONCE: usize = 1024;
/// How many lists there are: one of the task's own, one for each thread that closes files, and the
/// last for what finds no other.
const LISTS: usize = 9;
const LAST: usize = LISTS - 1;

/// Files that have not arrived, to be closed. They are charged until they are.
static UNDELIVERED: SpinLock<[Undelivered; LISTS]> =
    SpinLock::new(Rank::Leaf, [const { Undelivered::new() }; LISTS]);

/// Files to be closed by one task.
struct Undelivered {
    /// The address of the task; 0 for what is left to the kernel's.
    task: usize,
    first: Option<Box<Flight>>,
}

impl Undelivered {
    const fn new() -> Self {
        Undelivered {
            task: 0,
            first: None,
        }
    }

    fn push(&mut self, mut flight: Box<Flight>) {
        flight.next = self.first.take();
        self.first = Some(flight);
    }

    fn pop(&mut self) -> Option<Box<Flight>> {
        let mut flight = self.first.take()?;
        self.first = flight.next.take();
        Some(flight)
    }
}

/// Closes files that have not arrived. Closing a socket drops its queue, which may hold sockets
/// again: those wait in the thread's list until it comes back from the first, so no chain of
/// sockets is closed by recursion. What is more than one thread may be asked for is left to a task.
fn close(flight: Box<Flight>) {
    let task = Arc::as_ptr(&task::current()).addr();
    let place = {
        let mut lists = UNDELIVERED.lock();
        if let Some(own) = lists.iter_mut().find(|list| list.task == task) {
            own.push(flight);
            return;
        }
        let is_free = |list: &Undelivered| list.task == 0 && list.first.is_none();
        let free = lists[1..LAST].iter().position(is_free);
        let place = free.map_or(LAST, |place| place + 1);
        lists[place].push(flight);
        if place < LAST {
            lists[place].task = task;
        }
        place
    };
    if place < LAST {
        for _ in 0..AT_ONCE {
            let next = UNDELIVERED.lock()[place].pop();
            if next.is_none() {
                break;
            }
            drop(next);
        }
        UNDELIVERED.lock()[place].task = 0;
    }
    if has_work() {
        WORK.wake_all();
    }
}

/// Returns what the task is to close next: what it has come upon itself, or what others left.
fn next_for_task() -> Option<Box<Flight>> {
    let mut lists = UNDELIVERED.lock();
    let own = lists[0].pop();
    own.or_else(|| {
        let mut left = lists[1..].iter_mut().filter(|list| list.task == 0);
        left.find_map(Undelivered::pop)
    })
}

fn has_work() -> bool {
    let lists = UNDELIVERED.lock();
    let is_left = |list: &Undelivered| list.task == 0 && list.first.is_some();
    MAY_BE_GARBAGE.load(SeqCst) || lists[0].first.is_some() || lists[1..].iter().any(is_left)
}

/// How long after a search the next one comes while sockets are in flight. The last handle from
/// outside may be a call's own, which ends without a close: a `sendmsg` of a socket over itself
/// that another thread closes meanwhile. A search takes a time that is linear in what is in flight.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// A socket in flight was closed: only sockets in flight may lead to it now.
pub fn suspect() {
    MAY_BE_GARBAGE.store(true, SeqCst);
    WORK.wake_all();
}

/// Does what is left to a task, forever: closes files, and calls `collect` when there may be
/// garbage.
pub fn serve(collect: fn()) -> ! {
    UNDELIVERED.lock()[0].task = Arc::as_ptr(&task::current()).addr();
    loop {
        let sleep = Sleep {
            deadline: Some(time::since_boot() + AGAIN_AFTER),
            ..Sleep::SOUND
        };
        let is_due = WORK.wait(sleep, || has_work().then_some(())).is_err() && any_sockets();
        let mut turn = Turn::new();
        while let Some(flight) = next_for_task() {
            drop(flight);
            turn.next();
        }
        if MAY_BE_GARBAGE.swap(false, SeqCst) || is_due {
            // It looks at all sockets in flight.
            turn.end();
            collect();
        }
    }
}
