//! One task that does everything to a file on each backing store, compared with plain bytes, while
//! the flusher writes back and another task evicts pages.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use abi::{
    Errno,
    raw::general::{
        FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE, O_APPEND, SEEK_DATA,
        SEEK_HOLE,
    },
};
use fbuf::{
    Aggregate, AggregateSink, AggregateSource, BytesSink, BytesSource, Sink, Source, UserBuffers,
};
use fs::{
    File, Namespace, OpenFlags,
    page_cache::{self, dirty},
    ramfs::{self, Options},
};
use nucleus::{PAGE_SIZE, Prot, VirtAddr, VirtRange, user};
use vm::{Map, MapRequest};

use crate::{
    in_space, map_file, on_machines,
    stores::{self, Open},
    support::{FLAGS, Random, pause, with_walk},
};

/// Bytes that mappings of the file cover; it may become longer.
const WINDOW: usize = 24 * PAGE_SIZE;
/// Pages of the disk.
const DISK: usize = 48;
const STEPS: usize = 200;

struct Both<'a> {
    map: &'a Map,
    open: &'a Open,
    file: Arc<dyn File>,
    bytes: Vec<u8>,
    random: Random,
    /// Memory of the program.
    buffer: VirtAddr,
    /// A shared mapping that may write.
    window: Option<VirtAddr>,
    /// A private one that is only read.
    view: Option<VirtAddr>,
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

    /// Writes all that `source` has, which is `data`.
    fn write(&mut self, at: usize, source: &mut dyn Source, data: &[u8]) {
        let wrote = self.file.write(Some(at as u64), FLAGS, source);
        assert_eq!(wrote, Ok(data.len()));
        self.put(at, data);
    }

    fn write_bytes(&mut self, at: usize, most: usize) {
        let data = self.random.bytes(most);
        self.write(at, &mut BytesSource::new(&data), &data);
    }

    fn append(&mut self) {
        let (data, end) = (self.random.bytes(6000), self.bytes.len());
        let flags = FLAGS | OpenFlags::from_bits_retain(O_APPEND);
        let wrote = self.file.write(None, flags, &mut BytesSource::new(&data));
        assert_eq!(wrote, Ok(data.len()));
        self.put(end, &data);
    }

    fn write_from_program(&mut self, at: usize) {
        let data = self.random.bytes(9000);
        let from = self.buffer + self.random.below(5000);
        user::copy_out(from, &data).unwrap();
        self.write(at, &mut UserBuffers::new(from, data.len()).unwrap(), &data);
    }

    /// Writes slices, whole pages among them, and keeps a copy of the chain at times.
    fn write_slices(&mut self, at: usize) {
        let mut data = Aggregate::new();
        for _ in 0..self.random.below(4) {
            let len = match self.random.below(3) {
                0 => self.random.below(PAGE_SIZE),
                _ => PAGE_SIZE,
            };
            let bytes = self.random.some(len);
            let mut piece = Aggregate::new();
            piece.fill_from(&mut BytesSource::new(&bytes), len).unwrap();
            data.join(&mut piece).unwrap();
        }
        let len = data.len();
        let mut bytes = vec![0; len];
        data.peek(0, &mut bytes);
        if self.random.below(2) == 0 {
            self.passed.push((data.clone(), bytes.clone()));
        }
        self.write(at, &mut AggregateSource::new(&mut data, len), &bytes);
    }

    /// Reads up to `len` bytes into `sink`; returns those that it must have got.
    fn read(&self, at: usize, len: usize, sink: &mut dyn Sink) -> Vec<u8> {
        let n = self.file.read(Some(at as u64), FLAGS, sink).unwrap();
        let expected = &self.bytes[at.min(self.bytes.len())..];
        assert_eq!(n, expected.len().min(len));
        assert_eq!(sink.room(), len - n);
        expected[..n].to_vec()
    }

    fn keep(&mut self, at: usize) {
        let (room, mut data) = (self.random.below(20000), Aggregate::new());
        let expected = self.read(at, room, &mut AggregateSink::new(&mut data, room));
        self.passed.push((data, expected));
        if self.passed.len() > 6 {
            self.passed.remove(0);
        }
    }

    fn read_bytes(&mut self, at: usize) {
        let mut got = vec![0; self.random.below(30000)];
        let expected = self.read(at, got.len(), &mut BytesSink::new(&mut got));
        assert!(got[..expected.len()] == expected, "read at {at}");
    }

    fn read_to_program(&mut self, at: usize) {
        let len = self.random.below(12000);
        let expected = self.read(at, len, &mut UserBuffers::new(self.buffer, len).unwrap());
        let mut got = vec![0; expected.len()];
        user::copy_in(&mut got, self.buffer).unwrap();
        assert!(got == expected, "read at {at} to a program");
    }

    /// Stores through the shared mapping, at times in the last page behind the end.
    fn store(&mut self, at: usize) {
        let Some(window) = self.window else { return };
        let end = self.bytes.len().next_multiple_of(PAGE_SIZE).min(WINDOW);
        let mut data = self.random.bytes(9000);
        data.truncate(WINDOW - at);
        if data.is_empty() {
            return;
        }
        let there = end.saturating_sub(at).min(data.len());
        let stored = user::copy_out(window + at, &data);
        assert_eq!(stored.is_ok(), there == data.len(), "at {at} end {end}");
        // Of a copy that failed, what lies in the file's pages was made.
        if there > 0 {
            if stored.is_err() {
                user::copy_out(window + at, &data[..there]).unwrap();
            }
            let from = at.min(self.bytes.len());
            let inside = self.bytes.len().saturating_sub(at).min(there);
            self.bytes[from..from + inside].copy_from_slice(&data[..inside]);
        }
    }

    /// Looks at bytes through the mappings that there are.
    fn look(&self, from: usize, to: usize) {
        let to = to.min(self.bytes.len()).min(WINDOW);
        for mapped in [self.window, self.view].into_iter().flatten() {
            let mut got = vec![0; to.saturating_sub(from)];
            user::copy_in(&mut got, mapped + from).unwrap();
            assert!(
                got.is_empty() || got == self.bytes[from..to],
                "seen through a mapping"
            );
        }
    }

    fn allocate(&mut self, at: usize) {
        let end = at + 1 + self.random.below(20000);
        let (mode, zeroes, grows) = match self.random.below(4) {
            0 => (0, false, true),
            1 => (FALLOC_FL_KEEP_SIZE, false, false),
            2 => (FALLOC_FL_ZERO_RANGE, true, true),
            _ => (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, true, false),
        };
        let vnode = self.file.location().unwrap().vnode();
        match vnode.allocate(mode, at as u64, (end - at) as u64) {
            // A server has no such call.
            Err(Errno::EOPNOTSUPP) => return,
            allocated => allocated.unwrap(),
        }
        if grows {
            self.bytes.resize(self.bytes.len().max(end), 0);
        }
        if zeroes {
            let to = end.min(self.bytes.len());
            self.bytes[at.min(to)..to].fill(0);
        }
    }

    fn seek(&self, at: usize) {
        let end = self.bytes.len();
        let is_zero = |range: std::ops::Range<usize>| self.bytes[range].iter().all(|&b| b == 0);
        match self.file.seek(at as i64, SEEK_DATA) {
            Ok(data) => assert!(is_zero(at..data as usize) && (data as usize) < end),
            Err(error) => {
                assert_eq!(error, Errno::ENXIO);
                assert!(is_zero(at.min(end)..end));
            }
        }
        match self.file.seek(at as i64, SEEK_HOLE) {
            Ok(hole) => assert!(hole as usize >= at && hole as usize <= end),
            Err(error) => assert!(error == Errno::ENXIO && at >= end),
        }
    }

    /// Writes back, evicts or prefetches some pages.
    fn move_pages(&mut self, at: usize) {
        let first = (at / PAGE_SIZE) as u64;
        let (all, rest) = (0..u64::MAX, first..(WINDOW / PAGE_SIZE) as u64);
        let pager = self.file.pager().unwrap();
        match (self.random.below(5), self.file.cached()) {
            (0, Some(pages)) => pages.write_out(rest, false).unwrap(),
            (1, Some(pages)) => pages.sync(0..first, true).unwrap(),
            (2, Some(pages)) => drop(pages.give_up(all, usize::MAX)),
            (0 | 1, None) => pager.writeback(all, true).unwrap(),
            (2 | 3, _) => pager.evict(rest),
            _ => pager.prefetch(rest),
        }
    }

    fn map(&mut self, shared: bool) -> VirtAddr {
        map_file(self.map, self.file.pager().unwrap(), WINDOW, shared)
    }

    fn unmap(&mut self) {
        for mapped in [self.window.take(), self.view.take()].into_iter().flatten() {
            let range = VirtRange::new(mapped, mapped + WINDOW);
            self.map.unmap(range).unwrap();
        }
    }

    /// Starts again with what the backing store has.
    fn reopen(&mut self) {
        self.unmap();
        self.passed.clear();
        self.file.sync(false).unwrap();
        if let Some(pages) = self.file.cached() {
            assert_eq!(pages.errors().tell(&pages.errors().mark()), Ok(()));
            assert_eq!(pages.counts().dirty, 0);
        }
        self.file = (self.open)();
    }

    fn step(&mut self) {
        let at = self.random.below(WINDOW);
        match self.random.below(26) {
            0..=2 => self.write_bytes(at, 10000),
            3 => self.write_bytes(at, 200),
            4 if self.bytes.len() < WINDOW => self.append(),
            5 => self.write_from_program(at),
            // Whole pages may be passed on; of others each slice is a step of the write.
            6 if self.random.below(2) == 0 => self.write_slices(at),
            6 => self.write_slices(at / PAGE_SIZE * PAGE_SIZE),
            7 => self.keep(at),
            8 | 9 => self.read_bytes(at),
            10 => self.read_to_program(at),
            11..=14 => self.store(at),
            15 => {
                let to = at + self.random.below(20000);
                self.look(at, to);
            }
            16 | 17 => {
                let vnode = self.file.location().unwrap().vnode();
                vnode.truncate(at as u64).unwrap();
                self.bytes.resize(at, 0);
            }
            18 => self.allocate(at),
            19 => self.seek(at),
            20..=22 => self.move_pages(at),
            // With a mapping that may write pages are copied; without one they are passed on.
            _ => match (self.random.below(5), self.window) {
                (0, _) => self.reopen(),
                (1, Some(window)) => {
                    let range = VirtRange::new(window, window + WINDOW);
                    self.map.sync(range, true).unwrap();
                }
                (2, Some(_)) => self.unmap(),
                (3, _) if self.view.is_none() => self.view = Some(self.map(false)),
                (_, None) => self.window = Some(self.map(true)),
                _ => {}
            },
        }
        assert_eq!(
            self.file.attributes().unwrap().size,
            self.bytes.len() as u64
        );
    }

    fn compare(&mut self) {
        let mut got = vec![0; self.bytes.len() + 1];
        let n = self
            .file
            .read(Some(0), FLAGS, &mut BytesSink::new(&mut got));
        assert_eq!(n, Ok(self.bytes.len()));
        for (at, (is, was)) in got.iter().zip(&self.bytes).enumerate() {
            assert_eq!(is, was, "byte {at} of {n:?}");
        }
        self.look(0, WINDOW);
        for (data, expected) in &self.passed {
            let mut got = vec![0; data.len()];
            assert_eq!(data.peek(0, &mut got), expected.len());
            assert!(got == *expected, "what was passed on has changed");
        }
    }
}

