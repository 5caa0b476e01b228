//! Several tasks in one file system.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use abi::Result;
use fbuf::{Aggregate, AggregateSink, BytesSink, BytesSource, Source, UserBuffers};
use nucleus::{Frame, PAGE_SIZE, Prot, task};
use vm::MapRequest;

use super::{Mounted, files::pages, on_machines};
use crate::{
    page_cache::Cached,
    support::{
        Tasks, find_address_spaces,
        image::{FIRST, SMALL, Shape},
        in_space, pause,
    },
    vnode::Directory,
};

const SHAPE: Shape = Shape {
    inode: 128,
    files: 4,
    ..SMALL
};

/// Fills all free space with bytes that are invalid pointers, and frees it again.
fn soil(mounted: &Mounted) {
    let (fs, file) = (&mounted.fs, mounted.open(3));
    let content = pages(&file);
    let data = vec![0xff; 8192];
    while let Ok((n, _)) = content.write(0, true, &mut BytesSource::new(&data)) {
        if n < data.len() {
            break;
        }
    }
    content.sync(0..u64::MAX, false).unwrap();
    content.truncate(0).unwrap();
    drop(file);
    fs.sync_all().unwrap();
    assert!(fs.space().free > 2000);
}

/// An indirect block is on the medium before anything there refers to it, even if it is allocated
/// while others are being written.
#[test]
fn nothing_on_the_medium_leads_to_pointers_that_are_not_there() {
    /// Blocks covered by one pointer of a double indirect block.
    const STEP: u32 = 256;
    const STEPS: u32 = 60;
    on_machines(8, |seed| {
        let mounted = Mounted::of(SHAPE, seed);
        let (fs, disk) = (mounted.fs.clone(), mounted.disk.clone());
        soil(&mounted);
        disk.set_delays(true);
        let tasks = Arc::new(Tasks::default());
        let writing = fs.clone();
        tasks.begin(move || {
            let file = writing.inode(FIRST).unwrap();
            for step in 0..STEPS {
                let at = (12 + STEP + step * STEP) as u64 * 1024;
                let written = pages(&file).write(at, false, &mut BytesSource::new(b"there"));
                written.unwrap();
            }
        });
        while tasks.are_running() {
            fs.commit().unwrap();
            mounted.after_power_cut(|left| {
                let file = left.inode(FIRST).unwrap();
                for step in 0..STEPS {
                    let at = 12 + STEP + step * STEP;
                    let found = left.locate(&file.record(), at, STEP);
                    assert!(found.is_ok(), "a block of pointers is something else");
                }
            });
        }
        tasks.wait();
        mounted.finish();
    });
}

/// While there is room for all, no allocation fails, even if other tasks are searching or about to
/// free blocks.
#[test]
fn no_task_is_refused_room_that_is_there() {
    const TASKS: u32 = 3;
    on_machines(8, |seed| {
        let shape = Shape { kib: 700, ..SHAPE };
        let mounted = Mounted::of(shape, seed);
        let (fs, disk) = (mounted.fs.clone(), mounted.disk.clone());
        disk.set_delays(seed % 2 == 0);
        // Including indirect blocks: one for each 256.
        let each = fs.space().free / (TASKS as u64 + 1) - 4;
        let tasks = Arc::new(Tasks::default());
        for number in 0..TASKS {
            let fs = fs.clone();
            tasks.begin(move || {
                let file = fs.inode(FIRST + number).unwrap();
                let data = vec![number as u8; each as usize * 1024];
                for round in 0..4 {
                    let written = pages(&file).write(0, false, &mut BytesSource::new(&data));
                    assert_eq!(written, Ok((data.len(), data.len() as u64)));
                    if round % 2 == 0 {
                        pages(&file).sync(0..u64::MAX, false).unwrap();
                    }
                    pages(&file).truncate(0).unwrap();
                }
            });
        }
        tasks.wait();
        mounted.finish();
    });
}

