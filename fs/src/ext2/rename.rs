//! Renaming.

use alloc::sync::Arc;

use abi::raw::general::RENAME_WHITEOUT;
use abi::{Errno, Result};

use super::{
    directory::{Directory, Found, Writing},
    inode::{Inode, Node},
};
use crate::{
    Credentials, Kind, Vnode,
    vnode::{Judged, LockedPair, Place, Rename, RenameStep, check_name, now},
};

type Pair<'a> = LockedPair<Writing<'a>>;

fn lock<'a>(from: &'a Inode, to: &'a Inode) -> Result<Pair<'a>> {
    if core::ptr::eq(from, to) {
        return Ok(Pair::Same(from.directory()?.write(from)?));
    }
    let pair = Directory::write_pair((from.directory()?, from), (to.directory()?, to))?;
    Ok(Pair::Two(pair.0, pair.1))
}

/// An inode that is moved, and its old parent.
struct Move<'a> {
    inode: &'a Arc<Node>,
    from: &'a Inode,
    to: &'a Inode,
    /// For a directory that gets another parent: the place of its "..".
    parent: Option<Found>,
    /// The new parent gets one more subdirectory and the old one loses one, unless another
    /// directory moves in exchange.
    comes: bool,
    goes: bool,
}

impl<'a> Move<'a> {
    /// Checks everything that could fail later.
    fn prepare(inode: &'a Arc<Node>, from: &'a Inode, to: &'a Inode) -> Result<Move<'a>> {
        let goes_over = inode.is_directory() && !core::ptr::eq(from, to);
        Ok(Move {
            inode,
            from,
            to,
            parent: goes_over.then(|| inode.find_parent()).transpose()?,
            comes: goes_over,
            goes: goes_over,
        })
    }

    /// Counts the directory in its new parent.
    fn begin(&self) -> Result<()> {
        match self.comes {
            true => self.to.add_link(),
            false => Ok(()),
        }
    }

    /// Undoes [`begin`](Move::begin).
    fn cancel(&self) {
        if self.comes {
            self.to.drop_link();
        }
    }

    /// Updates link counts, ".." and its place in the tree, once the entries are changed.
    fn finish(&self, name: &[u8]) -> Result<()> {
        let mut result = Ok(());
        if let Some(parent) = &self.parent {
            result = self.inode.set_parent(parent, self.to.ino);
        }
        if self.goes {
            self.from.drop_link();
        }
        self.inode.set(|record| record.changed = now());
        self.inode
            .set_place(Some(Place::new(self.to.handle()?, name)));
        result
    }
}

impl Inode {
    /// The caller has checked `flags`.
    pub(super) fn rename_entry(
        &self,
        name: &[u8],
        to: &Inode,
        to_name: &[u8],
        flags: u32,
        judged: Judged<'_>,
    ) -> Result<()> {
        self.directory()?;
        to.directory()?;
        check_name(to_name)?;
        let _change = self.fs.begin_change()?;
        // Takes the old name, so that a layered file system hides the lower layer's entry.
        let whiteout = match flags & RENAME_WHITEOUT {
            0 => None,
            _ => Some(self.make_inode(Kind::CharDevice, 0, 0, &Credentials::default())?),
        };
        let across = !core::ptr::eq(self, to);
        let tree = across.then(|| self.fs.mounting.rename.lock());
        let mut pair = loop {
            let mut pair = lock(self, to)?;
            // A directory to be replaced must be empty, which is known once its names have been
            // read; that needs no lock on names.
            let unread = match pair.to().find(to_name) {
                Ok(found) => to.child(found.inode, to_name).ok(),
                Err(_) => None,
            };
            match unread.as_ref().map(|target| (target, target.directory())) {
                Some((target, Ok(directory))) if !directory.count.is_known() => {
                    drop(pair);
                    directory.load(target)?;
                }
                _ => break pair,
            }
        };
        let found = pair.from().find(name)?;
        let source = self.child(found.inode, name)?;
        source.require_removable(self)?;
        let target = match pair.to().find(to_name) {
            Ok(found) => Some((found, to.child(found.inode, to_name)?)),
            Err(Errno::ENOENT) => None,
            Err(error) => return Err(error),
        };
        if let Some((_, target)) = &target
            && !Arc::ptr_eq(&source, target)
        {
            target.require_removable(to)?;
        }
        let (from_handle, to_handle) = (self.handle()?, to.handle()?);
        let rename = Rename {
            from: &*from_handle,
            source: &*source,
            to: &*to_handle,
            target: target.as_ref().map(|(_, target)| &**target as &dyn Vnode),
            flags,
            judged,
        };
        match (&target, rename.check()?) {
            (_, RenameStep::Nothing) => return Ok(()),
            (Some((there, target)), RenameStep::Exchange) => {
                self.exchange(
                    &mut pair,
                    (name, &found, &source),
                    to,
                    (to_name, there, target),
                )?;
            }
            _ => {
                let mut step = Move::prepare(&source, self, to)?;
                let target = target.as_ref().map(|(found, target)| (found, target));
                step.comes &= target.is_none_or(|(_, target)| !target.is_directory());
                self.replace(
                    &mut pair,
                    (name, &found),
                    &step,
                    (to_name, target),
                    whiteout,
                )?;
            }
        }
        drop((pair, tree));
        self.touch_names();
        if across {
            to.touch_names();
        }
        // The replaced inode may be freed now, with no lock held.
        drop(target);
        Ok(())
    }

