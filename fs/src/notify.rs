//! Who wants to hear what happens to a vnode (`inotify`).
//!
//! A [`Mark`] ties a [`Listener`] to a vnode. What happens to a vnode is told to those who listen to it and, with the
//! name, to those who listen to the directory in which it hangs. While nobody listens to anything, telling costs one
//! load; who listens is found by the vnode's address.

use alloc::{
    sync::{Arc, Weak},
    vec::Vec,
};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use abi::{
    Errno, Result,
    raw::general::{
        IN_ATTRIB, IN_CREATE, IN_DELETE, IN_DELETE_SELF, IN_ISDIR, IN_MOVE_SELF, IN_MOVED_FROM,
        IN_MOVED_TO, IN_UNMOUNT,
    },
};
use nucleus::sync::{Rank, SpinLock};

use crate::{Kind, Vnode};

/// Something that happened.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// One of `IN_*`, and `IN_ISDIR` if it happened to a directory.
    pub mask: u32,
    /// Ties the two halves of a rename together; 0 for others.
    pub cookie: u32,
    /// The entry to which it happened, if it is told to who listens to the directory.
    pub name: Option<&'a [u8]>,
    /// The entry is in the directory no more.
    pub removed: bool,
}

/// Is told what happens.
pub trait Listener: Send + Sync {
    /// Called where it happens, perhaps with spin locks held: only those of [`Rank::Notify`] and after
    /// may be taken.
    fn told(&self, event: &Event<'_>);

    /// The vnode is no more; nothing further will be told.
    fn ended(&self);
}

/// Ties a listener to a vnode as long as it lives.
pub struct Mark {
    key: usize,
    listener: Arc<dyn Listener>,
    vnode: Held,
}

/// A vnode that tells its end is not kept from it; others are kept, so that they are found again.
enum Held {
    Weakly(Weak<dyn Vnode>),
    Firmly(Arc<dyn Vnode>),
}

struct Entry {
    key: usize,
    listener: Arc<dyn Listener>,
}

const BUCKETS: usize = 64;

static TABLE: [SpinLock<Vec<Entry>>; BUCKETS] =
    [const { SpinLock::new(Rank::NotifyTable, Vec::new()) }; BUCKETS];
/// All marks.
static MARKS: AtomicU32 = AtomicU32::new(0);

/// Names a vnode as long as somebody has a mark on it.
pub fn key(vnode: &Arc<dyn Vnode>) -> usize {
    Arc::as_ptr(vnode).addr()
}

fn bucket(key: usize) -> &'static SpinLock<Vec<Entry>> {
    let hash = (key as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    &TABLE[(hash >> 58) as usize % BUCKETS]
}

impl Mark {
    /// Has `listener` told of what happens to `vnode` from now on.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(vnode: &Arc<dyn Vnode>, listener: Arc<dyn Listener>) -> Result<Mark> {
        let key = key(vnode);
        {
            let mut bucket = bucket(key).lock();
            bucket.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
            bucket.push(Entry {
                key,
                listener: listener.clone(),
            });
        }
        MARKS.fetch_add(1, Relaxed);
        let vnode = match vnode.tells_its_end() {
            true => Held::Weakly(Arc::downgrade(vnode)),
            false => Held::Firmly(vnode.clone()),
        };
        Ok(Mark {
            key,
            listener,
            vnode,
        })
    }

    /// The vnode, if it is there still.
    pub fn vnode(&self) -> Option<Arc<dyn Vnode>> {
        match &self.vnode {
            Held::Weakly(vnode) => vnode.upgrade(),
            Held::Firmly(vnode) => Some(vnode.clone()),
        }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        let gone = {
            let mut bucket = bucket(self.key).lock();
            let own = |entry: &Entry| {
                entry.key == self.key && Arc::ptr_eq(&entry.listener, &self.listener)
            };
            let at = bucket.iter().position(own);
            at.map(|at| bucket.remove(at))
        };
        drop(gone);
        MARKS.fetch_sub(1, Relaxed);
    }
}

/// Whether anybody listens to anything.
#[inline]
pub fn is_active() -> bool {
    MARKS.load(Relaxed) != 0
}

/// Those who listen to the vnode with this key.
fn listeners(key: usize) -> Vec<Arc<dyn Listener>> {
    let bucket = bucket(key).lock();
    let own = bucket.iter().filter(|entry| entry.key == key);
    let mut list = Vec::new();
    // Without memory, whoever finds no place is not told.
    if list.try_reserve_exact(own.clone().count()).is_ok() {
        list.extend(own.map(|entry| entry.listener.clone()));
    }
    list
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

/// `mask` happened to `vnode`: told to its own listeners and to those of its directory.
#[inline]
pub fn happened(vnode: &Arc<dyn Vnode>, mask: u32) {
    if is_active() {
        tell_both(vnode, mask);
    }
}

#[cold]
fn tell_both(vnode: &Arc<dyn Vnode>, mask: u32) {
    let mask = mask | directory_bit(&**vnode);
    let event = Event {
        mask,
        cookie: 0,
        name: None,
        removed: false,
    };
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

/// `mask` happened to `vnode` itself, whatever its names are.
#[inline]
pub fn happened_to_self(vnode: &Arc<dyn Vnode>, mask: u32) {
    if is_active() {
        let event = Event {
            mask: mask | directory_bit(&**vnode),
            cookie: 0,
            name: None,
            removed: false,
        };
        tell(key(vnode), &event);
    }
}

/// `mask` happened to the entry `name` of `directory`.
#[inline]
fn entry(directory: &Arc<dyn Vnode>, name: &[u8], mask: u32, cookie: u32) {
    let event = Event {
        mask,
        cookie,
        name: Some(name),
        removed: false,
    };
    tell(key(directory), &event);
}

/// `directory` got an entry for the new vnode `child`.
#[inline]
pub fn created(directory: &Arc<dyn Vnode>, name: &[u8], child: &dyn Vnode) {
    if is_active() {
        entry(directory, name, IN_CREATE | directory_bit(child), 0);
    }
}

/// `directory` got a further entry for `child`.
#[inline]
pub fn linked(directory: &Arc<dyn Vnode>, name: &[u8], child: &Arc<dyn Vnode>) {
    if is_active() {
        happened_to_self(child, IN_ATTRIB);
        entry(directory, name, IN_CREATE, 0);
    }
}

/// `directory` lost its entry for `child`, which may end with that.
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

/// An entry moved, `child` with it.
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

/// A vnode that [tells its end](Vnode::tells_its_end) is no more: it was removed, or its file system is gone with its name
/// in it (`named`).
#[inline]
pub fn ended(key: usize, named: bool) {
    if is_active() {
        let event = Event {
            mask: if named { IN_UNMOUNT } else { IN_DELETE_SELF },
            cookie: 0,
            name: None,
            removed: false,
        };
        for listener in listeners(key) {
            listener.told(&event);
            listener.ended();
        }
    }
}
