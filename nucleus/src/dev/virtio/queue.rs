//! A virtqueue: requests to a device, many in flight, each a chain of parts of frames.
//!
//! The rings have the split layout (virtio 1.1, 2.6). Each request takes one descriptor of the
//! ring, which leads to a table of descriptors in a frame of its own, so a request of any length
//! takes one slot. What the device writes into the rings is checked: a device that says what can't
//! be is not listened to any more, and all its requests fail.

use alloc::{sync::Arc, vec::Vec};
use core::sync::atomic::{AtomicU16, AtomicU64, Ordering, fence};

use super::Error;
use crate::{
    Frame, OutOfMemory, PAGE_SIZE,
    counters::Counter,
    dma::{self, Addresses, Attachment, BATCH, Driver, Part, Window},
    frame::Contents,
    lock::{OnceArc, Rank, SpinLock},
    task::{Sleep, WaitQueue, Woken},
    time,
};

/// The most slots of a queue that are used: its descriptors fill one frame.
pub(crate) const MAX_SLOTS: usize = PAGE_SIZE / size_of::<Descriptor>();
/// How often a queue without an interrupt is polled by its waiters.
const LOOK: core::time::Duration = core::time::Duration::from_millis(1);

/// `struct virtq_desc`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Descriptor {
    address: u64,
    len: u32,
    flags: u16,
    next: u16,
}

const NEXT: u16 = 1;
const DEVICE_WRITES: u16 = 2;
const INDIRECT: u16 = 4;
/// In the used ring's flags: the device looks at the ring by itself.
const NO_NOTIFY: u16 = 1;
/// In the available ring's flags: the driver looks at the ring by itself. A hint: the device may
/// interrupt nevertheless.
const NO_INTERRUPT: u16 = 1;

/// Where in the second frame of the rings the used ring begins; the available one is at 0.
const USED: usize = 1024;
const _: () = assert!(4 + 2 * MAX_SLOTS + 2 <= USED && USED + 4 + 8 * MAX_SLOTS + 2 <= PAGE_SIZE);

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

struct Parts {
    list: Vec<Part>,
    /// How many of them the device reads; it writes the others.
    readable: usize,
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
            parts: SpinLock::new(Rank::Leaf, Parts { list, readable: 0 }),
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
        self.state.store(READY, Ordering::Release);
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

