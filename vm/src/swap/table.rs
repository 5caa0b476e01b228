//! All swap devices and their slots, behind one spin lock. It is taken when pages go to swap, come
//! back, or give a slot up, once for a whole cluster where possible.
//!
//! A slot is free if no page owns it, it is not being read or written, and it is not bad. Reads and
//! writes hold their slots as a [`Run`], so that a slot that its page gives up meanwhile is not
//! reused before the transfer has ended: two writes to one slot at the same time could complete in
//! either order.

use alloc::{sync::Arc, vec::Vec};
use core::{
    ops::Deref,
    sync::atomic::{AtomicUsize, Ordering},
};
use nucleus::{sync::SpinLock, task::WaitQueue};

use super::bitmap::{Bitmap, Mark};
use super::slot::{MOST_DEVICES, MOST_SLOTS, SlotNumber, SwapSlot};
use super::store::SwapStore;
use super::usage::{DeviceId, DeviceUsage, SwapError, SwapUsage};

/// Waiters for slots that are being read or written.
static WAITERS: [WaitQueue; 32] = [const { WaitQueue::new() }; 32];
/// Slots of the devices that accept pages, and slots of all devices that pages own.
static TOTAL: AtomicUsize = AtomicUsize::new(0);
static OWNED: AtomicUsize = AtomicUsize::new(0);
/// Owned slots whose page is in memory as well.
static CACHED: AtomicUsize = AtomicUsize::new(0);

static TABLE: SpinLock<Table> = SpinLock::new(
    crate::rank::SWAP,
    Table {
        devices: [const { None }; MOST_DEVICES],
        turn: 0,
    },
);

struct Table {
    devices: [Option<Device>; MOST_DEVICES],
    /// Clusters so far.
    turn: u64,
}

struct Device {
    store: Arc<dyn SwapStore>,
    priority: i32,
    bitmap: Bitmap,
    /// Slots that are owned, being read or written, and bad.
    owned: u32,
    busy: u32,
    bad: u32,
    /// References to the store that are in use.
    users: u32,
    /// Where the search for free slots continues.
    next: u32,
    /// The cluster for which slots were last taken, for round robin among devices of equal
    /// priority.
    turn: u64,
    /// The number of the removal that is under way, if any; the device takes no more pages then.
    draining: Option<u64>,
}

impl Device {
    /// Returns a device that accepts pages. Slots beyond [`MOST_SLOTS`] are not used.
    ///
    /// # Errors
    /// [`SwapError::Empty`], and those of [`Bitmap::new`].
    fn new(
        store: Arc<dyn SwapStore>,
        priority: i32,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Device, SwapError> {
        let slots = store.slots().min(MOST_SLOTS as u64) as u32;
        if slots == 0 {
            return Err(SwapError::Empty);
        }
        let mut bitmap = Bitmap::new(slots, interrupted)?;
        let bad = store
            .bad_slots()
            .iter()
            .filter(|&&slot| slot < u64::from(slots));
        let bad = bad
            .map(|&slot| u32::from(bitmap.set(slot as u32, Mark::Bad)))
            .sum();
        if bad == slots {
            return Err(SwapError::Empty);
        }
        Ok(Device {
            store,
            priority,
            bitmap,
            owned: 0,
            busy: 0,
            bad,
            users: 0,
            next: 0,
            turn: 0,
            draining: None,
        })
    }

    /// Slots that can hold a page.
    fn size(&self) -> u32 {
        self.bitmap.slots - self.bad
    }

    /// Marks an owned slot as busy; returns false if it has no owner or is busy already.
    fn claim(&mut self, slot: u32) -> bool {
        let claimed = self.bitmap.has(slot, Mark::Owned) && self.bitmap.set(slot, Mark::Busy);
        self.busy += u32::from(claimed);
        claimed
    }

    /// Accepts pages again.
    fn restore(&mut self) {
        self.draining = None;
        TOTAL.fetch_add(self.size() as usize, Ordering::Relaxed);
    }

    fn may_have_room(&self) -> bool {
        // Busy slots mostly have owners; counting the others as free costs a vain search at most.
        self.draining.is_none() && self.owned < self.size()
    }
}

impl Table {
    fn device(&mut self, number: SlotNumber) -> &mut Device {
        self.devices[number.device()]
            .as_mut()
            .expect("a device stays as long as a slot of it is in use")
    }

