//! Requests to devices: their parts, whose they are at the time, and how requests end.

use alloc::{sync::Arc, vec::Vec};
use core::sync::atomic::{AtomicU64, Ordering};

use super::Error;
use crate::{
    OutOfMemory,
    dma::Part,
    lock::{Rank, SpinGuard, SpinLock},
    task::WaitQueue,
};

/// A request to a device: parts that it reads, then parts that it writes.
pub struct Request {
    /// Given to the device until the request is done, then to the caller that asks for them.
    parts: SpinLock<Parts>,
    /// See the constants below; else the bytes that the device wrote. The device's answer takes it
    /// from [`GIVEN`] to another; all else changes it under the lock of `parts`.
    state: AtomicU64,
    done: WaitQueue,
    /// Whatever the driver wants.
    number: u32,
}

pub(super) struct Parts {
    pub list: Vec<Part>,
    /// How many of them the device reads; it writes the others.
    pub readable: usize,
    /// The queue, by its address, and the slot whose table was filled with them last, if any, and
    /// its descriptors.
    pub table: Option<(usize, u16)>,
    pub count: usize,
}

/// How the device's use of a request ended.
pub(super) enum End {
    /// It wrote so many bytes, as it says.
    Written(u32),
    /// It reaches nothing any more.
    Failed,
    /// It broke the protocol, and reaches all memory.
    Lost,
}

/// The device has it: the parts stay where they are.
const GIVEN: u64 = u64::MAX;
/// It has parts, and no device has it.
const READY: u64 = u64::MAX - 1;
/// No device took it, or the device that had it reaches nothing any more.
const FAILED: u64 = u64::MAX - 2;
/// The device had it when it broke the protocol, and may go on writing, as no remapping unit keeps
/// it from that: the frames are never free again.
const LOST: u64 = u64::MAX - 3;

impl Request {
    /// A request whose first `readable` parts the device reads; it writes the others.
    ///
    /// # Panics
    /// If a part is empty or leaves its frame, or `readable` is more than there are.
    pub fn new(parts: Vec<Part>, readable: usize) -> Arc<Request> {
        let request = Request::done_already(Vec::new(), 0);
        request.renew(readable, |list| *list = parts);
        Arc::new(request)
    }

    /// A request that is done, without parts, to be [renewed](Request::renew) again and again, with
    /// room for `parts` of them.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn idle(parts: usize) -> Result<Arc<Request>, OutOfMemory> {
        Request::idle_numbered(parts, 0)
    }

    /// As [`idle`](Request::idle), with a number by which the driver knows it.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn idle_numbered(parts: usize, number: u32) -> Result<Arc<Request>, OutOfMemory> {
        let list = crate::try_vec(parts)?;
        Ok(Arc::new(Request::done_already(list, number)))
    }

    /// The number that the driver gave it, or 0.
    pub fn number(&self) -> u32 {
        self.number
    }

    fn done_already(list: Vec<Part>, number: u32) -> Request {
        Request {
            parts: SpinLock::new(
                Rank::Leaf,
                Parts {
                    list,
                    readable: 0,
                    table: None,
                    count: 0,
                },
            ),
            state: AtomicU64::new(0),
            done: WaitQueue::new(),
            number,
        }
    }

    /// Makes a request that is done a new one: `fill` adds its parts, of which the device reads the
    /// first `readable`. As long as there is room for them, this takes no memory.
    ///
    /// # Panics
    /// As [`new`](Request::new), and if the request is not done.
    pub fn renew(&self, readable: usize, fill: impl FnOnce(&mut Vec<Part>)) {
        let mut parts = self.parts.lock();
        assert!(self.result().is_some(), "the device has the request");
        self.leak_lost(&parts.list);
        parts.list.clear();
        fill(&mut parts.list);
        assert!(readable <= parts.list.len() && !parts.list.is_empty());
        assert!(parts.list.iter().all(Part::is_valid));
        parts.readable = readable;
        parts.table = None;
        self.state.store(READY, Ordering::Release);
    }

    /// Makes a request that a device has done a new one with the parts that it had. Returns false,
    /// and changes nothing, if it has none any more, or failed.
    pub fn again(&self) -> bool {
        let parts = self.parts.lock();
        let may = !parts.list.is_empty() && matches!(self.result(), Some(Ok(_)));
        if may {
            self.state.store(READY, Ordering::Release);
        }
        may
    }

    /// Makes a request that no device took done, and drops its frames. One that a device has
    /// stays as it is.
    pub fn abandon(&self) {
        {
            let _parts = self.parts.lock();
            if self.state.load(Ordering::Acquire) == READY {
                self.state.store(FAILED, Ordering::Release);
            }
        }
        self.clear();
        self.done.wake_all();
    }

    /// Drops the frames of a request that is done.
    pub fn clear(&self) {
        let mut parts = self.parts.lock();
        if self.result().is_some() {
            self.leak_lost(&parts.list);
            parts.list.clear();
        }
    }

    /// A device that broke the protocol may write to these at any time: they are never free again.
    fn leak_lost(&self, parts: &[Part]) {
        if self.state.load(Ordering::Acquire) == LOST {
            for part in parts {
                core::mem::forget(part.frame.clone());
            }
        }
    }

    /// The bytes that the device wrote, as it says, when it is done; [`Error::Broken`] if it
    /// failed.
    pub fn result(&self) -> Option<Result<u32, Error>> {
        match self.state.load(Ordering::Acquire) {
            GIVEN | READY => None,
            FAILED | LOST => Some(Err(Error::Broken)),
            written => Some(Ok(written as u32)),
        }
    }

    /// Woken when it is done.
    pub fn done(&self) -> &WaitQueue {
        &self.done
    }

    /// The parts, when it is done; nothing before, and nothing the second time.
    pub fn take_parts(&self) -> Vec<Part> {
        let mut parts = self.parts.lock();
        if self.result().is_none() {
            return Vec::new();
        }
        self.leak_lost(&parts.list);
        core::mem::take(&mut parts.list)
    }

    /// The parts, for a device that gets the request.
    ///
    /// # Panics
    /// If it was given to a device before.
    pub(super) fn ready(&self) -> SpinGuard<'_, Parts> {
        let parts = self.parts.lock();
        let is_ready = self.state.load(Ordering::Acquire) == READY;
        assert!(is_ready, "a request is given to a device twice, or is done");
        parts
    }

    /// From now on the [ready](Request::ready) parts are the device's.
    pub(super) fn begin(&self, _parts: &SpinGuard<'_, Parts>) {
        self.state.store(GIVEN, Ordering::Release);
    }

    /// The device no longer has it: from now on the parts are the driver's again.
    pub(super) fn finish(&self, end: End) {
        let state = match end {
            End::Written(bytes) => bytes.into(),
            End::Failed => FAILED,
            End::Lost => LOST,
        };
        self.state.store(state, Ordering::Release);
        self.done.wake_all();
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        // A request in a device's hands is not dropped: its slot has a handle.
        let parts = core::mem::take(&mut self.parts.get_mut().list);
        self.leak_lost(&parts);
    }
}
