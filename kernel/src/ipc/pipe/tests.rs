//! Pipes on the simulated machine: what a pipe adds to the byte queue, whose own tests stand in
//! `fbuf/tests/queue/main.rs`.

use alloc::{boxed::Box, sync::Arc, vec, vec::Vec};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use abi::{
    Errno,
    raw::general::{O_DIRECT, O_NONBLOCK},
};
use fbuf::{Aggregate, AggregateSource, BytesSink, BytesSource, Sink, Slice, Source};
use fs::{File, OpenFlags, Ready};
use nucleus::{
    Frame, PAGE_SIZE,
    frame::Contents,
    sim::{Random, Together, on_machines},
    task,
};

use super::{DEFAULT_SLOTS, End, pair, splice};

fn write(end: &End, bytes: &[u8]) -> abi::Result<usize> {
    end.write(None, OpenFlags::default(), &mut BytesSource { from: bytes })
}

fn read(end: &End, max: usize) -> abi::Result<Vec<u8>> {
    let mut buffer = vec![0; max];
    let n = end.read(None, OpenFlags::default(), &mut BytesSink::new(&mut buffer))?;
    buffer.truncate(n);
    Ok(buffer)
}

fn non_blocking() -> OpenFlags {
    OpenFlags::from_bits_retain(O_NONBLOCK)
}

/// Byte `n` of the stream.
fn byte(n: usize) -> u8 {
    (n ^ n >> 8 ^ n >> 16) as u8
}

/// Sends `total` bytes from one end to another, beside `between`: they come in order.
fn carry(seed: u64, total: usize, ends: [Arc<End>; 2], between: Option<Box<dyn FnOnce() + Send>>) {
    let [reader, writer] = ends;
    let all = Arc::new(Together::default());
    all.spawn(move || {
        let mut random = Random::new(seed);
        let mut sent = 0;
        while sent < total {
            let n = random.size().min(total - sent);
            let piece: Vec<u8> = (sent..sent + n).map(byte).collect();
            assert_eq!(write(&writer, &piece), Ok(n));
            sent += n;
        }
    });
    if let Some(between) = between {
        all.spawn(between);
    }
    let mut random = Random::new(seed + 1000);
    let mut got = 0;
    loop {
        let piece = read(&reader, random.size()).unwrap();
        if piece.is_empty() {
            break;
        }
        for (i, &b) in piece.iter().enumerate() {
            assert_eq!(b, byte(got + i), "byte {}", got + i);
        }
        got += piece.len();
    }
    assert_eq!(got, total);
    all.join();
}

#[test]
fn what_goes_in_comes_out_in_order() {
    on_machines(24, |seed| {
        let (reader, writer) = pair((0, 0)).unwrap();
        carry(seed, 300_000, [reader, writer], None);
    });
}

#[test]
fn a_pipe_holds_64_kib_whatever_the_pieces() {
    for piece in [1, 512, 4096, 65536] {
        on_machines(1, move |_| {
            let (_reader, writer) = pair((0, 0)).unwrap();
            let bytes = vec![7; piece];
            let mut total = 0;
            loop {
                let mut source = BytesSource { from: &bytes };
                match writer.write(None, non_blocking(), &mut source) {
                    Ok(n) => total += n,
                    Err(error) => {
                        assert_eq!(error, Errno::EAGAIN);
                        break;
                    }
                }
            }
            assert_eq!(total, DEFAULT_SLOTS * PAGE_SIZE);
        });
    }
}

#[test]
fn ends_that_are_gone_show() {
    on_machines(1, |_| {
        let (reader, writer) = pair((0, 0)).unwrap();
        write(&writer, b"rest").unwrap();
        drop(writer);
        assert_eq!(reader.poll(None) & Ready::HUP, Ready::HUP);
        assert_eq!(read(&reader, 10).unwrap(), b"rest");
        assert_eq!(read(&reader, 10).unwrap(), b"");
        let (reader, writer) = pair((0, 0)).unwrap();
        drop(reader);
        assert_eq!(write(&writer, b"x"), Err(Errno::EPIPE));
        assert_eq!(writer.poll(None) & Ready::ERR, Ready::ERR);
    });
}

