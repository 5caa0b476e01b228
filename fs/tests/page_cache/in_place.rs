//! Files that are used where they lie on a memory disk (`dax`): there is one copy of each byte.

use std::sync::Arc;

use abi::{
    Errno, Result,
    raw::general::{FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE},
};
use fbuf::{Aggregate, AggregateSink, BytesSink, BytesSource, Sink, Source};
use fs::{File, block::Disk, block::MemoryDisk};
use nucleus::{Access, Frame, PAGE_SIZE, VirtRange, ephemeral, user};
use vm::{Advice, Map};

use crate::{
    in_space, map_file, on_machines, stores,
    support::{FLAGS, fault},
};

const PAGES: usize = 12;

/// How many pages of the disk begin with this byte, eight times.
fn count(disk: &MemoryDisk, byte: u8) -> usize {
    let pages = (0..).map_while(|number| disk.page(number));
    let begins = |page: &Frame| {
        let mut bytes = [0; 8];
        ephemeral::map(page).read(0, &mut bytes);
        bytes == [byte; 8]
    };
    pages.filter(begins).count()
}

fn write(file: &dyn File, page: usize, byte: u8) {
    let at = Some((page * PAGE_SIZE) as u64);
    let wrote = file.write(at, FLAGS, &mut BytesSource::new(&[byte; PAGE_SIZE]));
    assert_eq!(wrote, Ok(PAGE_SIZE));
}

fn read(file: &dyn File, page: usize) -> Vec<u8> {
    let mut bytes = vec![0; PAGE_SIZE];
    let at = Some((page * PAGE_SIZE) as u64);
    let n = file
        .read(at, FLAGS, &mut BytesSink::new(&mut bytes))
        .unwrap();
    bytes.truncate(n);
    bytes
}

fn with_file(body: fn(&Arc<Map>, Arc<dyn File>, &Arc<MemoryDisk>)) {
    on_machines(4, 2, 1024, move |_| {
        stores::on_medium(
            |open, disk| {
                let (file, disk) = (open(), disk.clone());
                in_space(1, move |map, _| body(map, file.clone(), &disk));
            },
            |()| (),
        );
    });
}

#[test]
fn writes_and_stores_are_on_the_medium_at_once() {
    with_file(|map, file, disk| {
        let frames = nucleus::frame::usage().data;
        for page in 0..PAGES {
            write(&*file, page, 0x91);
        }
        assert_eq!(count(disk, 0x91), PAGES);
        let now = nucleus::frame::usage().data;
        assert!(
            now < frames + PAGES,
            "{now} frames, {frames} before: copies"
        );
        let at = map_file(map, file.pager().unwrap(), PAGES * PAGE_SIZE, true);
        for page in 0..PAGES {
            user::write(at + page * PAGE_SIZE, &[0x92u8; 8]).unwrap();
            assert_eq!(count(disk, 0x92), page + 1);
        }
        assert_eq!(count(disk, 0x91), 0);
        // What the medium gets by another way shows in mapping and file.
        let pages = (0..).map_while(|number| disk.page(number));
        for page in pages.filter(|page| page.mappings() > 0) {
            ephemeral::map(&page).write(0, &[0x93; 8]);
        }
        for page in 0..PAGES {
            assert_eq!(user::read::<[u8; 8]>(at + page * PAGE_SIZE), Ok([0x93; 8]));
            assert_eq!(read(&*file, page)[..8], [0x93; 8]);
        }
        // A private mapping reads it, and its stores stay its own.
        let own = map_file(map, file.pager().unwrap(), PAGE_SIZE, false);
        assert_eq!(user::read::<u8>(own), Ok(0x93));
        user::write(own, &[0x94u8; 8]).unwrap();
        assert_eq!((count(disk, 0x93), count(disk, 0x94)), (PAGES, 0));
        file.sync(false).unwrap();
        let all = VirtRange::new(at, at + PAGES * PAGE_SIZE);
        map.unmap(all).unwrap();
        map.unmap(VirtRange::new(own, own + PAGE_SIZE)).unwrap();
    });
}

