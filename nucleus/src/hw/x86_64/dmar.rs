//! The firmware's table of remapping units (DMAR): where their registers are, which devices are
//! behind each, and which memory a device uses on the firmware's behalf.
//!
//! Read once at boot into [`Dmar`], which has room for a machine of ordinary size. Nothing in the
//! table is trusted: an entry that makes no sense, or for which there is no room, is left out and
//! counted, and a scope's path is walked through bridges that exist. A unit, or a device of one,
//! that is left out is told apart: which unit takes the rest of the devices is not known then.

use core::ops::Range;

use super::bytes::{u16_at, u64_at};

/// Of the table behind the header: width, flags, ten reserved bytes.
const FIRST: usize = 48;
const FLAGS: usize = 37;
pub const MAX_UNITS: usize = 16;
const MAX_REGIONS: usize = 16;
/// Of all units and regions together.
pub const MAX_SCOPES: usize = 96;
/// Bridges on the way to a device, and the device.
const MAX_PATH: usize = 8;
const PAGE: u64 = 4096;
/// One past the last physical address.
const TOP: u64 = 1 << 52;
/// The interrupt controllers, registers of units mostly, and the firmware's ROM.
const PLATFORM: Range<u64> = 0xfec0_0000..0x1_0000_0000;
/// The largest region that is believed: frame buffers have some hundred MiB.
const LARGEST_REGION: u64 = 1 << 30;

/// What a scope names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A function that is no bridge.
    Endpoint,
    /// A bridge with all that is behind it.
    Bridge,
    /// The I/O APIC with this number.
    IoApic,
    /// A timer that sends messages.
    Timer,
}

/// A device, or a bridge with the devices behind it, by the way to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scope {
    pub kind: Kind,
    /// The number of an I/O APIC or timer.
    pub number: u8,
    bus: u8,
    /// Device in bits 7..3, function in 2..0.
    path: [u8; MAX_PATH],
    len: usize,
}

impl Scope {
    const NONE: Scope = Scope {
        kind: Kind::Endpoint,
        number: 0,
        bus: 0,
        path: [0; MAX_PATH],
        len: 0,
    };

    fn read(entry: &[u8]) -> Option<Scope> {
        let kind = match *entry.first()? {
            1 => Kind::Endpoint,
            2 => Kind::Bridge,
            3 => Kind::IoApic,
            4 => Kind::Timer,
            _ => return None,
        };
        let steps = entry.get(6..).filter(|steps| !steps.is_empty())?;
        let len = steps.len() / 2;
        let mut scope = Scope {
            kind,
            number: entry[4],
            bus: entry[5],
            path: [0; MAX_PATH],
            len,
        };
        let path = scope.path.get_mut(..len).filter(|path| !path.is_empty())?;
        for (to, step) in path.iter_mut().zip(steps.chunks_exact(2)) {
            if step[0] >= 32 || step[1] >= 8 {
                return None;
            }
            *to = step[0] << 3 | step[1];
        }
        Some(scope)
    }

    /// Walks the path: the place of the device or bridge. `behind` returns the first and the last
    /// bus behind the bridge at a place, if there is one.
    pub fn place(&self, behind: impl Fn(u16) -> Option<(u8, u8)>) -> Option<u16> {
        let (last, bridges) = self.path[..self.len].split_last()?;
        let mut bus = self.bus;
        for &bridge in bridges {
            bus = behind(u16::from(bus) << 8 | u16::from(bridge))?.0;
        }
        Some(u16::from(bus) << 8 | u16::from(*last))
    }
}

/// A remapping unit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unit {
    /// Physical address of its registers.
    pub registers: u64,
    /// Whether all devices are behind it that no other unit's scopes name.
    pub takes_rest: bool,
    scopes: Range<usize>,
}

/// Memory that devices use on the firmware's behalf, in whole pages: it stays reachable for them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reserved {
    pub start: u64,
    pub end: u64,
    scopes: Range<usize>,
}

/// The table.
pub struct Dmar {
    flags: u8,
    units: [Unit; MAX_UNITS],
    unit_count: usize,
    regions: [Reserved; MAX_REGIONS],
    region_count: usize,
    scopes: [Scope; MAX_SCOPES],
    scope_count: usize,
    /// Entries that were left out.
    pub left_out: usize,
    /// Some of them said which devices are behind which unit.
    pub lacks_units: bool,
}

impl Dmar {
    /// No table: no units.
    pub const NONE: Dmar = Dmar {
        flags: 0,
        units: [const {
            Unit {
                registers: 0,
                takes_rest: false,
                scopes: 0..0,
            }
        }; MAX_UNITS],
        unit_count: 0,
        regions: [const {
            Reserved {
                start: 0,
                end: 0,
                scopes: 0..0,
            }
        }; MAX_REGIONS],
        region_count: 0,
        scopes: [Scope::NONE; MAX_SCOPES],
        scope_count: 0,
        left_out: 0,
        lacks_units: false,
    };

