//! Threads that wait for record locks, and cycles of them.

use alloc::{collections::BTreeMap, sync::Arc};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use nucleus::sync::Mutex;

use super::{
    file_locks::{FileLocks, put},
    owner::Owner,
    records::Record,
};

/// A thread that waits for a record lock.
struct Waiting {
    file: Arc<FileLocks>,
    record: Record,
}

/// A thread, by its owner and a number of its own.
type ThreadKey = (Owner, u64);

/// Cycles would sleep for ever.
static WAITING: Mutex<BTreeMap<ThreadKey, Waiting>> =
    Mutex::new(crate::rank::LOCK_WAITERS, BTreeMap::new());

/// The owners in a cycle of waiters that is found, as on Linux.
const LONGEST_CYCLE: usize = 10;

/// Returns a key for a thread of `owner` that may wait.
pub(super) fn new_thread(owner: Owner) -> ThreadKey {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    (owner, NEXT.fetch_add(1, Relaxed))
}

/// Notes that a thread waits no more.
pub(super) fn end_wait(key: ThreadKey) {
    WAITING.lock().remove(&key);
}

/// Notes that a thread of `owner` waits to lock `record`, unless it would wait for itself: true.
///
/// The locks that waiters wait for are looked up here: a waiter whose conflict has ended waits no
/// more, even if it has not run since. A cycle is looked for with no other lock held, found by its
/// last waiter, and looked at again at one moment.
pub(super) fn would_deadlock(key: ThreadKey, file: &Arc<FileLocks>, record: &Record) -> bool {
    let (owner, _) = key;
    let new = || Waiting {
        file: file.clone(),
        record: *record,
    };
    WAITING.lock().entry(key).or_insert_with(new);
    let next = |at| {
        let (file, record) = {
            let waiting = WAITING.lock();
            let it = thread_of(&waiting, at)?;
            (it.file.clone(), it.record)
        };
        let holder = holder(&file, at, &record);
        put(file);
        holder
    };
    if !leads_back(owner, holder(file, owner, record), next) {
        return false;
    }
    let mut waiting = WAITING.lock();
    let next = |at| {
        let it = thread_of(&waiting, at)?;
        holder(&it.file, at, &it.record)
    };
    let is_cycle = leads_back(owner, holder(file, owner, record), next);
    if is_cycle {
        waiting.remove(&key);
    }
    is_cycle
}

/// A thread of `owner` that waits.
fn thread_of(waiting: &BTreeMap<ThreadKey, Waiting>, owner: Owner) -> Option<&Waiting> {
    let mut threads = waiting.range((owner, 0)..=(owner, u64::MAX));
    threads.next().map(|(_, it)| it)
}

/// Returns the owner of a lock that keeps `record` from `owner`.
fn holder(file: &FileLocks, owner: Owner, record: &Record) -> Option<Owner> {
    let found = file.held.lock().records.conflict(owner, record);
    found.map(|(holder, _)| holder)
}

/// Whether `holder` waits for `owner`, itself or by others; `next`: who keeps an owner waiting.
fn leads_back(
    owner: Owner,
    mut holder: Option<Owner>,
    mut next: impl FnMut(Owner) -> Option<Owner>,
) -> bool {
    for _ in 0..LONGEST_CYCLE {
        match holder {
            Some(at) if at != owner => holder = next(at),
            _ => break,
        }
    }
    holder == Some(owner)
}
