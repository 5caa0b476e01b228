//! Renaming.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use abi::raw::general::{RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT};
use abi::{Errno, Result};
use nucleus::sync::{RwLock, WriteGuard};

use crate::Credentials;

use super::{
    directory::{Directory, Entries},
    node::{Body, Hangs, Node},
};

/// The entries of the two directories of a rename, locked.
enum Pair<'a> {
    Same(WriteGuard<'a, Entries>),
    Two(WriteGuard<'a, Entries>, WriteGuard<'a, Entries>),
}

impl<'a> Pair<'a> {
    fn lock(from: &'a Directory, to: &'a Directory) -> Pair<'a> {
        if core::ptr::eq(from, to) {
            return Pair::Same(from.entries.write());
        }
        let (from, to) = RwLock::write_pair(&from.entries, &to.entries);
        Pair::Two(from, to)
    }

    fn from(&mut self) -> &mut Entries {
        match self {
            Pair::Same(entries) | Pair::Two(entries, _) => entries,
        }
    }

    fn to(&mut self) -> &mut Entries {
        match self {
            Pair::Same(entries) | Pair::Two(_, entries) => entries,
        }
    }
}

impl Node {
    /// `flags` are valid.
    pub(super) fn rename_entry(
        &self,
        name: &[u8],
        to: &Node,
        to_name: &[u8],
        flags: u32,
    ) -> Result<()> {
        let (from_directory, to_directory) = (self.as_directory()?, to.as_directory()?);
        let fs = &self.fs;
        // Stands in the old place, so that a layered file system below shows nothing there.
        let whiteout = match flags & RENAME_WHITEOUT {
            0 => None,
            _ => Some(self.make_node(
                Body::CharDevice(0),
                0,
                &Credentials::default(),
                Some((&self.me, name.into())),
            )?),
        };
        let to_handle = to.handle()?;
        let across = !core::ptr::eq(self, to);
        let tree = across.then(|| fs.rename.lock());
        let mut pair = Pair::lock(from_directory, to_directory);
        let source = pair.from().get(fs, name).ok_or(Errno::ENOENT)?.clone();
        let target = pair.to().get(fs, to_name).cloned();
        if to_directory.is_dead() {
            return Err(Errno::ENOENT);
        }
        if across && source.is_directory() && to.is_below(&source) {
            return Err(Errno::EINVAL);
        }
        // The target is above the source: it is not empty, whatever the source is.
        if across
            && let Some(target) = &target
            && target.is_directory()
            && self.is_below(target)
        {
            return Err(match flags & RENAME_EXCHANGE {
                0 => Errno::ENOTEMPTY,
                _ => Errno::EINVAL,
            });
        }
        let gone = match target {
            Some(_) if flags & RENAME_NOREPLACE != 0 => return Err(Errno::EEXIST),
            Some(target) if Arc::ptr_eq(&source, &target) => return Ok(()),
            Some(target) if flags & RENAME_EXCHANGE != 0 => {
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
            Some(target) => {
                replaceable(&source, &target)?;
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
            None if flags & RENAME_EXCHANGE != 0 => return Err(Errno::ENOENT),
            None => {
                let new_name: Arc<[u8]> = to_name.into();
                to_directory.count_one()?;
                if let Err(error) = pair.to().insert(fs, new_name.clone(), source.clone()) {
                    to_directory.uncount_one();
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
        // What was replaced may go now, with no lock held.
        drop(gone);
        Ok(())
    }

    /// Takes the old name away after the new one was set.
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
                    directory.uncount_one();
                }
                let entry = pair.from().remove(&self.fs, name);
                entry.map(|entry| entry.node)
            }
        };
        if source.is_directory() {
            self.links.fetch_sub(1, Ordering::Relaxed);
            to.links.fetch_add(1, Ordering::Relaxed);
        }
        // It hung in the old directory, which lives on: nothing is freed here.
        drop(source.hang(Hangs::In(to.me.clone(), new_name)));
        old
    }

    /// Lets two names change what they stand for.
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
            // Both hung in directories that live on: nothing is freed here.
            drop(target.hang(Hangs::In(self.me.clone(), here)));
            drop(source.hang(Hangs::In(to.me.clone(), there)));
        }
        let moves = [(&source, self, to), (&target, to, self)];
        for (_, old, new) in moves.iter().filter(|(node, ..)| node.is_directory()) {
            old.links.fetch_sub(1, Ordering::Relaxed);
            new.links.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether this directory is `above` or lies below it. Nothing moves between directories meanwhile.
    fn is_below(&self, above: &Node) -> bool {
        if core::ptr::eq(self, above) {
            return true;
        }
        let mut at = self.up();
        while let Some(node) = at {
            if core::ptr::eq(&*node, above) {
                return true;
            }
            at = node.up();
        }
        false
    }
}

/// Whether `source` may take the name of `target`. A directory that is replaced takes no names any more after this.
fn replaceable(source: &Node, target: &Node) -> Result<()> {
    match (source.is_directory(), &target.body) {
        (true, Body::Directory(directory)) => directory.die(),
        (true, _) => Err(Errno::ENOTDIR),
        (false, Body::Directory(_)) => Err(Errno::EISDIR),
        (false, _) => Ok(()),
    }
}
