//! Mappings that stay: they belong to one address space and one place. And pages of an object that
//! may not be written for a time.

mod support;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::SeqCst},
};

use nucleus::{Access, Frame, PAGE_SIZE, Prot, VirtRange, frame::Contents, pmap::Pending};
use support::{HERE, RW, Worker, byte, map_zero, new_map, once, page, pages};
use vm::{
    Advice, Backing, Fault, Inherit, Limits, Lock, Lookup, Map, MapError, MapRequest, Object,
    Pager, PagerError, Passing, Place,
    account::{Kind, Stock},
};

/// Shared memory that can refuse writes.
struct Guarded {
    object: Object,
    refuses: AtomicBool,
}

impl Guarded {
    fn new() -> Arc<Guarded> {
        Arc::new(Guarded {
            object: Object::of_zeros(8, Stock::new(None, Kind::SharedMemory)),
            refuses: AtomicBool::new(false),
        })
    }
}

impl Pager for Guarded {
    fn object(&self) -> &Object {
        &self.object
    }

    fn lookup(&self, index: u64) -> Result<Lookup, PagerError> {
        let make = || Ok(Frame::alloc(Contents::Zeroed)?);
        self.object.get_or_insert(index, make)
    }

    fn reserve(&self, _: u64) -> Result<(), PagerError> {
        match self.refuses.load(SeqCst) {
            true => Err(PagerError::Protected),
            false => Ok(()),
        }
    }

    fn mark_dirty(&self, _: u64, entering: Option<&Frame>) -> bool {
        entering.is_none() || !self.refuses.load(SeqCst)
    }
}

fn request(range: VirtRange, pager: &Arc<Guarded>) -> MapRequest {
    MapRequest {
        place: Place::FixedOverStaying(range.start),
        backing: Backing::Object {
            pager: pager.clone(),
            offset: 0,
        },
        shared: true,
        stays: true,
        ..MapRequest::zero(range.len(), RW)
    }
}

fn staying() -> (Arc<Map>, Arc<Guarded>) {
    let (map, pager) = (new_map(), Guarded::new());
    map.map(request(pages(0, 8), &pager)).expect("room");
    assert_eq!(map.write(page(2), b"x"), 1);
    (map, pager)
}

#[test]
fn it_is_neither_moved_nor_inherited_nor_passed() {
    once("staying", || {
        let (map, _pager) = staying();
        let other = new_map();
        for to in [Place::Any, Place::Fixed(page(100))] {
            let moved = map.remap(pages(0, 8), 9 * PAGE_SIZE, true, to, false);
            assert_eq!(moved, Err(MapError::Invalid));
        }
        let again = map.remap(pages(0, 0), 8 * PAGE_SIZE, true, Place::Any, false);
        assert_eq!(again, Err(MapError::Invalid));
        for how in [Passing::Copy, Passing::Move, Passing::Share] {
            let passed = map.pass_entries(pages(1, 2), &other, Place::Any, how, &|| true);
            assert_eq!(passed, Err(MapError::Unsupported));
        }
        for inherit in [Inherit::Share, Inherit::Copy, Inherit::Zero] {
            assert_eq!(map.inherit(pages(0, 8), inherit), Err(MapError::Invalid));
        }
        for advice in [Advice::DoFork, Advice::KeepOnFork, Advice::WipeOnFork] {
            assert_eq!(map.advise(pages(0, 8), advice), Err(MapError::Invalid));
        }
        let child = map.fork().expect("memory");
        assert!(child.entry_at(page(2)).is_none());
        assert_eq!(byte(&map, page(2)), b'x');
    });
}

#[test]
fn it_is_replaced_only_by_its_like_and_unmapped_alone() {
    once("staying", || {
        let (map, pager) = staying();
        // The program's own.
        map_zero(&map, pages(3, 1), false);
        assert_eq!(map.write(page(3), b"o"), 1);
        let over = map.map(request(pages(0, 8), &pager));
        assert_eq!(over, Err(MapError::Exists));
        assert_eq!(map.map(request(pages(4, 4), &pager)), Ok(page(4)));
        map.unmap_staying(pages(1, 6));
        for i in 0..8 {
            let is_left = map.entry_at(page(i)).is_some();
            assert_eq!(is_left, [0, 3, 7].contains(&i), "{i}");
        }
        assert_eq!(byte(&map, page(3)), b'o');
        assert_eq!(map.map(request(pages(4, 4), &pager)), Ok(page(4)));
    });
}

