//! Creating, linking, removing and renaming.

use alloc::sync::Arc;

use abi::raw::general::{CAP_MKNOD, RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT};
use abi::{Errno, Result};

use super::{
    Walk,
    moving::Moving,
    protect,
    walk::{Child, Component, Last, Walker},
};
use crate::{
    Kind, Location, Vnode,
    credentials::{EXECUTE, WRITE},
    notify,
    vnode::{Judged, Make, same_vnode},
};

impl Walk<'_> {
    /// `mknod`, `mkdir`, `symlink`.
    ///
    /// # Errors
    /// Those of [`resolve`](Walk::resolve) and of the file system, `EEXIST`, `EACCES`, `EROFS`,
    /// `EPERM` for a device without `CAP_MKNOD`.
    pub fn make(&self, path: &[u8], make: Make, mode: u32) -> Result<Location> {
        if matches!(make, Make::CharDevice(_) | Make::BlockDevice(_))
            && !self.who.may_use(CAP_MKNOD)
        {
            return Err(Errno::EPERM);
        }
        let directory = matches!(make, Make::Directory);
        let mut walker = Walker::new(self, path)?;
        let c = walker.new_name(directory)?;
        let child = walker.create(&c, make, mode & 0o7777)?;
        let place = walker.arrive(&c, child, false)?;
        place.ok_or(Errno::EEXIST)
    }

    /// `link`: adds a name for `from`.
    ///
    /// # Errors
    /// `EPERM` for a directory, `EXDEV` across mounts, and those of [`make`](Walk::make).
    pub fn link(&self, from: &Location, path: &[u8]) -> Result<()> {
        let mut walker = Walker::new(self, path)?;
        let c = walker.new_name(false)?;
        if !walker.mount().is_same_mount(&from.mount) {
            return Err(Errno::EXDEV);
        }
        if from.vnode.kind() == Kind::Directory {
            return Err(Errno::EPERM);
        }
        protect::may_link(self.who, &from.vnode)?;
        walker.mount().require_writable()?;
        let directory = walker.vnode();
        directory.access(self.who, WRITE | EXECUTE)?;
        directory.link(walker.name(&c), &from.vnode)?;
        notify::linked(directory, walker.name(&c), &from.vnode);
        walker.settle()
    }

    /// `unlink` and `rmdir`.
    ///
    /// # Errors
    /// As Linux; `EBUSY` for a mount point.
    pub fn remove(&self, path: &[u8], directory: bool) -> Result<()> {
        let mut walker = Walker::new(self, path)?;
        let c = match walker.run()? {
            Last::Name(c) => c,
            _ if !directory => return Err(Errno::EISDIR),
            Last::Dot => return Err(Errno::EINVAL),
            Last::DotDot => return Err(Errno::ENOTEMPTY),
            Last::Root => return Err(Errno::EBUSY),
        };
        walker.mount().require_writable()?;
        until_settled(|| walker.remove_child(&c, directory))
    }

    /// `renameat2`; `to` walks from its own start.
    ///
    /// # Errors
    /// As Linux.
    pub fn rename(&self, path: &[u8], to: &Walk<'_>, to_path: &[u8], flags: u32) -> Result<()> {
        let exchange = flags & RENAME_EXCHANGE != 0;
        let keep = flags & RENAME_NOREPLACE != 0;
        let whiteout = flags & RENAME_WHITEOUT != 0;
        if flags & !(RENAME_EXCHANGE | RENAME_NOREPLACE | RENAME_WHITEOUT) != 0
            || exchange && (keep || whiteout)
        {
            return Err(Errno::EINVAL);
        }
        if whiteout && !self.who.may_use(CAP_MKNOD) {
            return Err(Errno::EPERM);
        }
        let mut from = Walker::new(self, path)?;
        let from_last = from.run()?;
        let mut to = Walker::new(to, to_path)?;
        let to_last = to.run()?;
        if !from.mount().is_same_mount(to.mount()) {
            return Err(Errno::EXDEV);
        }
        let Last::Name(a) = from_last else {
            return Err(Errno::EBUSY);
        };
        let Last::Name(b) = to_last else {
            return Err(if keep { Errno::EEXIST } else { Errno::EBUSY });
        };
        from.mount().require_writable()?;
        until_settled(|| from.rename_child(&a, (&to, &b), flags))
    }
}

