//! Advisory locks: `flock` on whole files, and the record locks of `fcntl`, of processes or of open
//! files.
//!
//! A table finds a file's locks by device and inode; they have a lock and a queue of waiters of
//! their own. Record locks stand in three trees (`tree`): those that share and those that exclude
//! by first byte, to find what conflicts, and all of them by owner, to change an owner's. Each
//! operation takes logarithmic time for each lock that it changes. Programs without locks never
//! come here.
//!
//! Lock order: the table, or the waiters for record locks; then one file's locks.

mod tree;

use alloc::{collections::BTreeMap, sync::Arc, vec::Vec};
use core::{
    ops::Bound,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use abi::{Errno, Result};
use nucleus::{
    frame,
    sync::Mutex,
    task::{Sleep, WaitQueue},
};
use vm::account::{Account, Charge, Kind};

use self::tree::{Held, Spare, Tree};
use super::{FileTable, OpenFile};

use crate::process::{Pid, signal};

/// The owner of a lock: an open file description or a descriptor table, by a number that no other
/// ever gets; its locks end before it does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Owner(u64);

impl Owner {
    /// A number, for an order.
    fn key(self) -> u64 {
        self.0
    }
}

/// The number of the next owner.
static NEXT_OWNER: AtomicU64 = AtomicU64::new(1);

/// What an open file description or a descriptor table is as an owner of locks: none until it asks
/// for the first one.
#[derive(Debug)]
pub(super) struct Ownership(AtomicU64);

impl Ownership {
    /// No owner yet.
    pub const fn new() -> Ownership {
        Ownership(AtomicU64::new(0))
    }

    /// The owner, which may have locks; one without any if it never asked for one.
    pub fn owner(&self) -> Owner {
        Owner(self.0.load(Relaxed))
    }

    /// The owner, which is about to have a lock.
    fn become_owner(&self) -> Owner {
        match self.owner() {
            Owner(0) => {
                let new = NEXT_OWNER.fetch_add(1, Relaxed);
                let was = self.0.compare_exchange(0, new, Relaxed, Relaxed);
                Owner(was.map_or_else(|other| other, |_| new))
            }
            owner => owner,
        }
    }

    /// Ends all its locks on the file that `open` is of.
    pub fn release_all(&self, open: &OpenFile) {
        let owner = self.owner();
        if owner != Owner(0) {
            release_all(open, owner);
        }
    }
}

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

/// One file's locks.
struct FileLocks {
    id: FileId,
    held: Mutex<HeldLocks>,
    /// Woken when a lock of the file ends or becomes weaker.
    ended: WaitQueue,
}

#[derive(Default)]
struct HeldLocks {
    /// Locks of the whole file.
    whole: BTreeMap<Owner, Whole>,
    /// Those of `whole` that exclude others: none or one.
    exclusive: usize,
    records: Records,
}

/// A lock of a whole file.
struct Whole {
    mode: Mode,
    /// The process that asked.
    pid: Pid,
    charge: Charge,
}

/// What a lock of a whole file is charged with, in bytes: its place, and the file's, if it is the
/// only one.
const WHOLE_BYTES: usize = 512;

/// The record locks of a file. Those of one owner have no byte in common, and neighbours of one
/// mode are one lock.
#[derive(Default)]
struct Records {
    /// By first byte and owner.
    shared: Tree,
    exclusive: Tree,
    /// By owner and first byte.
    by_owner: Tree,
    /// The accounts that the owners' locks are charged to, and how many there are.
    charges: BTreeMap<Owner, (Arc<Account>, usize)>,
}

static FILES: Mutex<BTreeMap<FileId, Arc<FileLocks>>> =
    Mutex::new(crate::rank::LOCKED_FILES, BTreeMap::new());

/// A thread that waits for a record lock.
struct Waiting {
    file: Arc<FileLocks>,
    record: Record,
}

/// By owner, and a number for each of its threads. Cycles would sleep for ever.
static WAITING: Mutex<BTreeMap<(Owner, u64), Waiting>> =
    Mutex::new(crate::rank::LOCK_WAITERS, BTreeMap::new());
/// The next such number.
static TICKET: AtomicU64 = AtomicU64::new(0);

/// The owners in a cycle of waiters that is found, as on Linux.
const LONGEST_CYCLE: usize = 10;

/// Locks that a user may have: two for each frame of memory, a tenth of it. Linux has no
/// limit.
fn most_locks() -> usize {
    frame::total() * 2
}

impl Record {
    fn overlaps(&self, other: &Record) -> bool {
        self.start <= other.last && other.start <= self.last
    }
}

impl Records {
    fn by_start(&mut self, mode: Mode) -> &mut Tree {
        match mode {
            Mode::Shared => &mut self.shared,
            Mode::Exclusive => &mut self.exclusive,
        }
    }

    /// The lowest lock of others that would keep `record` from being taken.
    fn conflict(&self, owner: Owner, record: &Record) -> Option<Held> {
        let find = |tree: &Tree| {
            tree.lowest_of_others(owner, record.start, record.last)
                .copied()
        };
        let exclusive = find(&self.exclusive);
        let shared = match record.mode {
            Mode::Shared => None,
            Mode::Exclusive => find(&self.shared),
        };
        let both = [exclusive, shared].into_iter().flatten();
        both.min_by_key(|(_, held)| held.start)
    }

    /// The lowest lock of `owner` with a byte at or after `from`.
    fn next_of(&self, owner: Owner, from: u64) -> Option<Record> {
        let around = self.by_owner.around((owner.key(), from));
        let own = around.into_iter().flatten().filter(|(of, _)| *of == owner);
        own.map(|(_, held)| *held).find(|held| held.last >= from)
    }

    fn insert(&mut self, owner: Owner, record: Record, spare: &mut Spare) {
        let key = (record.start, owner.key());
        self.by_start(record.mode)
            .insert(key, (owner, record), spare);
        let key = (owner.key(), record.start);
        self.by_owner.insert(key, (owner, record), spare);
        if let Some((account, count)) = self.charges.get_mut(&owner) {
            *count += 1;
            account.add(Kind::Locks, 1, tree::LOCK_BYTES);
        }
    }

    fn remove(&mut self, owner: Owner, record: &Record, spare: &mut Spare) {
        let key = (record.start, owner.key());
        self.by_start(record.mode).remove(key, spare);
        self.by_owner.remove((owner.key(), record.start), spare);
        if let Some((account, count)) = self.charges.get_mut(&owner) {
            *count -= 1;
            account.take_back(Kind::Locks, 1, tree::LOCK_BYTES);
        }
    }

    /// Gives the bytes of `range` its mode, or (`is_lock` false) no lock of `owner`. The parts of
    /// its locks on both sides stay, and neighbours of the same mode are joined. `spare` has nodes
    /// for two more locks. Returns whether others may have more than before.
    fn set(&mut self, owner: Owner, range: &Record, is_lock: bool, spare: &mut Spare) -> bool {
        let (mut joined, mut frees) = (*range, false);
        let mut from = range.start.saturating_sub(1);
        while let Some(held) = self.next_of(owner, from) {
            if held.start > range.last.saturating_add(1) {
                break;
            }
            if is_lock && held.mode == range.mode {
                self.remove(owner, &held, spare);
                joined.start = joined.start.min(held.start);
                joined.last = joined.last.max(held.last);
            } else if held.overlaps(range) {
                self.remove(owner, &held, spare);
                frees |= !is_lock || held.mode == Mode::Exclusive;
                if held.start < range.start {
                    let last = range.start - 1;
                    self.insert(owner, Record { last, ..held }, spare);
                }
                if held.last > range.last {
                    let start = range.last + 1;
                    self.insert(owner, Record { start, ..held }, spare);
                }
            }
            match held.last.checked_add(1) {
                Some(next) => from = next,
                None => break,
            }
        }
        if is_lock {
            self.insert(owner, joined, spare);
        }
        frees
    }

    /// Has the locks of `owner` charged to `account`, unless it has some already. Returns
    /// [`room`] for one call.
    ///
    /// # Errors
    /// `ENOLCK` if its user has too many.
    fn charge(&mut self, owner: Owner, account: &Arc<Account>) -> Result<Charge> {
        let known = self.charges.get(&owner);
        let room = room(known.map_or(account, |(account, _)| account))?;
        if known.is_none() {
            self.charges.insert(owner, (account.clone(), 0));
        }
        Ok(room)
    }

    /// Forgets the account of an owner without locks.
    fn settle(&mut self, owner: Owner) {
        if self
            .charges
            .get(&owner)
            .is_some_and(|(_, count)| *count == 0)
        {
            self.charges.remove(&owner);
        }
    }
}

/// Charges the locks that one call may make to `account` until they are made: calls on other files
/// count them too, so many at a time do not exceed the limit either.
///
/// # Errors
/// `ENOLCK` if its user may not have as many.
fn room(account: &Arc<Account>) -> Result<Charge> {
    let (kind, most) = (Kind::Locks, most_locks());
    let room = account.charge_within(kind, MORE, MORE * tree::LOCK_BYTES, most);
    room.ok_or(Errno::ENOLCK)
}

impl HeldLocks {
    fn is_empty(&self) -> bool {
        self.whole.is_empty() && self.records.by_owner.is_empty()
    }
}

/// Returns a file's locks, if it has or had any.
fn find(id: FileId) -> Option<Arc<FileLocks>> {
    FILES.lock().get(&id).cloned()
}

/// Returns a file's locks for a call that adds one; it ends with [`put`].
fn find_or_add(id: FileId) -> Arc<FileLocks> {
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
fn put(file: Arc<FileLocks>) {
    let mut files = FILES.lock();
    if Arc::strong_count(&file) == 2 && file.held.lock().is_empty() {
        files.remove(&file.id);
    }
    // With the table locked: the last user sees that it is the last one.
    drop(file);
}

/// Notes that a thread of `owner` waits to lock `record`, unless it would wait for itself: true.
///
/// What a waiter waits for is looked up here: one whose conflict has ended waits no more, even if
/// it has not run since. A cycle is looked for with no other lock held, found by its last waiter,
/// and looked at again at one moment.
fn would_deadlock(key: (Owner, u64), file: &Arc<FileLocks>, record: &Record) -> bool {
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
fn thread_of(waiting: &BTreeMap<(Owner, u64), Waiting>, owner: Owner) -> Option<&Waiting> {
    let mut threads = waiting.range((owner, 0)..=(owner, u64::MAX));
    threads.next().map(|(_, it)| it)
}

/// Who keeps `record` from `owner`.
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

fn id(open: &OpenFile) -> Result<FileId> {
    open.identity()
}

fn may_allocate() -> Result<()> {
    if frame::is_scarce() {
        return Err(Errno::ENOLCK);
    }
    Ok(())
}

/// `flock`: ends the lock of an open file description.
///
/// # Errors
/// Those of `fstat`.
pub fn unlock_whole(open: &OpenFile) -> Result<()> {
    let owner = open.ownership().owner();
    let mut ended = None;
    release(id(open)?, |held| {
        ended = held.unlock_whole(owner);
        ended.is_some()
    });
    Ok(())
}

/// `flock`: takes or changes the lock of an open file description, for the process `pid`, charged
/// to `account`.
///
/// # Errors
/// `EAGAIN` if another has it and `wait` is false, a restart number, `ENOLCK`.
pub fn lock_whole(
    open: &OpenFile,
    mode: Mode,
    wait: bool,
    pid: Pid,
    account: &Arc<Account>,
) -> Result<()> {
    may_allocate()?;
    // At the limit, an owner can still change the mode of the lock that it has.
    let mut charge = account.charge_within(Kind::Locks, 1, WHOLE_BYTES, most_locks());
    let file = find_or_add(id(open)?);
    let owner = open.ownership().become_owner();
    let attempt = || {
        let mut held = file.held.lock();
        if held.whole.get(&owner).is_some_and(|lock| lock.mode == mode) {
            return Some(Ok(()));
        }
        // A change of mode is not atomic: the old lock goes first, as on Linux. Its charge goes on.
        let old = held.unlock_whole(owner);
        let dropped = old.is_some();
        let unused = old.and_then(|old| charge.replace(old.charge));
        let conflict = match mode {
            Mode::Exclusive => !held.whole.is_empty(),
            Mode::Shared => held.exclusive > 0,
        };
        let result = match conflict {
            _ if charge.is_none() => Some(Err(Errno::ENOLCK)),
            true => None,
            false => charge.take().map(|charge| {
                held.whole.insert(owner, Whole { mode, pid, charge });
                held.exclusive += usize::from(mode == Mode::Exclusive);
                Ok(())
            }),
        };
        drop(held);
        drop(unused);
        if dropped {
            file.ended.wake_all();
        }
        result
    };
    let result = signal::take_or_wait(&file.ended, wait, attempt).and_then(|locked| locked);
    put(file);
    result
}

impl HeldLocks {
    /// Returns the lock that was ended, if there was one.
    fn unlock_whole(&mut self, owner: Owner) -> Option<Whole> {
        let ended = self.whole.remove(&owner)?;
        self.exclusive -= usize::from(ended.mode == Mode::Exclusive);
        Some(ended)
    }
}

/// The owner of the record lock that a call is about.
#[derive(Clone, Copy)]
pub enum For<'a> {
    /// The process that uses this table (`F_SETLK`).
    Process(&'a FileTable),
    /// The open file description itself (`F_OFD_SETLK`).
    Description,
}

impl<'a> For<'a> {
    fn ownership(self, open: &'a OpenFile) -> &'a Ownership {
        match self {
            For::Process(table) => table.ownership(),
            For::Description => open.ownership(),
        }
    }
}

/// `F_GETLK`: the lowest lock that would keep `record` from being taken.
///
/// # Errors
/// Those of `fstat`.
pub fn conflicting_record(open: &OpenFile, by: For<'_>, record: &Record) -> Result<Option<Record>> {
    let Some(file) = find(id(open)?) else {
        return Ok(None);
    };
    let owner = by.ownership(open).owner();
    let found = file.held.lock().records.conflict(owner, record);
    put(file);
    Ok(found.map(|(_, held)| held))
}

/// The locks that a call may make beyond those that there are.
const MORE: usize = 2;
/// Nodes for them, in two trees each.
const NODES: usize = 2 * MORE;

/// `F_UNLCK`: ends the locks on the bytes of `range`.
///
/// # Errors
/// Those of `fstat`; `ENOLCK` if a lock would become two and there is no memory, or its user has
/// too many.
pub fn unlock_record(open: &OpenFile, by: For<'_>, range: &Record) -> Result<()> {
    let owner = by.ownership(open).owner();
    let mut spare = Spare::default();
    let may_split = spare.add(NODES).is_ok();
    let mut result = Ok(());
    release(id(open)?, |held| {
        let records = &mut held.records;
        let cut = records.next_of(owner, range.start);
        let mut charged = None;
        if cut.is_some_and(|cut| cut.start < range.start && range.last < cut.last) {
            let account = records.charges.get(&owner);
            match account.map(|(account, _)| room(account)).transpose() {
                Ok(room) if may_split => charged = room,
                _ => result = Err(Errno::ENOLCK),
            }
        }
        let frees = result.is_ok() && records.set(owner, range, false, &mut spare);
        records.settle(owner);
        drop(charged);
        frees
    });
    result
}

/// `F_SETLK`, `F_SETLKW`: takes a record lock, charged to `account`.
///
/// # Errors
/// `EAGAIN` if another has one and `wait` is false, `EDEADLK`, a restart number, `ENOLCK`.
pub fn lock_record(
    open: &OpenFile,
    by: For<'_>,
    record: Record,
    wait: bool,
    account: &Arc<Account>,
) -> Result<()> {
    may_allocate()?;
    let mut spare = Spare::default();
    spare.add(NODES).map_err(|_| Errno::ENOLCK)?;
    let file = find_or_add(id(open)?);
    let owner = by.ownership(open).become_owner();
    let key = (owner, TICKET.fetch_add(1, Relaxed));
    let attempt = || -> Option<Result<()>> {
        let mut held = file.held.lock();
        let records = &mut held.records;
        if records.conflict(owner, &record).is_none() {
            let charged = records.charge(owner, account);
            // A lock that became weaker lets others in.
            let frees = charged.is_ok() && records.set(owner, &record, true, &mut spare);
            drop(held);
            if frees {
                file.ended.wake_all();
            }
            return Some(charged.map(drop));
        }
        drop(held);
        if !wait {
            return Some(Err(Errno::EAGAIN));
        }
        let is_process = matches!(by, For::Process(_));
        (is_process && would_deadlock(key, &file, &record)).then_some(Err(Errno::EDEADLK))
    };
    let result = file.ended.wait(Sleep::INTERRUPTIBLE, attempt);
    if wait {
        WAITING.lock().remove(&key);
    }
    put(file);
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
    let mut list = Vec::new();
    let mut after = None;
    loop {
        // One file after the other: the table is not kept locked.
        let next = {
            let files = FILES.lock();
            let bound = after.map_or(Bound::Unbounded, Bound::Excluded);
            files
                .range((bound, Bound::Unbounded))
                .next()
                .map(|(_, it)| it.clone())
        };
        let Some(file) = next else {
            return Ok(list);
        };
        after = Some(file.id);
        let listed = file.held.lock().list(file.id, &mut list);
        put(file);
        listed?;
    }
}

impl HeldLocks {
    fn list(&self, file: FileId, list: &mut Vec<Listed>) -> Result<()> {
        let mut count = self.whole.len();
        self.records.by_owner.visit(|_| count += 1);
        list.try_reserve(count)?;
        list.extend(self.whole.values().map(|lock| Listed {
            file,
            whole: true,
            record: Record {
                mode: lock.mode,
                start: 0,
                last: u64::MAX,
                pid: lock.pid,
            },
        }));
        self.records.by_owner.visit(|&(_, record)| {
            list.push(Listed {
                file,
                whole: false,
                record,
            });
        });
        Ok(())
    }
}

/// Locks that are ended in one turn, so that others who use the file need not wait for long.
const AT_ONCE: usize = 64;

/// Ends all locks of `owner` on the file that `open` is of.
fn release_all(open: &OpenFile, owner: Owner) {
    let Ok(id) = id(open) else {
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

/// Changes a file's locks by `how`, which returns whether others may have more than before.
fn release(file: FileId, how: impl FnOnce(&mut HeldLocks) -> bool) {
    let Some(file) = find(file) else {
        return;
    };
    let frees = how(&mut file.held.lock());
    if frees {
        file.ended.wake_all();
    }
    put(file);
}

#[cfg(test)]
mod tests {
    use nucleus::sim::{self, Config};

    use super::*;

    /// Calls on several files at a time do not exceed the limit together: what one may make counts
    /// for the others before it is made.
    #[test]
    fn the_room_of_one_call_is_not_anothers() {
        sim::check("locks", 1..2, Config::default(), || {
            let user = Account::of_user(1);
            let (one, other) = (
                Account::of_process(10, &user),
                Account::of_process(11, &user),
            );
            let most = most_locks();
            let _there = user.charge(Kind::Locks, most - MORE, 0);
            let first = room(&one).unwrap();
            assert_eq!(room(&other).err(), Some(Errno::ENOLCK));
            assert_eq!(user.things(Kind::Locks), most);
            drop(first);
            assert!(room(&other).is_ok());
        });
    }
}
