//! A virtqueue: requests to a device, many in flight, each a chain of parts of frames.
//!
//! A queue has slots, each with memory for one request, and gives the device what is in them by its
//! [rings](Rings). The device's answers there are checked: after an impossible one the device is
//! not used any more, and all its requests fail.

use alloc::{sync::Arc, vec::Vec};
use core::sync::atomic::{AtomicBool, AtomicU16, Ordering};

use super::{
    Error,
    request::{End, Request},
    rings::{MAX_SLOTS, Rings, UsedElement, fill_table},
};
use crate::{
    Frame, OutOfMemory,
    dma::{self, Addresses, Attachment, BATCH, Driver, WINDOW_PAGES, Window},
    frame::Contents,
    lock::{OnceArc, Rank, SpinLock},
    task::{Sleep, WaitQueue, Woken},
    time,
};

/// How often a queue without an interrupt is polled by its waiters.
const LOOK: core::time::Duration = core::time::Duration::from_millis(1);

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
    /// How many requests were ever made available; it wraps.
    available: u16,
}

impl State {
    /// The first of the next `count` slots to be used that has no memory.
    fn lacking(&mut self, count: usize) -> Option<&mut Slot> {
        // Slots are taken from the end on, and come back there.
        let mut next = self.free.iter().rev().take(count);
        let has_none = |&&number: &&u16| self.slots[number as usize].memory.is_none();
        let &number = next.find(has_none)?;
        Some(&mut self.slots[number as usize])
    }
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
    interrupts: AtomicBool,
    rings: Rings,
    state: SpinLock<State>,
    /// How many requests were found used; it wraps. Changes with the state locked.
    used: AtomicU16,
    /// The device has failed. Changes with the state locked.
    broken: AtomicBool,
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
    /// A queue of up to `slots` slots, one at least. It is notified when the domain's device is
    /// lost; the device does not know of it yet.
    pub(super) fn attached(
        number: u16,
        slots: usize,
        domain: &Arc<Attachment>,
        doorbell: Doorbell,
    ) -> Result<Arc<Queue>, OutOfMemory> {
        let slots = 1 << slots.min(MAX_SLOTS).ilog2();
        let queue = Arc::new(Queue::new(number, slots, domain.clone(), doorbell)?);
        let driver: Arc<dyn Driver> = queue.clone();
        domain.add_driver(Arc::downgrade(&driver))?;
        Ok(queue)
    }