    /// The device no longer has it: from now on the parts are the driver's again.
    fn finish(&self, state: u64) {
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

/// One request's place.
struct Slot {
    /// The last request that had it; it stays when it is done, so that an interrupt never frees
    /// anything.
    request: Option<Arc<Request>>,
    busy: bool,
    /// Made when the slot is first used.
    memory: Option<SlotMemory>,
}

/// What a slot has for its requests.
struct SlotMemory {
    /// The descriptors of the request, and where the device finds them.
    table: Frame,
    table_at: u64,
    /// Addresses for the parts, where the device's domain has addresses of its own.
    window: Option<Arc<Window>>,
}

impl Slot {
    fn window(&self) -> Option<&Window> {
        self.memory.as_ref()?.window.as_deref()
    }
}

struct State {
    slots: Vec<Slot>,
    /// Numbers of slots that are not busy.
    free: Vec<u16>,
    /// How many requests were ever made available, and how many were found used; both wrap.
    available: u16,
    used: u16,
    broken: bool,
}

/// Why a request was not made available.
enum Refusal {
    /// The slot needs memory.
    NeedsMemory,
    /// The slot has used all its addresses, and some must be invalidated.
    NeedsFlush,
    Error(Error),
}

/// Tells the device that there are requests.
pub(crate) enum Doorbell {
    /// A register, which takes the queue's number.
    #[cfg_attr(not(target_os = "none"), allow(dead_code))]
    Register(*mut u16),
    /// A device made of code.
    #[cfg(not(target_os = "none"))]
    Code(alloc::boxed::Box<dyn Fn() + Send + Sync>),
}

/// A queue of requests to a device. All methods may be called by any task.
pub struct Queue {
    number: u16,
    domain: Arc<Attachment>,
    doorbell: Doorbell,
    /// Whether interrupts say that something is done; else the waiter polls.
    interrupts: core::sync::atomic::AtomicBool,
    descriptors: Frame,
    /// Available ring and used ring.
    rings: Frame,
    /// Where the device finds these two.
    addresses: [u64; 2],
    slots: u16,
    state: SpinLock<State>,
    /// Tasks that wait for a slot.
    room: WaitQueue,
    /// Woken when the device has done anything.
    progress: WaitQueue,
    /// A task looks at the queue: an interrupt silences the device and wakes this.
    bell: OnceArc<WaitQueue>,
}

// SAFETY: the doorbell's register takes writes from any CPU at any time; all else is Send and Sync.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl Queue {
    /// A queue of `slots` slots, a power of two up to [`MAX_SLOTS`]. The device does not know of it
    /// yet.
    #[cfg_attr(not(target_os = "none"), allow(dead_code))]
    pub(crate) fn new(
        number: u16,
        slots: usize,
        domain: Arc<Attachment>,
        doorbell: Doorbell,
    ) -> Result<Queue, OutOfMemory> {
        assert!(slots.is_power_of_two() && slots <= MAX_SLOTS);
        let mut state = State {
            slots: Vec::new(),
            free: Vec::new(),
            available: 0,
            used: 0,
            broken: false,
        };
        let no_memory = |_| OutOfMemory;
        state.slots.try_reserve_exact(slots).map_err(no_memory)?;
        state.free.try_reserve_exact(slots).map_err(no_memory)?;
        state.slots.resize_with(slots, || Slot {
            request: None,
            busy: false,
            memory: None,
        });
        state.free.extend((0..slots as u16).rev());
        let descriptors = Frame::alloc_direct(Contents::Zeroed)?;
        let rings = Frame::alloc_direct(Contents::Zeroed)?;
        let addresses = [
            domain.map_lasting(&descriptors, true, false)?,
            domain.map_lasting(&rings, true, true)?,
        ];
        Ok(Queue {
            number,
            domain,
            doorbell,
            interrupts: core::sync::atomic::AtomicBool::new(false),
            descriptors,
            rings,
            addresses,
            slots: slots as u16,
            state: SpinLock::new(Rank::Device, state),
            room: WaitQueue::new(),
            progress: WaitQueue::new(),
            bell: OnceArc::new(),
        })
    }

    /// Makes the tables of `count` slots, so that as long as no more than these are in use, giving
    /// a request to the device takes no memory.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn prepare(&self, count: usize) -> Result<(), OutOfMemory> {
        for i in 0..count.min(self.slots()) {
            let memory = self.new_memory()?;
            let mut state = self.state.lock_irq();
            let state = &mut *state;
            // Those that are free are taken from the end on, and come back there.
            let Some(at) = state.free.len().checked_sub(i + 1) else {
                break;
            };
            let slot = &mut state.slots[state.free[at] as usize];
            slot.memory.get_or_insert(memory);
        }
        Ok(())
    }

    fn new_memory(&self) -> Result<SlotMemory, OutOfMemory> {
        let table = Frame::alloc_direct(Contents::Stale)?;
        let strict = self.domain.strict();
        Ok(SlotMemory {
            table_at: self.domain.map_lasting(&table, true, false)?,
            window: strict.map(|strict| strict.add_window()).transpose()?,
            table,
        })
    }

    /// The queue's number at its device.
    #[cfg_attr(not(target_os = "none"), allow(dead_code))]
    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// Woken when the device has done anything, or has failed. Without
    /// [interrupts](Queue::has_interrupts) only by [`look`](Queue::look).
    pub fn progress(&self) -> &WaitQueue {
        &self.progress
    }

    /// Whether interrupts tell of progress; else the waiter polls.
    pub fn has_interrupts(&self) -> bool {
        self.interrupts.load(Ordering::Relaxed)
    }

    /// The most parts that a request may have.
    pub fn max_parts(&self) -> usize {
        self.slots as usize
    }

    /// How many requests may be in flight.
    pub fn slots(&self) -> usize {
        self.slots as usize
    }

    /// Interrupts are delivered from now on.
    #[cfg_attr(not(target_os = "none"), allow(dead_code))]
    pub(crate) fn set_interrupts(&self) {
        self.interrupts.store(true, Ordering::Relaxed);
    }

    /// Where the device finds descriptors, available ring and used ring.
    #[cfg_attr(not(target_os = "none"), allow(dead_code))]
    pub(crate) fn addresses(&self) -> [u64; 3] {
        let [descriptors, rings] = self.addresses;
        [descriptors, rings, rings + USED as u64]
    }

