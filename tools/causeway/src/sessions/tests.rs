//! The switch against a guest that a thread plays.

use std::ffi::OsString;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use session::{Part, Stream, Terminal, ToHost, Window};

use super::fake::{Fake, Heard, framed};
use super::flow::Recorder;
use super::*;
use crate::input::Keys;
use crate::random::Random;

/// The time for what is to happen at once.
const SOON: Duration = Duration::from_secs(20);

/// A switch that runs, and the other sides of everything.
struct Bench {
    handle: Handle,
    events: Receiver<Event>,
    observer: Option<Observer>,
    faults: Receiver<String>,
    thread: JoinHandle<()>,
}

/// The user's ends of a session's pipes.
struct User {
    input: PipeWriter,
    output: PipeReader,
    errors: PipeReader,
}

fn observer() -> (Observer, Receiver<Event>) {
    let (sender, events) = mpsc::channel();
    (Box::new(move |event| drop(sender.send(event))), events)
}

fn bench(sessions: u8) -> (Bench, Fake) {
    let (ports, ends) = Ports::new(sessions).unwrap();
    let fake = Fake::new(ends, sessions);
    let (switch, handle) = Switch::new(ports).unwrap();
    let (fault, faults) = mpsc::channel();
    let thread = thread::spawn(move || switch.run(|why| drop(fault.send(why.into()))));
    let (observer, events) = observer();
    let bench = Bench {
        handle,
        events,
        observer: Some(observer),
        faults,
        thread,
    };
    (bench, fake)
}

fn pipes() -> (User, Streams) {
    let (input_end, input) = io::pipe().unwrap();
    let (output, output_end) = io::pipe().unwrap();
    let (errors, errors_end) = io::pipe().unwrap();
    let streams = Streams {
        input: Some(Descriptor::source(input_end.into())),
        keys: None,
        outputs: [output_end, errors_end].map(|end| Some(Descriptor::sink(end.into()))),
        recorder: None,
    };
    let user = User {
        input,
        output,
        errors,
    };
    (user, streams)
}

fn program(name: &str) -> Program {
    Program::new(&[OsString::from(name)])
}

impl Bench {
    /// Opens the first session.
    fn first(&mut self) -> User {
        let (user, streams) = pipes();
        let observer = self.observer.take().unwrap();
        self.handle.open_first(program("first"), streams, observer);
        user
    }

    fn event(&self) -> Event {
        self.events.recv_timeout(SOON).unwrap()
    }

    /// Waits for the end of the switch.
    fn join(self) {
        let start = Instant::now();
        while !self.thread.is_finished() {
            assert!(start.elapsed() < SOON, "the switch goes on");
            thread::sleep(Duration::from_millis(1));
        }
        self.thread.join().unwrap();
    }
}

fn bytes(count: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..count).map(|_| random.below(256) as u8).collect()
}

/// Reads to the end of the file.
fn collect(mut from: PipeReader) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut all = Vec::new();
        from.read_to_end(&mut all).unwrap();
        all
    })
}

/// Writes in pieces of random sizes, with a pause now and then.
fn scatter(mut to: impl Write, bytes: &[u8], seed: u64) {
    let mut random = Random::new(seed);
    let mut rest = bytes;
    let most = [1, 100, 5000, 70_000, 400_000][random.below(5)];
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(rest.len().min(1 + random.below(most)));
        to.write_all(piece).unwrap();
        rest = behind;
        if random.below(50) == 0 {
            thread::sleep(Duration::from_micros(200));
        }
    }
}

