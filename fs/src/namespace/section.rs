//! The part of a walk in a read section, which counts no reference and takes no lock.
//!
//! In a [`ReadSection`] the directories on the way are borrowed, each from the entries of the one
//! before, for as long as the section lasts: the writer that removes an entry waits for the
//! section. So CPUs that walk through the same directories write no cache line that they share.
//! Links, "..", file systems that may sleep and errors stop this part; the walk goes on from there
//! by references.

use alloc::sync::Arc;

use abi::{Result, raw::general::CAP_DAC_READ_SEARCH};
use nucleus::sync::ReadSection;

use super::walk::{Component, Walk, Walker};
use crate::{
    Attributes, Credentials, Kind, Location, Mount, Vnode,
    credentials::EXECUTE,
    vnode::{Name, topmost},
};

/// Names looked up and mounts crossed in one section, at most: it must last microseconds only.
const STEPS: usize = 32;
/// Mounts searched at one mount point for the price of a step.
const MOUNTS_PER_STEP: usize = 64;

/// A vnode that a section has borrowed.
#[derive(Clone, Copy)]
enum Seen<'s> {
    /// The start of the walk, or the root of a mount: any vnode.
    Counted(&'s Arc<dyn Vnode>),
    /// That of a name: [`Directory::peek`](crate::vnode::Directory::peek) returned it.
    Peeked(&'s dyn Vnode),
}

impl<'s> Seen<'s> {
    fn vnode(self) -> &'s dyn Vnode {
        match self {
            Seen::Counted(vnode) => &**vnode,
            Seen::Peeked(vnode) => vnode,
        }
    }

    fn counted(self) -> Option<Arc<dyn Vnode>> {
        match self {
            Seen::Counted(vnode) => Some(vnode.clone()),
            Seen::Peeked(vnode) => vnode.counted(),
        }
    }
}

/// A position in a section.
#[derive(Clone, Copy)]
struct Position<'s> {
    section: &'s ReadSection,
    /// Steps that the section may still take.
    steps: usize,
    mount: &'s Arc<Mount>,
    vnode: Seen<'s>,
}

impl<'s> Position<'s> {
    /// Goes to a name, and to the root of what is mounted there; `None` if that needs more than a
    /// section, or fails.
    fn enter(mut self, who: &Credentials, name: &[u8]) -> Option<Position<'s>> {
        self.take_steps(1)?;
        if matches!(name, b"." | b"..") {
            return None;
        }
        let directory = self.vnode.vnode();
        // A child shows that both vnodes' attributes can be read in a section.
        let child = directory.peek(name, self.section)?;
        if !who.may_use(CAP_DAC_READ_SEARCH) {
            directory.access(who, EXECUTE).ok()?;
        }
        self.vnode = Seen::Peeked(child);
        self.cross()
    }

    /// Counts steps; `None` if the section would be too long.
    #[inline]
    fn take_steps(&mut self, steps: usize) -> Option<()> {
        self.steps = self.steps.checked_sub(steps)?;
        Some(())
    }

    fn cross(mut self) -> Option<Position<'s>> {
        let is_covered = |vnode: &dyn Vnode| vnode.mount_point().is_some_and(|it| it.is_covered());
        while is_covered(self.vnode.vnode()) {
            let children = self.mount.children.peek(self.section)?;
            self.take_steps(1 + children.len() / MOUNTS_PER_STEP)?;
            let Some(mount) = topmost(children, self.vnode.vnode()) else {
                break;
            };
            self.vnode = Seen::Counted(mount.root());
            self.mount = mount;
        }
        Some(self)
    }
}

impl Walk<'_> {
    /// Returns what `stat` shows of `path`, as [`resolve`](Walk::resolve) finds it.
    ///
    /// # Errors
    /// Those of [`resolve`](Walk::resolve), and of the file system.
    pub fn attributes(&self, path: &[u8], follow: bool) -> Result<Attributes> {
        let mut walker = Walker::new(self, path)?;
        match walker.attributes_in_section(follow) {
            Some(attributes) => attributes,
            None => walker.finish(follow)?.attributes(),
        }
    }
}

