//! More dirty pages than memory.

use std::{sync::atomic::Ordering::SeqCst, time::Duration};

use fs::page_cache::{self, Cached, dirty};
use nucleus::{PAGE_SIZE, VirtRange, frame, user};

use crate::{disk, in_space, map_file, on_machines, support::pause};

/// Pages of the file: twice the memory.
const PAGES: usize = 1024;

#[test]
fn a_writer_of_more_than_memory_holds_waits_for_the_disk() {
    on_machines(3, 2, 512, |seed| {
        let (disk, inode) = disk::inode(PAGES, seed);
        disk.set_delays(true);
        let file = disk::open(&inode);
        let inner = file.clone();
        in_space(2, move |map, task| {
            let window = map_file(map, inner.clone(), PAGES * PAGE_SIZE, true);
            for step in 0..PAGES / 2 {
                let page = 2 * step + task;
                let data = vec![page as u8; PAGE_SIZE];
                let at = page * PAGE_SIZE;
                if task == 0 {
                    disk::write(&inner, at as u64, &data);
                } else {
                    // The one before may not be there yet.
                    inner.allocate(0, (at + PAGE_SIZE) as u64, false).unwrap();
                    user::copy_out(window + at, &data).unwrap();
                    // A mapping holds its page; without a pagedaemon the program must unmap it.
                    map.unmap(VirtRange::new(window + at, window + (at + PAGE_SIZE)))
                        .unwrap();
                }
                let (dirty, writing) = dirty::counts();
                let total = frame::usage().total;
                assert!(
                    dirty + writing <= total / 3,
                    "{dirty} + {writing} of {total}"
                );
                if frame::is_scarce() || frame::usage().free < 128 {
                    page_cache::reclaim(64);
                }
            }
        });
        file.sync(0..u64::MAX, false).unwrap();
        assert_eq!(inode.blocks.lock().len(), PAGES);
        for page in 0..PAGES {
            let got = disk::read(&file, (page * PAGE_SIZE) as u64, PAGE_SIZE);
            assert!(got == [page as u8; PAGE_SIZE], "page {page}");
            if frame::usage().free < 128 {
                assert!(page_cache::reclaim(64) > 0);
            }
        }
        assert_eq!(inode.free.load(SeqCst), 0);
        drop(file);
    });
}

#[test]
fn what_is_old_is_written_without_being_asked() {
    on_machines(2, 2, 512, |seed| {
        dirty::EXPIRE.set(100);
        dirty::INTERVAL.set(50);
        let (disk, inode) = disk::inode(8, seed);
        let file = disk::open(&inode);
        let data = [5; 3 * PAGE_SIZE];
        disk::write(&file, 0, &data);
        pause(Duration::from_secs(4));
        assert_eq!(file.counts().dirty, 0);
        assert!(disk.content()[..data.len()] == data);
        drop(file);
    });
}
