//! The state after a power failure, and disk errors.

use std::{sync::Arc, time::Duration, vec::Vec};

use fbuf::{BytesSink, BytesSource};
use nucleus::{
    frame,
    sim::{self, Config},
    task::{self, Sleep},
    time,
};

use super::{
    super::inode::Inode,
    Random, device,
    files::{Model, open, pages, read_all, shape},
    image::{self, FIRST, Shape},
    mount, on_machines,
};
use crate::{block::Operation, ext2::Ext2, page_cache::Cached};

const FILES: u32 = 4;

/// A file and its content at the last sync, valid until it is changed again.
struct Synced {
    model: Model,
    at_sync: Option<Vec<u8>>,
}

fn files(fs: &Arc<Ext2>) -> Vec<Synced> {
    let synced = |number| Synced {
        model: Model {
            file: open(fs, FIRST + number),
            bytes: Vec::new(),
        },
        at_sync: Some(Vec::new()),
    };
    (0..FILES).map(synced).collect()
}

#[test]
fn what_was_synced_survives_a_power_cut() {
    on_machines(6, |seed| {
        let mut random = Random(seed);
        let content = shape(&mut random, FILES as usize).make();
        let (device, disk) = device(content, seed);
        let fs = mount(&device);
        let mut files = files(&fs);
        disk.set_delays(random.below(2) == 0);
        for _ in 0..120 {
            let which = random.below(files.len());
            let file = &mut files[which];
            match random.below(4) {
                0 => {
                    let data_only = random.below(2) == 0;
                    pages(&file.model.file)
                        .sync(0..u64::MAX, data_only)
                        .unwrap();
                    file.at_sync = Some(file.model.bytes.clone());
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
            image::check(&repaired);
            for (number, file) in files.iter().enumerate() {
                if let Some(bytes) = &file.at_sync {
                    let found = image::content(&repaired, FIRST + number as u32);
                    assert!(found == *bytes, "file {number} is not what was synced");
                }
            }
        }
        drop(files);
        disk.set_delays(false);
        fs.unmount().unwrap();
        image::check(&disk.content());
    });
}

/// A block is not reused while something on the medium refers to it: otherwise a truncated,
/// unsynced file would get the bytes of the next owner, or both would have the block.
#[test]
fn what_was_freed_is_not_used_again_too_early() {
    on_machines(12, |seed| {
        let mut random = Random(seed);
        let shape = Shape {
            kib: 300,
            files: 2,
            ..shape(&mut random, 2)
        };
        let (device, disk) = device(shape.make(), seed);
        let fs = mount(&device);
        let (old, new) = (open(&fs, FIRST), open(&fs, FIRST + 1));
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
            image::check(&image::repair(&left));
        }
        disk.set_delays(false);
        drop((old, new));
        fs.unmount().unwrap();
        image::check(&disk.content());
    });
}

#[test]
fn errors_of_the_disk_lose_nothing_that_was_synced() {
    on_machines(8, |seed| {
        let mut random = Random(seed);
        let content = shape(&mut random, FILES as usize).make();
        let (device, disk) = device(content, seed);
        let fs = mount(&device);
        let mut files = files(&fs);
        for file in &mut files {
            file.model.step(&mut random);
            pages(&file.model.file).sync(0..u64::MAX, false).unwrap();
            file.at_sync = Some(file.model.bytes.clone());
        }
        fs.sync_all().unwrap();
        let mut dice = Random(seed + 1000);
        disk.fail_when(move |_| dice.below(6) == 0);
        // The first half is changed while the disk fails; which of the changes reach it is unknown.
        for _ in 0..60 {
            let which = random.below(FILES as usize / 2);
            let pages = pages(&files[which].model.file);
            let at = random.below(60_000) as u64;
            let data = random.bytes(5000);
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
            assert!(read_all(&file.model.file) == file.model.bytes);
        }
        let untouched: Vec<Vec<u8>> = files.into_iter().map(|file| file.model.bytes).collect();
        fs.unmount().unwrap();
        let content = disk.content();
        image::check(&content);
        for number in FILES / 2..FILES {
            assert!(image::content(&content, FIRST + number) == untouched[number as usize]);
        }
    });
}

#[test]
fn a_lack_of_memory_loses_nothing() {
    on_machines(6, |seed| {
        let mut random = Random(seed);
        let content = shape(&mut random, FILES as usize).make();
        let (device, disk) = device(content, seed);
        let fs = mount(&device);
        let mut files = files(&fs);
        for _ in 0..200 {
            let which = random.below(files.len());
            let model = &mut files[which].model;
            let pages = pages(&model.file).clone();
            let at = random.below(90_000);
            let data = random.bytes(6000);
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
            assert!(read_all(&model.file) == model.bytes);
        }
        let bytes: Vec<Vec<u8>> = files.into_iter().map(|file| file.model.bytes).collect();
        fs.unmount().unwrap();
        let content = disk.content();
        image::check(&content);
        for (number, bytes) in bytes.iter().enumerate() {
            assert!(image::content(&content, FIRST + number as u32) == *bytes);
        }
    });
}

/// A sync without memory fails, or has written everything.
#[test]
fn a_sync_that_says_it_is_done_is_done_though_memory_is_short() {
    on_machines(6, |seed| {
        let mut random = Random(seed);
        let content = Shape {
            block: 1024,
            ..shape(&mut random, 1)
        };
        let (device, disk) = device(content.make(), seed);
        let fs = mount(&device);
        let mut file = Model {
            file: open(&fs, FIRST),
            bytes: Vec::new(),
        };
        let mut kept = 0;
        for _ in 0..40 {
            // The block map must be read again, for which memory may be missing.
            let at = random.below(600_000);
            let data = random.bytes(3000);
            let content = pages(&file.file).clone();
            let (n, _) = content
                .write(at as u64, false, &mut BytesSource::new(&data))
                .unwrap();
            file.put(at, &data[..n]);
            fs.commit().unwrap();
            fs.buffers.give_back(usize::MAX);
            frame::fail_after(Some(random.below(10) as u64));
            let synced = content.sync(0..u64::MAX, true);
            frame::fail_after(None);
            if synced.is_ok() {
                kept += 1;
                let (medium, _) = super::device(disk.after_power_cut(), seed);
                let left = Ext2::open(medium).unwrap();
                assert!(read_all(&open(&left, FIRST)) == file.bytes);
                left.forget();
            }
        }
        assert!(kept > 2, "{kept}");
        drop(file);
        fs.unmount().unwrap();
        image::check(&disk.content());
    });
}

/// `fsync` writes the time stamps of the content, too; `fdatasync` need not.
#[test]
fn times_are_synced_with_the_content() {
    on_machines(4, |seed| {
        let mut random = Random(seed);
        let content = Shape {
            inode: 256,
            ..shape(&mut random, 1)
        };
        let (device, disk) = device(content.make(), seed);
        let fs = mount(&device);
        let file = open(&fs, FIRST);
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
                task::sleep(Sleep {
                    interruptible: false,
                    deadline: Some(time::since_boot() + Duration::from_millis(3)),
                });
                write();
            }
            pages(&file).sync(0..u64::MAX, false).unwrap();
            let (medium, _) = super::device(disk.after_power_cut(), seed);
            let left = Ext2::open(medium).unwrap();
            let wanted = file.record().modified;
            let kept = open(&left, FIRST).record().modified;
            assert_eq!(kept, wanted);
            left.forget();
        }
        drop(file);
        fs.unmount().unwrap();
    });
}

/// After a failed write the blocks hold the old bytes or part of the new, but no zeros.
#[test]
fn a_write_that_fails_does_not_take_what_was_there() {
    on_machines(6, |seed| {
        let mut random = Random(seed);
        let (device, disk) = device(shape(&mut random, 1).make(), seed);
        let fs = mount(&device);
        let file = open(&fs, FIRST);
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
        fs.unmount().unwrap();
        image::check(&disk.content());
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
    let image = shape(&mut Random(1), 1).make();
    sim::check("end", 0..4, config, move || {
        crate::page_cache::reset();
        let (device, disk) = device(image.clone(), 1);
        let fs = mount(&device);
        let file = open(&fs, FIRST);
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
        crate::page_cache::reset();
    });
}
