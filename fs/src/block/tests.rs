//! Devices on the simulated machine: random requests from several tasks against a plain model, with
//! errors, delays and power cuts.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use abi::Errno;
use nucleus::{
    Frame, PAGE_SIZE,
    dma::Part,
    ephemeral,
    frame::{self, Contents},
    sim::{self, Config, random_u64},
    sync::{Rank, SpinLock},
    task::{Sleep, WaitQueue},
};

use super::*;
use crate::support::{below, in_tasks, wait_for_frames};

/// Parts of random lengths with room for `sectors` sectors.
fn parts(sectors: usize) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut left = sectors;
    while left > 0 {
        let count = (1 + below(8)).min(left);
        parts.push(Part::new(
            Frame::alloc(Contents::Stale).unwrap(),
            below(9 - count) * SECTOR,
            count * SECTOR,
        ));
        left -= count;
    }
    parts
}

/// The frames have no other handle.
fn assert_own(parts: &[Part]) {
    assert!(
        parts.iter().all(|part| part.frame.handles() == 1),
        "a request that is done has its frames still"
    );
}

/// Each sector is its stamp again and again.
fn put_stamps(parts: &[Part], stamps: &[u64]) {
    let mut stamps = stamps.iter();
    for part in parts {
        for at in (0..part.len).step_by(SECTOR) {
            let bytes = stamps.next().unwrap().to_le_bytes().repeat(SECTOR / 8);
            ephemeral::map(&part.frame).write(part.offset + at, &bytes);
        }
    }
}

fn stamp(sector: &[u8]) -> u64 {
    let stamp = u64::from_le_bytes(sector[..8].try_into().unwrap());
    assert!(
        sector.chunks(8).all(|word| word == stamp.to_le_bytes()),
        "a sector is torn"
    );
    stamp
}

fn get_stamps(parts: &[Part]) -> Vec<u64> {
    let mut stamps = Vec::new();
    for part in parts {
        for at in (0..part.len).step_by(SECTOR) {
            let mut bytes = [0; SECTOR];
            ephemeral::map(&part.frame).read(part.offset + at, &mut bytes);
            stamps.push(stamp(&bytes));
        }
    }
    stamps
}

/// The model of one sector.
#[derive(Clone, Default)]
struct Known {
    /// The bytes that a read returns; unknown after a write that failed.
    current: Option<u64>,
    /// The bytes that may be on the medium.
    medium: BTreeSet<u64>,
}

const TASKS: usize = 3;
/// Sectors in a row that one task has to itself.
const RUN: usize = 24;
const SECTORS: usize = TASKS * RUN * 3;

fn device(disk: &Arc<FaultyDisk>) -> Arc<Device> {
    Device::new("vdt", 0xfe00, disk.clone()).unwrap()
}

/// Sends a request in one of the ways that there are, and waits for it.
fn perform(device: &Device, request: Request) -> Result<(), Errno> {
    if below(3) > 0 {
        return device.perform(request);
    }
    let told = Arc::new((SpinLock::new(Rank::Leaf, None), WaitQueue::new()));
    let teller = told.clone();
    let done: Done = Box::new(move |result| {
        let before = teller.0.lock().replace(result);
        assert!(before.is_none(), "told twice");
        teller.1.wake_all();
    });
    match below(2) {
        0 => device.submit(request, done),
        _ => device.plug().submit(request, done),
    }
    told.1.wait(Sleep::SOUND, || *told.0.lock()).unwrap()
}

fn use_disk(device: &Device, disk: &FaultyDisk, mine: usize, known: &SpinLock<Vec<Known>>) {
    let mut next = mine as u64 + 1;
    for _ in 0..60 {
        let run = below(SECTORS / RUN / TASKS) * TASKS + mine;
        let first = run * RUN + below(RUN);
        let count = 1 + below(RUN - first % RUN);
        match below(8) {
            0..3 => {
                let parts = parts(count);
                let result = perform(device, Request::read(first as u64, parts.clone()));
                assert_own(&parts);
                match result {
                    Ok(()) => {
                        let known = known.lock();
                        for (i, found) in get_stamps(&parts).into_iter().enumerate() {
                            let expected = known[first + i].current;
                            assert!(expected.is_none_or(|expected| expected == found));
                        }
                    }
                    Err(error) => assert_eq!(error, Errno::EIO),
                }
            }
            3..6 => {
                let parts = parts(count);
                let stamps: Vec<u64> = (0..count)
                    .map(|_| {
                        next += TASKS as u64;
                        next
                    })
                    .collect();
                put_stamps(&parts, &stamps);
                {
                    let mut known = known.lock();
                    for (i, &stamp) in stamps.iter().enumerate() {
                        known[first + i].medium.insert(stamp);
                    }
                }
                let result = perform(device, Request::write(first as u64, parts.clone()));
                assert_own(&parts);
                let mut known = known.lock();
                for (i, &stamp) in stamps.iter().enumerate() {
                    known[first + i].current = result.is_ok().then_some(stamp);
                }
            }
            6 => {
                // Writes done before the flush begins are on the medium after it; a write that
                // failed may be there.
                let before: Vec<Known> = known.lock().clone();
                if perform(device, Request::flush()).is_ok() {
                    let mut known = known.lock();
                    for (sector, before) in before.iter().enumerate() {
                        if sector / RUN % TASKS == mine && before.current.is_some() {
                            known[sector].medium = before.current.into_iter().collect();
                        }
                    }
                }
            }
            _ => {
                let left = disk.after_power_cut();
                let known = known.lock();
                for (sector, bytes) in left.chunks(SECTOR).enumerate() {
                    let found = stamp(bytes);
                    assert!(
                        sector / RUN % TASKS != mine || known[sector].medium.contains(&found),
                        "sector {sector} has {found} after a power cut"
                    );
                }
            }
        }
    }
}

