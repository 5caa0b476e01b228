//! Images with random damage: a refused mount or I/O errors; never a panic or an endless loop.

use std::sync::Arc;

use fbuf::{BytesSink, BytesSource};
use fs::{Kind, Namespace, Vnode, Walk, vnode::Make};

use super::{
    machine,
    support::{
        FLAGS, Random,
        image::{self, Shape, TINY},
        with_walk,
    },
};

/// The number of images, of the three block sizes in turn; overridden by `IMAGES` in the
/// environment.
const USUAL: usize = 90;
/// The most files and directories visited in one image: a damaged tree may be far larger than the
/// image.
const MOST: usize = 400;

/// A file system with files of all kinds.
fn whole(block_size: usize) -> Vec<u8> {
    let empty = Shape {
        kib: 1600,
        ..TINY.with_blocks(block_size)
    }
    .make();
    let (content, ()) = machine::run(1, 1, empty, |machine| {
        let namespace = machine.mount();
        with_walk(&namespace, |walk| {
            let make = |path: &[u8], make| drop(walk.make(path, make, 0o755).unwrap());
            make(b"/d", Make::Directory);
            make(b"/d/e", Make::Directory);
            make(b"/d/long", Make::Link(vec![b'x'; 100]));
            make(b"/short", Make::Link(b"d".to_vec()));
            make(b"/pipe", Make::Fifo);
            // With indirect blocks and holes.
            for (name, len) in [(&b"/d/file"[..], 100_000), (b"/d/e/small", 700)] {
                let file = walk.open(name, FLAGS, 0o644).unwrap();
                let data = vec![7; len];
                file.write(Some(0), FLAGS, &mut BytesSource::new(&data))
                    .unwrap();
                file.write(Some(900_000), FLAGS, &mut BytesSource::new(&data[..9]))
                    .unwrap();
            }
            walk.link(&walk.resolve(b"/d/file", false).unwrap(), b"/again")
                .unwrap();
            for i in 0..30 {
                make(format!("/d/name-{i}").as_bytes(), Make::Socket);
            }
        });
    });
    image::check(&content, block_size);
    content
}

/// Damages bytes that matter: the head of the image with superblock, descriptors, bitmaps and
/// inodes, and directory and indirect blocks, which are not all zeros.
fn damage(content: &mut [u8], block_size: usize, random: &mut Random) {
    let used: Vec<usize> = (1024..content.len())
        .step_by(block_size.min(1024))
        .filter(|&at| {
            content[at..at + 64]
                .iter()
                .any(|&byte| byte != 0 && byte != 7)
        })
        .collect();
    for _ in 0..1 + random.below(12) {
        let at = match random.below(4) {
            0 => 1024 + random.below(300),
            1 => 1024 + random.below(24 * 1024),
            _ => used[random.below(used.len())] + random.below(block_size.min(1024)),
        };
        let what = random.next();
        match random.below(4) {
            0 => content[at] ^= 1 << (what % 8),
            1 => content[at] = what as u8,
            2 => content[at / 4 * 4..at / 4 * 4 + 4].copy_from_slice(&(what as u32).to_le_bytes()),
            // A small number: a plausible pointer, inode or length.
            _ => content[at / 4 * 4..at / 4 * 4 + 4]
                .copy_from_slice(&((what % 2000) as u32).to_le_bytes()),
        }
    }
}

/// Visits everything that can be reached.
fn look(walk: &Walk<'_>) -> Vec<Vec<u8>> {
    let mut paths = vec![b"/".to_vec()];
    let mut next = 0;
    while next < paths.len().min(MOST) {
        let path = paths[next].clone();
        next += 1;
        let Ok(place) = walk.resolve(&path, false) else {
            continue;
        };
        let vnode = place.vnode();
        let _ = vnode.attributes();
        match vnode.kind() {
            Kind::Directory => {
                let mut names = Vec::new();
                let _ = vnode.list(0, &mut |name, _, _, _| {
                    names.push(name.to_vec());
                    names.len() < MOST
                });
                for name in names {
                    paths.push([&path, &b"/"[..], &name].concat());
                }
            }
            Kind::Link => {
                let _ = vnode.read_link();
            }
            Kind::Regular => read(vnode),
            _ => {}
        }
    }
    paths
}

fn read(vnode: &Arc<dyn Vnode>) {
    let mut bytes = vec![0; 20_000];
    for offset in [0, 5000, 60_000, 895_000, u32::MAX as u64, 1 << 40] {
        let _ = vnode.read(offset, &mut BytesSink::new(&mut bytes));
    }
}

/// Changes existing files and creates more.
fn change(walk: &Walk<'_>, paths: &[Vec<u8>], random: &mut Random) {
    for _ in 0..25 {
        let path = &paths[random.below(paths.len().min(MOST))];
        let other = &paths[random.below(paths.len().min(MOST))];
        let new = [path, &b"/new"[..], &[b'a' + random.below(5) as u8]].concat();
        match random.below(8) {
            0 => drop(walk.remove(path, false)),
            1 => drop(walk.remove(path, true)),
            2 => drop(walk.rename(path, walk, &new, 0)),
            3 => drop(walk.rename(path, walk, other, random.below(3) as u32)),
            4 => drop(walk.make(&new, Make::Directory, 0o755)),
            5 => drop(
                walk.resolve(path, false)
                    .and_then(|place| walk.link(&place, &new)),
            ),
            _ => {
                let path = if random.below(2) == 0 { path } else { &new };
                if let Ok(file) = walk.open(path, FLAGS, 0o644) {
                    let data = random.bytes(9000);
                    let at = random.below(300_000) as u64;
                    let _ = file.write(Some(at), FLAGS, &mut BytesSource::new(&data));
                    let vnode = file.location().unwrap().vnode();
                    let _ = vnode.truncate(random.below(100_000) as u64);
                    if random.below(4) == 0 {
                        let _ = vnode.sync(false);
                    }
                }
            }
        }
    }
}

fn use_it(namespace: &Arc<Namespace>, random: &mut Random) {
    with_walk(namespace, |walk| {
        let paths = look(walk);
        change(walk, &paths, random);
        look(walk);
        let _ = namespace.root().vnode().sync(false);
    });
}

#[test]
fn damaged_images_are_refused_or_give_errors() {
    let wanted = std::env::var("IMAGES").ok().and_then(|n| n.parse().ok());
    let (mut refused, mut mounted) = (0, 0);
    for block_size in [1024, 2048, 4096] {
        let whole = whole(block_size);
        for number in 0..wanted.unwrap_or(USUAL) / 3 + 1 {
            let seed = (block_size + number) as u64;
            let mut random = Random::new(seed);
            let mut content = whole.clone();
            damage(&mut content, block_size, &mut random);
            let (_, was_mounted) = machine::run(seed, 1, content, move |machine| {
                let namespace = machine.try_mount(random.below(8) == 0);
                if let Ok(namespace) = &namespace {
                    use_it(namespace, &mut random);
                }
                namespace.is_ok()
            });
            match was_mounted {
                true => mounted += 1,
                false => refused += 1,
            }
        }
    }
    assert!(
        refused > 0 && mounted > refused,
        "{refused} were refused, {mounted} not"
    );
}
