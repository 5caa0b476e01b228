//! Directory trees.

use abi::Errno;
use fs::{Kind, vnode::Make};

use super::{
    both::Both,
    machine,
    support::{
        image::{self, ROOMY, Shape},
        names, with_walk,
    },
};

#[test]
fn what_was_made_is_there_after_the_next_mount() {
    for block_size in [1024, 2048, 4096] {
        let empty = ROOMY.with_blocks(block_size).make();
        let (content, ()) = machine::run(1, 1, empty, |machine| {
            let namespace = machine.mount();
            with_walk(&namespace, |walk| {
                let make = |path: &[u8], make| drop(walk.make(path, make, 0o700).unwrap());
                make(b"/d", Make::Directory);
                make(b"/d/e", Make::Directory);
                make(b"/d/pipe", Make::Fifo);
                make(b"/d/null", Make::CharDevice(0x103));
                make(b"/d/short", Make::Link(b"e".to_vec()));
                make(b"/d/long", Make::Link(vec![b'x'; 200]));
                walk.link(&walk.resolve(b"/d/pipe", false).unwrap(), b"/other")
                    .unwrap();
                walk.remove(b"/d/e", true).unwrap();
            });
        });
        image::check(&content, block_size);
        let (content, ()) = machine::run(2, 1, content, |machine| {
            let namespace = machine.try_mount(true).unwrap();
            let root = namespace.root().vnode().clone();
            let directory = root.lookup(b"d").unwrap();
            let expected: [(&[u8], Kind); 4] = [
                (b"long", Kind::Link),
                (b"null", Kind::CharDevice),
                (b"pipe", Kind::Fifo),
                (b"short", Kind::Link),
            ];
            let mut found = names(&directory).unwrap();
            found.sort_by(|a, b| a.0.cmp(&b.0));
            assert_eq!(found, expected.map(|(name, kind)| (name.to_vec(), kind)));
            let text = |name: &[u8]| directory.lookup(name).unwrap().read_link().unwrap();
            assert_eq!(
                (text(b"long"), text(b"short")),
                (vec![b'x'; 200], vec![b'e'])
            );
            let null = directory.lookup(b"null").unwrap().attributes().unwrap();
            assert_eq!(null.rdev, 0x103);
            let other = root.lookup(b"other").unwrap().attributes().unwrap();
            assert_eq!((other.links, directory.attributes().unwrap().links), (2, 2));
        });
        image::check(&content, block_size);
    }
}

/// Directories are kept in use by what is below them, and only as long as that is.
#[test]
fn a_deep_tree_without_users_is_unmounted() {
    let (content, ()) = machine::run(3, 1, ROOMY.make(), |machine| {
        let namespace = machine.mount();
        let root = namespace.root().vnode().clone();
        let mut path = Vec::new();
        with_walk(&namespace, |walk| {
            for _ in 0..12 {
                path.extend_from_slice(b"/d");
                walk.make(&path, Make::Directory, 0o755).unwrap();
            }
            let bottom = walk.resolve(&path, false).unwrap();
            assert_eq!(root.file_system().unwrap().retire(), Err(Errno::EBUSY));
            drop(bottom);
        });
        assert_eq!(root.file_system().unwrap().retire(), Ok(()));
    });
    image::check(&content, "unmounted");
}

/// A random tree with files, accessed through both, then after the next mount.
#[test]
fn behaves_as_a_tree_of_maps() {
    for seed in nucleus::sim::seeds(1..7) {
        let empty = Shape {
            kib: 8192,
            ..ROOMY.with_blocks(image::block_size(seed))
        }
        .make();
        let (content, model) = machine::run(seed, 1, empty, move |machine| {
            let mut both = Both::new(machine.mount(), seed);
            let root = both.namespace.root().vnode().clone();
            let found = root.lookup(b"lost+found").unwrap();
            root.remove(b"lost+found", &*found, true).unwrap();
            drop(root);
            for i in 0..700 {
                both.step();
                if i % 100 == 0 {
                    both.compare();
                }
            }
            both.compare();
            both.model
        });
        image::check(&content, seed);
        let (content, ()) = machine::run(seed, 1, content, move |machine| {
            let mut both = Both::new(machine.mount(), seed);
            both.model = model;
            both.compare();
        });
        image::check(&content, seed);
    }
}

/// Sets the link count of an inode of the first group, in an image with blocks of 1 KiB.
fn set_links(image: &mut [u8], inode: u64, links: u16) {
    let word = |at: usize| u32::from_le_bytes(image[at..at + 4].try_into().unwrap()) as usize;
    let size = word(1024 + 88) & 0xffff;
    let at = word(2048 + 8) * 1024 + (inode as usize - 1) * size + 26;
    image[at..at + 2].copy_from_slice(&links.to_le_bytes());
}

/// A directory with the largest number of subdirectories can exchange one for another.
#[test]
fn the_most_directories_may_change_places() {
    const MOST: u16 = 32_000;
    let empty = ROOMY.make();
    let (mut content, full) = machine::run(1, 1, empty, |machine| {
        let namespace = machine.mount();
        with_walk(&namespace, |walk| {
            for path in ["/full", "/full/a", "/full/b", "/c", "/d", "/e"] {
                walk.make(path.as_bytes(), Make::Directory, 0o755).unwrap();
            }
            walk.resolve(b"/full", true)
                .unwrap()
                .attributes()
                .unwrap()
                .inode
        })
    });
    set_links(&mut content, full, MOST);
    let (mut content, ()) = machine::run(1, 1, content, move |machine| {
        let namespace = machine.mount();
        with_walk(&namespace, |walk| {
            let links = || {
                let full = walk.resolve(b"/full", true).unwrap();
                full.attributes().unwrap().links
            };
            let made = walk.make(b"/full/f", Make::Directory, 0o755);
            assert_eq!(made.err(), Some(Errno::EMLINK));
            assert_eq!(walk.rename(b"/c", walk, b"/full/f", 0), Err(Errno::EMLINK));
            assert_eq!(walk.rename(b"/c", walk, b"/full/a", 0), Ok(()));
            let exchange = abi::raw::general::RENAME_EXCHANGE;
            assert_eq!(walk.rename(b"/d", walk, b"/full/b", exchange), Ok(()));
            assert_eq!(links(), u32::from(MOST));
            assert_eq!(walk.rename(b"/full/b", walk, b"/full/a", 0), Ok(()));
            assert_eq!(links(), u32::from(MOST) - 1);
            assert_eq!(walk.rename(b"/full/a", walk, b"/e", 0), Ok(()));
            assert_eq!(links(), u32::from(MOST) - 2);
        });
    });
    set_links(&mut content, full, 2);
    image::check(&content, "places");
}
