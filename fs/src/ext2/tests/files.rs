//! Contents of files against plain bytes.

use std::sync::{Arc, Mutex};

use abi::Errno;
use fbuf::{BytesSink, BytesSource};
use nucleus::frame;

use super::{
    super::{content::Content, inode::Inode},
    Mounted, on_machines,
};
use crate::{
    page_cache::{Cached, InUse, PageCache, WriteBack},
    support::{
        Random,
        image::{self, FIRST, SMALL, Shape},
        in_tasks,
    },
};

pub(super) fn pages(file: &Inode) -> &Arc<PageCache<WriteBack<Content>>> {
    file.pages().unwrap()
}

pub(super) fn read_all(file: &Inode) -> Vec<u8> {
    let pages = pages(file);
    let mut bytes = vec![0; pages.size() as usize];
    let n = pages.read(0, &mut BytesSink::new(&mut bytes)).unwrap();
    assert_eq!(n, bytes.len());
    bytes
}

/// A random shape of a few MiB.
pub(super) fn shape(random: &mut Random, files: u32) -> Shape {
    Shape {
        kib: [2000, 4096, 9000][random.below(3)],
        block: image::block_size(random.next()),
        inode: [128, 256][random.below(2)],
        files: files as usize,
        more: [&[][..], &["-g", "1024"]][random.below(2)],
        ..SMALL
    }
}

/// A file, and the bytes that it has.
pub(super) struct Model {
    pub file: Arc<InUse<Inode>>,
    pub bytes: Vec<u8>,
}

impl Model {
    /// The file number `number`, which is empty.
    pub fn new(mounted: &Mounted, number: u32) -> Model {
        Model {
            file: mounted.open(number),
            bytes: Vec::new(),
        }
    }

    /// All files of a shape with `count`.
    pub fn all(mounted: &Mounted, count: u32) -> Vec<Model> {
        let model = |number| Model::new(mounted, number);
        (0..count).map(model).collect()
    }

    pub fn put(&mut self, at: usize, data: &[u8]) {
        if !data.is_empty() {
            self.bytes.resize(self.bytes.len().max(at + data.len()), 0);
            self.bytes[at..at + data.len()].copy_from_slice(data);
        }
    }

    /// Panics if the file has other bytes.
    #[track_caller]
    pub fn check(&self) {
        assert!(read_all(&self.file) == self.bytes);
    }

    pub fn step(&mut self, random: &mut Random) {
        let reach = [5_000, 40_000, 700_000][random.below(3)];
        let at = random.below(reach);
        let pages = pages(&self.file).clone();
        match random.below(10) {
            0..=3 => {
                let most = [100, 3000, 20_000][random.below(3)];
                let len = 1 + random.below(most);
                let data = random.some(len);
                match pages.write(at as u64, false, &mut BytesSource::new(&data)) {
                    Ok((n, end)) => {
                        assert_eq!(end, (at + n) as u64);
                        self.put(at, &data[..n]);
                    }
                    Err(error) => assert_eq!(error, Errno::ENOSPC),
                }
            }
            4 => {
                let data = random.some(2500);
                let end = self.bytes.len();
                if let Ok((n, _)) = pages.write(0, true, &mut BytesSource::new(&data)) {
                    self.put(end, &data[..n]);
                }
            }
            5 => match pages.truncate(at as u64) {
                Ok(()) => self.bytes.resize(at, 0),
                Err(error) => assert_eq!(error, Errno::ENOSPC),
            },
            6 => {
                let end = at + random.below(30_000);
                pages.punch(at as u64, end as u64).unwrap();
                let len = self.bytes.len();
                self.bytes[at.min(len)..end.min(len)].fill(0);
            }
            7 => {
                let end = at + 1 + random.below(30_000);
                let keep = random.below(2) == 0;
                match pages.allocate(at as u64, end as u64, keep) {
                    Ok(()) if keep => {}
                    Ok(()) => self.bytes.resize(self.bytes.len().max(end), 0),
                    Err(error) => assert_eq!(error, Errno::ENOSPC),
                }
            }
            8 => {
                pages.sync(0..u64::MAX, random.below(2) == 0).unwrap();
                pages.give_up(0..u64::MAX, usize::MAX);
            }
            _ => {
                let mut got = vec![0; random.below(9000)];
                let n = pages.read(at as u64, &mut BytesSink::new(&mut got));
                let n = n.unwrap();
                let from = at.min(self.bytes.len());
                assert_eq!(n, got.len().min(self.bytes.len() - from));
                assert!(got[..n] == self.bytes[from..from + n], "bytes from {at} on");
            }
        }
        assert_eq!(pages.size(), self.bytes.len() as u64);
    }
}

/// Unmounts; a fresh mount and `debugfs` must read the models' bytes.
pub(super) fn compare(mounted: Mounted, models: Vec<Model>) {
    models.iter().for_each(Model::check);
    let bytes: Vec<Vec<u8>> = models.into_iter().map(|model| model.bytes).collect();
    let seed = mounted.seed;
    let content = mounted.finish();
    for (number, bytes) in bytes.iter().enumerate() {
        assert!(image::content(&content, FIRST + number as u32) == *bytes);
    }
    let mounted = Mounted::new(content, seed);
    for (number, bytes) in bytes.iter().enumerate() {
        assert!(read_all(&mounted.open(number as u32)) == *bytes);
    }
    mounted.finish();
}

