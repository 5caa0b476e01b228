//! Directory entries: lookup, create, link, remove.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use abi::{Errno, Result};

use super::{
    inode::{Inode, Node, ROOT},
    layout::Flags,
};
use crate::{
    Credentials, Kind, Vnode,
    vnode::{self, Emit, Judged, Make, Place, check_name, is_same, now},
};

/// The largest link count of an inode, as on Linux.
pub(super) const LINKS_MAX: u16 = 32_000;

impl Inode {
    /// Returns the inode of a name.
    pub(super) fn look_up(&self, name: &[u8]) -> Result<Arc<Node>> {
        let names = self.directory()?.read(self)?;
        let found = names.find(name)?;
        self.child(found.inode, name)
    }

    /// Returns the inode with this number, to which `name` in this directory refers. The
    /// directory's names are locked.
    pub(super) fn child(&self, number: u32, name: &[u8]) -> Result<Arc<Node>> {
        let child = self.fs.inode(number)?;
        let reserved = number < self.fs.superblock.first_inode;
        if reserved || child.is_directory() && !self.holds(&child, name) {
            return Err(self.fs.damaged("an entry leads where it must not", number));
        }
        if child.state.place.lock().is_none() {
            let here = Place::new(self.handle()?, name);
            let mut place = child.state.place.lock();
            if place.is_none() {
                *place = Some(here);
            }
        }
        Ok(child)
    }

    /// Returns whether a directory is linked here by this name, or nowhere yet. A directory has one
    /// name: a second one, or one for the root, would make walks endless.
    fn holds(&self, child: &Inode, name: &[u8]) -> bool {
        match &*child.state.place.lock() {
            None => child.ino != ROOT && child.ino != self.ino,
            Some(place) => !place.removed && place.parent.ino == self.ino && *place.name == *name,
        }
    }

    /// Updates the directory after a change of its names.
    pub(super) fn touch_names(&self) {
        self.set(|record| {
            record.touch_modified();
            // Linux's directory index would be stale.
            record.flags.remove(Flags::INDEXED);
        });
    }

    /// Counts one more subdirectory.
    pub(super) fn add_link(&self) -> Result<()> {
        self.change(|changing| {
            let links = &mut changing.record.links;
            if *links >= LINKS_MAX {
                return Err(Errno::EMLINK);
            }
            *links += 1;
            Ok(())
        })
    }

    /// Drops a link.
    pub(super) fn drop_link(&self) {
        self.set(|record| record.links = record.links.saturating_sub(1));
    }

