//! Mounting a device, mount options, and unmounting.
//!
//! A device has one file system, however often it is mounted. It ends with its last mount or, if
//! that was detached while files were in use, with the last of these: everything is written back,
//! the superblock is marked valid, and the device is released.

use alloc::{
    boxed::Box,
    sync::{Arc, Weak},
    vec::Vec,
};
use core::{sync::atomic::Ordering, time::Duration};

use abi::{Errno, Result};
use nucleus::{
    log,
    sync::Mutex,
    task::{self, Priority, Sleep, Spawn},
};

use super::{Ext2, mount_state::Step, options::Options, state::Body};
use crate::{
    Vnode,
    block::{Claim, Device},
    notify,
    page_cache::InCore,
};

/// How often a detached file system is checked for use.
const LOOK: Duration = Duration::from_millis(200);

/// The device's holder, for messages.
const HOLDER: &str = "ext2";

/// The file systems in use.
static IN_USE: Mutex<Vec<Weak<Ext2>>> = Mutex::new(crate::rank::FILES, Vec::new());

/// Returns the root of the file system on a device, which is opened unless it is in use already.
/// The caller calls [`mounted`](Vnode::mounted); it ends with its last mount.
///
/// # Errors
/// `EINVAL` for bad options, or if it is no ext2 or damaged; `EROFS` if the device or a feature
/// forbids writing, unless `read_only`; `EBUSY` if the device has another holder, or it is mounted
/// the other way; `EIO`, `ENOMEM`.
pub fn mount(device: &Arc<Device>, options: &[u8], read_only: bool) -> Result<Arc<dyn Vnode>> {
    let mut wanted = Options::parse(options)?;
    let mut in_use = IN_USE.lock();
    in_use.retain(|fs| fs.strong_count() > 0);
    let same = in_use
        .iter()
        .filter_map(Weak::upgrade)
        .find(|fs| Arc::ptr_eq(fs.device(), device));
    if let Some(fs) = same {
        // One that is ending cannot be mounted again.
        let usable = !fs.mounting.ending.load(Ordering::Acquire) && fs.is_read_only() == read_only;
        if usable {
            return Ok(fs.root()?);
        }
        drop(in_use);
        return match fs.end_late() {
            true => mount(device, options, read_only),
            false => Err(Errno::EBUSY),
        };
    }
    in_use.try_reserve(1)?;
    let claim = device.claim(HOLDER)?;
    let fs = Ext2::open(device.clone()).map_err(|refused| {
        log!("ext2 on {}: {}", device.name(), refused.reason);
        refused.errno
    })?;
    if wanted.in_place && !fs.may_be_in_place() {
        // As on Linux since 5.17.
        log!(
            "ext2 on {}: no dax, which wants memory for a medium, and blocks of a page",
            device.name()
        );
        wanted.in_place = false;
    }
    fs.set_options(wanted);
    // An error before there is a root drops it and the claim on the device.
    let root = begin(&fs, read_only).inspect_err(|_| fs.forget())?;
    *fs.mounting.claim.lock() = Some(claim);
    in_use.push(Arc::downgrade(&fs));
    Ok(root)
}

/// Permits changes, unless `read_only`, and returns the root.
fn begin(fs: &Arc<Ext2>, read_only: bool) -> Result<Arc<dyn Vnode>> {
    let root = fs.root()?;
    if !read_only {
        if !fs.is_sound() {
            log!(
                "ext2 on {}: it was not unmounted; e2fsck should look at it",
                fs.device().name()
            );
        }
        fs.start_writing()?;
    }
    Ok(root)
}

/// Writes all file systems back and forbids changes, before the machine stops. Frees files without
/// names even if they are open.
pub fn shut_down() {
    let all: Vec<Weak<Ext2>> = IN_USE.lock().clone();
    for fs in all.iter().filter_map(Weak::upgrade) {
        if let Err(error) = fs.shut_down() {
            log!(
                "ext2 on {}: can't be unmounted: {}",
                fs.device().name(),
                error.name()
            );
        }
    }
}

impl Ext2 {
    /// As [`Vnode::mounted`].
    pub(super) fn mounted(&self) {
        self.mounting.mounts.fetch_add(1, Ordering::AcqRel);
    }

    /// As [`Vnode::retire`].
    pub(super) fn retire(self: &Arc<Ext2>) -> Result<()> {
        if self.mounting.mounts.load(Ordering::Acquire) > 1 {
            return Ok(());
        }
        notify::unmounted(self.device().number());
        // It cannot be mounted again meanwhile.
        let in_use = IN_USE.lock();
        if self.put_all_away() > 1 {
            return Err(Errno::EBUSY);
        }
        self.mounting.ending.store(true, Ordering::Release);
        drop(in_use);
        self.finish();
        Ok(())
    }

