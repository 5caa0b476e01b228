//! The walk along a path.

use alloc::{borrow::Cow, sync::Arc, vec::Vec};

use abi::{
    Errno, Result,
    raw::general::{
        CAP_DAC_READ_SEARCH, RESOLVE_BENEATH, RESOLVE_IN_ROOT, RESOLVE_NO_MAGICLINKS,
        RESOLVE_NO_SYMLINKS, RESOLVE_NO_XDEV,
    },
};

use super::{LINKS_MAX, NAME_MAX, PATH_MAX, moving::Still, protect};
use crate::{
    Credentials, Kind, Location, Mount, MountFlags, Vnode,
    counters::Counter,
    credentials::{EXECUTE, WRITE},
    notify,
    vnode::{Make, Name, same_vnode},
};

/// Rules that confine a walk to the directory where it starts.
const SCOPED: u32 = RESOLVE_BENEATH | RESOLVE_IN_ROOT;

/// The start of walks along paths, and the credentials by which they are checked.
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct Walk<'a> {
    pub root: &'a Location,
    /// The start of relative paths.
    pub start: &'a Location,
    pub who: &'a Credentials,
}

impl Walk<'_> {
    /// Returns the location of `path`. `follow`: a final symbolic link is followed. Limits and
    /// errors as Linux (`ELOOP` after 40 links, `ENAMETOOLONG`, `ENOENT` for an empty path, search
    /// permission for each directory).
    pub fn resolve(&self, path: &[u8], follow: bool) -> Result<Location> {
        Walker::new(self, path)?.finish(follow)
    }

    /// Returns the directory and the last component, and whether a slash follows it.
    ///
    /// # Errors
    /// Those of [`resolve`](Walk::resolve); `EEXIST` if the path ends in ".", ".." or the root.
    pub fn parent(&self, path: &[u8]) -> Result<(Location, Vec<u8>, bool)> {
        let mut walker = Walker::new(self, path)?;
        match walker.run()? {
            Last::Name(c) => {
                let name = walker.name(&c).to_vec();
                Ok((walker.place(), name, c.slash))
            }
            _ => Err(Errno::EEXIST),
        }
    }

    /// Checks that `who` may do `want` (4 read, 2 write, 1 execute or search, added up; 0: it
    /// exists), as `access`.
    ///
    /// # Errors
    /// `EACCES`, `EROFS`.
    pub fn access(&self, place: &Location, want: u32) -> Result<()> {
        if want & EXECUTE != 0
            && place.vnode.kind() == Kind::Regular
            && place.mount.has(MountFlags::NO_EXECUTE)
        {
            return Err(Errno::EACCES);
        }
        if want & WRITE != 0
            && matches!(
                place.vnode.kind(),
                Kind::Regular | Kind::Directory | Kind::Link
            )
        {
            place.writable()?;
        }
        place.vnode.access(self.who, want)
    }
}

/// One name in the path being walked.
#[derive(Clone, Copy)]
pub(super) struct Component {
    start: usize,
    end: usize,
    /// Slashes follow it.
    pub(super) slash: bool,
    /// Nothing but slashes follows it.
    pub(super) last: bool,
    /// Where the next one begins.
    pub(super) next: usize,
}

/// The end of a path.
pub(super) enum Last {
    /// The root, or the target of a link without text: the walker is there.
    Root,
    /// ".": the walker is there.
    Dot,
    /// "..": the walker is there.
    DotDot,
    /// A name in the directory where the walker is.
    Name(Component),
}

/// A walk in progress. Its position is borrowed from the start until it moves, so that a short walk
/// touches few reference counts.
pub(super) struct Walker<'w> {
    pub(super) walk: Walk<'w>,
    /// The program's path, or the text of a link and what followed it.
    path: Cow<'w, [u8]>,
    /// The offset in `path` of the next component.
    pub(super) position: usize,
    /// Slashes precede `position`.
    pub(super) slash: bool,
    /// Where the part by sections has stopped: it would stop there again.
    pub(super) stopped: Option<usize>,
    links: u32,
    /// `RESOLVE_*` of `openat2`.
    pub(super) rules: u32,
    /// For a walk that is confined.
    still: Option<Still>,
    mount: Cow<'w, Arc<Mount>>,
    vnode: Cow<'w, Arc<dyn Vnode>>,
    /// The directory and name of the walker's position, unless it was reached by a name in its
    /// parent.
    reached: Option<(Arc<dyn Vnode>, Name)>,
}

