//! Interrupt descriptor tables: the kernel's, and others for measurements and tests.

use alloc::boxed::Box;
use core::arch::asm;
use core::ops::Range;

use super::entry::{self, STUB};
use super::gdt::{InterruptStack, KERNEL_CODE};
use super::vectors;

unsafe extern "C" {
    /// The gate of [`vectors::HW_COST`], in `selftest::hw_cost`.
    fn hw_cost_answer();
}

const PRESENT: u64 = 1 << 15;
const INTERRUPT_GATE: u64 = 0xe << 8;
const FROM_PROGRAMS: u64 = 3 << 13;

/// An interrupt descriptor table: a page, because programs' roots have it, too.
#[repr(C, align(4096))]
pub struct Table([[u64; 2]; 256]);

static mut TABLE: Table = Table([[0; 2]; 256]);

/// Where a trap goes in a table of [`table_with`].
pub struct Gate {
    pub vector: u8,
    pub to: usize,
    /// Whether programs may raise it.
    pub from_programs: bool,
}

impl Gate {
    fn encode(&self, stack: u64) -> [u64; 2] {
        let privilege = if self.from_programs { FROM_PROGRAMS } else { 0 };
        let attributes = PRESENT | privilege | INTERRUPT_GATE | stack;
        let to = self.to as u64;
        let low = to & 0xffff
            | u64::from(KERNEL_CODE) << 16
            | attributes << 32
            | (to >> 16 & 0xffff) << 48;
        [low, to >> 32]
    }
}

/// Fills the interrupt descriptor table. On the boot CPU, at the start and again when it is known
/// whether the guarded ways are taken.
pub fn build() {
    let stubs = entry::stubs();
    for vector in 0..=255u8 {
        let to = match vector {
            vectors::HW_COST => hw_cost_answer as *const () as usize,
            _ => stubs + usize::from(vector) * STUB,
        };
        let stack = match vector {
            2 => InterruptStack::NonMaskable as u64,
            8 => InterruptStack::DoubleFault as u64,
            18 => InterruptStack::MachineCheck as u64,
            _ => 0,
        };
        let gate = Gate {
            vector,
            to,
            // Breakpoint, overflow, and the 32-bit system call are for programs to raise.
            from_programs: matches!(vector, 3 | 4 | 0x80),
        };
        // SAFETY: only the boot CPU runs, and no trap that it survives can come meanwhile.
        unsafe { (&raw mut TABLE.0[usize::from(vector)]).write(gate.encode(stack)) };
    }
}

/// A table as the kernel's own but for some gates, whose traps stay on the stack that they find.
pub fn table_with(gates: &[Gate]) -> Box<Table> {
    // SAFETY: the table is filled in, and does not change any more.
    let mut table = Box::new(Table(unsafe { (&raw const TABLE.0).read() }));
    for gate in gates {
        table.0[usize::from(gate.vector)] = gate.encode(0);
    }
    table
}

impl Table {
    /// Makes this CPU use it.
    ///
    /// # Safety
    /// The table stays until the CPU uses another one, and its gates bear whatever traps come until
    /// then.
    pub unsafe fn load(&self) {
        #[repr(C, packed)]
        struct Pointer {
            limit: u16,
            base: u64,
        }
        let pointer = Pointer {
            limit: (size_of::<Table>() - 1) as u16,
            base: core::ptr::from_ref(self) as u64,
        };
        // SAFETY: the caller's promise.
        unsafe { asm!("lidt [{}]", in(reg) &pointer, options(readonly, nostack, preserves_flags)) };
    }
}

/// The addresses of the kernel's table.
pub fn place() -> Range<usize> {
    let table = &raw const TABLE as usize;
    table..table + size_of::<Table>()
}

/// Makes this CPU use the kernel's table.
pub fn load() {
    let table = &raw const TABLE;
    // SAFETY: the table is static, does not change any more, and it has gates for all traps.
    unsafe { (&*table).load() };
}