fn map_zero(map: &Map, len: usize) -> VirtAddr {
    let request = MapRequest::zero(len, Prot::READ | Prot::WRITE);
    map.map(request).unwrap()
}

fn use_file(map: &Map, open: &Open, seed: u64) {
    let mut both = Both {
        map,
        open,
        file: open(),
        bytes: Vec::new(),
        random: Random::new(seed),
        buffer: map_zero(map, 8 * PAGE_SIZE),
        window: None,
        view: None,
        passed: Vec::new(),
    };
    for i in 0..STEPS {
        both.step();
        if i % 5 == 0 {
            both.compare();
        }
    }
    both.compare();
    both.reopen();
    both.compare();
}

#[test]
fn contents_are_those_of_the_model() {
    on_machines(24, 2, 1536, |seed| {
        // The flusher is always at it.
        dirty::EXPIRE.set(0);
        dirty::INTERVAL.set(1);
        stores::on_each(DISK, seed, |open| {
            let (open, over) = (open.clone(), Arc::new(AtomicBool::new(false)));
            in_space(2, move |map, i| {
                if i == 0 {
                    use_file(map, &open, seed);
                    over.store(true, SeqCst);
                    return;
                }
                // Memory is short all the time.
                let mut random = Random::new(seed + 99);
                while !over.load(SeqCst) {
                    page_cache::reclaim(1 + random.below(20));
                    pause(Duration::from_micros(random.below(2000) as u64));
                }
            });
        });
    });
}

