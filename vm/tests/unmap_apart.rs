//! `munmap` by several threads at once, of memory whose places others get next, on 1 to 8 CPUs.

mod support;

use nucleus::{
    pmap::{self, Fork},
    sim,
};
use support::unmaps::unmaps;

#[test]
fn unmapped_pages_are_gone_everywhere_at_once() {
    for cpus in 1..=8 {
        support::check("unmap apart", 0..6, support::on_cpus(cpus), move || {
            let fork = [Fork::Share, Fork::Share, Fork::Copy][sim::random_u64() as usize % 3];
            pmap::set_fork(fork);
            vm::set_shared_tables([0, 0, 128][sim::random_u64() as usize % 3]);
            unmaps(cpus);
        });
    }
}
