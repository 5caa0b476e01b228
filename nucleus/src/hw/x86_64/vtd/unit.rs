//! A unit: its start, its invalidations, and its end when it times out.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

use super::super::config;
use super::super::dmar::{MAX_SCOPES, MAX_UNITS};
use super::super::gate::Gate;
use super::super::layout::ptr;
use super::faults;
use super::registers::{self, Capabilities, Deadline, Registers, fault_status, global};
use crate::hw::counters::Counter;
use crate::hw::handlers;
use crate::hw::iommu::{Device, DomainId, Stale};
use crate::{PAGE_SIZE, PhysAddr};

/// Ranges of places that the firmware names for a unit: a bridge, and the buses behind it.
const MAX_RANGES: usize = 2 * MAX_SCOPES;
/// No place is in it: the first one is behind the last one.
const NO_SCOPE: u32 = 1 << 16;

/// An invalidation of one of the caches of a unit (VT-d 6.5).
#[derive(Clone, Copy, Debug)]
pub enum Invalidation {
    /// Context entries: the one of a device, which had the domain, or all.
    Contexts(Option<(Device, DomainId)>),
    /// Translations, and the page tables by which they were found.
    Iotlb(Stale),
    /// Entries of the table of interrupts: one, or all.
    Interrupts(Option<u16>),
}

/// All caches of a unit.
const EVERYTHING: [Invalidation; 3] = [
    Invalidation::Contexts(None),
    Invalidation::Iotlb(Stale::All),
    Invalidation::Interrupts(None),
];

/// Slots of the invalidation queue: a frame.
const SLOTS: u16 = 256;

/// The invalidation queue.
pub struct Queue {
    /// The slot that is filled next.
    tail: u16,
    /// Slots that were filled and that no wait has found done.
    filled: u16,
    /// The value that the last wait makes the unit write.
    awaited: u32,
}

/// A remapping unit of the machine.
pub struct Unit {
    pub registers: Registers,
    /// Guards the commands, too. Inside, the unit is lost or works: it is cut off in one go.
    queue: Gate<Queue>,
    /// The queue's frame, and the frame of the word that the unit writes; 0 before.
    frames: [AtomicU64; 2],
    has_queue: AtomicBool,
    /// It is used no more, and its devices are no bus masters.
    is_lost: AtomicBool,
    /// Its registers can't be used: it may be there or not, and translate or not.
    is_absent: AtomicBool,
    takes_rest: AtomicBool,
    scopes: [AtomicU32; MAX_RANGES],
}

/// The unit did not answer in time.
pub struct TimedOut;

impl Unit {
    const fn new() -> Unit {
        Unit {
            registers: Registers::new(),
            queue: Gate::new(Queue {
                tail: 0,
                filled: 0,
                awaited: 0,
            }),
            frames: [const { AtomicU64::new(0) }; 2],
            has_queue: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
            is_absent: AtomicBool::new(false),
            takes_rest: AtomicBool::new(false),
            scopes: [const { AtomicU32::new(NO_SCOPE) }; MAX_RANGES],
        }
    }

    /// Notes which places are behind the unit: no more than a table has room for.
    pub fn set_scope(&self, takes_rest: bool, places: impl Iterator<Item = (u16, u16)>) {
        self.takes_rest.store(takes_rest, Ordering::Relaxed);
        for (slot, (first, last)) in self.scopes.iter().zip(places) {
            slot.store(u32::from(first) << 16 | u32::from(last), Ordering::Relaxed);
        }
    }

    fn names(&self, place: u16) -> bool {
        self.scopes.iter().any(|slot| {
            let slot = slot.load(Ordering::Relaxed);
            (slot >> 16..=slot & 0xffff).contains(&place.into())
        })
    }

    pub fn capabilities(&self) -> Capabilities {
        self.registers.capabilities()
    }

    pub fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    pub fn has_queue(&self) -> bool {
        self.has_queue.load(Ordering::Relaxed)
    }

