//! Bringing pages in before a program touches them: `MAP_POPULATE`, locked memory,
//! `MADV_POPULATE_READ` and `_WRITE`.
//!
//! Pages for which memory is missing are left to later faults, except where the program asked for
//! the pages themselves.

use nucleus::{Access, PAGE_SHIFT, Prot, VirtAddr, VirtRange};

use crate::map::{Fault, Map, MapError, MapRequest, Place};
use crate::memory_wait::retry_for_memory;

impl Map {
    /// Establishes a mapping in one step (`uvm.txt` 3.1).
    ///
    /// # Errors
    /// As [`MapError`] says; nothing has changed then.
    pub fn map(&self, request: MapRequest) -> Result<VirtAddr, MapError> {
        self.map_as(&request)
    }

    /// As [`map`](Map::map), for a caller that may ask again.
    ///
    /// # Errors
    /// Those of [`map`](Map::map).
    pub fn map_as(&self, request: &MapRequest) -> Result<VirtAddr, MapError> {
        let (range, populate) = self.establish(request)?;
        if populate {
            let _ = self.populate(range);
        }
        Ok(range.start)
    }

    /// Moves the end of the heap (`brk`) if it can, and returns where it is.
    pub fn set_break(&self, to: VirtAddr) -> VirtAddr {
        let (end, grown) = self.resize_heap(to);
        if let Some(grown) = grown {
            let _ = self.populate(grown);
        }
        end
    }

    /// Moves and resizes a mapping (`mremap`). [`Place::Any`] moves it only if it `may_move` and
    /// there is no room to grow in place; any other place moves it there. `keep_old` always moves
    /// and leaves an empty mapping behind (`MREMAP_DONTUNMAP`). An empty `old` in a shared mapping
    /// makes a second mapping of the same pages.
    ///
    /// # Errors
    /// [`MapError::NotMapped`] (`EFAULT`) if `old` is not part of one entry; else as
    /// [`map`](Map::map).
    pub fn remap(
        &self,
        old: VirtRange,
        new_len: usize,
        may_move: bool,
        to: Place,
        keep_old: bool,
    ) -> Result<VirtAddr, MapError> {
        let (start, grown) = self.move_or_resize(old, new_len, may_move, to, keep_old)?;
        if let Some(grown) = grown {
            let _ = self.populate(grown);
        }
        Ok(start)
    }

    /// Brings all of `range` in as if the program had accessed it (`MADV_POPULATE_READ` and
    /// `_WRITE`).
    ///
    /// # Errors
    /// That of the first page that fails; those before it are present.
    pub fn populate_for(&self, range: VirtRange, access: Access) -> Result<(), Fault> {
        for va in range.pages() {
            if !self.pmap.permits(va, access) {
                self.resolve(va, access, |_| Some(()))?;
            }
        }
        Ok(())
    }

    /// Brings all of `range` in: writable private pages for writing, all others for reading.
    ///
    /// # Errors
    /// That of the first page that fails; those before it are present.
    pub fn populate(&self, range: VirtRange) -> Result<(), Fault> {
        self.populate_while(range, &|| true)
    }

    /// As [`populate`](Map::populate), until `goes_on` returns false: the rest is left to faults.
    ///
    /// # Errors
    /// As there.
    pub fn populate_while(
        &self,
        range: VirtRange,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<(), Fault> {
        for va in range.pages() {
            let access = match self.space.read().lookup(va) {
                Some(entry) if !entry.shared && entry.prot.contains(Prot::WRITE) => Access::Write,
                Some(_) => Access::Read,
                None => return Err(Fault::NotMapped),
            };
            // The fault on the page before brought most pages along.
            if !self.pmap.permits(va, access) {
                if !goes_on() {
                    break;
                }
                let wanted = ((range.end - va) >> PAGE_SHIFT) - 1;
                retry_for_memory(|| {
                    self.resolve_with(va, access, wanted, &mut false, |_| Some(()))
                })?;
            }
        }
        Ok(())
    }
}
