//! Observers of vnodes (`inotify`).
//!
//! A [`Mark`] ties a [`Listener`] to a vnode. Events of a vnode go to its own listeners and, with
//! the name, to those of its directory. Without any listener, an event costs one load; listeners
//! are found by the vnode's address, in a time that grows with those of this vnode only. They are
//! told one at a time, without the table's lock, in the order in which they came; an event
//! allocates nothing.

use alloc::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};
use core::{
    iter,
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
};

use abi::{
    Result,
    raw::general::{
        IN_ATTRIB, IN_CREATE, IN_DELETE, IN_DELETE_SELF, IN_ISDIR, IN_MOVE_SELF, IN_MOVED_FROM,
        IN_MOVED_TO, IN_UNMOUNT,
    },
};
use nucleus::{frame, sync::SpinLock};

use crate::{Kind, Vnode};

/// An event.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// One of `IN_*`, and `IN_ISDIR` if it happened to a directory.
    pub mask: u32,
    /// Ties the two halves of a rename together; 0 for others.
    pub cookie: u32,
    /// The entry that it concerns, for listeners of the directory.
    pub name: Option<&'a [u8]>,
    /// The entry is no longer in the directory.
    pub removed: bool,
}

impl Event<'_> {
    /// An event of a vnode itself.
    fn of_vnode(mask: u32) -> Event<'static> {
        Event {
            mask,
            cookie: 0,
            name: None,
            removed: false,
        }
    }
}

/// An observer.
pub trait Listener: Send + Sync {
    /// Called where the event happens, perhaps with spin locks held: only those of
    /// [`NOTIFY`](crate::rank::NOTIFY) and after may be taken.
    fn told(&self, event: &Event<'_>);

    /// Called when the vnode is gone; no event follows.
    fn ended(&self);
}

/// Ties a listener to a vnode as long as it lives.
pub struct Mark {
    place: Place,
    vnode: Held,
}

/// Where a mark stands in its bucket: the vnode's key, and the mark's number. Those of one vnode
/// are neighbours, the oldest one first.
type Place = (usize, u64);

/// A vnode that reports its end is not kept alive; others are, so that they are found again.
enum Held {
    Weakly(Weak<dyn Vnode>),
    Firmly(Arc<dyn Vnode>),
}

struct MarkEntry {
    /// The device of a vnode that the mark keeps alive; `None` of others.
    keeps: Option<u64>,
    listener: Arc<dyn Listener>,
}

type Bucket = BTreeMap<Place, MarkEntry>;

const BUCKETS: usize = 64;
/// Marks that an unmount looks at in one hold of a bucket's lock: some microseconds.
const AT_ONCE: usize = 64;

static TABLE: [SpinLock<Bucket>; BUCKETS] =
    [const { SpinLock::new(crate::rank::NOTIFY_TABLE, BTreeMap::new()) }; BUCKETS];
/// All marks.
static MARKS: AtomicU32 = AtomicU32::new(0);
/// The number of the newest mark.
static NEWEST: AtomicU64 = AtomicU64::new(0);

/// Identifies a vnode while there is a mark on it.
pub fn key(vnode: &Arc<dyn Vnode>) -> usize {
    Arc::as_ptr(vnode).addr()
}

fn bucket(key: usize) -> &'static SpinLock<Bucket> {
    let hash = (key as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    &TABLE[(hash >> 58) as usize % BUCKETS]
}

impl Mark {
    /// Adds a mark: `listener` gets the events of `vnode` from now on.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(vnode: &Arc<dyn Vnode>, listener: Arc<dyn Listener>) -> Result<Mark> {
        let place = (key(vnode), NEWEST.fetch_add(1, Relaxed) + 1);
        let keeps = match vnode.tells_its_end() {
            true => None,
            false => Some(vnode.attributes()?.device),
        };
        frame::check_not_scarce()?;
        let entry = MarkEntry { keeps, listener };
        bucket(place.0).lock().insert(place, entry);
        MARKS.fetch_add(1, Relaxed);
        let vnode = match keeps {
            None => Held::Weakly(Arc::downgrade(vnode)),
            Some(_) => Held::Firmly(vnode.clone()),
        };
        Ok(Mark { place, vnode })
    }