/// `sync` writes what was changed before it; it does not wait for concurrent changes.
#[test]
fn a_sync_ends_though_others_go_on() {
    const MOST: u32 = 20_000;
    on_machines(3, |seed| {
        let mounted = Mounted::of(SHAPE, seed);
        let (fs, disk) = (mounted.fs.clone(), mounted.disk.clone());
        disk.set_delays(true);
        let tasks = Arc::new(Tasks::default());
        let synced = Arc::new(AtomicBool::new(false));
        let (busy, over) = (fs.clone(), synced.clone());
        tasks.begin(move || {
            let file = busy.inode(FIRST).unwrap();
            let mut times = 0;
            while !over.load(Ordering::Relaxed) && times < MOST {
                pages(&file)
                    .write(0, false, &mut BytesSource::new(b"again"))
                    .unwrap();
                pages(&file).truncate(0).unwrap();
                times += 1;
            }
            assert!(times < MOST, "the sync does not end");
        });
        for _ in 0..3 {
            task::yield_now();
            fs.sync_all().unwrap();
        }
        synced.store(true, Ordering::Relaxed);
        tasks.wait();
        mounted.finish();
    });
}

/// An allocation without room waits for removed files to be freed, which happens even if another
/// task waits for all changes to end.
#[test]
fn removed_files_end_while_a_remount_waits() {
    on_machines(3, |seed| {
        let shape = Shape { kib: 300, ..SHAPE };
        let mounted = Mounted::of(shape, seed);
        let fs = mounted.fs.clone();
        let old = fs.inode(FIRST).unwrap();
        let data = vec![1; 200 * 1024];
        let written = pages(&old).write(0, false, &mut BytesSource::new(&data));
        assert!(written.is_ok());
        fs.sync_all().unwrap();
        let root = fs.root().unwrap();
        let first = root.lookup(b"f0").unwrap();
        root.remove(b"f0", &*first, false).unwrap();
        drop(first);
        let tasks = Arc::new(Tasks::default());
        let begun = Arc::new(AtomicBool::new(false));
        let (writing, changes) = (fs.clone(), begun.clone());
        tasks.begin(move || {
            let file = writing.inode(FIRST + 1).unwrap();
            let data: Vec<u8> = vec![2; 180 * 1024];
            let _change = writing.begin_change().unwrap();
            changes.store(true, Ordering::SeqCst);
            // Until the other task waits for this change to end.
            pause(Duration::from_millis(50));
            drop(old);
            // There is room once the removed file has been freed.
            let written = pages(&file).write(0, false, &mut BytesSource::new(&data));
            assert_eq!(written, Ok((data.len(), data.len() as u64)));
        });
        while !begun.load(Ordering::SeqCst) {
            task::yield_now();
        }
        fs.reconfigure(b"", true).unwrap();
        tasks.wait();
        drop(root);
        mounted.finish();
    });
}

/// Bytes that are there once `wait` has returned.
struct Late<'a> {
    bytes: BytesSource<'a>,
    wait: &'a dyn Fn(),
}

impl Source for Late<'_> {
    fn left(&self) -> usize {
        self.bytes.left()
    }

    fn take_into(&mut self, frame: &Frame, offset: usize, len: usize) -> Result<usize> {
        (self.wait)();
        self.bytes.take_into(frame, offset, len)
    }

    fn take_bytes(&mut self, to: &mut [u8]) -> Result<usize> {
        (self.wait)();
        self.bytes.take_bytes(to)
    }
}