    /// A 16-bit word of the rings, which the device reads or writes at any time.
    fn word(&self, offset: usize) -> &AtomicU16 {
        debug_assert!(offset.is_multiple_of(2) && offset < PAGE_SIZE);
        // SAFETY: inside the frame, which is the queue's for as long as it lives, and aligned; the
        // kernel reaches these bytes only through this function and `used_element`.
        unsafe { &*self.rings.bytes().add(offset).cast::<AtomicU16>() }
    }

    /// An element of the used ring: a slot's number and a count of bytes, both as the device wrote
    /// them.
    fn used_element(&self, at: u16) -> (u32, u32) {
        let offset = USED + 4 + (at % self.slots) as usize * 8;
        // SAFETY: inside the frame and aligned. The device has made the element available before it
        // moved the index, and does not write it again before this one has been given back; if it
        // does, any bytes are valid.
        unsafe {
            self.rings
                .bytes()
                .add(offset)
                .cast::<(u32, u32)>()
                .read_volatile()
        }
    }

    /// Gives a request to the device; sleeps while all slots are taken. The request is done when
    /// its [`result`](Request::result) is there: see [`wait`](Queue::wait).
    ///
    /// # Errors
    /// [`Error::TooLong`] for more than [`max_parts`](Queue::max_parts), [`Error::Broken`] if the
    /// device has failed, [`Error::OutOfMemory`].
    ///
    /// # Panics
    /// If it was given to a device before.
    pub fn submit(&self, request: &Arc<Request>) -> Result<(), Error> {
        loop {
            match self.try_submit(request) {
                Err(Error::Full) => {}
                result => return result,
            }
            let room = || {
                if !self.has_interrupts() {
                    self.look();
                }
                let state = self.state.lock_irq();
                (!state.free.is_empty() || state.broken).then_some(())
            };
            // A timeout is only a reason to look again.
            let _ = self.room.wait(self.patience(), room);
        }
    }

    /// As [`submit`](Queue::submit), without sleeping.
    ///
    /// # Errors
    /// As [`submit`](Queue::submit), and [`Error::Full`].
    pub fn try_submit(&self, request: &Arc<Request>) -> Result<(), Error> {
        // Memory is made outside of the lock; the slot may have some already.
        let mut spare = None;
        loop {
            match self.put(request, &mut spare) {
                Err(Refusal::NeedsMemory) => spare = Some(self.new_memory()?),
                Err(Refusal::NeedsFlush) => self.flush(Counter::iotlb_ring_full),
                Err(Refusal::Error(error)) => return Err(error),
                Ok(before) => {
                    // The slot's last request goes with no lock held.
                    drop(before);
                    break;
                }
            }
        }
        self.ring_doorbell();
        // The device works meanwhile.
        if self.domain.strict().is_some_and(|it| it.stale() >= BATCH) {
            self.flush(Counter::iotlb_batch);
        }
        Ok(())
    }

    /// Invalidates the addresses of requests that are done.
    #[cold]
    fn flush(&self, cause: Counter) {
        if let Some(strict) = self.domain.strict() {
            strict.flush(cause);
        }
    }

    /// Makes a request available to the device; gives what had the slot before.
    fn put(
        &self,
        request: &Arc<Request>,
        spare: &mut Option<SlotMemory>,
    ) -> Result<Option<Arc<Request>>, Refusal> {
        let parts = request.parts.lock();
        let is_ready = request.state.load(Ordering::Acquire) == READY;
        assert!(is_ready, "a request is given to a device twice, or is done");
        if parts.list.len() > self.max_parts() {
            return Err(Refusal::Error(Error::TooLong));
        }
        let mut state = self.state.lock_irq();
        let state = &mut *state;
        if state.broken || self.domain.is_revoked() {
            return Err(Refusal::Error(Error::Broken));
        }
        let &number = state.free.last().ok_or(Refusal::Error(Error::Full))?;
        let slot = &mut state.slots[number as usize];
        if slot.memory.is_none() {
            slot.memory = spare.take();
        }
        let memory = slot.memory.as_ref().ok_or(Refusal::NeedsMemory)?;
        let window = memory.window.as_deref();
        if window.is_some_and(|it| !it.has_room(parts.list.len())) {
            return Err(Refusal::NeedsFlush);
        }
        let mut addresses = Addresses::new(&self.domain, window);
        let count = fill_table(&memory.table, &parts, &mut addresses);
        addresses.give();
        let head = Descriptor {
            address: memory.table_at,
            len: (count * size_of::<Descriptor>()) as u32,
            flags: INDIRECT,
            next: 0,
        };
        set_descriptor(&self.descriptors, number as usize, head);
        state.free.pop();
        slot.busy = true;
        request.state.store(GIVEN, Ordering::Release);
        let before = slot.request.replace(request.clone());
        let at = state.available % self.slots;
        self.word(4 + 2 * at as usize)
            .store(number, Ordering::Relaxed);
        state.available = state.available.wrapping_add(1);
        // Descriptors and ring entry come before the index that makes them the device's.
        self.word(2).store(state.available, Ordering::Release);
        Ok(before)
    }

