//! Owners, and readers that an owner let read.

use std::sync::Mutex;

use super::*;
use crate::mem::frame::counts::{FOR_EVER, HANDLE};
use crate::sim::{Config, run};

/// Owners on all CPUs leave, some of them with readers that go on: then the last one does not have
/// the frame for itself, which it has where there never were readers.
#[test]
fn no_reader_is_overlooked_when_owners_leave() {
    on_machines_with("owners leave", [1, 2, 4], 512, 60, || {
        let before = usage();
        for round in 0..20 {
            let has_readers = round % 4 != 0;
            let last = Owned::new(Frame::alloc(Contents::Stale).unwrap());
            let readers = Arc::new(Mutex::new(Vec::new()));
            let together = Arc::new(Together::default());
            for _ in 0..1 + below(4) {
                let (owned, readers) = (last.clone(), readers.clone());
                together.spawn(move || {
                    let further = (below(2) == 0).then(|| owned.clone());
                    let reader = has_readers.then(|| Frame::clone(&owned));
                    if below(3) == 0 {
                        readers.lock().unwrap().extend(reader);
                    }
                    match below(3) {
                        0 if has_readers => drop(owned.into_frame()),
                        1 => assert!(Bundle::new().add_owned(owned)),
                        _ => drop(owned),
                    }
                    drop(further);
                });
            }
            together.join();
            let readers = core::mem::take(&mut *readers.lock().unwrap());
            let is_lent = last.is_lent();
            assert!(is_lent || readers.is_empty(), "a reader was overlooked");
            assert!(!is_lent || has_readers);
            assert_eq!(last.owners(), 1);
            assert!(last.is_held_by_owners(readers.len() as u64));
            // An owner more and less again changes nothing: the readers are there yet.
            drop(last.clone());
            assert_eq!(last.is_lent(), is_lent);
        }
        assert_eq!(usage().data, before.data);
    });
}

/// With more owners than are counted a frame stays lent, and goes with its last handle.
#[test]
fn counts_of_owners_saturate() {
    on_machines_with("owners saturate", [1], 256, 1, || {
        let free = usage().free;
        let frame = Owned::new(Frame::alloc(Contents::Stale).unwrap());
        let forgotten = FOR_EVER - 2;
        let counts = record(frame.index()).counts();
        counts.fetch_add(forgotten * (HANDLE + 1), Ordering::Relaxed);
        let further: Vec<Owned> = (0..5).map(|_| frame.clone()).collect();
        assert_eq!(u64::from(frame.owners()), FOR_EVER + 1);
        assert_eq!(frame.handles(), forgotten + 6);
        for owned in further {
            assert!(Bundle::new().add_owned(owned), "there are others");
        }
        assert_eq!(u64::from(frame.owners()), FOR_EVER + 1);
        assert_eq!(frame.handles(), forgotten + 1);
        subtract_handles(frame.index(), forgotten);
        assert!(frame.is_lent());
        drop(frame);
        assert_eq!(usage().free, free);
    });
}

/// More handles than any machine has use for end the kernel before their count is that of none.
#[test]
fn too_many_handles_are_refused() {
    for is_owner in [false, true] {
        let outcome = run(Config::default(), move || {
            let frame = Owned::new(Frame::alloc(Contents::Stale).unwrap());
            add_handles(frame.index(), (1 << 39) - 2);
            // As many owners as are counted.
            let counts = record(frame.index()).counts();
            counts.fetch_add(FOR_EVER, Ordering::Relaxed);
            assert_eq!(frame.handles(), (1 << 39) - 1);
            for _ in 0..2 {
                match is_owner {
                    false => core::mem::forget(Frame::clone(&frame)),
                    true => core::mem::forget(frame.clone()),
                }
            }
        });
        let message = outcome.unwrap_err().message;
        assert!(message.contains("too many handles"), "{message}");
    }
}