/// A writer that waits for room and a reader that waits for bytes learn that the other end is gone.
#[test]
fn waiting_ends_with_the_other_end() {
    on_machines(12, |_| {
        let (reader, writer) = pair((0, 0)).unwrap();
        let all = Arc::new(Together::default());
        all.spawn(move || {
            let bytes = vec![1; 200_000];
            let n = write(&writer, &bytes).unwrap();
            assert!(n < bytes.len());
            assert_eq!(write(&writer, &bytes), Err(Errno::EPIPE));
        });
        read(&reader, 10).unwrap();
        drop(reader);
        all.join();
        let (reader, writer) = pair((0, 0)).unwrap();
        all.spawn(move || assert_eq!(read(&reader, 10).unwrap(), b""));
        drop(writer);
        all.join();
    });
}

#[test]
fn capacity_changes_but_never_below_what_is_in() {
    on_machines(1, |_| {
        let (reader, writer) = pair((0, 0)).unwrap();
        let pipe = reader.pipe();
        assert_eq!(pipe.resize(1), Ok(PAGE_SIZE));
        assert_eq!(pipe.resize(3 * PAGE_SIZE), Ok(4 * PAGE_SIZE));
        write(&writer, &vec![9; 4 * PAGE_SIZE]).unwrap();
        assert_eq!(pipe.resize(2 * PAGE_SIZE), Err(Errno::EBUSY));
        assert_eq!(pipe.resize(2 << 20), Err(Errno::EPERM));
        assert_eq!(pipe.resize(1 << 20), Ok(1 << 20));
        write(&writer, &vec![9; PAGE_SIZE]).unwrap();
        assert_eq!(read(&reader, 1 << 20).unwrap().len(), 5 * PAGE_SIZE);
    });
}

/// Packets (`O_DIRECT`) are read one by one, apart from other bytes, and lose what does not fit.
#[test]
fn packets_are_read_one_by_one() {
    on_machines(2, |_| {
        let (reader, writer) = pair((0, 0)).unwrap();
        let direct = OpenFlags::from_bits_retain(O_DIRECT);
        let packet = |bytes: &[u8]| writer.write(None, direct, &mut BytesSource { from: bytes });
        write(&writer, b"plain").unwrap();
        assert_eq!(packet(b"first"), Ok(5));
        assert_eq!(packet(b"second"), Ok(6));
        assert_eq!(write(&writer, b"behind"), Ok(6));
        assert_eq!(packet(&[7; PAGE_SIZE + 1]), Ok(PAGE_SIZE + 1));
        assert_eq!(read(&reader, 100).unwrap(), b"plain");
        assert_eq!(read(&reader, 3).unwrap(), b"fir");
        assert_eq!(read(&reader, 100).unwrap(), b"second");
        assert_eq!(read(&reader, 100).unwrap(), b"behind");
        assert_eq!(read(&reader, 2 * PAGE_SIZE).unwrap(), [7; PAGE_SIZE]);
        assert_eq!(read(&reader, 2 * PAGE_SIZE).unwrap(), [7]);
        assert_eq!(reader.pipe().status().bytes, 0);
    });
}

/// Slices of 1000 bytes each, which do not continue each other.
fn slices(count: usize) -> Aggregate {
    let mut slices = Aggregate::new();
    for _ in 0..count {
        let mut one = Aggregate::new();
        let bytes = vec![5; PAGE_SIZE];
        one.fill_from(&mut BytesSource { from: &bytes }, PAGE_SIZE)
            .unwrap();
        let whole = one.pop_front().unwrap();
        slices.append(whole.last(1000)).unwrap();
    }
    slices
}

/// Bytes that are passed on in slices form packets, and are written whole, as copied ones are.
#[test]
fn slices_of_a_write_stay_together() {
    on_machines(1, |_| {
        for (flags, free, count, expected) in [
            (O_DIRECT, 16, 2, Ok(2000)),
            (O_DIRECT, 1, 2, Ok(2000)),
            (0, 16, 4, Ok(4000)),
            (0, 1, 4, Ok(4000)),
            (0, 0, 4, Err(Errno::EAGAIN)),
        ] {
            let (reader, writer) = pair((0, 0)).unwrap();
            let full = vec![0; (DEFAULT_SLOTS - free) * PAGE_SIZE];
            write(&writer, &full).unwrap();
            let mut from = slices(count);
            let mut from = AggregateSource::new(&mut from, count * 1000);
            let flags = OpenFlags::from_bits_retain(O_NONBLOCK | flags);
            let case = alloc::format!("{flags:?}, {free} free");
            assert_eq!(writer.write(None, flags, &mut from), expected, "{case}");
            if !full.is_empty() {
                assert_eq!(read(&reader, full.len()).unwrap().len(), full.len());
            }
            if let Ok(n) = expected {
                assert_eq!(read(&reader, PAGE_SIZE).unwrap(), vec![5; n], "{case}");
            }
        }
    });
}