    /// Chooses the device for the next slots, except those in `tried`: the one of highest priority,
    /// and among equals the least recently used.
    fn choose(&self, tried: u64) -> Option<usize> {
        let may = |&(i, device): &(usize, &Device)| tried >> i & 1 == 0 && device.may_have_room();
        let devices = self.devices.iter().enumerate();
        devices
            .filter_map(|(i, device)| Some((i, device.as_ref()?)))
            .filter(may)
            .min_by_key(|(_, device)| (-i64::from(device.priority), device.turn))
            .map(|(i, _)| i)
    }
}

/// Consecutive slots of one device that are being read or written, or soon will be.
pub(crate) struct Run {
    first: SlotNumber,
    len: u32,
}

/// A device's store in use. The device is not removed before this is dropped, possibly after the
/// last transfer has ended.
pub(crate) struct StoreInUse {
    store: Option<Arc<dyn SwapStore>>,
    /// Any slot of the device.
    slot: SlotNumber,
}

impl Deref for StoreInUse {
    type Target = dyn SwapStore;

    fn deref(&self) -> &Self::Target {
        self.store.as_deref().expect("it is taken at the end only")
    }
}

impl Drop for StoreInUse {
    fn drop(&mut self) {
        // First the store: the removal of the device expects to hold the last reference.
        drop(self.store.take());
        TABLE.lock().device(self.slot).users -= 1;
    }
}

/// The error for a slot that cannot be read now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SlotBusy;

impl Run {
    /// Reserves up to `most` consecutive free slots, at least one, on the device of highest
    /// priority that has any, round robin among equals. Returns `None` if all devices are full.
    pub(crate) fn reserve(most: u32) -> Option<Run> {
        let mut table = TABLE.lock();
        let mut tried = 0;
        loop {
            let chosen = table.choose(tried)?;
            table.turn += 1;
            let turn = table.turn;
            let device = table.devices[chosen].as_mut()?;
            let found = device.bitmap.find(device.next, most);
            if found.len == 0 {
                tried |= 1 << chosen;
                continue;
            }
            for slot in found.first..found.first + found.len {
                device.bitmap.set(slot, Mark::Busy);
            }
            device.busy += found.len;
            device.turn = turn;
            device.next = match found.first + found.len {
                next if next >= device.bitmap.slots => 0,
                next => next,
            };
            return Some(Run {
                first: SlotNumber::new(chosen, found.first),
                len: found.len,
            });
        }
    }

    /// Claims slot `number`, and up to `before` slots before it and `behind` slots after it that
    /// are owned and not busy.
    ///
    /// # Errors
    /// [`SlotBusy`] if slot `number` is busy or has no owner any more.
    pub(crate) fn claim(number: SlotNumber, before: usize, behind: usize) -> Result<Run, SlotBusy> {
        let mut table = TABLE.lock();
        let device = table.devices[number.device()].as_mut().ok_or(SlotBusy)?;
        let slot = number.slot();
        if !device.claim(slot) {
            return Err(SlotBusy);
        }
        let (mut first, mut end) = (slot, slot + 1);
        while (slot - first) < before as u32 && first > 0 && device.claim(first - 1) {
            first -= 1;
        }
        while (end - slot - 1) < behind as u32 && end < device.bitmap.slots && device.claim(end) {
            end += 1;
        }
        Ok(Run {
            first: SlotNumber::new(number.device(), first),
            len: end - first,
        })
    }

    /// The number of slots.
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    /// Slot `i` of the run.
    pub(crate) fn number(&self, i: usize) -> SlotNumber {
        debug_assert!(i < self.len());
        self.first.behind(i as u32)
    }

    /// The position of a slot in the run, if it is in it.
    pub(crate) fn index(&self, number: SlotNumber) -> Option<usize> {
        let i = usize::try_from(number.distance(self.first)?).ok()?;
        (i < self.len()).then_some(i)
    }

    /// Makes a page the owner of slot `i` of a reserved run.
    pub(crate) fn own(&self, i: usize) -> SwapSlot {
        let number = self.number(i);
        let mut table = TABLE.lock();
        let device = table.device(number);
        let new = device.bitmap.set(number.slot(), Mark::Owned);
        debug_assert!(new, "a slot is given to two pages");
        device.bitmap.set(number.slot(), Mark::Cached);
        device.owned += 1;
        OWNED.fetch_add(1, Ordering::Relaxed);
        CACHED.fetch_add(1, Ordering::Relaxed);
        SwapSlot::from_number(number)
    }

