//! The in-memory file system and the walk along paths, compared with a plain model under random
//! operations: the same results, the same error numbers, the same tree.

mod support;

use std::collections::BTreeMap;

use abi::raw::general::{O_CREAT, O_EXCL, O_RDWR, RENAME_EXCHANGE, RENAME_NOREPLACE};
use abi::{Errno, Result};
use fbuf::{BytesSink, BytesSource};
use fs::{
    Credentials, File, Kind, Location, Namespace, OpenFlags, Walk,
    ramfs::{self, Options},
    vnode::Make,
};
use support::Random;

type Inode = usize;

#[derive(Clone, Debug)]
enum Body {
    File(Vec<u8>),
    Directory(BTreeMap<Vec<u8>, Inode>, Inode),
    Link(Vec<u8>),
}

/// A tree of maps.
struct Model {
    nodes: Vec<(Body, u32)>,
}

enum Last {
    Root,
    Dot,
    DotDot,
    Name(Vec<u8>, bool),
}

const ROOT: Inode = 0;

impl Model {
    fn new() -> Model {
        Model {
            nodes: vec![(Body::Directory(BTreeMap::new(), ROOT), 2)],
        }
    }

    fn entries(&self, at: Inode) -> Result<&BTreeMap<Vec<u8>, Inode>> {
        match &self.nodes[at].0 {
            Body::Directory(entries, _) => Ok(entries),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn entries_mut(&mut self, at: Inode) -> &mut BTreeMap<Vec<u8>, Inode> {
        match &mut self.nodes[at].0 {
            Body::Directory(entries, _) => entries,
            _ => panic!("no directory"),
        }
    }

    fn parent(&self, at: Inode) -> Inode {
        match self.nodes[at].0 {
            Body::Directory(_, parent) => parent,
            _ => panic!("no directory"),
        }
    }

    fn set_parent(&mut self, at: Inode, to: Inode) {
        if let Body::Directory(_, parent) = &mut self.nodes[at].0 {
            *parent = to;
        }
    }

    fn is_directory(&self, at: Inode) -> bool {
        matches!(self.nodes[at].0, Body::Directory(..))
    }

    fn look_up(&self, at: Inode, name: &[u8]) -> Result<Inode> {
        self.entries(at)?.get(name).copied().ok_or(Errno::ENOENT)
    }

    fn walk(&self, start: Inode, path: &[u8], follow: bool, links: &mut u32) -> Result<Inode> {
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

    fn resolve(&self, path: &[u8], follow: bool) -> Result<Inode> {
        self.walk(ROOT, path, follow, &mut 0)
    }

    fn parent_of(&self, start: Inode, path: &[u8], links: &mut u32) -> Result<(Inode, Last)> {
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

    fn new_name(&self, path: &[u8], directory: bool) -> Result<(Inode, Vec<u8>)> {
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

    fn add(&mut self, at: Inode, name: Vec<u8>, body: Body, links: u32) -> Inode {
        let new = self.nodes.len();
        if matches!(body, Body::Directory(..)) {
            self.nodes[at].1 += 1;
        }
        self.nodes.push((body, links));
        self.entries_mut(at).insert(name, new);
        new
    }

    fn open_create(
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

    fn remove(&mut self, path: &[u8], directory: bool) -> Result<()> {
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
    fn lose(&mut self, at: Inode, child: Inode) {
        if self.is_directory(child) {
            self.nodes[at].1 -= 1;
            self.nodes[child].1 = 0;
        } else {
            self.nodes[child].1 -= 1;
        }
    }

    fn is_below(&self, mut at: Inode, above: Inode) -> bool {
        while at != above {
            if at == ROOT {
                return false;
            }
            at = self.parent(at);
        }
        true
    }

    fn rename(&mut self, from: &[u8], to: &[u8], flags: u32) -> Result<()> {
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

/// A path of a few names, at times with what makes paths hard.
fn path(random: &mut Random) -> Vec<u8> {
    let mut path = Vec::new();
    if random.below(3) == 0 {
        path.push(b'/');
    }
    let names = 1 + random.below(4);
    for i in 0..names {
        if i > 0 {
            path.extend_from_slice(if random.below(12) == 0 { b"//" } else { b"/" });
        }
        match random.below(24) {
            0 => path.extend_from_slice(b"."),
            1 => path.extend_from_slice(b".."),
            n => path.push(b'a' + (n % 5) as u8),
        }
    }
    if random.below(10) == 0 {
        path.push(b'/');
    }
    path
}

struct Both {
    model: Model,
    namespace: std::sync::Arc<Namespace>,
    who: Credentials,
    random: Random,
}

impl Both {
    fn with_walk<R>(&self, f: impl FnOnce(&Walk<'_>) -> R) -> R {
        let root = self.namespace.root();
        f(&Walk {
            root: &root,
            start: &root,
            who: &self.who,
        })
    }

    /// One operation on both; panics where they differ.
    fn step(&mut self) {
        let a = path(&mut self.random);
        let show = String::from_utf8_lossy(&a).into_owned();
        match self.random.below(12) {
            0 => {
                let flags = [0, O_EXCL][self.random.below(2)];
                let exclusive = flags == O_EXCL;
                let expected = self.model.open_create(ROOT, &a, exclusive, &mut 0);
                let flags = OpenFlags::from_bits_retain(O_CREAT | O_RDWR | flags);
                let got = self.with_walk(|walk| walk.open(&a, flags, 0o644));
                assert_eq!(
                    got.map(|_| ()),
                    expected.map(|_| ()),
                    "open {show} {flags:?}"
                );
            }
            1 | 2 => {
                let name = self.model.new_name(&a, true);
                let expected = name.map(|(at, name)| {
                    self.model
                        .add(at, name, Body::Directory(BTreeMap::new(), at), 2);
                });
                let got = self.with_walk(|walk| walk.make(&a, Make::Directory, 0o755));
                assert_eq!(got.map(|_| ()), expected, "mkdir {show}");
            }
            3 => {
                let text = path(&mut self.random);
                let name = self.model.new_name(&a, false);
                let expected = name.map(|(at, name)| {
                    self.model.add(at, name, Body::Link(text.clone()), 1);
                });
                let got = self.with_walk(|walk| walk.make(&a, Make::Link(text), 0o777));
                assert_eq!(got.map(|_| ()), expected, "symlink {show}");
            }
            4 => {
                let b = path(&mut self.random);
                let expected = self.model.resolve(&a, false).and_then(|from| {
                    let (at, name) = self.model.new_name(&b, false)?;
                    if self.model.is_directory(from) {
                        return Err(Errno::EPERM);
                    }
                    self.model.nodes[from].1 += 1;
                    self.model.entries_mut(at).insert(name, from);
                    Ok(())
                });
                let got = self.with_walk(|walk| walk.link(&walk.resolve(&a, false)?, &b));
                assert_eq!(got, expected, "link {show}");
            }
            5 | 6 => {
                let directory = self.random.below(2) == 0;
                let expected = self.model.remove(&a, directory);
                let got = self.with_walk(|walk| walk.remove(&a, directory));
                assert_eq!(got, expected, "remove {show} directory {directory}");
            }
            7 | 8 => {
                let b = path(&mut self.random);
                let flags = match self.random.below(6) {
                    0 => RENAME_EXCHANGE,
                    1 => RENAME_NOREPLACE,
                    _ => 0,
                };
                let expected = self.model.rename(&a, &b, flags);
                let got = self.with_walk(|walk| walk.rename(&a, walk, &b, flags));
                let to = String::from_utf8_lossy(&b);
                assert_eq!(got, expected, "rename {show} to {to} flags {flags}");
            }
            9 | 10 => self.change_file(&a, &show),
            _ => {
                let follow = self.random.below(2) == 0;
                let expected = self.model.resolve(&a, follow);
                let got = self.with_walk(|walk| walk.resolve(&a, follow));
                match (got, expected) {
                    (Ok(place), Ok(node)) => self.same(&place, node, &show),
                    (got, expected) => {
                        assert_eq!(got.map(|_| ()), expected.map(|_| ()), "resolve {show}")
                    }
                }
            }
        }
    }

    /// Writes, truncates or reads a file.
    fn change_file(&mut self, a: &[u8], show: &str) {
        let flags = OpenFlags::from_bits_retain(O_RDWR);
        let expected =
            self.model
                .resolve(a, true)
                .and_then(|node| match self.model.is_directory(node) {
                    true => Err(Errno::EISDIR),
                    false => Ok(node),
                });
        let got = self.with_walk(|walk| walk.open(a, flags, 0));
        let (file, node) = match (got, expected) {
            (Ok(file), Ok(node)) => (file, node),
            (got, expected) => {
                assert_eq!(got.map(|_| ()), expected.map(|_| ()), "open {show}");
                return;
            }
        };
        let Body::File(bytes) = &mut self.model.nodes[node].0 else {
            panic!("no file");
        };
        let offset = self.random.below(20000);
        match self.random.below(3) {
            0 => {
                file.location()
                    .unwrap()
                    .vnode()
                    .truncate(offset as u64)
                    .unwrap();
                bytes.resize(offset, 0);
            }
            1 => {
                let data = self.random.bytes(9000);
                let mut source = BytesSource::new(&data);
                assert_eq!(
                    file.write(Some(offset as u64), flags, &mut source),
                    Ok(data.len())
                );
                if !data.is_empty() {
                    bytes.resize(bytes.len().max(offset + data.len()), 0);
                    bytes[offset..offset + data.len()].copy_from_slice(&data);
                }
            }
            _ => {}
        }
        assert!(read_all(&*file) == *bytes, "content of {show}");
    }

    /// Whether a place is what the model says.
    fn same(&self, place: &Location, node: Inode, show: &str) {
        let attributes = place.attributes().unwrap();
        let (body, links) = &self.model.nodes[node];
        assert_eq!(attributes.links, *links, "links of {show}");
        match body {
            Body::File(bytes) => {
                assert_eq!(attributes.kind, Kind::Regular);
                assert_eq!(attributes.size, bytes.len() as u64);
            }
            Body::Link(text) => {
                assert_eq!(attributes.kind, Kind::Link);
                assert_eq!(place.vnode().read_link().as_ref(), Ok(text));
            }
            Body::Directory(entries, _) => {
                assert_eq!(attributes.kind, Kind::Directory);
                let mut names = Vec::new();
                let list = place.vnode().list(0, &mut |name, _, _, _| {
                    names.push(name.to_vec());
                    true
                });
                assert_eq!(list, Ok(()));
                names.sort();
                assert!(names.iter().eq(entries.keys()), "entries of {show}");
            }
        }
    }

    /// The whole tree, and the path of each place in it.
    fn compare(&self) {
        let mut todo = vec![(b"/".to_vec(), ROOT)];
        let root = self.namespace.root();
        while let Some((path, node)) = todo.pop() {
            let show = String::from_utf8_lossy(&path).into_owned();
            let place = self.with_walk(|walk| walk.resolve(&path, false)).unwrap();
            self.same(&place, node, &show);
            assert_eq!(place.path(&root), path);
            if let Body::Directory(entries, _) = &self.model.nodes[node].0 {
                for (name, child) in entries {
                    let above: &[u8] = if node == ROOT { b"" } else { &path };
                    todo.push(([above, b"/", name].concat(), *child));
                }
            }
        }
    }
}

fn read_all(file: &dyn File) -> Vec<u8> {
    let mut bytes = vec![0; 40000];
    let mut sink = BytesSink::new(&mut bytes);
    let flags = OpenFlags::from_bits_retain(O_RDWR);
    let n = file.read(Some(0), flags, &mut sink).unwrap();
    bytes.truncate(n);
    bytes
}

#[test]
fn behaves_as_a_tree_of_maps() {
    support::on_machines(20, 1, |seed| {
        let mut both = Both {
            model: Model::new(),
            namespace: Namespace::new(ramfs::root(Options::default()), "rootfs"),
            who: Credentials::default(),
            random: Random::new(seed),
        };
        for i in 0..1500 {
            both.step();
            if i % 50 == 0 {
                both.compare();
            }
        }
        both.compare();
    });
}
