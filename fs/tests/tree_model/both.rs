//! A file system and the model, driven together.

use std::{collections::BTreeMap, sync::Arc};

use abi::Errno;
use abi::raw::general::{O_CREAT, O_EXCL, O_RDWR, RENAME_EXCHANGE, RENAME_NOREPLACE};
use fbuf::{BytesSink, BytesSource};
use fs::{File, Kind, Location, Namespace, OpenFlags, Walk, vnode::Make};

use super::{
    model::{Body, Inode, Model, ROOT},
    support::{Random, names, with_walk},
};

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

/// The two of them.
pub struct Both {
    pub model: Model,
    pub namespace: Arc<Namespace>,
    pub random: Random,
}

impl Both {
    /// A file system that is empty.
    pub fn new(namespace: Arc<Namespace>, seed: u64) -> Both {
        Both {
            model: Model::new(),
            namespace,
            random: Random::new(seed),
        }
    }

    fn with_walk<R>(&self, f: impl FnOnce(&Walk<'_>) -> R) -> R {
        with_walk(&self.namespace, f)
    }

    /// One operation on both; panics where they differ.
    pub fn step(&mut self) {
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
                let shown = self.with_walk(|walk| walk.attributes(&a, follow));
                let inode = |it: fs::Attributes| it.inode;
                let of_place = |place: &fs::Location| place.attributes().map(inode);
                let found = got.as_ref().map_err(|error| *error).and_then(of_place);
                assert_eq!(shown.map(inode), found, "attributes {show}");
                match (got, expected) {
                    (Ok(place), Ok(node)) => self.same(&place, node, &show),
                    (got, expected) => {
                        assert_eq!(got.map(|_| ()), expected.map(|_| ()), "resolve {show}");
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
                let mut names = names(place.vnode()).unwrap();
                names.sort_by(|a, b| a.0.cmp(&b.0));
                let names = names.iter().map(|(name, _)| name);
                assert!(names.eq(entries.keys()), "entries of {show}");
            }
        }
    }

    /// The whole tree, and the path of each place in it.
    pub fn compare(&self) {
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
