//! The PCI bus: which functions there are, their registers' addresses, and their interrupts as
//! messages (MSI-X).

mod window;

use alloc::{boxed::Box, vec::Vec};

use virtio_drivers::transport::pci::bus::{
    BarInfo, Command, ConfigurationAccess, DeviceFunction, DeviceFunctionInfo, HeaderType, PciRoot,
};

use super::functions::{self, AssignError, BARS, Bar};
use super::interrupts;
use super::owners::OWNERS;
use crate::hw::{
    machine,
    x86_64::config::{self, read as read_word, write as write_word},
};
use crate::mem::device::{Caching, DeviceMemory};
use crate::{PAGE_SHIFT, PAGE_SIZE};

/// The configuration space.
pub(crate) struct Configuration;

/// Bus in bits 15..8, device in 7..3, function in 2..0.
pub(crate) fn place(at: DeviceFunction) -> u16 {
    u16::from(at.bus) << 8 | u16::from(at.device & 31) << 3 | u16::from(at.function & 7)
}

impl ConfigurationAccess for Configuration {
    fn read_word(&self, at: DeviceFunction, register: u8) -> u32 {
        read_word(place(at), register)
    }

    fn write_word(&mut self, at: DeviceFunction, register: u8, value: u32) {
        // SAFETY: only this module and the crate's transport have a `Configuration`; they write
        // command bits and base addresses, which are restored or come from `window`, where nothing
        // else is.
        unsafe { write_word(place(at), register, value) }
    }

    unsafe fn unsafe_clone(&self) -> Self {
        Configuration
    }
}

/// A function that has one owner.
pub(crate) struct Function {
    pub at: DeviceFunction,
}

/// Identity of functions: vendor in the low half, device in the high one.
pub(crate) type Identity = u32;

const MSIX: u8 = 0x11;

/// The root of the bus.
pub(crate) fn root() -> PciRoot<Configuration> {
    PciRoot::new(Configuration)
}

/// All functions, those behind bridges too.
fn all() -> Vec<(DeviceFunction, Identity)> {
    let identity =
        |it: &DeviceFunctionInfo| u32::from(it.device_id) << 16 | u32::from(it.vendor_id);
    let found = all_with_info().into_iter();
    found.map(|(at, info)| (at, identity(&info))).collect()
}

fn all_with_info() -> Vec<(DeviceFunction, DeviceFunctionInfo)> {
    let root = root();
    let mut buses = alloc::vec![0u8];
    let mut found = Vec::new();
    let mut next = 0;
    while let Some(&bus) = buses.get(next) {
        next += 1;
        for (at, info) in root.enumerate_bus(bus) {
            found.push((at, info.clone()));
            if info.header_type == HeaderType::PciPciBridge {
                // What the firmware left may be a cycle.
                if let Some((behind, _)) = config::behind(place(at))
                    && !buses.contains(&behind)
                {
                    buses.push(behind);
                }
            }
        }
    }
    found
}

/// Describes all functions that are no bridges, in the order of their places.
pub(super) fn describe_all() -> Vec<functions::Function> {
    let mut found = all_with_info();
    found.retain(|(_, info)| info.header_type == HeaderType::Standard);
    found.sort_by_key(|(at, _)| place(*at));
    let describe = |(at, info): (DeviceFunction, DeviceFunctionInfo)| {
        let mut root = root();
        // It decodes nothing while its registers hold other addresses.
        let (_, command) = root.get_status_command(at);
        root.set_command(at, command - Command::MEMORY_SPACE - Command::IO_SPACE);
        let bars = root.bars(at).unwrap_or_default();
        root.set_command(at, command);
        let mut described = [None; BARS];
        for (to, bar) in described.iter_mut().zip(&bars) {
            *to = bar.as_ref().map(bar_of).filter(|bar| bar.size > 0);
        }
        let class = [info.class, info.subclass, info.prog_if].map(u32::from);
        functions::Function {
            place: place(at),
            vendor: info.vendor_id,
            device: info.device_id,
            class: class[0] << 16 | class[1] << 8 | class[2],
            revision: info.revision,
            bars: described,
        }
    };
    found.into_iter().map(describe).collect()
}

fn bar_of(info: &BarInfo) -> Bar {
    let (address, size, is_ports, is_prefetchable) = match *info {
        BarInfo::Memory {
            address,
            size,
            prefetchable,
            ..
        } => (address, size, false, prefetchable),
        BarInfo::IO { address, size } => (address.into(), size.into(), true, false),
    };
    Bar {
        address,
        size,
        is_ports,
        is_wide: info.takes_two_entries(),
        is_prefetchable,
    }
}

/// Assigns a function to programs: no driver takes it until they have released it. It decodes
/// memory, but can't reach the machine's, so that a program which has its registers reaches no
/// memory through it, and can't make it send messages.
pub(super) fn assign(function: u16) -> Result<(), AssignError> {
    OWNERS.lock().assign(function)?;
    let at = DeviceFunction {
        bus: (function >> 8) as u8,
        device: (function >> 3) as u8 & 31,
        function: function as u8 & 7,
    };
    // By each program anew: one that has it already may not have come so far.
    let mut root = root();
    let (_, command) = root.get_status_command(at);
    let wanted = Command::MEMORY_SPACE | Command::INTERRUPT_DISABLE;
    root.set_command(at, (command | wanted) - Command::BUS_MASTER);
    Ok(())
}

/// Takes the functions of these identities that have no owner, in the order of their places.
pub(crate) fn take(wanted: &[Identity]) -> Vec<Function> {
    let mut found = all();
    found.retain(|(_, identity)| wanted.contains(identity));
    found.sort_by_key(|(at, _)| place(*at));
    let mut owners = OWNERS.lock();
    found.retain(|(at, _)| owners.take(place(*at)));
    drop(owners);
    found.into_iter().map(|(at, _)| Function { at }).collect()
}

