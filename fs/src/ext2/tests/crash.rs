//! The state after a power failure, and disk errors.

use std::time::Duration;

use fbuf::{BytesSink, BytesSource};
use nucleus::{
    frame,
    sim::{self, Config},
};

use super::{
    super::inode::Inode,
    Mounted,
    files::{Model, compare, pages, read_all, shape},
    on_machines,
};
use crate::{
    block::Operation,
    page_cache::{self, Cached},
    support::{
        Random,
        image::{self, FIRST, Shape},
        pause,
    },
};

const FILES: u32 = 4;

/// A file and its content at the last sync, valid until it is changed again.
struct Synced {
    model: Model,
    at_sync: Option<Vec<u8>>,
}

impl Synced {
    fn all(mounted: &Mounted) -> Vec<Synced> {
        let synced = |model| Synced {
            model,
            at_sync: Some(Vec::new()),
        };
        Model::all(mounted, FILES).into_iter().map(synced).collect()
    }

    fn sync(&mut self, data_only: bool) {
        let synced = pages(&self.model.file).sync(0..u64::MAX, data_only);
        synced.unwrap();
        self.at_sync = Some(self.model.bytes.clone());
    }
}

#[test]
fn what_was_synced_survives_a_power_cut() {
    on_machines(6, |seed| {
        let mut random = Random::new(seed);
        let mounted = Mounted::of(shape(&mut random, FILES), seed);
        let disk = mounted.disk.clone();
        let mut files = Synced::all(&mounted);
        disk.set_delays(random.below(2) == 0);
        for _ in 0..120 {
            let which = random.below(files.len());
            let file = &mut files[which];
            match random.below(4) {
                0 => {
                    file.sync(random.below(2) == 0);
                }
                1 => {
                    // Power fails during a write.
                    pages(&file.model.file)
                        .write_out(0..u64::MAX, false)
                        .unwrap();
                }
                _ => {
                    file.at_sync = None;
                    file.model.step(&mut random);
                }
            }
            if random.below(8) > 0 {
                continue;
            }
            let repaired = image::repair(&disk.after_power_cut());
            for (number, file) in files.iter().enumerate() {
                if let Some(bytes) = &file.at_sync {
                    let found = image::content(&repaired, FIRST + number as u32);
                    assert!(found == *bytes, "file {number} is not what was synced");
                }
            }
        }
        drop(files);
        mounted.finish();
    });
}

/// A block is not reused while something on the medium refers to it: otherwise a truncated,
/// unsynced file would get the bytes of the next owner, or both would have the block.
#[test]
fn what_was_freed_is_not_used_again_too_early() {
    on_machines(12, |seed| {
        let mut random = Random::new(seed);
        let shape = Shape {
            kib: 300,
            ..shape(&mut random, 2)
        };
        let mounted = Mounted::of(shape, seed);
        let (fs, disk) = (mounted.fs.clone(), mounted.disk.clone());
        let (old, new) = (mounted.open(0), mounted.open(1));
        let fill = |file: &Inode, byte: u8| {
            let content = pages(file);
            let data = vec![byte; 8192];
            while let Ok((n, _)) = content.write(0, true, &mut BytesSource::new(&data)) {
                if n < data.len() {
                    break;
                }
            }
        };
        // All blocks belong to one file, on the medium as well.
        fill(&old, b'o');
        pages(&old).sync(0..u64::MAX, false).unwrap();
        let size = pages(&old).size();
        assert!(size > 100_000 && fs.space().free < 4);
        // It frees them and another file allocates them, without a sync.
        pages(&old).truncate(random.below(3000) as u64).unwrap();
        disk.set_delays(true);
        fill(&new, b'n');
        pages(&new).write_out(0..u64::MAX, false).unwrap();
        for _ in 0..8 {
            pages(&new).wait_written(0..random.below(20) as u64);
            let left = disk.after_power_cut();
            let found = image::content(&left, FIRST);
            let wrong = found.iter().position(|&byte| byte != b'o' && byte != 0);
            assert_eq!(wrong, None, "a byte of another file's");
            image::repair(&left);
        }
        drop((old, new));
        mounted.finish();
    });
}