    /// As [`Vnode::unmounted`].
    pub(super) fn unmounted(self: &Arc<Ext2>) {
        if self.mounting.mounts.fetch_sub(1, Ordering::AcqRel) > 1
            || self.mounting.ending.swap(true, Ordering::AcqRel)
        {
            return;
        }
        // It was detached while in use. The caller may hold any lock, so a task does the rest.
        // Mappings use files, and their end is not reported: this case is too rare to charge every
        // mapping for it.
        self.do_later(Step::Finish);
    }

    /// Does a step if it can be done; returns whether it is done.
    fn try_step(self: &Arc<Ext2>, step: Step) -> bool {
        match step {
            Step::Finish if self.put_all_away() == 0 => self.finish(),
            Step::FreeDevice if !self.has_held() => self.free_device(),
            Step::Finish | Step::FreeDevice => return false,
        }
        true
    }

    /// Lets a task do a step as soon as it can be done. Without memory for the task it is left to
    /// the next mount of the device.
    fn do_later(self: &Arc<Ext2>, step: Step) {
        let spawn = Spawn {
            priority: Priority::KERNEL,
            ..Spawn::kernel("ext2-end")
        };
        let fs = self.clone();
        let end = move || {
            while !fs.try_step(step) {
                task::sleep(Sleep::within(LOOK));
            }
        };
        if task::spawn(spawn, Box::new(end)).is_err() {
            *self.mounting.left.lock() = Some(step);
            log!("ext2 on {}: no memory to end it", self.device().name());
        }
    }

    /// Does what [`do_later`](Ext2::do_later) found no memory for, if there is something, or lets a
    /// task do it; returns whether it is done. With no lock held.
    fn end_late(self: &Arc<Ext2>) -> bool {
        let left = self.mounting.left.lock().take();
        let Some(step) = left else {
            return false;
        };
        let is_done = self.try_step(step);
        if !is_done {
            self.do_later(step);
        }
        is_done
    }

    /// Evicts all unused inodes; returns how many are in use.
    fn put_all_away(&self) -> usize {
        self.table().map_or(0, |table| {
            table.put_all_away();
            // Unused inodes that cannot be written stay.
            let (all, unused) = table.counts();
            all - unused
        })
    }

    /// Ends the unused file system.
    fn finish(self: &Arc<Ext2>) {
        // If writing fails, the next check finds that it was not unmounted cleanly.
        let ended = self.shut_down();
        if let Err(error) = ended {
            log!(
                "ext2 on {}: can't be unmounted in order: {}",
                self.device().name(),
                error.name()
            );
        }
        self.forget();
        if ended.is_err() {
            drop(self.take_claim());
        } else if self.has_held() {
            // Another file's bytes must not come where a device still writes.
            self.do_later(Step::FreeDevice);
        } else {
            self.free_device();
        }
    }

    /// With no lock held: closing flushes the device's own pages.
    fn take_claim(&self) -> Option<Claim> {
        self.mounting.claim.lock().take()
    }

    /// The device is free, though writeback or a walk over all file systems may hold this for a
    /// moment.
    fn free_device(&self) {
        drop(self.take_claim());
        IN_USE.lock().retain(|fs| !core::ptr::eq(fs.as_ptr(), self));
    }

    /// As [`Vnode::reconfigure`].
    pub(super) fn reconfigure(&self, options: &[u8], read_only: bool) -> Result<()> {
        let mut options = Options::parse(options)?;
        // The inodes in memory keep what they have.
        options.in_place = self.options().in_place;
        if read_only && !self.is_read_only() {
            self.sync_all()?;
            self.table()?.wait_for_ends();
            let _no_changes = self.mounting.changes.write();
            let _no_ends = self.mounting.ends.lock();
            // Blocks that a transfer has could not be kept from a later change.
            if self.is_written()? || self.has_held() {
                return Err(Errno::EBUSY);
            }
            self.stop_writing()?;
        } else if !read_only {
            self.start_writing()?;
        }
        self.set_options(options);
        Ok(())
    }

    /// Frees files without names, writes everything back, and forbids changes.
    fn shut_down(&self) -> Result<()> {
        if self.is_read_only() {
            return self.stop_writing();
        }
        self.sync_all()?;
        let _no_changes = self.mounting.changes.write();
        let _no_ends = self.mounting.ends.lock();
        let mut result = Ok(());
        self.table()?.for_each(&mut |_, inode| {
            if inode.is_removed() {
                // Even if it is in use: no change is possible afterwards.
                result = result.and(inode.as_removed().free(self));
            }
        });
        result.and(self.stop_writing())
    }

    /// Returns whether a file is open for writing, or must be freed when it is closed.
    fn is_written(&self) -> Result<bool> {
        let mut any = false;
        self.table()?.for_each(&mut |_, inode| {
            let open = match &inode.state.body {
                Body::Regular(deny_write) => deny_write.is_written(),
                _ => false,
            };
            any |= open || inode.is_removed();
        });
        Ok(any)
    }
}
