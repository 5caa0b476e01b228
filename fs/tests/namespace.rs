//! Mounts, permissions, paths and synthetic directories, case by case.

mod support;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use abi::Errno;
use abi::raw::general::{
    O_CREAT, O_DIRECTORY, O_EXCL, O_NOFOLLOW, O_PATH, O_RDWR, O_TMPFILE, O_TRUNC, O_WRONLY,
    RENAME_EXCHANGE, RESOLVE_BENEATH, RESOLVE_IN_ROOT, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS,
    RESOLVE_NO_XDEV,
};
use fbuf::{BytesSink, BytesSource};
use fs::{
    Credentials, File, Kind, Location, MountFlags, MountRequest, Namespace, OpenFlags, Walk,
    pseudofs::{self, Entry, Table},
    ramfs::{self, Options},
    vnode::Make,
};
use nucleus::frame;

struct World {
    namespace: Arc<Namespace>,
    root: Location,
    who: Credentials,
}

const fn flags(bits: u32) -> OpenFlags {
    OpenFlags::from_bits_retain(bits)
}

impl World {
    fn new() -> World {
        let namespace = Namespace::new(ramfs::root(Options::default()), "rootfs");
        World {
            root: namespace.root(),
            namespace,
            who: Credentials::default(),
        }
    }

    fn walk(&self) -> Walk<'_> {
        Walk {
            root: &self.root,
            start: &self.root,
            who: &self.who,
        }
    }

    fn is(&mut self, uid: u32) {
        self.who = Credentials {
            uid,
            gid: uid,
            groups: vec![uid, 50],
            ..Credentials::user(uid, uid)
        };
    }

    fn at(&self, path: &str) -> abi::Result<Location> {
        self.walk().resolve(path.as_bytes(), true)
    }

    fn open(&self, path: &str, bits: u32) -> abi::Result<Arc<dyn File>> {
        self.walk().open(path.as_bytes(), flags(bits), 0o644)
    }

    fn mkdir(&self, path: &str, mode: u32) -> abi::Result<Location> {
        self.walk().make(path.as_bytes(), Make::Directory, mode)
    }

    fn remove(&self, path: &str) -> abi::Result<()> {
        self.walk().remove(path.as_bytes(), false)
    }

    fn rename(&self, from: &str, to: &str) -> abi::Result<()> {
        let walk = self.walk();
        walk.rename(from.as_bytes(), &walk, to.as_bytes(), 0)
    }

    fn path(&self, place: &Location) -> String {
        String::from_utf8(place.path(&self.root)).unwrap()
    }

    fn mount(&self, path: &str, options: &str) -> abi::Result<()> {
        let root = ramfs::root(Options::default());
        let at = self.at(path)?;
        let mut how = MountRequest::plain("tmpfs");
        how.flags.set(MountFlags::READ_ONLY, options == "ro");
        self.namespace.mount(&at, root, &how)
    }

    fn unmount(&self, path: &str, lazy: bool) -> abi::Result<()> {
        let at = self.at(path)?;
        self.namespace.unmount(&at, lazy)
    }
}

fn text(file: &dyn File) -> String {
    let mut bytes = vec![0; 5000];
    let mut sink = BytesSink::new(&mut bytes);
    let n = file.read(Some(0), flags(O_RDWR), &mut sink).unwrap();
    String::from_utf8(bytes[..n].to_vec()).unwrap()
}

