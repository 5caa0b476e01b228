//! Contents of files against plain bytes.

use std::{sync::Arc, vec::Vec};

use abi::Errno;
use fbuf::{BytesSink, BytesSource};
use nucleus::{
    frame,
    sync::{Rank, SpinLock},
    task::{self, Sleep, Spawn, WaitQueue},
};

use super::{
    super::{content::Content, inode::Inode},
    Random, device,
    image::{self, FIRST, Shape},
    mount, on_machines,
};
use crate::{
    block::Device,
    ext2::Ext2,
    page_cache::{Cached, InUse, PageCache, WriteBack},
};

pub(super) fn open(fs: &Arc<Ext2>, number: u32) -> Arc<InUse<Inode>> {
    fs.inode(number).unwrap()
}

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
pub(super) fn shape(random: &mut Random, files: usize) -> Shape {
    let block = [1024, 2048, 4096][random.below(3)];
    Shape {
        kib: [2000, 4096, 9000][random.below(3)],
        block,
        inode: [128, 256][random.below(2)],
        files,
        more: [&[][..], &["-g", "1024"], &["-r", "0"]][match block {
            4096 => random.below(2),
            _ => random.below(2),
        }],
    }
}

pub(super) struct Model {
    pub file: Arc<InUse<Inode>>,
    pub bytes: Vec<u8>,
}

impl Model {
    pub fn put(&mut self, at: usize, data: &[u8]) {
        if !data.is_empty() {
            self.bytes.resize(self.bytes.len().max(at + data.len()), 0);
            self.bytes[at..at + data.len()].copy_from_slice(data);
        }
    }

