//! Mounts: file systems over vnodes of others.

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::ops::Deref;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use abi::{
    Errno, Result,
    raw::general::{
        MS_DIRSYNC, MS_NOATIME, MS_NODEV, MS_NODIRATIME, MS_NOEXEC, MS_NOSUID, MS_NOSYMFOLLOW,
        MS_RDONLY, MS_RELATIME, MS_STRICTATIME, MS_SYNCHRONOUS,
    },
};
use bitflags::bitflags;
use nucleus::{
    Mistake, frame,
    sync::{BiasedRwLock, OnceArc, Rank, ReadSection, SpinLock},
    task::{self, MAX_CPUS},
};

use super::{Location, Vnode, is_same};

bitflags! {
    /// The flags of a mount, with the values of `mount`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct MountFlags: u32 {
        /// Files and directories can't be changed.
        const READ_ONLY = MS_RDONLY;
        /// Set-id bits and file capabilities have no effect.
        const NO_SET_ID = MS_NOSUID;
        /// Device nodes can't be opened.
        const NO_DEVICES = MS_NODEV;
        /// Files can't be executed.
        const NO_EXECUTE = MS_NOEXEC;
        /// Symbolic links are not followed.
        const NO_LINKS = MS_NOSYMFOLLOW;
        /// Reads do not update times of access.
        const NO_ACCESS_TIMES = MS_NOATIME;
        /// The same for directories.
        const NO_DIRECTORY_ACCESS_TIMES = MS_NODIRATIME;
        /// Each read updates the time of access, rather than one after each change and one a day.
        const STRICT_ACCESS_TIMES = MS_STRICTATIME;
        /// The default for times of access; shown, no difference.
        const RELATIVE_ACCESS_TIMES = MS_RELATIME;
        /// Writes and changes of directories are written back at once.
        const SYNCHRONOUS = MS_SYNCHRONOUS;
        /// Changes of directories are written back at once.
        const SYNCHRONOUS_DIRECTORIES = MS_DIRSYNC;
    }
}

impl MountFlags {
    /// Returns the words for them in `/proc/mounts`, after `ro` or `rw`.
    pub fn words(self) -> Vec<u8> {
        const WORDS: &[(MountFlags, &str)] = &[
            (MountFlags::SYNCHRONOUS, ",sync"),
            (MountFlags::SYNCHRONOUS_DIRECTORIES, ",dirsync"),
            (MountFlags::NO_SET_ID, ",nosuid"),
            (MountFlags::NO_DEVICES, ",nodev"),
            (MountFlags::NO_EXECUTE, ",noexec"),
            (MountFlags::NO_ACCESS_TIMES, ",noatime"),
            (MountFlags::NO_DIRECTORY_ACCESS_TIMES, ",nodiratime"),
            (MountFlags::RELATIVE_ACCESS_TIMES, ",relatime"),
            (MountFlags::NO_LINKS, ",nosymfollow"),
        ];
        let mut text = Vec::new();
        for (flag, word) in WORDS {
            if self.contains(*flag) {
                text.extend_from_slice(word.as_bytes());
            }
        }
        text
    }
}

/// References to a mount that are counted together: those that one CPU makes, in a cache line of
/// their own, or the first ones. Any of them stands for the mount.
///
/// A location takes its reference from the CPU on which it is made ([`here`](Mount::here)), so that
/// files opened on several CPUs share no count. [`gather`](Mounted::gather) stops that: from then
/// on a reference is copied from the handle that counts it, so none moves between counts while they
/// are added.
#[repr(align(64))]
pub struct Mount {
    /// That CPU.
    cpu: usize,
    mounted: Arc<Mounted>,
}

impl Deref for Mount {
    type Target = Mounted;
    #[inline]
    fn deref(&self) -> &Mounted {
        &self.mounted
    }
}

/// The first references to a mount, which no CPU makes.
const FIRST: usize = MAX_CPUS;

/// The references to a mount by CPU, and the first.
type ByCpu = Box<[OnceArc<Mount>; MAX_CPUS + 1]>;

/// The references to a mount that is no longer entered, gathered in one place.
pub(crate) struct Gathered(ByCpu);

impl Gathered {
    /// Returns how many others there are.
    pub fn others(&self) -> usize {
        let counted = match Mistake::CountsNotGathered.is_made() {
            false => &self.0[..],
            true => &self.0[FIRST..],
        };
        let all = counted.iter().filter_map(OnceArc::get_arc);
        // Without the two here.
        all.map(|it| Arc::strong_count(&it) - 2).sum()
    }
}