#[test]
fn a_hole_has_no_block_until_it_is_written() {
    with_file(|map, file, disk| {
        let vnode = file.location().unwrap().vnode().clone();
        vnode.truncate((PAGES * PAGE_SIZE) as u64).unwrap();
        let at = map_file(map, file.pager().unwrap(), PAGES * PAGE_SIZE, true);
        let blocks = vnode.attributes().unwrap().blocks;
        for page in 0..PAGES {
            assert_eq!(user::read::<u64>(at + page * PAGE_SIZE), Ok(0));
        }
        assert_eq!(vnode.attributes().unwrap().blocks, blocks);
        // By a store, and by a write, while zeros are mapped.
        user::write(at + 3 * PAGE_SIZE, &[0xa1u8; 8]).unwrap();
        write(&*file, 5, 0xa1);
        assert_eq!(count(disk, 0xa1), 2);
        assert_eq!(user::read::<[u8; 8]>(at + 5 * PAGE_SIZE), Ok([0xa1; 8]));
        assert_eq!(read(&*file, 3)[..8], [0xa1; 8]);
        assert_eq!(read(&*file, 3)[8..], [0; PAGE_SIZE - 8]);
        // A hole again: the store has gone, and the block's old bytes come back nowhere.
        let mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
        let page = PAGE_SIZE as u64;
        vnode.allocate(mode, 3 * page, page).unwrap();
        assert_eq!(user::read::<u64>(at + 3 * PAGE_SIZE), Ok(0));
        user::write(at + 3 * PAGE_SIZE + 100, &1u8).unwrap();
        assert_eq!(user::read::<u64>(at + 3 * PAGE_SIZE), Ok(0));
        map.unmap(VirtRange::new(at, at + PAGES * PAGE_SIZE))
            .unwrap();
    });
}

#[test]
fn truncation_takes_mappings_and_a_held_block_is_not_reused() {
    with_file(|map, file, disk| {
        for page in 0..PAGES {
            write(&*file, page, 0xb1);
        }
        // A reader that keeps what it reads gets a copy.
        let mut kept = Aggregate::new();
        let mut sink = AggregateSink::new(&mut kept, PAGE_SIZE);
        assert!(sink.keeps());
        assert_eq!(file.read(Some(0), FLAGS, &mut sink), Ok(PAGE_SIZE));
        let at = map_file(map, file.pager().unwrap(), PAGES * PAGE_SIZE, true);
        for page in 0..PAGES {
            user::write(at + page * PAGE_SIZE, &[0xb2u8; 8]).unwrap();
        }
        user::write(at, &[0xb3u8; 8]).unwrap();
        let mut bytes = [0; 8];
        assert_eq!((kept.peek(0, &mut bytes), bytes), (8, [0xb1; 8]));
        let held = map.pin(VirtRange::new(at, at + PAGE_SIZE), Access::Write);
        let held = held.unwrap();
        let vnode = file.location().unwrap().vnode().clone();
        vnode.truncate(0).unwrap();
        for page in 0..PAGES {
            assert!(fault(map, at + page * PAGE_SIZE, Access::Read).is_err());
        }
        let pages = (0..).map_while(|number| disk.page(number));
        assert!(pages.into_iter().all(|page| page.mappings() == 0));
        // Blocks that come back, which a commit makes possible, are cleared before they are seen.
        file.sync(false).unwrap();
        assert_eq!(count(disk, 0xb2), PAGES - 1);
        map.unmap(VirtRange::new(at, at + PAGES * PAGE_SIZE))
            .unwrap();
        const ALL: usize = 300;
        vnode.truncate((ALL * PAGE_SIZE) as u64).unwrap();
        // By calls alone: a fault would have left zeros to copy.
        let mut placed = 0;
        let place = |page: usize| {
            let byte = (page * PAGE_SIZE + 100) as u64;
            file.write(Some(byte), FLAGS, &mut BytesSource::new(&[1])) == Ok(1)
        };
        while place(placed) {
            assert_eq!(read(&*file, placed)[..8], [0; 8]);
            placed += 1;
        }
        assert!((PAGES..ALL).contains(&placed), "{placed} blocks were free");
        // Of the old blocks one was not reused: a device may still write there.
        let bytes = |frame: &Frame| {
            let mut bytes = [0; 8];
            ephemeral::map(frame).read(0, &mut bytes);
            bytes
        };
        assert_eq!(bytes(&held.parts()[0].frame), [0xb3; 8]);
        assert_eq!((count(disk, 0xb2), count(disk, 0xb3)), (0, 1));
        drop(held);
        file.sync(false).unwrap();
        assert!(place(placed) && !place(placed + 1), "it is free now");
        assert_eq!(count(disk, 0xb3), 0);
    });
}

