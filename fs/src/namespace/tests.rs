//! Walks and unmounts at the same time, and long ways, on the simulated machine.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use nucleus::{
    Mistake,
    sim::{Config, Together, below, on_machines_like},
    task,
};

use super::*;
use crate::{
    Credentials, Location, MountRequest,
    counters::Counter,
    ramfs::{self, Options},
    vnode::Make,
};

/// Calls `f` with a walk of root's.
fn with_walk<R>(namespace: &Namespace, f: impl FnOnce(&Walk<'_>) -> R) -> R {
    let (root, who) = (namespace.root(), Credentials::default());
    let (root, start) = (&root, &root);
    f(&Walk {
        root,
        start,
        who: &who,
    })
}

fn new_namespace(directories: &[&str]) -> Arc<Namespace> {
    let namespace = Namespace::new(ramfs::root(Options::default()), "rootfs");
    for path in directories {
        with_walk(&namespace, |walk| {
            walk.make(path.as_bytes(), Make::Directory, 0o755).unwrap();
        });
    }
    namespace
}

fn resolve(namespace: &Namespace, path: &str) -> abi::Result<Location> {
    with_walk(namespace, |walk| walk.resolve(path.as_bytes(), true))
}

fn mount_at(namespace: &Namespace, path: &str) {
    let at = resolve(namespace, path).unwrap();
    let root = ramfs::root(Options::default());
    let how = MountRequest::plain("ramfs");
    namespace.mount(&at, root, &how).unwrap();
}

/// However many mounts are stacked on a directory, a section crosses few: a walk to the top goes
/// on by references. One to a short stack needs none.
#[test]
fn a_section_crosses_few_mounts() {
    on_machines_like("stacks", [2], 2048, 3, Config::default(), || {
        let namespace = new_namespace(&["/low", "/high"]);
        for height in 0..200 {
            if height < 3 {
                mount_at(&namespace, "/low");
            }
            mount_at(&namespace, "/high");
        }
        // The mounts become biased.
        for path in ["/low", "/high"].repeat(40) {
            resolve(&namespace, path).unwrap();
        }
        let mut by_reference = [0; 2];
        for (count, path) in by_reference.iter_mut().zip(["/low", "/high"]) {
            let before = Counter::path_lookups_by_reference.total();
            resolve(&namespace, path).unwrap();
            with_walk(&namespace, |walk| {
                walk.attributes(path.as_bytes(), true).unwrap();
            });
            *count = Counter::path_lookups_by_reference.total() - before;
        }
        assert_eq!(by_reference, [0, 2]);
    });
}

/// Tasks find a mount and hold on to it while another unmounts it: an unmount that is not lazy
/// succeeds only while none has it.
fn hold_what_is_unmounted() {
    let namespace = new_namespace(&["/m"]);
    let together = Arc::new(Together::default());
    let has_ended = Arc::new(AtomicBool::new(false));
    mount_at(&namespace, "/m");
    for _ in 0..3 {
        let (namespace, has_ended) = (namespace.clone(), has_ended.clone());
        together.spawn(move || {
            while !has_ended.load(Ordering::SeqCst) {
                let held = resolve(&namespace, "/m").unwrap();
                if held.is_mount_root() {
                    (0..below(4)).for_each(|_| task::yield_now());
                    let is_attached = held.mount.attached.load(Ordering::Relaxed);
                    assert!(is_attached, "unmounted while a task has it");
                }
                drop(held);
                task::yield_now();
            }
        });
    }
    let shared = namespace.clone();
    together.spawn(move || {
        for _ in 0..60 {
            let at = resolve(&shared, "/m").unwrap();
            if shared.unmount(&at, false).is_ok() {
                drop(at);
                mount_at(&shared, "/m");
            }
            task::yield_now();
        }
        has_ended.store(true, Ordering::SeqCst);
    });
    together.join();
}

#[test]
fn a_mount_that_is_in_use_is_not_unmounted() {
    let like = Config::default();
    on_machines_like("unmounts", [2, 4], 1024, 20, like, hold_what_is_unmounted);
}

/// An unmount that leaves out references makes the test above fail.
#[test]
fn counts_that_are_not_gathered_are_found() {
    let like = Config {
        cpus: 4,
        pages: 1024,
        ..Config::default()
    };
    let wanted = "unmounted while a task has it";
    Mistake::CountsNotGathered.assert_found(like, hold_what_is_unmounted, wanted);
}
