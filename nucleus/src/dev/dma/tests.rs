//! Devices with random requests behind units as unkind as those of the simulated machine: they
//! answer in any order, and go on using the addresses of a request that is done. The oracle ends a
//! run in which this reaches memory that it must not.

use std::{sync::Arc, time::Duration, vec::Vec};

use super::*;
use crate::{
    Pmap,
    addr::{Prot, VirtAddr},
    counters::Counter,
    frame::{
        self, give_run,
        record::{self, Type},
        take_own,
    },
    hw::sim::{device_read, device_write, fail_unit},
    mem::mistake::Mistake,
    pmap::Pending,
    sim::{
        BusMaster, Config, Together, Transfer, below, invalidations, on_machines_like, random_u64,
        run,
    },
};

const REQUESTS: usize = 12;

fn pause() {
    match below(3) {
        0 => drop(task::sleep(Sleep::within(Duration::from_micros(
            random_u64() % 20_000,
        )))),
        _ => task::yield_now(),
    }
}

/// A request that a device has.
struct Flying {
    transfer: Transfer,
    parts: Vec<Part>,
    writes: bool,
    byte: u8,
}

/// A device, and addresses that it had.
struct Source {
    device: Arc<BusMaster>,
    old: Vec<u64>,
}

impl Source {
    /// Starts a request, if there is memory for it.
    fn start(&self) -> Option<Flying> {
        let byte = random_u64() as u8;
        let mut parts = Vec::new();
        for _ in 0..1 + below(6) {
            let block = Frame::alloc_block(below(4), Contents::Stale);
            let frame = block.or_else(|_| Frame::alloc(Contents::Stale)).ok()?;
            let size = frame.size();
            let offset = below(size);
            let (offset, len) = match below(3) {
                0 => (0, size),
                1 => (offset, size - offset),
                _ => (offset, 1 + below((size - offset).min(100))),
            };
            ephemeral::map(&frame).fill(offset, len, byte);
            parts.push(Part::new(frame, offset, len));
        }
        let writes = below(2) == 0;
        let transfer = self.device.give(parts.iter(), writes);
        Some(Flying {
            transfer,
            parts,
            writes,
            byte,
        })
    }

    /// The device does a request, and is done with it. Whether it could.
    fn finish(&mut self, flying: Flying) -> bool {
        let Flying {
            transfer,
            parts,
            writes,
            byte,
        } = flying;
        let mut all = true;
        for (i, part) in parts.iter().enumerate() {
            let mut bytes = vec![byte.wrapping_add(1); part.len];
            if writes {
                all &= transfer.write(i, &bytes);
            } else if transfer.read(i, &mut bytes) {
                assert!(bytes.iter().all(|&it| it == byte), "read something else");
            } else {
                all = false;
            }
        }
        self.old.extend(transfer.addresses());
        drop(transfer);
        // Some frames outlive the request.
        for part in &parts {
            if all && writes {
                let mut bytes = vec![0; part.len];
                ephemeral::map(&part.frame).read(part.offset, &mut bytes);
                let expected = byte.wrapping_add(1);
                assert!(bytes.iter().all(|&it| it == expected), "not what it wrote");
            }
        }
        all
    }

    /// The device goes on using an address of a request that is done. Its writes must reach
    /// nothing, or frames that wait to be free.
    fn linger(&self) {
        for _ in 0..below(4) {
            let Some(&address) = self.old.get(below(self.old.len().max(1))) else {
                return;
            };
            let place = self.device.place();
            match policy() == Policy::Strict && below(2) == 0 {
                true => device_write(place, address, &[0xee]),
                false => device_read(place, address, &mut [0]),
            };
        }
    }
}

/// The rest of the kernel, which uses frames meanwhile: as tables, heap, data.
fn churn() {
    const AT: VirtAddr = VirtAddr(0x7000_0000);
    let kept: Vec<Frame> = (0..below(20))
        .map_while(|_| Frame::alloc(Contents::Zeroed).ok())
        .collect();
    if below(2) == 0
        && let Ok(pmap) = Pmap::new()
    {
        for (i, frame) in kept.iter().take(3).enumerate() {
            let at = AT + (i << 21) + (below(4) << 12);
            let _ = pmap.enter(at, frame, Prot::READ | Prot::WRITE, &mut Pending::new());
        }
        pause();
        pmap.tear_down();
    }
    let own: Vec<u32> = (0..below(5))
        .map_while(|_| take_own(Type::Heap).ok())
        .collect();
    pause();
    for index in own {
        give_run(index..index + 1, Type::Heap);
    }
    if below(8) == 0 {
        settle();
    }
}

