//! Chunks that several amaps have: what a copy of an amap is made of (`uvm.txt` 5.2).
//!
//! Clearing needs-copy gives an entry an amap of its own. A reference to each anon would make that cost what the process is
//! large, for a single page that is written. So the copy has the same chunks, and each chunk counts its *owners*: the
//! places in amaps where it stands. One that has several is *common*.
//!
//! *How references are counted.* Each owner of a chunk has a reference to each anon in it. An anon's own count is that of the slots
//! that refer to it, so an anon belongs to one amap alone if its slot is the only one and the chunk of that is not common. A slot that
//! holds its anon itself (`Slot::Sole`) says nothing about others while the chunk is common.
//!
//! *Who may change what.* For an owner a common chunk is there to be looked at: no slot is filled or emptied, and no page in it is
//! written in place. Who wants to do that gets a chunk of its own first ([`own`]), with the map write-locked, and then the anons
//! are counted one by one. Where a page is (in memory, in swap) changes for all owners at once, as does what becomes of a page
//! that is brought in or goes out: the pagedaemon meets a common chunk as any other, and each page of it once.
//!
//! *When a chunk is common.* Owners become more when an amap that has the chunk is copied, with the map of one of its entries
//! write-locked; as long as an entry does without (fault, with the map read-locked, needs-copy clear), that can't be by its own
//! amap, and others can only make a count greater that is above one already. They become fewer at any time, but
//! not before every translation made for that owner was flushed. So who finds the count at one is alone, and stays so.

use alloc::sync::Arc;

use super::anon::Slot;
use crate::chunks::{Chunk, SLOTS};

/// Has to be done to a chunk before it has one owner more.
pub fn before_sharing(chunk: &Chunk<Slot>) {
    if chunk.is_lazy() {
        // What others see, too, is not freed under their eyes.
        let mut slots = chunk.lock();
        slots.iter_mut().for_each(Slot::keep);
        chunk.set_lazy(false);
    }
}

/// What an owner of `chunk` puts in its place to change it: the chunk, or one with the same anons.
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

/// A second reference to each anon in `slots`, in the empty slots `to`.
fn share(slots: &mut [Slot; SLOTS], to: &mut [Slot; SLOTS]) {
    for (from, to) in slots.iter_mut().zip(to) {
        if !from.is_empty() {
            *to = from.share();
        }
    }
}

/// The anons of a chunk for an owner that is about to give it up.
pub fn take(chunk: &Chunk<Slot>) -> [Slot; SLOTS] {
    let mut slots = chunk.lock();
    let mut taken = Default::default();
    match chunk.is_shared() {
        true => share(&mut slots, &mut taken),
        false => core::mem::swap(&mut taken, &mut *slots),
    }
    taken
}
