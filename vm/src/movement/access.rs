//! Access to an address space that is not the current one (`/proc/PID/mem`, `process_vm_readv`, the
//! initial stack of `execve`).

use core::ops::Range;

use nucleus::{
    Access, Frame, PAGE_SIZE, Prot, VirtAddr, VirtRange,
    addr::USER_END,
    ephemeral::{self, Mapping},
    pmap,
};

use crate::{
    chunks::SLOTS,
    map::{Fault, Map, Space},
};

/// Pages that are written under one lock of their places, which a fault of another thread waits for
/// meanwhile. Other values were not measured.
const RUN: usize = 8;

impl Map {
    /// Fills `held` with handles of the readable pages from the one of `from` on, in order; returns
    /// how many. Stops at the first page that cannot be read. Programs that map the pages may
    /// change them.
    pub fn hold_each(&self, from: VirtAddr, held: &mut [Option<Frame>]) -> usize {
        let mut at = from.page_floor();
        let last = at.checked_add(held.len() * PAGE_SIZE);
        let last = last.map_or(USER_END, |last| last.min(USER_END));
        let mut count = 0;
        while at < last {
            // Fast path: what is mapped can be read (see `MapEntry::allows`) without resolving a
            // fault.
            let space = self.space.read();
            self.pmap
                .extract_each(VirtRange::new(at, last), |frame, _| {
                    held[count] = Some(frame);
                    count += 1;
                    at = at + PAGE_SIZE;
                    true
                });
            drop(space);
            if at >= last {
                break;
            }
            let page = self.resolve_or_wait(at, Access::Read, |_| Some(self.pmap.extract(at)?.0));
            let Ok(frame) = page else { break };
            held[count] = Some(frame);
            count += 1;
            at = at + PAGE_SIZE;
        }
        count
    }