#[test]
fn mounts_are_crossed_both_ways() {
    support::on_machines(1, 1, |_| {
        let w = World::new();
        w.mkdir("a", 0o755).unwrap();
        w.mkdir("b", 0o755).unwrap();
        w.mount("a", "rw").unwrap();
        w.mkdir("a/inside", 0o755).unwrap();
        let inside = w.at("/a/inside").unwrap();
        assert_eq!(w.path(&inside), "/a/inside");
        assert!(w.at("/a/inside/../../b").unwrap().same(&w.at("b").unwrap()));
        assert_eq!(w.at("b/inside").err(), Some(Errno::ENOENT));
        assert_eq!(w.rename("a/inside", "b/x"), Err(Errno::EXDEV));
        assert_eq!(w.rename("a", "c"), Err(Errno::EBUSY));
        assert_eq!(w.walk().remove(b"a", true), Err(Errno::EBUSY));

        // The same directory at a second place.
        let bound = inside.vnode().clone();
        let b = w.at("b").unwrap();
        let how = MountRequest {
            flags: MountFlags::READ_ONLY,
            ..MountRequest::plain("tmpfs")
        };
        w.namespace.mount(&b, bound, &how).unwrap();
        drop((b, inside));
        assert_eq!(w.path(&w.at("b").unwrap()), "/b");
        assert_eq!(w.mkdir("b/c", 0o755).err(), Some(Errno::EROFS));
        w.mkdir("a/inside/c", 0o755).unwrap();
        assert_eq!(w.path(&w.at("b/c").unwrap()), "/b/c");
        assert!(w.at("b/c/../..").unwrap().same(&w.root));

        // Piled up, and taken off again.
        w.mount("a", "rw").unwrap();
        assert_eq!(w.at("a/inside").err(), Some(Errno::ENOENT));
        assert_eq!(w.namespace.mounts(&w.root).len(), 4);
        w.unmount("a", false).unwrap();
        let held = w.at("a/inside").unwrap();
        assert_eq!(w.unmount("a", false), Err(Errno::EBUSY));
        assert_eq!(w.unmount("a/inside", false), Err(Errno::EINVAL));
        w.unmount("a", true).unwrap();
        assert_eq!(w.at("a/inside").err(), Some(Errno::ENOENT));
        assert!(held.vnode().lookup(b"c").is_ok());
        w.unmount("b", false).unwrap();
        assert_eq!(w.unmount("/", false), Err(Errno::EINVAL));
        assert_eq!(w.namespace.mounts(&w.root).len(), 1);
        drop(held);
        for _ in 0..300 {
            w.mount("a", "rw").unwrap();
        }
    });
}

#[test]
fn permissions_are_checked_on_the_way() {
    support::on_machines(1, 1, |_| {
        let mut w = World::new();
        w.mkdir("private", 0o700).unwrap();
        w.mkdir("public", 0o1777).unwrap();
        w.mkdir("group", 0o2775).unwrap();
        let group = w.at("group").unwrap();
        group.change_owner(&w.who, Some(1), Some(50)).unwrap();
        group.change_mode(&w.who, 0o2775).unwrap();
        drop(w.open("private/f", O_CREAT | O_RDWR).unwrap());
        drop(w.open("public/roots", O_CREAT | O_RDWR).unwrap());
        w.is(1000);
        assert_eq!(w.at("private/f").err(), Some(Errno::EACCES));
        assert_eq!(w.at("private").map(drop), Ok(()));
        assert_eq!(w.open("new", O_CREAT | O_RDWR).err(), Some(Errno::EACCES));
        assert_eq!(w.open("public/roots", O_WRONLY).err(), Some(Errno::EACCES));
        assert_eq!(w.open("public/roots", O_TRUNC).err(), Some(Errno::EACCES));
        assert_eq!(w.open("public/roots", 0).map(drop), Ok(()));
        // Sticky: only one's own.
        assert_eq!(w.remove("public/roots"), Err(Errno::EPERM));
        assert_eq!(w.rename("public/roots", "public/x"), Err(Errno::EPERM));
        drop(w.open("public/mine", O_CREAT | O_EXCL | O_RDWR).unwrap());
        assert_eq!(w.rename("public/mine", "public/roots"), Err(Errno::EPERM));
        assert_eq!(w.remove("public/mine"), Ok(()));
        // What is made in a set-gid directory has its group; a directory the bit too.
        let sub = w.mkdir("group/sub", 0o755).unwrap().attributes().unwrap();
        assert_eq!((sub.uid, sub.gid, sub.mode), (1000, 50, 0o2755));
        // Only the owner changes attributes; privilege goes with the owner.
        let file = w.open("group/f", O_CREAT | O_RDWR).unwrap();
        let place = file.location().unwrap();
        place.change_mode(&w.who, 0o4755).unwrap();
        assert_eq!(place.attributes().unwrap().mode, 0o4755);
        let n = file.write(None, flags(O_RDWR), &mut BytesSource::new(b"x"));
        assert_eq!((n, place.attributes().unwrap().mode), (Ok(1), 0o755));
        let given = place.change_owner(&w.who, Some(0), None);
        assert_eq!(given, Err(Errno::EPERM));
        assert_eq!(place.change_owner(&w.who, None, Some(1000)), Ok(()));
        w.is(1001);
        let refused = place.change_mode(&w.who, 0o777);
        assert_eq!(refused, Err(Errno::EPERM));
        let device = w.walk().make(b"public/null", Make::CharDevice(259), 0o666);
        assert_eq!(device.err(), Some(Errno::EPERM));
        // A mode that leaves nothing does not keep the maker from its new file.
        let made = w.walk().open(b"public/none", flags(O_CREAT | O_RDWR), 0);
        assert_eq!(made.map(drop), Ok(()));
        assert_eq!(w.open("public/none", 0).err(), Some(Errno::EACCES));
    });
}