    /// Keeps the first `len` slots and releases the others.
    pub(crate) fn truncate(&mut self, len: usize) {
        if len < self.len() {
            let rest = self.number(len);
            let count = self.len - len as u32;
            self.len = len as u32;
            end(rest, count);
        }
    }

    /// Keeps `len` slots, at least one, among them `number`, and releases the others.
    pub(crate) fn keep_around(&mut self, number: SlotNumber, len: usize) {
        let excess = self.len().saturating_sub(len);
        let in_front = self.index(number).unwrap_or(0).min(excess);
        if in_front > 0 {
            let rest = self.first;
            self.first = self.first.behind(in_front as u32);
            self.len -= in_front as u32;
            end(rest, in_front as u32);
        }
        self.truncate(len);
    }

    /// The store, and the first slot's position in it.
    pub(crate) fn store(&self) -> (StoreInUse, u64) {
        let mut table = TABLE.lock();
        let device = table.device(self.first);
        device.users += 1;
        let store = StoreInUse {
            store: Some(device.store.clone()),
            slot: self.first,
        };
        (store, self.first.slot() as u64)
    }

    /// Marks the slots as bad after a failed write: they are not used again.
    pub(crate) fn mark_bad(&self) {
        let mut table = TABLE.lock();
        let device = table.device(self.first);
        let first = self.first.slot();
        let mut lost = 0;
        for slot in first..first + self.len {
            lost += u32::from(device.bitmap.set(slot, Mark::Bad));
        }
        device.bad += lost;
        if device.draining.is_none() {
            TOTAL.fetch_sub(lost as usize, Ordering::Relaxed);
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.len > 0 {
            end(self.first, self.len);
        }
    }
}

/// Ends the transfer of slots.
fn end(first: SlotNumber, count: u32) {
    {
        let mut table = TABLE.lock();
        let device = table.device(first);
        for slot in first.slot()..first.slot() + count {
            device.bitmap.clear(slot, Mark::Busy);
        }
        device.busy -= count;
    }
    let (from, to) = (first.queue(), first.behind(count - 1).queue());
    for queue in (from..=to).take(WAITERS.len()) {
        WAITERS[queue % WAITERS.len()].wake_all();
    }
}

/// Frees a slot that its page gives up.
pub(super) fn free(number: SlotNumber) {
    let mut table = TABLE.lock();
    let device = table.device(number);
    let owned = device.bitmap.clear(number.slot(), Mark::Owned);
    debug_assert!(owned, "a slot is given up twice");
    if device.bitmap.clear(number.slot(), Mark::Cached) {
        CACHED.fetch_sub(1, Ordering::Relaxed);
    }
    device.owned -= 1;
    OWNED.fetch_sub(1, Ordering::Relaxed);
}

/// The state of a slot that a page owns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Validity {
    /// The slot holds the page's bytes.
    Valid,
    /// The slot is being written or read.
    Busy,
    /// Writing the slot failed.
    Bad,
}

/// Returns the state of a slot that the caller's page owns.
pub(crate) fn validity(slot: &SwapSlot) -> Validity {
    let mut table = TABLE.lock();
    let number = slot.number();
    let bitmap = &table.device(number).bitmap;
    match (
        bitmap.has(number.slot(), Mark::Busy),
        bitmap.has(number.slot(), Mark::Bad),
    ) {
        (true, _) => Validity::Busy,
        (false, true) => Validity::Bad,
        (false, false) => Validity::Valid,
    }
}

/// Notes whether the page that owns the slot is in memory as well.
pub(crate) fn set_cached(slot: &SwapSlot, cached: bool) {
    let number = slot.number();
    let mut table = TABLE.lock();
    let bitmap = &mut table.device(number).bitmap;
    let changed = match cached {
        true => bitmap.set(number.slot(), Mark::Cached),
        false => bitmap.clear(number.slot(), Mark::Cached),
    };
    debug_assert!(changed, "a page is twice where it is");
    match cached {
        true => CACHED.fetch_add(1, Ordering::Relaxed),
        false => CACHED.fetch_sub(1, Ordering::Relaxed),
    };
}

/// Sleeps while the slot is being read or written. It may have another owner afterwards.
pub(crate) fn wait(number: SlotNumber) {
    let idle = || {
        let table = TABLE.lock();
        let device = table.devices[number.device()].as_ref();
        let busy = device.is_some_and(|it| it.bitmap.has(number.slot(), Mark::Busy));
        (!busy).then_some(())
    };
    // Every transfer ends: the store reports failures, too.
    WAITERS[number.queue() % WAITERS.len()].wait_soundly(idle);
}

/// Adds a swap device. Pages go to the device of highest `priority` that has room, round robin
/// among equals. Waits for memory for the bitmap until `interrupted` returns true.
///
/// # Errors
/// [`SwapError::Empty`], [`SwapError::TooMany`]; [`SwapError::NoMemory`] if nothing can be freed or
/// other tasks take all that is freed; [`SwapError::Interrupted`].
pub fn add(
    store: Arc<dyn SwapStore>,
    priority: i32,
    interrupted: &dyn Fn() -> bool,
) -> Result<DeviceId, SwapError> {
    let device = Device::new(store, priority, interrupted)?;
    let slots = device.size() as usize;
    let mut table = TABLE.lock();
    let id = table.devices.iter().position(Option::is_none);
    let id = id.ok_or(SwapError::TooMany)?;
    table.devices[id] = Some(device);
    TOTAL.fetch_add(slots, Ordering::Relaxed);
    Ok(DeviceId(id))
}

/// Returns the size of the swap space and how much of it is in use. Three loads.
pub fn usage() -> SwapUsage {
    SwapUsage {
        total: TOTAL.load(Ordering::Relaxed),
        used: OWNED.load(Ordering::Relaxed),
        cached: CACHED.load(Ordering::Relaxed),
    }
}

/// Describes each device, by number; numbers are reused.
///
/// # Errors
/// [`SwapError::NoMemory`].
pub fn devices() -> Result<Vec<DeviceUsage>, SwapError> {
    let mut list = nucleus::try_vec(MOST_DEVICES).map_err(|_| SwapError::NoMemory)?;
    let table = TABLE.lock();
    for (id, device) in table.devices.iter().enumerate() {
        if let Some(device) = device {
            list.push(DeviceUsage {
                id: DeviceId(id),
                priority: device.priority,
                slots: device.size() as usize,
                used: device.owned as usize,
            });
        }
    }
    Ok(list)
}

/// The removal of a device that is under way.
#[derive(Clone, Copy)]
pub(crate) struct Removal {
    pub id: DeviceId,
    number: u64,
}

impl Removal {
    /// Starts the removal: the device takes no more pages.
    ///
    /// # Errors
    /// [`SwapError::NotFound`] if there is no such device, or its removal is under way already.
    pub fn begin(id: DeviceId) -> Result<Removal, SwapError> {
        let mut table = TABLE.lock();
        table.turn += 1;
        let number = table.turn;
        let device = table.devices.get_mut(id.0).and_then(Option::as_mut);
        let device = device.filter(|it| it.draining.is_none());
        let device = device.ok_or(SwapError::NotFound)?;
        device.draining = Some(number);
        TOTAL.fetch_sub(device.size() as usize, Ordering::Relaxed);
        Ok(Removal { id, number })
    }