#[test]
fn bytes_go_through_in_any_pieces() {
    for seed in 1..=30 {
        let (mut bench, fake) = bench(1);
        let mut user = bench.first();
        let mut random = Random::new(seed);
        let sizes = [(); 3].map(|()| [0, 1, 5000, 300_000][random.below(4)] + random.below(700));
        let [input, output, errors] = sizes.map(|size| bytes(size, seed + size as u64));
        let (read, failed) = (collect(user.output), collect(user.errors));
        let (sent_output, sent_errors) = (output.clone(), errors.clone());
        let guest = thread::spawn(move || {
            fake.ready();
            let session = fake.start();
            let (data, error) = (fake.data(session), fake.error(session));
            let got = thread::scope(|scope| {
                let ends = scope.spawn(|| {
                    // Numbers may come before, between and after the bytes.
                    if seed % 2 == 0 {
                        fake.end(session, sizes_of(&sent_output, &sent_errors), 3 << 8);
                    }
                    match fake.hear() {
                        Heard::EndOfInput { after, .. } => after,
                        other => panic!("{other:?}"),
                    }
                });
                scope.spawn(|| scatter(error, &sent_errors, seed * 5));
                if seed % 2 == 0 {
                    // The program has ended: its input is dropped.
                    scatter(data, &sent_output, seed * 3);
                    ends.join().unwrap();
                    return None;
                }
                let writer = scope.spawn(|| scatter(data, &sent_output, seed * 3));
                let after = ends.join().unwrap();
                let mut got = vec![0; after as usize];
                let mut data = data;
                // It fits into the socket, or is read while it comes.
                data.read_exact(&mut got).unwrap();
                writer.join().unwrap();
                Some(got)
            });
            if seed % 2 != 0 {
                fake.end(session, sizes_of(&sent_output, &sent_errors), 3 << 8);
            }
            (fake, got)
        });
        // A guest whose program has ended takes nothing more.
        let _ = user.input.write_all(&input[..input.len().min(1000)]);
        drop(user.input);
        assert_eq!(bench.event(), Event::Started);
        assert_eq!(bench.event(), Event::Ended(3 << 8), "seed {seed}");
        let (fake, got) = guest.join().unwrap();
        if let Some(got) = got {
            assert_eq!(got, input[..input.len().min(1000)], "seed {seed}");
        }
        drop(fake);
        bench.join();
        assert_eq!(read.join().unwrap(), output, "seed {seed}");
        assert_eq!(failed.join().unwrap(), errors, "seed {seed}");
    }
}

fn sizes_of(output: &[u8], errors: &[u8]) -> [u64; 2] {
    [output.len() as u64, errors.len() as u64]
}

#[test]
fn much_input_arrives_as_it_is() {
    for seed in [1, 2, 3] {
        let (mut bench, fake) = bench(1);
        let user = bench.first();
        let input = bytes(3_000_000, seed);
        let sent = input.clone();
        let writer = thread::spawn(move || scatter(user.input, &sent, seed));
        fake.ready();
        let session = fake.start();
        let mut got = vec![0; input.len()];
        let mut random = Random::new(seed);
        let mut rest = &mut got[..];
        while !rest.is_empty() {
            let most = rest.len().min(1 + random.below(100_000));
            let count = fake.data(session).read(&mut rest[..most]).unwrap();
            rest = &mut rest[count..];
        }
        writer.join().unwrap();
        let session_end = Heard::EndOfInput {
            session,
            after: input.len() as u64,
        };
        assert_eq!(fake.hear(), session_end);
        assert!(got == input);
        fake.end(session, [0, 0], 0);
        assert_eq!(bench.event(), Event::Started);
        assert_eq!(bench.event(), Event::Ended(0));
        drop(fake);
        bench.join();
    }
}

#[test]
fn a_stream_that_nobody_reads_holds_up_only_itself() {
    let (mut bench, fake) = bench(2);
    let mut user = bench.first();
    fake.ready();
    let first = fake.start();
    let flood = bytes(4_000_000, 1);
    let (sent, port) = (flood.clone(), fake.data(first).try_clone().unwrap());
    let flooding = thread::spawn(move || (&port).write_all(&sent).unwrap());
    thread::sleep(Duration::from_millis(50));
    assert!(!flooding.is_finished(), "4 MB are kept somewhere");
    // Its errors, its input, and another session go on.
    fake.error(first).write_all(b"trouble").unwrap();
    let mut seven = [0; 7];
    user.errors.read_exact(&mut seven).unwrap();
    assert_eq!(&seven, b"trouble");
    user.input.write_all(b"input").unwrap();
    let mut five = [0; 5];
    fake.data(first).read_exact(&mut five).unwrap();
    assert_eq!(&five, b"input");
    let (mut other, streams) = pipes();
    let (observer, events) = observer();
    bench.handle.open(program("second"), streams, observer);
    let second = fake.start();
    assert_eq!(second, 1);
    fake.data(second).write_all(b"hello").unwrap();
    fake.end(second, [5, 0], 0);
    other.output.read_exact(&mut five).unwrap();
    assert_eq!(&five, b"hello");
    assert_eq!(events.recv_timeout(SOON).unwrap(), Event::Started);
    assert_eq!(events.recv_timeout(SOON).unwrap(), Event::Ended(0));
    // Nothing is lost when the machine ends while the reader waits.
    fake.end(first, [flood.len() as u64, 7], 9 << 8);
    let reading = thread::spawn(move || {
        let mut got = vec![0; 4_000_000];
        user.output.read_exact(&mut got).unwrap();
        got
    });
    flooding.join().unwrap();
    drop(fake);
    assert!(reading.join().unwrap() == flood);
    assert_eq!(bench.event(), Event::Started);
    assert_eq!(bench.event(), Event::Ended(9 << 8));
    bench.join();
}