    /// Takes the frames for a queue. False without memory for them; some may be the unit's then.
    pub fn take_queue(&self) -> bool {
        self.frames.iter().all(|slot| {
            let frame = handlers::take_kernel_frame();
            if let Some(frame) = frame {
                // SAFETY: the frame was just taken.
                unsafe { ptr(frame).write_bytes(0, PAGE_SIZE) };
                slot.store(frame.0, Ordering::Relaxed);
            }
            frame.is_some()
        })
    }

    /// Whether there is a unit.
    pub fn exists(&self) -> bool {
        ![0, u32::MAX].contains(&self.registers.read(registers::VERSION))
    }

    /// Goes on without it: its registers are not used.
    pub fn leave_out(&self) {
        self.is_absent.store(true, Ordering::Relaxed);
        self.is_lost.store(true, Ordering::Relaxed);
    }

    pub fn is_absent(&self) -> bool {
        self.is_absent.load(Ordering::Relaxed)
    }

    /// Turns translation, the queue and interrupt remapping off: the firmware may have left them
    /// on.
    ///
    /// # Errors
    /// [`TimedOut`].
    pub fn disable(&self) -> Result<(), TimedOut> {
        for bit in [
            global::INTERRUPTS,
            global::COMPATIBLE,
            global::QUEUE,
            global::TRANSLATION,
        ] {
            if self.registers.is_on(bit) && !self.registers.turn(bit, false) {
                return Err(TimedOut);
            }
        }
        Ok(())
    }

    /// Starts the unit: from now on devices reach memory by the tables below `root` only.
    /// `queued`: invalidations use its queue, whose frames were [taken](Self::take_queue).
    /// `interrupts`: the table of interrupts, if they are remapped.
    ///
    /// # Errors
    /// [`TimedOut`].
    pub fn start(
        &self,
        root: PhysAddr,
        queued: bool,
        interrupts: Option<u64>,
    ) -> Result<(), TimedOut> {
        let done = |answered: bool| answered.then_some(()).ok_or(TimedOut);
        if queued {
            self.has_queue.store(true, Ordering::Relaxed);
            self.start_queue()?;
        }
        self.registers.write_wide(registers::ROOT_TABLE, root.0);
        done(self.registers.once(global::SET_ROOT))?;
        self.invalidate_at_start(&[
            Invalidation::Contexts(None),
            Invalidation::Iotlb(Stale::All),
        ])?;
        faults::start(self);
        if let Some(table) = interrupts {
            self.registers.write_wide(registers::INTERRUPT_TABLE, table);
            done(self.registers.once(global::SET_INTERRUPT_TABLE))?;
            self.invalidate_at_start(&[Invalidation::Interrupts(None)])?;
            done(self.registers.turn(global::INTERRUPTS, true))?;
        }
        done(self.registers.turn(global::TRANSLATION, true))?;
        self.unprotect()
    }

    /// Opens the memory that the firmware may have closed to all devices.
    ///
    /// # Errors
    /// [`TimedOut`].
    pub fn unprotect(&self) -> Result<(), TimedOut> {
        if !self.capabilities().protects_memory() {
            return Ok(());
        }
        self.registers.write(registers::PROTECTED_MEMORY, 0);
        let is_open =
            Deadline::new().wait(|| self.registers.read(registers::PROTECTED_MEMORY) & 1 == 0);
        is_open.then_some(()).ok_or(TimedOut)
    }

    fn start_queue(&self) -> Result<(), TimedOut> {
        self.registers.write_wide(registers::QUEUE_TAIL, 0);
        let frame = self.frames[0].load(Ordering::Relaxed);
        // 256 slots of 16 bytes.
        self.registers.write_wide(registers::QUEUE, frame);
        self.queue.with(|queue| {
            queue.tail = 0;
            queue.filled = 0;
        });
        let is_on = self.registers.turn(global::QUEUE, true);
        is_on.then_some(()).ok_or(TimedOut)
    }