/// A block's earlier bytes, another file's maybe, are never what a file has after a power failure,
/// whichever task has committed the metadata: a database's journal must not be an older one again.
#[test]
fn a_new_block_never_has_its_old_bytes() {
    on_machines(12, |seed| {
        let mut random = Random::new(seed);
        let mounted = Mounted::of(shape(&mut random, 3), seed);
        let (fs, disk) = (mounted.fs.clone(), mounted.disk.clone());
        let (old, new, other) = (mounted.open(0), mounted.open(1), mounted.open(2));
        for _ in 0..6 {
            let put = |file: &Inode, at: usize, bytes: &[u8]| {
                pages(file)
                    .write(at as u64, false, &mut BytesSource::new(bytes))
                    .unwrap();
            };
            put(&old, 0, &vec![b'o'; 60_000]);
            pages(&old).sync(0..u64::MAX, false).unwrap();
            pages(&old).truncate(0).unwrap();
            fs.sync_all().unwrap();
            disk.set_delays(random.below(2) == 0);
            for _ in 0..1 + random.below(6) {
                let at = random.below(50_000);
                put(&new, at, &vec![b'n'; 1 + random.below(10_000)]);
                put(&other, at, b"x");
                match random.below(3) {
                    0 => fs.commit().unwrap(),
                    1 => pages(&other).sync(0..u64::MAX, false).unwrap(),
                    _ => pages(&new).write_out(0..u64::MAX, false).unwrap(),
                }
                let left = image::repair(&disk.after_power_cut());
                let found = image::content(&left, FIRST + 1);
                let wrong = found.iter().position(|&byte| byte != b'n' && byte != 0);
                assert_eq!(wrong, None, "a byte of another file's");
            }
            disk.set_delays(false);
            pages(&new).truncate(0).unwrap();
            fs.sync_all().unwrap();
        }
        drop((old, new, other));
        mounted.finish();
    });
}

#[test]
fn errors_of_the_disk_lose_nothing_that_was_synced() {
    on_machines(8, |seed| {
        let mut random = Random::new(seed);
        let mounted = Mounted::of(shape(&mut random, FILES), seed);
        let (fs, disk) = (mounted.fs.clone(), mounted.disk.clone());
        let mut files = Synced::all(&mounted);
        for file in &mut files {
            file.model.step(&mut random);
            file.sync(false);
        }
        fs.sync_all().unwrap();
        let mut dice = Random::new(seed + 1000);
        disk.fail_when(move |_| dice.below(6) == 0);
        // The first half is changed while the disk fails; which of the changes reach it is unknown.
        for _ in 0..60 {
            let which = random.below(FILES as usize / 2);
            let pages = pages(&files[which].model.file);
            let at = random.below(60_000) as u64;
            let data = random.some(5000);
            let _ = match random.below(6) {
                0 => pages.truncate(at),
                1 => pages.punch(at, at + 20_000),
                2 => pages.sync(0..u64::MAX, false),
                3 => {
                    pages.give_up(0..u64::MAX, usize::MAX);
                    fs.commit()
                }
                _ => pages
                    .write(at, false, &mut BytesSource::new(&data))
                    .map(drop),
            };
        }
        disk.fail_no_more();
        for file in &files[FILES as usize / 2..] {
            file.model.check();
        }
        let untouched: Vec<Vec<u8>> = files.into_iter().map(|file| file.model.bytes).collect();
        let content = mounted.finish();
        for number in FILES / 2..FILES {
            assert!(image::content(&content, FIRST + number) == untouched[number as usize]);
        }
    });
}

#[test]
fn a_lack_of_memory_loses_nothing() {
    on_machines(6, |seed| {
        let mut random = Random::new(seed);
        let mounted = Mounted::of(shape(&mut random, FILES), seed);
        let fs = mounted.fs.clone();
        let mut models = Model::all(&mounted, FILES);
        for _ in 0..200 {
            let which = random.below(models.len());
            let model = &mut models[which];
            let pages = pages(&model.file).clone();
            let at = random.below(90_000);
            let data = random.some(6000);
            let action = random.below(8);
            if action == 0 {
                pages.sync(0..u64::MAX, false).unwrap();
                pages.give_up(0..u64::MAX, usize::MAX);
                fs.buffers.give_back(usize::MAX);
            }
            frame::fail_after(Some(random.below(6) as u64));
            match action {
                1 => {
                    // After an error, the size tells whether it came before or after the
                    // truncation.
                    let _ = pages.truncate(at as u64);
                    model.bytes.resize(pages.size() as usize, 0);
                }
                2 => drop(pages.sync(0..u64::MAX, true)),
                3 => drop(fs.commit()),
                4 => {
                    let mut got = vec![0; 9000];
                    let from = at.min(model.bytes.len());
                    if let Ok(n) = pages.read(at as u64, &mut BytesSink::new(&mut got)) {
                        assert!(got[..n] == model.bytes[from..from + n]);
                    }
                }
                _ => {
                    let mut source = BytesSource::new(&data);
                    if let Ok((n, _)) = pages.write(at as u64, false, &mut source) {
                        model.put(at, &data[..n]);
                    }
                }
            }
            frame::fail_after(None);
            model.check();
        }
        drop(fs);
        compare(mounted, models);
    });
}