#[test]
fn mounting_and_unmounting_changes_nothing() {
    on_machines(6, |seed| {
        let mounted = Mounted::of(shape(&mut Random::new(seed), 0), seed);
        let space = mounted.fs.space();
        let root = mounted.fs.root().unwrap();
        assert_eq!(root.record().links, 3);
        drop(root);
        let mounted = Mounted::new(mounted.finish(), seed);
        assert_eq!(mounted.fs.space().free, space.free);
        mounted.finish();
    });
}

/// Does random steps with three files.
fn change_files(random: &mut Random, seed: u64, shape: Shape, steps: usize) {
    let mounted = Mounted::of(shape, seed);
    let mut models = Model::all(&mounted, 3);
    for _ in 0..steps {
        let which = random.below(models.len());
        models[which].step(random);
    }
    compare(mounted, models);
}

#[test]
fn files_are_those_of_the_model() {
    on_machines(12, |seed| {
        let mut random = Random::new(seed);
        let shape = shape(&mut random, 3);
        change_files(&mut random, seed, shape, 300);
    });
}

#[test]
fn a_full_disk_says_so_before_it_takes_bytes() {
    on_machines(6, |seed| {
        let mut random = Random::new(seed);
        let shape = Shape {
            kib: 400,
            ..shape(&mut random, 3)
        };
        change_files(&mut random, seed, shape, 150);
    });
}

#[test]
fn several_tasks_change_files_at_once() {
    const TASKS: u32 = 4;
    on_machines(6, |seed| {
        let mut random = Random::new(seed);
        let shape = Shape {
            kib: [500, 4000][random.below(2)],
            ..shape(&mut random, TASKS)
        };
        let mounted = Mounted::of(shape, seed);
        mounted.disk.set_delays(true);
        let models = Model::all(&mounted, TASKS);
        let models: Arc<Vec<Mutex<Model>>> = Arc::new(models.into_iter().map(Mutex::new).collect());
        let (fs, shared) = (mounted.fs.clone(), models.clone());
        in_tasks(TASKS as usize, move |number| {
            let mut random = Random::new(seed * 100 + number as u64);
            let mut model = shared[number].lock().unwrap();
            for _ in 0..60 {
                model.step(&mut random);
                if random.below(10) == 0 {
                    fs.sync_all().unwrap();
                }
            }
            model.check();
        });
        let models = Arc::into_inner(models).expect("the tasks have ended");
        let models = models.into_iter().map(|it| it.into_inner().unwrap());
        compare(mounted, models.collect());
    });
}

#[test]
fn far_blocks_have_their_pointers() {
    on_machines(3, |seed| {
        let shape = Shape {
            kib: 3000,
            block: image::block_size(seed),
            files: 1,
            ..SMALL
        };
        let mounted = Mounted::of(shape, seed);
        let (fs, file) = (&mounted.fs, mounted.open(0));
        let pages = pages(&file).clone();
        let pointers = shape.block as u64 / 4;
        // Before and after each place that needs one more level of indirect blocks.
        let edges = [12, 12 + pointers, 12 + pointers * (1 + pointers)];
        let mut random = Random::new(seed);
        let places = edges.map(|edge| edge * shape.block as u64);
        let most = pages.blocks().size_max;
        for place in places {
            let data = random.some(9000);
            let at = place - 4500;
            let written = pages.write(at, false, &mut BytesSource::new(&data));
            assert_eq!(written, Ok((9000, at + 9000)));
            pages.sync(0..u64::MAX, false).unwrap();
            pages.give_up(0..u64::MAX, usize::MAX);
            let mut got = vec![1; 9100];
            let n = pages.read(at, &mut BytesSink::new(&mut got)).unwrap();
            assert!(n == 9000 && got[..n] == data);
            let mut hole = [1; 5000];
            let read = pages.read(at - 5000, &mut BytesSink::new(&mut hole));
            assert!(read.is_ok() && hole.iter().all(|&byte| byte == 0));
        }
        let write = |at| pages.write(at, false, &mut BytesSource::new(&[7; 20]));
        assert_eq!(write(most - 10), Ok((10, most)));
        assert_eq!(write(most), Err(Errno::EFBIG));
        fs.sync_all().unwrap();
        let free = fs.space().free;
        // Truncates in the middle of each, from the last on.
        for &place in places.iter().rev() {
            pages.truncate(place).unwrap();
        }
        pages.truncate(0).unwrap();
        drop(pages);
        assert_eq!(file.record().sectors, 0);
        drop(file);
        assert!(fs.space().free > free);
        mounted.finish();
    });
}

/// A run of pages that is too long for the available memory is written in shorter ones.
#[test]
fn a_lack_of_memory_in_one_piece_makes_rows_shorter() {
    on_machines(2, |seed| {
        // With this block size one indirect block covers the file.
        let shape = Shape {
            block: 4096,
            inode: 128,
            files: 1,
            ..SMALL
        };
        let mounted = Mounted::of(shape, seed);
        let mut model = Model::new(&mounted, 0);
        let content = pages(&model.file).clone();
        for round in 0..4u8 {
            for at in (0..240).map(|block| block * 3000) {
                let data = [at as u8 ^ round; 1000];
                model.put(at, &data);
                let written = content.write(at as u64, false, &mut BytesSource::new(&data));
                assert!(written.is_ok());
            }
            // The first allocation is for a list of all of them.
            frame::seem_scarce_once(0);
            content.sync(0..u64::MAX, false).unwrap();
            assert_eq!(frame::failed(), u64::from(round) + 1);
            content.give_up(0..u64::MAX, usize::MAX);
            model.check();
        }
        drop((content, model));
        mounted.finish();
    });
}