#[test]
fn closed_ends_are_passed_on_in_both_directions() {
    let (mut bench, fake) = bench(1);
    let mut user = bench.first();
    fake.ready();
    let session = fake.start();
    // An idle reader that goes away is noticed, and what is written then is dropped.
    drop(user.output);
    let Heard::Other(closed) = fake.hear() else {
        panic!("nothing is said of the closed output");
    };
    assert!(
        closed.starts_with("CloseOutput") && closed.contains("Output }"),
        "{closed}"
    );
    fake.data(session).write_all(&[0; 500_000]).unwrap();
    // A program that closes its input: the host stops reading.
    user.input.write_all(b"abc").unwrap();
    fake.data(session).read_exact(&mut [0; 3]).unwrap();
    fake.say(&ToHost::InputClosed { session });
    assert_eq!(fake.hear(), Heard::EndOfInput { session, after: 3 });
    let start = Instant::now();
    while user.input.write_all(&[0; 4096]).is_ok() {
        assert!(start.elapsed() < SOON, "the host goes on to read");
    }
    // A program that closes its output: the user sees the end before the program's.
    fake.say(&ToHost::EndOfOutput {
        session,
        stream: Stream::Error,
        after: 0,
    });
    fake.say(&ToHost::EndOfOutput {
        session,
        stream: Stream::Output,
        after: 500_000,
    });
    assert_eq!(user.errors.read(&mut [0; 1]).unwrap(), 0);
    fake.say(&ToHost::Ended { session, status: 0 });
    assert_eq!(bench.event(), Event::Started);
    assert_eq!(bench.event(), Event::Ended(0));
    drop(fake);
    bench.join();
}

#[test]
fn a_guest_that_ends_at_any_byte_ends_the_sessions() {
    let messages = [
        framed(&ToHost::Ready {
            version: session::VERSION,
            sessions: 2,
        }),
        framed(&ToHost::Started { session: 0, pid: 1 }),
        framed(&ToHost::EndOfOutput {
            session: 0,
            stream: Stream::Output,
            after: 10,
        }),
        framed(&ToHost::EndOfOutput {
            session: 0,
            stream: Stream::Error,
            after: 0,
        }),
        framed(&ToHost::Ended {
            session: 0,
            status: 5,
        }),
    ];
    let all = messages.concat();
    for cut in 0..=all.len() {
        let (mut bench, fake) = bench(2);
        let user = bench.first();
        let (output, _errors) = (collect(user.output), collect(user.errors));
        let (mut head, tail) = all[..cut].split_at(cut.min(messages[0].len()));
        while !head.is_empty() {
            let (byte, rest) = head.split_at(1);
            fake.control().write_all(byte).unwrap();
            head = rest;
        }
        if cut >= messages[0].len() {
            let Heard::Start { .. } = fake.hear() else {
                panic!("no program is started");
            };
        }
        fake.control().write_all(tail).unwrap();
        // Before it is started a program has no output.
        let has_started = cut >= messages[0].len();
        let sent = if has_started { (cut % 12).min(10) } else { 0 };
        fake.data(0).write_all(&b"0123456789"[..sent]).unwrap();
        let (waiting, streams) = pipes();
        let (other, events) = observer();
        bench.handle.open(program("second"), streams, other);
        drop(fake);
        let mut last = bench.event();
        if last == Event::Started {
            last = bench.event();
        }
        let is_whole = cut == all.len();
        let wanted = if is_whole {
            Event::Ended(5)
        } else {
            Event::Gone
        };
        assert_eq!(last, wanted, "cut at {cut}");
        assert_eq!(events.recv_timeout(SOON).unwrap(), Event::Gone);
        drop(waiting);
        bench.join();
        assert_eq!(output.join().unwrap(), b"0123456789"[..sent]);
    }
}

