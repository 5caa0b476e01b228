//! Buffers that grow with what a path holds.

mod common;

use std::sync::Arc;

use abi::Errno;
use common::{MS, Pair, receive, send};
use net::{
    Family,
    link::bad::{GOOD, Trouble},
    tcp::{Options, Socket},
};
use nucleus::{
    frame,
    sim::{Config, run},
};

/// The sizes with which a connection begins.
const START: u32 = 128 * 1024;

/// Runs `body` on a machine with so many frames.
fn on_machine(pages: usize, body: impl FnOnce() + Send + 'static) {
    let config = Config {
        pages,
        ..Config::default()
    };
    if let Err(failure) = run(config, body) {
        panic!("{failure}");
    }
}

/// Two machines a tenth of a second apart, with packets of `mtu` bytes.
fn far(mtu: u16) -> Pair {
    let trouble = Trouble {
        delay: 50 * MS,
        ..GOOD
    };
    Pair::new(1, trouble, mtu)
}

/// Sends so many bytes, which the other end reads at once.
fn stream(pair: &Pair, [from, to]: &[Arc<Socket>; 2], bytes: usize) {
    let piece = [7; 65_536];
    let (mut sent, mut received) = (0, 0);
    while received < bytes {
        while sent < bytes {
            match send(from, &piece[..piece.len().min(bytes - sent)]) {
                Ok(n) => sent += n,
                Err(error) => {
                    assert_eq!(error, Errno::EAGAIN);
                    break;
                }
            }
        }
        loop {
            match receive(to, piece.len()) {
                Ok(bytes) => received += bytes.len(),
                Err(error) => {
                    assert_eq!(error, Errno::EAGAIN);
                    break;
                }
            }
        }
        pair.run(100 * MS);
    }
}

/// Returns options for ports that are used again.
fn options() -> Options {
    let mut options = Options::default();
    options.name.reuse_address = true;
    options
}

#[test]
fn buffers_follow_the_path() {
    on_machine(32_768, || {
        let pair = far(1500);
        let ends = pair.connect(Family::V4, options());
        stream(&pair, &ends, 4 << 20);
        let sizes = ends.each_ref().map(|end| end.summary().options);
        assert!(sizes[1].receive_buffer > 2 * START && sizes[1].receive_buffer <= 6 << 20);
        assert!(sizes[0].send_buffer > 2 * START && sizes[0].send_buffer <= 4 << 20);
        // What is not used does not grow.
        assert_eq!(sizes[0].receive_buffer, START);
        assert_eq!(sizes[1].send_buffer, START);
        // A socket that is used again begins anew.
        ends[0].disconnect();
        let other = pair.connect(Family::V4, options());
        let at = other[1].summary().local.unwrap();
        other[1].close(true);
        assert!(ends[0].connect(at).is_ok());
        assert_eq!(ends[0].summary().options.send_buffer, START);
    });
}

/// Sizes that a program has chosen stay (`SO_RCVBUF`, `SO_SNDBUF`).
#[test]
fn chosen_sizes_stay() {
    on_machine(32_768, || {
        for is_receiver in [false, true] {
            let pair = far(9000);
            let ends = pair.connect(Family::V4, options());
            ends[usize::from(is_receiver)].set_options(|options| match is_receiver {
                true => options.is_receive_fixed = true,
                false => options.is_send_fixed = true,
            });
            stream(&pair, &ends, 4 << 20);
            let sizes = ends.each_ref().map(|end| end.summary().options);
            match is_receiver {
                true => assert_eq!(sizes[1].receive_buffer, START),
                false => assert_eq!(sizes[0].send_buffer, START),
            }
        }
    });
}

/// All buffers together grow by a sixteenth of memory; a socket that is closed makes room for
/// others.
#[test]
fn growth_is_limited() {
    on_machine(8192, || {
        let most = frame::total() / 16 * 4096;
        for _ in 0..3 {
            let pair = far(9000);
            let mut all = Vec::new();
            for _ in 0..3 {
                let ends = pair.connect(Family::V4, options());
                stream(&pair, &ends, 6 << 20);
                all.push(ends);
            }
            let grown = |side: usize| -> usize {
                let sizes = all.iter().map(|ends| ends[side].summary().options);
                let grown =
                    sizes.map(|it| (it.send_buffer + it.receive_buffer - 2 * START) as usize);
                grown.sum()
            };
            for side in 0..2 {
                let grown = grown(side);
                assert!(grown > 0 && grown <= most, "{grown} bytes of {most}");
            }
            for end in all.iter().flatten() {
                end.close(true);
            }
            drop(all);
            let ends = pair.connect(Family::V4, options());
            stream(&pair, &ends, 6 << 20);
            assert!(ends[0].summary().options.send_buffer > START);
            ends.iter().for_each(|end| end.close(true));
            pair.run(200 * MS);
        }
    });
}

/// What a buffer has grown by counts as long as unread bytes are in it, which may be longer than
/// its connection.
#[test]
fn unread_bytes_count_after_their_connection() {
    on_machine(8192, || {
        let most = frame::total() / 16 * 4096;
        let pair = far(9000);
        let mut readers = Vec::new();
        for _ in 0..6 {
            let ends = pair.connect(Family::V4, options());
            stream(&pair, &ends, 6 << 20);
            assert_eq!(send(&ends[0], &[7; 65_536]), Ok(65_536));
            pair.run(200 * MS);
            let [writer, reader] = ends;
            writer.close(true);
            pair.run(200 * MS);
            readers.push(reader);
        }
        let sizes = readers.iter().map(|end| end.summary().options);
        let grown: usize = sizes.map(|it| (it.receive_buffer - START) as usize).sum();
        assert!(grown > 0 && grown <= most, "{grown} bytes of {most}");
        for reader in &readers {
            assert!(receive(reader, 65_536).is_ok_and(|bytes| !bytes.is_empty()));
            reader.close(false);
        }
        drop(readers);
        let ends = pair.connect(Family::V4, options());
        stream(&pair, &ends, 6 << 20);
        assert!(ends[1].summary().options.receive_buffer > START);
    });
}
