//! Vnodes: attributes and names.

use alloc::{
    boxed::Box,
    sync::{Arc, Weak},
    vec::Vec,
};
use core::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use abi::{Errno, Result, raw::general::CAP_DAC_OVERRIDE};
use fbuf::{Sink, Source};
use nucleus::{
    PAGE_SIZE, heap,
    sync::{OnceBox, Rank, SpinLock},
};
use vm::{Pager, account};

use super::{
    BLOCKS_PER_PAGE, ENTRY_SIZE, LINK_MAX, Payer, Ramfs, SHORT_LINK_MAX,
    directory::{Directory, MAP_NODE_BYTES},
    extended::Extended,
    names::{Record, TreePlace},
    now, pay_back,
    regular::Regular,
};
use crate::{
    Attributes, Credentials, DenyWrite, File, Kind, Location, OpenFlags, Vnode,
    credentials::EXECUTE,
    device::{self, Attachment},
    notify,
    page_cache::Cached,
    vnode::{
        self, Change, ExtendedAttributes, FileSystem, Make, MountPoint, Place, Sealable, SizeLimit,
    },
};

/// A file, directory, link or device.
pub(super) struct Node {
    pub(super) fs: Arc<Ramfs>,
    pub(super) me: Weak<Node>,
    pub(super) body: Body,
    pub(super) inode: u64,
    mode: AtomicU32,
    uid: AtomicU32,
    gid: AtomicU32,
    /// The link count: names; for a directory 2 and one for each directory in it.
    pub(super) links: AtomicU32,
    /// It was created without a name and may get its first one.
    pub(super) unnamed: AtomicBool,
    times: Times,
    pub(super) place: SpinLock<TreePlace>,
    mount_point: MountPoint,
    /// Extended attributes, once it had one.
    extended: OnceBox<Extended>,
    /// What its record, and the text of a link, are charged to, and as what.
    payer: Payer,
    paid_as: account::Kind,
}

/// The bytes that a node is charged with, besides the text of a link.
pub(super) const BYTES: usize = heap::size_of_block(size_of::<Node>() + 2 * size_of::<usize>());

/// Nanoseconds since the epoch.
struct Times {
    accessed: AtomicU64,
    modified: AtomicU64,
    changed: AtomicU64,
    created: u64,
}

impl Times {
    /// Sets one of them; writes nothing that is so already, since other CPUs read the line.
    fn set(time: &AtomicU64, now: u64) {
        if time.load(Ordering::Relaxed) != now {
            time.store(now, Ordering::Relaxed);
        }
    }
}

pub(super) enum Body {
    Regular(Regular),
    Directory(Directory),
    Link(Box<[u8]>),
    Fifo(Attachment),
    Socket,
    CharDevice(u64),
    BlockDevice(u64),
}

impl Body {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Body::Regular(_) => Kind::Regular,
            Body::Directory(_) => Kind::Directory,
            Body::Link(_) => Kind::Link,
            Body::Fifo(_) => Kind::Fifo,
            Body::Socket => Kind::Socket,
            Body::CharDevice(_) => Kind::CharDevice,
            Body::BlockDevice(_) => Kind::BlockDevice,
        }
    }

    pub(super) fn directory() -> Body {
        Body::Directory(Directory::new())
    }

    /// Creates the body for a new entry, whose pages `payer` is charged with.
    pub(super) fn make(fs: &Arc<Ramfs>, make: Make, payer: &Payer) -> Result<Body> {
        Ok(match make {
            Make::Regular => Body::Regular(Regular::new(fs, payer.clone())),
            Make::Directory => Body::directory(),
            Make::Link(text) if text.is_empty() => return Err(Errno::ENOENT),
            Make::Link(text) if text.len() > LINK_MAX => return Err(Errno::ENAMETOOLONG),
            Make::Link(text) => Body::Link(text.into_boxed_slice()),
            Make::Fifo => Body::Fifo(Attachment::new()),
            Make::Socket => Body::Socket,
            Make::CharDevice(number) => Body::CharDevice(number),
            Make::BlockDevice(number) => Body::BlockDevice(number),
        })
    }

    /// Returns the bytes of the heap that a node of this body takes.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Body::Link(text) => BYTES + heap::size_of_block(text.len()),
            Body::Directory(_) => BYTES + MAP_NODE_BYTES,
            _ => BYTES,
        }
    }

    /// Returns the pages of the file system that its text takes.
    pub(super) fn text_pages(&self) -> usize {
        match self {
            Body::Link(text) => usize::from(text.len() > SHORT_LINK_MAX),
            _ => 0,
        }
    }
}