fn random_use(errors: bool) {
    let limits = Limits {
        depth: 1 + below(6),
        max_parts: 8 + below(10),
        max_sectors: 8 + below(20) as u64,
        volatile_cache: true,
        ..Limits::plain(0)
    };
    let disk = FaultyDisk::with_limits(vec![0; SECTORS * SECTOR], random_u64(), limits);
    disk.set_delays(below(4) > 0);
    if errors {
        disk.fail_when(|_| below(10) == 0);
    }
    let device = device(&disk);
    let fresh = Known {
        current: Some(0),
        medium: BTreeSet::from([0]),
    };
    let known = Arc::new(SpinLock::new(Rank::Leaf, vec![fresh; SECTORS]));
    {
        let (device, disk, known) = (device.clone(), disk.clone(), known.clone());
        in_tasks(TASKS, move |i| use_disk(&device, &disk, i, &known));
    }
    let content = disk.content();
    for (sector, known) in known.lock().iter().enumerate() {
        let found = stamp(&content[sector * SECTOR..][..SECTOR]);
        assert!(known.current.is_none_or(|expected| expected == found));
    }
    let statistics = device.statistics();
    assert_eq!(statistics.in_flight, 0);
    assert_eq!(statistics.reads.commands, disk.count(Operation::Read));
    assert_eq!(statistics.writes.commands, disk.count(Operation::Write));
}

const CONFIG: Config = Config {
    cpus: 3,
    pages: 2048,
    seed: 0,
    max_points: 20_000_000,
    daemons: false,
    direct_map: None,
    iommu: None,
};

#[test]
fn random_requests_do_what_a_model_says() {
    sim::check("requests", 0..40, CONFIG, || {
        let free = frame::usage().data;
        random_use(false);
        nucleus::dma::wait_settled(true);
        assert_eq!(frame::usage().data, free, "frames are lost");
    });
}

#[test]
fn errors_reach_who_asked_and_nothing_else_is_lost() {
    sim::check("errors", 0..40, CONFIG, || random_use(true));
}

/// A bad sector fails the requests for it, and not their neighbours', whatever was merged.
#[test]
fn an_error_hits_only_its_own_request() {
    sim::check("bad sector", 0..20, CONFIG, || {
        let disk = FaultyDisk::new(vec![0; 64 * SECTOR], random_u64());
        disk.set_delays(true);
        let bad = below(64) as u64;
        disk.fail_when(move |attempt| {
            (attempt.sector..attempt.sector + attempt.sectors).contains(&bad)
        });
        let device = device(&disk);
        let results = Arc::new((SpinLock::new(Rank::Leaf, vec![None; 64]), WaitQueue::new()));
        let mut plug = device.plug();
        for sector in 0..64 {
            let results = results.clone();
            plug.submit(
                Request::write(sector, parts(1)),
                Box::new(move |result| {
                    results.0.lock()[sector as usize] = Some(result);
                    results.1.wake_all();
                }),
            );
        }
        drop(plug);
        let all = || results.0.lock().iter().all(Option::is_some).then_some(());
        assert!(results.1.wait(Sleep::SOUND, all).is_ok());
        for (sector, result) in results.0.lock().iter().enumerate() {
            let expected = match sector as u64 == bad {
                true => Err(Errno::EIO),
                false => Ok(()),
            };
            assert_eq!(*result, Some(expected), "sector {sector}");
        }
    });
}

