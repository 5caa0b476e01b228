//! Guests that end too early, or say what makes no sense.

use super::*;

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
