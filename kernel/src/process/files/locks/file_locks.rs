//! The locks of one file, and the table of files that have some. Both have a lock: see the order in
//! [the folder](super).

use alloc::{collections::BTreeMap, sync::Arc};

use abi::Result;
use nucleus::{sync::Mutex, task::WaitQueue};
use vm::account::Charge;

use super::{
    Mode,
    owner::{Owner, Ownership},
    records::Records,
    tree::Spare,
};
use crate::process::Pid;

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

/// A lock of a whole file.
pub(super) struct Whole {
    pub(super) mode: Mode,
    /// The process that asked.
    pub(super) pid: Pid,
    pub(super) charge: Charge,
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

/// Ends all locks of an owner on a file.
pub(in crate::process::files) fn release_all(
    ownership: &Ownership,
    file: impl FnOnce() -> Result<FileId>,
) {
    let owner = ownership.owner();
    if owner != Owner::NONE
        && let Ok(file) = file()
    {
        release_owned(file, owner);
    }
}

fn release_owned(id: FileId, owner: Owner) {
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

    /// Returns the lock that was ended, if there was one.
    pub(super) fn unlock_whole(&mut self, owner: Owner) -> Option<Whole> {
        let ended = self.whole.remove(&owner)?;
        self.exclusive -= usize::from(ended.mode == Mode::Exclusive);
        Some(ended)
    }
}
