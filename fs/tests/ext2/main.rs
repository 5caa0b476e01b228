//! ext2 on the simulated machine, judged by the host's own tools.

mod advice;
#[path = "../tree_model/both.rs"]
mod both;
mod crash;
mod damage;
mod machine;
#[path = "../tree_model/model.rs"]
mod model;
mod pinned;
mod rights;
#[path = "../support/mod.rs"]
mod support;
mod together;
mod tree;
