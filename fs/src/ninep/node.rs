//! Vnodes: names and attributes, which belong to the server.

use alloc::{
    sync::{Arc, Weak},
    vec::Vec,
};
use core::{sync::atomic::AtomicU32, time::Duration};

use abi::raw::general::{AT_REMOVEDIR, O_CREAT, O_DIRECTORY, O_EXCL, O_RDONLY, O_RDWR};
use abi::{Errno, Result};
use fbuf::{Sink, Source};
use nucleus::{
    sync::{Rank, SpinLock},
    time,
};
use vm::Pager;

use super::{
    FRESH, Ninep,
    client::{Fid, SetAttr},
    codec::{Attr, Qid, Reader},
    content::{Content, Handles},
    kept,
};
use crate::{
    Attributes, Credentials, File, Kind, Location, OpenFlags, Vnode,
    credentials::EXECUTE,
    device,
    device::Attachment,
    vnode::{self, Change, Emit, FileSystem, Judged, Make, MountPoint, Place, SizeLimit, Space},
};

/// A file, directory, link or device of the server.
pub(super) struct Node {
    pub(super) fs: Arc<Ninep>,
    me: Weak<Node>,
    pub(super) qid: Qid,
    kind: Kind,
    /// For devices, in Linux's encoding.
    rdev: u64,
    /// The fid by which it was last found; the server follows renames made through it.
    fid: SpinLock<Arc<Fid>>,
    /// The parent and name of a directory; `None` for the root and for other kinds.
    place: SpinLock<Option<Place<Node>>>,
    mount_point: MountPoint,
    /// The server's last answer.
    seen: SpinLock<Seen>,
    /// Of a regular file.
    pub(super) content: Option<Arc<Content>>,
    pub(super) handles: SpinLock<Handles>,
    /// Open files and mappings.
    pub(super) users: AtomicU32,
    fifo: Attachment,
    /// The open listing of a directory.
    listing: SpinLock<Option<Listing>>,
}

/// An open handle to a directory, from which the entries up to `cursor` were taken.
struct Listing {
    fid: Fid,
    cursor: u64,
}

#[derive(Clone, Copy)]
struct Seen {
    attributes: Attr,
    /// Since boot.
    at: Duration,
    /// Its last name was removed through this mount: the server may not find it any more, while it
    /// is open.
    unlinked: bool,
    /// A name of it was removed through this mount, perhaps that of the fid.
    lost_name: bool,
}

impl Ninep {
    /// Returns the vnode for the file that a walk found at `place`: an existing or a new one.
    pub(super) fn node(
        self: &Arc<Ninep>,
        fid: Fid,
        qid: Qid,
        place: Option<(Arc<Node>, &[u8])>,
    ) -> Result<Arc<Node>> {
        if let Some(node) = self.usable(qid) {
            node.found_again(fid, place);
            return Ok(node);
        }
        let attributes = fid.attributes()?;
        let content = || {
            let kept = kept::take((self.device, qid.path));
            kept.unwrap_or_else(|| Content::of(self.device, &attributes))
        };
        let content = (attributes.kind == Kind::Regular).then(content);
        let place = place.filter(|_| attributes.kind == Kind::Directory);
        let node = Arc::new_cyclic(|me| Node {
            fs: self.clone(),
            me: me.clone(),
            qid,
            kind: attributes.kind,
            rdev: attributes.rdev,
            fid: SpinLock::new(Rank::Leaf, Arc::new(fid)),
            place: SpinLock::new(
                Rank::Leaf,
                place.map(|(parent, name)| Place::new(parent, name)),
            ),
            mount_point: MountPoint::new(),
            seen: SpinLock::new(
                Rank::Leaf,
                Seen {
                    attributes,
                    at: time::since_boot(),
                    unlinked: false,
                    lost_name: false,
                },
            ),
            content,
            handles: SpinLock::new(Rank::Leaf, Handles::default()),
            users: AtomicU32::new(0),
            fifo: Attachment::new(),
            listing: SpinLock::new(Rank::Leaf, None),
        });
        if let Some(content) = &node.content {
            content.set_node(&node.me);
        }
        loop {
            // Two walks may have found it new at the same time: the first vnode stays.
            if let Some(other) = self.usable(qid) {
                return Ok(other);
            }
            let mut nodes = self.nodes.lock();
            let there = nodes.get(&qid.path);
            if there.is_none_or(|node| node.strong_count() == 0) {
                nodes.insert(qid.path, Arc::downgrade(&node));
                return Ok(node);
            }
        }
    }