#[test]
fn opening_follows_the_flags() {
    support::on_machines(1, 1, |_| {
        let w = World::new();
        w.mkdir("d", 0o755).unwrap();
        let link = |name: &[u8], to: &[u8]| {
            let made = w.walk().make(name, Make::Link(to.to_vec()), 0o777);
            made.map(drop).unwrap();
        };
        link(b"dangling", b"d/new");
        link(b"loop", b"loop");
        let error = |path, bits| w.open(path, bits).err();
        assert_eq!(error("d", O_RDWR), Some(Errno::EISDIR));
        assert_eq!(error("d", O_CREAT), Some(Errno::EISDIR));
        assert_eq!(error("loop", 0), Some(Errno::ELOOP));
        assert_eq!(error("dangling", 0), Some(Errno::ENOENT));
        assert_eq!(error("dangling", O_CREAT | O_EXCL), Some(Errno::EEXIST));
        assert_eq!(error("dangling", O_NOFOLLOW), Some(Errno::ELOOP));
        assert_eq!(
            error("dangling", O_NOFOLLOW | O_DIRECTORY),
            Some(Errno::ENOTDIR)
        );
        assert_eq!(error("new/", O_CREAT), Some(Errno::EISDIR));
        assert_eq!(error("", O_CREAT), Some(Errno::ENOENT));
        let long = "n".repeat(256);
        assert_eq!(error(&long, O_CREAT), Some(Errno::ENAMETOOLONG));
        // A dangling link is filled.
        let file = w.open("dangling", O_CREAT | O_RDWR).unwrap();
        assert_eq!(w.path(file.location().unwrap()), "/d/new");
        assert_eq!(error("d/new", O_DIRECTORY), Some(Errno::ENOTDIR));
        assert_eq!(error("d/new/x", 0), Some(Errno::ENOTDIR));
        // A mere handle.
        let handle = w.open("dangling", O_PATH | O_NOFOLLOW).unwrap();
        assert_eq!(handle.attributes().unwrap().kind, Kind::Link);
        let mut none = [0; 4];
        let read = handle.read(None, flags(O_PATH), &mut BytesSink::new(&mut none));
        assert_eq!(read, Err(Errno::EBADF));
        // A file without a name, which then gets one.
        assert_eq!(error("d", O_TMPFILE), Some(Errno::EINVAL));
        let file = w.open("d", O_TMPFILE | O_RDWR).unwrap();
        assert_eq!(file.attributes().unwrap().links, 0);
        w.walk().link(file.location().unwrap(), b"d/named").unwrap();
        assert_eq!(w.at("d/named").unwrap().attributes().unwrap().links, 1);
        w.remove("d/named").unwrap();
        let again = w.walk().link(file.location().unwrap(), b"d/named");
        assert_eq!(again, Err(Errno::ENOENT));
    });
}

#[test]
fn names_are_refused_when_memory_is_scarce() {
    support::on_machines(1, 1, |_| {
        let w = World::new();
        w.mkdir("a", 0o755).unwrap();
        w.open("a/f", O_CREAT | O_RDWR).unwrap();
        frame::seem_scarce_after(Some(0));
        let long = "n".repeat(255);
        assert_eq!(w.rename("a/f", &long), Err(Errno::ENOMEM));
        let file = w.at("a/f").unwrap();
        assert_eq!(
            w.walk().link(&file, long.as_bytes()).err(),
            Some(Errno::ENOMEM)
        );
        assert!(w.mkdir(&long, 0o755).is_err());
        frame::seem_scarce_after(None);
        assert!(w.at(&long).is_err());
        w.rename("a/f", &long).unwrap();
    });
}