/// Devices and the rest of the kernel at once. Returns how many requests failed.
fn storm(tasks: usize) -> usize {
    let failed = Arc::new(core::sync::atomic::AtomicUsize::new(0));
    let together = Arc::new(Together::default());
    for number in 0..tasks {
        let failed = failed.clone();
        together.spawn(move || {
            if number % 3 == 2 {
                return (0..REQUESTS).for_each(|_| churn());
            }
            let mut source = Source {
                device: BusMaster::new(),
                old: Vec::new(),
            };
            let mut flying = Vec::new();
            for _ in 0..REQUESTS {
                flying.extend(source.start());
                source.linger();
                pause();
                while flying.len() > below(4) {
                    let one = flying.swap_remove(below(flying.len()));
                    if !source.finish(one) {
                        failed.fetch_add(1, SeqCst);
                    }
                    source.linger();
                }
            }
        });
    }
    together.join();
    failed.load(SeqCst)
}

/// Runs a storm under each policy with units; all frames come back.
fn storms(name: &str, cpus: &[usize], pages: usize, seeds: u64, before: fn(), may_fail: bool) {
    for policy in [Policy::Strict, Policy::Open] {
        let like = Config {
            iommu: Some(policy),
            ..Config::default()
        };
        let cpus = cpus.iter().copied();
        on_machines_like(name, cpus, pages, seeds, like, move || {
            assert_eq!(super::policy(), policy);
            one_storm(before, may_fail);
        });
    }
}

/// Frames of domains' tables.
fn domain_tables() -> usize {
    let kinds = record::managed().map(|index| record::record(index).kind());
    kinds.filter(|&kind| kind == Type::DomainTable).count()
}

fn one_storm(before: fn(), may_fail: bool) {
    let frames = frame::usage().data;
    let tables = domain_tables();
    before();
    let failed = storm(4);
    assert!(may_fail || failed == 0, "{failed} requests failed");
    frame::fail_after(None);
    wait_settled(true);
    assert_eq!(frame::usage().data, frames, "frames that did not come back");
    if policy() == Policy::Strict {
        // The tree of open frames keeps those that map the firmware's memory.
        assert_eq!(domain_tables(), tables, "tables that did not come back");
    }
    domain::open::audit(true, |frame| panic!("frame {frame:#x} is open, or not"));
}

#[test]
fn devices_reach_their_requests_and_nothing_else() {
    storms("devices", &[1, 2, 3, 8], 1024, 25, || {}, false);
}

#[test]
fn a_unit_that_fails_takes_its_devices_along() {
    let fail = || fail_unit(random_u64() % 8);
    storms("failing unit", &[1, 3], 1024, 25, fail, true);
}

#[test]
fn memory_may_end_at_any_time() {
    let shortage = || frame::fail_after(Some(random_u64() % 60 + 40));
    storms("devices and shortage", &[1, 3], 512, 25, shortage, true);
}

fn strict(body: impl FnOnce() + Send + 'static) {
    let config = Config {
        iommu: Some(Policy::Strict),
        ..Config::default()
    };
    run(config, body).unwrap();
}

/// The findings of the audit of devices.
fn reached() -> Vec<Violation> {
    let mut found = Vec::new();
    audit_devices(&mut Seen::default(), &mut |it| found.push(it));
    found
}

/// The audit names frames that devices reach and must not.
#[test]
fn the_audit_knows_what_devices_reach() {
    strict(|| {
        let device = BusMaster::new();
        let frame = Frame::alloc(Contents::Zeroed).unwrap();
        let part = Part::whole(frame.clone());
        let transfer = device.give([&part].into_iter(), true);
        assert_eq!(reached(), []);
        let index = frame.number() as u32;
        frame::release_held(index);
        assert_eq!(reached(), [Violation::Reachable { frame: index }]);
        frame::hold(&frame, false);
        assert_eq!(reached(), []);
        drop(transfer);
    });
    let open = Config {
        iommu: Some(Policy::Open),
        ..Config::default()
    };
    run(open, || {
        let _device = BusMaster::new();
        let table = frame::take_table(2).unwrap().index();
        assert_eq!(reached(), []);
        let runs = core::iter::once(table..table + 1).collect::<Vec<_>>();
        domain::open::enter(&runs);
        assert_eq!(reached(), [Violation::Reachable { frame: table }]);
        domain::open::leave(&runs, Counter::iotlb_other);
        assert_eq!(reached(), []);
    })
    .unwrap();
}

