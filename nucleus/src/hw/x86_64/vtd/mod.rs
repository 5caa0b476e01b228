//! Intel's remapping units (VT-d, the architecture's specification 3.x): they translate the
//! addresses of devices, and the messages by which devices interrupt.
//!
//! [`start`] finds the units by the firmware's table, gives all of them the same root table, in
//! which no device reaches anything, and turns them on, unless the command line has `iommu=off`;
//! `iommu.queue=off` has all invalidations made by registers. The functions named
//! `iommu_…` are those of [`hw::iommu`](crate::hw::iommu). The parts: `registers`, `unit` (start
//! and invalidations), `tables` (context entries, entries of interrupts), `faults`; `injection`,
//! for tests.
//!
//! A unit that times out is given up: its functions lose bus mastering. A unit whose registers are
//! not where the firmware says is left out: its functions go round the units, by physical
//! addresses.

mod faults;
pub(crate) mod injection;
mod registers;
mod tables;
mod unit;

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::dmar::{Dmar, Kind, MAX_SCOPES, Scope};
use super::gate::Gate;
use super::vectors::Message;
use super::{apic, config, vectors};
use crate::PhysAddr;
use crate::hw::iommu::{AttachError, Device, DomainId, Fault, Features, Policy, Stale, UnitState};
use crate::hw::options;
use tables::Interrupt;
use unit::{Invalidation, TimedOut, Unit, units};

pub(crate) use faults::collect as collect_faults;

/// [`Features`], as [`pack`] makes them; 0 if no unit translates.
static FEATURES: AtomicU64 = AtomicU64::new(0);
/// Whether a unit has a write buffer, which is flushed before the unit sees a store to a table.
static NEEDS_WRITE_FLUSH: AtomicBool = AtomicBool::new(false);
/// Whether messages name CPUs by numbers of 32 bits.
static WIDE: AtomicBool = AtomicBool::new(false);
/// The place under which the I/O APIC with each number raises interrupts, plus one.
static IO_APICS: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];

/// Memory that a device uses on the firmware's behalf: place, first address, end.
type Reserved = (u16, u64, u64);
/// A user of a region is a scope.
static RESERVED: Gate<[Reserved; MAX_SCOPES]> = Gate::new([(0, 0, 0); MAX_SCOPES]);

/// The first entry of the table of interrupts that is the I/O APICs'; those before are devices'
/// messages, by their numbers.
const FIRST_LEGACY: u16 = vectors::DEVICES as u16;

/// Whether the command line has invalidations made by registers rather than by the queue.
static NO_QUEUE: AtomicBool = AtomicBool::new(false);

/// See [`NO_QUEUE`].
pub(crate) fn iommu_has_no_queue() -> bool {
    NO_QUEUE.load(Ordering::Relaxed)
}

/// The places that a scope covers: the function, and the buses behind it.
fn places(scope: &Scope) -> [Option<(u16, u16)>; 2] {
    if !matches!(scope.kind, Kind::Endpoint | Kind::Bridge) {
        return [None; 2];
    }
    let Some(place) = scope.place(config::behind) else {
        return [None; 2];
    };
    let behind = match scope.kind {
        Kind::Bridge => config::behind(place),
        _ => None,
    };
    let whole = |(first, last): (u8, u8)| (u16::from(first) << 8, u16::from(last) << 8 | 0xff);
    [Some((place, place)), behind.map(whole)]
}

