//! The memory of another process: `process_vm_readv`, `process_vm_writev`.

use abi::{Errno, Result};
use nucleus::{
    PAGE_SIZE, VirtAddr, VirtRange,
    ephemeral::{self, Flags},
    user,
};
use vm::{CopyReason, Map, Moved, TransferCall, count_moved};

use super::{
    Call, NO_FLAGS, SystemCall,
    arguments::{find, ranges},
    call,
};
use crate::process::{Ids, View, pid_table, signal::ERESTARTSYS};

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_process_vm_readv, |call| transfer(call, false)).flags(&[&NO_FLAGS]),
    call!(__NR_process_vm_writev, |call| transfer(call, true)).flags(&[&NO_FLAGS]),
];

/// Pages that are copied before it is tried again to pass some, and before a kill is looked for.
const COPIED_TOGETHER: usize = 16;

/// The memory of the caller and that of another process, between which bytes are copied.
struct Pair<'a> {
    own: &'a Map,
    other: &'a Map,
    /// Bytes go from the caller to the other process.
    writes: bool,
}

impl Pair<'_> {
    /// Passes pages from `own` to `other`, or the other way; returns how many bytes those are.
    ///
    /// # Errors
    /// Why they are to be copied.
    fn pass(
        &self,
        own: VirtAddr,
        other: VirtAddr,
        bytes: usize,
    ) -> core::result::Result<usize, CopyReason> {
        let passed = match self.writes {
            true => self.own.pass_to(own, self.other, other, bytes),
            false => self.other.pass_to(other, self.own, own, bytes),
        };
        passed.map(|pages| pages * PAGE_SIZE)
    }

    /// Copies `len` bytes, or fewer; returns how many, and whether their pages were mapped.
    ///
    /// # Errors
    /// `EFAULT` if none can be copied.
    fn copy(&self, own: VirtAddr, other: VirtAddr, len: usize) -> Result<(usize, bool)> {
        match self.copy_mapped(own, other, len)? {
            0 => Ok((self.copy_in_page(own, other, len)?, false)),
            n => Ok((n, true)),
        }
    }

    /// As [`copy`](Pair::copy), no further than one page of either side, which are brought in.
    ///
    /// # Errors
    /// `EFAULT`, and a restart number after a signal.
    #[inline(never)]
    fn copy_in_page(&self, own: VirtAddr, other: VirtAddr, len: usize) -> Result<usize> {
        let (map, from, to) = match self.writes {
            true => (self.own, own, other),
            false => (self.other, other, own),
        };
        let offset = from.page_offset();
        let len = len.min(PAGE_SIZE - offset.max(to.page_offset()));
        let mut held = [None];
        map.hold_each(from, &mut held);
        let [Some(page)] = held else {
            return Err(Errno::EFAULT);
        };
        // The wait for a mapping, if all are in use: a signal may end it, and no lock is held.
        drop(ephemeral::alloc(&page, Flags::INTERRUPTIBLE).map_err(|_| ERESTARTSYS)?);
        let copied = match self.writes {
            true => self.other.write_from(to, &page, offset, len).is_ok(),
            false => user::copy_out_page(to, &page, offset, len).is_ok(),
        };
        copied.then_some(len).ok_or(Errno::EFAULT)
    }

    /// Copies as far as the pages of both sides are mapped.
    fn copy_mapped(&self, own: VirtAddr, other: VirtAddr, len: usize) -> Result<usize> {
        let end = other.checked_add(len).ok_or(Errno::EFAULT)?;
        let range = VirtRange::new(other, end);
        let mut at = own;
        Ok(match self.writes {
            true => self.other.write_mapped(range, |page, place| {
                let n = user::copy_in_page_if_mapped(page, place.start, at, place.len());
                at = at + n;
                n
            }),
            false => self.other.read_mapped(range, |page, place| {
                let n = user::copy_out_page_if_mapped(at, page, place.start, place.len());
                at = at + n;
                n
            }),
        })
    }
}

/// Copies between the caller's ranges and another process's, once, until one side ends or fails.
fn transfer(call: &mut Call<'_>, writes: bool) -> Result<usize> {
    call.flags(5, &NO_FLAGS)?;
    let local = ranges(call.address(1), call.size(2))?;
    if local.is_empty() {
        return Ok(0);
    }
    let remote = ranges(call.address(3), call.size(4))?;
    if remote.is_empty() {
        return Ok(0);
    }
    let (mut local, mut remote) = (local.into_iter(), remote.into_iter());
    let target = find(call.int(0), pid_table::find_thread)?;
    let (space, own) = (View::space_of(&target, Ids::Real)?, call.space());
    let pair = Pair {
        own: own.map(),
        other: space.map(),
        writes,
    };
    let mut done = 0;
    let (mut here, mut there) = ([0; 2], [0; 2]);
    // Some bytes are copied before passing is tried again.
    let mut passes_from = 0;
    let mut why = CopyReason::Small;
    loop {
        if here[1] == 0 {
            let Some(next) = local.next() else { break };
            here = next;
        }
        if there[1] == 0 {
            let Some(next) = remote.next() else { break };
            there = next;
        }
        let (own, other) = (VirtAddr(here[0] as usize), VirtAddr(there[0] as usize));
        let wanted = here[1].min(there[1]) as usize;
        let passed = match done >= passes_from {
            true => pair.pass(own, other, wanted),
            false => Err(why),
        };
        let len = match passed {
            Ok(passed) => {
                count_moved(TransferCall::Process, Moved::Passed, passed);
                passed
            }
            Err(now) => {
                let most = COPIED_TOGETHER * PAGE_SIZE;
                let (copied, was_mapped) = match pair.copy(own, other, wanted.min(most)) {
                    Ok(copied) => copied,
                    Err(error) if done == 0 => return Err(error),
                    Err(_) => break,
                };
                // A page that was not there may be lent as soon as it is.
                if done >= passes_from && (was_mapped || now != CopyReason::NotLent) {
                    passes_from = done + most;
                }
                why = now;
                count_moved(TransferCall::Process, Moved::Copied(why), copied);
                copied
            }
        };
        done += len;
        for range in [&mut here, &mut there] {
            range[0] = range[0].wrapping_add(len as u64);
            range[1] -= len as u64;
        }
        if call.thread.signals.needs_attention() && call.thread.is_dying() {
            break;
        }
    }
    Ok(done)
}