impl Walker<'_> {
    /// Walks on to the directory of the last name, or as far as a section can.
    pub(super) fn begin_in_section(&mut self) {
        let may_go = self.rules == 0 && self.stopped != Some(self.position);
        if may_go && matches!(self.component_at(self.position), Ok(Some(c)) if !c.last) {
            self.by_section(None);
        }
    }

    /// Walks to the end, if a section can, and else as far as it can.
    pub(super) fn finish_in_section(&mut self, follow: bool) -> Option<Location> {
        match self.rules {
            0 => self.by_section(Some(follow)),
            _ => None,
        }
    }

    /// Walks on to the directory of the last name; with `follow`, which is about links there, tries
    /// to end the walk. If that is not done, the walker is where it ended.
    fn by_section(&mut self, follow: Option<bool>) -> Option<Location> {
        let section = ReadSection::enter();
        let (way, offset, slash) = self.borrow_way(&section);
        let end = follow.and_then(|follow| self.borrow_end(way, offset, follow));
        let counted = end.and_then(|(c, end)| {
            let (vnode, directory) = (end.vnode.vnode(), way.vnode.vnode());
            let parent = match Name::is_known(vnode, directory, self.name(&c)) {
                true => None,
                false => Some(way.vnode.counted()?),
            };
            let mount = end.mount.here_in(&section).ok_or_else(|| end.mount.clone());
            Some((c, mount, end.vnode.counted()?, parent))
        });
        if let Some((c, mount, vnode, parent)) = counted {
            drop(section);
            let reached = parent.map(|parent| (parent, Name::new(self.name(&c))));
            return Some(Location {
                mount: mount.unwrap_or_else(|mount| mount.here()),
                vnode,
                reached,
            });
        }
        let mut stop = self.position;
        if offset != stop
            && let Some(vnode) = way.vnode.counted()
        {
            let mount = way.mount;
            let mount = (!mount.is_same_mount(self.mount()))
                .then(|| mount.here_in(&section).unwrap_or_else(|| mount.clone()));
            drop(section);
            self.jump(mount, vnode, offset, slash);
            stop = offset;
        }
        self.stopped = Some(stop);
        None
    }

    /// Returns the attributes of the end, if a section can.
    fn attributes_in_section(&mut self, follow: bool) -> Option<Result<Attributes>> {
        let section = ReadSection::enter();
        let (way, offset, _) = self.borrow_way(&section);
        let (_, end) = self.borrow_end(way, offset, follow)?;
        match end.vnode {
            Seen::Peeked(vnode) => Some(vnode.attributes()),
            Seen::Counted(_) => None,
        }
    }

    /// Returns how far a section can walk, short of the last name; the offset of the next name in
    /// the path, and whether a slash precedes it.
    fn borrow_way<'s>(&'s self, section: &'s ReadSection) -> (Position<'s>, usize, bool) {
        let mut at = Position {
            section,
            steps: STEPS,
            mount: self.mount(),
            vnode: Seen::Counted(self.vnode()),
        };
        let (mut offset, mut slash) = (self.position, self.slash);
        while let Ok(Some(c)) = self.component_at(offset) {
            if c.last {
                break;
            }
            let Some(next) = at.enter(self.walk.who, self.name(&c)) else {
                break;
            };
            if next.vnode.vnode().kind() == Kind::Link {
                break;
            }
            (at, offset, slash) = (next, c.next, true);
        }
        (at, offset, slash)
    }

    /// Returns the last name, at `offset`, and where it leads; `None` if that must be found by
    /// references.
    fn borrow_end<'s>(
        &self,
        at: Position<'s>,
        offset: usize,
        follow: bool,
    ) -> Option<(Component, Position<'s>)> {
        let c = self.component_at(offset).ok()?.filter(|c| c.last)?;
        let end = at.enter(self.walk.who, self.name(&c))?;
        match end.vnode.vnode().kind() {
            Kind::Directory => {}
            Kind::Link if follow || c.slash => return None,
            _ if c.slash => return None,
            _ => {}
        }
        Some((c, end))
    }
}