#[test]
fn messages_that_make_no_sense_end_the_machine() {
    let started = ToHost::Started { session: 0, pid: 1 };
    let ended = ToHost::Ended {
        session: 0,
        status: 0,
    };
    let end = |after| ToHost::EndOfOutput {
        session: 0,
        stream: Stream::Output,
        after,
    };
    let bad: &[(&str, Vec<u8>)] = &[
        ("no message", vec![1, 0, 0, 0, 0xff]),
        ("a long message", vec![0xff; 4]),
        (
            "a session that is not",
            framed(&ToHost::Free { session: 9 }),
        ),
        (
            "nobody's session",
            framed(&ToHost::Ended {
                session: 1,
                status: 0,
            }),
        ),
        ("an early end", framed(&ended)),
        (
            "a second start",
            [framed(&started), framed(&started)].concat(),
        ),
        (
            "a second length",
            [framed(&started), framed(&end(1)), framed(&end(2))].concat(),
        ),
        (
            "a second end",
            [framed(&started), framed(&ended), framed(&ended)].concat(),
        ),
        (
            "a second greeting",
            framed(&ToHost::Ready {
                version: session::VERSION,
                sessions: 2,
            }),
        ),
    ];
    for (name, bytes) in bad {
        let (mut bench, fake) = bench(2);
        let _user = bench.first();
        fake.ready();
        let _ = fake.hear();
        fake.control().write_all(bytes).unwrap();
        let fault = bench.faults.recv_timeout(SOON);
        assert!(fault.is_ok(), "{name}");
        drop(fake);
        let mut last = bench.event();
        if last == Event::Started {
            last = bench.event();
        }
        assert!(matches!(last, Event::Gone | Event::Ended(0)), "{name}");
        bench.join();
    }
    // More bytes than were announced.
    let (mut bench, fake) = bench(1);
    let _user = bench.first();
    fake.ready();
    let session = fake.start();
    fake.end(session, [3, 0], 0);
    fake.data(session).write_all(b"abcd").unwrap();
    let fault = bench.faults.recv_timeout(SOON).unwrap();
    assert!(fault.contains("more than it said"), "{fault}");
    drop(fake);
    bench.join();
}

#[test]
fn a_kernel_of_another_build_is_refused() {
    let (mut bench, fake) = bench(1);
    let _user = bench.first();
    fake.say(&ToHost::Ready {
        version: 77,
        sessions: 1,
    });
    let fault = bench.faults.recv_timeout(SOON).unwrap();
    assert!(fault.contains("77"), "{fault}");
    drop(fake);
    bench.join();
}

#[test]
fn a_program_that_fails_frees_its_session() {
    let (mut bench, fake) = bench(2);
    let _user = bench.first();
    fake.ready();
    fake.start();
    for error in [2, 13, 2] {
        let (_user, streams) = pipes();
        let (observer, events) = observer();
        bench.handle.open(program("none"), streams, observer);
        let Heard::Start { session, arguments } = fake.hear() else {
            panic!("no program is started");
        };
        assert_eq!((session, &arguments[..]), (1, &b"none\0"[..]));
        let part = Part::Program;
        fake.say(&ToHost::Failed {
            session,
            part,
            error,
        });
        let failed = events.recv_timeout(SOON).unwrap();
        assert_eq!(failed, Event::Failed { part, error });
        // Until the guest has forgotten it the next program waits for the number.
        let (_other, streams) = pipes();
        let (early, waits) = super::tests::observer();
        bench.handle.open(program("early"), streams, early);
        let nothing = waits.recv_timeout(Duration::from_millis(50));
        assert_eq!(nothing, Err(mpsc::RecvTimeoutError::Timeout));
        fake.say(&ToHost::Free { session });
        let arguments = b"early\0".to_vec();
        assert_eq!(fake.hear(), Heard::Start { session, arguments });
        fake.say(&ToHost::Failed {
            session,
            part,
            error,
        });
        let failed = waits.recv_timeout(SOON).unwrap();
        assert_eq!(failed, Event::Failed { part, error });
        fake.say(&ToHost::Free { session });
        thread::sleep(Duration::from_millis(50));
    }
    drop(fake);
    assert_eq!(bench.event(), Event::Started);
    assert_eq!(bench.event(), Event::Gone);
    bench.join();
}