/// A mounted file system, or part of one.
pub struct Mounted {
    id: u64,
    root: Arc<dyn Vnode>,
    /// The mount point; `None` for the root mount and internal ones. Changes under the table's
    /// lock.
    at: SpinLock<Option<Location>>,
    fstype: &'static str,
    source: Vec<u8>,
    /// Options of the file system's own.
    options: SpinLock<Arc<[u8]>>,
    flags: AtomicU32,
    /// It is in the tree, not removed by a lazy unmount.
    pub(crate) attached: AtomicBool,
    /// It was marked by `MNT_EXPIRE` and not used since.
    pub(crate) expiring: AtomicBool,
    /// The mounts on vnodes of this mount, with the vnode; the last one on a vnode is on top.
    pub(crate) children: BiasedRwLock<Vec<(Arc<dyn Vnode>, Arc<Mount>)>>,
    /// `None` in no tree, or after [`gather`](Mounted::gather): a reference is then copied from the
    /// handle that counts it.
    by_cpu: BiasedRwLock<Option<ByCpu>>,
}

/// The parameters of a mount.
#[derive(Clone)]
#[allow(missing_docs)]
pub struct MountRequest<'a> {
    /// The file system's name.
    pub fstype: &'static str,
    /// The source, as `/proc/mounts` shows it.
    pub source: &'a [u8],
    pub flags: MountFlags,
    /// Options of the file system's own, as `/proc/mounts` shows them.
    pub options: &'a [u8],
}

impl<'a> MountRequest<'a> {
    /// Returns the parameters of a file system that is its own source, without options.
    pub fn plain(fstype: &'static str) -> MountRequest<'a> {
        MountRequest {
            fstype,
            source: fstype.as_bytes(),
            flags: MountFlags::RELATIVE_ACCESS_TIMES,
            options: b"",
        }
    }
}

impl Mount {
    pub(crate) fn new(
        id: u64,
        root: Arc<dyn Vnode>,
        at: Option<Location>,
        how: &MountRequest<'_>,
    ) -> Arc<Mount> {
        if let Some(fs) = root.file_system() {
            fs.mounted();
        }
        let mounted = Arc::new(Mounted {
            id,
            root,
            at: SpinLock::new(Rank::Leaf, at),
            fstype: how.fstype,
            source: how.source.into(),
            options: SpinLock::new(Rank::Leaf, how.options.into()),
            flags: AtomicU32::new(how.flags.bits()),
            attached: AtomicBool::new(true),
            expiring: AtomicBool::new(false),
            children: BiasedRwLock::new(crate::rank::COVERED, Vec::new()),
            by_cpu: BiasedRwLock::biased(crate::rank::COVERED, None),
        });
        Arc::new(Mount {
            cpu: FIRST,
            mounted,
        })
    }

    /// Has each CPU count its own references from now on. The caller has the first reference, and
    /// gathers them before it drops that: until then they keep the mount.
    pub(crate) fn count_by_cpu(self: &Arc<Mount>) {
        let by_cpu: ByCpu = Box::new([const { OnceArc::new() }; MAX_CPUS + 1]);
        by_cpu[FIRST].get_or_insert(|| self.clone());
        *self.by_cpu.write() = Some(by_cpu);
    }

    /// Returns a reference that this CPU counts.
    pub(crate) fn here(self: &Arc<Mount>) -> Arc<Mount> {
        let cpu = task::cpu();
        if self.cpu == cpu {
            return self.clone();
        }
        let find = |by_cpu: &Option<ByCpu>| by_cpu.as_ref().map(|all| all[cpu].get_arc());
        match self.by_cpu.read_with(find) {
            Some(Some(own)) => own,
            Some(None) => self.first_here(cpu),
            None => self.clone(),
        }
    }

    /// As [`here`](Mount::here), in a section; `None` if that cannot be done in one.
    pub(crate) fn here_in(self: &Arc<Mount>, section: &ReadSection) -> Option<Arc<Mount>> {
        let cpu = task::cpu();
        match self.cpu == cpu {
            true => Some(self.clone()),
            false => self.by_cpu.peek(section)?.as_ref()?[cpu].get_arc(),
        }
    }

    #[cold]
    fn first_here(self: &Arc<Mount>, cpu: usize) -> Arc<Mount> {
        if frame::is_scarce() {
            return self.clone();
        }
        let mounted = self.mounted.clone();
        let new = Arc::new(Mount { cpu, mounted });
        let add = |by_cpu: &Option<ByCpu>| {
            let own = &by_cpu.as_ref()?[cpu];
            own.get_or_insert(|| new.clone());
            own.get_arc()
        };
        self.by_cpu.read_with(add).unwrap_or_else(|| self.clone())
    }

    /// Tells whether both are references to one mount.
    pub(crate) fn is_same_mount(&self, other: &Mount) -> bool {
        Arc::ptr_eq(&self.mounted, &other.mounted)
    }

