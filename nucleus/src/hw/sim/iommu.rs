//! Remapping units, and devices that reach memory through them.
//!
//! A unit holds what hardware may hold, for as long as it may: a translation, or the table that it
//! came by, goes only when it is invalidated, when its device gets other tables, or by chance. At
//! any point a unit may fill an entry for an address that no device asked for. In caching mode it
//! also holds that there is no translation. One that does not look into the processors' caches
//! ("not coherent") goes on seeing an entry as it was until the kernel says that it was written.
//! The units' features follow from the seed.
//!
//! The oracle knows the frames that devices may reach: a device, or a unit by itself, that comes to
//! any other one ends the run.

use core::cell::{Cell, RefCell};
use core::ops::Range;
use std::collections::{BTreeMap, VecDeque};

use super::{
    interface::spin_hint,
    machine::{FIRST_FRAME, Machine, WORD, machine, required},
    point,
    random::Random,
};
use crate::hw::counters::Counter;
use crate::hw::iommu::{AttachError, Device, DomainId, Entry, Fault, Features, Policy, Stale};
use crate::{PAGE_SHIFT, PAGE_SIZE, PhysAddr};

/// Pages that devices used lately, among which units guess.
const HISTORY: usize = 32;
/// Faults that are kept until they are taken.
const FAULTS: usize = 8;
/// The reasons of faults, as on x86-64.
const NO_CONTEXT: u8 = 2;
const NO_WRITE: u8 = 5;
const NO_READ: u8 = 6;
const BEYOND: u8 = 4;

/// A translation that is held; without a frame, that there is none.
#[derive(Clone, Copy, Debug)]
struct Held {
    frame: Option<u64>,
    reads: bool,
    writes: bool,
    large: bool,
}

/// The caches of a unit: translations by domain and page, tables of level 1 by domain and page
/// number over 512, tables of devices.
#[derive(Default)]
struct Unit {
    pages: BTreeMap<(u16, u64), Held>,
    tables: BTreeMap<(u16, u64), PhysAddr>,
    contexts: BTreeMap<u16, (DomainId, PhysAddr)>,
    /// It answers nothing any more, and lets nothing through.
    is_given_up: bool,
    /// It answers nothing any more, and a CPU is about to cut its devices off.
    is_silent: bool,
}

/// All units of a machine.
pub(crate) struct Iommu {
    random: Random,
    features: Option<Features>,
    is_coherent: bool,
    units: RefCell<Vec<Unit>>,
    /// The tables of devices, as the kernel has set them.
    contexts: RefCell<BTreeMap<u16, (DomainId, PhysAddr)>>,
    history: RefCell<VecDeque<(u16, u64)>>,
    faults: RefCell<VecDeque<Fault>>,
    /// Entries as units have seen them, by address, where they are not coherent.
    seen: RefCell<BTreeMap<u64, u64>>,
    /// By frame: whether devices may reach it.
    open: Vec<Cell<bool>>,
    /// By frame: how many translations and tables that are held lead to it.
    reached: Vec<Cell<u32>>,
    /// Invalidations until a unit fails.
    failing: Cell<Option<u64>>,
    /// Page numbers of memory that some devices use on the firmware's behalf, behind the machine's
    /// own.
    reserved: Vec<Range<u64>>,
    invalidations: Cell<u64>,
}

/// Whether no unit stands before a device: on the last bus.
fn is_beside(device: Device) -> bool {
    device.0 >> 8 == 0xff
}

/// Whether other functions have a device's number: on the bus before the last.
fn shares_number(device: Device) -> bool {
    device.0 >> 8 == 0xfe
}

/// The policy of a machine with this seed, unless its test says which.
pub(crate) fn policy_of(seed: u64) -> Policy {
    match seed % 5 {
        0 => Policy::Off,
        1 | 3 => Policy::Strict,
        _ => Policy::Open,
    }
}

