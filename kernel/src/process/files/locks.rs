//! Advisory locks: `flock` on whole files, and the record locks of `fcntl`, of processes or of open
//! files.
//!
//! One table for the machine, by file. Programs without locks never come here.

use alloc::{collections::BTreeMap, vec::Vec};

use abi::{Errno, Result};
use nucleus::{
    frame,
    sync::Mutex,
    task::{Sleep, WaitQueue},
};

use super::{FileTable, OpenFile};
use crate::process::{Pid, signal};

/// The owner of a lock: an open file description or a descriptor table, by its address, which is
/// unique while it lives; its locks end before it does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Owner(pub(super) usize);

/// The sharing that a lock allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Others may read.
    Shared,
    /// Others may do nothing.
    Exclusive,
}

/// A record lock: bytes `start..=last`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    pub mode: Mode,
    pub start: u64,
    pub last: u64,
    /// The process that asked, for `F_GETLK`; 0 for an open file description.
    pub pid: Pid,
}

/// A file, by device and inode.
type FileId = (u64, u64);

#[derive(Default)]
struct FileLocks {
    /// With the process that asked.
    whole: Vec<(Owner, Mode, Pid)>,
    records: Vec<(Owner, Record)>,
}

struct Registry {
    files: BTreeMap<FileId, FileLocks>,
    /// Owners that sleep, and the owners of the record locks that they wait for: cycles would sleep
    /// for ever.
    waiting: Vec<(Owner, Owner)>,
}

static REGISTRY: Mutex<Registry> = Mutex::new(
    fs::rank::FILE,
    Registry {
        files: BTreeMap::new(),
        waiting: Vec::new(),
    },
);

/// Woken when any lock ends.
static ENDED: WaitQueue = WaitQueue::new();

impl Record {
    fn overlaps(&self, other: &Record) -> bool {
        self.start <= other.last && other.start <= self.last
    }

    fn conflicts(&self, other: &Record) -> bool {
        self.overlaps(other) && (self.mode == Mode::Exclusive || other.mode == Mode::Exclusive)
    }
}

impl FileLocks {
    fn conflict(&self, owner: Owner, record: &Record) -> Option<(Owner, Record)> {
        self.records
            .iter()
            .find(|(other, held)| *other != owner && held.conflicts(record))
            .copied()
    }

    /// Cuts the bytes of `range` out of the locks of `owner`. The parts on both sides stay.
    fn cut(&mut self, owner: Owner, range: &Record) {
        let mut rest = Vec::new();
        self.records.retain(|(other, held)| {
            if *other != owner || !held.overlaps(range) {
                return true;
            }
            if held.start < range.start {
                rest.push((
                    owner,
                    Record {
                        last: range.start - 1,
                        ..*held
                    },
                ));
            }
            if held.last > range.last {
                rest.push((
                    owner,
                    Record {
                        start: range.last + 1,
                        ..*held
                    },
                ));
            }
            false
        });
        self.records.append(&mut rest);
    }

    /// Adds `record` and joins it with neighbours of the same mode.
    fn add(&mut self, owner: Owner, mut record: Record) {
        self.records.retain(|(other, held)| {
            let joins = *other == owner
                && held.mode == record.mode
                && held.start <= record.last.saturating_add(1)
                && record.start <= held.last.saturating_add(1);
            if joins {
                record.start = record.start.min(held.start);
                record.last = record.last.max(held.last);
            }
            !joins
        });
        self.records.push((owner, record));
    }

    fn is_empty(&self) -> bool {
        self.whole.is_empty() && self.records.is_empty()
    }
}

impl Registry {
    /// Whether `owner`, waiting for `holder`, would wait for itself.
    fn would_deadlock(&self, owner: Owner, holder: Owner) -> bool {
        let mut at = holder;
        for _ in 0..=self.waiting.len() {
            if at == owner {
                return true;
            }
            match self.waiting.iter().find(|(waiter, _)| *waiter == at) {
                Some((_, next)) => at = *next,
                None => return false,
            }
        }
        false
    }
}

fn id(open: &OpenFile) -> Result<FileId> {
    let attributes = open.attributes()?;
    Ok((attributes.device, attributes.inode))
}

fn may_allocate() -> Result<()> {
    if frame::is_scarce() {
        return Err(Errno::ENOLCK);
    }
    Ok(())
}

/// `flock`: takes, changes or (`None`) ends the lock of an open file description.
///
/// # Errors
/// `EAGAIN` if another has it and `wait` is false, a restart number, `ENOLCK`.
pub fn lock_whole(open: &OpenFile, mode: Option<Mode>, pid: Pid, wait: bool) -> Result<()> {
    let file = id(open)?;
    let owner = open.lock_owner();
    let Some(mode) = mode else {
        release(file, |locks| {
            locks.whole.retain(|(other, ..)| *other != owner);
        });
        return Ok(());
    };
    may_allocate()?;
    open.note_locks();
    let attempt = || {
        let mut registry = REGISTRY.lock();
        let locks = registry.files.entry(file).or_default();
        // A change of mode is not atomic: the old lock goes first, as on Linux.
        let before = locks.whole.len();
        locks
            .whole
            .retain(|&(other, held, _)| other != owner || held == mode);
        let dropped = locks.whole.len() != before;
        let conflict = locks.whole.iter().any(|&(other, held, _)| {
            other != owner && (held == Mode::Exclusive || mode == Mode::Exclusive)
        });
        if !conflict && locks.whole.iter().all(|(other, ..)| *other != owner) {
            locks.whole.push((owner, mode, pid));
        }
        drop(registry);
        if dropped {
            ENDED.wake_all();
        }
        (!conflict).then_some(())
    };
    signal::take_or_wait(&ENDED, wait, attempt)
}

