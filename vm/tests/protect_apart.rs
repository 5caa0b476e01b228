//! `mprotect` by several threads at once, of pages that others write, discard and lend, on 1 to 8
//! CPUs.

mod support;

use support::lends::lends;

#[test]
fn lent_pages_do_not_change() {
    for cpus in 1..=8 {
        support::check("protect apart", 0..6, support::on_cpus(cpus), move || {
            lends(cpus);
        });
    }
}
