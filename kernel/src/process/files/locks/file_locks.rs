//! The locks of one file, and the table of files that have some. Both have a lock: see the order in
//! [the folder](super).

use alloc::{collections::BTreeMap, sync::Arc};

use nucleus::{sync::Mutex, task::WaitQueue};

use super::{super::OpenFile, flock::Whole, owner::Owner, records::Records, tree::Spare};

/// A file, by device and inode.
pub(super) type FileId = (u64, u64);

/// One file's locks.
pub(super) struct FileLocks {
    pub(super) id: FileId,
    pub(super) held: Mutex<HeldLocks>,
    /// Woken when a lock of the file ends or becomes weaker.
    pub(super) ended: WaitQueue,
}

#[derive(Default)]
pub(super) struct HeldLocks {
    /// Locks of the whole file.
    pub(super) whole: BTreeMap<Owner, Whole>,
    /// Those of `whole` that exclude others: none or one.
    pub(super) exclusive: usize,
    pub(super) records: Records,
}

pub(super) static FILES: Mutex<BTreeMap<FileId, Arc<FileLocks>>> =
    Mutex::new(crate::rank::LOCKED_FILES, BTreeMap::new());

/// Returns a file's locks, if it has or had any.
pub(super) fn find(id: FileId) -> Option<Arc<FileLocks>> {
    FILES.lock().get(&id).cloned()
}

/// Returns a file's locks for a call that adds one; it ends with [`put`].
pub(super) fn find_or_add(id: FileId) -> Arc<FileLocks> {
    let new = || {
        Arc::new(FileLocks {
            id,
            held: Mutex::new(crate::rank::LOCKS, HeldLocks::default()),
            ended: WaitQueue::new(),
        })
    };
    FILES.lock().entry(id).or_insert_with(new).clone()
}

/// Ends a use of a file's locks: the last one forgets the file if it has none.
pub(super) fn put(file: Arc<FileLocks>) {
    let mut files = FILES.lock();
    if Arc::strong_count(&file) == 2 && file.held.lock().is_empty() {
        files.remove(&file.id);
    }
    // With the table locked: the last user sees that it is the last one.
    drop(file);
}

/// Changes a file's locks by `how`, which returns whether others may have more than before.
pub(super) fn release(file: FileId, how: impl FnOnce(&mut HeldLocks) -> bool) {
    let Some(file) = find(file) else {
        return;
    };
    let frees = how(&mut file.held.lock());
    if frees {
        file.ended.wake_all();
    }
    put(file);
}

/// Locks that are ended in one turn, so that others who use the file need not wait for long.
const AT_ONCE: usize = 64;

/// Ends all locks of `owner` on the file that `open` is of.
pub(super) fn release_all(open: &OpenFile, owner: Owner) {
    let Ok(id) = open.identity() else {
        return;
    };
    let mut is_done = false;
    while !is_done {
        let mut ended = Spare::default();
        // A file without locks is not found.
        is_done = true;
        release(id, |held| {
            let mut frees = held.unlock_whole(owner).is_some();
            for _ in 0..AT_ONCE {
                let Some(record) = held.records.next_of(owner, 0) else {
                    held.records.settle(owner);
                    return frees;
                };
                held.records.remove(owner, &record, &mut ended);
                frees = true;
            }
            is_done = false;
            frees
        });
    }
}

impl HeldLocks {
    fn is_empty(&self) -> bool {
        self.whole.is_empty() && self.records.by_owner.is_empty()
    }
}
