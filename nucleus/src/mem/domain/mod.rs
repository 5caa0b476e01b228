//! Domains: which memory each device reaches (`iosup.txt` 2.3), by tables that a remapping unit
//! walks for each of its accesses.
//!
//! | policy | a device reaches | by addresses | what is invalidated, and when |
//! |---|---|---|---|
//! | `off`, or without a unit | all memory | physical ones | nothing |
//! | `open` | free and writable frames | physical ones | a frame that becomes a table, heap or stack, before it does |
//! | `strict` | the frames of its requests, its rings and buffers | those of its own domain | the frames of many requests that are done, in one batch |
//!
//! `tables`: the pages of a domain's tables. `window` and `strict`: addresses that are mapped for a
//! request alone, and the batches. `open`: the tree of all open frames.
//!
//! Nothing here takes memory when a request is given to a device or comes back from it. The tables
//! themselves record the stale translations: an entry that is no longer present names its frame
//! until the invalidation of its batch is done.

mod ids;
pub(crate) mod open;
mod strict;
mod tables;
mod window;

use alloc::{
    sync::{Arc, Weak},
    vec::Vec,
};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

pub(crate) use strict::BATCH;
use strict::Strict;
#[cfg_attr(target_os = "none", allow(unused_imports))]
pub(crate) use window::{PAGES as WINDOW_PAGES, Window};

use crate::counters::Counter;
use crate::cpu::percpu::Restart;
use crate::frame::record::managed;
use crate::hw::iommu::{AttachError, Device, Features, Policy, Stale};
use crate::hw::machine;
use crate::lock::{Rank, SpinLock};
use crate::mem::mistake::Mistake;
use crate::{Frame, OutOfMemory};

static POLICY: AtomicU8 = AtomicU8::new(Policy::Off as u8);

/// Returns which memory devices reach.
#[inline]
pub(crate) fn policy() -> Policy {
    match POLICY.load(Ordering::Relaxed) {
        OPEN => Policy::Open,
        STRICT => Policy::Strict,
        _ => Policy::Off,
    }
}

const OPEN: u8 = Policy::Open as u8;
const STRICT: u8 = Policy::Strict as u8;

/// Sets the policy, as far as there are units that can enforce it.
///
/// # Safety
/// The machine has one CPU and no task yet, and its units are started.
pub(crate) unsafe fn start(wanted: Policy) {
    // SAFETY: the caller promises to be alone.
    unsafe {
        DOMAINS.set(SpinLock::new(Rank::Domain, Vec::new()));
        open::reset();
    }
    POLICY.store(Policy::Off as u8, Ordering::Relaxed);
    LIVE.store(0, Ordering::Relaxed);
    ids::reset();
    let has_units = machine::iommu_features().is_some();
    let fits = |it: Features| open::fits(it.levels, managed().end.into());
    let policy = match wanted {
        // At addresses of its own, a device reaches any frame.
        Policy::Open if !machine::iommu_features().is_none_or(fits) => {
            crate::log!("iommu: devices have no addresses for all memory: strict instead of open");
            Policy::Strict
        }
        Policy::Open if has_units => match open::start() {
            Ok(()) => Policy::Open,
            Err(OutOfMemory) => {
                crate::log!("iommu: no memory for tables: devices reach all memory");
                Policy::Off
            }
        },
        Policy::Strict if has_units => Policy::Strict,
        // The machine has said so.
        _ => Policy::Off,
    };
    POLICY.store(policy as u8, Ordering::Relaxed);
}

/// Calls `wrong` with frames that devices reach and must not: one for each 512 addresses at most.
/// Returns how many pages they reach, those of a strict domain and of the tree of open frames.
/// May be called by a task that holds no lock.
pub(crate) fn audit(mut wrong: impl FnMut(u32)) -> usize {
    let mut seen = open::audit(false, &mut wrong);
    each(|domain| {
        let strict = domain.strict();
        seen += strict.map_or(0, |it| it.audit(&mut wrong));
    });
    seen
}

/// Domains that have not ended.
static LIVE: AtomicUsize = AtomicUsize::new(0);

