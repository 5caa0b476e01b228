//! Shared memory.
//!
//! A segment is an object of the virtual-memory system whose pages are zero-filled on demand. As on
//! Linux its number of attachments is that of its mappings, so an attachment that `mprotect` has
//! split counts twice.

use alloc::{
    format,
    sync::{Arc, Weak},
};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use abi::{Errno, Result, raw::general as raw};
use fs::device;
use nucleus::{
    PAGE_SIZE,
    addr::USER_END,
    frame::{self, Owned},
    sync::{Rank, SpinLock},
};
use vm::{
    Description, Object as Pages, Pager,
    account::{self, Account, Charge, Kind, Stock},
};

use super::{
    Caller, IPC_CREAT,
    ids::{Ids, Object},
    limits::{SHMALL, SHMMAX, SHMMNI},
    now,
    permission::{Change, Permission},
};
use crate::process::{Pid, thread};

/// [`Permission::mode`]: goes away with the last attachment.
pub const SHM_DEST: u32 = 0o1000;
/// [`Permission::mode`]: `SHM_LOCK`.
pub const SHM_LOCKED: u32 = 0o2000;
/// `shmget`: no reckoning with the memory there is.
pub const SHM_NORESERVE: u32 = 0o10000;

pub static SEGMENTS: Ids<Segment> = Ids::new();
/// Pages of all segments.
static PAGES: AtomicUsize = AtomicUsize::new(0);

pub struct Segment {
    id: i32,
    /// Bytes, as asked for.
    pub size: usize,
    pages: Pages,
    /// Its size, for its maker's user.
    _charge: Option<Charge>,
    state: SpinLock<State>,
    /// To be removed from the table by the last detachment, which has no counted handle.
    own: Weak<Segment>,
}

struct State {
    /// Its pages are not counted here.
    status: SegmentStatus,
    removed: bool,
}

/// The figures of `IPC_STAT`.
#[derive(Clone, Copy, Default, Debug)]
pub struct SegmentStatus {
    pub permission: Permission,
    pub id: i32,
    pub size: usize,
    /// Seconds since the epoch.
    pub attached: i64,
    pub detached: i64,
    pub changed: i64,
    pub creator: Pid,
    /// The process that attached or detached last.
    pub last: Pid,
    /// Mappings, and calls that are about to make one.
    pub attachments: usize,
    pub resident_pages: usize,
    /// Pages that are in swap only.
    pub swapped_pages: usize,
}

/// `shmget`.
///
/// # Errors
/// `EINVAL` for a size that is not allowed or larger than that of the existing segment; else as
/// [`Ids::find_or_make`].
pub fn get(key: i32, size: usize, flags: u32, caller: Caller<'_>) -> Result<i32> {
    let fits = |segment: &Segment| match segment.size < size {
        true => Err(Errno::EINVAL),
        false => Ok(()),
    };
    let make = |id| Segment::new(id, key, size, flags, caller);
    let most = SHMMNI.get() as usize;
    SEGMENTS.find_or_make(key, flags, caller, most, fits, make)
}

/// Pages of all segments, how many of them are resident, and how many are in swap.
pub fn totals() -> (usize, usize, usize) {
    let (_, highest) = SEGMENTS.population();
    let (mut resident, mut swapped) = (0, 0);
    for segment in (0..=highest).filter_map(|index| SEGMENTS.at(index)) {
        let status = segment.status();
        resident += status.resident_pages;
        swapped += status.swapped_pages;
    }
    (PAGES.load(Relaxed), resident, swapped)
}

impl Segment {
    fn new(id: i32, key: i32, size: usize, flags: u32, caller: Caller<'_>) -> Result<Arc<Segment>> {
        debug_assert!(key == super::IPC_PRIVATE || flags & IPC_CREAT != 0);
        // One that no address space has room for would only be a number that sums wrap with.
        if size == 0 || size as u64 > SHMMAX.get() || size > USER_END.0 {
            return Err(Errno::EINVAL);
        }
        let count = size.div_ceil(PAGE_SIZE);
        let total = PAGES.load(Relaxed).checked_add(count);
        if total.is_none_or(|total| total as u64 > SHMALL.get()) {
            return Err(Errno::ENOSPC);
        }
        if flags & SHM_NORESERVE == 0 && count > frame::usage().total {
            return Err(Errno::ENOMEM);
        }
        let account = account::current_for(Kind::Segments);
        // Nothing else counts pages that are not there yet.
        let may = |user: &Arc<Account>| user.may_keep(Kind::Segments, 0, 1);
        let charge = account.as_ref().map(|account| {
            let charge = account.charge_if(Kind::Segments, count, 0, may);
            charge.ok_or(Errno::ENOSPC)
        });
        let charge = charge.transpose()?;
        let stock = Stock::new(account, Kind::Segments);
        // The table's lock is held: no other thread makes a segment.
        PAGES.fetch_add(count, Relaxed);
        let status = SegmentStatus {
            permission: Permission::new(key, flags, caller.credentials),
            id,
            size,
            changed: now(),
            creator: caller.pid,
            ..SegmentStatus::default()
        };
        let removed = false;
        Ok(Arc::new_cyclic(|own| Segment {
            id,
            size,
            pages: Pages::of_zeros(count as u64, stock),
            _charge: charge,
            state: SpinLock::new(Rank::Leaf, State { status, removed }),
            own: own.clone(),
        }))
    }

