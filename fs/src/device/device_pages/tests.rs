//! A device's pages against a plain model: read and written through several openings, past the
//! pages, closed and opened again.

use abi::Errno;
use fbuf::{BytesSink, BytesSource};
use nucleus::{
    Frame, PAGE_SIZE, Prot,
    dma::Part,
    ephemeral,
    frame::{self, Contents},
    sim::{self, Config, random_u64},
};
use vm::{Backing, Limits, Map, MapRequest};

use super::*;
use crate::{
    block::{FaultyDisk, Operation},
    page_cache,
    support::{below, wait_for_frames},
};

/// No whole number of pages.
const SIZE: usize = 9 * PAGE_SIZE + 3 * SECTOR;

fn read(opened: &Opened, at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let n = opened
        .pages()
        .read(at as u64, &mut BytesSink::new(&mut bytes))
        .unwrap();
    bytes.truncate(n);
    bytes
}

fn write(opened: &Opened, at: usize, bytes: &[u8]) -> usize {
    let mut source = BytesSource::new(bytes);
    opened
        .pages()
        .write(at as u64, false, &mut source)
        .unwrap()
        .0
}

/// Writes sectors past the pages.
fn write_past(opened: &Opened, sector: usize, bytes: &[u8]) {
    let (from, to) = (sector * SECTOR, sector * SECTOR + bytes.len());
    opened.settle(from as u64..to as u64).unwrap();
    let mut parts = Vec::new();
    for piece in bytes.chunks(PAGE_SIZE) {
        let frame = Frame::alloc(Contents::Stale).unwrap();
        ephemeral::map(&frame).write(0, piece);
        parts.push(Part::new(frame, 0, piece.len()));
    }
    opened.device().write(sector as u64, parts).unwrap();
    opened.settle(from as u64..to as u64).unwrap();
}

fn random_use() {
    page_cache::reset();
    let data = frame::usage().data;
    let mut model: Vec<u8> = (0..SIZE).map(|_| random_u64() as u8).collect();
    let disk = FaultyDisk::new(model.clone(), random_u64());
    disk.set_delays(below(2) == 0);
    let device = Device::new("vdt", 0xfe00, disk.clone()).unwrap();
    let mut opened = vec![device.open()];
    for _ in 0..80 {
        let one = below(opened.len());
        let at = below(SIZE);
        let len = 1 + below(3 * PAGE_SIZE);
        match below(10) {
            0..3 => {
                let end = (at + len).min(SIZE);
                assert_eq!(read(&opened[one], at, len), model[at..end]);
            }
            3..6 => {
                let bytes: Vec<u8> = (0..len).map(|_| random_u64() as u8).collect();
                let n = write(&opened[one], at, &bytes);
                assert_eq!(n, len.min(SIZE - at));
                model[at..at + n].copy_from_slice(&bytes[..n]);
            }
            6 => {
                let sector = at / SECTOR;
                let count = (1 + below(16)).min(SIZE / SECTOR - sector);
                let bytes: Vec<u8> = (0..count * SECTOR).map(|_| random_u64() as u8).collect();
                write_past(&opened[one], sector, &bytes);
                model[sector * SECTOR..][..bytes.len()].copy_from_slice(&bytes);
            }
            7 if opened.len() < 4 => opened.push(device.open()),
            7 | 8 => {
                drop(opened.swap_remove(one));
                if opened.is_empty() {
                    assert!(device.cached().is_none());
                    assert_eq!(disk.content(), model, "the last one has written all back");
                    opened.push(device.open());
                }
            }
            _ => {
                assert_eq!(device.sync(), Ok(()));
                assert_eq!(disk.after_power_cut(), model, "what was synced is there");
            }
        }
    }
    let claim = device.claim("a test").unwrap();
    assert_eq!(disk.content(), model, "the only user sees all");
    drop(claim);
    drop(opened);
    assert_eq!(disk.content(), model);
    assert!(device.cached().is_none());
    drop(device);
    page_cache::reset();
    wait_for_frames(data);
}

