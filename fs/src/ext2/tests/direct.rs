//! Transfers past the page cache, by programs, against plain bytes.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
};

use abi::Errno;
use fbuf::{BytesSink, BytesSource, UserBuffers};
use nucleus::{PAGE_SIZE, Prot, VirtAddr, VirtRange, task, user};
use vm::{Backing, Map, MapRequest};

use super::{
    Mounted,
    files::{Model, compare, pages, read_all, shape},
    on_machines,
};
use crate::{
    block::Operation,
    page_cache::{Cached, SizeLimit},
    support::{
        Random, find_address_spaces,
        image::{self, SMALL, Shape},
        in_space,
    },
};

const SECTOR: usize = 512;
/// Bytes of a program's buffer.
const BUFFER: usize = 40 * PAGE_SIZE;

/// Makes a buffer in `map`.
fn buffer(map: &Map) -> VirtAddr {
    let rights = Prot::READ | Prot::WRITE;
    map.map(MapRequest::zero(BUFFER, rights)).unwrap()
}

/// The pieces of a buffer between random multiples of a sector, `sectors` long in all.
fn pieces(random: &mut Random, at: VirtAddr, sectors: usize) -> Vec<(VirtAddr, usize)> {
    let mut pieces = Vec::new();
    let (mut left, mut offset) = (sectors, random.below(8));
    while left > 0 {
        let count = match random.below(3) {
            0 => left.min(1 + random.below(4)),
            _ => left,
        };
        pieces.push((at + offset * SECTOR, count * SECTOR));
        offset += count + random.below(3);
        left -= count;
    }
    pieces
}

/// The buffers of such pieces; the array of their addresses is at the end of the buffer.
fn vector(buffer: VirtAddr, pieces: &[(VirtAddr, usize)]) -> UserBuffers {
    let array = buffer + (BUFFER - 4 * PAGE_SIZE);
    for (i, (at, len)) in pieces.iter().enumerate() {
        user::copy_out(array + i * 16, &at.0.to_le_bytes()).unwrap();
        user::copy_out(array + i * 16 + 8, &len.to_le_bytes()).unwrap();
    }
    UserBuffers::vector(array, pieces.len()).unwrap()
}

/// Writes `data`, whole sectors, past the pages; returns what the call returned.
fn write(
    model: &Model,
    random: &mut Random,
    buffer: VirtAddr,
    at: u64,
    append: bool,
    data: &[u8],
) -> abi::Result<usize> {
    let pieces = pieces(random, buffer, data.len() / SECTOR);
    let mut done = 0;
    for &(at, len) in &pieces {
        user::copy_out(at, &data[done..done + len]).unwrap();
        done += len;
    }
    let mut from = vector(buffer, &pieces);
    let limit = SizeLimit::none();
    let written = pages(&model.file).write_direct(&limit, at, append, &mut from);
    written.map(|(n, _)| n)
}

/// Reads whole sectors past the pages.
fn read(model: &Model, random: &mut Random, buffer: VirtAddr, at: u64, sectors: usize) -> Vec<u8> {
    let pieces = pieces(random, buffer, sectors);
    let mut to = vector(buffer, &pieces);
    let n = pages(&model.file).read_direct(at, &mut to).unwrap();
    let mut bytes = Vec::new();
    for (at, len) in pieces {
        let mut piece = vec![0; len];
        user::copy_in(&mut piece, at).unwrap();
        bytes.extend(piece);
    }
    bytes.truncate(n);
    bytes
}

/// Does a random step of a file, mostly past its pages.
fn step(model: &mut Model, random: &mut Random, buffer: VirtAddr) {
    let reach = [8_000, 60_000, 400_000][random.below(3)];
    let at = random.below(reach) / SECTOR * SECTOR;
    let most = [4, 30, 200][random.below(3)];
    let sectors = 1 + random.below(most);
    match random.below(8) {
        0..=2 => {
            let data = random.some(sectors * SECTOR);
            match write(model, random, buffer, at as u64, false, &data) {
                Ok(n) => model.put(at, &data[..n]),
                Err(error) => assert_eq!(error, Errno::ENOSPC),
            }
        }
        3 if model.bytes.len().is_multiple_of(SECTOR) => {
            let (end, data) = (model.bytes.len(), random.some(sectors * SECTOR));
            if let Ok(n) = write(model, random, buffer, 0, true, &data) {
                model.put(end, &data[..n]);
            }
        }
        3 | 4 => {
            let found = read(model, random, buffer, at as u64, sectors);
            let end = (at + sectors * SECTOR).min(model.bytes.len());
            assert!(found == model.bytes[at.min(end)..end], "bytes from {at} on");
        }
        _ => model.step(random),
    }
}

