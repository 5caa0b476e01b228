//! Reading and writing an address space that is not the current one (`/proc/PID/mem`, `process_vm_readv`, the stack of
//! a program that `execve` is about to start).

use alloc::{sync::Arc, vec::Vec};
use nucleus::{
    Access, Frame, PAGE_SIZE, Prot, VirtAddr, VirtRange,
    addr::USER_END,
    ephemeral::{self, Mapping},
    pmap,
};

use crate::map::{Fault, Map, Space};

impl Map {
    /// Holds the pages from the one of `from` on that can be read, in order, behind those that `held` has: as many as
    /// `held` has room for without growing, at most `most`. Fewer if one can't be read. What they hold may be changed by whoever maps
    /// them.
    pub fn hold_readable(&self, from: VirtAddr, most: usize, held: &mut Vec<Frame>) {
        let mut at = from.page_floor();
        let end = most.min(held.capacity() - held.len()) + held.len();
        let last = at.checked_add(most.saturating_mul(PAGE_SIZE));
        let last = last.map_or(USER_END, |last| last.min(USER_END));
        while held.len() < end && at < USER_END {
            // What is mapped can be read (see `MapEntry::allows`); no fault has to be resolved for it.
            let space = self.space.read();
            self.pmap
                .extract_each(VirtRange::new(at, last), |frame, _| {
                    held.push(frame);
                    at = at + PAGE_SIZE;
                    held.len() < end
                });
            drop(space);
            if held.len() == end || at >= USER_END {
                break;
            }
            let page = self.resolve_patiently(at, Access::Read, |_| Some(self.pmap.extract(at)?.0));
            let Ok(frame) = page else { break };
            held.push(frame);
            at = at + PAGE_SIZE;
        }
    }

    /// Reads another address space (`/proc/PID/mem`, `cmdline`); returns how many bytes could be.
    pub fn read(&self, from: VirtAddr, to: &mut [u8]) -> usize {
        let mut done = 0;
        while done < to.len() {
            let Some(at) = from.checked_add(done).filter(|&at| at < USER_END) else {
                break;
            };
            let len = (PAGE_SIZE - at.page_offset()).min(to.len() - done);
            let part = &mut to[done..done + len];
            let page = self.resolve_patiently(at, Access::Read, |_| Some(self.pmap.extract(at)?.0));
            let Ok(frame) = page else { break };
            ephemeral::map(&frame).read(at.page_offset(), part);
            done += len;
        }
        done
    }

    /// Writes another address space, copy-on-write kept (building a stack before `execve` returns);
    /// returns how many bytes could be.
    pub fn write(&self, to: VirtAddr, from: &[u8]) -> usize {
        let mut done = 0;
        while done < from.len() {
            let Some(at) = to.checked_add(done).filter(|&at| at < USER_END) else {
                break;
            };
            let len = (PAGE_SIZE - at.page_offset()).min(from.len() - done);
            let part = &from[done..done + len];
            let write = |page: &Mapping<'_>| page.write(at.page_offset(), part);
            if self.write_page(at, write).is_err() {
                break;
            }
            done += len;
        }
        done
    }

    /// Copies `len` bytes of `from` at `offset` to `to`, copy-on-write kept. Neither side goes beyond its page.
    ///
    /// # Errors
    /// Why the page can't be written.
    pub fn write_from(
        &self,
        to: VirtAddr,
        from: &Frame,
        offset: usize,
        len: usize,
    ) -> Result<(), Fault> {
        let from = ephemeral::map(from);
        self.write_page(to, |page| {
            page.copy_from(to.page_offset(), &from, offset, len)
        })
    }

    /// Lets `write` change the page at `at`, as if the program did.
    fn write_page(&self, at: VirtAddr, write: impl Fn(&Mapping<'_>)) -> Result<(), Fault> {
        // With the map locked: a fork between looking and writing would make the page the child's too.
        let write = |space: &Space| {
            let (frame, prot) = self.pmap.extract(at)?;
            prot.contains(Prot::WRITE).then(|| {
                write(&ephemeral::map(&frame));
                // The processor does not see it, and the page may have to be written back.
                pmap::set_modified(&frame);
                let entry = space.lookup(at).filter(|entry| entry.shared);
                if let Some((entry, object)) = entry.and_then(|it| Some((it, it.object.as_ref()?)))
                {
                    object.pager.may_be_written(entry.index(object, at));
                }
            })
        };
        let space = self.space.read();
        if at < USER_END && write(&space).is_some() {
            return Ok(());
        }
        drop(space);
        self.resolve_patiently(at, Access::Write, write)
    }

    /// What names a byte of shared memory in every address space that maps it: the address of its
    /// object, and the byte in the object, or the amap's for private memory that children share. `None` if `va` is not in
    /// such a mapping (futexes).
    pub fn shared_location(&self, va: VirtAddr) -> Option<(usize, u64)> {
        let space = self.space.read();
        let entry = space.lookup(va)?;
        if entry.shares_amap() {
            let amap = Arc::as_ptr(entry.amap.as_ref()?);
            let byte = (entry.key(va) as u64)
                .wrapping_mul(PAGE_SIZE as u64)
                .wrapping_add(va.page_offset() as u64);
            return Some((amap as usize, byte));
        }
        let entry = Some(entry).filter(|entry| entry.shared)?;
        let object = entry.object.as_ref()?;
        let page = entry.index(object, va);
        let byte = page * PAGE_SIZE as u64 + va.page_offset() as u64;
        Some((core::ptr::from_ref(object.pager.object()) as usize, byte))
    }
}
