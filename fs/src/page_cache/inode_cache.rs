//! Inodes in memory, and the one cache of files that nobody uses (`uvm.txt` 4).
//!
//! A file system keeps a [`InodeCache`] of the inodes that it has read, each with the file's pages. What the rest of the kernel holds is an
//! [`InUse`], the vnode. When the last holder of a vnode lets go, the inode stays, with its pages, behind all others that nobody uses; when
//! memory is wanted, the pages of the one in front go, and then it is *recycled*: what is dirty of it is written, and it is forgotten,
//! its object with it. There is no limit to their number but memory. A file that has been removed is not kept: a task ends it, since
//! whoever lets go of it last may hold any lock.

use alloc::{
    collections::{BTreeMap, VecDeque},
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
    task::{Sleep, WaitQueue},
};

use super::{Cached, daemons};

/// An inode of a file system with its pages, in memory.
pub trait InCore: Send + Sync + 'static {
    /// Its pages, if it has any.
    fn cached(&self) -> Option<Arc<dyn Cached>>;

    /// Whether the file has no name any more, so that it ends when nobody uses it.
    fn is_removed(&self) -> bool;

    /// Ends a removed file that nobody uses any more: gives its blocks and its inode back. May sleep.
    fn end(&self);

    /// Writes what is dirty of it to where it can be read from again (its inode into the block that holds it), so that it can be
    /// forgotten. Nobody uses it. May sleep.
    ///
    /// # Errors
    /// It stays in memory, but has let go of every other inode.
    fn put_away(&self) -> Result<()>;
}

/// The inodes of one file system that are in memory, by number.
pub struct InodeCache<I: InCore> {
    me: Weak<InodeCache<I>>,
    inner: SpinLock<Inner<I>>,
    /// Woken when an inode has been read, ended, or recycled.
    changed: WaitQueue,
    /// Removed files that nobody uses, until they have ended.
    to_end: AtomicUsize,
}

struct Inner<I: InCore> {
    slots: BTreeMap<u64, Slot<I>>,
    /// Inodes that nobody uses, by the time since.
    unused: BTreeMap<u64, u64>,
}

enum Slot<I: InCore> {
    /// Somebody reads it, ends it or puts it away; others wait.
    Busy,
    Here {
        inode: Arc<I>,
        user: Weak<InUse<I>>,
        /// Its key in `unused`; 0 while it is in use.
        unused: u64,
    },
}

/// An inode that somebody uses.
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

/// What the cache asks of any file system's table.
trait Recycler: Send + Sync {
    /// When the inode that is unused longest became so.
    fn oldest(&self) -> Option<u64>;

    /// Gives up to `pages` pages of that inode up, and it itself if it has none left.
    fn recycle(&self, pages: usize) -> usize;

    /// Ends a removed file.
    fn end(&self, number: u64);
}

static TABLES: SpinLock<VecDeque<Weak<dyn Recycler>>> = SpinLock::new(Rank::Leaf, VecDeque::new());
/// Counts the inodes that became unused.
static CLOCK: AtomicU64 = AtomicU64::new(1);
/// Removed files that nobody uses any more, to be ended.
static ENDING: SpinLock<VecDeque<(Weak<dyn Recycler>, u64)>> =
    SpinLock::new(Rank::Leaf, VecDeque::new());
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

    /// Inode `number`, for use: from memory, or what `read` gives, which may sleep. Waits while another task reads it, or while a
    /// removed file with the same number ends.
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
            // Nothing else ends such a sleep.
            let _ = self.changed.wait(Sleep::SOUND, is_free);
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

    /// The inode from memory, or its slot for who reads it; `None` if it is busy.
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

    /// A user is gone: if nobody has taken its place, the inode is unused.
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

    /// Waits until the removed files that nobody uses have ended: their blocks are free then.
    pub fn wait_for_ends(&self) {
        let none = || (self.to_end.load(Ordering::Acquire) == 0).then_some(());
        // Nothing else ends such a sleep.
        let _ = self.changed.wait(Sleep::SOUND, none);
    }

    /// Puts all inodes away that nobody uses, for an unmount, also those that become unused by that; returns how many stay, because
    /// somebody uses them or because of an error.
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

    /// Puts an inode away that nobody uses; false if that is not so, or if it can't be written.
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
                    // 0 if who used it has only just let go of it.
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

    /// Takes an inode that nobody uses out, its slot busy; gives also since when it was unused.
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

    /// How many are in memory, and how many of them nobody uses.
    pub fn counts(&self) -> (usize, usize) {
        let inner = self.inner.lock();
        (inner.slots.len(), inner.unused.len())
    }
}

/// Where an inode goes, among those that nobody uses, that could not be put away.
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
                    // Dirty, or held by somebody: others have their turn, and the next time it is clean.
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
    /// Puts an unused inode behind all others.
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

/// Gives up to `pages` pages of files back that nobody uses, of all file systems, those first that are unused longest; files that have none
/// left are recycled on the way. Returns how many pages. No lock is held; may sleep.
pub(super) fn reclaim(pages: usize) -> usize {
    let mut given = 0;
    // Those that can't go now go behind: once round.
    let end = CLOCK.load(Ordering::Relaxed);
    while given < pages {
        let tables: VecDeque<Weak<dyn Recycler>> = TABLES.lock().clone();
        let all = tables.iter().filter_map(Weak::upgrade);
        let first = all
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
            let next = TO_END.wait(Sleep::SOUND, || {
                let next = ENDING.lock().pop_front();
                (next.is_some() || daemons::are_to_end()).then_some(next)
            });
            if let Ok(Some((table, number))) = next
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