/// With steps through the pages, truncation, holes, a full disk, writes to the disk.
#[test]
fn a_program_that_goes_past_the_cache_reads_and_writes_the_file() {
    on_machines(12, |seed| {
        find_address_spaces();
        let mut random = Random::new(seed);
        let shape = Shape {
            kib: [500, 4000][random.below(2)],
            ..shape(&mut random, 2)
        };
        let mounted = Mounted::of(shape, seed);
        mounted.disk.set_delays(random.below(2) == 0);
        let models = Mutex::new(Model::all(&mounted, 2));
        let models = Arc::new(models);
        let inner = models.clone();
        in_space(1, move |map, _| {
            let buffer = buffer(map);
            let mut random = Random::new(seed + 1);
            let mut models = inner.lock().unwrap();
            for _ in 0..200 {
                let which = random.below(2);
                step(&mut models[which], &mut random, buffer);
            }
        });
        let models = Arc::into_inner(models).expect("the task has ended");
        compare(mounted, models.into_inner().unwrap());
    });
}

/// Sectors of one page belong to several tasks, which go through the pages and past them.
#[test]
fn tasks_in_the_same_pages_do_not_harm_each_other() {
    const TASKS: usize = 3;
    const LEN: usize = 5 * PAGE_SIZE;
    /// Bytes that one task has in a row: no whole number of pages.
    const ROW: usize = 3 * SECTOR;
    on_machines(12, |seed| {
        find_address_spaces();
        let shape = Shape {
            block: image::block_size(seed),
            files: 1,
            ..SMALL
        };
        let mounted = Mounted::of(shape, seed);
        mounted.disk.set_delays(true);
        let file = mounted.open(0);
        let zeros = vec![0; LEN];
        let written = pages(&file).write(0, false, &mut BytesSource::new(&zeros));
        assert_eq!(written, Ok((LEN, LEN as u64)));
        let shared = file.clone();
        in_space(TASKS, move |map, task| {
            let buffer = buffer(map);
            let mut random = Random::new(seed * 100 + task as u64);
            let file = pages(&shared).clone();
            let model = Model {
                file: shared.clone(),
                bytes: Vec::new(),
            };
            let mut mine = vec![0u8; LEN];
            for _ in 0..80 {
                let row = random.below(LEN / ROW / TASKS) * TASKS + task;
                let first = random.below(3);
                let sectors = 1 + random.below(3 - first);
                let at = row * ROW + first * SECTOR;
                let bytes = at..at + sectors * SECTOR;
                let data = random.some(bytes.len());
                match random.below(6) {
                    0 | 1 => {
                        let n = write(&model, &mut random, buffer, at as u64, false, &data);
                        assert_eq!(n, Ok(data.len()));
                        mine[bytes].copy_from_slice(&data);
                    }
                    2 => {
                        let mut from = BytesSource::new(&data);
                        file.write(at as u64, false, &mut from).unwrap();
                        mine[bytes].copy_from_slice(&data);
                    }
                    3 => {
                        let found = read(&model, &mut random, buffer, at as u64, sectors);
                        assert!(found == mine[bytes], "past the pages, from {at} on");
                    }
                    4 => {
                        let mut found = vec![0; bytes.len()];
                        let mut to = BytesSink::new(&mut found);
                        assert_eq!(file.read(at as u64, &mut to), Ok(bytes.len()));
                        assert!(found == mine[bytes], "in the pages, from {at} on");
                    }
                    _ => {
                        file.write_out(0..u64::MAX, false).unwrap();
                        file.give_up(0..u64::MAX, usize::MAX);
                    }
                }
            }
            let all = read_all(&shared);
            for row in (task..LEN / ROW).step_by(TASKS) {
                let bytes = row * ROW..(row + 1) * ROW;
                assert!(all[bytes.clone()] == mine[bytes], "row {row} in the end");
            }
        });
        drop(file);
        mounted.finish();
    });
}