/// Starts the units. Once, on the boot CPU, when frames, interrupts and the clock work; `is_memory`
/// says of a range of addresses whether the kernel uses any of it.
pub fn start(dmar: &Dmar, command_line: &str, is_memory: impl Fn(u64, u64) -> bool) {
    let is_off = Policy::read(command_line) == Policy::Off;
    let no_queue = options::last_value(command_line, "iommu.queue", Some) == Some("off");
    NO_QUEUE.store(no_queue, Ordering::Relaxed);
    if dmar.left_out > 0 {
        crate::log!(
            "IOMMU: {} entries of the firmware's table are not used",
            dmar.left_out
        );
    }
    if dmar.lacks_units {
        crate::log!(
            "IOMMU: the firmware's table is not understood whole: only devices that it names are \
             behind a unit"
        );
    }
    for found in dmar.units() {
        let Some(unit) = unit::add() else { break };
        let scopes = dmar.scopes(found).iter();
        let takes_rest = found.takes_rest && !dmar.lacks_units;
        unit.set_scope(takes_rest, scopes.flat_map(places).flatten());
        if !unit.registers.map(found.registers, &is_memory) {
            crate::log!(
                "IOMMU: the registers of a unit at {:#x} are memory, or there is no room for them",
                found.registers
            );
            unit.leave_out();
        } else if !unit.exists() {
            crate::log!("IOMMU: there is no unit where the firmware's table says");
            unit.leave_out();
        }
    }
    let all = || units().filter(|unit| !unit.is_lost());
    // After the scopes of all units are known: cutting off a unit needs them.
    for unit in all() {
        if unit.disable().is_err() {
            unit.give_up();
        }
    }
    if all().count() == 0 {
        return go_without("");
    }
    if is_off {
        return go_without(" (iommu=off)");
    }
    let Some(features) = common_features() else {
        return go_without(" (its units share no format of page tables)");
    };
    note_reserved(dmar, is_memory);
    let has = |what: fn(registers::Capabilities) -> bool| all().all(|it| what(it.capabilities()));
    let is_coherent = has(registers::Capabilities::is_coherent);
    tables::set_format(features.levels, is_coherent);
    let flushes = all().any(|unit| unit.capabilities().needs_write_flush());
    NEEDS_WRITE_FLUSH.store(flushes, Ordering::Relaxed);
    let buses = config::buses();
    let Some(root) = tables::make((0..=255).filter(|&bus| buses[usize::from(bus)])) else {
        return go_without(" (no memory for its tables)");
    };
    let has_queues = has(registers::Capabilities::has_queue);
    let queued = !no_queue && has_queues && all().all(Unit::take_queue);
    // A message that is remapped must come to a unit that does it.
    let are_all_known = !dmar.lacks_units && !units().any(Unit::is_absent);
    let is_remapped = queued
        && are_all_known
        && dmar.remaps_interrupts()
        && has(registers::Capabilities::remaps_interrupts);
    let mut interrupts = None;
    if is_remapped {
        const EXTENDED: u64 = 1 << 11;
        note_io_apics(dmar);
        let is_wide = has(registers::Capabilities::has_wide_interrupts) && apic::is_x2apic();
        WIDE.store(is_wide, Ordering::Relaxed);
        interrupts = tables::make_interrupts();
        interrupts = interrupts.map(|table| if is_wide { table | EXTENDED } else { table });
    }
    for unit in all() {
        if let Err(TimedOut) = unit.start(root, queued, interrupts) {
            unit.give_up();
        }
    }
    if all().count() == 0 {
        return;
    }
    FEATURES.store(pack(features), Ordering::Release);
    crate::log!(
        "IOMMU: {} units, page tables of {} levels, {}invalidations by {}, interrupts are{} \
         remapped",
        all().count(),
        features.levels,
        if features.has_caching_mode {
            "caching mode, "
        } else {
            ""
        },
        if queued { "queue" } else { "registers" },
        if interrupts.is_some() { "" } else { " not" },
    );
}

/// Leaves units off, and opens the memory that the firmware may have closed.
fn go_without(why: &str) {
    for unit in units().filter(|unit| !unit.is_lost()) {
        if unit.unprotect().is_err() {
            unit.give_up();
        }
    }
    crate::log!(
        "no IOMMU{why}: devices reach all memory, and are trusted to write where they are told"
    );
}