    /// Gives the inode of `step` its new name, replacing `target` if there is one, and removes the
    /// old name.
    fn replace(
        &self,
        pair: &mut Pair<'_>,
        (name, found): (&[u8], &Found),
        step: &Move<'_>,
        (to_name, target): (&[u8], Option<(&Found, &Arc<Node>)>),
        whiteout: Option<Arc<Node>>,
    ) -> Result<()> {
        let (source, to) = (step.inode, step.to);
        let (number, kind) = (source.ino, source.kind());
        let to_handle = to.handle()?;
        step.begin()?;
        let dead = match target.map(|(_, target)| target.directory()) {
            Some(Ok(directory)) => {
                directory.count.die().inspect_err(|_| step.cancel())?;
                Some(directory)
            }
            _ => None,
        };
        let named = match target {
            Some((there, _)) => pair.to().replace(there, number, kind),
            None => pair.to().add(to_name, number, kind),
        };
        let left = named.and_then(|()| {
            let left = match &whiteout {
                Some(whiteout) => {
                    whiteout.set(|record| record.links = 1);
                    pair.from().replace(found, whiteout.ino, Kind::CharDevice)
                }
                None => pair.from().remove(name, found),
            };
            // Restores the new name's old state.
            left.inspect_err(|_| {
                let _ = match target {
                    Some((there, target)) => pair.to().replace(there, target.ino, target.kind()),
                    None => {
                        let added = pair.to().find(to_name);
                        added.and_then(|added| pair.to().remove(to_name, &added))
                    }
                };
            })
        });
        if let Err(error) = left {
            if let Some(whiteout) = whiteout {
                whiteout.set(|record| record.links = 0);
            }
            if let Some(directory) = dead {
                directory.count.revive();
            }
            step.cancel();
            return Err(error);
        }
        if let Some((_, target)) = target {
            if target.is_directory() && step.parent.is_none() {
                to.drop_link();
            }
            target.note_unlinked(&to_handle, to_name);
        }
        if let Some(whiteout) = whiteout {
            whiteout.set_place(Some(Place::new(self.handle()?, name)));
        }
        step.finish(to_name)
    }

    /// Exchanges the inodes of two names.
    fn exchange(
        &self,
        pair: &mut Pair<'_>,
        (name, found, source): (&[u8], &Found, &Arc<Node>),
        to: &Inode,
        (to_name, there, target): (&[u8], &Found, &Arc<Node>),
    ) -> Result<()> {
        let mut out = Move::prepare(source, self, to)?;
        let mut back = Move::prepare(target, to, self)?;
        if out.comes && back.comes {
            (out.comes, out.goes) = (false, false);
            (back.comes, back.goes) = (false, false);
        }
        out.begin()?;
        back.begin().inspect_err(|_| out.cancel())?;
        let named = pair.to().replace(there, source.ino, source.kind());
        let named = named.and_then(|()| {
            let back = pair.from().replace(found, target.ino, target.kind());
            back.inspect_err(|_| {
                let _ = pair.to().replace(there, target.ino, target.kind());
            })
        });
        if let Err(error) = named {
            back.cancel();
            out.cancel();
            return Err(error);
        }
        let result = out.finish(to_name);
        result.and(back.finish(name))
    }
}
