//! Epolls that watch epolls: how deep, and by how many paths one event may spread.
//!
//! A wake-up runs along every path from a file upwards through the epolls that watch it to one that
//! no other watches. As on Linux the depth is limited, and the number of paths of each length from
//! one file: without that, five levels of epolls that watch each other in all ways turn one event
//! into a number of wake-ups that grows with the fifth power of what a program built.
//!
//! What is computed for an epoll is kept in its [`Node`] for the rest of the call, so that a check
//! takes a time that is linear in the watches that it finds, however many paths lead to them.

use alloc::{sync::Arc, vec::Vec};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use abi::{Errno, Result};
use nucleus::{
    sync::{Mutex, MutexGuard, Rank, SpinLock},
    task::WaitQueue,
};

use super::{Epoll, item::Item};
use crate::{
    counters::Counter,
    process::{
        files::{AttachedList, each_attached},
        thread,
    },
};

/// The number of epolls that may stand in a chain, each watching the next. A wake-up runs along the
/// chain, on one stack.
const LONGEST: usize = 5;

/// Paths from one file that lead through so many epolls above the first: Linux's numbers. Any
/// number of epolls may watch a file if none watches them.
const LIMITS: [u32; LONGEST] = [u32::MAX, 500, 100, 50, 10];

/// Paths upwards from an epoll, by the number of epolls above it.
type Paths = [u32; LONGEST];

/// Held while an epoll is added to another: two of them could make a cycle together.
static NESTING: Mutex<()> = Mutex::new(crate::rank::NESTING, ());

/// Threads that wait for it. A check takes a time that programs can make long, and many may wait: a
/// thread that is killed waits no longer.
static TURNS: WaitQueue = WaitQueue::new();

/// The rounds that were begun, each of which visits an epoll once.
static ROUND: AtomicU64 = AtomicU64::new(0);

/// An epoll among those that watch each other. Its watches share it: it is memory only, so that the
/// last handle may be dropped with locks held.
pub(super) struct Node {
    /// The epoll of each watch of this one [grows under `NESTING`, which bounds it].
    outer: SpinLock<Vec<Arc<Node>>>,
    /// Used under `NESTING`.
    mark: SpinLock<Mark>,
}

/// What was computed for an epoll, and in which round.
#[derive(Clone, Copy, Default)]
struct Mark {
    depth: (u64, usize),
    height: (u64, usize),
    paths: (u64, Paths),
    /// Its files were checked.
    checked: u64,
}

impl Node {
    pub fn new() -> Arc<Node> {
        Arc::new(Node {
            outer: SpinLock::new(Rank::Leaf, Vec::new()),
            mark: SpinLock::new(Rank::Leaf, Mark::default()),
        })
    }

    /// Whether no epoll watches this one.
    pub fn is_top(&self) -> bool {
        self.outer.lock().is_empty()
    }

    /// `outer` begins to watch this one.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn watched_by(&self, _: &Nesting, outer: &Arc<Node>) -> Result<()> {
        let mut list = self.outer.lock();
        list.try_reserve(1)?;
        list.push(outer.clone());
        Ok(())
    }

    /// A watch of this one by `outer` is over.
    pub fn unwatched_by(&self, outer: &Arc<Node>) {
        let mut list = self.outer.lock();
        let at = list.iter().position(|known| Arc::ptr_eq(known, outer));
        let gone = at.map(|at| list.swap_remove(at));
        drop(list);
        drop(gone);
    }

    /// Calls `f` with the epoll of each watch that lasts. Under `NESTING`, so that none is added;
    /// watches may end meanwhile. The last one then moves into the gap: a walk from the end has
    /// seen it already, and sees it at most once more.
    fn each_outer(&self, mut f: impl FnMut(&Node)) {
        let mut left = usize::MAX;
        while let Some(outer) = {
            let list = self.outer.lock();
            left = left.min(list.len());
            left.checked_sub(1).map(|at| list[at].clone())
        } {
            f(&outer);
            left -= 1;
        }
    }
}

