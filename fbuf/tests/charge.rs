//! A path is charged with all the memory that it may keep.

#[path = "region/process.rs"]
mod process;
#[path = "../../vm/tests/support/mod.rs"]
mod support;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    array,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use fbuf::region::{MOST_MESSAGES, Mode, Path};
use nucleus::PAGE_SIZE;
use process::{CACHED, Process};
use vm::account::{self, Account, Kind};

/// Counts the bytes that are allocated now.
struct Counted;

static BYTES: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counted = Counted;

// SAFETY: all calls go to the system's allocator.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

static ACCOUNT: OnceLock<Arc<Account>> = OnceLock::new();

/// The bytes that are kept, and those that are charged.
fn figures() -> [usize; 2] {
    let account = ACCOUNT.get().expect("an account");
    [BYTES.load(Relaxed), account.bytes(Kind::Fbufs)]
}

/// Nobody frees messages of so many ranges of pages each.
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
    for i in 0..ranges {
        let at = start + i * 64;
        let data = start + (64 + 2 * i) * PAGE_SIZE;
        let next = if i + 1 < ranges { 64 } else { 32 };
        assert!(sender.set_node(at, [2, 0, (at + 32).0 as u64, (at + next).0 as u64]));
        sender.set_leaf(at + 32, data, 8);
    }
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
