//! `MADV_DONTNEED` by several threads at once, of pages that they use, on 1 to 8 CPUs.

mod support;

use nucleus::{
    pmap::{self, Fork},
    sim,
};
use support::discards::discards;

#[test]
fn discarded_pages_are_gone_everywhere_at_once() {
    for cpus in 1..=8 {
        support::check("discard", 0..6, support::on_cpus(cpus), move || {
            let fork = [Fork::Share, Fork::Share, Fork::Copy][sim::random_u64() as usize % 3];
            pmap::set_fork(fork);
            vm::set_shared_tables([0, 0, 128][sim::random_u64() as usize % 3]);
            discards(cpus);
        });
    }
}