#[test]
fn pages_that_may_not_be_written_fault_on_every_cpu() {
    once("protected", || {
        let (map, pager) = staying();
        let workers = Worker::on_each(&map, 2);
        for round in 0..20 {
            for (i, worker) in workers.iter().enumerate() {
                assert!(worker.write(page(i), vec![round]));
            }
            pager.refuses.store(true, SeqCst);
            assert!(pager.object.write_protect(0..4));
            for worker in &workers {
                for i in 0..4 {
                    assert!(!worker.write(page(i), vec![99]), "page {i}");
                }
                assert_eq!(worker.read(page(1), 1), Some(vec![round]));
            }
            assert_eq!(map.fault(page(1), Access::Write), Err(Fault::Protection));
            assert_eq!(map.write(page(1), &[99]), 0);
            pager.refuses.store(false, SeqCst);
        }
        assert!(workers[0].write(HERE, vec![1]));
        // A device that writes a page keeps its right.
        let held = map.pin(pages(0, 1), Access::Write).expect("memory");
        assert!(!pager.object.write_protect(0..4));
        drop(held);
        assert!(pager.object.write_protect(0..4));
        workers.into_iter().for_each(Worker::end);
        assert!(map.protect(pages(0, 8), Prot::READ).is_ok());
    });
}

/// The right to write goes and comes back for many pages at once, and only where it was: not for
/// memory that the program has protected or replaced, for pages that are lent, or that may not be
/// written yet.
#[test]
fn rights_come_back_without_a_fault() {
    once("protected", || {
        let (map, pager) = staying();
        for i in 0..6 {
            assert_eq!(map.write(page(i), b"x"), 1);
        }
        let writable = || (0..8).filter(|&i| map.pmap().permits(page(i), Access::Write));
        assert!(writable().eq(0..6));
        let protect = |indices, first| {
            let mut pending = Pending::new();
            map.write_protect(&pager.object, indices, page(first), &mut pending)
        };
        pager.refuses.store(true, SeqCst);
        assert!(protect(1..8, 1));
        assert!(writable().eq(0..1));
        assert_eq!(map.fault(page(1), Access::Write), Err(Fault::Protection));
        map.widen(&*pager, 0..8, page(0));
        assert!(writable().eq(0..1));
        pager.refuses.store(false, SeqCst);
        // Other pages than those at the addresses.
        map.widen(&*pager, 0..4, page(1));
        assert!(writable().eq(0..1));
        let lent = pager.object.lend(2, || true).expect("resident");
        map_zero(&map, pages(3, 1), false);
        assert_eq!(byte(&map, page(3)), 0);
        assert!(map.protect(pages(4, 1), Prot::READ).is_ok());
        map.widen(&*pager, 0..8, page(0));
        assert!(writable().filter(|&i| i != 3).eq([0, 1, 5]));
        drop(lent);
        map.widen(&*pager, 0..3, page(0));
        assert!(writable().filter(|&i| i != 3).eq([0, 1, 2, 5]));
        assert!(protect(0..8, 0));
        let held = map.pin(pages(0, 1), Access::Write).expect("memory");
        assert!(!protect(0..4, 0));
        drop(held);
    });
}

/// `mlockall` is not about memory that a program has with others at a fixed place; `mlock` of such
/// memory is, and `munlockall` ends that.
#[test]
fn it_is_not_locked_with_everything() {
    once("staying", || {
        let (map, _pager) = staying();
        map_zero(&map, pages(20, 4), false);
        let lock_of = |i: usize| map.entry_at(page(i)).expect("a mapping").lock;
        map.set_limits(|| Limits {
            locked: 8 * PAGE_SIZE as u64,
            ..Limits::NONE
        });
        map.lock_all(Some(Lock::Full), Lock::Full).expect("room");
        assert_eq!((lock_of(1), lock_of(20)), (Lock::None, Lock::Full));
        // Nor is a later one.
        let again = request(pages(40, 8), &Guarded::new());
        map.map(again).expect("room");
        assert_eq!(lock_of(40), Lock::None);
        map.lock(pages(0, 2), Lock::Full).expect("room");
        assert_eq!(lock_of(1), Lock::Full);
        map.lock_all(Some(Lock::None), Lock::None).expect("room");
        assert_eq!((lock_of(1), lock_of(20)), (Lock::None, Lock::None));
    });
}
