//! The byte queue on the simulated machine, with both kinds of limits and with marks.

mod kind;

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use abi::Errno;
use fbuf::{
    Aggregate, AggregateSink, AggregateSource, BytesSink, BytesSource, DiscardSink, Moving, Sink,
    Slice, Source,
    queue::{Queue, State},
};
use nucleus::{
    PAGE_SIZE, frame,
    sim::{Random, Together, on_machines},
};

use kind::{BYTES, CLOSED, Kind, OUT, Read, SLOTS, Sleepy, Write, byte};

#[test]
fn bytes_come_out_in_order_and_no_wake_up_is_lost() {
    for kind in [Kind::slots, Kind::bytes] {
        on_machines(9, move |seed| {
            let queue = Sleepy::new(kind());
            let total = 200_000;
            let all = Arc::new(Together::default());
            let writer = queue.clone();
            all.spawn(move || {
                let mut random = Random::new(seed);
                let mut sent = 0;
                while sent < total {
                    let n = random.size().min(total - sent);
                    let piece: Vec<u8> = (sent..sent + n).map(byte).collect();
                    writer.write(&piece, 0);
                    sent += n;
                }
                writer.close();
            });
            all.spawn(move || {
                let mut random = Random::new(seed + 1000);
                let mut got = 0;
                loop {
                    let piece = queue.read(random.size());
                    if piece.is_empty() {
                        break;
                    }
                    for (i, &b) in piece.iter().enumerate() {
                        assert_eq!(b, byte(got + i), "byte {}", got + i);
                    }
                    got += piece.len();
                }
                assert_eq!(got, total);
            });
            all.join();
        });
    }
}

/// `PIPE_BUF`: three writers, whose short writes must each stay together.
#[test]
fn short_writes_are_not_mixed() {
    for kind in [Kind::slots, Kind::bytes] {
        on_machines(6, move |seed| {
            let queue = Sleepy::new(kind());
            let all = Arc::new(Together::default());
            let writing = Arc::new(AtomicUsize::new(3));
            for id in 1..=3u8 {
                let (queue, writing) = (queue.clone(), writing.clone());
                all.spawn(move || {
                    let mut random = Random::new(seed * 8 + u64::from(id));
                    for _ in 0..60 {
                        let len = 3 + random.below(PAGE_SIZE - 3);
                        let mut message = vec![id; len];
                        message[1..3].copy_from_slice(&(len as u16).to_le_bytes());
                        queue.write(&message, len);
                    }
                    if writing.fetch_sub(1, SeqCst) == 1 {
                        queue.close();
                    }
                });
            }
            let mut stream: VecDeque<u8> = VecDeque::new();
            let mut messages = 0;
            loop {
                let piece = queue.read(7000);
                if piece.is_empty() {
                    break;
                }
                stream.extend(piece);
                while stream.len() >= 3 {
                    let len = usize::from(u16::from_le_bytes([stream[1], stream[2]]));
                    if stream.len() < len {
                        break;
                    }
                    let message: Vec<u8> = stream.drain(..len).collect();
                    assert!(message[3..].iter().all(|&b| b == message[0]));
                    messages += 1;
                }
            }
            assert_eq!((messages, stream.len()), (180, 0));
            all.join();
        });
    }
}

/// A queue and what it should hold.
struct Checked {
    queue: Queue<Kind>,
    bytes: VecDeque<u8>,
    /// Places in `bytes` of the marks.
    marks: VecDeque<usize>,
}

impl Checked {
    fn new(kind: Kind) -> Checked {
        Checked {
            queue: kind.queue(),
            bytes: VecDeque::new(),
            marks: VecDeque::new(),
        }
    }

    fn remove(&mut self, n: usize) -> Vec<u8> {
        self.marks.retain(|&mark| mark >= n);
        self.marks.iter_mut().for_each(|mark| *mark -= n);
        self.bytes.drain(..n).collect()
    }

    fn write(&mut self, bytes: &[u8], passed: bool, mark: bool, whole: bool) -> usize {
        let mut call = Write {
            least: if whole { bytes.len() } else { 0 },
            mark,
            was_empty: false,
        };
        let mut plain = BytesSource::new(bytes);
        let mut slices = Aggregate::new();
        let n = if passed {
            // Small writes are up to three slices.
            for piece in bytes.chunks(1 + bytes.len() / 3) {
                let mut next = Aggregate::new();
                let mut piece = BytesSource::new(piece);
                next.fill_from(&mut piece, bytes.len()).unwrap();
                slices.join(&mut next).unwrap();
            }
            let mut from = AggregateSource::new(&mut slices, bytes.len());
            self.queue.fill(&mut from, &mut call).unwrap()
        } else {
            self.queue.fill(&mut plain, &mut call).unwrap()
        };
        assert_eq!(call.was_empty, self.bytes.is_empty() && n > 0);
        if mark && n > 0 {
            self.marks.push_back(self.bytes.len());
        }
        self.bytes.extend(&bytes[..n]);
        n
    }

