//! Names that come and go: looking up, making, linking, removing.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use abi::{Errno, Result};

use super::{
    home::now,
    inode::{Inode, Node, ROOT},
    layout::Flags,
    state::Hangs,
};
use crate::{Credentials, Kind, namespace::NAME_MAX, vnode::Make};

/// The most links that an inode may have, as on Linux.
pub(super) const LINKS_MAX: u16 = 32_000;

/// A name that may be an entry.
pub(super) fn check_name(name: &[u8]) -> Result<()> {
    match name {
        b"" | b"." | b".." => Err(Errno::EINVAL),
        _ if name.len() > NAME_MAX => Err(Errno::ENAMETOOLONG),
        _ if name.iter().any(|&b| b == b'/' || b == 0) => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

impl Inode {
    /// The inode that a name stands for.
    pub(super) fn look_up(&self, name: &[u8]) -> Result<Arc<Node>> {
        let names = self.directory()?.read(self)?;
        let found = names.find(name)?;
        self.child(found.inode, name)
    }

    /// The inode with this number, which `name` in this directory, whose names are locked, stands for.
    pub(super) fn child(&self, number: u32, name: &[u8]) -> Result<Arc<Node>> {
        let child = self.fs.inode(number)?;
        let reserved = number < self.fs.superblock.first_inode;
        if reserved || child.is_directory() && !self.holds(&child, name) {
            return Err(self.fs.damaged("an entry leads where it must not", number));
        }
        if child.hangs_nowhere() {
            let here = Hangs::In(self.handle()?, name.into());
            let mut place = child.state.place.lock();
            if let Hangs::Nowhere = &*place {
                *place = here;
            }
        }
        Ok(child)
    }

    /// Whether a directory hangs here by this name, or nowhere yet. A directory has one name: with a second one, or one for the
    /// root, there would be no end to a walk.
    fn holds(&self, child: &Inode, name: &[u8]) -> bool {
        match &*child.state.place.lock() {
            Hangs::Nowhere => child.ino() != ROOT && child.ino() != self.ino(),
            Hangs::In(above, own) => above.ino() == self.ino() && **own == *name,
            Hangs::Removed(..) => false,
        }
    }

    /// The names of this directory have changed.
    pub(super) fn touch_names(&self) {
        self.set(|record| {
            record.touch_modified();
            // Linux's index would not know the change.
            record.flags.remove(Flags::INDEXED);
        });
    }

    /// One directory more in this one.
    ///
    /// # Errors
    /// `EMLINK`.
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

    /// One link less.
    pub(super) fn drop_link(&self) {
        self.set(|record| record.links = record.links.saturating_sub(1));
    }

    /// As [`Vnode::create`](crate::Vnode::create).
    pub(super) fn create_entry(
        &self,
        name: &[u8],
        make: Make,
        mode: u32,
        who: &Credentials,
    ) -> Result<Arc<Node>> {
        let directory = self.directory()?;
        check_name(name)?;
        let _change = self.fs.begin_change()?;
        if directory.read(self)?.find(name).is_ok() {
            return Err(Errno::EEXIST);
        }
        let (kind, device) = match &make {
            Make::Regular => (Kind::Regular, 0),
            Make::Directory => (Kind::Directory, 0),
            Make::Link(_) => (Kind::Link, 0),
            Make::Fifo => (Kind::Fifo, 0),
            Make::Socket => (Kind::Socket, 0),
            Make::CharDevice(number) => (Kind::CharDevice, *number),
            Make::BlockDevice(number) => (Kind::BlockDevice, *number),
        };
        let mode = if kind == Kind::Link { 0o777 } else { mode };
        // Without a link it goes again with its last handle.
        let inode = self.make_inode(kind, device, mode, who)?;
        match &make {
            Make::Directory => inode.make_first_block(self.ino())?,
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
        if let Err(error) = names.add(name, inode.ino(), kind) {
            inode.set(|record| record.links = 0);
            if is_directory {
                self.drop_link();
            }
            return Err(error);
        }
        inode.hang(Hangs::In(self.handle()?, name.into()));
        drop(names);
        self.touch_names();
        Ok(inode)
    }

    /// As [`Vnode::create_unnamed`](crate::Vnode::create_unnamed).
    pub(super) fn create_orphan(&self, mode: u32, who: &Credentials) -> Result<Arc<Node>> {
        self.directory()?;
        let _change = self.fs.begin_change()?;
        let inode = self.make_inode(Kind::Regular, 0, mode, who)?;
        inode.state.unnamed.store(true, Ordering::Relaxed);
        self.fs.orphans.add(&self.fs, inode.ino());
        Ok(inode)
    }

    /// As [`Vnode::link`](crate::Vnode::link).
    pub(super) fn link_entry(&self, name: &[u8], inode: &Inode) -> Result<()> {
        let directory = self.directory()?;
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
                // What lost its last name does not come back, unless it never had one.
                0 if !unnamed => Err(Errno::ENOENT),
                LINKS_MAX.. => Err(Errno::EMLINK),
                was => {
                    *links += 1;
                    Ok(was)
                }
            }
        })?;
        if let Err(error) = names.add(name, inode.ino(), inode.kind()) {
            inode.drop_link();
            return Err(error);
        }
        if was == 0 {
            self.fs.orphans.remove(&self.fs, inode.ino(), 0);
        }
        inode.state.unnamed.store(false, Ordering::Relaxed);
        inode.hang(Hangs::In(self.handle()?, name.into()));
        inode.set(|record| record.changed = now());
        drop(names);
        self.touch_names();
        Ok(())
    }

    /// As [`Vnode::remove`](crate::Vnode::remove).
    pub(super) fn remove_entry(&self, name: &[u8], is_directory: bool) -> Result<()> {
        let directory = self.directory()?;
        let me = self.handle()?;
        let _change = self.fs.begin_change()?;
        let child = loop {
            let child = self.look_up(name)?;
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
            if found.inode != child.ino() {
                // Another one has got the name meanwhile.
                continue;
            }
            if let Ok(own) = child.directory() {
                own.die()?;
            }
            if let Err(error) = names.remove(name, &found) {
                if let Ok(own) = child.directory() {
                    own.revive();
                }
                return Err(error);
            }
            if is_directory {
                self.drop_link();
            }
            child.lose_name(&me, name);
            break child;
        };
        self.touch_names();
        // It may go now, with no lock held.
        drop(child);
        Ok(())
    }

    /// The name `name` in `directory` no longer stands for it. A directory is dead already.
    pub(super) fn lose_name(&self, directory: &Arc<Node>, name: &[u8]) {
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
            self.fs.orphans.add(&self.fs, self.ino());
        }
        let mut place = self.state.place.lock();
        let old = match &*place {
            Hangs::In(above, own) if Arc::ptr_eq(above, directory) && **own == *name => {
                let new = match left {
                    0 => Hangs::Removed(above.clone(), own.clone()),
                    _ => Hangs::Nowhere,
                };
                core::mem::replace(&mut *place, new)
            }
            _ => return,
        };
        drop(place);
        drop(old);
    }
}