    /// Returns the inode of a vnode, if it belongs to this file system.
    fn of_same<'a>(&self, vnode: &'a Arc<dyn Vnode>) -> Result<&'a Node> {
        let node: &Node = vnode::own(vnode)?;
        match Arc::ptr_eq(&node.fs, &self.fs) {
            true => Ok(node),
            false => Err(Errno::EXDEV),
        }
    }

    /// Notes that `name` in `directory` no longer refers to it. A directory has been marked dead
    /// already.
    pub(super) fn note_unlinked(&self, directory: &Arc<Node>, name: &[u8]) {
        let mut left = 0;
        self.set(|record| {
            record.links = match record.is_directory() {
                true => 0,
                false => record.links.saturating_sub(1),
            };
            record.changed = now();
            left = record.links;
        });
        if left == 0 {
            self.fs.orphans.add(&self.fs, self.ino);
        }
        let mut place = self.state.place.lock();
        let old = match &mut *place {
            Some(here)
                if !here.removed && Arc::ptr_eq(&here.parent, directory) && *here.name == *name =>
            {
                here.removed = true;
                // With names left, it is not known which.
                if left > 0 { place.take() } else { None }
            }
            _ => None,
        };
        drop(place);
        drop(old);
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
        let directory = self.directory()?;
        check_name(name)?;
        let _change = self.fs.begin_change()?;
        if directory.read(self)?.find(name).is_ok() {
            return Err(Errno::EEXIST);
        }
        let (kind, device) = make.kind();
        let mode = if kind == Kind::Link { 0o777 } else { mode };
        // Without a link it is freed with its last handle.
        let inode = self.make_inode(kind, device, mode, who)?;
        match &make {
            Make::Directory => inode.make_first_block(self.ino)?,
            Make::Link(text) => inode.set_text(text)?,
            _ => {}
        }
        let is_directory = kind == Kind::Directory;
        let mut names = directory.write(self)?;
        match names.find(name) {
            Ok(_) => return Err(Errno::EEXIST),
            Err(Errno::ENOENT) => {}
            Err(error) => return Err(error),
        }
        if is_directory {
            self.add_link()?;
        }
        inode.set(|record| record.links = if is_directory { 2 } else { 1 });
        if let Err(error) = names.add(name, inode.ino, kind) {
            inode.set(|record| record.links = 0);
            if is_directory {
                self.drop_link();
            }
            return Err(error);
        }
        inode.set_place(Some(Place::new(self.handle()?, name)));
        drop(names);
        self.touch_names();
        Ok(inode)
    }

    fn create_unnamed(
        &self,
        mode: u32,
        may_link: bool,
        who: &Credentials,
    ) -> Result<Arc<dyn Vnode>> {
        self.directory()?;
        let _change = self.fs.begin_change()?;
        let inode = self.make_inode(Kind::Regular, 0, mode, who)?;
        inode.state.unnamed.store(may_link, Ordering::Relaxed);
        self.fs.orphans.add(&self.fs, inode.ino);
        Ok(inode)
    }

    fn link(&self, name: &[u8], node: &Arc<dyn Vnode>) -> Result<()> {
        let (directory, inode) = (self.directory()?, self.of_same(node)?);
        if inode.is_directory() {
            return Err(Errno::EPERM);
        }
        check_name(name)?;
        let _change = self.fs.begin_change()?;
        inode.require_mutable(true)?;
        let mut names = directory.write(self)?;
        match names.find(name) {
            Ok(_) => return Err(Errno::EEXIST),
            Err(Errno::ENOENT) => {}
            Err(error) => return Err(error),
        }
        let unnamed = inode.state.unnamed.load(Ordering::Relaxed);
        let was = inode.change(|changing| {
            let links = &mut changing.record.links;
            match *links {
                // An inode that lost its last name gets no new one, unless it never had any.
                0 if !unnamed => Err(Errno::ENOENT),
                LINKS_MAX.. => Err(Errno::EMLINK),
                was => {
                    *links += 1;
                    Ok(was)
                }
            }
        })?;
        if let Err(error) = names.add(name, inode.ino, inode.kind()) {
            inode.drop_link();
            return Err(error);
        }
        if was == 0 {
            self.fs.orphans.remove(&self.fs, inode.ino, 0);
        }
        inode.state.unnamed.store(false, Ordering::Relaxed);
        inode.set_place(Some(Place::new(self.handle()?, name)));
        inode.set(|record| record.changed = now());
        drop(names);
        self.touch_names();
        Ok(())
    }

    fn remove(&self, name: &[u8], judged: &dyn Vnode, is_directory: bool) -> Result<()> {
        let directory = self.directory()?;
        let me = self.handle()?;
        let _change = self.fs.begin_change()?;
        let child = loop {
            let child = self.look_up(name)?;
            if !is_same(&*child, judged) {
                return Err(Errno::ESTALE);
            }
            match (child.is_directory(), is_directory) {
                (true, false) => return Err(Errno::EISDIR),
                (false, true) => return Err(Errno::ENOTDIR),
                _ => {}
            }
            child.require_removable(self)?;
            if let Ok(own) = child.directory() {
                own.load(&child)?;
            }
            let mut names = directory.write(self)?;
            let found = names.find(name)?;
            if found.inode != child.ino {
                // Another inode has got the name meanwhile.
                continue;
            }
            if let Ok(own) = child.directory() {
                own.count.die()?;
            }
            if let Err(error) = names.remove(name, &found) {
                if let Ok(own) = child.directory() {
                    own.count.revive();
                }
                return Err(error);
            }
            if is_directory {
                self.drop_link();
            }
            child.note_unlinked(&me, name);
            break child;
        };
        self.touch_names();
        // It may be freed now, with no lock held.
        drop(child);
        Ok(())
    }

    fn rename(
        &self,
        name: &[u8],
        to: &Arc<dyn Vnode>,
        to_name: &[u8],
        flags: u32,
        judged: Judged<'_>,
    ) -> Result<()> {
        self.rename_entry(name, self.of_same(to)?, to_name, flags, judged)
    }

    fn list(&self, cursor: u64, emit: &mut Emit<'_>) -> Result<()> {
        self.directory()?.list(self, cursor, emit)
    }
}