    /// Reads, copying or keeping frames or dropping the bytes.
    fn read(&mut self, max: usize, how: usize) {
        let mut call = Read::default();
        let mut buffer = vec![0; max];
        let mut kept = Aggregate::new();
        let reading = self.queue.lock_reading();
        let n = match how {
            0 => self.queue.drain(&reading, &mut DiscardSink, max, &mut call),
            1 => {
                let mut to = AggregateSink::new(&mut kept, max);
                self.queue.drain(&reading, &mut to, usize::MAX, &mut call)
            }
            _ => {
                let mut to = BytesSink::new(&mut buffer);
                self.queue.drain(&reading, &mut to, max, &mut call)
            }
        }
        .unwrap();
        drop(reading);
        let mark = self.marks.iter().find(|&&mark| mark > 0);
        let there = mark.copied().unwrap_or(self.bytes.len());
        assert_eq!((n, call.taken), (max.min(there), n));
        let expected = self.remove(n);
        match how {
            0 => {}
            1 => {
                kept.peek(0, &mut buffer);
                assert_eq!(buffer[..n], expected);
            }
            _ => assert_eq!(buffer[..n], expected),
        }
    }

    fn peek(&self, skip: usize, max: usize) {
        let mut buffer = vec![0; max];
        let mut to = BytesSink::new(&mut buffer);
        let reading = self.queue.lock_reading();
        let end = skip + max / 2;
        let n = self.queue.peek(&reading, &mut to, skip, |_| end).unwrap();
        let expected: Vec<u8> = self
            .bytes
            .iter()
            .skip(skip)
            .take(max / 2)
            .copied()
            .collect();
        assert_eq!(buffer[..n], expected);
    }

    fn check(&self) {
        let ready = self.queue.ready();
        let chain = self.queue.lock();
        assert_eq!(ready, Kind::ready(&chain), "stored readiness");
        assert_eq!(chain.data.len(), self.bytes.len());
        let len = (chain.end() - chain.start()) as usize;
        assert_eq!(len, self.bytes.len());
        let mut all = vec![0; self.bytes.len()];
        chain.data.peek(0, &mut all);
        assert!(self.bytes.iter().eq(all.iter()));
    }

    /// Passes slices to `other`, which is empty: spliced, teed, or lent and settled in part.
    fn pass(&mut self, other: &mut Checked, max: usize, how: usize) {
        let mut call = Write::default();
        match how {
            0 => {
                let was_full = !self.queue.lock().has_slot();
                let reading = self.queue.lock_reading();
                let moved = self.queue.pass(&reading, &other.queue, max, &mut call);
                let (n, freed_slot) = moved.unwrap();
                drop(reading);
                assert_eq!(n, max.min(self.bytes.len()));
                assert_eq!(freed_slot, was_full && self.queue.lock().has_slot());
                assert_eq!(call.was_empty, n > 0);
                let bytes = self.remove(n);
                other.bytes.extend(bytes);
            }
            1 => {
                let n = self.queue.share(&other.queue, max, &mut call).unwrap();
                assert_eq!(n, max.min(self.bytes.len()));
                assert_eq!(call.was_empty, n > 0);
                other.bytes.extend(self.bytes.iter().take(n));
            }
            _ => {
                let was_full = !self.queue.lock().has_slot();
                let mut front = self.queue.front(max);
                assert_eq!(front.left(), max.min(self.bytes.len()));
                let mut copied = vec![0; front.left().min(max / 7)];
                assert_eq!(front.take_bytes(&mut copied), Ok(copied.len()));
                assert!(self.bytes.iter().take(copied.len()).eq(&copied));
                let slices = front.slices(usize::MAX, usize::MAX);
                assert_eq!(slices == 0, front.left() == 0);
                let passed = if how == 2 {
                    let mut moving = Moving::new(usize::MAX, usize::MAX);
                    while let Some(slice) = front.take_slice(usize::MAX) {
                        moving.put_slice(slice).unwrap();
                    }
                    assert!(moving.slice_count() <= slices);
                    let passed = other.queue.append(&mut moving, &mut call).unwrap();
                    assert!(moving.is_empty());
                    passed
                } else {
                    other.queue.fill(&mut front, &mut call).unwrap()
                };
                let at = copied.len();
                other.bytes.extend(self.bytes.iter().skip(at).take(passed));
                let passed = at + passed;
                self.check();
                let n = if how == 2 { passed } else { passed / 2 };
                let reading = self.queue.lock_reading();
                let freed_slot = self.queue.remove(&reading, n);
                drop(reading);
                assert_eq!(freed_slot, was_full && self.queue.lock().has_slot());
                self.remove(n);
            }
        }
    }
}

