//! A device of the simulated machine, for disks made of code: it reaches the parts of its requests
//! as a real one does, by addresses that a remapping unit translates.

use core::slice;
use core::sync::atomic::{AtomicU16, Ordering::SeqCst};
use std::sync::Arc;
use std::vec::Vec;

use super::dma::{self, Addresses, AttachError, Attachment, BATCH, Part, Window};
use crate::{
    ephemeral,
    lock::{Rank, SpinLock},
    mem::domain::WINDOW_PAGES,
    sim::{device_read, device_write, random_u64},
};

/// The place of the next one.
static NEXT: AtomicU16 = AtomicU16::new(FIRST);
const FIRST: u16 = 0x100;

/// For a new machine.
pub(crate) fn reset() {
    NEXT.store(FIRST, SeqCst);
}

/// See the head of the file.
pub struct BusMaster {
    place: u16,
    /// Without memory for one, the device reaches its parts directly.
    attachment: Option<Arc<Attachment>>,
    /// So many stale addresses are invalidated together.
    batch: usize,
    /// Windows that no request uses.
    free: SpinLock<Vec<Arc<Window>>>,
}

/// A request of such a device, from when it is given to it until this is dropped.
pub struct Transfer {
    device: Arc<BusMaster>,
    parts: Vec<Part>,
    addresses: Vec<u64>,
    window: Option<Arc<Window>>,
    /// There was no memory for a window: it reaches its parts directly.
    is_direct: bool,
}

impl BusMaster {
    /// A new device, whose stale addresses are invalidated at random times.
    pub fn new() -> Arc<BusMaster> {
        BusMaster::with_batch(BATCH >> (random_u64() % 6))
    }

    /// A new device, of which so many stale addresses are invalidated together.
    pub(super) fn with_batch(batch: usize) -> Arc<BusMaster> {
        let place = NEXT.fetch_add(1, SeqCst);
        let attachment = match dma::domain_of(place) {
            Ok(attachment) => Some(attachment),
            Err(AttachError::OutOfMemory) => None,
            Err(error) => panic!("device {place:#x}: {error:?}"),
        };
        Arc::new(BusMaster {
            place,
            attachment,
            batch,
            free: SpinLock::new(Rank::Leaf, Vec::new()),
        })
    }

    /// Its place on the bus.
    pub fn place(&self) -> u16 {
        self.place
    }

    /// Gives the device a request with these parts, which it writes, or else reads.
    pub fn give<'a>(
        self: &Arc<BusMaster>,
        parts: impl Iterator<Item = &'a Part>,
        writes: bool,
    ) -> Transfer {
        let parts: Vec<Part> = parts.cloned().collect();
        let needed = dma::addresses_of(&parts);
        let (mut window, mut is_direct) = (None, self.attachment.is_none());
        let domain = self.attachment.as_deref();
        if let Some(domain) = domain {
            dma::flush_batch(domain, self.batch);
        }
        if let Some(strict) = domain.and_then(|it| it.strict()) {
            let kept = self.free.lock().pop();
            window = kept.or_else(|| strict.add_window().ok());
            is_direct = window.is_none() || needed > WINDOW_PAGES;
        }
        let window = window.filter(|_| !is_direct);
        let mut addresses = Vec::new();
        if let Some(domain) = domain {
            let make = || Addresses::new(domain, window.as_deref(), needed);
            let found = make().or_else(|| {
                dma::free_addresses(domain);
                make()
            });
            let mut found = found.expect("no other request has the window");
            for part in &parts {
                addresses.push(found.of(slice::from_ref(part), writes).address);
            }
            found.give();
        }
        Transfer {
            device: self.clone(),
            parts,
            addresses,
            window,
            is_direct,
        }
    }
}

impl Transfer {
    /// The addresses of the parts, as the device sees them.
    pub fn addresses(&self) -> impl Iterator<Item = u64> {
        let known = self.addresses.iter().copied();
        known.filter(|_| !self.is_direct)
    }

    /// The device reads a whole part; false, if it may not.
    #[must_use]
    pub fn read(&self, part: usize, to: &mut [u8]) -> bool {
        match self.is_direct {
            true => {
                let part = &self.parts[part];
                ephemeral::map(&part.frame).read(part.offset, to);
                true
            }
            false => device_read(self.device.place, self.addresses[part], to),
        }
    }

    /// The device writes a whole part; false, if it may not.
    #[must_use]
    pub fn write(&self, part: usize, from: &[u8]) -> bool {
        match self.is_direct {
            true => {
                let part = &self.parts[part];
                ephemeral::map(&part.frame).write(part.offset, from);
                true
            }
            false => device_write(self.device.place, self.addresses[part], from),
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if let (Some(window), Some(domain)) = (self.window.take(), &self.device.attachment) {
            dma::take(domain, &window);
            self.device.free.lock().push(window);
        }
    }
}