    /// Invalidates caches of the unit. Returns when the unit has done so, or when its devices are
    /// no bus masters any more: a unit that times out is given up, by this call or another CPU's.
    pub fn invalidate(&self, invalidations: &[Invalidation]) {
        self.command(|queue| self.try_invalidate(queue, invalidations));
    }

    /// Commands the unit with the gate held; gives it up if it times out.
    pub fn command(&self, f: impl FnOnce(&mut Queue) -> Result<(), TimedOut>) {
        if self.is_lost() {
            return;
        }
        let was_cut = self.queue.with(|queue| {
            // Another CPU may have given it up meanwhile.
            let falls = !self.is_lost() && f(queue).is_err();
            if falls {
                self.cut_off();
            }
            falls
        });
        if was_cut {
            say_lost();
        }
    }

    /// As [`invalidate`](Self::invalidate), before the unit translates.
    ///
    /// # Errors
    /// [`TimedOut`].
    fn invalidate_at_start(&self, invalidations: &[Invalidation]) -> Result<(), TimedOut> {
        self.queue
            .with(|queue| self.try_invalidate(queue, invalidations))
    }

    /// Invalidates within the time of one deadline.
    fn try_invalidate(
        &self,
        queue: &mut Queue,
        invalidations: &[Invalidation],
    ) -> Result<(), TimedOut> {
        for invalidation in invalidations {
            count(invalidation);
        }
        let deadline = Deadline::new();
        // Stores to tables come before.
        fence(Ordering::SeqCst);
        if !self.has_queue() {
            let mut all = invalidations.iter();
            return all.try_for_each(|it| self.invalidate_by_registers(*it, deadline));
        }
        let done = self.submit_all(queue, invalidations, deadline);
        match done.and_then(|()| self.wait(queue, deadline)) {
            Err(QueueFailure::Error) => {
                self.recover(queue, deadline)?;
                // All of it, which includes what was asked for.
                self.submit_all(queue, &EVERYTHING, deadline)?;
                Ok(self.wait(queue, deadline)?)
            }
            result => Ok(result?),
        }
    }

    /// Submits descriptors; a `wait` follows.
    fn submit_all(
        &self,
        queue: &mut Queue,
        invalidations: &[Invalidation],
        deadline: Deadline,
    ) -> Result<(), QueueFailure> {
        let with_interrupts = self.capabilities().remaps_interrupts();
        for invalidation in invalidations {
            // One slot stays empty, and one is for the wait.
            if queue.filled + 2 >= SLOTS {
                self.wait(queue, deadline)?;
            }
            if with_interrupts || !matches!(invalidation, Invalidation::Interrupts(_)) {
                self.submit(queue, self.encode(*invalidation));
            }
        }
        Ok(())
    }

    /// Restarts the queue after an error: an invalid descriptor is replaced.
    fn recover(&self, queue: &mut Queue, deadline: Deadline) -> Result<(), QueueFailure> {
        crate::log!(
            "IOMMU: a unit's invalidation queue had an error: all of its caches are invalidated"
        );
        Counter::iommu_queue_errors.add(1);
        let status = self.registers.read(registers::FAULT_STATUS);
        let head = (self.registers.read_wide(registers::QUEUE_HEAD) >> 4) as u16 % SLOTS;
        if status & fault_status::BAD_DESCRIPTOR != 0 {
            let tail = queue.tail;
            queue.tail = head;
            self.submit(queue, self.encode(Invalidation::Iotlb(Stale::All)));
            queue.tail = tail;
        }
        // The unit goes on at the head: what it has not done is in the ring still.
        queue.filled = (queue.tail + SLOTS - head) % SLOTS;
        let errors = fault_status::QUEUE_ERRORS;
        self.registers.write(registers::FAULT_STATUS, errors);
        let is_clear = deadline.wait(|| self.registers.read(registers::FAULT_STATUS) & errors == 0);
        is_clear.then_some(()).ok_or(QueueFailure::TimedOut)
    }

