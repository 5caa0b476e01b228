//! File contents through read, write, truncation, holes and mappings, compared with plain bytes.

mod support;

use std::sync::Arc;

use abi::Errno;
use abi::raw::general::{
    FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE, O_APPEND, O_CREAT, O_RDWR,
    SEEK_DATA, SEEK_HOLE,
};
use fbuf::{
    Aggregate, AggregateSink, AggregateSource, BytesSink, BytesSource, Sink, Source, UserSink,
    UserSource,
};
use fs::{
    Credentials, File, Namespace, OpenFlags, Walk,
    ramfs::{self, Options},
};
use nucleus::{Access, PAGE_SIZE, Prot, VirtAddr, VirtRange, task, user};
use support::Random;
use vm::{Backing, Limits, Map, MapRequest, Place};

const FLAGS: OpenFlags = OpenFlags::from_bits_retain(O_RDWR | O_CREAT);
/// Bytes that mappings of the file cover.
const WINDOW: usize = 16 * PAGE_SIZE;

/// Faults of the task are resolved in the map that is attached to it.
fn resolve(addr: VirtAddr, access: Access) -> bool {
    task::with_attachment(|attached| {
        let map = attached.and_then(|map| map.downcast_ref::<Space>());
        map.is_some_and(|space| space.0.fault(addr, access).is_ok())
    })
}

struct Space(Arc<Map>);

fn open(namespace: &Namespace, name: &str) -> Arc<dyn File> {
    let root = namespace.root();
    let who = Credentials::default();
    let walk = Walk {
        root: &root,
        start: &root,
        who: &who,
    };
    walk.open(name.as_bytes(), FLAGS, 0o644).unwrap()
}

/// Runs `body` in a task with an address space.
fn with_space(body: impl FnOnce(&Arc<Map>) + Send + 'static) {
    user::set_fault_hook(resolve);
    let map = Map::new(Limits::NONE, true).unwrap();
    let done = Arc::new((
        nucleus::sync::SpinLock::new(nucleus::sync::Rank::Leaf, false),
        task::WaitQueue::new(),
    ));
    let (inner, over) = (map.clone(), done.clone());
    let spawn = task::Spawn {
        name: "program",
        pmap: Some(map.pmap().clone()),
        attachment: Some(Arc::new(Space(map.clone()))),
        cpus: u64::MAX,
        priority: Default::default(),
    };
    let task = task::spawn(
        spawn,
        Box::new(move || {
            body(&inner);
            task::set_pmap(None);
            *over.0.lock() = true;
            over.1.wake_all();
        }),
    );
    drop(task.unwrap());
    let ended = done
        .1
        .wait(task::Sleep::SOUND, || done.0.lock().then_some(()));
    assert!(ended.is_ok());
    map.tear_down();
}

fn map_zero(map: &Map, len: usize) -> VirtAddr {
    map_backing(map, len, Backing::Zero, false)
}

fn map_backing(map: &Map, len: usize, backing: Backing, shared: bool) -> VirtAddr {
    let request = MapRequest {
        place: Place::Any,
        backing,
        shared,
        ..MapRequest::zero(len, Prot::READ | Prot::WRITE)
    };
    map.map(request).unwrap()
}

struct Both {
    file: Arc<dyn File>,
    model: Vec<u8>,
    random: Random,
    /// What was read into aggregates, and what it must stay.
    passed: Vec<(Aggregate, Vec<u8>)>,
    buffer: VirtAddr,
    /// A shared mapping that may write.
    window: Option<VirtAddr>,
    /// A private one that is only read.
    view: VirtAddr,
}

impl Both {
    fn put(&mut self, at: usize, data: &[u8]) {
        if !data.is_empty() {
            self.model.resize(self.model.len().max(at + data.len()), 0);
            self.model[at..at + data.len()].copy_from_slice(data);
        }
    }

    fn step(&mut self) {
        let at = self.random.below(WINDOW);
        let aligned = at / PAGE_SIZE * PAGE_SIZE;
        match self.random.below(12) {
            0 => {
                let data = self.random.bytes(10000);
                let mut source = BytesSource::new(&data);
                let n = self.file.write(Some(at as u64), FLAGS, &mut source);
                assert_eq!(n, Ok(data.len()));
                self.put(at, &data);
            }
            1 => {
                let data = self.random.bytes(6000);
                let end = self.model.len();
                if end + data.len() < WINDOW {
                    let flags = FLAGS | OpenFlags::from_bits_retain(O_APPEND);
                    let mut source = BytesSource::new(&data);
                    let n = self.file.write(None, flags, &mut source);
                    assert_eq!(n, Ok(data.len()));
                    self.put(end, &data);
                }
            }
            2 => self.write_from_program(at),
            3 => self.write_slices(aligned),
            4 | 5 => {
                let vnode = self.file.location().unwrap().vnode();
                vnode.truncate(at as u64).unwrap();
                self.model.resize(at, 0);
            }
            6 => self.allocate(at),
            7 => {
                let room = self.random.below(20000);
                let mut data = Aggregate::new();
                let mut sink = AggregateSink::new(&mut data, room);
                let n = self.file.read(Some(at as u64), FLAGS, &mut sink).unwrap();
                let from = at.min(self.model.len());
                let expected = self.model[from..from + n].to_vec();
                self.passed.push((data, expected));
                if self.passed.len() > 8 {
                    self.passed.remove(0);
                }
            }
            8 | 9 => self.write_mapping(at),
            10 => self.read_to_program(at),
            _ => self.seek(at),
        }
        self.compare();
    }

