//! `/sys/bus/pci`: the functions on the bus, and the memory that programs may map of them.

use alloc::{
    format,
    string::String,
    sync::{Arc, Weak},
    vec::Vec,
};

use abi::{Errno, Result};
use fs::{
    File, Kind, Location, OpenFlags,
    pseudofs::{Directory, EmitName, Entry, Table},
};
use nucleus::{
    Caching,
    pci::{AssignError, BARS, Bar, Function, functions},
    speculation,
    sync::{Rank, SpinLock},
};
use vm::{Description, DeviceObject, Pager};

use super::{directory, line, link, shown};

/// The files of a function's memory, by register.
const RESOURCES: [&str; BARS] = [
    "resource0",
    "resource1",
    "resource2",
    "resource3",
    "resource4",
    "resource5",
];
/// The same with stores that are merged, where the device allows it.
const MERGED: [&str; BARS] = [
    "resource0_wc",
    "resource1_wc",
    "resource2_wc",
    "resource3_wc",
    "resource4_wc",
    "resource5_wc",
];
/// Devices whose memory is the host's RAM, and is cached as such: vendor, device, register. QEMU's
/// `ivshmem`.
const RAM: &[(u16, u16, usize)] = &[(0x1af4, 0x1110, 2)];

/// `/sys/bus/pci`: links to the functions.
pub(super) fn bus() -> Table {
    let make = |function: &'static Function| {
        let to = format!("../../../devices/pci0000:00/{}", name(function));
        Entry::link(move || Ok(to.clone().into_bytes()))
    };
    let devices = Functions {
        kind: Kind::Link,
        make,
    };
    Table::new().with("devices", directory(devices))
}

/// `/sys/devices/pci0000:00`, those behind bridges too.
pub(super) fn devices() -> impl Directory {
    Functions {
        kind: Kind::Directory,
        make: |function| directory(of(function)),
    }
}

/// The name by which Linux knows a function.
fn name(it: &Function) -> String {
    let (bus, device, function) = (it.place >> 8, it.place >> 3 & 31, it.place & 7);
    format!("0000:{bus:02x}:{device:02x}.{function}")
}

/// A directory with a name for each function.
struct Functions {
    kind: Kind,
    make: fn(&'static Function) -> Entry,
}

impl Directory for Functions {
    fn lookup(&self, wanted: &[u8]) -> Result<Entry> {
        let mut all = functions().iter();
        let found = all.find(|function| name(function).as_bytes() == wanted);
        found.map(self.make).ok_or(Errno::ENOENT)
    }