    fn ring_doorbell(&self) {
        // The index is seen by the device before its wish is read: either it sees the request or
        // this sees the wish.
        fence(Ordering::SeqCst);
        if self.word(USED).load(Ordering::Relaxed) & NO_NOTIFY != 0 {
            return;
        }
        match &self.doorbell {
            // SAFETY: the register is mapped for good, and writing it makes the device look at this
            // queue.
            Doorbell::Register(register) => unsafe { register.write_volatile(self.number) },
            #[cfg(not(target_os = "none"))]
            Doorbell::Code(ring) => ring(),
        }
    }

    /// Leaves all work to a task: from now on an interrupt does no more than silence the device and
    /// wake `bell`, until [`rearm`](Queue::rearm). Several queues may have one bell. Once.
    pub fn defer(&self, bell: Arc<WaitQueue>) {
        self.bell.get_or_insert(|| bell);
    }

    /// Asks the device not to interrupt until [`rearm`](Queue::rearm).
    pub fn silence(&self) {
        self.word(0).store(NO_INTERRUPT, Ordering::Relaxed);
    }

    /// Tells whether the device was asked not to interrupt: by the driver, or by an interrupt for
    /// any queue of the same message.
    pub fn is_silent(&self) -> bool {
        self.word(0).load(Ordering::Relaxed) == NO_INTERRUPT
    }

    /// Lets the device interrupt for what it does from now on. Returns whether it has done
    /// something before, for which no interrupt may come.
    pub fn rearm(&self) -> bool {
        self.word(0).store(0, Ordering::Relaxed);
        // Either the device sees that it is to interrupt, or this sees what it has done.
        fence(Ordering::SeqCst);
        self.has_news()
    }

    /// Tells whether the device has done something that was not [looked](Queue::look) at, or has
    /// failed.
    pub fn has_news(&self) -> bool {
        let state = self.state.lock_irq();
        state.broken
            || self.domain.is_revoked()
            || self.word(USED + 2).load(Ordering::Acquire) != state.used
    }

    /// Tells whether the device has failed.
    pub fn is_broken(&self) -> bool {
        self.state.lock_irq().broken
    }

    /// Handles an interrupt.
    #[cfg_attr(not(target_os = "none"), allow(dead_code))]
    pub(crate) fn interrupt(&self) {
        match self.bell.get() {
            Some(bell) => {
                self.silence();
                bell.wake_all();
            }
            None => self.look(),
        }
    }

    /// Takes what the device has done. Any context; its interrupt calls this, unless it is
    /// [deferred](Queue::defer).
    pub fn look(&self) {
        let mut room = 0;
        {
            let mut state = self.state.lock_irq();
            let was_broken = state.broken;
            while self.take_used(&mut state).is_some() {
                room += 1;
            }
            if state.broken && !was_broken {
                room = usize::MAX;
            }
        }
        if room > 0 {
            self.progress.wake_all();
        }
        for _ in 0..room {
            if !self.room.wake_one() {
                break;
            }
        }
    }

    /// Returns the next request that the device has done, in the device's order: for the only task
    /// that takes what the device has done, where all is left to one ([`defer`](Queue::defer)).
    /// `None` if there is none, or the device has failed.
    pub fn next_done(&self) -> Option<Arc<Request>> {
        let done = {
            let mut state = self.state.lock_irq();
            let number = self.take_used(&mut state)?;
            state.slots[number].request.clone()
        };
        self.room.wake_one();
        done
    }

