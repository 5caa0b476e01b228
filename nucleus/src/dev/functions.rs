//! PCI functions as programs see them: who they are, and those parts of their memory that programs
//! may map because no driver of the kernel uses the function.

use alloc::vec::Vec;

#[cfg(target_os = "none")]
use alloc::boxed::Box;

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
pub enum LendError {
    /// A driver of the kernel uses the function.
    Busy,
    /// There is no such register, or it decodes no whole pages of memory.
    NoMemory,
    /// No memory to note that it is lent.
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
    /// Returns the memory behind a base address register, for programs to map. The function decodes
    /// memory from now on, can't reach the machine's (it is no bus master), and is no driver's any
    /// more.
    ///
    /// # Errors
    /// [`LendError`].
    pub fn lend(&self, bar: usize) -> Result<DeviceMemory, LendError> {
        #[cfg(target_os = "none")]
        {
            let bar = self.bars.get(bar).copied().flatten();
            let bar = bar.filter(|bar| !bar.is_ports && bar.address != 0);
            let bar = bar.ok_or(LendError::NoMemory)?;
            let memory = DeviceMemory::new(bar.address, bar.size, crate::Caching::Uncached);
            let memory = memory.ok_or(LendError::NoMemory)?;
            super::pci::lend(self.place)?;
            Ok(memory)
        }
        #[cfg(not(target_os = "none"))]
        {
            let _ = bar;
            Err(LendError::NoMemory)
        }
    }
}