    /// Returns the vnode, if it still exists.
    pub fn vnode(&self) -> Option<Arc<dyn Vnode>> {
        match &self.vnode {
            Held::Weakly(vnode) => vnode.upgrade(),
            Held::Firmly(vnode) => Some(vnode.clone()),
        }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        let gone = bucket(self.place.0).lock().remove(&self.place);
        drop(gone);
        MARKS.fetch_sub(1, Relaxed);
    }
}

/// Tells whether there is any listener.
#[inline]
pub fn is_active() -> bool {
    MARKS.load(Relaxed) != 0
}

/// Iterates over the listeners of the vnode with this key. The bucket's lock is free between them;
/// those that come meanwhile are not among them.
fn listeners(key: usize) -> impl Iterator<Item = Arc<dyn Listener>> {
    let newest = NEWEST.load(Relaxed);
    let mut from = 0;
    iter::from_fn(move || {
        let bucket = bucket(key).lock();
        let (&(_, number), entry) = bucket.range((key, from)..(key, newest + 1)).next()?;
        from = number + 1;
        Some(entry.listener.clone())
    })
}

fn tell(key: usize, event: &Event<'_>) {
    for listener in listeners(key) {
        listener.told(event);
    }
}

fn directory_bit(vnode: &dyn Vnode) -> u32 {
    match vnode.kind() {
        Kind::Directory => IN_ISDIR,
        _ => 0,
    }
}

/// Reports `mask` of `vnode` to its own listeners and those of its directory.
#[inline]
pub fn happened(vnode: &Arc<dyn Vnode>, mask: u32) {
    if is_active() {
        tell_both(vnode, mask);
    }
}

#[cold]
fn tell_both(vnode: &Arc<dyn Vnode>, mask: u32) {
    let event = Event::of_vnode(mask | directory_bit(&**vnode));
    if let Some(place) = vnode.place() {
        let of_entry = Event {
            name: Some(&place.name),
            removed: place.removed,
            ..event
        };
        tell(key(&place.parent), &of_entry);
    }
    tell(key(vnode), &event);
}

/// Reports `mask` of `vnode` itself, whatever its names are.
#[inline]
pub fn happened_to_self(vnode: &Arc<dyn Vnode>, mask: u32) {
    if is_active() {
        tell(key(vnode), &Event::of_vnode(mask | directory_bit(&**vnode)));
    }
}

/// Reports `mask` of the entry `name` of `directory`.
#[inline]
fn entry(directory: &Arc<dyn Vnode>, name: &[u8], mask: u32, cookie: u32) {
    let event = Event {
        cookie,
        name: Some(name),
        ..Event::of_vnode(mask)
    };
    tell(key(directory), &event);
}

/// Reports an entry of `directory` for the new vnode `child`.
#[inline]
pub fn created(directory: &Arc<dyn Vnode>, name: &[u8], child: &dyn Vnode) {
    if is_active() {
        entry(directory, name, IN_CREATE | directory_bit(child), 0);
    }
}

/// Reports a further entry of `directory` for `child`.
#[inline]
pub fn linked(directory: &Arc<dyn Vnode>, name: &[u8], child: &Arc<dyn Vnode>) {
    if is_active() {
        happened_to_self(child, IN_ATTRIB);
        entry(directory, name, IN_CREATE, 0);
    }
}

/// Reports the removal of the entry for `child`, which may end with that.
#[inline]
pub fn removed(directory: &Arc<dyn Vnode>, name: &[u8], child: Arc<dyn Vnode>) {
    if is_active() {
        let bit = directory_bit(&*child);
        if bit == 0 {
            happened_to_self(&child, IN_ATTRIB);
        }
        // Its end comes before its removal, as on Linux.
        drop(child);
        entry(directory, name, IN_DELETE | bit, 0);
    }
}

/// Reports that an entry moved, `child` with it.
#[inline]
pub fn moved(
    from: (&Arc<dyn Vnode>, &[u8]),
    to: (&Arc<dyn Vnode>, &[u8]),
    child: &Arc<dyn Vnode>,
    replaced: Option<&Arc<dyn Vnode>>,
) {
    if !is_active() {
        return;
    }
    static COOKIES: AtomicU32 = AtomicU32::new(1);
    let cookie = COOKIES.fetch_add(1, Relaxed);
    let bit = directory_bit(&**child);
    entry(from.0, from.1, IN_MOVED_FROM | bit, cookie);
    entry(to.0, to.1, IN_MOVED_TO | bit, cookie);
    if let Some(replaced) = replaced {
        happened_to_self(replaced, IN_ATTRIB);
    }
    happened_to_self(child, IN_MOVE_SELF);
}