    /// A queue of `slots` slots, a power of two up to [`MAX_SLOTS`].
    fn new(
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
        let rings = Rings::new(slots as u16, &domain)?;
        Ok(Queue {
            number,
            domain,
            doorbell,
            interrupts: AtomicBool::new(false),
            rings,
            state: SpinLock::new(Rank::Device, state),
            used: AtomicU16::new(0),
            broken: AtomicBool::new(false),
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
        while self.state.lock_irq().lacking(count).is_some() {
            self.add_memory()?;
        }
        Ok(())
    }

    /// Makes memory for the slot that is the next one to be used without any. Called without the
    /// lock.
    fn add_memory(&self) -> Result<(), OutOfMemory> {
        let memory = self.new_memory()?;
        let mut state = self.state.lock_irq();
        // None lacks it if other tasks have made some meanwhile: dropped without the lock then.
        let left = match state.lacking(usize::MAX) {
            Some(slot) => slot.memory.replace(memory),
            None => Some(memory),
        };
        drop(state);
        drop(left);
        Ok(())
    }

    fn new_memory(&self) -> Result<SlotMemory, OutOfMemory> {
        // The window first: without memory for the rest, the next attempt gets the same one.
        let strict = self.domain.strict();
        let window = strict.map(|strict| strict.add_window()).transpose()?;
        // Zeroed: the device reads all of it.
        let table = Frame::alloc_direct(Contents::Zeroed)?;
        Ok(SlotMemory {
            table_at: self.domain.map_lasting(&table, true, false)?,
            window,
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
        self.slots()
    }

    /// How many requests may be in flight.
    pub fn slots(&self) -> usize {
        self.rings.slots().into()
    }

    /// Interrupts are delivered from now on.
    #[cfg_attr(not(target_os = "none"), allow(dead_code))]
    pub(crate) fn set_interrupts(&self) {
        self.interrupts.store(true, Ordering::Relaxed);
    }

    /// Where the device finds descriptors, available ring and used ring.
    #[cfg_attr(not(target_os = "none"), allow(dead_code))]
    pub(crate) fn addresses(&self) -> [u64; 3] {
        self.rings.addresses()
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
                (!state.free.is_empty() || self.is_broken()).then_some(())
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
        loop {
            match self.put(request) {
                Err(Refusal::NeedsMemory) => self.add_memory()?,
                Err(Refusal::NeedsFlush) => dma::free_addresses(&self.domain),
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
        dma::flush_batch(&self.domain, BATCH);
        Ok(())
    }

    /// Makes a request available to the device; gives what had the slot before.
    fn put(&self, request: &Arc<Request>) -> Result<Option<Arc<Request>>, Refusal> {
        let mut parts = request.ready();
        if parts.list.len() > self.max_parts() {
            return Err(Refusal::Error(Error::TooLong));
        }
        let mut state = self.state.lock_irq();
        let state = &mut *state;
        if self.is_broken() || self.domain.is_revoked() {
            return Err(Refusal::Error(Error::Broken));
        }
        let &number = state.free.last().ok_or(Refusal::Error(Error::Full))?;
        let slot = &mut state.slots[number as usize];
        let memory = slot.memory.as_ref().ok_or(Refusal::NeedsMemory)?;
        let (table, list, readable) = (&memory.table, &parts.list, parts.readable);
        // Whether the slot's table still describes these parts: this request had the slot last, and
        // its parts are unchanged since.
        let is_same = slot
            .request
            .as_ref()
            .is_some_and(|it| Arc::ptr_eq(it, request));
        let place = (core::ptr::from_ref(self).addr(), number);
        let is_filled = is_same && parts.table == Some(place);
        let count = match memory.window.as_deref() {
            // The table still says where the parts are.
            None if is_filled => parts.count,
            // Most machines', which carries nothing for the others.
            None => fill_table(table, list, readable, |parts, _| dma::physical(&parts[0])),
            Some(window) => {
                let needed = dma::addresses_of(list);
                if needed > WINDOW_PAGES {
                    return Err(Refusal::Error(Error::TooLong));
                }
                let addresses = Addresses::new(&self.domain, Some(window), needed);
                let mut addresses = addresses.ok_or(Refusal::NeedsFlush)?;
                let find = |parts: &[_], writes| addresses.of(parts, writes);
                let count = fill_table(table, list, readable, find);
                addresses.give();
                count
            }
        };
        state.free.pop();
        slot.busy = true;
        (parts.table, parts.count) = (Some(place), count);
        request.begin(&parts);
        let before = match is_same {
            true => None,
            false => slot.request.replace(request.clone()),
        };
        let available = state.available;
        state.available = available.wrapping_add(1);
        self.rings.offer(number, available, memory.table_at, count);
        Ok(before)
    }

    fn ring_doorbell(&self) {
        if !self.rings.wants_doorbell() {
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
        self.rings.silence();
    }

    /// Tells whether the device was asked not to interrupt: by the driver, or by an interrupt for
    /// any queue of the same message.
    pub fn is_silent(&self) -> bool {
        self.rings.is_silent()
    }

    /// Lets the device interrupt for what it does from now on. Returns whether it has done
    /// something before, for which no interrupt may come.
    pub fn rearm(&self) -> bool {
        self.rings.rearm();
        self.has_news()
    }

    /// Tells whether the device has done something that was not [looked](Queue::look) at, or has
    /// failed. Takes no lock.
    pub fn has_news(&self) -> bool {
        let used = self.used.load(Ordering::Relaxed);
        self.is_broken() || self.domain.is_revoked() || self.rings.has_used(used)
    }

    /// Tells whether the device has failed.
    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
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
        self.change(|state| {
            while self.take_used(state).is_some() {
                room += 1;
            }
        });
        if room > 0 {
            self.progress.wake_all();
        }
        for _ in 0..room {
            if !self.room.wake_one() {
                break;
            }
        }
    }

    /// Stores the numbers of requests that are done in `numbers`, in the device's order; returns
    /// how many: fewer than there is room for only if there are no more, or the device has failed.
    /// Only for a queue whose work is left to a task ([`defer`](Queue::defer)).
    pub fn take_done(&self, numbers: &mut [u32]) -> usize {
        if !self.has_news() {
            return 0;
        }
        let count = self.change(|state| {
            let mut count = 0;
            while count < numbers.len()
                && let Some(slot) = self.take_used(state)
            {
                if let Some(request) = &state.slots[slot].request {
                    numbers[count] = request.number();
                    count += 1;
                }
            }
            count
        });
        for _ in 0..count {
            if !self.room.wake_one() {
                break;
            }
        }
        count
    }

    /// Changes the state. If this finds that the device has failed, all tasks that wait for the
    /// queue are woken.
    #[inline]
    fn change<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let (result, has_failed) = {
            let mut state = self.state.lock_irq();
            let was_broken = self.is_broken();
            let result = f(&mut state);
            (result, self.is_broken() && !was_broken)
        };
        if has_failed {
            self.wake_all();
        }
        result
    }

    #[cold]
    fn wake_all(&self) {
        self.progress.wake_all();
        self.room.wake_all();
        if let Some(bell) = self.bell.get() {
            bell.wake_all();
        }
    }

    /// Takes the next element of the used ring; returns the slot of the request, which is done.
    fn take_used(&self, state: &mut State) -> Option<usize> {
        if self.domain.is_revoked() && !self.is_broken() {
            self.fail(state, "its device reaches no memory any more");
        }
        if self.is_broken() {
            return None;
        }
        let used = self.used.load(Ordering::Relaxed);
        let UsedElement { number, written } = self.rings.used(used)?;
        self.used.store(used.wrapping_add(1), Ordering::Relaxed);
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
            request.finish(End::Written(written));
        }
        Some(number as usize)
    }

    /// Fails all requests, now and later, for the reason `why`. Any context.
    pub(crate) fn give_up(&self, why: &str) {
        self.change(|state| {
            if !self.is_broken() {
                self.fail(state, why);
            }
        });
    }

    /// The device broke its promises, or is gone: nothing more is asked of it. Where a unit stands
    /// before it, it reaches nothing any more. Called inside of [`change`](Queue::change).
    fn fail(&self, state: &mut State, why: &str) {
        self.broken.store(true, Ordering::Release);
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
                request.finish(if is_cut_off { End::Failed } else { End::Lost });
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
            return request.done().wait(how, || request.result());
        }
        loop {
            let mut part = how;
            let next = time::since_boot() + LOOK;
            part.deadline = Some(how.deadline.map_or(next, |deadline| deadline.min(next)));
            let looked = request.done().wait(part, || {
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
