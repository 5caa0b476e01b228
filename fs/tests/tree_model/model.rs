//! A file system as a tree of maps: what the real one is compared with.

use std::collections::BTreeMap;

use abi::raw::general::{RENAME_EXCHANGE, RENAME_NOREPLACE};
use abi::{Errno, Result};

pub type Inode = usize;

#[derive(Clone, Debug)]
pub enum Body {
    File(Vec<u8>),
    Directory(BTreeMap<Vec<u8>, Inode>, Inode),
    Link(Vec<u8>),
}

/// A tree of maps.
pub struct Model {
    pub nodes: Vec<(Body, u32)>,
}

pub enum Last {
    Root,
    Dot,
    DotDot,
    Name(Vec<u8>, bool),
}

pub const ROOT: Inode = 0;

impl Model {
    pub fn new() -> Model {
        Model {
            nodes: vec![(Body::Directory(BTreeMap::new(), ROOT), 2)],
        }
    }

    pub fn entries(&self, at: Inode) -> Result<&BTreeMap<Vec<u8>, Inode>> {
        match &self.nodes[at].0 {
            Body::Directory(entries, _) => Ok(entries),
            _ => Err(Errno::ENOTDIR),
        }
    }

    pub fn entries_mut(&mut self, at: Inode) -> &mut BTreeMap<Vec<u8>, Inode> {
        match &mut self.nodes[at].0 {
            Body::Directory(entries, _) => entries,
            _ => panic!("no directory"),
        }
    }

    pub fn parent(&self, at: Inode) -> Inode {
        match self.nodes[at].0 {
            Body::Directory(_, parent) => parent,
            _ => panic!("no directory"),
        }
    }

    pub fn set_parent(&mut self, at: Inode, to: Inode) {
        if let Body::Directory(_, parent) = &mut self.nodes[at].0 {
            *parent = to;
        }
    }

    pub fn is_directory(&self, at: Inode) -> bool {
        matches!(self.nodes[at].0, Body::Directory(..))
    }

    pub fn look_up(&self, at: Inode, name: &[u8]) -> Result<Inode> {
        self.entries(at)?.get(name).copied().ok_or(Errno::ENOENT)
    }

    pub fn walk(&self, start: Inode, path: &[u8], follow: bool, links: &mut u32) -> Result<Inode> {
        if path.is_empty() {
            return Err(Errno::ENOENT);
        }
        let mut at = if path[0] == b'/' { ROOT } else { start };
        let names: Vec<&[u8]> = path
            .split(|&b| b == b'/')
            .filter(|n| !n.is_empty())
            .collect();
        let must_be_directory = path.ends_with(b"/");
        for (i, name) in names.iter().enumerate() {
            self.entries(at)?;
            let last = i + 1 == names.len();
            at = match *name {
                b"." => at,
                b".." => self.parent(at),
                _ => {
                    let child = self.look_up(at, name)?;
                    match &self.nodes[child].0 {
                        Body::Link(text) if !last || follow || must_be_directory => {
                            *links += 1;
                            if *links > 40 {
                                return Err(Errno::ELOOP);
                            }
                            self.walk(at, text, true, links)?
                        }
                        _ => child,
                    }
                }
            };
        }
        if must_be_directory {
            self.entries(at)?;
        }
        Ok(at)
    }

    pub fn resolve(&self, path: &[u8], follow: bool) -> Result<Inode> {
        self.walk(ROOT, path, follow, &mut 0)
    }

    pub fn parent_of(&self, start: Inode, path: &[u8], links: &mut u32) -> Result<(Inode, Last)> {
        if path.is_empty() {
            return Err(Errno::ENOENT);
        }
        let end = path.iter().rposition(|&b| b != b'/').map_or(0, |i| i + 1);
        let (bare, slash) = (&path[..end], end < path.len());
        let split = bare.iter().rposition(|&b| b == b'/').map_or(0, |i| i + 1);
        let (above, name) = bare.split_at(split);
        let directory = match above {
            b"" => start,
            _ => self.walk(start, above, true, links)?,
        };
        if bare.is_empty() {
            return Ok((ROOT, Last::Root));
        }
        self.entries(directory)?;
        let last = match name {
            b"." => Last::Dot,
            b".." => Last::DotDot,
            _ => Last::Name(name.to_vec(), slash),
        };
        Ok((directory, last))
    }

    pub fn new_name(&self, path: &[u8], directory: bool) -> Result<(Inode, Vec<u8>)> {
        let (at, last) = self.parent_of(ROOT, path, &mut 0)?;
        let Last::Name(name, slash) = last else {
            return Err(Errno::EEXIST);
        };
        match self.look_up(at, &name) {
            Ok(_) => Err(Errno::EEXIST),
            Err(_) if slash && !directory => Err(Errno::ENOENT),
            Err(_) => Ok((at, name)),
        }
    }

    pub fn add(&mut self, at: Inode, name: Vec<u8>, body: Body, links: u32) -> Inode {
        let new = self.nodes.len();
        if matches!(body, Body::Directory(..)) {
            self.nodes[at].1 += 1;
        }
        self.nodes.push((body, links));
        self.entries_mut(at).insert(name, new);
        new
    }

