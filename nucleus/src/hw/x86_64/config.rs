//! The configuration space of PCI functions, by its two ports: 256 bytes a function.
//!
//! A function that was [blocked](block) is no bus master any more, and none that is asked for
//! later makes it one.

use super::gate::Gate;
use super::port::{in32, out32};
use crate::hw::places::Places;

/// Guards the two ports together.
static PORTS: Gate<()> = Gate::new(());

const ADDRESS: u16 = 0xcf8;
const DATA: u16 = 0xcfc;

pub const COMMAND: u8 = 4;
pub const BUS_MASTER: u32 = 1 << 2;
const HEADER: u8 = 0xc;
const BUSES: u8 = 0x18;

/// Functions that are blocked.
static BLOCKED: Places = Places::new();

/// The value for the address port: `function` is bus, device and function in bits 15..0.
fn address(function: u16, register: u8) -> u32 {
    1 << 31 | u32::from(function) << 8 | u32::from(register & !3)
}

/// Reads a 32-bit register; all ones where there is nothing.
pub fn read(function: u16, register: u8) -> u32 {
    PORTS.with(|()| {
        // SAFETY: the registers of the configuration space can be read without an effect on memory.
        unsafe {
            out32(ADDRESS, address(function, register));
            in32(DATA)
        }
    })
}

/// Writes a 32-bit register.
///
/// # Safety
/// What the function does afterwards must break no invariant of the kernel's memory: it may decode
/// addresses that nothing else uses, and reach memory only as its driver tells it to.
pub unsafe fn write(function: u16, register: u8, value: u32) {
    PORTS.with(|()| {
        // Looked up inside: a `block` comes before this write, or waits for it.
        let is_command = register & !3 == COMMAND;
        let value = match is_command && is_blocked(function) {
            true => value & !BUS_MASTER,
            false => value,
        };
        // SAFETY: the caller answers for the effect.
        unsafe {
            out32(ADDRESS, address(function, register));
            out32(DATA, value);
        }
    });
}

/// Whether a function was [blocked](block).
pub fn is_blocked(function: u16) -> bool {
    BLOCKED.contains(function)
}

/// Disables bus mastering of a function for good: when this returns, the function reaches no memory
/// and sends no messages. Returns false if an earlier call has disabled it.
pub fn block(function: u16) -> bool {
    PORTS.with(|()| {
        if BLOCKED.contains(function) {
            return false;
        }
        // SAFETY: the function does less than before; the upper half's bits are cleared by ones.
        unsafe {
            out32(ADDRESS, address(function, COMMAND));
            let command = in32(DATA);
            out32(DATA, command & 0xffff & !BUS_MASTER);
            // The answer comes behind what the function has written to memory.
            in32(DATA);
        }
        // After the register is written, so that a reader of the list finds it true.
        BLOCKED.insert(function);
        true
    })
}

/// Whether there is a function.
pub fn exists(function: u16) -> bool {
    read(function, 0) as u16 != u16::MAX
}

/// The first and the last bus behind a bridge, as the firmware has numbered them; `None` if there
/// is no bridge, or the numbers make no sense.
pub fn behind(function: u16) -> Option<(u8, u8)> {
    let is_bridge = exists(function) && read(function, HEADER) >> 16 & 0x7f == 1;
    if !is_bridge {
        return None;
    }
    let [_, first, last, _] = read(function, BUSES).to_le_bytes();
    let bus = (function >> 8) as u8;
    (first > bus && last >= first).then_some((first, last))
}

/// The capability of PCI Express, and what it says of the kind of a bridge: a port of the root or
/// of a switch.
const EXPRESS: u8 = 0x10;
const PORTS_OF_EXPRESS: core::ops::RangeInclusive<u32> = 4..=6;

/// The first word of a capability of a function.
fn capability(function: u16, wanted: u8) -> Option<u32> {
    const STATUS: u8 = 4;
    const HAS_LIST: u32 = 1 << 20;
    const FIRST: u8 = 0x34;
    let mut at = match read(function, STATUS) & HAS_LIST {
        0 => return None,
        _ => read(function, FIRST) as u8,
    };
    // No function has more of them, unless its list is a circle.
    for _ in 0..48 {
        if at < 0x40 {
            break;
        }
        let word = read(function, at);
        if word as u8 == wanted {
            return Some(word);
        }
        at = (word >> 8) as u8;
    }
    None
}

/// Whether a function's requests come to the units with the function's own number. Behind a bridge
/// to conventional PCI they come with one that all functions there share.
pub fn has_own_number(function: u16) -> bool {
    let bus = (function >> 8) as u8;
    let is_port = |bridge| {
        let express = capability(bridge, EXPRESS);
        express.is_some_and(|word| PORTS_OF_EXPRESS.contains(&(word >> 20 & 0xf)))
    };
    let buses = buses();
    let mut has = true;
    for above in (0..bus).filter(|&it| buses[usize::from(it)]) {
        functions(above, |place| {
            let leads = behind(place).is_some_and(|(first, last)| (first..=last).contains(&bus));
            has &= !leads || is_port(place);
        });
    }
    has
}

/// Calls `each` with every function of a bus.
pub fn functions(bus: u8, mut each: impl FnMut(u16)) {
    for device in 0..32u16 {
        let first = u16::from(bus) << 8 | device << 3;
        if !exists(first) {
            continue;
        }
        let has_more = read(first, HEADER) >> 23 & 1 != 0;
        let count = if has_more { 8 } else { 1 };
        (first..first + count)
            .filter(|&it| exists(it))
            .for_each(&mut each);
    }
}

/// The buses that functions are on, by the bridges.
pub fn buses() -> [bool; 256] {
    let mut found = [false; 256];
    let mut looked = [false; 256];
    found[0] = true;
    while let Some(bus) = (0..256).find(|&bus| found[bus] && !looked[bus]) {
        looked[bus] = true;
        functions(bus as u8, |place| {
            if let Some((first, _)) = behind(place) {
                found[usize::from(first)] = true;
            }
        });
    }
    found
}
