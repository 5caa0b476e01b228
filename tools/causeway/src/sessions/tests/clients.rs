//! Terminals: of the machine, of sessions, and of clients that come and go.

use std::sync::{Arc, Mutex};

use session::Terminal;

use super::*;
use crate::input::Keys;
use crate::sessions::flow::Recorder;

/// A record in memory.
#[derive(Default)]
struct Kept(Vec<u8>);

impl Record for Kept {
    fn record(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

#[test]
fn a_client_is_attached_and_leaves() {
    let (mut bench, fake) = bench(1);
    let kept = Arc::new(Mutex::new(Kept::default()));
    let mut first = program("first");
    first.set_terminal(Some(Terminal {
        window: Window {
            rows: 24,
            columns: 80,
        },
        streams: [true; 3],
        newlines: true,
    }));
    let streams = Streams {
        recorder: Some(Arc::clone(&kept) as Recorder),
        ..Streams::default()
    };
    let observer = bench.observer.take().unwrap();
    bench.handle.open_first(first, streams, observer);
    fake.ready();
    let session = fake.start();
    fake.data(session).write_all(b"before ").unwrap();
    assert_eq!(bench.event(), Event::Started);
    let mut total = 7;
    for _ in 0..3 {
        while kept.lock().unwrap().0.len() < total {
            thread::yield_now();
        }
        let (mut user, mut streams) = pipes();
        streams.keys = Some(Keys::attached());
        let (observer, events) = super::observer();
        let window = Window {
            rows: 5,
            columns: 6,
        };
        bench.handle.attach(streams, Some(window), observer);
        assert_eq!(events.recv_timeout(SOON).unwrap(), Event::Started);
        assert!(matches!(fake.hear(), Heard::Other(text) if text.contains("rows: 5")));
        // A second one is told so.
        let (_other, streams) = pipes();
        let (second, refused) = super::observer();
        bench.handle.attach(streams, None, second);
        let refused = refused.recv_timeout(SOON).unwrap();
        assert!(matches!(refused, Event::Refused(why) if why.contains("attached")));
        user.input.write_all(b"ls\r\x01d").unwrap();
        fake.data(session).read_exact(&mut [0; 3]).unwrap();
        assert_eq!(events.recv_timeout(SOON).unwrap(), Event::Detached);
        let mut rest = Vec::new();
        user.output.read_to_end(&mut rest).unwrap();
        fake.data(session).write_all(b"meanwhile ").unwrap();
        total += 10;
    }
    fake.end(session, [total as u64, 0], 0);
    assert_eq!(bench.event(), Event::Ended(0));
    assert_eq!(
        kept.lock().unwrap().0,
        b"before meanwhile meanwhile meanwhile "
    );
    drop(fake);
    bench.join();
}

#[test]
fn a_client_leaves_a_program_without_a_terminal() {
    let (mut bench, fake) = bench(1);
    let streams = Streams {
        recorder: Some(Arc::new(Mutex::new(Kept::default())) as Recorder),
        ..Streams::default()
    };
    let observer = bench.observer.take().unwrap();
    bench.handle.open_first(program("first"), streams, observer);
    fake.ready();
    let session = fake.start();
    assert_eq!(bench.event(), Event::Started);
    assert_eq!(fake.hear(), Heard::EndOfInput { session, after: 0 });
    for keys in ["ls\r\x01d", "ls\x03"] {
        let (mut user, mut streams) = pipes();
        streams.keys = Some(Keys::attached());
        let (observer, events) = super::observer();
        bench.handle.attach(streams, None, observer);
        assert_eq!(events.recv_timeout(SOON).unwrap(), Event::Started);
        user.input.write_all(keys.as_bytes()).unwrap();
        assert_eq!(events.recv_timeout(SOON).unwrap(), Event::Detached);
    }
    fake.end(session, [0, 0], 0);
    assert_eq!(bench.event(), Event::Ended(0));
    // No key has reached the guest.
    fake.data(session).set_nonblocking(true).unwrap();
    let nothing = fake.data(session).read(&mut [0; 8]).unwrap_err();
    assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
    drop(fake);
    bench.join();
}

#[test]
fn keys_end_the_machine_from_its_terminal_only() {
    let (mut bench, fake) = bench(2);
    let terminal = Terminal {
        window: Window {
            rows: 0,
            columns: 0,
        },
        streams: [true; 3],
        newlines: true,
    };
    let (mut user, mut streams) = pipes();
    streams.keys = Some(Keys::default());
    let mut shell = Program::new(&[]);
    shell.set_terminal(Some(terminal));
    let observer = bench.observer.take().unwrap();
    bench.handle.open_first(shell.clone(), streams, observer);
    fake.ready();
    let first = fake.start();
    user.input.write_all(b"\x01a\x01d").unwrap();
    let mut keys = [0; 3];
    fake.data(first).read_exact(&mut keys).unwrap();
    assert_eq!(&keys, b"\x01\x01d");
    // In another session they end that session only.
    let (mut other, mut streams) = pipes();
    streams.keys = Some(Keys::default());
    let (second, events) = super::observer();
    bench.handle.open(shell, streams, second);
    fake.start();
    other.input.write_all(b"\x01x").unwrap();
    assert_eq!(events.recv_timeout(SOON).unwrap(), Event::Started);
    assert_eq!(events.recv_timeout(SOON).unwrap(), Event::Detached);
    assert_eq!(fake.hear(), Heard::Other("HangUp { session: 1 }".into()));
    assert_eq!(bench.event(), Event::Started);
    user.input.write_all(b"\x01x").unwrap();
    assert_eq!(bench.event(), Event::Kill);
    drop(fake);
    assert_eq!(bench.event(), Event::Gone);
    bench.join();
}