/// The features that all units have; `None` if no format of tables is common to them.
fn common_features() -> Option<Features> {
    let mut features = Features {
        levels: 0,
        large: true,
        domains: u16::MAX,
        has_caching_mode: false,
        page_order: Some(63),
    };
    let all = || {
        units()
            .filter(|unit| !unit.is_lost())
            .map(Unit::capabilities)
    };
    // Tables of more levels than a device's addresses have bits for only take memory.
    let bits = all().map(|it| it.address_bits()).min()?;
    let common = |levels: &usize| all().all(|it| it.has_levels(*levels));
    let reaches = |levels: &usize| 12 + 9 * *levels as u32 >= bits;
    let enough = (3..=5).filter(common).find(reaches);
    features.levels = enough.or_else(|| (3..=5).rfind(common))?;
    for unit in all() {
        features.large &= unit.has_large();
        // Number 0 is the units' own in caching mode, and not used.
        let domains = unit.domains() - 1;
        features.domains = features.domains.min(domains.min(u16::MAX.into()) as u16);
        features.has_caching_mode |= unit.has_caching_mode();
        let orders = features.page_order.zip(unit.page_order());
        features.page_order = orders.map(|(one, other)| one.min(other));
    }
    Some(features)
}

/// Notes the memory that devices use on the firmware's behalf.
fn note_reserved(dmar: &Dmar, is_memory: impl Fn(u64, u64) -> bool) {
    let mut count = 0;
    for region in dmar.regions() {
        if is_memory(region.start, region.end) {
            crate::log!(
                "IOMMU: the firmware gives devices {:#x}..{:#x}, which is the kernel's memory: not \
                 done",
                region.start,
                region.end
            );
            continue;
        }
        let users = dmar.users(region).iter();
        for place in users.filter_map(|scope| scope.place(config::behind)) {
            RESERVED.with(|all| {
                if let Some(slot) = all.get_mut(count) {
                    *slot = (place, region.start, region.end);
                    count += 1;
                }
            });
        }
    }
}

fn note_io_apics(dmar: &Dmar) {
    let scopes = dmar.units().iter().flat_map(|unit| dmar.scopes(unit));
    for scope in scopes.filter(|scope| scope.kind == Kind::IoApic) {
        if let (Some(slot), Some(place)) = (
            IO_APICS.get(usize::from(scope.number)),
            scope.place(config::behind),
        ) {
            slot.store(u64::from(place) + 1, Ordering::Relaxed);
        }
    }
}

fn pack(features: Features) -> u64 {
    let order = features.page_order.map_or(0, |order| 1 << 7 | order);
    features.levels as u64
        | u64::from(features.large) << 8
        | u64::from(features.has_caching_mode) << 9
        | u64::from(order) << 16
        | u64::from(features.domains) << 32
}

fn unpack(packed: u64) -> Features {
    Features {
        levels: (packed & 0xff) as usize,
        large: packed >> 8 & 1 != 0,
        domains: (packed >> 32) as u16,
        has_caching_mode: packed >> 9 & 1 != 0,
        page_order: (packed >> 23 & 1 != 0).then_some((packed >> 16 & 0x7f) as u32),
    }
}

pub(crate) fn iommu_features() -> Option<Features> {
    match FEATURES.load(Ordering::Acquire) {
        0 => None,
        packed => Some(unpack(packed)),
    }
}

pub(crate) fn iommu_attach(
    device: Device,
    domain: DomainId,
    root: PhysAddr,
) -> Result<(), AttachError> {
    let unit = unit::unit_of(device.0).filter(|unit| !unit.is_absent());
    unit.ok_or(AttachError::NoUnit)?;
    if !config::has_own_number(device.0) {
        return Err(AttachError::SharedNumber);
    }
    let before = tables::set_context(device, Some((domain, root)));
    let before = before.map_err(|()| AttachError::NoContextTable)?;
    // In caching mode the absent entry was kept, under number 0.
    let before = before.unwrap_or(DomainId(0));
    unit::invalidate(&[
        Invalidation::Contexts(Some((device, before))),
        Invalidation::Iotlb(Stale::Domain(before)),
        Invalidation::Iotlb(Stale::Domain(domain)),
    ]);
    flush_write_buffer();
    Ok(())
}

pub(crate) fn iommu_detach(device: Device) {
    if let Ok(Some(before)) = tables::set_context(device, None) {
        unit::invalidate(&[
            Invalidation::Contexts(Some((device, before))),
            Invalidation::Iotlb(Stale::Domain(before)),
        ]);
    }
}