    pub fn step(&mut self, random: &mut Random) {
        let reach = [5_000, 40_000, 700_000][random.below(3)];
        let at = random.below(reach);
        let pages = pages(&self.file).clone();
        match random.below(10) {
            0..=3 => {
                let most = [100, 3000, 20_000][random.below(3)];
                let len = 1 + random.below(most);
                let data = random.bytes(len);
                match pages.write(at as u64, false, &mut BytesSource::new(&data)) {
                    Ok((n, end)) => {
                        assert_eq!(end, (at + n) as u64);
                        self.put(at, &data[..n]);
                    }
                    Err(error) => assert_eq!(error, Errno::ENOSPC),
                }
            }
            4 => {
                let data = random.bytes(2500);
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

/// A fresh mount and `debugfs` must read the model's bytes.
fn compare(content: Vec<u8>, seed: u64, bytes: &[Vec<u8>]) {
    image::check(&content);
    for (number, bytes) in bytes.iter().enumerate() {
        assert!(image::content(&content, FIRST + number as u32) == *bytes);
    }
    let (device, disk) = device(content, seed);
    let fs = mount(&device);
    for (number, bytes) in bytes.iter().enumerate() {
        assert!(read_all(&open(&fs, FIRST + number as u32)) == *bytes);
    }
    fs.unmount().unwrap();
    image::check(&disk.content());
}

#[test]
fn mounting_and_unmounting_changes_nothing() {
    on_machines(6, |seed| {
        let mut random = Random(seed);
        let content = shape(&mut random, 0).make();
        let (device, disk) = device(content, seed);
        let fs = mount(&device);
        let space = fs.space();
        let root = fs.root().unwrap();
        assert_eq!(root.record().links, 3);
        drop(root);
        fs.unmount().unwrap();
        image::check(&disk.content());
        let fs = mount(&device);
        assert_eq!(fs.space().free, space.free);
        fs.unmount().unwrap();
    });
}

#[test]
fn files_are_those_of_the_model() {
    on_machines(12, |seed| {
        let mut random = Random(seed);
        let content = shape(&mut random, 3).make();
        let (device, disk) = device(content, seed);
        let fs = mount(&device);
        let mut models: Vec<Model> = (0..3)
            .map(|number| Model {
                file: open(&fs, FIRST + number),
                bytes: Vec::new(),
            })
            .collect();
        for _ in 0..300 {
            let which = random.below(models.len());
            models[which].step(&mut random);
        }
        for model in &models {
            assert!(read_all(&model.file) == model.bytes);
        }
        let bytes: Vec<Vec<u8>> = models.into_iter().map(|model| model.bytes).collect();
        finish(&fs, &device);
        drop((fs, device));
        compare(disk.content(), seed, &bytes);
    });
}

fn finish(fs: &Arc<Ext2>, device: &Arc<Device>) {
    fs.unmount().unwrap();
    assert_eq!(device.name(), "disk");
}

#[test]
fn far_blocks_have_their_pointers() {
    on_machines(3, |seed| {
        let shape = Shape {
            kib: 3000,
            block: [1024, 2048, 4096][seed as usize % 3],
            inode: 256,
            files: 1,
            more: &[],
        };
        let (device, disk) = device(shape.make(), seed);
        let fs = mount(&device);
        let file = open(&fs, FIRST);
        let pages = pages(&file).clone();
        let pointers = shape.block as u64 / 4;
        // Before and after each place that needs one more level of indirect blocks.
        let edges = [12, 12 + pointers, 12 + pointers * (1 + pointers)];
        let mut random = Random(seed);
        let places: Vec<u64> = edges.iter().map(|edge| edge * shape.block as u64).collect();
        let most = crate::page_cache::BlockStore::size_max(pages.blocks());
        for &place in &places {
            let data = random.bytes(9000);
            let at = place - 4500;
            assert_eq!(
                pages.write(at, false, &mut BytesSource::new(&data)),
                Ok((9000, at + 9000))
            );
            pages.sync(0..u64::MAX, false).unwrap();
            pages.give_up(0..u64::MAX, usize::MAX);
            let mut got = vec![1; 9100];
            let n = pages.read(at, &mut BytesSink::new(&mut got)).unwrap();
            assert!(n == 9000 && got[..n] == data);
            let mut hole = [1; 5000];
            pages
                .read(at - 5000, &mut BytesSink::new(&mut hole))
                .unwrap();
            assert!(hole.iter().all(|&byte| byte == 0));
        }
        let end = most - 10;
        assert_eq!(
            pages.write(end, false, &mut BytesSource::new(&[7; 20])),
            Ok((10, most))
        );
        let too_far = pages.write(most, false, &mut BytesSource::new(&[7; 20]));
        assert_eq!(too_far, Err(Errno::EFBIG));
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
        fs.unmount().unwrap();
        image::check(&disk.content());
    });
}

#[test]
fn a_full_disk_says_so_before_it_takes_bytes() {
    on_machines(6, |seed| {
        let mut random = Random(seed);
        let shape = Shape {
            kib: 400,
            files: 3,
            ..shape(&mut random, 3)
        };
        let (device, disk) = device(shape.make(), seed);
        let fs = mount(&device);
        let mut models: Vec<Model> = (0..3)
            .map(|number| Model {
                file: open(&fs, FIRST + number),
                bytes: Vec::new(),
            })
            .collect();
        for _ in 0..150 {
            let which = random.below(models.len());
            models[which].step(&mut random);
        }
        let bytes: Vec<Vec<u8>> = models.into_iter().map(|model| model.bytes).collect();
        finish(&fs, &device);
        drop((fs, device));
        compare(disk.content(), seed, &bytes);
    });
}

#[test]
fn several_tasks_change_files_at_once() {
    const TASKS: u32 = 4;
    on_machines(6, |seed| {
        let mut random = Random(seed);
        let shape = Shape {
            kib: [500, 4000][random.below(2)],
            ..shape(&mut random, TASKS as usize)
        };
        let (device, disk) = device(shape.make(), seed);
        let fs = mount(&device);
        disk.set_delays(true);
        let done = Arc::new((SpinLock::new(Rank::Leaf, Vec::new()), WaitQueue::new()));
        for number in 0..TASKS {
            let (fs, done) = (fs.clone(), done.clone());
            let mut model = Model {
                file: open(&fs, FIRST + number),
                bytes: Vec::new(),
            };
            let run = move || {
                let mut random = Random(seed * 100 + number as u64);
                for _ in 0..60 {
                    model.step(&mut random);
                    if random.below(10) == 0 {
                        fs.sync_all().unwrap();
                    }
                }
                assert!(read_all(&model.file) == model.bytes);
                drop(model.file);
                drop(fs);
                done.0.lock().push((number, model.bytes));
                done.1.wake_all();
            };
            let spawn = Spawn {
                name: "writer",
                pmap: None,
                attachment: None,
                cpus: u64::MAX,
                priority: Default::default(),
            };
            drop(task::spawn(spawn, Box::new(run)).unwrap());
        }
        let all = || (done.0.lock().len() == TASKS as usize).then_some(());
        assert!(done.1.wait(Sleep::SOUND, all).is_ok());
        let mut bytes = core::mem::take(&mut *done.0.lock());
        bytes.sort();
        let bytes: Vec<Vec<u8>> = bytes.into_iter().map(|(_, bytes)| bytes).collect();
        disk.set_delays(false);
        finish(&fs, &device);
        drop((fs, device));
        compare(disk.content(), seed, &bytes);
    });
}

/// A run of pages that is too long for the available memory is written in shorter ones.
#[test]
fn a_lack_of_memory_in_one_piece_makes_rows_shorter() {
    on_machines(2, |seed| {
        // With this block size one indirect block covers the file.
        let shape = Shape {
            kib: 4096,
            block: 4096,
            inode: 128,
            files: 1,
            more: &[],
        };
        let (device, disk) = device(shape.make(), seed);
        let fs = mount(&device);
        let mut model = Model {
            file: open(&fs, FIRST),
            bytes: Vec::new(),
        };
        let content = pages(&model.file).clone();
        for round in 0..4u8 {
            for at in (0..240).map(|block| block * 3000) {
                model.put(at, &[at as u8 ^ round; 1000]);
                let written = content.write(
                    at as u64,
                    false,
                    &mut BytesSource::new(&model.bytes[at..at + 1000]),
                );
                assert!(written.is_ok());
            }
            // The first allocation is for a list of all of them.
            frame::seem_scarce_once(0);
            content.sync(0..u64::MAX, false).unwrap();
            assert_eq!(frame::failed(), u64::from(round) + 1);
            content.give_up(0..u64::MAX, usize::MAX);
            assert!(read_all(&model.file) == model.bytes, "round {round}");
        }
        drop(content);
        drop(model);
        fs.unmount().unwrap();
        image::check(&disk.content());
    });
}
