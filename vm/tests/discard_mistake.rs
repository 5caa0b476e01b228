//! That `discard.rs` would find a discard that does not exclude faults. A program of its own: a
//! failed run leaves its mark in the process.

mod support;

use nucleus::{sim, user};
use vm::Mistake;

#[test]
fn a_discard_without_its_lock_is_found() {
    const SEEDS: u64 = 40;
    Mistake::DiscardedUnlocked.make();
    let found = (0..SEEDS).any(|seed| {
        let machine = sim::Config {
            seed,
            ..support::on_cpus(3)
        };
        let run = sim::run(machine, || {
            user::set_fault_hook(support::resolve);
            support::discards::discards(3);
        });
        run.is_err_and(|failure| failure.message.contains("discards.rs"))
    });
    assert!(found, "none of {SEEDS} runs has found it");
}
