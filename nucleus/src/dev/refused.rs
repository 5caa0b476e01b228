//! Accesses of devices that remapping units refused.
//!
//! Each is counted for its device and, as long as there are few, written to the log. A device that
//! goes on loses bus mastering: it reaches nothing any more, and the queues of its driver
//! [fail](super::dma::report_lost). This holds for the first [`DEVICES`] that have any. All else,
//! from more devices or from those that were blocked, has one count; when that is too much, units
//! interrupt for faults no more, and go on refusing.

use crate::hw::iommu::{Device, Fault};
use crate::mem::mistake::Mistake;

/// Devices that are told apart; faults of more are counted together.
const DEVICES: usize = 32;
/// More faults of a device than this in a [`WINDOW`] are too many: a driver or a device that is
/// wrong now and then makes a few, one that is driven to it as many as it can.
const MOST: u32 = 32;
/// More faults than this in a [`WINDOW`] of devices that nothing more can be done about are too
/// many: the faults recorded already when a device is blocked are some hundred.
const MOST_OTHERS: u32 = 4096;
/// Lines of the log in a [`WINDOW`].
const LINES: u32 = 20;
/// In nanoseconds.
const WINDOW: u64 = 10_000_000_000;

/// The faults of a device.
#[derive(Clone, Copy, Debug)]
struct Count {
    device: Device,
    total: u64,
    rate: Rate,
    is_blocked: bool,
}

/// Events since a window began.
#[derive(Clone, Copy, Debug)]
struct Rate {
    since: u64,
    events: u32,
}

impl Rate {
    const NONE: Rate = Rate {
        since: 0,
        events: 0,
    };

    /// Counts an event; returns how many there were in this window.
    fn add(&mut self, now: u64) -> u32 {
        if self.events == 0 || now.saturating_sub(self.since) >= WINDOW {
            *self = Rate {
                since: now,
                events: 0,
            };
        }
        self.events = self.events.saturating_add(1);
        self.events
    }
}

/// The counts of all devices.
pub(crate) struct Counts {
    known: [Option<Count>; DEVICES],
    /// Of all other devices, and of those that are blocked.
    others: Rate,
    is_flooded: bool,
    lines: Rate,
}

/// The consequences of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Verdict {
    /// It is worth a line.
    pub is_told: bool,
    /// It is the last line of this window.
    pub is_last_line: bool,
    /// The device has made too many, for the first time.
    pub is_too_many: bool,
    /// There were too many of devices that nothing can be done about, for the first time.
    pub is_flood: bool,
}

impl Counts {
    pub(crate) const fn new() -> Counts {
        Counts {
            known: [None; DEVICES],
            others: Rate::NONE,
            is_flooded: false,
            lines: Rate::NONE,
        }
    }

    /// Counts a fault at a time in nanoseconds.
    pub(crate) fn add(&mut self, fault: &Fault, now: u64) -> Verdict {
        let device = fault.device;
        let is_its = |count: &Option<Count>| count.is_none_or(|it| it.device == device);
        let mut is_too_many = false;
        let mut is_other = true;
        if let Some(slot) = self.known.iter_mut().find(|slot| is_its(slot)) {
            let count = slot.get_or_insert(Count {
                device,
                total: 0,
                rate: Rate::NONE,
                is_blocked: false,
            });
            count.total += 1;
            is_other = count.is_blocked;
            is_too_many = count.rate.add(now) > MOST && !count.is_blocked;
            is_too_many &= !Mistake::FaultsUnlimited.is_made();
            count.is_blocked |= is_too_many;
        }
        let is_flood = is_other && self.others.add(now) > MOST_OTHERS && !self.is_flooded;
        self.is_flooded |= is_flood;
        let lines = self.lines.add(now);
        Verdict {
            is_told: lines <= LINES,
            is_last_line: lines == LINES,
            is_too_many,
            is_flood,
        }
    }

    /// The devices with their faults, and whether they were too many.
    fn all(&self) -> impl Iterator<Item = (Device, u64, bool)> {
        let known = self.known.iter().flatten();
        known.map(|it| (it.device, it.total, it.is_blocked))
    }
}

#[cfg(target_os = "none")]
pub(crate) use machine::{all, on_faults};

/// The simulated machine's faults are its oracle's.
#[cfg(not(target_os = "none"))]
pub(crate) fn all() -> alloc::vec::Vec<(Device, u64, bool)> {
    alloc::vec::Vec::new()
}

#[cfg(target_os = "none")]
mod machine {
    use alloc::vec::Vec;

