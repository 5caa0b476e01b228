//! All swap devices and their slots, behind one lock: it is taken when pages go to swap, come from it, or leave it for good,
//! a cluster at a time where it can be.
//!
//! A slot is free if no page has it, nothing is read from it or written to it, and it is not bad. Reads and writes hold their slots
//! as a [`Run`], so a slot that its page gives up meanwhile is not used again before they have ended:
//! two writes to one place at the same time could end in any order.

use alloc::{sync::Arc, vec::Vec};
use core::{
    ops::Deref,
    sync::atomic::{AtomicUsize, Ordering},
};
use nucleus::{
    sync::{Rank, SpinLock},
    task::{Sleep, WaitQueue},
};

use super::bitmap::{Bitmap, Mark};
use super::slot::{MOST_DEVICES, MOST_SLOTS, SlotNumber, SwapSlot};
use super::store::SwapStore;
use super::usage::{DeviceId, DeviceUsage, SwapError, SwapUsage};

/// Where those wait who want a slot that is read or written.
static WAITERS: [WaitQueue; 32] = [const { WaitQueue::new() }; 32];
/// Slots of devices that take pages, and those of all devices that pages have.
static TOTAL: AtomicUsize = AtomicUsize::new(0);
static OWNED: AtomicUsize = AtomicUsize::new(0);
/// Those of pages that are in memory, too.
static CACHED: AtomicUsize = AtomicUsize::new(0);

static TABLE: SpinLock<Table> = SpinLock::new(
    Rank::Swap,
    Table {
        devices: [const { None }; MOST_DEVICES],
        turn: 0,
    },
);

struct Table {
    devices: [Option<Device>; MOST_DEVICES],
    /// Counts clusters.
    turn: u64,
}

struct Device {
    store: Arc<dyn SwapStore>,
    priority: i32,
    bitmap: Bitmap,
    /// Slots that pages have, those that are read or written, and bad ones.
    owned: u32,
    busy: u32,
    bad: u32,
    /// Those who have the store in their hands.
    users: u32,
    /// Where the search for free slots goes on.
    next: u32,
    /// When slots were last taken from it, for the turns of devices of equal priority.
    turn: u64,
    /// The number of the attempt to remove it, if there is one: nothing more goes there then.
    draining: Option<u64>,
}

impl Device {
    /// A device that takes pages. Its slots beyond the most that one can have are not used.
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
        self.bitmap.slots() - self.bad
    }

    /// Marks a slot that a page has as busy; false if none has it, or it is.
    fn claim(&mut self, slot: u32) -> bool {
        let claimed = self.bitmap.has(slot, Mark::Owned) && self.bitmap.set(slot, Mark::Busy);
        self.busy += u32::from(claimed);
        claimed
    }

    /// Pages go there again.
    fn restore(&mut self) {
        self.draining = None;
        TOTAL.fetch_add(self.size() as usize, Ordering::Relaxed);
    }

    fn may_have_room(&self) -> bool {
        // Busy slots mostly have owners; that the others look free costs a vain search.
        self.draining.is_none() && self.owned < self.size()
    }
}

impl Table {
    fn device(&mut self, number: SlotNumber) -> &mut Device {
        self.devices[number.device()]
            .as_mut()
            .expect("a device stays as long as a slot of it is in use")
    }

    /// The device that is to give the next slots, apart from those that were `tried`: the one of highest priority, among equals that
    /// which gave some least recently.
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

/// Neighbouring slots of one device from which is being read or to which is being written, or soon will be.
pub(crate) struct Run {
    first: SlotNumber,
    len: u32,
}

/// A device's store, in the hands of who reads or writes it. The device stays until it is given back, which may be after the last read or write has
/// ended.
pub(crate) struct StoreInUse {
    store: Option<Arc<dyn SwapStore>>,
    /// Any of the device's.
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
        // Before the device may go: who has taken it out is the last to hold its store.
        drop(self.store.take());
        TABLE.lock().device(self.slot).users -= 1;
    }
}

/// Why a slot can't be had for reading now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Taken;

impl Run {
    /// Up to `most` free slots in a row, 1 at least: from the device of highest priority that has any free, from devices of equal
    /// priority in turn. `None` if all are full.
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
                next if next >= device.bitmap.slots() => 0,
                next => next,
            };
            return Some(Run {
                first: SlotNumber::new(chosen, found.first),
                len: found.len,
            });
        }
    }

    /// Slot `number`, and up to `before` slots in front of it and `behind` slots behind it that pages have and nobody reads or
    /// writes.
    ///
    /// # Errors
    /// [`Taken`] if somebody reads or writes slot `number`, or no page has it any more.
    pub(crate) fn claim(number: SlotNumber, before: usize, behind: usize) -> Result<Run, Taken> {
        let mut table = TABLE.lock();
        let device = table.devices[number.device()].as_mut().ok_or(Taken)?;
        let slot = number.slot();
        if !device.claim(slot) {
            return Err(Taken);
        }
        let (mut first, mut end) = (slot, slot + 1);
        while (slot - first) < before as u32 && first > 0 && device.claim(first - 1) {
            first -= 1;
        }
        while (end - slot - 1) < behind as u32 && end < device.bitmap.slots() && device.claim(end) {
            end += 1;
        }
        Ok(Run {
            first: SlotNumber::new(number.device(), first),
            len: end - first,
        })
    }

    /// Slots.
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    /// Slot `i` of these.
    pub(crate) fn number(&self, i: usize) -> SlotNumber {
        debug_assert!(i < self.len());
        self.first.behind(i as u32)
    }

    /// Which of these it is.
    pub(crate) fn index(&self, number: SlotNumber) -> Option<usize> {
        let i = usize::try_from(number.distance(self.first)?).ok()?;
        (i < self.len()).then_some(i)
    }

    /// Gives slot `i` of these, which were reserved, to a page.
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

    /// Keeps the first `len`; the others are as they were before.
    pub(crate) fn truncate(&mut self, len: usize) {
        if len < self.len() {
            let rest = self.number(len);
            let count = self.len - len as u32;
            self.len = len as u32;
            end(rest, count);
        }
    }

    /// Keeps `len` of them, 1 at least, one of which is `number`.
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

    /// Where they are, and which slot of it is the first.
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

    /// Notes that they could not be written: they are not used again.
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