#[test]
fn a_fault_ends_a_transfer_where_it_is() {
    on_machines(1, 1, 1024, |seed| {
        stores::on_each(4, seed, |open| {
            let open = open.clone();
            in_space(1, move |map, _| {
                let file = open();
                let at = map_zero(map, 4 * PAGE_SIZE);
                let hole = VirtRange::new(at + 2 * PAGE_SIZE, at + 4 * PAGE_SIZE);
                map.unmap(hole).unwrap();
                user::copy_out(at, &[7; 2 * PAGE_SIZE]).unwrap();
                let from = at + (2 * PAGE_SIZE - 5000);
                let mut source = UserBuffers::new(from, 9000).unwrap();
                assert_eq!(file.write(None, FLAGS, &mut source), Ok(5000));
                assert_eq!(file.write(None, FLAGS, &mut source), Err(Errno::EFAULT));
                assert_eq!(file.attributes().unwrap().size, 5000);
                let mut sink = UserBuffers::new(at + (2 * PAGE_SIZE - 100), 5000).unwrap();
                assert_eq!(file.read(Some(0), FLAGS, &mut sink), Ok(100));
                let mut sink = UserBuffers::new(hole.start, 5000).unwrap();
                assert_eq!(file.read(Some(0), FLAGS, &mut sink), Err(Errno::EFAULT));
                assert!(UserBuffers::new(VirtAddr(usize::MAX - 5), 10).is_err());

                // Buffers in an array: an empty one, one across pages, one that faults.
                let mut raw = Vec::new();
                for (base, len) in [(at.0, 0), (at.0 + 4000, 200), (hole.start.0, 50)] {
                    raw.extend_from_slice(&(base as u64).to_le_bytes());
                    raw.extend_from_slice(&(len as u64).to_le_bytes());
                }
                user::copy_out(at, &raw).unwrap();
                let mut sink = UserBuffers::vector(at, 3).unwrap();
                assert_eq!(sink.room(), 250);
                assert_eq!(sink.put_zeros(250), Ok(200));
                assert_eq!(sink.put_zeros(50), Err(Errno::EFAULT));
                assert_eq!(UserBuffers::vector(at, 3).unwrap().left(), 250);
                assert!(UserBuffers::vector(at, 1025).is_err());
            });
        });
    });
}

#[test]
fn a_full_file_system_says_so() {
    on_machines(1, 1, 1024, |_| {
        let options = Options {
            pages: Some(4),
            nodes: Some(3),
            ..Options::default()
        };
        let namespace = Namespace::new(ramfs::root(options), "tmpfs");
        with_walk(&namespace, |walk| {
            let open = |name: &[u8]| walk.open(name, FLAGS, 0o644);
            let file = open(b"a").unwrap();
            let vnode = file.location().unwrap().vnode();
            let write = || file.write(None, FLAGS, &mut BytesSource::new(&[1; 6 * PAGE_SIZE]));
            assert_eq!(write(), Ok(4 * PAGE_SIZE));
            assert_eq!(write(), Err(Errno::ENOSPC));
            assert_eq!(vnode.space().free, 0);
            vnode.truncate(100).unwrap();
            assert_eq!(vnode.space().free, 3);
            drop(open(b"b").unwrap());
            assert_eq!(open(b"c").err(), Some(Errno::ENOSPC));
            walk.remove(b"b", false).unwrap();
            drop(open(b"c").unwrap());
        });
    });
}