/// Single steps, against a queue of bytes.
#[test]
fn steps_agree_with_a_queue_of_bytes() {
    for kind in [Kind::slots, Kind::bytes] {
        on_machines(16, move |seed| {
            let mut random = Random::new(seed);
            let mut queue = Checked::new(kind());
            let mut other = Checked::new(kind());
            let is_slotted = queue.queue.lock().state.slots == SLOTS;
            // Marks and splices do not meet: a kind has one or the other.
            let has_marks = !is_slotted || seed % 2 == 0;
            let mut next = 0;
            for _ in 0..300 {
                let size = random.size();
                match random.below(8) {
                    0..=2 => {
                        let whole = size <= PAGE_SIZE && random.below(2) == 0;
                        let mark = has_marks && random.below(4) == 0;
                        let passed = random.below(3) == 0;
                        let bytes: Vec<u8> = (next..next + size).map(byte).collect();
                        let free = queue.queue.lock().free_slots();
                        let n = queue.write(&bytes, passed, mark, whole);
                        next += n;
                        let fits = is_slotted || size <= BYTES;
                        assert!(!whole || !is_slotted || n == 0 || n == size);
                        assert!(
                            n == size
                                || !fits
                                || !is_slotted
                                || whole
                                || passed
                                || queue.queue.lock().free_slots() == 0,
                            "{n} of {size}, {free}"
                        );
                    }
                    3 | 4 => queue.read(size, random.below(3)),
                    5 => queue.peek(random.below(2) * random.below(2 * size), size),
                    _ if is_slotted && !has_marks => {
                        queue.pass(&mut other, size, random.below(4));
                        other.check();
                        other.read(usize::MAX >> 40, 0);
                    }
                    _ => {}
                }
                queue.check();
            }
            let had = !queue.bytes.is_empty();
            assert_eq!(queue.queue.discard(|_| true), had);
            assert!(other.queue.lock().data.len() == other.bytes.len());
        });
    }
}

/// Bytes that a slice shows never change, though the writer goes on in the same frame.
#[test]
fn slices_that_were_passed_on_do_not_change() {
    on_machines(8, |seed| {
        let queue = Kind::bytes().queue();
        let mut random = Random::new(seed);
        let mut kept: Vec<(Aggregate, Vec<u8>)> = Vec::new();
        let mut next = 0;
        for _ in 0..60 {
            let n = 1 + random.below(700);
            let bytes: Vec<u8> = (next..next + n).map(byte).collect();
            next += n;
            let mut from = BytesSource::new(&bytes);
            assert_eq!(queue.fill(&mut from, &mut Write::default()), Ok(n));
            let mut slices = Aggregate::new();
            let mut to = AggregateSink::new(&mut slices, n);
            let reading = queue.lock_reading();
            let got = queue.drain(&reading, &mut to, n, &mut Read::default());
            assert_eq!(got, Ok(n));
            kept.push((slices, bytes));
            if random.below(3) == 0 {
                kept.remove(0);
            }
            for (slices, bytes) in &kept {
                let mut copy = vec![0; bytes.len()];
                slices.peek(0, &mut copy);
                assert_eq!(&copy, bytes);
            }
        }
    });
}

/// Every frame that can't be had is reported, and the bytes before it count.
#[test]
fn want_of_memory_is_reported() {
    for kind in [Kind::slots, Kind::bytes] {
        for after in 0..6 {
            on_machines(1, move |_| {
                let mut queue = Checked::new(kind());
                let bytes: Vec<u8> = (0..5 * PAGE_SIZE).map(byte).collect();
                frame::fail_after(Some(after));
                let mut from = BytesSource::new(&bytes);
                let result = queue.queue.fill(&mut from, &mut Write::default());
                frame::fail_after(None);
                match after {
                    0 => assert_eq!(result, Err(Errno::ENOMEM)),
                    _ => {
                        let n = result.unwrap();
                        assert_eq!(n, bytes.len().min(after as usize * PAGE_SIZE));
                        queue.bytes.extend(&bytes[..n]);
                    }
                }
                queue.check();
                queue.queue.discard(|_| true);
            });
        }
    }
}