#[test]
fn a_number_is_used_again_with_counts_of_its_own() {
    let (mut bench, fake) = bench(2);
    let _first = bench.first();
    fake.ready();
    fake.start();
    for round in 0..50 {
        let (mut user, streams) = pipes();
        let (observer, events) = observer();
        bench.handle.open(program("again"), streams, observer);
        let session = fake.start();
        assert_eq!(session, 1);
        let text = bytes(round * 1000, round as u64);
        user.input.write_all(b"hello").unwrap();
        let output = collect(user.output);
        fake.data(session).read_exact(&mut [0; 5]).unwrap();
        fake.data(session).write_all(&text).unwrap();
        fake.end(session, [text.len() as u64, 0], round as i32);
        // The input is not at its end: the host gives it one.
        assert_eq!(fake.hear(), Heard::EndOfInput { session, after: 5 });
        fake.say(&ToHost::Free { session });
        assert_eq!(events.recv_timeout(SOON).unwrap(), Event::Started);
        let ended = events.recv_timeout(SOON).unwrap();
        assert_eq!(ended, Event::Ended(round as i32));
        assert_eq!(output.join().unwrap(), text);
        thread::sleep(Duration::from_millis(2));
    }
    drop(fake);
    bench.join();
}

#[test]
fn signals_sizes_and_hang_ups_reach_the_session() {
    let (mut bench, fake) = bench(2);
    let _first = bench.first();
    fake.ready();
    fake.start();
    let (user, streams) = pipes();
    let (observer, events) = observer();
    let id = bench.handle.open(program("second"), streams, observer);
    let Heard::Start { session, .. } = fake.hear() else {
        panic!("no program is started");
    };
    // Before the program runs a size is kept, the last one.
    let window = |rows| Window { rows, columns: 0 };
    bench.handle.window(id, window(7));
    bench.handle.window(id, window(10_000));
    // So are signals.
    for signal in [2, 15, 2, 0, 65, 255] {
        bench.handle.signal(id, signal);
    }
    thread::sleep(Duration::from_millis(20));
    fake.say(&ToHost::Started { session, pid: 3 });
    let heard = |fake: &Fake| match fake.hear() {
        Heard::Other(text) => text,
        other => panic!("{other:?}"),
    };
    assert!(heard(&fake).contains("rows: 10000"));
    assert!(heard(&fake).contains("signal: 2 "));
    assert!(heard(&fake).contains("signal: 15 "));
    bench.handle.signal(id, 15);
    assert!(heard(&fake).contains("signal: 15"));
    bench.handle.hang_up(id);
    assert_eq!(heard(&fake), "HangUp { session: 1 }");
    assert_eq!(fake.hear(), Heard::EndOfInput { session, after: 0 });
    // Its further output is dropped, though it has no reader.
    fake.data(session).write_all(&[1; 1_000_000]).unwrap();
    fake.end(session, [1_000_000, 0], 1);
    fake.say(&ToHost::Free { session });
    assert_eq!(events.recv_timeout(SOON).unwrap(), Event::Started);
    assert_eq!(events.recv_timeout(SOON).unwrap(), Event::Ended(1));
    drop((user, fake));
    bench.join();
}

#[test]
fn a_signal_waits_for_a_program_that_waits_for_its_session() {
    let (mut bench, fake) = bench(2);
    let (user, streams) = pipes();
    let (observer, events) = observer();
    let id = bench.handle.open(program("second"), streams, observer);
    let _first = bench.first();
    bench.handle.signal(id, 15);
    bench.handle.signal(FIRST, 1);
    thread::sleep(Duration::from_millis(20));
    fake.ready();
    for signal in [1, 15] {
        let session = fake.start();
        let wanted = format!("Signal {{ session: {session}, signal: {signal} }}");
        assert_eq!(fake.hear(), Heard::Other(wanted));
    }
    drop(fake);
    assert_eq!(events.recv_timeout(SOON).unwrap(), Event::Started);
    drop(user);
    bench.join();
}

