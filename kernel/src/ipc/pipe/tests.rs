//! Pipes on the simulated machine.

use alloc::{boxed::Box, collections::VecDeque, sync::Arc, vec, vec::Vec};
use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use abi::{
    Errno,
    raw::general::{O_DIRECT, O_NONBLOCK},
};
use fbuf::{BytesSink, BytesSource};
use fs::{File, OpenFlags, Ready};
use nucleus::{
    PAGE_SIZE, frame,
    sim::{self, Config},
    task::{self, Sleep, Spawn, WaitQueue},
};

use super::{DEFAULT_SLOTS, End, pair, splice, transfer::PIPE_BUF};

struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as usize % n
    }
}

/// Runs `body` on machines with 1 to 3 CPUs; at the end every frame must be free again.
fn on_machines(seeds: u64, body: impl Fn(u64) + Copy + Send + 'static) {
    for seed in 1..=seeds {
        let config = Config {
            cpus: 1 + seed as usize % 3,
            seed,
            ..Config::default()
        };
        let ran = sim::run(config, move || {
            let before = frame::usage().data;
            body(seed);
            assert_eq!(frame::usage().data, before, "frames that did not come back");
        });
        if let Err(failure) = ran {
            panic!("{failure}");
        }
    }
}

/// Tasks that are waited for together.
struct Together {
    running: AtomicUsize,
    ended: WaitQueue,
}

impl Together {
    fn new() -> Arc<Together> {
        Arc::new(Together {
            running: AtomicUsize::new(0),
            ended: WaitQueue::new(),
        })
    }

    fn spawn(self: &Arc<Together>, body: impl FnOnce() + Send + 'static) {
        self.running.fetch_add(1, SeqCst);
        let all = self.clone();
        let spawn = Spawn {
            name: "test",
            pmap: None,
            attachment: None,
            cpus: !0,
            priority: Default::default(),
        };
        let run = move || {
            body();
            all.running.fetch_sub(1, SeqCst);
            all.ended.wake_all();
        };
        task::spawn(spawn, Box::new(run)).unwrap();
    }

    fn join(&self) {
        let none = || (self.running.load(SeqCst) == 0).then_some(());
        self.ended.wait(Sleep::SOUND, none).unwrap();
    }
}

fn write(end: &End, bytes: &[u8]) -> abi::Result<usize> {
    end.write(None, OpenFlags::default(), &mut BytesSource { from: bytes })
}