impl Iommu {
    pub(super) fn new(seed: u64, policy: Policy, frames: usize) -> Iommu {
        let random = Random::new(seed ^ 0x10_3344);
        let features = Features {
            levels: 3 + random.below(3) as usize,
            large: random.one_in(2),
            domains: 24 + random.below(8) as u16,
            has_caching_mode: random.one_in(4),
            page_order: [None, Some(0), Some(4), Some(9), Some(18)][random.below(5) as usize],
        };
        let units = 1 + random.below(3);
        let is_coherent = random.one_in(2);
        let reserved = (0..random.below(3))
            .map(|_| frames as u64 + random.below(1500))
            .map(|first| first..first + 1 + random.below(700))
            .collect();
        Iommu {
            is_coherent,
            random,
            features: (policy != Policy::Off).then_some(features),
            units: RefCell::new((0..units).map(|_| Unit::default()).collect()),
            contexts: RefCell::default(),
            history: RefCell::default(),
            faults: RefCell::default(),
            seen: RefCell::default(),
            open: vec![Cell::new(false); frames],
            reached: vec![Cell::new(0); frames],
            failing: Cell::new(None),
            reserved,
            invalidations: Cell::new(0),
        }
    }

    fn unit_of(&self, device: Device) -> usize {
        usize::from(device.0) % self.units.borrow().len()
    }

    fn reach(&self, frame: u64, more: bool) {
        if let Some(count) = self.reached.get(frame as usize) {
            count.set(match more {
                true => count.get() + 1,
                false => count.get() - 1,
            });
        }
    }

    fn is_open(&self, frame: u64) -> bool {
        self.open.get(frame as usize).is_some_and(Cell::get) || self.is_reserved(frame)
    }

    fn is_reserved(&self, frame: u64) -> bool {
        self.reserved.iter().any(|it| it.contains(&frame))
    }

    /// Drops the translations that `is_gone` says by domain and page, and the tables by domain and
    /// first and last page.
    fn drop_held(&self, unit: &mut Unit, is_gone: impl Fn(u16, u64, u64) -> bool) {
        unit.pages.retain(|&(domain, page), held| {
            // With a page of a large one goes all of it.
            let (first, last) = match held.large {
                true => (page & !511, page | 511),
                false => (page, page),
            };
            let gone = is_gone(domain, first, last);
            if let (true, Some(frame)) = (gone, held.frame) {
                self.reach(frame, false);
            }
            !gone
        });
        unit.tables.retain(|&(domain, span), table| {
            let gone = is_gone(domain, span << 9, span << 9 | 511);
            if gone {
                self.reach(table.frame_number(), false);
            }
            !gone
        });
    }

    /// An entry as a unit sees it.
    fn read(&self, m: &Machine, at: PhysAddr) -> Entry {
        let now = m.entry(at).load(WORD);
        if self.is_coherent {
            return Entry(now);
        }
        let mut seen = self.seen.borrow_mut();
        let value = match seen.get(&at.0) {
            Some(old) if !self.random.one_in(4) => *old,
            _ => now,
        };
        seen.insert(at.0, value);
        Entry(value)
    }
}

/// The features of all units.
pub(crate) fn iommu_features() -> Option<Features> {
    machine()?.iommu.features
}

/// The memory that a device uses on the firmware's behalf: every second device has some.
pub(crate) fn iommu_reserved(device: Device, mut each: impl FnMut(PhysAddr, PhysAddr)) {
    let ranges = required().iommu.reserved.iter();
    for range in ranges.filter(|_| device.0.is_multiple_of(2)) {
        let [start, end] = [range.start, range.end].map(|page| PhysAddr(page << PAGE_SHIFT));
        each(start, end);
    }
}

/// Translates the device's addresses by these tables from now on.
pub(crate) fn iommu_attach(
    device: Device,
    domain: DomainId,
    root: PhysAddr,
) -> Result<(), AttachError> {
    let m = required();
    if is_beside(device) {
        return Err(AttachError::NoUnit);
    }
    if shares_number(device) {
        return Err(AttachError::SharedNumber);
    }
    iommu_detach(device);
    m.iommu
        .contexts
        .borrow_mut()
        .insert(device.0, (domain, root));
    Ok(())
}

/// Lets the device reach nothing from now on.
pub(crate) fn iommu_detach(device: Device) {
    let m = required();
    let before = m.iommu.contexts.borrow_mut().remove(&device.0);
    late(m);
    wait_cut(m);
    for unit in &mut *m.iommu.units.borrow_mut() {
        unit.contexts.remove(&device.0);
        if let Some((DomainId(domain), _)) = before {
            m.iommu.drop_held(unit, |it, _, _| it == domain);
        }
    }
}