/// A file whose write runs a function.
struct Writes<F>(F);

impl<F: Fn(&mut dyn Source) -> abi::Result<usize> + Send + Sync + 'static> File for Writes<F> {
    fn write(&self, _: Option<u64>, _: OpenFlags, from: &mut dyn Source) -> abi::Result<usize> {
        (self.0)(from)
    }
}

fn splice_to(
    pipe: &End,
    write: impl Fn(&mut dyn Source) -> abi::Result<usize> + Send + Sync + 'static,
) -> abi::Result<usize> {
    let to = Writes(write);
    let write = |source: &mut dyn Source| to.write(None, OpenFlags::default(), source);
    splice::pipe_to_file(pipe.pipe(), write, 1 << 30, true)
}

/// A stream without an end of bytes, and how many were taken.
struct Stream(AtomicUsize);

impl File for Stream {
    fn read(&self, _: Option<u64>, _: OpenFlags, to: &mut dyn Sink) -> abi::Result<usize> {
        let page = Frame::alloc(Contents::Zeroed).unwrap();
        let mut total = 0;
        while to.room() > 0 {
            total += to.put_slice(Slice::part(&page, 0, to.room().min(1000)))?;
        }
        self.0.fetch_add(total, Relaxed);
        Ok(total)
    }
}

/// A splice from a stream takes no more than the pipe has slots for: bytes of a stream can't go
/// back, nor may a call that shall not wait do so.
#[test]
fn a_splice_from_a_stream_takes_what_fits() {
    on_machines(1, |_| {
        for free in [1, 3] {
            let (reader, writer) = pair((0, 0)).unwrap();
            let packets = OpenFlags::from_bits_retain(O_DIRECT);
            for _ in 0..DEFAULT_SLOTS - free {
                let byte = &mut BytesSource { from: b"x" };
                assert_eq!(writer.write(None, packets, byte), Ok(1));
            }
            let from = Stream(AtomicUsize::new(0));
            let flags = OpenFlags::default();
            let got = splice::file_to_pipe(&from, None, flags, reader.pipe(), 1 << 16, false);
            assert_eq!(got, Ok(free * 1000));
            assert_eq!(from.0.load(Relaxed), free * 1000);
        }
    });
}

/// A file whose read runs a function.
struct Reads<F>(F);

impl<F: Fn(&mut dyn Sink) -> abi::Result<usize> + Send + Sync + 'static> File for Reads<F> {
    fn read(&self, _: Option<u64>, _: OpenFlags, to: &mut dyn Sink) -> abi::Result<usize> {
        (self.0)(to)
    }
}

/// A splice that has taken bytes of a stream neither waits nor loses them where another writer has
/// filled the pipe meanwhile. Bytes of a file can be read again.
#[test]
fn a_splice_keeps_what_it_took_of_a_stream() {
    on_machines(1, |_| {
        for at in [None, Some(0)] {
            let (reader, writer) = pair((0, 0)).unwrap();
            let faster = writer.clone();
            let from = Reads(move |to: &mut dyn Sink| {
                let full = vec![1; DEFAULT_SLOTS * PAGE_SIZE];
                let mut full = BytesSource { from: &full };
                faster.write(None, non_blocking(), &mut full).unwrap();
                let page = Frame::alloc(Contents::Zeroed).unwrap();
                to.put_slice(Slice::part(&page, 0, 1000))
            });
            let flags = OpenFlags::default();
            let got = splice::file_to_pipe(&from, at, flags, reader.pipe(), 1 << 16, false);
            let expected = match at {
                None => Ok(1000),
                Some(_) => Err(Errno::EAGAIN),
            };
            assert_eq!(got, expected);
            let all = DEFAULT_SLOTS * PAGE_SIZE + expected.unwrap_or(0);
            assert_eq!(read(&reader, 2 * all).unwrap().len(), all);
            assert_eq!(write(&writer, b"again"), Ok(5));
        }
    });
}

