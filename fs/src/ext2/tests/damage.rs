//! Damaged images: an error or a refused mount, and never a panic.

use fbuf::{BytesSink, BytesSource};

use super::{
    Mounted, device,
    files::{Model, shape},
    on_machines,
};
use crate::{
    ext2::Ext2,
    page_cache::Cached,
    support::{Random, image::FIRST},
};

const FILES: u32 = 3;
const IMAGES: usize = 40;

/// Returns an image with some files, and how many bytes at the start of each group hold metadata.
fn filled(random: &mut Random) -> (Vec<u8>, usize, usize) {
    let mounted = Mounted::of(shape(random, FILES), 1);
    for number in 0..FILES {
        let mut model = Model::new(&mounted, number);
        (0..20).for_each(|_| model.step(random));
    }
    let geometry = &mounted.fs.geometry;
    let group = geometry.blocks_per_group as usize * geometry.block_size;
    let head = (8 + geometry.table_blocks as usize) * geometry.block_size;
    (mounted.finish(), group, head)
}

/// Uses a file in various ways.
fn use_file(fs: &std::sync::Arc<Ext2>, random: &mut Random, number: u32) {
    let Ok(file) = fs.inode(number) else { return };
    let Some(pages) = file.pages() else {
        for logical in 0..file.block_count().min(20) {
            let _ = file.block(logical);
        }
        return;
    };
    for _ in 0..4 {
        let at = random.below(300_000) as u64;
        let mut bytes = vec![0; 7000];
        let _ = match random.below(6) {
            0 => pages.truncate(at),
            1 => pages.punch(at, at + 20_000),
            2 => pages.sync(0..u64::MAX, false),
            3 => pages
                .write(at, false, &mut BytesSource::new(&bytes))
                .map(drop),
            _ => pages.read(at, &mut BytesSink::new(&mut bytes)).map(drop),
        };
    }
}

#[test]
fn damaged_images_do_not_panic() {
    on_machines(5, |seed| {
        let mut random = Random::new(seed);
        let (content, group, head) = filled(&mut random);
        for image in 0..IMAGES {
            let mut damaged = content.clone();
            // In the metadata, and only rarely in the superblock, where most damage prevents
            // mounting.
            for _ in 0..1 + random.below(60) {
                let at = random.below(content.len()) / group * group + random.below(head);
                if let Some(byte) = damaged.get_mut(at) {
                    *byte = [0, 1, 0xff, random.next() as u8][random.below(4)];
                }
            }
            if image % 4 > 0 {
                damaged[1024..2048].copy_from_slice(&content[1024..2048]);
            }
            let (device, _) = device(damaged, seed);
            let Ok(fs) = Ext2::open(device) else {
                continue;
            };
            let _ = fs.start_writing();
            let _ = fs.root();
            for _ in 0..10 {
                let number = 1 + random.below(FIRST as usize + 8) as u32;
                use_file(&fs, &mut random, number);
            }
            let _ = fs.sync_all();
            if fs.unmount().is_err() {
                fs.forget();
            }
        }
    });
}