/// A frame whose request is done belongs to its owner alone at once, and is not allocated again
/// until its batch is invalidated.
#[test]
fn a_frame_waits_for_its_batch_without_a_handle() {
    strict(waits_for_its_batch);
}

fn waits_for_its_batch() {
    let device = BusMaster::new();
    let before = frame::usage().data;
    let frame = Frame::alloc(Contents::Zeroed).unwrap();
    let part = Part::whole(frame.clone());
    let transfer = device.give([&part].into_iter(), true);
    drop(part);
    assert!(transfer.write(0, &[1; PAGE_SIZE]));
    drop(transfer);
    assert_eq!(frame.handles(), 1);
    drop(frame);
    assert_eq!(frame::usage().data, before + 1, "reused too early");
    settle();
    assert_eq!(frame::usage().data, before);
}

/// A frame records that a device may read it: by a request, and then until the batch is
/// invalidated. A device that only writes does not count.
#[test]
fn a_frame_records_that_devices_read_it() {
    strict(records_readers);
}

fn records_readers() {
    let (writer, reader) = (BusMaster::with_batch(BATCH), BusMaster::with_batch(BATCH));
    let frame = Frame::alloc(Contents::Zeroed).unwrap();
    let part = Part::whole(frame.clone());
    let written = writer.give([&part].into_iter(), true);
    assert!(written.write(0, &[1; PAGE_SIZE]));
    drop(written);
    assert!(!frame.may_be_read_by_devices());
    let transfer = reader.give([&part].into_iter(), false);
    drop(part);
    let at = transfer.addresses().next().unwrap();
    assert!(transfer.read(0, &mut [0; PAGE_SIZE]));
    drop(transfer);
    assert_eq!(frame.handles(), 1);
    let reads = device_read(reader.place(), at, &mut [0]);
    assert!(
        !reads || frame.may_be_read_by_devices(),
        "a device reads it still"
    );
    settle();
    assert!(!frame.may_be_read_by_devices());
    assert!(!device_read(reader.place(), at, &mut [0]));
}

/// Devices read and write the same frames while their last handles go: each frame is freed once.
#[test]
fn the_last_entry_of_several_devices_frees_a_frame() {
    let like = Config {
        iommu: Some(Policy::Strict),
        ..Config::default()
    };
    on_machines_like("last entries", [2, 4], 1024, 40, like, || {
        let before = frame::usage().data;
        let together = Arc::new(Together::default());
        for _ in 0..8 {
            let frame = Frame::alloc(Contents::Zeroed).unwrap();
            let part = Part::whole(frame);
            for _ in 0..3 {
                let part = part.clone();
                together.spawn(move || {
                    let device = BusMaster::with_batch(1);
                    for _ in 0..3 {
                        drop(device.give([&part].into_iter(), below(3) == 0));
                    }
                    drop(part);
                    settle();
                });
            }
        }
        together.join();
        wait_settled(true);
        assert_eq!(frame::usage().data, before);
    });
}

/// An allocation finds the frames of requests that are done, though no task has come to them yet.
#[test]
fn a_shortage_does_not_wait_for_a_batch() {
    strict(shortage);
}

fn shortage() {
    let device = BusMaster::new();
    let frames = || core::iter::from_fn(|| Frame::alloc(Contents::Stale).ok());
    let mut kept: Vec<Frame> = frames().collect();
    kept.truncate(kept.len() - 40);
    let parts: Vec<Part> = frames().take(20).map(Part::whole).collect();
    drop(device.give(parts.iter(), true));
    drop(parts);
    let again: Vec<Frame> = frames().collect();
    assert!(again.len() >= 20, "{} frames", again.len());
}

