//! Pipes on the simulated machine: what a pipe adds to the byte queue, whose own tests stand in
//! `fbuf/tests/queue.rs`.

use alloc::{sync::Arc, vec, vec::Vec};

use abi::{
    Errno,
    raw::general::{O_DIRECT, O_NONBLOCK},
};
use fbuf::{BytesSink, BytesSource};
use fs::{File, OpenFlags, Ready};
use nucleus::{
    PAGE_SIZE,
    sim::{Random, Together, on_machines},
};

use super::{DEFAULT_SLOTS, End, pair};

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

#[test]
fn what_goes_in_comes_out_in_order() {
    on_machines(24, |seed| {
        let (reader, writer) = pair().unwrap();
        let total = 300_000;
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
        all.spawn(move || {
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
        });
        all.join();
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
