//! That `protect_apart.rs` would find a loan of pages whose right to be written is not flushed. A
//! program of its own: a failed run leaves its mark in the process.

mod support;

use nucleus::{Mistake, user};

#[test]
fn a_loan_of_unflushed_pages_is_found() {
    let body = || {
        user::set_fault_hook(support::resolve);
        support::lends::lends(3);
    };
    Mistake::UnflushedReused.assert_found(support::on_cpus(3), body, "lends.rs");
}
