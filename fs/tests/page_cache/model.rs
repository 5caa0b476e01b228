//! One task that does everything to a file, while the flusher writes back and another task takes pages away.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use fbuf::{Aggregate, AggregateSink, AggregateSource, BytesSink, BytesSource};
use fs::page_cache::{self, Cached, dirty};
use nucleus::{
    PAGE_SIZE, VirtAddr, VirtRange,
    task::{self, Sleep},
    time, user,
};
use vm::{Map, Pager};

use crate::{
    disk::{self, Inode, Pages},
    in_tasks, map_file, on_machines,
    support::Random,
};

/// Bytes that mappings of the file cover; it may become longer.
const WINDOW: usize = 40 * PAGE_SIZE;
/// Pages of the disk.
const DISK: usize = 64;

struct Both<'a> {
    map: &'a Map,
    inode: Arc<Inode>,
    file: Arc<Pages>,
    bytes: Vec<u8>,
    random: Random,
    window: Option<VirtAddr>,
    /// What was read into aggregates, and what it must stay.
    passed: Vec<(Aggregate, Vec<u8>)>,
}

impl Both<'_> {
    fn put(&mut self, at: usize, data: &[u8]) {
        if !data.is_empty() {
            self.bytes.resize(self.bytes.len().max(at + data.len()), 0);
            self.bytes[at..at + data.len()].copy_from_slice(data);
        }
    }

    fn write(&mut self, at: usize, append: bool, most: usize) {
        let data = self.random.bytes(most);
        let at = if append { self.bytes.len() } else { at };
        let mut source = BytesSource::new(&data);
        let wrote = self.file.write(at as u64, append, &mut source);
        assert_eq!(wrote, Ok((data.len(), (at + data.len()) as u64)));
        self.put(at, &data);
    }

    fn write_slices(&mut self, at: usize) {
        let mut data = Aggregate::new();
        for _ in 0..self.random.below(4) {
            let bytes: Vec<u8> = (0..PAGE_SIZE).map(|_| self.random.next() as u8).collect();
            let mut piece = Aggregate::new();
            piece
                .fill_from(&mut BytesSource::new(&bytes), PAGE_SIZE)
                .unwrap();
            data.join(&mut piece).unwrap();
        }
        let len = data.len();
        let mut bytes = vec![0; len];
        data.peek(0, &mut bytes);
        if self.random.below(2) == 0 {
            self.passed.push((data.clone(), bytes.clone()));
        }
        let mut source = AggregateSource::new(&mut data, len);
        let wrote = self.file.write(at as u64, false, &mut source);
        assert_eq!(wrote, Ok((len, (at + len) as u64)));
        self.put(at, &bytes);
    }

    fn keep(&mut self, at: usize) {
        let room = self.random.below(20000);
        let mut data = Aggregate::new();
        let mut sink = AggregateSink::new(&mut data, room);
        let n = self.file.read(at as u64, &mut sink).unwrap();
        let from = at.min(self.bytes.len());
        assert_eq!(n, room.min(self.bytes.len() - from));
        let expected = self.bytes[from..from + n].to_vec();
        self.passed.push((data, expected));
        if self.passed.len() > 4 {
            self.passed.remove(0);
        }
    }

    /// Stores through the shared mapping, at times in the last page behind the end.
    fn store(&mut self, at: usize) {
        let Some(window) = self.window else { return };
        let end = self.bytes.len().next_multiple_of(PAGE_SIZE).min(WINDOW);
        let mut data = self.random.bytes(9000);
        data.truncate(WINDOW.saturating_sub(at));
        if data.is_empty() {
            return;
        }
        let there = end.saturating_sub(at).min(data.len());
        let stored = user::copy_out(window + at, &data);
        assert_eq!(stored.is_ok(), there == data.len(), "at {at} end {end}");
        if there > 0 {
            if stored.is_err() {
                user::copy_out(window + at, &data[..there]).unwrap();
            }
            let from = at.min(self.bytes.len());
            let inside = self.bytes.len().saturating_sub(at).min(there);
            self.bytes[from..from + inside].copy_from_slice(&data[..inside]);
        }
    }

    fn read(&mut self, at: usize) {
        let mut got = vec![0; self.random.below(30000)];
        let n = self
            .file
            .read(at as u64, &mut BytesSink::new(&mut got))
            .unwrap();
        let expected = &self.bytes[at.min(self.bytes.len())..];
        assert_eq!(n, expected.len().min(got.len()));
        assert!(got[..n] == expected[..n], "read at {at}");
    }

    fn look(&mut self, at: usize) {
        let Some(window) = self.window else { return };
        let end = self.bytes.len().min(WINDOW);
        let at = at.min(end);
        let mut got = vec![0; self.random.below(20000).min(end - at)];
        user::copy_in(&mut got, window + at).unwrap();
        assert!(
            got == self.bytes[at..at + got.len()],
            "seen through a mapping at {at}"
        );
    }

    /// Forgets all that is in memory and starts again from the disk.
    fn reopen(&mut self) {
        self.unmap();
        self.passed.clear();
        self.file.sync(0..u64::MAX, false).unwrap();
        assert_eq!(self.file.errors().tell(&self.file.errors().mark()), Ok(()));
        assert_eq!(self.file.counts().dirty, 0);
        self.file = disk::open(&self.inode);
    }

    fn unmap(&mut self) {
        if let Some(window) = self.window.take() {
            let range = VirtRange::new(window, window + WINDOW);
            self.map.unmap(range).unwrap();
        }
    }

    fn step(&mut self) {
        let at = self.random.below(WINDOW);
        match self.random.below(24) {
            0..=3 => self.write(at, false, 10000),
            4 => self.write(at, false, 200),
            5 if self.bytes.len() < WINDOW => self.write(0, true, 6000),
            6 => self.write_slices(at / PAGE_SIZE * PAGE_SIZE),
            7 => self.keep(at),
            8..=10 => self.read(at),
            11..=14 => self.store(at),
            15 | 16 => self.look(at),
            17 => {
                self.file.truncate(at as u64).unwrap();
                self.bytes.resize(at, 0);
            }
            18 => {
                let to = at + self.random.below(20000);
                self.file.punch(at as u64, to as u64).unwrap();
                let to = to.min(self.bytes.len());
                self.bytes[at.min(to)..to].fill(0);
            }
            19 => {
                let pages = (at / PAGE_SIZE) as u64;
                self.file.write_out(pages..u64::MAX, false).unwrap();
            }
            20 => {
                let pages = (at / PAGE_SIZE) as u64;
                self.file.sync(0..pages, true).unwrap();
            }
            21 => drop(self.file.give_up(0..u64::MAX, usize::MAX)),
            22 => self.file.prefetch((at / PAGE_SIZE) as u64..u64::MAX),
            _ => match (self.random.below(4), self.window) {
                (0, _) => self.reopen(),
                (1, Some(window)) => {
                    let range = VirtRange::new(window, window + WINDOW);
                    self.map.sync(range, true).unwrap();
                }
                (2, Some(_)) => self.unmap(),
                (_, None) => {
                    self.window = Some(map_file(self.map, self.file.clone(), WINDOW, true));
                }
                _ => {}
            },
        }
        assert_eq!(self.file.size(), self.bytes.len() as u64);
    }

    fn compare(&mut self) {
        let mut got = vec![0; self.bytes.len() + 1];
        let n = self.file.read(0, &mut BytesSink::new(&mut got)).unwrap();
        assert_eq!(n, self.bytes.len());
        for (at, (is, was)) in got.iter().zip(&self.bytes).enumerate() {
            assert_eq!(is, was, "byte {at} of {n}");
        }
        for (data, expected) in &self.passed {
            let mut got = vec![0; data.len()];
            assert_eq!(data.peek(0, &mut got), expected.len());
            assert!(got == *expected, "what was passed on has changed");
        }
    }
}