    fn list(&self, cursor: u64, emit: &mut EmitName<'_>) -> Result<()> {
        let from_cursor = speculation::rest(functions(), cursor as usize).iter();
        for (function, next) in from_cursor.zip(1..) {
            if !emit(name(function).as_bytes(), self.kind, cursor + next) {
                break;
            }
        }
        Ok(())
    }
}

/// A function's directory.
fn of(it: &'static Function) -> Table {
    let uevent = || {
        let (vendor, device) = (it.vendor, it.device);
        let name = name(it);
        let class = it.class;
        format!("PCI_CLASS={class:X}\nPCI_ID={vendor:04X}:{device:04X}\nPCI_SLOT_NAME={name}")
    };
    let mut table = Table::new()
        .with("class", line(|| format!("{:#08x}", it.class)))
        .with("device", line(|| format!("{:#06x}", it.device)))
        .with("resource", resource(it))
        .with("revision", line(|| format!("{:#04x}", it.revision)))
        .with("subsystem", link("../../../bus/pci"))
        .with("uevent", line(uevent))
        .with("vendor", line(|| format!("{:#06x}", it.vendor)));
    for (index, bar) in it.bars.iter().enumerate() {
        let Some(bar) = bar.filter(|bar| !bar.is_ports && bar.address != 0) else {
            continue;
        };
        let is_ram = RAM.contains(&(it.vendor, it.device, index));
        let caching = match is_ram {
            true => Caching::WriteBack,
            false => Caching::Uncached,
        };
        table = table.with(RESOURCES[index], memory(it, index, caching));
        if bar.is_prefetchable && !is_ram {
            table = table.with(MERGED[index], memory(it, index, Caching::WriteCombining));
        }
    }
    table
}

/// Linux's `IORESOURCE_` flags.
fn flags(bar: &Bar) -> u64 {
    const PORTS: u64 = 0x100;
    const MEMORY: u64 = 0x200;
    const PREFETCHABLE: u64 = 0x2000;
    const WIDE: u64 = 0x10_0000;
    const SIZE_ALIGNED: u64 = 0x4_0000;
    let kind = if bar.is_ports { PORTS } else { MEMORY };
    let merged = if bar.is_prefetchable { PREFETCHABLE } else { 0 };
    let wide = if bar.is_wide { WIDE } else { 0 };
    SIZE_ALIGNED | kind | merged | wide
}

/// The last address, if the device is right about the size.
fn last(bar: &Bar) -> u64 {
    bar.address.saturating_add(bar.size.saturating_sub(1))
}

/// A line for each register: first and last address, and flags.
fn resource(it: &'static Function) -> Entry {
    shown(|out| {
        for bar in &it.bars {
            let (first, last, flags) = bar
                .as_ref()
                .map_or((0, 0, 0), |bar| (bar.address, last(bar), flags(bar)));
            writeln!(out, "{first:#018x} {last:#018x} {flags:#018x}");
        }
    })
}

/// A file that is mapped only.
fn memory(function: &'static Function, bar: usize, caching: Caching) -> Entry {
    Entry::file(move |at: &Location, _: OpenFlags| {
        let file: Arc<dyn File> = Arc::new(Memory {
            function,
            bar,
            caching,
            location: at.clone(),
        });
        Ok(file)
    })
    .mode(0o600)
}

/// An open file of a register's memory. The function is assigned while it is mapped.
struct Memory {
    function: &'static Function,
    bar: usize,
    caching: Caching,
    location: Location,
}

/// The memory behind a register that is mapped: one object, so that all mappings are the same
/// memory to futexes, and access it in the same way, as processors demand.
struct Mapped {
    place: u16,
    bar: usize,
    caching: Caching,
    object: Weak<DeviceObject>,
}

/// All of them, and some whose last mapping has gone: one for each register at most.
static MAPPED: SpinLock<Vec<Mapped>> = SpinLock::new(Rank::Leaf, Vec::new());

impl Memory {
    /// The object, if it is this register's.
    fn found(&self, it: &Mapped) -> Option<(Caching, Arc<DeviceObject>)> {
        let is_this = it.place == self.function.place && it.bar == self.bar;
        let object = is_this.then(|| it.object.upgrade())?;
        Some((it.caching, object?))
    }

    /// The object, unless it is mapped in another way.
    fn check(&self, (caching, object): (Caching, Arc<DeviceObject>)) -> Result<Arc<dyn Pager>> {
        match caching == self.caching {
            true => Ok(object),
            false => Err(Errno::EBUSY),
        }
    }

    fn make(&self) -> Result<Arc<DeviceObject>> {
        let attributes = self.location.vnode().attributes()?;
        let name: Vec<u8> = self.location.path_without_locks();
        let description = Description {
            device: attributes.device,
            inode: attributes.inode,
            name,
        };
        let memory = self
            .function
            .assign(self.bar)
            .map_err(|error| match error {
                AssignError::Busy | AssignError::Overlaps => Errno::EBUSY,
                AssignError::NoMemory => Errno::ENODEV,
                AssignError::OutOfMemory => Errno::ENOMEM,
            })?;
        Ok(DeviceObject::new(
            memory.with_caching(self.caching),
            description,
        )?)
    }
}

impl File for Memory {
    fn has_readiness(&self) -> bool {
        false
    }

    fn location(&self) -> Option<&Location> {
        Some(&self.location)
    }

    fn pager(&self) -> Result<Arc<dyn Pager>> {
        // No reference is dropped with the lock held: it may be the last one.
        let found = MAPPED.lock().iter().find_map(|it| self.found(it));
        if let Some(found) = found {
            return self.check(found);
        }
        let own = self.make()?;
        let found = {
            let mut all = MAPPED.lock();
            match all.iter().find_map(|it| self.found(it)) {
                // Another thread was faster.
                Some(found) => found,
                None => {
                    all.retain(|it| it.object.strong_count() > 0);
                    all.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
                    all.push(Mapped {
                        place: self.function.place,
                        bar: self.bar,
                        caching: self.caching,
                        object: Arc::downgrade(&own),
                    });
                    (self.caching, own.clone())
                }
            }
        };
        self.check(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_size_that_a_device_reports_overflows() {
        let bar = |address, size| Bar {
            address,
            size,
            is_ports: false,
            is_wide: true,
            is_prefetchable: false,
        };
        let reported = [(0x1000, 0x2000), (u64::MAX - 0xfff, 0x2000), (0x1000, 0)];
        let last = reported.map(|(address, size)| last(&bar(address, size)));
        assert_eq!(last, [0x2fff, u64::MAX, 0x1000]);
    }
}
