//! Page tables in the BSD sense: the machine-dependent layer of `uvm.txt` 2.
//!
//! `format` is the x86-64 page-table format, used by both machines; `table` walks and builds
//! page tables; `reverse` links every mapping of a frame, so that page-wide operations
//! find them without an allocation; `shootdown` tells other CPUs; [`Pending`] holds what
//! must not be reused before they have answered.

use alloc::sync::Arc;
use bitflags::bitflags;

use crate::{Frame, OutOfMemory, VirtAddr, VirtRange};

bitflags! {
    /// What a program may do with a mapping. Everything readable on x86-64 if anything is.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
    pub struct Prot: u8 {
        const READ = 1;
        const WRITE = 2;
        const EXEC = 4;
    }
}

/// What a program tried to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    Read,
    Write,
    Execute,
}

impl Access {
    /// The protection that allows it.
    pub const fn needs(self) -> Prot {
        match self {
            Access::Read => Prot::READ,
            Access::Write => Prot::WRITE,
            Access::Execute => Prot::EXEC,
        }
    }
}

/// One hardware address space. All methods may be called on any CPU at the same time.
pub struct Pmap {
    _private: (),
}

impl Pmap {
    /// An empty user half over the shared kernel half.
    pub fn new() -> Result<Arc<Pmap>, OutOfMemory> {
        todo!()
    }

    /// Maps `frame` at the page `va` with its final attributes in one step, replacing what was
    /// there. The mapping holds a handle of its own. When an other frame or a wider right was
    /// replaced, the old one goes to `pending`. A spurious call (same frame, same or wider
    /// rights) flushes nothing.
    pub fn enter(
        &self,
        va: VirtAddr,
        frame: &Frame,
        prot: Prot,
        pending: &mut Pending,
    ) -> Result<(), OutOfMemory> {
        todo!()
    }

    /// As [`enter`](Pmap::enter) but only where nothing is mapped, with the accessed bit clear
    /// (for fault-ahead). Returns whether it mapped.
    pub fn enter_ahead(
        &self,
        va: VirtAddr,
        frame: &Frame,
        prot: Prot,
    ) -> Result<bool, OutOfMemory> {
        todo!()
    }

    /// Removes every mapping in `range`; the frames' handles go to `pending`.
    pub fn remove(&self, range: VirtRange, pending: &mut Pending) {
        todo!()
    }

    /// Takes away every right in `range` that is not in `prot`; never adds one.
    pub fn protect(&self, range: VirtRange, prot: Prot, pending: &mut Pending) {
        todo!()
    }

    /// What is mapped at the page that holds `va`.
    pub fn extract(&self, va: VirtAddr) -> Option<(Frame, Prot)> {
        todo!()
    }

    /// Whether a program could do `access` at `va` now without a fault.
    pub fn permits(&self, va: VirtAddr, access: Access) -> bool {
        todo!()
    }

    /// Pages mapped in `range`. Costs no more than a look at each page table that exists there.
    pub fn resident_in(&self, range: VirtRange) -> usize {
        todo!()
    }

    /// Pages mapped, and page-table frames held.
    pub fn resident(&self) -> Resident {
        todo!()
    }

    /// Removes everything without a single TLB flush. For an address space that no task will run
    /// in again; the caller's task has switched away from it ([`crate::task::set_pmap`]).
    pub fn tear_down(&self) {
        todo!()
    }
}

/// See [`Pmap::resident`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resident {
    pub pages: usize,
    pub page_tables: usize,
}

/// Mappings removed or narrowed, whose old translation some TLB may still hold, and the frames
/// they held. Nothing but the completed flush turns what is in here into free frames: dropping a
/// set flushes it first. One set collects many changes and costs one interrupt per CPU concerned.
pub struct Pending {
    _private: (),
}

impl Pending {
    /// An empty set. No allocation.
    pub fn new() -> Pending {
        todo!()
    }

    /// Invalidates what is in the set on every CPU that may hold it, waits for the answers, then
    /// gives up the frames. Interrupts must be on and no spin lock held. When this returns, no CPU uses an old translation.
    pub fn flush(&mut self) {
        todo!()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        todo!()
    }
}

impl Default for Pending {
    fn default() -> Pending {
        Pending::new()
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Takes away, in every pmap, every right to `frame` that is not in `prot` (`Prot::empty()`
/// removes the mappings).
pub fn page_protect(frame: &Frame, prot: Prot, pending: &mut Pending) {
    todo!()
}

/// Collects and clears the referenced bits of all mappings of `frame`.
pub fn take_referenced(frame: &Frame) -> bool {
    todo!()
}

/// Whether any mapping ever wrote `frame` since the last [`clear_modified`].
pub fn is_modified(frame: &Frame) -> bool {
    todo!()
}

/// Clears the modified state of `frame`; later writes set it again.
pub fn clear_modified(frame: &Frame, pending: &mut Pending) {
    todo!()
}

/// Makes this CPU use `pmap`'s page tables, or the kernel's own. Interrupts are off. Cheap if they are in use already.
pub(crate) fn activate(pmap: Option<&Arc<Pmap>>) {
    todo!()
}

/// Another CPU wants this one to invalidate. Interrupts are off.
pub(crate) fn on_shootdown() {
    todo!()
}