/// Requests cost one invalidation for many of them.
#[test]
fn a_batch_costs_one_invalidation() {
    strict(|| {
        let device = BusMaster::new();
        let frame = Frame::alloc(Contents::Zeroed).unwrap();
        let part = Part::whole(frame);
        let absent = Counter::iotlb_absent.total();
        let before = invalidations();
        let requests = 4 * BATCH;
        for _ in 0..requests {
            let transfer = device.give([&part].into_iter(), false);
            assert!(transfer.read(0, &mut [0; PAGE_SIZE]));
        }
        let spent = invalidations() - before - (Counter::iotlb_absent.total() - absent);
        assert!(spent <= requests as u64 / 4, "{spent} invalidations");
    });
}

/// Requests that go around their window many times each find their own frames there.
#[test]
fn addresses_are_reused_after_their_invalidation_only() {
    let like = Config {
        iommu: Some(Policy::Strict),
        ..Config::default()
    };
    on_machines_like("addresses", [1, 2], 1024, 10, like, go_around_windows);
}

fn go_around_windows() {
    // As many as a window has: it is full before a batch is.
    let device = BusMaster::with_batch(BATCH);
    for round in 0..20 {
        let frames = (0..60 + below(60)).map(|_| Frame::alloc(Contents::Stale).unwrap());
        let parts: Vec<Part> = frames.map(|frame| Part::new(frame, 0, 2)).collect();
        for (i, part) in parts.iter().enumerate() {
            ephemeral::map(&part.frame).write(0, &[round, i as u8]);
        }
        let transfer = device.give(parts.iter(), false);
        for i in 0..parts.len() {
            let mut bytes = [0; 2];
            assert!(transfer.read(i, &mut bytes));
            assert_eq!(bytes, [round, i as u8], "another request's frame");
        }
    }
}

/// A part of a pool's buffer that is kept past its domain is mapped anew in another one, which has
/// the domain's ID.
#[test]
fn a_part_outlives_the_domain_that_mapped_it() {
    strict(part_outlives_domain);
}

fn part_outlives_domain() {
    let attach = || domain_of(2).unwrap();
    let old = attach();
    let id = old.strict().unwrap().id();
    let pool = Pool::in_domain(1, Some(old)).unwrap();
    let buffer = pool.take().unwrap();
    buffer.fill(0, PAGE_SIZE, 0x5a);
    let part = buffer.part(0, 8);
    drop((buffer, pool));
    let new = attach();
    assert_eq!(new.strict().unwrap().id(), id);
    let window = new.strict().unwrap().add_window().unwrap();
    let mut addresses = Addresses::new(&new, Some(&window), 1).unwrap();
    let at = addresses.of(&[part], false).address;
    addresses.give();
    let mut bytes = [0; 8];
    assert!(device_read(2, at, &mut bytes), "it finds nothing there");
    assert_eq!(bytes, [0x5a; 8]);
    take(&new, &window);
}

/// A pool keeps the frames that are mapped for long, though others come back first.
#[test]
fn a_pool_keeps_what_stays_mapped() {
    strict(|| {
        let pool = Pool::in_domain(2, Some(domain_of(2).unwrap())).unwrap();
        let take = || pool.take().unwrap();
        let [first, second, third] = [take(), take(), take()];
        assert!(third.lasting.is_none());
        drop(third);
        drop((first, second));
        let again = [take(), take()];
        let lasting = again.iter().filter(|it| it.lasting.is_some()).count();
        assert_eq!(lasting, 2);
    });
}

/// Leaves other bytes than zeros in all free frames.
pub(in crate::dev) fn soil_all() {
    let all: Vec<Frame> = core::iter::from_fn(|| Frame::alloc(Contents::Stale).ok()).collect();
    let soil = |it| ephemeral::map(it).fill(0, PAGE_SIZE, 0x77);
    all.iter().for_each(soil);
}