    /// Has `read` read the bytes of `range`, as far as their pages are mapped; returns how many it
    /// read. It gets a page and which bytes of it to read, and returns how many it did: fewer end
    /// it. Resolves no fault, and `read` must not fault: locks may be held that come before the
    /// map's.
    pub fn read_mapped(
        &self,
        range: VirtRange,
        mut read: impl FnMut(&Mapping<'_>, Range<usize>) -> usize,
    ) -> usize {
        let end = range.end.min(USER_END);
        let mut at = range.start;
        // What is mapped can be read (see `MapEntry::allows`).
        let _space = self.space.read();
        self.pmap
            .extract_each(VirtRange::new(at.page_floor(), end), |frame, _| {
                let offset = at.page_offset();
                let most = (PAGE_SIZE - offset).min(end.0 - at.0);
                let n = read(&ephemeral::map(&frame), offset..offset + most);
                at = at + n;
                n == most
            });
        at.0 - range.start.0
    }

    /// Reads another address space (`/proc/PID/mem`, `cmdline`); returns how many bytes were read.
    pub fn read(&self, from: VirtAddr, to: &mut [u8]) -> usize {
        let mut done = 0;
        while done < to.len() {
            let Some(at) = from.checked_add(done).filter(|&at| at < USER_END) else {
                break;
            };
            let len = (PAGE_SIZE - at.page_offset()).min(to.len() - done);
            let part = &mut to[done..done + len];
            let page = self.resolve_or_wait(at, Access::Read, |_| Some(self.pmap.extract(at)?.0));
            let Ok(frame) = page else { break };
            ephemeral::map(&frame).read(at.page_offset(), part);
            done += len;
        }
        done
    }

    /// Writes another address space, with copy-on-write; returns how many bytes were written.
    pub fn write(&self, to: VirtAddr, from: &[u8]) -> usize {
        self.write_until(to, from).0
    }

    /// Writes an address space that no program runs in yet, with copy-on-write.
    ///
    /// # Errors
    /// Why a page cannot be written; those before it are.
    pub fn write_all(&self, to: VirtAddr, from: &[u8]) -> Result<(), Fault> {
        self.write_until(to, from).1
    }

    fn write_until(&self, to: VirtAddr, from: &[u8]) -> (usize, Result<(), Fault>) {
        let mut done = 0;
        while done < from.len() {
            let Some(at) = to.checked_add(done).filter(|&at| at < USER_END) else {
                return (done, Err(Fault::NotMapped));
            };
            let len = (PAGE_SIZE - at.page_offset()).min(from.len() - done);
            let part = &from[done..done + len];
            let write = |page: &Mapping<'_>| page.write(at.page_offset(), part);
            if let Err(fault) = self.write_page(at, write) {
                return (done, Err(fault));
            }
            done += len;
        }
        (done, Ok(()))
    }

    /// Copies `len` bytes of `from` at `offset` to `to`, with copy-on-write. Neither side crosses a
    /// page boundary.
    ///
    /// # Errors
    /// Why the page cannot be written.
    pub fn write_from(
        &self,
        to: VirtAddr,
        from: &Frame,
        offset: usize,
        len: usize,
    ) -> Result<(), Fault> {
        self.write_page(to, |page| {
            page.copy_from(to.page_offset(), &ephemeral::map(from), offset, len);
        })
    }

    /// Has `write` write the bytes of `range`, as far as their pages are mapped to be written;
    /// returns how many it wrote. It gets a page and which bytes of it to write, and returns how
    /// many it did: fewer end the pages that are locked together, none the call. Resolves no fault,
    /// and `write` must not fault: locks may be held that come before the map's.
    pub fn write_mapped(
        &self,
        range: VirtRange,
        mut write: impl FnMut(&Mapping<'_>, Range<usize>) -> usize,
    ) -> usize {
        let space = self.space.read();
        let end = range.end.min(USER_END);
        let mut at = range.start;
        while at < end {
            let run = self.write_run(&space, VirtRange::new(at, end), &mut write);
            if run.is_empty() {
                break;
            }
            at = run.end;
        }
        at.0.saturating_sub(range.start.0)
    }

    /// Calls `write` with the page at `at`, as if the program wrote it.
    fn write_page(&self, at: VirtAddr, write: impl Fn(&Mapping<'_>)) -> Result<(), Fault> {
        let page = VirtRange::new(at, at + 1);
        let write = |space: &Space| {
            let written = |page: &Mapping<'_>, _| {
                write(page);
                1
            };
            (!self.write_run(space, page, written).is_empty()).then_some(())
        };
        let space = self.space.read();
        if at < USER_END && write(&space).is_some() {
            return Ok(());
        }
        drop(space);
        self.resolve_or_wait(at, Access::Write, write)
    }

    /// Calls `write` as [`write_mapped`](Map::write_mapped) does, with the first pages of `range`,
    /// as far as one lock guards their places and no more than [`RUN`]; returns what was written.
    ///
    /// The map is locked: a fork in between would make the pages the child's as well. So are the
    /// pages' places: a loan in between would let its borrower see the change.
    #[inline(always)]
    fn write_run(
        &self,
        space: &Space,
        range: VirtRange,
        mut write: impl FnMut(&Mapping<'_>, Range<usize>) -> usize,
    ) -> VirtRange {
        let at = range.start;
        let nothing = VirtRange::new(at, at);
        let Some(entry) = space.lookup(at) else {
            return nothing;
        };
        let object = entry.object.as_ref().filter(|_| entry.shared);
        let mut locked = 1;
        let _slots = match (&entry.amap, object) {
            (Some(amap), None) => {
                let slots = amap.lock_present(entry.key(at));
                locked += slots.as_ref().map_or(0, |it| it.after(entry.key(at)));
                slots
            }
            _ => None,
        };
        let pages = object.and_then(|it| {
            let index = entry.index(it, at);
            locked += SLOTS - 1 - index as usize % SLOTS;
            it.pager.object().lock(index)
        });
        let first = at.page_floor();
        let end = first + locked.min(RUN) * PAGE_SIZE;
        let end = end.min(range.end).min(entry.range.end);
        let mut done = at;
        self.pmap
            .extract_each(VirtRange::new(first, end), |frame, prot| {
                if !prot.contains(Prot::WRITE) {
                    return false;
                }
                let offset = done.page_offset();
                let most = (PAGE_SIZE - offset).min(end.0 - done.0);
                let n = write(&ephemeral::map(&frame), offset..offset + most);
                // The processor sets no modified bit for it.
                pmap::set_modified(&frame);
                done = done + n;
                n == most
            });
        drop(pages);
        let written = VirtRange::new(at, done);
        if let Some(object) = object {
            for page in VirtRange::new(first, done).pages() {
                object.pager.mark_dirty(entry.index(object, page), None);
            }
        }
        written
    }
}
