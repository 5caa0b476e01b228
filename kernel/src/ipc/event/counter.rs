//! `eventfd`: a counter that is waited for.

use alloc::{format, sync::Arc, vec::Vec};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use abi::{Errno, Result, raw::general::O_NONBLOCK};
use fbuf::{Sink, Source};
use fs::{File, OpenFlags, Ready};
use nucleus::{
    sync::{Rank, SpinLock},
    task::{WaitQueue, Watch},
};

use crate::process::signal;

/// Bytes of the number that is read and written.
const UNIT: usize = size_of::<u64>();
/// The counter never goes beyond this.
const MOST: u64 = u64::MAX - 1;

/// A counter: writes add to it, reads take all of it, or one (`EFD_SEMAPHORE`).
pub struct EventFile {
    count: SpinLock<u64>,
    semaphore: bool,
    /// Waiters for a count greater than zero.
    readers: WaitQueue,
    writers: WaitQueue,
    id: u32,
}

impl EventFile {
    pub fn new(count: u32, semaphore: bool) -> Arc<EventFile> {
        static IDS: AtomicU32 = AtomicU32::new(0);
        Arc::new(EventFile {
            count: SpinLock::new(Rank::Leaf, u64::from(count)),
            semaphore,
            readers: WaitQueue::new(),
            writers: WaitQueue::new(),
            id: IDS.fetch_add(1, Relaxed),
        })
    }

    fn take(&self) -> Option<u64> {
        let mut count = self.count.lock();
        let taken = match *count {
            0 => return None,
            _ if self.semaphore => 1,
            all => all,
        };
        *count -= taken;
        Some(taken)
    }

    fn add(&self, more: u64) -> Option<()> {
        let mut count = self.count.lock();
        *count = count.checked_add(more).filter(|sum| *sum <= MOST)?;
        Some(())
    }
}

impl File for EventFile {
    fn splices(&self) -> bool {
        false
    }

    fn read(&self, _: Option<u64>, flags: OpenFlags, to: &mut dyn Sink) -> Result<usize> {
        if to.room() < UNIT {
            return Err(Errno::EINVAL);
        }
        let wait = !flags.has(O_NONBLOCK);
        let taken = signal::take_or_wait(&self.readers, wait, || self.take())?;
        self.writers.wake_shared(false);
        to.put_bytes(&taken.to_ne_bytes())
    }

    fn write(&self, _: Option<u64>, flags: OpenFlags, from: &mut dyn Source) -> Result<usize> {
        if from.left() < UNIT {
            return Err(Errno::EINVAL);
        }
        let mut bytes = [0; UNIT];
        if from.take_bytes(&mut bytes)? < UNIT {
            return Err(Errno::EFAULT);
        }
        let more = u64::from_ne_bytes(bytes);
        if more > MOST {
            return Err(Errno::EINVAL);
        }
        let wait = !flags.has(O_NONBLOCK);
        signal::take_or_wait(&self.writers, wait, || self.add(more))?;
        self.readers.wake_shared(false);
        Ok(UNIT)
    }

    fn seek(&self, _: i64, _: u32) -> Result<u64> {
        Ok(0)
    }

    fn poll<'a>(&'a self, watch: Option<&mut dyn Watch<'a>>) -> Ready {
        if let Some(watch) = watch {
            watch.add(&self.readers);
            watch.add(&self.writers);
        }
        let count = *self.count.lock();
        Ready::of(count > 0, count < MOST)
    }

    fn describe(&self) -> Vec<u8> {
        b"anon_inode:[eventfd]".to_vec()
    }

    fn details(&self, out: &mut dyn FnMut(&[u8])) {
        let count = *self.count.lock();
        out(format!("eventfd-count: {count:16x}\neventfd-id: {}\n", self.id).as_bytes());
    }
}
