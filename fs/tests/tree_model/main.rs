//! The in-memory file system and the walk along paths, compared with a plain model under random
//! operations: the same results, the same error numbers, the same tree.

mod both;
mod model;
mod race;
#[path = "../support/mod.rs"]
mod support;

use both::Both;
use fs::{
    Namespace,
    ramfs::{self, Options},
};

#[test]
fn behaves_as_a_tree_of_maps() {
    support::on_machines(20, 1, |seed| {
        let namespace = Namespace::new(ramfs::root(Options::default()), "rootfs");
        let mut both = Both::new(namespace, seed);
        for i in 0..1500 {
            both.step();
            if i % 50 == 0 {
                both.compare();
            }
        }
        both.compare();
    });
}
