//! Several tasks in the same directories.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    machine,
    support::{
        Random, change_tree,
        image::{self, ROOMY, TINY},
        in_tasks, names, with_walk,
    },
};
use fbuf::BytesSink;
use fs::{
    Kind, MountRequest, Namespace, ext2,
    ramfs::{self, Options},
    vnode::Make,
};

const TASKS: usize = 3;

fn work(namespace: &Arc<Namespace>, seed: u64) {
    let mut random = Random::new(seed);
    with_walk(namespace, |walk| {
        for _ in 0..150 {
            let _ = change_tree(&mut random, walk);
        }
    });
}

/// All paths, with type, link count and content.
fn all(namespace: &Arc<Namespace>) -> BTreeMap<Vec<u8>, (Kind, u32, Vec<u8>)> {
    let mut all = BTreeMap::new();
    let mut todo = vec![b"".to_vec()];
    with_walk(namespace, |walk| {
        while let Some(path) = todo.pop() {
            let from = if path.is_empty() { &b"/"[..] } else { &path };
            let place = walk.resolve(from, false).unwrap();
            let attributes = place.attributes().unwrap();
            let mut bytes = vec![0; 10_000];
            if attributes.kind == Kind::Regular {
                let n = place
                    .vnode()
                    .read(0, &mut BytesSink::new(&mut bytes))
                    .unwrap();
                bytes.truncate(n);
            } else {
                bytes.clear();
                for (name, _) in names(place.vnode()).unwrap() {
                    todo.push([&path, &b"/"[..], &name].concat());
                }
            }
            all.insert(path, (attributes.kind, attributes.links, bytes));
        }
    });
    all
}

#[test]
fn tasks_do_not_harm_each_other() {
    let mut most = 0;
    for seed in nucleus::sim::seeds(1..9) {
        let empty = ROOMY.with_blocks(image::block_size(seed)).make();
        let (content, before) = machine::run(seed, 2, empty, move |machine| {
            let namespace = machine.mount();
            let shared = namespace.clone();
            in_tasks(TASKS, move |number| {
                work(&shared, seed * 100 + number as u64)
            });
            all(&namespace)
        });
        image::check(&content, seed);
        let (_, after) = machine::run(seed, 1, content, |machine| all(&machine.mount()));
        assert!(
            before == after,
            "seed {seed}: another tree after the next mount"
        );
        most = most.max(before.len());
    }
    assert!(most > 5, "the trees are small: {most}");
}

/// A task that has just looked at a file system does not keep its disk from being mounted again.
#[test]
fn a_disk_that_was_unmounted_can_be_mounted() {
    let (content, ()) = machine::run(1, 2, TINY.make(), |machine| {
        let namespace = Namespace::new(ramfs::root(Options::default()), "rootfs");
        with_walk(&namespace, |walk| {
            walk.make(b"/disk", Make::Directory, 0o755).unwrap();
            let at = || walk.resolve(b"/disk", true).unwrap();
            let mount = || {
                let root = ext2::mount(&machine.device, b"", false)?;
                namespace.mount(&at(), root, &MountRequest::plain("ext2"))
            };
            assert_eq!(mount(), Ok(()));
            let roots = namespace.roots();
            assert_eq!(namespace.unmount(&at(), false), Ok(()));
            assert_eq!(mount(), Ok(()));
            drop(roots);
            assert_eq!(namespace.unmount(&at(), false), Ok(()));
        });
    });
    image::check(&content, "mounted");
}