impl Walker<'_> {
    /// Walks to the directory of a new entry, and returns its name. Only the name of a directory
    /// may end in a slash.
    fn new_name(&mut self, directory: bool) -> Result<Component> {
        let Last::Name(c) = self.run()? else {
            return Err(Errno::EEXIST);
        };
        match self.look_up(&c) {
            Ok(_) => Err(Errno::EEXIST),
            Err(Errno::ENOENT) if c.slash && !directory => Err(Errno::ENOENT),
            Err(Errno::ENOENT) => Ok(c),
            Err(error) => Err(error),
        }
    }

    /// Removes the entry `c`.
    ///
    /// # Errors
    /// `ESTALE` if it became another vnode's since that was judged, and those of [`Walk::remove`].
    fn remove_child(&self, c: &Component, directory: bool) -> Result<()> {
        let child = self.look_up(c)?;
        let is_directory = child.vnode.kind() == Kind::Directory;
        if !directory && c.slash {
            return Err(match is_directory {
                true => Errno::EISDIR,
                false => Errno::ENOTDIR,
            });
        }
        self.may_remove(&child)?;
        if directory && !is_directory {
            return Err(Errno::ENOTDIR);
        }
        if !directory && is_directory {
            return Err(Errno::EISDIR);
        }
        if child.crossed() {
            return Err(Errno::EBUSY);
        }
        self.vnode()
            .remove(self.name(c), &*child.vnode, directory)?;
        notify::removed(self.vnode(), self.name(c), child.vnode);
        self.settle()
    }

    /// Renames the entry `a` to `b` in the directory where `to` is.
    ///
    /// # Errors
    /// `ESTALE` if one of both names became another vnode's since that was judged, and those of
    /// [`Walk::rename`].
    fn rename_child(
        &self,
        a: &Component,
        (to, b): (&Walker<'_>, &Component),
        flags: u32,
    ) -> Result<()> {
        let exchange = flags & RENAME_EXCHANGE != 0;
        let keep = flags & RENAME_NOREPLACE != 0;
        let source = self.look_up(a)?;
        let target = match to.look_up(b) {
            Ok(_) if keep => return Err(Errno::EEXIST),
            Ok(target) => Some(target),
            Err(Errno::ENOENT) if exchange => return Err(Errno::ENOENT),
            Err(Errno::ENOENT) => None,
            Err(error) => return Err(error),
        };
        let source_is_directory = source.vnode.kind() == Kind::Directory;
        let target_is_directory = target
            .as_ref()
            .is_some_and(|t| t.vnode.kind() == Kind::Directory);
        // A name with a slash must be that of a directory; a new name takes the kind of the source.
        if a.slash && !source_is_directory
            || b.slash
                && !(if exchange {
                    target_is_directory
                } else {
                    source_is_directory
                })
        {
            return Err(Errno::ENOTDIR);
        }
        self.may_remove(&source)?;
        let same_directory = same_vnode(self.vnode(), to.vnode());
        match &target {
            Some(target) => {
                to.may_remove(target)?;
                if source.crossed() || target.crossed() {
                    return Err(Errno::EBUSY);
                }
                if exchange && target_is_directory && !same_directory {
                    target.vnode.access(self.walk.who, WRITE)?;
                }
            }
            None => {
                to.vnode().access(self.walk.who, WRITE | EXECUTE)?;
                if source.crossed() {
                    return Err(Errno::EBUSY);
                }
            }
        }
        if source_is_directory && !same_directory {
            // Its ".." changes.
            source.vnode.access(self.walk.who, WRITE)?;
        }
        let target = target.as_ref().map(|target| &target.vnode);
        let judged = Judged {
            source: &*source.vnode,
            target: target.map(|target| &**target),
        };
        let moves = source_is_directory || exchange && target_is_directory;
        let _moving = (moves && !same_directory).then(Moving::begin);
        let (name, new_name) = (self.name(a), to.name(b));
        self.vnode()
            .rename(name, to.vnode(), new_name, flags, judged)?;
        // Two names of one file stay as they are.
        if target.is_none_or(|target| !same_vnode(target, &source.vnode)) {
            let (old, new) = ((self.vnode(), self.name(a)), (to.vnode(), to.name(b)));
            match target.filter(|_| exchange) {
                None => notify::moved(old, new, &source.vnode, target),
                Some(target) => {
                    notify::moved(old, new, &source.vnode, None);
                    notify::moved(new, old, target, None);
                }
            }
        }
        self.settle()?;
        to.settle()
    }

    /// Checks that the entry for `child` may be removed from the walker's directory.
    fn may_remove(&self, child: &Child) -> Result<()> {
        let directory: &Arc<dyn Vnode> = self.vnode();
        let who = self.walk.who;
        directory.access(who, WRITE | EXECUTE)?;
        Errno::EPERM.unless(who.may_remove(&directory.attributes()?, &child.vnode.attributes()?))
    }
}

/// Makes a change, once more if it fails with `ESTALE`: a name has changed its vnode after that was
/// judged. Programs that change names all the time, or a server, may cause that without end.
fn until_settled(mut change: impl FnMut() -> Result<()>) -> Result<()> {
    const TRIES: usize = 100;
    for _ in 1..TRIES {
        match change() {
            Err(Errno::ESTALE) => {}
            result => return result,
        }
    }
    change()
}
