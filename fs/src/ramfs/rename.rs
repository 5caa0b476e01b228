//! Renaming.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use abi::raw::general::RENAME_WHITEOUT;
use abi::{Errno, Result};
use nucleus::sync::{BiasedRwLock, WriteGuard};

use crate::{
    Credentials, Vnode,
    vnode::{Judged, LockedPair, Rename, RenameStep},
};

use super::{
    directory::{Directory, Entries, Entry, entry_name},
    names::Record,
    node::{Body, Node},
    payer,
};

type Pair<'a> = LockedPair<WriteGuard<'a, Entries>>;

fn lock<'a>(from: &'a Directory, to: &'a Directory) -> Pair<'a> {
    if core::ptr::eq(from, to) {
        return Pair::Same(from.entries.write());
    }
    let (from, to) = BiasedRwLock::write_pair(&from.entries, &to.entries);
    Pair::Two(from, to)
}

impl Node {
    /// As [`rename`](crate::vnode::Directory::rename).
    pub(super) fn rename_entry(
        &self,
        name: &[u8],
        to: &Node,
        to_name: &[u8],
        flags: u32,
        judged: Judged<'_>,
    ) -> Result<()> {
        let (from_directory, to_directory) = (self.as_directory()?, to.as_directory()?);
        let fs = &self.fs;
        // It takes the old name, so that a layered file system shows nothing of a lower layer
        // there.
        let whiteout = match flags & RENAME_WHITEOUT {
            0 => None,
            _ => Some(self.make_file(
                Body::CharDevice(0),
                0,
                &Credentials::default(),
                Some((&self.me, entry_name(name)?)),
                &payer(),
            )?),
        };
        let to_handle = to.handle()?;
        let across = !core::ptr::eq(self, to);
        let tree = across.then(|| fs.rename.lock());
        let mut pair = lock(from_directory, to_directory);
        let source = pair.from().get(fs, name).ok_or(Errno::ENOENT)?.clone();
        let target = pair.to().get(fs, to_name).cloned();
        if to_directory.count.is_dead() {
            return Err(Errno::ENOENT);
        }
        let rename = Rename {
            from: self,
            source: &*source,
            to,
            target: target.as_deref().map(|target| target as &dyn Vnode),
            flags,
            judged,
        };
        let step = rename.check()?;
        let gone = match (target, step) {
            (_, RenameStep::Nothing) => return Ok(()),
            (Some(target), RenameStep::Exchange) => {
                self.exchange(
                    &mut pair,
                    (name, source.clone()),
                    to,
                    (to_name, target.clone()),
                );
                drop((pair, tree));
                target.touch_changed();
                None
            }
            (Some(target), _) => {
                if let Body::Directory(directory) = &target.body {
                    directory.count.die()?;
                }
                let Some((new_name, _)) = pair.to().replace(fs, to_name, source.clone()) else {
                    return Err(Errno::ENOENT);
                };
                if target.is_directory() {
                    to.links.fetch_sub(1, Ordering::Relaxed);
                }
                target.lose_name(&to_handle, &new_name);
                let old = self.finish_move(&mut pair, name, &source, to, new_name, whiteout);
                drop((pair, tree));
                target.touch_changed();
                Some((Some(target), old))
            }
            (None, _) => {
                let new_name = entry_name(to_name)?;
                let entry = Entry::renamed(name, new_name.clone(), source.clone())?;
                to_directory.count.add()?;
                if let Err(error) = pair.to().insert(fs, entry) {
                    to_directory.count.remove();
                    return Err(error);
                }
                let old = self.finish_move(&mut pair, name, &source, to, new_name, whiteout);
                drop((pair, tree));
                Some((None, old))
            }
        };
        source.touch_changed();
        self.touch_modified();
        if across {
            to.touch_modified();
        }
        // The replaced node may be freed now: no lock is held.
        drop(gone);
        Ok(())
    }

    /// Removes the old name after the new one was set.
    fn finish_move(
        &self,
        pair: &mut Pair<'_>,
        name: &[u8],
        source: &Arc<Node>,
        to: &Node,
        new_name: Arc<[u8]>,
        whiteout: Option<Arc<Node>>,
    ) -> Option<Arc<Node>> {
        let old = match whiteout {
            Some(whiteout) => pair
                .from()
                .replace(&self.fs, name, whiteout)
                .map(|(_, node)| node),
            None => {
                if let Body::Directory(directory) = &self.body {
                    directory.count.remove();
                }
                let entry = pair.from().remove(&self.fs, name);
                entry.map(|entry| entry.node.clone())
            }
        };
        if source.is_directory() {
            self.links.fetch_sub(1, Ordering::Relaxed);
            to.links.fetch_add(1, Ordering::Relaxed);
        }
        self.moved(source, name, Record::new(&to.me, new_name));
        old
    }

    /// Notes that the name of `node` in this directory has become another one.
    fn moved(&self, node: &Node, name: &[u8], new: Record) {
        if let Body::Directory(directory) = &node.body {
            directory.set_parent(&new.parent);
        }
        let here = core::ptr::from_ref(self).cast();
        let old = node.place.lock().rename(here, name, new);
        // Both directories are alive: nothing is freed here.
        drop(old);
    }

    /// Exchanges the nodes of two names.
    fn exchange(
        &self,
        pair: &mut Pair<'_>,
        (name, source): (&[u8], Arc<Node>),
        to: &Node,
        (to_name, target): (&[u8], Arc<Node>),
    ) {
        let here = pair.from().replace(&self.fs, name, target.clone());
        let there = pair.to().replace(&self.fs, to_name, source.clone());
        if let (Some((here, _)), Some((there, _))) = (here, there) {
            to.moved(&target, to_name, Record::new(&self.me, here));
            self.moved(&source, name, Record::new(&to.me, there));
        }
        let moves = [(&source, self, to), (&target, to, self)];
        for (_, old, new) in moves.iter().filter(|(node, ..)| node.is_directory()) {
            old.links.fetch_sub(1, Ordering::Relaxed);
            new.links.fetch_add(1, Ordering::Relaxed);
        }
    }
}