    /// Writes a descriptor to the tail of the queue; the unit reads it by the next `wait`.
    pub fn submit(&self, queue: &mut Queue, descriptor: [u64; 2]) {
        let frame = PhysAddr(self.frames[0].load(Ordering::Relaxed));
        // SAFETY: inside the frame, which is the queue's for good; the unit does not read this slot
        // before the tail has passed it.
        unsafe {
            let slot = ptr(frame).cast::<[u64; 2]>().add(queue.tail.into());
            slot.write_volatile(descriptor);
        }
        queue.tail = (queue.tail + 1) % SLOTS;
        queue.filled += 1;
    }

    /// Waits until the unit has done all that was submitted.
    fn wait(&self, queue: &mut Queue, deadline: Deadline) -> Result<(), QueueFailure> {
        const WAIT: u64 = 5 | 1 << 5;
        queue.awaited = queue.awaited.wrapping_add(1);
        let (awaited, word) = (queue.awaited, self.frames[1].load(Ordering::Relaxed));
        self.submit(queue, [WAIT | u64::from(awaited) << 32, word]);
        queue.filled = 0;
        fence(Ordering::SeqCst);
        self.registers
            .write_wide(registers::QUEUE_TAIL, u64::from(queue.tail) << 4);
        // SAFETY: the frame is the unit's for good; it writes the word at any time.
        let written = || unsafe { ptr(PhysAddr(word)).cast::<u32>().read_volatile() };
        let mut has_failed = false;
        let answered = deadline.wait(|| {
            let is_done = written() == awaited;
            // A register is read only when memory does not say it.
            has_failed = !is_done
                && self.registers.read(registers::FAULT_STATUS) & fault_status::QUEUE_ERRORS != 0;
            is_done || has_failed
        });
        match (answered, has_failed) {
            (true, false) => Ok(()),
            (true, true) => Err(QueueFailure::Error),
            (false, _) => Err(QueueFailure::TimedOut),
        }
    }

    /// A descriptor (VT-d 6.5.2).
    fn encode(&self, invalidation: Invalidation) -> [u64; 2] {
        const CONTEXT: u64 = 1;
        const TRANSLATION: u64 = 2;
        const INTERRUPT: u64 = 4;
        let drains = self.capabilities().drains().map(u64::from);
        let translation = TRANSLATION | drains[0] << 6 | drains[1] << 7;
        match invalidation {
            Invalidation::Contexts(None) => [CONTEXT | 1 << 4, 0],
            Invalidation::Contexts(Some((Device(place), DomainId(domain)))) => [
                CONTEXT | 3 << 4 | u64::from(domain) << 16 | u64::from(place) << 32,
                0,
            ],
            Invalidation::Iotlb(Stale::All) => [translation | 1 << 4, 0],
            Invalidation::Iotlb(Stale::Domain(DomainId(domain))) => {
                [translation | 2 << 4 | u64::from(domain) << 16, 0]
            }
            Invalidation::Iotlb(Stale::Pages {
                domain: DomainId(domain),
                first,
                order,
            }) => [
                translation | 3 << 4 | u64::from(domain) << 16,
                first << 12 | u64::from(order),
            ],
            Invalidation::Interrupts(None) => [INTERRUPT, 0],
            Invalidation::Interrupts(Some(index)) => {
                [INTERRUPT | 1 << 4 | u64::from(index) << 32, 0]
            }
        }
    }

    /// The same by registers, one by one.
    fn invalidate_by_registers(
        &self,
        invalidation: Invalidation,
        deadline: Deadline,
    ) -> Result<(), TimedOut> {
        const START: u64 = 1 << 63;
        let [writes, reads] = self.capabilities().drains().map(u64::from);
        let drains = reads << 49 | writes << 48;
        let (at, command) = match invalidation {
            Invalidation::Contexts(None) => (registers::CONTEXT_COMMAND, 1 << 61),
            Invalidation::Contexts(Some((Device(place), DomainId(domain)))) => (
                registers::CONTEXT_COMMAND,
                3 << 61 | u64::from(place) << 16 | u64::from(domain),
            ),
            Invalidation::Iotlb(stale) => {
                let registers = self.registers.iotlb();
                let command = match stale {
                    Stale::All => 1 << 60,
                    Stale::Domain(DomainId(domain)) => 2 << 60 | u64::from(domain) << 32,
                    Stale::Pages {
                        domain: DomainId(domain),
                        first,
                        order,
                    } => {
                        let address = first << 12 | u64::from(order);
                        self.registers.write_wide(registers, address);
                        3 << 60 | u64::from(domain) << 32
                    }
                };
                (registers + 8, command | drains)
            }
            // Interrupts are remapped by units with a queue only.
            Invalidation::Interrupts(_) => return Ok(()),
        };
        self.registers.write_wide(at, START | command);
        let is_done = deadline.wait(|| self.registers.read_wide(at) & START == 0);
        is_done.then_some(()).ok_or(TimedOut)
    }