fn pause(microseconds: u64) {
    task::sleep(Sleep {
        interruptible: false,
        deadline: Some(time::since_boot() + Duration::from_micros(microseconds)),
    });
}

#[test]
fn contents_are_those_of_the_model() {
    on_machines(24, 2, 1024, |seed| {
        let (disk, inode) = disk::inode(DISK, seed);
        disk.set_delays(seed % 3 != 0);
        // The flusher is always at it.
        dirty::EXPIRE.set(0);
        dirty::INTERVAL.set(1);
        let over = Arc::new(AtomicBool::new(false));
        let shared = inode.clone();
        in_tasks(2, move |map, i| {
            if i == 1 {
                // Memory is short all the time.
                let mut random = Random::new(seed + 99);
                while !over.load(SeqCst) {
                    page_cache::reclaim(1 + random.below(20));
                    pause(random.below(2000) as u64);
                }
                return;
            }
            let mut both = Both {
                map,
                inode: shared.clone(),
                file: disk::open(&shared),
                bytes: Vec::new(),
                random: Random::new(seed),
                window: None,
                passed: Vec::new(),
            };
            for i in 0..300 {
                both.step();
                if i % 10 == 0 {
                    both.compare();
                }
            }
            both.compare();
            both.reopen();
            both.compare();
            over.store(true, SeqCst);
        });
        dirty::EXPIRE.set(3000);
        dirty::INTERVAL.set(500);
        assert_eq!(
            inode.free.load(SeqCst) + inode.blocks.lock().len(),
            DISK,
            "blocks that are neither free nor used"
        );
    });
}