    /// Writes back all pages that mappings have modified.
    fn sync_all(&self) -> Result<()> {
        let mut result = Ok(());
        let mut from = 0;
        loop {
            let next = {
                let nodes = self.nodes.lock();
                let mut rest = nodes.range(from..);
                rest.find_map(|(&path, node)| Some((path, node.upgrade()?)))
            };
            let Some((path, node)) = next else {
                return result;
            };
            if let Some(content) = &node.content {
                result = result.and(node.sync_content(content));
            }
            match path.checked_add(1) {
                Some(next) => from = next,
                None => return result,
            }
        }
    }

    /// Returns the existing vnode of a file.
    fn usable(&self, qid: Qid) -> Option<Arc<Node>> {
        let node = self.nodes.lock().get(&qid.path).and_then(Weak::upgrade)?;
        if node.qid.kind == qid.kind && !node.seen.lock().unlinked {
            return Some(node);
        }
        // The server has reused the number of a deleted file.
        let mut nodes = self.nodes.lock();
        if nodes.get(&qid.path).is_some_and(|it| node.is_behind(it)) {
            nodes.remove(&qid.path);
        }
        None
    }
}

impl Node {
    pub(super) fn fid(&self) -> Arc<Fid> {
        self.fid.lock().clone()
    }

    /// Takes over the fid of a new walk: the old one may be of a name that was removed on the
    /// server.
    fn found_again(&self, fid: Fid, place: Option<(Arc<Node>, &[u8])>) {
        let fid = Arc::new(fid);
        let old = core::mem::replace(&mut *self.fid.lock(), fid);
        drop(old);
        self.seen.lock().lost_name = false;
        if self.kind != Kind::Directory {
            return;
        }
        if let Some((parent, name)) = place {
            let same =
                |place: &Place<Node>| Arc::ptr_eq(&place.parent, &parent) && *place.name == *name;
            if !self.place.lock().as_ref().is_some_and(same) {
                self.set_place(parent, name);
            }
        }
    }

    /// Sets the parent and name of a directory.
    fn set_place(&self, parent: Arc<Node>, name: &[u8]) {
        let old = self.place.lock().replace(Place::new(parent, name));
        drop(old);
    }

    /// Returns the node of a vnode, if it belongs to this mount.
    fn of_same<'a>(&self, vnode: &'a Arc<dyn Vnode>) -> Result<&'a Node> {
        let node: &Node = vnode::own(vnode)?;
        match Arc::ptr_eq(&node.fs, &self.fs) {
            true => Ok(node),
            false => Err(Errno::EXDEV),
        }
    }

    fn require_directory(&self) -> Result<()> {
        match self.kind {
            Kind::Directory => Ok(()),
            _ => Err(Errno::ENOTDIR),
        }
    }

    pub(super) fn regular(&self) -> Result<&Arc<Content>> {
        match self.kind {
            Kind::Directory => Err(Errno::EISDIR),
            _ => self.content.as_ref().ok_or(Errno::EINVAL),
        }
    }

    /// Returns the server's attributes.
    pub(super) fn refresh(&self) -> Result<Attr> {
        let fid = self.fid();
        let asked = fid.attributes();
        let mut seen = self.seen.lock();
        match asked {
            // The name may now stand for another file.
            Ok(attributes) if attributes.qid.path == self.qid.path => {
                seen.attributes = attributes;
                seen.at = time::since_boot();
                Ok(attributes)
            }
            Ok(_) | Err(Errno::ENOENT) if seen.lost_name => Ok(seen.attributes),
            Ok(_) => Err(Errno::ESTALE),
            Err(error) => Err(error),
        }
    }

    /// Returns the server's attributes, at most [`FRESH`] old.
    pub(super) fn recent(&self) -> Result<Attr> {
        let seen = *self.seen.lock();
        match time::since_boot().saturating_sub(seen.at) < FRESH && !seen.unlinked {
            true => Ok(seen.attributes),
            false => self.refresh(),
        }
    }

    /// Invalidates the cached attributes.
    pub(super) fn forget_attributes(&self) {
        self.seen.lock().at = Duration::ZERO;
    }

    fn handle(&self) -> Result<Arc<Node>> {
        self.me.upgrade().ok_or(Errno::ENOENT)
    }

    fn look_up(&self, name: &[u8]) -> Result<Arc<Node>> {
        self.require_directory()?;
        let (fid, qid) = self.fid().walk(name)?;
        self.fs.node(fid, qid, Some((self.handle()?, name)))
    }

    fn is_root(&self) -> bool {
        self.kind == Kind::Directory && self.place.lock().is_none()
    }

    /// Tells whether a weak reference is to this vnode.
    fn is_behind(&self, handle: &Weak<Node>) -> bool {
        core::ptr::eq(handle.as_ptr(), self.me.as_ptr())
    }

    /// Returns the vnode known for `name`, which is about to lose it.
    fn known(&self, name: &[u8]) -> Option<Arc<Node>> {
        let (_, qid) = self.fid().walk(name).ok()?;
        let nodes = self.fs.nodes.lock();
        nodes.get(&qid.path).and_then(Weak::upgrade)
    }

    /// Notes that a name of it was removed.
    fn lost_name(&self) {
        let mut seen = self.seen.lock();
        // Other names of the file remain; the server knows them.
        seen.unlinked = self.kind == Kind::Directory || seen.attributes.links <= 1;
        seen.lost_name = true;
        seen.attributes.links = match seen.unlinked {
            true => 0,
            false => seen.attributes.links - 1,
        };
        seen.at = Duration::ZERO;
        drop(seen);
        if let Some(place) = &mut *self.place.lock() {
            place.removed = true;
        }
    }
}