    /// Flushes the write buffer, of a unit that has one: it sees earlier stores to tables then.
    pub fn flush_write_buffer(&self) {
        if self.capabilities().needs_write_flush() {
            self.command(|_| match self.registers.once(global::FLUSH_WRITES) {
                true => Ok(()),
                false => Err(TimedOut),
            });
        }
    }

    /// Goes on without a unit that did not answer; see [`cut_off`](Self::cut_off).
    pub fn give_up(&self) {
        self.command(|_| Err(TimedOut));
    }

    /// Takes bus mastering from all functions behind a unit that timed out: they would use stale
    /// translations. The gate is held, so that other CPUs' invalidations of this unit return after
    /// the functions are cut off.
    fn cut_off(&self) {
        let buses = config::buses();
        for bus in (0..=u8::MAX).filter(|&bus| buses[usize::from(bus)]) {
            config::functions(bus, |place| {
                let is_behind = unit_of(place).is_some_and(|unit| core::ptr::eq(unit, self));
                if is_behind && config::behind(place).is_none() && config::block(place) {
                    faults::report_lost(place);
                }
            });
        }
        // Release: a CPU that finds the unit lost finds its functions cut off.
        self.is_lost.store(true, Ordering::Release);
    }
}

/// The reason why a wait for the queue failed.
enum QueueFailure {
    TimedOut,
    /// The unit reports an error of its queue.
    Error,
}

impl From<QueueFailure> for TimedOut {
    fn from(_: QueueFailure) -> TimedOut {
        TimedOut
    }
}

fn say_lost() {
    crate::log!("IOMMU: a unit does not answer; its devices reach no memory any more");
}

fn count(invalidation: &Invalidation) {
    let counter = match invalidation {
        Invalidation::Contexts(_) => Counter::iommu_context_invalidations,
        Invalidation::Iotlb(Stale::All) => Counter::iommu_global_invalidations,
        Invalidation::Iotlb(Stale::Domain(_)) => Counter::iommu_domain_invalidations,
        Invalidation::Iotlb(Stale::Pages { .. }) => Counter::iommu_page_invalidations,
        Invalidation::Interrupts(_) => Counter::iommu_interrupt_invalidations,
    };
    counter.add(1);
}

static UNITS: [Unit; MAX_UNITS] = [const { Unit::new() }; MAX_UNITS];

/// The number of units in the firmware's table.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The next unit of the firmware's table.
pub fn add() -> Option<&'static Unit> {
    let unit = UNITS.get(COUNT.load(Ordering::Relaxed))?;
    COUNT.fetch_add(1, Ordering::Relaxed);
    Some(unit)
}

/// Those of the firmware's table, used or not.
pub fn units() -> impl Iterator<Item = &'static Unit> {
    UNITS.iter().take(COUNT.load(Ordering::Relaxed))
}

/// The unit that a function's requests go through.
pub fn unit_of(place: u16) -> Option<&'static Unit> {
    let named = units().find(|unit| unit.names(place));
    named.or_else(|| units().find(|unit| unit.takes_rest.load(Ordering::Relaxed)))
}

/// Invalidates caches of all units.
pub fn invalidate(invalidations: &[Invalidation]) {
    units().for_each(|unit| unit.invalidate(invalidations));
}
