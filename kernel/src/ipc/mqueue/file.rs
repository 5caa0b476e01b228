//! An open queue.

use alloc::{format, sync::Arc};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use abi::{
    Errno, Result,
    raw::general::{SEEK_CUR, SEEK_SET},
};
use fbuf::Sink;
use fs::{File, Location, OpenFlags, Ready};
use nucleus::task::Watch;

use super::Queue;
use crate::process::{files::OpenFile, thread};

/// The open file of a queue's descriptor. Read as a file it is a line about the queue.
pub struct QueueFile {
    queue: Arc<Queue>,
    place: Location,
    /// Of the next read.
    position: AtomicU64,
}

impl QueueFile {
    pub fn open(queue: Arc<Queue>, place: Location) -> Arc<dyn File> {
        Arc::new(QueueFile {
            queue,
            place,
            position: AtomicU64::new(0),
        })
    }

    /// The queue that an open file is.
    ///
    /// # Errors
    /// `EBADF` if it is none.
    pub fn of(open: &OpenFile) -> Result<&Arc<Queue>> {
        let file = open.downcast::<QueueFile>().ok_or(Errno::EBADF)?;
        Ok(&file.queue)
    }
}

impl File for QueueFile {
    fn splices(&self) -> bool {
        false
    }

    fn read(&self, at: Option<u64>, _: OpenFlags, to: &mut dyn Sink) -> Result<usize> {
        let status = self.queue.status();
        let text = format!(
            "QSIZE:{:<10} NOTIFY:{:<5} SIGNO:{:<5} NOTIFY_PID:{:<6}\n",
            status.bytes, status.way, status.signal, status.pid
        );
        let from = at.unwrap_or_else(|| self.position.load(Relaxed));
        let rest = text.as_bytes().get(from as usize..).unwrap_or_default();
        let len = rest.len().min(to.room());
        let read = to.put_bytes(&rest[..len])?;
        if at.is_none() {
            self.position.store(from + read as u64, Relaxed);
        }
        Ok(read)
    }

    fn seek(&self, offset: i64, whence: u32) -> Result<u64> {
        let from = match whence {
            SEEK_SET => 0,
            SEEK_CUR => self.position.load(Relaxed),
            _ => return Err(Errno::EINVAL),
        };
        let to = from.checked_add_signed(offset).ok_or(Errno::EINVAL)?;
        i64::try_from(to).map_err(|_| Errno::EINVAL)?;
        self.position.store(to, Relaxed);
        Ok(to)
    }

    fn poll<'a>(&'a self, watch: Option<&mut dyn Watch<'a>>) -> Ready {
        if let Some(watch) = watch {
            watch.add(&self.queue.changed);
        }
        let count = self.queue.count();
        Ready::of(count > 0, count < self.queue.size.messages)
    }

    fn location(&self) -> Option<&Location> {
        Some(&self.place)
    }

    /// A process that closes the queue is not told of messages any more.
    fn closed(&self) {
        thread::with_current(|thread| self.queue.forget(thread.process()));
    }
}