    use super::*;
    use crate::dev::dma;
    use crate::hw::counters::Counter;
    use crate::hw::machine;
    use crate::lock::{Rank, SpinLock};

    static COUNTS: SpinLock<Counts> = SpinLock::new(Rank::Leaf, Counts::new());

    /// Takes the faults of units. In an interrupt, some at once: for the others another one comes.
    pub(crate) fn on_faults() {
        const MOST_AT_ONCE: usize = 64;
        for _ in 0..MOST_AT_ONCE {
            match machine::iommu_take_fault() {
                Some(fault) => on_fault(&fault),
                None => return,
            }
        }
        // Units do not interrupt again for faults that were taken out of their records meanwhile.
        machine::iommu_take_later();
    }

    fn on_fault(fault: &Fault) {
        let device = fault.device;
        if fault.reason == Fault::UNIT_LOST {
            crate::log!("IOMMU: {device} is lost: {}", fault.words());
            return dma::report_lost(device);
        }
        Counter::iommu_faults.add(1);
        let verdict = COUNTS.lock_irq().add(fault, machine::nanoseconds());
        if verdict.is_told {
            let (what, words) = (fault.address, fault.words());
            match (fault.is_interrupt(), fault.is_write) {
                (true, _) => crate::log!("IOMMU: {device} may not interrupt ({what}): {words}"),
                (_, true) => crate::log!("IOMMU: {device} may not write {what:#x}: {words}"),
                (_, false) => crate::log!("IOMMU: {device} may not read {what:#x}: {words}"),
            }
        }
        if verdict.is_last_line {
            crate::log!("IOMMU: more of these are only counted for some seconds");
        }
        if verdict.is_too_many {
            crate::log!("IOMMU: {device} does too much that it may not: it is no bus master now");
            if !Mistake::BusMasterKept.is_made() {
                machine::iommu_block(device);
            }
            dma::report_lost(device);
        }
        if verdict.is_flood {
            crate::log!("IOMMU: there are too many of these: more are not reported");
            machine::iommu_mask_faults();
        }
    }

    /// The devices with their faults, and whether they were too many.
    pub(crate) fn all() -> Vec<(Device, u64, bool)> {
        let mut found = Vec::with_capacity(DEVICES);
        found.extend(COUNTS.lock_irq().all());
        found
    }
}

#[cfg(all(test, not(target_os = "none")))]
mod tests {
    use super::*;

    fn fault(device: u16) -> Fault {
        Fault {
            device: Device(device),
            address: 0x1000,
            is_write: true,
            reason: 5,
        }
    }

    #[test]
    fn a_device_with_many_faults_is_told_once() {
        let mut counts = Counts::new();
        let mut too_many = 0;
        for n in 0..1000 {
            let verdict = counts.add(&fault(8), n);
            assert_eq!(verdict.is_told, n < LINES.into());
            too_many += u32::from(verdict.is_too_many);
        }
        assert_eq!(too_many, 1);
        // Another one is not blamed for it, and in time nor is the log quiet for good.
        let verdict = counts.add(&fault(9), WINDOW);
        assert!(verdict.is_told && !verdict.is_too_many);
        let all: Vec<_> = counts.all().collect();
        assert_eq!(all, [(Device(8), 1000, true), (Device(9), 1, false)]);
    }

    #[test]
    fn what_cannot_be_ended_is_silenced_once() {
        // Devices beyond the known ones, and one that goes on though it is blocked.
        let storms: [fn(u32) -> u16; 2] = [|n| n as u16, |_| 8];
        for device in storms {
            let mut counts = Counts::new();
            let mut floods = (0..40_000).filter(|&n| {
                let fault = fault(device(n));
                counts.add(&fault, n.into()).is_flood
            });
            let first = floods.next().expect("a flood");
            assert!((MOST_OTHERS..MOST_OTHERS + 64).contains(&first), "{first}");
            assert_eq!(floods.next(), None);
        }
    }

    #[test]
    fn a_few_faults_now_and_then_are_borne() {
        let mut counts = Counts::new();
        for n in 0..10_000u64 {
            let now = n / u64::from(MOST) * WINDOW;
            assert!(!counts.add(&fault(8), now).is_too_many, "{n}");
        }
    }

    #[test]
    fn more_devices_than_are_known_do_no_harm() {
        let mut counts = Counts::new();
        for place in 0..1000 {
            counts.add(&fault(place), 0);
        }
        assert_eq!(counts.all().count(), DEVICES);
    }
}
