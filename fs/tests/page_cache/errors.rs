//! A disk that fails.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use abi::Errno;
use fbuf::{BytesSink, BytesSource};
use fs::{
    block::Operation,
    page_cache::{Cached, dirty},
};
use nucleus::{Access, PAGE_SIZE, VirtRange, user};
use vm::Fault;

use crate::{disk, fault, in_space, map_file, on_machines, with_window};

fn fill(file: &disk::Pages, pages: usize) {
    let bytes: Vec<u8> = (0..pages * PAGE_SIZE).map(|i| (i / 7) as u8).collect();
    disk::write(file, 0, &bytes);
}

#[test]
fn a_page_that_can_not_be_read_is_an_error_of_that_page() {
    on_machines(4, 2, 1024, |seed| {
        let (disk, inode) = disk::inode(16, seed);
        let file = disk::open(&inode);
        fill(&file, 16);
        file.sync(0..u64::MAX, false).unwrap();
        drop(file);
        // Page 5 has a sector that can't be read.
        disk.fail_when(|it| {
            it.operation == Operation::Read && (it.sector..it.sector + it.sectors).contains(&43)
        });
        let file = disk::open(&inode);
        let mut got = vec![0; PAGE_SIZE];
        for page in 0..16u64 {
            let mut sink = BytesSink::new(&mut got);
            let read = file.read(page * PAGE_SIZE as u64, &mut sink);
            match page {
                5 => assert_eq!(read, Err(Errno::EIO)),
                _ => assert_eq!(read, Ok(PAGE_SIZE), "page {page}"),
            }
        }
        drop(file);
        let file = disk::open(&inode);
        in_space(1, move |map, _| {
            with_window(map, file.clone(), 16, |window| {
                for page in 0..16 {
                    let result = fault(map, window + page * PAGE_SIZE, Access::Read);
                    match page {
                        5 => assert_eq!(result, Err(Fault::Io)),
                        _ => assert_eq!(result, Ok(()), "page {page}"),
                    }
                }
            });
        });
    });
}

#[test]
fn each_open_file_is_told_once_of_a_write_that_failed() {
    on_machines(4, 2, 1024, |seed| {
        let (disk, inode) = disk::inode(64, seed);
        let file = disk::open(&inode);
        let (a, b) = (file.errors().mark(), file.errors().mark());
        let sync = |mark| {
            file.sync(0..u64::MAX, false).unwrap();
            file.errors().tell(mark)
        };
        fill(&file, 64);
        assert_eq!(sync(&a), Ok(()));
        // One sector is bad.
        disk.fail_when(|it| {
            it.operation == Operation::Write && (it.sector..it.sector + it.sectors).contains(&80)
        });
        fill(&file, 64);
        assert_eq!(sync(&a), Err(Errno::EIO));
        assert_eq!(sync(&a), Ok(()), "told once");
        assert_eq!(sync(&b), Err(Errno::EIO));
        assert_eq!(file.counts().dirty, 0, "what failed is not tried for ever");
        // It is still what was written, and a later write of it that succeeds makes it good.
        disk.fail_no_more();
        fill(&file, 64);
        assert_eq!(sync(&a), Ok(()));
        assert_eq!(sync(&b), Ok(()));
        drop(file);
        let file = disk::open(&inode);
        let got = disk::read(&file, 0, 65 * PAGE_SIZE);
        assert_eq!(got.len(), 64 * PAGE_SIZE);
        assert!(got.iter().enumerate().all(|(i, &b)| b == (i / 7) as u8));
    });
}

