//! A path is charged with all the memory that it may keep.

#[path = "region/process.rs"]
mod process;
#[path = "../../vm/tests/support/mod.rs"]
mod support;

use std::{
    array,
    sync::{Arc, OnceLock},
};

use fbuf::region::{MOST_MESSAGES, Mode, Path};
use nucleus::sim::CountedHeap;
use process::{CACHED, Process};
use vm::account::{self, Account, Kind};

#[global_allocator]
static HEAP: CountedHeap = CountedHeap::new();

static ACCOUNT: OnceLock<Arc<Account>> = OnceLock::new();

/// The bytes that are kept, and those that are charged.
fn figures() -> [usize; 2] {
    let account = ACCOUNT.get().expect("an account");
    [HEAP.bytes(), account.bytes(Kind::Fbufs)]
}

/// Sends messages of so many ranges of pages each, which no receiver frees.
fn hoard(ranges: usize) {
    let sender = Process::new();
    let receivers: [Process; 15] = array::from_fn(|_| Process::new());
    let mut sums = [0; 2];
    let mut add = |before: [usize; 2]| {
        let now = figures();
        for (sum, (now, before)) in sums.iter_mut().zip(now.into_iter().zip(before)) {
            *sum += now - before;
        }
    };
    let before = figures();
    let mode = Mode::from_bits(CACHED).expect("a mode");
    let path = Path::new(&sender.domain, mode, 1).expect("memory");
    for receiver in &receivers {
        path.attach(&receiver.domain).expect("room");
    }
    add(before);
    let start = path.grow(&sender.domain, 1).expect("memory").start;
    drop(sender.set_separate(start, ranges));
    let before = figures();
    let mut sent = 0;
    for _ in 0..MOST_MESSAGES {
        if path.send(&sender.domain, None, start.0 as u64).is_err() {
            break;
        }
        sent += 1;
        for receiver in &receivers {
            path.receive(&receiver.domain).expect("a message");
        }
    }
    add(before);
    let [kept, charged] = sums;
    assert!(
        kept <= charged,
        "{sent} messages of {ranges} ranges: {kept} bytes kept, {charged} charged"
    );
    path.close();
    receivers.iter().for_each(Process::leave);
    sender.leave();
}

#[test]
fn paths_are_charged_with_what_they_keep() {
    account::set_current(|| ACCOUNT.get().cloned());
    support::once("charged", || {
        ACCOUNT.get_or_init(|| Account::of_user(1000));
        for ranges in [1, 3, 4, 5, 15, 16, 17, 100] {
            hoard(ranges);
        }
    });
}