/// Returns when no unit uses such a translation any more.
pub(crate) fn iommu_invalidate(stale: &[Stale]) {
    let m = required();
    late(m);
    let iommu = &m.iommu;
    iommu
        .invalidations
        .set(iommu.invalidations.get() + stale.len() as u64);
    if let Some(left) = iommu.failing.get() {
        iommu.failing.set(left.checked_sub(1));
        if left == 0 {
            let index = iommu.random.below(iommu.units.borrow().len() as u64) as usize;
            give_up(m, index);
        }
    }
    wait_cut(m);
    for &stale in stale {
        let kind = match stale {
            Stale::All => Counter::iommu_global_invalidations,
            Stale::Domain(_) => Counter::iommu_domain_invalidations,
            Stale::Pages { .. } => Counter::iommu_page_invalidations,
        };
        kind.add(1);
        if let Stale::Pages { first, order, .. } = stale {
            let most = iommu.features.and_then(|it| it.page_order);
            if most.is_none_or(|most| order > most) || !first.is_multiple_of(1 << order) {
                m.fail(format!("no unit can invalidate {stale:?}"));
            }
        }
        for unit in iommu
            .units
            .borrow_mut()
            .iter_mut()
            .filter(|it| !it.is_silent)
        {
            iommu.drop_held(unit, |domain, from, to| match stale {
                Stale::All => true,
                Stale::Domain(DomainId(it)) => it == domain,
                Stale::Pages {
                    domain: DomainId(it),
                    first,
                    order,
                } => it == domain && from < first + (1 << order) && to >= first,
            });
        }
    }
    late(m);
    wait_cut(m);
}

/// A unit does not answer: a CPU finds that, and later its devices reach nothing.
fn give_up(m: &Machine, index: usize) {
    let iommu = &m.iommu;
    iommu.units.borrow_mut()[index].is_silent = true;
    for _ in 0..iommu.random.below(1000) {
        m.step();
        speculate(m);
    }
    let unit = &mut iommu.units.borrow_mut()[index];
    unit.is_given_up = true;
    unit.contexts.clear();
    iommu.drop_held(unit, |_, _, _| true);
}

/// Waits until the devices of silent units are cut off: until then these units use their caches.
fn wait_cut(m: &Machine) {
    let is_falling = |unit: &Unit| unit.is_silent && !unit.is_given_up;
    while m.iommu.units.borrow().iter().any(is_falling) {
        spin_hint();
    }
}

/// A unit answers some time later, while devices and other CPUs go on.
fn late(m: &Machine) {
    for _ in 0..m.iommu.random.below(4) {
        m.step();
        speculate(m);
    }
}

/// Lets units see stores to entries of page tables.
pub(crate) fn iommu_sync(at: PhysAddr, bytes: usize) {
    let Some(m) = machine() else { return };
    let mut seen = m.iommu.seen.borrow_mut();
    let found: Vec<u64> = { seen.range(at.0..at.0 + bytes as u64) }
        .map(|(at, _)| *at)
        .collect();
    for at in found {
        seen.remove(&at);
    }
}

/// Takes the oldest access that was refused.
#[cfg(test)]
pub(crate) fn iommu_take_fault() -> Option<Fault> {
    machine()?.iommu.faults.borrow_mut().pop_front()
}

/// The `n`th invalidation from now on is answered by one unit less, which the kernel then gives up:
/// its devices reach nothing.
pub fn fail_unit(n: u64) {
    required().iommu.failing.set(Some(n));
}

/// Invalidations so far.
pub fn invalidations() -> u64 {
    required().iommu.invalidations.get()
}