impl Vnode for Node {
    /// The server is not asked: the file may be gone there.
    fn identity(&self) -> Result<(u64, u64)> {
        Ok((self.fs.device, self.qid.path))
    }

    fn attributes(&self) -> Result<Attributes> {
        let it = self.recent()?;
        Ok(Attributes {
            device: self.fs.device,
            inode: it.qid.path,
            kind: self.kind,
            mode: it.mode,
            links: it.links,
            uid: it.uid,
            gid: it.gid,
            rdev: it.rdev,
            size: it.size,
            blocks: it.blocks,
            block_size: it.block_size,
            accessed: it.accessed,
            modified: it.modified,
            changed: it.changed,
            created: Duration::ZERO,
        })
    }

    fn kind(&self) -> Kind {
        self.kind
    }

    fn access(&self, who: &Credentials, want: u32) -> Result<()> {
        if who.is_root() && (want & EXECUTE == 0 || self.kind == Kind::Directory) {
            return Ok(());
        }
        let it = self.recent()?;
        Errno::EACCES.unless(who.may_by(self.kind, it.mode, it.uid, it.gid, want))
    }

    fn place(&self) -> Option<Place> {
        self.place.lock().as_ref().map(Place::erased)
    }

    fn mount_point(&self) -> Option<&MountPoint> {
        Some(&self.mount_point)
    }

    fn set_attributes(&self, change: Change) -> Result<()> {
        self.forget_attributes();
        self.fid().set_attributes(&SetAttr {
            mode: change.mode,
            uid: change.uid,
            gid: change.gid,
            size: None,
            accessed: change.accessed,
            modified: change.modified,
        })
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        match self.kind {
            Kind::Link => self.fid().read_link(),
            _ => Err(Errno::EINVAL),
        }
    }

    fn open(self: Arc<Self>, at: &Location, flags: OpenFlags) -> Result<Option<Arc<dyn File>>> {
        match self.kind {
            Kind::Regular => self.open_content(self.regular()?, flags).map(|()| None),
            kind => device::open_special(at, kind, || self.rdev, Some(&self.fifo), flags),
        }
    }

    fn closed(&self) {
        self.close();
    }

    fn file_system(&self) -> Option<&dyn FileSystem> {
        Some(self)
    }
}

impl vnode::Directory for Node {
    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Vnode>> {
        Ok(self.look_up(name)?)
    }

    fn create(
        &self,
        name: &[u8],
        make: Make,
        mode: u32,
        who: &Credentials,
    ) -> Result<Arc<dyn Vnode>> {
        self.require_directory()?;
        let fid = self.fid();
        let (kind, rdev) = make.kind();
        self.forget_attributes();
        match make {
            Make::Regular => {
                let file = fid.duplicate()?;
                /// Makes the server refuse an existing name.
                const EXCLUSIVE: u32 = O_CREAT | O_EXCL;
                file.create(name, O_RDWR | EXCLUSIVE, mode, who.gid)?;
                let node = self.look_up(name)?;
                node.adopt_handle(file);
                return Ok(node);
            }
            Make::Directory => fid.mkdir(name, mode, who.gid)?,
            Make::Link(text) if text.is_empty() => return Err(Errno::ENOENT),
            Make::Link(text) if text.len() > 4095 => return Err(Errno::ENAMETOOLONG),
            Make::Link(text) => fid.symlink(name, &text, who.gid)?,
            _ => {
                let numbers = (device::major(rdev), device::minor(rdev));
                fid.mknod(name, (kind as u32) << 12 | mode, numbers, who.gid)?;
            }
        }
        Ok(self.look_up(name)?)
    }

    fn link(&self, name: &[u8], node: &Arc<dyn Vnode>) -> Result<()> {
        self.require_directory()?;
        let node = self.of_same(node)?;
        self.fid().link(name, &node.fid())?;
        self.forget_attributes();
        node.forget_attributes();
        Ok(())
    }