    pub fn open_create(
        &mut self,
        start: Inode,
        path: &[u8],
        exclusive: bool,
        links: &mut u32,
    ) -> Result<Inode> {
        let (at, last) = self.parent_of(start, path, links)?;
        let Last::Name(name, slash) = last else {
            return Err(if exclusive {
                Errno::EEXIST
            } else {
                Errno::EISDIR
            });
        };
        if slash {
            return Err(Errno::EISDIR);
        }
        match self.look_up(at, &name) {
            Ok(_) if exclusive => Err(Errno::EEXIST),
            Ok(child) => match self.nodes[child].0.clone() {
                Body::Link(text) => {
                    *links += 1;
                    if *links > 40 {
                        return Err(Errno::ELOOP);
                    }
                    self.open_create(at, &text, exclusive, links)
                }
                Body::Directory(..) => Err(Errno::EISDIR),
                Body::File(_) => Ok(child),
            },
            Err(_) => Ok(self.add(at, name, Body::File(Vec::new()), 1)),
        }
    }

    pub fn remove(&mut self, path: &[u8], directory: bool) -> Result<()> {
        let (at, last) = self.parent_of(ROOT, path, &mut 0)?;
        let (name, slash) = match last {
            Last::Name(name, slash) => (name, slash),
            _ if !directory => return Err(Errno::EISDIR),
            Last::Dot => return Err(Errno::EINVAL),
            Last::DotDot => return Err(Errno::ENOTEMPTY),
            Last::Root => return Err(Errno::EBUSY),
        };
        let child = self.look_up(at, &name)?;
        match (self.is_directory(child), directory) {
            (true, false) => return Err(Errno::EISDIR),
            (false, false) if slash => return Err(Errno::ENOTDIR),
            (false, true) => return Err(Errno::ENOTDIR),
            (true, true) if !self.entries(child)?.is_empty() => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        self.entries_mut(at).remove(&name);
        self.lose(at, child);
        Ok(())
    }

    /// An entry of `at` for `child` is gone.
    pub fn lose(&mut self, at: Inode, child: Inode) {
        if self.is_directory(child) {
            self.nodes[at].1 -= 1;
            self.nodes[child].1 = 0;
        } else {
            self.nodes[child].1 -= 1;
        }
    }

    pub fn is_below(&self, mut at: Inode, above: Inode) -> bool {
        while at != above {
            if at == ROOT {
                return false;
            }
            at = self.parent(at);
        }
        true
    }

    pub fn rename(&mut self, from: &[u8], to: &[u8], flags: u32) -> Result<()> {
        let exchange = flags & RENAME_EXCHANGE != 0;
        let keep = flags & RENAME_NOREPLACE != 0;
        if exchange && keep {
            return Err(Errno::EINVAL);
        }
        let (a, a_last) = self.parent_of(ROOT, from, &mut 0)?;
        let (b, b_last) = self.parent_of(ROOT, to, &mut 0)?;
        let Last::Name(a_name, a_slash) = a_last else {
            return Err(Errno::EBUSY);
        };
        let Last::Name(b_name, b_slash) = b_last else {
            return Err(if keep { Errno::EEXIST } else { Errno::EBUSY });
        };
        let source = self.look_up(a, &a_name)?;
        let target = self.look_up(b, &b_name).ok();
        if target.is_some() && keep {
            return Err(Errno::EEXIST);
        }
        if target.is_none() && exchange {
            return Err(Errno::ENOENT);
        }
        let source_is = self.is_directory(source);
        let target_is = target.is_some_and(|t| self.is_directory(t));
        if a_slash && !source_is || b_slash && !(if exchange { target_is } else { source_is }) {
            return Err(Errno::ENOTDIR);
        }
        if source_is && self.is_below(b, source) {
            return Err(Errno::EINVAL);
        }
        if let Some(target) = target {
            if target_is && self.is_below(a, target) {
                return Err(if exchange {
                    Errno::EINVAL
                } else {
                    Errno::ENOTEMPTY
                });
            }
            if target == source {
                return Ok(());
            }
            if exchange {
                self.entries_mut(a).insert(a_name, target);
                self.entries_mut(b).insert(b_name, source);
                for (node, is, old, new) in [(source, source_is, a, b), (target, target_is, b, a)] {
                    if is {
                        self.nodes[old].1 -= 1;
                        self.nodes[new].1 += 1;
                        self.set_parent(node, new);
                    }
                }
                return Ok(());
            }
            match (source_is, target_is) {
                (true, false) => return Err(Errno::ENOTDIR),
                (false, true) => return Err(Errno::EISDIR),
                (true, true) if !self.entries(target)?.is_empty() => {
                    return Err(Errno::ENOTEMPTY);
                }
                _ => {}
            }
            self.lose(b, target);
        }
        self.entries_mut(a).remove(&a_name);
        self.entries_mut(b).insert(b_name, source);
        if source_is {
            self.nodes[a].1 -= 1;
            self.nodes[b].1 += 1;
            self.set_parent(source, b);
        }
        Ok(())
    }
}