/// Translates a page for a device's access.
fn translate(m: &Machine, device: Device, page: u64, is_write: bool) -> Result<u64, u8> {
    let iommu = &m.iommu;
    if iommu.features.is_none() || is_beside(device) {
        return Ok(page);
    }
    {
        let mut history = iommu.history.borrow_mut();
        history.push_back((device.0, page));
        if history.len() > HISTORY {
            history.pop_front();
        }
    }
    let index = iommu.unit_of(device);
    let (DomainId(domain), _) = context(m, index, device).ok_or(NO_CONTEXT)?;
    let refused = if is_write { NO_WRITE } else { NO_READ };
    let allows = |held: &Held| match is_write {
        true => held.writes,
        false => held.reads,
    };
    let found = {
        let mut units = iommu.units.borrow_mut();
        let unit = &mut units[index];
        if iommu.random.one_in(64) {
            // No IOTLB is infinite.
            iommu.drop_held(unit, |it, from, to| {
                it == domain && (from..=to).contains(&page)
            });
        }
        unit.pages.get(&(domain, page)).copied()
    };
    // A unit may look at the tables again before it refuses an access, or not.
    let held = match found {
        Some(held) if allows(&held) || iommu.random.one_in(2) => held,
        _ => fill(m, index, device, page).ok_or(refused)?,
    };
    let frame = held.frame.filter(|_| allows(&held)).ok_or(refused)?;
    if !iommu.is_open(frame) {
        m.fail(format!(
            "device {device} uses page {page:#x} -> frame {frame:#x} after its end was promised"
        ));
    }
    Ok(frame)
}

/// The tables of a device as its unit holds them.
fn context(m: &Machine, index: usize, device: Device) -> Option<(DomainId, PhysAddr)> {
    let unit = &mut m.iommu.units.borrow_mut()[index];
    if unit.is_given_up {
        return None;
    }
    if let Some(found) = unit.contexts.get(&device.0) {
        return Some(*found);
    }
    let found = m.iommu.contexts.borrow().get(&device.0).copied()?;
    unit.contexts.insert(device.0, found);
    Some(found)
}

/// Walks the tables for a page and caches the translation; nothing beyond the tables' reach.
fn fill(m: &Machine, index: usize, device: Device, page: u64) -> Option<Held> {
    let iommu = &m.iommu;
    let features = iommu.features?;
    let (DomainId(domain), root) = context(m, index, device)?;
    if page >> (9 * features.levels) != 0 {
        return None;
    }
    let table = iommu.units.borrow()[index]
        .tables
        .get(&(domain, page >> 9))
        .copied();
    let (mut at, mut level) = match table {
        Some(table) if !iommu.random.one_in(4) => (table, 1),
        _ => (root, features.levels),
    };
    // Other CPUs do not go on meanwhile: a unit may cache for long what it has read early.
    let mut held = Held {
        frame: None,
        reads: true,
        writes: true,
        large: false,
    };
    let slot = |at: PhysAddr, level: usize| at + (page >> (9 * (level - 1)) & 511) * 8;
    let mut entry = iommu.read(m, slot(at, level));
    while entry.is_present() && level > 1 {
        if entry.is_large() {
            if level != 2 || !features.large || entry.address().0 & (511 << PAGE_SHIFT) != 0 {
                m.fail(format!("a large page {entry:?} at level {level}"));
            }
            held.large = true;
            break;
        }
        held.reads &= entry.reads();
        held.writes &= entry.writes();
        (at, level) = (entry.address(), level - 1);
        entry = iommu.read(m, slot(at, level));
    }
    let mut units = iommu.units.borrow_mut();
    let unit = &mut units[index];
    if level == 1 {
        let before = unit.tables.insert((domain, page >> 9), at);
        iommu.reach(at.frame_number(), true);
        before
            .iter()
            .for_each(|it| iommu.reach(it.frame_number(), false));
    }
    held.reads &= entry.reads();
    held.writes &= entry.writes();
    if entry.is_present() {
        let part = if held.large { page & 511 } else { 0 };
        held.frame = Some(entry.address().frame_number() + part);
    } else if !features.has_caching_mode {
        return None;
    }
    let before = unit.pages.insert((domain, page), held);
    if let Some(frame) = before.and_then(|it| it.frame) {
        iommu.reach(frame, false);
    }
    if let Some(frame) = held.frame {
        iommu.reach(frame, true);
        if !iommu.is_open(frame) {
            m.fail(format!(
                "a unit finds page {page:#x} of {device} -> frame {frame:#x}, \
                 which devices must not reach"
            ));
        }
    }
    Some(held)
}

/// Fills an entry that no device asked for, near an address that was used.
pub(super) fn speculate(m: &Machine) {
    let iommu = &m.iommu;
    if iommu.features.is_none() || iommu.units.try_borrow_mut().is_err() {
        return;
    }
    let chosen = {
        let Ok(history) = iommu.history.try_borrow() else {
            return;
        };
        if history.is_empty() {
            return;
        }
        history[iommu.random.below(history.len() as u64) as usize]
    };
    let (device, page) = (Device(chosen.0), chosen.1 + iommu.random.below(9));
    fill(m, iommu.unit_of(device), device, page.saturating_sub(4));
}

