//! Locations: vnodes reached through mounts, and their paths.

use alloc::{boxed::Box, sync::Arc, vec::Vec};

use abi::{Result, raw::general::O_NOATIME};

use super::{Attributes, Kind, Mount, MountFlags, OpenFlags, Place, Vnode};

/// A vnode reached through a mount, as `dirfd`, `cwd`, `root` and open files hold it.
///
/// A directory knows its own parent and name; any other vnode may have several names, so the
/// location has the one by which it was reached, unless the vnode [goes by](Vnode::goes_by) it.
/// Renames above it show at once.
#[derive(Clone)]
pub struct Location {
    pub(crate) mount: Arc<Mount>,
    pub(crate) vnode: Arc<dyn Vnode>,
    /// The directory and the name by which it was reached, unless the vnode knows it.
    pub(crate) reached: Option<(Arc<dyn Vnode>, Name)>,
}

/// A name; most fit without allocation.
#[derive(Clone)]
pub(crate) enum Name {
    Short { len: u8, bytes: [u8; 30] },
    Long(Box<[u8]>),
}

impl Name {
    pub(crate) fn new(name: &[u8]) -> Name {
        let mut bytes = [0; 30];
        match bytes.get_mut(..name.len()) {
            Some(to) => {
                to.copy_from_slice(name);
                Name::Short {
                    len: name.len() as u8,
                    bytes,
                }
            }
            None => Name::Long(name.into()),
        }
    }

    /// Tells whether `vnode` knows that it was reached by this name.
    pub(crate) fn is_known(vnode: &dyn Vnode, directory: &dyn Vnode, name: &[u8]) -> bool {
        vnode.kind() == Kind::Directory || vnode.goes_by(directory, name)
    }

    /// Returns the directory and the name by which a location has to remember that `vnode` was
    /// reached.
    pub(crate) fn of(
        vnode: &Arc<dyn Vnode>,
        directory: &Arc<dyn Vnode>,
        name: &[u8],
    ) -> Option<(Arc<dyn Vnode>, Name)> {
        let is_known = Name::is_known(&**vnode, &**directory, name);
        (!is_known).then(|| (directory.clone(), Name::new(name)))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Name::Short { len, bytes } => &bytes[..*len as usize],
            Name::Long(bytes) => bytes,
        }
    }
}

impl Location {
    /// Returns the location of a mount's root.
    pub(crate) fn of_mount(mount: &Arc<Mount>) -> Location {
        Location {
            mount: mount.clone(),
            vnode: mount.root().clone(),
            reached: None,
        }
    }

    /// Returns the location of a vnode without a path (a pipe behind `/proc/PID/fd/N`), in a mount
    /// that is in no tree ([`Mount::internal`]).
    pub fn inside(mount: &Arc<Mount>, vnode: Arc<dyn Vnode>) -> Location {
        Location {
            mount: mount.clone(),
            vnode,
            reached: None,
        }
    }

    /// As [`inside`](Location::inside); paths show the name `shown` with " (deleted)" after it.
    pub fn unnamed(mount: &Arc<Mount>, vnode: Arc<dyn Vnode>, shown: &[u8]) -> Location {
        Location {
            mount: mount.clone(),
            reached: Some((mount.root().clone(), Name::new(shown))),
            vnode,
        }
    }

    /// Returns the vnode.
    pub fn vnode(&self) -> &Arc<dyn Vnode> {
        &self.vnode
    }

    /// Returns the mount.
    pub fn mount(&self) -> &Arc<Mount> {
        &self.mount
    }

    /// Returns what `stat` shows.
    pub fn attributes(&self) -> Result<Attributes> {
        self.vnode().attributes()
    }

    /// Tells whether both are the same location.
    pub fn same(&self, other: &Location) -> bool {
        self.mount.is_same_mount(&other.mount) && same_vnode(&self.vnode, &other.vnode)
    }

    /// Fails on a read-only mount.
    ///
    /// # Errors
    /// `EROFS`.
    pub fn writable(&self) -> Result<()> {
        self.mount.require_writable()
    }

    /// Returns the absolute path as seen from `root`, with " (deleted)" after it if it has no name
    /// any more and "(unreachable)" before it if `root` is not above it.
    pub fn path(&self, root: &Location) -> Vec<u8> {
        let climb = self.climb(Some(root), true);
        match climb.reached_root || climb.is_internal {
            true => climb.path(b""),
            false => climb.path(b"(unreachable)"),
        }
    }

    /// Returns the absolute path as seen from `root`; `None` if `root` is not above it.
    pub fn path_below(&self, root: &Location) -> Option<Vec<u8>> {
        let climb = self.climb(Some(root), true);
        climb.reached_root.then(|| climb.path(b""))
    }