impl Node {
    /// Creates a node, whose place and pages are taken and paid for already, with one name (two for
    /// a directory) at `place`, or without.
    pub(super) fn new(
        fs: Arc<Ramfs>,
        body: Body,
        mode: u32,
        owner: (u32, u32),
        place: Option<(&Weak<Node>, Arc<[u8]>)>,
        (payer, paid_as): (Payer, account::Kind),
    ) -> Arc<Node> {
        let links = match body {
            Body::Directory(_) => 2,
            _ => place.is_some() as u32,
        };
        if let (Body::Directory(directory), Some((parent, _))) = (&body, &place) {
            directory.set_parent(parent);
        }
        let now = now();
        Arc::new_cyclic(|me| Node {
            me: me.clone(),
            inode: fs.next_inode.fetch_add(1, Ordering::Relaxed),
            fs,
            mode: AtomicU32::new(mode),
            uid: AtomicU32::new(owner.0),
            gid: AtomicU32::new(owner.1),
            links: AtomicU32::new(links),
            unnamed: AtomicBool::new(false),
            times: Times {
                accessed: AtomicU64::new(now),
                modified: AtomicU64::new(now),
                changed: AtomicU64::new(now),
                created: now,
            },
            place: SpinLock::new(
                Rank::Leaf,
                match place {
                    Some((parent, name)) => TreePlace::In(Record::new(parent, name), None),
                    None => TreePlace::Nowhere,
                },
            ),
            mount_point: MountPoint::new(),
            extended: OnceBox::new(),
            payer,
            paid_as,
            body,
        })
    }

    /// Returns the node of a vnode, if it belongs to this file system.
    pub(super) fn of_same<'a>(&self, vnode: &'a Arc<dyn Vnode>) -> Result<&'a Node> {
        let node: &Node = vnode::own(vnode)?;
        match Arc::ptr_eq(&node.fs, &self.fs) {
            true => Ok(node),
            false => Err(Errno::EXDEV),
        }
    }

    /// Returns a reference to this node.
    ///
    /// # Errors
    /// `ENOENT` while the last reference is being dropped.
    pub(super) fn handle(&self) -> Result<Arc<Node>> {
        self.me.upgrade().ok_or(Errno::ENOENT)
    }

    pub(super) fn as_directory(&self) -> Result<&Directory> {
        match &self.body {
            Body::Directory(directory) => Ok(directory),
            _ => Err(Errno::ENOTDIR),
        }
    }

    pub(super) fn as_regular(&self) -> Result<&Regular> {
        match &self.body {
            Body::Regular(file) => Ok(file),
            Body::Directory(_) => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }

    pub(super) fn is_directory(&self) -> bool {
        matches!(self.body, Body::Directory(_))
    }

    pub(super) fn mode(&self) -> u32 {
        self.mode.load(Ordering::Relaxed)
    }

    pub(super) fn gid(&self) -> u32 {
        self.gid.load(Ordering::Relaxed)
    }

    /// Updates the times after a change of data.
    pub(super) fn touch_modified(&self) {
        let now = now();
        Times::set(&self.times.modified, now);
        Times::set(&self.times.changed, now);
    }

    /// Updates the time of change.
    pub(super) fn touch_changed(&self) {
        Times::set(&self.times.changed, now());
    }

    /// As [`note_access`](vnode::FileData::note_access): most reads need not write to the node.
    fn touch_accessed(&self, strict: bool) {
        const DAY: u64 = 86_400_000_000_000;
        let times = &self.times;
        let [accessed, modified, changed] = [&times.accessed, &times.modified, &times.changed]
            .map(|time| time.load(Ordering::Relaxed));
        let now = now();
        if strict || vnode::is_access_stale(accessed, modified, changed, now, DAY) {
            Times::set(&times.accessed, now);
        }
    }

    /// Sets its parent and name; returns the old ones, to be dropped when no lock is held.
    #[must_use]
    pub(super) fn set_place(&self, place: TreePlace) -> TreePlace {
        core::mem::replace(&mut *self.place.lock(), place)
    }

    /// Returns its directory, also if it was removed from there.
    pub(super) fn up(&self) -> Option<Arc<Node>> {
        match &*self.place.lock() {
            TreePlace::Nowhere => None,
            TreePlace::In(first, _) | TreePlace::Lost(first) => first.parent.upgrade(),
            TreePlace::Removed(parent, _) => Some(parent.clone()),
        }
    }

    /// Takes the reference to the directory from which it was removed.
    pub(super) fn take_removed_from(&self) -> Option<Arc<Node>> {
        let mut place = self.place.lock();
        match core::mem::replace(&mut *place, TreePlace::Nowhere) {
            TreePlace::Removed(parent, _) => Some(parent),
            other => {
                *place = other;
                None
            }
        }
    }
}