    fn write_from_program(&mut self, at: usize) {
        let data = self.random.bytes(9000);
        let from = self.buffer + self.random.below(5000);
        user::copy_out(from, &data).unwrap();
        let mut source = UserSource::new(from, data.len()).unwrap();
        let n = self.file.write(Some(at as u64), FLAGS, &mut source);
        assert_eq!(n, Ok(data.len()));
        self.put(at, &data);
    }

    /// Writes slices, whole pages among them, while keeping a copy of the chain.
    fn write_slices(&mut self, at: usize) {
        let mut data = Aggregate::new();
        for _ in 0..self.random.below(4) {
            let len = match self.random.below(3) {
                0 => self.random.below(PAGE_SIZE),
                _ => PAGE_SIZE,
            };
            let bytes: Vec<u8> = (0..len).map(|_| self.random.next() as u8).collect();
            let mut piece = Aggregate::new();
            piece.fill_from(&mut BytesSource::new(&bytes), len).unwrap();
            data.join(&mut piece).unwrap();
        }
        let mut bytes = vec![0; data.len()];
        data.peek(0, &mut bytes);
        if self.random.below(2) == 0 {
            self.passed.push((data.clone(), bytes.clone()));
        }
        let len = data.len();
        let mut source = AggregateSource::new(&mut data, len);
        let n = self.file.write(Some(at as u64), FLAGS, &mut source);
        assert_eq!(n, Ok(len));
        self.put(at, &bytes);
    }

    fn allocate(&mut self, at: usize) {
        let len = 1 + self.random.below(20000);
        let vnode = self.file.location().unwrap().vnode();
        let end = at + len;
        let (mode, zeroes, grows) = match self.random.below(4) {
            0 => (0, false, true),
            1 => (FALLOC_FL_KEEP_SIZE, false, false),
            2 => (FALLOC_FL_ZERO_RANGE, true, true),
            _ => (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, true, false),
        };
        vnode.allocate(mode, at as u64, len as u64).unwrap();
        if grows {
            self.model.resize(self.model.len().max(end), 0);
        }
        if zeroes {
            let to = end.min(self.model.len());
            self.model[at.min(to)..to].fill(0);
        }
    }

    /// Writes through the shared mapping, at times in the last page behind the end.
    fn write_mapping(&mut self, at: usize) {
        let Some(window) = self.window else {
            return;
        };
        let end = self.model.len().next_multiple_of(PAGE_SIZE).min(WINDOW);
        let mut data = self.random.bytes(3000);
        data.truncate(WINDOW - at);
        let bytes = user::copy_out(window + at, &data);
        if data.is_empty() {
            return;
        }
        let there = end.saturating_sub(at).min(data.len());
        assert_eq!(bytes.is_ok(), there == data.len(), "at {at} end {end}");
        // Of a copy that failed, what lies in the file's pages was made.
        let inside = self.model.len().saturating_sub(at).min(there);
        if there > 0 {
            if bytes.is_err() {
                user::copy_out(window + at, &data[..there]).unwrap();
            }
            let from = at.min(self.model.len());
            self.model[from..from + inside].copy_from_slice(&data[..inside]);
        }
    }

    fn read_to_program(&mut self, at: usize) {
        let len = self.random.below(12000);
        let mut sink = UserSink::new(self.buffer, len).unwrap();
        let n = self.file.read(Some(at as u64), FLAGS, &mut sink).unwrap();
        let expected = &self.model[at.min(self.model.len())..];
        assert_eq!(n, expected.len().min(len));
        assert_eq!(sink.room(), len - n);
        let mut got = vec![0; n];
        user::copy_in(&mut got, self.buffer).unwrap();
        assert!(got == expected[..n]);
    }