/// Reports the end of a vnode that [tells its end](Vnode::tells_its_end): it was removed, or its
/// file system has ended with its name in it (`named`).
#[inline]
pub fn ended(key: usize, named: bool) {
    if is_active() {
        let event = Event::of_vnode(if named { IN_UNMOUNT } else { IN_DELETE_SELF });
        for listener in listeners(key) {
            listener.told(&event);
            listener.ended();
        }
    }
}

/// The last mount of the file system on a device ends: no mark keeps its vnodes any longer. No lock
/// is held, and none of these vnodes is reached by a path any more.
pub fn unmounted(device: u64) {
    if !is_active() {
        return;
    }
    for bucket in &TABLE {
        let mut from = Some((0, 0));
        while let Some(start) = from {
            let (next, gone) = take_kept(&mut bucket.lock(), start, device);
            from = next;
            if let Some(entry) = gone {
                entry.listener.told(&Event::of_vnode(IN_UNMOUNT));
                entry.listener.ended();
            }
        }
    }
}

/// Looks at [`AT_ONCE`] marks from `from` on and takes the first one that keeps a vnode of `device`
/// alive. Returns where to go on, `None` behind the last mark.
fn take_kept(bucket: &mut Bucket, from: Place, device: u64) -> (Option<Place>, Option<MarkEntry>) {
    let mut looked = bucket.range(from..).take(AT_ONCE + 1);
    for seen in 0.. {
        let Some((&place, entry)) = looked.next() else {
            break;
        };
        if seen == AT_ONCE {
            return (Some(place), None);
        }
        if entry.keeps == Some(device) {
            return (Some(place), bucket.remove(&place));
        }
    }
    (None, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nucleus::sync::Rank;

    /// Counts the events, and adds a listener at each of them.
    struct Counter {
        told: AtomicU32,
        key: usize,
        added: SpinLock<u64>,
    }

    impl Listener for Counter {
        fn told(&self, _: &Event<'_>) {
            self.told.fetch_add(1, Relaxed);
            let mut added = self.added.lock();
            if *added > 0 {
                *added -= 1;
                insert(self.key, counter(self.key, *added));
            }
        }

        fn ended(&self) {}
    }

    fn counter(key: usize, added: u64) -> Arc<Counter> {
        Arc::new(Counter {
            told: AtomicU32::new(0),
            key,
            added: SpinLock::new(Rank::Leaf, added),
        })
    }

    fn insert(key: usize, listener: Arc<dyn Listener>) -> Place {
        let place = (key, NEWEST.fetch_add(1, Relaxed) + 1);
        let keeps = None;
        bucket(key)
            .lock()
            .insert(place, MarkEntry { keeps, listener });
        place
    }

    #[test]
    fn an_event_reaches_its_vnode_alone_and_ends() {
        let (own, other) = (counter(8, 3), counter(16, 0));
        insert(8, own.clone());
        insert(16, other.clone());
        tell(8, &Event::of_vnode(IN_ATTRIB));
        assert_eq!(own.told.load(Relaxed), 1);
        assert_eq!(listeners(8).count(), 2);
        assert_eq!(other.told.load(Relaxed), 0);
    }

    #[test]
    fn an_unmount_looks_at_a_part_in_each_hold() {
        let mut marks = Bucket::new();
        let devices = [7, 9];
        for at in 0..1000 {
            let listener = counter(0, 0);
            let keeps = Some(devices[usize::from(at % 300 == 299)]);
            marks.insert((at, 1), MarkEntry { keeps, listener });
        }
        let (mut from, mut holds, mut gone) = (Some((0, 0)), 0, 0);
        while let Some(start) = from {
            let (next, entry) = take_kept(&mut marks, start, 9);
            let seen = marks.range(start..next.unwrap_or((usize::MAX, 0))).count();
            assert!(seen <= AT_ONCE);
            (from, holds) = (next, holds + 1);
            gone += u32::from(entry.is_some());
        }
        assert_eq!(gone, 3);
        assert!(holds >= 1000 / AT_ONCE);
        assert!(marks.values().all(|entry| entry.keeps == Some(7)));
    }
}
