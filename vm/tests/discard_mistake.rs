//! That `discard.rs` would find a discard that does not exclude faults. A program of its own: a
//! failed run leaves its mark in the process.

mod support;

use nucleus::{Mistake, user};

#[test]
fn a_discard_without_its_lock_is_found() {
    let body = || {
        user::set_fault_hook(support::resolve);
        support::discards::discards(3);
    };
    Mistake::DiscardedUnlocked.assert_found(support::on_cpus(3), body, "discards.rs");
}