#[test]
fn paths_stay_right() {
    support::on_machines(1, 1, |_| {
        let w = World::new();
        w.mkdir("a", 0o755).unwrap();
        w.mkdir("a/b", 0o755).unwrap();
        let deep = w.mkdir("a/b/c", 0o755).unwrap();
        let file = w.open("a/b/f", O_CREAT | O_RDWR).unwrap();
        let place = file.location().unwrap();
        w.rename("a", "z").unwrap();
        assert_eq!(w.path(&deep), "/z/b/c");
        assert_eq!(w.path(place), "/z/b/f");
        w.rename("z/b/f", "g").unwrap();
        assert_eq!(w.path(place), "/g");
        // Two names: the one by which it was opened, then the one that is left.
        w.walk().link(place, b"z/h").unwrap();
        let other = w.at("z/h").unwrap();
        assert_eq!(
            (w.path(&other), w.path(&w.at("g").unwrap())),
            ("/z/h".into(), "/g".into())
        );
        w.remove("g").unwrap();
        assert_eq!(w.path(place), "/z/h");
        w.remove("z/h").unwrap();
        assert_eq!(w.path(place), "/z/h (deleted)");
        assert!(place.is_removed());
        let n = file.write(
            Some(0),
            flags(O_RDWR),
            &mut BytesSource::new(b"still there"),
        );
        assert_eq!((n, text(&*file)), (Ok(11), "still there".into()));
        // Three names, of which a node knows two: the third one is left.
        let file = w.open("z/i", O_CREAT | O_RDWR).unwrap();
        let place = file.location().unwrap();
        w.walk().link(place, b"z/j").unwrap();
        w.walk().link(place, b"z/k").unwrap();
        w.remove("z/i").unwrap();
        assert_eq!(w.path(place), "/z/k");
        w.remove("z/k").unwrap();
        assert_eq!(w.path(place), "/z/k (deleted)");
        assert_eq!(w.path(&w.at("z/j").unwrap()), "/z/j");
        // From inside a root of its own.
        let inner = w.at("z/b").unwrap();
        assert_eq!(deep.path(&inner), b"/c");
        assert_eq!(w.root.path(&inner), b"(unreachable)/");
        w.walk().remove(b"z/b/c", true).unwrap();
        assert_eq!(w.path(&deep), "/z/b/c (deleted)");
        assert!(deep.is_removed() && deep.vnode().parent().is_some());
    });
}

#[test]
fn listings_name_the_directory_above() {
    support::on_machines(1, 1, |_| {
        let w = World::new();
        for path in ["a", "b", "a/x", "b/y", "a/x/deep"] {
            w.mkdir(path, 0o755).unwrap();
        }
        let inode = |path| w.at(path).unwrap().attributes().unwrap().inode;
        let listed = |directory: &dyn File| {
            let mut above = None;
            let mut emit = |name: &[u8], inode, _, _| {
                above = (name == b"..").then_some(inode).or(above);
                true
            };
            directory.list(&mut emit).unwrap();
            above.unwrap()
        };
        let above = |path| listed(&*w.open(path, O_DIRECTORY).unwrap());
        assert_eq!(above("/"), inode("/"));
        assert_eq!(above("a"), inode("/"));
        assert_eq!(above("a/x"), inode("a"));
        w.rename("a/x", "b/z").unwrap();
        assert_eq!(above("b/z"), inode("b"));
        assert_eq!(above("b/z/deep"), inode("b/z"));
        w.mkdir("a/x", 0o755).unwrap();
        let walk = w.walk();
        let exchanged = walk.rename(b"a/x", &walk, b"b/y", RENAME_EXCHANGE);
        exchanged.unwrap();
        assert_eq!((above("a/x"), above("b/y")), (inode("a"), inode("b")));
        let exchanged = walk.rename(b"a", &walk, b"b/y", RENAME_EXCHANGE);
        exchanged.unwrap();
        assert_eq!((above("a"), above("b/y")), (inode("/"), inode("b")));
        // It stays the last one.
        let removed = w.open("b/z/deep", O_DIRECTORY).unwrap();
        w.walk().remove(b"b/z/deep", true).unwrap();
        assert_eq!(listed(&*removed), inode("b/z"));
    });
}