/// A large call of a thread that is killed ends soon.
#[test]
fn a_thread_that_is_to_end_moves_no_further_piece() {
    static DYING: AtomicBool = AtomicBool::new(false);
    on_machines(1, |_| {
        vm::set_dying(|| DYING.load(Relaxed));
        let len = 4 * DEFAULT_SLOTS * PAGE_SIZE;
        let from = Stream(AtomicUsize::new(0));
        let moved = |ends_after: usize| {
            let flags = OpenFlags::default();
            let write = |moved, source: &mut dyn Source| {
                DYING.store(moved as usize >= ends_after, Relaxed);
                Ok(source.left())
            };
            let moved = splice::file_to_file((&from, flags, 0), write, len);
            DYING.store(false, Relaxed);
            moved
        };
        assert_eq!(moved(len), Ok(len));
        assert_eq!(moved(0), Ok(len / 4));
        assert_eq!(moved(len / 4), Ok(len / 2));
    });
}

/// While a file writes what a splice gives it, and after it refused that, the bytes are in the
/// pipe and take its room.
#[test]
fn a_splice_takes_off_what_was_written() {
    on_machines(1, |_| {
        let capacity = DEFAULT_SLOTS * PAGE_SIZE;
        let refused = Err(Errno::ECONNREFUSED);
        // What the file takes of the source, and what its write returns.
        for (takes, result) in [
            (0, refused),
            (5000, refused),
            (capacity, refused),
            (capacity, Ok(5000)),
            (capacity, Ok(capacity)),
            (0, Ok(capacity)),
            (0, Ok(4096)),
        ] {
            let (reader, writer) = pair((0, 0)).unwrap();
            let all: Vec<u8> = (0..capacity).map(byte).collect();
            assert_eq!(write(&writer, &all), Ok(capacity));
            let (pipe, other) = (reader.pipe().clone(), writer.clone());
            let spliced = splice_to(&reader, move |from| {
                let mut left = takes;
                while left > 0
                    && let Some(slice) = from.take_slice(left)
                {
                    left -= slice.len;
                }
                let more = other.write(None, non_blocking(), &mut BytesSource { from: b"more" });
                assert_eq!(more, Err(Errno::EAGAIN));
                assert_eq!(pipe.status().bytes, capacity);
                assert_eq!(pipe.ready() & (Ready::IN | Ready::OUT), Ready::IN);
                result
            });
            assert_eq!(spliced, result);
            let gone = result.unwrap_or(0);
            assert_eq!(reader.pipe().status().bytes, capacity - gone);
            assert_eq!(reader.pipe().ready().contains(Ready::OUT), gone > 0);
            drop(writer);
            assert_eq!(read(&reader, capacity).unwrap(), all[gone..]);
        }
    });
}

/// A reader beside splices that are refused finds no end before it has all bytes.
#[test]
fn readers_wait_for_a_splice() {
    on_machines(24, |seed| {
        let (reader, writer) = pair((0, 0)).unwrap();
        let total = 30_000;
        let all = Arc::new(Together::default());
        // The reader may find the pipe empty, and look for a writer when a splice has the bytes.
        all.spawn(move || {
            write(&writer, &vec![1; total]).unwrap();
        });
        let other = reader.clone();
        all.spawn(move || {
            for _ in 0..20 {
                let _ = splice_to(&other, |_| {
                    task::yield_now();
                    Err(Errno::EAGAIN)
                });
            }
        });
        let mut random = Random::new(seed);
        let mut got = 0;
        while got < total {
            let n = read(&reader, 1 + random.below(4000)).unwrap().len();
            assert!(n > 0, "an end after {got}");
            got += n;
        }
        assert_eq!(read(&reader, 1).unwrap(), b"");
        all.join();
    });
}

/// Splices between pipes that others read and write at the same time keep order and limits.
#[test]
fn splices_between_pipes_keep_order() {
    on_machines(24, |seed| {
        let (first, writer) = pair((0, 0)).unwrap();
        let (last, middle) = pair((0, 0)).unwrap();
        let splices = move || {
            let mut random = Random::new(seed + 2000);
            loop {
                let (from, to) = (first.pipe(), middle.pipe());
                match splice::pipe_to_pipe(from, to, random.size(), true).unwrap() {
                    0 => break,
                    _ => assert!(to.status().slices <= DEFAULT_SLOTS),
                }
            }
        };
        carry(seed, 150_000, [last, writer], Some(Box::new(splices)));
    });
}