    /// Takes the next element of the used ring; returns the slot of the request, which is done.
    fn take_used(&self, state: &mut State) -> Option<usize> {
        if self.domain.is_revoked() && !state.broken {
            self.fail(state, "its device reaches no memory any more");
        }
        // The elements are read after the index that makes them ours.
        if state.broken || self.word(USED + 2).load(Ordering::Acquire) == state.used {
            return None;
        }
        let (number, written) = self.used_element(state.used);
        state.used = state.used.wrapping_add(1);
        let busy = state
            .slots
            .get_mut(number as usize)
            .filter(|slot| slot.busy);
        let Some(slot) = busy else {
            self.fail(state, "its device broke the protocol");
            return None;
        };
        slot.busy = false;
        if let Some(window) = slot.window() {
            dma::take(&self.domain, window);
        }
        // Room was reserved for all of them.
        state.free.push(number as u16);
        if let Some(request) = &slot.request {
            request.finish(written.into());
        }
        Some(number as usize)
    }

    /// Fails all requests, now and later, for the reason `why`. Any context.
    pub(crate) fn give_up(&self, why: &str) {
        let mut state = self.state.lock_irq();
        if !state.broken {
            self.fail(&mut state, why);
        }
        drop(state);
        self.progress.wake_all();
        self.room.wake_all();
        if let Some(bell) = self.bell.get() {
            bell.wake_all();
        }
    }

    /// The device broke its promises, or is gone: nothing more is asked of it. Where a unit stands
    /// before it, it reaches nothing any more.
    fn fail(&self, state: &mut State, why: &str) {
        state.broken = true;
        crate::log!("virtio: queue {} is given up: {why}", self.number);
        let is_cut_off = self.domain.revoke();
        if is_cut_off {
            // For the device's other queues.
            dma::wake_cleaner();
        }
        for slot in state.slots.iter_mut().filter(|slot| slot.busy) {
            if let Some(window) = slot.window() {
                dma::take(&self.domain, window);
            }
            if let Some(request) = &slot.request {
                request.finish(if is_cut_off { FAILED } else { LOST });
            }
        }
    }

    /// How to sleep until the next look.
    fn patience(&self) -> Sleep {
        match self.has_interrupts() {
            true => Sleep::SOUND,
            false => Sleep::within(LOOK),
        }
    }

    /// Whether a request that was submitted here is done.
    pub fn is_done(&self, request: &Request) -> bool {
        if !self.has_interrupts() {
            self.look();
        }
        request.result().is_some()
    }

    /// Sleeps until a request that was submitted here is done; gives the bytes that the device
    /// wrote, as it says.
    ///
    /// # Errors
    /// [`Woken`] where `how` allows it; the request is still in flight then. The inner error is
    /// [`Error::Broken`].
    #[track_caller]
    pub fn wait(&self, request: &Request, how: Sleep) -> Result<Result<u32, Error>, Woken> {
        if self.has_interrupts() {
            return request.done.wait(how, || request.result());
        }
        loop {
            let mut part = how;
            let next = time::since_boot() + LOOK;
            part.deadline = Some(how.deadline.map_or(next, |deadline| deadline.min(next)));
            let looked = request.done.wait(part, || {
                self.look();
                request.result()
            });
            match looked {
                Err(Woken::TimedOut) if how.deadline.is_none_or(|deadline| next < deadline) => {}
                result => return result,
            }
        }
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

/// Writes the descriptors of a request; parts that continue each other share one. Returns how
/// many.
fn fill_table(table: &Frame, parts: &Parts, addresses: &mut Addresses<'_>) -> usize {
    let mut count: usize = 0;
    let mut last: Option<Descriptor> = None;
    for (i, part) in parts.list.iter().enumerate() {
        let writes = i >= parts.readable;
        let address = addresses.of(part, writes);
        let flags = if writes { DEVICE_WRITES } else { 0 };
        if let Some(last) = &mut last
            && last.flags == flags
            && last.address + last.len as u64 == address
        {
            last.len += part.len as u32;
            continue;
        }
        if let Some(mut before) = last {
            before.flags |= NEXT;
            before.next = count as u16;
            set_descriptor(table, count - 1, before);
        }
        last = Some(Descriptor {
            address,
            len: part.len as u32,
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

impl Driver for Queue {
    fn device_lost(&self) {
        self.give_up("its device reaches no memory any more");
    }
}

#[cfg(not(target_os = "none"))]
mod side;
#[cfg(test)]
mod tests;

#[cfg(not(target_os = "none"))]
pub use side::{Piece, Side};
