//! Sets of changes that are too many to be told one by one.

use core::sync::atomic::AtomicUsize;

use super::*;

/// More than are told one by one.
const MANY: usize = 40;

/// One set has many changes of a space, and then of another one, which another CPU may have loaded.
#[test]
fn a_full_set_tells_all_cpus() {
    on_machines("a full set", [1, 2, 3], 1024, 20, narrow_two_spaces);
}

/// The simulated machine finds it if only the first space's CPUs are told.
#[test]
fn mistakes_are_found() {
    let like = Config {
        cpus: 3,
        pages: 1024,
        ..Config::default()
    };
    let body = || {
        user::set_fault_hook(|_, _| false);
        narrow_two_spaces();
    };
    Mistake::FullSetNotTold.assert_found(like, body, "written after a change");
}

fn narrow_two_spaces() {
    let frame = tagged_frames(1).remove(0);
    let start = VirtAddr(0x4000_0000);
    let range = VirtRange::new(start, start + MANY * PAGE_SIZE);
    let spaces: Vec<_> = (0..2).map(|_| Pmap::new().unwrap()).collect();
    let mut pending = Pending::new();
    for pmap in &spaces {
        for va in range.pages() {
            pmap.enter(va, &frame, READ_WRITE, &mut pending).unwrap();
        }
    }
    pending.flush();
    let (ready, changed) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let gate = Gate::new();
    for pmap in &spaces {
        let (ready, changed) = (ready.clone(), changed.clone());
        spawn(&gate, pmap, !0, move || {
            let writes = |va| user::write(va + 16, &1u32).is_ok();
            assert!(range.pages().all(writes));
            ready.fetch_add(1, Ordering::SeqCst);
            while !changed.load(Ordering::SeqCst) {
                task::yield_now();
            }
            assert!(!range.pages().any(writes), "written after a change");
        });
    }
    while ready.load(Ordering::SeqCst) < spaces.len() {
        task::yield_now();
    }
    for pmap in &spaces {
        pmap.protect(range, Prot::READ, &mut pending);
    }
    pending.flush();
    changed.store(true, Ordering::SeqCst);
    gate.wait_for(spaces.len());
    spaces.iter().for_each(|pmap| pmap.tear_down());
}
