//! The memory that a queue shares with its device: the rings, and tables of descriptors.
//!
//! The rings have the split layout (virtio 1.1, 2.6). Each request takes one descriptor of the
//! ring, which leads to a table of descriptors in a frame of its own, so a request of any length
//! takes one slot. All that is read here may be anything: the device writes it at any time.

use core::sync::atomic::{AtomicU16, Ordering, fence};

use crate::{
    Frame, OutOfMemory, PAGE_SIZE,
    dma::{Attachment, Extent, Part},
    frame::Contents,
};

/// The most slots of a queue that are used: its descriptors fill one frame.
pub(crate) const MAX_SLOTS: usize = PAGE_SIZE / size_of::<Descriptor>();

/// `struct virtq_desc`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Descriptor {
    pub address: u64,
    pub len: u32,
    pub flags: u16,
    pub next: u16,
}

/// `struct virtq_used_elem`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct UsedElement {
    /// The slot's number.
    pub number: u32,
    /// How many bytes the device has written.
    pub written: u32,
}

pub(super) const NEXT: u16 = 1;
pub(super) const DEVICE_WRITES: u16 = 2;
pub(super) const INDIRECT: u16 = 4;
/// In the used ring's flags: the device looks at the ring by itself.
const NO_NOTIFY: u16 = 1;
/// In the available ring's flags: the driver looks at the ring by itself. A hint: the device may
/// interrupt nevertheless.
pub(super) const NO_INTERRUPT: u16 = 1;

/// Where in the second frame of the rings the used ring begins; the available one is at 0.
pub(super) const USED: usize = 1024;
const ELEMENTS: usize = USED + 4;
const _: () = assert!(
    4 + 2 * MAX_SLOTS + 2 <= USED
        && ELEMENTS + size_of::<UsedElement>() * MAX_SLOTS + 2 <= PAGE_SIZE
);

/// The rings of a queue.
pub(super) struct Rings {
    descriptors: Frame,
    /// Available ring and used ring.
    rings: Frame,
    /// Where the device finds these two.
    addresses: [u64; 2],
    slots: u16,
}