#[test]
fn a_full_disk_refuses_the_write_and_the_store() {
    on_machines(4, 2, 1024, |seed| {
        let (_disk, inode) = disk::inode(8, seed);
        // Others have most of it.
        inode.free.store(4, SeqCst);
        let file = disk::open(&inode);
        let data = vec![7; 6 * PAGE_SIZE];
        let write = |at| file.write(at, false, &mut BytesSource::new(&data));
        let end = 4 * PAGE_SIZE as u64;
        assert_eq!(write(0), Ok((4 * PAGE_SIZE, end)));
        assert_eq!(write(end), Err(Errno::ENOSPC));
        file.truncate(8 * PAGE_SIZE as u64).unwrap();
        let inner = file.clone();
        in_space(1, move |map, _| {
            let window = map_file(map, inner.clone(), 8 * PAGE_SIZE, true);
            for page in 0..8 {
                let at = window + page * PAGE_SIZE;
                assert_eq!(fault(map, at, Access::Read), Ok(()), "a hole can be read");
                let store = fault(map, at, Access::Write);
                match page < 4 {
                    true => assert_eq!(store, Ok(())),
                    false => assert_eq!(store, Err(Fault::Io), "a hole without room"),
                }
            }
            let room = |pages: u64| inner.truncate(pages * PAGE_SIZE as u64).unwrap();
            room(2);
            room(8);
            assert!(user::copy_out(window + 5 * PAGE_SIZE, &[1; 2 * PAGE_SIZE]).is_ok());
            assert!(user::copy_out(window + 7 * PAGE_SIZE, &[1]).is_err());
            let range = VirtRange::new(window, window + 8 * PAGE_SIZE);
            map.sync(range, true).unwrap();
            map.unmap(range).unwrap();
        });
        let mark = file.errors().mark();
        file.sync(0..u64::MAX, false).unwrap();
        assert_eq!(file.errors().tell(&mark), Ok(()));
        drop(file);
    });
}

#[test]
fn at_every_command_that_fails_nothing_else_is_lost() {
    for failing in 0..24 {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        COUNT.store(failing, SeqCst);
        on_machines(1, 2, 1024, |seed| {
            let failing = COUNT.load(SeqCst) as u64;
            let (disk, inode) = disk::inode(32, seed);
            dirty::EXPIRE.set(0);
            dirty::INTERVAL.set(1);
            let file = disk::open(&inode);
            let failed = Arc::new(AtomicUsize::new(usize::MAX));
            let noted = failed.clone();
            disk.fail_when(move |it| {
                let fails = it.number == failing && it.operation == Operation::Write;
                if fails {
                    noted.store((it.sector / 8) as usize, SeqCst);
                }
                fails
            });
            let mark = file.errors().mark();
            let mut told = 0;
            // Each page by itself, so that one failure is one page.
            for page in 0..32u64 {
                disk::write(&file, page * PAGE_SIZE as u64, &[page as u8 + 1; PAGE_SIZE]);
                file.sync(page..page + 1, false).unwrap();
                if file.errors().tell(&mark).is_err() {
                    told += 1;
                }
            }
            let lost = failed.load(SeqCst);
            assert_eq!(told, usize::from(lost != usize::MAX));
            drop(file);
            let content = disk.content();
            for page in (0..32).filter(|&page| page != lost) {
                let bytes = &content[page * PAGE_SIZE..][..PAGE_SIZE];
                assert!(bytes.iter().all(|&b| b == page as u8 + 1), "page {page}");
            }
        });
    }
}

/// There is memory, and still a write is refused some: it is tried again, but not for ever.
#[test]
fn a_write_that_is_always_refused_memory_ends() {
    on_machines(2, 2, 4096, |seed| {
        vm::start_pagedaemon().unwrap();
        let (_, inode) = disk::inode(700, seed);
        let file = disk::open(&inode);
        inode.refuses.store(5, SeqCst);
        fill(&file, 700);
        assert_eq!(file.sync(0..u64::MAX, false), Ok(()));
        assert_eq!(file.counts().dirty, 0);
        inode.refuses.store(usize::MAX, SeqCst);
        fill(&file, 700);
        assert_eq!(file.sync(0..u64::MAX, false), Err(Errno::ENOMEM));
        assert_eq!(file.counts().dirty, 700, "nothing is lost");
        inode.refuses.store(0, SeqCst);
        assert_eq!(file.sync(0..u64::MAX, false), Ok(()));
        assert_eq!(file.counts().dirty, 0);
        drop(file);
        vm::stop_pagedaemon();
    });
}
