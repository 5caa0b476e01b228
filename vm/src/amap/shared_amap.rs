//! Amaps that several address spaces write (`uvm.txt` 5.4: `minherit`).
//!
//! A program may share private memory with its children. Their entries then refer to one amap, and
//! none needs a copy: a sole anon in it is written in place by all of them. Such an amap differs
//! from others in three ways:
//!
//! - *A replaced page changes for all at once.* A page that takes another's place in a slot, by
//!   copy-on-write or because the object's page below is written for the first time, is entered
//!   after the old one was unmapped in all address spaces.
//! - *Entries refer to parts.* The amap stores the keys of each entry ([`Share`]); when an entry
//!   goes, the anons that no other entry can reach are dropped. So here, too, no page is allocated
//!   but out of reach.
//! - *A copy is not delayed.* A child that gets a copy of such memory gets an amap of its own at
//!   the fork, since the writes of the other sharers cannot be intercepted through one map; the
//!   anons become copy-on-write for all.
//!
//! Such an amap is an array and stays one.

use alloc::{sync::Arc, vec::Vec};
use core::ops::Range;
use nucleus::{
    Frame, OutOfMemory, Prot,
    pmap::{self, Pending},
    sync::Mutex,
};

use super::{Amap, Key};

/// The keys of each entry that shares an amap.
pub(crate) struct Sharers(Mutex<Vec<Range<Key>>>);

/// The part of a shared amap that one entry refers to. Dropped when every translation made under it
/// has been flushed.
pub(crate) struct Share {
    amap: Arc<Amap>,
    keys: Range<Key>,
}

impl Sharers {
    pub fn new() -> Sharers {
        Sharers(Mutex::new(crate::rank::AMAP, Vec::new()))
    }

    fn add(&self, keys: &Range<Key>) -> Result<(), OutOfMemory> {
        let mut all = self.0.lock();
        all.try_reserve(1).map_err(|_| OutOfMemory)?;
        all.push(keys.clone());
        Ok(())
    }

    /// Removes a part with these keys. Calls `f` with each range of them that no other part has.
    fn remove(&self, keys: &Range<Key>, f: &mut dyn FnMut(Range<Key>)) {
        let mut all = self.0.lock();
        if let Some(i) = all.iter().position(|it| it == keys) {
            all.swap_remove(i);
        }
        let mut at = keys.start;
        while at < keys.end {
            // Up to the end of a part here, or to the start of the next part.
            let there = all.iter().find(|it| it.contains(&at));
            let end = match there {
                Some(it) => it.end,
                None => {
                    let behind = all.iter().map(|it| it.start).filter(|&start| start > at);
                    behind.min().unwrap_or(keys.end)
                }
            };
            let end = end.min(keys.end);
            if there.is_none() {
                f(at..end);
            }
            at = end;
        }
    }
}

impl Share {
    /// Adds a part with `keys`.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(amap: &Arc<Amap>, keys: Range<Key>) -> Result<Share, OutOfMemory> {
        amap.sharers().add(&keys)?;
        Ok(Share {
            amap: amap.clone(),
            keys,
        })
    }

    /// Adds a part with the same keys, for a child's entry.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn another(&self) -> Result<Share, OutOfMemory> {
        Share::new(&self.amap, self.keys.clone())
    }

    /// Splits the part; returns the keys from `key` on, which is one of them.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn split_off(&mut self, key: Key) -> Result<Share, OutOfMemory> {
        let upper = Share::new(&self.amap, key..self.keys.end)?;
        let lower = Share::new(&self.amap, self.keys.start..key)?;
        // Drops the whole part, all of whose keys are still in use.
        *self = lower;
        Ok(upper)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        // No other part can get these keys again: parts are made from parts only.
        let mut unreachable = Vec::new();
        let Share { amap, keys } = self;
        amap.sharers()
            .remove(keys, &mut |part| unreachable.push(part));
        for part in unreachable {
            amap.clear(part);
        }
    }
}

/// Removes every mapping of a page that is about to be replaced in a shared amap: on return no
/// address space can read or write it. The page's slot or object chunk is locked.
pub(crate) fn unmap_everywhere(frame: &Frame) {
    let mut pending = Pending::new();
    pmap::page_protect(frame, Prot::empty(), &mut pending);
    pending.flush();
}
