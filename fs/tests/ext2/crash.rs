//! Names after a power failure: synced ones exist after `e2fsck -fy`.

use std::{collections::BTreeMap, sync::Arc};

use fbuf::{BytesSink, BytesSource};
use fs::{Namespace, Vnode, vnode::Make};

use super::{
    machine::{self, Machine},
    support::{
        FLAGS, Random,
        image::{self, ROOMY},
        with_walk,
    },
};

type Files = BTreeMap<Vec<u8>, Vec<u8>>;

/// Creates, renames and removes; names whose file and directory are synced are recorded in `synced`
/// until they change again.
struct Work<'a> {
    namespace: &'a Arc<Namespace>,
    random: Random,
    synced: Files,
}

impl Work<'_> {
    fn path(&mut self) -> Vec<u8> {
        let directory = self.random.below(4);
        format!("/d{directory}/{}", self.random.below(12)).into_bytes()
    }

    fn above(path: &[u8]) -> Vec<u8> {
        path[..3].to_vec()
    }

    fn step(&mut self) {
        let path = self.path();
        let namespace = self.namespace.clone();
        with_walk(&namespace, |walk| match self.random.below(8) {
            0..=3 => {
                let data = self.random.bytes(6000);
                self.synced.remove(&path);
                let file = walk.open(&path, FLAGS, 0o644).unwrap();
                let vnode = file.location().unwrap().vnode().clone();
                vnode.truncate(0).unwrap();
                file.write(Some(0), FLAGS, &mut BytesSource::new(&data))
                    .unwrap();
                if self.random.below(2) == 0 {
                    vnode.sync(false).unwrap();
                    let above = walk.resolve(&Work::above(&path), true).unwrap();
                    above.vnode().sync(false).unwrap();
                    self.synced.insert(path, data);
                }
            }
            4 => {
                self.synced.remove(&path);
                let _ = walk.remove(&path, false);
            }
            5 => {
                let to = self.path();
                self.synced.remove(&path);
                self.synced.remove(&to);
                let _ = walk.rename(&path, walk, &to, 0);
            }
            6 => {
                let sub = [&path[..3], b"/sub"].concat();
                if walk.make(&sub, Make::Directory, 0o755).is_err() {
                    let _ = walk.remove(&sub, true);
                }
            }
            _ => {
                let to = [&path, &b"-link"[..]].concat();
                let _ = walk.remove(&to, false);
                let _ = walk
                    .resolve(&path, false)
                    .and_then(|place| walk.link(&place, &to));
            }
        });
    }
}

fn prepare(machine: &Machine) {
    let namespace = machine.mount();
    with_walk(&namespace, |walk| {
        for directory in 0..4 {
            let path = format!("/d{directory}");
            walk.make(path.as_bytes(), Make::Directory, 0o755).unwrap();
        }
    });
}

fn read(vnode: &Arc<dyn Vnode>) -> Vec<u8> {
    let mut bytes = vec![0; 10_000];
    let n = vnode.read(0, &mut BytesSink::new(&mut bytes)).unwrap();
    bytes.truncate(n);
    bytes
}

#[test]
fn what_was_synced_survives_a_power_cut() {
    for seed in nucleus::sim::seeds(1..13) {
        let empty = ROOMY.with_blocks(image::block_size(seed)).make();
        let (content, ()) = machine::run(seed, 1, empty, prepare);
        let (_, (left, synced, open)) = machine::run(seed, 2, content, move |machine| {
            let namespace = machine.mount();
            let mut work = Work {
                namespace: &namespace,
                random: Random::new(seed),
                synced: Files::new(),
            };
            for _ in 0..30 + work.random.below(120) {
                work.step();
            }
            // A file without a name, which the next check frees.
            let open = with_walk(&namespace, |walk| {
                let file = walk.open(b"/gone", FLAGS, 0o600).unwrap();
                let data = [9; 3000];
                file.write(Some(0), FLAGS, &mut BytesSource::new(&data))
                    .unwrap();
                walk.remove(b"/gone", false).unwrap();
                namespace.root().vnode().sync(false).unwrap();
                file
            });
            for _ in 0..work.random.below(20) {
                work.step();
            }
            let number = open.location().unwrap().attributes().unwrap().inode;
            (machine.disk.after_power_cut(), work.synced, number)
        });
        let repaired = image::repair(&left);
        let (_, ()) = machine::run(seed, 1, repaired, move |machine| {
            let namespace = machine.try_mount(true).unwrap();
            with_walk(&namespace, |walk| {
                for (path, bytes) in &synced {
                    let show = String::from_utf8_lossy(path);
                    let place = walk.resolve(path, false);
                    let place =
                        place.unwrap_or_else(|error| panic!("seed {seed}: {show}: {error:?}"));
                    assert!(read(place.vnode()) == *bytes, "seed {seed}: {show}");
                    assert_ne!(place.attributes().unwrap().inode, open);
                }
            });
        });
    }
}
