//! Chunks that several amaps share: how an amap is copied (`uvm.txt` 5.2).
//!
//! Clearing needs-copy gives an entry an amap of its own. Taking a reference to each anon would
//! cost time proportional to the process for a single written page. Instead the copy has the same
//! chunks, and each chunk counts its *owners*, the amaps that refer to it. A chunk with several
//! owners is *shared*.
//!
//! *References.* Each owner of a chunk holds a reference to each anon in it. An anon's own count is
//! the number of slots that refer to it. So an anon belongs to one amap if its slot is the only one
//! and that slot's chunk is not shared. `Slot::Sole` in a shared chunk does not mean sole
//! ownership.
//!
//! *Changes.* A shared chunk is read-only for its owners: no slot is filled or emptied, and no page
//! is written in place. An owner that needs to do so replaces it by an own copy first ([`own`]),
//! with the map write-locked; only then are the anons counted one by one. The location of a page,
//! in memory or in swap, changes for all owners at once: the pagedaemon treats a shared chunk like
//! any other and meets each page once.
//!
//! *When a chunk is shared.* The number of owners grows when an amap that has the chunk is copied,
//! with the map of one of its entries write-locked. While an entry without needs-copy handles a
//! fault, with its map read-locked, its own amap cannot be copied, and other amaps can only
//! increase a count that exceeds one already. The number shrinks at any time, but not before every
//! translation made for that owner was flushed. So an owner that reads a count of one is alone and
//! stays so.

use alloc::sync::Arc;

use super::anon::Slot;
use crate::chunks::{Chunk, SLOTS};

/// Prepares a chunk for another owner.
pub fn before_sharing(chunk: &Chunk<Slot>) {
    if chunk.is_lazy() {
        // A page that others see must not be freed lazily.
        let mut slots = chunk.lock();
        slots.iter_mut().for_each(Slot::keep);
        chunk.set_lazy(false);
    }
}

/// Returns a chunk that an owner of `chunk` may change: the chunk itself, or a copy with the same
/// anons.
pub fn own(chunk: Arc<Chunk<Slot>>) -> Arc<Chunk<Slot>> {
    let mut slots = chunk.lock();
    if !chunk.is_shared() {
        drop(slots);
        return chunk;
    }
    let own = Chunk::filled(|copies| share(&mut slots, copies));
    chunk.leave();
    own
}

/// Stores a second reference to each anon of `slots` in the empty slots `to`.
fn share(slots: &mut [Slot; SLOTS], to: &mut [Slot; SLOTS]) {
    for (from, to) in slots.iter_mut().zip(to) {
        if !from.is_empty() {
            to.fill_with(from.share());
        }
    }
}

/// Returns the anons of a chunk for an owner that is about to leave it.
pub fn take(chunk: &Chunk<Slot>) -> [Slot; SLOTS] {
    let mut slots = chunk.lock();
    let mut taken = Default::default();
    match chunk.is_shared() {
        true => share(&mut slots, &mut taken),
        false => core::mem::swap(&mut taken, &mut *slots),
    }
    taken
}