/// The right to change which epoll watches which.
pub(super) struct Nesting(Option<MutexGuard<'static, ()>>);

/// No epoll begins to watch another meanwhile.
///
/// # Errors
/// `EINTR` if the current thread is killed.
pub(super) fn lock() -> Result<Nesting> {
    let take = || NESTING.try_lock().map(|guard| Nesting(Some(guard)));
    thread::with_current(|me| me.wait_unless_killed(&TURNS, take))
        .flatten()
        .ok_or_else(|| {
            // The wake-up may have come to this thread.
            TURNS.wake_one();
            Errno::EINTR
        })
}

impl Drop for Nesting {
    fn drop(&mut self) {
        drop(self.0.take());
        TURNS.wake_one();
    }
}

fn new_round() -> u64 {
    ROUND.fetch_add(1, Relaxed) + 1
}

impl Nesting {
    /// Whether `outer` may begin to watch `inner`, as far as depth and cycles go.
    ///
    /// # Errors
    /// `ELOOP`: that would make a cycle, or a chain longer than [`LONGEST`].
    pub fn check_depth(&self, outer: &Epoll, inner: &Epoll) -> Result<()> {
        let round = new_round();
        let below = depth(outer, inner, round).ok_or(Errno::ELOOP)?;
        match height(&outer.node, round) + below <= LONGEST {
            true => Ok(()),
            false => Err(Errno::ELOOP),
        }
    }

    /// Whether the paths of all files below `inner`, which a further epoll watches now, are within
    /// the limits.
    ///
    /// # Errors
    /// `EINVAL` if not.
    pub fn check_paths(&self, inner: &Epoll) -> Result<()> {
        match fits(inner, new_round()) {
            true => Ok(()),
            false => Err(Errno::EINVAL),
        }
    }

    /// Whether a path may begin with `epoll` from the description of these watches, which it does
    /// not watch yet.
    ///
    /// # Errors
    /// `EINVAL` if not.
    pub fn check_file(&self, epoll: &Node, watches: &AttachedList) -> Result<()> {
        let round = new_round();
        match add_watches(paths(epoll, round), watches, round) {
            true => Ok(()),
            false => Err(Errno::EINVAL),
        }
    }
}

/// Epolls in the longest chain that begins with `epoll`; `None` if one of its chains has `outer`.
fn depth(outer: &Epoll, epoll: &Epoll, round: u64) -> Option<usize> {
    if core::ptr::eq(outer, epoll) {
        return None;
    }
    let known = epoll.node.mark.lock().depth;
    if known.0 == round {
        return Some(known.1);
    }
    let mut deepest = 0;
    let none = epoll.each_item(|item| {
        item.with_inner(|inner| {
            let depth = depth(outer, inner, round);
            deepest = deepest.max(depth.unwrap_or(0));
            depth.is_some()
        })
        .unwrap_or(true)
    });
    epoll.node.mark.lock().depth = (round, deepest + 1);
    none.then_some(deepest + 1)
}

/// Epolls in the longest chain that ends with `epoll`.
fn height(epoll: &Node, round: u64) -> usize {
    let known = epoll.mark.lock().height;
    if known.0 == round {
        return known.1;
    }
    let mut highest = 0;
    epoll.each_outer(|outer| highest = highest.max(height(outer, round)));
    epoll.mark.lock().height = (round, highest + 1);
    highest + 1
}

/// The paths upwards from `epoll`.
fn paths(epoll: &Node, round: u64) -> Paths {
    let known = epoll.mark.lock().paths;
    if known.0 == round {
        return known.1;
    }
    let mut sum = Paths::default();
    epoll.each_outer(|outer| add(&mut sum[1..], &paths(outer, round)));
    sum[0] = u32::from(epoll.is_top());
    epoll.mark.lock().paths = (round, sum);
    sum
}

fn add(sum: &mut [u32], more: &Paths) {
    for (sum, more) in sum.iter_mut().zip(more) {
        *sum = sum.saturating_add(*more);
    }
}

fn is_within(paths: &Paths) -> bool {
    paths
        .iter()
        .zip(LIMITS)
        .all(|(&paths, limit)| paths <= limit)
}

/// Whether the paths from `epoll`, from what it watches and from what is below are within the
/// limits.
fn fits(epoll: &Epoll, round: u64) -> bool {
    {
        let mut mark = epoll.node.mark.lock();
        if mark.checked == round {
            return true;
        }
        mark.checked = round;
    }
    // At least as many begin at each of its files.
    is_within(&paths(&epoll.node, round))
        && epoll.each_item(|item| {
            Counter::epoll_path_looks.add(1);
            item.checked.load(Relaxed) == round
                || item
                    .with_inner(|inner| fits(inner, round))
                    .unwrap_or_else(|| add_watches(Paths::default(), &item.watches, round))
        })
}

/// Whether the paths from a description with these watches, together with `sum`, are within the
/// limits. The watches need not be looked at again in this round.
fn add_watches(mut sum: Paths, watches: &AttachedList, round: u64) -> bool {
    each_attached(watches, |item: &Item| {
        Counter::epoll_path_looks.add(1);
        item.checked.store(round, Relaxed);
        add(&mut sum, &paths(&item.node, round));
        is_within(&sum)
    })
}

#[cfg(test)]
mod tests {
    use super::{
        super::{WATCHES, item::key},
        *,
    };
    use crate::process::files::OpenFile;
    use fs::OpenFlags;
    use nucleus::sim::{self, Config};
    use vm::account::Account;

    #[test]
    fn a_watch_that_failed_leaves_the_edge_of_another() {
        let body = || {
            let account = Account::of_user(70_200);
            let [outer, inner] = [(); 2].map(|()| Epoll::new(account.clone()).unwrap());
            let open = OpenFile::new(inner.clone(), OpenFlags::from_bits_retain(2));
            let watch = |fd| {
                let charge = WATCHES.charge(&account).unwrap();
                let place = outer.ready.reserve().unwrap();
                Item::new(key(&open, fd), place, &outer, &open, charge)
            };
            let first = watch(3);
            first.nest(&Nesting(None), &inner).unwrap();
            // As `add` does where the file cannot be observed: it ends before it was nested.
            outer.end(&watch(4));
            assert!(!inner.node.is_top());
            // Once, however often it ends.
            watch(5).nest(&Nesting(None), &inner).unwrap();
            outer.end(&first);
            first.retire();
            assert!(!inner.node.is_top());
        };
        if let Err(failure) = sim::run(Config::default(), body) {
            panic!("{failure}");
        }
    }

    #[test]
    fn a_walk_misses_no_outer_while_others_leave() {
        let inner = Node::new();
        let outers: Vec<_> = (0..8).map(|_| Node::new()).collect();
        for gone in 0..outers.len() {
            for when in 0..outers.len() {
                for outer in &outers {
                    inner.watched_by(&Nesting(None), outer).unwrap();
                }
                let mut seen = Vec::new();
                inner.each_outer(|outer| {
                    if seen.len() == when {
                        inner.unwatched_by(&outers[gone]);
                    }
                    seen.push(core::ptr::from_ref(outer));
                });
                for (i, outer) in outers.iter().enumerate() {
                    let was_seen = seen.contains(&Arc::as_ptr(outer));
                    assert!(was_seen || i == gone, "{i} when {gone} left at {when}");
                    inner.unwatched_by(outer);
                }
                assert!(inner.is_top());
            }
        }
    }
}
