//! Files with pinned blocks.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::SeqCst},
};

use abi::{
    Errno,
    raw::general::{FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, RENAME_EXCHANGE},
};
use fbuf::BytesSource;
use fs::vnode::Judged;
use nucleus::{Frame, PAGE_SIZE, dma::Part, ephemeral, frame::Contents};

use super::{
    machine,
    support::{
        FLAGS, Random,
        image::{self, TINY},
        with_walk,
    },
};

/// Pages of the file: it needs double indirect blocks where blocks are small.
const PAGES: usize = 80;

#[test]
fn blocks_that_are_pinned_stay_and_nothing_else_writes_them() {
    for block_size in [1024, 2048, 4096] {
        machine::walk_on(TINY.with_blocks(block_size), 1, |_, walk| {
            let mut bytes = vec![0; PAGES * PAGE_SIZE];
            Random::new(7).fill(&mut bytes);
            let file = walk.open(b"/swap", FLAGS, 0o600).unwrap();
            file.write(Some(0), FLAGS, &mut BytesSource::new(&bytes))
                .unwrap();
            let vnode = file.location().unwrap().vnode().clone();
            let pinned = vnode.clone().pin_blocks().expect("it has no holes");
            assert_eq!(vnode.clone().pin_blocks().err(), Some(Errno::ETXTBSY));
            let mut next = 0;
            for run in pinned.runs() {
                assert_eq!(run.page, next);
                next += run.pages;
                for page in 0..run.pages {
                    let frame = Frame::alloc(Contents::Stale).unwrap();
                    let sector = run.sector + page * (PAGE_SIZE / 512) as u64;
                    let parts = vec![Part::whole(frame.clone())];
                    pinned.device().read(sector, parts).unwrap();
                    let mut found = vec![0; PAGE_SIZE];
                    ephemeral::map(&frame).read(0, &mut found);
                    let at = (run.page + page) as usize * PAGE_SIZE;
                    assert!(
                        found == bytes[at..at + PAGE_SIZE],
                        "page {}",
                        run.page + page
                    );
                }
            }
            assert_eq!(next, PAGES as u64);
            let write = || file.write(Some(5), FLAGS, &mut BytesSource::new(b"other"));
            assert_eq!(write().err(), Some(Errno::ETXTBSY));
            assert_eq!(vnode.truncate(10), Err(Errno::ETXTBSY));
            let punch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
            let hole = || vnode.allocate(punch, PAGE_SIZE as u64, PAGE_SIZE as u64);
            assert_eq!(hole(), Err(Errno::ETXTBSY));
            // Swap space is removed by name.
            let folder = walk.resolve(b"/", true).unwrap();
            let folder = folder.vnode();
            walk.open(b"/other", FLAGS, 0o600).unwrap();
            let swap = folder.lookup(b"swap").unwrap();
            let other = folder.lookup(b"other").unwrap();
            assert_eq!(folder.remove(b"swap", &*swap, false), Err(Errno::EPERM));
            let stale = folder.remove(b"swap", &*other, false);
            assert_eq!(stale, Err(Errno::ESTALE));
            let rename = |from: &[u8], to: &[u8], how| {
                let (source, target) = (folder.lookup(from).unwrap(), folder.lookup(to).ok());
                let judged = Judged {
                    source: &*source,
                    target: target.as_deref(),
                };
                folder.rename(from, folder, to, how, judged)
            };
            assert_eq!(rename(b"swap", b"new", 0), Err(Errno::EPERM));
            assert_eq!(rename(b"other", b"swap", 0), Err(Errno::EPERM));
            let exchange = RENAME_EXCHANGE;
            assert_eq!(rename(b"other", b"swap", exchange), Err(Errno::EPERM));
            drop(pinned);
            assert_eq!(rename(b"swap", b"new", 0), Ok(()));
            assert_eq!(rename(b"new", b"swap", 0), Ok(()));
            assert_eq!(write(), Ok(5));
            assert_eq!(hole(), Ok(()));
            assert_eq!(vnode.clone().pin_blocks().err(), Some(Errno::EINVAL));
            assert_eq!(folder.clone().pin_blocks().err(), Some(Errno::EINVAL));
        });
    }
}

/// Each command of the disk fails in turn while a file that has just been written is pinned.
#[test]
fn a_disk_that_fails_is_told_as_such() {
    let empty = TINY.make();
    let (mut place, mut told) = (0, 0);
    loop {
        let (content, (struck, error)) = machine::run(1, 1, empty.clone(), move |machine| {
            let namespace = machine.mount();
            with_walk(&namespace, |walk| {
                let file = walk.open(b"/swap", FLAGS, 0o600).unwrap();
                let bytes = vec![0x5a; PAGES * PAGE_SIZE];
                let write = || file.write(Some(0), FLAGS, &mut BytesSource::new(&bytes));
                write().unwrap();
                let vnode = file.location().unwrap().vnode().clone();
                let struck = Arc::new(AtomicBool::new(false));
                let (mut number, strikes) = (0, struck.clone());
                machine.disk.fail_when(move |_| {
                    number += 1;
                    strikes.fetch_or(number > place, SeqCst);
                    number == place + 1
                });
                let error = vnode.clone().pin_blocks().err();
                machine.disk.fail_no_more();
                // It is not pinned any more.
                assert_eq!(write(), Ok(bytes.len()), "command {place}");
                (struck.load(SeqCst), error)
            })
        });
        image::repair(&content);
        match error {
            // A request that fails together with its neighbours is retried by itself.
            None => {}
            Some(error) => {
                assert!(struck, "command {place}: {error:?} for no reason");
                assert_eq!(error, Errno::EIO, "command {place}");
                told += 1;
            }
        }
        if !struck {
            assert!(told > 2, "told {told} times, of {place} commands");
            return;
        }
        place += 1;
    }
}