#[test]
fn a_program_that_outlives_its_session_leaves_no_bytes() {
    let (mut bench, fake) = bench(2);
    let _first = bench.first();
    fake.ready();
    fake.start();
    for round in 0..20 {
        let (user, streams) = pipes();
        let (observer, events) = observer();
        let id = bench.handle.open(program("second"), streams, observer);
        let session = fake.start();
        assert_eq!(events.recv_timeout(SOON).unwrap(), Event::Started);
        bench.handle.hang_up(id);
        assert_eq!(fake.hear(), Heard::Other("HangUp { session: 1 }".into()));
        assert_eq!(fake.hear(), Heard::EndOfInput { session, after: 0 });
        // The number is free before the last bytes have been read.
        for (stream, after) in super::slot::STREAMS.into_iter().zip([100_000, 0]) {
            fake.say(&ToHost::EndOfOutput {
                session,
                stream,
                after,
            });
        }
        fake.say(&ToHost::Free { session });
        assert_eq!(events.recv_timeout(SOON).unwrap(), Event::Detached);
        drop(user);
        // The next one has its own bytes only.
        let (mut user, streams) = pipes();
        let (observer, events) = super::tests::observer();
        bench.handle.open(program("third"), streams, observer);
        // Its number is free at once, or after the bytes.
        if round % 2 == 0 {
            thread::sleep(Duration::from_millis(20));
            let early = events.try_recv();
            assert!(early.is_err(), "{early:?}");
        }
        fake.data(session).write_all(&[1; 100_000]).unwrap();
        let session = fake.start();
        fake.data(session).write_all(b"mine").unwrap();
        fake.end(session, [4, 0], 0);
        let mut output = Vec::new();
        user.output.read_to_end(&mut output).unwrap();
        assert_eq!(output, b"mine");
        assert_eq!(fake.hear(), Heard::EndOfInput { session, after: 0 });
        fake.say(&ToHost::Free { session });
        assert_eq!(events.recv_timeout(SOON).unwrap(), Event::Started);
        assert_eq!(events.recv_timeout(SOON).unwrap(), Event::Ended(0));
        thread::sleep(Duration::from_millis(5));
    }
    drop(fake);
    bench.join();
}

#[test]
fn a_flood_of_requests_does_not_fill_memory_or_block_the_streams() {
    let (mut bench, fake) = bench(1);
    let mut user = bench.first();
    fake.ready();
    let session = fake.start();
    let handle = bench.handle.clone();
    // A guest that takes no messages: those who send them wait.
    let flood = thread::spawn(move || {
        for rows in 0..400_000u32 {
            let rows = rows as u16;
            handle.window(FIRST, Window { rows, columns: 1 });
        }
    });
    thread::sleep(Duration::from_millis(100));
    // Those that must not wait do not.
    for _ in 0..1000 {
        bench.handle.signal_now(FIRST, 15);
    }
    fake.data(session).write_all(b"alive").unwrap();
    let mut five = [0; 5];
    user.output.read_exact(&mut five).unwrap();
    assert_eq!(&five, b"alive");
    bench.handle.stop();
    flood.join().unwrap();
    bench.join();
}

#[test]
fn stop_ends_a_switch_whose_output_nobody_takes() {
    let (mut bench, fake) = bench(1);
    let _user = bench.first();
    fake.ready();
    let session = fake.start();
    fake.data(session).set_nonblocking(true).unwrap();
    while fake.data(session).write(&[0; 4096]).is_ok() {}
    bench.handle.stop();
    bench.join();
}

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
        let (observer, events) = super::tests::observer();
        let window = Window {
            rows: 5,
            columns: 6,
        };
        bench.handle.attach(streams, Some(window), observer);
        assert_eq!(events.recv_timeout(SOON).unwrap(), Event::Started);
        assert!(matches!(fake.hear(), Heard::Other(text) if text.contains("rows: 5")));
        // A second one is told so.
        let (_other, streams) = pipes();
        let (second, refused) = super::tests::observer();
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
        let (observer, events) = super::tests::observer();
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
    let (second, events) = super::tests::observer();
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
