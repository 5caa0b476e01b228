//! Inodes in memory, and the one cache of unreferenced files (`uvm.txt` 4).
//!
//! A file system keeps an [`InodeCache`] of the inodes that it has read, each with the file's
//! pages. The rest of the kernel holds an [`InUse`], the vnode. When the last holder drops the
//! vnode, the inode stays, with its pages, last in the list of unused ones; when memory is short,
//! the first one's pages are evicted, and then it is *recycled*: it is written back and freed, its
//! object with it. There is no limit to their number but memory. A removed file is not kept: a task
//! ends it, since its last user may hold any lock.

use alloc::{
    collections::{BTreeMap, LinkedList, VecDeque},
    sync::{Arc, Weak},
};
use core::{
    ops::Deref,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
};

use abi::Result;
use nucleus::{
    OutOfMemory,
    sync::{Rank, SpinLock},
    task::WaitQueue,
};

use super::{cached::Cached, daemons};

/// An inode of a file system with its pages, in memory.
pub trait InCore: Send + Sync + 'static {
    /// Its pages, if it has any.
    fn cached(&self) -> Option<Arc<dyn Cached>>;

    /// Whether the file has no name left, so that it ends with its last user.
    fn is_removed(&self) -> bool;

    /// Ends a removed file without users: frees its blocks and its inode. May sleep.
    fn end(&self);

    /// Writes the inode back to where it can be read from again (the block that holds it), so that
    /// it can be freed. It has no user. May sleep.
    ///
    /// # Errors
    /// It stays in memory, but holds no other inode any more.
    fn put_away(&self) -> Result<()>;
}

/// The inodes of one file system that are in memory, by number.
pub struct InodeCache<I: InCore> {
    me: Weak<InodeCache<I>>,
    inner: SpinLock<Inner<I>>,
    /// Woken when an inode has been read, ended, or recycled.
    changed: WaitQueue,
    /// Removed files without users that have not ended yet.
    to_end: AtomicUsize,
}

struct Inner<I: InCore> {
    slots: BTreeMap<u64, Slot<I>>,
    /// Unused inodes, by the time since.
    unused: BTreeMap<u64, u64>,
}

enum Slot<I: InCore> {
    /// A task reads it, ends it or writes it back; others wait.
    Busy,
    Here {
        inode: Arc<I>,
        user: Weak<InUse<I>>,
        /// Its key in `unused`; 0 while it is in use.
        unused: u64,
    },
}

/// A user's reference to an inode.
pub struct InUse<I: InCore> {
    inode: Arc<I>,
    number: u64,
    table: Weak<InodeCache<I>>,
}

impl<I: InCore> Deref for InUse<I> {
    type Target = I;

    fn deref(&self) -> &I {
        &self.inode
    }
}

impl<I: InCore> InUse<I> {
    /// The inode itself, which outlives its use.
    pub fn inode(&self) -> &Arc<I> {
        &self.inode
    }

    /// Its number.
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl<I: InCore> Drop for InUse<I> {
    fn drop(&mut self) {
        if let Some(table) = self.table.upgrade() {
            table.let_go(self.number);
        }
    }
}

/// The operations of any file system's inode cache that reclaim needs.
trait Recycler: Send + Sync {
    /// When the inode that is unused longest became so.
    fn oldest(&self) -> Option<u64>;

    /// Evicts up to `pages` pages of that inode, and the inode itself if it has none left.
    fn recycle(&self, pages: usize) -> usize;

    /// Ends a removed file.
    fn end(&self, number: u64);
}

static TABLES: SpinLock<VecDeque<Weak<dyn Recycler>>> = SpinLock::new(Rank::Leaf, VecDeque::new());
/// Counts the inodes that became unused.
static CLOCK: AtomicU64 = AtomicU64::new(1);
/// Removed files without users, to be ended.
static ENDING: SpinLock<LinkedList<(Weak<dyn Recycler>, u64)>> =
    SpinLock::new(Rank::Leaf, LinkedList::new());
static TO_END: WaitQueue = WaitQueue::new();

impl<I: InCore> InodeCache<I> {
    /// No inodes in memory.
    pub fn new() -> Arc<InodeCache<I>> {
        let table = Arc::new_cyclic(|me: &Weak<InodeCache<I>>| InodeCache {
            me: me.clone(),
            inner: SpinLock::new(
                Rank::Leaf,
                Inner {
                    slots: BTreeMap::new(),
                    unused: BTreeMap::new(),
                },
            ),
            changed: WaitQueue::new(),
            to_end: AtomicUsize::new(0),
        });
        let weak: Weak<dyn Recycler> = table.me.clone();
        let mut tables = TABLES.lock();
        tables.retain(|table| table.strong_count() > 0);
        tables.push_back(weak);
        drop(tables);
        table
    }

