//! Fork: a copy of an address space in which nothing is copied yet (`uvm.txt` 5.2).
//!
//! Parent and child refer to the same amaps, needs-copy set on both sides, and the parent's
//! mappings of anons lose the right to be written, all with one flush. The child's page tables stay
//! empty: a child that executes another program at once would have paid for nothing, and one that
//! goes on gets eight pages a fault by fault-ahead. The parent's map stays write-locked until the
//! flush is done. Otherwise one of its threads could copy a page in a fault while another still
//! writes the old one through its TLB, and that write would be lost.

use alloc::sync::Arc;
use nucleus::{Prot, frame, pmap::Pending};

use crate::entry::Removed;
use crate::map::Map;
use crate::request::MapError;
use crate::space::Space;

impl Map {
    /// A copy for a child: entries by their inheritance, private ones copy-on-write (`uvm.txt`
    /// 5.2).
    ///
    /// # Errors
    /// [`MapError::NoMemory`]; this address space is as before.
    pub fn fork(&self) -> Result<Arc<Map>, MapError> {
        let child = Map::with_space(Space::sibling(&self.space.read()))?;
        let mut pending = Pending::new();
        let mut removed = Removed::default();
        let mut result = Ok(());
        {
            let mut parents = self.lock_to_fork();
            // The child is not known to anyone yet, so this is no second map lock in the order.
            let mut copies = parents.sibling();
            for entry in parents.iter_mut() {
                if frame::is_scarce() {
                    result = Err(MapError::NoMemory);
                    break;
                }
                let may_be_mapped_writable = entry.amap.is_some()
                    && !entry.shared
                    && !entry.needs_copy
                    && entry.prot.contains(Prot::WRITE);
                if let Some(copy) = entry.inherit() {
                    if may_be_mapped_writable && entry.needs_copy {
                        let prot = entry.prot - Prot::WRITE;
                        self.pmap.protect(entry.range, prot, &mut pending);
                    }
                    copies.append(copy);
                }
            }
            pending.flush();
            drop(parents);
            match result {
                Ok(()) => *child.space.write() = copies,
                Err(_) => removed.entries.extend(copies.take_all().into_values()),
            }
        }
        drop(removed);
        result.map(|()| child)
    }
}