pub(crate) fn iommu_invalidate(stale: &[Stale]) {
    /// Invalidations that are submitted together.
    const AT_ONCE: usize = 32;
    for some in stale.chunks(AT_ONCE) {
        let mut invalidations = [Invalidation::Contexts(None); AT_ONCE];
        for (slot, stale) in invalidations.iter_mut().zip(some) {
            *slot = Invalidation::Iotlb(*stale);
        }
        unit::invalidate(&invalidations[..some.len()]);
    }
}

#[inline]
pub(crate) fn iommu_sync(at: PhysAddr, bytes: usize) {
    tables::sync(at, bytes);
    flush_write_buffer();
}

fn flush_write_buffer() {
    if NEEDS_WRITE_FLUSH.load(Ordering::Relaxed) {
        units().for_each(Unit::flush_write_buffer);
    }
}

pub(crate) fn iommu_take_fault() -> Option<Fault> {
    faults::take()
}

/// Takes faults in another interrupt, soon.
pub(crate) fn iommu_take_later() {
    faults::take_later();
}

/// Lets units not interrupt for faults any more; devices that are lost are reported all the same.
pub(crate) fn iommu_mask_faults() {
    faults::mask();
}

/// Faults that were not recorded, at least.
pub(crate) fn iommu_lost_faults() -> u64 {
    faults::lost()
}

/// Calls `each` with the ranges of addresses that a device uses on the firmware's behalf: they are
/// to be mapped for it, each at the same address.
pub(crate) fn iommu_reserved(Device(device): Device, mut each: impl FnMut(PhysAddr, PhysAddr)) {
    for (place, start, end) in RESERVED.with(|all| *all) {
        if place == device && start < end {
            each(PhysAddr(start), PhysAddr(end));
        }
    }
}

/// The units that the machine has.
pub(crate) fn iommu_units() -> impl Iterator<Item = UnitState> {
    let see = |unit: &Unit| UnitState {
        is_lost: unit.is_lost(),
        has_queue: unit.has_queue(),
        remaps_interrupts: tables::remaps_interrupts(),
    };
    units().map(see)
}

/// Takes bus mastering from a function for good. Returns false if it was taken before.
pub(crate) fn iommu_block(Device(place): Device) -> bool {
    config::block(place)
}

/// The message that makes a unit raise entry `index` of the table of interrupts.
fn handle(index: u16) -> u64 {
    const REMAPPED: u64 = 1 << 4;
    let (low, high) = (u64::from(index & 0x7fff), u64::from(index >> 15));
    0xfee0_0000 | low << 5 | REMAPPED | high << 2
}

fn set_interrupt(index: u16, interrupt: &Interrupt) {
    tables::set_interrupt(index, interrupt, WIDE.load(Ordering::Relaxed));
    unit::invalidate(&[Invalidation::Interrupts(Some(index))]);
    flush_write_buffer();
}

/// The message with which the function at `source`, and no other, calls `number`'s handler; `None`
/// where interrupts are not remapped.
pub(super) fn message(number: u16, vector: u8, to: u32, source: u16) -> Option<Message> {
    if !tables::remaps_interrupts() {
        return None;
    }
    // An entry names CPUs with numbers below 256 only, unless it is wide.
    let is_known = WIDE.load(Ordering::Relaxed) || to < 256;
    let to = if is_known { to } else { apic::id_of(0) };
    let interrupt = Interrupt {
        vector,
        to,
        source: Some(source),
        is_level: false,
    };
    set_interrupt(number, &interrupt);
    Some(Message {
        address: handle(number),
        data: 0,
    })
}

/// The upper half of the I/O APIC's entry for a line, and its bit in the lower one; `None` where
/// interrupts are not remapped.
pub(crate) fn legacy(
    io_apic: u32,
    line: u8,
    vector: u8,
    to: u32,
    is_level: bool,
) -> Option<[u32; 2]> {
    if !tables::remaps_interrupts() {
        return None;
    }
    let index = FIRST_LEGACY + u16::from(line & 15);
    let place = IO_APICS.get(io_apic as usize)?.load(Ordering::Relaxed);
    let interrupt = Interrupt {
        vector,
        to,
        source: place.checked_sub(1).map(|place| place as u16),
        is_level,
    };
    set_interrupt(index, &interrupt);
    Some([
        u32::from(index) << 17 | 1 << 16,
        u32::from(index >> 15) << 11,
    ])
}
