//! What happens to a page that another task is in the middle of using.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
};

use abi::Result;
use fbuf::{Aggregate, AggregateSink, BytesSink, BytesSource, Sink, Source};
use fs::page_cache::Cached;
use nucleus::{Frame, PAGE_SIZE, task, user};
use vm::{Lookup, Object, Pager, PagerError};

use crate::{
    disk::{self, read, write},
    in_space, on_machines, stores,
    support::FLAGS,
    with_window,
};

const PAGE: u64 = PAGE_SIZE as u64;

/// Passes the first page of a file on, to a reader that keeps it.
fn pass_on(read: impl FnOnce(&mut dyn Sink) -> Result<usize>) -> Aggregate {
    let mut passed = Aggregate::new();
    let read = read(&mut AggregateSink::new(&mut passed, PAGE_SIZE));
    assert_eq!(read, Ok(PAGE_SIZE));
    passed
}

/// Bytes next to which a mapping stores while they are on their way.
struct BesideStore<'a> {
    pager: &'a dyn Pager,
    bytes: &'a [u8],
}

impl Source for BesideStore<'_> {
    fn left(&self) -> usize {
        self.bytes.len()
    }

    fn take_into(&mut self, frame: &Frame, offset: usize, len: usize) -> Result<usize> {
        let (now, later) = self.bytes.split_at(len.min(self.bytes.len()));
        self.bytes = later;
        // As a fault does.
        self.pager.reserve(0).unwrap();
        nucleus::ephemeral::map(frame).write(offset, now);
        Ok(now.len())
    }

    fn take_bytes(&mut self, _: &mut [u8]) -> Result<usize> {
        unreachable!("pages are asked for")
    }
}

/// A writer has a handle of the page, and is not one that keeps it.
#[test]
fn a_write_into_a_page_that_is_stored_into_meanwhile_is_not_lost() {
    on_machines(1, 1, 1024, |seed| {
        stores::on_each(4, seed, |open| {
            let file = open();
            let write = |at, source: &mut dyn Source| file.write(Some(at), FLAGS, source);
            assert_eq!(
                write(0, &mut BytesSource::new(&[1; PAGE_SIZE])),
                Ok(PAGE_SIZE)
            );
            // Passed on once, and no longer kept.
            drop(pass_on(|sink| file.read(Some(0), FLAGS, sink)));
            let pager = file.pager().unwrap();
            let mut source = BesideStore {
                pager: &*pager,
                bytes: &[2; 100],
            };
            assert_eq!(write(50, &mut source), Ok(100));
            let mut found = [0; PAGE_SIZE];
            let read = file.read(Some(0), FLAGS, &mut BytesSink::new(&mut found));
            assert_eq!(read, Ok(PAGE_SIZE));
            assert_eq!(found[50..150], [2; 100]);
            assert!(found[150..].iter().all(|&byte| byte == 1));
        });
    });
}

/// A page that others keep is copied for the mappings that store into it: once, however many do.
#[test]
fn stores_into_a_page_that_was_passed_on_are_not_lost() {
    on_machines(8, 3, 1024, |seed| {
        let (_disk, inode) = disk::inode(4, seed);
        let file = disk::open(&inode);
        write(&file, 0, &[0; PAGE_SIZE]);
        for round in 1..60 {
            let kept = pass_on(|sink| file.read(0, sink));
            let also_kept = kept.clone();
            let inner = file.clone();
            in_space(3, move |map, task| {
                with_window(map, inner.clone(), 1, |window| {
                    user::copy_out(window + task * 1000, &[round; 1000]).unwrap();
                });
            });
            let found = read(&file, 0, 3000);
            assert!(found.iter().all(|&byte| byte == round), "round {round}");
            let mut before = [0; 3000];
            kept.peek(0, &mut before);
            assert!(before.iter().all(|&byte| byte == round - 1));
            drop((kept, also_kept));
        }
        drop(file);
    });
}

/// A part of a request to write is under way, and the rest was refused memory: that rest is dirty
/// again only when all has ended.
#[test]
fn a_page_whose_write_is_refused_does_not_leave_memory() {
    on_machines(4, 2, 1024, |seed| {
        let (disk, inode) = disk::inode(16, seed);
        disk.set_delays(true);
        let file = disk::open(&inode);
        let bytes: Vec<u8> = (0..16 * PAGE_SIZE).map(|at| (at / 999) as u8).collect();
        write(&file, 0, &bytes);
        inode.halves.store(1, SeqCst);
        file.write_out(0..u64::MAX, false).unwrap();
        file.give_up(0..u64::MAX, usize::MAX);
        file.wait_written(0..u64::MAX);
        assert_eq!(inode.halves.load(SeqCst), 0);
        assert_eq!(
            file.counts().dirty,
            16,
            "all of the request is written again"
        );
        file.sync(0..u64::MAX, false).unwrap();
        assert!(read(&file, 0, bytes.len()) == bytes);
        drop(file);
        assert!(disk.content() == bytes);
    });
}