/// The vnode of a name, or the root of the mount that covers it.
pub(super) struct Child {
    pub(super) mount: Option<Arc<Mount>>,
    pub(super) vnode: Arc<dyn Vnode>,
}

impl Child {
    /// Tells whether the entry is a mount point.
    pub(super) fn crossed(&self) -> bool {
        self.mount.is_some()
    }
}

impl<'w> Walker<'w> {
    pub(super) fn new(walk: &Walk<'w>, path: &'w [u8]) -> Result<Walker<'w>> {
        Walker::with_rules(walk, path, 0)
    }

    /// As [`new`](Walker::new), by the rules of `openat2` (`RESOLVE_*`). Those that confine a walk
    /// make the start its root.
    pub(super) fn with_rules(walk: &Walk<'w>, path: &'w [u8], rules: u32) -> Result<Walker<'w>> {
        let mut walk = *walk;
        let mut still = None;
        if rules & SCOPED != 0 {
            walk.root = walk.start;
            still = Some(Still::begin());
        }
        if path.is_empty() {
            return Err(Errno::ENOENT);
        }
        if path.len() >= PATH_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let from = match path[0] {
            b'/' if rules & RESOLVE_BENEATH != 0 => return Err(Errno::EXDEV),
            b'/' => walk.root,
            _ => walk.start,
        };
        Ok(Walker {
            walk,
            rules,
            still,
            path: Cow::Borrowed(path),
            position: 0,
            slash: false,
            stopped: None,
            links: 0,
            mount: Cow::Borrowed(&from.mount),
            vnode: Cow::Borrowed(&from.vnode),
            reached: None,
        })
    }

    /// Returns the name of a component.
    pub(super) fn name(&self, c: &Component) -> &[u8] {
        &self.path[c.start..c.end]
    }

    /// Returns the vnode of the walker's position.
    pub(super) fn vnode(&self) -> &Arc<dyn Vnode> {
        &self.vnode
    }

    /// Returns the mount of the walker's position.
    pub(super) fn mount(&self) -> &Arc<Mount> {
        &self.mount
    }

    /// Writes the walker's directory back after a change, if the mount asks for it (`sync`,
    /// `dirsync`).
    pub(super) fn settle(&self) -> Result<()> {
        let at_once = MountFlags::SYNCHRONOUS | MountFlags::SYNCHRONOUS_DIRECTORIES;
        match self.mount.flags().intersects(at_once) {
            true => self.vnode.sync(false),
            false => Ok(()),
        }
    }

    /// Returns the walker's position.
    pub(super) fn place(&mut self) -> Location {
        Location {
            mount: self.mount.here(),
            vnode: self.vnode.as_ref().clone(),
            reached: self.reached.take(),
        }
    }

    /// Takes the next component, if there is one.
    fn component(&mut self) -> Result<Option<Component>> {
        let c = self.component_at(self.position)?;
        match &c {
            Some(c) => (self.position, self.slash) = (c.next, c.slash),
            None => {
                self.slash |= self.path.len() > self.position;
                self.position = self.path.len();
            }
        }
        Ok(c)
    }

    /// Returns the component that begins at this offset of the path, or behind slashes there.
    pub(super) fn component_at(&self, position: usize) -> Result<Option<Component>> {
        let path = &self.path;
        let mut start = position;
        while path.get(start) == Some(&b'/') {
            start += 1;
        }
        if start == path.len() {
            return Ok(None);
        }
        let mut end = start;
        while end < path.len() && path[end] != b'/' {
            end += 1;
        }
        if end - start > NAME_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let mut next = end;
        while path.get(next) == Some(&b'/') {
            next += 1;
        }
        Ok(Some(Component {
            start,
            end,
            slash: next > end,
            last: next == path.len(),
            next,
        }))
    }

    /// Goes on at `vnode`, in `mount` if that is another one. The path up to `position` leads
    /// there; a slash precedes that or not.
    pub(super) fn jump(
        &mut self,
        mount: Option<Arc<Mount>>,
        vnode: Arc<dyn Vnode>,
        position: usize,
        slash: bool,
    ) {
        self.enter(Child { mount, vnode });
        self.reached = None;
        (self.position, self.slash) = (position, slash);
    }

    /// Walks all but the last name. The walker is in a searchable directory when a name is left.
    pub(super) fn run(&mut self) -> Result<Last> {
        self.begin_in_section();
        loop {
            let Some(c) = self.component()? else {
                if self.slash && self.vnode.kind() != Kind::Directory {
                    return Err(Errno::ENOTDIR);
                }
                return Ok(Last::Root);
            };
            self.require_search()?;
            self.reached = None;
            match self.name(&c) {
                b"." if c.last => return Ok(Last::Dot),
                b"." => {}
                b".." => {
                    self.go_up()?;
                    if c.last {
                        return Ok(Last::DotDot);
                    }
                }
                _ if c.last => return Ok(Last::Name(c)),
                _ => {
                    let child = self.look_up(&c)?;
                    match child.vnode.kind() {
                        Kind::Link => {
                            self.follow(&c, &child.vnode)?;
                            self.begin_in_section();
                        }
                        _ => self.enter(child),
                    }
                }
            }
        }
    }

    /// Walks to the end.
    pub(super) fn finish(&mut self, follow: bool) -> Result<Location> {
        if let Some(place) = self.finish_in_section(follow) {
            return Ok(place);
        }
        loop {
            let Last::Name(c) = self.run()? else {
                return Ok(self.place());
            };
            let child = self.look_up(&c)?;
            if let Some(place) = self.arrive(&c, child, follow)? {
                return Ok(place);
            }
        }
    }

    /// Ends the walk at `child`, found by the last name; `None` if it is a link that must be
    /// followed, and the walk goes on.
    pub(super) fn arrive(
        &mut self,
        c: &Component,
        child: Child,
        follow: bool,
    ) -> Result<Option<Location>> {
        let kind = child.vnode.kind();
        if kind == Kind::Link && (follow || c.slash) {
            protect::may_follow(self.walk.who, self.vnode(), &child.vnode)?;
            self.follow(c, &child.vnode)?;
            return Ok(None);
        }
        if c.slash && kind != Kind::Directory {
            return Err(Errno::ENOTDIR);
        }
        let reached = Name::of(&child.vnode, self.vnode(), self.name(c));
        Ok(Some(Location {
            mount: child.mount.unwrap_or_else(|| self.mount.here()),
            vnode: child.vnode,
            reached,
        }))
    }

    /// Checks that the walker is in a directory which may be searched.
    fn require_search(&self) -> Result<()> {
        if self.vnode.kind() != Kind::Directory {
            return Err(Errno::ENOTDIR);
        }
        if self.walk.who.may_use(CAP_DAC_READ_SEARCH) {
            return Ok(());
        }
        self.vnode.access(self.walk.who, EXECUTE)
    }

    /// Looks a name up in the walker's directory.
    pub(super) fn look_up(&self, c: &Component) -> Result<Child> {
        Counter::path_lookups_by_reference.add(1);
        let vnode = self.vnode.lookup(self.name(c))?;
        let child = cross(&self.mount, vnode);
        if self.rules & RESOLVE_NO_XDEV != 0 && child.crossed() {
            return Err(Errno::EXDEV);
        }
        Ok(child)
    }

    /// Creates an entry in the walker's directory.
    pub(super) fn create(&self, c: &Component, make: Make, mode: u32) -> Result<Child> {
        self.mount.require_writable()?;
        self.vnode.access(self.walk.who, WRITE | EXECUTE)?;
        let vnode = self.vnode.create(self.name(c), make, mode, self.walk.who)?;
        notify::created(&self.vnode, self.name(c), &*vnode);
        self.settle()?;
        Ok(Child { mount: None, vnode })
    }

    fn enter(&mut self, child: Child) {
        if let Some(mount) = child.mount {
            self.mount = Cow::Owned(mount);
        }
        self.vnode = Cow::Owned(child.vnode);
    }

    /// Goes one directory up, out of a mount if at its root, never above the walk's root.
    ///
    /// # Errors
    /// `EXDEV` by the walk's rules; `EAGAIN` if the walk is confined, and a directory that it is
    /// below may have moved.
    fn go_up(&mut self) -> Result<()> {
        loop {
            if self.mount.is_same_mount(&self.walk.root.mount)
                && same_vnode(&self.vnode, &self.walk.root.vnode)
            {
                if self.rules & RESOLVE_BENEATH != 0 {
                    return Err(Errno::EXDEV);
                }
                return Ok(());
            }
            if !same_vnode(&self.vnode, self.mount.root()) {
                break;
            }
            let Some(at) = self.mount.at() else {
                return Ok(());
            };
            if self.rules & RESOLVE_NO_XDEV != 0 {
                return Err(Errno::EXDEV);
            }
            self.mount = Cow::Owned(at.mount);
            self.vnode = Cow::Owned(at.vnode);
        }
        if let Some(parent) = self.vnode.parent() {
            let parent = cross(&self.mount, parent);
            self.enter(parent);
        }
        match self.still.is_none_or(Still::holds) {
            true => Ok(()),
            false => Err(Errno::EAGAIN),
        }
    }

    /// Follows the link that `c` names: to a location, or along its text and the rest of the path.
    fn follow(&mut self, c: &Component, link: &Arc<dyn Vnode>) -> Result<()> {
        self.links += 1;
        if self.links > LINKS_MAX
            || self.rules & RESOLVE_NO_SYMLINKS != 0
            || self.mount.has(MountFlags::NO_LINKS)
        {
            return Err(Errno::ELOOP);
        }
        if let Some(place) = link.follow() {
            if self.rules & RESOLVE_NO_MAGICLINKS != 0 {
                return Err(Errno::ELOOP);
            }
            let place = place?;
            if self.rules & SCOPED != 0
                || self.rules & RESOLVE_NO_XDEV != 0 && !place.mount.is_same_mount(&self.mount)
            {
                return Err(Errno::EXDEV);
            }
            self.mount = Cow::Owned(place.mount);
            self.vnode = Cow::Owned(place.vnode);
            self.reached = place.reached;
            return Ok(());
        }
        let mut text = link.read_link()?;
        if text.is_empty() {
            return Err(Errno::ENOENT);
        }
        let rest = &self.path[c.end..];
        text.try_reserve_exact(rest.len())?;
        text.extend_from_slice(rest);
        if text[0] == b'/' {
            if self.rules & RESOLVE_BENEATH != 0
                || self.rules & RESOLVE_NO_XDEV != 0
                    && !self.walk.root.mount.is_same_mount(&self.mount)
            {
                return Err(Errno::EXDEV);
            }
            self.mount = Cow::Borrowed(&self.walk.root.mount);
            self.vnode = Cow::Borrowed(&self.walk.root.vnode);
        }
        self.path = Cow::Owned(text);
        self.position = 0;
        self.slash = false;
        self.stopped = None;
        Ok(())
    }
}

/// Returns `vnode`, or the root of the topmost mount that covers it.
pub(super) fn cross(mount: &Arc<Mount>, vnode: Arc<dyn Vnode>) -> Child {
    let mut child = Child { mount: None, vnode };
    while child
        .vnode
        .mount_point()
        .is_some_and(super::super::vnode::MountPoint::is_covered)
    {
        let Some(over) = child.mount.as_ref().unwrap_or(mount).over(&child.vnode) else {
            break;
        };
        child.vnode = over.root().clone();
        child.mount = Some(over);
    }
    child
}