/// A block that is on its way is not given to another file.
#[test]
fn a_truncation_waits_for_transfers_past_the_cache() {
    const LEN: usize = 30 * PAGE_SIZE;
    on_machines(12, |seed| {
        find_address_spaces();
        let shape = Shape {
            block: image::block_size(seed),
            files: 1,
            ..SMALL
        };
        let mounted = Mounted::of(shape, seed);
        let (file, disk) = (mounted.open(0), mounted.disk.clone());
        let (shared, device) = (file.clone(), mounted.fs.device().clone());
        let round_of = Arc::new(AtomicUsize::new(0));
        in_space(2, move |map, number| {
            let pages = pages(&shared);
            for round in 0..10 {
                if number == 0 {
                    disk.set_delays(false);
                    pages
                        .write(0, false, &mut BytesSource::new(&[b'o'; LEN]))
                        .unwrap();
                    pages.sync(0..u64::MAX, false).unwrap();
                    disk.set_delays(true);
                    round_of.fetch_add(1, SeqCst);
                    while device.statistics().in_flight == 0 && round_of.load(SeqCst) % 2 == 1 {
                        task::yield_now();
                    }
                    pages.truncate(0).unwrap();
                    assert_eq!(device.statistics().in_flight, 0, "round {round}");
                    while round_of.load(SeqCst) % 2 == 1 {
                        task::yield_now();
                    }
                } else {
                    let buffer = buffer(map);
                    user::copy_out(buffer, &[b'w'; LEN]).unwrap();
                    while round_of.load(SeqCst).is_multiple_of(2) {
                        task::yield_now();
                    }
                    let mut memory = UserBuffers::new(buffer, LEN).unwrap();
                    if round % 2 == 0 {
                        pages.read_direct(0, &mut memory).unwrap();
                    } else {
                        let limit = SizeLimit::none();
                        pages.write_direct(&limit, 0, false, &mut memory).unwrap();
                    }
                    map.unmap(VirtRange::new(buffer, buffer + BUFFER)).unwrap();
                    round_of.fetch_add(1, SeqCst);
                }
            }
        });
        drop(file);
        mounted.finish();
    });
}

/// Buffers that are mappings of the file itself, of the pages that are moved and of others.
#[test]
fn buffers_that_are_mappings_of_the_file_are_written_and_read() {
    const PAGES: usize = 8;
    on_machines(4, |seed| {
        find_address_spaces();
        let mounted = Mounted::of(Shape { files: 1, ..SMALL }, seed);
        let file = mounted.open(0);
        let content: Vec<u8> = (0..PAGES * PAGE_SIZE)
            .map(|at| (at / PAGE_SIZE) as u8)
            .collect();
        let written = pages(&file).write(0, false, &mut BytesSource::new(&content));
        written.unwrap();
        pages(&file).sync(0..u64::MAX, false).unwrap();
        let shared = file.clone();
        in_space(1, move |map, _| {
            let pages = pages(&shared);
            let at = map
                .map(MapRequest {
                    shared: true,
                    backing: Backing::Object {
                        pager: pages.clone(),
                        offset: 0,
                    },
                    ..MapRequest::zero(PAGES * PAGE_SIZE, Prot::READ | Prot::WRITE)
                })
                .unwrap();
            let byte = |page: usize| {
                let mut byte = [0];
                user::copy_in(&mut byte, at + page * PAGE_SIZE + 7).unwrap();
                byte[0]
            };
            user::copy_out(at + 7, &[50]).unwrap();
            // Onto the next page, and onto itself.
            let limit = SizeLimit::none();
            for target in [1, 0] {
                let mut from = UserBuffers::new(at, PAGE_SIZE).unwrap();
                let target = target * PAGE_SIZE as u64;
                let written = pages.write_direct(&limit, target, false, &mut from);
                assert_eq!(written, Ok((PAGE_SIZE, target + PAGE_SIZE as u64)));
            }
            assert_eq!((byte(0), byte(1), byte(2)), (50, 50, 2));
            // Page 5 into page 2, and into itself; what is read becomes the file's.
            for target in [2, 5] {
                let mut to = UserBuffers::new(at + target * PAGE_SIZE, PAGE_SIZE).unwrap();
                let read = pages.read_direct(5 * PAGE_SIZE as u64, &mut to);
                assert_eq!(read, Ok(PAGE_SIZE));
            }
            assert_eq!((byte(2), byte(5)), (5, 5));
            // Written back since: only the device's store makes it dirty again.
            pages.sync(0..u64::MAX, false).unwrap();
            let mut to = UserBuffers::new(at + 3 * PAGE_SIZE, PAGE_SIZE).unwrap();
            assert_eq!(pages.read_direct(0, &mut to), Ok(PAGE_SIZE));
            map.unmap(VirtRange::new(at, at + PAGES * PAGE_SIZE))
                .unwrap();
            pages.sync(0..u64::MAX, false).unwrap();
            pages.give_up(0..u64::MAX, usize::MAX);
            assert_eq!(pages.counts().resident, 0);
            let found: Vec<u8> = (0..PAGES)
                .map(|page| read_all(&shared)[page * PAGE_SIZE + 7])
                .collect();
            assert_eq!(found, [50, 50, 5, 50, 4, 5, 6, 7]);
        });
        drop(file);
        mounted.finish();
    });
}

