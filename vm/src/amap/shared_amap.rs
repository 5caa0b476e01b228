//! Amaps that several address spaces write (`uvm.txt` 5.4: `minherit`).
//!
//! Where a program says that its children are to share private memory with it, their entries refer to one amap, and none of them
//! needs a copy: a sole anon in it is everybody's, and whoever writes writes in place. Three things are different from an
//! amap that belongs to one entry:
//!
//! - *What everybody sees changes for all at once.* A page that takes another's place in a slot, by copy-on-write or because the object's
//!   page below is written for the first time, is entered after the old one was unmapped everywhere, not in one space only.
//! - *Entries refer to parts.* The amap knows which keys each of its entries has ([`Share`]); when one goes, the
//!   anons are dropped that no other can reach. So there is nothing like a page that is allocated and out of reach here either.
//! - *It is never waited for.* A child that is to have a copy of such memory gets an amap of its own at the fork, since it
//!   can't be said of the others when they will write; the anons become copy-on-write for all.
//!
//! Such an amap is an array, and stays one.

use alloc::{sync::Arc, vec::Vec};
use core::ops::Range;
use nucleus::{
    Frame, OutOfMemory, Prot,
    pmap::{self, Pending},
    sync::{Mutex, Rank},
};

use super::{Amap, Key};

/// The keys that each entry has of an amap which several share.
pub(crate) struct Sharers(Mutex<Vec<Range<Key>>>);

/// What one entry has of an amap that others may share. Dropped when every translation made under it has been flushed.
pub(crate) struct Share {
    amap: Arc<Amap>,
    keys: Range<Key>,
}

impl Sharers {
    pub fn new() -> Sharers {
        Sharers(Mutex::new(Rank::Amap, Vec::new()))
    }

    fn add(&self, keys: &Range<Key>) -> Result<(), OutOfMemory> {
        let mut all = self.0.lock();
        all.try_reserve(1).map_err(|_| OutOfMemory)?;
        all.push(keys.clone());
        Ok(())
    }

    /// One with these keys is gone. Calls `f` with each part of them that no other has.
    fn remove(&self, keys: &Range<Key>, f: &mut dyn FnMut(Range<Key>)) {
        let mut all = self.0.lock();
        if let Some(i) = all.iter().position(|it| it == keys) {
            all.swap_remove(i);
        }
        let mut at = keys.start;
        while at < keys.end {
            // The end of what somebody has here, or the start of what somebody has behind it.
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
    /// One more entry has `keys` of the amap.
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

    /// The same for a child's entry.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn another(&self) -> Result<Share, OutOfMemory> {
        Share::new(&self.amap, self.keys.clone())
    }

    /// Parts it; what comes back has the keys from `key` on, which is among these.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn split_off(&mut self, key: Key) -> Result<Share, OutOfMemory> {
        let upper = Share::new(&self.amap, key..self.keys.end)?;
        let lower = Share::new(&self.amap, self.keys.start..key)?;
        // This drops the whole, of which all is still there.
        *self = lower;
        Ok(upper)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        // Nobody can come to have these keys again: entries get theirs from entries.
        let mut unreachable = Vec::new();
        let Share { amap, keys } = self;
        amap.sharers()
            .remove(keys, &mut |part| unreachable.push(part));
        for part in unreachable {
            amap.clear(part);
        }
    }
}

/// Takes every mapping of a page away whose place another one takes in a shared amap: when this returns, nobody sees the old one any
/// more, and nobody writes it. Where it stands is locked.
pub(crate) fn unmap_everywhere(frame: &Frame) {
    let mut pending = Pending::new();
    pmap::page_protect(frame, Prot::empty(), &mut pending);
    pending.flush();
}