#[test]
fn neighbours_leave_as_one_command() {
    sim::check("merging", 0..10, CONFIG, || {
        let disk = FaultyDisk::new(vec![0; 1024 * SECTOR], 1);
        let device = device(&disk);
        let left = Arc::new((AtomicUsize::new(64), WaitQueue::new()));
        let mut plug = device.plug();
        for i in 0..64u64 {
            let left = left.clone();
            // Not in order.
            let sector = (i * 37 % 64) * 8;
            let done = move |result: Result<(), Errno>| {
                assert!(result.is_ok());
                left.0.fetch_sub(1, Ordering::SeqCst);
                left.1.wake_all();
            };
            plug.submit(Request::write(sector, parts(8)), Box::new(done));
        }
        drop(plug);
        let none = || (left.0.load(Ordering::SeqCst) == 0).then_some(());
        assert!(left.1.wait(Sleep::SOUND, none).is_ok());
        let commands = disk.count(Operation::Write);
        // 512 sectors, at most 128 parts of a sector or more each.
        assert!(commands <= 8, "{commands} commands");
        let statistics = device.statistics();
        assert_eq!(statistics.writes.merged, 64 - commands);
        assert_eq!(statistics.writes.sectors, 512);
    });
}

#[test]
fn what_can_not_be_is_refused() {
    sim::check("refusals", 0..4, CONFIG, || {
        let limits = Limits {
            block_size: 1024,
            physical_block_size: 4096,
            read_only: true,
            ..Limits::plain(0)
        };
        let disk = FaultyDisk::with_limits(vec![7; 64 * SECTOR], 1, limits);
        let device = device(&disk);
        assert_eq!(device.read(0, parts(64)), Ok(()));
        assert_eq!(device.read(0, Vec::new()), Ok(()));
        assert_eq!(device.read(0, parts(66)), Err(Errno::EINVAL));
        assert_eq!(device.read(64, parts(2)), Err(Errno::EINVAL));
        assert_eq!(device.read(u64::MAX - 1, parts(2)), Err(Errno::EINVAL));
        assert_eq!(device.read(1, parts(2)), Err(Errno::EINVAL));
        assert_eq!(device.read(0, parts(1)), Err(Errno::EINVAL));
        assert_eq!(device.write(0, parts(2)), Err(Errno::EROFS));
        assert_eq!(device.discard(0, 2), Err(Errno::EROFS));
        assert_eq!(device.flush(), Ok(()));
        let mut odd = parts(2);
        odd[0].len -= 1;
        assert_eq!(device.read(0, odd), Err(Errno::EINVAL));
        disk.go_away();
        assert_eq!(device.read(0, parts(2)), Err(Errno::EIO));
    });
}

#[test]
fn a_memory_disk_keeps_what_is_written() {
    sim::check("memory disk", 0..10, CONFIG, || {
        let free = frame::usage().data;
        {
            let size = 24 * PAGE_SIZE;
            let disk = Arc::new(MemoryDisk::new(size as u64).unwrap());
            let device = Device::new("md0", 0x900, disk).unwrap();
            let sectors = size / SECTOR;
            let mut model = vec![0; sectors];
            for round in 1..60 {
                let first = below(sectors);
                let count = 1 + below(sectors - first);
                let parts = parts(count);
                match below(4) {
                    0 => {
                        assert_eq!(device.discard(first as u64, count as u64), Ok(()));
                        model[first..first + count].fill(0);
                    }
                    1 | 2 => {
                        let stamps: Vec<u64> = (0..count as u64).map(|i| round << 32 | i).collect();
                        put_stamps(&parts, &stamps);
                        assert_eq!(device.write(first as u64, parts), Ok(()));
                        model[first..first + count].copy_from_slice(&stamps);
                    }
                    _ => {
                        assert_eq!(device.read(first as u64, parts.clone()), Ok(()));
                        assert_eq!(get_stamps(&parts), model[first..first + count]);
                    }
                }
            }
            assert_eq!(device.flush(), Ok(()));
        }
        // The device's task ends, and with it the disk.
        wait_for_frames(free);
        for bytes in [0, 1, PAGE_SIZE as u64 - 1, u64::MAX, 1 << 40] {
            assert!(MemoryDisk::new(bytes).is_err());
        }
    });
}

#[test]
fn one_holder_and_one_name() {
    sim::check("registry", 0..4, CONFIG, || {
        let disk = FaultyDisk::new(vec![0; 8 * SECTOR], 1);
        let device = device(&disk);
        register(&device).unwrap();
        assert_eq!(register(&device), Err(Errno::EEXIST));
        assert!(by_name(b"vdt").is_some() && by_number(0xfe00).is_some());
        assert!(by_name(b"vd").is_none() && by_number(1).is_none());
        let claim = device.claim("swap").unwrap();
        assert!(matches!(device.claim("ext2"), Err(Errno::EBUSY)));
        assert_eq!(device.holder(), Some("swap"));
        drop(claim);
        assert!(device.claim("ext2").is_ok());
        unregister(&device);
        assert!(by_name(b"vdt").is_none());
    });
}