    fn remove(&self, name: &[u8], _: &dyn Vnode, directory: bool) -> Result<()> {
        self.require_directory()?;
        let node = self.known(name);
        if let Some(node) = &node {
            // The link count is read while all names exist.
            let _ = node.refresh();
        }
        self.fid()
            .unlink(name, if directory { AT_REMOVEDIR } else { 0 })?;
        self.forget_attributes();
        if let Some(node) = node {
            node.lost_name();
        }
        Ok(())
    }

    fn rename(
        &self,
        name: &[u8],
        to: &Arc<dyn Vnode>,
        to_name: &[u8],
        flags: u32,
        _: Judged<'_>,
    ) -> Result<()> {
        self.require_directory()?;
        let to = self.of_same(to)?;
        to.require_directory()?;
        // The protocol has no flags.
        if flags != 0 {
            return Err(Errno::EINVAL);
        }
        let (moved, replaced) = (self.known(name), to.known(to_name));
        if let Some(node) = &replaced {
            let _ = node.refresh();
        }
        self.fid().rename(name, &to.fid(), to_name)?;
        self.forget_attributes();
        to.forget_attributes();
        if let Some(node) = &replaced
            && !moved.as_ref().is_some_and(|moved| Arc::ptr_eq(moved, node))
        {
            node.lost_name();
        }
        if let Some(node) = moved {
            node.forget_attributes();
            if node.kind == Kind::Directory {
                node.set_place(to.handle()?, to_name);
            }
        }
        Ok(())
    }

    fn list(&self, cursor: u64, emit: &mut Emit<'_>) -> Result<()> {
        self.require_directory()?;
        /// Bytes of entries per request.
        const BATCH: usize = 32 << 10;
        // A caller that continues where the last one stopped uses the same fid: in some file
        // systems a cursor is valid for one open directory only.
        let stopped = self.listing.lock().take();
        let mut listing = match stopped {
            Some(listing) if listing.cursor == cursor && cursor > 0 => listing,
            other => {
                drop(other);
                let fid = self.fid().duplicate()?;
                fid.open(O_RDONLY | O_DIRECTORY)?;
                Listing { fid, cursor }
            }
        };
        loop {
            let batch = listing.fid.read_directory(listing.cursor, BATCH)?;
            if batch.is_empty() {
                return Ok(());
            }
            let mut entries = Reader::new(&batch);
            while !entries.rest().is_empty() {
                let entry = entries.entry()?;
                let shown = !matches!(entry.name, b"." | b"..") && !entry.name.contains(&b'/');
                let kind = Kind::of_type(entry.kind).unwrap_or(Kind::Regular);
                if shown && !emit(entry.name, entry.qid.path, kind, entry.cursor) {
                    let old = self.listing.lock().replace(listing);
                    drop(old);
                    return Ok(());
                }
                listing.cursor = entry.cursor;
            }
        }
    }
}

impl vnode::FileData for Node {
    fn read(&self, offset: u64, to: &mut dyn Sink) -> Result<usize> {
        let content = self.regular()?;
        // A reader without an open file (`execve`) sees the server's version, too.
        self.revalidate_unopened();
        content.read_asking(self, offset, to)
    }

    fn write_within(
        &self,
        limit: &SizeLimit,
        offset: u64,
        append: bool,
        from: &mut dyn Source,
    ) -> Result<(usize, u64)> {
        let content = self.regular()?;
        content.write_served(self, limit, offset, append, from)
    }

    fn truncate_within(&self, limit: &SizeLimit, size: u64) -> Result<()> {
        self.regular()?.truncate_within(limit, size)
    }

    fn pager(self: Arc<Self>) -> Option<Arc<dyn Pager>> {
        let content = self.content.clone()?;
        self.revalidate_unopened();
        Some(content)
    }

    fn sync(&self, _: bool) -> Result<()> {
        match &self.content {
            Some(content) => self.sync_content(content),
            None if self.is_root() => self.fs.sync_all(),
            None => Ok(()),
        }
    }
}

impl FileSystem for Node {
    fn space(&self) -> Space {
        self.fid().space().unwrap_or_default()
    }
}

impl Drop for Node {
    /// The nodes above that only this one kept alive are freed in a loop, however many there are.
    fn drop(&mut self) {
        let mut nodes = self.fs.nodes.lock();
        if nodes
            .get(&self.qid.path)
            .is_some_and(|it| self.is_behind(it))
        {
            nodes.remove(&self.qid.path);
        }
        let unlinked = self.seen.get_mut().unlinked;
        drop(nodes);
        if let Some(content) = self.content.take()
            && content.object.resident_count() > 0
            && !unlinked
        {
            kept::keep((self.fs.device, self.qid.path), content);
        }
        let take = |node: &Node| node.place.lock().take().map(|place| place.parent);
        let mut up = take(self);
        while let Some(parent) = up {
            up = Arc::into_inner(parent).and_then(|parent| take(&parent));
        }
    }
}
