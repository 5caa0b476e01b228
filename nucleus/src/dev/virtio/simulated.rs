//! Devices made of code, on the simulated machine: a test plays the device.

use alloc::{sync::Arc, vec::Vec};
use core::sync::atomic::{AtomicBool, Ordering::SeqCst};

use super::{
    Device, Error, Found, Queues, ReadConfig,
    queue::{Doorbell, Queue},
};
use crate::{
    dma,
    lock::{Rank, SpinLock},
    task::WaitQueue,
};

pub use super::queue::{Piece, Side};

/// What a device made of code is.
pub struct Script {
    place: u16,
    offered: u64,
    config: SpinLock<Vec<u8>>,
    queues: SpinLock<Vec<Arc<Queue>>>,
    changes: Arc<WaitQueue>,
    is_gone: AtomicBool,
}

/// Makes a device at a place with the features that it offers and its configuration.
pub fn device(place: u16, offered: u64, config: Vec<u8>) -> (Found, Arc<Script>) {
    let script = Arc::new(Script {
        place,
        offered,
        config: SpinLock::new(Rank::Leaf, config),
        queues: SpinLock::new(Rank::Leaf, Vec::new()),
        changes: Arc::new(WaitQueue::new()),
        is_gone: AtomicBool::new(false),
    });
    let found = Found {
        script: script.clone(),
        starts: 0,
    };
    (found, script)
}

impl Script {
    /// Returns the device's side of a queue, when the device is started.
    pub fn side(&self, number: usize) -> Side {
        Side::new(self.queues.lock()[number].clone(), self.place)
    }

    /// Returns how many queues the driver has made.
    pub fn queue_count(&self) -> usize {
        self.queues.lock().len()
    }

    /// Refuses to be started again.
    pub fn be_gone(&self) {
        self.is_gone.store(true, SeqCst);
    }

    /// Changes a byte of the configuration, and says so.
    pub fn set_config(&self, at: usize, byte: u8) {
        self.config.lock()[at] = byte;
        self.changes.wake_all();
    }

    pub(super) fn read_config(&self, offset: usize, to: &mut [u8]) -> Result<(), Error> {
        let config = self.config.lock();
        let from = config.get(offset..offset + to.len());
        to.copy_from_slice(from.ok_or(Error::Lacks("configuration"))?);
        Ok(())
    }
}

/// As [`Found::start_chosen`].
pub(super) fn start(
    script: Arc<Script>,
    starts: usize,
    choose: impl FnOnce(u64, ReadConfig<'_>) -> Result<(u64, Queues), Error>,
) -> Result<Device, Error> {
    if script.is_gone.load(SeqCst) {
        return Err(Error::Lacks("a device"));
    }
    let read: ReadConfig<'_> = &|offset, to| script.read_config(offset, to);
    let (wanted, queues) = choose(script.offered, read)?;
    let domain = dma::domain_of(script.place).map_err(|_| Error::OutOfMemory)?;
    let mut made = Vec::new();
    for number in 0..queues.count {
        let doorbell = Doorbell::Code(alloc::boxed::Box::new(|| ()));
        let queue = Queue::attached(number, queues.slots, &domain, doorbell)?;
        queue.set_interrupts();
        made.push(queue);
    }
    script.queues.lock().clone_from(&made);
    Ok(Device {
        queues: made,
        domain,
        features: wanted & script.offered,
        changes: script.changes.clone(),
        script,
        starts: SpinLock::new(Rank::Leaf, Some(starts + 1)),
    })
}