    /// Creates an internal mount, which is in no tree, for vnodes without a path.
    pub fn internal(root: Arc<dyn Vnode>, fstype: &'static str) -> Arc<Mount> {
        let how = MountRequest {
            source: b"none",
            ..MountRequest::plain(fstype)
        };
        Mount::new(0, root, None, &how)
    }

    /// Returns a location in no tree, for a vnode without a name.
    pub fn nameless(vnode: Arc<dyn Vnode>, fstype: &'static str) -> Location {
        Location::of_mount(&Mount::internal(vnode, fstype))
    }
}

impl Mounted {
    /// Returns the number of references, which may change meanwhile.
    pub(crate) fn users(&self) -> usize {
        self.by_cpu.read_with(|by_cpu| {
            let all = by_cpu.iter().flat_map(|all| all.iter());
            let all = all.filter_map(OnceArc::get_arc);
            all.map(|it| Arc::strong_count(&it) - 2).sum()
        })
    }

    /// Has references copied where they are counted, from now on, and returns all counts; `None`
    /// if that is so already.
    pub(crate) fn gather(&self) -> Option<Gathered> {
        self.by_cpu.write().take().map(Gathered)
    }

    /// Undoes [`gather`](Mounted::gather).
    pub(crate) fn resume_counting_by_cpu(&self, gathered: Gathered) {
        *self.by_cpu.write() = Some(gathered.0);
    }

    /// Returns its root.
    pub fn root(&self) -> &Arc<dyn Vnode> {
        &self.root
    }

    /// Returns its mount point; `None` for the root mount.
    pub fn at(&self) -> Option<Location> {
        self.at.lock().clone()
    }

    /// Sets its mount point; returns the old one, to be dropped when no lock is held.
    #[must_use]
    pub(crate) fn set_at(&self, at: Option<Location>) -> Option<Location> {
        core::mem::replace(&mut *self.at.lock(), at)
    }

    /// Returns its unique number (`mountinfo`, `statx`).
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Tells whether it is internal, in no tree ([`Mount::internal`], [`Mount::nameless`]).
    pub fn is_internal(&self) -> bool {
        self.id == 0
    }

    /// The file system's name.
    pub fn fstype(&self) -> &'static str {
        self.fstype
    }

    /// The source, as `/proc/mounts` shows it.
    pub fn source(&self) -> &[u8] {
        &self.source
    }

    /// Returns the file system's own options.
    pub fn options(&self) -> Arc<[u8]> {
        self.options.lock().clone()
    }

    pub(crate) fn set_options(&self, options: &[u8]) {
        let options = options.into();
        let old = core::mem::replace(&mut *self.options.lock(), options);
        drop(old);
    }

    /// Returns its flags.
    pub fn flags(&self) -> MountFlags {
        MountFlags::from_bits_retain(self.flags.load(Ordering::Relaxed))
    }

    pub(crate) fn set_flags(&self, flags: MountFlags) {
        self.flags.store(flags.bits(), Ordering::Relaxed);
    }

    /// Tells whether all of `flags` are set.
    #[inline]
    pub fn has(&self, flags: MountFlags) -> bool {
        self.flags().contains(flags)
    }

    /// Tells whether nothing may be changed through it.
    pub fn is_read_only(&self) -> bool {
        self.has(MountFlags::READ_ONLY)
            || self.root.file_system().is_some_and(|fs| fs.is_read_only())
    }

    /// Fails if nothing may be changed through it.
    ///
    /// # Errors
    /// `EROFS`.
    pub(crate) fn require_writable(&self) -> Result<()> {
        Errno::EROFS.unless(!self.is_read_only())
    }

    /// Returns the topmost mount on `vnode` of this mount. To be called only where the vnode's
    /// mount point is covered.
    pub(crate) fn over(&self, vnode: &Arc<dyn Vnode>) -> Option<Arc<Mount>> {
        self.children
            .read_with(|children| topmost(children, &**vnode).cloned())
    }
}

/// Returns the mount on top of those on `vnode`.
pub(crate) fn topmost<'a>(
    children: &'a [(Arc<dyn Vnode>, Arc<Mount>)],
    vnode: &dyn Vnode,
) -> Option<&'a Arc<Mount>> {
    let mut over = children.iter().rev();
    let over = over.find(|(covered, _)| is_same(&**covered, vnode));
    over.map(|(_, mount)| mount)
}

impl Drop for Mounted {
    /// The mount point may be on a mount that has no other owner, and so on down a stack of any
    /// height: a loop drops them, not recursion.
    fn drop(&mut self) {
        if let Some(fs) = self.root.file_system() {
            fs.unmounted();
        }
        let mut at = self.at.get_mut().take();
        while let Some(Location { mount, .. }) = at {
            let mounted = Arc::into_inner(mount).and_then(|mount| Arc::into_inner(mount.mounted));
            at = mounted.and_then(|mut mounted| mounted.at.get_mut().take());
        }
    }
}