/// The owner of the record lock that a call is about.
#[derive(Clone, Copy)]
pub enum For<'a> {
    /// The process that uses this table (`F_SETLK`).
    Process(&'a FileTable),
    /// The open file description itself (`F_OFD_SETLK`).
    Description,
}

impl For<'_> {
    fn owner(self, open: &OpenFile) -> Owner {
        match self {
            For::Process(table) => table.lock_owner(),
            For::Description => open.lock_owner(),
        }
    }
}

/// `F_GETLK`: the first lock that would keep `record` from being taken.
///
/// # Errors
/// Those of `fstat`.
pub fn conflicting_record(open: &OpenFile, by: For<'_>, record: &Record) -> Result<Option<Record>> {
    let file = id(open)?;
    let registry = REGISTRY.lock();
    Ok(registry
        .files
        .get(&file)
        .and_then(|locks| locks.conflict(by.owner(open), record))
        .map(|(_, held)| held))
}

/// `F_UNLCK`: ends the locks on the bytes of `range`.
///
/// # Errors
/// Those of `fstat`.
pub fn unlock_record(open: &OpenFile, by: For<'_>, range: &Record) -> Result<()> {
    let owner = by.owner(open);
    release(id(open)?, |locks| locks.cut(owner, range));
    Ok(())
}

/// `F_SETLK`, `F_SETLKW`: takes a record lock.
///
/// # Errors
/// `EAGAIN` if another has one and `wait` is false, `EDEADLK`, a restart number, `ENOLCK`.
pub fn lock_record(open: &OpenFile, by: For<'_>, record: Record, wait: bool) -> Result<()> {
    let file = id(open)?;
    let owner = by.owner(open);
    may_allocate()?;
    match by {
        For::Process(table) => table.note_locks(),
        For::Description => open.note_locks(),
    }
    let attempt = || -> Option<Result<()>> {
        let mut registry = REGISTRY.lock();
        registry.waiting.retain(|(waiter, _)| *waiter != owner);
        let locks = registry.files.entry(file).or_default();
        let Some((holder, _)) = locks.conflict(owner, &record) else {
            locks.cut(owner, &record);
            locks.add(owner, record);
            drop(registry);
            // A lock that became weaker lets others in.
            ENDED.wake_all();
            return Some(Ok(()));
        };
        if !wait {
            return Some(Err(Errno::EAGAIN));
        }
        if matches!(by, For::Process(_)) {
            if registry.would_deadlock(owner, holder) {
                return Some(Err(Errno::EDEADLK));
            }
            registry.waiting.push((owner, holder));
        }
        None
    };
    let result = ENDED.wait(Sleep::INTERRUPTIBLE, attempt);
    if result.is_err() {
        REGISTRY
            .lock()
            .waiting
            .retain(|(waiter, _)| *waiter != owner);
    }
    result.map_err(signal::woken)?
}

/// A lock as `/proc/locks` shows it.
pub struct Listed {
    /// Device and inode of the file.
    pub file: (u64, u64),
    /// On the whole file (`flock`).
    pub whole: bool,
    /// The process is 0 for an open file description's record lock.
    pub record: Record,
}

/// All locks.
///
/// # Errors
/// `ENOMEM`.
pub fn all() -> Result<Vec<Listed>> {
    let registry = REGISTRY.lock();
    let mut list = Vec::new();
    for (&file, locks) in &registry.files {
        let count = locks.whole.len() + locks.records.len();
        list.try_reserve(count)?;
        let whole = locks.whole.iter().map(|&(_, mode, pid)| Record {
            mode,
            start: 0,
            last: u64::MAX,
            pid,
        });
        let records = locks.records.iter().map(|&(_, record)| record);
        let all = whole
            .map(|it| (true, it))
            .chain(records.map(|it| (false, it)));
        list.extend(all.map(|(whole, record)| Listed {
            file,
            whole,
            record,
        }));
    }
    Ok(list)
}

/// Ends all locks of `owner` on the file that `open` is of.
pub(super) fn release_all(open: &OpenFile, owner: Owner) {
    if let Ok(file) = id(open) {
        release(file, |locks| {
            locks.whole.retain(|(other, ..)| *other != owner);
            locks.records.retain(|(other, _)| *other != owner);
        });
    }
}

fn release(file: FileId, how: impl FnOnce(&mut FileLocks)) {
    let mut registry = REGISTRY.lock();
    let Some(locks) = registry.files.get_mut(&file) else {
        return;
    };
    how(locks);
    if locks.is_empty() {
        registry.files.remove(&file);
    }
    drop(registry);
    ENDED.wake_all();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn circles_of_waiters_are_found() {
        let waiting = alloc::vec![(Owner(1), Owner(2)), (Owner(2), Owner(3))];
        let registry = Registry {
            files: BTreeMap::new(),
            waiting,
        };
        assert!(registry.would_deadlock(Owner(3), Owner(1)));
        assert!(!registry.would_deadlock(Owner(4), Owner(1)));
        assert!(registry.would_deadlock(Owner(1), Owner(1)));
    }
}
