//! Mounting: from a device to a root vnode, options, and the end.
//!
//! A device has one file system, however often it is mounted. It ends with its last mount, or, if that was taken off while files were in
//! use, with the last of those: everything is written back, the superblock says that all fits together, and the device is given up.

use alloc::{
    boxed::Box,
    string::String,
    sync::{Arc, Weak},
    vec::Vec,
};
use core::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

use abi::{Errno, Result};
use nucleus::{
    log, random,
    sync::{CpuReadGuard, CpuRwLock, CpuWriteGuard, Mutex, MutexGuard, Rank, SpinLock},
    task::{self, Priority, Sleep, Spawn},
    time,
};

use super::{Ext2, orphans::Orphans, state::Body};
use crate::{
    Vnode,
    block::{Claim, Device},
    page_cache::InCore,
};

/// A change of the file system is under way.
pub(super) type Change<'a> = CpuReadGuard<'a, ()>;

/// How often is looked whether what is not mounted any more is unused.
const LOOK: Duration = Duration::from_millis(200);

/// Who has the device, in messages.
const HOLDER: &str = "ext2";

/// The file systems that are in use, by their devices.
static IN_USE: Mutex<Vec<Weak<Ext2>>> = Mutex::new(Rank::Files, Vec::new());

/// What `mount -o` says.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Options {
    /// The group of a directory goes down to all that is made in it (`grpid`).
    pub groups_go_down: bool,
    /// Damage that is found does not make it read-only (`errors=continue`).
    pub goes_on: bool,
    /// Who may have the reserved blocks, if not those whom the superblock names (`resuid=UID`, `resgid=GID`).
    pub reserved_uid: Option<u32>,
    pub reserved_gid: Option<u32>,
}

impl Options {
    /// Reads the options of `mount -t ext2`: `errors=continue|remount-ro`, `grpid` and `nogrpid` by both their names, `resuid=UID`,
    /// `resgid=GID`, and what says how things are anyway.
    ///
    /// # Errors
    /// `EINVAL` for others.
    pub fn parse(text: &[u8]) -> Result<Options> {
        let mut options = Options::default();
        let number = |text: &[u8]| core::str::from_utf8(text).ok()?.parse().ok();
        for word in text.split(|&b| b == b',') {
            if let Some(uid) = word.strip_prefix(b"resuid=") {
                options.reserved_uid = Some(number(uid).ok_or(Errno::EINVAL)?);
                continue;
            }
            if let Some(gid) = word.strip_prefix(b"resgid=") {
                options.reserved_gid = Some(number(gid).ok_or(Errno::EINVAL)?);
                continue;
            }
            match word {
                b"errors=continue" => options.goes_on = true,
                b"errors=remount-ro" => options.goes_on = false,
                b"grpid" | b"bsdgroups" => options.groups_go_down = true,
                b"nogrpid" | b"sysvgroups" => options.groups_go_down = false,
                b"" | b"defaults" | b"bsddf" | b"nouser_xattr" | b"noacl" | b"check=none"
                | b"nocheck" => {}
                _ => {
                    log!("ext2: unknown option {}", String::from_utf8_lossy(word));
                    return Err(Errno::EINVAL);
                }
            }
        }
        Ok(options)
    }
}

/// What the upper half keeps for a file system.
pub(super) struct Upper {
    pub orphans: Orphans,
    /// Held while a directory gets another parent, so that what is above what stays.
    pub rename: Mutex<()>,
    /// For the hashes of names: nobody outside can make names collide.
    pub seed: u64,
    options: SpinLock<Options>,
    /// Held by who changes something, so that the end comes between changes.
    changes: CpuRwLock<()>,
    /// Held by who ends removed files, and by who lets nothing be changed any more. Not `changes`: who makes a change may wait for such ends.
    ends: Mutex<()>,
    mounts: AtomicUsize,
    claim: SpinLock<Option<Claim>>,
    /// It was mounted, and has no mount any more.
    ending: AtomicBool,
}

impl Upper {
    /// For a file system whose superblock names `last_orphan`.
    pub fn new(last_orphan: u32) -> Upper {
        Upper {
            orphans: Orphans::new(last_orphan),
            rename: Mutex::new(Rank::Rename, ()),
            seed: random::u64(),
            options: SpinLock::new(Rank::Leaf, Options::default()),
            changes: CpuRwLock::new(Rank::Changing, ()),
            ends: Mutex::new(Rank::Ending, ()),
            mounts: AtomicUsize::new(0),
            claim: SpinLock::new(Rank::Leaf, None),
            ending: AtomicBool::new(false),
        }
    }

    /// Enters a change; the end waits for it.
    pub fn change(&self) -> Change<'_> {
        self.changes.read()
    }

    /// Waits for all changes, and holds others off.
    pub fn no_changes(&self) -> CpuWriteGuard<'_, ()> {
        self.changes.write()
    }

    /// Whose turn it is to end removed files.
    pub fn ends(&self) -> MutexGuard<'_, ()> {
        self.ends.lock()
    }

    pub fn options(&self) -> Options {
        *self.options.lock()
    }
}

