//! The tables that units read: the root table, a context table for each bus, the table of
//! interrupts. All units share them: a device is behind one of them.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};

use super::super::cpu::write_back_caches;
use super::super::gate::Gate;
use super::super::layout::ptr;
use crate::hw::handlers;
use crate::hw::iommu::{Device, DomainId};
use crate::{PAGE_SIZE, PhysAddr};

/// The root table; 0 before the units start.
static ROOT: AtomicU64 = AtomicU64::new(0);
/// The table of interrupts; 0 where they are not remapped.
static INTERRUPTS: AtomicU64 = AtomicU64::new(0);
/// Levels of page tables.
static LEVELS: AtomicU8 = AtomicU8::new(0);
/// Whether all units snoop the CPUs' caches when they read tables.
static COHERENT: AtomicBool = AtomicBool::new(true);
/// One CPU at a time changes an entry.
static CHANGE: Gate<()> = Gate::new(());

const PRESENT: u64 = 1;
/// Entries of the table of interrupts, as a power of two: a frame of them.
const INTERRUPTS_ORDER: u64 = 8;

/// An entry of any of these tables.
type Entry = [u64; 2];

/// Sets the format that all units share.
pub fn set_format(levels: usize, is_coherent: bool) {
    LEVELS.store(levels as u8, Ordering::Relaxed);
    COHERENT.store(is_coherent, Ordering::Relaxed);
}

fn new_table() -> Option<PhysAddr> {
    let table = handlers::take_kernel_frame()?;
    // SAFETY: the frame was just taken.
    unsafe { ptr(table).write_bytes(0, PAGE_SIZE) };
    sync(table, PAGE_SIZE);
    Some(table)
}

/// Lets units see stores to a table: writes cache lines back that units do not snoop.
pub fn sync(at: PhysAddr, bytes: usize) {
    if COHERENT.load(Ordering::Relaxed) {
        fence(Ordering::SeqCst);
    } else {
        write_back_caches(ptr(at), bytes);
    }
}

/// An entry of a table, 256 of which fill a frame.
struct Slot(PhysAddr);

impl Slot {
    fn of(table: u64, index: usize) -> Slot {
        debug_assert!(table != 0 && index < 256);
        Slot(PhysAddr(table + 16 * index as u64))
    }

    fn read(&self) -> Entry {
        // SAFETY: inside a table, which is never freed; only `set` writes it.
        unsafe { ptr(self.0).cast::<Entry>().read_volatile() }
    }

    /// Changes the entry by a state in which it is absent, which is seen before the new one.
    fn set(&self, [low, high]: Entry) {
        let at: *mut u64 = ptr(self.0).cast();
        // SAFETY: as above; the caller is alone. Units read the halves in any order, and nothing
        // while the entry is absent.
        unsafe {
            at.write_volatile(0);
            sync(self.0, 16);
            at.add(1).write_volatile(high);
            sync(self.0, 16);
            at.write_volatile(low);
            sync(self.0, 16);
        }
    }
}

/// Makes the root table, and a context table for each of these buses. `None` without memory.
pub fn make(buses: impl Iterator<Item = u8>) -> Option<PhysAddr> {
    let root = new_table()?;
    for bus in buses {
        let contexts = new_table()?;
        Slot::of(root.0, bus.into()).set([contexts.0 | PRESENT, 0]);
    }
    ROOT.store(root.0, Ordering::Relaxed);
    Some(root)
}

/// Makes the table of interrupts; returns the value of a unit's register for it.
pub fn make_interrupts() -> Option<u64> {
    let table = new_table()?;
    INTERRUPTS.store(table.0, Ordering::Relaxed);
    Some(table.0 | (INTERRUPTS_ORDER - 1))
}

/// Whether interrupts are remapped.
pub fn remaps_interrupts() -> bool {
    INTERRUPTS.load(Ordering::Relaxed) != 0
}

fn contexts(bus: u8) -> Option<u64> {
    let root = ROOT.load(Ordering::Relaxed);
    if root == 0 {
        return None;
    }
    let [low, _] = Slot::of(root, bus.into()).read();
    (low & PRESENT != 0).then_some(low & !PRESENT)
}

/// Gives a device the tables below `root`, or nothing. Returns the domain that it had; an error if
/// its bus has no table.
pub fn set_context(
    Device(place): Device,
    to: Option<(DomainId, PhysAddr)>,
) -> Result<Option<DomainId>, ()> {
    let contexts = contexts((place >> 8) as u8).ok_or(())?;
    let slot = Slot::of(contexts, usize::from(place & 0xff));
    let entry = to.map_or([0, 0], |(DomainId(domain), root)| {
        // 1 for 3 levels; requests that are not translated yet only.
        let width = LEVELS.load(Ordering::Relaxed) as u64 - 2;
        [root.0 | PRESENT, u64::from(domain) << 8 | width]
    });
    CHANGE.with(|()| {
        let [low, high] = slot.read();
        slot.set(entry);
        Ok((low & PRESENT != 0).then_some(DomainId((high >> 8) as u16)))
    })
}

/// An interrupt as a device may raise it.
pub struct Interrupt {
    pub vector: u8,
    /// The local APIC that takes it.
    pub to: u32,
    /// The device that may raise it, alone; all if it is not known.
    pub source: Option<u16>,
    pub is_level: bool,
}

/// Sets an entry of the table of interrupts.
pub fn set_interrupt(index: u16, interrupt: &Interrupt, is_wide: bool) {
    let to = if is_wide {
        u64::from(interrupt.to)
    } else {
        u64::from(interrupt.to & 0xff) << 8
    };
    let level = u64::from(interrupt.is_level) << 4;
    let low = PRESENT | level | u64::from(interrupt.vector) << 16 | to << 32;
    // 1: all bits of the source are compared.
    let high = interrupt
        .source
        .map_or(0, |source| u64::from(source) | 1 << 18);
    let slot = Slot::of(INTERRUPTS.load(Ordering::Relaxed), index.into());
    CHANGE.with(|()| slot.set([low, high]));
}