/// Writes inside a file wait for those to the same pages only, and those that make it longer, and
/// readers that keep pages, for all.
#[test]
fn writes_of_different_pages_go_on_together() {
    const PAGE: u64 = PAGE_SIZE as u64;
    on_machines(8, |seed| {
        let mounted = Mounted::of(SHAPE, seed);
        let file = mounted.open(0);
        let write = |at, bytes: &[u8]| {
            let written = pages(&file).write(at, false, &mut BytesSource::new(bytes));
            assert_eq!(written, Ok((bytes.len(), at + bytes.len() as u64)));
        };
        write(0, &[5; 4 * PAGE_SIZE]);
        let (tasks, step) = (Arc::new(Tasks::default()), Arc::new(AtomicUsize::new(0)));
        let (writing, at) = (file.clone(), step.clone());
        tasks.begin(move || {
            let wait = || {
                at.store(1, Ordering::SeqCst);
                let is_written = (0..200_000).any(|_| {
                    task::yield_now();
                    at.load(Ordering::SeqCst) == 2
                });
                assert!(is_written, "a writer waits for one of another page");
                (0..200).for_each(|_| task::yield_now());
                assert_eq!(at.load(Ordering::SeqCst), 2, "others were in the same page");
            };
            let mut late = Late {
                bytes: BytesSource::new(&[6; PAGE_SIZE]),
                wait: &wait,
            };
            let written = pages(&writing).write(PAGE, false, &mut late);
            assert_eq!(written, Ok((PAGE_SIZE, 2 * PAGE)));
        });
        while step.load(Ordering::SeqCst) == 0 {
            task::yield_now();
        }
        write(2 * PAGE, &[7; PAGE_SIZE]);
        step.store(2, Ordering::SeqCst);
        match seed % 3 {
            0 => write(PAGE + 100, &[8; 2 * PAGE_SIZE]),
            1 => write(4 * PAGE, &[8; 100]),
            _ => {
                let mut kept = Aggregate::default();
                let mut sink = AggregateSink::new(&mut kept, 4 * PAGE_SIZE);
                assert_eq!(pages(&file).read(0, &mut sink), Ok(4 * PAGE_SIZE));
            }
        }
        step.store(3, Ordering::SeqCst);
        while tasks.are_running() {
            task::yield_now();
        }
        let mut bytes = vec![0; 4 * PAGE_SIZE];
        let read = pages(&file).read(0, &mut BytesSink::new(&mut bytes));
        assert_eq!(read, Ok(bytes.len()));
        let mut wanted = [
            [5; PAGE_SIZE],
            [6; PAGE_SIZE],
            [7; PAGE_SIZE],
            [5; PAGE_SIZE],
        ]
        .concat();
        if seed % 3 == 0 {
            wanted[PAGE_SIZE + 100..][..2 * PAGE_SIZE].fill(8);
        }
        assert!(bytes == wanted, "a write was lost, or mixed with another");
        drop(file);
        mounted.finish();
    });
}

/// Readers that could take pages without a copy wait neither for a writer, which may sleep for
/// long, nor for others that lend pages or go past them.
#[test]
fn reads_from_memory_wait_for_no_writer_and_no_other_reader() {
    const LEN: usize = 16 * PAGE_SIZE;
    on_machines(4, |seed| {
        find_address_spaces();
        let mounted = Mounted::of(SHAPE, seed);
        let file = mounted.open(0);
        let written = pages(&file).write(0, false, &mut BytesSource::new(&[5; LEN]));
        assert_eq!(written, Ok((LEN, LEN as u64)));
        let (shared, step) = (file.clone(), Arc::new(AtomicUsize::new(0)));
        in_space(2, move |map, task| {
            let pages = pages(&shared);
            let reaches = |wanted| {
                (0..200_000).any(|_| {
                    task::yield_now();
                    step.load(Ordering::SeqCst) >= wanted
                })
            };
            let reach = |now| step.store(now, Ordering::SeqCst);
            if task == 0 {
                let writer = pages.writers.write();
                reach(1);
                let is_read = reaches(2);
                drop(writer);
                assert!(is_read, "a reader waits for a writer");
                let lender = pages.writers.read();
                reach(3);
                let is_read = reaches(4);
                drop(lender);
                assert!(is_read, "a reader that keeps pages waits for another");
            } else {
                let rights = Prot::READ | Prot::WRITE;
                let buffer = map.map(MapRequest::zero(LEN, rights)).unwrap();
                let mut memory = UserBuffers::new(buffer, LEN).unwrap();
                assert!(reaches(1));
                assert_eq!(pages.read(0, &mut memory), Ok(LEN));
                reach(2);
                assert!(reaches(3));
                let mut kept = Aggregate::default();
                let mut sink = AggregateSink::new(&mut kept, LEN);
                assert_eq!(pages.read(0, &mut sink), Ok(LEN));
                reach(4);
            }
        });
        drop(file);
        mounted.finish();
    });
}