#[test]
fn pages_and_disk_agree_as_a_model_says() {
    sim::check("device pages", 0..40, Config::default(), random_use);
}

/// A failed write is reported once to each open file, and the disk is used again when it works.
#[test]
fn errors_are_told_once() {
    sim::check("device errors", 0..10, Config::default(), || {
        page_cache::reset();
        let disk = FaultyDisk::new(vec![0; SIZE], random_u64());
        let device = Device::new("vdt", 0xfe00, disk.clone()).unwrap();
        let opened = device.open();
        let mark = opened.pages().errors().mark();
        disk.fail_when(|attempt| attempt.operation == Operation::Write);
        assert_eq!(write(&opened, 0, &vec![5; SIZE]), SIZE);
        let _ = device.sync();
        assert_eq!(opened.pages().errors().tell(&mark), Err(Errno::EIO));
        assert_eq!(opened.pages().errors().tell(&mark), Ok(()));
        disk.fail_no_more();
        assert_eq!(write(&opened, 0, &vec![6; SIZE]), SIZE);
        assert_eq!(device.sync(), Ok(()));
        assert_eq!(opened.pages().errors().tell(&mark), Ok(()));
        assert!(disk.after_power_cut().iter().all(|&byte| byte == 6));
        drop(opened);
        page_cache::reset();
    });
}

/// Pages that are too many for the memory at hand, in one piece, come and go in shorter rows.
#[test]
fn a_lack_of_memory_in_one_piece_makes_rows_shorter() {
    const PAGES: usize = 180;
    sim::check("device rows", 0..4, Config::default(), || {
        page_cache::reset();
        let disk = FaultyDisk::new(vec![0; PAGES * PAGE_SIZE], random_u64());
        disk.set_delays(true);
        let device = Device::new("vdt", 0xfe00, disk.clone()).unwrap();
        let opened = device.open();
        let bytes: Vec<u8> = (0..PAGES * PAGE_SIZE).map(|at| (at / 999) as u8).collect();
        assert_eq!(write(&opened, 0, &bytes), bytes.len());
        // The first question is for a list of all of them.
        frame::seem_scarce_once(0);
        assert_eq!(device.sync(), Ok(()));
        assert_eq!(frame::failed(), 1);
        assert_eq!(disk.after_power_cut(), bytes);
        drop(opened);
        assert_eq!(read(&device.open(), 0, bytes.len()), bytes);
        page_cache::reset();
    });
}

/// A write past the pages is seen by mappings, and by readers that come after one that began before
/// it.
#[test]
fn no_page_keeps_what_was_written_past() {
    sim::check("device past", 0..12, Config::default(), || {
        page_cache::reset();
        let data = frame::usage().data;
        let disk = FaultyDisk::new(vec![1; SIZE], random_u64());
        let device = Device::new("vdt", 0xfe00, disk.clone()).unwrap();
        let opened = device.open();
        let map = Map::new(Limits::NONE, vm::Randomness::Nothing).unwrap();
        let request = MapRequest {
            backing: Backing::Object {
                pager: opened.pager(),
                offset: 0,
            },
            shared: true,
            ..MapRequest::zero(2 * PAGE_SIZE, Prot::READ | Prot::WRITE)
        };
        let window = map.map(request).unwrap();
        let see = |at: usize| {
            let mut byte = [0];
            assert_eq!(map.read(window + at, &mut byte), 1);
            byte[0]
        };
        // One is mapped, one is mapped and modified, others are on their way.
        assert_eq!(see(0), 1);
        assert_eq!(map.write(window + PAGE_SIZE, &[2]), 1);
        disk.set_delays(true);
        opened.pages().prefetch(2..8);
        write_past(&opened, 0, &vec![3; 8 * PAGE_SIZE]);
        disk.set_delays(false);
        assert!(read(&opened, 0, 8 * PAGE_SIZE).iter().all(|&it| it == 3));
        assert_eq!((see(0), see(PAGE_SIZE)), (3, 3));
        map.tear_down();
        drop(map);
        drop(opened);
        drop(device);
        page_cache::reset();
        wait_for_frames(data);
    });
}
