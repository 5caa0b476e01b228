//! PCI functions as programs see them: their identities, and the parts of their memory that
//! programs may map because no driver of the kernel uses the function.

use alloc::vec::Vec;

#[cfg(target_os = "none")]
use alloc::boxed::Box;

#[cfg(target_os = "none")]
use super::owners::OWNERS;
use crate::DeviceMemory;
#[cfg(target_os = "none")]
use crate::lock::OnceBox;

/// Registers of base addresses.
pub const BARS: usize = 6;

/// A function that is no bridge.
pub struct Function {
    /// Bus in bits 15..8, device in 7..3, function in 2..0.
    pub place: u16,
    /// The vendor's number.
    pub vendor: u16,
    /// The vendor's number of the device.
    pub device: u16,
    /// Class, subclass and interface, from the highest byte on.
    pub class: u32,
    /// The revision.
    pub revision: u8,
    /// What the function decodes, by register.
    pub bars: [Option<Bar>; BARS],
}

/// What a base address register makes a function decode.
#[derive(Clone, Copy)]
pub struct Bar {
    /// The first address.
    pub address: u64,
    /// How many bytes, or ports.
    pub size: u64,
    /// Ports rather than memory.
    pub is_ports: bool,
    /// A 64-bit address, which takes the next register as well.
    pub is_wide: bool,
    /// Loads have no effect, and stores may be merged.
    pub is_prefetchable: bool,
}

/// Why programs can't have a function's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AssignError {
    /// A driver of the kernel uses the function.
    Busy,
    /// There is no such register, or it decodes no whole pages of memory.
    NoMemory,
    /// Another register decodes some of the same addresses.
    Overlaps,
    /// No memory to note that it is assigned.
    OutOfMemory,
}

#[cfg(target_os = "none")]
static FOUND: OnceBox<Vec<Function>> = OnceBox::new();

/// Finds the functions. Called at the start, before drivers and programs use any: the size of what
/// a function decodes is found by a moment in which it decodes something else.
pub fn find() {
    #[cfg(target_os = "none")]
    FOUND.get_or_insert(|| Box::new(super::pci::describe_all()));
}

/// Those that were found, in the order of their places.
pub fn functions() -> &'static [Function] {
    #[cfg(target_os = "none")]
    {
        FOUND.get().map_or(&[], Vec::as_slice)
    }
    #[cfg(not(target_os = "none"))]
    {
        const NONE: Vec<Function> = Vec::new();
        static FOUND: Vec<Function> = NONE;
        &FOUND
    }
}

impl Function {
    /// Assigns the memory behind a base address register to programs, which may map it. The
    /// function decodes memory from now on, and can't reach the machine's (it is no bus master). No
    /// driver gets it until the memory is dropped, or at all once a page was
    /// [asked for](DeviceMemory::page).
    ///
    /// # Errors
    /// [`AssignError`].
    pub fn assign(&self, bar: usize) -> Result<DeviceMemory, AssignError> {
        #[cfg(target_os = "none")]
        {
            let is_there = |it: &Bar| crate::hw::machine::is_physical(it.address, it.size);
            let register = self.memory(bar).filter(is_there);
            let register = register.ok_or(AssignError::NoMemory)?;
            let caching = crate::Caching::Uncached;
            let memory = DeviceMemory::new(register.address, register.size, caching);
            let memory = memory.ok_or(AssignError::NoMemory)?;
            if self.overlaps(bar, functions()) {
                return Err(AssignError::Overlaps);
            }
            super::pci::assign(self.place)?;
            let release = |function, is_used| OWNERS.lock().release(function, is_used);
            Ok(memory.assigned(self.place, release))
        }
        #[cfg(not(target_os = "none"))]
        {
            let _ = bar;
            Err(AssignError::NoMemory)
        }
    }

    /// The register, if it decodes memory.
    fn memory(&self, bar: usize) -> Option<Bar> {
        let bar = self.bars.get(bar).copied().flatten();
        bar.filter(|bar| !bar.is_ports && bar.address != 0)
    }

    /// Whether another register of `all` decodes some of the memory behind this one: what the
    /// firmware left may be wrong, and a program must not reach a driver's device.
    #[cfg_attr(not(any(target_os = "none", test)), allow(dead_code))]
    fn overlaps(&self, bar: usize, all: &[Function]) -> bool {
        let Some(own) = self.memory(bar) else {
            return false;
        };
        let meets = |it: Bar| {
            it.address < own.address.saturating_add(own.size)
                && own.address < it.address.saturating_add(it.size)
        };
        let mut others = all
            .iter()
            .flat_map(|it| (0..BARS).map(move |index| (it, index)));
        others.any(|(it, index)| {
            let is_own = it.place == self.place && index == bar;
            !is_own && it.memory(index).is_some_and(meets)
        })
    }
}

#[cfg(all(test, not(target_os = "none")))]
mod tests {
    use super::*;

    fn function(place: u16, ranges: [(u64, u64); 2]) -> Function {
        let mut bars = [None; BARS];
        for (bar, (address, size)) in bars.iter_mut().zip(ranges) {
            *bar = Some(Bar {
                address,
                size,
                is_ports: false,
                is_wide: false,
                is_prefetchable: false,
            });
        }
        Function {
            place,
            vendor: 1,
            device: 2,
            class: 3,
            revision: 4,
            bars,
        }
    }

    #[test]
    fn memory_that_another_register_decodes_is_known() {
        let all = [
            function(8, [(0x1000_0000, 0x4000), (0x2000_0000, 0x1000)]),
            function(9, [(0x1000_3000, 0x10), (0x3000_0000, 0x2000)]),
            // Its own registers meet, and one has no address.
            function(10, [(0x4000_0000, 0x2000), (0x4000_1000, 0x1000)]),
            function(11, [(0, 1 << 40), (0x3000_2000, u64::MAX)]),
        ];
        let found = all
            .each_ref()
            .map(|it| [0, 1].map(|bar| it.overlaps(bar, &all)));
        assert_eq!(
            found,
            [[true, false], [true, false], [true, true], [false, true]]
        );
    }
}
