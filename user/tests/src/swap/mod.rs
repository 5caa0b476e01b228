//! Swap space: programs larger than the machine's memory, `swapon` and `swapoff`. The host gives
//! swap space as `/dev/vda` to a small machine; elsewhere these tests are skipped.

use support::prelude::*;

mod crowds;
mod devices;
mod pages;
mod state;

pub const TESTS: &[Test] = &[
    ("swap: what can't be swap space", devices::refusals),
    ("swap: pages that are sent away come back", pages::away),
    ("swap: lent pages", pages::lent),
    (
        "swap: a device is given up and taken again",
        devices::off_and_on,
    ),
    ("swap: a fork tree loses no slot", pages::fork_tree),
    ("swap: a file that is swap space", devices::on_a_file),
    ("swap: full", crowds::full),
    ("swap: a program larger than the machine", crowds::larger),
    (
        "swap: shared memory larger than the machine",
        crowds::larger_shared,
    ),
    (
        "swap: a shell beside a program larger than the machine",
        crowds::beside,
    ),
    // With a disk of which the host can't read a sector.
    (
        "unreadable: only who needs the page hears of it",
        devices::unreadable,
    ),
];
