//! Programs and their sessions: starts, numbers, signals, ends.

use session::Part;

use super::*;

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
        let (early, waits) = super::observer();
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
        for (stream, after) in crate::sessions::slot::STREAMS.into_iter().zip([100_000, 0]) {
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
        let (observer, events) = super::observer();
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