    /// The device, unless the removal has ended.
    fn device<'a>(&self, table: &'a mut Table) -> Option<&'a mut Device> {
        let device = table.devices[self.id.0].as_mut();
        device.filter(|it| it.draining == Some(self.number))
    }

    /// Whether the removal has not been [refused](refuse_removals).
    pub fn goes_on(&self) -> bool {
        self.device(&mut TABLE.lock()).is_some()
    }

    /// Makes the device accept pages again, unless it does already.
    pub fn cancel(&self) {
        if let Some(device) = self.device(&mut TABLE.lock()) {
            device.restore();
        }
    }

    /// Removes the device if none of its slots is in use and the removal goes on. Returns whether
    /// it did.
    pub fn take_out(&self) -> bool {
        let is_unused = |it: &mut Device| {
            it.draining == Some(self.number) && it.owned == 0 && it.busy == 0 && it.users == 0
        };
        let taken = TABLE.lock().devices[self.id.0].take_if(is_unused);
        // The store and the bitmap are dropped without a lock.
        taken.is_some()
    }

    /// Returns whether no page has a slot of the device.
    pub fn is_drained(&self) -> bool {
        let table = TABLE.lock();
        table.devices[self.id.0]
            .as_ref()
            .is_none_or(|it| it.owned == 0)
    }
}

/// Ends all removals that are under way; returns whether there was one.
pub(crate) fn refuse_removals() -> bool {
    let mut table = TABLE.lock();
    let devices = table.devices.iter_mut().flatten();
    let draining = devices.filter(|it| it.draining.is_some());
    draining.map(Device::restore).count() > 0
}