/// Domains there are, and some that have ended.
static DOMAINS: Restart<SpinLock<Vec<Weak<Domain>>>> =
    Restart::new(SpinLock::new(Rank::Domain, Vec::new()));

/// A driver whose device may be taken from it.
pub(crate) trait Driver: Send + Sync {
    /// The device reaches nothing any more: its requests have failed. Called by a task with no
    /// lock held.
    fn device_lost(&self);
}

/// The memory that one device reaches, as long as this lives.
pub(crate) struct Domain {
    device: Device,
    reach: Reach,
    /// The device was detached because it broke its promises.
    revoked: AtomicBool,
    /// Held while it is detached for this.
    revoking: SpinLock<()>,
    drivers: SpinLock<Vec<Weak<dyn Driver>>>,
}

enum Reach {
    /// All memory.
    Physical,
    /// The tree of open frames.
    Open,
    /// A tree of its own.
    Strict(Strict),
}

impl Domain {
    /// Attaches a device to a domain by the policy.
    ///
    /// # Errors
    /// [`AttachError`]: the device reaches nothing, or all memory if no unit stands before it.
    pub(crate) fn new(device: Device) -> Result<Arc<Domain>, AttachError> {
        let reach = match policy() {
            Policy::Off => Reach::Physical,
            Policy::Open => {
                open::attach(device)?;
                Reach::Open
            }
            Policy::Strict => Reach::Strict(Strict::new(device)?),
        };
        let domain = Arc::new(Domain::with(device, reach));
        if !matches!(domain.reach, Reach::Physical) {
            // Before `dma::domain_of` looks for a cleaner: either a cleaner that ends sees this
            // domain, or `domain_of` sees that there is none. Both sides are SeqCst for this.
            LIVE.fetch_add(1, Ordering::SeqCst);
            let new = Arc::downgrade(&domain);
            let mut domains = DOMAINS.lock();
            if Mistake::DomainsMove.is_made() {
                domains.retain(|it| it.strong_count() > 0);
            }
            // None moves: some task may be on its way along them.
            match domains.iter_mut().find(|it| it.strong_count() == 0) {
                Some(ended) => *ended = new,
                None => {
                    domains.try_reserve(1).map_err(|_| OutOfMemory)?;
                    domains.push(new);
                }
            }
        }
        Ok(domain)
    }

    /// Of a device that goes round the units: it reaches all memory.
    #[cfg_attr(not(target_os = "none"), allow(dead_code))]
    pub(crate) fn beside(device: Device) -> Arc<Domain> {
        Arc::new(Domain::with(device, Reach::Physical))
    }

    fn with(device: Device, reach: Reach) -> Domain {
        Domain {
            device,
            reach,
            revoked: AtomicBool::new(false),
            revoking: SpinLock::new(Rank::Revoke, ()),
            drivers: SpinLock::new(Rank::Leaf, Vec::new()),
        }
    }

    /// Adds a driver, which is notified when the device is lost.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    #[cfg_attr(not(target_os = "none"), allow(dead_code))]
    pub(crate) fn add_driver(&self, driver: Weak<dyn Driver>) -> Result<(), OutOfMemory> {
        let mut drivers = self.drivers.lock();
        drivers.try_reserve(1).map_err(|_| OutOfMemory)?;
        drivers.push(driver);
        Ok(())
    }

    /// The device.
    pub(crate) fn device(&self) -> Device {
        self.device
    }

    /// The domain, if addresses are its own.
    #[inline]
    pub(crate) fn strict(&self) -> Option<&Strict> {
        match &self.reach {
            Reach::Strict(strict) => Some(strict),
            _ => None,
        }
    }