/// Bytes that belong together are not cut when the second of their frames can't be had.
#[test]
fn want_of_memory_cuts_no_whole_write() {
    for kind in [Kind::slots, Kind::bytes] {
        on_machines(1, move |_| {
            let mut queue = Checked::new(kind());
            let bytes: Vec<u8> = (0..PAGE_SIZE).map(byte).collect();
            assert_eq!(queue.write(&bytes[..100], false, false, true), 100);
            let fill = |after| {
                let mut from = BytesSource::new(&bytes);
                let least = PAGE_SIZE;
                let mut call = Write {
                    least,
                    ..Write::default()
                };
                frame::fail_after(after);
                let result = queue.queue.fill(&mut from, &mut call);
                frame::fail_after(None);
                result
            };
            assert_eq!(fill(Some(0)), Err(Errno::ENOMEM));
            queue.check();
            assert_eq!(fill(None), Ok(PAGE_SIZE));
            queue.bytes.extend(&bytes);
            queue.check();
            queue.queue.discard(|_| true);
        });
    }
}

/// A closed queue takes nothing more; what is in it stays until it is discarded.
#[test]
fn a_closed_queue_takes_nothing() {
    on_machines(1, |_| {
        let queue = Kind::slots().queue();
        let fill = || queue.fill(&mut BytesSource::new(b"rest"), &mut Write::default());
        assert_eq!(fill(), Ok(4));
        queue.lock().state.closed = true;
        assert_eq!(fill(), Err(Errno::EPIPE));
        assert!(!queue.discard(|kind| !kind.closed));
        assert!(queue.discard(|kind| kind.closed));
        assert_eq!(queue.ready(), OUT | CLOSED);
    });
}

/// A queue that was resized keeps its bytes, and never becomes smaller than they are.
#[test]
fn limits_change_but_not_below_the_bytes() {
    on_machines(1, |_| {
        let mut queue = Checked::new(Kind::slots());
        let bytes: Vec<u8> = (0..4 * PAGE_SIZE).map(byte).collect();
        assert_eq!(queue.write(&bytes, false, false, false), bytes.len());
        let resize = |queue: &Queue<Kind>, slots| {
            queue.resize(&queue.lock_reading(), slots, |kind| kind.slots = slots)
        };
        assert_eq!(resize(&queue.queue, 3), Ok(false));
        assert_eq!(resize(&queue.queue, 4), Ok(true));
        assert_eq!(queue.write(b"x", false, false, false), 0);
        assert_eq!(resize(&queue.queue, 99), Ok(true));
        assert_eq!(queue.write(b"x", false, false, false), 1);
        queue.check();
        queue.read(PAGE_SIZE, 2);
        queue.queue.discard(|_| true);
    });
}

/// The search for whole pages looks at as many slices as it is told to.
#[test]
fn whole_pages_are_found_among_the_first_slices() {
    on_machines(1, |_| {
        let queue = Kind::bytes().queue();
        let mut chain = queue.lock();
        let data = &mut chain.data;
        data.reserve(102).unwrap();
        let frame = || frame::Frame::alloc(frame::Contents::Zeroed).unwrap();
        let small = frame();
        data.append(Slice::whole(frame())).unwrap();
        for at in 0..100 {
            data.append(Slice::part(&small, 2 * at, 1)).unwrap();
        }
        data.append(Slice::whole(frame())).unwrap();
        let all = chain.data.len();
        assert_eq!(chain.whole_pages(usize::MAX), 1);
        assert_eq!(chain.before_page(usize::MAX), 0);
        assert_eq!(chain.to_page_end(all, 102), all);
        assert_eq!(chain.to_page_end(all, 101), PAGE_SIZE);
        assert_eq!(chain.to_page_end(all - 1, 102), PAGE_SIZE);
        assert_eq!(chain.to_page_end(PAGE_SIZE - 1, 102), 0);
        drop(chain.take(usize::MAX));
        assert_eq!(chain.before_page(usize::MAX), 100);
        assert_eq!(chain.before_page(10), 10);
        assert_eq!(chain.whole_pages(usize::MAX), 0);
    });
}