/// The root of the file system on a device, which is opened unless it is in use already. It is to be [`mounted`](Vnode::mounted),
/// and ends when it is no more.
///
/// # Errors
/// `EINVAL` for bad options and for what is no ext2 or is damaged; `EROFS` for a device or features that do not let it be written, unless
/// `read_only`; `EBUSY` if somebody else has the device, or it is in use the other way; `EIO`, `ENOMEM`.
pub fn mount(device: &Arc<Device>, options: &[u8], read_only: bool) -> Result<Arc<dyn Vnode>> {
    let options = Options::parse(options)?;
    let mut in_use = IN_USE.lock();
    in_use.retain(|fs| fs.strong_count() > 0);
    let same = in_use
        .iter()
        .filter_map(Weak::upgrade)
        .find(|fs| Arc::ptr_eq(fs.device(), device));
    if let Some(fs) = same {
        // One that ends is nobody's to mount.
        let usable = !fs.upper.ending.load(Ordering::Acquire) && fs.is_read_only() == read_only;
        return match usable {
            true => Ok(fs.root()?),
            false => Err(Errno::EBUSY),
        };
    }
    in_use.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    let claim = device.claim(HOLDER)?;
    let fs = Ext2::open(device.clone()).map_err(|refused| {
        log!("ext2 on {}: {}", device.name(), refused.reason);
        refused.errno
    })?;
    *fs.upper.options.lock() = options;
    // Until there is a root, an error ends it, the claim with it.
    let root = begin(&fs, read_only).inspect_err(|_| fs.forget())?;
    *fs.upper.claim.lock() = Some(claim);
    in_use.push(Arc::downgrade(&fs));
    Ok(root)
}

/// Lets it be written, unless `read_only`, and finds its root.
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

/// The machine is about to stop: all file systems are written back and can't be changed from here on. Files without a name end, whoever
/// has them open.
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
        self.upper.mounts.fetch_add(1, Ordering::AcqRel);
    }

    /// As [`Vnode::retire`].
    pub(super) fn retire(&self) -> Result<()> {
        if self.upper.mounts.load(Ordering::Acquire) > 1 {
            return Ok(());
        }
        // Nobody mounts it anew meanwhile.
        let in_use = IN_USE.lock();
        if self.put_all_away() > 1 {
            return Err(Errno::EBUSY);
        }
        self.upper.ending.store(true, Ordering::Release);
        drop(in_use);
        self.finish();
        Ok(())
    }

    /// As [`Vnode::unmounted`].
    pub(super) fn unmounted(self: &Arc<Ext2>) {
        if self.upper.mounts.fetch_sub(1, Ordering::AcqRel) > 1
            || self.upper.ending.swap(true, Ordering::AcqRel)
        {
            return;
        }
        // It was taken off while it was in use. Whoever let go of it may hold any lock: a task does the rest.
        let spawn = Spawn {
            name: "ext2-end",
            pmap: None,
            attachment: None,
            cpus: u64::MAX,
            priority: Priority::KERNEL,
        };
        let fs = self.clone();
        let end = move || {
            while fs.put_all_away() > 0 {
                // Mappings have files in use. Nobody tells when they end: this is too rare to make each of them pay for it.
                task::sleep(Sleep {
                    interruptible: false,
                    deadline: Some(time::since_boot() + LOOK),
                });
            }
            fs.finish();
        };
        if task::spawn(spawn, Box::new(end)).is_err() {
            log!("ext2 on {}: no memory to end it", self.device().name());
        }
    }

    /// Puts all inodes away that nobody uses; says how many are in use.
    fn put_all_away(&self) -> usize {
        self.table().map_or(0, |table| {
            table.put_all_away();
            // Some that nobody uses may stay, because they can't be written.
            let (all, unused) = table.counts();
            all - unused
        })
    }

    /// Ends it: nobody uses it.
    fn finish(&self) {
        // What can't be written stays unwritten; the next check finds that it was not unmounted.
        let ended = self.shut_down();
        if let Err(error) = ended {
            log!(
                "ext2 on {}: can't be unmounted in order: {}",
                self.device().name(),
                error.name()
            );
        }
        self.forget();
        let claim = self.upper.claim.lock().take();
        // With no lock held: the device's own pages are looked after.
        drop(claim);
        if ended.is_ok() {
            // The device is anybody's, though somebody may hold this for a moment yet: who writes back, or goes round all file systems.
            IN_USE.lock().retain(|fs| !core::ptr::eq(fs.as_ptr(), self));
        }
    }

    /// As [`Vnode::reconfigure`].
    pub(super) fn reconfigure(&self, options: &[u8], read_only: bool) -> Result<()> {
        let options = Options::parse(options)?;
        if read_only && !self.is_read_only() {
            self.sync_all()?;
            self.table()?.wait_for_ends();
            let _no_changes = self.upper.no_changes();
            let _no_ends = self.upper.ends();
            if self.is_written()? {
                return Err(Errno::EBUSY);
            }
            self.stop_writing()?;
        } else if !read_only {
            self.start_writing()?;
        }
        *self.upper.options.lock() = options;
        Ok(())
    }

    /// Ends files without a name, writes everything back, and lets nothing be changed from then on.
    fn shut_down(&self) -> Result<()> {
        if self.is_read_only() {
            return self.stop_writing();
        }
        self.sync_all()?;
        let _no_changes = self.upper.no_changes();
        let _no_ends = self.upper.ends();
        let mut result = Ok(());
        self.table()?.for_each(&mut |_, inode| {
            if inode.is_removed() {
                result = result.and(inode.end_now());
            }
        });
        result.and(self.stop_writing())
    }

    /// Whether a file is open to be written, or has to be freed when it is closed.
    fn is_written(&self) -> Result<bool> {
        let mut any = false;
        self.table()?.for_each(&mut |_, inode| {
            let open = match &inode.state.body {
                Body::Regular(regular) => regular.text.is_written(),
                _ => false,
            };
            any |= open || inode.is_removed();
        });
        Ok(any)
    }
}