/// Nothing is read or written there any more.
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

/// A page gives its slot up.
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

/// What a slot that a page has is good for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Validity {
    /// It has the page's bytes.
    Valid,
    /// It is being written, or read.
    Busy,
    /// It could not be written.
    Bad,
}

/// What the slot, which the caller's page has, is good for.
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

/// Whether the page that has the slot is in memory, too, from now on.
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

/// Sleeps while the slot is read or written. It may be anybody's afterwards.
pub(crate) fn wait(number: SlotNumber) {
    let idle = || {
        let table = TABLE.lock();
        let device = table.devices[number.device()].as_ref();
        let busy = device.is_some_and(|it| it.bitmap.has(number.slot(), Mark::Busy));
        (!busy).then_some(())
    };
    // Nothing is read or written for ever: the store says so when it failed.
    let _ = WAITERS[number.queue() % WAITERS.len()].wait(Sleep::SOUND, idle);
}

/// Adds a swap device: pages go to that of the highest `priority` that has room, and to devices of equal priority in turn. Waits for
/// memory for what is noted of its slots, until `interrupted` says to stop.
///
/// # Errors
/// [`SwapError::Empty`], [`SwapError::TooMany`]; [`SwapError::NoMemory`] if nothing can be freed, or others take all that is;
/// [`SwapError::Interrupted`].
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

/// What swap space there is and how much of it is in use. Three loads.
pub fn usage() -> SwapUsage {
    SwapUsage {
        total: TOTAL.load(Ordering::Relaxed),
        used: OWNED.load(Ordering::Relaxed),
        cached: CACHED.load(Ordering::Relaxed),
    }
}

/// What is known of each device, in the order in which they were added as far as numbers were not used again.
///
/// # Errors
/// [`SwapError::NoMemory`].
pub fn devices() -> Result<Vec<DeviceUsage>, SwapError> {
    let mut list = Vec::new();
    list.try_reserve_exact(MOST_DEVICES)
        .map_err(|_| SwapError::NoMemory)?;
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

/// An attempt to remove a device.
#[derive(Clone, Copy)]
pub(crate) struct Removal {
    pub id: DeviceId,
    number: u64,
}

impl Removal {
    /// From now on nothing more goes to the device.
    ///
    /// # Errors
    /// [`SwapError::NotFound`] if there is none of this number, or it is about to be removed already.
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

    /// Whether it has not been [given up](refuse_removals).
    pub fn goes_on(&self) -> bool {
        let table = TABLE.lock();
        let device = table.devices.get(self.id.0).and_then(Option::as_ref);
        device.is_some_and(|it| it.draining == Some(self.number))
    }

    /// Pages go to the device again, unless that was so already.
    pub fn cancel(&self) {
        let mut table = TABLE.lock();
        let device = table.devices.get_mut(self.id.0).and_then(Option::as_mut);
        if let Some(device) = device.filter(|it| it.draining == Some(self.number)) {
            device.restore();
        }
    }

    /// Takes the device out if no slot of it is in use and the removal goes on. Returns whether it
    /// did.
    pub fn take_out(&self) -> bool {
        let taken = {
            let mut table = TABLE.lock();
            let is_unused = |it: &mut Device| {
                it.draining == Some(self.number) && it.owned == 0 && it.busy == 0 && it.users == 0
            };
            match table.devices.get_mut(self.id.0) {
                Some(device) => device.take_if(is_unused),
                None => None,
            }
        };
        // The store and the bitmap are dropped without a lock.
        taken.is_some()
    }

    /// Returns whether no page has a slot of the device.
    pub fn is_drained(&self) -> bool {
        let table = TABLE.lock();
        let device = table.devices.get(self.id.0).and_then(Option::as_ref);
        device.is_none_or(|it| it.owned == 0)
    }
}

/// Gives all attempts to remove a device up; returns whether there was one.
pub(crate) fn refuse_removals() -> bool {
    let mut table = TABLE.lock();
    let devices = table.devices.iter_mut().flatten();
    let draining = devices.filter(|it| it.draining.is_some());
    draining.map(Device::restore).count() > 0
}
