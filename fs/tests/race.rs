//! Several tasks change one tree at the same time: nothing is lost, locks are taken in order, and
//! everything comes back.

mod support;

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use abi::Errno;
use abi::raw::general::{O_APPEND, O_CREAT, O_RDWR, RENAME_EXCHANGE};
use fbuf::{Aggregate, AggregateSink, BytesSink, BytesSource, Source};
use fs::{
    Credentials, File, Kind, Namespace, OpenFlags, Vnode, Walk,
    ramfs::{self, Options},
    vnode::Make,
};
use nucleus::{
    Frame, PAGE_SIZE, ephemeral,
    task::{self, Sleep, Spawn, WaitQueue},
};
use support::Random;
use vm::Pager;

const FLAGS: OpenFlags = OpenFlags::from_bits_retain(O_RDWR | O_CREAT);

/// Runs `body` in `count` tasks and waits for all.
fn in_tasks(count: usize, body: impl Fn(usize) + Send + Sync + 'static) {
    let body = Arc::new(body);
    let left = Arc::new((AtomicUsize::new(count), WaitQueue::new()));
    for i in 0..count {
        let (body, left) = (body.clone(), left.clone());
        let spawn = Spawn {
            name: "racer",
            pmap: None,
            attachment: None,
            cpus: u64::MAX,
            priority: Default::default(),
        };
        let run = move || {
            body(i);
            drop(body);
            left.0.fetch_sub(1, Ordering::SeqCst);
            left.1.wake_all();
        };
        drop(task::spawn(spawn, Box::new(run)).unwrap());
    }
    let done = || (left.0.load(Ordering::SeqCst) == 0).then_some(());
    assert!(left.1.wait(Sleep::SOUND, done).is_ok());
}

fn with_walk<R>(namespace: &Namespace, f: impl FnOnce(&Walk<'_>) -> R) -> R {
    let root = namespace.root();
    let who = Credentials::default();
    f(&Walk {
        root: &root,
        start: &root,
        who: &who,
    })
}

fn path(random: &mut Random) -> Vec<u8> {
    let mut path = Vec::new();
    for _ in 0..1 + random.below(3) {
        path.extend_from_slice(b"/");
        match random.below(10) {
            0 => path.extend_from_slice(b".."),
            n => path.push(b'a' + (n % 3) as u8),
        }
    }
    path
}

fn change(random: &mut Random, walk: &Walk<'_>) -> Result<(), Errno> {
    let (a, b) = (path(random), path(random));
    match random.below(9) {
        0 | 1 => walk.make(&a, Make::Directory, 0o755).map(drop),
        2 => walk.open(&a, FLAGS, 0o644).and_then(|file| {
            let data = random.bytes(5000);
            file.write(None, FLAGS, &mut BytesSource::new(&data))
                .map(drop)
        }),
        3 => walk.remove(&a, random.below(2) == 0),
        4 | 5 => walk.rename(&a, walk, &b, 0),
        6 => walk.rename(&a, walk, &b, RENAME_EXCHANGE),
        7 => walk.link(&walk.resolve(&a, true)?, &b),
        _ => {
            let place = walk.resolve(&a, true)?;
            assert!(!place.path(walk.root).is_empty());
            match place.vnode().kind() {
                Kind::Directory => place.vnode().list(0, &mut |_, _, _, _| true),
                _ => Ok(()),
            }
        }
    }
}

/// What must hold of a tree at rest.
fn check(directory: &Arc<dyn Vnode>) {
    let mut names = Vec::new();
    directory
        .list(0, &mut |name, _, _, _| {
            names.push(name.to_vec());
            true
        })
        .unwrap();
    let attributes = directory.attributes().unwrap();
    assert_eq!(attributes.size, (names.len() as u64 + 2) * 20);
    let mut directories = 0;
    for name in names {
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
                let _ = with_walk(&shared, |walk| change(&mut random, walk));
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
            if directory.remove(b"d", true).is_err() {
                break;
            }
            up = directory.parent();
        }
        assert_eq!(namespace.root().vnode().remove(b"e", true), Ok(()));
        assert_eq!(at.lookup(b"d").err(), Some(Errno::ENOENT));
        assert_eq!(
            at.create(b"d", Make::Fifo, 0, &who).err(),
            Some(Errno::ENOENT)
        );
        drop(at);
    });
}

/// Bytes that somebody stores next to, through a mapping, while they are on their way.
struct BesideStore<'a> {
    pager: &'a dyn Pager,
    bytes: &'a [u8],
}

impl Source for BesideStore<'_> {
    fn left(&self) -> usize {
        self.bytes.len()
    }

    fn take_into(&mut self, frame: &Frame, offset: usize, len: usize) -> abi::Result<usize> {
        let (now, later) = self.bytes.split_at(len.min(self.bytes.len()));
        self.bytes = later;
        // What a fault asks for.
        self.pager.reserve(0).unwrap();
        ephemeral::map(frame).write(offset, now);
        Ok(now.len())
    }

    fn take_bytes(&mut self, _: &mut [u8]) -> abi::Result<usize> {
        unreachable!("pages are asked for")
    }
}

/// Who writes has a handle of the page, and is not one who keeps it.
#[test]
fn a_write_into_a_page_that_is_stored_into_meanwhile_is_not_lost() {
    support::on_machines(1, 1, |_| {
        let namespace = Namespace::new(ramfs::root(Options::default()), "rootfs");
        with_walk(&namespace, |walk| {
            let file = walk.open(b"/file", FLAGS, 0o644).unwrap();
            let vnode = file.location().unwrap().vnode().clone();
            let write = |source: &mut dyn Source| vnode.write(0, false, source).unwrap();
            write(&mut BytesSource::new(&[1; PAGE_SIZE]));
            // Passed on once, and kept by nobody now.
            let mut passed = Aggregate::new();
            let mut sink = AggregateSink::new(&mut passed, PAGE_SIZE);
            assert_eq!(vnode.read(0, &mut sink), Ok(PAGE_SIZE));
            drop(passed);
            let pager = file.pager().unwrap();
            write(&mut BesideStore {
                pager: &*pager,
                bytes: &[2; 100],
            });
            let mut found = [0; 200];
            assert_eq!(vnode.read(0, &mut BytesSink::new(&mut found)), Ok(200));
            assert_eq!(found[..100], [2; 100]);
            assert_eq!(found[100..], [1; 100]);
        });
    });
}