#[test]
fn mounts_are_bound_moved_and_made_the_root() {
    support::on_machines(1, 1, |_| {
        let w = World::new();
        for name in ["a", "b", "c"] {
            w.mkdir(name, 0o755).unwrap();
        }
        w.mount("a", "rw").unwrap();
        w.mkdir("a/x", 0o755).unwrap();
        w.mount("a/x", "rw").unwrap();
        w.mkdir("a/x/deep", 0o755).unwrap();

        // Bound alone, the mount below is not seen; with all, it is.
        let bind = |to: &str, all| {
            w.namespace
                .bind(&w.at(to).unwrap(), &w.at("a").unwrap(), all)
        };
        bind("b", false).unwrap();
        assert_eq!(w.at("b/x/deep").err(), Some(Errno::ENOENT));
        w.unmount("b", false).unwrap();
        bind("b", true).unwrap();
        assert_eq!(w.path(&w.at("b/x/deep").unwrap()), "/b/x/deep");
        assert!(w.at("b/x/deep/../../..").unwrap().same(&w.root));
        w.unmount("b", true).unwrap();
        assert_eq!(w.namespace.mounts(&w.root).len(), 3);

        // Moved, it takes along what is mounted on it, but not into itself.
        let held = w.at("a/x/deep").unwrap();
        let (a, x) = (w.at("a").unwrap(), w.at("a/x/deep").unwrap());
        assert_eq!(w.namespace.move_mount(&a, &x), Err(Errno::ELOOP));
        let c = w.at("c").unwrap();
        w.namespace.move_mount(&a, &c).unwrap();
        assert_eq!(w.path(&held), "/c/x/deep");
        assert_eq!(w.at("a/x").err(), Some(Errno::ENOENT));

        // And it becomes the root, the old one standing in it.
        w.mkdir("c/old", 0o755).unwrap();
        let (new, put) = (w.at("c").unwrap(), w.at("c/old").unwrap());
        let root = w.namespace.root();
        assert_eq!(w.namespace.pivot(&root, &put).err(), Some(Errno::EBUSY));
        let old = w.namespace.pivot(&new, &put).unwrap();
        assert!(w.namespace.root().same(&new));
        assert_eq!(held.path(&new), b"/x/deep");
        assert_eq!(old.path(&new), b"/old");
    });
}

#[test]
fn rules_keep_a_walk_where_it_may_be() {
    support::on_machines(1, 1, |_| {
        let w = World::new();
        for name in ["in", "in/side", "out"] {
            w.mkdir(name, 0o755).unwrap();
        }
        w.mkdir("in/mounted", 0o755).unwrap();
        w.mount("in/mounted", "rw").unwrap();
        let walk = w.walk();
        for (name, text) in [("in/up", "../out"), ("in/abs", "/out"), ("in/ok", "side")] {
            walk.make(name.as_bytes(), Make::Link(text.into()), 0o777)
                .unwrap();
        }
        let start = w.at("in").unwrap();
        let open = |path: &str, rules| {
            let walk = Walk {
                start: &start,
                ..w.walk()
            };
            walk.open_by_rules(path.as_bytes(), flags(0), 0, rules)
                .err()
        };
        for (path, rules, error) in [
            ("side", RESOLVE_BENEATH, None),
            ("ok", RESOLVE_BENEATH, None),
            ("side/..", RESOLVE_BENEATH, None),
            ("side/../..", RESOLVE_BENEATH, Some(Errno::EXDEV)),
            ("up", RESOLVE_BENEATH, Some(Errno::EXDEV)),
            ("abs", RESOLVE_BENEATH, Some(Errno::EXDEV)),
            ("/in", RESOLVE_BENEATH, Some(Errno::EXDEV)),
            ("/side", RESOLVE_IN_ROOT, None),
            ("../../side", RESOLVE_IN_ROOT, None),
            ("abs", RESOLVE_IN_ROOT, Some(Errno::ENOENT)),
            ("ok", RESOLVE_NO_SYMLINKS, Some(Errno::ELOOP)),
            ("side", RESOLVE_NO_SYMLINKS, None),
            ("ok", RESOLVE_NO_MAGICLINKS, None),
            ("mounted", RESOLVE_NO_XDEV, Some(Errno::EXDEV)),
            ("up", RESOLVE_NO_XDEV, None),
            ("mounted", 0, None),
        ] {
            assert_eq!(open(path, rules), error, "{path} by {rules:x}");
        }
    });
}