    fn page_count(&self) -> usize {
        self.size.div_ceil(PAGE_SIZE)
    }

    /// The figures of `IPC_STAT`.
    pub fn status(&self) -> SegmentStatus {
        let swapped_pages = self.pages.swapped_count();
        let resident_pages = self.pages.resident_count().saturating_sub(swapped_pages);
        SegmentStatus {
            resident_pages,
            swapped_pages,
            ..self.state.lock().status
        }
    }

    /// Holds the segment for an attachment that is about to be made. To be ended by
    /// [`release`](Segment::release).
    ///
    /// # Errors
    /// `EIDRM` if it has been removed.
    pub fn hold(&self) -> Result<()> {
        self.usable()?.status.attachments += 1;
        Ok(())
    }

    /// Ends [`hold`](Segment::hold).
    pub fn release(&self) {
        self.drop_attachment(false);
    }

    /// `IPC_SET`.
    ///
    /// # Errors
    /// `EIDRM`, `EPERM`, `EINVAL`.
    pub fn set(&self, caller: Caller<'_>, change: Change) -> Result<()> {
        let mut state = self.usable()?;
        state.status.permission.set(caller, change)?;
        state.status.changed = now();
        Ok(())
    }

    /// `SHM_LOCK` and `SHM_UNLOCK`: pages are never paged out, so only the mark changes. `may_lock`
    /// is the caller's limit in bytes.
    ///
    /// # Errors
    /// `EIDRM`, `EPERM`, `ENOMEM` beyond the limit.
    pub fn set_locked(&self, caller: Caller<'_>, locked: bool, may_lock: u64) -> Result<()> {
        let mut state = self.usable()?;
        if !caller.credentials.may(raw::CAP_IPC_LOCK) {
            state.status.permission.check_owner(caller)?;
            if locked && may_lock == 0 {
                return Err(Errno::EPERM);
            }
            if locked && self.size as u64 > may_lock {
                return Err(Errno::ENOMEM);
            }
        }
        self.pages.keep(locked);
        match locked {
            true => state.status.permission.mode |= SHM_LOCKED,
            false => state.status.permission.mode &= !SHM_LOCKED,
        }
        Ok(())
    }

    fn usable(&self) -> Result<nucleus::sync::SpinGuard<'_, State>> {
        let state = self.state.lock();
        match state.removed {
            true => Err(Errno::EIDRM),
            false => Ok(state),
        }
    }

    /// One attachment less; `mapped` if it was a mapping and is to be noted.
    fn drop_attachment(&self, mapped: bool) {
        let last = mapped.then(current_pid);
        {
            let mut state = self.state.lock();
            state.status.attachments -= 1;
            if let Some(last) = last {
                state.status.detached = now();
                state.status.last = last;
            }
            state.removed |=
                state.status.attachments == 0 && state.status.permission.mode & SHM_DEST != 0;
        }
        self.leave_if_removed();
    }

    /// Takes a removed segment out of the table. Its pages go with the last handle.
    fn leave_if_removed(&self) {
        if self.state.lock().removed {
            drop(SEGMENTS.remove(self.id));
        }
    }

    /// Returns it as a pager, to be mapped.
    pub fn pager(&self) -> Option<Arc<dyn Pager>> {
        self.own.upgrade().map(|own| own as Arc<dyn Pager>)
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        PAGES.fetch_sub(self.page_count(), Relaxed);
    }
}

/// Returns the process on whose behalf a mapping comes or goes; 0 for the kernel's own tasks.
fn current_pid() -> Pid {
    thread::with_current(|thread| thread.process().pid()).unwrap_or(0)
}

impl Object for Segment {
    fn permission(&self) -> Permission {
        self.state.lock().status.permission
    }

    fn id(&self) -> i32 {
        self.id
    }

    /// No key finds it, and it goes away with its last attachment.
    fn remove(&self, caller: Caller<'_>) -> Result<()> {
        let key = {
            let mut state = self.usable()?;
            state.status.permission.check_owner(caller)?;
            state.status.permission.mode |= SHM_DEST;
            state.removed = state.status.attachments == 0;
            core::mem::replace(&mut state.status.permission.key, super::IPC_PRIVATE)
        };
        SEGMENTS.forget_key(key, self.id);
        self.leave_if_removed();
        Ok(())
    }
}

impl Pager for Segment {
    fn object(&self) -> &Pages {
        &self.pages
    }

    fn lend(&self, index: u64) -> Option<Owned> {
        self.pages.lend(index, || true)
    }

    fn reference(&self, _writable: bool) {
        let last = current_pid();
        let mut state = self.state.lock();
        state.status.attachments += 1;
        state.status.attached = now();
        state.status.last = last;
    }

    fn detach(&self, _writable: bool) {
        self.drop_attachment(true);
    }

    fn describe(&self) -> Description {
        let permission = Object::permission(self);
        Description {
            device: device::number(0, 1),
            inode: self.id as u64,
            name: format!("/SYSV{:08x} (deleted)", permission.key).into_bytes(),
        }
    }
}
