//! That `unmap_apart.rs` would find a range that is mapped again before its flush. A program of its
//! own: a failed run leaves its mark in the process.

mod support;

use nucleus::{Mistake, user};

#[test]
fn a_range_that_is_mapped_again_before_its_flush_is_found() {
    let body = || {
        user::set_fault_hook(support::resolve);
        support::unmaps::unmaps(3);
    };
    Mistake::UnflushedReused.assert_found(support::on_cpus(3), body, "unmaps.rs");
}