#[test]
fn what_does_not_fit_is_refused() {
    on_machines(2, |seed| {
        find_address_spaces();
        let mounted = Mounted::of(Shape { files: 1, ..SMALL }, seed);
        let (file, disk) = (mounted.open(0), mounted.disk.clone());
        let shared = file.clone();
        in_space(1, move |map, _| {
            let buffer = buffer(map);
            let pages = pages(&shared);
            let limit = SizeLimit::none();
            let size = 3 * PAGE_SIZE + 100;
            let data = vec![7; size];
            pages.write(0, false, &mut BytesSource::new(&data)).unwrap();
            let read = |at: u64, to: VirtAddr, len| {
                pages.read_direct(at, &mut UserBuffers::new(to, len).unwrap())
            };
            let write = |at: u64, from: VirtAddr, len| {
                let mut from = UserBuffers::new(from, len).unwrap();
                pages
                    .write_direct(&limit, at, false, &mut from)
                    .map(|(n, _)| n)
            };
            for (at, offset, len) in [(0, 0, 100), (100, 0, SECTOR), (0, 8, SECTOR)] {
                assert_eq!(read(at, buffer + offset, len), Err(Errno::EINVAL));
                assert_eq!(write(at, buffer + offset, len), Err(Errno::EINVAL));
            }
            assert_eq!(read(size as u64, buffer, 100), Ok(0), "behind the end");
            assert_eq!(read(0, buffer, 0), Ok(0));
            assert_eq!(read(3 * PAGE_SIZE as u64, buffer, SECTOR), Ok(100));
            // Two pages, then nothing.
            map.unmap(VirtRange::new(
                buffer + 2 * PAGE_SIZE,
                buffer + 3 * PAGE_SIZE,
            ))
            .unwrap();
            assert_eq!(read(0, buffer, 3 * PAGE_SIZE), Ok(2 * PAGE_SIZE));
            assert_eq!(write(0, buffer, 3 * PAGE_SIZE), Ok(2 * PAGE_SIZE));
            assert_eq!(read(0, buffer + 2 * PAGE_SIZE, SECTOR), Err(Errno::EFAULT));
            assert_eq!(write(0, buffer + 2 * PAGE_SIZE, SECTOR), Err(Errno::EFAULT));
            disk.fail_when(|attempt| attempt.operation == Operation::Read);
            assert_eq!(read(0, buffer, PAGE_SIZE), Err(Errno::EIO));
            disk.fail_when(|attempt| attempt.operation == Operation::Write);
            assert_eq!(write(0, buffer, PAGE_SIZE), Err(Errno::EIO));
            disk.fail_no_more();
            assert_eq!(write(0, buffer, PAGE_SIZE), Ok(PAGE_SIZE));
            // A limit also stops overwriting.
            let limit = SizeLimit::new(PAGE_SIZE as u64 + 512);
            let mut from = UserBuffers::new(buffer, PAGE_SIZE).unwrap();
            let written = pages.write_direct(&limit, PAGE_SIZE as u64, false, &mut from);
            assert_eq!(written, Ok((512, PAGE_SIZE as u64 + 512)));
            assert!(!limit.has_refused(), "a short write ends at the limit");
            let written = pages.write_direct(&limit, 2 * PAGE_SIZE as u64, false, &mut from);
            assert_eq!(written, Err(Errno::EFBIG));
            assert!(limit.has_refused(), "nothing may be written there");
        });
        drop(file);
        mounted.finish();
    });
}

/// A large call of a thread that is killed ends soon.
#[test]
fn a_thread_that_is_to_end_moves_no_further_piece() {
    static DYING: AtomicBool = AtomicBool::new(false);
    const LEN: usize = (1 << 20) + PAGE_SIZE;
    on_machines(2, |seed| {
        find_address_spaces();
        vm::set_dying(|| DYING.load(SeqCst));
        let shape = Shape {
            kib: 4000,
            files: 1,
            ..SMALL
        };
        let mounted = Mounted::of(shape, seed);
        let file = mounted.open(0);
        let shared = file.clone();
        in_space(1, move |map, _| {
            let rights = Prot::READ | Prot::WRITE;
            let buffer = map.map(MapRequest::zero(LEN, rights)).unwrap();
            let pages = pages(&shared);
            let memory = || UserBuffers::new(buffer, LEN).unwrap();
            let limit = SizeLimit::none();
            let write = || pages.write_direct(&limit, 0, false, &mut memory());
            let read = || pages.read_direct(0, &mut memory());
            // What the file has not yet goes through the pages.
            for _ in 0..2 {
                assert_eq!(write(), Ok((LEN, LEN as u64)));
                assert_eq!(read(), Ok(LEN));
            }
            DYING.store(true, SeqCst);
            let (wrote, end) = write().unwrap();
            assert!(wrote < LEN && end == wrote as u64, "{wrote} written");
            let read = read().unwrap();
            assert!(read < LEN, "{read} read");
            // Nor through the pages.
            let (wrote, end) = pages.write(0, false, &mut memory()).unwrap();
            assert!(wrote < LEN && end == wrote as u64, "{wrote} written");
            let read = pages.read(0, &mut memory()).unwrap();
            assert!(read < LEN, "{read} read");
            DYING.store(false, SeqCst);
        });
        drop(file);
        mounted.finish();
    });
}