    /// Reads a table, whose sum is right.
    pub fn read(table: &[u8]) -> Dmar {
        let mut dmar = Dmar::NONE;
        dmar.flags = table.get(FLAGS).copied().unwrap_or(0);
        let mut rest = table.get(FIRST..).unwrap_or(&[]);
        while let (Some(kind), Some(length)) = (u16_at(rest, 0), u16_at(rest, 2)) {
            let is_entry = length >= 4;
            let Some((entry, others)) = rest.split_at_checked(length.into()).filter(|_| is_entry)
            else {
                break;
            };
            rest = others;
            let read = match kind {
                0 => dmar.add_unit(entry),
                1 => dmar.add_region(entry),
                // Address translation services, affinities, names: not used.
                _ => Some(()),
            };
            dmar.left_out += usize::from(read.is_none());
        }
        // What is left has no entry's length: units may have been there.
        if !rest.is_empty() {
            dmar.left_out += 1;
            dmar.lacks_units = true;
        }
        dmar.leave_out_regions_of_units();
        dmar
    }

    /// Leaves out regions with registers of units: those come before or behind.
    fn leave_out_regions_of_units(&mut self) {
        let mut kept = 0;
        for at in 0..self.region_count {
            let region = self.regions[at].clone();
            let has = |unit: &Unit| (region.start..region.end).contains(&unit.registers);
            if self.units().iter().any(has) {
                self.left_out += 1;
            } else {
                self.regions[kept] = region;
                kept += 1;
            }
        }
        self.region_count = kept;
    }

    fn add_unit(&mut self, entry: &[u8]) -> Option<()> {
        let (Some(segment), Some(registers)) = (u16_at(entry, 6), u64_at(entry, 8)) else {
            self.lacks_units = true;
            return None;
        };
        let is_known = self.units().iter().any(|unit| unit.registers == registers);
        // Of devices that the kernel does not find either.
        if segment != 0 {
            return None;
        }
        let is_sound = registers != 0 && registers % PAGE == 0 && registers < TOP && !is_known;
        let slot = self.unit_count;
        if !is_sound || slot == MAX_UNITS {
            self.lacks_units = true;
            return None;
        }
        let (scopes, is_whole) = self.add_scopes(entry.get(16..)?);
        self.lacks_units |= !is_whole;
        let unit = Unit {
            registers,
            takes_rest: entry[4] & 1 != 0,
            scopes,
        };
        self.units[slot] = unit;
        self.unit_count += 1;
        Some(())
    }

    fn add_region(&mut self, entry: &[u8]) -> Option<()> {
        let (segment, start) = (u16_at(entry, 6)?, u64_at(entry, 8)?);
        let end = u64_at(entry, 16)?.checked_add(1)?;
        let is_whole = start % PAGE == 0 && end % PAGE == 0;
        let is_sound = start < end && end <= TOP && end - start <= LARGEST_REGION;
        let is_platform = start < PLATFORM.end && PLATFORM.start < end;
        if segment != 0 || !is_whole || !is_sound || is_platform {
            return None;
        }
        let slot = self.region_count;
        self.regions.get(slot)?;
        let (scopes, _) = self.add_scopes(entry.get(24..)?);
        self.regions[slot] = Reserved { start, end, scopes };
        self.region_count += 1;
        Some(())
    }

    /// Returns whether no PCI function was left out, too.
    fn add_scopes(&mut self, mut rest: &[u8]) -> (Range<usize>, bool) {
        let first = self.scope_count;
        let mut is_whole = true;
        while let Some(&length) = rest.get(1) {
            let Some((entry, others)) = rest.split_at_checked(usize::from(length).max(6)) else {
                self.left_out += 1;
                is_whole = false;
                break;
            };
            rest = others;
            match (Scope::read(entry), self.scopes.get_mut(self.scope_count)) {
                (Some(scope), Some(slot)) => {
                    *slot = scope;
                    self.scope_count += 1;
                }
                _ => {
                    self.left_out += 1;
                    is_whole &= !matches!(entry[0], 1..=2);
                }
            }
        }
        (first..self.scope_count, is_whole)
    }

    /// The units, in the table's order.
    pub fn units(&self) -> &[Unit] {
        &self.units[..self.unit_count]
    }

    /// The devices that a unit's entry names.
    pub fn scopes(&self, unit: &Unit) -> &[Scope] {
        &self.scopes[unit.scopes.clone()]
    }

    /// The regions, in the table's order.
    pub fn regions(&self) -> &[Reserved] {
        &self.regions[..self.region_count]
    }

    /// The devices that use a region.
    pub fn users(&self, region: &Reserved) -> &[Scope] {
        &self.scopes[region.scopes.clone()]
    }

    /// Whether the firmware supports the remapping of interrupts.
    pub fn remaps_interrupts(&self) -> bool {
        self.flags & 1 != 0
    }

    /// Whether the firmware asks the kernel not to turn x2APIC mode on.
    pub fn refuses_x2apic(&self) -> bool {
        self.flags & 3 == 3
    }
}