    /// Returns inode `number` for use: from memory, or from `read`, which may sleep. Waits while
    /// another task reads it, or while a removed file with the same number ends.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn get(&self, number: u64, read: impl FnOnce() -> Result<Arc<I>>) -> Result<Arc<InUse<I>>> {
        loop {
            if let Some(found) = self.find_or_reserve(number) {
                match found {
                    Found::Here(user) => return Ok(user),
                    Found::Reserved => break,
                }
            }
            let is_free = || (!self.is_busy(number)).then_some(());
            self.changed.wait_soundly(is_free);
        }
        let inode = read();
        let mut inner = self.inner.lock();
        let user = match inode {
            Ok(inode) => {
                let user = self.user(&inode, number);
                let here = Slot::Here {
                    inode,
                    user: Arc::downgrade(&user),
                    unused: 0,
                };
                inner.slots.insert(number, here);
                Ok(user)
            }
            Err(error) => {
                inner.slots.remove(&number);
                Err(error)
            }
        };
        drop(inner);
        self.changed.wake_all();
        user
    }

    fn user(&self, inode: &Arc<I>, number: u64) -> Arc<InUse<I>> {
        Arc::new(InUse {
            inode: inode.clone(),
            number,
            table: self.me.clone(),
        })
    }

    fn is_busy(&self, number: u64) -> bool {
        matches!(self.inner.lock().slots.get(&number), Some(Slot::Busy))
    }

    /// Returns the inode from memory, or reserves its slot for the caller to read it; `None` if it
    /// is busy.
    fn find_or_reserve(&self, number: u64) -> Option<Found<I>> {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        match inner.slots.get_mut(&number) {
            None => {
                inner.slots.insert(number, Slot::Busy);
                Some(Found::Reserved)
            }
            Some(Slot::Busy) => None,
            Some(Slot::Here {
                inode,
                user,
                unused,
            }) => {
                let used = match user.upgrade() {
                    Some(used) => used,
                    None => {
                        let used = self.user(inode, number);
                        *user = Arc::downgrade(&used);
                        used
                    }
                };
                inner.unused.remove(unused);
                *unused = 0;
                Some(Found::Here(used))
            }
        }
    }

    /// Notes the end of a user: without another one the inode is unused.
    fn let_go(&self, number: u64) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let Some(Slot::Here {
            inode,
            user,
            unused,
        }) = inner.slots.get_mut(&number)
        else {
            return;
        };
        if user.strong_count() > 0 || *unused != 0 {
            return;
        }
        if !inode.is_removed() {
            *unused = CLOCK.fetch_add(1, Ordering::Relaxed);
            inner.unused.insert(*unused, number);
            return;
        }
        self.to_end.fetch_add(1, Ordering::AcqRel);
        drop(guard);
        ENDING.lock().push_back((self.me.clone(), number));
        TO_END.wake_one();
    }

    /// Waits until the removed files without users have ended: their blocks are free then.
    pub fn wait_for_ends(&self) {
        let none = || (self.to_end.load(Ordering::Acquire) == 0).then_some(());
        self.changed.wait_soundly(none);
    }

    /// Writes back and frees all unused inodes, for an unmount, also those that become unused by
    /// that; returns how many stay, because they are in use or because of an error.
    pub fn put_all_away(&self) -> usize {
        self.wait_for_ends();
        let mut last = 0;
        // Each has its turn once, whatever others do meanwhile.
        let turns = self.inner.lock().slots.len();
        for _ in 0..turns {
            let next = {
                let inner = self.inner.lock();
                let mut rest = inner.unused.range(last + 1..);
                rest.next().map(|(at, number)| (*at, *number))
            };
            let Some((at, number)) = next else { break };
            self.put_away(number, Stays::WhereItWas);
            last = at;
        }
        self.inner.lock().slots.len()
    }

    /// Writes back and frees an unused inode; false if it is in use, or can't be written.
    fn put_away(&self, number: u64, stays: Stays) -> bool {
        let Some((inode, was)) = self.reserve_unused(number) else {
            return false;
        };
        let kept = match inode.put_away() {
            Ok(()) => {
                // It is gone before another can be read.
                drop(inode);
                None
            }
            Err(_) => Some(inode),
        };
        let mut inner = self.inner.lock();
        let gone = match kept {
            None => {
                inner.slots.remove(&number);
                true
            }
            Some(inode) => {
                let at = match stays {
                    // 0 if its user is only just being dropped.
                    Stays::WhereItWas if was != 0 => was,
                    _ => CLOCK.fetch_add(1, Ordering::Relaxed),
                };
                inner.unused.insert(at, number);
                let here = Slot::Here {
                    inode,
                    user: Weak::new(),
                    unused: at,
                };
                inner.slots.insert(number, here);
                false
            }
        };
        drop(inner);
        self.changed.wake_all();
        gone
    }

    /// Takes an unused inode out, its slot busy; returns also since when it was unused.
    fn reserve_unused(&self, number: u64) -> Option<(Arc<I>, u64)> {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let slot = inner.slots.get_mut(&number)?;
        let taken = match slot {
            Slot::Here { user, unused, .. } if user.strong_count() == 0 => {
                inner.unused.remove(unused);
                core::mem::replace(slot, Slot::Busy)
            }
            _ => return None,
        };
        drop(guard);
        match taken {
            Slot::Here { inode, unused, .. } => Some((inode, unused)),
            Slot::Busy => None,
        }
    }

    /// The inodes in memory, of which `f` may hold one as long as it takes.
    pub fn for_each(&self, f: &mut dyn FnMut(u64, &Arc<I>)) {
        let mut from = 0;
        loop {
            let next = {
                let inner = self.inner.lock();
                let mut rest = inner.slots.range(from..);
                rest.find_map(|(number, slot)| match slot {
                    Slot::Here { inode, .. } => Some((*number, inode.clone())),
                    Slot::Busy => None,
                })
            };
            let Some((number, inode)) = next else { return };
            f(number, &inode);
            match number.checked_add(1) {
                Some(next) => from = next,
                None => return,
            }
        }
    }

    /// Returns how many are in memory, and how many of them are unused.
    pub fn counts(&self) -> (usize, usize) {
        let inner = self.inner.lock();
        (inner.slots.len(), inner.unused.len())
    }
}

