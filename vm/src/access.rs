//! Reading and writing an address space that is not the current one (`/proc/PID/mem`, the stack of
//! a program that `execve` is about to start).

use nucleus::{Access, PAGE_SIZE, Prot, VirtAddr, addr::USER_END, ephemeral, pmap};

use crate::map::Map;

impl Map {
    /// Reads another address space (`/proc/PID/mem`, `cmdline`, `process_vm_readv`); returns how
    /// many bytes could be.
    pub fn read(&self, from: VirtAddr, to: &mut [u8]) -> usize {
        let mut done = 0;
        while done < to.len() {
            let Some(at) = from.checked_add(done).filter(|&at| at < USER_END) else {
                break;
            };
            let len = (PAGE_SIZE - at.page_offset()).min(to.len() - done);
            let part = &mut to[done..done + len];
            let page = self.resolve(at, Access::Read, |_| Some(self.pmap.extract(at)?.0));
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
            // With the map still locked: a fork between the fault and the write would make the
            // page the child's too.
            let written = self.resolve(at, Access::Write, |space| {
                let (frame, prot) = self.pmap.extract(at)?;
                prot.contains(Prot::WRITE).then(|| {
                    ephemeral::map(&frame).write(at.page_offset(), part);
                    // The processor does not see it, and the page may have to be written back.
                    pmap::set_modified(&frame);
                    let entry = space.lookup(at).filter(|entry| entry.shared);
                    if let Some((entry, object)) =
                        entry.and_then(|it| Some((it, it.object.as_ref()?)))
                    {
                        object.pager.may_be_written(entry.index(object, at));
                    }
                })
            });
            if written.is_err() {
                break;
            }
            done += len;
        }
        done
    }
    /// What names a byte of shared memory in every address space that maps it: the address of its
    /// object, and the byte in the object. `None` if `va` is not in a shared mapping (futexes).
    pub fn shared_location(&self, va: VirtAddr) -> Option<(usize, u64)> {
        let space = self.space.read();
        let entry = space.lookup(va).filter(|entry| entry.shared)?;
        let object = entry.object.as_ref()?;
        let page = entry.index(object, va);
        let byte = page * PAGE_SIZE as u64 + va.page_offset() as u64;
        Some((core::ptr::from_ref(object.pager.object()) as usize, byte))
    }
}
