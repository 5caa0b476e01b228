//! Pages that come into receivers with a message, and go when it is freed.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicIsize, Ordering::SeqCst},
};

use abi::Errno;
use nucleus::{PAGE_SIZE, counters::Counter, task};

use super::process::{Process, SECURED, UNCACHED, pages};
use super::support::{Tasks, byte};

/// Makes an aggregate of `count` separate pages at `start`, with a number in each.
fn separate(sender: &Process, start: nucleus::VirtAddr, count: usize) {
    for (i, data) in sender.set_separate(start, count).enumerate() {
        assert_eq!(sender.map.write(data, &[i as u8, 1]), 2);
    }
}

fn entries(process: &Process) -> usize {
    let mut count = 0;
    process.map.for_each_entry(&mut |_| count += 1);
    count
}

/// However many pages a message has, the receivers' maps stay as they are: only page tables change,
/// and nothing is invalidated for a receiver to read what it was sent.
pub fn maps_stay(mode: u32) {
    const PAGES: usize = 200;
    let (sender, receiver) = (Process::new(), Process::new());
    let (path, start) = sender.path(mode);
    path.attach(&receiver.domain).expect("room");
    separate(&sender, start, PAGES);
    let data = |i: usize| start + (64 + 2 * i) * PAGE_SIZE;
    let mut known = None;
    for round in 0..3 {
        let invalidated = || {
            let counters = [
                Counter::tlb_local_page,
                Counter::tlb_local_full,
                Counter::tlb_remote,
            ];
            counters.map(Counter::total)
        };
        let before = invalidated();
        let (id, _) = path
            .send(&sender.domain, None, start.0 as u64)
            .expect("room");
        if mode & SECURED == 0 {
            assert_eq!(invalidated(), before, "something was invalidated");
        }
        path.receive(&receiver.domain).expect("a message");
        for i in 0..PAGES {
            let mut bytes = [0; 2];
            assert_eq!(receiver.map.read(data(i), &mut bytes), 2);
            assert_eq!(bytes, [i as u8, 1]);
        }
        let count = *known.get_or_insert(entries(&receiver));
        assert!(count < 5, "{count} entries");
        assert_eq!(entries(&receiver), count, "round {round}");
        path.free(&receiver.domain, id).expect("it is held");
        for i in 0..PAGES {
            assert_eq!(byte(&receiver.map, data(i)), 0, "it can still be read");
        }
        assert_eq!(entries(&receiver), count, "round {round}");
    }
    path.close();
    assert_eq!(byte(&receiver.map, data(0)), 0);
    receiver.leave();
    sender.leave();
}

/// What was read as zeros before it was sent shows what was sent, and again zeros.
pub fn read_before() {
    let (sender, receiver) = (Process::new(), Process::new());
    let (path, start) = sender.path(UNCACHED);
    path.attach(&receiver.domain).expect("room");
    sender.set_leaf(start, start + PAGE_SIZE, PAGE_SIZE);
    assert_eq!(sender.map.write(start + PAGE_SIZE, b"x"), 1);
    assert_eq!(sender.map.write(start + 2 * PAGE_SIZE, b"y"), 1);
    for _ in 0..3 {
        for page in 0..4 {
            assert_eq!(byte(&receiver.map, start + page * PAGE_SIZE), 0);
        }
        let (id, _) = path
            .send(&sender.domain, None, start.0 as u64)
            .expect("room");
        path.receive(&receiver.domain).expect("a message");
        let bytes = [1, 2].map(|page| byte(&receiver.map, start + page * PAGE_SIZE));
        assert_eq!(bytes, [b'x', 0]);
        path.free(&receiver.domain, id).expect("it is held");
    }
    path.close();
    receiver.leave();
    sender.leave();
}

/// How often it is asked whether the thread is to end until it is; below zero: never.
static LIFE: AtomicIsize = AtomicIsize::new(-1);

fn is_dying() -> bool {
    let left = LIFE.load(SeqCst);
    if left > 0 {
        LIFE.store(left - 1, SeqCst);
    }
    left == 0
}

/// A sender is killed in the middle of a large message: no part of it is left, with any receiver.
pub fn killed() {
    vm::set_dying(is_dying);
    for mode in [UNCACHED, UNCACHED | SECURED, SECURED] {
        let [sender, first, second] = [(); 3].map(|()| Process::new());
        let (path, start) = sender.path(mode);
        path.attach(&first.domain).expect("room");
        path.attach(&second.domain).expect("room");
        sender.set_leaf(start, start + PAGE_SIZE, 500 * PAGE_SIZE);
        for page in 1..501 {
            assert_eq!(sender.map.write(start + page * PAGE_SIZE, b"x"), 1);
        }
        let mut steps = 0;
        loop {
            LIFE.store(steps, SeqCst);
            let sent = path.send(&sender.domain, None, start.0 as u64);
            LIFE.store(-1, SeqCst);
            if sent.is_ok() {
                break;
            }
            assert_eq!(sent.err(), Some(Errno::EINTR));
            steps += 1;
            if mode & UNCACHED != 0 {
                for (receiver, page) in [(&first, 1), (&second, 1), (&first, 499), (&second, 499)] {
                    let at = start + page * PAGE_SIZE;
                    assert_eq!(byte(&receiver.map, at), 0, "a part of it is left");
                }
            }
            assert_eq!(path.receive(&first.domain), Ok(None));
            let written = sender.map.write(start + 300 * PAGE_SIZE, b"x");
            assert_eq!(written, 1, "a page is still secured");
        }
        assert!(steps >= 2, "it asked {steps} times only");
        path.close();
        [first, second, sender].iter().for_each(Process::leave);
    }
}

/// A process whose map is locked for long enters: others' paths get chunks meanwhile.
pub fn entering_waits_alone() {
    let sender = Process::new();
    let (path, _) = sender.path(UNCACHED);
    let map = super::support::new_map();
    let range = pages(super::support::HERE, 0, 1);
    super::support::map_zero(&map, range, false);
    let (is_locked, ends) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let tasks = Tasks::new();
    let (held, locked, ended) = (map.clone(), is_locked.clone(), ends.clone());
    tasks.spawn(!0, move || {
        held.for_each_entry(&mut |_| {
            locked.store(true, SeqCst);
            while !ended.load(SeqCst) {
                task::yield_now();
            }
        });
    });
    while !is_locked.load(SeqCst) {
        task::yield_now();
    }
    let entering = map.clone();
    tasks.spawn(!0, move || {
        let place = nucleus::sync::OnceArc::new();
        let domain = fbuf::region::Domain::enter(&entering, 2, &place).expect("room");
        domain.end();
    });
    for _ in 0..100 {
        task::yield_now();
    }
    let chunk = path.shrink(&sender.domain, fbuf::region::REGION_START.0 as u64);
    assert_eq!(chunk, Ok(()));
    path.grow(&sender.domain, 1).expect("memory");
    ends.store(true, SeqCst);
    tasks.wait_until(0);
    map.tear_down();
    path.close();
    sender.leave();
}