impl Rings {
    /// Empty ones, of up to [`MAX_SLOTS`] slots.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(super) fn new(slots: u16, domain: &Attachment) -> Result<Rings, OutOfMemory> {
        let descriptors = Frame::alloc_direct(Contents::Zeroed)?;
        let rings = Frame::alloc_direct(Contents::Zeroed)?;
        let addresses = [
            domain.map_lasting(&descriptors, true, false)?,
            domain.map_lasting(&rings, true, true)?,
        ];
        Ok(Rings {
            descriptors,
            rings,
            addresses,
            slots,
        })
    }

    /// How many slots there are.
    pub(super) fn slots(&self) -> u16 {
        self.slots
    }

    /// Where the device finds descriptors, available ring and used ring.
    pub(super) fn addresses(&self) -> [u64; 3] {
        let [descriptors, rings] = self.addresses;
        [descriptors, rings, rings + USED as u64]
    }

    /// A 16-bit word of the rings, which the device reads or writes at any time; none of an element
    /// of the used ring.
    pub(super) fn word(&self, offset: usize) -> &AtomicU16 {
        debug_assert!(offset.is_multiple_of(2) && offset <= ELEMENTS - 2);
        // SAFETY: inside the frame, which is the queue's for as long as it lives, and aligned; the
        // kernel reaches the bytes before `ELEMENTS` only through this function.
        unsafe { &*self.rings.bytes().add(offset).cast::<AtomicU16>() }
    }

    /// The element of the used ring behind `used` others.
    pub(super) fn used_element(&self, used: u16) -> *mut UsedElement {
        let index = usize::from(used % self.slots);
        let elements = self.rings.bytes().wrapping_add(ELEMENTS);
        elements.cast::<UsedElement>().wrapping_add(index)
    }

    /// Makes a slot's request the device's, the one after `available` others: `count` descriptors
    /// at `address`.
    #[inline]
    pub(super) fn offer(&self, number: u16, available: u16, address: u64, count: usize) {
        let head = Descriptor {
            address,
            len: (count * size_of::<Descriptor>()) as u32,
            flags: INDIRECT,
            next: 0,
        };
        set_descriptor(&self.descriptors, number as usize, head);
        let at = available % self.slots;
        self.word(4 + 2 * at as usize)
            .store(number, Ordering::Relaxed);
        // Descriptors and ring entry come before the index that makes them the device's.
        self.word(2)
            .store(available.wrapping_add(1), Ordering::Release);
    }

    /// Whether the device wants to be told of what it was offered.
    pub(super) fn wants_doorbell(&self) -> bool {
        // The index is seen by the device before its wish is read: either it sees the request or
        // this sees the wish.
        fence(Ordering::SeqCst);
        self.word(USED).load(Ordering::Relaxed) & NO_NOTIFY == 0
    }

    /// Asks the device not to interrupt.
    pub(super) fn silence(&self) {
        self.word(0).store(NO_INTERRUPT, Ordering::Relaxed);
    }

    /// Whether the device was asked not to interrupt.
    pub(super) fn is_silent(&self) -> bool {
        self.word(0).load(Ordering::Relaxed) == NO_INTERRUPT
    }

    /// Lets the device interrupt again. A look at the rings after this finds the requests that it
    /// has completed without an interrupt.
    pub(super) fn rearm(&self) {
        self.word(0).store(0, Ordering::Relaxed);
        // Either the device sees that it is to interrupt, or the next look sees what it has done.
        fence(Ordering::SeqCst);
    }

    /// Whether the device says that it has used a request after `used` others.
    #[inline]
    pub(super) fn has_used(&self, used: u16) -> bool {
        self.word(USED + 2).load(Ordering::Acquire) != used
    }

    /// The request that the device has used after `used` others, if there is one, as the device
    /// says.
    #[inline]
    pub(super) fn used(&self, used: u16) -> Option<UsedElement> {
        // The element is read after the index that makes it ours.
        if !self.has_used(used) {
            return None;
        }
        // SAFETY: inside the frame and aligned. The device has made the element available before it
        // moved the index, and does not write it again before this one has been given back; if it
        // does, any bytes are valid.
        Some(unsafe { self.used_element(used).read_volatile() })
    }
}

fn set_descriptor(frame: &Frame, index: usize, descriptor: Descriptor) {
    debug_assert!(index < MAX_SLOTS);
    // SAFETY: inside the frame and aligned; the frame is the queue's, and the device does not
    // look at a descriptor that is not available to it.
    unsafe {
        frame
            .bytes()
            .cast::<Descriptor>()
            .add(index)
            .write_volatile(descriptor);
    }
}

/// Writes the descriptors of a request, of whose parts the device reads the first `readable`; parts
/// that continue each other share one. `find` says where the next of these parts are, which the
/// device writes, or else reads. Returns how many descriptors.
#[inline(always)]
pub(super) fn fill_table(
    table: &Frame,
    parts: &[Part],
    readable: usize,
    mut find: impl FnMut(&[Part], bool) -> Extent,
) -> usize {
    let mut count: usize = 0;
    let mut last: Option<Descriptor> = None;
    let mut done = 0;
    while done < parts.len() {
        let writes = done >= readable;
        let end = if writes { parts.len() } else { readable };
        let extent = find(&parts[done..end], writes);
        done += extent.parts;
        let flags = if writes { DEVICE_WRITES } else { 0 };
        if let Some(last) = &mut last
            && last.flags == flags
            && last.address + last.len as u64 == extent.address
        {
            last.len += extent.len;
            continue;
        }
        if let Some(mut before) = last {
            before.flags |= NEXT;
            before.next = count as u16;
            set_descriptor(table, count - 1, before);
        }
        last = Some(Descriptor {
            address: extent.address,
            len: extent.len,
            flags,
            next: 0,
        });
        count += 1;
    }
    if let Some(last) = last {
        set_descriptor(table, count - 1, last);
    }
    count
}