/// A sync without memory fails, or has written everything.
#[test]
fn a_sync_that_says_it_is_done_is_done_though_memory_is_short() {
    on_machines(6, |seed| {
        let mut random = Random::new(seed);
        let shape = Shape {
            block: 1024,
            ..shape(&mut random, 1)
        };
        let mounted = Mounted::of(shape, seed);
        let mut file = Model::new(&mounted, 0);
        let mut kept = 0;
        for _ in 0..40 {
            // The block map must be read again, for which memory may be missing.
            let at = random.below(600_000);
            let data = random.some(3000);
            let content = pages(&file.file).clone();
            let (n, _) = content
                .write(at as u64, false, &mut BytesSource::new(&data))
                .unwrap();
            file.put(at, &data[..n]);
            mounted.fs.commit().unwrap();
            mounted.fs.buffers.give_back(usize::MAX);
            frame::fail_after(Some(random.below(10) as u64));
            let synced = content.sync(0..u64::MAX, true);
            frame::fail_after(None);
            if synced.is_ok() {
                kept += 1;
                mounted.after_power_cut(|left| {
                    assert!(read_all(&left.inode(FIRST).unwrap()) == file.bytes);
                });
            }
        }
        assert!(kept > 2, "{kept}");
        drop(file);
        mounted.finish();
    });
}

/// `fsync` writes the time stamps of the content, too; `fdatasync` need not.
#[test]
fn times_are_synced_with_the_content() {
    on_machines(4, |seed| {
        let mut random = Random::new(seed);
        let shape = Shape {
            inode: 256,
            ..shape(&mut random, 1)
        };
        let mounted = Mounted::of(shape, seed);
        let file = mounted.open(0);
        let write = || {
            let bytes = b"the same block";
            let written = pages(&file).write(0, false, &mut BytesSource::new(bytes));
            written.unwrap();
        };
        write();
        pages(&file).sync(0..u64::MAX, false).unwrap();
        for _ in 0..5 {
            let before = file.record().modified;
            while file.record().modified == before {
                pause(Duration::from_millis(3));
                write();
            }
            pages(&file).sync(0..u64::MAX, false).unwrap();
            mounted.after_power_cut(|left| {
                let kept = left.inode(FIRST).unwrap().record().modified;
                assert_eq!(kept, file.record().modified);
            });
        }
        drop(file);
        mounted.fs.unmount().unwrap();
    });
}

/// After a failed write the blocks hold the old bytes or part of the new, but no zeros.
#[test]
fn a_write_that_fails_does_not_take_what_was_there() {
    on_machines(6, |seed| {
        let mut random = Random::new(seed);
        let mounted = Mounted::of(shape(&mut random, 1), seed);
        let (disk, file) = (&mounted.disk, mounted.open(0));
        let content = pages(&file).clone();
        let put = |byte: u8| {
            let written = content.write(0, false, &mut BytesSource::new(&[byte; 50_000]));
            assert_eq!(written, Ok((50_000, 50_000)));
        };
        put(b'o');
        content.sync(0..u64::MAX, false).unwrap();
        put(b'n');
        disk.fail_when(|attempt| attempt.operation == Operation::Write);
        content.write_through(0..u64::MAX).unwrap();
        disk.fail_no_more();
        content.sync(0..u64::MAX, false).unwrap();
        content.give_up(0..u64::MAX, usize::MAX);
        let left = read_all(&file);
        let wrong = left.iter().position(|&byte| byte != b'o' && byte != b'n');
        assert_eq!(wrong, None, "a byte that was never written");
        drop((content, file));
        mounted.finish();
    });
}

/// A request under way may hold the last reference to the file system. Dropping it in the disk's
/// task must not unmount it there: the task would wait for itself.
#[test]
fn a_file_system_may_end_while_its_files_are_written() {
    let config = Config {
        cpus: 2,
        max_points: 1_000_000,
        ..Config::default()
    };
    let image = shape(&mut Random::new(1), 1).make();
    sim::check("end", 0..4, config, move || {
        page_cache::reset();
        let Mounted { fs, disk, .. } = Mounted::new(image.clone(), 1);
        let (device, file) = (fs.device().clone(), fs.inode(FIRST).unwrap());
        let content = pages(&file).clone();
        let data = vec![7; 40_000];
        content
            .write(0, false, &mut BytesSource::new(&data))
            .unwrap();
        disk.set_delays(true);
        content.write_out(0..u64::MAX, false).unwrap();
        drop(file);
        fs.forget();
        drop(fs);
        content.wait_written(0..u64::MAX);
        drop(content);
        assert_eq!(device.flush(), Ok(()));
        drop(device);
        page_cache::reset();
    });
}