    /// Returns the path inside its file system, whatever is mounted (`mountinfo`).
    pub fn path_in_file_system(&self) -> Vec<u8> {
        let mut names = Vec::new();
        let mut at = self.vnode.place();
        if at.is_none()
            && let Some((parent, name)) = &self.reached
        {
            names.push(Arc::from(name.bytes()));
            at = parent.place();
        }
        while let Some(place) = at {
            names.push(place.name);
            at = place.parent.place();
        }
        let climb = Climb {
            names,
            removed: false,
            reached_root: true,
            is_internal: false,
        };
        climb.path(b"")
    }

    /// Updates the time of access after a read, as the mount and the open file's `flags` say.
    pub fn note_access(&self, flags: OpenFlags) {
        let mount = self.mount.flags();
        let not = MountFlags::READ_ONLY | MountFlags::NO_ACCESS_TIMES;
        if flags.has(O_NOATIME) || mount.intersects(not) {
            return;
        }
        if mount.contains(MountFlags::NO_DIRECTORY_ACCESS_TIMES)
            && self.vnode.kind() == Kind::Directory
        {
            return;
        }
        self.vnode
            .note_access(mount.contains(MountFlags::STRICT_ACCESS_TIMES));
    }

    /// Returns the path from the root of all mounts. Takes no sleeping lock, so a file with several
    /// names may show an old one.
    pub fn path_without_locks(&self) -> Vec<u8> {
        self.climb(None, false).path(b"")
    }

    /// Tells whether it has no name any more: `getcwd` returns `ENOENT` then.
    pub fn is_removed(&self) -> bool {
        match self.vnode.kind() {
            Kind::Directory => self.vnode.place().is_some_and(|place| place.removed),
            _ => self.attributes().is_ok_and(|it| it.links == 0),
        }
    }

    /// Tells whether it is the root of a mount.
    pub fn is_mount_root(&self) -> bool {
        same_vnode(&self.vnode, self.mount.root())
    }

    /// Collects the names up to `root`, or to the top. `verify`: asks the directory whether the
    /// remembered name still holds.
    fn climb(&self, root: Option<&Location>, verify: bool) -> Climb {
        let mut climb = Climb {
            names: Vec::new(),
            removed: false,
            reached_root: root.is_none(),
            is_internal: false,
        };
        let (mut mount, mut vnode) = (self.mount.clone(), self.vnode.clone());
        if let Some((parent, name)) = &self.reached {
            let place = self.vnode.place();
            let recorded =
                |place: &Place| same_vnode(&place.parent, parent) && *place.name == *name.bytes();
            // If the vnode's own record has this name, it also tells whether it was removed.
            if !place.as_ref().is_some_and(recorded) {
                let holds = self.is_named(parent, name.bytes(), place.as_ref(), verify);
                if holds || place.is_none() {
                    climb.removed = !holds;
                    climb.names.push(name.bytes().into());
                    vnode = parent.clone();
                }
            }
        }
        loop {
            if let Some(root) = root
                && same_vnode(&vnode, &root.vnode)
                && mount.is_same_mount(&root.mount)
            {
                climb.reached_root = true;
                return climb;
            }
            if same_vnode(&vnode, mount.root()) {
                let Some(at) = mount.at() else {
                    climb.is_internal = mount.is_internal();
                    return climb;
                };
                (mount, vnode) = (at.mount, at.vnode);
                continue;
            }
            let Some(place) = vnode.place() else {
                return climb;
            };
            climb.removed |= place.removed;
            climb.names.push(place.name);
            vnode = place.parent;
        }
    }

    /// Tells whether it has the name `name` in `parent`, although its own record, `place`, differs.
    fn is_named(
        &self,
        parent: &Arc<dyn Vnode>,
        name: &[u8],
        place: Option<&Place>,
        verify: bool,
    ) -> bool {
        if verify {
            return parent
                .lookup(name)
                .is_ok_and(|there| same_vnode(&there, &self.vnode));
        }
        // The record has another name. Only a look-up could tell whether both exist.
        let others = place.is_some_and(|place| !place.removed) as u32;
        self.attributes().is_ok_and(|it| it.links > others)
    }
}

/// Tells whether both are the same vnode. Only the data address counts: the vtable may exist twice.
pub(crate) fn same_vnode(a: &Arc<dyn Vnode>, b: &Arc<dyn Vnode>) -> bool {
    core::ptr::addr_eq(Arc::as_ptr(a), Arc::as_ptr(b))
}

/// The names from a location up.
struct Climb {
    names: Vec<Arc<[u8]>>,
    removed: bool,
    reached_root: bool,
    /// It ended in an internal mount.
    is_internal: bool,
}

impl Climb {
    /// Returns the path, with `prefix` before it.
    fn path(&self, prefix: &[u8]) -> Vec<u8> {
        let mut path = prefix.to_vec();
        for name in self.names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if self.names.is_empty() {
            path.push(b'/');
        }
        if self.removed {
            path.extend_from_slice(b" (deleted)");
        }
        path
    }
}