impl Function {
    /// Lets the function decode its memory and reach the machine's, with every base address set.
    /// False if one can't be set, or the function was kept from memory for good.
    pub(crate) fn enable(&mut self) -> bool {
        if config::is_blocked(place(self.at)) {
            return false;
        }
        let mut root = root();
        let Ok(bars) = root.bars(self.at) else {
            return false;
        };
        for (index, bar) in bars.iter().enumerate() {
            if let Some(BarInfo::Memory {
                address: 0, size, ..
            }) = bar
            {
                let wide = bar.as_ref().is_some_and(BarInfo::takes_two_entries);
                if !self.place_bar(&mut root, index as u8, wide, *size) {
                    return false;
                }
            }
        }
        let (_, command) = root.get_status_command(self.at);
        // No interrupt by line: messages or none.
        let wanted = Command::MEMORY_SPACE | Command::BUS_MASTER | Command::INTERRUPT_DISABLE;
        root.set_command(self.at, command | wanted);
        true
    }

    /// Gives a base address register that the firmware left empty an address.
    fn place_bar(
        &mut self,
        root: &mut PciRoot<Configuration>,
        index: u8,
        wide: bool,
        size: u64,
    ) -> bool {
        // A bridge passes on only what its own windows cover.
        if self.at.bus != 0 {
            return false;
        }
        let mut used = Vec::new();
        for (at, _) in all() {
            let bars = root.bars(at).unwrap_or_default();
            let ranges = bars
                .iter()
                .flatten()
                .filter_map(BarInfo::memory_address_size);
            used.extend(ranges.filter(|&(address, _)| address != 0));
        }
        let Some(address) = window::find(size, &used) else {
            return false;
        };
        match wide {
            true => root.set_bar_64(self.at, index, address.into()),
            false => root.set_bar_32(self.at, index, address),
        }
        true
    }

    /// Where in physical memory a part of the function's memory is.
    pub(crate) fn memory(&self, bar: u8, offset: u32, len: usize) -> Option<u64> {
        let bar = root().bar_info(self.at, bar).ok()??;
        let (address, size) = bar.memory_address_size()?;
        let end = u64::from(offset).checked_add(len as u64)?;
        let at = address.checked_add(offset.into())?;
        (address != 0 && end <= size && !is_ram(at, len)).then_some(at)
    }

    /// Whether a driver would take it that the function's first registers are at an address below 4
    /// GiB. For a test: it decodes nothing meanwhile.
    pub(crate) fn claim(&self, address: u64) -> bool {
        const FIRST: u8 = 0x10;
        let mut root = root();
        let (_, command) = root.get_status_command(self.at);
        root.set_command(self.at, command - Command::MEMORY_SPACE - Command::IO_SPACE);
        let before = read_word(place(self.at), FIRST);
        root.set_bar_32(self.at, 0, address as u32);
        let is_believed = self.memory(0, 0, 16) == Some(address);
        root.set_bar_32(self.at, 0, before);
        root.set_command(self.at, command);
        is_believed
    }

    /// How many messages the function can send.
    pub(crate) fn messages(&self) -> u16 {
        let found = root().capabilities(self.at).find(|found| found.id == MSIX);
        found.map_or(0, |found| (found.private_header & 0x7ff) + 1)
    }

    /// Makes message `entry` of the function run `handler`, and lets it send messages. False if it
    /// has none such.
    pub(crate) fn on_message(&mut self, entry: u16, handler: Box<dyn Fn() + Send + Sync>) -> bool {
        let root = root();
        let Some(found) = root.capabilities(self.at).find(|found| found.id == MSIX) else {
            return false;
        };
        let (control, offset) = (found.private_header, found.offset);
        if entry > control & 0x7ff {
            return false;
        }
        let table = read_word(place(self.at), offset + 4);
        let at = (table & !7) + u32::from(entry) * 16;
        let Some(at) = self.memory((table & 7) as u8, at, 16) else {
            return false;
        };
        let Some(registers) = machine::map_device(at, 16) else {
            return false;
        };
        let Some(message) = interrupts::add_handler(handler, place(self.at)) else {
            return false;
        };
        let registers = registers.cast::<u32>();
        // SAFETY: the entry's four registers, mapped for good; the message makes a CPU run a
        // handler, which is all that it can do. The entry is unmasked last.
        unsafe {
            registers.write_volatile(message.address as u32);
            registers
                .add(1)
                .write_volatile((message.address >> 32) as u32);
            registers.add(2).write_volatile(message.data);
            registers.add(3).write_volatile(0);
        }
        const ENABLE: u32 = 1 << 31;
        const MASK_ALL: u32 = 1 << 30;
        let header = read_word(place(self.at), offset);
        // SAFETY: the function may send the messages of unmasked entries, all of which were set
        // here.
        unsafe { write_word(place(self.at), offset, header & !MASK_ALL | ENABLE) };
        true
    }
}

/// Whether any of the `len` bytes at an address is RAM. What a function says of its registers is
/// the function's own word: a driver that believed it would write them there, past any IOMMU.
pub(crate) fn is_ram(at: u64, len: usize) -> bool {
    let Some(end) = at.checked_add(len as u64) else {
        return true;
    };
    let first = at >> PAGE_SHIFT;
    let pages = (end.div_ceil(PAGE_SIZE as u64) - first).max(1);
    DeviceMemory::outside_ram(first, pages, Caching::Uncached).is_none()
}

/// A 32-bit register of a function's configuration; `None` for one that is not aligned.
pub(crate) fn read(function: &Function, register: u8) -> Option<u32> {
    register
        .is_multiple_of(4)
        .then(|| read_word(place(function.at), register))
}
