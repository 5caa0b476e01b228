//! Several tasks change one tree at the same time: nothing is lost, locks are taken in order, and
//! everything comes back.

use std::sync::{
    Arc, Mutex, Weak,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use abi::{Errno, raw::general::O_APPEND};
use fbuf::{BytesSink, BytesSource};
use fs::{
    Credentials, File, Kind, MountRequest, Namespace, OpenFlags, Vnode,
    counters::Counter,
    ramfs::{self, Options},
    vnode::Make,
};
use nucleus::task;

use crate::support::{self, FLAGS, Random, change_tree, in_tasks, names, with_walk};

/// What must hold of a tree at rest.
fn check(directory: &Arc<dyn Vnode>) {
    let names = names(directory).unwrap();
    let attributes = directory.attributes().unwrap();
    assert_eq!(attributes.size, (names.len() as u64 + 2) * 20);
    let mut directories = 0;
    for (name, _) in names {
        let child = directory.lookup(&name).unwrap();
        assert!(child.attributes().unwrap().links > 0);
        if child.kind() == Kind::Directory {
            directories += 1;
            let parent = child.parent().unwrap();
            assert!(std::ptr::addr_eq(
                Arc::as_ptr(&parent),
                Arc::as_ptr(directory)
            ));
            assert_eq!(*child.place().unwrap().name, name[..]);
            check(&child);
        }
    }
    assert_eq!(attributes.links, 2 + directories);
}

#[test]
fn a_tree_stays_a_tree() {
    support::on_machines(12, 3, |seed| {
        let namespace = Namespace::new(ramfs::root(Options::default()), "rootfs");
        let shared = namespace.clone();
        in_tasks(4, move |i| {
            let mut random = Random::new(seed * 16 + i as u64);
            for _ in 0..150 {
                // Any error number will do: the others are at work.
                let _ = with_walk(&shared, |walk| change_tree(&mut random, walk));
            }
        });
        check(namespace.root().vnode());
    });
}

#[test]
fn writers_that_share_a_file_do_not_overwrite_each_other() {
    support::on_machines(8, 4, |_| {
        let namespace = Namespace::new(ramfs::root(Options::default()), "rootfs");
        let open = || with_walk(&namespace, |walk| walk.open(b"f", FLAGS, 0o644)).unwrap();
        let (one, other) = (open(), open());
        let append = FLAGS | OpenFlags::from_bits_retain(O_APPEND);
        let (file, appending) = (one.clone(), other.clone());
        // Two at the position of one open file while nothing else writes, then all by appending.
        in_tasks(2, move |i| write_records(&*file, FLAGS, i as u8));
        in_tasks(4, move |i| write_records(&*appending, append, i as u8));
        let mut bytes = vec![0; 6 * RECORDS * RECORD + 1];
        let n = one.read(Some(0), FLAGS, &mut BytesSink::new(&mut bytes));
        assert_eq!(n, Ok(bytes.len() - 1));
        for record in bytes[..bytes.len() - 1].chunks(RECORD) {
            assert!(record.iter().all(|&b| b == record[0]), "records are mixed");
        }
    });
}

const RECORD: usize = 3000;
const RECORDS: usize = 6;

fn write_records(file: &dyn File, flags: OpenFlags, mark: u8) {
    for _ in 0..RECORDS {
        let record = [mark + 1; RECORD];
        let n = file.write(None, flags, &mut BytesSource::new(&record));
        assert_eq!(n, Ok(RECORD));
    }
}

#[test]
fn a_listing_shows_what_is_there_all_the_time_once() {
    support::on_machines(8, 2, |seed| {
        let namespace = Namespace::new(ramfs::root(Options::default()), "rootfs");
        for i in 0..60 {
            let name = format!("stays{i}");
            with_walk(&namespace, |walk| {
                walk.make(name.as_bytes(), Make::Fifo, 0o644).unwrap();
            });
        }
        let listed = Arc::new(AtomicBool::new(false));
        let shared = namespace.clone();
        in_tasks(2, move |i| {
            let mut random = Random::new(seed);
            if i == 0 {
                while !listed.load(Ordering::SeqCst) {
                    let name = format!("comes{}", random.below(30));
                    with_walk(&shared, |walk| {
                        if walk.make(name.as_bytes(), Make::Socket, 0o644).is_err() {
                            walk.remove(name.as_bytes(), false).unwrap();
                        }
                    });
                }
                return;
            }
            let file = with_walk(&shared, |walk| {
                walk.open(b"/", OpenFlags::default(), 0).unwrap()
            });
            let mut seen = Vec::new();
            loop {
                // A few at a time, as `getdents` with a small buffer.
                let (mut room, before) = (1 + random.below(7), seen.len());
                file.list(&mut |name, _, _, _| {
                    room = room.saturating_sub(1);
                    if room > 0 && !name.starts_with(b"comes") {
                        seen.push(name.to_vec());
                    }
                    room > 0
                })
                .unwrap();
                task::yield_now();
                if room > 0 && before == seen.len() {
                    break;
                }
            }
            listed.store(true, Ordering::SeqCst);
            assert_eq!(seen.len(), 62, "with . and ..");
            seen.sort();
            seen.dedup();
            assert_eq!(seen.len(), 62);
        });
    });
}

/// A file that loses its names in several directories at the same time keeps the last one, though
/// the directories are removed, too.
#[test]
fn a_file_that_loses_its_names_at_once_keeps_the_last() {
    support::on_machines(40, 3, |_| {
        let namespace = Namespace::new(ramfs::root(Options::default()), "rootfs");
        let file = with_walk(&namespace, |walk| {
            for path in [b"/a", b"/b"] {
                walk.make(path, Make::Directory, 0o755).unwrap();
            }
            let place = walk.make(b"/a/f", Make::Fifo, 0o644).unwrap();
            walk.link(&place, b"/b/g").unwrap();
            place.vnode().clone()
        });
        let shared = namespace.clone();
        in_tasks(2, move |i| {
            with_walk(&shared, |walk| {
                let path: &[u8] = [b"/a/f", b"/b/g"][i];
                walk.remove(path, false).unwrap();
                walk.remove(&path[..2], true).unwrap();
            });
        });
        assert_eq!(file.attributes().unwrap().links, 0);
        assert!(file.place().is_some_and(|place| place.removed));
    });
}

/// Walks that borrow what they pass, while that is removed, renamed, linked, mounted over and
/// unmounted: each finds a file or a directory, or nothing, and nothing is kept.
#[test]
fn walks_go_on_while_their_way_changes() {
    const PATHS: [&[u8]; 6] = [
        b"/a/b/f",
        b"/a/c/f",
        b"/a/b/g",
        b"/z/b/f",
        b"/a/b",
        b"/a/./c/g",
    ];
    static WALKED: AtomicU64 = AtomicU64::new(0);
    static BY_REFERENCE: AtomicU64 = AtomicU64::new(0);
    support::on_machines(24, 6, |seed| {
        let namespace = Namespace::new(ramfs::root(Options::default()), "rootfs");
        let free_files = |root: &Arc<dyn Vnode>| root.space().free_files;
        let at_first = free_files(namespace.root().vnode());
        let ended = Arc::new(AtomicBool::new(false));
        let covers = Arc::new(Mutex::new(Vec::new()));
        let shared = (namespace.clone(), ended.clone(), covers.clone());
        in_tasks(4, move |i| {
            let (namespace, ended, covers) = &shared;
            let mut random = Random::new(seed * 16 + i as u64);
            if i == 0 {
                with_walk(namespace, |walk| {
                    for path in [b"/a".as_slice(), b"/a/b"] {
                        walk.make(path, Make::Directory, 0o755).unwrap();
                    }
                });
                for _ in 0..60 {
                    change_the_way(&mut random, namespace, covers);
                    // Others look meanwhile, and directories become biased.
                    (0..random.below(4)).for_each(|_| task::yield_now());
                }
                ended.store(true, Ordering::SeqCst);
            }
            while !ended.load(Ordering::SeqCst) {
                let path = PATHS[random.below(PATHS.len())];
                let names = path.iter().filter(|&&byte| byte == b'/').count();
                WALKED.fetch_add(2 * names as u64, Ordering::Relaxed);
                let found = with_walk(namespace, |walk| {
                    let place = walk.resolve(path, true);
                    let shown = place.and_then(|place| {
                        place.path(walk.root);
                        place.attributes()
                    });
                    [shown, walk.attributes(path, true)]
                });
                for found in found {
                    let kind = found.map(|it| it.kind);
                    let is_file = matches!(path.last(), Some(b'f' | b'g'));
                    let expected = [Kind::Directory, Kind::Regular][usize::from(is_file)];
                    assert!(
                        kind == Ok(expected) || kind == Err(Errno::ENOENT),
                        "{kind:?}"
                    );
                }
                task::yield_now();
            }
        });
        while let Ok(place) = with_walk(&namespace, |walk| walk.resolve(b"/a/b", true))
            && place.is_mount_root()
        {
            namespace.unmount(&place, false).unwrap();
        }
        assert!(
            covers
                .lock()
                .unwrap()
                .iter()
                .all(|it| it.strong_count() == 0)
        );
        with_walk(&namespace, |walk| {
            for path in [b"/a/b/f".as_slice(), b"/a/b/g"] {
                let _ = walk.remove(path, false);
            }
            for path in [b"/a/b".as_slice(), b"/a"] {
                walk.remove(path, true).unwrap();
            }
        });
        assert_eq!(free_files(namespace.root().vnode()), at_first);
        let by_reference = Counter::path_lookups_by_reference.total();
        BY_REFERENCE.fetch_add(by_reference, Ordering::Relaxed);
    });
    // Without sections each name would be looked up by reference.
    let [walked, by_reference] = [&WALKED, &BY_REFERENCE].map(|it| it.load(Ordering::Relaxed));
    assert!(
        by_reference < walked / 4 * 3,
        "{by_reference} of {walked} names outside of sections"
    );
}

/// Does something to `/a`, `/a/b` or a file there, and undoes it where it is about a directory.
fn change_the_way(
    random: &mut Random,
    namespace: &Namespace,
    covers: &Mutex<Vec<Weak<dyn Vnode>>>,
) {
    with_walk(namespace, |walk| {
        let rename = |from: &[u8], to: &[u8]| walk.rename(from, walk, to, 0);
        match random.below(6) {
            0 => {
                rename(b"/a/b", b"/a/c").unwrap();
                task::yield_now();
                rename(b"/a/c", b"/a/b").unwrap();
            }
            1 => {
                rename(b"/a", b"/z").unwrap();
                task::yield_now();
                rename(b"/z", b"/a").unwrap();
            }
            2 => _ = walk.open(b"/a/b/f", FLAGS, 0o644).unwrap(),
            // There may be none.
            3 => {
                _ = walk
                    .remove(b"/a/b/f", false)
                    .and_then(|()| rename(b"/a/b/g", b"/a/b/f"))
            }
            4 => {
                let link = walk.resolve(b"/a/b/f", true);
                _ = link.and_then(|place| walk.link(&place, b"/a/b/g"));
            }
            _ => {
                let root = ramfs::root(Options::default());
                covers.lock().unwrap().push(Arc::downgrade(&root));
                let at = walk.resolve(b"/a/b", true).unwrap();
                namespace
                    .mount(&at, root, &MountRequest::plain("ramfs"))
                    .unwrap();
                drop(at);
                let _ = walk.open(b"/a/b/f", FLAGS, 0o644).unwrap();
                task::yield_now();
                let at = walk.resolve(b"/a/b", true).unwrap();
                let unmounted = namespace.unmount(&at, false);
                if unmounted == Err(Errno::EBUSY) {
                    namespace.unmount(&at, true).unwrap();
                }
            }
        }
    });
}

#[test]
fn deep_trees_go_without_recursion() {
    support::on_machines(1, 1, |_| {
        let options = Options {
            nodes: Some(20_000),
            ..Options::default()
        };
        let namespace = Namespace::new(ramfs::root(options), "rootfs");
        let who = Credentials::default();
        let make = |at: &Arc<dyn Vnode>| at.create(b"d", Make::Directory, 0o755, &who).unwrap();
        // One that is dropped from above with the file system, one from below after its names went.
        let mut at = make(namespace.root().vnode());
        for _ in 0..5000 {
            at = make(&at);
        }
        drop(at);
        let mut at = namespace
            .root()
            .vnode()
            .create(b"e", Make::Directory, 0o755, &who)
            .unwrap();
        for _ in 0..5000 {
            at = make(&at);
        }
        let mut up = at.parent();
        while let Some(directory) = up {
            let Ok(child) = directory.lookup(b"d") else {
                break;
            };
            if directory.remove(b"d", &*child, true).is_err() {
                break;
            }
            up = directory.parent();
        }
        let root = namespace.root();
        let last = root.vnode().lookup(b"e").unwrap();
        // Not the vnode of another name.
        let other = root.vnode().remove(b"e", &*at, true);
        assert_eq!(other, Err(Errno::ESTALE));
        assert_eq!(root.vnode().remove(b"e", &*last, true), Ok(()));
        assert_eq!(at.lookup(b"d").err(), Some(Errno::ENOENT));
        assert_eq!(
            at.create(b"d", Make::Fifo, 0, &who).err(),
            Some(Errno::ENOENT)
        );
        drop(at);
    });
}