#[test]
fn synthetic_directories_answer() {
    support::on_machines(1, 1, |_| {
        let w = World::new();
        w.mkdir("proc", 0o555).unwrap();
        let value = Arc::new(AtomicU64::new(7));
        let (shown, stored) = (value.clone(), value.clone());
        let show = move |out: &mut pseudofs::Text| {
            writeln!(out, "{}", shown.fetch_add(1, Ordering::SeqCst));
            out.push_escaped(b"a b\n");
            Ok(())
        };
        let store = move |bytes: &[u8]| {
            stored.store(bytes.len() as u64, Ordering::SeqCst);
            Ok(())
        };
        let inner = Table::new().with("deep", Entry::text(|_| Ok(())).mode(0o400).owner(5, 6));
        let place = w.root.clone();
        let table = Table::new()
            .with("value", Entry::text(show).writable(store))
            .with("self", Entry::link(|| Ok(b"inner/deep".to_vec())))
            .with(
                "away",
                Entry::place(|| Ok(b"nowhere".to_vec()), move || Ok(place.clone())),
            )
            .otherwise(Table::new().with("inner", Entry::directory(inner)));
        let at = w.at("proc").unwrap();
        let root = pseudofs::root("proc", table);
        w.namespace
            .mount(&at, root, &MountRequest::plain("proc"))
            .unwrap();
        drop(at);

        let file = w.open("proc/value", O_RDWR).unwrap();
        let mut part = [0; 3];
        let mut read = |at| {
            let mut sink = BytesSink::new(&mut part);
            let n = file.read(at, flags(O_RDWR), &mut sink).unwrap();
            String::from_utf8(part[..n].to_vec()).unwrap()
        };
        // Generated at the start, kept while reading goes on, generated again from the start.
        assert_eq!(
            (read(None), read(None), read(None)),
            ("7\na".into(), "\\04".into(), "0b\\".into())
        );
        assert_eq!(read(Some(0)), "8\na");
        let n = file.write(None, flags(O_RDWR), &mut BytesSource::new(b"four"));
        assert_eq!((n, value.load(Ordering::SeqCst)), (Ok(4), 4));
        let deep = w.at("proc/self").unwrap();
        assert_eq!(w.path(&deep), "/proc/inner/deep");
        let attributes = deep.attributes().unwrap();
        assert_eq!(
            (attributes.mode, attributes.uid, attributes.gid),
            (0o400, 5, 6)
        );
        let again = w.at("proc/inner/deep").unwrap().attributes().unwrap();
        assert_eq!(attributes.inode, again.inode);
        assert!(w.at("proc/away").unwrap().same(&w.root));
        assert_eq!(
            w.open("proc/inner/deep", O_WRONLY).err(),
            Some(Errno::EACCES)
        );
        assert_eq!(w.open("proc/new", O_CREAT).err(), Some(Errno::EPERM));
        assert_eq!(w.at("proc/none").err(), Some(Errno::ENOENT));

        // Entry by entry, across both tables.
        let directory = w.open("proc", 0).unwrap();
        let mut names = Vec::new();
        loop {
            let mut room = 1;
            let before = names.len();
            let list = directory.list(&mut |name, _, _, _| {
                room -= 1;
                if room >= 0 {
                    names.push(String::from_utf8(name.to_vec()).unwrap());
                }
                room >= 0
            });
            assert_eq!(list, Ok(()));
            if names.len() == before {
                break;
            }
        }
        assert_eq!(names, [".", "..", "value", "self", "away", "inner"]);
    });
}

#[test]
fn who_goes_round_file_systems_keeps_none_busy() {
    support::on_machines(1, 1, |_| {
        let w = World::new();
        w.mkdir("a", 0o755).unwrap();
        w.mount("a", "rw").unwrap();
        let roots = w.namespace.roots();
        assert_eq!(roots.len(), 2);
        assert_eq!(w.unmount("a", false), Ok(()));
        w.mount("a", "rw").unwrap();
        let mounts = w.namespace.all();
        assert_eq!(w.unmount("a", false), Err(Errno::EBUSY));
        drop((roots, mounts));
        assert_eq!(w.unmount("a", false), Ok(()));
    });
}