/// What is read while a hole is made is not what is there afterwards.
#[test]
fn a_hole_is_one_for_a_reader_while_it_is_made() {
    on_machines(4, 2, 1024, |seed| {
        let (disk, inode) = disk::inode(8, seed);
        let file = disk::open(&inode);
        write(&file, 0, &[7; 8 * PAGE_SIZE]);
        file.sync(0..u64::MAX, false).unwrap();
        disk.set_delays(true);
        let reader = file.clone();
        *inode.before_release.lock() = Some(Box::new(move || {
            // One is there, others are on their way.
            assert_eq!(read(&reader, 2 * PAGE, 1), [7]);
            reader.prefetch(3..6);
        }));
        file.punch(2 * PAGE, 6 * PAGE).unwrap();
        let found = read(&file, 0, 8 * PAGE_SIZE);
        let expected = [
            vec![7; 2 * PAGE_SIZE],
            vec![0; 4 * PAGE_SIZE],
            vec![7; 2 * PAGE_SIZE],
        ];
        assert!(found == expected.concat());
        drop(file);
    });
}

/// The pages of a file, of which one is punched when a store into it is about to be let through,
/// and read again.
struct Punched {
    file: Arc<disk::Pages>,
    asks: AtomicBool,
    goes_on: Arc<AtomicBool>,
}

impl Pager for Punched {
    fn object(&self) -> &Object {
        self.file.object()
    }

    fn lookup(&self, index: u64) -> core::result::Result<Lookup, PagerError> {
        self.file.lookup(index)
    }

    fn page_in(&self, index: u64, window: Range<u64>) -> core::result::Result<(), PagerError> {
        self.file.page_in(index, window)
    }

    fn reference(&self, writable: bool) {
        self.file.reference(writable);
    }

    fn detach(&self, writable: bool) {
        self.file.detach(writable);
    }

    fn reserve(&self, index: u64) -> core::result::Result<(), PagerError> {
        let reserved = self.file.reserve(index);
        while !self.goes_on.load(SeqCst) {
            task::yield_now();
        }
        reserved
    }

    fn mark_dirty(&self, index: u64, entering: Option<&Frame>) -> bool {
        // The first fault has to reserve the page, and finds it punched after that.
        self.asks.swap(true, SeqCst) && self.file.mark_dirty(index, entering)
    }
}

/// A store that comes while a hole is made is not lost: it gives the page a block, or was before
/// the hole.
#[test]
fn a_store_into_a_page_that_becomes_a_hole_is_not_lost() {
    on_machines(2, 2, 1024, |seed| {
        let (disk, inode) = disk::inode(4, seed);
        let file = disk::open(&inode);
        write(&file, 0, &[1; 2 * PAGE_SIZE]);
        file.sync(0..u64::MAX, false).unwrap();
        let goes_on = Arc::new(AtomicBool::new(false));
        let pager = Arc::new(Punched {
            file: file.clone(),
            asks: AtomicBool::new(false),
            goes_on: goes_on.clone(),
        });
        let inner = file.clone();
        in_space(2, move |map, task| {
            if task == 0 {
                with_window(map, pager.clone(), 1, |window| {
                    user::copy_out(window + 10, &[2; 10]).unwrap();
                });
                return;
            }
            while !pager.asks.load(SeqCst) {
                task::yield_now();
            }
            inner.punch(0, PAGE).unwrap();
            assert_eq!(read(&inner, 0, 1), [0]);
            goes_on.store(true, SeqCst);
        });
        file.sync(0..u64::MAX, false).unwrap();
        drop(file);
        let found = read(&disk::open(&inode), 0, 20);
        assert_eq!(found, [[0; 10], [2; 10]].concat());
        drop(disk);
    });
}

/// The number of a file's pages is never less than what can be seen of them.
#[test]
fn pages_are_counted_when_they_can_be_seen() {
    static SEEN: AtomicUsize = AtomicUsize::new(0);
    on_machines(8, 3, 1024, |seed| {
        let (_disk, inode) = disk::inode(32, seed);
        let file = disk::open(&inode);
        write(&file, 0, &[1; 32 * PAGE_SIZE]);
        file.sync(0..u64::MAX, false).unwrap();
        file.give_up(0..u64::MAX, usize::MAX);
        let inner = file.clone();
        in_space(3, move |_, task| {
            for _ in 0..40 {
                match task {
                    0 => inner.prefetch(0..32),
                    _ => SEEN.store(inner.give_up(0..u64::MAX, usize::MAX), SeqCst),
                }
                let count = inner.counts().resident;
                assert!(count <= 32, "{count} pages");
                task::yield_now();
            }
        });
        drop(file);
    });
}
