//! The end of the machine.

use fs::{device, ext2};
use nucleus::{
    log,
    power::{self, Stop},
    sync::{Rank, SpinLock},
};

use crate::mounts;

/// Runs first, with the wait status of the first program if that has ended.
type Before = fn(Option<i32>);

/// The network's, and the sessions'.
static BEFORE: SpinLock<[Option<Before>; 2]> = SpinLock::new(Rank::Leaf, [None; 2]);

/// Adds a function that the end of the machine begins with, after those that were added earlier; it
/// may sleep.
pub fn add_before(before: Before) {
    let mut all = BEFORE.lock();
    let place = all.iter_mut().find(|it| it.is_none());
    *place.expect("there is a place for each caller") = Some(before);
}

fn run_before(status: Option<i32>) {
    let all = *BEFORE.lock();
    for before in all.into_iter().flatten() {
        before(status);
    }
}

/// Writes everything back; nothing changes on disks after it.
fn write_back() {
    for root in mounts::namespace().roots() {
        // No program is left that an error could be reported to.
        let _ = root.sync(false);
    }
    ext2::shut_down();
    device::sync_all();
}

/// The first program has ended with this wait status: says so and stops the machine.
pub fn finish(status: i32) -> ! {
    let code = if status & 0x7f == 0 {
        status >> 8 & 0xff
    } else {
        // As a shell counts a death by signal.
        128 + (status & 0x7f)
    };
    run_before(Some(status));
    write_back();
    log!("exit: status {code}");
    power::stop(Stop::Done)
}

/// `poweroff` and `halt`: an orderly end.
pub fn power_off() -> ! {
    run_before(None);
    write_back();
    log!("exit: status 0");
    power::stop(Stop::Done)
}

/// `reboot`: an orderly end and a new start.
pub fn restart() -> ! {
    run_before(None);
    write_back();
    power::stop(Stop::Restart)
}