fn read(end: &End, max: usize) -> abi::Result<Vec<u8>> {
    let mut buffer = vec![0; max];
    let mut sink = BytesSink {
        to: &mut buffer,
        filled: 0,
    };
    let n = end.read(None, OpenFlags::default(), &mut sink)?;
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

#[test]
fn what_goes_in_comes_out_in_order() {
    on_machines(24, |seed| {
        let (reader, writer) = pair().unwrap();
        let total = 300_000;
        let all = Together::new();
        all.spawn(move || {
            let mut random = Random::new(seed);
            let mut sent = 0;
            while sent < total {
                let largest = [3, 100, 5000, 100_000][random.below(4)];
                let n = (1 + random.below(largest)).min(total - sent);
                let piece: Vec<u8> = (sent..sent + n).map(byte).collect();
                assert_eq!(write(&writer, &piece), Ok(n));
                sent += n;
            }
        });
        all.spawn(move || {
            let mut random = Random::new(seed + 1000);
            let mut got = 0;
            loop {
                let largest = [3, 100, 5000, 100_000][random.below(4)];
                let piece = read(&reader, 1 + random.below(largest)).unwrap();
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

#[test]
fn short_writes_are_not_mixed() {
    on_machines(16, |seed| {
        let (reader, writer) = pair().unwrap();
        let all = Together::new();
        for id in 1..=3u8 {
            let writer = writer.clone();
            all.spawn(move || {
                let mut random = Random::new(seed * 8 + u64::from(id));
                for _ in 0..60 {
                    let len = 3 + random.below(PIPE_BUF - 3);
                    let mut message = vec![id; len];
                    message[1..3].copy_from_slice(&(len as u16).to_le_bytes());
                    assert_eq!(write(&writer, &message), Ok(len));
                }
            });
        }
        drop(writer);
        let mut stream: VecDeque<u8> = VecDeque::new();
        let mut messages = 0;
        loop {
            let piece = read(&reader, 7000).unwrap();
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

/// Single steps without waiting, against a queue of bytes.
#[test]
fn steps_agree_with_a_queue_of_bytes() {
    on_machines(40, |seed| {
        let (reader, writer) = pair().unwrap();
        let (other_reader, other_writer) = pair().unwrap();
        let mut random = Random::new(seed);
        let mut model: VecDeque<u8> = VecDeque::new();
        let mut next = 0;
        for _ in 0..300 {
            let largest = [8, 300, 6000, 90_000][random.below(4)];
            let size = 1 + random.below(largest);
            match random.below(5) {
                0 | 1 => {
                    let bytes: Vec<u8> = (next..next + size).map(byte).collect();
                    let mut source = BytesSource { from: &bytes };
                    match writer.write(None, non_blocking(), &mut source) {
                        Ok(n) => {
                            assert!(n == size || size > PIPE_BUF, "a short write in part");
                            model.extend(&bytes[..n]);
                            next += n;
                        }
                        Err(error) => {
                            assert_eq!(error, Errno::EAGAIN);
                            assert!(size <= PIPE_BUF || !writer.pipe().status().has_slot());
                        }
                    }
                }
                2 | 3 => {
                    let mut buffer = vec![0; size];
                    let mut sink = BytesSink {
                        to: &mut buffer,
                        filled: 0,
                    };
                    match reader.read(None, non_blocking(), &mut sink) {
                        Ok(n) => {
                            assert_eq!(n, size.min(model.len()));
                            let expected: Vec<u8> = model.drain(..n).collect();
                            assert_eq!(buffer[..n], expected);
                        }
                        Err(error) => {
                            assert_eq!((error, model.len()), (Errno::EAGAIN, 0));
                        }
                    }
                }
                _ => {
                    // Around another pipe: half is teed and thrown away, the rest is spliced there and back.
                    let (a, b) = (reader.pipe(), other_writer.pipe());
                    if random.below(2) == 0 {
                        if let Ok(n) = splice::tee(a, b, size, false) {
                            let seen = read(&other_reader, n).unwrap();
                            let expected: Vec<u8> = model.iter().copied().take(n).collect();
                            assert_eq!(seen, expected);
                        }
                    } else if let Ok(n) = splice::pipe_to_pipe(a, b, size, false) {
                        let seen = read(&other_reader, n).unwrap();
                        let expected: Vec<u8> = model.drain(..n).collect();
                        assert_eq!(seen, expected);
                    }
                }
            }
            let status = reader.pipe().status();
            assert_eq!(status.bytes, model.len());
            let ready = reader.poll(None);
            assert_eq!(ready.contains(Ready::IN), !model.is_empty());
            assert_eq!(writer.poll(None).contains(Ready::OUT), status.has_slot());
            assert_eq!(other_reader.pipe().status().bytes, 0);
        }
    });
}

#[test]
fn a_pipe_holds_64_kib_whatever_the_pieces() {
    for piece in [1, 512, 4096, 65536] {
        on_machines(1, move |_| {
            let (_reader, writer) = pair().unwrap();
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
        let (reader, writer) = pair().unwrap();
        write(&writer, b"rest").unwrap();
        drop(writer);
        assert_eq!(reader.poll(None) & Ready::HUP, Ready::HUP);
        assert_eq!(read(&reader, 10).unwrap(), b"rest");
        assert_eq!(read(&reader, 10).unwrap(), b"");
        let (reader, writer) = pair().unwrap();
        drop(reader);
        assert_eq!(write(&writer, b"x"), Err(Errno::EPIPE));
        assert_eq!(writer.poll(None) & Ready::ERR, Ready::ERR);
    });
}

/// A writer that waits for room and a reader that waits for bytes learn that the other end is gone.
#[test]
fn waiting_ends_with_the_other_end() {
    on_machines(12, |_| {
        let (reader, writer) = pair().unwrap();
        let all = Together::new();
        all.spawn(move || {
            let bytes = vec![1; 200_000];
            let n = write(&writer, &bytes).unwrap();
            assert!(n < bytes.len());
            assert_eq!(write(&writer, &bytes), Err(Errno::EPIPE));
        });
        read(&reader, 10).unwrap();
        drop(reader);
        all.join();
        let (reader, writer) = pair().unwrap();
        all.spawn(move || assert_eq!(read(&reader, 10).unwrap(), b""));
        drop(writer);
        all.join();
    });
}

#[test]
fn capacity_changes_but_never_below_what_is_in() {
    on_machines(1, |_| {
        let (reader, writer) = pair().unwrap();
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
        let (reader, writer) = pair().unwrap();
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