/// What a device may read beside a driver's messages has nothing of those who had the frames
/// before, whether it stays mapped or is mapped for one message.
#[test]
fn messages_show_nothing_of_others() {
    strict(|| {
        soil_all();
        let domain = domain_of(2).unwrap();
        let pool = Pool::in_domain(1, Some(domain.clone())).unwrap();
        let window = domain.strict().unwrap().add_window().unwrap();
        let both = [pool.take().unwrap(), pool.take().unwrap()];
        assert!(both[0].lasting.is_some() && both[1].lasting.is_none());
        for buffer in &both {
            buffer.write(0, b"message");
            let mut addresses = Addresses::new(&domain, Some(&window), 1).unwrap();
            let at = addresses.of(&[buffer.part(0, 7)], false).address;
            addresses.give();
            let mut bytes = [0; PAGE_SIZE];
            assert!(device_read(2, at, &mut bytes));
            let others = bytes[7..].iter().filter(|&&byte| byte != 0).count();
            assert_eq!(others, 0, "bytes of others that the device has read");
            take(&domain, &window);
        }
    });
}

/// A frame that could not be mapped for long takes no place of those that are.
#[test]
fn a_pool_counts_only_what_stays_mapped() {
    strict(|| {
        let pool = Pool::in_domain(1, Some(domain_of(2).unwrap())).unwrap();
        // The frame itself is had, a table for its address is not.
        frame::fail_after(Some(1));
        let first = pool.take().unwrap();
        frame::fail_after(None);
        assert!(first.lasting.is_none());
        let second = pool.take().unwrap();
        assert!(second.lasting.is_some(), "nothing is mapped for long now");
    });
}

/// A device writes no page that is not mapped for writing.
#[test]
fn a_device_writes_only_what_it_was_given_to_write() {
    strict(writes_what_it_may);
}

fn writes_what_it_may() {
    let device = BusMaster::new();
    let frame = Frame::alloc(Contents::Zeroed).unwrap();
    let part = Part::whole(frame.clone());
    let transfer = device.give([&part].into_iter(), false);
    assert!(!transfer.write(0, &[1; PAGE_SIZE]));
    assert!(!device_write(
        device.place(),
        frame.number() << PAGE_SHIFT,
        &[1]
    ));
    let mut bytes = [1; 8];
    ephemeral::map(&frame).read(0, &mut bytes);
    assert_eq!(bytes, [0; 8]);
    let fault = crate::hw::sim::iommu_take_fault().unwrap();
    assert_eq!(
        (fault.device, fault.is_write),
        (Device(device.place()), true)
    );
}

/// Each rule that is removed makes a test here fail, in few runs: without that, it is not known
/// what these tests can find.
#[test]
fn mistakes_are_found() {
    let (open, strict) = (Policy::Open, Policy::Strict);
    let storm = || one_storm(|| (), false);
    let cases: [(Mistake, Policy, fn(), &str); 13] = [
        (Mistake::TableNotWithdrawn, open, storm, "must not reach"),
        (
            Mistake::PooledReturns,
            open,
            storm,
            "leaves or returns twice",
        ),
        (
            Mistake::LeavesWithoutInvalidation,
            open,
            storm,
            "holds page",
        ),
        (Mistake::LargePageStays, open, storm, "must not reach"),
        (Mistake::EntryNotSynced, open, storm, "must not reach"),
        (Mistake::EntryNotSynced, strict, storm, "holds page"),
        (Mistake::AbsentKept, strict, storm, "requests failed"),
        (Mistake::BatchNotInvalidated, strict, storm, "holds page"),
        (Mistake::HeldBlockFreed, strict, storm, "holds page"),
        (
            Mistake::PendingReleased,
            strict,
            waits_for_its_batch,
            "holds page",
        ),
        (Mistake::EntryStays, strict, storm, "must not reach"),
        (
            Mistake::AddressReusedEarly,
            strict,
            go_around_windows,
            "another request's frame",
        ),
        (
            Mistake::ReadOnlyIgnored,
            strict,
            writes_what_it_may,
            "transfer.write",
        ),
    ];
    let more: [(Mistake, Policy, fn(), &str); 3] = [
        (
            Mistake::GenerationIgnored,
            strict,
            part_outlives_domain,
            "finds nothing",
        ),
        (Mistake::ShortageIgnoresPending, strict, shortage, " frames"),
        (
            Mistake::ReadersForgotten,
            strict,
            records_readers,
            "reads it still",
        ),
    ];
    for (mistake, policy, body, wanted) in cases.into_iter().chain(more) {
        let like = Config {
            cpus: 3,
            pages: 1024,
            iommu: Some(policy),
            ..Config::default()
        };
        mistake.assert_found(like, body, wanted);
    }
}