impl Vnode for Node {
    fn attributes(&self) -> Result<Attributes> {
        let time = |time: &AtomicU64| Duration::from_nanos(time.load(Ordering::Relaxed));
        let (size, pages) = match &self.body {
            Body::Regular(file) => (file.pages.size(), file.pages.object.resident_count() as u64),
            Body::Directory(directory) => ((u64::from(directory.count.get()) + 2) * ENTRY_SIZE, 0),
            Body::Link(text) => (text.len() as u64, self.body.text_pages() as u64),
            _ => (0, 0),
        };
        Ok(Attributes {
            device: self.fs.device,
            inode: self.inode,
            kind: self.kind(),
            mode: self.mode(),
            links: self.links.load(Ordering::Relaxed),
            uid: self.uid.load(Ordering::Relaxed),
            gid: self.gid(),
            rdev: match self.body {
                Body::CharDevice(number) | Body::BlockDevice(number) => number,
                _ => 0,
            },
            size,
            blocks: pages * BLOCKS_PER_PAGE,
            block_size: PAGE_SIZE as u32,
            accessed: time(&self.times.accessed),
            modified: time(&self.times.modified),
            changed: time(&self.times.changed),
            created: Duration::from_nanos(self.times.created),
        })
    }

    fn kind(&self) -> Kind {
        self.body.kind()
    }

    fn access(&self, who: &Credentials, want: u32) -> Result<()> {
        if who.may_use(CAP_DAC_OVERRIDE) && (want & EXECUTE == 0 || self.is_directory()) {
            return Ok(());
        }
        let uid = self.uid.load(Ordering::Relaxed);
        Errno::EACCES.unless(who.may_by(self.kind(), self.mode(), uid, self.gid(), want))
    }

    fn place(&self) -> Option<Place> {
        match &*self.place.lock() {
            TreePlace::Nowhere => None,
            TreePlace::In(first, _) => Some(Place {
                parent: first.parent.upgrade()?,
                name: first.name.clone(),
                removed: false,
            }),
            TreePlace::Lost(name) => Some(Place {
                parent: name.parent.upgrade()?,
                name: name.name.clone(),
                removed: true,
            }),
            TreePlace::Removed(parent, name) => Some(Place {
                parent: parent.clone(),
                name: name.clone(),
                removed: true,
            }),
        }
    }

    fn parent(&self) -> Option<Arc<dyn Vnode>> {
        self.up().map(|up| up as Arc<dyn Vnode>)
    }

    fn parent_inode(&self) -> Result<Option<u64>> {
        Ok(self.as_directory()?.parent_inode())
    }

    fn counted(&self) -> Option<Arc<dyn Vnode>> {
        self.me.upgrade().map(|node| node as Arc<dyn Vnode>)
    }

    fn goes_by(&self, directory: &dyn Vnode, name: &[u8]) -> bool {
        Node::goes_by(self, core::ptr::from_ref(directory).cast(), name)
    }

    fn mount_point(&self) -> Option<&MountPoint> {
        Some(&self.mount_point)
    }

    fn tells_its_end(&self) -> bool {
        true
    }

    fn set_attributes(&self, change: Change) -> Result<()> {
        let set = |to: &AtomicU32, value: Option<u32>| {
            if let Some(value) = value {
                to.store(value, Ordering::Relaxed);
            }
        };
        let set_time = |to: &AtomicU64, value: Option<Duration>| {
            if let Some(value) = value {
                let value = u64::try_from(value.as_nanos()).unwrap_or(u64::MAX);
                to.store(value, Ordering::Relaxed);
            }
        };
        set(&self.mode, change.mode);
        set(&self.uid, change.uid);
        set(&self.gid, change.gid);
        set_time(&self.times.accessed, change.accessed);
        set_time(&self.times.modified, change.modified);
        self.touch_changed();
        Ok(())
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        match &self.body {
            Body::Link(text) => Ok(nucleus::try_copy(text)?),
            _ => Err(Errno::EINVAL),
        }
    }