    fn seek(&mut self, at: usize) {
        let end = self.model.len();
        let is_zero = |range: std::ops::Range<usize>| self.model[range].iter().all(|&b| b == 0);
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

    fn compare(&self) {
        let mut bytes = vec![0; 3 * WINDOW];
        let mut sink = BytesSink::new(&mut bytes);
        let n = self.file.read(Some(0), FLAGS, &mut sink).unwrap();
        assert_eq!(n, self.model.len());
        assert!(bytes[..n] == self.model[..], "content");
        let attributes = self.file.attributes().unwrap();
        assert_eq!(attributes.size, n as u64);
        let mut seen = vec![0; n.min(WINDOW)];
        user::copy_in(&mut seen, self.view).unwrap();
        assert!(
            seen == self.model[..seen.len()],
            "content through a mapping"
        );
        for (data, expected) in &self.passed {
            let mut got = vec![0; data.len()];
            assert_eq!(data.peek(0, &mut got), expected.len());
            assert!(got == *expected, "what was passed on has changed");
        }
    }
}

#[test]
fn contents_are_those_of_the_model() {
    support::on_machines(20, 2, |seed| {
        let namespace = Namespace::new(ramfs::root(Options::default()), "rootfs");
        let file = open(&namespace, "file");
        with_space(move |map| {
            let buffer = map_zero(map, 8 * PAGE_SIZE);
            let view = map_backing(map, WINDOW, whole(&file), false);
            let mut both = Both {
                file,
                model: Vec::new(),
                random: Random::new(seed),
                passed: Vec::new(),
                buffer,
                window: None,
                view,
            };
            for i in 0..400 {
                // With a mapping that may write pages are copied; without one they are passed on.
                if i % 100 == 50 {
                    let window = map_backing(map, WINDOW, whole(&both.file), true);
                    both.window = Some(window);
                } else if i % 100 == 0
                    && let Some(window) = both.window.take()
                {
                    let range = VirtRange::new(window, window + WINDOW);
                    map.unmap(range).unwrap();
                }
                both.step();
            }
        });
    });
}

fn whole(file: &Arc<dyn File>) -> Backing {
    Backing::Object {
        pager: file.pager().unwrap(),
        offset: 0,
    }
}

#[test]
fn a_fault_ends_a_transfer_where_it_is() {
    support::on_machines(1, 1, |_| {
        let namespace = Namespace::new(ramfs::root(Options::default()), "rootfs");
        let file = open(&namespace, "file");
        with_space(move |map| {
            let at = map_zero(map, 4 * PAGE_SIZE);
            let hole = VirtRange::new(at + 2 * PAGE_SIZE, at + 4 * PAGE_SIZE);
            map.unmap(hole).unwrap();
            user::copy_out(at, &[7; 2 * PAGE_SIZE]).unwrap();
            let from = at + (2 * PAGE_SIZE - 5000);
            let mut source = UserSource::new(from, 9000).unwrap();
            assert_eq!(file.write(None, FLAGS, &mut source), Ok(5000));
            assert_eq!(file.write(None, FLAGS, &mut source), Err(Errno::EFAULT));
            assert_eq!(file.attributes().unwrap().size, 5000);
            let mut sink = UserSink::new(at + (2 * PAGE_SIZE - 100), 5000).unwrap();
            assert_eq!(file.read(Some(0), FLAGS, &mut sink), Ok(100));
            let mut sink = UserSink::new(hole.start, 5000).unwrap();
            assert_eq!(file.read(Some(0), FLAGS, &mut sink), Err(Errno::EFAULT));
            assert!(UserSink::new(VirtAddr(usize::MAX - 5), 10).is_err());

            // Buffers in an array: an empty one, one across pages, one that faults.
            let mut raw = Vec::new();
            for (base, len) in [(at.0, 0), (at.0 + 4000, 200), (hole.start.0, 50)] {
                raw.extend_from_slice(&(base as u64).to_le_bytes());
                raw.extend_from_slice(&(len as u64).to_le_bytes());
            }
            user::copy_out(at, &raw).unwrap();
            let mut sink = UserSink::vector(at, 3).unwrap();
            assert_eq!(sink.room(), 250);
            assert_eq!(sink.put_zeros(250), Ok(200));
            assert_eq!(sink.put_zeros(50), Err(Errno::EFAULT));
            assert_eq!(UserSource::vector(at, 3).unwrap().left(), 250);
            assert!(UserSource::vector(at, 1025).is_err());
        });
    });
}

#[test]
fn a_full_file_system_says_so() {
    support::on_machines(1, 1, |_| {
        let options = Options {
            pages: Some(4),
            nodes: Some(3),
            ..Options::default()
        };
        let namespace = Namespace::new(ramfs::root(options), "tmpfs");
        let file = open(&namespace, "a");
        let data = [1; 6 * PAGE_SIZE];
        let written = file.write(None, FLAGS, &mut BytesSource::new(&data));
        assert_eq!(written, Ok(4 * PAGE_SIZE));
        let more = file.write(None, FLAGS, &mut BytesSource::new(&data));
        assert_eq!(more, Err(Errno::ENOSPC));
        assert_eq!(file.location().unwrap().vnode().space().free, 0);
        file.location().unwrap().vnode().truncate(100).unwrap();
        assert_eq!(file.location().unwrap().vnode().space().free, 3);
        drop(open(&namespace, "b"));
        let root = namespace.root();
        let who = Credentials::default();
        let walk = Walk {
            root: &root,
            start: &root,
            who: &who,
        };
        assert_eq!(walk.open(b"c", FLAGS, 0o644).err(), Some(Errno::ENOSPC));
        walk.remove(b"b", false).unwrap();
        drop(walk.open(b"c", FLAGS, 0o644).unwrap());
    });
}