/// A device's access, page by page: between two of them anything may happen. An access that is
/// refused is noted, and ends there.
fn access(
    device: u16,
    address: u64,
    len: usize,
    is_write: bool,
    mut piece: impl FnMut(*mut u8, usize, usize),
) -> bool {
    let m = required();
    let device = Device(device);
    let mut done = 0;
    while done < len {
        point();
        let here = address.wrapping_add(done as u64);
        let inside = here as usize % PAGE_SIZE;
        let part = (PAGE_SIZE - inside).min(len - done);
        let found = translate(m, device, here >> PAGE_SHIFT, is_write);
        let end = (FIRST_FRAME as usize + m.config.pages) as u64;
        if found.is_ok_and(|frame| m.iommu.is_reserved(frame)) {
            // The firmware's memory, whose bytes no test compares.
            done += part;
            continue;
        }
        let found = found.and_then(|frame| match frame < end {
            true => Ok(frame),
            false => Err(BEYOND),
        });
        match found {
            Ok(frame) => {
                let at = PhysAddr((frame << PAGE_SHIFT) + inside as u64);
                piece(m.memory(at), done, part);
            }
            Err(reason) => {
                let mut faults = m.iommu.faults.borrow_mut();
                if faults.len() < FAULTS {
                    faults.push_back(Fault {
                        device,
                        address: here,
                        is_write,
                        reason,
                    });
                }
                return false;
            }
        }
        done += part;
    }
    true
}

/// A device reads memory; false, and a fault, for an address that it can't read.
pub fn device_read(device: u16, address: u64, to: &mut [u8]) -> bool {
    access(device, address, to.len(), false, |memory, done, part| {
        // SAFETY: inside one page of the machine's memory, and inside `to`, which is the host's.
        unsafe { core::ptr::copy_nonoverlapping(memory, to[done..].as_mut_ptr(), part) }
    })
}

/// A device writes memory; false, and a fault, for an address that it can't write.
pub fn device_write(device: u16, address: u64, from: &[u8]) -> bool {
    access(device, address, from.len(), true, |memory, done, part| {
        // SAFETY: as above.
        unsafe { core::ptr::copy_nonoverlapping(from[done..].as_ptr(), memory, part) }
    })
}

/// Whether the machine checks which frames devices reach.
pub(crate) const CHECKS_REACH: bool = true;

/// Devices may reach the frame from now on.
pub(crate) fn frame_opened(frame: PhysAddr) {
    let Some(m) = machine() else { return };
    if let Some(open) = m.iommu.open.get(frame.frame_number() as usize) {
        open.set(true);
    }
}

/// No device reaches the frame from now on: no unit may hold a translation to it.
pub(crate) fn frame_closed(frame: PhysAddr) {
    let Some(m) = machine() else { return };
    let number = frame.frame_number();
    if let Some(open) = m.iommu.open.get(number as usize) {
        open.set(false);
    }
    check_unreached(m, number, "is no device's any more");
}

/// As [`frame_closed`], of a frame that goes back to the allocator, by whatever leads there but a
/// frame that devices may reach all the same.
pub(super) fn check_freed(m: &Machine, number: u64) {
    if !m.iommu.is_open(number) {
        check_unreached(m, number, "is freed");
    }
}

fn check_unreached(m: &Machine, number: u64, why: &str) {
    let iommu = &m.iommu;
    let count = iommu.reached.get(number as usize).map_or(0, Cell::get);
    if count == 0 {
        return;
    }
    for (index, unit) in iommu.units.borrow().iter().enumerate() {
        let page = unit.pages.iter().find(|(_, it)| it.frame == Some(number));
        if let Some(((domain, page), _)) = page {
            m.fail(format!(
                "frame {number:#x} {why} while unit {index} holds page {page:#x} of domain \
                 {domain} to it"
            ));
        }
        let table = unit
            .tables
            .iter()
            .find(|(_, at)| at.frame_number() == number);
        if let Some(((domain, span), _)) = table {
            m.fail(format!(
                "table {number:#x} {why} while unit {index} walks it for page {:#x} of domain \
                 {domain}",
                span << 9
            ));
        }
    }
}