/// The place in the list of unused inodes of one that could not be written back.
enum Stays {
    WhereItWas,
    /// Behind all others.
    Behind,
}

enum Found<I: InCore> {
    Here(Arc<InUse<I>>),
    Reserved,
}

impl<I: InCore> Recycler for InodeCache<I> {
    fn oldest(&self) -> Option<u64> {
        self.inner.lock().unused.keys().next().copied()
    }

    fn recycle(&self, pages: usize) -> usize {
        let oldest = {
            let inner = self.inner.lock();
            inner
                .unused
                .first_key_value()
                .and_then(|(_, number)| match inner.slots.get(number) {
                    Some(Slot::Here { inode, .. }) => Some((*number, inode.clone())),
                    _ => None,
                })
        };
        let Some((number, inode)) = oldest else {
            return 0;
        };
        let mut given = 0;
        if let Some(file) = inode.cached() {
            given = file.give_back(pages);
            if file.counts().resident > 0 {
                if given == 0 {
                    // Dirty or held: others have their turn, and the next time it is clean.
                    let _ = file.flush(usize::MAX);
                    self.move_back(number);
                }
                return given;
            }
        }
        drop(inode);
        self.put_away(number, Stays::Behind);
        given
    }

    fn end(&self, number: u64) {
        if let Some((inode, _)) = self.reserve_removed(number) {
            inode.end();
            drop(inode);
            self.inner.lock().slots.remove(&number);
        }
        self.to_end.fetch_sub(1, Ordering::AcqRel);
        self.changed.wake_all();
    }
}

impl<I: InCore> InodeCache<I> {
    /// Moves an unused inode to the end of the list.
    fn move_back(&self, number: u64) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        if let Some(Slot::Here { unused, .. }) = inner.slots.get_mut(&number)
            && *unused != 0
        {
            inner.unused.remove(unused);
            *unused = CLOCK.fetch_add(1, Ordering::Relaxed);
            inner.unused.insert(*unused, number);
        }
    }

    /// As [`reserve_unused`](InodeCache::reserve_unused), if it has no name.
    fn reserve_removed(&self, number: u64) -> Option<(Arc<I>, u64)> {
        let is_removed = match self.inner.lock().slots.get(&number) {
            Some(Slot::Here { inode, .. }) => inode.is_removed(),
            _ => false,
        };
        is_removed.then(|| self.reserve_unused(number)).flatten()
    }
}

/// Evicts up to `pages` pages of unused files of all file systems, those unused longest first;
/// recycles files that have none left on the way. Returns how many pages. No lock is held; may
/// sleep.
pub(super) fn reclaim(pages: usize) -> usize {
    let mut given = 0;
    // Inodes that can't be recycled now move to the end: once round.
    let end = CLOCK.load(Ordering::Relaxed);
    while given < pages {
        // One after the other: the list of tables is not kept locked, and not copied.
        let table = |number: usize| TABLES.lock().get(number).cloned();
        let all = (0..).map_while(table);
        let first = all
            .filter_map(|table| table.upgrade())
            .filter_map(|table| Some((table.oldest()?, table)))
            .min_by_key(|(at, _)| *at);
        match first {
            Some((at, table)) if at < end => given += table.recycle(pages - given),
            _ => break,
        }
    }
    given
}

/// Starts the task that ends removed files.
///
/// # Errors
/// No memory for it.
pub(super) fn start() -> core::result::Result<(), OutOfMemory> {
    daemons::start("ender", || {
        while !daemons::are_to_end() {
            let next = TO_END.wait_soundly(|| {
                let next = ENDING.lock().pop_front();
                (next.is_some() || daemons::are_to_end()).then_some(next)
            });
            if let Some((table, number)) = next
                && let Some(table) = table.upgrade()
            {
                table.end(number);
            }
        }
    })
}

/// Wakes the task for its end.
#[cfg(not(target_os = "none"))]
pub(super) fn end() {
    TO_END.wake_all();
}

/// For a new simulated machine.
#[cfg(not(target_os = "none"))]
pub(super) fn reset() {
    drop(core::mem::take(&mut *TABLES.lock()));
    drop(core::mem::take(&mut *ENDING.lock()));
    TO_END.restart();
}
