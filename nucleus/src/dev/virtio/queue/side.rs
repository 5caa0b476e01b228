//! The device's side of a queue, for devices made of code on the simulated machine.

use std::{sync::Arc, vec::Vec};

use core::sync::atomic::Ordering;

use super::super::rings::{
    DEVICE_WRITES, Descriptor, INDIRECT, NEXT, NO_INTERRUPT, USED, UsedElement,
};
use super::Queue;
use crate::hw::sim::device_read;

/// A part of a request, as a device sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Where it is, by the device's addresses.
    pub address: u64,
    /// Bytes.
    pub len: u32,
    /// The device writes it.
    pub is_written: bool,
}

/// The device's side of a queue. What it puts there need not be true.
pub struct Side {
    queue: Arc<Queue>,
    /// The device's place.
    place: u16,
    seen: u16,
    used: u16,
}

impl Side {
    /// Of a device at `place`, which has seen nothing.
    pub fn new(queue: Arc<Queue>, place: u16) -> Side {
        Side {
            queue,
            place,
            seen: 0,
            used: 0,
        }
    }

    /// Returns the queue.
    pub fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// Returns the slots of the queue.
    pub fn slots(&self) -> usize {
        self.queue.slots()
    }

    /// Takes the next request that was made available: its slot.
    ///
    /// # Panics
    /// The slot that the driver made available does not exist.
    pub fn take(&mut self) -> Option<u16> {
        if self.queue.rings.word(2).load(Ordering::Acquire) == self.seen {
            return None;
        }
        let at = 4 + 2 * (self.seen as usize % self.slots());
        let number = self.queue.rings.word(at).load(Ordering::Relaxed);
        assert!((number as usize) < self.slots());
        self.seen = self.seen.wrapping_add(1);
        Some(number)
    }

    /// Returns how many requests were made available and not taken.
    pub fn available(&self) -> usize {
        let index = self.queue.rings.word(2).load(Ordering::Acquire);
        index.wrapping_sub(self.seen).into()
    }

    /// Returns the parts of the request in a slot; `None` if the device can't reach them.
    ///
    /// # Panics
    /// The driver's descriptors are wrong.
    pub fn pieces(&self, number: u16) -> Option<Vec<Piece>> {
        let read = |at: u64, index: usize| {
            let mut bytes = [0; size_of::<Descriptor>()];
            let at = at + (index * size_of::<Descriptor>()) as u64;
            let is_read = device_read(self.place, at, &mut bytes);
            // SAFETY: any bytes are a descriptor.
            is_read.then(|| unsafe { core::mem::transmute::<_, Descriptor>(bytes) })
        };
        let [descriptors, ..] = self.queue.addresses();
        let head = read(descriptors, number as usize)?;
        assert_eq!(head.flags, INDIRECT);
        let count = head.len as usize / size_of::<Descriptor>();
        let all = (0..count).map(|index| read(head.address, index));
        let all: Vec<_> = all.collect::<Option<_>>()?;
        for (index, descriptor) in all.iter().enumerate() {
            let last = index + 1 == count;
            assert_eq!(descriptor.flags & NEXT == 0, last);
            assert!(last || descriptor.next as usize == index + 1);
        }
        let piece = |it: &Descriptor| Piece {
            address: it.address,
            len: it.len,
            is_written: it.flags & DEVICE_WRITES != 0,
        };
        Some(all.iter().map(piece).collect())
    }

    /// Writes an element of the used ring and moves the index.
    pub fn put_used(&mut self, number: u32, written: u32) {
        let element = self.queue.rings.used_element(self.used);
        // SAFETY: inside the frame of the rings and aligned.
        unsafe { element.write_volatile(UsedElement { number, written }) };
        self.move_used(1);
    }

    /// Moves the index of the used ring, whatever is there.
    pub fn move_used(&mut self, by: u16) {
        self.used = self.used.wrapping_add(by);
        let index = self.queue.rings.word(USED + 2);
        index.store(self.used, Ordering::Release);
    }

    /// Interrupts, unless the driver wants no interrupt.
    pub fn interrupt(&self) {
        if self.queue.rings.word(0).load(Ordering::SeqCst) & NO_INTERRUPT == 0 {
            self.interrupt_anyway();
        }
    }

    /// Interrupts without a reason, or for another queue that has the same message.
    pub fn interrupt_anyway(&self) {
        self.queue.interrupt();
    }
}