    fn open(self: Arc<Self>, at: &Location, flags: OpenFlags) -> Result<Option<Arc<dyn File>>> {
        let (fifo, number) = match &self.body {
            Body::Fifo(state) => (Some(state), 0),
            Body::CharDevice(number) | Body::BlockDevice(number) => (None, *number),
            _ => (None, 0),
        };
        device::open_special(at, self.kind(), || number, fifo, flags)
    }

    fn seek_data(&self, offset: u64, hole: bool) -> Result<u64> {
        self.as_regular()?.pages.seek_data(offset, hole)
    }

    fn file_system(&self) -> Option<&dyn FileSystem> {
        Some(&*self.fs)
    }

    fn extended_attributes(&self) -> Result<&dyn ExtendedAttributes> {
        Ok(self)
    }

    fn sealable(&self) -> Result<&dyn Sealable> {
        let file = self.as_regular().map_err(|_| Errno::EINVAL)?;
        Ok(file)
    }
}

impl vnode::FileData for Node {
    fn read(&self, offset: u64, to: &mut dyn Sink) -> Result<usize> {
        self.as_regular()?.pages.read(offset, to)
    }

    fn write_within(
        &self,
        limit: &SizeLimit,
        offset: u64,
        append: bool,
        from: &mut dyn Source,
    ) -> Result<(usize, u64)> {
        let file = self.as_regular()?;
        let (n, end) = file.pages.write_within(limit, offset, append, from)?;
        if n > 0 {
            self.touch_modified();
        }
        Ok((n, end))
    }

    fn truncate_within(&self, limit: &SizeLimit, size: u64) -> Result<()> {
        self.as_regular()?.pages.truncate_within(limit, size)?;
        self.touch_modified();
        Ok(())
    }

    fn allocate_within(&self, limit: &SizeLimit, mode: u32, offset: u64, len: u64) -> Result<()> {
        let file = match self.as_regular() {
            Err(Errno::EINVAL) => return Err(Errno::ENODEV),
            file => file?,
        };
        file.pages.fallocate_within(limit, mode, offset, len)?;
        self.touch_modified();
        Ok(())
    }

    fn deny_write(&self) -> Option<&DenyWrite> {
        match &self.body {
            Body::Regular(file) => Some(&file.text),
            _ => None,
        }
    }

    fn note_access(&self, strict: bool) {
        self.touch_accessed(strict);
    }

    fn pager(self: Arc<Self>) -> Option<Arc<dyn Pager>> {
        match self.body {
            Body::Regular(_) => Some(self),
            _ => None,
        }
    }

    fn direct_block(&self) -> Option<usize> {
        match self.body {
            Body::BlockDevice(number) => Some(device::direct_block(number)),
            _ => None,
        }
    }

    fn sync(&self, _: bool) -> Result<()> {
        match self.body {
            Body::BlockDevice(number) => device::sync_block_device(number),
            _ => Ok(()),
        }
    }

    fn cached(&self) -> Option<Arc<dyn Cached>> {
        match self.body {
            Body::BlockDevice(number) => device::cached_block_device(number),
            _ => None,
        }
    }
}

impl ExtendedAttributes for Node {
    fn get(&self, name: &[u8]) -> Result<Vec<u8>> {
        self.extended.get().ok_or(Errno::ENODATA)?.get(name)
    }

    fn set(&self, name: &[u8], value: Option<&[u8]>, flags: u32) -> Result<()> {
        let extended = self.extended.get_or_insert(|| Box::new(Extended::new()));
        extended.set(&self.fs, name, value, flags)?;
        self.touch_changed();
        Ok(())
    }

    fn names(&self) -> Result<Vec<u8>> {
        self.extended.get().map_or(Ok(Vec::new()), Extended::names)
    }
}

impl Drop for Node {
    /// Frees the nodes below, and those above that only this node kept alive, without recursion.
    fn drop(&mut self) {
        let named = self.links.load(Ordering::Relaxed) > 0;
        notify::ended(self.me.as_ptr().addr(), named);
        if let Some(extended) = self.extended.get() {
            self.fs.give_pages(extended.pages());
        }
        pay_back(&self.payer, self.paid_as, self.body.bytes());
        match self.body.text_pages() {
            0 => {}
            pages => self.fs.give_pages(pages),
        }
        self.fs.give_node();
        let mut up = self.take_removed_from();
        while let Some(node) = up {
            up = Arc::into_inner(node).and_then(|node| node.take_removed_from());
        }
        self.drop_below();
    }
}