#[test]
fn reading_a_long_hole_ahead_takes_little_memory() {
    with_file(|map, file, _| {
        const PAGES: usize = 1 << 16;
        let vnode = file.location().unwrap().vnode().clone();
        vnode.truncate((PAGES * PAGE_SIZE) as u64).unwrap();
        let pager = file.pager().unwrap();
        let at = map_file(map, pager.clone(), PAGES * PAGE_SIZE, true);
        let all = VirtRange::new(at, at + PAGES * PAGE_SIZE);
        map.advise(all, Advice::WillNeed).unwrap();
        assert!(pager.object().resident_count() <= 256);
        pager.page_in(1 << 15, 0..PAGES as u64).unwrap();
        assert!(pager.object().resident_count() <= 512);
        assert_eq!(user::read::<u64>(at + 5 * PAGE_SIZE), Ok(0));
        map.unmap(all).unwrap();
    });
}

/// A program's buffer of which the first `good` bytes are mapped.
struct Torn {
    good: usize,
    left: usize,
}

impl Source for Torn {
    fn left(&self) -> usize {
        self.left
    }

    fn take_into(&mut self, frame: &Frame, offset: usize, len: usize) -> Result<usize> {
        let n = len.min(self.good);
        ephemeral::map(frame).fill(offset, n, 0xc1);
        self.good -= n;
        self.left -= n;
        if n == 0 { Err(Errno::EFAULT) } else { Ok(n) }
    }

    fn take_bytes(&mut self, _: &mut [u8]) -> Result<usize> {
        Err(Errno::EFAULT)
    }
}

#[test]
fn a_write_that_fails_leaves_nothing_beyond_the_end() {
    with_file(|_, file, _| {
        let pager = file.pager().unwrap();
        let vnode = file.location().unwrap().vnode().clone();
        let fails = |at: usize, good: usize| {
            let mut torn = Torn {
                good,
                left: 3 * PAGE_SIZE,
            };
            file.write(Some((at * PAGE_SIZE) as u64), FLAGS, &mut torn)
        };
        let has = |pages: usize| {
            let attributes = vnode.attributes().unwrap();
            assert_eq!(attributes.blocks, (pages * PAGE_SIZE / 512) as u64);
            assert_eq!(pager.object().resident_count(), pages);
        };
        assert_eq!(fails(0, 0), Err(Errno::EFAULT));
        has(0);
        assert_eq!(fails(0, PAGE_SIZE), Ok(PAGE_SIZE));
        has(1);
        assert_eq!(fails(1, PAGE_SIZE + 7), Ok(PAGE_SIZE + 7));
        has(3);
        assert_eq!(fails(5, 0), Err(Errno::EFAULT));
        has(3);
        assert_eq!(vnode.attributes().unwrap().size as usize, 2 * PAGE_SIZE + 7);
        assert_eq!(read(&*file, 2), [0xc1; 7]);
    });
}

#[test]
fn a_reader_keeps_no_page_of_the_medium() {
    with_file(|_, file, disk| {
        write(&*file, 0, 0xd1);
        let pager = file.pager().unwrap();
        let page = pager.object().resident(0).unwrap();
        assert!(page.is_of_medium() && pager.object().lend(0, || true).is_none());
        let mut kept = Aggregate::new();
        let mut sink = AggregateSink::new(&mut kept, 2 * PAGE_SIZE);
        assert_eq!(sink.put_frame(&page, 0, PAGE_SIZE), Ok(PAGE_SIZE));
        drop(page);
        assert_eq!(file.read(Some(0), FLAGS, &mut sink), Ok(PAGE_SIZE));
        let vnode = file.location().unwrap().vnode().clone();
        vnode.truncate(0).unwrap();
        file.sync(false).unwrap();
        for page in 0.. {
            let at = Some((page * PAGE_SIZE) as u64);
            if file.write(at, FLAGS, &mut BytesSource::new(&[0xd2; PAGE_SIZE])) != Ok(PAGE_SIZE) {
                break;
            }
        }
        assert_eq!(count(disk, 0xd1), 0, "the block has other bytes");
        let mut bytes = [0; 2 * PAGE_SIZE];
        assert_eq!(kept.peek(0, &mut bytes), bytes.len());
        assert!(bytes == [0xd1; 2 * PAGE_SIZE]);
    });
}

#[test]
fn a_transfer_holds_up_no_unmounting_but_keeps_the_device() {
    on_machines(4, 2, 1024, move |_| {
        let begin = |open: &stores::Open, disk: &Arc<MemoryDisk>| {
            let file = open();
            write(&*file, 0, 0xe1);
            let held = file.pager().unwrap().object().resident(0).unwrap();
            let vnode = file.location().unwrap().vnode().clone();
            vnode.truncate(0).unwrap();
            file.sync(false).unwrap();
            assert_eq!(count(disk, 0xe1), 1);
            held
        };
        stores::on_medium(begin, drop);
    });
}
