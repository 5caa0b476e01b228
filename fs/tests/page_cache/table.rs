//! Inodes in memory.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
};

use abi::Result;
use fs::page_cache::{self, Cached, InCore, InodeCache};
use nucleus::{PAGE_SIZE, task};

use crate::{
    disk::{self, Inode, Pages},
    in_space, on_machines,
    support::Random,
};

/// A file of a file system that has each file on a disk of its own.
struct File {
    pages: Arc<Pages>,
    removed: AtomicBool,
    /// How many inodes of this number are in memory.
    copies: Arc<AtomicUsize>,
    ended: Arc<AtomicUsize>,
}

impl InCore for File {
    fn cached(&self) -> Option<Arc<dyn Cached>> {
        Some(self.pages.clone())
    }

    fn is_removed(&self) -> bool {
        self.removed.load(SeqCst)
    }

    fn end(&self) {
        self.pages.truncate(0).unwrap();
        self.ended.fetch_add(1, SeqCst);
        self.copies.fetch_sub(1, SeqCst);
    }

    fn put_away(&self) -> Result<()> {
        self.pages.sync(0..u64::MAX, false)?;
        assert_eq!(self.pages.counts().dirty, 0);
        self.copies.fetch_sub(1, SeqCst);
        Ok(())
    }
}

const FILES: usize = 6;

struct Disks {
    inodes: Vec<Arc<Inode>>,
    copies: Vec<Arc<AtomicUsize>>,
    ended: Arc<AtomicUsize>,
}

impl Disks {
    fn new(seed: u64) -> Disks {
        Disks {
            inodes: (0..FILES).map(|_| disk::inode(8, seed).1).collect(),
            copies: (0..FILES).map(|_| Arc::default()).collect(),
            ended: Arc::default(),
        }
    }

    fn read(&self, number: u64) -> Result<Arc<File>> {
        let i = number as usize;
        let before = self.copies[i].fetch_add(1, SeqCst);
        assert_eq!(before, 0, "one inode twice in memory");
        task::yield_now();
        Ok(Arc::new(File {
            pages: disk::open(&self.inodes[i]),
            removed: AtomicBool::new(false),
            copies: self.copies[i].clone(),
            ended: self.ended.clone(),
        }))
    }
}

#[test]
fn an_inode_is_in_memory_once_whatever_users_come_and_go() {
    on_machines(12, 3, 1024, |seed| {
        let disks = Arc::new(Disks::new(seed));
        let table: Arc<InodeCache<File>> = InodeCache::new();
        let (inner, all) = (table.clone(), disks.clone());
        in_space(3, move |_, task| {
            let mut random = Random::new(seed * 7 + task as u64);
            let mut held = Vec::new();
            for _ in 0..120 {
                let number = random.below(FILES) as u64;
                match random.below(8) {
                    0 => held.clear(),
                    1 => drop(page_cache::reclaim(random.below(40))),
                    2 => {
                        let file = inner.get(number, || all.read(number)).unwrap();
                        file.removed.store(true, SeqCst);
                    }
                    _ => {
                        let file = inner.get(number, || all.read(number)).unwrap();
                        disk::write(&file.pages, 0, &[number as u8 + 1; 5000]);
                        let got = disk::read(&file.pages, 0, 100);
                        assert_eq!(got, [number as u8 + 1; 100]);
                        held.push(file);
                        if held.len() > 3 {
                            held.remove(0);
                        }
                    }
                }
            }
        });
        assert_eq!(table.put_all_away(), 0);
        for copies in &disks.copies {
            assert_eq!(copies.load(SeqCst), 0);
        }
    });
}

#[test]
fn the_file_that_is_unused_longest_goes_first() {
    on_machines(2, 1, 1024, |seed| {
        let disks = Disks::new(seed);
        let table: Arc<InodeCache<File>> = InodeCache::new();
        let get = |number: u64| table.get(number, || disks.read(number)).unwrap();
        let is_here = |number: usize| disks.copies[number].load(SeqCst) == 1;
        for number in 0..4 {
            let file = get(number);
            disk::write(&file.pages, 0, &[1; 2 * PAGE_SIZE]);
            file.pages.sync(0..u64::MAX, false).unwrap();
        }
        assert_eq!(table.counts(), (4, 4));
        // The first is used again, the second is in use.
        drop(get(0));
        let held = get(1);
        assert_eq!(page_cache::reclaim(2), 2);
        assert!(is_here(0) && is_here(1) && !is_here(2) && is_here(3));
        assert_eq!(page_cache::reclaim(2), 2);
        assert!(is_here(0) && is_here(1) && !is_here(3));
        assert_eq!(page_cache::reclaim(100), 4, "pages of those in use go last");
        assert!(!is_here(0) && is_here(1));
        // A removed one ends when it is let go.
        held.removed.store(true, SeqCst);
        drop(held);
        table.wait_for_ends();
        assert_eq!(disks.ended.load(SeqCst), 1);
        assert!(!is_here(1));
        assert_eq!(disks.inodes[1].free.load(SeqCst), 8);
        assert_eq!(table.counts(), (0, 0));
    });
}