    /// Maps a frame until the domain ends, for reads, writes or both. Returns the address by which
    /// the device finds its first byte.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(crate) fn map_lasting(
        &self,
        frame: &Frame,
        reads: bool,
        writes: bool,
    ) -> Result<u64, OutOfMemory> {
        match &self.reach {
            Reach::Strict(strict) => strict.map_lasting(frame, reads, writes),
            _ => Ok(frame.number()),
        }
        .map(|page| page << crate::PAGE_SHIFT)
    }

    /// Detaches a device that broke its promises; its drivers are notified later. Any context.
    /// False if no unit stands before it, so that it goes on reaching all memory; else it reaches
    /// nothing any more when this returns, also to the second of two callers.
    pub(crate) fn revoke(&self) -> bool {
        if matches!(self.reach, Reach::Physical) {
            return false;
        }
        let revoking = self.revoking.lock_irq();
        let is_first = !self.is_revoked();
        if Mistake::RevokedEarly.is_made() {
            self.revoked.store(true, Ordering::Release);
        }
        if is_first {
            machine::iommu_detach(self.device);
            // After that: a caller that finds this set frees the memory of requests.
            self.revoked.store(true, Ordering::Release);
        }
        drop(revoking);
        if is_first {
            crate::log!("iommu: device {} is given up", self.device);
        }
        true
    }

    /// Whether the device was [given up](Domain::revoke): then it reaches nothing.
    pub(crate) fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire)
    }

    /// Notifies the drivers of a device that was given up.
    fn notify_drivers(&self) {
        if Mistake::DriversNotNotified.is_made() {
            return;
        }
        let mut next = 0;
        while let Some(driver) = { self.drivers.lock().get(next).cloned() } {
            if let Some(driver) = driver.upgrade() {
                driver.device_lost();
            }
            next += 1;
        }
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        match &mut self.reach {
            Reach::Physical => {}
            Reach::Open => {
                machine::iommu_detach(self.device);
                open::detached();
            }
            Reach::Strict(strict) => {
                machine::iommu_detach(self.device);
                strict.end();
            }
        }
        if !matches!(self.reach, Reach::Physical) {
            // Release: a reader of 0 sees its frames free.
            LIVE.fetch_sub(1, Ordering::Release);
        }
    }
}

/// Whether there is any domain: a device before which a unit stands.
pub(crate) fn any() -> bool {
    // SeqCst: see `Domain::new`.
    LIVE.load(Ordering::SeqCst) > 0
}

/// Calls `f` with each domain, no lock held.
pub(crate) fn each(mut f: impl FnMut(&Domain)) {
    let mut next = 0;
    loop {
        let domain = DOMAINS.lock().get(next).map(Weak::upgrade);
        match domain {
            None => return,
            Some(Some(domain)) => f(&domain),
            Some(None) => {}
        }
        next += 1;
    }
}

/// Invalidates the stale translations of all domains, and notifies the drivers of devices that were
/// given up. Returns whether others became stale meanwhile. A task, with no lock held.
pub(crate) fn settle() -> bool {
    let mut is_left = false;
    each(|domain| {
        if domain.is_revoked() {
            domain.notify_drivers();
        }
        if let Some(strict) = domain.strict() {
            strict.flush(Counter::iotlb_batch);
            is_left |= strict.stale() > 0;
        }
    });
    is_left
}

/// Frees the frames that wait for an invalidation; returns whether there were any. The caller may
/// wait for other CPUs: it holds no spin lock.
pub(crate) fn flush_stale() -> bool {
    let mut any = false;
    if LIVE.load(Ordering::Relaxed) > 0 && !Mistake::ShortageIgnoresPending.is_made() {
        each(|domain| {
            if let Some(strict) = domain.strict().filter(|it| it.stale() > 0) {
                strict.flush(Counter::iotlb_other);
                any = true;
            }
        });
    }
    any
}

/// Has all units invalidate translations, because of `cause`.
fn invalidate(stale: Stale, cause: Counter) {
    let mistakes: &[Mistake] = match cause {
        Counter::iotlb_absent => &[Mistake::AbsentKept],
        Counter::iotlb_page_table | Counter::iotlb_heap | Counter::iotlb_stack => {
            &[Mistake::LeavesWithoutInvalidation]
        }
        _ => &[],
    };
    if mistakes.iter().any(|it| it.is_made()) {
        return;
    }
    machine::iommu_invalidate(&[stale]);
    cause.add(1);
}

/// Gives a device up that broke its promises, if it is in a domain.
pub(crate) fn give_up(device: Device) {
    each(|domain| {
        if domain.device == device && !Mistake::DomainKept.is_made() {
            domain.revoke();
        }
    });
}

#[cfg(test)]
mod tests;
